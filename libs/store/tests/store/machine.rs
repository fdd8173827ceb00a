//! Every statement that moves a placement is executed in every state, and its effect is compared
//! with [`Placement::after`]. So the SQL and the state machine of `libs/domain` cannot drift apart.

use std::time::Duration;

use desk::operator::{
    placements as operated,
    placements::{Decision, PlacementNotResolved},
};
use domain::placement::{Placement, PlacementEvent, Resolution};
use domain::{PartnerId, PlacementId, PlacementState};
use store::orders::{Alternative, NewOrder, OrderCancellation};
use store::placements::AttemptOutcome;
use tools::recover;

use crate::bench::{
    Bench, PROVIDER, Told as _, applied, bought_pending, disputed, not_bought, not_found, order,
    parked, placement, rejected, settlement, unknown,
};

/// The recorded attempt; events name it, an earlier or a later one.
const ATTEMPT: u32 = 2;

/// A placement, and the rest of its row.
#[derive(Clone, Copy, Debug)]
struct Start {
    placement: Placement,
    /// The provider confirmed the purchase.
    placed: bool,
    /// It has a due row.
    due: bool,
}

/// The provider of the alternatives of a tested placement.
const NEXT: &str = "next";

/// Gives the order's placement this many alternatives.
pub fn route(order: &mut NewOrder, alternatives: u32) {
    let placement = &mut order.placements[0];
    for rank in 1..=alternatives {
        let options = placement.topups.iter().map(|topup| {
            let option = format!("{NEXT}-{rank}-{}", topup.position);
            (topup.agreed.option_id, option)
        });
        let options = options.collect();
        placement.alternatives.push(Alternative {
            provider: format!("{NEXT}-{rank}"),
            lane: format!("lane-{rank}"),
            options,
        });
    }
}

/// Every row that the machine maps to this placement.
fn rows(placement: Placement) -> Vec<Start> {
    let kinds: &[(bool, bool)] = match placement.state {
        PlacementState::Accepted | PlacementState::Placing => &[(false, true)],
        PlacementState::Refused | PlacementState::Failed => &[(false, false)],
        // Profiles are missing; complete.
        PlacementState::Placed => &[(true, true), (true, false)],
        PlacementState::Parked if placement.disputed => &[(true, false)],
        // Outcome unknown; profiles overdue.
        PlacementState::Parked => &[(false, false), (true, true)],
    };
    let start = |&(placed, due)| Start {
        placement,
        placed,
        due,
    };
    kinds.iter().map(start).collect()
}

/// Every state of the machine.
fn starts() -> Vec<Start> {
    let mut placements = vec![Placement::NEW];
    for state in PlacementState::ALL {
        for (doubted, not_found) in [(false, false), (true, false), (true, true)] {
            for disputed in [false, true] {
                let is_doubted_elsewhere =
                    doubted && !not_found && state != PlacementState::Placing;
                if is_doubted_elsewhere || disputed && state != PlacementState::Parked {
                    continue;
                }
                // An attempt in doubt leaves no alternatives, and a purchase neither.
                let may_go_on = !doubted && state != PlacementState::Placed;
                for alternatives in 0..=u32::from(may_go_on) {
                    placements.push(Placement {
                        state,
                        attempt: ATTEMPT,
                        doubted: doubted && state == PlacementState::Placing,
                        not_found,
                        disputed,
                        alternatives,
                    });
                }
            }
        }
    }
    placements.into_iter().flat_map(rows).collect()
}

fn events() -> Vec<PlacementEvent> {
    let mut events = vec![
        PlacementEvent::Claim,
        PlacementEvent::Refuse,
        PlacementEvent::Resolve(Resolution::Bought),
        PlacementEvent::Resolve(Resolution::NotBought),
        PlacementEvent::Resolve(Resolution::Retry),
    ];
    for attempt in [0, ATTEMPT - 1, ATTEMPT, ATTEMPT + 1] {
        events.extend([
            PlacementEvent::Bought(attempt),
            PlacementEvent::Rejected(attempt),
            PlacementEvent::NotBought(attempt),
            PlacementEvent::NotFound {
                attempt,
                after_settling_delay: false,
            },
            PlacementEvent::NotFound {
                attempt,
                after_settling_delay: true,
            },
            PlacementEvent::Park(attempt),
            PlacementEvent::Dispute(attempt),
        ]);
    }
    events
}

