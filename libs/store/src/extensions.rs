//! Extensions of delivered eSIMs, for the provisioner: it claims the open ones of its provider,
//! which are rows of `work` with the kind `extend`, and records what becomes of them. Ingress
//! stores them (`desk::self_service::extensions`), and operators resolve parked ones.
//!
//! Guarantees: an extension moves by [`domain::esim_change`] only, because each statement reads the
//! row under its lock and asks that function for the next state. An attempt is recorded together
//! with the baseline of the eSIM ([`begin`]) before the provider is called, so whoever looks for
//! its effect compares with what was true just before it. The partner is told of the outcome by
//! triggers, in the transaction that records it.
//!
//! A lease saves double effort and guarantees nothing: two processes may look for an extension, but
//! only the one that recorded an attempt sends it.

use std::time::Duration;

use domain::{
    EsimChangeState, ExtensionId, Iccid,
    esim_change::{EsimChange, EsimChangeEvent},
    extension::Baseline,
};
use pg::{Error, Result, Transaction, TransactionEnd, age, seconds, transaction, unsigned};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::esim_requests::{
    ClaimedEsim, EsimChangeReason, EsimChangeSettlement, OpenChange, RequestClaim,
};

/// The catalogue counts data in MB, of which 1024 are a GB.
const MEGABYTE: u64 = 1024 * 1024;

/// The name of a state in the table. It is that of a give-back, but for the good end.
pub fn state_name(state: EsimChangeState) -> &'static str {
    match state {
        EsimChangeState::Done => "added",
        other => other.as_str(),
    }
}

/// The state of this name.
pub fn state_named(name: &str) -> Result<EsimChangeState> {
    match name {
        "added" => Ok(EsimChangeState::Done),
        "returned" => Err(Error::Unreadable("the state of an extension".into())),
        other => Ok(other.parse()?),
    }
}

/// An extension that needs work now.
#[derive(Clone, Debug)]
pub struct ClaimedExtension {
    pub extension_id: ExtensionId,
    pub esim: ClaimedEsim,
    /// The package that is added.
    pub provider_option_id: String,
    /// How much data it has by our catalogue, in bytes, and how many days.
    pub adds_data: Option<u64>,
    pub adds_days: Option<u32>,
    pub open: OpenChange,
    /// What was true before the last attempt.
    pub baseline: Baseline,
    /// Another extension of the eSIM was added within the last hours, so a provider that counts
    /// late may show that one only now.
    pub follows_another: bool,
}

