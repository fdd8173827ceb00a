//! What everybody is told of each unit that the states allow: `tests/standings.txt` is a table to
//! read, and this test compares it. `UPDATE_STANDINGS=1` writes it anew.

use std::fmt::Write as _;

use desk::{
    operator::{
        deliveries,
        health::{
            finding::Matter,
            stages::{Stage, StageProcesses},
        },
        looking::ListPatience,
        order_list,
        orders::{self, FurtherWebhook, OrderView, PlacementView, TopupView},
        story,
    },
    self_service,
};
use domain::{
    Agreed, EsimChangeState, MaybeStored, PlacementState, Reason, Stored, StoredReason,
    reason::ReasonCode,
    standing::{
        DeliveryState, EndpointState, Hold, NextActor, ShownState, Standing, Stop, UnitState,
    },
};
use strum::VariantArray;
use time::{OffsetDateTime, macros::datetime};
use uuid::Uuid;

use crate::bench::{Bench, Told as _};

const NOW: OffsetDateTime = datetime!(2026-01-29 13:00 UTC);
const SECOND: Uuid = Uuid::from_u128(2);

/// A webhook in the table: its name, its state, its attempts, and the status of the last one.
#[derive(Clone, Copy)]
struct Case(
    &'static str,
    DeliveryState,
    i32,
    Option<i32>,
    bool,
    EndpointState,
);

const OPEN: EndpointState = EndpointState::Open;

const WEBHOOKS: [Case; 13] = [
    Case(
        "delivered",
        DeliveryState::Delivered,
        1,
        Some(200),
        false,
        OPEN,
    ),
    Case(
        "not tried yet",
        DeliveryState::Pending,
        0,
        None,
        false,
        OPEN,
    ),
    Case(
        "tried once",
        DeliveryState::Pending,
        1,
        Some(500),
        false,
        OPEN,
    ),
    Case(
        "sent again",
        DeliveryState::Pending,
        1,
        Some(500),
        true,
        OPEN,
    ),
    Case(
        "given up",
        DeliveryState::Exhausted,
        9,
        Some(500),
        false,
        OPEN,
    ),
    Case(
        "given up again",
        DeliveryState::Exhausted,
        9,
        Some(500),
        true,
        OPEN,
    ),
    Case("gone", DeliveryState::Exhausted, 1, Some(410), false, OPEN),
    Case(
        "no URL",
        DeliveryState::NoEndpoint,
        0,
        None,
        false,
        EndpointState::NoUrl,
    ),
    Case(
        "endpoint blocked",
        DeliveryState::Pending,
        0,
        None,
        false,
        EndpointState::Blocked,
    ),
    Case(
        "endpoint tested",
        DeliveryState::Pending,
        0,
        None,
        false,
        EndpointState::Probing,
    ),
    Case(
        "paused by us",
        DeliveryState::Pending,
        0,
        None,
        false,
        EndpointState::Paused,
    ),
    Case(
        "paused by it",
        DeliveryState::Pending,
        0,
        None,
        false,
        EndpointState::PausedByPartner,
    ),
    Case(
        "tried, blocked",
        DeliveryState::Pending,
        4,
        Some(500),
        false,
        EndpointState::Blocked,
    ),
];

fn lives(silent: Option<Stage>) -> Vec<StageProcesses> {
    let life = |stage| StageProcesses {
        nats_refused: None,
        clock_off: None,
        stage,
        running: u64::from(silent != Some(stage)),
        missing: 0,
        missing_on: Vec::new(),
        last: Some(datetime!(2026-01-29 12:58 UTC)),
        no_nats_since: None,
        missing_since: None,
    };
    Stage::ALL.into_iter().map(life).collect()
}

/// An order with one unit in this state.
fn order(state: UnitState, reason: Option<ReasonCode>) -> OrderView {
    let is_ready = matches!(state, UnitState::Ready | UnitState::Returned);
    let placement = if state == UnitState::Parked {
        PlacementState::Parked
    } else if is_ready {
        PlacementState::Placed
    } else {
        PlacementState::Placing
    };
    let created_at = datetime!(2026-01-29 12:00 UTC);
    OrderView {
        order_id: Uuid::nil(),
        partner_id: Uuid::nil(),
        external_order_id: "A-1".into(),
        refused: false,
        cancelled: false,
        endpoint: Stored::Known(OPEN),
        endpoint_until: None,
        traceparent: None,
        metadata: None,
        created_at,
        erased_at: None,
        placements: vec![PlacementView {
            placement_id: Uuid::nil(),
            provider: "usimsa".into(),
            state: Stored::Known(placement),
            attempt: 1,
            reason: StoredReason::default(),
            attempted_at: Some(created_at),
            placed_at: is_ready.then_some(created_at),
            lane: "jp".into(),
            provider_reference: None,
            tried: Vec::new(),
            alternatives: Vec::new(),
            due_at: None,
            stop: None,
        }],
        topups: vec![TopupView {
            state: Stored::Known(state),
            reason: StoredReason(reason.map(Reason::from)),
            has_unit: is_ready,
            ready_at: is_ready.then_some(created_at),
            ..TopupView::new(
                "20260129120000000000000000".into(),
                Uuid::nil(),
                Agreed::new(Uuid::nil().into()),
                "jp".into(),
            )
        }],
        further: Vec::new(),
        extensions: Vec::new(),
        stages: lives(None),
    }
}

