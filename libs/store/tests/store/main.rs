//! Tests of the crates with SQL (`pg`, `accounts`, `store`, `desk`, `tools`) on a real PostgreSQL,
//! with a separate database for each test. They are one program, because most of them need several
//! of these crates, and all of them the schema.
//!
//! - [`machine`]: every statement that moves a placement, against the state machine of crate
//!   `domain`.
//! - [`orders`], [`claim`], [`settle`], [`deliveries`]: each statement, alone and in several
//!   processes at once.
//! - [`providers`]: breakers and hints. [`provider_lanes`]: lanes that are held back, shares of a
//!   rate limit. [`operator`]: operators' lists, searches and changes.
//! - [`esim_requests`]: what partners ask about delivered eSIMs, and give-backs against the
//!   machine.
//! - [`extensions`]: more data for a delivered eSIM, against the same machine.
//! - [`money`]: what orders hold, and what becomes of it.
//! - [`events`]: further events of an endpoint, and new URLs. [`use_events`]: those about the use
//!   of eSIMs, and polls.
//! - [`batches`]: the notifier's work that it does in batches.
//! - [`resends`]: the list of a partner's webhooks, and many of them sent again.
//!   [`resends_of_operators`]: those of many partners.
//! - [`answers`]: whether orders get through.
//! - [`notices`]: what partners are told on another channel.
//! - [`self_service`]: what partners see and change themselves. [`topup_changes`]: their walk.
//! - [`restart`]: a webhook that is sent again while it is pending.
//! - [`recover`]: recovery after an old dump is restored.
//! - [`archive`]: finished orders leave the tables. [`archived_tables`]: no
//!   table is forgotten there.
//! - [`backup`]: a base backup and its log are restored.
//! - [`retention`]: what is erased after its term or on request, and a search for it in a dump.
//! - [`plans`]: the plans of all statements on large tables. [`described`]: the committed `.sqlx`
//!   is current.
//! - [`database`]: deadlines and silent connections.
//! - [`nodelay`]: no statement waits for a delayed acknowledgement.
//! - [`changes`]: what partners change themselves, in the record of operators.
//! - [`keys`]: further keys of partners.
//! - [`known`]: endpoints that a notifier knows.
//! - [`flushed`]: the server crashes after somebody was told of an order.
//! - [`roles`]: what each database role may do. [`bounds`]: what may stand in a column.
//! - [`further`]: several endpoints of one partner. [`health`]: every statement that changes the
//!   health of an endpoint, against the machine of crate `domain`.
//! - [`history`]: what did not go straight.
//! - [`rotation`]: replaced keys and secrets, and re-encryption under another master key.
//! - [`sweep`]: rows without an outcome after their first lease.
//! - [`console`]: what the console needs below its pages.
//! - [`configuration`]: operators' changes, as services see them.
//! - [`schema`], [`migrations`]: migrations beside live traffic and older programs. [`snapshot`]:
//!   the committed `schema.sql` is current. [`upgrade`]: a database of the baseline with rows.
//!   [`pooler`]: poolers are refused.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod answers;
mod archive;
mod archived_tables;
mod backup;
mod batches;
mod bench;
mod bounds;
mod changes;
mod claim;
mod configuration;
mod console;
mod database;
mod deliveries;
mod described;
mod drill;
mod endpoints;
mod esim_requests;
mod events;
mod extensions;
mod first_page;
mod flushed;
mod further;
mod health;
mod history;
mod keys;
mod known;
mod life;
mod machine;
mod migrations;
mod money;
mod nodelay;
mod notices;
mod offers;
mod operator;
mod orders;
mod plans;
mod pooler;
mod primary;
mod provider_lanes;
mod providers;
mod recover;
mod refused;
mod resends;
mod resends_of_operators;
mod restart;
mod retention;
mod roles;
mod rotation;
mod schema;
mod self_service;
mod session;
mod settle;
mod settled_again;
mod signing_in;
mod snapshot;
mod standings;
mod stolen;
mod story;
mod sweep;
mod topup_changes;
mod transactions;
mod upgrade;
mod use_events;
