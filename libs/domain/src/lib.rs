//! The words of the ordering pipeline and its pure rules: ids, states and their transitions, the
//! text forms of an eSIM profile. No I/O, no clock, no randomness of its own.

pub mod ids;
pub mod lpa;
pub mod placement;
pub mod states;
pub mod topup_id;

pub use ids::{OptionId, OrderId, PartnerId, PlacementId};
pub use lpa::{ActivationCode, Iccid};
pub use states::{Environment, PlacementState, TopupState};
pub use topup_id::{TopupId, TopupIds};
