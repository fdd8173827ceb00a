//! The story of an order: its state in one sentence, which support can paste to a partner, and its
//! timeline. `esimctl order show` and the console show both.

use std::collections::BTreeSet;

use domain::{
    Command, HistoryKind, Reason, Stored, StoredReason,
    esim_change::EsimChangeKind,
    standing::{DeliveryState, UnitState},
};
use pg::{Result, actions::changed_nothing};
use sqlx::PgConnection;
use store::history::{self, HistoryRow, PlacementSnapshot};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use uuid::Uuid;

use super::{
    order_extensions::ExtensionView,
    orders::{OrderView, PlacementView, TopupView},
    route::{change_reason, give_back_reason, is_rerouted},
};

mod sentence;
mod what;
pub use sentence::{reason, sentence, why_failed, why_held};
pub use what::{EsimChangeStep, MomentKind, StoryMoment, is_off_the_path, told};

/// The maximum number of attempts of webhooks that a timeline holds; the newest ones.
pub const MOST_ATTEMPTS: i64 = 500;
/// The most recorded actions that a timeline holds; the newest ones.
const MOST_ACTIONS: i64 = 1_000;

/// The timeline of an order, oldest first.
pub async fn timeline(
    connection: &mut PgConnection,
    order: &OrderView,
) -> Result<Vec<StoryMoment>> {
    let mut moments = vec![StoryMoment {
        at: order.created_at,
        what: MomentKind::Accepted,
    }];
    let mut add = |at: Option<OffsetDateTime>, what: MomentKind| {
        moments.extend(at.map(|at| StoryMoment { at, what }));
    };
    add(order.erased_at, MomentKind::Erased);
    let acted = actions(&mut *connection, order).await?;
    let noted = history::of_order(&mut *connection, order.order_id).await?;
    let query = sqlx::query!(
        r#"SELECT p.placement_id, p.not_found_at, o.refused_at,
                  (SELECT at FROM held h WHERE h.id = p.placement_id) AS "parked_at?"
           FROM placements p JOIN orders o ON o.order_id = p.order_id WHERE p.order_id = $1"#,
        order.order_id,
    );
    let stored = query.fetch_all(&mut *connection).await?;
    let refused = if order.cancelled {
        MomentKind::Cancelled
    } else {
        MomentKind::Refused
    };
    add(stored.iter().find_map(|one| one.refused_at), refused);
    for placement in &order.placements {
        let placement_id = placement.placement_id;
        let attempt = placement.attempt;
        add(
            placement.attempted_at,
            MomentKind::Attempted {
                placement_id,
                provider: attempted_at(placement).to_owned(),
                attempt,
            },
        );
        let provider = placement.provider.clone();
        // An operator's resolution sets the time in its own transaction, whose record has it, too.
        let resolved = acted
            .iter()
            .find(|one| Some(one.at) == placement.placed_at && one.is_about(placement_id));
        add(
            placement.placed_at,
            MomentKind::Placed {
                placement_id,
                provider,
                by: resolved.map(|one| one.operator.clone()),
            },
        );
        for tried in &placement.tried {
            let rejected = MomentKind::Rejected {
                placement_id,
                provider: tried.provider.clone(),
                reason: Reason::read(&tried.reason),
            };
            add(OffsetDateTime::parse(&tried.at, &Rfc3339).ok(), rejected);
        }
        let due = MomentKind::Due {
            placement_id: Some(placement_id),
            topup_id: None,
        };
        add(placement.due_at.filter(|_| awaits(order, placement)), due);
        let Some(one) = stored.iter().find(|one| one.placement_id == placement_id) else {
            continue;
        };
        // What is noted has this moment, too, with the attempt.
        let new = |at: &OffsetDateTime| !is_noted(&noted, placement_id, *at);
        add(
            one.not_found_at.filter(new),
            MomentKind::NotFound { placement_id },
        );
        let reason = placement.reason.clone();
        add(
            one.parked_at.filter(new),
            MomentKind::Parked {
                placement_id,
                reason,
            },
        );
    }
    moments.extend(order.topups.iter().flat_map(of_unit));
    moments.extend(order.extensions.iter().flat_map(of_extension));
    moments.extend(failures(&mut *connection, order, &acted, &noted).await?);
    moments.extend(noted.iter().filter_map(|one| confirmed_before(one, order)));
    moments.extend(noted.into_iter().filter_map(moment_of));
    moments.extend(acted.into_iter().map(ActedOn::moment));
    moments.extend(webhooks(&mut *connection, order).await?);
    moments.extend(around(connection, order, &moments).await?);
    moments.sort_by_key(|moment| moment.at);
    Ok(moments)
}

