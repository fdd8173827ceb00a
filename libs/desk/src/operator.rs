//! The queries and changes of operators, through `esimctl` and the console.
//!
//! Each change runs in one transaction, which ends as its [`Mode`](pg::actions::Mode) says. A
//! preview makes the change and rolls it back, so its counts are exact. Otherwise the change is
//! committed together with a record of who made it and why, so there is no change without a record.
//! Queries are bounded, because operators use them while the system works under load.

pub mod accounts;
pub mod activation;
pub mod balances;
pub mod books;
pub mod breakers;
pub mod catalogue;
pub mod deliveries;
pub mod delivery_list;
pub mod endpoints;
pub mod entered;
pub mod erase;
pub mod esim_changes;
pub mod health;
pub mod looking;
pub mod margin;
pub mod minute;
pub mod options;
pub mod order_extensions;
pub mod order_list;
pub mod orders;
pub mod partner_day;
pub mod partners_lately;
pub mod placements;
pub mod prices;
pub mod resends;
pub mod retention_terms;
pub mod route;
pub mod search;
pub mod sessions;
pub mod story;
pub mod words;
