//! The types and rules that every part of the pipeline shares: typed ids, the state machine of a
//! placement, that of a give-back and that of an endpoint, what is told of the use of an eSIM, the
//! kinds of what is remembered, the rotation of secrets, the names of lanes, what an order agrees
//! about its units, what a partner keeps with it, what it pays, how it is cut into purchases, the
//! standard fields of a product, what travellers see of a shop, the text forms of an eSIM profile,
//! and keys that JSON repeats.
//!
//! All crates of the workspace may depend on this one. It does no I/O and reads no clock: times and
//! random numbers are passed in as values, so that each rule can be tested by property tests and
//! explored by the model checker in `tests/model`.

mod agreed;
pub mod command;
pub mod cut;
pub mod distinct;
pub mod endpoint;
mod endpoint_key;
pub mod esim_change;
pub mod esim_use;
pub mod event;
pub mod extension;
mod history;
pub mod ids;
pub mod lane;
mod lpa;
mod metadata;
pub mod money;
pub mod partner_key;
pub mod placement;
pub mod product;
pub mod reason;
pub mod rotation;
pub mod sandbox;
pub mod shop;
pub mod standing;
pub mod states;
pub mod stored;
pub mod topup_id;
pub mod webhook_id;

pub use agreed::{Agreed, StoredAgreed, UnreadableTerms};
pub use command::Command;
pub use endpoint_key::EndpointKey;
pub use esim_change::EsimChangeState;
pub use esim_use::Reading;
pub use history::HistoryKind;
pub use ids::{
    DeliveryId, EndpointId, ExtensionId, Id, KeyId, OptionId, OrderId, PartnerId, PlacementId,
    option_of, sandbox_option,
};
pub use lane::lane;
pub use lpa::{ActivationCode, Iccid, InvalidProfile, KnownIccid, is_separator};
pub use metadata::{Metadata, NoMetadata, UnreadableMetadata};
pub use money::Amount;
pub use partner_key::{KeyTerms, Right, Rights};
pub use reason::{Reason, StoredReason};
pub use shop::{PageLanguage, Shop};
pub use states::{Environment, PlacementState};
pub use stored::{MaybeStored, Stored};
pub use topup_id::{TopupId, TopupIds};
pub use webhook_id::WebhookId;
