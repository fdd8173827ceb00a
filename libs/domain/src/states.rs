//! The states that are stored as text. Their names are those in the database and in the output of
//! `esimctl`.

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, IntoStaticStr};

/// A text is not the name of a state or of an environment.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a valid {1}")]
pub struct UnknownName(pub String, pub &'static str);

impl UnknownName {
    fn environment(name: &str) -> Self {
        Self(name.to_owned(), "environment (sandbox or live)")
    }

    fn placement_state(name: &str) -> Self {
        Self(name.to_owned(), "placement state")
    }
}

/// The environment of a partner or of an option. Live partners can only order live options. Sandbox
/// partners can order every enabled option, because their orders always go to the provider
/// `sandbox`.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    Display,
    EnumString,
    IntoStaticStr,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownName, parse_err_fn = UnknownName::environment)]
pub enum Environment {
    /// Test data. Orders go to the provider `sandbox`, which makes up eSIMs.
    Sandbox,
    /// Orders are bought from real providers and cost money.
    Live,
}

impl Environment {
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The state of a placement. Its transitions are in [`crate::placement`].
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownName, parse_err_fn = UnknownName::placement_state)]
pub enum PlacementState {
    /// The placement is certainly not bought, and the next attempt may buy it.
    Accepted,
    /// An attempt is recorded, and its outcome is not known yet.
    Placing,
    /// The placement is bought. Its topups become ready one by one.
    Placed,
    /// The placement is not bought and never will be, because its order was answered with 422 or
    /// cancelled.
    Refused,
    /// The placement is not bought and has been given up. It becomes `refused` if its order is
    /// answered with 422 or cancelled.
    Failed,
    /// Nothing is bought for the placement until an operator resolves it.
    Parked,
}

impl PlacementState {
    pub const ALL: [Self; 6] = [
        Self::Accepted,
        Self::Placing,
        Self::Placed,
        Self::Refused,
        Self::Failed,
        Self::Parked,
    ];

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
