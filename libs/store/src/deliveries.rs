//! Deliveries: taken up by notifiers, recorded in batches.

use std::time::Duration;

use domain::{OptionId, OrderId, PartnerId, TopupId};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{Error, age, seconds, signed, unsigned};

/// Which deliveries a notifier takes up.
#[derive(Clone, Copy, Debug)]
pub enum Take<'a> {
    /// First attempts of those that readiness events name. Costs no write: a delivery is born with a
    /// lease, and is skipped unless a whole attempt fits into what is left of it.
    First(&'a [TopupId]),
    /// Those that are due, whatever their attempt.
    Due {
        /// The most to take.
        limit: usize,
        /// The most to take of one partner, for whom nothing is under way.
        per_partner: usize,
        /// Partners that have deliveries under way, and how many.
        under_way: &'a [(PartnerId, usize)],
    },
}

/// A delivery to be attempted now.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// What it tells of; also the webhook's id, the same in every attempt.
    pub topup_id: TopupId,
    /// The order.
    pub order_id: OrderId,
    /// Whom it tells.
    pub partner_id: PartnerId,
    /// The partner's own order id.
    pub external_order_id: String,
    /// What was ordered.
    pub option_id: OptionId,
    /// The eSIM's number.
    pub iccid: String,
    /// The sealed profile.
    pub profile: Vec<u8>,
    /// Where to, if the partner has said so.
    pub webhook_url: Option<String>,
    /// The partner's sealed webhook-signing key.
    pub webhook_secret: Vec<u8>,
    /// How many attempts have ended.
    pub attempt: u32,
    /// How long ago it was born.
    pub age: Duration,
    /// W3C trace context of the order's POST.
    pub traceparent: Option<String>,
}

/// Takes deliveries up in one statement. What was taken as due is left alone by other notifiers until
/// `lease` has passed.
pub async fn take(
    connection: &mut PgConnection,
    which: Take<'_>,
    lease: Duration,
) -> Result<Vec<Delivery>, Error> {
    let (first, limit, per_partner, under_way) = match which {
        Take::First(topups) => (topups, 0, 0, &[][..]),
        Take::Due {
            limit,
            per_partner,
            under_way,
        } => (&[][..], limit, per_partner, under_way),
    };
    let first: Vec<String> = first.iter().map(TopupId::to_string).collect();
    let busy_partners: Vec<Uuid> = under_way.iter().map(|(partner, _)| partner.uuid()).collect();
    let busy_counts: Vec<i32> = under_way.iter().map(|(_, count)| signed(*count)).collect();
    let rows = sqlx::query!(
        r#"WITH first AS (
               SELECT topup_id FROM deliveries
               WHERE topup_id = ANY($1) AND state = 'pending' AND attempt = 0
                 AND redrive_at > now() + make_interval(secs => $2)
           ), due AS (
               SELECT late.topup_id
               FROM partners p
               LEFT JOIN unnest($3::uuid[], $4::int[]) AS busy(partner_id, count) ON busy.partner_id = p.partner_id
               CROSS JOIN LATERAL (
                   SELECT topup_id FROM deliveries d
                   WHERE d.partner_id = p.partner_id AND d.redrive_at <= now()
                   ORDER BY d.redrive_at
                   LIMIT greatest(0, $5::bigint - coalesce(busy.count, 0))
                   FOR UPDATE SKIP LOCKED
               ) late
               WHERE $6::bigint > 0
               LIMIT $6::bigint
           ), claimed AS (
               UPDATE deliveries d SET redrive_at = now() + make_interval(secs => $7)
               FROM due WHERE d.topup_id = due.topup_id
               RETURNING d.topup_id
           ), taken AS (
               SELECT topup_id FROM first UNION ALL SELECT topup_id FROM claimed
           )
           SELECT d.topup_id, o.order_id, d.partner_id, o.external_order_id, t.option_id,
                  t.iccid AS "iccid!", t.profile AS "profile!", p.webhook_url, p.webhook_secret, d.attempt,
                  extract(epoch FROM now() - d.created_at)::float8 AS "age!", o.traceparent
           FROM taken
           JOIN deliveries d ON d.topup_id = taken.topup_id
           JOIN topups t ON t.topup_id = taken.topup_id
           JOIN orders o ON o.order_id = t.order_id
           JOIN partners p ON p.partner_id = d.partner_id"#,
        &first,
        seconds(lease),
        &busy_partners,
        &busy_counts,
        i64::try_from(per_partner).unwrap_or(i64::MAX),
        i64::try_from(limit).unwrap_or(i64::MAX),
        seconds(lease),
    )
    .fetch_all(connection)
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(Delivery {
                topup_id: row.topup_id.try_into()?,
                order_id: row.order_id.into(),
                partner_id: row.partner_id.into(),
                external_order_id: row.external_order_id,
                option_id: row.option_id.into(),
                iccid: row.iccid,
                profile: row.profile,
                webhook_url: row.webhook_url,
                webhook_secret: row.webhook_secret,
                attempt: unsigned(row.attempt),
                age: age(row.age),
                traceparent: row.traceparent,
            })
        })
        .collect()
}

