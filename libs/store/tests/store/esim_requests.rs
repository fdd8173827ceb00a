//! What partners ask about delivered eSIMs. Every statement that moves a give-back is executed in
//! every state, and its effect is compared with [`EsimChange::after`].

use std::time::Duration;

use desk::{
    operator::{
        esim_changes::{self, EsimChangeFinding},
        orders, story,
    },
    self_service::{self, PartnerUnitState, esims},
};
use domain::{
    EsimChangeState, PartnerId, TopupId,
    esim_change::{EsimChange, EsimChangeEvent, EsimChangeKind, GiveBackCause},
};
use sqlx::PgConnection;
use store::{
    esim_requests::{
        self, AskedChange, ClaimedRequest, EsimChangeReason, EsimChangeSettlement, Reading,
        RequestClaim, UsageFailure,
    },
    providers::{self, StoredReport},
    work::WorkLook,
};
use uuid::Uuid;

use crate::bench::{
    Bench, PROVIDER, Told as _, answered, applied, bought, execute, placement, ready, topups,
};

pub const ATTEMPT: u32 = 2;
pub const MINUTE: Duration = Duration::from_mins(1);

pub const STATES: [EsimChangeState; 5] = [
    EsimChangeState::Asked,
    EsimChangeState::Sending,
    EsimChangeState::Done,
    EsimChangeState::Refused,
    EsimChangeState::Parked,
];

/// Those of a give-back.
const GIVE_BACK_STATES: [EsimChangeState; 6] = [
    EsimChangeState::Asked,
    EsimChangeState::Sending,
    EsimChangeState::Claimed,
    EsimChangeState::Done,
    EsimChangeState::Refused,
    EsimChangeState::Parked,
];

/// Everything that may happen to a change after attempt [`ATTEMPT`], late events included.
pub fn events() -> Vec<EsimChangeEvent> {
    let mut events = vec![
        EsimChangeEvent::Ask,
        EsimChangeEvent::Begin,
        EsimChangeEvent::Refuse,
        EsimChangeEvent::Done,
        EsimChangeEvent::FoundNotDone,
    ];
    for attempt in ATTEMPT - 1..=ATTEMPT + 1 {
        events.extend([
            EsimChangeEvent::Refused(attempt),
            EsimChangeEvent::NotSent(attempt),
            EsimChangeEvent::Park(attempt),
        ]);
        let look = |after_settling_delay| EsimChangeEvent::NotDone {
            attempt,
            after_settling_delay,
        };
        events.extend([look(false), look(true)]);
    }
    events
}

impl Bench {
    /// A ready unit of a partner.
    pub async fn esim(&self, partner: PartnerId) -> TopupId {
        let order = self.stored(answered(partner, 1)).await;
        let id = placement(&order);
        let topup = topups(&order).remove(0);
        assert_eq!(self.claim(&[id]).await.len(), 1);
        self.settle(&[bought(id, 1, vec![ready(&topup)], false)])
            .await;
        topup
    }

    /// Sets the give-back of a unit.
    async fn put(&self, topup: &TopupId, start: EsimChange) {
        let not_returned = if start.not_done { "now()" } else { "NULL" };
        self.sql(&format!(
            "UPDATE esim_requests SET give_back = '{}', attempt = {}, not_returned_at = {not_returned},
                    ended_at = now() WHERE topup_id = '{topup}';
             UPDATE esims SET returned_at = NULL WHERE topup_id = '{topup}'",
            start.state.as_str(),
            start.attempt,
        ))
        .await;
    }

    async fn give_back(&self, topup: &TopupId) -> EsimChange {
        let (state, attempt, not_done): (String, i32, bool) = sqlx::query_as(
            "SELECT give_back, attempt, not_returned_at IS NOT NULL FROM esim_requests WHERE topup_id = $1",
        )
        .bind(topup.as_str())
        .fetch_one(&self.pool)
        .await
        .unwrap();
        EsimChange {
            state: state.parse().unwrap(),
            attempt: attempt.try_into().unwrap(),
            not_done,
        }
    }

    async fn is_returned(&self, topup: &TopupId) -> bool {
        self.value(
            "SELECT returned_at IS NOT NULL FROM esims WHERE topup_id = $1",
            topup,
        )
        .await
    }

    pub async fn claim_requests(&self) -> Vec<ClaimedRequest> {
        let mut connection = self.connection().await;
        let rows = due_requests(&mut connection).await;
        esim_requests::claim(&mut connection, PROVIDER, &rows, MINUTE, RequestClaim::Due)
            .await
            .unwrap()
    }
}

