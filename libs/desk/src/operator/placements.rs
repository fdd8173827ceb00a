//! Lists of placements, and the resolution of parked ones (`esimctl placement`).
//!
//! A parked placement waits for an operator, because something about it is unknown or
//! contradictory. [`resolve`] records what the operator has found out at the provider. It follows
//! the transitions of [`domain::placement`], and refuses what could buy twice or deliver for an
//! order that was answered with 422.

use std::iter;

use domain::{
    HistoryKind, OrderId, PartnerId, PlacementId, PlacementState, Stored, StoredReason,
    placement::{Placement, PlacementEvent, Resolution},
};
use pg::{
    Error, Result, Transaction,
    actions::{self, Action, ActionChange, Mode},
    transaction, unsigned,
};
use serde::Serialize;
use sqlx::PgConnection;
use store::{
    Unflushed,
    history::{self, Note, PlacementSnapshot},
    placements::asked,
};
use time::OffsetDateTime;
use uuid::Uuid;

/// A row of [`list`].
#[derive(Clone, Debug, Serialize)]
pub struct ListedPlacement {
    /// The id of the placement, which is the order id that the provider sees.
    pub placement_id: PlacementId,
    pub order_id: OrderId,
    pub partner_id: PartnerId,
    /// The partner's name.
    pub partner: Option<String>,
    pub external_order_id: String,
    pub provider: String,
    /// The further providers at which a parked placement may be bought: those of its other pairs
    /// after a restored dump, and those that have rejected it before, if a purchase came that
    /// contradicts that.
    pub elsewhere: Vec<String>,
    /// What is bought: the provider's name of the option, or of the set of options. It is the lane
    /// of the placement.
    pub lane: String,
    pub state: Stored<PlacementState>,
    /// The number of the last recorded attempt.
    pub attempt: i32,
    /// Why the placement left the normal path.
    pub reason: StoredReason,
    /// Whether the provider confirmed the purchase.
    pub bought: bool,
    pub units: i64,
    /// The number of units that have no profile and have not failed.
    pub pending: i64,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// Since when it has been parked.
    #[serde(with = "time::serde::rfc3339::option")]
    pub parked_at: Option<OffsetDateTime>,
    /// When a provisioner looks at it next, if it has work.
    #[serde(with = "time::serde::rfc3339::option")]
    pub due_at: Option<OffsetDateTime>,
}

impl ListedPlacement {
    /// Since when it has been parked, or else stored.
    pub fn since(&self) -> OffsetDateTime {
        self.parked_at.unwrap_or(self.created_at)
    }
}

/// Lists at most `limit` placements, optionally of one state or provider. Parked ones come oldest
/// first, because they have waited longest for an operator; all others come newest first.
pub async fn list(
    connection: &mut PgConnection,
    state: Option<PlacementState>,
    provider: Option<&str>,
    limit: i64,
) -> Result<Unflushed<Vec<ListedPlacement>>> {
    let chosen = if state == Some(PlacementState::Parked) {
        parked(connection, provider, limit).await?
    } else {
        newest(connection, state, provider, limit).await?
    };
    let rows = sqlx::query_as!(
        ListedPlacement,
        r#"SELECT p.placement_id, p.order_id, o.partner_id, o.external_order_id, p.provider, p.state, p.attempt,
                  p.reason, p.placed_at IS NOT NULL AS "bought!", p.created_at,
                  (SELECT name FROM partners a WHERE a.partner_id = o.partner_id) AS partner,
                  (SELECT at FROM held h WHERE h.id = p.placement_id) AS "parked_at?",
                  (SELECT at FROM work w WHERE w.id = p.placement_id) AS "due_at?",
                  counted.units AS "units!", counted.pending AS "pending!", p.lane,
                  ARRAY (SELECT pair->>'provider'
                         FROM jsonb_array_elements(coalesce(p.alternatives, '[]')
                                                   || CASE WHEN p.disputed THEN coalesce(p.tried, '[]') ELSE '[]' END) pair
                         WHERE p.state = 'parked' AND pair->>'provider' <> p.provider) AS "elsewhere!: Vec<String>"
           FROM placements p
           JOIN orders o ON o.order_id = p.order_id
           -- For each placement by itself, so that no plan reads the units of all placements.
           CROSS JOIN LATERAL (
               SELECT count(*) AS units, count(*) FILTER (WHERE t.state = 'pending' AND e.ready_at IS NULL) AS pending
               FROM topups t LEFT JOIN esims e ON e.topup_id = t.topup_id
               WHERE t.placement_id = p.placement_id
           ) counted
           WHERE p.placement_id = ANY ($1)
           ORDER BY array_position($1, p.placement_id)"#,
        &chosen,
    );
    Ok(Unflushed::of(rows.fetch_all(connection).await?))
}

