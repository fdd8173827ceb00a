//! What partners ask about delivered eSIMs, for the provisioner: it claims the open requests of its
//! provider, which are rows of `work` with the kinds `usage`, `give_back` and `suspend`, and
//! records what the provider says. Ingress writes the requests (`desk::self_service::esims`), and
//! operators resolve parked give-backs (`desk::operator::give_backs`). A report of a provider asks
//! for the use, too, by a row of its own ([`crate::providers::report`]), which waits until an
//! answer confirms it. What can be added to an eSIM is asked for in the same way; to add it is
//! [`crate::extensions`].
//!
//! Guarantees: a give-back and a suspension move by [`domain::esim_change`] only, because each
//! statement reads the row under its lock and asks that function for the next state. An attempt is
//! recorded ([`begin`]) before the provider is called. A unit that is given back is marked and its
//! profile erased in the transaction that ends its give-back.
//!
//! A lease saves double effort and guarantees nothing: two processes may ask the provider the same,
//! but only the one that recorded an attempt sends it.

use std::time::Duration;

use accounts::profile::SealedProfile;
pub use domain::Reading;
use domain::{
    EsimChangeState, Iccid, OrderId, PartnerId, TopupId,
    esim_change::{EsimChange, EsimChangeEvent, GiveBackCause},
    esim_use::EsimPlan,
};
use pg::{Error, Result, Transaction, TransactionEnd, age, count, seconds, transaction, unsigned};
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use time::{OffsetDateTime, serde::rfc3339};
use uuid::Uuid;

use crate::work::{self, DueWork, LookResult, WorkKind, WorkLook};

/// Why a question about the use has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum UsageFailure {
    /// The provider does not show it.
    NotAvailable,
    /// The provider could not be asked, or its response was not understood.
    Failed,
}

/// Why a change to a delivered eSIM was refused or parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum EsimChangeReason {
    /// The provider takes no eSIM back, extends none or suspends none.
    NotAvailable,
    /// The eSIM is installed, so it cannot be given back.
    Installed,
    /// The provider does not take this eSIM back, or does not add this to it.
    Refused,
    /// The provider could not be asked for too long; nothing was sent, or certainly without effect.
    Unreachable,
    /// The outcome is unknown.
    Unknown,
    /// An operator has found out at the provider what became of it.
    Resolved,
    /// What is stored about the eSIM cannot be read, so the provider cannot be asked.
    Unreadable,
    /// People at the provider have decided against the claim.
    Denied,
}

impl EsimChangeReason {
    /// The reason of a give-back in words.
    pub fn of_give_back(self) -> &'static str {
        match self {
            Self::NotAvailable => "the provider takes no eSIM back",
            Self::Installed => "the eSIM is installed",
            Self::Refused => "the provider does not take this eSIM back",
            Self::Denied => "the provider has decided against the claim",
            Self::Unknown => "the provider did not say whether it has the eSIM back",
            Self::Resolved => "an operator has found out that the provider does not have it back",
            Self::Unreachable | Self::Unreadable => self.of_both(),
        }
    }

    /// The reason of an extension in words.
    pub fn of_extension(self) -> &'static str {
        match self {
            Self::NotAvailable => "the provider extends no eSIM",
            Self::Installed | Self::Refused | Self::Denied => {
                "the provider does not add this to the eSIM"
            }
            Self::Unknown => "the provider did not say whether it has extended the eSIM",
            Self::Resolved => "an operator has found out at the provider what became of it",
            Self::Unreachable | Self::Unreadable => self.of_both(),
        }
    }

    fn of_both(self) -> &'static str {
        match self {
            Self::Unreachable => "the provider could not be asked for too long",
            _ => "what is stored about the eSIM cannot be read, so the provider cannot be asked",
        }
    }
}

/// The delivered eSIM that a claimed row of `work` is about.
#[derive(Clone, Debug)]
pub struct ClaimedEsim {
    /// The row of `work`.
    pub id: Uuid,
    pub topup_id: TopupId,
    pub order_id: OrderId,
    pub partner_id: PartnerId,
    /// The provider's id of the unit.
    pub unit_id: String,
    pub iccid: Iccid,
}