impl Bench {
    /// A stored order of two units in this state, overdue if it is ever due.
    async fn at(&self, start: Start) -> NewOrder {
        let mut order = order(PartnerId::new(), 2);
        route(&mut order, start.placement.alternatives);
        let order = self.stored(order).await;
        sqlx::query(
            "UPDATE placements SET state = $2, attempt = $3,
                 attempted_at = CASE WHEN $3 > 0 THEN now() - interval '15 minutes' END,
                 not_found_at = CASE WHEN $4 THEN now() - interval '2 minutes' END,
                 placed_at = CASE WHEN $5 THEN now() - interval '1 minute' END,
                 disputed = $6, unknowns = CASE WHEN $7 AND NOT $4 THEN 1 ELSE 0 END
             WHERE placement_id = $1",
        )
        .bind(placement(&order).uuid())
        .bind(start.placement.state.as_str())
        .bind(i32::try_from(start.placement.attempt).unwrap())
        .bind(start.placement.not_found)
        .bind(start.placed)
        .bind(start.placement.disputed)
        .bind(start.placement.doubted)
        .execute(&self.pool)
        .await
        .unwrap();
        if start.due {
            self.due_in(&[placement(&order)], -1.0).await;
        }
        if start.placement.state == PlacementState::Parked {
            let held = "INSERT INTO held (id, state, provider, partner_id)
                        SELECT placement_id, 'parked', provider, partner_id FROM placements
                        WHERE placement_id::text = $1";
            self.set(held, placement(&order)).await;
        }
        assert_eq!(self.read(placement(&order)).await, start.placement);
        order
    }

    /// The machine's view of a row.
    pub async fn read(&self, placement: PlacementId) -> Placement {
        type Row = (String, i32, bool, bool, bool, i32);
        let (state, attempt, doubted, not_found, disputed, alternatives): Row = sqlx::query_as(
            "SELECT state, attempt, state = 'placing' AND (unknowns > 0 OR not_found_at IS NOT NULL),
                    not_found_at IS NOT NULL, disputed, coalesce(jsonb_array_length(alternatives), 0)
             FROM placements WHERE placement_id = $1",
        )
        .bind(placement.uuid())
        .fetch_one(&self.pool)
        .await
        .unwrap();
        Placement {
            state: state.parse().unwrap(),
            attempt: attempt.try_into().unwrap(),
            doubted,
            not_found,
            disputed,
            alternatives: alternatives.try_into().unwrap(),
        }
    }

    /// Runs the statement of the event; returns whether it applied.
    async fn apply(&self, order: &NewOrder, event: PlacementEvent) -> bool {
        let id = placement(order);
        let settlement = match event {
            PlacementEvent::Claim => return !self.claim(&[id]).await.is_empty(),
            PlacementEvent::Refuse => return self.refuse(order).await.is_some(),
            PlacementEvent::Resolve(resolution) => {
                let decision = Decision {
                    resolution,
                    bought_at: None,
                    reference: None,
                    seen: None,
                };
                let mut connection = self.connection().await;
                let resolved = operated::resolve(&mut connection, id, decision, applied()).await;
                return match resolved {
                    Ok(_) => true,
                    Err(PlacementNotResolved::NotParked(_)) => false,
                    Err(error) => panic!("{error}"),
                };
            }
            PlacementEvent::Bought(attempt) => bought_pending(id, attempt),
            PlacementEvent::Rejected(attempt) => rejected(id, attempt),
            PlacementEvent::NotBought(attempt) => not_bought(id, attempt),
            PlacementEvent::NotFound {
                attempt,
                after_settling_delay,
            } => not_found(id, attempt, after_settling_delay),
            PlacementEvent::Unknown(attempt) => unknown(id, attempt),
            PlacementEvent::Park(attempt) => parked(id, attempt),
            PlacementEvent::Dispute(attempt) => disputed(id, attempt),
        };
        self.settle(&[settlement]).await[0].moved
    }

