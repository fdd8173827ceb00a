//! The eSIM providers: the interface ([`provider`]), an adapter for each of them, and the list of
//! all ([`known`]).

mod account;
mod airalo;
mod esim_access;
mod extension;
mod http;
mod known;
mod lists;
mod price;
mod provider;
mod sandbox;
mod text;
mod told;
mod trouble;
mod usimsa;
mod zendit;

pub use account::{AccountSetting, ProviderAccount};
pub use extension::{
    AddedExtension, BeforeExtension, ExtendResponse, Extension, ExtensionOffer, ExtensionSeen,
    FindExtension, ProviderProfile,
};
pub use known::Accounts;
pub use lists::{ListPage, ProductOffer, PurchasePeriod, SoldPurchase, UnsuitableProduct};
#[cfg(test)]
pub(crate) use provider::Adapter;
pub use provider::{
    BadCallback, Balance, BoughtUnits, CallLimits, CallbackRequest, Capabilities, Custody,
    DeliveredEsim, EsimStatus, GiveBackResponse, GiveBackWay, Heard, Hint, LiveAnswer, LookUp,
    LookUpRequest, LookUpResponse, OpenQuestion, PacedCalls, ProfileFault, Provider,
    ProviderConnection, ProviderFacts, ProviderReport, ProviderUnit, ProviderUnitState, Purchase,
    PurchaseResponse, RefusedProduct, ReportSubject, SuspendResponse, Trouble,
};
pub use text::ProviderId;
pub use told::{ToldFacts, UnknownValue};