/// A request that needs work now.
#[derive(Clone, Debug)]
pub struct ClaimedRequest {
    pub esim: ClaimedEsim,
    /// Whether a partner, a report of the provider or a poll waits for the data use, which a call
    /// about a change answers, too.
    pub usage_asked: bool,
    /// Whether a partner waits for what can be added to the eSIM.
    pub offers_asked: bool,
    /// The change that the row is about, or the claim of the eSIM, which is looked at with its use;
    /// `None` if there is neither.
    pub change: Option<(AskedChange, OpenChange)>,
    /// Why the eSIM is given back.
    pub cause: GiveBackCause,
}

/// A change whose row is that of the eSIM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedChange {
    GiveBack,
    /// The eSIM is suspended with `true`, and resumed with `false`.
    Suspension(bool),
}

/// What the table calls a suspension that was carried out.
const SUSPENDED: &str = "done";

impl AskedChange {
    /// The name of a state in the table.
    pub fn state_name(self, state: EsimChangeState) -> &'static str {
        match (self, state) {
            (Self::Suspension(_), EsimChangeState::Done) => SUSPENDED,
            (Self::GiveBack | Self::Suspension(_), state) => state.as_str(),
        }
    }

    /// The state of this name.
    pub fn state_named(self, name: &str) -> Result<EsimChangeState> {
        match (self, name) {
            (Self::Suspension(_), SUSPENDED) => Ok(EsimChangeState::Done),
            (Self::Suspension(_), "returned") => {
                Err(Error::Unreadable("the state of a suspension".into()))
            }
            (Self::GiveBack | Self::Suspension(_), name) => Ok(name.parse()?),
        }
    }
}

/// A change to a delivered eSIM that is not over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenChange {
    pub now: EsimChange,
    /// The time since the partner asked for it.
    pub asked_age: Duration,
    /// The time since its last attempt was recorded.
    pub attempt_age: Duration,
}

/// Looks for the due requests of a provider, those of each partner in turn.
pub async fn due(
    connection: &mut PgConnection,
    provider: &str,
    look: &WorkLook,
) -> Result<LookResult<DueWork<Uuid>>> {
    work::due(connection, &WorkKind::REQUESTS, provider, look).await
}

/// How requests are claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestClaim {
    /// None while the breaker of the provider is open.
    Due,
    /// Even then; see [`crate::providers::probe`].
    Probe,
}

