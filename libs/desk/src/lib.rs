//! What people read and decide: operators through `esimctl` and the console, partners through
//! self-service, also where an archived order is. Retention and the replacement of master keys are here,
//! too, because people decide their terms.

pub mod archived;
pub mod csv;
pub mod master_key;
pub mod operator;
pub mod retention;
pub mod self_service;
