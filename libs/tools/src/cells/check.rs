//! Reads what must hold across cells, for `esimctl cell map` and `esimctl cell check`: who lives
//! where, which eSIMs each cell has, and its catalogue.
//!
//! PostgreSQL enforces each of these rules within one cell only. So `esimctl` reads the cells one
//! after the other and compares. Nothing here changes anything.

use pg::Result;
use sqlx::{FromRow, PgConnection};
use uuid::Uuid;

/// The access keys of a partner, and whether this cell serves it.
#[derive(Clone, Debug, FromRow, PartialEq, Eq)]
pub struct Keys {
    pub partner_id: Uuid,
    pub access_key: String,
    /// The access key before the last rotation, during the overlap.
    pub old_access_key: Option<String>,
    /// The cell to which the partner is moving or has moved.
    pub moved_to: Option<String>,
}

/// The keys of all partners that are not erased, in the order of their ids.
pub async fn keys(connection: &mut PgConnection) -> Result<Vec<Keys>> {
    let keys = sqlx::query_as(
        "SELECT partner_id, access_key, CASE WHEN old_keys_until > now() THEN old_access_key END AS old_access_key, moved_to
         FROM partners WHERE erased_at IS NULL ORDER BY partner_id",
    );
    Ok(keys.fetch_all(connection).await?)
}

/// An option with everything that decides what an order of it buys.
#[derive(Clone, Debug, FromRow, PartialEq, Eq)]
pub struct CatalogueOption {
    pub option_id: Uuid,
    /// All other columns as text, to compare.
    pub content: String,
}

/// The catalogue, in the order of the ids.
pub async fn catalogue(connection: &mut PgConnection) -> Result<Vec<CatalogueOption>> {
    let options = sqlx::query_as(
        "SELECT option_id, (to_jsonb(o) - 'version')::text AS content FROM options o ORDER BY option_id",
    );
    Ok(options.fetch_all(connection).await?)
}

/// The providers of which this cell may have eSIMs.
pub async fn providers(connection: &mut PgConnection) -> Result<Vec<String>> {
    let providers = sqlx::query_scalar(
        "SELECT provider FROM options
         UNION SELECT pair->>'provider' FROM options, jsonb_array_elements(alternatives) pair
         UNION SELECT name FROM providers ORDER BY 1",
    );
    Ok(providers.fetch_all(connection).await?)
}

/// The next ICCIDs of a provider after `after`, at most `limit`, in the order of the database. They
/// are read through the unique index, so each page costs the same however many there are.
pub async fn iccids(
    connection: &mut PgConnection,
    provider: &str,
    after: &str,
    limit: u32,
) -> Result<Vec<String>> {
    let iccids = sqlx::query_scalar(
        "SELECT iccid FROM esims WHERE provider = $1 AND iccid > $2 AND iccid IS NOT NULL ORDER BY iccid LIMIT $3",
    );
    Ok(iccids
        .bind(provider)
        .bind(after)
        .bind(i64::from(limit))
        .fetch_all(connection)
        .await?)
}