/// Claims those of the rows of `work` that are due, and leases them. While the breaker of the
/// provider is not closed it returns nothing, except for a probe. A request that cannot be read
/// is [set aside](set_aside), so that it does not keep the others from being answered.
///
/// `free` locks the rows of `work`, and `known` what is asked, in the form that is committed now. A
/// request that somebody is just changing is left for the next look, because waiting for it here
/// could be a deadlock. `done` deletes the rows whose request has ended, for example because the
/// claim of its give-back has answered the question about the use, too. A request that names
/// another provider or partner than those of its eSIM cannot be read: this provider may know
/// another eSIM by the same number.
pub async fn claim(
    connection: &mut PgConnection,
    provider: &str,
    rows: &[Uuid],
    lease: Duration,
    claim: RequestClaim,
) -> Result<Vec<ClaimedRequest>> {
    let query = sqlx::query_as!(
        Row,
        r#"WITH free AS MATERIALIZED (
               SELECT id, kind, lane AS topup_id FROM work
               WHERE id = ANY ($2) AND kind = ANY ('{usage,give_back,suspend}') AND provider = $1 AND at <= now()
                 AND ($4 OR NOT EXISTS (SELECT FROM providers WHERE name = $1 AND open_until IS NOT NULL))
               ORDER BY id FOR UPDATE SKIP LOCKED
           ), known AS MATERIALIZED (
               SELECT free.id, free.kind, r.* FROM free JOIN esim_requests r ON r.topup_id = free.topup_id
               WHERE r.topup_id = ANY (ARRAY (SELECT topup_id FROM free))
               FOR UPDATE OF r SKIP LOCKED
           ), open AS MATERIALIZED (
               SELECT * FROM known
               WHERE CASE kind WHEN 'usage' THEN coalesce(usage_asked_at, reported_at, polled_at, offers_asked_at) IS NOT NULL
                               WHEN 'suspend' THEN suspension IS NOT NULL AND suspension NOT IN ('done', 'refused', 'parked')
                               ELSE give_back IS NOT NULL AND give_back NOT IN ('returned', 'refused', 'parked', 'claimed') END
           ), leased AS (
               UPDATE work SET at = now() + make_interval(secs => $3) WHERE id = ANY (ARRAY (SELECT id FROM open))
           ), done AS (
               DELETE FROM work
               WHERE id = ANY (ARRAY (SELECT id FROM known WHERE id <> ALL (ARRAY (SELECT id FROM open))
                                      UNION ALL
                                      SELECT id FROM free
                                      WHERE (SELECT true FROM esim_requests r WHERE r.topup_id = free.topup_id) IS NULL))
           )
           SELECT l.id AS "id!", l.kind AS "kind!", l.topup_id AS "topup_id!", l.partner_id AS "partner_id!",
                  CASE WHEN p.partner_id = l.partner_id THEN p.order_id END AS "order_id?",
                  CASE WHEN e.provider = $1 THEN e.provider_unit_id END AS "provider_unit_id?",
                  CASE WHEN e.provider = $1 THEN e.iccid END AS "iccid?",
                  coalesce(l.usage_asked_at, l.reported_at, l.polled_at) IS NOT NULL AS "usage_asked!",
                  l.offers_asked_at IS NOT NULL AS "offers_asked!",
                  l.give_back_cause AS "cause?", l.suspend AS "suspend?", c.state AS "state_name?", c.attempt AS "attempt!", c.not_done_at IS NOT NULL AS "not_done!",
                  coalesce(extract(epoch FROM now() - c.asked_at), 0)::float8 AS "asked_age!",
                  coalesce(extract(epoch FROM now() - c.attempted_at), 0)::float8 AS "attempt_age!"
           FROM open l
           CROSS JOIN LATERAL (
               SELECT l.give_back AS state, l.attempt, l.not_returned_at AS not_done_at, l.give_back_asked_at AS asked_at,
                      l.attempted_at
               WHERE l.kind <> 'suspend'
               UNION ALL
               SELECT l.suspension, l.suspension_attempt, l.suspension_not_done_at, l.suspension_asked_at,
                      l.suspension_attempted_at
               WHERE l.kind = 'suspend'
           ) c
           LEFT JOIN esims e ON e.topup_id = l.topup_id
           LEFT JOIN topups t ON t.topup_id = l.topup_id
           LEFT JOIN placements p ON p.placement_id = t.placement_id"#,
        provider,
        rows,
        seconds(lease),
        claim == RequestClaim::Probe,
    );
    let mut claimed = Vec::new();
    for row in query.fetch_all(&mut *connection).await? {
        let topup_id = row.topup_id.clone();
        match read(row) {
            Ok(one) => claimed.push(one),
            // The others must not wait for it. Its lease ends, and the next claim tries again.
            Err(error) => {
                if let Err(error) = set_aside(connection, &topup_id, &error.to_string()).await {
                    tracing::warn!(topup.id = topup_id, %error, "a request cannot be set aside");
                }
            }
        }
    }
    Ok(claimed)
}

/// A row of [`claim`].
struct Row {
    id: Uuid,
    kind: String,
    topup_id: String,
    partner_id: Uuid,
    order_id: Option<Uuid>,
    provider_unit_id: Option<String>,
    iccid: Option<String>,
    usage_asked: bool,
    offers_asked: bool,
    cause: Option<String>,
    suspend: Option<bool>,
    state_name: Option<String>,
    attempt: i32,
    not_done: bool,
    asked_age: f64,
    attempt_age: f64,
}

