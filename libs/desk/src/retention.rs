//! Retention: erases data whose term has ended, in bounded batches
//! (`docs/decisions/0018-retention.md`).
//!
//! Each class of data has one walk. It reads the history once, by an index and in the order of
//! time, and the table `walks` remembers how far it has got. One process works on a walk at a
//! time. A profile that is not delivered when the walk passes it, or was delivered too late, gets a
//! row in `work` with the kind `erase` and is looked at again.
//!
//! Guarantee: data of a class is erased soon after its term, except for profiles that were never
//! delivered. Those are kept, because "delivered at least once" comes first.
//!
//! One class is only stored here: the term of orders. They are not erased but archived
//! (`tools::archive`).
//!
//! The notifier calls [`step`] at a limited rate. Operators set the terms
//! ([`crate::operator::retention_terms`]).

use std::time::Duration;

use pg::{Result, TransactionEnd, age, count, seconds, transaction};
use sqlx::PgConnection;
use time::OffsetDateTime;

/// How long after the end of the term the walk of profiles passes. The term of a profile begins
/// with its delivery, but the walk goes by the time of the order. With this lag the walk finds most
/// profiles delivered for long enough; the others get a row in `work`.
const LAG: Duration = Duration::from_hours(1);

/// A class of data with a term of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum DataClass {
    /// Profiles, from their delivery on.
    Profiles,
    /// Attempts of deliveries with the responses of endpoints, from the attempt on.
    Attempts,
    /// Recorded actions of operators, from the action on. Whatever is older goes, so that no record
    /// of a partner outlives those of operators.
    Audit,
    /// Recorded changes that partners made themselves, from the change on.
    Changes,
    /// What is remembered of archived orders, from the archiving on.
    Archived,
    /// Refused requests of partners, from the request on.
    Refusals,
    /// Orders, from the order on. No walk erases them: `esimctl archive run` moves them into files
    /// (`tools::archive`).
    Orders,
}

impl DataClass {
    pub const ALL: [Self; 7] = [
        Self::Profiles,
        Self::Attempts,
        Self::Audit,
        Self::Changes,
        Self::Archived,
        Self::Refusals,
        Self::Orders,
    ];

    /// The classes that [`step`] erases.
    pub const ERASED: [Self; 6] = [
        Self::Profiles,
        Self::Attempts,
        Self::Audit,
        Self::Changes,
        Self::Archived,
        Self::Refusals,
    ];

    /// The name in the database, in metrics and in `esimctl`.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// How long after the end of the term the walk of the class passes.
    fn lag(self) -> Duration {
        match self {
            Self::Profiles => LAG,
            Self::Attempts
            | Self::Audit
            | Self::Changes
            | Self::Archived
            | Self::Refusals
            | Self::Orders => Duration::ZERO,
        }
    }
}

impl std::str::FromStr for DataClass {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|class| class.as_str() == name);
        found.ok_or_else(|| {
            format!(
                "there is no class {name:?}; the classes are profiles, attempts, audit, changes, archived, refusals and orders"
            )
        })
    }
}

/// The result of one batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionBatch {
    /// The number of rows that were looked at.
    pub seen: u64,
    pub erased: u64,
    /// The batch was full, so more rows are left.
    pub more: bool,
}

impl RetentionBatch {
    fn of(seen: i64, erased: i64, limit: u32) -> Self {
        Self {
            seen: count(seen),
            erased: count(erased),
            more: seen >= i64::from(limit),
        }
    }

    fn and(self, other: Self) -> Self {
        Self {
            seen: self.seen + other.seen,
            erased: self.erased + other.erased,
            more: self.more || other.more,
        }
    }
}

/// Looks at about `limit` rows of a class and erases those whose term has ended. Does nothing if
/// another process is working on the class.
pub async fn step(
    connection: &mut PgConnection,
    class: DataClass,
    limit: u32,
) -> Result<RetentionBatch> {
    let step = walk(connection, class, limit).await?;
    match class {
        DataClass::Profiles => Ok(step.and(late_profiles(connection, limit).await?)),
        DataClass::Attempts
        | DataClass::Audit
        | DataClass::Changes
        | DataClass::Archived
        | DataClass::Refusals
        | DataClass::Orders => Ok(step),
    }
}

