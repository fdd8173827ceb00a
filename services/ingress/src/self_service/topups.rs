//! Topups, the deliveries of their webhooks, and redeliveries.
//!
//! Guarantee: an eSIM is shown only to the partner that ordered it, because each statement filters
//! by the partner. Profiles and the answers of endpoints are stored encrypted, and are decrypted
//! here only to be shown. A redelivery is sent by a notifier; ingress only makes it due.

use accounts::profile::Profile;
use axum::{http::StatusCode, response::Response};
use desk::{
    archived::is_topup_archived,
    self_service::{
        self, ChangePage, ChangePosition, PartnerUnit, PartnerUnitState, SentAgain, TopupChange,
    },
};
use domain::{
    ActivationCode, Agreed, DeliveryId, EndpointId, Metadata, OptionId, TopupId, WebhookId,
};
use serde::Serialize;
use time::{OffsetDateTime, serde::rfc3339};
use utoipa::ToSchema;
use vault::Purpose;
use webhooks::{body::WebhookBody, event::failure, qr::OneTapLinks};

use super::{
    query::{Query, change_cursor},
    session::{PathId, Search, SelfService, Session, json, or_archived},
};
use crate::http::{
    codes::ErrorCode,
    error::{ApiError, RequestFault},
};

/// One unit of an order.
#[derive(Serialize, ToSchema)]
#[expect(clippy::struct_field_names, reason = "the names on the wire")]
pub(super) struct Topup<'a> {
    #[schema(value_type = String, example = "20250129123456123456789012")]
    topup_id: &'a TopupId,
    external_order_id: &'a str,
    #[schema(value_type = Uuid)]
    option_id: OptionId,
    /// What it costs, in minor units of `currency`: the price when it was ordered. Left out if we have
    /// agreed no prices with you.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 1250)]
    price: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "USD")]
    currency: Option<String>,
    /// What you keep with its item; left out if that is nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<HashMap<String, String>>)]
    metadata: Option<&'a Metadata>,
    /// What you keep with its order, where the topup is shown alone; left out if that is nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<HashMap<String, String>>)]
    order_metadata: Option<&'a Metadata>,
    state: PartnerUnitState,
    /// Why the topup has failed; null unless it has.
    error: Option<String>,
    #[serde(with = "rfc3339::option")]
    ready_at: Option<OffsetDateTime>,
    /// The state of the webhook: `pending` (it is or will be sent), `delivered`, `exhausted` (the
    /// retries have ended), or `no_endpoint` (it waits until a webhook URL is set). It is null
    /// before the eSIM is ready.
    delivery: Option<&'a str>,
    #[serde(with = "rfc3339::option")]
    delivered_at: Option<OffsetDateTime>,
    /// When the fields of the eSIM were erased here. Since then they can be neither shown nor sent
    /// again.
    #[serde(with = "rfc3339::option")]
    erased_at: Option<OffsetDateTime>,
    /// When you gave the eSIM back; null unless you did. Its fields are erased at the same time.
    #[serde(with = "rfc3339::option")]
    returned_at: Option<OffsetDateTime>,
    /// The fields of the webhook: null before the eSIM is ready, and again after they were erased.
    esim: Option<WebhookBody<'a>>,
    /// Links to pass on to the customer: null whenever `esim` is.
    install_links: Option<InstallLinks>,
    /// The address of the page to install from, for the customer: only if your account has it in
    /// look-ups. Left out before the eSIM is ready, and after you ended its page or its fields were
    /// erased.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "https://esim.example.com/i/EMAs6JVpXs4UNFSj2jwBb8b1Zk9XnTgGqyXh")]
    install_url: Option<String>,
}

