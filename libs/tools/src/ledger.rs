//! Compares a provider's own list of purchases, its ledger, with the placements (`esimctl recover
//! --ledger` and `esimctl provider reconcile`).
//!
//! A database that has lost commits does not know what it has lost, but the provider does: it got
//! our placement id with each purchase. So the list of the provider is copied into a temporary
//! table of the session, and one statement compares it with `placements`. The temporary table lets
//! PostgreSQL sort and join a list of any length, so that this program needs little memory for it.
//!
//! A comparison locks nothing and changes no row of the system, so it may run beside provisioners.
//! A placement that is being bought meanwhile is `placing` by then, because the attempt is recorded
//! before the provider is called, so it is never taken for an orphan.

use desk::self_service::first_id;
use domain::{MaybeStored, PlacementState, product::Price};
use pg::{
    Result, TransactionEnd,
    actions::{self, Action, ActionChange},
    transaction,
};
use serde::Serialize;
use serde_json::json;
use sqlx::{FromRow, PgConnection, Row, postgres::PgCopyIn};
use time::OffsetDateTime;
use uuid::Uuid;

/// How many bytes are collected before they are sent to the server.
const CHUNK: usize = 64 << 10;

/// One purchase of the provider's list. Only the line and the order id are required. The other
/// fields are shown to the operator as they stand in the list.
#[derive(Clone, Debug, Default)]
pub struct ListedPurchase {
    /// The line of the file, or the place in the list, by which the operator finds it again.
    pub line: i64,
    /// The order id that we sent, which is our placement id.
    pub order_id: String,
    /// The provider's own number of the order.
    pub provider_order_id: Option<String>,
    pub at: Option<String>,
    /// The number of units that the provider sold.
    pub units: Option<i32>,
    pub option: Option<String>,
    pub iccids: Option<String>,
    /// For whom it was bought, if the provider's record says so. Our order, which knows it, is gone
    /// if the purchase is an orphan.
    pub partner: Option<String>,
    /// What we paid, for a unit or for the whole purchase.
    pub paid: Option<Price>,
}

/// The copy of a list into the temporary table `ledger`. [`Loader::finish`] ends it; without that
/// nothing is copied.
pub struct Loader<'c> {
    copy: PgCopyIn<&'c mut PgConnection>,
    chunk: String,
}

impl<'c> Loader<'c> {
    pub async fn begin(connection: &'c mut PgConnection) -> Result<Self> {
        sqlx::raw_sql(
            "DROP TABLE IF EXISTS pg_temp.ledger;
             CREATE TEMPORARY TABLE ledger (
                 line bigint NOT NULL, order_id text NOT NULL, placement_id uuid, provider_order_id text, at text,
                 units integer, option text, iccids text, partner text, paid bigint)",
        )
        .execute(&mut *connection)
        .await?;
        Ok(Self {
            copy: connection.copy_in_raw("COPY ledger FROM STDIN").await?,
            chunk: String::with_capacity(CHUNK * 2),
        })
    }

    pub async fn add(&mut self, purchase: &ListedPurchase) -> Result<()> {
        let placement: Option<Uuid> = purchase.order_id.parse().ok();
        let line = purchase.line.to_string();
        let placement = placement.map(|id| id.to_string());
        let units = purchase.units.map(|units| units.to_string());
        let paid = purchase.paid.map(|paid| paid.0.to_string());
        let fields = [
            Some(line.as_str()),
            Some(purchase.order_id.as_str()),
            placement.as_deref(),
            purchase.provider_order_id.as_deref(),
            purchase.at.as_deref(),
            units.as_deref(),
            purchase.option.as_deref(),
            purchase.iccids.as_deref(),
            purchase.partner.as_deref(),
            paid.as_deref(),
        ];
        for (index, field) in fields.into_iter().enumerate() {
            if index > 0 {
                self.chunk.push('\t');
            }
            push_field(&mut self.chunk, field);
        }
        self.chunk.push('\n');
        if self.chunk.len() >= CHUNK {
            self.send().await?;
        }
        Ok(())
    }

    async fn send(&mut self) -> Result<()> {
        self.copy.send(self.chunk.as_bytes()).await?;
        self.chunk.clear();
        Ok(())
    }