/// A batch that deletes the oldest rows of a table. It remembers no position, because it deletes
/// every row that it passes. `which` limits it to some of the rows.
macro_rules! deleted {
    ($walk:ident, $transaction:ident, $limit:ident, $table:literal, $key:literal, $at:literal, $which:literal) => {
        sqlx::query_as!(
            Batch,
            "WITH erased AS (
                 DELETE FROM " + $table + " WHERE " + $key + " = ANY (ARRAY (
                     SELECT " + $key + " FROM " + $table + " WHERE " + $which + $at + " < $1 ORDER BY " + $at + " LIMIT $2))
                 RETURNING " + $at + r#" AS at
             )
             SELECT count(*) AS "seen!", count(*) AS "erased!", NULL::text AS after, max(at) AS at FROM erased"#,
            $walk.until,
            i64::from($limit),
        )
        .fetch_one(&mut **$transaction)
        .await?
    };
}

async fn walk(
    connection: &mut PgConnection,
    class: DataClass,
    limit: u32,
) -> Result<RetentionBatch> {
    transaction!(connection, "retention::walk", |transaction| {
        let query = sqlx::query_as!(
            Walk,
            r#"SELECT days AS "days!", after, nullif(up_to, '-infinity') AS up_to,
                  now() - make_interval(days => days, secs => $2) AS "until!"
           FROM walks
           WHERE name = $1 AND up_to < now() - make_interval(days => days, secs => $2)
           FOR UPDATE SKIP LOCKED"#,
            class.as_str(),
            seconds(class.lag()),
        );
        let walk = query.fetch_optional(&mut **transaction).await?;
        let Some(walk) = walk else {
            return Ok(TransactionEnd::Rollback(RetentionBatch::default()));
        };
        let batch = match class {
            DataClass::Profiles => walk.profiles(transaction, limit).await?,
            DataClass::Attempts => walk.attempts(transaction, limit).await?,
            DataClass::Audit => deleted!(
                walk,
                transaction,
                limit,
                "operator_actions",
                "action_id",
                "at",
                ""
            ),
            DataClass::Changes => {
                deleted!(
                    walk,
                    transaction,
                    limit,
                    "operator_actions",
                    "action_id",
                    "at",
                    "operator = 'partner' AND "
                )
            }
            DataClass::Refusals => deleted!(
                walk,
                transaction,
                limit,
                "refused_requests",
                "request_id",
                "at",
                ""
            ),
            DataClass::Archived => deleted!(
                walk,
                transaction,
                limit,
                "archived_orders",
                "order_id",
                "archived_at",
                ""
            ),
            // Orders are never erased here, whatever their term is.
            DataClass::Orders => return Ok(TransactionEnd::Rollback(RetentionBatch::default())),
        };
        let step = RetentionBatch::of(batch.seen, batch.erased, limit);
        let statement = sqlx::query!(
            "UPDATE walks SET after = coalesce($2, after), up_to = $3 WHERE name = $1",
            class.as_str(),
            batch.after,
            batch
                .at
                .filter(|_| step.more)
                .map_or(walk.until, |at| at.min(walk.until)),
        );
        statement.execute(&mut **transaction).await?;
        Ok(TransactionEnd::Commit(step))
    })
}

/// The position of a walk. It reads the rows between `after` or `up_to` and `until`.
struct Walk {
    days: i32,
    after: String,
    up_to: Option<OffsetDateTime>,
    until: OffsetDateTime,
}

struct Batch {
    seen: i64,
    erased: i64,
    /// The last row of the batch, if walks of this class remember it.
    after: Option<String>,
    /// The time of that row.
    at: Option<OffsetDateTime>,
}

