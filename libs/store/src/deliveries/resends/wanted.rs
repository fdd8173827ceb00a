//! Which webhooks a resend is about, in which order it walks through them, and how many there are
//! when it begins or is previewed.

use std::ops;

use domain::{PartnerId, standing::DeliveryState};
use pg::Result;
use sqlx::PgConnection;
use strum::{EnumString, IntoStaticStr, VariantArray};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::deliveries::{
    endpoints::LONGEST_LEASE,
    walk::{Kinds, Matching, Walk, WalkOrder, WalkPosition, WalkSource},
};

/// How far a resend has come. The order is that of the phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(super) enum Phase {
    /// Deliveries in this state are made due.
    Exhausted,
    Pending,
    Delivered,
    /// Everything is due, and some of it waits for its attempt.
    Sending,
}

impl Phase {
    /// The state of the deliveries that it makes due.
    pub(super) fn state(self) -> Option<DeliveryState> {
        match self {
            Self::Exhausted => Some(DeliveryState::Exhausted),
            Self::Pending => Some(DeliveryState::Pending),
            Self::Delivered => Some(DeliveryState::Delivered),
            Self::Sending => None,
        }
    }
}

/// The most matching deliveries of a state that are counted.
const MOST_COUNTED: usize = 10_000;
/// The maximum number of rows that the count of a state looks at.
const MOST_LOOKED_AT: usize = 20_000;

/// Which webhooks are sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResendSelection {
    /// Exhausted, pending or delivered ones; `None` stands for the first two, which are all that
    /// were not delivered. Those in another state cannot be sent again, so none of them is.
    pub state: Option<DeliveryState>,
    /// The start of the range of time, inclusive. The time of a webhook is that of its last
    /// attempt; before the first one it is the time of its creation.
    pub since: OffsetDateTime,
    /// The end of that range, exclusive; `None` is now.
    pub until: Option<OffsetDateTime>,
}

/// The phases of a resend of these states.
pub(super) fn phases(state: Option<DeliveryState>) -> impl Iterator<Item = Phase> {
    let all = Phase::VARIANTS.iter().copied();
    all.filter(move |phase| match (phase.state(), state) {
        (None, _) => true,
        (one, Some(_)) => one == state,
        (one, None) => one != Some(DeliveryState::Delivered),
    })
}

/// Where the walk of a phase begins. Pending webhooks that are due within the longest lease are
/// sent soon anyway, or are in flight.
pub(super) fn start(phase: Phase, now: OffsetDateTime) -> Option<WalkPosition> {
    match phase {
        Phase::Pending => Some(WalkPosition {
            at: now + LONGEST_LEASE,
            id: Uuid::nil(),
        }),
        Phase::Sending => Some(WalkPosition {
            at: now,
            id: Uuid::nil(),
        }),
        Phase::Exhausted | Phase::Delivered => None,
    }
}

/// The earliest creation of a delivery that matches, except of those that were sent again much
/// later.
pub fn reach(wanted: &ResendSelection) -> OffsetDateTime {
    Matching {
        since: Some(wanted.since),
        ..Matching::default()
    }
    .reach()
}

/// A number of webhooks that match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct MatchCount {
    pub number: i64,
    /// Whether these are all. Otherwise the counting ended early, because it had found or looked at
    /// too many, and there may be more.
    pub all: bool,
}

impl MatchCount {
    pub const NONE: Self = Self {
        number: 0,
        all: true,
    };

    /// The number, if it is exact.
    pub fn exact(self) -> Option<i64> {
        self.all.then_some(self.number)
    }
}

impl ops::Add for MatchCount {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            number: self.number + other.number,
            all: self.all && other.all,
        }
    }
}

/// The number of webhooks that match now.
pub async fn count_matching(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    wanted: &ResendSelection,
    until: OffsetDateTime,
    now: OffsetDateTime,
) -> Result<MatchCount> {
    let mut counted = MatchCount::NONE;
    for phase in phases(wanted.state) {
        let Some(state) = phase.state() else {
            continue;
        };
        let mut walk = Walk {
            partner_id,
            source: WalkSource::of(Some(state)),
            // Delivered ones are read by their creation, from a week before the range on. The
            // newest ones are those that are in it.
            order: WalkOrder::NewestFirst,
            matching: Matching {
                state: Some(state),
                since: Some(wanted.since),
                until: Some(until),
                kinds: Kinds::WithoutNotices,
            },
            after: start(phase, now),
        };
        let found = walk.find(connection, MOST_COUNTED, MOST_LOOKED_AT).await?;
        counted = counted
            + MatchCount {
                number: i64::try_from(found.ids.len()).unwrap_or(i64::MAX),
                all: found.ended,
            };
    }
    Ok(counted)
}
