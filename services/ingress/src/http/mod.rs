//! Connections and HTTP: what every request passes, whatever its path.

pub(crate) mod codes;
pub(crate) mod connection;
pub(crate) mod error;
pub(crate) mod observe;
pub(crate) mod routes;
pub(crate) mod server;
