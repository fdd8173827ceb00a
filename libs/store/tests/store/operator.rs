//! The lists, searches and changes of operators. Above all: nothing that an operator resolves is
//! bought twice, or delivered for an order that was answered with 422.

use std::time::Duration;

use accounts::profile::Profile;
use desk::operator::{
    entered::{self, NotEntered, ProfileEntry},
    placements::{self, Decision, PlacementNotResolved, ResolvedPlacement},
};
use domain::{ActivationCode, PartnerId, PlacementId, PlacementState, placement::Resolution};
use store::{
    orders::NewOrder,
    placements::{AttemptOutcome, Progress},
};
use tools::recover;

use crate::bench::{
    Bench, PROVIDER, Told as _, VAULT, applied, bought, bought_pending, disputed, iccid, order,
    parked, placement, ready, rejected, settlement, topups, unit,
};
use crate::machine::route;

impl Bench {
    async fn resolve(
        &self,
        id: PlacementId,
        resolution: Resolution,
    ) -> Result<ResolvedPlacement, PlacementNotResolved> {
        self.resolve_at(id, resolution, None, None).await
    }

    async fn resolve_at(
        &self,
        id: PlacementId,
        resolution: Resolution,
        bought_at: Option<&str>,
        reference: Option<&str>,
    ) -> Result<ResolvedPlacement, PlacementNotResolved> {
        let decision = Decision {
            resolution,
            bought_at,
            reference,
            seen: None,
        };
        placements::resolve(&mut *self.connection().await, id, decision, applied()).await
    }

    /// An order whose purchase has an unknown outcome.
    pub async fn in_doubt(&self, units: usize) -> NewOrder {
        let order = self.placing(units).await;
        self.settle(&[parked(placement(&order), 1)]).await;
        order
    }
}

fn units(resolved: &ResolvedPlacement) -> (i64, i64, i64) {
    (resolved.pending, resolved.failed, resolved.ready)
}

#[tokio::test]
async fn what_is_said_to_be_bought_is_collected() {
    let bench = Bench::new().await;
    let order = bench.in_doubt(2).await;
    let id = placement(&order);
    let resolved = bench.resolve(id, Resolution::Bought).await.unwrap();
    assert_eq!(resolved.state, PlacementState::Placed);
    assert_eq!(units(&resolved), (2, 0, 0));
    let claimed = bench.claim_due(PROVIDER, 10).await;
    assert_eq!(
        (claimed[0].was, claimed[0].attempt),
        (PlacementState::Placed, 1)
    );
    bench
        .settle(&[bought(
            id,
            1,
            topups(&order).iter().map(ready).collect(),
            true,
        )])
        .await;
    for topup in topups(&order) {
        assert_eq!(
            bench.states(&topup).await,
            ("ready".into(), "pending".into())
        );
    }
}

#[tokio::test]
async fn what_is_said_not_to_be_bought_fails() {
    let bench = Bench::new().await;
    let order = bench.in_doubt(2).await;
    let resolved = bench
        .resolve(placement(&order), Resolution::NotBought)
        .await
        .unwrap();
    assert_eq!(resolved.state, PlacementState::Failed);
    assert_eq!(units(&resolved), (0, 2, 0));
    assert!(bench.claim_due(PROVIDER, 10).await.is_empty());
    for topup in topups(&order) {
        assert_eq!(bench.states(&topup).await, ("failed".into(), "none".into()));
    }
}

#[tokio::test]
async fn what_is_retried_is_bought_by_a_new_attempt() {
    let bench = Bench::new().await;
    let order = bench.in_doubt(1).await;
    let resolved = bench
        .resolve(placement(&order), Resolution::Retry)
        .await
        .unwrap();
    assert_eq!(
        (resolved.state, resolved.attempt),
        (PlacementState::Accepted, 1)
    );
    let claimed = bench.claim_due(PROVIDER, 10).await.remove(0);
    assert_eq!(
        (claimed.was, claimed.attempt),
        (PlacementState::Accepted, 2)
    );
    assert_eq!(claimed.placed_age, None);
}

