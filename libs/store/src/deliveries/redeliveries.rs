//! Redeliveries: a partner asks for many of its webhooks to be sent again, for example all whose
//! retries ended while its endpoint was down.
//!
//! A redelivery is a row that says which webhooks are meant and how far it has come. The notifiers
//! work it off in batches ([`step`]): each batch makes the next matching deliveries due, by the
//! statement that also serves single replays, and moves the position in the same transaction. The
//! deliveries are then sent like any other ones.
//!
//! Guarantees:
//!
//! - Nothing is lost or done twice if a process dies: a batch and the new position commit together.
//!   Only what was being sent at that moment may be sent a second time, as always.
//! - The endpoint's own pace: at most `most_due` deliveries to each endpoint are due at a time, so a
//!   slow or blocked endpoint makes its redelivery wait, and its new webhooks do not wait behind
//!   thousands of old ones. Other partners have turns of their own in the looks at due work.
//! - A webhook whose attempt began after the redelivery is not part of it, so one that fails again
//!   keeps its schedule of retries.
//! - A partner has one running redelivery at most; an index enforces that.
//!
//! Ingress calls [`begin`], [`list`], [`find`] and [`cancel`] for self-service, the notifier calls
//! [`running`], [`step`] and [`forget`], and `esimctl` shows [`running`] and [`list`].

use std::{ops, time::Duration};

use domain::PartnerId;
use sqlx::{Connection, PgConnection};
use time::{OffsetDateTime, serde::rfc3339};
use uuid::Uuid;

use super::{
    endpoints::LONGEST_LEASE,
    walk::{Kinds, Matching, Order, Position, Source, Walk},
};
use crate::{
    Result, age, count,
    operator::{
        actions::{self, Action, Actor},
        deliveries::{Filter, resend},
    },
    retry_conflicts, seconds,
};

/// The most matching deliveries of a state that are counted when a redelivery begins.
const MOST_COUNTED: usize = 10_000;
/// The most rows that one step, or the count of a state at the beginning, looks at.
const MOST_LOOKED_AT: usize = 20_000;
/// The most rows that one batch looks at.
const BATCH_LOOK: usize = 1_000;
/// The states whose deliveries can be sent again, which is also the order of the phases.
const STATES: [&str; 3] = ["exhausted", "pending", "delivered"];
/// The phase in which everything is due, and some of it waits for its attempt.
const SENDING: &str = "sending";

/// Which webhooks are sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted<'a> {
    /// One of `exhausted`, `pending` and `delivered`; `None` stands for the first two, which are
    /// all that were not delivered.
    pub state: Option<&'a str>,
    /// The start of the range of time, inclusive. The time of a webhook is that of its last
    /// attempt; before the first one it is the time of its creation.
    pub since: OffsetDateTime,
    /// The end of that range, exclusive; `None` is now.
    pub until: Option<OffsetDateTime>,
}

/// A redelivery with its progress.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Redelivery {
    pub redelivery_id: Uuid,
    pub partner_id: Uuid,
    pub state: Option<String>,
    #[serde(with = "rfc3339")]
    pub since: OffsetDateTime,
    #[serde(with = "rfc3339")]
    pub until: OffsetDateTime,
    /// How many webhooks matched when it began; `None` if they were too many to count.
    pub matching: Option<i64>,
    /// How many webhooks have been made due.
    pub redelivered: i64,
    #[serde(with = "rfc3339")]
    pub created_at: OffsetDateTime,
    /// `None`: it runs.
    #[serde(with = "rfc3339::option")]
    pub ended_at: Option<OffsetDateTime>,
    /// When its partner ended it early.
    #[serde(with = "rfc3339::option")]
    pub cancelled_at: Option<OffsetDateTime>,
}

/// The phases of a redelivery of these states.
fn phases(state: Option<&str>) -> impl Iterator<Item = &'static str> {
    let chosen = STATES.into_iter().filter(move |one| match state {
        Some(state) => state == *one,
        None => *one != "delivered",
    });
    chosen.chain([SENDING])
}

