//! The kinds of what is delivered to the endpoints of partners.

use strum::VariantArray;

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::VariantArray)]
pub enum Kind {
    /// Not an event but the specified webhook. Further endpoints ask for it as they do for events;
    /// the first endpoint always gets it.
    TopupReady,
    /// A topup will never be ready.
    TopupFailed,
    /// The overlap of a rotation is about to end, so old keys or an old webhook secret will soon be
    /// invalid.
    KeyExpiring,
    /// The partner requested a test of its endpoint. It has a single attempt.
    WebhookTest,
    // Notices go to the partner's channel for notices only.
    /// The code that verifies the channel.
    NoticeVerify,
    /// Half of the failures that block an endpoint have happened.
    NoticeEndpointFailing,
    NoticeEndpointBlocked,
    /// An endpoint that was told as failing or blocked acknowledges again.
    NoticeEndpointRecovered,
    /// The retries of a webhook have ended.
    NoticeWebhookExhausted,
    /// As [`Self::KeyExpiring`].
    NoticeKeysExpire,
    /// The addresses from which webhooks come have changed.
    NoticeSourceAddresses,
}

impl Kind {
    /// The kinds that a partner can choose. A test is not a choice: the partner requests each one.
    pub const CHOICES: [Self; 2] = [Self::TopupFailed, Self::KeyExpiring];

    /// The kinds that a further endpoint can get.
    pub const OF_FURTHER_ENDPOINTS: [Self; 3] =
        [Self::TopupReady, Self::TopupFailed, Self::KeyExpiring];

    /// The kinds of notices.
    pub const NOTICES: [Self; 7] = [
        Self::NoticeVerify,
        Self::NoticeEndpointFailing,
        Self::NoticeEndpointBlocked,
        Self::NoticeEndpointRecovered,
        Self::NoticeWebhookExhausted,
        Self::NoticeKeysExpire,
        Self::NoticeSourceAddresses,
    ];

    /// The kind of this name.
    pub fn named(name: &str) -> Option<Self> {
        let mut all = Self::VARIANTS.iter().copied();
        all.find(|kind| kind.as_str() == name)
    }

    /// The names of the kinds that a partner can choose, as errors list them.
    pub fn choices() -> String {
        Self::CHOICES.map(Self::as_str).join(" and ")
    }

    /// The name of the kind in the database and in requests.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TopupReady => "topup.ready",
            Self::TopupFailed => "topup.failed",
            Self::KeyExpiring => "key.expiring",
            Self::WebhookTest => "webhook.test",
            Self::NoticeVerify => "notice.verify",
            Self::NoticeEndpointFailing => "notice.endpoint_failing",
            Self::NoticeEndpointBlocked => "notice.endpoint_blocked",
            Self::NoticeEndpointRecovered => "notice.endpoint_recovered",
            Self::NoticeWebhookExhausted => "notice.webhook_exhausted",
            Self::NoticeKeysExpire => "notice.keys_expire",
            Self::NoticeSourceAddresses => "notice.source_addresses",
        }
    }
}

impl std::str::FromStr for Kind {
    type Err = String;

    /// Parses a kind that a partner can choose.
    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::CHOICES.into_iter().find(|kind| kind.as_str() == name);
        found.ok_or_else(|| {
            format!(
                "there is no event {name:?}; the events are {}",
                Self::choices()
            )
        })
    }
}