impl Walk {
    /// A batch of the walk of profiles. It reads topups by their primary key, because their ids
    /// begin with the time of the order and so are in the order of time.
    ///
    /// `page` reads the next topups, and `unit` what is known of their deliveries. `erased` removes
    /// the profiles that were delivered long enough ago. `later` gives all others a row in `work`,
    /// unless there is no profile and never will be. That row is due at the end of the term, or in
    /// a day if the profile is not delivered.
    async fn profiles(&self, connection: &mut PgConnection, limit: u32) -> Result<Batch> {
        let batch = sqlx::query_as!(
            Batch,
            r#"WITH page AS MATERIALIZED (
                   SELECT topup_id, placement_id, state FROM topups
                   WHERE topup_id > $1 AND topup_id < to_char($2::timestamptz AT TIME ZONE 'UTC', 'YYYYMMDDHH24MISS')
                   ORDER BY topup_id LIMIT $3
               ), unit AS MATERIALIZED (
                   SELECT page.topup_id, p.partner_id, p.created_at,
                          -- There is no profile and there will be none. A parked placement may still get one.
                          page.state = 'failed' AND d.delivery_id IS NULL AND p.state <> 'parked' AS never,
                          -- An extension that is open may bring it another profile.
                          d.state = 'delivered' AND (SELECT true FROM extensions x
                                                     WHERE x.topup_id = page.topup_id AND x.state IN ('asked', 'sending', 'parked'))
                                                    IS NULL AS delivered,
                          d.delivered_at + make_interval(days => $4) AS ends_at
                   FROM page
                   JOIN placements p ON p.placement_id = page.placement_id
                   LEFT JOIN esims e ON e.topup_id = page.topup_id
                   LEFT JOIN deliveries d ON d.delivery_id = e.delivery_id
               ), erased AS (
                   UPDATE esims e SET profile = NULL, erased_at = now()
                   FROM unit
                   WHERE e.topup_id = unit.topup_id AND e.erased_at IS NULL AND unit.delivered AND unit.ends_at <= now()
                   RETURNING e.topup_id
               ), later AS (
                   -- A profile that is not delivered is looked at daily.
                   INSERT INTO work (id, kind, provider, lane, partner_id, at)
                   SELECT derived_id('erase', topup_id), 'erase', '', topup_id, partner_id,
                          CASE WHEN delivered THEN ends_at ELSE now() + interval '1 day' END
                   FROM unit
                   WHERE NOT never AND NOT (coalesce(delivered, false) AND ends_at <= now())
                   ON CONFLICT DO NOTHING
               )
               SELECT count(*) AS "seen!", (SELECT count(*) FROM erased) AS "erased!", max(topup_id) AS after,
                      (SELECT created_at FROM unit ORDER BY topup_id DESC LIMIT 1) AS at
               FROM unit"#,
            self.after,
            self.until,
            i64::from(limit),
            self.days,
        );
        Ok(batch.fetch_one(connection).await?)
    }

    /// A batch of the walk of attempts. It continues after a time, not after a row, so `page`
    /// includes all attempts at the time of its last row.
    async fn attempts(&self, connection: &mut PgConnection, limit: u32) -> Result<Batch> {
        let batch = sqlx::query_as!(
            Batch,
            r#"WITH page AS MATERIALIZED (
                   SELECT delivery_id, attempt, at FROM delivery_attempts
                   WHERE at > coalesce($1, '-infinity'::timestamptz) AND at < $2
                   -- With ties, because the walk continues after the time of the last row.
                   ORDER BY at FETCH FIRST $3 ROWS WITH TIES
               ), erased AS (
                   DELETE FROM delivery_attempts a USING page
                   WHERE a.delivery_id = page.delivery_id AND a.attempt = page.attempt AND a.at = page.at
                   RETURNING a.delivery_id
               )
               SELECT count(*) AS "seen!", (SELECT count(*) FROM erased) AS "erased!", NULL::text AS after, max(at) AS at
               FROM page"#,
            self.up_to,
            self.until,
            i64::from(limit),
        );
        Ok(batch.fetch_one(connection).await?)
    }
}

