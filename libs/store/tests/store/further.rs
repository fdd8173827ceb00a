//! Further endpoints: each gets the topups that it wants, whatever becomes of the other endpoints
//! of its partner and of the processes that create its deliveries.

use std::time::Duration;

use accounts::partners::endpoints::{EndpointUpdate, Headers, NewEndpoint};
use accounts::partners::{self, Overlap, RotationResult};
use desk::master_key;
use desk::self_service::{self, PauseChanged, SentAgain};
use domain::{
    EndpointId, EndpointKey, PartnerId, TopupId, event::EventKind, standing::EndpointState,
};
use pg::Transaction;
use signing::webhook;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use store::deliveries::endpoints;
use store::deliveries::events::{EndpointTestResult, test};
use store::deliveries::{
    self, AttemptResult, ClaimResult, ClaimedDelivery, DeliveryClaim, DeliveryContent,
    EndedAttempt, batches,
};
use uuid::Uuid;
use vault::Vault;

use crate::bench::{
    Bench, NEW_KEY, OLD_KEY, Told as _, VAULT, committed, delivery_id, ids, look, order, placement,
    rejected, topups, vault,
};
use crate::deliveries::{attempted, failure};

const URL: &str = "https://partner.example/first";
const YOUNGER_THAN: DeliveryClaim = DeliveryClaim::Fresh {
    younger_than: Duration::from_mins(1),
};
const MINUTE: Duration = Duration::from_mins(1);
pub const READY: &[EventKind] = &[EventKind::TopupReady];

impl Bench {
    /// Creates a further endpoint; its URL ends with `name`.
    pub async fn further(
        &self,
        partner_id: PartnerId,
        name: &str,
        events: &[EventKind],
    ) -> EndpointKey {
        let key = EndpointKey {
            partner_id,
            id: EndpointId::new(),
        };
        assert!(self.try_further(key, name, events).await);
        // Its host has proved itself, so that its webhooks are not paced.
        let prove = "UPDATE partner_endpoints SET unproven_since = NULL, blocked_until = NULL WHERE unproven_since IS NOT NULL";
        self.sql(prove).await;
        key
    }

    async fn try_further(&self, key: EndpointKey, name: &str, events: &[EventKind]) -> bool {
        let new = NewEndpoint {
            key,
            url: &format!("https://{name}.example/hook"),
            secret: &webhook::Secret::from_bytes(vec![9; 32]).unwrap(),
            events,
            headers: &Headers::from([("x-api-key".to_owned(), name.to_owned())]),
        };
        self_service::create_endpoint(&mut *self.connection().await, &VAULT, &new)
            .await
            .unwrap()
    }

    async fn fresh(&self, topups: &[TopupId]) -> ClaimResult {
        deliveries::claim(&mut *self.connection().await, &ids(topups), YOUNGER_THAN)
            .await
            .unwrap()
    }

    async fn fan_out(&self, claimed: &ClaimResult) -> u64 {
        deliveries::fan_out(&mut *self.connection().await, &claimed.to_fan_out)
            .await
            .unwrap()
    }

    async fn claim_all_due(&self) -> Vec<ClaimedDelivery> {
        self.claim_due_deliveries(&look(100, 100)).await
    }

    async fn attempt_at(&self, delivery: &ClaimedDelivery, result: AttemptResult) {
        let attempted = EndedAttempt {
            endpoint_id: delivery.endpoint.id,
            is_event: matches!(delivery.content, DeliveryContent::Event(_)),
            leased: delivery.leased,
            ..attempted(delivery.id, delivery.ended_attempts, result)
        };
        self.record(&[attempted]).await;
    }

    async fn shown(&self, key: EndpointKey) -> self_service::AnyEndpoint {
        let mut connection = self.connection().await;
        self_service::endpoints(&mut connection, key.partner_id, Some(key.id))
            .await
            .unwrap()
            .remove(0)
    }

    async fn numbers(&self, statement: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(statement.to_owned()))
            .fetch_one(&self.pool)
            .await
            .unwrap()
    }
}

