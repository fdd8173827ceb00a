//! Settling placements: the outcomes of attempts, look-ups and collects are recorded in batches.
//!
//! The provisioner calls [`settle`] through its group commit, after the provider has responded. An
//! outcome, its profiles, the deliveries of the ready units and the work that is left are committed
//! together. A late or repeated settlement changes nothing, because each statement has a condition
//! on the placement's state and attempt.
//!
//! This file divides a batch among three statements, each with a module of its own:
//!
//! - `complete` records what nearly all outcomes are: an attempt, whatever its number, bought the
//!   placement right after its claim, and all of its profiles are there. It is lean, and writes
//!   three tables.
//! - `bought` records every other purchase, and what `complete` has not moved. It also writes and
//!   deletes due work and rows that wait for an operator.
//! - `moves` does so for outcomes that bought nothing.
//!
//! A new outcome that buys nothing needs a variant of [`AttemptOutcome`], a kind in `moves`, and
//! its transition both in the statement there and in [`domain::placement`]. The test `machine`
//! compares these two in every state.

mod bought;
mod complete;
mod outcome;
mod unbought;

use std::collections::HashMap;

use domain::PlacementId;
use pg::{Result, Transaction, TransactionEnd, retry_conflicts, transaction};
use sqlx::PgConnection;
use uuid::Uuid;

pub use self::outcome::{
    AttemptOutcome, KnownColumns, PlacementSettlement, Progress, ReadyProfile, SettledUnit,
    SettlementEffect,
};
use self::{bought::Bought, outcome::Changes, unbought::Unbought};

/// Records a batch of settlements, each along a transition of [`domain::placement`], and returns
/// the effect of each.
///
/// The common outcomes are committed first and by themselves. After a conflict only the part that
/// lost it is repeated. After any other error the caller repeats the whole batch. The common part
/// then finds its placements settled already, and the general statement returns the deliveries that
/// the first writing has made, so that they are announced. If the first writing is still at work
/// then, it does not see them, and the sweep finds them when their first lease ends.
pub async fn settle(
    connection: &mut PgConnection,
    settlements: &[PlacementSettlement],
) -> Result<Vec<SettlementEffect>> {
    if settlements.iter().any(|one| one.is_priced) {
        return settle_with_accounts(connection, settlements).await;
    }
    let mut settled = vec![SettlementEffect::default(); settlements.len()];
    let remaining = retry_conflicts!(complete::record(
        &mut *connection,
        settlements,
        &mut settled
    ))?;
    if !remaining.is_empty() {
        settle_others(connection, settlements, &remaining, &mut settled).await?;
    }
    Ok(settled)
}

/// Records a batch in which units have prices, in one transaction: the accounts are locked first,
/// and what became of the units is booked last. A batch without such units does not pay for this.
async fn settle_with_accounts(
    connection: &mut PgConnection,
    settlements: &[PlacementSettlement],
) -> Result<Vec<SettlementEffect>> {
    let priced = settlements.iter().filter(|one| one.is_priced);
    let priced: Vec<Uuid> = priced.map(|one| one.placement_id.uuid()).collect();
    transaction!(connection, "settle::settle_with_accounts", |transaction| {
        let lock = sqlx::query!("SELECT lock_accounts($1)", &priced);
        lock.execute(&mut **transaction).await?;
        let mut settled = vec![SettlementEffect::default(); settlements.len()];
        let remaining = complete::record(transaction, settlements, &mut settled).await?;
        for round in &rounds(settlements, &remaining) {
            settle_round(transaction, settlements, round, &mut settled).await?;
        }
        let account = sqlx::query_scalar!("SELECT account_for($1)", &priced);
        account.fetch_one(&mut **transaction).await?;
        Ok(TransactionEnd::Commit(settled))
    })
}

