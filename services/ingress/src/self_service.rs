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
//! - A request is admitted only if its key has the right that [`routes`] names beside the handler.
//!
//! [`crate::routes`] merges the [`router`]. A handler takes a [`session::Session`], which exists
//! only for a request that was authenticated and admitted. The module relies on the statements of
//! `store`, each of which filters by the partner; those of the catalogue filter by the partner's
//! environment.

mod account;
mod balance;
mod delivery_list;
mod endpoints;
mod esims;
mod events;
mod extensions;
pub(crate) mod fields;
mod groups;
mod install_pages;
mod keys;
mod listen;
mod notices;
pub(crate) mod openapi;
mod options;
mod orders;
pub(crate) mod query;
mod redeliveries;
mod sandbox;
pub(crate) mod session;
mod suspensions;
mod topups;
mod webhook;

use std::sync::Arc;

use axum::{
    Router,
    handler::Handler,
    middleware,
    routing::{self, MethodRouter},
};
use domain::Right;

use self::session::{AdmissionKind, LISTEN, RouteAdmission, SelfService, admit};
use crate::{access::gate::RequestGate, http::PREFIXES};

/// A handler with the right that its requests need. There is no other way into the router, so a
/// handler without a right does not compile.
struct Handling {
    method: &'static str,
    right: Right,
    handler: MethodRouter<Arc<SelfService>>,
}

/// A constructor of [`Handling`] for one method.
macro_rules! handling {
    ($method:ident) => {
        fn $method<H, T>(right: Right, handler: H) -> Handling
        where
            H: Handler<T, Arc<SelfService>>,
            T: 'static,
        {
            Handling {
                method: stringify!($method),
                right,
                handler: routing::$method(handler),
            }
        }
    };
}
handling!(get);
handling!(put);
handling!(post);
handling!(delete);