/// The endpoints of claimed deliveries, sorted.
fn endpoints_of(claimed: &[ClaimedDelivery]) -> Vec<EndpointId> {
    let mut endpoints: Vec<EndpointId> = claimed.iter().map(|one| one.endpoint.id).collect();
    endpoints.sort_unstable();
    endpoints
}

#[tokio::test]
async fn a_topup_goes_to_each_endpoint_that_wants_it() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some(URL)).await;
    let alone = bench.partner(Some(URL)).await;
    let before = bench.deliveries(partner, 1, true).await;
    let wants = bench.further(partner, "wants", READY).await;
    bench
        .further(partner, "wants-not", &[EventKind::TopupFailed])
        .await;
    let topups = bench.deliveries(partner, 2, true).await;
    let other = bench.deliveries(alone, 1, true).await;

    let claimed = bench.fresh(&[before, topups.clone(), other].concat()).await;
    assert_eq!(claimed.deliveries.len(), 4);
    assert_eq!(
        claimed.to_fan_out.len(),
        3,
        "a partner with one endpoint costs nothing"
    );
    assert_eq!(
        bench.fan_out(&claimed).await,
        2,
        "one that was ready before does not go to a new endpoint"
    );
    assert_eq!(
        bench.fan_out(&claimed).await,
        0,
        "repeating it changes nothing"
    );

    let first = &claimed.deliveries[0];
    assert_eq!(first.endpoint.id, first.partner_id.first_endpoint());
    assert_eq!(first.target.url.as_deref(), Some(URL));
    assert_eq!(first.target.headers, None);
    let due = bench.claim_all_due().await;
    assert_eq!(endpoints_of(&due), [wants.id; 2]);
    for delivery in &due {
        let target = &delivery.target;
        assert_eq!(target.url.as_deref(), Some("https://wants.example/hook"));
        assert_eq!(target.host.as_deref(), Some("wants.example"));
        let key = delivery.endpoint;
        let secret = partners::endpoints::open_secret(&VAULT, key, &target.secrets[0]);
        assert_eq!(secret.unwrap().expose(), [9; 32]);
        let headers = target.headers.as_ref().unwrap();
        let headers = partners::endpoints::open_headers(&VAULT, wants.id, headers).unwrap();
        assert_eq!(headers["x-api-key"], "wants");
        let DeliveryContent::Esim(esim) = &delivery.content else {
            panic!("{delivery:?}");
        };
        assert_eq!(delivery.webhook_id().to_string(), esim.topup_id.to_string());
    }
    // The states are independent, and both are shown with the topup.
    bench.attempt_at(&due[0], failure(None)).await;
    let DeliveryContent::Esim(esim) = &due[0].content else {
        panic!()
    };
    let mut connection = bench.connection().await;
    let shown = self_service::delivery(&mut connection, partner, &esim.topup_id)
        .await
        .told(&mut connection)
        .await
        .unwrap();
    assert_eq!(shown.state.as_str(), Some("pending"));
    assert_eq!(shown.further.len(), 1);
    assert_eq!(
        (
            shown.further[0].endpoint_id,
            shown.further[0].state.as_str()
        ),
        (wants.id, "exhausted")
    );
    assert_eq!(shown.further[0].attempts.len(), 1);
    assert_eq!(bench.shown(wants).await.exhausted, 1);
    assert_eq!(bench.shown(EndpointKey::first(partner)).await.exhausted, 0);
    // Each can be sent again by itself, and only by its owner.
    for (owner, expected) in [(alone, SentAgain::Unknown), (partner, SentAgain::Again)] {
        let id = esim.topup_id.clone().into();
        let again =
            self_service::send_again(&mut connection, owner, &id, Some(wants.id), Duration::ZERO);
        assert_eq!(again.await.unwrap(), expected);
    }
    assert_eq!(endpoints_of(&bench.claim_all_due().await), [wants.id]);
    assert_eq!(bench.shown(wants).await.exhausted, 0);
}