/// Links that begin the installation of the eSIM when they are opened on the phone. They contain the
/// activation code, so whoever has one can install the eSIM.
#[derive(Serialize, ToSchema)]
struct InstallLinks {
    /// For iPhones and iPads with iOS 17.4 or newer.
    #[schema(
        example = "https://esimsetup.apple.com/esim_qrcode_provisioning?carddata=LPA:1$smdp.example.com$A1B2C3D4E5F60718"
    )]
    ios: String,
    /// For Android phones that support such links.
    #[schema(
        example = "https://esimsetup.android.com/esim_qrcode_provisioning?carddata=LPA%3A1%24smdp.example.com%24A1B2C3D4E5F60718"
    )]
    android: String,
}

impl InstallLinks {
    fn new(code: &ActivationCode) -> Self {
        let OneTapLinks { ios, android } = OneTapLinks::new(code);
        Self { ios, android }
    }
}

impl<'a> Topup<'a> {
    /// Makes the description of a unit. `profile` is the decrypted profile if the unit is ready.
    pub(super) fn new(
        unit: &'a PartnerUnit,
        profile: Option<&'a Profile>,
        service: &SelfService,
    ) -> Result<Self, ApiError> {
        // Every field is named, so that a new one cannot be forgotten. The caller has opened
        // `profile`.
        let PartnerUnit {
            topup_id,
            external_order_id,
            agreed,
            metadata,
            order_metadata: _,
            state,
            refusal,
            iccid,
            profile: _,
            ready_at,
            erased_at,
            returned_at,
            delivery,
            delivered_at,
            install_page,
        } = unit;
        let install_url = install_page.map(|number| service.install_url(topup_id, number));
        let qr = &service.qr;
        let Agreed { option_id, price } = agreed;
        let iccid = iccid.as_deref().unwrap_or_default();
        let esim =
            |profile| WebhookBody::new(topup_id, agreed, external_order_id, iccid, profile, qr);
        Ok(Self {
            topup_id,
            external_order_id,
            option_id: *option_id,
            price: price.map(|price| price.minor),
            currency: price.map(|price| price.currency.to_string()),
            metadata: metadata.as_ref(),
            order_metadata: None,
            state: *state,
            error: (*state == PartnerUnitState::Failed).then(|| failure(refusal.as_ref())),
            ready_at: *ready_at,
            delivery: delivery.as_str(),
            delivered_at: *delivered_at,
            erased_at: *erased_at,
            returned_at: *returned_at,
            esim: profile.map(esim),
            install_links: profile.map(|profile| InstallLinks::new(&profile.code)),
            install_url: install_url.transpose()?,
        })
    }

    /// The description of a unit that is shown without its order.
    fn alone(
        unit: &'a PartnerUnit,
        profile: Option<&'a Profile>,
        service: &SelfService,
    ) -> Result<Self, ApiError> {
        Ok(Self {
            order_metadata: unit.order_metadata.as_ref(),
            ..Self::new(unit, profile, service)?
        })
    }
}

/// Decrypts the profile of a ready unit. A profile that cannot be decrypted is an error, because a
/// partner must not take its eSIM for erased.
pub(super) fn profile(session: &Session, unit: &PartnerUnit) -> Result<Option<Profile>, ApiError> {
    let (PartnerUnitState::Ready, Some(sealed)) = (unit.state, &unit.profile) else {
        return Ok(None);
    };
    let vault = &session.service().vault;
    Profile::open(vault, session.id(), &unit.topup_id, sealed)
        .map(Some)
        .map_err(ApiError::internal)
}

/// Look up a topup
///
/// Its state, and the eSIM once it is ready.
#[utoipa::path(get, path = "/topups/{topup_id}", operation_id = "show_topup", tag = "Topups",
    params(("topup_id" = String, Path, description = "The id of the topup, 26 digits, from the answer of create-order")),
    responses((status = 200, description = "The topup", body = Topup), (status = 404, response = crate::http::described::NotFound), (status = 410, response = crate::http::described::Archived)))]
pub(super) async fn show(
    session: Session,
    PathId(id): PathId<TopupId>,
) -> Result<Response, ApiError> {
    let reading = session.read(async |connection, partner| {
        let found = self_service::unit(connection, partner, &id).await?;
        or_archived(found, is_topup_archived(connection, partner, &id)).await
    });
    let unit = reading.await??;
    let profile = profile(&session, &unit)?;
    let topup = Topup::alone(&unit, profile.as_ref(), session.service())?;
    Ok(json(StatusCode::OK, &topup))
}