#[tokio::test]
async fn only_what_is_parked_is_settled() {
    let bench = Bench::new().await;
    let order = bench.placing(1).await;
    for resolution in [Resolution::Bought, Resolution::NotBought, Resolution::Retry] {
        let error = bench
            .resolve(placement(&order), resolution)
            .await
            .unwrap_err();
        assert!(matches!(
            error,
            PlacementNotResolved::NotParked(PlacementState::Placing)
        ));
        let error = bench
            .resolve(PlacementId::new(), resolution)
            .await
            .unwrap_err();
        assert!(matches!(error, PlacementNotResolved::Unknown));
    }
}

#[tokio::test]
async fn units_that_have_their_profile_stay_and_named_ones_are_not_bought_again() {
    let bench = Bench::new().await;
    let order = bench.placing(3).await;
    let id = placement(&order);
    let [one, two, _] = topups(&order).try_into().unwrap();
    let known = vec![ready(&one), unit(&two, Progress::Failed("it broke".into()))];
    bench
        .settle(&[bought(id, 1, known, true), disputed(id, 1)])
        .await;
    let error = bench.resolve(id, Resolution::Retry).await.unwrap_err();
    assert!(matches!(error, PlacementNotResolved::HasUnits), "{error}");
    assert_eq!(
        units(&bench.resolve(id, Resolution::NotBought).await.unwrap()),
        (0, 2, 1)
    );
    assert_eq!(bench.states(&one).await.0, "ready");
}

#[tokio::test]
async fn a_disputed_purchase_of_a_failed_placement_is_delivered_on_an_operators_word() {
    let bench = Bench::new().await;
    let order = bench.placing(1).await;
    let id = placement(&order);
    let topup = &topups(&order)[0];
    bench
        .settle(&[rejected(id, 1), bought_pending(id, 1)])
        .await;
    assert_eq!(bench.state(id).await, "parked");
    assert_eq!(bench.states(topup).await.0, "failed");
    assert_eq!(
        units(&bench.resolve(id, Resolution::Bought).await.unwrap()),
        (1, 0, 0)
    );
    bench
        .settle(&[bought(id, 1, vec![ready(topup)], true)])
        .await;
    assert_eq!(
        bench.states(topup).await,
        ("ready".into(), "pending".into())
    );
    let stored: String = bench
        .value("SELECT iccid FROM esims WHERE topup_id = $1", topup)
        .await;
    assert_eq!(stored, iccid(topup).as_str());
}

#[tokio::test]
async fn nothing_is_delivered_for_an_order_that_was_answered_with_422() {
    let bench = Bench::new().await;
    let order = bench.placing(1).await;
    let id = placement(&order);
    bench.settle(&[rejected(id, 1)]).await;
    assert!(bench.refuse(&order).await.is_some());
    bench.settle(&[bought_pending(id, 1)]).await;
    assert_eq!(bench.state(id).await, "parked");
    for resolution in [Resolution::Bought, Resolution::Retry] {
        let error = bench.resolve(id, resolution).await.unwrap_err();
        assert!(matches!(error, PlacementNotResolved::Refused), "{error}");
    }
    assert!(bench.resolve(id, Resolution::NotBought).await.is_ok());
}

