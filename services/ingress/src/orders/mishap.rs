//! Mishaps on demand: answers to create-order that go wrong because the partner has ordered an
//! option of the sandbox that asks for it. A partner's program can thus be tested with what the
//! guide warns of: a 500 although the order is stored, an answer that never arrives, and a 429.
//!
//! Guarantees: only partners of the environment `sandbox` meet a mishap ([`asked_for`]), so the
//! order of a live partner is answered as if this module did not exist. A mishap changes the answer
//! and nothing else: an order is stored, bought and delivered as always, and one that got a 429 is
//! not stored. The metrics and the log record the answer that the order would have had, because a
//! partner's test must not wake an operator.
//!
//! [`super::create`] asks [`Mishaps::wanted`] first. An order without a mishap, which every live
//! one is, goes straight to its answer. That of one with a mishap goes through
//! [`OrderMishap::instead_of`]; nothing else in ingress knows of mishaps.

use std::{
    collections::VecDeque,
    sync::{Arc, LazyLock, Mutex},
    time::{Duration, Instant},
};

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};
use domain::{Environment, OptionId, PartnerId, sandbox_option};
use runtime::lock;

use crate::{
    access::directory::KnownPartner,
    http::{
        codes::ErrorCode,
        connection::{Connection, unsent_body},
        error::{ApiError, ReachedLimit, ReplacedStatus},
    },
    orders::request::Draft,
};

/// How long an order of `limited-first` is refused after its first request. A client that repeats
/// it without heeding `Retry-After` is refused again.
const REFUSED_FOR: Duration = Duration::from_secs(2);
/// The maximum number of orders of `limited-first` that a process remembers. If there are more, the
/// oldest is forgotten, and its repeat is refused once more.
const MOST_REMEMBERED: usize = 1000;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mishap {
    /// The answer to a stored order is a 500.
    Error,
    /// The answer to a stored order is lost: the connection is closed instead.
    LostAnswer,
    /// The first request of an order gets a 429, and so does a repeat that comes too early.
    LimitedFirst,
}

/// The options that ask for a mishap.
static OPTIONS: LazyLock<[(OptionId, Mishap); 3]> = LazyLock::new(|| {
    [
        ("stored-then-500", Mishap::Error),
        ("answer-lost", Mishap::LostAnswer),
        ("limited-first", Mishap::LimitedFirst),
    ]
    .map(|(name, mishap)| (sandbox_option(name), mishap))
});

/// The mishap that an order asks for. If several of its items ask for one, the first decides.
fn asked_for(partner: &KnownPartner, draft: &Draft) -> Option<Mishap> {
    if partner.environment != Environment::Sandbox {
        return None;
    }
    let asks = |id: OptionId| OPTIONS.iter().find(|(option, _)| *option == id);
    let mut ordered = draft.items.iter().filter_map(|item| item.option_id);
    ordered.find_map(asks).map(|(_, mishap)| *mishap)
}

impl Mishap {
    /// Replaces the 201 of an order that asks for it. Any other answer is left as it is, because
    /// such an order is not stored, or a repeat has to learn that it is.
    fn spoil(self, answer: Response, connection: &Arc<Connection>) -> Response {
        let status = answer.status();
        if status != StatusCode::CREATED {
            return answer;
        }
        // The 201 is dropped here, so it counts as an answer that never leaves, and the readiness
        // events that were held for it are sent.
        let mut spoiled = match self {
            Self::LimitedFirst => return answer,
            Self::Error => ApiError::internal(anyhow::anyhow!(
                "a sandbox account ordered an option that asks for a 500"
            ))
            .into_response(),
            Self::LostAnswer => (status, unsent_body(Arc::clone(connection))).into_response(),
        };
        spoiled.extensions_mut().insert(ReplacedStatus(status));
        spoiled
    }
}

/// The mishap of an order.
pub(crate) struct OrderMishap {
    mishap: Mishap,
    /// The 429 that the order gets instead of being stored.
    refusal: Option<ApiError>,
}

impl OrderMishap {
    /// The answer of the order. An order that gets a 429 is not carried out: its answer is dropped
    /// before it begins.
    pub(crate) async fn instead_of(
        self,
        answer: impl Future<Output = Response>,
        connection: &Arc<Connection>,
    ) -> Response {
        match self.refusal {
            Some(refusal) => refusal.into_response(),
            None => self.mishap.spoil(answer.await, connection),
        }
    }
}

