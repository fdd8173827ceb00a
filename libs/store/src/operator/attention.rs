//! What needs a person, in one list: parked placements and give-backs, exhausted webhooks, endpoints to which
//! nothing is sent, and breakers that are not closed. Each item has one action.

use domain::PlacementState;
use serde::Serialize;
use sqlx::PgConnection;

use super::{
    give_backs,
    placements::{self, Listed},
    story::minute,
    words::{counted, noun},
};
use crate::{
    Result,
    deliveries::endpoints::{self, Endpoint},
    providers::{self, BreakerState, ProviderBreaker},
};

/// Something that waits for a person.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Item {
    /// The breaker of a provider is open or half open, so its orders wait.
    Breaker(ProviderBreaker),
    /// A purchase whose outcome a person has to find out.
    Parked(Box<Listed>),
    /// A give-back of which a person has to find out whether the provider has the eSIM back.
    GiveBack(Box<give_backs::Listed>),
    /// Nothing is sent to this endpoint.
    Stopped(Endpoint),
    /// Webhooks to this endpoint have used up their retries.
    Exhausted(Endpoint),
}

/// What to do about an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    CloseBreaker(String),
    /// Commits were lost. Closing the breaker before `esimctl recover` could buy again what the
    /// database has forgotten.
    Recover,
    ResolvePlacement(domain::PlacementId),
    /// That of the eSIM of this topup.
    ResolveGiveBack(String),
    ResumeEndpoint(uuid::Uuid),
    ReplayExhausted(uuid::Uuid),
}

impl Remedy {
    /// The command of `esimctl` that does it.
    pub fn command(&self) -> String {
        match self {
            Self::CloseBreaker(name) => format!("esimctl provider close {name}"),
            Self::Recover => "esimctl recover".to_owned(),
            Self::ResolvePlacement(id) => {
                format!(
                    "esimctl placement resolve {id} --bought|--not-bought|--retry --reason TEXT"
                )
            }
            Self::ResolveGiveBack(id) => {
                format!("esimctl give-back resolve {id} --returned|--not-returned --reason TEXT")
            }
            Self::ResumeEndpoint(id) => format!("esimctl endpoint resume {id}"),
            Self::ReplayExhausted(id) => {
                format!("esimctl delivery replay --partner {id} --since 48h --reason TEXT")
            }
        }
    }
}

impl Item {
    /// What to do, once the cause is gone or known.
    pub fn remedy(&self) -> Remedy {
        match self {
            Self::Breaker(breaker) if breaker.lost_commits() => Remedy::Recover,
            Self::Breaker(breaker) => Remedy::CloseBreaker(breaker.name.clone()),
            Self::Parked(placement) => Remedy::ResolvePlacement(placement.placement_id),
            Self::GiveBack(one) => Remedy::ResolveGiveBack(one.topup_id.clone()),
            Self::Stopped(endpoint) => Remedy::ResumeEndpoint(endpoint.endpoint_id),
            Self::Exhausted(endpoint) => Remedy::ReplayExhausted(endpoint.partner_id),
        }
    }

    /// What it is, in one sentence.
    pub fn sentence(&self) -> String {
        match self {
            Self::Breaker(breaker) => format!(
                "the breaker of {} is {}, so its orders wait: {}",
                breaker.name,
                breaker.state.as_str().replace('_', " "),
                breaker.reason.as_deref().unwrap_or("no reason is recorded")
            ),
            Self::Parked(placement) => {
                let elsewhere = placement.elsewhere.join(", ");
                let elsewhere = if elsewhere.is_empty() {
                    String::new()
                } else {
                    format!(" (look it up at {elsewhere}, too)")
                };
                format!(
                    "placement {} of order {} at {} is parked: {}{elsewhere}",
                    placement.placement_id,
                    placement.external_order_id,
                    placement.provider,
                    placement
                        .reason
                        .as_deref()
                        .unwrap_or("no reason is recorded")
                )
            }
            Self::GiveBack(one) => format!(
                "the give-back of topup {} to {} is parked. Look there for the unit {}; the last answer was: {}",
                one.topup_id,
                one.provider,
                one.provider_unit_id.as_deref().unwrap_or("not known"),
                one.message.as_deref().unwrap_or("no reason is recorded")
            ),
            Self::Stopped(endpoint) => {
                if endpoint.paused_by_partner {
                    return format!(
                        "the partner has paused endpoint {} of {} itself, and {} {}: ask the partner before you resume it",
                        endpoint.endpoint_id,
                        endpoint.name,
                        counted(endpoint.pending, "webhook", "webhooks"),
                        noun(endpoint.pending, "waits", "wait")
                    );
                }
                let why = if endpoint.state == "paused" {
                    " by an operator".to_owned()
                } else {
                    let failures = counted(endpoint.failures.into(), "failure", "failures");
                    format!(" after {failures} in a row")
                };
                // An endpoint whose block has ended is tested before anything else is sent to it, so
                // it is still blocked for its partner.
                let (state, test) = match (endpoint.state.as_str(), endpoint.blocked_until) {
                    ("probing", _) => (
                        "blocked",
                        ", and its next test is due now or under way".to_owned(),
                    ),
                    ("blocked", Some(until)) => (
                        "blocked",
                        format!(", and its next test is at {}", minute(until)),
                    ),
                    (state, _) => (state, String::new()),
                };
                format!(
                    "endpoint {} of {} is {state}{why}{test}; {} {}",
                    endpoint.endpoint_id,
                    endpoint.name,
                    counted(endpoint.pending, "webhook", "webhooks"),
                    noun(endpoint.pending, "waits", "wait")
                )
            }
            Self::Exhausted(endpoint) => format!(
                "{} to endpoint {} of {} {} used up {} retries",
                counted(endpoint.exhausted, "webhook", "webhooks"),
                endpoint.endpoint_id,
                endpoint.name,
                noun(endpoint.exhausted, "has", "have"),
                noun(endpoint.exhausted, "its", "their")
            ),
        }
    }
}

/// The list. It holds at most `most` parked placements and as many parked give-backs, the oldest ones;
/// the placements are ordered by their reasons.
pub async fn list(connection: &mut PgConnection, most: i64) -> Result<Vec<Item>> {
    let breakers = providers::list(connection).await?;
    let open = breakers
        .into_iter()
        .filter(|one| one.state != BreakerState::Closed);
    let mut items: Vec<Item> = open.map(Item::Breaker).collect();
    let parked = Some(PlacementState::Parked);
    let mut parked = placements::list(connection, parked, None, most).await?;
    // The sort keeps the age within a reason.
    parked
        .sort_by(|one, other| (&one.reason, &one.provider).cmp(&(&other.reason, &other.provider)));
    items.extend(parked.into_iter().map(|one| Item::Parked(Box::new(one))));
    let give_backs = give_backs::list(connection, None, most).await?;
    items.extend(
        give_backs
            .into_iter()
            .map(|one| Item::GiveBack(Box::new(one))),
    );
    let endpoints = endpoints::list(connection, None).await?;
    for endpoint in &endpoints {
        if matches!(endpoint.state.as_str(), "blocked" | "probing" | "paused") {
            items.push(Item::Stopped(endpoint.clone()));
        }
    }
    let exhausted = endpoints.into_iter().filter(|one| one.exhausted > 0);
    items.extend(exhausted.map(Item::Exhausted));
    Ok(items)
}