/// One adds an endpoint and then wants what came before, so it is sent there; but only what is the
/// partner's, to where the partner has an endpoint, and never twice.
#[tokio::test]
async fn what_was_ready_before_goes_to_a_new_endpoint_on_request() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some(URL)).await;
    let stranger = bench.partner(Some(URL)).await;
    let topup = bench.deliveries(partner, 1, true).await.remove(0);
    let unready = topups(&bench.stored(order(partner, 1)).await).remove(0);
    let erased = bench.deliveries(partner, 1, true).await.remove(0);
    let erase = "UPDATE esims SET erased_at = now(), profile = NULL WHERE topup_id = $1";
    bench.set(erase, &erased).await;
    let new = bench
        .further(partner, "new", &[EventKind::TopupFailed])
        .await
        .id;
    let gone = bench.further(partner, "gone", READY).await;
    let theirs = bench.further(stranger, "theirs", READY).await.id;
    let mut connection = bench.connection().await;
    assert!(
        self_service::delete_endpoint(&mut connection, gone)
            .await
            .unwrap()
    );
    for (owner, topup, endpoint, expected) in [
        (partner, &topup, EndpointId::new(), SentAgain::NotMyEndpoint),
        (partner, &topup, theirs, SentAgain::NotMyEndpoint),
        (partner, &topup, gone.id, SentAgain::NotMyEndpoint),
        (stranger, &topup, theirs, SentAgain::Unknown),
        (partner, &unready, new, SentAgain::NotReady),
        (partner, &erased, new, SentAgain::Gone),
        (partner, &topup, new, SentAgain::Again),
        (partner, &topup, new, SentAgain::Due),
    ] {
        let id = topup.clone().into();
        let again = self_service::send_again(&mut connection, owner, &id, Some(endpoint), MINUTE);
        assert_eq!(again.await.unwrap(), expected, "{topup} to {endpoint}");
    }
    let due = bench.claim_all_due().await;
    let sent: Vec<&ClaimedDelivery> = due.iter().filter(|one| one.endpoint.id == new).collect();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].webhook_id().to_string(), topup.to_string());
    // The function of the database checks the same, because a stolen role may call it.
    for (owner, topup, endpoint) in [
        (stranger, &topup, theirs),
        (partner, &topup, theirs),
        (partner, &unready, new),
        (partner, &erased, new),
        (partner, &topup, partner.first_endpoint()),
    ] {
        let made = sqlx::query_scalar::<_, Option<Uuid>>("SELECT deliver_to($1, $2, $3)")
            .bind(owner.uuid())
            .bind(topup.as_str())
            .bind(endpoint.uuid())
            .fetch_one(&bench.pool)
            .await;
        assert_eq!(made.unwrap(), None, "{topup} to {endpoint}");
    }
}

/// Whatever crashes: the sweep creates what a claim has not created, whatever became of the
/// delivery to the first endpoint in the meantime.
#[tokio::test]
async fn the_sweep_fans_out_what_no_claim_has() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let further = bench.further(partner, "further", READY).await;
    let topups = bench.deliveries(partner, 3, true).await;
    bench
        .set(
            "UPDATE deliveries SET state = 'delivered' WHERE topup_id = $1",
            &topups[0],
        )
        .await;
    // This one is held, because there is no URL.
    let held = ids(&topups[1..2]);
    deliveries::set_no_endpoint(&mut *bench.connection().await, &held)
        .await
        .unwrap();
    bench
        .sql("UPDATE walks SET up_to = now() - interval '8 s' WHERE name IN ('placements', 'deliveries')")
        .await;
    for _ in 0..2 {
        deliveries::sweep(&mut *bench.connection().await, Duration::ZERO)
            .await
            .unwrap();
    }
    let due = bench.claim_all_due().await;
    let further_due: Vec<EndpointId> = endpoints_of(&due)
        .into_iter()
        .filter(|id| *id == further.id)
        .collect();
    assert_eq!(further_due.len(), 3);
    assert_eq!(
        bench
            .numbers("SELECT count(*) FROM further_deliveries")
            .await,
        3
    );
}

