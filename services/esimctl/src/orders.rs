//! Orders and what is bought for them: finding and showing an order, purchases and give-backs that
//! wait for a person, erasure.

pub mod erase;
pub mod find;
pub mod give_back;
pub mod order;
pub mod order_list;
pub mod placement;