fn when(
    case: Case,
) -> (
    Option<OffsetDateTime>,
    Option<OffsetDateTime>,
    Option<OffsetDateTime>,
) {
    let delivered = case.1 == DeliveryState::Delivered;
    let pending = case.1 == DeliveryState::Pending;
    let blocked = case.5 == EndpointState::Blocked;
    (
        delivered.then_some(datetime!(2026-01-29 12:01 UTC)),
        pending.then_some(datetime!(2026-01-29 13:05 UTC)),
        blocked.then_some(datetime!(2026-01-29 13:05 UTC)),
    )
}

/// A ready unit with this webhook to its first endpoint.
fn sent(case: Case) -> OrderView {
    let mut order = order(UnitState::Ready, None);
    let (delivered_at, due_at, until) = when(case);
    order.endpoint = Stored::Known(case.5);
    order.endpoint_until = until;
    let unit = &mut order.topups[0];
    unit.delivery = MaybeStored(Some(Stored::Known(case.1)));
    unit.delivery_attempts = Some(case.2);
    unit.delivery_status = case.3;
    unit.delivered_at = delivered_at;
    unit.delivery_due_at = due_at;
    unit.delivered_before = case.4;
    order
}

/// The same with a second endpoint.
fn with_second(mut order: OrderView, case: Case) -> OrderView {
    let (delivered_at, due_at, until) = when(case);
    order.further.push(FurtherWebhook {
        topup_id: order.topups[0].topup_id.clone(),
        delivery_id: Uuid::nil(),
        endpoint_id: SECOND,
        host: None,
        endpoint: Stored::Known(case.5),
        endpoint_until: until,
        state: Stored::Known(case.1),
        attempts: case.2,
        status: case.3,
        error: None,
        delivered_at,
        due_at,
        delivered_before: case.4,
    });
    order
}

/// Every unit of the table with its name.
fn all() -> Vec<(String, OrderView)> {
    let mut all = Vec::new();
    let mut add = |name: String, order: OrderView| all.push((name, order));
    let silent = |mut order: OrderView, stage| {
        order.stages = lives(Some(stage));
        order
    };
    let pending = || order(UnitState::Pending, None);
    add("not bought yet".into(), pending());
    add(
        "not bought yet, provisioner dead".into(),
        silent(pending(), Stage::Provisioner),
    );
    for (name, stop) in [
        ("for now", Stop::ForNow),
        ("until an operator", Stop::UntilOperator),
    ] {
        let mut one = pending();
        one.placements[0].state = Stored::Known(PlacementState::Accepted);
        one.placements[0].stop = Some(stop);
        add(format!("not bought yet, buying stopped {name}"), one);
    }
    for code in ReasonCode::VARIANTS {
        let name: &str = code.into();
        add(
            format!("parked: {name}"),
            order(UnitState::Parked, Some(*code)),
        );
    }
    for code in [
        ReasonCode::Rejected,
        ReasonCode::UnitFailed,
        ReasonCode::GivenUp,
    ] {
        let name: &str = code.into();
        add(
            format!("failed: {name}"),
            order(UnitState::Failed, Some(code)),
        );
    }
    add("returned".into(), order(UnitState::Returned, None));
    for state in [
        EsimChangeState::Asked,
        EsimChangeState::Sending,
        EsimChangeState::Claimed,
        EsimChangeState::Parked,
        EsimChangeState::Refused,
    ] {
        let name: &str = state.into();
        let mut one = sent(WEBHOOKS[0]);
        one.topups[0].give_back = MaybeStored(Some(Stored::Known(state)));
        add(format!("give-back {name}"), one.clone());
        add(
            format!("give-back {name}, provisioner dead"),
            silent(one, Stage::Provisioner),
        );
    }
    for case in WEBHOOKS {
        add(format!("ready, {}", case.0), sent(case));
        add(
            format!("ready, {}, notifier dead", case.0),
            silent(sent(case), Stage::Notifier),
        );
    }
    for first in WEBHOOKS {
        for second in WEBHOOKS
            .into_iter()
            .filter(|second| second.5 != EndpointState::NoUrl)
        {
            let name = format!("ready, {} and second {}", first.0, second.0);
            add(name, with_second(sent(first), second));
        }
    }
    all
}