#[tokio::test]
async fn a_blocked_endpoint_never_stops_another_one_of_the_same_partner() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some(URL)).await;
    let further = bench.further(partner, "further", READY).await;
    let first = EndpointKey::first(partner);
    let warm = bench.deliveries(partner, 3, false).await;
    for topup in &warm {
        let failed = EndedAttempt {
            endpoint_id: first.id,
            ..attempted(delivery_id(topup), 0, failure(Some(MINUTE * 60)))
        };
        bench.record(&[failed]).await;
    }
    assert_eq!(bench.shown(first).await.state.as_str(), "blocked");
    assert_eq!(bench.shown(further).await.state.as_str(), "open");

    let topups = bench.deliveries(partner, 2, true).await;
    let claimed = bench.fresh(&topups).await;
    assert!(claimed.deliveries.is_empty(), "the first one is blocked");
    assert_eq!(bench.fan_out(&claimed).await, 2);
    let due = bench.claim_all_due().await;
    assert_eq!(endpoints_of(&due), [further.id; 2]);
    // Now the further one fails and is blocked, and the first one works again.
    for delivery in three_times(&due) {
        bench
            .attempt_at(&delivery, failure(Some(Duration::ZERO)))
            .await;
    }
    assert_eq!(bench.shown(further).await.state.as_str(), "blocked");
    bench.resume(first).await;
    assert_eq!(endpoints_of(&bench.claim_all_due().await), [first.id; 5]);
    let backlog = desk::operator::health::webhooks::backlog(&mut *bench.connection().await)
        .await
        .unwrap();
    assert_eq!((backlog.blocked, backlog.due), (1, 0));
}

/// One more attempt than two deliveries have, so that the failures suffice for a block.
fn three_times(due: &[ClaimedDelivery]) -> Vec<ClaimedDelivery> {
    let again = ClaimedDelivery {
        ended_attempts: due[0].ended_attempts + 1,
        ..due[0].clone()
    };
    vec![due[0].clone(), due[1].clone(), again]
}

/// What waited during a block is due when the block ends, and is counted until then.
#[tokio::test]
async fn what_became_ready_during_a_block_goes_out_when_it_ends() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some(URL)).await;
    let first = EndpointKey::first(partner);
    let block = "UPDATE partner_endpoints SET failures = 20, blocks = 1, blocked_until = now() + interval '1 hour'
                 WHERE endpoint_id::text = $1";
    bench.set(block, partner).await;
    let topups = bench.deliveries(partner, 5, true).await;
    assert!(bench.fresh(&topups).await.deliveries.is_empty());
    assert_eq!(bench.shown(first).await.waiting, 5);
    let mut connection = bench.connection().await;
    let endpoint = self_service::endpoint(&mut connection, partner)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(endpoint.waiting, 5);
    let shown = self_service::delivery(&mut connection, partner, &topups[0])
        .await
        .told(&mut connection)
        .await
        .unwrap();
    assert_eq!(
        shown.next_attempt_at, endpoint.blocked_until,
        "not before the block ends"
    );
    assert!(shown.next_attempt_at.is_some());

    // The partner shows by a test that its endpoint works.
    let EndpointTestResult::Due(_) = test(&mut connection, first, Duration::ZERO).await.unwrap()
    else {
        panic!("no test");
    };
    let tests = bench.claim_all_due().await;
    assert_eq!(tests.len(), 1);
    bench.attempt_at(&tests[0], AttemptResult::Delivered).await;
    assert_eq!(bench.shown(first).await.state.as_str(), "open");
    assert_eq!(bench.claim_all_due().await.len(), 5, "at once");
}

#[tokio::test]
async fn a_partner_has_ten_endpoints_at_most() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some(URL)).await;
    let mut last = None;
    for number in 1..partners::endpoints::MOST {
        last = Some(bench.further(partner, &format!("e{number}"), READY).await);
    }
    let key = EndpointKey {
        partner_id: partner,
        id: EndpointId::new(),
    };
    assert!(!bench.try_further(key, "eleventh", READY).await);
    let mut connection = bench.connection().await;
    let listed = self_service::endpoints(&mut connection, partner, None)
        .await
        .unwrap();
    assert_eq!(listed.len(), 10);
    assert_eq!(listed[0].endpoint_id, partner.first_endpoint());
    assert!(
        self_service::delete_endpoint(&mut connection, last.unwrap())
            .await
            .unwrap()
    );
    assert!(bench.try_further(key, "tenth", READY).await);
}