/// Where the walk of a phase begins. Pending webhooks that are due within the longest lease are
/// sent soon anyway, or are in flight.
fn start(phase: &str, now: OffsetDateTime) -> Option<Position> {
    match phase {
        "pending" => Some(Position {
            at: now + LONGEST_LEASE,
            id: Uuid::nil(),
        }),
        SENDING => Some(Position {
            at: now,
            id: Uuid::nil(),
        }),
        _ => None,
    }
}

/// The result of [`begin`].
#[derive(Clone, Debug)]
pub enum Begun {
    /// It begins now.
    Begun(Redelivery),
    /// Another one of the partner runs: this one.
    Running(Uuid),
    /// The last one began less than the interval ago; this much time is left.
    TooSoon(Duration),
    NoEndpoint,
}

/// Begins a redelivery at the request of a partner, and records that. It is refused while another
/// one runs, and until `interval` has passed since the last one began, so that a webhook is not sent
/// again and again.
pub async fn begin(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    wanted: &Wanted<'_>,
    interval: Duration,
) -> Result<Begun> {
    let mut transaction = connection.begin().await?;
    // The lock lets one request of the partner after the other pass.
    let query = sqlx::query!(
        r#"SELECT EXISTS (SELECT FROM partner_endpoints e WHERE e.partner_id = $1 AND e.url IS NOT NULL) AS "has_url!",
                  now() AS "now!"
           FROM partners WHERE partner_id = $1 FOR NO KEY UPDATE"#,
        partner_id.uuid(),
    );
    let now = match query.fetch_optional(&mut *transaction).await? {
        Some(row) if row.has_url => row.now,
        _ => return Ok(Begun::NoEndpoint),
    };
    let query = sqlx::query!(
        r#"SELECT redelivery_id, ended_at IS NULL AS "running!",
                  extract(epoch FROM clock_timestamp() - created_at)::float8 AS "age!"
           FROM redeliveries WHERE partner_id = $1 ORDER BY created_at DESC LIMIT 1"#,
        partner_id.uuid(),
    );
    if let Some(last) = query.fetch_optional(&mut *transaction).await? {
        if last.running {
            return Ok(Begun::Running(last.redelivery_id));
        }
        if let Some(left) = interval
            .checked_sub(age(last.age))
            .filter(|left| !left.is_zero())
        {
            return Ok(Begun::TooSoon(left));
        }
    }
    let until = wanted.until.map_or(now, |until| until.min(now));
    let matching = count_matching(&mut transaction, partner_id, wanted, until, now).await?;
    let matching = matching.exact();
    let wanted = Wanted {
        until: Some(until),
        ..*wanted
    };
    let begun = insert(&mut transaction, partner_id, &wanted, matching).await?;
    // The lock keeps others from beginning one, except for an operator, who takes no lock.
    let Some(begun) = begun else {
        return Ok(Begun::TooSoon(Duration::from_secs(1)));
    };
    let target = format!("redelivery {} of partner {partner_id}", begun.redelivery_id);
    record(
        &mut transaction,
        domain::Command::WebhooksRedeliver,
        &target,
        matching.unwrap_or_default(),
    )
    .await?;
    transaction.commit().await?;
    Ok(Begun::Begun(begun))
}

