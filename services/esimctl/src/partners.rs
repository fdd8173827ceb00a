//! Partner accounts, their keys and limits, and what was refused to them.

pub mod key;
pub mod leaked;
pub mod partner;
pub mod partner_apply;
pub mod partner_change;
pub mod partner_file;
pub mod partner_plan;
pub mod refused;
pub mod rotate;
pub mod terms;
