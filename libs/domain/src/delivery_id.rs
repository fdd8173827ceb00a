//! Delivery ids: the topup's id for the specified webhook, an id of its own for any other event.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    TopupId,
    ids::{NotAnId, text_form},
};

/// What an event id begins with.
const PREFIX: &str = "evt_";

/// Identifies an event other than the specified webhook: `evt_` and 32 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct EventId(String);

impl EventId {
    /// Makes a new id; ids made later sort later.
    pub fn new() -> Self {
        Uuid::now_v7().into()
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The digits as a UUID.
    pub fn uuid(&self) -> Uuid {
        self.0[PREFIX.len()..].parse().unwrap_or_default()
    }
}

impl From<Uuid> for EventId {
    fn from(uuid: Uuid) -> Self {
        Self(format!("{PREFIX}{}", uuid.simple()))
    }
}

impl Default for EventId {
    fn default() -> Self {
        Self::new()
    }
}

impl TryFrom<String> for EventId {
    type Error = NotAnId;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let digits = text.strip_prefix(PREFIX).unwrap_or_default();
        if digits.len() == 32 && digits.bytes().all(hex) {
            Ok(Self(text))
        } else {
            Err(NotAnId("an event id is `evt_` and 32 hexadecimal digits"))
        }
    }
}

text_form!(EventId);

/// Identifies a delivery; also the `webhook-id`, the same in every attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WebhookId {
    /// The specified webhook of this topup.
    Topup(TopupId),
    Event(EventId),
}

impl WebhookId {
    pub fn as_str(&self) -> &str {
        match self {
            Self::Topup(id) => id.as_str(),
            Self::Event(id) => id.as_str(),
        }
    }
}

impl TryFrom<String> for WebhookId {
    type Error = NotAnId;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let id =
            if text.starts_with(PREFIX) { text.try_into().map(Self::Event) } else { text.try_into().map(Self::Topup) };
        id.map_err(|_: NotAnId| NotAnId("neither a topup id (26 digits) nor an event id (`evt_…`)"))
    }
}

text_form!(WebhookId);

impl From<TopupId> for WebhookId {
    fn from(id: TopupId) -> Self {
        Self::Topup(id)
    }
}

impl From<EventId> for WebhookId {
    fn from(id: EventId) -> Self {
        Self::Event(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_says_what_it_identifies() {
        let event = EventId::new();
        assert_eq!(event.as_str().parse::<EventId>().unwrap(), event);
        assert_eq!(EventId::from(event.uuid()), event);
        assert_eq!(event.as_str().parse::<WebhookId>().unwrap(), WebhookId::Event(event));
        let topup = "20250129123456123456789012";
        assert_eq!(topup.parse::<WebhookId>().unwrap(), WebhookId::Topup(topup.parse().unwrap()));
        for bad in ["", "evt_", "evt_0199", &format!("evt_{}", "G".repeat(32)), &"1".repeat(25)] {
            assert!(bad.parse::<WebhookId>().is_err(), "{bad}");
        }
    }
}
