//! The queries and changes of `esimctl`. Each change is previewed, or recorded with its reason.

pub mod actions;
pub mod deliveries;
pub mod erase;
pub mod orders;
pub mod placements;
pub mod terms;
