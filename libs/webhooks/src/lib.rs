//! What the services that set, send and show webhooks share.
//!
//! - [`url`]: the URL of a partner's endpoint, as text.
//! - [`guard`]: decides where webhooks may go.
//! - [`body`]: the nine fields of a webhook.
//! - [`event`]: the bodies of all other events.
//! - [`config`]: the settings that these need.

pub mod body;
pub mod config;
pub mod event;
pub mod guard;
pub mod url;
