//! Whether the host of an endpoint has proved that it wants webhooks. A sandbox account is free and
//! chooses its hosts itself, so a host that has not proved itself gets one webhook a second.

use pg::Result;
use sqlx::PgConnection;
use uuid::Uuid;

/// Notes that the hosts of these endpoints want webhooks: each has returned the code of its test.
/// The proof is the host's, so it counts for all endpoints that the partner has there. The caller
/// then records the acknowledgement, which ends the wait for the next webhook.
pub(in crate::deliveries) async fn prove(
    connection: &mut PgConnection,
    endpoints: &[Uuid],
) -> Result<()> {
    let statement = sqlx::query!(
        "WITH proven AS MATERIALIZED (
             SELECT partner_id, host FROM partner_endpoints WHERE endpoint_id = ANY ($1)
         )
         UPDATE partner_endpoints SET unproven_since = NULL
         WHERE unproven_since IS NOT NULL AND endpoint_id = ANY (ARRAY (
             SELECT e.endpoint_id FROM proven JOIN partner_endpoints e USING (partner_id) WHERE e.host = proven.host))",
        endpoints,
    );
    statement.execute(connection).await?;
    Ok(())
}