/// Looks again at profiles that could not be erased when their walk passed.
///
/// `page` takes the rows that are due, and skips those of another process. `unit` judges them like
/// the walk does. `erased` removes the profiles whose term has ended, `done` deletes the rows that
/// need no further look, and `later` sets the time of the next look of the others.
async fn late_profiles(connection: &mut PgConnection, limit: u32) -> Result<RetentionBatch> {
    let query = sqlx::query!(
        r#"WITH page AS MATERIALIZED (
               SELECT lane AS topup_id FROM work WHERE kind = 'erase' AND provider = '' AND at <= now()
               ORDER BY at LIMIT $1 FOR UPDATE SKIP LOCKED
           ), unit AS MATERIALIZED (
               SELECT t.topup_id, derived_id('erase', t.topup_id) AS work_id,
                      d.state = 'delivered' AND (SELECT true FROM extensions x
                                                 WHERE x.topup_id = t.topup_id AND x.state IN ('asked', 'sending', 'parked'))
                                                IS NULL AS delivered,
                      d.delivered_at + make_interval(days => r.days) AS ends_at,
                      -- There is no profile and there will be none, or profiles are now kept for ever.
                      r.days IS NULL OR (t.state = 'failed' AND d.delivery_id IS NULL AND p.state <> 'parked') AS never
               -- The ids are repeated, so that the large tables are read by their keys whatever the
               -- statistics say about `page`.
               FROM (SELECT * FROM topups WHERE topup_id = ANY (ARRAY (SELECT topup_id FROM page))) t
               JOIN placements p ON p.placement_id = t.placement_id
               LEFT JOIN (SELECT * FROM esims WHERE topup_id = ANY (ARRAY (SELECT topup_id FROM page))) e
                    ON e.topup_id = t.topup_id
               LEFT JOIN deliveries d ON d.delivery_id = e.delivery_id
               CROSS JOIN (SELECT days FROM walks WHERE name = 'profiles') r
           ), erased AS (
               UPDATE esims e SET profile = NULL, erased_at = now()
               FROM unit
               WHERE e.topup_id = unit.topup_id AND e.topup_id = ANY (ARRAY (SELECT topup_id FROM unit))
                 AND e.erased_at IS NULL AND NOT unit.never AND unit.delivered AND unit.ends_at <= now()
               RETURNING e.topup_id
           ), done AS (
               DELETE FROM work WHERE id = ANY (ARRAY (
                   SELECT work_id FROM unit WHERE never OR coalesce(delivered AND ends_at <= now(), false)))
           ), later AS (
               UPDATE work due
               SET at = CASE WHEN unit.delivered THEN unit.ends_at ELSE now() + interval '1 day' END
               FROM unit
               WHERE due.id = unit.work_id AND due.id = ANY (ARRAY (SELECT work_id FROM unit))
                 AND NOT (unit.never OR coalesce(unit.delivered AND unit.ends_at <= now(), false))
           )
           SELECT count(*) AS "seen!", (SELECT count(*) FROM erased) AS "erased!" FROM page"#,
        i64::from(limit),
    );
    let row = query.fetch_one(connection).await?;
    Ok(RetentionBatch::of(row.seen, row.erased, limit))
}

/// The backlog of retention, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RetentionBacklog {
    /// How long the oldest row has been past its term, in the order of [`DataClass::ERASED`].
    pub overdue: [Duration; 6],
    /// The number of profiles that are past the term, counted from their order, and are kept
    /// because they are not delivered, or not for long enough. Counted up to 100,000.
    pub waiting: u64,
}

pub async fn backlog(connection: &mut PgConnection) -> Result<RetentionBacklog> {
    let mut backlog = RetentionBacklog::default();
    for (class, overdue) in DataClass::ERASED.into_iter().zip(&mut backlog.overdue) {
        let query = sqlx::query_scalar!(
            r#"SELECT extract(epoch FROM CASE
                       WHEN up_to > '-infinity' THEN now() - make_interval(days => days, secs => $2) - up_to
                       ELSE now() - began_at END)::float8
               FROM walks WHERE name = $1 AND days IS NOT NULL"#,
            class.as_str(),
            seconds(class.lag()),
        );
        *overdue = age(query
            .fetch_optional(&mut *connection)
            .await?
            .flatten()
            .unwrap_or_default());
    }
    let query = sqlx::query!(
        r#"SELECT extract(epoch FROM now() - (SELECT at FROM work WHERE kind = 'erase' AND provider = '' ORDER BY at LIMIT 1))::float8 AS overdue,
                  (SELECT count(*) FROM (SELECT FROM work WHERE kind = 'erase' AND provider = '' LIMIT 100000) due) AS "waiting!""#
    );
    let late = query.fetch_one(connection).await?;
    backlog.overdue[0] = backlog.overdue[0].max(age(late.overdue.unwrap_or_default()));
    backlog.waiting = count(late.waiting);
    Ok(backlog)
}
