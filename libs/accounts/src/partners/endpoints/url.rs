//! What a new URL of an endpoint changes in its row: whether its host has to prove that it wants
//! webhooks, what becomes of its block, and that waiting deliveries have to go to the new URL.

use std::time::Duration;

use domain::{EndpointId, EndpointKey};
use pg::{Result, seconds};
use sqlx::PgConnection;

/// The time from the end of a webhook to the next one at an endpoint whose host has not proved
/// itself.
pub const PACE: Duration = Duration::from_secs(1);

/// Notes whether an endpoint has to prove that its host wants webhooks, after its partner has
/// chosen the host. Only sandbox accounts are free. The host is known if another endpoint of the
/// partner has it and need not prove it either.
pub(super) async fn judge_host(connection: &mut PgConnection, endpoint: EndpointKey) -> Result<()> {
    let query = sqlx::query!(
        r#"SELECT p.environment = 'sandbox' AS "free!", e.endpoint_id AS id, e.host,
                  e.unproven_since IS NOT NULL AS "unproven!"
           FROM partners p JOIN partner_endpoints e ON e.partner_id = p.partner_id
           WHERE p.partner_id = $1 AND e.purpose = 'webhooks'"#,
        endpoint.partner_id.uuid(),
    );
    let chosen = query.fetch_all(&mut *connection).await?;
    let this = endpoint.id.uuid();
    let unproven = chosen.iter().find(|one| one.id == this).is_some_and(|new| {
        let mut others = chosen.iter().filter(|other| other.id != this);
        new.free && !others.any(|other| other.host == new.host && !other.unproven)
    });
    // Without a proof, the time of the next webhook is one pace away, so that choosing a host again
    // and again is no faster than the pace.
    let statement = sqlx::query!(
        "UPDATE partner_endpoints
         SET unproven_since = CASE WHEN $2 THEN now() END,
             blocked_until = CASE WHEN $2 THEN coalesce(blocked_until, now() + make_interval(secs => $3)) ELSE blocked_until END
         WHERE endpoint_id = $1 AND ($2 OR unproven_since IS NOT NULL)",
        endpoint.id.uuid(),
        unproven,
        seconds(PACE),
    );
    statement.execute(connection).await?;
    Ok(())
}

/// The effect of a new webhook URL on the block of the endpoint. A pause stays in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// The block ends, and the failures are forgotten: an operator has set the URL.
    End,
    /// The next probe is due now: the partner has set the URL. A partner that changes it back and
    /// forth gets one probe for each change, which its rate limit bounds; the length of the next
    /// block still doubles with each failed probe.
    ProbeNow,
}

/// Notes that waiting deliveries must go to a new URL. A notifier then makes them due, in
/// batches, so that a large backlog does not hold up the transaction that changes the URL.
pub(super) async fn begin_move(
    connection: &mut PgConnection,
    id: EndpointId,
    block: Block,
) -> Result<()> {
    // There are two statements, because the database role of ingress has no privilege to change the
    // counts.
    let statement = match block {
        Block::End => sqlx::query!(
            "UPDATE partner_endpoints
             SET moving_since = now(), failures = 0, blocks = 0, probe = NULL, unproven_since = NULL,
                 blocked_until = CASE WHEN blocked_until = 'infinity' THEN blocked_until END
             WHERE endpoint_id = $1",
            id.uuid(),
        ),
        Block::ProbeNow => sqlx::query!(
            "UPDATE partner_endpoints
             SET moving_since = now(),
                 blocked_until = CASE
                     WHEN blocked_until < 'infinity' THEN least(blocked_until, now()
                         + CASE WHEN unproven_since IS NULL THEN interval '0' ELSE make_interval(secs => $2) END)
                     ELSE blocked_until
                 END
             WHERE endpoint_id = $1",
            id.uuid(),
            seconds(PACE),
        ),
    };
    statement.execute(connection).await?;
    Ok(())
}

/// Notes that the URL was removed, so no delivery has to be moved any longer.
pub(super) async fn end_move(connection: &mut PgConnection, id: EndpointId) -> Result<()> {
    let statement = sqlx::query!(
        "UPDATE partner_endpoints SET moving_since = NULL WHERE endpoint_id = $1 AND moving_since IS NOT NULL",
        id.uuid(),
    );
    statement.execute(connection).await?;
    Ok(())
}
