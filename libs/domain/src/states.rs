//! The stored states, by the names that the database and operators see.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// An unknown name of a state or an environment.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is no {1}")]
pub struct UnknownName(pub String, pub &'static str);

/// The environment of a partner or an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Environment {
    /// Test data; nothing is bought for real.
    Sandbox,
    /// Real purchases.
    Live,
}

/// The state of a placement; its transitions are in [`crate::placement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlacementState {
    /// Certainly not bought; the next attempt may buy it.
    Accepted,
    /// An attempt is recorded; its outcome is unknown so far.
    Placing,
    /// Bought; its topups finish one by one.
    Placed,
    /// Not bought, and its order was answered with 422.
    Refused,
    /// Not bought and given up. It becomes `refused` if its order is answered with 422.
    Failed,
    /// Automatic work has stopped; an operator resolves it.
    Parked,
}

impl Environment {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sandbox => "sandbox",
            Self::Live => "live",
        }
    }
}

impl fmt::Display for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Environment {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "sandbox" => Ok(Self::Sandbox),
            "live" => Ok(Self::Live),
            other => Err(UnknownName(other.to_owned(), "environment (sandbox or live)")),
        }
    }
}

impl PlacementState {
    pub const ALL: [Self; 6] =
        [Self::Accepted, Self::Placing, Self::Placed, Self::Refused, Self::Failed, Self::Parked];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Placing => "placing",
            Self::Placed => "placed",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Parked => "parked",
        }
    }
}

impl FromStr for PlacementState {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|state| state.as_str() == name)
            .ok_or_else(|| UnknownName(name.to_owned(), "placement state"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for state in PlacementState::ALL {
            assert_eq!(state.as_str().parse(), Ok(state));
        }
        for environment in [Environment::Sandbox, Environment::Live] {
            assert_eq!(environment.as_str().parse(), Ok(environment));
        }
        assert!("SANDBOX".parse::<Environment>().is_err());
    }
}
