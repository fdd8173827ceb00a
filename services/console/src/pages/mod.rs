//! The pages, one module for each.

pub(crate) mod account;
pub(crate) mod actions;
pub(crate) mod acts;
pub(crate) mod assets;
pub(crate) mod code;
pub(crate) mod esim;
pub(crate) mod figures;
pub(crate) mod find;
pub(crate) mod forms;
mod issues;
pub(crate) mod lists;
pub(crate) mod needs;
pub(crate) mod order;
pub(crate) mod orders;
pub(crate) mod overview;
pub(crate) mod partner;
pub(crate) mod partners;
pub(crate) mod providers;
pub(crate) mod resends;
mod steps;
mod track;
pub(crate) mod webhooks;
pub(crate) mod zone;
