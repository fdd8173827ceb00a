//! What the partners saw: the answers to their orders and the webhooks. All times count from the
//! start of the run.

use serde_json::Value;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// An order as its client knows it.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    pub external_order_id: String,
    pub partner: usize,
    pub hung_up: bool,
    pub requests: usize,
    /// Equal requests were sent at the same time, which are orders of their own in this book.
    pub has_twins: bool,
    /// The number of requests without a definite result, which got no complete answer or a 5xx.
    pub unanswered: u32,
    pub settled: Option<Settled>,
    /// The time when the request with the definite answer was sent. `answered` is the time when
    /// this answer had been read.
    pub sent: Duration,
    pub answered: Duration,
    pub topups: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// 201.
    Created,
    /// 422 "has already been taken". An earlier request of this client stored the order.
    Taken,
    /// 422 because the provider rejected the purchase or could not be reached.
    Refused,
    /// Any other 4xx. No order of this run is invalid, so this makes the run red.
    Denied(String),
}

impl Settled {
    /// The definite result that an answer means, with the topups of a 201. It is `None` if the
    /// order stays open.
    pub fn of(status: u16, body: &[u8]) -> Option<(Self, Vec<String>)> {
        if status == 201 {
            let products = testkit::client::products(body).ok()?.into_iter();
            return Some((Self::Created, products.map(|one| one.topup_id).collect()));
        }
        if !(400..500).contains(&status) {
            return None;
        }
        let json: Value = serde_json::from_slice(body).unwrap_or_default();
        let errors: Vec<&str> = json["errors"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let refused = |error: &&str| {
            error.starts_with("eSIM Request failed - Status: ")
                || error.starts_with("API connection error (Order ID: ")
        };
        let settled = if status == 422 && errors == ["External order id has already been taken"] {
            Self::Taken
        } else if status == 422 && !errors.is_empty() && errors.iter().all(refused) {
            Self::Refused
        } else {
            Self::Denied(format!("{status} {}", String::from_utf8_lossy(body)))
        };
        Some((settled, Vec::new()))
    }
}

/// A webhook as an endpoint received it.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub at: Duration,
    pub partner: usize,
    pub topup_id: String,
    pub iccid: String,
    /// Whether the endpoint responded 200.
    pub acknowledged: bool,
    /// Whether its signature is valid for the partner's secret.
    pub genuine: bool,
}

/// The orders that have a definite result or were given up.
pub type Book = Mutex<Vec<Asked>>;

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(status: u16, body: &str) -> Option<Settled> {
        Settled::of(status, body.as_bytes()).map(|(settled, _)| settled)
    }

    #[test]
    fn answers_settle_as_the_api_says() {
        let created =
            br#"{"products":[{"topup_id":"1","option_id":"a"},{"topup_id":"2","option_id":"a"}]}"#;
        let (kind, topups) = Settled::of(201, created).unwrap();
        assert_eq!(
            (kind, topups),
            (Settled::Created, vec!["1".into(), "2".into()])
        );
        assert_eq!(settled(500, r#"{"error":"Internal server error"}"#), None);
        assert_eq!(settled(503, ""), None);
        let taken = r#"{"errors":["External order id has already been taken"]}"#;
        assert_eq!(settled(422, taken), Some(Settled::Taken));
        let refused = r#"{"errors":["eSIM Request failed - Status: 9005, Message: none left"]}"#;
        assert_eq!(settled(422, refused), Some(Settled::Refused));
        for (status, body) in [
            (
                401,
                r#"{"error":{"code":"unauthorized","message":"Invalid access key"}}"#,
            ),
            (422, r#"{"errors":["Product with option_id not found"]}"#),
            (422, r#"{"errors":[]}"#),
        ] {
            assert!(
                matches!(settled(status, body), Some(Settled::Denied(_))),
                "{body}"
            );
        }
    }
}