fn read(row: Row) -> Result<ClaimedRequest> {
    let missing = || Error::Unreadable("its eSIM, of which a part is missing".into());
    let asked = match row.kind.as_str() {
        "give_back" => Some(AskedChange::GiveBack),
        "suspend" => Some(AskedChange::Suspension(row.suspend.ok_or_else(missing)?)),
        // Whatever asks for the use asks for the verdict on a claim, too.
        _ if row.state_name.as_deref() == Some(EsimChangeState::Claimed.as_str()) => {
            Some(AskedChange::GiveBack)
        }
        _ => None,
    };
    let change = match asked.zip(row.state_name) {
        Some((asked, name)) => {
            let now = EsimChange {
                state: asked.state_named(&name)?,
                attempt: unsigned(row.attempt),
                not_done: row.not_done,
            };
            let open = OpenChange {
                now,
                asked_age: age(row.asked_age),
                attempt_age: age(row.attempt_age),
            };
            Some((asked, open))
        }
        None => None,
    };
    Ok(ClaimedRequest {
        esim: ClaimedEsim {
            id: row.id,
            topup_id: row.topup_id.try_into()?,
            order_id: row.order_id.ok_or_else(missing)?.into(),
            partner_id: row.partner_id.into(),
            unit_id: row.provider_unit_id.ok_or_else(missing)?,
            iccid: Iccid::parse(&row.iccid.ok_or_else(missing)?)
                .map_err(|_| Error::Unreadable("the ICCID of its eSIM".into()))?,
        },
        usage_asked: row.usage_asked,
        offers_asked: row.offers_asked,
        change,
        // A word of a newer version is none that this one can tell a provider.
        cause: row
            .cause
            .and_then(|name| name.parse().ok())
            .unwrap_or_default(),
    })
}

/// Ends the work on a row that cannot be read, for example because it is damaged or a newer version
/// has written it. A question about the use has failed. A give-back of which nothing was sent is
/// refused, because that is certain; any other one that is open is parked for an operator.
pub async fn set_aside(connection: &mut PgConnection, topup_id: &str, why: &str) -> Result<()> {
    tracing::error!(
        topup.id = topup_id,
        why,
        "a request about a delivered eSIM is set aside, because its row cannot be read"
    );
    let name: &str = EsimChangeReason::Unreadable.into();
    let statement = sqlx::query!(
        "WITH done AS (
             DELETE FROM work
             WHERE id IN (derived_id('usage', $1), derived_id('report', $1), derived_id('offers', $1), derived_id('give_back', $1),
                          derived_id('suspend', $1))
         )
         UPDATE esim_requests
         SET usage_failure = CASE WHEN usage_asked_at IS NOT NULL THEN 'failed' ELSE usage_failure END,
             usage_failed_at = CASE WHEN usage_asked_at IS NOT NULL THEN now() ELSE usage_failed_at END,
             usage_asked_at = NULL, reported_at = NULL, poll_at = NULL, polled_at = NULL, offers_asked_at = NULL,
             give_back = CASE WHEN give_back IN ('returned', 'refused') THEN give_back
                              WHEN give_back = 'asked' THEN 'refused'
                              WHEN give_back IS NOT NULL THEN 'parked' END,
             reason = CASE WHEN give_back NOT IN ('returned', 'refused', 'parked') THEN $2 ELSE reason END,
             message = CASE WHEN give_back NOT IN ('returned', 'refused', 'parked') THEN $3 ELSE message END,
             ended_at = CASE WHEN give_back NOT IN ('returned', 'refused', 'parked') THEN now() ELSE ended_at END,
             suspension = CASE WHEN suspension IN ('done', 'refused') THEN suspension
                               WHEN suspension = 'asked' THEN 'refused'
                               WHEN suspension IS NOT NULL THEN 'parked' END,
             suspension_reason = CASE WHEN suspension NOT IN ('done', 'refused', 'parked') THEN $2 ELSE suspension_reason END,
             suspension_message = CASE WHEN suspension NOT IN ('done', 'refused', 'parked') THEN $3 ELSE suspension_message END,
             suspension_ended_at = CASE WHEN suspension NOT IN ('done', 'refused', 'parked') THEN now() ELSE suspension_ended_at END
         WHERE topup_id = $1",
        topup_id,
        name,
        why,
    );
    statement.execute(connection).await?;
    Ok(())
}