/// What became of one attempt.
#[derive(Clone, Debug)]
pub struct Attempted {
    /// The delivery.
    pub topup_id: TopupId,
    /// How many attempts had ended before this one.
    pub attempt: u32,
    /// The answer's status, if there was an answer.
    pub status: Option<u16>,
    /// What became of it.
    pub result: AttemptResult,
}

/// What became of one attempt.
#[derive(Clone, Debug)]
pub enum AttemptResult {
    /// The endpoint acknowledged it.
    Delivered,
    /// It failed.
    Failed {
        /// Why, without the URL and without anything of the answer.
        error: String,
        /// When to try again; `None` when the schedule has ended.
        retry_in: Option<Duration>,
    },
}

/// Records a batch of attempts. One that somebody else has recorded meanwhile changes nothing, except
/// that a delivery which arrived is delivered.
pub async fn record(connection: &mut PgConnection, attempts: &[Attempted]) -> Result<Vec<()>, Error> {
    let mut topups = Vec::with_capacity(attempts.len());
    let mut numbers = Vec::with_capacity(attempts.len());
    let mut states = Vec::with_capacity(attempts.len());
    let mut statuses = Vec::with_capacity(attempts.len());
    let mut errors = Vec::with_capacity(attempts.len());
    let mut retries = Vec::with_capacity(attempts.len());
    for attempted in attempts {
        let (state, error, retry_in) = match &attempted.result {
            AttemptResult::Delivered => ("delivered", None, None),
            AttemptResult::Failed {
                error,
                retry_in: Some(wait),
            } => ("pending", Some(error.clone()), Some(*wait)),
            AttemptResult::Failed {
                error,
                retry_in: None,
            } => ("exhausted", Some(error.clone()), None),
        };
        topups.push(attempted.topup_id.to_string());
        numbers.push(signed(attempted.attempt));
        states.push(state);
        statuses.push(attempted.status.map(i32::from));
        errors.push(error);
        retries.push(retry_in.map(seconds));
    }
    sqlx::query!(
        "UPDATE deliveries d
         SET state = new.state, attempt = d.attempt + 1, attempted_at = now(), status = new.status, error = new.error,
             redrive_at = now() + make_interval(secs => new.retry_in),
             delivered_at = CASE WHEN new.state = 'delivered' THEN now() END
         FROM unnest($1::text[], $2::int[], $3::text[], $4::int[], $5::text[], $6::float8[])
              AS new(topup_id, attempt, state, status, error, retry_in)
         WHERE d.topup_id = new.topup_id
           AND ((d.state = 'pending' AND d.attempt = new.attempt)
                OR (new.state = 'delivered' AND d.state <> 'delivered'))",
        &topups,
        &numbers,
        &states as &[&str],
        &statuses as &[Option<i32>],
        &errors as &[Option<String>],
        &retries as &[Option<f64>],
    )
    .execute(connection)
    .await?;
    Ok(vec![(); attempts.len()])
}

/// Gives up, until a URL is set, on deliveries of partners that have none. The partners' rows are
/// locked and read here, so that a URL that is just being set is seen either here or by
/// [`crate::partners::set_webhook`].
pub async fn set_no_endpoint(connection: &mut PgConnection, topups: &[TopupId]) -> Result<u64, Error> {
    let topups: Vec<String> = topups.iter().map(TopupId::to_string).collect();
    let done = sqlx::query!(
        "WITH without AS (
             SELECT partner_id FROM partners
             WHERE webhook_url IS NULL
               AND partner_id IN (SELECT partner_id FROM deliveries WHERE topup_id = ANY($1))
             FOR SHARE
         )
         UPDATE deliveries d SET state = 'no_endpoint', redrive_at = NULL
         FROM without
         WHERE d.partner_id = without.partner_id AND d.topup_id = ANY($1) AND d.state = 'pending'",
        &topups,
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}
