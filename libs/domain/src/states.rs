//! The stored states, by the names that the database and operators see.

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, IntoStaticStr};

/// An unknown name of a state or an environment.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is no {1}")]
pub struct UnknownName(pub String, pub &'static str);

impl UnknownName {
    fn environment(name: &str) -> Self {
        Self(name.to_owned(), "environment (sandbox or live)")
    }

    fn placement_state(name: &str) -> Self {
        Self(name.to_owned(), "placement state")
    }
}

/// The environment of a partner or an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, Display, EnumString, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownName, parse_err_fn = UnknownName::environment)]
pub enum Environment {
    /// Test data; nothing is bought for real.
    Sandbox,
    /// Real purchases.
    Live,
}

impl Environment {
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The state of a placement; its transitions are in [`crate::placement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownName, parse_err_fn = UnknownName::placement_state)]
pub enum PlacementState {
    /// Certainly not bought; the next attempt may buy it.
    Accepted,
    /// An attempt is recorded; its outcome is unknown so far.
    Placing,
    /// Bought; its topups finish one by one.
    Placed,
    /// Not bought, and its order was answered with 422 or cancelled.
    Refused,
    /// Not bought and given up. It becomes `refused` if its order is answered with 422 or cancelled.
    Failed,
    /// Automatic work has stopped; an operator resolves it.
    Parked,
}

impl PlacementState {
    pub const ALL: [Self; 6] = [Self::Accepted, Self::Placing, Self::Placed, Self::Refused, Self::Failed, Self::Parked];

    pub fn as_str(self) -> &'static str {
        self.into()
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
