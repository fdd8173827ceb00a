//! What partners do lately: their orders of a day, when the last one came, what was refused, what
//! waits for a provider, and who has stopped ordering.
//!
//! Nothing counts orders beforehand, so they are counted by the index of a partner's orders up to a
//! bound. The time of an order is that of its id, so no row is read for it.

use std::collections::HashMap;

use domain::Environment;
use pg::{Result, count};
use sqlx::PgConnection;
use store::work::WorkKind;
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use super::health::finding::{LATE, Severity, VERY_LATE};
use crate::self_service::first_id;

/// The maximum number of orders of a partner that are counted.
pub const MOST_ORDERS: i64 = 10_000;
/// The maximum number of them in one bar of a picture.
const MOST_OF_BAR: i64 = 1_000;
/// The newest refused requests that are looked at, and the purchases that wait.
const MOST: i64 = 50_000;
/// A partner that ordered on so many of the last seven days and then not for a day is quiet. So it
/// has done so within the last three.
const DAYS: usize = 5;
const WITHIN: Duration = Duration::days(3);
/// So many quiet partners are looked for, those that have stopped last.
const QUIET: usize = 200;

/// What a partner did lately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartnerActivity {
    pub is_live: bool,
    /// The orders of the last 24 hours, up to [`MOST_ORDERS`].
    pub orders: u64,
    /// When its last order came.
    pub last: Option<OffsetDateTime>,
    /// Its requests that were refused in 24 hours and are still stored.
    pub refused: u64,
    /// Its purchases that have waited for a provider for longer than a minute, and when the oldest
    /// of them was stored.
    pub waiting: u64,
    pub oldest: Option<OffsetDateTime>,
    /// If it is quiet: how many orders it sent on a day before.
    pub usual: Option<u64>,
}

/// How bad it is that something of a partner has waited for a provider since then.
pub fn severity(is_live: bool, oldest: OffsetDateTime, now: OffsetDateTime) -> Severity {
    if is_live && now - oldest >= Duration::seconds_f64(VERY_LATE) {
        Severity::Fault
    } else {
        Severity::Warning
    }
}

/// The time that an id of version 7 names.
fn at(id: Uuid) -> Option<OffsetDateTime> {
    let (seconds, nanoseconds) = id.get_timestamp()?.to_unix();
    let at = OffsetDateTime::from_unix_timestamp(i64::try_from(seconds).ok()?).ok()?;
    Some(at + Duration::nanoseconds(nanoseconds.into()))
}

/// The first id of what is late now.
pub(super) fn late(now: OffsetDateTime) -> Uuid {
    first_id(now - Duration::seconds_f64(LATE))
}

/// Reads what all partners did.
pub async fn read(
    connection: &mut PgConnection,
    now: OffsetDateTime,
) -> Result<HashMap<Uuid, PartnerActivity>> {
    let since = now - Duration::hours(24);
    // Both columns are compared as one row: otherwise PostgreSQL goes through the orders of all
    // partners for each one without orders, if most orders are of one partner.
    let query = sqlx::query!(
        r#"SELECT p.partner_id, p.environment, day.orders AS "orders!", last.order_id AS "last?"
           FROM partners p
           CROSS JOIN LATERAL (
               SELECT count(*) AS orders FROM (
                   SELECT FROM orders o
                   WHERE (o.partner_id, o.order_id) >= (p.partner_id, $1)
                     AND (o.partner_id, o.order_id) <= (p.partner_id, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid)
                   LIMIT $2) some_of_them) day
           LEFT JOIN LATERAL (
               SELECT o.partner_id, o.order_id FROM orders o
               WHERE (o.partner_id, o.order_id) <= (p.partner_id, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid)
               ORDER BY o.partner_id DESC, o.order_id DESC LIMIT 1) last ON last.partner_id = p.partner_id"#,
        first_id(since),
        MOST_ORDERS,
    );
    let rows = query.fetch_all(&mut *connection).await?.into_iter();
    let all = rows.map(|row| {
        let one = PartnerActivity {
            is_live: row.environment == Environment::Live.as_str(),
            orders: count(row.orders),
            last: row.last.and_then(at),
            ..PartnerActivity::default()
        };
        (row.partner_id, one)
    });
    let mut all: HashMap<Uuid, PartnerActivity> = all.collect();
    let query = sqlx::query!(
        r#"SELECT partner_id, count(*) AS "number!"
           FROM (SELECT partner_id FROM refused_requests WHERE at >= $1 ORDER BY at DESC LIMIT $2) newest
           GROUP BY 1"#,
        since,
        MOST,
    );
    for row in query.fetch_all(&mut *connection).await? {
        all.entry(row.partner_id).or_default().refused = count(row.number);
    }
    let query = sqlx::query!(
        r#"SELECT partner_id, count(*) AS "number!", min(id::text)::uuid AS "oldest!"
           FROM (SELECT partner_id, id FROM work
                 WHERE kind = ANY ($3) AND id < $1 LIMIT $2) waiting
           GROUP BY 1"#,
        late(now),
        MOST,
        &WorkKind::names(&[&WorkKind::PLACEMENTS]) as &[&str],
    );
    for row in query.fetch_all(&mut *connection).await? {
        let one = all.entry(row.partner_id).or_default();
        (one.waiting, one.oldest) = (count(row.number), at(row.oldest));
    }
    let last = all.iter().filter_map(|(id, one)| Some((one.last?, *id)));
    let last: Vec<(OffsetDateTime, Uuid)> = last.collect();
    for (id, usual) in quiet(connection, last, now).await? {
        all.entry(id).or_default().usual = Some(usual);
    }
    Ok(all)
}