/// What an event about the use of an eSIM says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UseContent {
    /// The threshold that is reached: of `esim.low_data` the percentage of the data that is used,
    /// and of `esim.expiring` the days that are left.
    pub threshold: Option<u8>,
    /// When the provider said this.
    #[serde(with = "rfc3339")]
    pub read_at: OffsetDateTime,
    #[serde(flatten)]
    pub reading: Reading,
}

/// Records what the provider says of a unit, and tells its partner what is news in it. It answers
/// the question about its use, and confirms what the provider has reported. `low_data` are the
/// percentages of used data that are told.
pub async fn record_reading(
    connection: &mut PgConnection,
    topup_id: &TopupId,
    reading: &Reading,
    low_data: &[u8],
) -> Result<()> {
    transaction!(connection, "esim_requests::record_reading", |transaction| {
        let query = sqlx::query!(
            r#"SELECT reached AS "reached!", age AS "age!", plan AS "plan!", most_data, latest_end, now() AS "now!"
               FROM begin_reading($1)"#,
            topup_id.as_str(),
        );
        let Some(before) = query.fetch_optional(&mut **transaction).await? else {
            return Ok(TransactionEnd::Rollback(()));
        };
        let now = before.now;
        let plan = EsimPlan {
            number: unsigned(before.plan),
            most_data: before.most_data.and_then(|bytes| u64::try_from(bytes).ok()),
            latest_end: before.latest_end,
        }
        .after(reading);
        let news = reading.news(&plan, &before.reached, low_data, now);
        let next_look = reading.next_look(time::Duration::seconds_f64(before.age), now);
        let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        let statement = sqlx::query!(
            "WITH answered AS (
                 DELETE FROM work WHERE id IN (derived_id('usage', $1), derived_id('report', $1))
             )
             UPDATE esim_requests
             SET installed = $2, data_used = $3, data_total = $4, ends_at = $5, as_of = $6, read_at = now(),
                 usage_asked_at = NULL, usage_failure = NULL, usage_failed_at = NULL, reported_at = NULL, polled_at = NULL,
                 reached = reached || $7::text[], poll_at = CASE WHEN poll_at IS NOT NULL THEN least(
                     coalesce($8::timestamptz, (
                         -- The provider may not count an extension of the last day yet.
                         SELECT now() + interval '1 hour' FROM extensions x
                         WHERE x.topup_id = $1 AND x.state = 'added' AND x.ended_at > now() - interval '1 day' LIMIT 1)),
                     -- Some claims are decided by a program within minutes, others by people within weeks.
                     CASE WHEN give_back = 'claimed'
                          THEN now() + least(greatest(now() - attempted_at, interval '1 minute'), interval '6 hours') END) END,
                 plan = $9, most_data = $10, latest_end = $11,
                 downloaded_at = CASE WHEN $12 THEN coalesce(downloaded_at, now()) END
             WHERE topup_id = $1",
            topup_id.as_str(),
            reading.installed,
            reading.data_used.map(bytes),
            reading.data_total.map(bytes),
            reading.ends_at,
            reading.as_of,
            &news.reached,
            next_look,
            pg::signed(plan.number),
            plan.most_data.map(bytes),
            plan.latest_end,
            reading.only_downloaded,
        );
        statement.execute(&mut **transaction).await?;
        for milestone in news.told {
            let says = UseContent {
                threshold: milestone.threshold,
                read_at: now,
                reading: *reading,
            };
            let says = serde_json::to_string(&says)
                .map_err(|error| Error::Unreadable(error.to_string()))?;
            let statement = sqlx::query!(
                "SELECT tell_of_use($1, $2, $3, $4::text::jsonb)",
                topup_id.as_str(),
                milestone.kind.as_str(),
                milestone.detail(&plan),
                says,
            );
            statement.execute(&mut **transaction).await?;
        }
        Ok(TransactionEnd::Commit(()))
    })
}

