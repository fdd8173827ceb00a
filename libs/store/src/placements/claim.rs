//! The claim of placements: it takes the leases of due ones, and records an attempt of each that is
//! to be bought. The module `purchases` of the provisioner calls [`claim`] with the placements that
//! got permits.
//!
//! Guarantee: whoever gets a placement that was `accepted` is the only one that may send its
//! attempt, because `begin_attempts` moves it on under its row lock and records the number of the
//! attempt before anything is sent. This record prevents a second purchase. The leases do not. They
//! only keep other processes from doing the same look-up or collect at the same time.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use domain::{
    OrderId, PartnerId, PlacementId, PlacementState, Reason, Stored, StoredAgreed, TopupId,
    reason::ReasonCode, standing::UnitState,
};
use pg::{Error, Result, age, retry_conflicts, seconds, unsigned, uuids};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    Activity, AttemptOutcome, CopiedOrder, KnownColumns, PlacementSettlement, copied::report_to,
    settle,
};

/// How placements are claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementClaim {
    /// Placements that a job names. They are claimed if they are still `accepted`. Usually they
    /// have no due work, so there is no lease to take. A job that arrives late, after the sweep,
    /// may name a placement that has due work; the next claim of that work finds that it no longer
    /// applies and deletes it.
    Fresh,
    /// Placements with due work of this activity, in any state; the claim first takes their leases.
    /// Work that has become the other activity's since it was found is left to that one's worker
    /// and permits.
    Due(Activity),
    /// Placements with due work of either activity, even while the breaker of the provider is open;
    /// see [`crate::providers::probe`].
    Probe,
}

impl PlacementClaim {
    /// Whether it claims while the breaker of the provider is open.
    fn ignores_the_breaker(self) -> bool {
        self == Self::Probe
    }
}

/// A placement that this provisioner has claimed. A due one is leased: other processes leave it
/// alone until the lease ends. A fresh one has no lease; if nothing is recorded by the end of its
/// first lease, the sweep makes it due.
#[derive(Clone, Debug)]
pub struct ClaimedPlacement {
    pub placement_id: PlacementId,
    pub order_id: OrderId,
    pub partner_id: PartnerId,
    /// The order id of the partner.
    pub external_order_id: String,
    /// When the order was stored.
    pub ordered_at: OffsetDateTime,
    pub lane: String,
    /// The state before the claim. From `accepted`, the claim recorded a new attempt, and only its
    /// holder may send it. In any other state nothing may be bought.
    pub was: PlacementState,
    /// How it was claimed. The settlement of one that was claimed [fresh](PlacementClaim::Fresh)
    /// need not delete due work. If there is some after all, the claim that finds it deletes it.
    pub claim: PlacementClaim,
    /// The last recorded attempt; this claim may have recorded it.
    pub attempt: u32,
    /// The time since that attempt was recorded.
    pub attempt_age: Duration,
    /// The time since the order was stored.
    pub age: Duration,
    /// The time since the provider confirmed the purchase.
    pub placed_age: Option<Duration>,
    /// How many times in a row the outcome of this attempt stayed unknown.
    pub unknowns: u32,
    /// Something is recorded of that attempt that leaves it in doubt: an unknown outcome, or a
    /// look-up that found nothing. Without a doubt the process that recorded the attempt may be
    /// calling the provider right now. This has a meaning only if `was` is `placing`.
    pub in_doubt: bool,
    /// The ingress process that verdicts and readiness events go to, because it may still answer
    /// the order. `None` after `answer_by`, and if its job was published after its answer.
    pub report_to: Option<Uuid>,
    /// W3C trace context of the POST.
    pub traceparent: Option<String>,
    /// The provider's own id of the purchase, if a settlement has recorded one. `None` for a
    /// placement that was `accepted`.
    pub reference: Option<String>,
    /// The units, in the order of the response.
    pub topups: Vec<ClaimedTopup>,
}