/// Stores a redelivery; `None` if one of the partner runs. The index on running ones decides.
pub(crate) async fn insert(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    wanted: &Wanted<'_>,
    matching: Option<i64>,
) -> Result<Option<Redelivery>> {
    let now = sqlx::query_scalar!(r#"SELECT now() AS "now!""#);
    let now = now.fetch_one(&mut *connection).await?;
    let first = phases(wanted.state).next().unwrap_or(SENDING);
    let after = start(first, now);
    let begun = sqlx::query_as!(
        Redelivery,
        "INSERT INTO redeliveries (redelivery_id, partner_id, state, since, until, matching, phase, after_at, after_id)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
         ON CONFLICT (partner_id) WHERE ended_at IS NULL DO NOTHING
         RETURNING redelivery_id, partner_id, state, since, until, matching, redelivered, created_at, ended_at, cancelled_at",
        Uuid::now_v7(),
        partner_id.uuid(),
        wanted.state,
        wanted.since,
        wanted.until.map_or(now, |until| until.min(now)),
        matching,
        first,
        after.map(|after| after.at),
        after.map(|after| after.id),
    );
    Ok(begun.fetch_optional(connection).await?)
}

/// Records what the partner has done, in the transaction of the change.
async fn record(
    connection: &mut PgConnection,
    command: domain::Command,
    target: &str,
    affected: i64,
) -> Result<()> {
    let action = Action {
        actor: Actor::PARTNER,
        command,
        target,
        reason: actions::REASON,
    };
    Ok(actions::record(connection, action, affected).await?)
}

/// The earliest creation of a delivery that matches, except of those that were sent again much later.
pub(crate) fn reach(wanted: &Wanted<'_>) -> OffsetDateTime {
    Matching {
        since: Some(wanted.since),
        ..Matching::default()
    }
    .reach()
}

/// A number of webhooks that match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Counted {
    pub number: i64,
    /// Whether these are all. Otherwise the counting ended early, because it had found or looked at
    /// too many, and there may be more.
    pub all: bool,
}

impl Counted {
    pub const NONE: Self = Self {
        number: 0,
        all: true,
    };

    /// The number, if it is exact.
    pub(crate) fn exact(self) -> Option<i64> {
        self.all.then_some(self.number)
    }
}

impl ops::Add for Counted {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            number: self.number + other.number,
            all: self.all && other.all,
        }
    }
}

/// The number of webhooks that match now.
pub(crate) async fn count_matching(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    wanted: &Wanted<'_>,
    until: OffsetDateTime,
    now: OffsetDateTime,
) -> Result<Counted> {
    let mut counted = Counted::NONE;
    for phase in phases(wanted.state).filter(|phase| *phase != SENDING) {
        let mut walk = Walk {
            partner_id,
            source: Source::of(Some(phase)),
            // Delivered ones are read by their creation, from a week before the range on. The newest
            // ones are those that are in it.
            order: Order::NewestFirst,
            matching: Matching {
                state: Some(phase),
                since: Some(wanted.since),
                until: Some(until),
                kinds: Kinds::WithoutNotices,
            },
            after: start(phase, now),
        };
        let found = walk.find(connection, MOST_COUNTED, MOST_LOOKED_AT).await?;
        counted = counted
            + Counted {
                number: i64::try_from(found.ids.len()).unwrap_or(i64::MAX),
                all: found.ended,
            };
    }
    Ok(counted)
}

/// The redeliveries of a partner, the newest first.
pub async fn list(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    limit: i64,
) -> Result<Vec<Redelivery>> {
    let query = sqlx::query_as!(
        Redelivery,
        "SELECT redelivery_id, partner_id, state, since, until, matching, redelivered, created_at, ended_at, cancelled_at
         FROM redeliveries WHERE partner_id = $1 ORDER BY created_at DESC LIMIT $2",
        partner_id.uuid(),
        limit,
    );
    Ok(query.fetch_all(connection).await?)
}

/// One redelivery of a partner.
pub async fn find(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    id: Uuid,
) -> Result<Option<Redelivery>> {
    let query = sqlx::query_as!(
        Redelivery,
        "SELECT redelivery_id, partner_id, state, since, until, matching, redelivered, created_at, ended_at, cancelled_at
         FROM redeliveries WHERE redelivery_id = $2 AND partner_id = $1",
        partner_id.uuid(),
        id,
    );
    Ok(query.fetch_optional(connection).await?)
}

