//! What a partner asks about its delivered eSIMs: their data use, to give them back, and to suspend
//! and resume them. Ingress
//! stores the request and waits for the answer; a provisioner asks the provider
//! ([`store::esim_requests`]), because only provisioners hold the credentials of providers.

use std::time::Duration;

use domain::{EsimChangeState, PartnerId, TopupId, esim_change::GiveBackCause, standing::Rows};
use pg::{
    Result, Transaction, TransactionEnd,
    actions::{self, Action, ActionChange, Actor},
    age, transaction,
};
use serde_json::json;
use sqlx::PgConnection;
use store::{
    Unflushed,
    esim_requests::{AskedChange, EsimChangeReason, Reading, UsageFailure},
};
use time::OffsetDateTime;

use super::{PartnerUnitState, REASON};

/// A unit of the partner, with what was asked about its eSIM.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each one is an independent fact of the unit"
)]
pub struct EsimRequests {
    pub state: PartnerUnitState,
    pub erased: bool,
    pub returned_at: Option<OffsetDateTime>,
    /// Whether a question about its use waits for an answer.
    pub usage_open: bool,
    /// The last answer of the provider, and its age.
    pub reading: Option<(Reading, OffsetDateTime, Duration)>,
    /// Why the last question has no answer, and how long ago that was recorded.
    pub failure: Option<(UsageFailure, Duration)>,
    pub give_back: Option<EsimChangeView>,
    /// The last wish to suspend it (true) or to resume it, and what became of it.
    pub suspension: Option<(bool, EsimChangeView)>,
    /// Whether it is being extended.
    pub extending: bool,
    /// Whether its provider has sold it instead of extending another one. It can be neither given
    /// back nor suspended, because the purchase of the topup is that of the other one.
    pub is_replacement: bool,
    /// Since when it is downloaded and not installed, if its provider has said so again.
    pub in_trouble_since: Option<OffsetDateTime>,
}

/// A give-back or a suspension as its partner sees it.
#[derive(Clone, Debug)]
pub struct EsimChangeView {
    pub state: EsimChangeState,
    pub asked_at: OffsetDateTime,
    pub ended_at: Option<OffsetDateTime>,
    pub reason: Option<EsimChangeReason>,
    /// What the provider said.
    pub message: Option<String>,
}

