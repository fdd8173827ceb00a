//! Pauses and resumes endpoints and sets the webhook URL, as operators do, and records it. The rules are those of
//! [`store::deliveries::endpoints`].

use accounts::partners::endpoints::{Block, Change, change};
use domain::{Command, EndpointKey, PartnerId, Stored, standing::EndpointState};
use pg::{
    Error, Result,
    actions::{self, Action, Changed},
    rfc3339,
};
use serde_json::json;
use sqlx::{Connection, PgConnection};
use store::deliveries::endpoints::{self, Endpoint};
use strum::VariantArray;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// Why an endpoint stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum NotChanged {
    #[error("there is no such endpoint")]
    Unknown,
    #[error("the endpoint was {seen} when the page was shown, has changed since, and is {now} now")]
    Changed {
        seen: Stored<EndpointState>,
        now: Stored<EndpointState>,
    },
    #[error(transparent)]
    Store(#[from] Error),
}

pg::store_error!(NotChanged);

/// What a page shows of an endpoint, as a text that a form carries along: its state, and when it was
/// read.
pub fn seen(endpoint: &Endpoint) -> String {
    let at = rfc3339(endpoint.read_at);
    format!("{} {at}", endpoint.state)
}

/// When a page has read an endpoint, as a text that its forms carry along.
pub fn seen_at(endpoint: &Endpoint) -> String {
    rfc3339(endpoint.read_at)
}

/// The state of an endpoint before a change. If its operator has [`seen`] it, another state is a
/// conflict, and so is the same state if the endpoint was paused or resumed in between: otherwise a
/// form that is sent again would be carried out again. The row is locked, so that the state holds until
/// the change is committed.
async fn before(
    connection: &mut PgConnection,
    endpoint: EndpointKey,
    seen: Option<&str>,
) -> Result<Stored<EndpointState>, NotChanged> {
    let statement = sqlx::query!(
        "SELECT endpoint_id FROM partner_endpoints WHERE endpoint_id = $1 FOR UPDATE",
        endpoint.id.uuid(),
    );
    statement.fetch_optional(&mut *connection).await?;
    let now = state(connection, endpoint).await?;
    let now = now.ok_or(NotChanged::Unknown)?;
    let Some(seen) = seen else {
        return Ok(now);
    };
    let (state, at) = seen.split_once(' ').unwrap_or((seen, ""));
    let seen = Stored::<EndpointState>::from(state.to_owned());
    let as_seen = match OffsetDateTime::parse(at, &Rfc3339) {
        Ok(at) if seen == now => !was_changed(connection, endpoint, at).await?,
        _ => false,
    };
    if as_seen {
        Ok(now)
    } else {
        Err(NotChanged::Changed { seen, now })
    }
}