/// What is to be done with a claimed placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementTask {
    /// The claim has recorded a new attempt, so its purchase is sent.
    Buy,
    /// The outcome of the attempt is unknown, so the provider is asked for it.
    LookUp,
    /// The outcome is unknown and an operator has to decide, who wants the provider to be asked
    /// once more.
    LookAgain,
    /// It is bought, so its profiles are collected. It may be parked, because they are overdue.
    Collect,
}

impl ClaimedPlacement {
    /// What is to be done with it; `None` if it is closed, which no claim returns.
    pub fn task(&self) -> Option<PlacementTask> {
        match self.was {
            PlacementState::Accepted => Some(PlacementTask::Buy),
            PlacementState::Placing => Some(PlacementTask::LookUp),
            PlacementState::Parked if self.placed_age.is_none() => Some(PlacementTask::LookAgain),
            PlacementState::Placed | PlacementState::Parked => Some(PlacementTask::Collect),
            PlacementState::Refused | PlacementState::Failed => None,
        }
    }

    /// A fresh placement whose first attempt was recorded right now. Set further fields with
    /// `..ClaimedPlacement::new(…)`.
    pub fn new(
        placement_id: PlacementId,
        order_id: OrderId,
        partner_id: PartnerId,
        external_order_id: String,
        ordered_at: OffsetDateTime,
        topups: Vec<ClaimedTopup>,
    ) -> Self {
        Self {
            placement_id,
            order_id,
            partner_id,
            external_order_id,
            ordered_at,
            lane: String::new(),
            was: PlacementState::Accepted,
            claim: PlacementClaim::Fresh,
            attempt: 1,
            attempt_age: Duration::ZERO,
            age: Duration::ZERO,
            placed_age: None,
            unknowns: 0,
            in_doubt: false,
            report_to: None,
            traceparent: None,
            reference: None,
            topups,
        }
    }

    /// Whether its units have prices. They have none without terms; a term that is no price costs a
    /// statement that finds nothing to book.
    pub fn is_priced(&self) -> bool {
        self.topups.iter().any(|topup| topup.agreed.terms.is_some())
    }

    /// What the eSIMs and deliveries of its units repeat, for the lean settlement.
    pub fn known_columns(&self, provider: &str, is_proved_by_look_up: bool) -> KnownColumns {
        let agreed = |topup: &ClaimedTopup| (topup.topup_id.clone(), topup.agreed.clone());
        KnownColumns {
            order_id: self.order_id,
            partner_id: self.partner_id,
            provider: provider.to_owned(),
            external_order_id: self.external_order_id.clone(),
            ordered_at: self.ordered_at,
            traceparent: self.traceparent.clone(),
            agreed: self.topups.iter().map(agreed).collect(),
            is_proved_by_look_up,
        }
    }
}

#[derive(Clone, Debug)]
pub struct ClaimedTopup {
    pub topup_id: TopupId,
    pub agreed: StoredAgreed,
    pub provider_option_id: String,
    /// The provider's unit id, if one is assigned.
    pub provider_unit_id: Option<String>,
    /// Whether it still waits for a profile.
    pub pending: bool,
}

impl ClaimedTopup {
    /// A unit that no provider has named yet.
    pub fn new(topup_id: TopupId, agreed: StoredAgreed, provider_option_id: String) -> Self {
        Self {
            topup_id,
            agreed,
            provider_option_id,
            provider_unit_id: None,
            pending: true,
        }
    }
}

/// A row of the result: one topup of a claimed placement, with the columns of the placement
/// repeated.
struct Row {
    placement_id: Uuid,
    order_id: Uuid,
    partner_id: Uuid,
    external_order_id: String,
    ordered_at: OffsetDateTime,
    lane: String,
    was: Stored<PlacementState>,
    attempt: i32,
    attempt_age: f64,
    age: f64,
    placed_age: Option<f64>,
    unknowns: i32,
    in_doubt: bool,
    answering: Option<Uuid>,
    answer_for: f64,
    traceparent: Option<String>,
    reference: Option<String>,
    position: i32,
    topup_id: String,
    option_id: Uuid,
    terms: Option<String>,
    provider_option_id: String,
    provider_unit_id: Option<String>,
    state: Stored<UnitState>,
}