/// A topup of a list.
#[derive(Serialize, ToSchema)]
struct ListedTopup<'a> {
    #[serde(flatten)]
    topup: Topup<'a>,
    /// What has happened to it, only with `updated_since`. What follows from later changes is shown
    /// as it is now.
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<TopupChange>,
    /// When that happened, only with `updated_since`.
    #[serde(skip_serializing_if = "Option::is_none", with = "rfc3339::option")]
    updated_at: Option<OffsetDateTime>,
}

/// Topups: with an ICCID the newest first, with `updated_since` in the order of their changes.
#[derive(Serialize, ToSchema)]
#[schema(as = Topups)]
struct TopupsResponse<'a> {
    topups: Vec<ListedTopup<'a>>,
    /// The cursor of the next page; null after the last one.
    next_cursor: Option<String>,
    /// Only with `updated_since`: no change until this time is missing in the pages until this one.
    /// After the last page, it is the `updated_since` of your next walk.
    #[serde(with = "rfc3339::option")]
    complete_until: Option<OffsetDateTime>,
}

/// Find topups by ICCID, or walk their changes
///
/// With `iccid`: the topups of your account whose eSIM has this ICCID, the newest first, at most 20.
/// Blanks and hyphens in it do not matter, nor whether it is written with its check digit. The last
/// six digits are looked for among your newest 5,000 topups only.
///
/// With `updated_since`: the topups that became ready, failed, were extended or given back after
/// this time, the oldest change first, for example for the books of a day. A topup that changed
/// twice comes twice. A change appears about a minute after it happened, so that none is missing
/// before `complete_until`. Failures and returns of before this list existed are not in it. A page
/// may hold fewer topups than `limit`; continue until `next_cursor` is null.
///
/// Archived orders are not found.
#[utoipa::path(get, path = "/topups", operation_id = "find_topups", tag = "Topups",
    params(
        ("iccid" = Option<String>, Query, description = "An ICCID of 18 to 20 digits, or exactly its last six digits. Either this or `updated_since` is needed", example = "8981 0000 0000 0000 001"),
        ("updated_since" = Option<String>, Query, format = DateTime, description = "Only changes after this RFC 3339 time"),
        ("updated_until" = Option<String>, Query, format = DateTime, description = "Only changes until this RFC 3339 time; send it with each page"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page, in place of `updated_since`"),
        ("limit" = Option<u16>, Query, minimum = 1, maximum = 100, description = "Maximum number of topups of the page, from 1 to 100; the default is 20")),
    responses((status = 200, description = "The topups; none if no eSIM of yours has this number, or nothing has changed", body = TopupsResponse), (status = 422, response = crate::http::described::Unprocessable)))]
pub(super) async fn list(Search(session, uri): Search) -> Result<Response, ApiError> {
    let mut query = Query::of(&uri);
    if ["updated_since", "cursor"]
        .iter()
        .any(|name| query.has(name))
    {
        return walk(&session, query).await;
    }
    let iccid = query.iccid();
    query.check()?;
    let Some(iccid) = iccid else {
        let fault = RequestFault::new(ErrorCode::IccidInvalid).of_parameter("iccid");
        return Err(ApiError::Unprocessable(vec![fault]));
    };
    let reading = session.read(async |connection, partner| {
        self_service::units_with_iccid(connection, partner, &iccid).await
    });
    let units = reading.await?;
    let profiles: Vec<Option<Profile>> = units
        .iter()
        .map(|unit| profile(&session, unit))
        .collect::<Result<_, ApiError>>()?;
    let both = units.iter().zip(&profiles);
    let topups = both.map(|(unit, profile)| {
        Ok(ListedTopup {
            topup: Topup::alone(unit, profile.as_ref(), session.service())?,
            change: None,
            updated_at: None,
        })
    });
    let found = TopupsResponse {
        topups: topups.collect::<Result<_, ApiError>>()?,
        next_cursor: None,
        complete_until: None,
    };
    Ok(json(StatusCode::OK, &found))
}