/// The rows of `work` that are due.
pub(crate) async fn due_requests(connection: &mut PgConnection) -> Vec<Uuid> {
    let look = WorkLook {
        limit: 100,
        rows_per_queue: 100,
        ..WorkLook::default()
    };
    let found = esim_requests::due(connection, PROVIDER, &look)
        .await
        .unwrap();
    found.due.into_iter().map(|row| row.id).collect()
}

/// While the breaker of the provider is open or half open, only a probe gets a request.
#[tokio::test]
async fn a_breaker_that_is_not_closed_lets_one_request_through_as_its_probe() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let topup = bench.esim(partner).await;
    let mut connection = bench.connection().await;
    esims::ask_usage(&mut connection, partner, &topup)
        .await
        .unwrap();
    let rows = due_requests(&mut connection).await;
    for open_until in ["now() + interval '1 hour'", "now() - interval '1 hour'"] {
        bench
            .sql(&format!(
                "INSERT INTO providers (name, open_until) VALUES ('{PROVIDER}', {open_until})
                 ON CONFLICT (name) DO UPDATE SET open_until = excluded.open_until"
            ))
            .await;
        let claimed =
            esim_requests::claim(&mut connection, PROVIDER, &rows, MINUTE, RequestClaim::Due).await;
        assert!(claimed.unwrap().is_empty(), "{open_until}");
    }
    let probing = esim_requests::claim(
        &mut connection,
        PROVIDER,
        &rows,
        MINUTE,
        RequestClaim::Probe,
    )
    .await;
    assert_eq!(probing.unwrap().len(), 1);
}

/// The two kinds are two rows, and a call about the give-back answers the question about the use,
/// too.
#[tokio::test]
async fn what_is_asked_is_work_until_it_is_answered() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let topup = bench.esim(partner).await;
    let mut connection = bench.connection().await;
    for _ in 0..2 {
        esims::ask_usage(&mut connection, partner, &topup)
            .await
            .unwrap();
        esims::ask_give_back(&mut connection, partner, &topup, GiveBackCause::Other)
            .await
            .unwrap();
    }
    let claimed = bench.claim_requests().await;
    let asked: Vec<(bool, bool)> = claimed
        .iter()
        .map(|one| (one.usage_asked, one.change.is_some()))
        .collect();
    assert!(
        asked.len() == 2 && asked.contains(&(true, true)) && asked.contains(&(true, false)),
        "{asked:?}"
    );
    assert!(bench.claim_requests().await.is_empty(), "they are leased");
    esim_requests::record_reading(&mut connection, &topup, &Reading::default(), &[])
        .await
        .unwrap();
    let kinds = "SELECT string_agg(kind, ' ') FROM work WHERE lane = $1";
    let kinds: Option<String> = bench.value(kinds, &topup).await;
    assert_eq!(kinds.as_deref(), Some("give_back"));
    let refused = EsimChangeSettlement {
        event: Some(EsimChangeEvent::Refuse),
        again_in: MINUTE,
        ..EsimChangeSettlement::default()
    };
    let settled =
        esim_requests::settle(&mut connection, &topup, AskedChange::GiveBack, &refused).await;
    assert_eq!(settled.unwrap(), (Some(EsimChangeState::Refused), true));
    let kinds = "SELECT count(*) FROM work WHERE lane = $1";
    assert_eq!(bench.value::<i64>(kinds, &topup).await, 0);
}