/// Claims placements of a provider, and returns those that this process must work on now. While the
/// breaker of the provider is open, it returns nothing, except for [`PlacementClaim::Probe`].
///
/// Placements that are `accepted` move by [`domain::placement::PlacementEvent::Claim`], which
/// records the attempt before anything is sent. Others are claimed only for a look-up or a collect,
/// and only as due work.
///
/// The steps are separate statements and transactions. Once attempts are recorded, no later error
/// may end the claim, because only this process may send them: all other placements can be found
/// again as due work, but an attempt that nobody sends costs a settling delay and two look-ups.
pub async fn claim(
    connection: &mut PgConnection,
    provider: &str,
    placements: &[PlacementId],
    claim: PlacementClaim,
    lease: Duration,
) -> Result<Vec<ClaimedPlacement>> {
    let ids = uuids(placements);
    match claim {
        PlacementClaim::Fresh => claim_fresh(connection, provider, &ids).await,
        PlacementClaim::Due(_) | PlacementClaim::Probe => {
            claim_due(connection, provider, &ids, claim, lease).await
        }
    }
}

/// Claims the placements that a job names: it records an attempt of each that is still `accepted`,
/// and leaves all others alone.
async fn claim_fresh(
    connection: &mut PgConnection,
    provider: &str,
    placements: &[Uuid],
) -> Result<Vec<ClaimedPlacement>> {
    let claim = PlacementClaim::Fresh;
    let begun = retry_conflicts!(begin_attempts(
        &mut *connection,
        provider,
        placements,
        claim
    ))?;
    let (mut claimed, unread) = split_by_copy(begun, claim);
    claimed.extend(read_or_park(connection, provider, &unread, claim).await);
    Ok(claimed)
}

/// Claims placements with due work, in any state.
///
/// 1. Each is leased, so that no other process claims it until `lease` has passed.
/// 2. An attempt is recorded of those that are `accepted`, except by look-ups.
/// 3. What the rows do not say by themselves is read: of these, and of the others, which are looked
///    up or collected. A placement whose row cannot be read is parked.
/// 4. What this process must not work on is put off. An attempt that is in flight elsewhere is due
///    again when that lease ends, and the due work of a finished placement is deleted.
async fn claim_due(
    connection: &mut PgConnection,
    provider: &str,
    placements: &[Uuid],
    claim: PlacementClaim,
    lease: Duration,
) -> Result<Vec<ClaimedPlacement>> {
    let leased = take_leases(connection, provider, placements, claim, lease).await?;
    if leased.is_empty() {
        return Ok(Vec::new());
    }
    // A look-up buys nothing, even if its placement has become `accepted` since its lease was
    // taken.
    let begun = match claim {
        PlacementClaim::Due(Activity::LookUps) => Vec::new(),
        _ => match retry_conflicts!(begin_attempts(&mut *connection, provider, &leased, claim)) {
            Ok(begun) => begun,
            Err(error) => {
                end_leases(connection, &leased).await;
                return Err(error);
            }
        },
    };
    let begun_ids: HashSet<Uuid> = begun.iter().map(|row| row.placement_id).collect();
    let others = leased.into_iter().filter(|id| !begun_ids.contains(id));
    let (mut claimed, mut unread) = split_by_copy(begun, claim);
    unread.extend(others.map(|placement_id| Unread {
        placement_id,
        begun: None,
    }));
    claimed.extend(read_or_park(connection, provider, &unread, claim).await);
    // An error must not lose the attempts that were recorded above.
    if let Err(error) = put_off(connection, &mut claimed, lease).await {
        tracing::warn!(%error, "cannot put off placements that are in flight or finished");
    }
    Ok(claimed)
}

/// Divides the placements whose attempts were recorded: those whose rows say all that the purchase
/// needs, and those of which it has to be read.
fn split_by_copy(begun: Vec<Begun>, claim: PlacementClaim) -> (Vec<ClaimedPlacement>, Vec<Unread>) {
    let mut claimed = Vec::with_capacity(begun.len());
    let mut unread = Vec::new();
    for row in begun {
        match row.first_claim.as_deref().and_then(CopiedOrder::parse) {
            Some(first) => claimed.push(row.claimed(first, claim)),
            None => unread.push(Unread {
                placement_id: row.placement_id,
                begun: Some(row.attempt),
            }),
        }
    }
    (claimed, unread)
}

