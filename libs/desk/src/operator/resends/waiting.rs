//! Why a preview finds nothing: the webhooks that wait or have ended at each endpoint all the same.

use domain::{PartnerId, standing::EndpointState};
use pg::{Result, rfc3339};
use serde::Serialize;
use sqlx::PgConnection;
use store::deliveries::endpoints;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::operator::words::noun;

/// The maximum number of endpoints that are named.
const MOST: usize = 20;

/// The webhooks of an endpoint that a filter does not match.
#[derive(Clone, Debug, Serialize)]
pub struct UnmatchedWebhooks {
    pub partner_id: Uuid,
    pub name: String,
    pub endpoint_id: Uuid,
    pub host: String,
    /// How many wait for their next attempt.
    pub pending: i64,
    /// The retries of how many have ended.
    pub exhausted: i64,
    /// What the first of these wait for, and who ends that.
    pub why: String,
}

impl UnmatchedWebhooks {
    /// The whole in one line.
    pub fn told(&self) -> String {
        let Self {
            name,
            host,
            pending,
            exhausted,
            why,
            ..
        } = self;
        let webhooks = noun(pending.unsigned_abs(), "webhook waits", "webhooks wait");
        let given_up = noun(exhausted.unsigned_abs(), "was given up", "were given up");
        format!(
            "{name}, {host}: {pending} {webhooks} for the next try, {exhausted} {given_up}; {why}"
        )
    }
}

/// The endpoints of a partner, or of all, that have webhooks to send, those with the most first.
pub(super) async fn read(
    connection: &mut PgConnection,
    partner: Option<PartnerId>,
) -> Result<Vec<UnmatchedWebhooks>> {
    let all = match partner {
        Some(_) => endpoints::list(connection, partner).await?,
        None => endpoints::noted(connection).await?,
    };
    let all = all.into_iter();
    let mut waiting: Vec<UnmatchedWebhooks> = all
        .filter(|one| one.pending > 0 || one.exhausted > 0)
        .map(|one| UnmatchedWebhooks {
            why: why(&one),
            host: one.host(),
            partner_id: one.partner_id,
            name: one.name,
            endpoint_id: one.endpoint_id,
            pending: one.pending,
            exhausted: one.exhausted,
        })
        .collect();
    waiting.sort_by_key(|one| std::cmp::Reverse(one.pending + one.exhausted));
    waiting.truncate(MOST);
    Ok(waiting)
}

fn why(endpoint: &endpoints::ListedEndpoint) -> String {
    let id = endpoint.endpoint_id;
    let until = |at: Option<OffsetDateTime>| {
        at.map_or_else(String::new, |at| format!(" until {}", rfc3339(at)))
    };
    match endpoint.state.known() {
        Some(EndpointState::Blocked) => format!(
            "the endpoint is blocked{} and then tested with one of them; once it acknowledges that, the others are sent \
             by themselves",
            until(endpoint.blocked_until)
        ),
        Some(EndpointState::Probing) => {
            "the endpoint is blocked, and one of them tests it now; once it is acknowledged, the others are sent by \
             themselves"
                .to_owned()
        }
        Some(EndpointState::Paused) => {
            format!("the endpoint is paused: its button on the partner's page, or `esimctl endpoint resume {id}`, sends them")
        }
        Some(EndpointState::PausedByPartner) => {
            "the partner has paused the endpoint, and only it can resume it".to_owned()
        }
        Some(EndpointState::NoUrl) => {
            "the partner has no webhook URL, and a new one gets them at once".to_owned()
        }
        Some(EndpointState::Open | EndpointState::Unverified) | None => {
            "what waits is sent by itself".to_owned()
        }
    }
}
