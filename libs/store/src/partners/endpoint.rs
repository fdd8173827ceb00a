//! A partner's first endpoint and the further events that it gets: how operators (`esimctl`) and
//! partners (self-service) change them.

use domain::PartnerId;
use sqlx::PgConnection;

use crate::{
    Result,
    actions::{self, Action, Changed},
    deliveries::{
        endpoints::{self, Block, EndpointKey},
        events::Kind,
    },
};

/// A change of a partner's webhook endpoint; `None` keeps what is stored.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewWebhook<'a> {
    /// The URL. `Some(None)` removes it.
    pub url: Option<Option<&'a str>>,
    /// The further events that are sent.
    pub events: Option<&'a [Kind]>,
}

/// Changes a partner's webhook endpoint, and notes that the deliveries which wait must go to a new
/// URL. Returns whether anything changed. With [`Block::End`], the same URL again counts as a new
/// one, so an operator can end a block by setting the URL again. A host that a sandbox partner has
/// chosen itself has to prove that it wants webhooks.
///
/// `was` locks the partner's row and decides whether the URL changes.
pub(crate) async fn change_webhook(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    new: &NewWebhook<'_>,
    block: Block,
) -> Result<bool> {
    let events: Option<Vec<&str>> = new
        .events
        .map(|events| events.iter().copied().map(Kind::as_str).collect());
    let query = sqlx::query!(
        r#"WITH was AS MATERIALIZED (
               SELECT webhook_url, webhook_host, webhook_events, $2 AND ($4 OR webhook_url IS DISTINCT FROM $3) AS moved
               FROM partners WHERE partner_id = $1 FOR UPDATE
           )
           UPDATE partners p
           SET webhook_url = CASE WHEN $2 THEN $3 ELSE p.webhook_url END,
               webhook_events = coalesce($5::text[], p.webhook_events)
           FROM was WHERE p.partner_id = $1 AND (was.moved OR was.webhook_events <> $5)
           RETURNING was.moved AS "moved!",
                     (p.webhook_host IS DISTINCT FROM was.webhook_host) AS "other_host!""#,
        partner_id.uuid(),
        new.url.is_some(),
        new.url.flatten(),
        matches!(block, Block::End),
        events.as_deref() as Option<&[&str]>,
    );
    let Some(changed) = query.fetch_optional(&mut *connection).await? else {
        return Ok(false);
    };
    match new.url.flatten() {
        _ if !changed.moved => {}
        Some(_) => {
            let first = partner_id.first_endpoint();
            endpoints::begin_move(connection, first, block).await?;
            if changed.other_host && block == Block::ProbeNow {
                endpoints::judge_host(connection, EndpointKey::first(partner_id)).await?;
            }
        }
        None => endpoints::end_move(connection, partner_id).await?,
    }
    Ok(true)
}

/// The size of a batch of deliveries that a move makes due.
const MOVED: u32 = 1_000;

/// Sets or removes a partner's webhook URL, with its record. Deliveries that waited for a URL or for their next
/// attempt become due, in batches. If this function ends early, a notifier makes the rest due. A
/// notifier holds deliveries for a missing URL only while it locks the partner's row, so no
/// delivery misses the new URL.
///
/// Returns the number of deliveries that became due, or `None` if there is no such partner.
pub async fn set_webhook(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    url: Option<&str>,
    action: Action<'_>,
    changed: Changed,
) -> Result<Option<u64>> {
    let new = NewWebhook {
        url: Some(url),
        events: None,
    };
    let change = async |transaction: &mut PgConnection| {
        let exists = change_webhook(transaction, partner_id, &new, Block::End).await?;
        Ok(exists.then_some(((), changed)))
    };
    if actions::recorded(connection, action, change)
        .await?
        .is_none()
    {
        return Ok(None);
    }
    let mut due = 0;
    while url.is_some() {
        let first = EndpointKey::first(partner_id);
        let moved = endpoints::move_waiting(connection, first, MOVED).await?;
        due += moved.due;
        // Rows that another process holds are left to it.
        if !moved.more || moved.due == 0 {
            break;
        }
    }
    Ok(Some(due))
}

/// Sets the further events that a partner gets. Returns whether the partner exists.
pub async fn set_events(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    events: &[Kind],
) -> Result<bool> {
    let names: Vec<&str> = events.iter().copied().map(Kind::as_str).collect();
    let update = sqlx::query!(
        "UPDATE partners SET webhook_events = $2 WHERE partner_id = $1",
        partner_id.uuid(),
        &names as &[&str],
    );
    Ok(update.execute(connection).await?.rows_affected() > 0)
}
