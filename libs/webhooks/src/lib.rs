//! What the services that set, send and show webhooks have in common. Ingress takes webhook URLs
//! from partners and shows the fields of webhooks in self-service, the notifier sends webhooks, and
//! esimctl sets URLs for partners. They share this crate so that all of them apply the same rules
//! to a URL, and so that a partner sees the same fields everywhere.
//!
//! - [`url`] and [`guard`] decide which URLs a partner may set, and which addresses webhooks may go
//!   to. This is what keeps partners from reaching the operator's own network.
//! - [`dns`] resolves the host names of endpoints and lets the guard judge their addresses.
//! - [`mail`] says which e-mail addresses a partner may name for notices.
//! - [`body`] and [`event`] are the bodies of webhooks.
//! - [`headers`] decides which headers a partner may add to the requests to an endpoint.
//! - [`qr`] makes and checks the URLs of QR pictures.
//! - [`config`] holds the settings of all of this.

pub mod body;
pub mod config;
pub mod dns;
pub mod event;
pub mod guard;
pub mod headers;
pub mod mail;
pub mod qr;
pub mod url;
