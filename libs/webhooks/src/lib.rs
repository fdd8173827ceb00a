//! The shared parts of the services that set, send and show webhooks.
//!
//! - [`url`]: the URL of a partner's endpoint, as text.
//! - [`guard`]: decides where webhooks may go.
//! - [`dns`]: resolves the names of endpoints for the guard.
//! - [`body`]: the nine fields of a webhook.
//! - [`event`]: the bodies of all other events.
//! - [`qr`]: the URL of a QR picture, and which pictures are drawn.
//! - [`signature`]: the value of `webhook-signature`.
//! - [`config`]: the settings that these need.

pub mod body;
pub mod config;
pub mod dns;
pub mod event;
pub mod guard;
pub mod qr;
pub mod signature;
pub mod url;