#[tokio::test]
async fn an_endpoint_is_changed_by_its_partner_only() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some(URL)).await;
    let key = bench.further(partner, "old", READY).await;
    let stranger = EndpointKey {
        partner_id: bench.partner(None).await,
        ..key
    };
    let mut connection = bench.connection().await;
    let none = Headers::new();
    let change = EndpointUpdate {
        url: Some(Some("https://new.example/hook")),
        events: Some(&[EventKind::TopupFailed]),
        headers: Some((&VAULT, &none)),
    };
    let secret = webhook::Secret::from_bytes(vec![8; 32]).unwrap();
    let overlap = Overlap {
        lasts: MINUTE,
        keep_old: false,
    };
    let changed = self_service::change_endpoint(&mut connection, stranger, &change).await;
    assert_eq!(changed.unwrap(), None);
    let deleted = self_service::delete_endpoint(&mut connection, stranger).await;
    assert!(!deleted.unwrap());
    let paused = self_service::pause_endpoint(&mut connection, stranger).await;
    assert_eq!(paused.unwrap(), PauseChanged::Unknown);
    let resumed = self_service::resume_endpoint(&mut connection, stranger).await;
    assert_eq!(resumed.unwrap(), PauseChanged::Unknown);
    let rotate = async |connection: &mut PgConnection, endpoint| {
        let rotate = async |transaction: &mut Transaction<'_>| {
            partners::rotate_secret(transaction, &VAULT, endpoint, &secret, overlap).await
        };
        committed(connection, rotate).await
    };
    let rotated = rotate(&mut connection, stranger).await;
    assert_eq!(rotated.unwrap(), RotationResult::Refused);
    let tested = test(&mut connection, stranger, MINUTE).await.unwrap();
    assert_eq!(tested, EndpointTestResult::NoEndpoint);
    assert_eq!(
        self_service::endpoints(&mut connection, stranger.partner_id, Some(key.id))
            .await
            .unwrap()
            .len(),
        0
    );

    let changed = self_service::change_endpoint(&mut connection, key, &change).await;
    assert_eq!(changed.unwrap(), Some(true));
    let shown = bench.shown(key).await;
    assert_eq!(shown.url.as_deref(), Some("https://new.example/hook"));
    assert_eq!(
        (shown.events, shown.headers),
        (vec!["topup.failed".to_owned()], None)
    );
    let due = batches::due(&mut connection, &look(10, 10))
        .await
        .unwrap()
        .due;
    let due: Vec<Uuid> = due.iter().map(|one| one.id).collect();
    assert_eq!(due, [key.id.uuid()]);
    let rotated = rotate(&mut connection, key).await;
    assert!(matches!(rotated.unwrap(), RotationResult::Until(Some(_))));
    let again = rotate(&mut connection, key).await;
    assert_eq!(
        again.unwrap(),
        RotationResult::Refused,
        "the last overlap has not ended"
    );
}