#[tokio::test]
async fn each_statement_moves_a_give_back_as_the_machine_does() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let topup = bench.esim(partner).await;
    let mut connection = bench.connection().await;
    esims::ask_give_back(&mut connection, partner, &topup, GiveBackCause::Other)
        .await
        .unwrap();
    assert_eq!(bench.give_back(&topup).await, EsimChange::NEW);
    let mut events = events();
    events.push(EsimChangeEvent::Denied);
    events.extend((ATTEMPT - 1..=ATTEMPT + 1).map(EsimChangeEvent::Claimed));
    for state in GIVE_BACK_STATES {
        for not_done in [false, true] {
            let start = EsimChange {
                state,
                attempt: ATTEMPT,
                not_done,
            };
            for event in events.clone() {
                bench.put(&topup, start).await;
                let expected = start.after(event).unwrap_or(start);
                match event {
                    EsimChangeEvent::Ask => {
                        esims::ask_give_back(
                            &mut connection,
                            partner,
                            &topup,
                            GiveBackCause::Other,
                        )
                        .await
                        .unwrap();
                        // The profile is erased once the unit was given back, and then nothing is
                        // asked any more.
                    }
                    EsimChangeEvent::Begin => {
                        let begun = esim_requests::begin(
                            &mut connection,
                            &topup,
                            AskedChange::GiveBack,
                            start,
                        )
                        .await
                        .unwrap();
                        let is_begun = expected.attempt > ATTEMPT;
                        assert_eq!(begun, is_begun.then_some(expected.attempt), "{start:?}");
                    }
                    EsimChangeEvent::FoundNotDone => {
                        let resolved = esim_changes::resolve(
                            &mut connection,
                            (EsimChangeKind::GiveBack, &topup),
                            EsimChangeFinding::NotDone,
                            None,
                            applied(),
                        );
                        let open = [EsimChangeState::Parked, EsimChangeState::Claimed];
                        let is_open = open.contains(&state);
                        assert_eq!(resolved.await.is_ok(), is_open, "{start:?}");
                        // A dropped transaction is rolled back before the next statement.
                        execute(&mut connection, "SELECT 1").await;
                    }
                    _ => {
                        let settlement = EsimChangeSettlement {
                            event: Some(event),
                            reason: Some((EsimChangeReason::Refused, Some("why".to_owned()))),
                            again_in: MINUTE,
                            ..EsimChangeSettlement::default()
                        };
                        let (now, moved) = esim_requests::settle(
                            &mut connection,
                            &topup,
                            AskedChange::GiveBack,
                            &settlement,
                        )
                        .await
                        .unwrap();
                        assert_eq!(now, Some(expected.state), "{start:?} {event:?}");
                        assert_eq!(moved, start.after(event).is_ok(), "{start:?} {event:?}");
                        assert_eq!(
                            bench.is_returned(&topup).await,
                            moved && expected.state == EsimChangeState::Done,
                            "{start:?} {event:?}"
                        );
                    }
                }
                let stored = bench.give_back(&topup).await;
                assert_eq!(
                    (stored.state, stored.attempt),
                    (expected.state, expected.attempt),
                    "{start:?} {event:?}"
                );
                let is_open = !expected.state.is_over();
                assert!(
                    !is_open || stored.not_done == expected.not_done,
                    "{start:?} {event:?}"
                );
                // An erased unit is not asked about, so the next round begins with a profile again.
                bench
                    .sql("UPDATE esims SET profile = 'x', erased_at = NULL")
                    .await;
            }
        }
    }
}

#[tokio::test]
async fn only_one_process_sends_an_attempt() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let topup = bench.esim(partner).await;
    let mut connection = bench.connection().await;
    for _ in 0..2 {
        esims::ask_give_back(&mut connection, partner, &topup, GiveBackCause::Other)
            .await
            .unwrap();
    }
    let claimed = bench.claim_requests().await;
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].esim.topup_id, topup);
    assert!(bench.claim_requests().await.is_empty(), "it is leased");
    let read = claimed[0].change.unwrap().1.now;
    for expected in [Some(1), None] {
        let begun =
            esim_requests::begin(&mut connection, &topup, AskedChange::GiveBack, read).await;
        assert_eq!(begun.unwrap(), expected);
    }
}

#[tokio::test]
async fn a_partner_sees_and_asks_only_what_is_its_own() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let stranger = PartnerId::new();
    let topup = bench.esim(partner).await;
    let mut connection = bench.connection().await;
    for asking in [stranger, partner] {
        let seen = esims::requests(&mut connection, asking, &topup)
            .await
            .told(&mut connection)
            .await;
        assert_eq!(seen.is_some(), asking == partner);
        esims::ask_usage(&mut connection, asking, &topup)
            .await
            .unwrap();
        esims::ask_give_back(&mut connection, asking, &topup, GiveBackCause::Other)
            .await
            .unwrap();
        let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM esim_requests")
            .fetch_one(&bench.pool)
            .await
            .unwrap();
        assert_eq!(rows, i64::from(asking == partner));
    }
    let reading = Reading {
        installed: Some(true),
        data_used: Some(1),
        data_total: Some(2),
        ends_at: None,
        as_of: Some(time::macros::datetime!(2026-11-28 10:00 UTC)),
        only_downloaded: false,
    };
    let seen = async |connection: &mut _| {
        esims::requests(&mut *connection, partner, &topup)
            .await
            .told(&mut *connection)
            .await
            .unwrap()
    };
    assert!(seen(&mut connection).await.usage_open);
    esim_requests::record_reading(&mut connection, &topup, &reading, &[])
        .await
        .unwrap();
    let row = seen(&mut connection).await;
    assert!(!row.usage_open && row.failure.is_none());
    assert_eq!(row.reading.unwrap().0, reading);
    esims::ask_usage(&mut connection, partner, &topup)
        .await
        .unwrap();
    esim_requests::record_failure(&mut connection, &topup, UsageFailure::Failed)
        .await
        .unwrap();
    let row = seen(&mut connection).await;
    assert_eq!(row.failure.unwrap().0, UsageFailure::Failed);
    assert_eq!(row.reading.unwrap().0, reading, "the last answer stays");
}

