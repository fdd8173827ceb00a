//! What the database says: the whole state after the run, and during the run the number of rows
//! that are not finished yet.

use anyhow::Result;
use sqlx::PgConnection;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default)]
pub struct Stored {
    pub orders: Vec<StoredOrder>,
    pub placements: Vec<StoredPlacement>,
    pub units: Vec<StoredUnit>,
    /// In the order in which they happened to each row.
    pub changes: Vec<StoredChange>,
}

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct StoredOrder {
    pub order_id: String,
    pub partner_id: String,
    pub external_order_id: String,
    pub refused: bool,
    /// Whether its answer waited for a verdict, and until when it could be answered, in seconds of
    /// the Unix time.
    pub waits: bool,
    pub answer_by: f64,
}

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct StoredPlacement {
    pub placement_id: String,
    pub order_id: String,
    pub state: String,
    /// Whether it was recorded as bought.
    pub placed: bool,
    pub reason: Option<String>,
}

/// A row of a placement after a change, or the record of a delivery. Times are in seconds of the
/// Unix time.
#[derive(Clone, Debug, Default, sqlx::FromRow)]
pub struct StoredChange {
    /// When the transaction was about to commit.
    pub at: f64,
    /// The placement, or else the topup whose webhook was recorded as delivered.
    pub placement_id: Option<String>,
    pub topup_id: Option<String>,
    pub state: String,
    pub attempt: i32,
    pub provider: String,
    /// A look-up has found no purchase since the attempt.
    pub missing: bool,
    /// Whether it was recorded as bought, and whether that was unexpected.
    pub placed: bool,
    pub disputed: bool,
    /// When the last attempt was recorded.
    pub attempted: Option<f64>,
    pub reason: Option<String>,
}

#[derive(Clone, Debug, Default, sqlx::FromRow)]
pub struct StoredUnit {
    pub topup_id: String,
    pub placement_id: String,
    pub order_id: String,
    pub option: String,
    pub state: String,
    pub iccid: Option<String>,
    pub reason: Option<String>,
    /// The state of its delivery, if it has one.
    pub delivery: Option<String>,
    /// The number of attempts that have ended, and the error of the last one.
    pub attempt: Option<i32>,
    pub error: Option<String>,
    /// What its partner pays; `None` if it has no prices.
    pub price: Option<i64>,
    pub returned: bool,
}

/// The accounts and their entries, as they are stored.
#[derive(Clone, Debug, Default)]
pub struct Books {
    pub accounts: Vec<StoredAccount>,
    /// By account and number.
    pub entries: Vec<StoredEntry>,
}

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct StoredAccount {
    pub partner_id: String,
    pub posted: i64,
    pub held: i64,
    pub last_entry: i64,
}

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct StoredEntry {
    pub partner_id: String,
    pub number: i64,
    pub kind: String,
    pub amount: i64,
    pub balance: i64,
    pub released: i64,
    pub topup_id: Option<String>,
    pub extension_id: Option<String>,
}

impl Books {
    pub async fn read(connection: &mut PgConnection) -> Result<Self> {
        let accounts =
            sqlx::query_as("SELECT partner_id::text, posted, held, last_entry FROM accounts")
                .fetch_all(&mut *connection)
                .await?;
        let entries = sqlx::query_as(
            "SELECT partner_id::text, number, kind, amount, balance, released, topup_id, extension_id::text
             FROM account_entries ORDER BY partner_id, number",
        )
        .fetch_all(connection)
        .await?;
        Ok(Self { accounts, entries })
    }
}

