//! The partner API: `POST /api/v1/api_partner/orders` with our signature, answers and refusals, and
//! `POST /partners`, with which the load generator makes its partners.

use crate::partner::{Partner, Partners, Row};
use crate::provider::Unit;
use anyhow::Result;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use domain::{TopupIds, sandbox_option};
use serde::Deserialize;
use serde_json::{Value, json};
use signing::{generate, request};
use std::collections::HashSet;
use std::sync::Arc;
use time::OffsetDateTime;
use uuid::Uuid;

/// The options that are on sale: those of the sandbox that say yes.
const ON_SALE: [&str; 4] = ["ready", "delayed", "slow", "flapping"];
/// The largest difference between a partner's clock and ours, in seconds.
const WINDOW: u64 = 300;
const MAX_UNITS: usize = 1_000;

/// An order that is to be stored.
pub struct Order {
    pub order_id: Uuid,
    pub partner_id: Uuid,
    pub external_order_id: String,
    pub units: Vec<Unit>,
}

/// What a peer does with its queue and its tables.
pub trait Orders: Send + Sync + 'static {
    /// Stores a new partner.
    fn add_partner(&self, row: &Row) -> impl Future<Output = Result<()>> + Send;

    /// Stores the order and the job that buys it, or neither. Returns false if the partner has used
    /// the external order id before.
    fn store(&self, order: Order) -> impl Future<Output = Result<bool>> + Send;
}

struct Peer<O> {
    orders: O,
    partners: Partners,
    topup_ids: TopupIds,
    on_sale: HashSet<Uuid>,
}

/// The routes of a peer.
pub fn router<O: Orders>(orders: O, partners: Partners) -> Result<Router> {
    let (_, seed) = generate::keys()?;
    let peer = Peer {
        orders,
        partners,
        topup_ids: TopupIds::new(seed.expose().try_into()?),
        on_sale: ON_SALE.map(option_id).into(),
    };
    Ok(Router::new()
        .route("/readyz", get(|| async {}))
        .route("/partners", post(add_partner::<O>))
        .route("/api/v1/api_partner/orders", post(create::<O>))
        .with_state(Arc::new(peer)))
}

/// The id of an option of the sandbox.
fn option_id(name: &str) -> Uuid {
    sandbox_option(name).uuid()
}

#[derive(Deserialize)]
struct NewPartner {
    webhook_url: String,
}

async fn add_partner<O: Orders>(
    State(peer): State<Arc<Peer<O>>>,
    Json(new): Json<NewPartner>,
) -> Result<Json<Value>, Failed> {
    let row = Row::new(new.webhook_url)?;
    peer.orders.add_partner(&row).await?;
    let created = json!({
        "partner_id": row.partner_id,
        "access_key": row.access_key,
        "secret_key": row.secret_key,
        "webhook_secret": row.webhook_secret,
    });
    peer.partners.add(row)?;
    Ok(Json(created))
}

#[derive(Deserialize)]
struct NewOrder {
    external_order_id: String,
    products: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    option_id: Uuid,
    qty: usize,
}

async fn create<O: Orders>(
    State(peer): State<Arc<Peer<O>>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Failed> {
    let now = OffsetDateTime::now_utc();
    let partner = match authenticate(&peer.partners, uri.path(), &headers, now) {
        Ok(partner) => partner,
        Err(message) => return Ok(unauthorized(message)),
    };
    let Ok(json) = serde_json::from_slice::<Value>(&body) else {
        let error = json!({ "error": "Invalid JSON format" });
        return Ok((StatusCode::BAD_REQUEST, Json(error)).into_response());
    };
    let Ok(new) = NewOrder::deserialize(json) else {
        return Ok(refused("Products are invalid"));
    };
    if new.external_order_id.trim().is_empty() {
        return Ok(refused("External order id can't be blank"));
    }
    let positive = new.products.iter().all(|item| item.qty > 0);
    let wanted = |item: &Item| item.qty.min(MAX_UNITS + 1);
    let all: usize = new.products.iter().map(wanted).sum();
    if !positive || all == 0 || all > MAX_UNITS {
        return Ok(refused("Products are invalid"));
    }
    let mut units = Vec::with_capacity(all);
    for item in &new.products {
        if !peer.on_sale.contains(&item.option_id) {
            return Ok(refused("Product with option_id not found"));
        }
        for _ in 0..item.qty {
            let topup_id = peer.topup_ids.next(now).to_string();
            units.push(Unit {
                topup_id,
                option_id: item.option_id,
            });
        }
    }
    let answer = json!({ "products": units });
    let order = Order {
        order_id: Uuid::now_v7(),
        partner_id: partner.partner_id,
        external_order_id: new.external_order_id,
        units,
    };
    if !peer.orders.store(order).await? {
        return Ok(refused("External order id has already been taken"));
    }
    Ok((StatusCode::CREATED, Json(answer)).into_response())
}

/// The partner whose signature the request has, or the refusal.
fn authenticate(
    partners: &Partners,
    path: &str,
    headers: &HeaderMap,
    now: OffsetDateTime,
) -> Result<Arc<Partner>, &'static str> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let (Some(access_key), Some(timestamp), Some(signature)) = (
        header("x-service-access-key"),
        header("x-service-timestamp"),
        header("x-service-signature"),
    ) else {
        return Err("Missing required authentication headers.");
    };
    let fresh = signing::parse_unix_time(timestamp)
        .is_some_and(|sent| sent.abs_diff(now.unix_timestamp()) <= WINDOW);
    if !fresh {
        return Err("Request timestamp is too old or invalid.");
    }
    let Some(partner) = partners.by_access_key(access_key) else {
        return Err(
            "Invalid or missing access key. Please provide a valid X-Service-Access-Key header.",
        );
    };
    let signature = signature.as_bytes();
    let secret = &partner.secret_key;
    if request::verify(secret, "POST", path, timestamp, access_key, None, signature) {
        Ok(partner)
    } else {
        Err("Invalid signature.")
    }
}