/// The paths below the prefix, with their handlers.
#[expect(clippy::too_many_lines, reason = "one row for each request")]
fn routes() -> Vec<(&'static str, Vec<Handling>)> {
    use Right::{Keys, Order, Read, Webhooks};
    vec![
        ("/orders", vec![get(Read, orders::list)]),
        (
            "/orders/{external_order_id}",
            vec![get(Read, orders::show), delete(Order, orders::cancel)],
        ),
        ("/topups", vec![get(Read, topups::list)]),
        ("/topups/{topup_id}", vec![get(Read, topups::show)]),
        (
            "/topups/{topup_id}/deliveries",
            vec![get(Read, topups::deliveries)],
        ),
        (
            "/topups/{topup_id}/redeliver",
            vec![post(Webhooks, topups::redeliver)],
        ),
        ("/topups/{topup_id}/usage", vec![get(Read, esims::usage)]),
        (
            "/topups/{topup_id}/give-back",
            vec![
                get(Read, esims::give_back_state),
                post(Order, esims::give_back),
            ],
        ),
        (
            "/topups/{topup_id}/suspend",
            vec![post(Order, suspensions::suspend)],
        ),
        (
            "/topups/{topup_id}/resume",
            vec![post(Order, suspensions::resume)],
        ),
        (
            "/topups/{topup_id}/suspension",
            vec![get(Read, suspensions::show)],
        ),
        (
            "/topups/{topup_id}/install-page",
            vec![
                post(Order, install_pages::open),
                delete(Order, install_pages::end),
            ],
        ),
        (
            "/topups/{topup_id}/extensions",
            vec![get(Read, extensions::list), post(Order, extensions::order)],
        ),
        ("/options", vec![get(Read, options::list)]),
        ("/options/{option_id}", vec![get(Read, options::show)]),
        ("/balance", vec![get(Read, balance::show)]),
        ("/balance/{currency}", vec![put(Webhooks, balance::warn)]),
        ("/statements", vec![get(Read, balance::list)]),
        (
            "/statements/{statement}",
            vec![get(Read, balance::statement)],
        ),
        ("/account", vec![get(Read, account::show)]),
        (
            "/account/install-pages",
            vec![
                get(Read, install_pages::show),
                put(Keys, install_pages::set),
            ],
        ),
        (
            "/account/keys",
            vec![get(Keys, keys::list), post(Keys, keys::create)],
        ),
        (
            "/account/keys/{key_id}",
            vec![put(Keys, keys::change), delete(Keys, keys::end)],
        ),
        (
            "/webhook",
            vec![get(Read, webhook::show), put(Webhooks, webhook::set)],
        ),
        (LISTEN, vec![get(Read, listen::listen)]),
        (
            "/webhook/secret",
            vec![post(Webhooks, webhook::rotate_secret)],
        ),
        ("/webhook/test", vec![post(Webhooks, events::test)]),
        ("/webhook/events", vec![get(Read, events::list)]),
        ("/webhook/events/{event_id}", vec![get(Read, events::show)]),
        (
            "/webhook/events/{event_id}/redeliver",
            vec![post(Webhooks, events::redeliver)],
        ),
        ("/webhooks", vec![get(Read, delivery_list::list)]),
        (
            "/webhooks/redeliver",
            vec![
                get(Read, redeliveries::list),
                post(Webhooks, redeliveries::begin),
            ],
        ),
        (
            "/webhooks/redeliver/{redelivery_id}",
            vec![
                get(Read, redeliveries::show),
                delete(Webhooks, redeliveries::cancel),
            ],
        ),
        (
            "/endpoints",
            vec![
                get(Read, endpoints::list),
                post(Webhooks, endpoints::create),
            ],
        ),
        (
            "/endpoints/{endpoint_id}",
            vec![
                get(Read, endpoints::show),
                put(Webhooks, endpoints::change),
                delete(Webhooks, endpoints::delete),
            ],
        ),
        (
            "/endpoints/{endpoint_id}/secret",
            vec![post(Webhooks, endpoints::secret)],
        ),
        (
            "/endpoints/{endpoint_id}/pause",
            vec![post(Webhooks, endpoints::pause)],
        ),
        (
            "/endpoints/{endpoint_id}/resume",
            vec![post(Webhooks, endpoints::resume)],
        ),
        (
            "/endpoints/{endpoint_id}/test",
            vec![post(Webhooks, endpoints::test)],
        ),
        (
            "/notices",
            vec![
                get(Read, notices::show),
                put(Webhooks, notices::set),
                delete(Webhooks, notices::remove),
            ],
        ),
        ("/notices/verify", vec![post(Webhooks, notices::verify)]),
        ("/keys", vec![post(Keys, account::rotate)]),
        ("/sandbox/events", vec![post(Webhooks, sandbox::make_event)]),
        (
            "/sandbox/balance/{currency}",
            vec![put(Order, sandbox::set_balance)],
        ),
    ]
}

/// The right that each request of self-service needs, by path and method. The reference for
/// partners says it of each.
pub(crate) fn rights() -> impl Iterator<Item = (&'static str, &'static str, Right)> {
    let of_path = |(path, handlings): (&'static str, Vec<Handling>)| {
        let of_handling = move |one: Handling| (path, one.method, one.right);
        handlings.into_iter().map(of_handling)
    };
    routes().into_iter().flat_map(of_path)
}

/// Makes the routes, under both prefixes.
pub(crate) fn router(gate: &Arc<RequestGate>) -> Router<Arc<SelfService>> {
    let mut router = Router::new();
    for prefix in PREFIXES {
        for (path, handlings) in routes() {
            for Handling { right, handler, .. } in handlings {
                let route = RouteAdmission {
                    gate: Arc::clone(gate),
                    kind: AdmissionKind::of(path),
                    right,
                };
                let handler = handler.layer(middleware::from_fn_with_state(route, admit));
                router = router.route(&format!("{prefix}{path}"), handler);
            }
        }
    }
    router
}