    /// Ends the copy, and returns the number of purchases.
    pub async fn finish(mut self) -> Result<u64> {
        self.send().await?;
        Ok(self.copy.finish().await?)
    }
}

/// Appends a field in the text format of `COPY`, in which a backslash begins an escape.
fn push_field(chunk: &mut String, field: Option<&str>) {
    let Some(field) = field else {
        chunk.push_str("\\N");
        return;
    };
    for character in field.chars() {
        match character {
            '\\' => chunk.push_str("\\\\"),
            '\n' => chunk.push_str("\\n"),
            '\r' => chunk.push_str("\\r"),
            '\t' => chunk.push_str("\\t"),
            other => chunk.push(other),
        }
    }
}

/// In which way a purchase of the list and its placement differ.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    strum::EnumString,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Difference {
    /// No placement has this id.
    Orphan,
    /// The list has the id more than once.
    BoughtTwice,
    /// The placement is refused or failed, and nothing of it counts as bought.
    NotBoughtHere,
    /// The placement is parked and does not count as bought.
    Parked,
    /// The placement is `accepted`, so its attempt is not known here.
    Forgotten,
    /// The placement belongs to another provider.
    OtherProvider,
    /// The placement has another number of units.
    UnitsDiffer,
    /// The units were accepted at another price.
    PriceDiffers,
    /// The order id has not the form of a placement id.
    NotOurs,
    /// We have the purchase, and the list has it not.
    Missing,
}

impl TryFrom<String> for Difference {
    type Error = strum::ParseError;

    fn try_from(name: String) -> std::result::Result<Self, Self::Error> {
        name.parse()
    }
}

/// What is remarkable about one purchase of the list, as a row of the temporary table `findings`.
#[derive(Clone, Debug, FromRow, Serialize)]
pub struct LedgerFinding {
    #[sqlx(try_from = "String")]
    pub kind: Difference,
    /// `None` if it is missing in the list.
    pub line: Option<i64>,
    pub order_id: String,
    pub provider_order_id: Option<String>,
    pub at: Option<String>,
    pub units: Option<i32>,
    pub option: Option<String>,
    pub iccids: Option<String>,
    /// The partner of the order, or as the list says if the order is not stored.
    pub partner: Option<String>,
    /// The partner's id of the order, if it is stored.
    pub external_order_id: Option<String>,
    /// The state of the placement, if it is stored.
    #[sqlx(try_from = "Option<String>")]
    pub state: MaybeStored<PlacementState>,
    /// The number of units of the placement, if it is stored.
    pub units_here: Option<i64>,
}

/// The result of a comparison. The numbers are complete, even if there are more findings than were
/// asked for.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    pub provider: String,
    /// The number of purchases in the list.
    pub purchases: i64,
    /// Purchases whose placement is not stored.
    pub orphans: i64,
    /// Purchases that contradict what is stored about their placement.
    pub mismatches: i64,
    /// Purchases whose placement is `placing`: they are looked up anyway.
    pub placing: i64,
    /// Purchases under an order id that is no placement id, so they were not made by this system.
    pub not_ours: i64,
    /// Purchases of ours that the list does not have. 0 if that was not compared.
    pub missing: i64,
    /// Orphans first, then mismatches, in the order of the list.
    pub findings: Vec<LedgerFinding>,
}

/// The time of which the list is complete, so that a purchase of ours must be in it.
#[derive(Clone, Copy, Debug)]
pub struct CompletePeriod {
    /// Placements that were accepted from this time on are compared.
    pub since: OffsetDateTime,
    /// Placements that were bought before this time are compared.
    pub until: OffsetDateTime,
}