/// Reads claimed placements, and parks those whose rows cannot be read. It returns no error,
/// because that would lose the attempts that this claim has recorded.
async fn read_or_park(
    connection: &mut PgConnection,
    provider: &str,
    unread: &[Unread],
    claim: PlacementClaim,
) -> Vec<ClaimedPlacement> {
    if unread.is_empty() {
        return Vec::new();
    }
    let rows = match retry_conflicts!(read(&mut *connection, provider, unread)) {
        Ok(rows) => rows,
        Err(error) => {
            tracing::warn!(
                %error,
                "cannot read claimed placements; those whose attempts were recorded are looked up \
                 when their leases, or their first leases, end, and the others are due at once"
            );
            let leased = unread.iter().filter(|one| one.begun.is_none());
            let leased: Vec<Uuid> = leased.map(|one| one.placement_id).collect();
            end_leases(connection, &leased).await;
            return Vec::new();
        }
    };
    let mut claimed = Vec::with_capacity(unread.len());
    for placement in group(rows, claim) {
        match placement {
            Ok(placement) => claimed.push(placement),
            Err(unreadable) => {
                if let Err(error) = unreadable.park(connection).await {
                    tracing::warn!(%error, "cannot park a placement that cannot be read; it is claimed again when its lease ends");
                }
            }
        }
    }
    claimed
}

/// Takes the leases of due placements, except of those that another process has leased meanwhile.
/// Returns the leased ones.
///
/// `free` finds the rows of due work that are still due. Since the look that found them they have
/// waited for a permit, so another process may have leased them, which moved `at` into the future,
/// or have looked up and found no purchase, so that they are due to buy again, with a permit of the
/// other activity. Or the breaker may have opened. `SKIP LOCKED` leaves out rows that another
/// process is leasing at this moment, so that no claim waits for another one. The `UPDATE` then
/// takes the leases: it moves `at` to the end of the lease. A placement that has gone to another
/// provider is left to that one. `$3` is true for a probe, which no open breaker stops, and which
/// may be of either activity.
async fn take_leases(
    connection: &mut PgConnection,
    provider: &str,
    placements: &[Uuid],
    claim: PlacementClaim,
    lease: Duration,
) -> Result<Vec<Uuid>> {
    let kinds = match claim {
        PlacementClaim::Due(activity) => activity.kinds(),
        PlacementClaim::Fresh | PlacementClaim::Probe => &[],
    };
    let kinds: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
    let query = sqlx::query_scalar!(
        "WITH free AS (
             SELECT w.id FROM work w
             WHERE w.id = ANY ($1) AND w.provider = $4 AND w.at <= now()
               AND ($3 OR w.kind = ANY ($5) AND NOT EXISTS (
                   SELECT FROM providers p WHERE p.name = w.provider AND p.open_until IS NOT NULL))
             FOR UPDATE SKIP LOCKED
         )
         UPDATE work SET at = now() + make_interval(secs => $2)
         WHERE id = ANY (ARRAY (SELECT id FROM free))
         RETURNING id",
        placements,
        seconds(lease),
        claim.ignores_the_breaker(),
        provider,
        &kinds as &[&str],
    );
    Ok(query.fetch_all(connection).await?)
}

/// Ends leases of placements with which nothing was done, because a later step of the claim has
/// failed. Otherwise they would wait for the end of leases that nobody uses.
async fn end_leases(connection: &mut PgConnection, placements: &[Uuid]) {
    let statement = sqlx::query!(
        "UPDATE work SET at = now() WHERE id = ANY ($1) AND at > now()",
        placements
    );
    if let Err(error) = statement.execute(connection).await {
        tracing::warn!(%error, "cannot end the leases of placements early; they wait for their end");
    }
}