/// The number of rows that one statement reads of the history, which bounds its cost.
const LOOK: i64 = 5_000;

/// The ids of parked placements, oldest first. They are in `held`, whose index is by provider and
/// time, so `known` walks from provider to provider, and the rest reads the oldest of each.
async fn parked(
    connection: &mut PgConnection,
    provider: Option<&str>,
    limit: i64,
) -> Result<Vec<Uuid>> {
    let found = sqlx::query_scalar!(
        r#"WITH RECURSIVE known (provider) AS (
               -- Walks from provider to provider by the index.
               (SELECT provider FROM held WHERE state = 'parked' ORDER BY provider LIMIT 1)
               UNION ALL
               SELECT (SELECT h.provider FROM held h WHERE h.state = 'parked' AND h.provider > known.provider
                       ORDER BY h.provider LIMIT 1)
               FROM known WHERE known.provider IS NOT NULL
           )
           SELECT parked.id AS "placement_id!"
           FROM known
           CROSS JOIN LATERAL (
               SELECT id, at FROM held h WHERE h.state = 'parked' AND h.provider = known.provider ORDER BY at LIMIT $2
           ) parked
           WHERE $1::text IS NULL OR known.provider = $1
           ORDER BY parked.at LIMIT $2"#,
        provider,
        limit,
    );
    Ok(found.fetch_all(connection).await?)
}

/// The ids of the newest placements that match. The states and providers have no index of their
/// own. So this reads the history backwards in bounded steps until it has found enough; placement
/// ids are in the order of time.
async fn newest(
    connection: &mut PgConnection,
    state: Option<PlacementState>,
    provider: Option<&str>,
    limit: i64,
) -> Result<Vec<Uuid>> {
    let mut found = Vec::new();
    let mut before = Uuid::max();
    let limit = usize::try_from(limit).unwrap_or_default();
    loop {
        let look = sqlx::query!(
            "SELECT placement_id, state, provider FROM placements
             WHERE placement_id < $1 ORDER BY placement_id DESC LIMIT $2",
            before,
            LOOK,
        );
        let rows = look.fetch_all(&mut *connection).await?;
        let full = i64::try_from(rows.len()) == Ok(LOOK);
        for row in rows {
            before = row.placement_id;
            let state = state.is_none_or(|state| state.as_str() == row.state);
            if state
                && provider.is_none_or(|provider| provider == row.provider)
                && found.len() < limit
            {
                found.push(row.placement_id);
            }
        }
        if !full || found.len() >= limit {
            return Ok(found);
        }
    }
}

/// Asks the provider which of these purchases on hold it has. Returns how many are asked for;
/// `None` if none of them is on hold any more, or if the provider was asked since the page was made
/// whose form has the [mark](actions::mark) `seen`. The answers are those of [`asked::answers`].
pub async fn ask(
    connection: &mut PgConnection,
    placements: &[PlacementId],
    (provider, seen): (&str, &str),
    action: Action<'_>,
) -> Result<Option<usize>> {
    let command = action.command;
    let ask = async |transaction: &mut Transaction<'_>| {
        // This waits for whoever asks for the same purchases at this moment, so the look at the
        // record comes after it.
        let asked = asked::ask(transaction, placements).await?;
        let as_seen = actions::mark(transaction, provider, command).await? == seen;
        let ids: Vec<String> = asked.iter().map(PlacementId::to_string).collect();
        let changed = ActionChange::created(serde_json::json!({ "asked": ids }));
        Ok((as_seen && !ids.is_empty()).then_some((ids.len(), changed)))
    };
    actions::recorded(connection, action, ask).await
}

/// A placement after [`resolve`].
#[derive(Clone, Debug, Serialize)]
pub struct ResolvedPlacement {
    pub placement_id: PlacementId,
    pub order_id: OrderId,
    pub provider: String,
    pub state: PlacementState,
    /// The number of the last recorded attempt.
    pub attempt: u32,
    /// The number of units that wait for a profile.
    pub pending: i64,
    pub failed: i64,
    pub ready: i64,
}

