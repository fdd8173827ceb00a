//! The general statement for outcomes that bought nothing, which moves their placements and the
//! work that is left. The parent module calls it for the outcomes of a batch that are no purchases.

use domain::{HistoryKind, Reason, reason::ReasonCode};
use pg::{Result, Transaction, seconds, signed};
use uuid::Uuid;

use super::outcome::{AttemptOutcome, Changes, PlacementSettlement};
use crate::history::{self, MOST_UNKNOWNS, Note};

/// The settlements of a batch that bought nothing, one vector per column.
#[derive(Default)]
pub(super) struct Unbought {
    placements: Vec<Uuid>,
    attempts: Vec<i32>,
    /// What the history calls the outcomes; the statement decides by it.
    kinds: Vec<&'static str>,
    /// Of a look-up that found nothing: whether it began after the settling delay.
    after_delay: Vec<bool>,
    due_in: Vec<Option<f64>>,
    reasons: Vec<Option<String>>,
    statuses: Vec<Option<String>>,
    messages: Vec<Option<String>>,
}

impl Unbought {
    pub(super) fn of<'a>(settlements: impl Iterator<Item = &'a PlacementSettlement>) -> Self {
        let mut columns = Self::default();
        for settlement in settlements {
            let mut refusal = (None, None);
            let mut after_delay = false;
            let (kind, due_in, reason) = match &settlement.outcome {
                AttemptOutcome::Bought { .. } => continue,
                AttemptOutcome::NotBought { retry_in, reason } => (
                    HistoryKind::NotBought,
                    Some(*retry_in),
                    Some(reason.clone()),
                ),
                AttemptOutcome::Rejected { status, message } => {
                    refusal = (Some(status.clone()), Some(message.clone()));
                    let reason = Reason::with(
                        ReasonCode::Rejected,
                        format!("{status} {message}").trim_end(),
                    );
                    (HistoryKind::Rejected, None, Some(reason))
                }
                AttemptOutcome::NotFound {
                    after_settling_delay,
                    look_in,
                } => {
                    after_delay = *after_settling_delay;
                    (HistoryKind::NotFound, Some(*look_in), None)
                }
                AttemptOutcome::Unknown { look_in, reason } => {
                    (HistoryKind::Unknown, Some(*look_in), Some(reason.clone()))
                }
                AttemptOutcome::Parked { reason } => {
                    (HistoryKind::Parked, None, Some(reason.clone()))
                }
                AttemptOutcome::Unstorable { reason } => {
                    (HistoryKind::Disputed, None, Some(reason.clone()))
                }
            };
            columns.placements.push(settlement.placement_id.uuid());
            columns.attempts.push(signed(settlement.attempt));
            columns.kinds.push(kind.as_str());
            columns.after_delay.push(after_delay);
            columns.due_in.push(due_in.map(seconds));
            columns.reasons.push(reason.as_ref().map(Reason::to_string));
            columns.statuses.push(refusal.0);
            columns.messages.push(refusal.1);
        }
        columns
    }

    /// Moves each placement along the transition of its outcome, if the attempt is the current one
    /// and still open. `moved` names the exceptions. All later steps concern only placements that
    /// it has moved.
    #[expect(
        clippy::too_many_lines,
        reason = "it is one statement, whose steps are explained where they stand"
    )]
    pub(super) async fn record(
        &self,
        transaction: &mut Transaction<'_>,
        changes: &mut Changes,
    ) -> Result<()> {
        if self.placements.is_empty() {
            return Ok(());
        }
        let query = sqlx::query!(
            r#"WITH moved AS (
                   -- A look-up that finds nothing allows the next attempt only if an earlier one found nothing,
                   -- too, and this one began after the settling delay.
                   UPDATE placements p
                   SET state = CASE
                           WHEN new.kind = 'not_bought' THEN 'accepted'
                           WHEN new.kind = 'not_found' AND new.after_delay AND p.not_found_at IS NOT NULL THEN 'accepted'
                           WHEN new.kind = 'rejected' AND p.alternatives IS NOT NULL THEN 'accepted'
                           WHEN new.kind = 'rejected' THEN 'failed'
                           WHEN new.kind IN ('parked', 'disputed') THEN 'parked'
                           ELSE p.state
                       END,
                       -- Only a `placed` one is known to be bought. From `placing` a later response may still
                       -- place it, which `disputed` would forbid.
                       disputed = new.kind = 'disputed' AND p.state = 'placed',
                       not_found_at = CASE
                           WHEN new.kind = 'not_found' THEN coalesce(p.not_found_at, now())
                           ELSE p.not_found_at
                       END,
                       unknowns = CASE WHEN new.kind = 'unknown' THEN p.unknowns + 1 ELSE 0 END,
                       reason = CASE WHEN p.state = 'parked' THEN p.reason ELSE coalesce(new.reason, p.reason) END,
                       refusal_status = new.status, refusal_message = new.message,
                       -- It was for the attempt that has ended.
                       first_claim = NULL,
                       -- A rejected placement goes to the provider of the next pair, if there is one: then this
                       -- attempt has certainly bought nothing. In the same commit the old pair is noted.
                       provider = CASE WHEN new.kind = 'rejected' THEN coalesce(p.alternatives->0->>'provider', p.provider)
                                       ELSE p.provider END,
                       lane = CASE WHEN new.kind = 'rejected' THEN coalesce(p.alternatives->0->>'lane', p.lane)
                                   ELSE p.lane END,
                       tried = CASE
                           WHEN new.kind = 'rejected' AND p.alternatives IS NOT NULL THEN
                               coalesce(p.tried, '[]') || jsonb_build_object(
                                   'provider', p.provider, 'lane', p.lane, 'attempt', p.attempt,
                                   'reason', new.reason, 'at', now(),
                                   -- The names of the options there, in case it has sold the placement after all.
                                   'options', (SELECT jsonb_object_agg(t.option_id, t.provider_option_id)
                                               FROM topups t WHERE t.placement_id = p.placement_id))
                           ELSE p.tried
                       END,
                       -- After an outcome that leaves a purchase in doubt no other provider may be asked any more.
                       alternatives = CASE
                           WHEN new.kind = 'rejected' THEN nullif(p.alternatives - 0, '[]')
                           WHEN new.kind = 'not_bought' OR (new.kind = 'unknown' AND p.state <> 'placing') THEN p.alternatives
                           ELSE NULL -- in doubt
                       END
                   FROM unnest($1::uuid[], $2::int[], $3::text[], $4::float8[], $5::text[], $6::text[], $7::text[],
                               $8::bool[])
                       AS new (placement_id, attempt, kind, due_in, reason, status, message, after_delay)
                   WHERE p.placement_id = new.placement_id AND p.attempt = new.attempt
                     AND (p.state = 'placing'
                              -- Once anything is recorded of an attempt, another process may have sent it again. So that
                              -- the first one bought nothing comes too late: the repeat or a look-up decides.
                              AND (new.kind NOT IN ('rejected', 'not_bought')
                                   OR p.unknowns = 0 AND p.not_found_at IS NULL)
                          OR (p.state = 'placed' AND new.kind = 'disputed')
                          -- An unknown outcome of a later call is counted. Without work the placement is
                          -- finished or disputed, and a late result gives it no new work. This is no EXISTS,
                          -- because PostgreSQL could execute that one by reading all of `work` into a hash.
                          OR (p.state IN ('placed', 'parked') AND new.kind = 'unknown'
                              AND (SELECT true FROM work w WHERE w.id = p.placement_id)))
                   RETURNING p.placement_id, p.partner_id, p.provider, p.lane, p.state, p.reason, p.attempt, p.unknowns,
                             new.kind, new.reason AS noted, p.tried,
                             CASE WHEN new.kind = 'rejected' AND p.state = 'accepted' THEN 0 ELSE new.due_in END AS due_in,
                             new.kind = 'rejected' AND p.state = 'accepted' AS is_rerouted
               ), renamed AS (
                   -- The next provider has names of its own for the options. This reads the placement as it was
                   -- before the statement, so its first alternative is the one that it goes to.
                   UPDATE topups t SET provider_option_id = p.alternatives->0->'options'->>t.option_id::text
                   FROM placements p
                   WHERE p.placement_id = ANY (ARRAY (SELECT placement_id FROM moved WHERE is_rerouted))
                     AND t.placement_id = p.placement_id
               ), failed AS (
                   -- The topups of rejected placements. The trigger `topup_failed` (`libs/pg/schema.sql`) creates their
                   -- events.
                   UPDATE topups t SET state = 'failed', reason = moved.reason
                   FROM moved
                   WHERE t.placement_id = moved.placement_id AND moved.state = 'failed' AND t.state = 'pending'
               ), done AS (
                   -- Nothing is left to do for the placement, or an operator must act.
                   DELETE FROM work
                   WHERE id = ANY (ARRAY (SELECT placement_id FROM moved WHERE due_in IS NULL))
               ), later AS (
                   -- The next attempt, look-up or collect.
                   INSERT INTO work AS w (id, kind, provider, lane, partner_id, at)
                   SELECT placement_id, kind_of_work(state, attempt), provider, lane, partner_id,
                          now() + make_interval(secs => due_in)
                   FROM moved WHERE due_in IS NOT NULL
                   ON CONFLICT (id) DO UPDATE
                   SET kind = excluded.kind, at = excluded.at, provider = excluded.provider, lane = excluded.lane
               ), parked AS (
                   -- Makes parked placements visible to operators.
                   INSERT INTO held (id, state, provider, partner_id)
                   SELECT placement_id, 'parked', provider, partner_id FROM moved WHERE state = 'parked'
                   ON CONFLICT DO NOTHING
               )
               SELECT placement_id AS "placement_id!", is_rerouted AS "is_rerouted!", provider, attempt,
                      CASE WHEN is_rerouted THEN 'rerouted' ELSE kind END AS "kind!",
                      unknowns, noted, CASE WHEN is_rerouted THEN tried->-1->>'provider' END AS asked
               FROM moved"#,
            &self.placements,
            &self.attempts,
            &self.kinds as &[&str],
            &self.due_in as &[Option<f64>],
            &self.reasons as &[Option<String>],
            &self.statuses as &[Option<String>],
            &self.messages as &[Option<String>],
            &self.after_delay,
        );
        let mut notes = Vec::new();
        for row in query.fetch_all(&mut **transaction).await? {
            let kind = row.kind.parse().unwrap_or(HistoryKind::Unknown);
            if kind != HistoryKind::Unknown || row.unknowns <= MOST_UNKNOWNS {
                notes.push(Note {
                    provider: row.asked,
                    attempt: Some(row.attempt),
                    reason: row.noted,
                    ..Note::new(row.placement_id, kind)
                });
            }
            let settled = changes.entry(row.placement_id.into()).or_default();
            settled.moved = true;
            settled.rerouted = row.is_rerouted.then_some(row.provider);
        }
        history::write(transaction, &notes).await
    }
}
