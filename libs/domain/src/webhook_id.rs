//! The ids under which partners know deliveries.
//!
//! Inside the system a delivery has one kind of id, [`DeliveryId`]. Partners see another text, in
//! the header `webhook-id` and in the paths of self-service. The specified webhook carries the id
//! of its topup, because partners compare it with the answer to create-order. An event carries
//! `evt_` and the id of its delivery.

use std::{fmt, str::FromStr};

use serde::{Serialize, Serializer};
use uuid::Uuid;

use crate::{
    TopupId,
    ids::{DeliveryId, NotAnId},
};

/// The beginning of the id of an event.
const PREFIX: &str = "evt_";

/// Names a delivery to its partner. It is the same in every attempt, so that the partner can
/// recognise a repeated webhook.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum WebhookId {
    /// The specified webhook of this topup. Its text has 26 digits.
    Topup(TopupId),
    /// An event. Its text is `evt_` and 32 lower-case hexadecimal digits.
    Event(DeliveryId),
}

impl fmt::Display for WebhookId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topup(id) => id.fmt(f),
            Self::Event(id) => write!(f, "{PREFIX}{}", id.uuid().simple()),
        }
    }
}

impl FromStr for WebhookId {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some(digits) = text.strip_prefix(PREFIX) else {
            let topup = text.parse().map(Self::Topup);
            return topup.map_err(|_: NotAnId| {
                NotAnId("it is neither a topup id (26 digits) nor an event id (`evt_…`)")
            });
        };
        // Only the form that we write is accepted. Uuid::parse_str also accepts others, such as
        // upper case and hyphens.
        let is_plain = digits.len() == 32
            && digits
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let id = Uuid::parse_str(digits).ok().filter(|_| is_plain);
        id.map(|id| Self::Event(id.into())).ok_or(NotAnId(
            "an event id is `evt_` and 32 lower-case hexadecimal digits",
        ))
    }
}

impl Serialize for WebhookId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl From<TopupId> for WebhookId {
    fn from(id: TopupId) -> Self {
        Self::Topup(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_says_what_it_names() {
        let event = WebhookId::Event(DeliveryId::new());
        assert_eq!(event.to_string().parse(), Ok(event.clone()));
        assert_eq!(
            serde_json::to_string(&event).unwrap(),
            format!("\"{event}\"")
        );
        let topup = "20250129123456123456789012";
        assert_eq!(topup.parse(), Ok(WebhookId::Topup(topup.parse().unwrap())));
        assert_eq!(WebhookId::Topup(topup.parse().unwrap()).to_string(), topup);
        for bad in [
            "",
            "evt_",
            "evt_0199",
            &format!("evt_{}", "g".repeat(32)),
            &format!("evt_{}", "A".repeat(32)),
            &format!("evt_{}", Uuid::nil()),
            &"1".repeat(25),
        ] {
            assert!(bad.parse::<WebhookId>().is_err(), "{bad}");
        }
    }
}