/// The answer to `updated_since`.
async fn walk(session: &Session, mut query: Query<'_>) -> Result<Response, ApiError> {
    let limit = query.limit();
    let since = query.time("updated_since");
    let until = query.time("updated_until");
    let cursor = query.change_cursor();
    query.check()?;
    let Some(after) = cursor.or_else(|| since.map(ChangePosition::after)) else {
        return Err(ErrorCode::NotFound.into());
    };
    let page = ChangePage {
        after,
        until,
        limit,
    };
    let reading = session
        .read(async |connection, partner| self_service::changes(connection, partner, &page).await);
    let found = reading.await?;
    let profiles: Vec<Option<Profile>> = found
        .changes
        .iter()
        .map(|changed| profile(session, &changed.unit))
        .collect::<Result<_, ApiError>>()?;
    let both = found.changes.iter().zip(&profiles);
    let topups = both.map(|(changed, profile)| {
        Ok(ListedTopup {
            topup: Topup::alone(&changed.unit, profile.as_ref(), session.service())?,
            change: Some(changed.change),
            updated_at: Some(changed.at),
        })
    });
    let answer = TopupsResponse {
        topups: topups.collect::<Result<_, ApiError>>()?,
        next_cursor: found.next.as_ref().map(change_cursor),
        complete_until: Some(found.complete_until),
    };
    Ok(json(StatusCode::OK, &answer))
}

/// The delivery of the webhook of a topup, with its attempts.
#[derive(Serialize, ToSchema)]
struct Deliveries<'a> {
    #[schema(value_type = String)]
    topup_id: &'a TopupId,
    /// The state: `pending` (it is or will be sent), `delivered`, `exhausted` (the retries have
    /// ended), or `no_endpoint` (it waits until a webhook URL is set). It is null before the eSIM
    /// is ready.
    state: Option<&'a str>,
    #[serde(with = "rfc3339::option")]
    delivered_at: Option<OffsetDateTime>,
    /// When the next attempt is due; null if none is planned.
    #[serde(with = "rfc3339::option")]
    next_attempt_at: Option<OffsetDateTime>,
    /// The newest 100 of the attempts that have ended, the oldest of them first.
    attempts: Vec<AttemptResponse<'a>>,
    /// The deliveries of the same eSIM to your further endpoints. The fields above are about the
    /// first one.
    endpoints: Vec<EndpointDelivery<'a>>,
}

/// The delivery of a topup's webhook to a further endpoint.
#[derive(Serialize, ToSchema)]
struct EndpointDelivery<'a> {
    #[schema(value_type = Uuid)]
    endpoint_id: EndpointId,
    /// `pending` (it is or will be sent), `delivered`, or `exhausted` (the retries have ended).
    state: &'a str,
    #[serde(with = "rfc3339::option")]
    delivered_at: Option<OffsetDateTime>,
    /// When the next attempt is due; null if none is planned.
    #[serde(with = "rfc3339::option")]
    next_attempt_at: Option<OffsetDateTime>,
    /// The newest 100 of the attempts that have ended, the oldest of them first.
    attempts: Vec<AttemptResponse<'a>>,
}

/// One attempt to deliver a webhook.
#[derive(Serialize, ToSchema)]
#[schema(as = Attempt)]
pub(super) struct AttemptResponse<'a> {
    /// The number of the attempt, from 1.
    attempt: i32,
    #[serde(with = "rfc3339")]
    at: OffsetDateTime,
    duration_ms: i32,
    /// The HTTP status of your response; null if none arrived.
    status: Option<i32>,
    /// `delivered`, or why the attempt failed: `status_5xx`, `timeout`, `tls`, `forbidden`, …
    outcome: &'a str,
    /// What was wrong, if no readable response arrived, for example that your certificate has
    /// expired. It is for people, and its wording may change.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
    /// The first bytes of the body of your response, if it did not acknowledge the webhook, or if
    /// it answered a test.
    answer: Option<String>,
}