/// What the row of a unit tells: when it was ready, how its give-back ended, and what is due.
fn of_unit(topup: &TopupView) -> impl Iterator<Item = StoryMoment> {
    let topup_id = &topup.topup_id;
    let ready = MomentKind::Ready {
        topup_id: topup_id.clone(),
    };
    let ended = topup.give_back.known().and_then(EsimChangeStep::to);
    let given_back = ended.and_then(|step| {
        let what = MomentKind::EsimChanged {
            topup_id: topup_id.clone(),
            change: EsimChangeKind::GiveBack,
            external_id: None,
            step,
            attempt: None,
            reason: give_back_reason(topup).map(str::to_owned),
        };
        let at = topup.give_back_ended_at?;
        Some(StoryMoment { at, what })
    });
    let due = MomentKind::Due {
        placement_id: None,
        topup_id: Some(topup_id.clone()),
    };
    let is_pending = topup.delivery.known() == Some(DeliveryState::Pending);
    let due_at = topup.delivery_due_at.filter(|_| is_pending);
    let all = [(topup.ready_at, ready), (due_at, due)];
    let stored = all.into_iter();
    let moments = stored.filter_map(|(at, what)| Some(StoryMoment { at: at?, what }));
    moments.chain(given_back)
}

/// What the row of an extension tells: when it was asked for, tried last, and ended.
fn of_extension(one: &ExtensionView) -> impl Iterator<Item = StoryMoment> {
    let reason = change_reason(EsimChangeKind::Extension, one.reason.as_deref());
    let ended = one.state.known().and_then(EsimChangeStep::to);
    let steps = [
        (Some(one.asked_at), Some(EsimChangeStep::Asked)),
        (one.attempted_at, Some(EsimChangeStep::Tried)),
        (one.ended_at, ended),
    ];
    steps.into_iter().filter_map(move |(at, step)| {
        let step = step?;
        let is_end = Some(step) == ended;
        let what = MomentKind::EsimChanged {
            topup_id: one.topup_id.clone(),
            change: EsimChangeKind::Extension,
            external_id: Some(one.external_id.clone()),
            step,
            attempt: (step == EsimChangeStep::Tried).then_some(one.attempt),
            reason: reason.filter(|_| is_end).map(str::to_owned),
        };
        Some(StoryMoment { at: at?, what })
    })
}

/// Whether something was noted of the placement at this moment, which is that of a transaction.
fn is_noted(noted: &[HistoryRow], placement_id: Uuid, at: OffsetDateTime) -> bool {
    let mut noted = noted.iter();
    noted.any(|one| one.at == at && one.placement_id == Some(placement_id))
}

/// What an operator's resolution changed.
fn was(noted: Option<&str>) -> Option<PlacementSnapshot> {
    serde_json::from_str(noted?).ok()
}

/// The confirmation of a purchase that an operator has resolved since as not bought: the row of the
/// placement has its time no more.
fn confirmed_before(noted: &HistoryRow, order: &OrderView) -> Option<StoryMoment> {
    let before = was(noted.before.as_deref())?;
    let placement_id = noted.placement_id?;
    let mut placements = order.placements.iter();
    let now = placements.find(|one| one.placement_id == placement_id)?;
    let at = before.placed_at?;
    let what = MomentKind::Placed {
        placement_id,
        provider: before.provider,
        by: None,
    };
    (now.placed_at != Some(at)).then_some(StoryMoment { at, what })
}

