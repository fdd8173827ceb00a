//! The types and pure rules of the pipeline: ids, states and their transitions, the text forms of an eSIM profile.
//! No I/O and no clock.

pub mod ids;
pub mod lane;
mod lpa;
pub mod placement;
pub mod states;
pub mod topup_id;
pub mod webhook_id;

pub use ids::{DeliveryId, OptionId, OrderId, PartnerId, PlacementId};
pub use lane::lane;
pub use lpa::{ActivationCode, Iccid, InvalidProfile};
pub use states::{Environment, PlacementState};
pub use topup_id::{TopupId, TopupIds};
pub use webhook_id::WebhookId;
