//! Create-order: parsed, stored, answered.

pub(crate) mod accept;
pub(crate) mod handshake;
pub(crate) mod request;
