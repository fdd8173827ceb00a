//! What the pipeline asks of an eSIM provider, and the classes into which every answer falls.
//! An adapter that is in doubt says *unknown*: that costs a look-up, anything else may cost money.

pub mod usimsa;

use std::time::Duration;

use domain::{ActivationCode, Iccid, PlacementId};
use futures_util::future::BoxFuture;

/// A purchase: one placement, whole.
#[derive(Clone, Debug)]
pub struct Purchase {
    /// Our key of it at the provider, the same in every attempt.
    pub placement_id: PlacementId,
    /// What to buy and how often, by the provider's option ids.
    pub items: Vec<(String, usize)>,
}

/// What a provider said to a purchase.
#[derive(Clone, Debug)]
pub enum PlaceAnswer {
    /// It has the purchase, perhaps from an earlier attempt; the units, as far as it named them.
    Bought(Vec<ProviderUnit>),
    /// It refused and would again: no such product, out of stock, no balance.
    Rejected {
        /// Its code.
        status: String,
        /// Its message, in one line.
        message: String,
    },
}

/// What a provider said when a purchase was looked up by our key.
#[derive(Clone, Debug)]
pub enum FindAnswer {
    /// It has it, with these units.
    Found(Vec<ProviderUnit>),
    /// It says explicitly that there is no such purchase.
    NotFound,
}

/// What a provider said when a unit was to be cancelled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CancelAnswer {
    /// It is cancelled, perhaps since earlier.
    Canceled,
    /// It can't be.
    Refused {
        /// Its code.
        status: String,
        /// Its message, in one line.
        message: String,
    },
}

/// Why a provider said nothing about what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It doesn't let us in. Nothing was carried out, and nothing will be until somebody acts.
    Denied(String),
    /// It is busy. Nothing was carried out.
    Busy {
        /// Not before this, if it said so.
        after: Option<Duration>,
        /// What it said.
        reason: String,
    },
    /// It certainly never got the request.
    NotSent(String),
    /// Anything else: it may or may not have been carried out.
    Unknown(String),
}

impl Trouble {
    /// What happened, for people.
    pub fn reason(&self) -> &str {
        match self {
            Self::Denied(reason)
            | Self::Busy { reason, .. }
            | Self::NotSent(reason)
            | Self::Unknown(reason) => reason,
        }
    }

    /// Its class, as metrics name it.
    pub fn class(&self) -> &'static str {
        match self {
            Self::Denied(_) => "denied",
            Self::Busy { .. } => "busy",
            Self::NotSent(_) => "not_sent",
            Self::Unknown(_) => "unknown",
        }
    }

    /// How long the provider asked us to wait, at most `most`.
    pub fn after(&self, most: Duration) -> Duration {
        match self {
            Self::Busy {
                after: Some(after), ..
            } => (*after).min(most),
            _ => Duration::ZERO,
        }
    }
}

/// One unit of a purchase, as the provider names it.
#[derive(Clone, Debug)]
pub struct ProviderUnit {
    /// The provider's id of it.
    pub unit_id: String,
    /// The provider's option id.
    pub option_id: String,
    /// What became of it.
    pub state: UnitState,
}

/// What became of a provider's unit.
#[derive(Clone, Debug)]
pub enum UnitState {
    /// No profile yet.
    Pending,
    /// It has its profile.
    Ready {
        /// The eSIM's number.
        iccid: Iccid,
        /// What installs it.
        code: ActivationCode,
        /// When it expires, `YYYY-MM-DD`.
        expired_date: String,
    },
    /// It will never have one.
    Failed(String),
}

/// An eSIM provider.
pub trait Provider: Send + Sync + 'static {
    /// Buys. Called once per recorded attempt, by its holder only.
    fn place<'a>(&'a self, purchase: &'a Purchase) -> BoxFuture<'a, Result<PlaceAnswer, Trouble>>;
    /// Looks a purchase up by our key. Buys nothing.
    fn find(&self, placement_id: PlacementId) -> BoxFuture<'_, Result<FindAnswer, Trouble>>;
    /// Asks for the profiles of a purchase that the provider has. Buys nothing.
    fn collect(&self, placement_id: PlacementId) -> BoxFuture<'_, Result<FindAnswer, Trouble>>;
    /// Gives a unit back that nobody has installed. Nothing in the pipeline does so by itself.
    fn cancel<'a>(&'a self, unit_id: &'a str) -> BoxFuture<'a, Result<CancelAnswer, Trouble>>;
    /// The unit that a callback is about; `None` if the body can't be read. Anybody may have written
    /// the body: nothing but this hint is taken from it.
    fn parse_callback(&self, body: &[u8]) -> Option<String>;
}