/// Whether none of these commands was recorded for a partner since a page was made. `read_at` is when it
/// read the partner, as [`seen_at`] writes it.
pub async fn is_as_seen(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    commands: &[Command],
    read_at: &str,
) -> Result<bool> {
    let Ok(read_at) = OffsetDateTime::parse(read_at, &Rfc3339) else {
        return Ok(false);
    };
    for command in commands {
        let last = actions::last(&mut *connection, &[partner_id.to_string()], *command).await?;
        if last.values().any(|at| *at >= read_at) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether an operator or the partner has changed an endpoint of this partner since a page was made.
/// Partners' own changes are recorded for the partner, not for one of its endpoints.
async fn was_changed(
    connection: &mut PgConnection,
    endpoint: EndpointKey,
    since: OffsetDateTime,
) -> Result<bool> {
    let changing = Command::VARIANTS.iter().copied();
    let changing = changing.filter(|command| command.is_of_endpoint());
    let changing: Vec<&str> = changing.map(Command::as_str).collect();
    // The index on the time bounds the cost: a page is rarely older than a session.
    let query = sqlx::query_scalar!(
        r#"SELECT EXISTS (
               SELECT FROM operator_actions
               WHERE at >= $1 AND command = ANY ($3) AND split_part(target, ' ', 2) = ANY ($2)) AS "changed!""#,
        since,
        &[endpoint.id.to_string(), endpoint.partner_id.to_string()],
        &changing as &[&str],
    );
    Ok(query.fetch_one(connection).await?)
}

/// The state of an endpoint, as [`endpoints::list`] names it.
async fn state(
    connection: &mut PgConnection,
    endpoint: EndpointKey,
) -> Result<Option<Stored<EndpointState>>> {
    let all = endpoints::list(connection, Some(endpoint.partner_id)).await?;
    let one = all
        .into_iter()
        .find(|one| one.endpoint_id == endpoint.id.uuid());
    Ok(one.map(|one| one.state))
}

/// Sends nothing to an endpoint until it is resumed. `seen` is what the operator has looked at, as
/// [`seen`] writes it: if there is one, an endpoint that has changed since stays as it is.
pub async fn pause(
    connection: &mut PgConnection,
    endpoint: EndpointKey,
    seen: Option<&str>,
    action: Action<'_>,
) -> Result<(), NotChanged> {
    let mut transaction = connection.begin().await?;
    let before = before(&mut transaction, endpoint, seen).await?;
    endpoints::pause(&mut transaction, endpoint.id).await?;
    let changed = Changed::between(json!({ "state": before }), json!({ "state": "paused" }));
    Ok(actions::commit(transaction, action, 1, changed).await?)
}

/// Ends a pause or a block; `seen` as for [`pause`]. Returns how many deliveries are due now because
/// of it.
pub async fn resume(
    connection: &mut PgConnection,
    endpoint: EndpointKey,
    seen: Option<&str>,
    action: Action<'_>,
) -> Result<u64, NotChanged> {
    let mut transaction = connection.begin().await?;
    let before = before(&mut transaction, endpoint, seen).await?;
    let due = endpoints::resume(&mut transaction, endpoint).await?;
    let changed = Changed::between(
        json!({ "state": before }),
        json!({ "state": "open", "deliveries_due": due }),
    );
    let affected = i64::try_from(due).unwrap_or(i64::MAX);
    actions::commit(transaction, action, affected, changed).await?;
    Ok(due)
}

/// The size of a batch of deliveries that a move makes due.
const MOVED: u32 = 1_000;

/// Sets a partner's webhook URL, or removes it (`None`), and ends the block of the endpoint, in the
/// caller's transaction. The notifiers make the deliveries due that waited for it. Returns `None` if
/// there is no such partner.
pub async fn set_url(
    transaction: &mut PgConnection,
    partner_id: PartnerId,
    url: Option<&str>,
) -> Result<Option<()>> {
    let new = Change {
        url: Some(url),
        ..Change::default()
    };
    let first = EndpointKey::first(partner_id);
    let exists = change(transaction, first, &new, Block::End).await?;
    Ok(exists.map(drop))
}

/// Sets a partner's webhook URL, or removes it (`None`), as an operator (`action`, recorded with
/// what `changed`), and ends the block of the endpoint. The deliveries that waited for the old URL
/// become due in batches of [`MOVED`] after the change has committed, so an interruption loses
/// none: the notifiers make the rest due. A notifier holds deliveries for a missing URL only while it
/// locks the endpoint's row, so no delivery misses the new URL.
///
/// Returns the number of deliveries that became due, or `None` if there is no such partner.
pub async fn set_webhook(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    url: Option<&str>,
    action: Action<'_>,
    changed: Changed,
) -> Result<Option<u64>> {
    let set = async |transaction: &mut PgConnection| {
        let exists = set_url(transaction, partner_id, url).await?;
        Ok(exists.map(|()| ((), changed)))
    };
    if actions::recorded(connection, action, set).await?.is_none() {
        return Ok(None);
    }
    let first = EndpointKey::first(partner_id);
    let mut due = 0;
    while url.is_some() {
        let moved = endpoints::move_waiting(connection, first, MOVED).await?;
        due += moved.due;
        // Rows that another process holds are left to it.
        if !moved.more || moved.due == 0 {
            break;
        }
    }
    Ok(Some(due))
}