/// The blocks of the order's endpoints and the openings of its providers' breakers while it waited
/// for them.
async fn around(
    connection: &mut PgConnection,
    order: &OrderView,
    moments: &[StoryMoment],
) -> Result<Vec<StoryMoment>> {
    let placements = order.placements.iter();
    let providers: BTreeSet<String> = placements
        .flat_map(|one| {
            let tried = one.tried.iter().map(|tried| tried.provider.clone());
            tried.chain([one.provider.clone()])
        })
        .collect();
    let providers: Vec<String> = providers.into_iter().collect();
    let further = moments.iter().filter_map(|one| match one.what {
        MomentKind::Webhook { endpoint_id, .. } => endpoint_id,
        _ => None,
    });
    let endpoints: BTreeSet<Uuid> = further.chain([order.partner_id]).collect();
    let endpoints: Vec<Uuid> = endpoints.into_iter().collect();
    let waits = |unit: &&TopupView| unit.delivered_at.is_none() && unit.state != UnitState::Failed;
    let until = match order.topups.iter().find(waits) {
        Some(_) => None,
        None => moments.iter().map(|one| one.at).max(),
    };
    let since = order.created_at;
    let noted = history::around(connection, &providers, &endpoints, since, until).await?;
    let stays: Vec<Stay<'_>> = order
        .placements
        .iter()
        .flat_map(|one| stays(order, one, moments))
        .collect();
    let concerned = noted.into_iter().filter(|one| {
        let Some(provider) = &one.provider else {
            return true;
        };
        let mut stays = stays.iter();
        stays.any(|stay| stay.provider == provider && stay.includes(one.at))
    });
    let concerned = concerned.filter_map(moment_of).map(|mut moment| {
        if let MomentKind::Noted {
            endpoint_id, host, ..
        } = &mut moment.what
        {
            let mut further = order.further.iter();
            let its = further.find(|one| Some(one.endpoint_id) == *endpoint_id);
            *host = its.and_then(|one| one.host.clone());
        }
        moment
    });
    Ok(concerned.collect())
}

/// The time in which a purchase waited for a provider: what befell the provider before or after
/// does not concern the order.
struct Stay<'a> {
    provider: &'a str,
    from: OffsetDateTime,
    /// None while it lasts.
    until: Option<OffsetDateTime>,
}

impl Stay<'_> {
    fn includes(&self, at: OffsetDateTime) -> bool {
        at >= self.from && self.until.is_none_or(|until| at <= until)
    }
}

/// Where a purchase waited: at each provider until that rejected it, at the last one until it had
/// brought or refused each of the eSIMs, and there again while an eSIM was given back or extended.
fn stays<'a>(
    order: &'a OrderView,
    placement: &'a PlacementView,
    moments: &[StoryMoment],
) -> Vec<Stay<'a>> {
    let mut from = order.created_at;
    let mut stays = Vec::new();
    for tried in &placement.tried {
        let until = OffsetDateTime::parse(&tried.at, &Rfc3339).unwrap_or(from);
        stays.push(Stay {
            provider: &tried.provider,
            from,
            until: Some(until),
        });
        from = until;
    }
    stays.push(Stay {
        provider: &placement.provider,
        from,
        until: ended(order, placement, moments),
    });
    let mine = |unit: &&TopupView| unit.placement_id == placement.placement_id;
    let given_back = order.topups.iter().filter(mine).filter_map(|unit| {
        Some(Stay {
            provider: &placement.provider,
            from: unit.give_back_asked_at?,
            until: unit.give_back_ended_at,
        })
    });
    stays.extend(given_back);
    let units = order.topups.iter().filter(mine);
    let extended = units.flat_map(|unit| order.extensions(unit));
    stays.extend(extended.map(|one| Stay {
        provider: &placement.provider,
        from: one.asked_at,
        until: one.ended_at,
    }));
    stays
}

/// Whether a unit of a placement is still to come. Otherwise its work has ended, although its row
/// may be listed for some seconds more.
pub fn awaits(order: &OrderView, placement: &PlacementView) -> bool {
    let mut units = order.topups.iter();
    units.any(|unit| {
        unit.placement_id == placement.placement_id
            && unit.ready_at.is_none()
            && unit.state != UnitState::Failed
    }) && !order.refused
}

/// When the last unit of a placement became ready or failed, or its order was refused or cancelled;
/// none while a unit is awaited.
fn ended(
    order: &OrderView,
    placement: &PlacementView,
    moments: &[StoryMoment],
) -> Option<OffsetDateTime> {
    if awaits(order, placement) {
        return None;
    }
    let mine = |unit: &&TopupView| unit.placement_id == placement.placement_id;
    let ready = order.topups.iter().filter(mine);
    let failed = moments.iter().filter(|one| match &one.what {
        MomentKind::Failed { placement_id, .. } => *placement_id == placement.placement_id,
        MomentKind::Refused | MomentKind::Cancelled => true,
        _ => false,
    });
    ready
        .filter_map(|unit| unit.ready_at)
        .chain(failed.map(|one| one.at))
        .max()
}

