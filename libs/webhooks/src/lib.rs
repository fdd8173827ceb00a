//! The shared parts of the services that set, send and show webhooks.

pub mod body;
pub mod config;
pub mod dns;
pub mod event;
pub mod guard;
pub mod qr;
pub mod url;