#[tokio::test]
async fn a_partner_ends_its_own_pause_and_no_other() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some(URL)).await;
    let further = bench.further(partner, "further", READY).await;
    let topups = bench.deliveries(partner, 1, true).await;
    let mut connection = bench.connection().await;
    let paused = self_service::pause_endpoint(&mut connection, further).await;
    assert_eq!(paused.unwrap(), PauseChanged::Done);
    let claimed = bench.fresh(&topups).await;
    bench.fan_out(&claimed).await;
    assert_eq!(claimed.deliveries.len(), 1, "the first one goes on");
    assert!(bench.claim_all_due().await.is_empty());
    let shown = bench.shown(further).await;
    assert_eq!(shown.state, EndpointState::PausedByPartner);
    assert_eq!(shown.waiting, 1);

    let resumed = self_service::resume_endpoint(&mut connection, further).await;
    assert_eq!(resumed.unwrap(), PauseChanged::Done);
    assert_eq!(endpoints_of(&bench.claim_all_due().await), [further.id]);
    // Only a change is recorded, whatever is asked for how often.
    let recorded = "SELECT count(*) FROM operator_actions WHERE command LIKE 'endpoint %'";
    let before = bench.numbers(recorded).await;
    let url = bench.shown(further).await.url;
    let same = EndpointUpdate {
        url: Some(url.as_deref()),
        events: Some(READY),
        headers: None,
    };
    for _ in 0..3 {
        let resumed = self_service::resume_endpoint(&mut connection, further).await;
        assert_eq!(resumed.unwrap(), PauseChanged::Done);
        let set = self_service::change_endpoint(&mut connection, further, &same).await;
        assert_eq!(set.unwrap(), Some(false));
    }
    assert_eq!(bench.numbers(recorded).await, before);
    for _ in 0..3 {
        let paused = self_service::pause_endpoint(&mut connection, further).await;
        assert_eq!(paused.unwrap(), PauseChanged::Done);
    }
    assert_eq!(bench.numbers(recorded).await, before + 1);
    let headers = Headers::from([("x-key".to_owned(), "s3cret".to_owned())]);
    for (headers, records) in [
        (headers.clone(), 2),
        (headers, 2),
        (Headers::new(), 3),
        (Headers::new(), 3),
    ] {
        let change = EndpointUpdate {
            url: None,
            events: None,
            headers: Some((&VAULT, &headers)),
        };
        let set = self_service::change_endpoint(&mut connection, further, &change).await;
        assert!(set.unwrap().is_some());
        assert_eq!(bench.numbers(recorded).await, before + records);
    }
    let resumed = self_service::resume_endpoint(&mut connection, further).await;
    assert_eq!(resumed.unwrap(), PauseChanged::Done);
    // An operator's pause replaces that of the partner, who cannot end it.
    self_service::pause_endpoint(&mut connection, further)
        .await
        .unwrap();
    endpoints::pause(&mut connection, further.id).await.unwrap();
    self_service::pause_endpoint(&mut connection, further)
        .await
        .unwrap();
    let resumed = self_service::resume_endpoint(&mut connection, further).await;
    assert_eq!(resumed.unwrap(), PauseChanged::ByOperator);
    endpoints::resume(&mut connection, further).await.unwrap();
    assert_eq!(bench.shown(further).await.state.as_str(), "open");
}

#[tokio::test]
async fn what_waits_for_a_deleted_endpoint_is_forgotten() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some(URL)).await;
    let further = bench.further(partner, "further", READY).await;
    let topups = bench.deliveries(partner, 2, true).await;
    let claimed = bench.fresh(&topups).await;
    bench.fan_out(&claimed).await;
    let due = bench.claim_all_due().await;
    bench.attempt_at(&due[0], failure(None)).await;
    bench
        .attempt_at(&due[1], failure(Some(Duration::ZERO)))
        .await;
    let mut connection = bench.connection().await;
    self_service::pause_endpoint(&mut connection, further)
        .await
        .unwrap();
    assert!(
        self_service::delete_endpoint(&mut connection, further)
            .await
            .unwrap()
    );
    assert!(bench.claim_all_due().await.is_empty());
    let left =
        "SELECT count(*) FROM deliveries WHERE endpoint_id IS NOT NULL AND state = 'pending'";
    assert_eq!(bench.numbers(left).await, 0, "its claim has deleted it");
    assert_eq!(bench.numbers("SELECT count(*) FROM held").await, 0);
    // What is exhausted stays as history, with its topup, but cannot be sent again.
    let DeliveryContent::Esim(esim) = &due[0].content else {
        panic!()
    };
    let id = esim.topup_id.clone().into();
    let again = self_service::send_again(
        &mut connection,
        partner,
        &id,
        Some(further.id),
        Duration::ZERO,
    );
    assert_eq!(again.await.unwrap(), SentAgain::NotMyEndpoint);
    // The next topups cost nothing more again.
    let topups = bench.deliveries(partner, 1, true).await;
    assert!(bench.fresh(&topups).await.to_fan_out.is_empty());
}