/// The first request of an order of `limited-first`.
struct First {
    partner: PartnerId,
    external_order_id: String,
    at: Instant,
}

/// What this process remembers of orders that ask for a mishap.
#[derive(Default)]
pub(crate) struct Mishaps {
    /// The oldest first.
    limited: Mutex<VecDeque<First>>,
}

impl Mishaps {
    /// What goes wrong with an order, if it asks for that.
    pub(crate) fn wanted(
        &self,
        partner: &KnownPartner,
        draft: &Draft,
        now: Instant,
    ) -> Option<OrderMishap> {
        let mishap = asked_for(partner, draft)?;
        let refusal = self.refusal(mishap, partner.id, draft, now);
        Some(OrderMishap { mishap, refusal })
    }

    /// The 429 of an order that asks for one, unless its first request was long enough ago.
    fn refusal(
        &self,
        mishap: Mishap,
        partner: PartnerId,
        draft: &Draft,
        now: Instant,
    ) -> Option<ApiError> {
        let external_order_id = draft.external_order_id.as_ref()?;
        if mishap != Mishap::LimitedFirst || !draft.errors.is_empty() {
            return None;
        }
        let mut limited = lock(&self.limited);
        let is_same = |first: &&First| {
            first.partner == partner && first.external_order_id == *external_order_id
        };
        let waited = if let Some(first) = limited.iter().find(is_same) {
            now.saturating_duration_since(first.at)
        } else {
            if limited.len() >= MOST_REMEMBERED {
                limited.pop_front();
            }
            limited.push_back(First {
                partner,
                external_order_id: external_order_id.clone(),
                at: now,
            });
            Duration::ZERO
        };
        let wait = REFUSED_FOR
            .checked_sub(waited)
            .filter(|left| !left.is_zero())?;
        Some(ApiError::Limited(ReachedLimit {
            code: ErrorCode::RateLimited,
            limit_name: "sandbox_option",
            message: ErrorCode::RateLimited.message_with("1 such order (this option asks for it)"),
            limit: 1,
            wait,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::orders::request::RequestedItem;

    fn draft(options: &[OptionId], id: &str) -> Draft {
        let item = |(index, option_id): (usize, &OptionId)| RequestedItem {
            index,
            option_id: Some(*option_id),
            ..RequestedItem::default()
        };
        Draft {
            external_order_id: Some(id.to_owned()),
            items: options.iter().enumerate().map(item).collect(),
            ..Draft::default()
        }
    }

    #[test]
    fn a_live_partner_never_meets_a_mishap() {
        let sandbox = KnownPartner::example(Environment::Sandbox);
        let live = KnownPartner::example(Environment::Live);
        for (option, mishap) in *OPTIONS {
            let order = draft(&[sandbox_option("ready"), option], "A-1");
            assert_eq!(asked_for(&sandbox, &order), Some(mishap));
            assert_eq!(asked_for(&live, &order), None);
        }
        let good = draft(&[sandbox_option("ready"), OptionId::new()], "A-1");
        assert_eq!(asked_for(&sandbox, &good), None);
    }

    #[test]
    fn the_first_request_of_each_order_is_limited_until_its_time_has_passed() {
        let mishaps = Mishaps::default();
        let partner = PartnerId::new();
        let began = Instant::now();
        let refused = |id: &str, partner, after| {
            let order = draft(&[sandbox_option("limited-first")], id);
            mishaps
                .refusal(Mishap::LimitedFirst, partner, &order, began + after)
                .is_some()
        };
        assert!(refused("A-1", partner, Duration::ZERO));
        assert!(refused("A-1", partner, Duration::from_millis(1999)));
        assert!(!refused("A-1", partner, REFUSED_FOR));
        assert!(!refused("A-1", partner, Duration::from_hours(1)));
        // Another order, and the same id of another partner.
        assert!(refused("A-2", partner, REFUSED_FOR));
        assert!(refused("A-1", PartnerId::new(), REFUSED_FOR));
        for number in 0..=MOST_REMEMBERED {
            refused(&format!("B-{number}"), partner, REFUSED_FOR);
        }
        assert_eq!(lock(&mishaps.limited).len(), MOST_REMEMBERED);
        assert!(refused("A-1", partner, Duration::from_hours(1)));
    }
}
