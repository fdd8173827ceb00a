//! Self-service: every signed request except create-order.
//!
//! Guarantees:
//!
//! - These requests leave room for orders. They have limits in flight of their own and use at most
//!   two database connections, which is meant to be less than `DATABASE_CONNECTIONS`.
//! - Every answer says how many more requests the partner may send now.
//! - A partner sees only what is its own. An id of another partner is answered like an unknown one,
//!   so that nobody can find out which ids exist.
//! - No response may be stored by a cache, because many of them hold activation codes or keys.
//!
//! [`crate::routes`] merges the [`router`]. A handler takes a [`session::Session`], which exists
//! only for a request that was authenticated and admitted. The module relies on the statements of
//! `store`, each of which filters by the partner; those of the catalogue filter by the partner's
//! environment.

mod account;
mod delivery_list;
mod endpoints;
mod esims;
mod events;
pub(crate) mod fields;
mod groups;
mod listen;
mod notices;
pub(crate) mod openapi;
mod options;
mod orders;
pub(crate) mod query;
mod redeliveries;
mod sandbox;
pub(crate) mod session;
mod topups;
mod webhook;

use std::sync::Arc;

use axum::{
    Router, middleware,
    routing::{MethodRouter, get, post},
};

use self::session::{AdmissionKind, LISTEN, RouteAdmission, SelfService, admit};
use crate::{access::gate::RequestGate, http::PREFIXES};

/// The paths below the prefix, with their handlers.
fn routes() -> Vec<(&'static str, MethodRouter<Arc<SelfService>>)> {
    vec![
        ("/orders", get(orders::list)),
        (
            "/orders/{external_order_id}",
            get(orders::show).delete(orders::cancel),
        ),
        ("/topups", get(topups::list)),
        ("/topups/{topup_id}", get(topups::show)),
        ("/topups/{topup_id}/deliveries", get(topups::deliveries)),
        ("/topups/{topup_id}/redeliver", post(topups::redeliver)),
        ("/topups/{topup_id}/usage", get(esims::usage)),
        (
            "/topups/{topup_id}/give-back",
            get(esims::give_back_state).post(esims::give_back),
        ),
        ("/options", get(options::list)),
        ("/account", get(account::show)),
        ("/webhook", get(webhook::show).put(webhook::set)),
        (LISTEN, get(listen::listen)),
        ("/webhook/secret", post(webhook::rotate_secret)),
        ("/webhook/test", post(events::test)),
        ("/webhook/events", get(events::list)),
        ("/webhook/events/{event_id}", get(events::show)),
        (
            "/webhook/events/{event_id}/redeliver",
            post(events::redeliver),
        ),
        ("/webhooks", get(delivery_list::list)),
        (
            "/webhooks/redeliver",
            get(redeliveries::list).post(redeliveries::begin),
        ),
        (
            "/webhooks/redeliver/{redelivery_id}",
            get(redeliveries::show).delete(redeliveries::cancel),
        ),
        ("/endpoints", get(endpoints::list).post(endpoints::create)),
        (
            "/endpoints/{endpoint_id}",
            get(endpoints::show)
                .put(endpoints::change)
                .delete(endpoints::delete),
        ),
        ("/endpoints/{endpoint_id}/secret", post(endpoints::secret)),
        ("/endpoints/{endpoint_id}/pause", post(endpoints::pause)),
        ("/endpoints/{endpoint_id}/resume", post(endpoints::resume)),
        ("/endpoints/{endpoint_id}/test", post(endpoints::test)),
        (
            "/notices",
            get(notices::show).put(notices::set).delete(notices::remove),
        ),
        ("/notices/verify", post(notices::verify)),
        ("/keys", post(account::rotate)),
        ("/sandbox/events", post(sandbox::make_event)),
    ]
}

/// Makes the routes, under both prefixes.
pub(crate) fn router(gate: &Arc<RequestGate>) -> Router<Arc<SelfService>> {
    let mut router = Router::new();
    for prefix in PREFIXES {
        for (path, handlers) in routes() {
            let route = RouteAdmission {
                gate: Arc::clone(gate),
                kind: AdmissionKind::of(path),
            };
            let handlers = handlers.layer(middleware::from_fn_with_state(route, admit));
            router = router.route(&format!("{prefix}{path}"), handlers);
        }
    }
    router
}
