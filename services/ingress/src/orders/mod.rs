//! Create-order. [`create`] is the handler; [`request`] parses the body; [`accept`] stores the order and decides its
//! answer; [`handshake`] exchanges messages with the provisioners meanwhile.

pub(crate) mod accept;
pub(crate) mod create;
pub(crate) mod handshake;
pub(crate) mod request;
