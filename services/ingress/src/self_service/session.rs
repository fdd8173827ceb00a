//! What the handlers of self-service share: the state of all, the request that was admitted, and
//! the middleware that admits it.
//!
//! A handler takes a [`Session`], which exists only for a request that [`admit`] has authenticated
//! and admitted, so a handler cannot forget these checks.

use std::{
    pin::Pin,
    str::FromStr,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use accounts::partners::Overlap;
use axum::{
    body::{Body, Bytes},
    extract::{FromRequestParts, Path, Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use domain::{Environment, PartnerId, Right, TopupId};
use http_body::{Frame, SizeHint};
use pg::{Database, PgConnection};
use serde::Serialize;
use store::Unflushed;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::field;
use vault::Vault;
use webhooks::{dns::Dns, guard::Guard, qr::QrUrls};

use super::query;
use crate::{
    access::{
        authentication::SignedRequest, directory::KnownPartner, gate::RequestGate,
        in_flight::InFlightPermit, install_token::token,
    },
    http::{
        body,
        codes::ErrorCode,
        error::{self, ApiError},
        left::LeftAnswers,
        refusals::RequestSender,
    },
};

/// The longest time that a request waits for one of the connections of self-service. Then it gets a
/// 503.
const CONNECTION_WAIT: Duration = Duration::from_secs(2);
/// After a rotation by the partner, the old keys or the old secret stay valid for a day. A further
/// rotation in this time is refused, because it would end the old ones early.
pub(super) const OVERLAP: Overlap = Overlap {
    lasts: Duration::from_hours(24),
    keep_old: false,
};

/// What the handlers of these requests need.
pub(crate) struct SelfService {
    pub(crate) gate: Arc<RequestGate>,
    /// Which orders have got their answers, for those that are cancelled early.
    pub(crate) left_answers: Arc<LeftAnswers>,
    pub(crate) database: Database,
    /// Limits the database connections that these requests use at once.
    /// Requests get them in the order of their arrival. A flood of one partner does not starve the
    /// others, because [`Admission::self_service`](crate::access::admission::Admission) bounds the
    /// share of each partner.
    pub(crate) connections: Semaphore,
    pub(crate) vault: Vault,
    pub(crate) guard: Guard,
    /// Resolves the host of a new webhook URL.
    pub(crate) dns: Dns,
    /// Limits the look-ups in flight, so that many new URLs do not overload the name servers.
    pub(crate) resolving: Semaphore,
    /// Makes `qrcode_img_url` of eSIMs that are shown.
    pub(crate) qr: QrUrls,
    /// The public base URL of ingress, without a final slash.
    pub(crate) public_url: String,
    /// The providers whose options live partners may order.
    pub(crate) providers: Vec<String>,
    /// The sender of notices by e-mail; `None` if they can only go to URLs.
    pub(crate) mail_from: Option<String>,
    /// The addresses from which webhooks come; empty if partners have to ask for them.
    pub(crate) source_addresses: Vec<String>,
    /// The soft stop, which ends requests that wait for something to happen.
    pub(crate) stop: CancellationToken,
}

impl SelfService {
    /// The address of the page to install a topup from that has this number. It is as good as the
    /// activation code, so never log it.
    pub(super) fn install_url(&self, topup_id: &TopupId, number: i32) -> Result<String, ApiError> {
        let token = token(&self.vault, topup_id, number).map_err(ApiError::internal)?;
        Ok(format!("{}/i/{token}", self.public_url))
    }
}

/// The path of the long poll.
pub(super) const LISTEN: &str = "/webhook/listen";

/// How a request is admitted.
#[derive(Clone, Copy, Debug)]
pub(super) enum AdmissionKind {
    /// It is answered soon.
    Short,
    /// It may wait long for something to happen, and has a limit of its own.
    Listener,
}

impl AdmissionKind {
    pub(super) fn of(path: &str) -> Self {
        if path == LISTEN {
            Self::Listener
        } else {
            Self::Short
        }
    }
}

/// What the middleware of a route knows.
#[derive(Clone)]
pub(super) struct RouteAdmission {
    pub(super) gate: Arc<RequestGate>,
    pub(super) kind: AdmissionKind,
    /// What the key of a request needs.
    pub(super) right: Right,
}

/// A request of a partner that was authenticated and admitted. A handler that takes it has no
/// parameters in its query, so a request with one is refused; see [`Search`].
pub(super) struct Session {
    service: Arc<SelfService>,
    pub(super) partner: Arc<KnownPartner>,
    /// Whether the signature of the request covers its body.
    is_body_signed: bool,
}

/// The part of a [`Session`] that [`admit`] passes on with the request.
#[derive(Clone)]
struct AdmittedRequest {
    partner: Arc<KnownPartner>,
    is_body_signed: bool,
}

/// A [`Session`] with the URI of the request, for a handler that reads its parameters with
/// [`query::Query`].
pub(super) struct Search(pub(super) Session, pub(super) Uri);

impl FromRequestParts<Arc<SelfService>> for Session {
    type Rejection = ApiError;

    async fn from_request_parts(
        parts: &mut Parts,
        service: &Arc<SelfService>,
    ) -> Result<Self, ApiError> {
        query::no_parameters(&parts.uri)?;
        Self::admitted(parts, service)
    }
}

impl FromRequestParts<Arc<SelfService>> for Search {
    type Rejection = ApiError;

    async fn from_request_parts(
        parts: &mut Parts,
        service: &Arc<SelfService>,
    ) -> Result<Self, ApiError> {
        Ok(Self(Session::admitted(parts, service)?, parts.uri.clone()))
    }
}

impl Session {
    fn admitted(parts: &Parts, service: &Arc<SelfService>) -> Result<Self, ApiError> {
        let admitted = parts.extensions.get::<AdmittedRequest>().cloned();
        let missing = || ApiError::internal(anyhow::anyhow!("the request is not admitted"));
        let admitted = admitted.ok_or_else(missing)?;
        Ok(Self {
            service: Arc::clone(service),
            partner: admitted.partner,
            is_body_signed: admitted.is_body_signed,
        })
    }

    pub(super) fn service(&self) -> &SelfService {
        &self.service
    }

    pub(super) fn gate(&self) -> &RequestGate {
        &self.service.gate
    }

    pub(super) fn id(&self) -> PartnerId {
        self.partner.id
    }

    pub(super) fn environment(&self) -> Environment {
        self.partner.environment
    }

    /// Refuses a request whose signature does not cover its body. For requests whose body decides
    /// what many webhooks are sent again, because a signature of the specified form would also be
    /// valid for another body.
    pub(super) fn requires_signed_body(&self) -> Result<(), ApiError> {
        if self.is_body_signed {
            Ok(())
        } else {
            Err(self.gate().authenticator.body_not_signed())
        }
    }

    /// Refuses a request that a further key has signed. For what gives or ends all that the first
    /// key has.
    pub(super) fn requires_first_key(&self) -> Result<(), ApiError> {
        if self.partner.credential.is_first {
            Ok(())
        } else {
            Err(ErrorCode::FirstKeyRequired.into())
        }
    }

    /// Runs `work` on one of the connections that self-service may use. Returns a 503 if none gets
    /// free in time.
    pub(super) async fn run<T>(
        &self,
        work: impl AsyncFnOnce(&mut PgConnection, PartnerId) -> Result<T, pg::Error>,
    ) -> Result<T, ApiError> {
        let service = self.service();
        let id = self.id();
        let Ok(_permit) =
            tokio::time::timeout(CONNECTION_WAIT, service.connections.acquire()).await
        else {
            return Err(ApiError::overloaded("self_service_connection"));
        };
        let work = async |connection: &mut PgConnection| work(connection, id).await;
        service.database.run(work).await.map_err(ApiError::internal)
    }

    /// Runs `work` that reads of orders, which the partner is told once that is on disk.
    pub(super) async fn look<T>(
        &self,
        work: impl AsyncFnOnce(&mut PgConnection, PartnerId) -> Result<Unflushed<T>, pg::Error>,
    ) -> Result<T, ApiError> {
        let look = async |connection: &mut PgConnection, id| {
            let seen = work(&mut *connection, id).await?;
            seen.after_flush(connection).await
        };
        self.run(look).await
    }

    /// Runs `work` that changes something which is recorded. Each record is kept, so a partner
    /// makes only so many per second; further ones get a 429.
    pub(super) async fn change<T>(
        &self,
        work: impl AsyncFnOnce(&mut PgConnection, PartnerId) -> Result<T, pg::Error>,
    ) -> Result<T, ApiError> {
        self.gate()
            .admission
            .rates
            .of(&self.partner)
            .count_change()?;
        // What changes nothing may still say what it has found.
        let work = async |connection: &mut PgConnection, id| {
            Ok(Unflushed::of(work(connection, id).await?))
        };
        self.look(work).await
    }

    /// Reads on one snapshot, as an answer needs it that is composed of several statements; see
    /// [`desk::self_service::snapshot`].
    pub(super) async fn read<T>(
        &self,
        work: impl AsyncFnOnce(&mut PgConnection, PartnerId) -> Result<Unflushed<T>, pg::Error>,
    ) -> Result<T, ApiError> {
        let read = async |connection: &mut PgConnection, id| {
            let work = async |connection: &mut PgConnection| work(connection, id).await;
            desk::self_service::snapshot(connection, work).await
        };
        self.look(read).await
    }
}

/// What was found, or the code of the error if nothing was. `is_archived` asks whether the order of
/// what is missing was moved into the archive. Both belong together, so they have to be read on one
/// snapshot; see [`Session::read`].
pub(super) async fn or_archived<T>(
    found: Unflushed<Option<T>>,
    is_archived: impl Future<Output = Result<bool, pg::Error>>,
) -> Result<Unflushed<Result<T, ErrorCode>>, pg::Error> {
    let or_archived = async |found: Option<T>| {
        Ok(Unflushed::of(match found {
            Some(found) => Ok(found),
            None if is_archived.await? => Err(ErrorCode::OrderArchived),
            None => Err(ErrorCode::NotFound),
        }))
    };
    found.then(or_archived).await
}

/// The id in a path, percent-decoded. A text that cannot be an id gets a 404 like an unknown id,
/// because for the partner both mean the same.
pub(super) struct PathId<T>(pub(super) T);

impl<T: FromStr, S: Send + Sync> FromRequestParts<S> for PathId<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = Path::<String>::from_request_parts(parts, state).await.ok();
        path.and_then(|Path(text)| text.parse().ok())
            .map(Self)
            .ok_or(ErrorCode::NotFound.into())
    }
}

/// The middleware of these routes. It authenticates and admits a request, and forbids caches to
/// store the response.
pub(super) async fn admit(
    State(RouteAdmission { gate, kind, right }): State<RouteAdmission>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let signed = match gate.authenticator.head(&parts, right).await {
        Ok(signed) => signed,
        Err(error) => return error.into_response(),
    };
    let id = signed.partner.id;
    tracing::Span::current().record("partner.id", field::display(id));
    let rate = match gate.admission.count_request(&signed.partner) {
        Ok(rate) => rate,
        Err(error) => return sent_by(error.into_response(), id),
    };
    let admitted = async {
        let in_flight = match kind {
            AdmissionKind::Short => gate.admission.admit_self_service(&signed.partner).await?,
            AdmissionKind::Listener => gate.admission.admit_listener(&signed.partner)?,
        };
        let permit = Arc::new(in_flight);
        let body = checked(&gate, &signed, &parts.headers, body).await?;
        parts.extensions.insert(AdmittedRequest {
            is_body_signed: signed.body_digest.is_some(),
            partner: signed.partner,
        });
        let response = next.run(Request::from_parts(parts, body)).await;
        Ok::<_, ApiError>(response.map(|body| Body::new(PermitBody { body, permit })))
    };
    let mut response = admitted.await.unwrap_or_else(ApiError::into_response);
    error::show_rate(&mut response, rate);
    sent_by(response, id)
}

/// The response to a partner.
fn sent_by(mut response: Response, id: PartnerId) -> Response {
    response.extensions_mut().insert(RequestSender::signed(id));
    response
}

/// Returns the body of a request. A body that the signature covers is first read and checked; any
/// other is left to the handler.
async fn checked(
    gate: &RequestGate,
    signed: &SignedRequest,
    headers: &HeaderMap,
    body: Body,
) -> Result<Body, ApiError> {
    if signed.body_digest.is_none() {
        return Ok(body);
    }
    let body = body::read(gate.max_body, headers, body).await?;
    gate.authenticator.body(signed, &body)?;
    Ok(body.into())
}

/// A response body that holds the permit of its request until the client has read it. Otherwise a
/// client that reads slowly could collect responses in our memory without a limit.
struct PermitBody {
    body: Body,
    permit: Arc<InFlightPermit>,
}

/// Bytes of a response. They hold the permit, too, because they live on in the write buffer after
/// the body has ended.
struct PermitBytes {
    data: Bytes,
    _permit: Arc<InFlightPermit>,
}

impl AsRef<[u8]> for PermitBytes {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl http_body::Body for PermitBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let held = |data| {
            Bytes::from_owner(PermitBytes {
                data,
                _permit: Arc::clone(&self.permit),
            })
        };
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(held))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Makes an answer. A body that cannot be written is a 500, whatever `status` is.
pub(super) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(body) => {
            let json = HeaderValue::from_static("application/json");
            (status, [(header::CONTENT_TYPE, json)], body).into_response()
        }
        Err(error) => ApiError::internal(error).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_cannot_be_written_is_a_500() {
        let unwritable = std::collections::BTreeMap::from([((), 1)]);
        let answer = json(StatusCode::ACCEPTED, &unwritable);
        assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let error = answer.extensions().get::<error::ErrorRecord>();
        assert_eq!(error.map(|error| error.reason), Some("internal_error"));
        let answer = json(StatusCode::ACCEPTED, &[1]);
        assert_eq!(answer.status(), StatusCode::ACCEPTED);
        assert_eq!(answer.headers()[header::CONTENT_TYPE], "application/json");
    }
}
