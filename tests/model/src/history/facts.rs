//! What was seen of a unit, and in which order.

use std::fmt::{self, Display, Formatter};

use domain::PlacementState;

/// Attempts that a history may have. Whoever has more of them leaves out the first ones, which
/// repeat what the later ones do.
pub const ATTEMPTS: u32 = 3;
/// The number of facts whose set fits into a [`u32`].
pub(super) const MOST_FACTS: usize = 31;

/// Something that certainly happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Seen {
    /// Ingress stored the order; `waits`: its answer waits for a verdict.
    Accepted { waits: bool },
    /// The row of the placement became this.
    Row(Row),
    /// `answer_by` passed.
    AnswerBy,
    /// Half of SETTLE had passed since the last attempt was recorded, and its purchase was not
    /// sent.
    Unsent,
    /// The provider with this number, from 0, sold the placement.
    Bought { provider: u8 },
    /// The partner read a 201.
    Created,
    /// The partner read a 422.
    Refused,
    /// The partner was told that its order is "already taken".
    Taken,
    /// The endpoint got the webhook for the first time, and failed.
    Posted,
    /// The endpoint acknowledged the webhook for the first time.
    Acknowledged,
    /// The delivery was recorded as delivered.
    Delivered,
}

/// The row of a placement after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    pub state: PlacementState,
    /// The number of its last attempt.
    pub attempt: u32,
    /// Which of its providers it is bought from, from 0.
    pub provider: u8,
    /// It is being placed, and a look-up has found no purchase since the attempt.
    pub missing: bool,
    /// Look-ups let its attempt end before SETTLE had passed.
    pub early: bool,
}

/// What was seen, and when, in milliseconds since the run began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fact {
    pub seen: Seen,
    pub earliest: u64,
    pub latest: u64,
}

/// How the rows of a unit stand once the run has come to rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct End {
    pub placement: PlacementState,
    /// The number of its last attempt.
    pub attempt: u32,
    /// The delivery is recorded as delivered.
    pub delivered: bool,
    /// The provider never had a profile for this unit, which the model does not know: its unit ends
    /// with the purchase.
    pub without_profile: bool,
}

/// The history of one unit. Histories that are equal in all that matters to the model are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct History {
    pub(super) seen: Vec<Seen>,
    /// For each fact, which others precede it, as a set of bits.
    before: Vec<u32>,
    pub(super) end: End,
    /// The number of providers that sell it, in order of preference.
    pub(super) providers: u8,
    pub(super) detects_duplicates: bool,
}

impl History {
    /// A history of these facts. Those of the row are in their order, and the others in any.
    /// `detects_duplicates`: the provider does not sell a placement twice, and processes may be
    /// stalled for longer than SETTLE.
    pub fn new(mut facts: Vec<Fact>, end: End, detects_duplicates: bool) -> Self {
        facts.sort_by_key(|fact| (fact.earliest, fact.latest));
        let before = facts.iter().enumerate().map(|(index, fact)| {
            let precedes = |(other_index, other): &(usize, &Fact)| {
                let both_of_row = fact.seen.is_of_row() && other.seen.is_of_row();
                other.latest < fact.earliest || (both_of_row && *other_index < index)
            };
            let others = facts.iter().enumerate().take(MOST_FACTS).filter(precedes);
            others.fold(0, |set, (other, _)| set | 1 << other)
        });
        let before = before.collect();
        Self {
            seen: facts.into_iter().map(|fact| fact.seen).collect(),
            before,
            end,
            providers: 1,
            detects_duplicates,
        }
    }

    /// The same of an option that so many providers sell, of which the last one never rejects it.
    #[must_use]
    pub fn of_providers(self, providers: u8) -> Self {
        Self { providers, ..self }
    }

    /// Every fact.
    pub(super) fn all(&self) -> u32 {
        (1 << self.seen.len()) - 1
    }

    /// The facts after this one has happened, if it is one that is still missing and whose time has
    /// come.
    pub(super) fn happens(&self, happened: Seen, seen: u32) -> Option<u32> {
        let missing = |index: &usize| seen & (1 << index) == 0;
        let index = (0..self.seen.len())
            .filter(missing)
            .find(|index| self.seen[*index] == happened && self.before[*index] & !seen == 0)?;
        Some(seen | 1 << index)
    }

    /// Whether something may have happened that nobody saw.
    pub(super) fn is_hidden(&self, happened: Seen, seen: u32) -> bool {
        let has = |wanted| self.seen.contains(&wanted);
        match happened {
            // The partner hung up, or the answer was lost.
            Seen::Created | Seen::Refused => !has(Seen::Created) && !has(Seen::Refused),
            // A webhook that was acknowledged once may be sent again.
            Seen::Acknowledged => {
                let index = self.seen.iter().position(|one| *one == happened);
                index.is_some_and(|index| seen & (1 << index) != 0)
            }
            Seen::AnswerBy => !has(Seen::AnswerBy),
            Seen::Accepted { .. }
            | Seen::Row(_)
            | Seen::Unsent
            | Seen::Bought { .. }
            | Seen::Taken
            | Seen::Posted
            | Seen::Delivered => false,
        }
    }
}

impl Seen {
    fn is_of_row(self) -> bool {
        matches!(self, Self::Accepted { .. } | Self::Row(_))
    }
}

impl Display for Seen {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Accepted { waits: true } => "an order was stored whose answer waits",
            Self::Accepted { waits: false } => "an order was stored whose answer does not wait",
            Self::Row(row) => return row.fmt(formatter),
            Self::AnswerBy => "answer_by passed",
            Self::Unsent => "SETTLE/2 passed before the purchase was sent",
            Self::Bought { provider: 0 } => "the provider sold the placement",
            Self::Bought { .. } => "the next provider sold the placement",
            Self::Created => "the partner read a 201",
            Self::Refused => "the partner read a 422",
            Self::Taken => "the partner was told \"already taken\"",
            Self::Posted => "the endpoint got the webhook, and failed",
            Self::Acknowledged => "the endpoint acknowledged the webhook",
            Self::Delivered => "the webhook was recorded as delivered",
        })
    }
}

impl Display for Row {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let state = <&str>::from(self.state);
        write!(
            formatter,
            "the row became {state} at attempt {}",
            self.attempt
        )?;
        if self.provider > 0 {
            formatter.write_str(" at the next provider")?;
        }
        if self.missing {
            formatter.write_str(", which no look-up had found")?;
        }
        if self.early {
            formatter.write_str(", because look-ups found nothing before SETTLE had passed")?;
        }
        Ok(())
    }
}

impl Display for End {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let delivered = if self.delivered { "" } else { "not " };
        write!(
            formatter,
            "at rest the placement is {} after {} attempts, and its webhook is {delivered}delivered",
            <&str>::from(self.placement),
            self.attempt
        )
    }
}

impl Display for History {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        for seen in &self.seen {
            write!(formatter, "{seen}; ")?;
        }
        write!(formatter, "{}", self.end)
    }
}
