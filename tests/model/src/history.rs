//! Compares what really happened to a unit with the model. A fault run hands over what it knows of
//! each unit: every change of its rows, the answer that its partner read, the purchases in the
//! provider's ledger, and the webhooks that arrived. The question is whether the protocol has any
//! way that leads through all of that. Everything else, such as crashes, lost messages and
//! look-ups, happens wherever it helps. The steps are those that the checker of the model explores,
//! so there is no second description of the protocol.
//!
//! Times are no more exact than their clocks, so each [`Fact`] has an earliest and a latest moment.
//! One fact precedes another only if it was over before the other could begin; facts that overlap
//! may have happened in either order. Changes of the row happened in the order in which they are
//! given, because a change is made under the lock of the row.
//!
//! One unit of one placement is compared at a time, by the model with a single placement: what the
//! other placements of the order do is a decision of ingress, which the model takes either way.

mod facts;
mod search;

use std::fmt::{self, Display, Formatter};

use facts::MOST_FACTS;
use search::Search;

pub use facts::{ATTEMPTS, End, Fact, History, Row, Seen};

/// What the model says about a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged {
    Allowed,
    /// The model has no such way.
    Impossible,
    /// The search took too many states, or the history has too many facts.
    Undecided,
}

/// Why a history is impossible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The shortest way to as many facts as the model allows.
    pub steps: Vec<String>,
    /// The facts that were seen beyond that, or how the rows stand instead.
    pub then: Vec<String>,
    /// The safeguards without any one of which the history is possible.
    pub missing: Vec<String>,
}

impl History {
    /// Says whether the complete protocol allows this history.
    pub fn judge(&self) -> Judged {
        if self.seen.len() > MOST_FACTS || self.end.attempt > ATTEMPTS {
            return Judged::Undecided;
        }
        match Search::of(self, None).decide() {
            None => Judged::Undecided,
            Some(true) => Judged::Allowed,
            Some(false) => Judged::Impossible,
        }
    }

    /// Explains why the history is impossible. This takes many times as long as to judge it.
    pub fn explain(&self) -> Explanation {
        let (steps, seen) = Search::of(self, None).furthest();
        let beyond = self.seen.iter().enumerate();
        let beyond = beyond.filter(|(index, _)| seen & (1 << index) == 0);
        let mut then: Vec<String> = beyond.map(|(_, seen)| seen.to_string()).collect();
        if then.is_empty() {
            then.push(self.end.to_string());
        }
        Explanation {
            steps,
            then,
            missing: search::missing(self),
        }
    }
}

impl Display for Explanation {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let missing = if self.missing.is_empty() {
            "no single safeguard that is missing makes it possible".to_owned()
        } else {
            format!("possible without {}", self.missing.join(", or "))
        };
        write!(
            formatter,
            "the model allows: {}; but not: {}; {missing}",
            self.steps.join(", "),
            self.then.join("; ")
        )
    }
}