#[test]
fn everybody_is_told_what_the_table_says() {
    let mut table = String::from(
        "What is stored of a unit, how it stands, who must act, what happens next, and what its partner is told.\n\
         The test `standings` of crate store compares this file; UPDATE_STANDINGS=1 writes it.\n",
    );
    for (name, order) in all() {
        let standing = order.standing(&order.topups[0]);
        let who = match standing.must_act() {
            NextActor::Nobody => "nobody",
            NextActor::Partner => "the partner",
            NextActor::Operator => "an operator",
        };
        let sentence = story::sentence(&order, NOW);
        let sentence = sentence.split_once(": ").unwrap().1;
        let label = standing.label();
        let next = standing.next();
        write!(
            table,
            "\n{name}\n  operator  {label}; {who} must act; next: {next}\n  partner   {sentence}\n"
        )
        .unwrap();
        // What one is told is bought, the other is told is bought.
        let told = ["is ready", "is bought", "given back"]
            .into_iter()
            .any(|word| sentence.contains(word));
        assert_eq!(told, standing.is_bought(), "{name}: {sentence}");
        assert!(
            standing != Standing::Delivered || sentence.contains("delivered to"),
            "{name}: {sentence}"
        );
        let denies = sentence.contains("not acknowledged")
            || sentence.contains("not yet acknowledged")
            || sentence.contains("not arrived");
        assert!(
            !denies || standing != Standing::Delivered,
            "{name}: {sentence}"
        );
    }
    let path = testkit::workspace().join("libs/store/tests/standings.txt");
    if std::env::var_os("UPDATE_STANDINGS").is_some() {
        std::fs::write(&path, &table).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == table,
        "run this test with UPDATE_STANDINGS=1, and read what changed"
    );
}

#[test]
fn only_the_units_of_a_stopped_provider_are_told_to_wait_for_it() {
    let mut order = order(UnitState::Pending, None);
    order.placements[0].state = Stored::Known(PlacementState::Accepted);
    let (mut placement, mut unit) = (order.placements[0].clone(), order.topups[0].clone());
    placement.placement_id = SECOND;
    placement.stop = Some(Stop::ForNow);
    unit.placement_id = SECOND;
    order.placements.push(placement);
    order.topups.push(unit);
    let told = story::sentence(&order, NOW);
    for part in [
        "1 of the 2 eSIMs is accepted and not lost, but buying at the provider is stopped",
        "1 of the 2 eSIMs is being bought",
    ] {
        assert!(told.contains(part), "{told}");
    }
    // That the provisioner is dead explains both.
    order.stages = lives(Some(Stage::Provisioner));
    let told = story::sentence(&order, NOW);
    assert!(told.contains("both eSIMs are accepted"), "{told}");
}

/// What `attention` says of a unit that stands so, and whether it asks for somebody.
fn finding(standing: Standing) -> Option<(Matter, bool)> {
    match standing {
        Standing::Delivered
        | Standing::SentAgain
        | Standing::Sending
        | Standing::Failing
        | Standing::NoUrl
        | Standing::Waiting
        | Standing::GivingBack
        | Standing::GiveBackClaimed
        | Standing::Returned
        | Standing::Failed
        | Standing::Unreadable => None,
        Standing::Held(Hold::Blocked) => Some((Matter::Blocked, false)),
        Standing::Held(Hold::PausedByPartner) => Some((Matter::Paused, false)),
        Standing::Held(Hold::Paused) => Some((Matter::Paused, true)),
        Standing::Held(Hold::Service) | Standing::Stalled | Standing::GiveBackStalled => {
            Some((Matter::StageDead, true))
        }
        Standing::NotSentAgain | Standing::Exhausted | Standing::Gone => {
            Some((Matter::Exhausted, true))
        }
        Standing::ProfilesLate
        | Standing::Uncollectable
        | Standing::Undeliverable
        | Standing::Vanished
        | Standing::OnHold => Some((Matter::Parked, true)),
        Standing::Stopped(Stop::ForNow) => Some((Matter::BreakerOpen, false)),
        Standing::Stopped(Stop::UntilOperator) => Some((Matter::BreakerOpen, true)),
        Standing::GiveBackOnHold => Some((Matter::GiveBacksParked, true)),
    }
}