/// List the attempts of a topup's webhook
#[utoipa::path(get, path = "/topups/{topup_id}/deliveries", operation_id = "list_deliveries", tag = "Topups",
    params(("topup_id" = String, Path, description = "The id of the topup, 26 digits")),
    responses((status = 200, description = "The delivery with its attempts", body = Deliveries), (status = 404, response = crate::http::described::NotFound), (status = 410, response = crate::http::described::Archived)))]
pub(super) async fn deliveries(
    session: Session,
    PathId(id): PathId<TopupId>,
) -> Result<Response, ApiError> {
    let reading = session.read(async |connection, partner| {
        let found = self_service::delivery(connection, partner, &id).await?;
        or_archived(found, is_topup_archived(connection, partner, &id)).await
    });
    let delivery = reading.await??;
    let attempts = delivery
        .id
        .map(|id| attempts(session.service(), id, &delivery.attempts));
    let further = delivery.further.iter().map(|further| EndpointDelivery {
        endpoint_id: further.endpoint_id,
        state: further.state.as_str(),
        delivered_at: further.delivered_at,
        next_attempt_at: further.next_attempt_at,
        attempts: self::attempts(session.service(), further.id, &further.attempts),
    });
    let shown = Deliveries {
        endpoints: further.collect(),
        topup_id: &id,
        state: delivery.state.as_str(),
        delivered_at: delivery.delivered_at,
        next_attempt_at: delivery.next_attempt_at,
        attempts: attempts.unwrap_or_default(),
    };
    Ok(json(StatusCode::OK, &shown))
}

/// The attempts of a delivery as they are shown, with the decrypted responses of the endpoint.
pub(super) fn attempts<'a>(
    service: &SelfService,
    id: DeliveryId,
    made: &'a [self_service::Attempt],
) -> Vec<AttemptResponse<'a>> {
    let shown = made.iter().map(|attempt| AttemptResponse {
        attempt: attempt.attempt + 1,
        at: attempt.at,
        duration_ms: attempt.duration_ms,
        status: attempt.status,
        outcome: &attempt.class,
        detail: attempt.detail.as_deref(),
        answer: answer(service, id, attempt),
    });
    shown.collect()
}

/// Decrypts the response of the endpoint. One that cannot be decrypted is left out, because the
/// rest of the attempt is still worth showing.
fn answer(
    service: &SelfService,
    id: DeliveryId,
    attempt: &self_service::Attempt,
) -> Option<String> {
    let number = u32::try_from(attempt.attempt).ok()?;
    let sealed = attempt.response_start.as_ref()?;
    let opened = service
        .vault
        .open(Purpose::Response(id, number), sealed)
        .ok()?;
    Some(String::from_utf8_lossy(&opened).into_owned())
}

/// A webhook that is sent again.
#[derive(Serialize, ToSchema)]
struct Redelivery<'a> {
    #[schema(value_type = String)]
    topup_id: &'a TopupId,
    /// Always `pending`: the webhook is sent within seconds.
    delivery: &'a str,
}

/// Send a topup's webhook again
///
/// Starts the retries of the webhook from the beginning, with the same `webhook-id`, so that your
/// program can recognise the repeat. This is not possible within a minute of the last attempt of the
/// webhook at that endpoint, whoever caused that attempt. While the webhook waits to be sent, repeating
/// the request changes nothing and gets the same answer; so does one of two requests at once. Without
/// `endpoint_id` the webhook is sent to your first endpoint. An endpoint that you created after the eSIM
/// was ready gets it in this way, too.
#[utoipa::path(post, path = "/topups/{topup_id}/redeliver", operation_id = "redeliver", tag = "Topups",
    params(
        ("topup_id" = String, Path, description = "The id of the topup, 26 digits"),
        ("endpoint_id" = Option<Uuid>, Query, description = "The endpoint that the webhook is sent to; the default is the first one")),
    responses(
        (status = 202, description = "The webhook is sent within seconds", body = Redelivery),
        (status = 404, response = crate::http::described::NotFound),
        (status = 410, response = crate::http::described::Archived),
        (status = 409, description = "The eSIM is not ready (`topup_not_ready`), its fields were erased (`topup_erased`), or no webhook URL is set (`webhook_url_missing`)", body = crate::http::described::Message),
        (status = 422, response = crate::http::described::Unprocessable),
        (status = 429, description = "The last attempt began less than a minute ago (`redelivered_recently`); `Retry-After` says when to try again", body = crate::http::described::Message)))]
