//! What options cost partners, and what partners have.

pub mod account;
pub mod margin;
pub mod price;
pub mod price_file;
pub mod price_markup;
pub mod price_set;