/// Why a placement was not resolved.
#[derive(Debug, thiserror::Error)]
pub enum PlacementNotResolved {
    #[error("there is no such placement")]
    Unknown,
    #[error("it is {}; only a parked placement can be resolved", .0.as_str())]
    NotParked(PlacementState),
    /// It was parked again since the operator looked at it, so what the operator has found out may
    /// be about another attempt.
    #[error("it has changed since it was shown, and is at {0} now")]
    Changed(String),
    #[error(
        "its order was answered with 422, so nothing may be delivered for it: cancel the purchase at the provider, \
         then settle it with --not-bought"
    )]
    Refused,
    /// The provider has named units for it, so it is bought, and a retry would buy it a second
    /// time.
    #[error("the provider has named units for it, so it is bought; a retry would buy it twice")]
    HasUnits,
    /// Another provider was named than those that may have sold it.
    #[error(
        "it cannot be at that provider, because it was never sent there and could not go there; it can be at {0}"
    )]
    NotItsProvider(String),
    /// The provider of the placement has named units, so the purchase there is certain, too.
    #[error(
        "{0} has named units for it, so it is bought there, too: cancel the purchase at the other provider, and settle \
         this one with --bought alone"
    )]
    BoughtHere(String),
    #[error(
        "the provider's number of the purchase must have 1 to {LONGEST_REFERENCE} visible ASCII characters and no blanks"
    )]
    BadReference,
    #[error(transparent)]
    Store(#[from] Error),
}

pg::store_error!(PlacementNotResolved);

/// The longest number of a purchase that calls to a provider name.
const LONGEST_REFERENCE: usize = 128;

fn is_reference(text: &str) -> bool {
    (1..=LONGEST_REFERENCE).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// What distinguishes one parking of a placement from the next one: the attempt, and why it is
/// parked.
pub fn parking(attempt: i32, reason: &StoredReason) -> String {
    format!("attempt {attempt}, {}", cause(reason))
}

/// Why a placement is parked, in characters that a form carries unchanged.
pub fn cause(reason: &StoredReason) -> String {
    let reason = reason.told();
    let reason = reason.as_deref().unwrap_or("no reason is recorded");
    // A form carries this text. Browsers change line breaks in it, and pages show control
    // characters in another form, so that it would never be the same again.
    let carried = |of: &char| of.is_alphanumeric() || of.is_ascii_graphic() || *of == ' ';
    let reason: String = reason.chars().filter(carried).collect();
    reason.trim().to_owned()
}

/// What an operator has found out about a parked placement.
#[derive(Clone, Copy, Debug)]
pub struct Decision<'a> {
    pub resolution: Resolution,
    /// The provider that has the purchase, if it is bought; `None` is the one that the placement is
    /// at. It may be one of the placement's other pairs, or one that has rejected it.
    pub bought_at: Option<&'a str>,
    /// The provider's own number of the purchase, if it is bought and the operator knows it. A
    /// provider without a look-up by our id finds an old purchase by nothing else.
    pub reference: Option<&'a str>,
    /// The [`parking`] that the operator has looked into: if the placement was parked anew since
    /// then, nothing is changed.
    pub seen: Option<&'a str>,
}

impl Decision<'_> {
    fn check(&self) -> Result<(), PlacementNotResolved> {
        if self.reference.is_some_and(|text| !is_reference(text)) {
            return Err(PlacementNotResolved::BadReference);
        }
        Ok(())
    }
}

/// Checks that a placement may be at `provider`, which is not the `present` one: it was sold there,
/// or could go there.
async fn check_pair(
    connection: &mut PgConnection,
    placement_id: PlacementId,
    present: &str,
    provider: &str,
) -> Result<(), PlacementNotResolved> {
    let query = sqlx::query_scalar!(
        r#"SELECT pair->>'provider' AS "provider!"
           FROM placements p
           CROSS JOIN jsonb_array_elements(coalesce(p.alternatives, '[]') || coalesce(p.tried, '[]')) pair
           WHERE p.placement_id = $1"#,
        placement_id.uuid(),
    );
    let others = query.fetch_all(connection).await?;
    if others.iter().any(|other| other == provider) {
        return Ok(());
    }
    let known: Vec<&str> = iter::once(present)
        .chain(others.iter().map(String::as_str))
        .collect();
    Err(PlacementNotResolved::NotItsProvider(known.join(", ")))
}

/// Locks a placement before anything about it or its units is read. A statement that locks and
/// reads at once sees the units as they were before it waited for the lock, and so would buy again
/// what another operator has just entered by hand.
pub(super) async fn lock(
    transaction: &mut Transaction<'_>,
    placement_id: PlacementId,
) -> Result<(), sqlx::Error> {
    let statement = sqlx::query!(
        "SELECT FROM placements WHERE placement_id = $1 FOR UPDATE",
        placement_id.uuid(),
    );
    statement.execute(&mut **transaction).await?;
    Ok(())
}