/// Claims those of the rows of `work` that are due, and leases them, as
/// [`crate::esim_requests::claim`] does. One that cannot be read is [set aside](set_aside).
pub async fn claim(
    connection: &mut PgConnection,
    provider: &str,
    rows: &[Uuid],
    lease: Duration,
    claim: RequestClaim,
) -> Result<Vec<ClaimedExtension>> {
    let query = sqlx::query_as!(
        Row,
        r#"WITH free AS MATERIALIZED (
               SELECT id, lane AS topup_id FROM work
               WHERE id = ANY ($2) AND kind = 'extend' AND provider = $1 AND at <= now()
                 AND ($4 OR NOT EXISTS (SELECT FROM providers WHERE name = $1 AND open_until IS NOT NULL))
               ORDER BY id FOR UPDATE SKIP LOCKED
           ), known AS MATERIALIZED (
               SELECT free.id, x.* FROM free JOIN extensions x ON x.topup_id = free.topup_id
               WHERE x.topup_id = ANY (ARRAY (SELECT topup_id FROM free)) AND x.state NOT IN ('added', 'refused')
               FOR UPDATE OF x SKIP LOCKED
           ), open AS MATERIALIZED (
               SELECT * FROM known WHERE state <> 'parked'
           ), leased AS (
               UPDATE work SET at = now() + make_interval(secs => $3) WHERE id = ANY (ARRAY (SELECT id FROM open))
           ), done AS (
               DELETE FROM work
               WHERE id = ANY (ARRAY (SELECT id FROM known WHERE state = 'parked'
                                      UNION ALL
                                      SELECT id FROM free
                                      WHERE (SELECT true FROM extensions x
                                             WHERE x.topup_id = free.topup_id AND x.state NOT IN ('added', 'refused') LIMIT 1)
                                            IS NULL))
           )
           SELECT l.id AS "id!", l.extension_id AS "extension_id!", l.topup_id AS "topup_id!", l.partner_id AS "partner_id!",
                  CASE WHEN p.partner_id = l.partner_id THEN p.order_id END AS "order_id?",
                  CASE WHEN e.provider = $1 AND l.provider = $1 THEN e.provider_unit_id END AS "provider_unit_id?",
                  CASE WHEN e.provider = $1 AND l.provider = $1 THEN e.iccid END AS "iccid?",
                  l.provider_option_id AS "provider_option_id!", l.state AS "state_name!", l.attempt AS "attempt!",
                  l.not_added_at IS NOT NULL AS "not_added!", l.baseline::text AS "baseline?",
                  (SELECT data_mb FROM options o WHERE o.option_id = l.option_id) AS "data_mb?",
                  (SELECT days FROM options o WHERE o.option_id = l.option_id) AS "days?",
                  EXISTS (SELECT FROM extensions y
                          WHERE y.topup_id = l.topup_id AND y.state = 'added' AND y.ended_at > now() - interval '6 hours')
                      AS "follows_another!",
                  extract(epoch FROM now() - l.asked_at)::float8 AS "asked_age!",
                  coalesce(extract(epoch FROM now() - l.attempted_at), 0)::float8 AS "attempt_age!"
           FROM open l
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
        let id = ExtensionId::from(row.extension_id);
        match read(row) {
            Ok(one) => claimed.push(one),
            // The others must not wait for it. Its lease ends, and the next claim tries again.
            Err(error) => {
                if let Err(error) = set_aside(connection, id, &error.to_string()).await {
                    tracing::warn!(extension.id = %id, %error, "an extension cannot be set aside");
                }
            }
        }
    }
    Ok(claimed)
}

/// A row of [`claim`].
struct Row {
    id: Uuid,
    extension_id: Uuid,
    topup_id: String,
    partner_id: Uuid,
    order_id: Option<Uuid>,
    provider_unit_id: Option<String>,
    iccid: Option<String>,
    provider_option_id: String,
    state_name: String,
    attempt: i32,
    not_added: bool,
    baseline: Option<String>,
    data_mb: Option<i32>,
    days: Option<i32>,
    follows_another: bool,
    asked_age: f64,
    attempt_age: f64,
}

fn read(row: Row) -> Result<ClaimedExtension> {
    let missing = || Error::Unreadable("its eSIM, of which a part is missing".into());
    let baseline = match &row.baseline {
        Some(text) => serde_json::from_str(text)
            .map_err(|error| Error::Unreadable(format!("its baseline: {error}")))?,
        None => Baseline::default(),
    };
    Ok(ClaimedExtension {
        extension_id: row.extension_id.into(),
        esim: ClaimedEsim {
            id: row.id,
            topup_id: row.topup_id.try_into()?,
            order_id: row.order_id.ok_or_else(missing)?.into(),
            partner_id: row.partner_id.into(),
            unit_id: row.provider_unit_id.ok_or_else(missing)?,
            iccid: Iccid::parse(&row.iccid.ok_or_else(missing)?)
                .map_err(|_| Error::Unreadable("the ICCID of its eSIM".into()))?,
        },
        provider_option_id: row.provider_option_id,
        adds_data: row
            .data_mb
            .and_then(|megabytes| u64::try_from(megabytes).ok())
            .map(|megabytes| megabytes * MEGABYTE),
        adds_days: row.days.and_then(|days| u32::try_from(days).ok()),
        open: OpenChange {
            now: EsimChange {
                state: state_named(&row.state_name)?,
                attempt: unsigned(row.attempt),
                not_done: row.not_added,
            },
            asked_age: age(row.asked_age),
            attempt_age: age(row.attempt_age),
        },
        baseline,
        follows_another: row.follows_another,
    })
}