/// Makes questions about the use of eSIMs due whose partners want to hear of it, at most so many in
/// an hour, of all processes together. Returns how many.
pub async fn poll(connection: &mut PgConnection, provider: &str, per_hour: u32) -> Result<u64> {
    let query = sqlx::query_scalar!("SELECT poll_esims($1, $2)", provider, pg::signed(per_hour),);
    Ok(query.fetch_one(connection).await?.map_or(0, count))
}

/// Records what can be added to an eSIM, as JSON, or, with `None`, that the provider does not say
/// it, and answers the question.
pub async fn record_offers(
    connection: &mut PgConnection,
    topup_id: &TopupId,
    offers: Option<&str>,
) -> Result<()> {
    let statement = sqlx::query!(
        "WITH answered AS (
             DELETE FROM work WHERE id = derived_id('offers', $1)
         )
         UPDATE esim_requests
         SET offers_asked_at = NULL, offers = coalesce($2::text::jsonb, offers),
             offers_at = CASE WHEN $2 IS NULL THEN offers_at ELSE now() END
         WHERE topup_id = $1",
        topup_id.as_str(),
        offers,
    );
    statement.execute(connection).await?;
    Ok(())
}

/// For how long a report is tried to be confirmed.
const CONFIRMED_WITHIN: Duration = Duration::from_hours(6);

/// Records that the question about the use of a unit has no answer. Whoever asked hears it. A
/// report that waits for an answer is tried again when it is twice as old, or in 10 s at the
/// earliest, for six hours, unless the provider does not show the use at all. A poll is not,
/// because the next one comes.
pub async fn record_failure(
    connection: &mut PgConnection,
    topup_id: &TopupId,
    failure: UsageFailure,
) -> Result<()> {
    let name: &str = failure.into();
    let within = match failure {
        UsageFailure::NotAvailable => Duration::ZERO,
        UsageFailure::Failed => CONFIRMED_WITHIN,
    };
    let statement = sqlx::query!(
        "WITH report AS MATERIALIZED (
             SELECT now() - reported_at AS age FROM esim_requests
             WHERE topup_id = $1 AND reported_at > now() - make_interval(secs => $3)
         ), again AS (
             UPDATE work SET at = now() + greatest(interval '10 seconds', report.age) FROM report
             WHERE id = derived_id('report', $1)
         ), answered AS (
             DELETE FROM work
             WHERE id = derived_id('usage', $1)
                OR (id = derived_id('report', $1) AND NOT EXISTS (SELECT FROM report))
         )
         UPDATE esim_requests
         SET usage_failure = CASE WHEN usage_asked_at IS NOT NULL THEN $2 ELSE usage_failure END,
             usage_failed_at = CASE WHEN usage_asked_at IS NOT NULL THEN now() ELSE usage_failed_at END,
             usage_asked_at = NULL, polled_at = NULL,
             reported_at = CASE WHEN EXISTS (SELECT FROM report) THEN reported_at END
         WHERE topup_id = $1",
        topup_id.as_str(),
        name,
        seconds(within),
    );
    statement.execute(connection).await?;
    Ok(())
}

/// Records the next attempt of a change, and returns its number. `None` means that the change has
/// moved since it was read, so this caller must not send anything.
pub async fn begin(
    connection: &mut PgConnection,
    topup_id: &TopupId,
    asked: AskedChange,
    read: EsimChange,
) -> Result<Option<u32>> {
    let Ok(begun) = read.after(EsimChangeEvent::Begin) else {
        return Ok(None);
    };
    let from = asked.state_name(read.state);
    let to = asked.state_name(begun.state);
    let done = match asked {
        AskedChange::GiveBack => {
            let statement = sqlx::query!(
                "UPDATE esim_requests
                 SET give_back = $2, attempt = $3, attempted_at = now(), not_returned_at = NULL
                 WHERE topup_id = $1 AND give_back = $4 AND attempt = $5",
                topup_id.as_str(),
                to,
                pg::signed(begun.attempt),
                from,
                pg::signed(read.attempt),
            );
            statement.execute(connection).await?
        }
        AskedChange::Suspension(suspend) => {
            let statement = sqlx::query!(
                "UPDATE esim_requests
                 SET suspension = $2, suspension_attempt = $3, suspension_attempted_at = now(), suspension_not_done_at = NULL
                 WHERE topup_id = $1 AND suspension = $4 AND suspension_attempt = $5 AND suspend = $6",
                topup_id.as_str(),
                to,
                pg::signed(begun.attempt),
                from,
                pg::signed(read.attempt),
                suspend,
            );
            statement.execute(connection).await?
        }
    };
    Ok((done.rows_affected() > 0).then_some(begun.attempt))
}

