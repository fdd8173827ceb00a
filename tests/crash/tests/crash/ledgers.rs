//! Compares the answers, the purchases and the webhooks with the database after the walk.

use crate::walk::{Said, Walk};
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use testkit::stack::Stored;
use testkit::wait;

/// How long the system may take at the end to come to rest. Leases, the settling delay and the
/// first retry of a webhook have to fit into it.
const QUIET: Duration = Duration::from_secs(90);
/// The same where a search proves nothing about an attempt that was never sent. It is parked by the
/// fifth look-up that is recorded, and these are up to a minute apart.
const QUIET_OF_SEARCHES: Duration = Duration::from_mins(6);

fn is_settled(row: &Stored) -> bool {
    let closed = matches!(row.placement.as_str(), "refused" | "failed" | "parked");
    closed || row.topup == "failed" || row.delivery.as_deref() == Some("delivered")
}

/// Waits until nothing is open, and returns every contradiction.
pub async fn compare(walk: &Walk) -> Result<Vec<String>> {
    let settled = async || {
        Ok(walk
            .stack
            .stored()
            .await?
            .iter()
            .all(is_settled)
            .then_some(()))
    };
    // If the time is not enough, the rows that are still open are reported below, by their ids.
    let patience = if walk.searches {
        QUIET_OF_SEARCHES
    } else {
        QUIET
    };
    let _ = wait::until(patience, "quiet", settled).await;

    let stored = walk.stack.stored().await?;
    let orders = walk.stack.ledger().await?.orders.into_iter();
    let purchases: BTreeMap<_, _> = orders
        .map(|order| (order.order_id, order.purchased_times))
        .collect();
    let webhooks = walk.webhooks(false)?;
    // A further endpoint may get a topup only after the first lease of its delivery.
    let everywhere = async || Ok(webhooks.is_subset(&walk.webhooks(true)?).then_some(()));
    let _ = wait::until(QUIET, "the further endpoints", everywhere).await;
    let further = walk.webhooks(true)?;
    println!(
        "{} orders, {} topups stored, {} purchases, {} topups delivered",
        walk.asked.len(),
        stored.len(),
        purchases.values().sum::<u64>(),
        webhooks.len()
    );
    let mut wrong: Vec<String> = webhooks
        .symmetric_difference(&further)
        .map(|webhook| format!("delivered to one of two endpoints only: {webhook:?}"))
        .collect();
    let mut known = BTreeSet::new();
    for row in &stored {
        let webhook = (row.topup_id.clone(), row.external_order_id.clone());
        let delivered = webhooks.contains(&webhook);
        known.insert(webhook);
        let bought = purchases.get(&row.placement_id).copied().unwrap_or(0);
        let fits = match (row.refused, row.placement.as_str(), row.topup.as_str()) {
            (false, "placed", "ready") => bought == 1 && delivered,
            // An attempt that was never sent, and no search can say so for certain.
            (false, "parked", "pending") => walk.searches && bought == 0 && !delivered,
            (true, "refused", _) | (false, "failed", "failed") => bought == 0 && !delivered,
            _ => false,
        };
        if !fits {
            wrong.push(format!(
                "{}: placement {} of topup {} is {}, topup {}, delivery {:?}; bought {bought} times, delivered: {delivered}",
                row.external_order_id, row.placement_id, row.topup_id, row.placement, row.topup, row.delivery
            ));
        }
    }
    let placements: BTreeSet<&str> = stored.iter().map(|row| row.placement_id.as_str()).collect();
    let strangers = purchases
        .keys()
        .filter(|id| !placements.contains(id.as_str()));
    wrong.extend(strangers.map(|id| format!("bought, but not stored: {id}")));
    wrong.extend(
        webhooks
            .difference(&known)
            .map(|webhook| format!("delivered, but not stored: {webhook:?}")),
    );
    wrong.extend(answers(walk, &stored));
    Ok(wrong)
}

/// Returns every give-back about which the partner and the provider disagree.
pub async fn given_back(walk: &Walk) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    let stored = walk.stack.stored().await?;
    for topup_id in &walk.given_back {
        let mut last = String::new();
        let ended = wait::until(QUIET, "the end of a give-back", async || {
            last = walk.change_state(topup_id, "give-back").await?;
            Ok((last != "under_way").then_some(()))
        });
        let ended = ended.await.is_ok();
        let row = stored.iter().find(|row| row.topup_id == *topup_id);
        let placement = row.map_or("", |row| row.placement_id.as_str());
        let ledger = walk.stack.ledger().await?;
        let order = ledger
            .orders
            .iter()
            .find(|order| order.order_id == placement);
        let canceled = order.map_or(0, |order| order.canceled);
        // Only a give-back that is on hold may be either.
        let agrees = last == "on_hold" || canceled == u64::from(last == "returned");
        if !ended || !agrees {
            wrong.push(format!(
                "topup {topup_id}: the partner sees {last}, and the provider has {canceled} units back"
            ));
        }
    }
    println!("{} eSIMs given back", walk.given_back.len());
    Ok(wrong)
}

