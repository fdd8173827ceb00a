//! The eSIM providers: the interface ([`provider`]), an adapter for each of them, and the list of all
//! ([`known`]).

mod account;
mod airalo;
mod esim_access;
mod http;
mod known;
mod lists;
mod price;
mod provider;
mod sandbox;
mod text;
mod usimsa;

pub use account::{Account, Setting};
pub use known::Accounts;
pub use lists::{Listed, Offer, Sold, Span, Unsuitable};
pub use provider::{
    Balance, Bought, Capabilities, Connected, Custody, DeliveredEsim, EsimStatus, Fault,
    GiveBackResponse, Hint, Limits, LookUp, LookUpRequest, LookUpResponse, Paced, Provider,
    ProviderUnit, Purchase, PurchaseResponse, Trouble, UnitState,
};
pub use text::ProviderId;