/// After a restored dump, any provider of a routed placement may have it. The operator names the
/// one that has it, and its profiles are collected there.
#[tokio::test]
async fn a_purchase_at_another_provider_of_a_restored_placement_is_collected_there() {
    let bench = Bench::new().await;
    let mut order = order(PartnerId::new(), 2);
    route(&mut order, 2);
    let order = bench.stored(order).await;
    let id = placement(&order);
    let mut connection = bench.connection().await;
    let recovered = recover::recover(&mut connection, false, applied())
        .await
        .unwrap();
    let [routed] = recovered.routed.as_slice() else {
        panic!("{recovered:?}");
    };
    assert_eq!(routed.placement_id, id);
    assert_eq!(routed.providers, [PROVIDER, "next-1", "next-2"]);
    let parked = Some(PlacementState::Parked);
    let listed = placements::list(&mut connection, parked, None, 10)
        .await
        .told(&mut connection)
        .await;
    assert_eq!(listed[0].elsewhere, ["next-1", "next-2"]);
    let reason = listed[0].reason.told().unwrap();
    assert!(
        reason.ends_with("at sandbox or next-1 or next-2"),
        "{reason}"
    );

    let strange = bench
        .resolve_at(id, Resolution::Bought, Some("elsewhere"), None)
        .await;
    let text = strange.unwrap_err().to_string();
    assert!(text.contains("next-1, next-2"), "{text}");
    let strange = bench
        .resolve_at(id, Resolution::Bought, Some("next-2"), Some("order 7"))
        .await;
    assert!(
        matches!(strange, Err(PlacementNotResolved::BadReference)),
        "{strange:?}"
    );
    let resolved = bench
        .resolve_at(id, Resolution::Bought, Some("next-2"), Some("order-7"))
        .await
        .unwrap();
    assert_eq!(resolved.provider, "next-2");
    let sql = "SELECT provider_reference FROM placements WHERE placement_id::text = $1";
    assert_eq!(bench.value::<String>(sql, id).await, "order-7");
    assert!(bench.claim_due(PROVIDER, 10).await.is_empty());
    let claimed = bench.claim_due("next-2", 10).await;
    assert_eq!(claimed[0].was, PlacementState::Placed);
    assert_eq!(claimed[0].lane, "lane-2");
    let options: Vec<&str> = claimed[0]
        .topups
        .iter()
        .map(|topup| topup.provider_option_id.as_str())
        .collect();
    assert_eq!(options, ["next-2-0", "next-2-1"]);
    assert_eq!(bench.read(id).await.alternatives, 0);
}

/// A provider that has rejected a placement may turn out to have sold it.
#[tokio::test]
async fn a_purchase_that_a_provider_had_rejected_can_be_taken_there() {
    let bench = Bench::new().await;
    let mut order = order(PartnerId::new(), 1);
    route(&mut order, 1);
    let order = bench.stored(order).await;
    let id = placement(&order);
    let option: String = bench
        .value(
            "SELECT provider_option_id FROM topups WHERE placement_id::text = $1",
            id,
        )
        .await;
    bench.claim(&[id]).await;
    bench.settle(&[rejected(id, 1)]).await;
    // The number of the purchase at the next provider, which says nothing about this one.
    bench
        .set(
            "UPDATE placements SET provider_reference = 'N1' WHERE placement_id::text = $1",
            id,
        )
        .await;
    bench.settle(&[bought_pending(id, 1)]).await;
    assert_eq!(bench.state(id).await, "parked");
    let mut connection = bench.connection().await;
    let parked = Some(PlacementState::Parked);
    let listed = placements::list(&mut connection, parked, None, 10)
        .await
        .told(&mut connection)
        .await;
    assert_eq!(
        (&*listed[0].provider, &listed[0].elsewhere[..]),
        ("next-1", &[PROVIDER.to_owned()][..])
    );
    bench
        .resolve_at(id, Resolution::Bought, Some(PROVIDER), None)
        .await
        .unwrap();
    let sql =
        "SELECT coalesce(provider_reference, 'none') FROM placements WHERE placement_id::text = $1";
    assert_eq!(bench.value::<String>(sql, id).await, "none");
    let claimed = bench.claim_due(PROVIDER, 10).await;
    assert_eq!(claimed[0].topups[0].provider_option_id, option);
}

