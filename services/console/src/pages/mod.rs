//! The pages, one module for each.

pub(crate) mod actions;
pub(crate) mod assets;
pub(crate) mod find;
pub(crate) mod forms;
pub(crate) mod needs;
pub(crate) mod operations;
pub(crate) mod order;
pub(crate) mod overview;
pub(crate) mod partner;
mod steps;