/// Ends the work on a row that cannot be read, for example because it is damaged or a newer version
/// has written it. An extension of which nothing was sent is refused, because that is certain; any
/// other one is parked for an operator.
pub async fn set_aside(connection: &mut PgConnection, id: ExtensionId, why: &str) -> Result<()> {
    tracing::error!(
        extension.id = %id,
        why,
        "an extension of a delivered eSIM is set aside, because its row cannot be read"
    );
    let name: &str = EsimChangeReason::Unreadable.into();
    let statement = sqlx::query!(
        "WITH ended AS (
             UPDATE extensions
             SET state = CASE WHEN state = 'asked' THEN 'refused' ELSE 'parked' END, reason = $2, message = $3, ended_at = now()
             WHERE extension_id = $1 AND state NOT IN ('added', 'refused', 'parked')
             RETURNING topup_id
         )
         DELETE FROM work WHERE id = ANY (ARRAY (SELECT derived_id('extend', topup_id) FROM ended))",
        id.uuid(),
        name,
        why,
    );
    statement.execute(connection).await?;
    Ok(())
}

/// Records the next attempt of an extension with what is true of the eSIM before it, and returns
/// its number. `None` means that the extension has changed since it was read, so this caller must
/// not send anything.
pub async fn begin(
    connection: &mut PgConnection,
    id: ExtensionId,
    read: EsimChange,
    baseline: &Baseline,
) -> Result<Option<u32>> {
    let Ok(begun) = read.after(EsimChangeEvent::Begin) else {
        return Ok(None);
    };
    let baseline =
        serde_json::to_string(baseline).map_err(|error| Error::Unreadable(error.to_string()))?;
    let statement = sqlx::query!(
        "UPDATE extensions
         SET state = $2, attempt = $3, attempted_at = now(), not_added_at = NULL, baseline = $6::text::jsonb
         WHERE extension_id = $1 AND state = $4 AND attempt = $5
           -- A program that does not know extensions may have begun to give the eSIM back.
           AND NOT EXISTS (SELECT FROM esim_requests r
                           WHERE r.topup_id = extensions.topup_id AND r.give_back IN ('asked', 'sending', 'claimed', 'parked', 'returned'))",
        id.uuid(),
        state_name(begun.state),
        pg::signed(begun.attempt),
        state_name(read.state),
        pg::signed(read.attempt),
        baseline,
    );
    let moved = statement.execute(connection).await?.rows_affected() > 0;
    Ok(moved.then_some(begun.attempt))
}