/// Returns every extension about which the partner and the provider disagree, and each that was
/// added twice.
pub async fn extended(walk: &Walk) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for topup_id in &walk.extended {
        let mut last = None;
        let ended = wait::until(QUIET, "the end of an extension", async || {
            let stored = walk.stack.extensions().await?.into_iter();
            let mut of_topup = stored.filter(|one| one.topup_id == *topup_id);
            last = of_topup.next();
            let is_open = last
                .as_ref()
                .is_some_and(|one| matches!(one.state.as_str(), "asked" | "sending"));
            Ok((!is_open).then_some(()))
        });
        let ended = ended.await.is_ok();
        // A request that a dying ingress has lost has stored nothing.
        let Some(stored) = &last else {
            continue;
        };
        let id = stored.extension_id.as_str();
        let ledger = walk.stack.ledger().await?;
        let of_this = (ledger.extensions.iter()).filter(|one| one.extension_id.contains(id));
        let added = of_this.count();
        let state = stored.state.as_str();
        let agrees = match state {
            "added" => added == 1,
            "refused" => added == 0,
            // Nobody knows whether it was added, but it was not added twice.
            _ => walk.searches && added <= 1,
        };
        if !ended || !agrees {
            wrong.push(format!(
                "the extension of topup {topup_id} is {state}, and the provider has added it {added} times"
            ));
        }
    }
    println!("{} eSIMs extended", walk.extended.len());
    Ok(wrong)
}

/// Returns every suspension that has not ended, and says so if the partner is told of another
/// number of suspended eSIMs than the provider has.
pub async fn suspended(walk: &Walk) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    let (mut told, mut unknown) = (0, 0);
    for topup_id in &walk.suspended {
        let mut last = String::new();
        let ended = wait::until(QUIET, "the end of a suspension", async || {
            last = walk.change_state(topup_id, "suspension").await?;
            Ok((last != "under_way").then_some(()))
        });
        if ended.await.is_err() {
            wrong.push(format!("topup {topup_id}: the suspension is {last}"));
        }
        // One that could not begin in time is refused, and the eSIM is as it was.
        told += usize::from(last == "suspended");
        unknown += usize::from(last == "unknown");
    }
    let suspended = walk.stack.ledger().await?.suspended.len();
    if !(told..=told + unknown).contains(&suspended) {
        wrong.push(format!(
            "the provider has suspended {suspended} eSIMs, and the partner sees {told}"
        ));
    }
    println!("{suspended} of {} eSIMs suspended", walk.suspended.len());
    Ok(wrong)
}

/// Returns the answers that contradict the stored state.
fn answers(walk: &Walk, stored: &[Stored]) -> Vec<String> {
    let mut standing: BTreeMap<(&str, &str), BTreeSet<String>> = BTreeMap::new();
    let mut ended: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    for row in stored.iter().filter(|row| !row.refused) {
        let order = (row.access_key.as_str(), row.external_order_id.as_str());
        standing
            .entry(order)
            .or_default()
            .insert(row.topup_id.clone());
        ended.insert(order, &row.placement);
    }
    let mut wrong = Vec::new();
    for asked in &walk.asked {
        let order = (
            walk.partners[asked.partner].access_key.as_str(),
            asked.external_order_id.as_str(),
        );
        let topups = standing.get(&order);
        let state = ended.get(&order).copied().unwrap_or("not stored");
        let expected = if asked.option == "refused" {
            "failed"
        } else {
            "placed"
        };
        let is_expected = state == expected || (walk.searches && state == "parked");
        let fits = match &asked.answer {
            Some(Said::Created(answered)) => topups == Some(answered) && is_expected,
            Some(Said::Taken) => is_expected,
            Some(Said::Refused(text)) => {
                let by_provider = asked.option == "refused" && text.contains("eSIM Request failed");
                // At these points the provider is away, so nothing is sent to it.
                let away = ["commit-health", "commit-probe"]
                    .iter()
                    .any(|point| asked.external_order_id.contains(point));
                topups.is_none() && (by_provider || away && text.contains("API connection error"))
            }
            None => false,
        };
        if !fits {
            let answer = match &asked.answer {
                Some(Said::Created(topups)) => format!("201 {topups:?}"),
                Some(Said::Refused(text)) => format!("422 {text}"),
                Some(Said::Taken) => "taken".into(),
                None => "none".into(),
            };
            wrong.push(format!(
                "{}: answered {answer}, but it is {state}",
                asked.external_order_id
            ));
        }
    }
    wrong
}
