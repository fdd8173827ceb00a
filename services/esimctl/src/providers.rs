//! Providers, what they sell, and the comparison of their purchases with ours.

pub mod catalogue;
pub mod ledger;
pub mod option;
pub mod option_file;
pub mod provider;
pub mod provider_check;
pub mod provider_lists;
pub mod provider_prove;
pub mod reconcile;
pub mod recover;