/// Reads what was asked about one of the partner's units; `None` if the partner has no such unit.
pub async fn requests(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    topup_id: &TopupId,
) -> Result<Unflushed<Option<EsimRequests>>> {
    let query = sqlx::query!(
        r#"SELECT u.ready_at IS NOT NULL AS "is_ready!", u.has_failed AS "has_failed!", u.is_parked AS "is_parked!",
                  u.erased_at IS NOT NULL AS "erased!", u.returned_at,
                  r.usage_asked_at IS NOT NULL AS "usage_open!", r.installed, r.data_used, r.data_total, r.ends_at,
                  r.as_of, r.downloaded_at IS NOT NULL AS "only_downloaded!",
                  in_trouble_since(r.downloaded_at, r.read_at) AS in_trouble_since,
                  r.read_at AS "read_at?", extract(epoch FROM now() - r.read_at)::float8 AS read_age,
                  r.usage_failure AS "usage_failure?",
                  extract(epoch FROM now() - r.usage_failed_at)::float8 AS failure_age,
                  r.give_back AS "give_back?", r.give_back_asked_at AS "give_back_asked_at?", r.ended_at AS "ended_at?",
                  r.reason AS "reason?", r.message AS "message?",
                  r.suspend AS "suspend?", r.suspension AS "suspension?", r.suspension_asked_at AS "suspension_asked_at?",
                  r.suspension_ended_at AS "suspension_ended_at?", r.suspension_reason AS "suspension_reason?",
                  r.suspension_message AS "suspension_message?",
                  EXISTS (SELECT FROM extensions x
                          WHERE x.topup_id = u.topup_id AND x.state IN ('asked', 'sending', 'parked')) AS "extending!",
                  EXISTS (SELECT FROM extensions x WHERE x.topup_id = u.topup_id AND x.has_new_profile) AS "is_replacement!"
           FROM partner_units u LEFT JOIN esim_requests r ON r.topup_id = u.topup_id
           WHERE u.topup_id = $2 AND u.partner_id = $1"#,
        partner_id.uuid(),
        topup_id.as_str(),
    );
    let Some(row) = query.fetch_optional(connection).await? else {
        return Ok(Unflushed::of(None));
    };
    let bytes = |bytes: Option<i64>| bytes.and_then(|bytes| u64::try_from(bytes).ok());
    let reading = row.read_at.map(|read_at| {
        let reading = Reading {
            installed: row.installed,
            data_used: bytes(row.data_used),
            data_total: bytes(row.data_total),
            ends_at: row.ends_at,
            as_of: row.as_of,
            only_downloaded: row.only_downloaded,
        };
        (reading, read_at, age(row.read_age.unwrap_or_default()))
    });
    let failure = row
        .usage_failure
        .and_then(|name| name.parse().ok())
        .zip(row.failure_age.map(age));
    let give_back = match (row.give_back, row.give_back_asked_at) {
        (Some(state), Some(asked_at)) => Some(EsimChangeView {
            state: state.parse()?,
            asked_at,
            ended_at: row.ended_at,
            reason: row.reason.and_then(|name| name.parse().ok()),
            message: row.message,
        }),
        _ => None,
    };
    let suspension = match (row.suspend, row.suspension, row.suspension_asked_at) {
        (Some(suspend), Some(state), Some(asked_at)) => {
            let view = EsimChangeView {
                state: AskedChange::Suspension(suspend).state_named(&state)?,
                asked_at,
                ended_at: row.suspension_ended_at,
                reason: row.suspension_reason.and_then(|name| name.parse().ok()),
                message: row.suspension_message,
            };
            Some((suspend, view))
        }
        _ => None,
    };
    Ok(Unflushed::of(Some(EsimRequests {
        state: PartnerUnitState::of(Rows {
            is_ready: row.is_ready,
            is_returned: row.returned_at.is_some(),
            has_failed: row.has_failed,
            is_parked: row.is_parked,
        }),
        erased: row.erased,
        returned_at: row.returned_at,
        usage_open: row.usage_open,
        reading,
        failure,
        give_back,
        suspension,
        extending: row.extending,
        is_replacement: row.is_replacement,
        in_trouble_since: row.in_trouble_since,
    })))
}

/// Keeps the order of a unit in the tables until the end of the transaction. An archive run and an
/// erasure lock the order, too, before they judge whether anything of it is open. So either they
/// see the request that this transaction makes, and leave the order alone, or this waits for them,
/// and the next statement finds no unit, or an erased one.
pub(super) async fn keep_order(
    transaction: &mut Transaction<'_>,
    topup_id: &TopupId,
) -> Result<()> {
    let query = sqlx::query_scalar!(
        "SELECT o.order_id FROM topups t
         JOIN placements p ON p.placement_id = t.placement_id
         JOIN orders o ON o.order_id = p.order_id
         WHERE t.topup_id = $1 FOR KEY SHARE OF o",
        topup_id.as_str(),
    );
    query.fetch_optional(&mut **transaction).await?;
    Ok(())
}

/// Waits until no other transaction that has called this about the same thing is open.
pub(super) async fn wait_for_turn(transaction: &mut Transaction<'_>, about: &str) -> Result<()> {
    let query = sqlx::query!(
        "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))",
        about,
    );
    query.execute(&mut **transaction).await?;
    Ok(())
}

/// Asks for the use of a ready unit of the partner. An open question stays as it is.
pub async fn ask_usage(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    topup_id: &TopupId,
) -> Result<()> {
    transaction!(connection, "esims::ask_usage", |transaction| {
        put_question(transaction, partner_id, topup_id).await?;
        Ok(TransactionEnd::Commit(()))
    })
}