fn unauthorized(message: &str) -> Response {
    let error = json!({ "error": { "code": "unauthorized", "message": message } });
    (StatusCode::UNAUTHORIZED, Json(error)).into_response()
}

fn refused(message: &str) -> Response {
    let errors = json!({ "errors": [message] });
    (StatusCode::UNPROCESSABLE_ENTITY, Json(errors)).into_response()
}

/// An error that the partner is only told about.
struct Failed;

impl<E: Into<anyhow::Error>> From<E> for Failed {
    fn from(error: E) -> Self {
        tracing::warn!("a request failed: {:#}", error.into());
        Self
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let error = json!({ "error": "Internal server error" });
        (StatusCode::INTERNAL_SERVER_ERROR, Json(error)).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    const PATH: &str = "/api/v1/api_partner/orders";

    /// Orders in memory.
    #[derive(Default)]
    struct Memory(Mutex<HashSet<String>>);

    impl Orders for Memory {
        async fn add_partner(&self, _: &Row) -> Result<()> {
            Ok(())
        }

        async fn store(&self, order: Order) -> Result<bool> {
            Ok(self.0.lock().unwrap().insert(order.external_order_id))
        }
    }

    struct Served {
        url: String,
        partner: Value,
    }

    async fn serve() -> Served {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = router(Memory::default(), Partners::default()).unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        let new = json!({ "webhook_url": "http://127.0.0.1:9/" });
        let request = reqwest::Client::new().post(format!("{url}/partners"));
        let created = request.json(&new).send().await.unwrap();
        let partner = created.json().await.unwrap();
        Served { url, partner }
    }

    impl Served {
        /// Posts a body, signed for `path` at a time that is `off` seconds from now.
        async fn post(&self, body: &str, path: &str, off: i64) -> (u16, Value) {
            let text = |name: &str| self.partner[name].as_str().unwrap();
            let secret = signing::SecretKey::from_base64(text("secret_key")).unwrap();
            let now = (OffsetDateTime::now_utc().unix_timestamp() + off).to_string();
            let signature = request::sign(&secret, "POST", path, &now, text("access_key"));
            let answer = reqwest::Client::new()
                .post(format!("{}{PATH}", self.url))
                .header("x-service-access-key", text("access_key"))
                .header("x-service-timestamp", now)
                .header("x-service-signature", signature)
                .body(body.to_owned())
                .send()
                .await
                .unwrap();
            (answer.status().as_u16(), answer.json().await.unwrap())
        }
    }

    fn order(external: &str, option: Uuid, qty: i64) -> String {
        let products = json!([{ "option_id": option, "qty": qty }]);
        json!({ "external_order_id": external, "products": products }).to_string()
    }

    #[tokio::test]
    async fn an_order_has_a_topup_for_each_unit_and_is_accepted_once() {
        let served = serve().await;
        let body = order("A-1", option_id("ready"), 2);
        let (status, answer) = served.post(&body, PATH, 0).await;
        assert_eq!(status, 201, "{answer}");
        let ids: HashSet<&str> = answer["products"]
            .as_array()
            .unwrap()
            .iter()
            .map(|product| product["topup_id"].as_str().unwrap())
            .collect();
        assert!(ids.len() == 2 && ids.iter().all(|id| id.len() == 26));
        let (status, answer) = served.post(&body, PATH, 0).await;
        assert_eq!(status, 422, "{answer}");
    }

    #[tokio::test]
    async fn a_wrong_signature_an_old_one_and_a_wrong_order_are_refused() {
        let served = serve().await;
        let ready = option_id("ready");
        let good = order("A-1", ready, 1);
        assert_eq!(served.post(&good, "/other", 0).await.0, 401);
        assert_eq!(served.post(&good, PATH, -301).await.0, 401);
        assert_eq!(served.post("{", PATH, 0).await.0, 400);
        for wrong in [
            order(" ", ready, 1),
            order("A-1", ready, 0),
            order("A-1", ready, 1_001),
            order("A-1", Uuid::now_v7(), 1),
        ] {
            assert_eq!(served.post(&wrong, PATH, 0).await.0, 422, "{wrong}");
        }
        assert_eq!(served.post(&good, PATH, 0).await.0, 201);
    }
}