#[test]
fn nobody_must_act_exactly_when_attention_asks_for_nobody_on_our_side() {
    for (name, order) in all() {
        let standing = order.standing(&order.topups[0]);
        let asks = finding(standing).is_some_and(|(_, needs_person)| needs_person);
        match standing.must_act() {
            NextActor::Nobody => assert!(!asks, "{name}"),
            NextActor::Operator => assert!(asks, "{name}"),
            // Attention shows what has ended, and what the partner can end by itself it does not.
            NextActor::Partner => {}
        }
    }
}

/// What the rows of a unit are set to: the states of its topup and its placement, and whether it is
/// ready and given back.
type Rows = (&'static str, &'static str, bool, bool);

/// Every combination that the tables hold.
fn rows() -> Vec<Rows> {
    let mut rows = Vec::new();
    for topup in ["pending", "failed"] {
        for placement in PlacementState::ALL {
            for (is_ready, is_returned) in [(false, false), (true, false), (true, true)] {
                rows.push((topup, placement.as_str(), is_ready, is_returned));
            }
        }
    }
    rows
}

/// The look-up, both lists of orders, the event and the pages of operators read the same rows by
/// different statements. None of them may see another state than the others.
#[tokio::test]
async fn look_ups_lists_events_and_operators_see_one_state_of_the_same_rows() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://partner.example/hook")).await;
    let topup = bench.deliveries(partner, 1, true).await.remove(0);
    bench
        .sql("UPDATE partner_endpoints SET events = '{topup.ready,topup.failed}'")
        .await;
    bench
        .sql(
            "INSERT INTO deliveries (delivery_id, partner_id, kind, topup_id, order_id)
             SELECT gen_random_uuid(), partner_id, 'topup.failed', topup_id, order_id FROM partner_units",
        )
        .await;
    let mut connection = bench.connection().await;
    let event: Uuid =
        sqlx::query_scalar("SELECT delivery_id FROM deliveries WHERE kind = 'topup.failed'")
            .fetch_one(&mut *connection)
            .await
            .unwrap();
    for row in rows() {
        let (unit, placement, is_ready, is_returned) = row;
        sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
            "UPDATE topups SET state = '{unit}'; UPDATE placements SET state = '{placement}';
             UPDATE esims SET ready_at = CASE WHEN {is_ready} THEN now() END,
                              returned_at = CASE WHEN {is_returned} THEN now() END"
        )))
        .execute(&mut *connection)
        .await
        .unwrap();
        let shown = UnitState::of(domain::standing::Rows {
            is_ready,
            is_returned,
            has_failed: unit == "failed",
            is_parked: placement == "parked",
        })
        .shown();
        let expected = self_service::PartnerUnitState::from(shown);

        let looked_up = self_service::unit(&mut connection, partner, &topup)
            .await
            .told(&mut connection)
            .await;
        assert_eq!(looked_up.unwrap().state, expected, "{row:?}");
        let asked = self_service::esims::requests(&mut connection, partner, &topup)
            .await
            .told(&mut connection)
            .await;
        assert_eq!(asked.unwrap().state, expected, "{row:?}");

        let page = self_service::OrderPage {
            limit: 1,
            ..self_service::OrderPage::default()
        };
        let mut listed = self_service::orders(&mut connection, partner, &page)
            .await
            .told(&mut connection)
            .await;
        let (head, counts, _) = listed.remove(0);
        let all = self_service::units(&mut connection, partner, head.order_id)
            .await
            .told(&mut connection)
            .await;
        assert_eq!(counts, self_service::count(&all), "{row:?}");
        let filter = order_list::OrderFilter::default();
        let mut of_operators =
            order_list::list(&mut connection, &filter, None, 1, ListPatience::Whole)
                .await
                .told(&mut connection)
                .await;
        let of_operators = of_operators.orders.remove(0);
        assert_eq!(of_operators.state, head.state(counts), "{row:?}");
        assert_eq!(of_operators.on_hold, counts.on_hold, "{row:?}");

        let event = deliveries::resendable(&mut connection, event.into()).await;
        let is_true = !event.unwrap().unwrap().gone;
        assert_eq!(is_true, shown == ShownState::Failed, "{row:?}");

        let mut order = orders::read(&mut connection, &[head.order_id.uuid()])
            .await
            .told(&mut connection)
            .await;
        let order = order.remove(0);
        assert_eq!(
            order.topups[0].state.known().unwrap().shown(),
            shown,
            "{row:?}"
        );
        assert_eq!(order.standing(&order.topups[0]).shown(), shown, "{row:?}");
        let sentence = story::sentence(&order, runtime::clock::now());
        for (one, words) in [
            (ShownState::Returned, "given back"),
            (ShownState::Ready, "ready"),
            (ShownState::Failed, "failed"),
        ] {
            assert_eq!(
                sentence.contains(words),
                shown == one,
                "{row:?}: {sentence}"
            );
        }
    }
}