    /// Applies the event to a row, whose state must match the machine's afterwards. Returns whether
    /// the machine moved.
    async fn moves_as_the_machine_says(&self, start: Start, event: PlacementEvent) -> bool {
        // The statement moves whole orders, and none that was never tried.
        if event == PlacementEvent::Refuse && start.placement.attempt == 0 {
            return false;
        }
        let order = self.at(start).await;
        let before = self.everything(order.order_id).await;
        let applied = self.apply(&order, event).await;
        let row = self.read(placement(&order)).await;
        let what = format!("{event:?} of {start:?}");
        // A repeated collect moves only the due time.
        let collected = start.placement.state == PlacementState::Placed
            && event == PlacementEvent::Bought(start.placement.attempt);
        // An unknown outcome of a call after the purchase is only counted.
        let later = [PlacementState::Placed, PlacementState::Parked];
        let counted = start.due
            && later.contains(&start.placement.state)
            && event == PlacementEvent::Unknown(start.placement.attempt);
        match start.placement.after(event) {
            Ok(after) => {
                assert_eq!((row, applied), (after, true), "{what}");
                return true;
            }
            Err(_) if collected || counted => {
                assert_eq!((row, applied), (start.placement, true), "{what}");
            }
            Err(_) => {
                assert!(!applied, "{what}");
                assert_eq!(self.everything(order.order_id).await, before, "{what}");
            }
        }
        false
    }
}

#[tokio::test]
async fn every_statement_moves_a_row_exactly_as_the_machine_says() {
    let bench = Bench::new().await;
    let mut moved = 0;
    for start in starts() {
        for event in events() {
            moved += usize::from(bench.moves_as_the_machine_says(start, event).await);
        }
    }
    assert!(moved > 50, "{moved} transitions");
}

/// Crate `model` explores the whole system on the machine alone. This test covers the SQL.
#[tokio::test]
async fn so_it_does_wherever_the_model_of_the_protocol_comes() {
    let bench = Bench::new().await;
    let visited = model::check(&model::Settings::default()).visited;
    let mut moved = 0;
    for (placement, event) in visited {
        let starts = rows(placement);
        assert!(!starts.is_empty(), "no row is {placement:?}");
        for start in starts {
            moved += usize::from(bench.moves_as_the_machine_says(start, event).await);
        }
    }
    assert!(moved > 20, "{moved} transitions");
}

/// The claim of due rows records an attempt where [`PlacementEvent::Claim`] applies; elsewhere it
/// is a lease.
#[tokio::test]
async fn what_is_due_is_taken_up_as_the_machine_says() {
    let bench = Bench::new().await;
    for start in starts() {
        let order = bench.at(start).await;
        let claimed = bench.claim_due(PROVIDER, 10).await;
        let row = bench.read(placement(&order)).await;
        assert_eq!(
            row,
            start
                .placement
                .after(PlacementEvent::Claim)
                .unwrap_or(start.placement),
            "{start:?}"
        );
        assert_eq!(claimed.len(), usize::from(start.due), "{start:?}");
        for one in claimed {
            assert_eq!((one.was, one.attempt), (start.placement.state, row.attempt));
        }
    }
}

/// A cancellation is [`PlacementEvent::Refuse`] of a partner, also of what was never tried.
#[tokio::test]
async fn a_cancellation_refuses_as_the_machine_says() {
    let bench = Bench::new().await;
    for start in starts() {
        let order = bench.at(start).await;
        let answered = "UPDATE orders o SET answer_by = now() FROM placements p
                        WHERE o.order_id = p.order_id AND p.placement_id::text = $1";
        bench.set(answered, placement(&order)).await;
        let cancelled = bench.cancel(&order).await == OrderCancellation::Done(order.order_id);
        let after = start.placement.after(PlacementEvent::Refuse);
        assert_eq!(cancelled, after.is_ok(), "{start:?}");
        assert_eq!(
            bench.read(placement(&order)).await,
            after.unwrap_or(start.placement),
            "{start:?}"
        );
    }
}

/// Recovery claims what is accepted, without a purchase, and forgets the look-ups of an attempt. It
/// moves nothing else.
#[tokio::test]
async fn a_recovery_claims_as_the_machine_says() {
    let bench = Bench::new().await;
    for start in starts() {
        let order = bench.at(start).await;
        let mut connection = bench.connection().await;
        recover::recover(&mut connection, false, applied())
            .await
            .unwrap();
        let mut after = start
            .placement
            .after(PlacementEvent::Claim)
            .unwrap_or(start.placement);
        if after.state == PlacementState::Placing {
            after.doubted = false;
            after.not_found = false;
            // Another provider may have sold it after the dump, so an operator looks at all of
            // them, and the row still names them.
            if after.alternatives > 0 {
                after.state = PlacementState::Parked;
            }
        }
        assert_eq!(bench.read(placement(&order)).await, after, "{start:?}");
    }
}