impl Stored {
    /// Reads everything. `options` has the names of the options by their ids.
    pub async fn read(
        connection: &mut PgConnection,
        options: &BTreeMap<String, &'static str>,
    ) -> Result<Self> {
        let orders = sqlx::query_as(
            "SELECT order_id::text, partner_id::text, external_order_id, refused_at IS NOT NULL AS refused,
                    answering IS NOT NULL AS waits, extract(epoch FROM answer_by)::float8 AS answer_by
             FROM orders",
        )
        .fetch_all(&mut *connection)
        .await?;
        let placements = sqlx::query_as(
            "SELECT placement_id::text, order_id::text, state, placed_at IS NOT NULL AS placed, reason FROM placements",
        )
        .fetch_all(&mut *connection)
        .await?;
        let mut units: Vec<StoredUnit> = sqlx::query_as(
            "SELECT t.topup_id, t.placement_id::text, p.order_id::text, t.option_id::text AS option, e.iccid, t.reason,
                    CASE WHEN e.ready_at IS NULL THEN t.state ELSE 'ready' END AS state,
                    d.state AS delivery, d.attempt, d.error, (t.terms::jsonb->'price'->>'amount')::bigint AS price,
                    e.returned_at IS NOT NULL AS returned
             FROM topups t JOIN placements p USING (placement_id) LEFT JOIN esims e USING (topup_id)
             LEFT JOIN deliveries d USING (delivery_id)",
        )
        .fetch_all(&mut *connection)
        .await?;
        let changes = sqlx::query_as(
            "SELECT extract(epoch FROM at)::float8 AS at, placement_id::text, topup_id, state, attempt, provider, missing, placed,
                    disputed, extract(epoch FROM attempted_at)::float8 AS attempted, reason
             FROM observed.changes ORDER BY id",
        )
        .fetch_all(connection)
        .await?;
        for unit in &mut units {
            unit.option = options
                .get(&unit.option)
                .map_or("unknown", |name| *name)
                .to_owned();
        }
        Ok(Self {
            orders,
            placements,
            units,
            changes,
        })
    }
}

/// Writes every change of a placement, and every record of a delivery, into a table of the run. The
/// triggers are deferred, so that a change has the time of its commit and not of its statement.
pub async fn observe(connection: &mut PgConnection) -> Result<()> {
    sqlx::raw_sql(
        "CREATE SCHEMA observed;
         CREATE TABLE observed.changes (
             id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(),
             placement_id uuid, topup_id text, state text NOT NULL, attempt integer NOT NULL,
             provider text NOT NULL DEFAULT '', missing boolean NOT NULL, placed boolean NOT NULL, disputed boolean NOT NULL, attempted_at timestamptz, reason text);
         CREATE FUNCTION observed.placement() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
         BEGIN
             INSERT INTO observed.changes (placement_id, state, attempt, provider, missing, placed, disputed, attempted_at, reason)
             VALUES (NEW.placement_id, NEW.state, NEW.attempt, NEW.provider, NEW.not_found_at IS NOT NULL, NEW.placed_at IS NOT NULL,
                     NEW.disputed, NEW.attempted_at, NEW.reason);
             RETURN NULL;
         END $$;
         CREATE CONSTRAINT TRIGGER observed AFTER INSERT OR UPDATE ON placements DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION observed.placement();
         CREATE FUNCTION observed.delivery() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
         BEGIN
             INSERT INTO observed.changes (topup_id, state, attempt, missing, placed, disputed)
             VALUES (NEW.topup_id, NEW.state, NEW.attempt, false, false, false);
             RETURN NULL;
         END $$;
         CREATE CONSTRAINT TRIGGER observed AFTER INSERT OR UPDATE ON deliveries DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW WHEN (NEW.state = 'delivered' AND NEW.topup_id IS NOT NULL)
             EXECUTE FUNCTION observed.delivery();",
    )
    .execute(connection)
    .await?;
    Ok(())
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, sqlx::FromRow)]
pub struct OnTheWay {
    /// Placements that are neither bought nor closed.
    pub unbought: i64,
    /// Bought placements that have units without a profile.
    pub uncollected: i64,
    /// Webhooks that are neither acknowledged nor exhausted.
    pub undelivered: i64,
}

impl OnTheWay {
    pub async fn read(connection: &mut PgConnection) -> Result<Self> {
        let counts = sqlx::query_as(
            "SELECT count(*) FILTER (WHERE p.state IN ('accepted', 'placing'))
                        + (SELECT count(*) FROM extensions WHERE state IN ('asked', 'sending')) AS unbought,
                    count(*) FILTER (WHERE p.state = 'placed' AND EXISTS (
                        SELECT FROM topups t LEFT JOIN esims e USING (topup_id)
                        WHERE t.placement_id = p.placement_id AND t.state = 'pending' AND e.ready_at IS NULL)) AS uncollected,
                    (SELECT count(*) FROM deliveries WHERE state IN ('pending', 'no_endpoint')) AS undelivered
             FROM placements p",
        )
        .fetch_one(connection)
        .await?;
        Ok(counts)
    }
}