/// Records an attempt of each of these placements that is still `accepted`. This is the only
/// statement that allows a purchase. Its commit is flushed, unlike those of orders that wait for a
/// verdict: their 201 rests on this flush, which comes later in the log (safeguard `flush-claim`).
///
/// - `free` locks the placements that may be bought, if the breaker allows it. Under its row lock
///   the statement sees the newest state, so if two processes claim the same placement, one of them
///   gets nothing. A placement that another transaction has locked is skipped, so that one stalled
///   process cannot hold up the others; if it is still `accepted` later, the sweep or the next look
///   finds it.
/// - `claimed` records the attempt: its number, its time, and that nothing is known of its outcome.
/// - `first_claim` is what the purchase needs of the order and its units. It holds for the first
///   attempt only, because a later one may be at another provider.
async fn begin_attempts(
    connection: &mut PgConnection,
    provider: &str,
    placements: &[Uuid],
    claim: PlacementClaim,
) -> Result<Vec<Begun>> {
    let rows = sqlx::query_as!(
        Begun,
        r#"WITH free AS (
               SELECT placement_id FROM placements
               WHERE placement_id = ANY ($1) AND provider = $2 AND state = 'accepted'
                 AND ($3 OR NOT EXISTS (SELECT FROM providers WHERE name = $2 AND open_until IS NOT NULL))
               FOR UPDATE SKIP LOCKED
           ), claimed AS (
               UPDATE placements p
               SET state = 'placing', attempt = p.attempt + 1, attempted_at = now(), not_found_at = NULL, unknowns = 0
               FROM free WHERE p.placement_id = free.placement_id
               RETURNING p.placement_id, p.order_id, p.partner_id, p.lane, p.attempt, p.created_at, p.first_claim
           )
           SELECT placement_id, order_id, partner_id, lane, attempt, created_at,
                  extract(epoch FROM now() - created_at)::float8 AS "age!",
                  CASE WHEN attempt = 1 THEN first_claim END AS first_claim
           FROM claimed"#,
        placements,
        provider,
        claim.ignores_the_breaker(),
    );
    Ok(rows.fetch_all(connection).await?)
}

/// A placement whose attempt this process has recorded.
struct Begun {
    placement_id: Uuid,
    order_id: Uuid,
    partner_id: Uuid,
    lane: String,
    attempt: i32,
    created_at: OffsetDateTime,
    age: f64,
    first_claim: Option<String>,
}

impl Begun {
    fn claimed(self, mut first: CopiedOrder, claim: PlacementClaim) -> ClaimedPlacement {
        let age = age(self.age);
        let report_to = first.report_to(self.age);
        let units = first.take_units();
        let topups = units.map(|(id, agreed, product)| ClaimedTopup::new(id, agreed, product));
        ClaimedPlacement {
            lane: self.lane,
            claim,
            attempt: unsigned(self.attempt),
            age,
            report_to,
            traceparent: first.traceparent,
            ..ClaimedPlacement::new(
                self.placement_id.into(),
                self.order_id.into(),
                self.partner_id.into(),
                first.external_order_id,
                self.created_at,
                topups.collect(),
            )
        }
    }
}

/// A claimed placement of which this process knows no more than this.
struct Unread {
    placement_id: Uuid,
    /// The attempt that this process has recorded; `None` if the placement is leased for a look-up
    /// or a collect.
    begun: Option<i32>,
}