/// An eSIM that is downloaded is in trouble once a later answer confirms that it is not installed,
/// for its partner and for operators, until an answer says otherwise.
#[tokio::test]
async fn an_esim_that_stays_downloaded_is_in_trouble() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let topup = bench.esim(partner).await;
    let mut connection = bench.as_role("ingress").await;
    esims::ask_usage(&mut connection, partner, &topup)
        .await
        .unwrap();
    let mut provisioner = bench.as_role("provisioner").await;
    let mut operator = bench.as_role("operator").await;
    let mut since = async |only_downloaded: bool, later: &str| {
        bench
            .sql(&format!(
                "UPDATE esim_requests SET downloaded_at = downloaded_at - interval '{later}'"
            ))
            .await;
        let reading = Reading {
            only_downloaded,
            ..Reading::default()
        };
        esim_requests::record_reading(&mut provisioner, &topup, &reading, &[])
            .await
            .unwrap();
        let seen = esims::requests(&mut connection, partner, &topup)
            .await
            .told(&mut connection)
            .await
            .unwrap();
        assert_eq!(seen.reading.unwrap().0, reading);
        let found = desk::operator::orders::find(&mut operator, topup.as_str())
            .await
            .told(&mut operator)
            .await;
        let shown = &found[0].topups[0];
        assert_eq!(shown.in_trouble_since, seen.in_trouble_since);
        let told = desk::operator::route::trouble(shown);
        assert_eq!(told.is_some(), seen.in_trouble_since.is_some());
        seen.in_trouble_since
    };
    assert_eq!(since(true, "0").await, None, "an installation may follow");
    assert_eq!(since(true, "5 minutes").await, None);
    let first = since(true, "15 minutes").await;
    assert!(first.is_some());
    let second = since(true, "0").await;
    assert_eq!(second, first, "it is told since when");
    assert_eq!(since(false, "0").await, None);
    assert_eq!(since(true, "1 hour").await, None, "it begins anew");
}

/// The answer that confirms a report may fail. It is asked for less and less often, and in the end
/// no more. The partner, who has asked nothing, hears nothing of it. Whoever reports without end
/// fills no history.
#[tokio::test]
async fn a_report_is_confirmed_later_and_those_of_one_esim_are_bounded() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let topup = bench.esim(partner).await;
    let mut connection = bench.connection().await;
    let unit = "SELECT provider_unit_id FROM esims WHERE topup_id = $1";
    let unit: String = bench.value(unit, &topup).await;
    for number in 0..130 {
        let report = StoredReport {
            unit_id: Some(&unit),
            iccid: None,
            key: &format!("N{number}"),
            words: "it says something",
        };
        let kept = providers::report(&mut connection, PROVIDER, &report).await;
        assert_eq!(kept.unwrap(), Some(number < 100), "{number}");
    }
    let kept = "SELECT count(*) FROM history WHERE kind = 'reported' AND topup_id = $1";
    assert_eq!(bench.value::<i64>(kept, &topup).await, 100);
    let claimed = bench.claim_requests().await;
    assert!(claimed.len() == 1 && claimed[0].usage_asked, "{claimed:?}");
    for (hours, again) in [
        (0, Some(10)),
        (1, Some(3_600)),
        (5, Some(18_000)),
        (7, None),
    ] {
        bench
            .sql(&format!(
                "UPDATE esim_requests SET reported_at = now() - interval '{hours} hours'"
            ))
            .await;
        esim_requests::record_failure(&mut connection, &topup, UsageFailure::Failed)
            .await
            .unwrap();
        let wait = "SELECT max(extract(epoch FROM at - now()))::float8 FROM work WHERE lane = $1";
        let wait: Option<f64> = bench.value(wait, &topup).await;
        let is_as_expected = match (wait, again) {
            (Some(wait), Some(again)) => (f64::from(again) - wait).abs() < 5.0,
            (wait, again) => wait.is_none() && again.is_none(),
        };
        assert!(is_as_expected, "{hours} h: {wait:?}");
    }
    let row = esims::requests(&mut connection, partner, &topup)
        .await
        .told(&mut connection)
        .await
        .unwrap();
    assert!(!row.usage_open && row.failure.is_none());
}

