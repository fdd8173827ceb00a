//! Webhooks and the endpoints that get them.

pub mod delivery;
pub mod endpoint;
pub mod event;
pub mod operation;
pub mod webhook_url;
