//! The handler of create-order. It authenticates the request, admits it within the limits of the
//! partner and of this process ([`crate::access`]), reads and parses its body, and hands the order
//! to [`super::accept`], which stores it and decides the answer.
//!
//! Guarantees: nothing is stored before all checks have passed. The body is read only after the
//! signature is verified and the order is admitted, so that a flood of requests without valid keys
//! costs no memory. The body of the 201 is of a type that reports when the answer has left
//! ([`crate::http::connection`]), because readiness events are held until then.
//!
//! [`crate::routes`] calls it.

use std::{sync::Arc, time::Instant};

use anyhow::Context;
use axum::{
    Extension,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use domain::Right;
use tracing::{Span, field};

use crate::{
    access::{
        admission::AdmittedOrder, authentication::SignedRequest, directory::KnownPartner,
        gate::RequestGate,
    },
    http::{
        body,
        codes::ErrorCode,
        connection::{Connection, answer_body},
        described::{self, Repeat},
        error::{self, ApiError, ErrorRecord, RateState},
        refusals::{ExternalOrderId, RequestSender},
    },
    limits::OrderSize,
    metrics::Metrics,
    orders::{
        accept::{CreatedAnswer, OrderService, OrderSuccess},
        answer, check,
        mishap::Mishaps,
        repeat::{IfTaken, RepeatHeader, WantedOrder},
        request::{self, Draft},
        result,
    },
};

/// What create-order needs.
pub(crate) struct CreateOrder {
    pub(crate) gate: Arc<RequestGate>,
    pub(crate) orders: Arc<OrderService>,
    pub(crate) mishaps: Mishaps,
    pub(crate) repeat_header: RepeatHeader,
    pub(crate) metrics: Metrics,
}

/// An order that was read and admitted. It may still have errors, which are reported together with
/// those that the catalogue shows.
struct Received {
    draft: Draft,
    if_taken: IfTaken,
    admitted: AdmittedOrder,
}

/// What is known of a request before it is clear what becomes of it.
#[derive(Default)]
struct Notes {
    external_order_id: Option<String>,
    /// What is left of the partner's orders per second. Before the order is counted, and if it
    /// never is because of its own errors, it is what is left of its requests.
    rate: Option<RateState>,
}

/// Create an order
///
/// The answer names one topup for each unit of the order. When the eSIM of a topup is ready, a
/// webhook is sent for it. Without a definite answer, which the guide defines, repeat the request
/// with the same `external_order_id` until you get one. With `X-Service-Repeat: answer` a repeat gets
/// the answer of the first request, as a 200; without it, a 422 says that the id is taken.
#[utoipa::path(post, path = "/orders", operation_id = "create_order", tag = "Orders", request_body = described::OrderRequest,
    params(("X-Service-Repeat" = Option<Repeat>, Header, description = "Send `answer` with an order and its repeats. If an earlier request has stored the order, the repeat gets its answer: the same topups in the same order. It compares the units that are ordered; an order of other units is refused (`order_differs`)")),
    responses(
        (status = 200, description = "Only with `X-Service-Repeat: answer`: an earlier request stored this order, and this is its answer. Nothing more is bought", body = answer::CreatedOrder,
            headers(("Location" = String, description = "The path of the order"), ("X-Service-Repeat" = String, description = "`answered`"))),
        (status = 202, description = "Only with `X-Service-Repeat: answer`: an earlier request with this `external_order_id` has no answer yet, and its order may still be refused. This request stored nothing; send it again after `Retry-After` seconds", body = described::UndecidedOrder,
            headers(("X-Service-Repeat" = String, description = "`undecided`"))),
        (status = 409, description = "Only with `X-Service-Repeat: answer`: an earlier request has stored an order of other units with this id (`order_differs`). Nothing is bought by this request", body = described::Message,
            headers(("Location" = String, description = "The path of the order that is stored"))),
        (status = 410, description = "Only with `X-Service-Repeat: answer`: an earlier request has stored an order with this id, which is archived (`order_archived`). Nothing is bought by this request", body = described::Message),
        (status = 201, description = "The order is stored", body = answer::CreatedOrder,
            headers(("Location" = String, description = "The path of the order"))),
        (status = 400, response = described::InvalidJson),
        (status = 422, response = described::Unprocessable),
        (status = 500, response = described::Internal)))]
pub(crate) async fn create_order(
    State(app): State<Arc<CreateOrder>>,
    // Put there by [`crate::http::server`], with each request.
    Extension(connection): Extension<Arc<Connection>>,
    request: Request,
) -> Response {
    let began = Instant::now();
    let (parts, body) = request.into_parts();
    let signed = match app.gate.authenticator.head(&parts, Right::Order).await {
        Ok(signed) => signed,
        Err(error) => {
            let response = error.into_response();
            // A 401 is no order, but one that could not be checked is lost like any other.
            if response.status().is_server_error() {
                app.metrics.answered(began.elapsed(), true);
            }
            return response;
        }
    };
    let partner = &signed.partner;
    Span::current().record("partner.id", field::display(partner.id));
    let mut notes = Notes::default();
    let received = receive(&app, &signed, &parts.headers, body, &mut notes).await;
    let mut is_mishap = false;
    let mut response = match received {
        Ok(received) => {
            // Only an order of a sandbox account can ask for one.
            let mishap = app.mishaps.wanted(partner, &received.draft, Instant::now());
            is_mishap = mishap.is_some();
            let responding = respond(&app, partner, parts.uri.path(), received, &connection);
            match mishap {
                None => responding.await,
                Some(mishap) => mishap.instead_of(responding, &connection).await,
            }
        }
        Err(error) => {
            app.metrics.order(partner.id, result::of(&error), 0);
            error.into_response()
        }
    };
    if let Some(rate) = notes.rate {
        error::show_rate(&mut response, rate);
    }
    // A failure that a sandbox partner has asked for is none of ours.
    if !is_mishap {
        let failed = response.status().is_server_error();
        app.metrics.answered(began.elapsed(), failed);
    }
    // The log line and the metric of a refused request name its partner. They are made in
    // [`crate::observe`], outside of this handler, so the response carries the partner's id
    // there.
    response
        .extensions_mut()
        .insert(RequestSender::signed(partner.id));
    if response.extensions().get::<ErrorRecord>().is_some()
        && let Some(id) = notes.external_order_id
    {
        response.extensions_mut().insert(ExternalOrderId(id));
    }
    response
}

