//! The kinds of what is delivered to the endpoints of partners. What partners can choose, what the
//! documents list and what errors name is derived from here.

use strum::VariantArray;

/// The kinds of webhooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::VariantArray)]
pub enum EventKind {
    /// Not an event but the specified webhook. Further endpoints ask for it as they do for events;
    /// the first endpoint always gets it.
    TopupReady,
    /// A topup will never be ready.
    TopupFailed,
    /// It is not certain what became of the purchase of a topup, so a person looks into it.
    TopupOnHold,
    /// An order was cancelled, so nothing of it was bought.
    OrderCancelled,
    /// The first sign that an eSIM is installed on a device.
    EsimInstalled,
    /// The first data was used.
    EsimFirstUsed,
    /// A share of the data is used. It is told for each threshold.
    EsimLowData,
    /// All data is used.
    EsimUsedUp,
    /// The plan ends in three days, or in one.
    EsimExpiring,
    /// The plan has ended.
    EsimExpired,
    /// The provider has the eSIM back.
    EsimReturned,
    /// More data or days were added to the eSIM.
    ExtensionReady,
    /// Nothing was added to the eSIM, and nothing will be.
    ExtensionFailed,
    /// What an account has available is less than the partner wants to know of.
    BalanceLow,
    /// The options that the partner may order have changed, or their prices.
    OptionsChanged,
    /// The overlap of a rotation is about to end, so old keys or an old webhook secret will soon be
    /// invalid.
    KeyExpiring,
    /// The partner requested a test of its endpoint. It has a single attempt.
    WebhookTest,
}

impl EventKind {
    pub const ALL: &[Self] = Self::VARIANTS;

    /// The name of the kind in the database, in requests and in the header `webhook-type`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TopupReady => "topup.ready",
            Self::TopupFailed => "topup.failed",
            Self::TopupOnHold => "topup.on_hold",
            Self::OrderCancelled => "order.cancelled",
            Self::EsimInstalled => "esim.installed",
            Self::EsimFirstUsed => "esim.first_used",
            Self::EsimLowData => "esim.low_data",
            Self::EsimUsedUp => "esim.used_up",
            Self::EsimExpiring => "esim.expiring",
            Self::EsimExpired => "esim.expired",
            Self::EsimReturned => "esim.returned",
            Self::ExtensionReady => "extension.ready",
            Self::ExtensionFailed => "extension.failed",
            Self::BalanceLow => "balance.low",
            Self::OptionsChanged => "options.changed",
            Self::KeyExpiring => "key.expiring",
            Self::WebhookTest => "webhook.test",
        }
    }

    /// Whether partners choose if they get it, at each of their endpoints. A test is not a choice,
    /// because the partner requests each one.
    const fn is_choice(self) -> bool {
        !matches!(self, Self::TopupReady | Self::WebhookTest)
    }

    /// The kind of this name.
    pub fn named(name: &str) -> Option<Self> {
        let mut all = Self::ALL.iter().copied();
        all.find(|kind| kind.as_str() == name)
    }

    /// The kinds that a partner can choose.
    pub fn choices() -> Vec<Self> {
        let all = Self::ALL.iter().copied();
        all.filter(|kind| kind.is_choice()).collect()
    }

    /// The kinds that a further endpoint can get.
    pub fn of_further_endpoints() -> Vec<Self> {
        let mut kinds = Self::choices();
        kinds.insert(0, Self::TopupReady);
        kinds
    }
}

/// The names of kinds.
pub fn names(kinds: &[EventKind]) -> Vec<&'static str> {
    kinds.iter().map(|kind| kind.as_str()).collect()
}

impl std::str::FromStr for EventKind {
    type Err = String;

    /// Parses a kind that a partner can choose.
    fn from_str(name: &str) -> Result<Self, String> {
        let choices = Self::choices();
        let found = choices.iter().find(|kind| kind.as_str() == name);
        found.copied().ok_or_else(|| {
            let known = names(&choices).join(", ");
            format!("there is no event {name:?}; the events are {known}")
        })
    }
}

/// The kinds of notices, which go to the partner's channel for notices only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::VariantArray)]
pub enum NoticeKind {
    /// The code that verifies the channel.
    Verify,
    /// Half of the failures that block an endpoint have happened.
    EndpointFailing,
    EndpointBlocked,
    /// An endpoint that was told as failing or blocked acknowledges again.
    EndpointRecovered,
    /// The retries of a webhook have ended.
    WebhookExhausted,
    /// As [`EventKind::KeyExpiring`].
    KeysExpire,
    /// The addresses from which webhooks come have changed.
    SourceAddresses,
}

impl NoticeKind {
    pub const ALL: &[Self] = Self::VARIANTS;

    /// The name of the kind in the database and in the header `webhook-type`. The database tells
    /// notices from webhooks by its beginning.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Verify => "notice.verify",
            Self::EndpointFailing => "notice.endpoint_failing",
            Self::EndpointBlocked => "notice.endpoint_blocked",
            Self::EndpointRecovered => "notice.endpoint_recovered",
            Self::WebhookExhausted => "notice.webhook_exhausted",
            Self::KeysExpire => "notice.keys_expire",
            Self::SourceAddresses => "notice.source_addresses",
        }
    }

    /// The kind of this name.
    pub fn named(name: &str) -> Option<Self> {
        let mut all = Self::ALL.iter().copied();
        all.find(|kind| kind.as_str() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_leads_to_its_kind_and_tells_notices_from_webhooks() {
        for kind in EventKind::ALL {
            assert_eq!(EventKind::named(kind.as_str()), Some(*kind));
            assert!(!kind.as_str().starts_with("notice."));
        }
        for kind in NoticeKind::ALL {
            assert_eq!(NoticeKind::named(kind.as_str()), Some(*kind));
            assert!(kind.as_str().starts_with("notice."));
        }
    }
}