/// What was noted, as a moment. Failed units, and rejections after which the next provider was
/// asked, are moments of their own.
fn moment_of(noted: HistoryRow) -> Option<StoryMoment> {
    let kind: HistoryKind = noted.kind.parse().ok()?;
    let told = !matches!(
        kind,
        HistoryKind::UnitFailed | HistoryKind::Rejected | HistoryKind::Rerouted
    );
    let what = MomentKind::Noted {
        placement_id: noted.placement_id,
        endpoint_id: noted.endpoint_id,
        host: None,
        kind,
        provider: noted.provider,
        attempt: noted.attempt,
        reason: noted.reason,
        said: noted.detail.filter(|_| kind == HistoryKind::Reported),
        before: was(noted.before.as_deref()),
        after: was(noted.after.as_deref()),
    };
    told.then_some(StoryMoment { at: noted.at, what })
}

/// The provider of the last attempt. A placement that was handed on names the next provider
/// already.
fn attempted_at(placement: &PlacementView) -> &str {
    let before = placement.tried.last().filter(|_| is_rerouted(placement));
    before.map_or(&placement.provider, |tried| &tried.provider)
}

/// A recorded action on an order or on a part of it.
struct ActedOn {
    at: OffsetDateTime,
    operator: String,
    via: Option<String>,
    command: Stored<Command>,
    target: String,
    reason: String,
    affected: i64,
    has_after: bool,
}

impl ActedOn {
    /// Whether the target names this placement, as its second word. The query of [`actions`] finds
    /// the actions by the same word, because `placement ID at NAME` is a target, too.
    fn is_about(&self, placement_id: Uuid) -> bool {
        self.target.split(' ').nth(1) == Some(&placement_id.to_string())
    }

    fn moment(self) -> StoryMoment {
        let changed_nothing = changed_nothing(&self.command, self.affected, self.has_after);
        let what = MomentKind::Acted {
            changed_nothing,
            operator: self.operator,
            via: self.via,
            command: self.command,
            target: self.target,
            reason: self.reason,
        };
        StoryMoment { at: self.at, what }
    }
}

/// The recorded actions on an order, its placements and its units, oldest first.
async fn actions(connection: &mut PgConnection, order: &OrderView) -> Result<Vec<ActedOn>> {
    let placements = order.placements.iter();
    let topups = order.topups.iter();
    let targets: Vec<String> = std::iter::once(order.order_id.to_string())
        .chain(placements.map(|one| one.placement_id.to_string()))
        .chain(topups.map(|one| one.topup_id.clone()))
        .collect();
    // `named` is materialized, so that its rows are found by the index of targets. Otherwise a plan
    // for the newest ones could walk through all actions by time. The index holds the first 100
    // characters of an id, and ids are shorter.
    let query = sqlx::query_as!(
        ActedOn,
        r#"WITH named AS MATERIALIZED (
               SELECT at, operator, via, command, target, reason, affected, after IS NOT NULL AS has_after FROM operator_actions
               WHERE left(split_part(target, ' ', 2), 100) = ANY ($1))
           SELECT at AS "at!", operator AS "operator!", via, command AS "command!", target AS "target!",
                  reason AS "reason!", affected AS "affected!", has_after AS "has_after!"
           FROM named ORDER BY at DESC LIMIT $2"#,
        &targets,
        MOST_ACTIONS,
    );
    let mut acted = query.fetch_all(connection).await?;
    acted.reverse();
    Ok(acted)
}