/// Compares the loaded list with the placements, and returns at most `most` findings. A list that
/// is not known to be complete is not searched for what it lacks.
pub async fn compare(
    connection: &mut PgConnection,
    provider: &str,
    complete: Option<CompletePeriod>,
    most: i64,
) -> Result<Comparison> {
    sqlx::raw_sql(
        "ANALYZE ledger;
         DROP TABLE IF EXISTS pg_temp.findings;
         CREATE TEMPORARY TABLE findings (
             kind text NOT NULL, line bigint, order_id text NOT NULL, provider_order_id text, at text,
             units integer, option text, iccids text, partner text, external_order_id text, state text,
             units_here bigint)",
    )
    .execute(&mut *connection)
    .await?;
    // A purchase at another provider than the one of its placement is expected where the placement
    // names that one, too: an accepted or parked one may have been sold there after a restored
    // dump, and a parked one may contradict a rejection. A row that agrees with its placement is no
    // finding. Units that were given back may be missing in the list. The number of units and the
    // price are compared only if nothing else is wrong, because they explain nothing then. The
    // price at which an order was accepted stands behind the last `@` of each unit. What we paid
    // may be the price of a unit or that of all, because providers write either.
    sqlx::query(
        "INSERT INTO findings
         SELECT judged.* FROM (
             SELECT CASE
                 -- What was bought to try the account has no placement (store::proofs).
                 WHEN EXISTS (SELECT FROM provider_proofs v WHERE v.purchase_id = l.placement_id AND v.provider = $1)
                     THEN NULL
                 -- A provider may list an extension by our id, like a purchase.
                 WHEN l.times = 1 AND EXISTS (SELECT FROM extensions x
                                              WHERE x.extension_id = l.placement_id AND x.provider = $1 AND x.state <> 'refused')
                     THEN NULL
                 WHEN l.placement_id IS NULL THEN 'not_ours'
                 WHEN p.placement_id IS NULL THEN 'orphan'
                 WHEN p.provider <> $1 AND NOT (named.here AND p.placed_at IS NULL) THEN 'other_provider'
                 WHEN l.times > 1 THEN 'bought_twice'
                 WHEN p.placed_at IS NULL AND p.state IN ('refused', 'failed') THEN 'not_bought_here'
                 WHEN p.placed_at IS NULL AND p.state = 'parked' THEN 'parked'
                 WHEN p.state = 'accepted' OR p.provider <> $1 THEN 'forgotten'
                 WHEN l.units NOT BETWEEN here.units - here.returned AND here.units THEN 'units_differ'
                 WHEN here.priced = here.units AND l.paid <> here.total
                     AND (l.paid <> here.least OR here.least <> here.most) THEN 'price_differs'
                 WHEN p.state = 'placing' THEN 'placing' END AS kind,
                 l.line, l.order_id, l.provider_order_id, l.at, l.units, l.option, l.iccids,
                 coalesce(p.partner_id::text, l.partner), o.external_order_id, p.state, here.units AS units_here
             FROM (SELECT *, count(*) OVER (PARTITION BY placement_id) AS times FROM ledger) l
             LEFT JOIN placements p ON p.placement_id = l.placement_id
             LEFT JOIN orders o ON o.order_id = p.order_id
             LEFT JOIN LATERAL (
                 SELECT count(*) AS units, count(returned_at) AS returned, count(price) AS priced, sum(price) AS total,
                        min(price) AS least, max(price) AS most
                 FROM (SELECT 10000 * substring(provider_option_id FROM '@([0-9]{1,12}([.][0-9]{1,4})?)$')::numeric AS price,
                              (SELECT e.returned_at FROM esims e WHERE e.topup_id = t.topup_id) AS returned_at
                       FROM topups t WHERE t.placement_id = p.placement_id) one
             ) here ON p.placement_id IS NOT NULL
             LEFT JOIN LATERAL (
                 SELECT EXISTS (SELECT FROM jsonb_array_elements(
                                    CASE WHEN p.state IN ('accepted', 'placing', 'parked') THEN coalesce(p.alternatives, '[]') ELSE '[]' END
                                    || CASE WHEN p.state = 'parked' THEN coalesce(p.tried, '[]') ELSE '[]' END) pair
                                WHERE pair->>'provider' = $1) AS here
             ) named ON p.placement_id IS NOT NULL
         ) judged WHERE judged.kind IS NOT NULL",
    )
    .bind(provider)
    .execute(&mut *connection)
    .await?;
    if let Some(complete) = complete {
        find_missing(connection, provider, complete).await?;
    }
    let counts = sqlx::query(
        "SELECT (SELECT count(*) FROM ledger) AS purchases,
                count(*) FILTER (WHERE kind = 'orphan') AS orphans,
                count(*) FILTER (WHERE kind NOT IN ('orphan', 'placing', 'not_ours', 'missing')) AS mismatches,
                count(*) FILTER (WHERE kind = 'placing') AS placing,
                count(*) FILTER (WHERE kind = 'not_ours') AS not_ours,
                count(*) FILTER (WHERE kind = 'missing') AS missing
         FROM findings",
    )
    .fetch_one(&mut *connection)
    .await?;
    let findings = sqlx::query_as(
        "SELECT * FROM findings WHERE kind <> 'placing'
         ORDER BY CASE kind WHEN 'orphan' THEN 0 WHEN 'not_ours' THEN 2 ELSE 1 END, line, order_id LIMIT $1",
    );
    let findings = findings.bind(most).fetch_all(connection).await?;
    Ok(Comparison {
        provider: provider.to_owned(),
        purchases: counts.try_get("purchases")?,
        orphans: counts.try_get("orphans")?,
        mismatches: counts.try_get("mismatches")?,
        placing: counts.try_get("placing")?,
        not_ours: counts.try_get("not_ours")?,
        missing: counts.try_get("missing")?,
        findings,
    })
}