/// Reads claimed placements with their orders and units. It changes nothing.
///
/// - One whose attempt this process has recorded is read as it was before that, `accepted`. It is
///   left out if another process has settled the attempt since, because then it is not this
///   process' to send.
/// - One that is leased is left out if it has become `accepted`, or has gone to another provider:
///   then its next claim buys it.
/// - `esims` has a row for each unit that the provider has named. A unit with `ready_at` has its
///   profile, and counts as ready whatever its topup says.
async fn read(
    connection: &mut PgConnection,
    provider: &str,
    unread: &[Unread],
) -> Result<Vec<Row>> {
    let placements: Vec<Uuid> = unread.iter().map(|one| one.placement_id).collect();
    let begun: Vec<Option<i32>> = unread.iter().map(|one| one.begun).collect();
    let rows = sqlx::query_as!(
        Row,
        r#"SELECT p.placement_id, p.order_id, p.partner_id, o.external_order_id, o.created_at AS ordered_at, p.lane,
                  CASE WHEN unread.begun IS NULL THEN p.state ELSE 'accepted' END AS "was!", p.attempt,
                  coalesce(extract(epoch FROM now() - p.attempted_at), 0)::float8 AS "attempt_age!",
                  extract(epoch FROM now() - p.created_at)::float8 AS "age!",
                  extract(epoch FROM now() - p.placed_at)::float8 AS placed_age, p.unknowns,
                  p.unknowns > 0 OR p.not_found_at IS NOT NULL AS "in_doubt!",
                  o.answering, extract(epoch FROM o.answer_by - now())::float8 AS "answer_for!", o.traceparent,
                  p.provider_reference AS reference, t.position, t.topup_id, t.option_id, t.terms,
                  t.provider_option_id, e.provider_unit_id AS "provider_unit_id?",
                  CASE WHEN e.ready_at IS NULL THEN t.state ELSE 'ready' END AS "state!"
           FROM unnest($1::uuid[], $2::int[]) AS unread (placement_id, begun)
           JOIN placements p ON p.placement_id = unread.placement_id
           JOIN orders o ON o.order_id = p.order_id
           JOIN topups t ON t.placement_id = p.placement_id
           LEFT JOIN esims e ON e.topup_id = t.topup_id
           WHERE CASE WHEN unread.begun IS NULL THEN p.provider = $3 AND p.state <> 'accepted'
                      ELSE p.state = 'placing' AND p.attempt = unread.begun END"#,
        &placements,
        &begun as &[Option<i32>],
        provider,
    );
    Ok(rows.fetch_all(connection).await?)
}

/// A placement of which a row holds a value that this program does not know, for example because a
/// newer version has written it or it is damaged.
struct Unreadable {
    placement_id: PlacementId,
    attempt: u32,
    error: Error,
}

impl Unreadable {
    fn new(row: &Row, error: impl Into<Error>) -> Self {
        Self {
            placement_id: row.placement_id.into(),
            attempt: unsigned(row.attempt),
            error: error.into(),
        }
    }

    /// Parks the placement, so that it does not fail in every claim. One that is parked already
    /// stays as it is; it fails, and is logged, with each further look at it.
    async fn park(self, connection: &mut PgConnection) -> Result<()> {
        let error = self.error;
        let parked = PlacementSettlement {
            placement_id: self.placement_id,
            attempt: self.attempt,
            outcome: AttemptOutcome::Unstorable {
                reason: Reason::with(ReasonCode::RowUnreadable, error.to_string()),
            },
            is_priced: false,
            known: None,
        };
        settle(connection, &[parked]).await?;
        tracing::error!(placement.id = %self.placement_id, %error, "parked: its row cannot be read");
        Ok(())
    }
}

/// Groups the rows of topups into placements, in the order of their first rows.
fn group(mut rows: Vec<Row>, claim: PlacementClaim) -> Vec<Result<ClaimedPlacement, Unreadable>> {
    // The units of a placement must be in the order of the response that the partner got.
    rows.sort_by_key(|row| row.position);
    let mut indices: HashMap<Uuid, usize> = HashMap::with_capacity(rows.len());
    let mut claimed: Vec<Result<ClaimedPlacement, Unreadable>> = Vec::with_capacity(rows.len());
    for row in rows {
        let index = *indices.entry(row.placement_id).or_insert_with(|| {
            claimed.push(placement(&row, claim).map_err(|error| Unreadable::new(&row, error)));
            claimed.len() - 1
        });
        if let Ok(placement) = &mut claimed[index] {
            match topup(&row) {
                Ok(topup) => placement.topups.push(topup),
                Err(error) => claimed[index] = Err(Unreadable::new(&row, error)),
            }
        }
    }
    claimed
}