/// An unknown outcome changes the time of the next look-up, if there is one, and keeps an attempt
/// that is open from going to another provider.
#[tokio::test]
async fn an_unknown_outcome_moves_only_the_next_look() {
    let bench = Bench::new().await;
    for start in starts() {
        for attempt in [ATTEMPT - 1, ATTEMPT, ATTEMPT + 1] {
            let order = bench.at(start).await;
            let before = bench.everything(order.order_id).await;
            let settled = bench.settle(&[unknown(placement(&order), attempt)]).await;
            let looked_at = match start.placement.state {
                PlacementState::Placing => true,
                PlacementState::Placed | PlacementState::Parked => start.due,
                _ => false,
            };
            let applies = looked_at && attempt == ATTEMPT;
            assert_eq!(settled[0].moved, applies, "{start:?}");
            let after = start.placement.after(PlacementEvent::Unknown(attempt));
            assert_eq!(
                bench.read(placement(&order)).await,
                after.unwrap_or(start.placement)
            );
            assert_eq!(
                bench.everything(order.order_id).await != before,
                applies,
                "{attempt} of {start:?}"
            );
        }
    }
}

/// After every event, an open placement has a due row and a closed one has none.
#[tokio::test]
async fn what_is_open_is_due_and_what_is_closed_is_not() {
    let bench = Bench::new().await;
    for start in starts() {
        for event in events() {
            let Ok(after) = start.placement.after(event) else {
                continue;
            };
            if event == PlacementEvent::Refuse && start.placement.attempt == 0 {
                continue;
            }
            let order = bench.at(start).await;
            bench.apply(&order, event).await;
            let sql = "SELECT EXISTS (SELECT FROM work WHERE id::text = $1)";
            let due: bool = bench.value(sql, placement(&order)).await;
            let open = matches!(
                after.state,
                PlacementState::Accepted | PlacementState::Placing | PlacementState::Placed
            );
            assert_eq!(due, open, "{event:?} of {start:?}");
            let sql =
                "SELECT count(*) FROM topups WHERE placement_id::text = $1 AND state = 'pending'";
            let pending: i64 = bench.value(sql, placement(&order)).await;
            let closed = matches!(
                after.state,
                PlacementState::Refused | PlacementState::Failed
            );
            assert_eq!(
                pending,
                if closed { 0 } else { 2 },
                "{event:?} of {start:?}"
            );
        }
    }
}

/// A rejected placement goes to its next pair in the commit that records the rejection: the
/// provider, the lane, the names of the options and the due work change together.
#[tokio::test]
async fn a_rejected_placement_goes_to_each_pair_in_turn() {
    let bench = Bench::new().await;
    let mut order = order(PartnerId::new(), 2);
    route(&mut order, 2);
    let order = bench.stored(order).await;
    let id = placement(&order);
    let first = bench.claim(&[id]).await;
    assert_eq!(first.len(), 1);
    let settled = bench.settle(&[rejected(id, 1)]).await;
    assert!(settled[0].moved);
    assert_eq!(settled[0].rerouted.as_deref(), Some("next-1"));
    // The provider that has rejected it finds nothing to do, and takes no lease either.
    assert!(bench.claim(&[id]).await.is_empty());
    assert!(bench.claim_due(PROVIDER, 10).await.is_empty());
    let second = bench.claim_due("next-1", 10).await;
    assert_eq!(second[0].attempt, 2);
    assert_eq!(second[0].lane, "lane-1");
    let options: Vec<&str> = second[0]
        .topups
        .iter()
        .map(|topup| topup.provider_option_id.as_str())
        .collect();
    assert_eq!(options, ["next-1-0", "next-1-1"]);
    // A late settlement of the first attempt changes nothing.
    assert!(!bench.settle(&[rejected(id, 1)]).await[0].moved);
    bench.settle(&[not_bought(id, 2)]).await;
    bench.due_in(&[id], -1.0).await;
    assert_eq!(bench.claim_due("next-1", 10).await[0].attempt, 3);
    let settled = bench.settle(&[rejected(id, 3)]).await;
    assert_eq!(settled[0].rerouted.as_deref(), Some("next-2"));
    let shown = desk::operator::orders::find(&mut *bench.connection().await, &id.to_string())
        .await
        .told(&mut *bench.connection().await)
        .await;
    let shown = &shown[0].placements[0];
    let tried: Vec<(&str, i32)> = shown
        .tried
        .iter()
        .map(|tried| (tried.provider.as_str(), tried.attempt))
        .collect();
    assert_eq!(tried, [(PROVIDER, 1), ("next-1", 3)]);
    assert_eq!(
        (&*shown.provider, shown.state.as_str()),
        ("next-2", "accepted")
    );
    assert!(shown.alternatives.is_empty());
    assert_eq!(bench.claim_due("next-2", 10).await[0].attempt, 4);
    let settled = bench.settle(&[rejected(id, 4)]).await;
    assert_eq!(settled[0].rerouted, None);
    assert_eq!(bench.read(id).await.state, PlacementState::Failed);
}

