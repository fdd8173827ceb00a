//! What every command works with: the connection and the output, the confirmation and the record of
//! a change, and the arguments that several commands share.

pub mod confirm;
pub mod console;
pub mod csv;
pub mod exit;
pub mod listing;
pub mod lookup;
pub mod manifest;
pub mod output;
pub mod plan;
pub mod progress;
pub mod range;
pub mod secret_file;