/// The running redeliveries of the next partners after `after`, at most `limit`, in the order of the
/// partners.
pub async fn running(
    connection: &mut PgConnection,
    after: Option<Uuid>,
    limit: i64,
) -> Result<Vec<Redelivery>> {
    let query = sqlx::query_as!(
        Redelivery,
        "SELECT redelivery_id, partner_id, state, since, until, matching, redelivered, created_at, ended_at, cancelled_at
         FROM redeliveries WHERE ended_at IS NULL AND partner_id > $1 ORDER BY partner_id LIMIT $2",
        after.unwrap_or_default(),
        limit,
    );
    Ok(query.fetch_all(connection).await?)
}

/// Ends a redelivery of a partner early, at its request, and records that. Webhooks that are due
/// already are still sent. Returns the redelivery, which may have ended before; `None` if the
/// partner has no such one.
pub async fn cancel(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    id: Uuid,
) -> Result<Option<Redelivery>> {
    let mut transaction = connection.begin().await?;
    let statement = sqlx::query!(
        "UPDATE redeliveries SET ended_at = now(), cancelled_at = now()
         WHERE redelivery_id = $2 AND partner_id = $1 AND ended_at IS NULL",
        partner_id.uuid(),
        id,
    );
    let cancelled = statement.execute(&mut *transaction).await?.rows_affected();
    if cancelled > 0 {
        let target = format!("redelivery {id} of partner {partner_id}");
        record(
            &mut transaction,
            domain::Command::WebhooksRedeliverCancel,
            &target,
            1,
        )
        .await?;
    }
    let found = find(&mut transaction, partner_id, id).await?;
    transaction.commit().await?;
    Ok(found)
}

/// What one step of a redelivery has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The number of webhooks that became due.
    pub redelivered: u64,
    /// Whether the next step can do something at once. Otherwise enough of the partner's webhooks
    /// are due, another process works on this redelivery, or it has ended.
    pub more: bool,
    pub ended: bool,
}

/// Does the next batch of a redelivery: makes webhooks due until `most_due` of the partner are.
/// When the walk has come to its end, the redelivery ends as soon as none of what was due then
/// waits for its attempt any more.
pub async fn step(connection: &mut PgConnection, id: Uuid, most_due: u32) -> Result<Step> {
    retry_conflicts!(step_once(&mut *connection, id, most_due))
}

async fn step_once(connection: &mut PgConnection, id: Uuid, most_due: u32) -> Result<Step> {
    let mut transaction = connection.begin().await?;
    // The lock keeps other notifiers and a cancellation out until this batch has committed.
    let query = sqlx::query!(
        r#"SELECT partner_id, state, since, until, phase, after_at, after_id, now() AS "now!" FROM redeliveries
           WHERE redelivery_id = $1 AND ended_at IS NULL FOR UPDATE SKIP LOCKED"#,
        id,
    );
    let Some(row) = query.fetch_optional(&mut *transaction).await? else {
        return Ok(Step::default());
    };
    let after = row.after_at.zip(row.after_id);
    let after = after.map(|(at, id)| Position { at, id });
    if row.phase == SENDING {
        let ended = end_if_sent(&mut transaction, id, row.partner_id, after).await?;
        transaction.commit().await?;
        return Ok(Step {
            ended,
            ..Step::default()
        });
    }
    let due = due_soon(&mut transaction, row.partner_id, most_due).await?;
    let room = u64::from(most_due).saturating_sub(due);
    if room == 0 {
        return Ok(Step::default());
    }
    let filter = Filter {
        partner_id: Some(row.partner_id.into()),
        state: Some(&row.phase),
        since: Some(row.since),
        until: Some(row.until),
        ..Filter::default()
    };
    let mut walk = Walk {
        partner_id: row.partner_id.into(),
        source: Source::of(filter.state),
        order: Order::OldestFirst,
        matching: Matching {
            state: filter.state,
            since: filter.since,
            until: filter.until,
            kinds: Kinds::WithoutNotices,
        },
        after,
    };
    let limit = usize::try_from(room).unwrap_or(usize::MAX);
    let found = walk.find(&mut transaction, limit, BATCH_LOOK).await?;
    let resent = resend(&mut transaction, &found.ids, &filter).await?;
    let next = phases(row.state.as_deref())
        .skip_while(|phase| *phase != row.phase)
        .nth(1)
        .filter(|_| found.ended);
    let after = next.map_or(walk.after, |next| start(next, row.now));
    let statement = sqlx::query!(
        "UPDATE redeliveries SET phase = $2, after_at = $3, after_id = $4, redelivered = redelivered + $5
         WHERE redelivery_id = $1",
        id,
        next.unwrap_or(&row.phase),
        after.map(|after| after.at),
        after.map(|after| after.id),
        resent.replayed,
    );
    statement.execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(Step {
        redelivered: count(resent.replayed),
        more: true,
        ended: false,
    })
}

