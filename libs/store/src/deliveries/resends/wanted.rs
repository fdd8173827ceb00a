//! Which webhooks a resend is about, in which order it walks through them, and how many there are
//! when it begins or is previewed.

use std::ops;

use domain::PartnerId;
use pg::Result;
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::deliveries::{
    endpoints::LONGEST_LEASE,
    walk::{Kinds, Matching, Order, Position, Source, Walk},
};

/// The states whose deliveries can be sent again, which is also the order of the phases.
const STATES: [&str; 3] = ["exhausted", "pending", "delivered"];
/// The phase in which everything is due, and some of it waits for its attempt.
pub(super) const SENDING: &str = "sending";

/// The most matching deliveries of a state that are counted.
const MOST_COUNTED: usize = 10_000;
/// The most rows that the count of a state looks at.
const MOST_LOOKED_AT: usize = 20_000;

/// Which webhooks are sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted<'a> {
    /// One of `exhausted`, `pending` and `delivered`; `None` stands for the first two, which are
    /// all that were not delivered.
    pub state: Option<&'a str>,
    /// The start of the range of time, inclusive. The time of a webhook is that of its last
    /// attempt; before the first one it is the time of its creation.
    pub since: OffsetDateTime,
    /// The end of that range, exclusive; `None` is now.
    pub until: Option<OffsetDateTime>,
}

/// The phases of a resend of these states.
pub(super) fn phases(state: Option<&str>) -> impl Iterator<Item = &'static str> {
    let chosen = STATES.into_iter().filter(move |one| match state {
        Some(state) => state == *one,
        None => *one != "delivered",
    });
    chosen.chain([SENDING])
}

/// Where the walk of a phase begins. Pending webhooks that are due within the longest lease are
/// sent soon anyway, or are in flight.
pub(super) fn start(phase: &str, now: OffsetDateTime) -> Option<Position> {
    match phase {
        "pending" => Some(Position {
            at: now + LONGEST_LEASE,
            id: Uuid::nil(),
        }),
        SENDING => Some(Position {
            at: now,
            id: Uuid::nil(),
        }),
        _ => None,
    }
}

/// The earliest creation of a delivery that matches, except of those that were sent again much later.
pub fn reach(wanted: &Wanted<'_>) -> OffsetDateTime {
    Matching {
        since: Some(wanted.since),
        ..Matching::default()
    }
    .reach()
}

/// A number of webhooks that match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Counted {
    pub number: i64,
    /// Whether these are all. Otherwise the counting ended early, because it had found or looked at
    /// too many, and there may be more.
    pub all: bool,
}

impl Counted {
    pub const NONE: Self = Self {
        number: 0,
        all: true,
    };

    /// The number, if it is exact.
    pub fn exact(self) -> Option<i64> {
        self.all.then_some(self.number)
    }
}

impl ops::Add for Counted {
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
    wanted: &Wanted<'_>,
    until: OffsetDateTime,
    now: OffsetDateTime,
) -> Result<Counted> {
    let mut counted = Counted::NONE;
    for phase in phases(wanted.state).filter(|phase| *phase != SENDING) {
        let mut walk = Walk {
            partner_id,
            source: Source::of(Some(phase)),
            // Delivered ones are read by their creation, from a week before the range on. The newest
            // ones are those that are in it.
            order: Order::NewestFirst,
            matching: Matching {
                state: Some(phase),
                since: Some(wanted.since),
                until: Some(until),
                kinds: Kinds::WithoutNotices,
            },
            after: start(phase, now),
        };
        let found = walk.find(connection, MOST_COUNTED, MOST_LOOKED_AT).await?;
        counted = counted
            + Counted {
                number: i64::try_from(found.ids.len()).unwrap_or(i64::MAX),
                all: found.ended,
            };
    }
    Ok(counted)
}