/// The units that failed, by placement and reason.
async fn failures(
    connection: &mut PgConnection,
    order: &OrderView,
    acted: &[ActedOn],
    noted: &[HistoryRow],
) -> Result<Vec<StoryMoment>> {
    let failed = order
        .topups
        .iter()
        .filter(|one| one.state == UnitState::Failed);
    let failed: Vec<&TopupView> = failed.filter(|_| !order.refused).collect();
    if failed.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<String> = failed.iter().map(|one| one.topup_id.clone()).collect();
    // The event about a failed topup is stored together with the failure, for each endpoint that
    // wants it.
    let query = sqlx::query!(
        r#"SELECT topup_id AS "topup_id!", created_at FROM deliveries
           WHERE delivery_id = ANY (ARRAY (SELECT delivery_id FROM further_deliveries WHERE topup_id = ANY ($1)))
             AND kind = 'topup.failed' AND topup_id IS NOT NULL"#,
        &ids,
    );
    let events = query.fetch_all(connection).await?;
    let mut groups: Vec<(Uuid, &StoredReason, Vec<&TopupView>)> = Vec::new();
    for unit in failed {
        let reason = &unit.reason;
        let known = groups
            .iter_mut()
            .find(|(placement, why, _)| *placement == unit.placement_id && *why == reason);
        match known {
            Some((_, _, units)) => units.push(unit),
            None => groups.push((unit.placement_id, reason, vec![unit])),
        }
    }
    let moments = groups.into_iter().map(|(placement_id, reason, units)| {
        let given_up = acted
            .iter()
            .rfind(|one| one.command == Command::PlacementNotBought && one.is_about(placement_id))
            .map(|one| one.at);
        let reported = events
            .iter()
            .filter(|event| units.iter().any(|unit| unit.topup_id == event.topup_id));
        let is_failure = |one: &&HistoryRow| {
            matches!(
                one.kind.parse(),
                Ok(HistoryKind::UnitFailed | HistoryKind::Rejected)
            ) && one.placement_id == Some(placement_id)
        };
        let then = noted.iter().filter(is_failure).map(|one| one.at).max();
        let reported = reported.map(|event| event.created_at).max();
        let exact = given_up.or(then).or(reported);
        let mut placements = order.placements.iter();
        let placement = placements.find(|one| one.placement_id == placement_id);
        let attempted = placement.and_then(|one| one.attempted_at);
        let what = MomentKind::Failed {
            placement_id,
            units: units.len(),
            reason: reason.clone(),
            is_exact: exact.is_some(),
        };
        StoryMoment {
            at: exact.or(attempted).unwrap_or(order.created_at),
            what,
        }
    });
    Ok(moments.collect())
}

/// The attempts to send the webhooks of an order, the newest [`MOST_ATTEMPTS`].
async fn webhooks(connection: &mut PgConnection, order: &OrderView) -> Result<Vec<StoryMoment>> {
    let topups: Vec<String> = order
        .topups
        .iter()
        .map(|one| one.topup_id.clone())
        .collect();
    // `ids` finds the deliveries about these topups: the webhooks to first endpoints, and by links
    // those to further ones and the events. The last attempt of a delivered topup is on the
    // delivery's own row.
    let query = sqlx::query!(
        r#"WITH ids AS MATERIALIZED (
               SELECT delivery_id FROM esims WHERE topup_id = ANY ($1) AND delivery_id IS NOT NULL
               UNION SELECT delivery_id FROM further_deliveries WHERE topup_id = ANY ($1)
           ), attempts AS (
               SELECT d.topup_id, d.kind, d.endpoint_id, a.attempt, a.at, a.duration_ms, a.status, a.class
               FROM deliveries d JOIN delivery_attempts a ON a.delivery_id = d.delivery_id
               WHERE d.delivery_id = ANY (ARRAY (SELECT delivery_id FROM ids))
                 AND a.delivery_id = ANY (ARRAY (SELECT delivery_id FROM ids))
               UNION ALL
               SELECT topup_id, kind, endpoint_id, attempt - 1, attempted_at, coalesce(duration_ms, 0), status, 'delivered'
               FROM deliveries
               WHERE delivery_id = ANY (ARRAY (SELECT delivery_id FROM ids)) AND kind = 'topup.ready' AND state = 'delivered' AND attempted_at IS NOT NULL
           )
           SELECT topup_id, kind AS "kind!", endpoint_id, attempt AS "attempt!", at AS "at!",
                  duration_ms AS "duration_ms!", status, class AS "class!"
           FROM attempts ORDER BY at DESC LIMIT $2"#,
        &topups,
        MOST_ATTEMPTS,
    );
    let rows = query.fetch_all(connection).await?;
    let moments = rows.into_iter().map(|row| {
        let what = MomentKind::Webhook {
            topup_id: row.topup_id,
            kind: row.kind,
            endpoint_id: row.endpoint_id,
            attempt: row.attempt + 1,
            duration_ms: row.duration_ms,
            status: row.status,
            class: row.class,
        };
        StoryMoment { at: row.at, what }
    });
    Ok(moments.collect())
}