/// The number of webhooks that are due, or in flight, at the endpoint of the partner that has most of
/// them, counted up to `most`.
async fn due_soon(connection: &mut PgConnection, partner: Uuid, most: u32) -> Result<u64> {
    let query = sqlx::query_scalar!(
        r#"SELECT max(due) AS "due!"
           FROM (SELECT lane FROM partner_endpoints WHERE partner_id = $1) e
           CROSS JOIN LATERAL (
               SELECT count(*) AS due
               FROM (SELECT FROM work w
                     WHERE w.kind = 'deliver' AND w.provider = '' AND w.lane = e.lane AND w.partner_id = $1
                       AND w.at <= now() + make_interval(secs => $2)
                     LIMIT $3) due_of_lane
           ) of_lane"#,
        partner,
        seconds(LONGEST_LEASE),
        i64::from(most),
    );
    Ok(count(query.fetch_one(connection).await?))
}

/// Ends the redelivery if nothing that was due when its walk ended waits for its attempt any more.
/// A webhook whose attempt began since then has a later time in `work`, or no work.
async fn end_if_sent(
    connection: &mut PgConnection,
    id: Uuid,
    partner: Uuid,
    walked: Option<Position>,
) -> Result<bool> {
    let statement = sqlx::query!(
        "UPDATE redeliveries SET ended_at = now()
         WHERE redelivery_id = $1
           AND (SELECT true
                FROM (SELECT lane FROM partner_endpoints WHERE partner_id = $2) e
                CROSS JOIN LATERAL (
                    SELECT FROM work w
                    WHERE w.kind = 'deliver' AND w.provider = '' AND w.lane = e.lane AND w.partner_id = $2
                      AND w.at > '-infinity' AND w.at <= $3
                    LIMIT 1
                ) waiting
                LIMIT 1) IS NULL",
        id,
        partner,
        walked.map(|walked| walked.at),
    );
    Ok(statement.execute(connection).await?.rows_affected() > 0)
}

/// Deletes at most `limit` ended redeliveries that are older than the term of attempts. Returns
/// their number.
pub async fn forget(connection: &mut PgConnection, limit: u32) -> Result<u64> {
    // Goes from partner to partner, like `events::forget`.
    let statement = sqlx::query!(
        "DELETE FROM redeliveries WHERE redelivery_id = ANY (ARRAY (
             SELECT old.redelivery_id
             FROM partners p
             CROSS JOIN LATERAL (
                 SELECT r.redelivery_id FROM redeliveries r
                 WHERE r.partner_id = p.partner_id AND r.ended_at IS NOT NULL
                   AND r.created_at < now() - make_interval(days => (
                       SELECT days FROM walks WHERE name = 'attempts'))
                 ORDER BY r.created_at LIMIT $1
             ) old
             LIMIT $1))",
        i64::from(limit),
    );
    Ok(statement.execute(connection).await?.rows_affected())
}