/// Resolves a parked placement by [`PlacementEvent::Resolve`]. If it is bought or retried, failed
/// units to which the provider has assigned nothing become pending again.
pub async fn resolve(
    connection: &mut PgConnection,
    placement_id: PlacementId,
    decision: Decision<'_>,
    mode: Mode<'_>,
) -> Result<ResolvedPlacement, PlacementNotResolved> {
    decision.check()?;
    transaction!(connection, "placements::resolve", |transaction| {
        // The account comes first, as whenever something of a unit is booked.
        let accounts = sqlx::query!("SELECT lock_accounts(ARRAY[$1::uuid])", placement_id.uuid());
        accounts.execute(&mut **transaction).await?;
        lock(transaction, placement_id).await?;
        let query = sqlx::query!(
            r#"SELECT p.order_id, p.provider, p.state, p.attempt, p.reason, p.placed_at, o.refused_at IS NOT NULL AS "refused!",
                  EXISTS (SELECT FROM topups t JOIN esims e ON e.topup_id = t.topup_id
                          WHERE t.placement_id = p.placement_id) AS "has_units!"
           FROM placements p JOIN orders o ON o.order_id = p.order_id
           WHERE p.placement_id = $1"#,
            placement_id.uuid(),
        );
        let row = query.fetch_optional(&mut **transaction).await?;
        let row = row.ok_or(PlacementNotResolved::Unknown)?;
        let parked = Placement {
            state: row.state.parse().map_err(Error::from)?,
            attempt: unsigned(row.attempt),
            ..Placement::NEW
        };
        let settled = parked
            .after(PlacementEvent::Resolve(decision.resolution))
            .map_err(|_| PlacementNotResolved::NotParked(parked.state))?;
        let now = parking(row.attempt, &row.reason.clone().into());
        if decision.seen.is_some_and(|seen| seen != now) {
            return Err(PlacementNotResolved::Changed(now));
        }
        if row.refused && decision.resolution != Resolution::NotBought {
            return Err(PlacementNotResolved::Refused);
        }
        if row.has_units && decision.resolution == Resolution::Retry {
            return Err(PlacementNotResolved::HasUnits);
        }
        let placed = settled.state == PlacementState::Placed;
        let other = decision
            .bought_at
            .filter(|other| placed && *other != row.provider);
        if let Some(other) = other {
            check_pair(transaction, placement_id, &row.provider, other).await?;
            if row.has_units {
                return Err(PlacementNotResolved::BoughtHere(row.provider));
            }
        }
        let decided = match decision.resolution {
            Resolution::Bought => "bought",
            Resolution::NotBought => "not_bought",
            Resolution::Retry => "retry",
        };
        // The function checks once more what was checked above, because the role of the console has
        // no other way to move a placement.
        let query = sqlx::query_scalar!(
            r#"SELECT resolve_placement($1, $2, $3, $4) AS "moved!""#,
            placement_id.uuid(),
            decided,
            other,
            decision.reference.filter(|_| placed),
        );
        if !query.fetch_one(&mut **transaction).await? {
            return Err(PlacementNotResolved::NotParked(parked.state));
        }
        let units = units(transaction, placement_id).await?;
        let was = PlacementSnapshot::new(parked.state, &row.provider, row.reason, row.placed_at);
        let is = was.resolved(settled.state, other);
        let changed = note_resolved(transaction, placement_id, row.attempt, &was, &is).await?;
        mode.record(transaction, 1, changed).await?;
        Ok(mode.end(ResolvedPlacement {
            placement_id,
            order_id: row.order_id.into(),
            provider: other.map_or(row.provider, str::to_owned),
            state: settled.state,
            attempt: settled.attempt,
            pending: units.pending,
            failed: units.failed,
            ready: units.ready,
        }))
    })
}

/// Notes what a placement was before it was resolved, because its row says so no more.
async fn note_resolved(
    transaction: &mut Transaction<'_>,
    placement_id: PlacementId,
    attempt: i32,
    was: &PlacementSnapshot,
    is: &PlacementSnapshot,
) -> Result<ActionChange> {
    let before = was.json();
    let after = is.json();
    let note = Note {
        attempt: Some(attempt),
        before: Some(before.clone()),
        after: Some(after.clone()),
        ..Note::new(placement_id.uuid(), HistoryKind::Resolved)
    };
    history::write(transaction, &[note]).await?;
    Ok(ActionChange::between(before, after))
}

/// The units of a placement by their states.
struct Units {
    pending: i64,
    failed: i64,
    ready: i64,
}

async fn units(connection: &mut PgConnection, placement_id: PlacementId) -> Result<Units> {
    let query = sqlx::query_as!(
        Units,
        r#"SELECT count(*) FILTER (WHERE state = 'pending' AND e.ready_at IS NULL) AS "pending!",
                  count(*) FILTER (WHERE state = 'failed') AS "failed!",
                  count(e.ready_at) AS "ready!"
           FROM topups LEFT JOIN esims e USING (topup_id) WHERE placement_id = $1"#,
        placement_id.uuid(),
    );
    Ok(query.fetch_one(connection).await?)
}
