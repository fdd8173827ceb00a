//! Webhooks and the endpoints that get them.

pub mod delivery;
pub mod endpoint;
pub mod event;
pub mod resend;
pub mod webhook_url;
