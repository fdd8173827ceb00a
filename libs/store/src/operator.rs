//! What operators look up and change with `esimctl`.

pub mod deliveries;
pub mod orders;
pub mod placements;
