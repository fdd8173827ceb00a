//! Orders and what is bought for them: finding and showing an order, purchases, give-backs and
//! extensions that wait for a person, erasure.

pub mod erase;
pub mod esim_change;
pub mod find;
pub mod order;
pub mod order_list;
pub mod placement;