/// The same for an operator, with its record. Returns whether it has asked anew, which it does not
/// if somebody asked since the page was made whose form has the [mark](actions::mark) `seen`.
pub async fn ask_usage_as_seen(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    topup_id: &TopupId,
    seen: &str,
    action: Action<'_>,
) -> Result<bool> {
    transaction!(connection, "esims::ask_usage_as_seen", |transaction| {
        // This waits for whoever asks at this moment, so the look at the record comes after it.
        let is_new = put_question(transaction, partner_id, topup_id).await?;
        let mark = actions::mark(transaction, topup_id.as_str(), action.command).await?;
        if !is_new || mark != seen {
            return Ok(TransactionEnd::Rollback(false));
        }
        let changed = ActionChange::created(json!({ "asked": true }));
        actions::record(transaction, action, 1, changed).await?;
        Ok(TransactionEnd::Commit(true))
    })
}

/// Stores the question, unless one is open, and returns whether it is new.
async fn put_question(
    transaction: &mut Transaction<'_>,
    partner_id: PartnerId,
    topup_id: &TopupId,
) -> Result<bool> {
    keep_order(transaction, topup_id).await?;
    let statement = sqlx::query!(
        "INSERT INTO esim_requests AS r (topup_id, partner_id, provider, usage_asked_at)
         SELECT u.topup_id, u.partner_id, e.provider, now()
         FROM partner_units u JOIN esims e ON e.topup_id = u.topup_id
         WHERE u.topup_id = $2 AND u.partner_id = $1 AND u.ready_at IS NOT NULL AND u.erased_at IS NULL
         ON CONFLICT (topup_id) DO UPDATE
         SET usage_asked_at = now(), usage_failure = NULL, usage_failed_at = NULL
         WHERE r.usage_asked_at IS NULL",
        partner_id.uuid(),
        topup_id.as_str(),
    );
    let asked = statement.execute(&mut **transaction).await?.rows_affected() > 0;
    make_due(transaction, partner_id, topup_id).await?;
    Ok(asked)
}

/// Makes what is open of the partner's request due, unless it has its work already.
async fn make_due(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    topup_id: &TopupId,
) -> Result<()> {
    // Ingress does not see work of these kinds, and a conflict target, such as `(id)`, would read
    // it.
    let statement = sqlx::query!(
        "INSERT INTO work (id, kind, provider, lane, partner_id, at)
         SELECT derived_id(asked.kind, r.topup_id), asked.kind, r.provider, r.topup_id, r.partner_id, now()
         FROM esim_requests r
         CROSS JOIN LATERAL (
             SELECT 'usage' AS kind WHERE r.usage_asked_at IS NOT NULL
             UNION ALL
             SELECT 'give_back' WHERE r.give_back IN ('asked', 'sending')
             UNION ALL
             SELECT 'suspend' WHERE r.suspension IN ('asked', 'sending')
         ) asked
         WHERE r.topup_id = $2 AND r.partner_id = $1
         ON CONFLICT DO NOTHING",
        partner_id.uuid(),
        topup_id.as_str(),
    );
    statement.execute(connection).await?;
    Ok(())
}

/// Asks to give a ready unit of the partner back, by [`domain::esim_change::EsimChangeEvent::Ask`]
/// if it was refused before. A give-back that is under way, claimed, parked or done stays as it is.
pub async fn ask_give_back(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    topup_id: &TopupId,
    cause: GiveBackCause,
) -> Result<()> {
    let by = (Actor::PARTNER, REASON);
    give_back(connection, partner_id, (topup_id, cause), by).await?;
    Ok(())
}