#[tokio::test]
async fn placements_are_listed_by_state_and_provider() {
    let bench = Bench::new().await;
    let doubted = bench.in_doubt(2).await;
    let open = bench.stored(order(PartnerId::new(), 1)).await;
    let list = async |state, provider| {
        placements::list(&mut *bench.connection().await, state, provider, 10)
            .await
            .told(&mut *bench.connection().await)
            .await
    };
    let parked = list(Some(PlacementState::Parked), None).await;
    assert_eq!(parked.len(), 1);
    let parked = &parked[0];
    assert_eq!(parked.placement_id, placement(&doubted));
    assert_eq!((parked.units, parked.pending, parked.bought), (2, 2, false));
    assert_eq!(
        parked.reason.told().as_deref(),
        Some("it is not known whether the last attempt has bought it: no answer")
    );
    let newest_first = list(None, Some(PROVIDER)).await;
    let newest_first: Vec<_> = newest_first.iter().map(|one| one.placement_id).collect();
    assert_eq!(newest_first, [placement(&open), placement(&doubted)]);
    assert_eq!(list(Some(PlacementState::Accepted), None).await.len(), 1);
    assert!(
        list(Some(PlacementState::Parked), Some("other"))
            .await
            .is_empty()
    );
    assert!(list(Some(PlacementState::Failed), None).await.is_empty());
}

/// Waits until so many sessions of this database wait for a lock.
async fn waiting(bench: &Bench, sessions: i64) {
    testkit::wait::soon("sessions that wait for a lock", async || {
        let waiting: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
        )
        .fetch_one(&bench.pool)
        .await?;
        Ok((waiting == sessions).then_some(()))
    })
    .await;
}

/// Two operators act on one placement at the same moment: each must see what the other has done,
/// also if it waited for the other's lock.
#[tokio::test]
async fn a_profile_that_is_entered_while_another_operator_decides_is_not_bought_again() {
    for then_retried in [true, false] {
        let bench = Bench::new().await;
        let order = bench.placing(2).await;
        let id = placement(&order);
        let park = settlement(
            id,
            1,
            AttemptOutcome::Bought {
                reference: None,
                units: Vec::new(),
                listed: 0,
                collect_in: Some(Duration::from_hours(1)),
                park: Some(domain::reason::ReasonCode::ProfileUnreadable.into()),
                announced: false,
            },
        );
        bench.settle(&[park]).await;
        assert_eq!(bench.state(id).await, "parked");
        let topup = topups(&order).remove(0);
        let iccid = iccid(&topup);
        let profile = Profile {
            code: ActivationCode::new("smdp.example.com", "BY-HAND").unwrap(),
            expired_date: "2099-01-29".to_owned(),
        };
        let by_hand = ProfileEntry {
            topup_id: &topup,
            iccid: &iccid,
            profile: &profile,
            unit: Some("unit-1"),
        };
        let mut holder = bench.pool.begin().await.unwrap();
        sqlx::query("SELECT FROM placements WHERE placement_id = $1 FOR UPDATE")
            .bind(id.uuid())
            .execute(&mut *holder)
            .await
            .unwrap();
        let enter = async || {
            let mut connection = bench.connection().await;
            entered::enter(&mut connection, &VAULT, &by_hand, applied()).await
        };
        // Both wait for the lock, in this order.
        let second = async {
            waiting(&bench, 1).await;
            if then_retried {
                let retried = bench.resolve(id, Resolution::Retry).await;
                return retried.map(drop).map_err(|error| error.to_string());
            }
            enter().await.map(drop).map_err(|error| error.to_string())
        };
        let release = async {
            waiting(&bench, 2).await;
            holder.rollback().await.unwrap();
        };
        let (entered, second, ()) = tokio::join!(enter(), second, release);
        assert_eq!(entered.unwrap().pending, 1);
        let entered: (String, String) = sqlx::query_as(
            "SELECT before ->> 'unit', after ->> 'unit' FROM operator_actions
             WHERE after ? 'unit' ORDER BY action_id DESC LIMIT 1",
        )
        .fetch_one(&mut *bench.connection().await)
        .await
        .unwrap();
        assert_eq!(entered, ("pending".into(), "ready".into()));
        let refused = if then_retried {
            PlacementNotResolved::HasUnits.to_string()
        } else {
            NotEntered::NotPending.to_string()
        };
        assert_eq!(second, Err(refused));
        assert_eq!(bench.state(id).await, "parked");
        let webhooks: i64 = bench
            .value(
                "SELECT count(*) FROM deliveries WHERE topup_id = $1",
                topup.as_str(),
            )
            .await;
        assert_eq!(webhooks, 1);
    }
}
