//! The upkeep of a system: its schema, secrets, retention and archives, and the record of what
//! operators did.

pub mod action;
pub mod archive;
pub mod database_password;
pub mod master_key;
pub mod migrate;
pub mod operator;
pub mod reencrypt;
pub mod retention;
pub mod secret_set;
