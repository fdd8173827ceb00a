//! What people read and decide: operators through `esimctl` and the console, partners through
//! self-service. It also knows which archive has an order, and holds retention and the replacement
//! of master keys, because people decide when data and keys end.

pub mod archived;
pub mod master_key;
pub mod operator;
pub mod retention;
pub mod self_service;