/// Moves an extension by an event, and sets the time of its next look. Returns its state now, and
/// whether the event has changed it. With a new profile the topup gets that, and its webhooks are
/// due again; one whose code another topup has parks the extension instead, because one of the two
/// must be wrong.
pub async fn settle(
    connection: &mut PgConnection,
    id: ExtensionId,
    settlement: &EsimChangeSettlement,
) -> Result<(Option<EsimChangeState>, bool)> {
    transaction!(connection, "extensions::settle", |transaction| {
        // The order is locked first, as by a question of its partner, so that no erasure and no
        // archive misses the event that follows.
        let query = sqlx::query!(
            r#"SELECT x.topup_id, x.state, x.attempt, x.not_added_at IS NOT NULL AS "not_added!"
               FROM extensions x
               WHERE x.extension_id = ANY (ARRAY (SELECT kept FROM keep_order_of_extension($1) kept))
               FOR UPDATE OF x"#,
            id.uuid(),
        );
        let Some(row) = query.fetch_optional(&mut **transaction).await? else {
            return Ok(TransactionEnd::Rollback((None, false)));
        };
        let before = EsimChange {
            state: state_named(&row.state)?,
            attempt: unsigned(row.attempt),
            not_done: row.not_added,
        };
        let mut event = settlement.event;
        let mut reason = settlement.reason.clone();
        // A response that comes after the end changes nothing, above all not the work of the next
        // extension of this eSIM.
        if before.state.is_over() && event.is_none_or(|event| before.after(event).is_err()) {
            return Ok(TransactionEnd::Rollback((Some(before.state), false)));
        }
        if let (Some(EsimChangeEvent::Done), Some((_, profile))) = (event, &settlement.profile) {
            let query = sqlx::query_scalar!(
                r#"SELECT EXISTS (SELECT FROM esims WHERE code_digest = $2 AND topup_id <> $1) AS "taken!""#,
                row.topup_id,
                profile.code_digest.as_deref(),
            );
            if query.fetch_one(&mut **transaction).await? {
                event = Some(EsimChangeEvent::Park(before.attempt));
                let said = "the new activation code is that of another topup".to_owned();
                reason = Some((EsimChangeReason::Unknown, Some(said)));
            }
        }
        let is_done =
            |event| before.after(event).map(|after| after.state) == Ok(EsimChangeState::Done);
        let profile = settlement
            .profile
            .as_ref()
            .filter(|_| event.is_some_and(is_done));
        let mut has_new_profile = false;
        if let Some((iccid, profile)) = profile {
            let statement = sqlx::query!(
                "UPDATE esims SET iccid = $2, profile = $3, code_digest = $4
                 WHERE topup_id = $1 AND ready_at IS NOT NULL AND erased_at IS NULL AND returned_at IS NULL",
                row.topup_id,
                iccid.as_str(),
                &profile.sealed,
                profile.code_digest.as_deref(),
            );
            // An eSIM that was erased meanwhile gets none, so somebody has to decide what becomes
            // of the one that is paid.
            let stored = statement.execute(&mut **transaction).await?;
            has_new_profile = stored.rows_affected() > 0;
            if !has_new_profile {
                event = Some(EsimChangeEvent::Park(before.attempt));
                let said = "the topup was erased, so it cannot take its new eSIM".to_owned();
                reason = Some((EsimChangeReason::Unknown, Some(said)));
            }
        }
        let after = event.and_then(|event| before.after(event).ok());
        let now = after.unwrap_or(before);
        let name = |reason: EsimChangeReason| -> &'static str { reason.into() };
        let statement = sqlx::query!(
            "UPDATE extensions
             SET state = $2,
                 not_added_at = CASE WHEN $3 THEN coalesce(not_added_at, now()) END,
                 reason = CASE WHEN $4 THEN $5 ELSE reason END,
                 message = CASE WHEN $4 THEN $6 ELSE message END,
                 ended_at = CASE WHEN $7 THEN coalesce(ended_at, now()) END,
                 reference = coalesce($8, reference),
                 has_new_profile = has_new_profile OR $9
             WHERE extension_id = $1",
            id.uuid(),
            state_name(now.state),
            now.not_done,
            after.is_some() && now.state.is_over(),
            reason.as_ref().map(|(reason, _)| name(*reason)),
            reason.as_ref().and_then(|(_, message)| message.as_deref()),
            now.state.is_over(),
            settlement.reference.as_deref(),
            has_new_profile,
        );
        statement.execute(&mut **transaction).await?;
        let again_in = (!now.state.is_over()).then_some(settlement.again_in);
        look_again(transaction, id, &row.topup_id, again_in).await?;
        Ok(TransactionEnd::Commit((Some(now.state), after.is_some())))
    })
}

/// Sets when an extension is looked at next; `None` if it is over.
async fn look_again(
    transaction: &mut Transaction<'_>,
    id: ExtensionId,
    topup_id: &str,
    again_in: Option<Duration>,
) -> Result<()> {
    let statement = sqlx::query!(
        "WITH over AS (
                 DELETE FROM work WHERE id = derived_id('extend', $1) AND $2::float8 IS NULL
             )
             INSERT INTO work (id, kind, provider, lane, partner_id, at)
             SELECT derived_id('extend', topup_id), 'extend', provider, topup_id, partner_id, now() + make_interval(secs => $2)
             FROM extensions WHERE extension_id = $3 AND $2 IS NOT NULL
             ON CONFLICT (id) DO UPDATE SET at = excluded.at",
        topup_id,
        again_in.map(seconds),
        id.uuid(),
    );
    statement.execute(&mut **transaction).await?;
    Ok(())
}