#[tokio::test]
async fn events_go_to_the_endpoints_that_asked_for_them() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some(URL)).await;
    let further = bench
        .further(
            partner,
            "further",
            &[EventKind::TopupFailed, EventKind::KeyExpiring],
        )
        .await;
    bench.further(partner, "silent", READY).await;
    let order = bench.stored(crate::bench::answered(partner, 1)).await;
    bench.claim(&[placement(&order)]).await;
    bench.settle(&[rejected(placement(&order), 1)]).await;
    let due = bench.claim_all_due().await;
    assert_eq!(endpoints_of(&due), [further.id]);
    assert!(matches!(due[0].content, DeliveryContent::Event(_)));
    bench.attempt_at(&due[0], AttemptResult::Delivered).await;

    // The old secret of an endpoint concerns this endpoint; old keys concern all that asked.
    bench.set_events(partner, &[EventKind::KeyExpiring]).await;
    bench
        .sql(
            "UPDATE partner_endpoints SET secrets[2] = secrets[1], secret_ends[2] = now() + interval '1 hour'
             WHERE 'key.expiring' = ANY (events) AND nth > 0;
             UPDATE partners SET old_access_key = 'old', old_keys_until = now() + interval '1 hour'",
        )
        .await;
    let mut connection = bench.connection().await;
    for expected in [3, 0] {
        let made = deliveries::events::expiring(&mut connection, MINUTE * 120).await;
        assert_eq!(made.unwrap(), expected);
    }
    let mut expected = vec![further.id, further.id, partner.first_endpoint()];
    expected.sort_unstable();
    assert_eq!(endpoints_of(&bench.claim_all_due().await), expected);
}

/// The link to the event is looked at when the failure commits, and the endpoint may be gone by
/// then.
#[tokio::test]
async fn a_unit_fails_while_its_partner_deletes_an_endpoint() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some(URL)).await;
    let further = bench
        .further(partner, "further", &[EventKind::TopupFailed])
        .await;
    let order = bench.stored(crate::bench::answered(partner, 1)).await;
    let mut connection = bench.connection().await;
    let mut transaction = connection.begin().await.unwrap();
    let failing = sqlx::query("UPDATE topups SET state = 'failed' WHERE topup_id = $1");
    let unit = topups(&order)[0].to_string();
    failing
        .bind(&unit)
        .execute(&mut *transaction)
        .await
        .unwrap();
    bench
        .sql(&format!(
            "DELETE FROM partner_endpoints WHERE endpoint_id = '{}'",
            further.id
        ))
        .await;
    transaction.commit().await.unwrap();
    let failed = "SELECT count(*) FROM topups t JOIN further_deliveries f USING (topup_id) WHERE t.state = 'failed'";
    assert_eq!(bench.numbers(failed).await, 1);
}

#[tokio::test]
async fn secrets_and_headers_are_sealed_anew_and_bound_to_their_endpoint() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let key = bench.further(partner, "further", READY).await;
    let other = bench.further(partner, "other", READY).await;
    let both: Vault = vault(&format!("{NEW_KEY},{OLD_KEY}"));
    let mut connection = bench.connection().await;
    let usages = master_key::usages(&mut connection).await.unwrap();
    assert_eq!(master_key::left(&usages, &both), 6, "{usages:?}");
    let pass = master_key::reencrypt(&mut connection, &both, |_| {})
        .await
        .unwrap();
    assert_eq!((pass.reencrypted, pass.failed.len()), (6, 0));
    let new = vault(NEW_KEY);
    let headers = bench.shown(key).await.headers.unwrap();
    let opened = partners::endpoints::open_headers(&new, key.id, &headers).unwrap();
    assert_eq!(opened["x-api-key"], "further");
    assert!(partners::endpoints::open_headers(&new, other.id, &headers).is_err());
    accounts::start::wait(&bench.store, &new).await.unwrap();
    // A service does not start without the key of a further endpoint's secret.
    bench
        .sql("UPDATE partner_endpoints SET secrets = '{}', secret_ends = '{}' WHERE nth = 0")
        .await;
    assert!(
        accounts::partners::check_master_key(&mut connection, &vault(OLD_KEY))
            .await
            .is_err()
    );
}