/// Adds the purchases that the list does not have to the findings. A purchase is made after its
/// placement was accepted, and ids of placements begin with that time, so the primary key finds
/// them.
async fn find_missing(
    connection: &mut PgConnection,
    provider: &str,
    complete: CompletePeriod,
) -> Result<()> {
    let missing = sqlx::query(
        "INSERT INTO findings
         SELECT 'missing', NULL, p.placement_id::text, p.provider_reference,
                to_char(p.placed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'), NULL, p.lane, NULL,
                p.partner_id::text, o.external_order_id, p.state,
                (SELECT count(*) FROM topups t WHERE t.placement_id = p.placement_id)
         FROM placements p JOIN orders o ON o.order_id = p.order_id
         WHERE p.placement_id >= $2 AND p.provider = $1 AND p.placed_at < $3
             -- A list may leave out what was given back.
             AND NOT (SELECT coalesce(bool_and(e.returned_at IS NOT NULL), false)
                      FROM topups t LEFT JOIN esims e ON e.topup_id = t.topup_id WHERE t.placement_id = p.placement_id)
             AND NOT EXISTS (SELECT FROM ledger l WHERE l.placement_id = p.placement_id)",
    );
    let missing = missing
        .bind(provider)
        .bind(first_id(complete.since))
        .bind(complete.until);
    missing.execute(connection).await?;
    Ok(())
}

/// Records each orphan of the last comparison, so that it is known which purchases have to be
/// cancelled at the provider even if the printed list is lost.
pub async fn record_orphans(
    connection: &mut PgConnection,
    provider: &str,
    action: Action<'_>,
) -> Result<()> {
    transaction!(connection, "ledger::record_orphans", |transaction| {
        let recorded = sqlx::query(
            "INSERT INTO operator_actions (action_id, operator, command, target, affected, reason)
         SELECT gen_random_uuid(), $1, $4,
                'purchase ' || order_id || ' at ' || $2 || coalesce(', bought ' || at, '')
                    || coalesce(', partner ' || partner, ', partner unknown'), 0, $3
         FROM findings WHERE kind = 'orphan' ORDER BY line",
        )
        .bind(action.actor.name)
        .bind(provider)
        .bind(action.reason)
        .bind(domain::Command::RecoverOrphan.as_str())
        .execute(&mut **transaction)
        .await?;
        let orphans = i64::try_from(recorded.rows_affected()).unwrap_or(i64::MAX);
        let summary = Action {
            command: domain::Command::RecoverLedger,
            ..action
        };
        let changed = ActionChange::created(json!({ "provider": provider, "orphans": orphans }));
        actions::record(transaction, summary, orphans, changed).await?;
        Ok(TransactionEnd::Commit(()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_cannot_break_out_of_its_column() {
        let mut chunk = String::new();
        push_field(&mut chunk, Some("a\tb\nc\\N\r"));
        assert_eq!(chunk, r"a\tb\nc\\N\r");
        chunk.clear();
        push_field(&mut chunk, None);
        assert_eq!(chunk, r"\N");
    }
}