/// A damaged row does not keep the others from being answered, and does not come again. What was
/// certainly not sent is refused, and what may be on its way is parked.
#[tokio::test]
async fn a_row_that_cannot_be_read_is_set_aside_alone() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let mut connection = bench.connection().await;
    let mut units = Vec::new();
    for _ in 0..4 {
        let topup = bench.esim(partner).await;
        esims::ask_give_back(&mut connection, partner, &topup, GiveBackCause::Other)
            .await
            .unwrap();
        units.push(topup);
    }
    let [good, asked, sending, strange] = units.as_slice() else {
        panic!("{units:?}");
    };
    for topup in [asked, sending] {
        bench
            .set(
                "UPDATE esims SET iccid = 'none of ' || topup_id WHERE topup_id = $1",
                topup,
            )
            .await;
    }
    for (state, topup) in [("sending", sending), ("lent", strange)] {
        bench
            .sql(&format!(
                "UPDATE esim_requests SET give_back = '{state}', attempt = 1 WHERE topup_id = '{topup}'"
            ))
            .await;
    }
    // A question whose eSIM is gone.
    bench
        .sql(
            "INSERT INTO esim_requests (topup_id, partner_id, provider, usage_asked_at)
             VALUES ('gone', gen_random_uuid(), 'sandbox', now());
             INSERT INTO work (id, kind, provider, lane, partner_id, at)
             SELECT md5('usage gone')::uuid, 'usage', provider, topup_id, partner_id, now()
             FROM esim_requests WHERE topup_id = 'gone'",
        )
        .await;
    let claimed = bench.claim_requests().await;
    let claimed: Vec<&TopupId> = claimed.iter().map(|one| &one.esim.topup_id).collect();
    assert_eq!(claimed, [good]);
    let left: i64 = bench
        .value(
            "SELECT count(*) FROM work WHERE kind IN ('usage', 'give_back') AND lane <> $1",
            good,
        )
        .await;
    assert_eq!(left, 0, "they are not due again");
    for (topup, state) in [
        (asked, EsimChangeState::Refused),
        (sending, EsimChangeState::Parked),
        (strange, EsimChangeState::Parked),
    ] {
        let row = esims::requests(&mut connection, partner, topup)
            .await
            .told(&mut connection)
            .await
            .unwrap();
        let give_back = row.give_back.unwrap();
        assert_eq!(
            (give_back.state, give_back.reason),
            (state, Some(EsimChangeReason::Unreadable)),
            "{topup}"
        );
        assert!(give_back.ended_at.is_some() && give_back.message.is_some());
    }
    let failure: Option<String> = bench
        .value(
            "SELECT usage_failure FROM esim_requests WHERE topup_id = $1",
            "gone",
        )
        .await;
    assert_eq!(failure.as_deref(), Some("failed"));
    let listed = esim_changes::list(&mut connection, None, None, 10)
        .await
        .unwrap();
    assert_eq!(listed.len(), 2);
    assert!(listed.iter().all(|one| one.order_id.is_some()));
}

