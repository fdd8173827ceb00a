//! Pauses and resumes endpoints and sets the webhook URL, as operators do, and records it. The
//! rules are those of [`store::deliveries::endpoints`].

use accounts::partners::endpoints::{Block, EndpointUpdate, change};
use domain::{Command, EndpointKey, PartnerId, Stored, standing::EndpointState};
use pg::{
    Error, Result, Transaction, TransactionEnd,
    actions::{self, Action, ActionChange},
    rfc3339, transaction,
};
use serde_json::json;
use sqlx::PgConnection;
use store::deliveries::endpoints::{self, ListedEndpoint};
use strum::VariantArray;

/// Why an endpoint stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum EndpointNotChanged {
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

pg::store_error!(EndpointNotChanged);

/// What a page shows of an endpoint, as a text that a form carries along: its state, and when it
/// was read.
pub fn seen(endpoint: &ListedEndpoint) -> String {
    let at = rfc3339(endpoint.read_at);
    format!("{} {at}", endpoint.state)
}

/// When a page has read an endpoint, as a text that its forms carry along.
pub fn seen_at(endpoint: &ListedEndpoint) -> String {
    rfc3339(endpoint.read_at)
}

/// The state of an endpoint before a change. If its operator has [`seen`] it, another state is a
/// conflict, and so is the same state if the endpoint was paused or resumed in between: otherwise a
/// form that is sent again would be carried out again. The row is locked, so that the state holds
/// until the change is committed.
async fn before(
    transaction: &mut Transaction<'_>,
    endpoint: EndpointKey,
    seen: Option<&str>,
) -> Result<Stored<EndpointState>, EndpointNotChanged> {
    let statement = sqlx::query!(
        "SELECT endpoint_id FROM partner_endpoints WHERE endpoint_id = $1 FOR UPDATE",
        endpoint.id.uuid(),
    );
    statement.fetch_optional(&mut **transaction).await?;
    let now = state(transaction, endpoint).await?;
    let now = now.ok_or(EndpointNotChanged::Unknown)?;
    let Some(seen) = seen else {
        return Ok(now);
    };
    let (state, at) = seen.split_once(' ').unwrap_or((seen, ""));
    let seen = Stored::<EndpointState>::from(state.to_owned());
    // Partners' own changes are recorded for the partner, not for one of its endpoints.
    let ids = [endpoint.id.to_string(), endpoint.partner_id.to_string()];
    let changing: Vec<Command> = Command::VARIANTS
        .iter()
        .copied()
        .filter(|command| command.is_of_endpoint())
        .collect();
    let as_seen = seen == now && actions::is_as_seen(transaction, &ids, &changing, at).await?;
    if as_seen {
        Ok(now)
    } else {
        Err(EndpointNotChanged::Changed { seen, now })
    }
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

/// Sends nothing to an endpoint until it is resumed, or ends its pause or block: then the notifiers
/// make the deliveries due that waited. `seen` is what the operator has looked at, as [`seen`]
/// writes it: if there is one, an endpoint that has changed since stays as it is.
pub async fn set_paused(
    connection: &mut PgConnection,
    endpoint: EndpointKey,
    seen: Option<&str>,
    paused: bool,
    action: Action<'_>,
) -> Result<(), EndpointNotChanged> {
    transaction!(connection, "endpoints::set_paused", |transaction| {
        let before = before(transaction, endpoint, seen).await?;
        let after = if paused {
            endpoints::pause(transaction, endpoint.id).await?;
            "paused"
        } else {
            endpoints::resume(transaction, endpoint).await?;
            "open"
        };
        let changed = ActionChange::between(json!({ "state": before }), json!({ "state": after }));
        actions::record(transaction, action, 1, changed).await?;
        Ok(TransactionEnd::Commit(()))
    })
}

/// Sets a partner's webhook URL, or removes it (`None`), and ends the block of the endpoint, in the
/// caller's transaction. The notifiers make the deliveries due that waited for it. A notifier holds
/// deliveries for a missing URL only while it locks the endpoint's row, so no delivery misses the
/// new URL. Returns `None` if there is no such partner.
pub async fn set_url(
    transaction: &mut Transaction<'_>,
    partner_id: PartnerId,
    url: Option<&str>,
) -> Result<Option<()>> {
    let new = EndpointUpdate {
        url: Some(url),
        ..EndpointUpdate::default()
    };
    let first = EndpointKey::first(partner_id);
    let exists = change(transaction, first, &new, Block::End).await?;
    Ok(exists.map(drop))
}