/// Admits an order, reads its body and parses it. Each step is cheaper than the next one, so that a
/// request that will be refused costs as little as possible. Notes the external id once it is
/// known, for the record of a refused order, and what is left of the partner's rate.
async fn receive(
    app: &CreateOrder,
    signed: &SignedRequest,
    headers: &HeaderMap,
    body: Body,
    notes: &mut Notes,
) -> Result<Received, ApiError> {
    notes.rate = Some(app.gate.admission.count_request(&signed.partner)?);
    let if_taken = app.repeat_header.read(headers)?;
    let most = body::most_bytes(app.gate.max_body, headers)?;
    let mut admitted = app
        .gate
        .admission
        .admit_order(&signed.partner, most as u64)?;
    let body = body::read_stream(app.gate.max_body, body).await?;
    app.gate.authenticator.body(signed, &body)?;
    let max = OrderSize {
        units: app
            .gate
            .admission
            .rates
            .units_per_order(&signed.partner)
            .into(),
        ..app.gate.max_order
    };
    let draft = request::read(&body, max)?;
    notes.external_order_id.clone_from(&draft.external_order_id);
    // An order with errors is refused by [`create`] anyway, so it does not use up any of the orders
    // and units per second that the partner may send.
    let units = draft.units().filter(|_| draft.errors.is_empty());
    if let Some(units) = units {
        notes.rate = Some(admitted.count_order(units)?);
    }
    Ok(Received {
        draft,
        if_taken,
        admitted,
    })
}

/// The response to an order that was read and admitted.
async fn respond(
    app: &CreateOrder,
    partner: &KnownPartner,
    orders_path: &str,
    received: Received,
    connection: &Arc<Connection>,
) -> Response {
    let location = location(orders_path, received.draft.external_order_id.as_deref());
    let created = create(app, partner, received, Arc::clone(connection)).await;
    let is_stored = match &created {
        Ok(response) => response.status() != StatusCode::ACCEPTED,
        Err(ApiError::Unprocessable(faults)) => check::any_is_taken(faults),
        Err(ApiError::Plain { code, .. }) => *code == ErrorCode::OrderDiffers,
        Err(_) => false,
    };
    let mut response = created.unwrap_or_else(ApiError::into_response);
    if let Some(location) = location.filter(|_| is_stored) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// Checks the order against the catalogue, has it stored, and makes its 201. Every result is
/// counted once: here if the order is not submitted, and otherwise in its task.
async fn create(
    app: &CreateOrder,
    partner: &KnownPartner,
    received: Received,
    connection: Arc<Connection>,
) -> Result<Response, ApiError> {
    let Received {
        draft,
        if_taken,
        admitted,
    } = received;
    // What a repeat asks for, in case that its options can no longer be ordered.
    let repeated = (if_taken == IfTaken::Answer && draft.errors.is_empty()).then(|| {
        (
            draft.external_order_id.clone(),
            WantedOrder::of_draft(&draft),
        )
    });
    let mut checked = app.orders.check(partner, draft).await;
    if let (Err(_), Some((Some(id), wanted))) = (&checked, repeated) {
        match app.orders.repeat_of(partner.id, &id, &wanted).await {
            Ok(Some(repeated)) => {
                app.orders.count_repeat(partner.id, &repeated);
                return Ok(app.repeat_header.response(repeated));
            }
            Ok(None) => {}
            Err(error) => checked = Err(error),
        }
    }
    let order = checked.inspect_err(|error| app.metrics.order(partner.id, result::of(error), 0))?;
    Span::current().record("order.id", field::display(order.order_id));
    let answered = app.orders.submit(order, if_taken, admitted).await;
    let answered = answered.context("the order's task ended without an answer");
    let CreatedAnswer {
        body,
        deadline,
        left,
    } = match answered.map_err(ApiError::Internal)?? {
        OrderSuccess::Created(created) => created,
        OrderSuccess::Repeated(repeated) => return Ok(app.repeat_header.response(repeated)),
    };
    let headers = [(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    )];
    Ok((
        StatusCode::CREATED,
        headers,
        answer_body(body, connection, deadline, left),
    )
        .into_response())
}

/// The path at which an order is looked up, below the path that it was posted to. A partner that
/// uses the short form of the prefix thus gets the short form back.
fn location(orders_path: &str, external_order_id: Option<&str>) -> Option<HeaderValue> {
    let id = external_order_id?;
    let path = match id {
        // Clients and proxies remove these segments from a path, in every encoding.
        "." | ".." => format!("{orders_path}?external_order_id={id}"),
        _ => format!("{orders_path}/{}", webhooks::qr::path_segment(id)),
    };
    HeaderValue::try_from(path).ok()
}