/// Which of these partners are quiet, and how many orders each sent on a day before; `last` has the
/// time of the last order of each.
pub async fn quiet(
    connection: &mut PgConnection,
    mut last: Vec<(OffsetDateTime, Uuid)>,
    now: OffsetDateTime,
) -> Result<HashMap<Uuid, u64>> {
    last.retain(|(last, _)| (now - WITHIN..now - Duration::days(1)).contains(last));
    last.sort_unstable_by(|a, b| b.cmp(a));
    let silent: Vec<Uuid> = last.into_iter().take(QUIET).map(|(_, id)| id).collect();
    let days = orders(connection, &silent, (Duration::days(1), 7), now).await?;
    let quiet = days.into_iter().filter_map(|(id, days)| {
        let ordered = days.iter().filter(|orders| **orders > 0).count();
        let usual = days.iter().sum::<u64>() / u64::try_from(ordered).ok()?.max(1);
        (ordered >= DAYS).then_some((id, usual))
    });
    Ok(quiet.collect())
}

/// The orders of these partners in the last spans of time, such as 24 hours, the oldest first. Of
/// each span a bounded number is counted, and a partner without any is left out.
pub async fn orders(
    connection: &mut PgConnection,
    partners: &[Uuid],
    (span, spans): (Duration, usize),
    now: OffsetDateTime,
) -> Result<HashMap<Uuid, Vec<u64>>> {
    let mut bounds: Vec<Uuid> = Vec::with_capacity(spans + 1);
    let mut bound = now;
    for _ in 0..=spans {
        bounds.push(first_id(bound));
        bound -= span;
    }
    bounds.reverse();
    let query = sqlx::query!(
        r#"SELECT wanted.partner_id AS "partner_id!", spans.nth AS "nth!", some_of_them.orders AS "orders!"
           FROM unnest($1::uuid[]) AS wanted (partner_id)
           CROSS JOIN unnest($2::uuid[], $3::uuid[]) WITH ORDINALITY AS spans (low, high, nth)
           CROSS JOIN LATERAL (
               SELECT count(*) AS orders FROM (
                   SELECT FROM orders o
                   WHERE (o.partner_id, o.order_id) >= (wanted.partner_id, spans.low)
                     AND (o.partner_id, o.order_id) < (wanted.partner_id, spans.high)
                   LIMIT $4) bounded) some_of_them
           WHERE some_of_them.orders > 0"#,
        partners,
        &bounds[..spans],
        &bounds[1..],
        MOST_OF_BAR,
    );
    let mut all: HashMap<Uuid, Vec<u64>> = HashMap::new();
    for row in query.fetch_all(connection).await? {
        let mine = all.entry(row.partner_id).or_insert_with(|| vec![0; spans]);
        let nth = usize::try_from(row.nth - 1).unwrap_or_default();
        if let Some(of) = mine.get_mut(nth) {
            *of = count(row.orders);
        }
    }
    Ok(all)
}