/// Records these members of a batch by the general statements, in one transaction where that is
/// needed.
///
/// Usually it is not, because all members are purchases without failed or parked units. Each
/// statement for such a purchase leaves every row in a state that the machine allows, writes what
/// the history has to tell of it itself, and says the same again when it is repeated. That holds
/// for the further statements, too: one parks a purchase that nobody expected, and a second
/// settlement of the same placement has a round of its own. If the process dies in between,
/// readiness events are missing, and the sweep finds their deliveries.
///
/// Failed units need the transaction, because a further statement marks them as failed: if the
/// process died before it, they would stay pending without any work. A further statement writes
/// into the history what is parked, too. Outcomes that bought nothing are rare, so the cost of the
/// transaction does not matter there.
async fn settle_others(
    connection: &mut PgConnection,
    settlements: &[PlacementSettlement],
    members: &[usize],
    settled: &mut [SettlementEffect],
) -> Result<()> {
    let rounds = rounds(settlements, members);
    if members
        .iter()
        .all(|member| each_statement_stands_alone(&settlements[*member]))
    {
        // Usually only the first of these statements has anything to do.
        for round in &rounds {
            let mut changes = HashMap::new();
            let bought = Bought::of(members_of(settlements, round));
            retry_conflicts!(bought.record(&mut *connection, &mut changes))?;
            retry_conflicts!(bought.park_others(&mut *connection, &mut changes))?;
            take_over(settlements, round, changes, settled);
        }
        return Ok(());
    }
    transaction!(connection, "settle::settle_others", |transaction| {
        for round in &rounds {
            settle_round(transaction, settlements, round, settled).await?;
        }
        Ok(TransactionEnd::Commit(()))
    })
}

/// Records a round by all of the general statements.
async fn settle_round(
    transaction: &mut Transaction<'_>,
    settlements: &[PlacementSettlement],
    round: &[usize],
    settled: &mut [SettlementEffect],
) -> Result<()> {
    let mut changes = HashMap::new();
    let unbought = Unbought::of(members_of(settlements, round));
    unbought.record(transaction, &mut changes).await?;
    let bought = Bought::of(members_of(settlements, round));
    bought.record(transaction, &mut changes).await?;
    bought
        .fail_units_and_write_history(transaction, &changes)
        .await?;
    bought.park_others(transaction, &mut changes).await?;
    take_over(settlements, round, changes, settled);
    Ok(())
}

/// The members of a round.
fn members_of<'a>(
    settlements: &'a [PlacementSettlement],
    round: &[usize],
) -> impl Iterator<Item = &'a PlacementSettlement> {
    round.iter().map(|index| &settlements[*index])
}

/// Takes the effects of a round over into the result. A repetition of the round writes them again.
fn take_over(
    settlements: &[PlacementSettlement],
    round: &[usize],
    mut changes: Changes,
    settled: &mut [SettlementEffect],
) {
    for index in round {
        settled[*index] = changes
            .remove(&settlements[*index].placement_id)
            .unwrap_or_default();
    }
}

/// Whether each of the general statements for this settlement may be committed by itself; see
/// [`settle_others`].
fn each_statement_stands_alone(settlement: &PlacementSettlement) -> bool {
    let has_not_failed = |unit: &SettledUnit| !matches!(unit.progress, Progress::Failed(_));
    matches!(&settlement.outcome, AttemptOutcome::Bought { units, park: None, .. } if units.iter().all(has_not_failed))
}

/// Splits these members of a batch into rounds, each of which is recorded by one execution of the
/// statements. A statement sees each row as it was before, so it must not name a placement twice.
/// Two settlements of one placement therefore go into different rounds. Usually there is one round.
fn rounds(settlements: &[PlacementSettlement], members: &[usize]) -> Vec<Vec<usize>> {
    let mut rounds: Vec<Vec<usize>> = Vec::new();
    let mut next: HashMap<PlacementId, usize> = HashMap::with_capacity(members.len());
    for index in members {
        let round = next.entry(settlements[*index].placement_id).or_default();
        match rounds.get_mut(*round) {
            Some(round) => round.push(*index),
            None => rounds.push(vec![*index]),
        }
        *round += 1;
    }
    rounds
}