/// The operator says that the provider has it back.
#[tokio::test]
async fn a_unit_that_was_given_back_is_erased_and_seen_as_returned() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let topup = bench.esim(partner).await;
    let mut connection = bench.connection().await;
    esims::ask_give_back(&mut connection, partner, &topup, GiveBackCause::Other)
        .await
        .unwrap();
    let parked = EsimChange {
        state: EsimChangeState::Parked,
        attempt: 1,
        not_done: false,
    };
    bench.put(&topup, parked).await;
    // A sentence says first of all if a stage is silent.
    bench
        .sql(
            "INSERT INTO pulses (instance, stage, number, timeline, replicated, at)
             SELECT gen_random_uuid(), stage, 1, 1, false, now() + interval '1 hour'
             FROM unnest('{ingress,provisioner,notifier}'::text[]) AS stage",
        )
        .await;
    let listed = esim_changes::list(&mut connection, None, None, 10)
        .await
        .unwrap();
    assert_eq!(listed.len(), 1);
    let mut told = async || {
        let order = orders::find(&mut connection, topup.as_str())
            .await
            .told(&mut connection)
            .await;
        story::sentence(&order[0], runtime::clock::now())
    };
    let sentence = told().await;
    assert!(
        sentence.contains("is being given back at your request: we are clarifying"),
        "{sentence}"
    );
    let sending = EsimChange {
        state: EsimChangeState::Sending,
        ..parked
    };
    bench.put(&topup, sending).await;
    let sentence = told().await;
    assert!(
        sentence
            .contains("is being given back at your request, and the provider has not answered yet"),
        "{sentence}"
    );
    bench.put(&topup, parked).await;
    esim_changes::resolve(
        &mut connection,
        (EsimChangeKind::GiveBack, &topup),
        EsimChangeFinding::Done,
        None,
        applied(),
    )
    .await
    .unwrap();
    let (before, after) = bench.changed().await;
    assert_eq!(
        (&before["give_back"], &after["give_back"]),
        (&"parked".into(), &"returned".into())
    );
    let unit = self_service::unit(&mut connection, partner, &topup)
        .await
        .told(&mut connection)
        .await
        .unwrap();
    assert_eq!(unit.state, PartnerUnitState::Returned);
    assert!(unit.profile.is_none() && unit.erased_at.is_some());
    let order = orders::find(&mut connection, topup.as_str())
        .await
        .told(&mut connection)
        .await;
    let sentence = story::sentence(&order[0], runtime::clock::now());
    assert!(
        sentence.ends_with(": the eSIM was given back at your request."),
        "{sentence}"
    );
    let listed = esim_changes::list(&mut connection, None, None, 10)
        .await
        .unwrap();
    assert!(listed.is_empty());
}

/// A suspension moves as a give-back does, and is asked for anew from each end. What is told of a
/// wish that another one has followed changes nothing.
#[tokio::test]
async fn each_statement_moves_a_suspension_as_the_machine_does() {
    const WISH: AskedChange = AskedChange::Suspension(true);
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let topup = bench.esim(partner).await;
    let mut connection = bench.connection().await;
    let stored = async || {
        let query =
            "SELECT suspend, suspension, suspension_attempt, suspension_not_done_at IS NOT NULL
                     FROM esim_requests WHERE topup_id = $1";
        let row: (bool, String, i32, bool) = sqlx::query_as(query)
            .bind(topup.as_str())
            .fetch_one(&bench.pool)
            .await
            .unwrap();
        let change = EsimChange {
            state: WISH.state_named(&row.1).unwrap(),
            attempt: u32::try_from(row.2).unwrap(),
            not_done: row.3,
        };
        (row.0, change)
    };
    esims::ask_suspension(&mut connection, partner, &topup, true)
        .await
        .unwrap();
    assert_eq!(stored().await, (true, EsimChange::NEW));
    for state in STATES {
        for not_done in [false, true] {
            let start = EsimChange {
                state,
                attempt: ATTEMPT,
                not_done,
            };
            let put = async |connection: &mut PgConnection| {
                let not_done_at = if not_done { "now()" } else { "NULL" };
                let put = format!(
                    "UPDATE esim_requests SET suspend = true, suspension = '{}', suspension_attempt = {ATTEMPT},
                            suspension_not_done_at = {not_done_at} WHERE topup_id = '{topup}'",
                    WISH.state_name(state),
                );
                execute(connection, &put).await;
            };
            for event in events() {
                put(&mut connection).await;
                let expected = start.after(event).unwrap_or(start);
                match event {
                    EsimChangeEvent::Ask | EsimChangeEvent::FoundNotDone => continue,
                    EsimChangeEvent::Begin => {
                        let begun = esim_requests::begin(&mut connection, &topup, WISH, start)
                            .await
                            .unwrap();
                        let is_begun = expected.attempt > ATTEMPT;
                        assert_eq!(begun, is_begun.then_some(expected.attempt), "{start:?}");
                    }
                    _ => {
                        let settlement = EsimChangeSettlement {
                            event: Some(event),
                            again_in: MINUTE,
                            ..EsimChangeSettlement::default()
                        };
                        let settled =
                            esim_requests::settle(&mut connection, &topup, WISH, &settlement).await;
                        let moved = start.after(event).is_ok();
                        assert_eq!(settled.unwrap(), (Some(expected.state), moved), "{start:?}");
                        let other = AskedChange::Suspension(false);
                        let settled =
                            esim_requests::settle(&mut connection, &topup, other, &settlement)
                                .await;
                        assert_eq!(settled.unwrap(), (None, false), "{start:?}");
                    }
                }
                let (_, now) = stored().await;
                assert_eq!(
                    (now.state, now.attempt),
                    (expected.state, expected.attempt),
                    "{start:?} {event:?}"
                );
            }
            // The next wish waits until this one has ended, and the attempts are counted on.
            put(&mut connection).await;
            esims::ask_suspension(&mut connection, partner, &topup, false)
                .await
                .unwrap();
            let expected = if state.is_over() {
                let asked = EsimChange {
                    attempt: ATTEMPT,
                    ..EsimChange::NEW
                };
                (false, asked)
            } else {
                (true, start)
            };
            assert_eq!(stored().await, expected, "{start:?}");
        }
    }
}