fn placement(row: &Row, claim: PlacementClaim) -> Result<ClaimedPlacement> {
    Ok(ClaimedPlacement {
        placement_id: row.placement_id.into(),
        order_id: row.order_id.into(),
        partner_id: row.partner_id.into(),
        external_order_id: row.external_order_id.clone(),
        ordered_at: row.ordered_at,
        lane: row.lane.clone(),
        was: row.was.readable()?,
        claim,
        attempt: unsigned(row.attempt),
        attempt_age: age(row.attempt_age),
        age: age(row.age),
        placed_age: row.placed_age.map(age),
        unknowns: unsigned(row.unknowns),
        in_doubt: row.in_doubt,
        report_to: report_to(row.answering, row.answer_for),
        traceparent: row.traceparent.clone(),
        reference: row.reference.clone(),
        topups: Vec::new(),
    })
}

fn topup(row: &Row) -> Result<ClaimedTopup> {
    let agreed = StoredAgreed {
        option_id: row.option_id.into(),
        terms: row.terms.clone(),
    };
    let product = row.provider_option_id.clone();
    Ok(ClaimedTopup {
        provider_unit_id: row.provider_unit_id.clone(),
        pending: row.state.readable()? == UnitState::Pending,
        ..ClaimedTopup::new(row.topup_id.parse()?, agreed, product)
    })
}

/// Removes the leased placements that this process must not work on from `claimed`, and corrects
/// their due work. An attempt in flight elsewhere belongs to the process that recorded it until its
/// lease ends. A finished placement needs no further work.
///
/// Between the read and this statement the placements may have changed, so they are judged again
/// under their locks:
///
/// - `current` locks the placements, in the order of their ids to avoid deadlocks,
///   and reads their present state. `FOR SHARE` is enough, because it keeps others from changing
///   them.
/// - `finished` deletes the work of those that are still in the state in which they were seen.
///   Otherwise it could delete the work of a placement that an operator resolves at the same
///   moment, which has thereby become due again, and nothing would ever collect its profiles.
/// - The `UPDATE` moves the work of the attempts that are still in flight to the end of their
///   leases, as a look-up.
async fn put_off(
    connection: &mut PgConnection,
    claimed: &mut Vec<ClaimedPlacement>,
    lease: Duration,
) -> Result<()> {
    let mut in_flight = Vec::new();
    let mut finished = Vec::new();
    let mut finished_states = Vec::new();
    claimed.retain(|one| {
        let is_in_flight =
            one.was == PlacementState::Placing && !one.in_doubt && one.attempt_age < lease;
        let is_finished = match one.was {
            PlacementState::Placed | PlacementState::Parked => {
                one.placed_age.is_some() && one.topups.iter().all(|topup| !topup.pending)
            }
            PlacementState::Refused | PlacementState::Failed => true,
            PlacementState::Accepted | PlacementState::Placing => false,
        };
        if is_in_flight {
            in_flight.push(one.placement_id.uuid());
        } else if is_finished {
            finished.push(one.placement_id.uuid());
            finished_states.push(one.was.as_str());
        }
        !is_in_flight && !is_finished
    });
    if in_flight.is_empty() && finished.is_empty() {
        return Ok(());
    }
    retry_conflicts!(async {
        let statement = sqlx::query!(
            "WITH current AS MATERIALIZED (
                 SELECT placement_id, state, attempted_at, unknowns, not_found_at FROM placements
                 WHERE placement_id = ANY ($1) OR placement_id = ANY ($3)
                 ORDER BY placement_id
                 FOR SHARE
             ), finished AS (
                 DELETE FROM work WHERE id = ANY (ARRAY (
                     SELECT current.placement_id
                     FROM current
                     JOIN unnest($1::uuid[], $2::text[]) AS seen (placement_id, state)
                          USING (placement_id, state)))
             )
             UPDATE work w SET kind = 'look_up', at = current.attempted_at + make_interval(secs => $4)
             FROM current
             WHERE w.id = current.placement_id AND w.id = ANY ($3)
               AND current.state = 'placing' AND current.unknowns = 0 AND current.not_found_at IS NULL",
            &finished,
            &finished_states as &[&str],
            &in_flight,
            seconds(lease),
        );
        statement.execute(&mut *connection).await?;
        Ok::<_, Error>(())
    })
}
