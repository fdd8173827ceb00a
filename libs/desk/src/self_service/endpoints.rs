//! All endpoints of a partner, as it sees and changes them. The first one is also what
//! [`super::webhooks`] shows.

use accounts::partners::endpoints::{self as stored, Block, EndpointUpdate, NewEndpoint};
use domain::{Command, EndpointId, EndpointKey, PartnerId, Stored, standing::EndpointState};
use pg::{Result, Transaction, TransactionEnd, actions::ActionChange, transaction};
use serde_json::{Value, json};
use sqlx::PgConnection;
use store::{
    deliveries::endpoints::{self, ResumeResult},
    with_state,
};
use time::OffsetDateTime;
use uuid::Uuid;
use vault::Vault;

use super::record_change;

/// The largest count. Larger numbers are shown as this one, because counting them all would cost
/// too much.
const MOST_COUNTED: i64 = 10_000;

/// An endpoint of a partner with its health.
#[derive(Clone, Debug)]
pub struct AnyEndpoint {
    pub endpoint_id: EndpointId,
    /// `None` only for a first endpoint that was not set.
    pub url: Option<String>,
    /// What it gets: `topup.ready` and the names of further events.
    pub events: Vec<String>,
    /// Its sealed headers; opened by [`stored::open_headers`].
    pub headers: Option<Vec<u8>>,
    pub state: Stored<EndpointState>,
    pub blocked_until: Option<OffsetDateTime>,
    /// Whether its host has proved that it wants webhooks, or need not.
    pub proven: bool,
    pub failures: i32,
    pub waiting: i64,
    pub exhausted: i64,
    pub old_secret_until: Option<OffsetDateTime>,
    pub created_at: OffsetDateTime,
}

struct Row {
    endpoint_id: Uuid,
    url: Option<String>,
    events: Vec<String>,
    headers: Option<Vec<u8>>,
    state: Stored<EndpointState>,
    blocked_until: Option<OffsetDateTime>,
    proven: bool,
    failures: i32,
    waiting: i64,
    exhausted: i64,
    old_secret_until: Option<OffsetDateTime>,
    created_at: OffsetDateTime,
}

/// The endpoints of a partner, the first one first and then the oldest; or only the one with this
/// id.
pub async fn endpoints(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    only: Option<EndpointId>,
) -> Result<Vec<AnyEndpoint>> {
    let rows = with_state!(
        Row,
        r#"SELECT e.endpoint_id, e.url, e.events, e.headers,
                  "#,
        r#" AS "state!",
                  CASE WHEN e.unproven_since IS NULL OR e.failures > 0 THEN nullif(e.blocked_until, 'infinity') END
                      AS blocked_until,
                  e.unproven_since IS NULL AS "proven!",
                  e.failures,
                  (SELECT count(*)
                   FROM (SELECT FROM work w
                         WHERE w.kind = 'deliver' AND w.provider = '' AND w.lane = e.lane AND w.partner_id = $1
                         LIMIT $3) waiting) AS "waiting!",
                  (SELECT count(*)
                   FROM (SELECT FROM held h WHERE h.partner_id = $1 AND h.state = 'exhausted' AND h.lane = e.lane
                         LIMIT $3) exhausted) AS "exhausted!",
                  CASE WHEN e.secret_ends[2] > now() THEN e.secret_ends[2] END AS old_secret_until, e.created_at
           FROM partner_endpoints e
           WHERE e.partner_id = $1 AND e.purpose = 'webhooks' AND ($2::uuid IS NULL OR e.endpoint_id = $2)
           ORDER BY e.nth"#,
        partner_id.uuid(),
        only.map(EndpointId::uuid),
        MOST_COUNTED,
    );
    let endpoints = rows.fetch_all(connection).await?.into_iter();
    Ok(endpoints
        .map(|row| AnyEndpoint {
            endpoint_id: row.endpoint_id.into(),
            url: row.url,
            events: row.events,
            headers: row.headers,
            state: row.state,
            blocked_until: row.blocked_until,
            proven: row.proven,
            failures: row.failures,
            waiting: row.waiting,
            exhausted: row.exhausted,
            old_secret_until: row.old_secret_until,
            created_at: row.created_at,
        })
        .collect())
}

/// What is recorded of an endpoint. The host stands for its URL, whose path may hold a secret, and
/// whether it has headers for theirs.
async fn shown(connection: &mut PgConnection, endpoint: EndpointKey) -> Result<Value> {
    let query = sqlx::query!(
        r#"SELECT host, events, headers IS NOT NULL AS "headers!", paused_by_partner
           FROM partner_endpoints WHERE endpoint_id = $1"#,
        endpoint.id.uuid(),
    );
    let row = query.fetch_optional(connection).await?;
    Ok(row.map_or(Value::Null, |row| {
        json!({
            "endpoint_id": endpoint.id, "host": row.host, "events": row.events, "headers": row.headers,
            "paused": row.paused_by_partner,
        })
    }))
}