/// Whoever asks for the use of an eSIM that is claimed asks for the verdict, too. A claim is polled
/// until it is decided, also if its partner wants to hear nothing of its use, or its code is
/// erased.
#[tokio::test]
async fn a_claim_is_polled_until_it_is_decided() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let topup = bench.esim(partner).await;
    let mut connection = bench.connection().await;
    esims::ask_give_back(&mut connection, partner, &topup, GiveBackCause::NoCoverage)
        .await
        .unwrap();
    let claimed = bench.claim_requests().await;
    assert_eq!(claimed[0].cause, GiveBackCause::NoCoverage);
    let asked = AskedChange::GiveBack;
    let begun = esim_requests::begin(&mut connection, &topup, asked, EsimChange::NEW).await;
    assert_eq!(begun.unwrap(), Some(1));
    let claim = EsimChangeSettlement {
        event: Some(EsimChangeEvent::Claimed(1)),
        reference: Some("12345".to_owned()),
        claim: Some("it is reviewed".to_owned()),
        ..EsimChangeSettlement::default()
    };
    let (state, moved) = esim_requests::settle(&mut connection, &topup, asked, &claim)
        .await
        .unwrap();
    assert_eq!((state, moved), (Some(EsimChangeState::Claimed), true));
    let told = "SELECT claim = '12345' AND message = 'it is reviewed' AND ended_at IS NULL AND poll_at > now()
                FROM esim_requests WHERE topup_id = $1";
    assert!(bench.value::<bool>(told, &topup).await);
    let work = "SELECT count(*) FROM work WHERE lane = $1";
    assert_eq!(
        bench.value::<i64>(work, &topup).await,
        0,
        "nobody looks in between"
    );
    bench
        .sql("UPDATE esims SET profile = NULL, erased_at = now(); INSERT INTO providers (name) VALUES ('sandbox') ON CONFLICT DO NOTHING")
        .await;
    let due = "UPDATE esim_requests SET poll_at = now(); UPDATE providers SET polled_at = now() - interval '1 hour'";
    for _ in 0..2 {
        bench.sql(due).await;
        let polled = esim_requests::poll(&mut connection, PROVIDER, 3_600).await;
        assert_eq!(polled.unwrap(), 1);
        let found = bench.claim_requests().await.remove(0);
        let (change, open) = found.change.unwrap();
        assert_eq!((change, open.now.state), (asked, EsimChangeState::Claimed));
        esim_requests::record_reading(&mut connection, &topup, &Reading::default(), &[])
            .await
            .unwrap();
        let next = "SELECT poll_at BETWEEN now() + interval '30 s' AND now() + interval '6 hours'
                    FROM esim_requests WHERE topup_id = $1";
        assert!(bench.value::<bool>(next, &topup).await);
    }
    let denied = EsimChangeSettlement {
        event: Some(EsimChangeEvent::Denied),
        reason: Some((EsimChangeReason::Denied, Some("no".to_owned()))),
        ..EsimChangeSettlement::default()
    };
    esim_requests::settle(&mut connection, &topup, asked, &denied)
        .await
        .unwrap();
    bench.sql(due).await;
    let polled = esim_requests::poll(&mut connection, PROVIDER, 3_600).await;
    assert_eq!(polled.unwrap(), 0);
}