/// What is recorded of a change to a delivered eSIM.
#[derive(Clone, Debug, Default)]
pub struct EsimChangeSettlement {
    /// `None` if nothing is known, so that only the time of the next look changes.
    pub event: Option<EsimChangeEvent>,
    /// Why it is refused or parked, and what the provider said: one short line.
    pub reason: Option<(EsimChangeReason, Option<String>)>,
    /// The provider's own id of an extension or a claim.
    pub reference: Option<String>,
    /// What the provider says of a claim that is not decided: one short line.
    pub claim: Option<String>,
    /// The profile of another eSIM, which the provider has sold instead of an extension.
    pub profile: Option<(Iccid, SealedProfile)>,
    /// When the change is looked at next if it is not over.
    pub again_in: Duration,
}

/// Moves a change by an event, and sets the time of its next look. Returns its state now, and
/// whether the event has changed it. What is told of a suspension that another wish has followed
/// changes nothing.
pub async fn settle(
    connection: &mut PgConnection,
    topup_id: &TopupId,
    asked: AskedChange,
    settlement: &EsimChangeSettlement,
) -> Result<(Option<EsimChangeState>, bool)> {
    transaction!(connection, "esim_requests::settle", |transaction| {
        let Some(before) = lock_change(transaction, topup_id, asked).await? else {
            return Ok(TransactionEnd::Rollback((None, false)));
        };
        let after = settlement.event.and_then(|event| before.after(event).ok());
        let now = after.unwrap_or(before);
        let state = asked.state_name(now.state);
        let ended = now.state.is_over();
        let has_ended = after.is_some() && ended;
        let is_claimed = now.state == EsimChangeState::Claimed;
        let reason = settlement.reason.as_ref();
        let name = reason.map(|(reason, _)| <&'static str>::from(*reason));
        let message = reason.and_then(|(_, message)| message.as_deref());
        match asked {
            AskedChange::GiveBack => {
                let statement = sqlx::query!(
                    "UPDATE esim_requests
                     SET give_back = $2,
                         not_returned_at = CASE WHEN $3 THEN coalesce(not_returned_at, now()) END,
                         reason = CASE WHEN $4 THEN $5 ELSE reason END,
                         message = CASE WHEN $4 THEN $6 WHEN $8 THEN coalesce($9, message) ELSE message END,
                         ended_at = CASE WHEN $7 THEN coalesce(ended_at, now()) END,
                         claim = coalesce($10, claim),
                         poll_at = CASE WHEN $8 THEN coalesce(poll_at, now() + interval '1 minute') ELSE poll_at END
                     WHERE topup_id = $1",
                    topup_id.as_str(),
                    state,
                    now.not_done,
                    has_ended,
                    name,
                    message,
                    ended,
                    is_claimed,
                    settlement.claim.as_deref().filter(|_| is_claimed),
                    settlement.reference.as_deref().filter(|_| is_claimed),
                );
                statement.execute(&mut **transaction).await?;
            }
            AskedChange::Suspension(_) => {
                let statement = sqlx::query!(
                    "UPDATE esim_requests
                     SET suspension = $2,
                         suspension_not_done_at = CASE WHEN $3 THEN coalesce(suspension_not_done_at, now()) END,
                         suspension_reason = CASE WHEN $4 THEN $5 ELSE suspension_reason END,
                         suspension_message = CASE WHEN $4 THEN $6 ELSE suspension_message END,
                         suspension_ended_at = CASE WHEN $7 THEN coalesce(suspension_ended_at, now()) END
                     WHERE topup_id = $1",
                    topup_id.as_str(),
                    state,
                    now.not_done,
                    has_ended,
                    name,
                    message,
                    ended,
                );
                statement.execute(&mut **transaction).await?;
            }
        }
        let is_answered = now.state.is_answered();
        let again_in = (!is_answered).then_some(settlement.again_in);
        look_again(transaction, topup_id, asked, again_in).await?;
        if asked == AskedChange::GiveBack && after.is_some() && now.state == EsimChangeState::Done {
            mark_returned(transaction, topup_id).await?;
        }
        Ok(TransactionEnd::Commit((Some(now.state), after.is_some())))
    })
}

/// Reads a change and locks its row.
async fn lock_change(
    transaction: &mut Transaction<'_>,
    topup_id: &TopupId,
    asked: AskedChange,
) -> Result<Option<EsimChange>> {
    let change = |name: &str, attempt: i32, not_done: bool| -> Result<EsimChange> {
        Ok(EsimChange {
            state: asked.state_named(name)?,
            attempt: unsigned(attempt),
            not_done,
        })
    };
    match asked {
        AskedChange::GiveBack => {
            let query = sqlx::query!(
                r#"SELECT give_back AS "state!", attempt, not_returned_at IS NOT NULL AS "not_done!"
                   FROM esim_requests WHERE topup_id = $1 AND give_back IS NOT NULL FOR UPDATE"#,
                topup_id.as_str(),
            );
            let row = query.fetch_optional(&mut **transaction).await?;
            row.map(|row| change(&row.state, row.attempt, row.not_done))
                .transpose()
        }
        AskedChange::Suspension(suspend) => {
            let query = sqlx::query!(
                r#"SELECT suspension AS "state!", suspension_attempt AS attempt,
                          suspension_not_done_at IS NOT NULL AS "not_done!"
                   FROM esim_requests WHERE topup_id = $1 AND suspension IS NOT NULL AND suspend = $2 FOR UPDATE"#,
                topup_id.as_str(),
                suspend,
            );
            let row = query.fetch_optional(&mut **transaction).await?;
            row.map(|row| change(&row.state, row.attempt, row.not_done))
                .transpose()
        }
    }
}

/// Sets when a change is looked at next; `None` if it is over, or a claim, at which the polls look.
async fn look_again(
    transaction: &mut Transaction<'_>,
    topup_id: &TopupId,
    asked: AskedChange,
    again_in: Option<Duration>,
) -> Result<()> {
    let kind = match asked {
        AskedChange::GiveBack => WorkKind::GiveBack,
        AskedChange::Suspension(_) => WorkKind::Suspend,
    };
    let statement = sqlx::query!(
        "WITH over AS (
             DELETE FROM work WHERE id = derived_id($3, $1) AND $2::float8 IS NULL
         )
         INSERT INTO work (id, kind, provider, lane, partner_id, at)
         SELECT derived_id($3, topup_id), $3, provider, topup_id, partner_id, now() + make_interval(secs => $2)
         FROM esim_requests WHERE topup_id = $1 AND $2 IS NOT NULL
         ON CONFLICT (id) DO UPDATE SET at = excluded.at",
        topup_id.as_str(),
        again_in.map(seconds),
        kind.as_str(),
    );
    statement.execute(&mut **transaction).await?;
    Ok(())
}

/// Marks a unit as given back and erases its profile, which nobody can install any more. So its
/// webhook is neither sent nor sent again. Its give-back has ended as returned in this transaction.
async fn mark_returned(transaction: &mut Transaction<'_>, topup_id: &TopupId) -> Result<()> {
    let marking = sqlx::query_scalar!("SELECT mark_returned($1)", topup_id.as_str());
    marking.fetch_one(&mut **transaction).await?;
    Ok(())
}