/// The first provider has the purchase after all, although it rejected it. Its id is named to the
/// operator, and does not take the place of the id that the next provider has given.
#[tokio::test]
async fn a_late_purchase_at_another_provider_leaves_the_reference_as_it_is() {
    let bench = Bench::new().await;
    let bought = |reference: &str| AttemptOutcome::Bought {
        reference: Some(reference.to_owned()),
        units: Vec::new(),
        listed: 0,
        collect_in: Some(Duration::from_mins(1)),
        park: None,
        announced: true,
    };
    for is_bought_there in [false, true] {
        let mut order = order(PartnerId::new(), 1);
        route(&mut order, 1);
        let order = bench.stored(order).await;
        let id = placement(&order);
        bench.claim(&[id]).await;
        bench.settle(&[rejected(id, 1)]).await;
        if is_bought_there {
            assert_eq!(bench.claim_due("next-1", 1).await[0].attempt, 2);
            bench.settle(&[settlement(id, 2, bought("N7"))]).await;
        }
        let settled = bench.settle(&[settlement(id, 1, bought("A1"))]).await;
        assert!(settled[0].unexpected);
        let sql = "SELECT coalesce(provider_reference, 'none') || ' ' || provider FROM placements
                   WHERE placement_id::text = $1";
        let stored: String = bench.value(sql, id).await;
        let expected = if is_bought_there { "N7" } else { "none" };
        assert_eq!(stored, format!("{expected} next-1"));
        let reason = bench.reason(&order).await;
        assert!(reason.ends_with("knows the purchase as A1"), "{reason}");
    }
}

/// Once the outcome of an attempt was unknown, a later rejection ends the placement. The purchase
/// that may exist is at this provider, so no other one is asked.
#[tokio::test]
async fn after_an_unknown_outcome_no_other_provider_is_asked() {
    let bench = Bench::new().await;
    let mut order = order(PartnerId::new(), 1);
    route(&mut order, 1);
    let order = bench.stored(order).await;
    let id = placement(&order);
    bench.claim(&[id]).await;
    bench.settle(&[unknown(id, 1)]).await;
    bench.settle(&[not_found(id, 1, false)]).await;
    bench.settle(&[not_found(id, 1, true)]).await;
    assert_eq!(bench.read(id).await.state, PlacementState::Accepted);
    assert_eq!(bench.claim(&[id]).await[0].attempt, 2);
    let settled = bench.settle(&[rejected(id, 2)]).await;
    assert_eq!(settled[0].rerouted, None);
    assert_eq!(bench.read(id).await.state, PlacementState::Failed);
}

/// The rejection that leads to another provider does not stop a refusal of the order, and what is
/// refused goes nowhere.
#[tokio::test]
async fn a_refused_order_goes_to_no_other_provider() {
    let bench = Bench::new().await;
    let mut order = order(PartnerId::new(), 1);
    route(&mut order, 1);
    let order = bench.stored(order).await;
    let id = placement(&order);
    bench.claim(&[id]).await;
    bench.settle(&[rejected(id, 1)]).await;
    assert!(bench.refuse(&order).await.is_some());
    bench.due_in(&[id], -1.0).await;
    assert!(bench.claim_due("next-1", 10).await.is_empty());
}