/// The same for whoever acts for the partner, with the reason. Returns whether it has asked anew.
/// An eSIM that is being extended is not given back, because what its provider shows afterwards
/// must prove one change.
pub async fn give_back(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    (topup_id, cause): (&TopupId, GiveBackCause),
    (actor, reason): (Actor<'_>, &str),
) -> Result<bool> {
    transaction!(connection, "esims::give_back", |transaction| {
        keep_order(transaction, topup_id).await?;
        wait_for_turn(transaction, topup_id.as_str()).await?;
        let statement = sqlx::query!(
            "INSERT INTO esim_requests AS r (topup_id, partner_id, provider, give_back, give_back_asked_at, give_back_cause)
         SELECT u.topup_id, u.partner_id, e.provider, 'asked', now(), $3
         FROM partner_units u JOIN esims e ON e.topup_id = u.topup_id
         WHERE u.topup_id = $2 AND u.partner_id = $1 AND u.ready_at IS NOT NULL AND u.erased_at IS NULL
           AND NOT EXISTS (SELECT FROM extensions x
                           WHERE x.topup_id = $2 AND (x.state IN ('asked', 'sending', 'parked') OR x.has_new_profile))
         ON CONFLICT (topup_id) DO UPDATE
         SET give_back = 'asked', give_back_asked_at = now(), give_back_cause = excluded.give_back_cause, claim = NULL,
             not_returned_at = NULL, reason = NULL, message = NULL, ended_at = NULL
         WHERE r.give_back IS NULL OR r.give_back = 'refused'",
            partner_id.uuid(),
            topup_id.as_str(),
            cause.as_str(),
        );
        let asked = statement.execute(&mut **transaction).await?.rows_affected() > 0;
        make_due(transaction, partner_id, topup_id).await?;
        if asked {
            let action = Action {
                actor,
                command: domain::Command::GiveBack,
                target: &format!("topup {}", topup_id.as_str()),
                reason,
            };
            let changed = ActionChange::created(
                json!({ "give_back": EsimChangeState::Asked.as_str(), "cause": cause }),
            );
            actions::record(transaction, action, 1, changed).await?;
        }
        Ok(TransactionEnd::Commit(asked))
    })
}

/// Asks to suspend a ready unit of the partner, or to resume it.
pub async fn ask_suspension(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    topup_id: &TopupId,
    suspend: bool,
) -> Result<()> {
    let by = (Actor::PARTNER, REASON);
    put_suspension(connection, partner_id, (topup_id, suspend), by).await?;
    Ok(())
}

/// The same for whoever acts for the partner, with the reason. Returns whether it has asked anew.
/// While another wish about it is under way, it stays as it is. So does an eSIM that its provider
/// has sold instead of an extension, because calls would name the one before.
pub async fn put_suspension(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    (topup_id, suspend): (&TopupId, bool),
    (actor, reason): (Actor<'_>, &str),
) -> Result<bool> {
    transaction!(connection, "esims::ask_suspension", |transaction| {
        keep_order(transaction, topup_id).await?;
        let statement = sqlx::query!(
            "INSERT INTO esim_requests AS r (topup_id, partner_id, provider, suspend, suspension, suspension_asked_at)
             SELECT u.topup_id, u.partner_id, e.provider, $3, 'asked', now()
             FROM partner_units u JOIN esims e ON e.topup_id = u.topup_id
             WHERE u.topup_id = $2 AND u.partner_id = $1 AND u.ready_at IS NOT NULL AND u.erased_at IS NULL
               AND NOT EXISTS (SELECT FROM extensions x WHERE x.topup_id = $2 AND x.has_new_profile)
             ON CONFLICT (topup_id) DO UPDATE
             SET suspend = excluded.suspend, suspension = 'asked', suspension_asked_at = now(), suspension_not_done_at = NULL,
                 suspension_reason = NULL, suspension_message = NULL, suspension_ended_at = NULL
             WHERE r.suspension IS NULL OR r.suspension IN ('done', 'refused', 'parked')",
            partner_id.uuid(),
            topup_id.as_str(),
            suspend,
        );
        let asked = statement.execute(&mut **transaction).await?.rows_affected() > 0;
        make_due(transaction, partner_id, topup_id).await?;
        if asked {
            let action = Action {
                actor,
                command: if suspend {
                    domain::Command::TopupSuspend
                } else {
                    domain::Command::TopupResume
                },
                target: &format!("topup {}", topup_id.as_str()),
                reason,
            };
            let changed = ActionChange::created(json!({ "suspend": suspend }));
            actions::record(transaction, action, 1, changed).await?;
        }
        Ok(TransactionEnd::Commit(asked))
    })
}