/// Records a change of an endpoint by its partner, in the transaction of the change.
async fn record_between(
    transaction: &mut Transaction<'_>,
    command: Command,
    endpoint: EndpointKey,
    before: Value,
) -> Result<()> {
    let after = shown(transaction, endpoint).await?;
    let changed = ActionChange::between(before, after);
    record_change(transaction, command, endpoint.partner_id, changed).await
}

/// Creates a further endpoint, and records that. Returns false if the partner has too many.
pub async fn create_endpoint(
    connection: &mut PgConnection,
    vault: &Vault,
    new: &NewEndpoint<'_>,
) -> Result<bool> {
    transaction!(connection, "endpoints::create_endpoint", |transaction| {
        if !stored::create(transaction, vault, new).await? {
            return Ok(TransactionEnd::Rollback(false));
        }
        let after = shown(transaction, new.key).await?;
        record_change(
            transaction,
            Command::EndpointCreate,
            new.key.partner_id,
            ActionChange::created(after),
        )
        .await?;
        Ok(TransactionEnd::Commit(true))
    })
}

/// Changes an endpoint, and records that if anything changed. After a new URL the notifiers make
/// waiting deliveries due, and the next probe of a blocked endpoint is due at once. Returns whether
/// anything changed; `None` if the partner has no such endpoint.
pub async fn change_endpoint(
    connection: &mut PgConnection,
    endpoint: EndpointKey,
    change: &EndpointUpdate<'_>,
) -> Result<Option<bool>> {
    transaction!(connection, "endpoints::change_endpoint", |transaction| {
        let before = shown(transaction, endpoint).await?;
        let changed = stored::change(transaction, endpoint, change, Block::ProbeNow).await?;
        if changed == Some(true) {
            // The names of the requests.
            let command = if endpoint.is_first() {
                Command::WebhookSet
            } else {
                Command::EndpointSet
            };
            record_between(transaction, command, endpoint, before).await?;
        }
        Ok(TransactionEnd::Commit(changed))
    })
}

/// Deletes a further endpoint, and records that. Returns false if the partner has no such one.
pub async fn delete_endpoint(connection: &mut PgConnection, endpoint: EndpointKey) -> Result<bool> {
    transaction!(connection, "endpoints::delete_endpoint", |transaction| {
        let before = shown(transaction, endpoint).await?;
        if !stored::delete(transaction, endpoint).await? {
            return Ok(TransactionEnd::Rollback(false));
        }
        record_change(
            transaction,
            Command::EndpointDelete,
            endpoint.partner_id,
            ActionChange::removed(before),
        )
        .await?;
        Ok(TransactionEnd::Commit(true))
    })
}

/// What became of a request to pause or resume an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseChanged {
    Done,
    /// An operator has paused the endpoint, so only an operator resumes it.
    ByOperator,
    Unknown,
}

/// Pauses an endpoint of the partner, and records that. A second pause changes nothing, so it
/// leaves no record.
pub async fn pause_endpoint(
    connection: &mut PgConnection,
    endpoint: EndpointKey,
) -> Result<PauseChanged> {
    transaction!(connection, "endpoints::pause_endpoint", |transaction| {
        if !stored::exists(transaction, endpoint).await? {
            return Ok(TransactionEnd::Rollback(PauseChanged::Unknown));
        }
        let before = shown(transaction, endpoint).await?;
        if endpoints::pause_by_partner(transaction, endpoint).await? {
            record_between(transaction, Command::EndpointPause, endpoint, before).await?;
        }
        Ok(TransactionEnd::Commit(PauseChanged::Done))
    })
}

/// Ends a pause of the partner, and records that. Resuming an endpoint that is not paused changes
/// nothing, so it leaves no record.
pub async fn resume_endpoint(
    connection: &mut PgConnection,
    endpoint: EndpointKey,
) -> Result<PauseChanged> {
    transaction!(connection, "endpoints::resume_endpoint", |transaction| {
        if !stored::exists(transaction, endpoint).await? {
            return Ok(TransactionEnd::Rollback(PauseChanged::Unknown));
        }
        let before = shown(transaction, endpoint).await?;
        match endpoints::resume_by_partner(transaction, endpoint).await? {
            ResumeResult::ByOperator => {
                return Ok(TransactionEnd::Rollback(PauseChanged::ByOperator));
            }
            ResumeResult::Now => {
                record_between(transaction, Command::EndpointResume, endpoint, before).await?;
            }
            ResumeResult::NotPaused => {}
        }
        Ok(TransactionEnd::Commit(PauseChanged::Done))
    })
}