pub(super) async fn redeliver(
    Search(session, uri): Search,
    PathId(id): PathId<TopupId>,
) -> Result<Response, ApiError> {
    let mut query = Query::of(&uri);
    let endpoint = query.endpoint();
    query.check()?;
    send_again(&session, &id.clone().into(), endpoint).await?;
    Ok(json(
        StatusCode::ACCEPTED,
        &Redelivery {
            topup_id: &id,
            delivery: "pending",
        },
    ))
}

/// Makes a delivery of the partner due again, whether it is about a topup or an event. If it is due
/// already, or an attempt is in flight, this changes nothing and succeeds.
/// `endpoint` says which delivery of a topup; without it, it is the one to the first endpoint.
pub(super) async fn send_again(
    session: &Session,
    id: &WebhookId,
    endpoint: Option<EndpointId>,
) -> Result<(), ApiError> {
    let interval = session.gate().limits.redeliver_interval;
    let redelivering = session.change(async |connection, partner| {
        self_service::send_again(connection, partner, id, endpoint, interval).await
    });
    match (redelivering.await?, id) {
        (SentAgain::Again | SentAgain::Due, _) => Ok(()),
        (SentAgain::TooSoon(wait), _) => {
            Err(ApiError::too_soon(ErrorCode::RedeliveredRecently, wait))
        }
        (SentAgain::NotReady, _) => Err(ErrorCode::TopupNotReady.into()),
        (SentAgain::Gone, WebhookId::Topup(topup)) => {
            let unit = session.look(async |connection, partner| {
                self_service::unit(connection, partner, topup).await
            });
            let returned = unit.await?.is_some_and(|unit| unit.returned_at.is_some());
            Err(if returned {
                ErrorCode::TopupReturned
            } else {
                ErrorCode::TopupErased
            }
            .into())
        }
        (SentAgain::Gone, WebhookId::Event(_)) => Err(ErrorCode::EventVoid.into()),
        (SentAgain::NoEndpoint, _) => Err(ErrorCode::WebhookUrlMissing.into()),
        (SentAgain::Unknown, WebhookId::Topup(topup)) => {
            let reading = session.read(async |connection, partner| {
                let found = self_service::unit(connection, partner, topup).await?;
                or_archived(found, is_topup_archived(connection, partner, topup)).await
            });
            Err(match reading.await? {
                Err(code) => code,
                // It has a unit and no delivery: it was erased a moment ago.
                Ok(_) => ErrorCode::TopupErased,
            }
            .into())
        }
        (SentAgain::NotMyEndpoint, _) | (SentAgain::Unknown, WebhookId::Event(_)) => {
            Err(ErrorCode::NotFound.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn install_links_carry_the_activation_code() {
        let code = ActivationCode::parse("LPA:1$smdp.example.com$AB-12").unwrap();
        let links = InstallLinks::new(&code);
        assert_eq!(
            links.ios,
            "https://esimsetup.apple.com/esim_qrcode_provisioning?carddata=LPA:1$smdp.example.com$AB-12"
        );
        assert_eq!(
            links.android,
            "https://esimsetup.android.com/esim_qrcode_provisioning?carddata=LPA%3A1%24smdp.example.com%24AB-12"
        );
        let read: url::Url = links.ios.parse().unwrap();
        assert_eq!(read.as_str(), links.ios, "nothing has to be encoded");
    }
}
