//! Extensions of delivered eSIMs. Every statement that moves one is executed in every state, and
//! its effect is compared with [`EsimChange::after`].

use accounts::profile::SealedProfile;
use desk::{
    operator::{
        erase,
        esim_changes::{self, EsimChangeFinding, EsimChangeNotResolved, SeenEsimChange},
    },
    self_service::{
        esims,
        extensions::{ExtensionOrdered, ExtensionScope, NewExtension, PartnerExtension, order},
    },
};
use domain::{
    Environment, EsimChangeState, ExtensionId, Iccid, KeyId, OptionId, PartnerId, TopupId,
    esim_change::{EsimChange, EsimChangeEvent, EsimChangeKind, GiveBackCause},
    extension::Baseline,
};
use sqlx::PgConnection;
use store::{
    deliveries::AttemptResult,
    esim_requests::{EsimChangeReason, EsimChangeSettlement, RequestClaim},
    extensions::{self, ClaimedExtension, state_name, state_named},
    orders::LimitedKey,
};

use crate::{
    bench::{
        Bench, LEASE, PROVIDER, applied, delivery_id, esim, execute, iccid, ids, look, sealed,
    },
    deliveries::attempted,
    esim_requests::{ATTEMPT, MINUTE, STATES, due_requests, events},
};

/// What was true before an attempt.
fn baseline() -> Baseline {
    Baseline {
        data_total: Some(1 << 30),
        packages: vec!["eu-1".to_owned()],
        adds_data: Some(5 << 30),
        ..Baseline::default()
    }
}

/// A partner in the sandbox, where each option leads to each provider.
const SANDBOX: ExtensionScope<'static> = ExtensionScope {
    environment: Environment::Sandbox,
    providers: &[],
    price_list: None,
};

pub fn new<'a>(
    topup_id: &'a TopupId,
    external_id: &'a str,
    option_id: OptionId,
) -> NewExtension<'a> {
    NewExtension {
        topup_id,
        external_id,
        option_id,
        scope: SANDBOX,
        limited_key: None,
    }
}

fn settled(event: EsimChangeEvent) -> EsimChangeSettlement {
    EsimChangeSettlement {
        event: Some(event),
        reason: Some((EsimChangeReason::Refused, Some("why".to_owned()))),
        again_in: MINUTE,
        ..EsimChangeSettlement::default()
    }
}

impl Bench {
    pub async fn option(&self) -> OptionId {
        let id = OptionId::new();
        self.sql(&format!(
            "INSERT INTO options (option_id, name, provider, provider_option_id, environment, enabled)
             VALUES ('{id}', 'more', 'another', 'eu-5', 'live', true)"
        ))
        .await;
        id
    }

    /// An extension of a new unit of this partner.
    async fn extended(&self, partner: PartnerId) -> (TopupId, ExtensionId) {
        let topup = self.esim(partner).await;
        let option = self.option().await;
        let stored = self
            .extend(partner, new(&topup, topup.as_str(), option))
            .await;
        (topup, stored.extension_id)
    }

    async fn extend(&self, partner: PartnerId, new: NewExtension<'_>) -> PartnerExtension {
        match order(&mut *self.connection().await, partner, new)
            .await
            .unwrap()
        {
            ExtensionOrdered::Stored(stored) => stored,
            other => panic!("{other:?}"),
        }
    }

    async fn put_extension(&self, id: ExtensionId, start: EsimChange) {
        let not_added = if start.not_done { "now()" } else { "NULL" };
        self.sql(&format!(
            "UPDATE extensions SET state = '{}', attempt = {}, not_added_at = {not_added}, ended_at = now()
             WHERE extension_id = '{id}'",
            state_name(start.state),
            start.attempt,
        ))
        .await;
    }

    async fn extension(&self, id: ExtensionId) -> EsimChange {
        let (state, attempt, not_done): (String, i32, bool) = sqlx::query_as(
            "SELECT state, attempt, not_added_at IS NOT NULL FROM extensions WHERE extension_id = $1",
        )
        .bind(id.uuid())
        .fetch_one(&self.pool)
        .await
        .unwrap();
        EsimChange {
            state: state_named(&state).unwrap(),
            attempt: attempt.try_into().unwrap(),
            not_done,
        }
    }

    async fn claim_extensions(&self) -> Vec<ClaimedExtension> {
        let mut connection = self.connection().await;
        let rows = due_requests(&mut connection).await;
        extensions::claim(&mut connection, PROVIDER, &rows, MINUTE, RequestClaim::Due)
            .await
            .unwrap()
    }

    /// The seconds until the extension of a topup is looked at; `None` if never.
    async fn due_again(&self, topup: &TopupId) -> Option<f64> {
        let due = "SELECT max(extract(epoch FROM at - now()))::float8 FROM work
                   WHERE kind = 'extend' AND lane = $1";
        self.value(due, topup).await
    }

    async fn ended_with(&self, id: ExtensionId) -> (Option<String>, Option<String>) {
        sqlx::query_as("SELECT reason, message FROM extensions WHERE extension_id = $1")
            .bind(id.uuid())
            .fetch_one(&self.pool)
            .await
            .unwrap()
    }
}

async fn settle(
    connection: &mut PgConnection,
    id: ExtensionId,
    settlement: &EsimChangeSettlement,
) -> (Option<EsimChangeState>, bool) {
    extensions::settle(connection, id, settlement)
        .await
        .unwrap()
}

#[tokio::test]
async fn each_statement_moves_an_extension_as_the_machine_does() {
    let bench = Bench::new().await;
    let (topup, id) = bench.extended(PartnerId::new()).await;
    let mut connection = bench.connection().await;
    assert_eq!(bench.extension(id).await, EsimChange::NEW);
    // A refused extension is not asked for again; another one takes its place.
    let mut events = events();
    events.retain(|event| *event != EsimChangeEvent::Ask);
    for state in STATES {
        for not_done in [false, true] {
            let start = EsimChange {
                state,
                attempt: ATTEMPT,
                not_done,
            };
            for event in events.clone() {
                bench.put_extension(id, start).await;
                let expected = start.after(event).unwrap_or(start);
                match event {
                    EsimChangeEvent::Begin => {
                        let begun = extensions::begin(&mut connection, id, start, &baseline())
                            .await
                            .unwrap();
                        let is_begun = expected.attempt > ATTEMPT;
                        assert_eq!(begun, is_begun.then_some(expected.attempt), "{start:?}");
                    }
                    EsimChangeEvent::FoundNotDone => {
                        let resolved = esim_changes::resolve(
                            &mut connection,
                            (EsimChangeKind::Extension, &topup),
                            EsimChangeFinding::NotDone,
                            None,
                            applied(),
                        );
                        let is_parked = state == EsimChangeState::Parked;
                        assert_eq!(resolved.await.is_ok(), is_parked, "{start:?}");
                        execute(&mut connection, "SELECT 1").await;
                    }
                    _ => {
                        let (now, moved) = settle(&mut connection, id, &settled(event)).await;
                        assert_eq!(now, Some(expected.state), "{start:?} {event:?}");
                        assert_eq!(moved, start.after(event).is_ok(), "{start:?} {event:?}");
                        // The work after one that is over is that of the next extension.
                        if moved || !start.state.is_over() {
                            let is_due = bench.due_again(&topup).await.is_some();
                            let is_open = !expected.state.is_over();
                            assert_eq!(is_due, is_open, "{start:?} {event:?}");
                        }
                    }
                }
                let stored = bench.extension(id).await;
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
            }
        }
    }
}

/// The lease of a process has ended during its call, another one has settled the extension, and the
/// partner has ordered the next one.
#[tokio::test]
async fn a_late_answer_takes_no_work_from_the_next_extension() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let (topup, id) = bench.extended(partner).await;
    let mut connection = bench.connection().await;
    extensions::begin(&mut connection, id, EsimChange::NEW, &baseline())
        .await
        .unwrap();
    settle(&mut connection, id, &settled(EsimChangeEvent::Done)).await;
    assert!(bench.due_again(&topup).await.is_none());
    let option = bench.option().await;
    let next = bench.extend(partner, new(&topup, "the next", option)).await;
    let late = settled(EsimChangeEvent::Refused(1));
    let (state, moved) = settle(&mut connection, id, &late).await;
    assert_eq!((state, moved), (Some(EsimChangeState::Done), false));
    assert!(bench.due_again(&topup).await.is_some());
    assert_eq!(next.state, EsimChangeState::Asked);
}

/// The lease keeps a second process away, and if it has ended, the attempt does.
#[tokio::test]
async fn only_one_process_sends_an_extension_and_a_look_has_its_baseline() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let (topup, id) = bench.extended(partner).await;
    let mut connection = bench.connection().await;
    let claimed = bench.claim_extensions().await;
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].extension_id, id);
    assert_eq!(
        (&claimed[0].esim.topup_id, claimed[0].esim.partner_id),
        (&topup, partner)
    );
    assert_eq!(claimed[0].esim.unit_id, format!("unit-{topup}"));
    assert_eq!(claimed[0].baseline, Baseline::default());
    assert!(bench.claim_extensions().await.is_empty(), "it is leased");
    for expected in [Some(1), None] {
        let begun = extensions::begin(&mut connection, id, claimed[0].open.now, &baseline()).await;
        assert_eq!(begun.unwrap(), expected);
    }
    bench.sql("UPDATE work SET at = now()").await;
    let claimed = bench.claim_extensions().await;
    let now = claimed[0].open.now;
    assert_eq!((now.state, now.attempt), (EsimChangeState::Sending, 1));
    assert_eq!(claimed[0].baseline, baseline());
}

/// While the breaker of the provider is open or half open, only a probe gets one.
#[tokio::test]
async fn a_breaker_that_is_not_closed_lets_one_extension_through_as_its_probe() {
    let bench = Bench::new().await;
    bench.extended(PartnerId::new()).await;
    let mut connection = bench.connection().await;
    let rows = due_requests(&mut connection).await;
    for open_until in ["now() + interval '1 hour'", "now() - interval '1 hour'"] {
        bench
            .sql(&format!(
                "INSERT INTO providers (name, open_until) VALUES ('{PROVIDER}', {open_until})
                 ON CONFLICT (name) DO UPDATE SET open_until = excluded.open_until"
            ))
            .await;
        let claim = RequestClaim::Due;
        let claimed = extensions::claim(&mut connection, PROVIDER, &rows, LEASE, claim).await;
        assert!(claimed.unwrap().is_empty(), "{open_until}");
    }
    let claim = RequestClaim::Probe;
    let probing = extensions::claim(&mut connection, PROVIDER, &rows, LEASE, claim).await;
    assert_eq!(probing.unwrap().len(), 1);
}

/// Whatever a program does, the database stores no second extension of an external id and no second
/// open one of an eSIM.
#[tokio::test]
async fn the_database_stores_no_extension_twice() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let (topup, id) = bench.extended(partner).await;
    let other = bench.esim(partner).await;
    let mut connection = bench.connection().await;
    for (at, external_id, index) in [
        (&other, topup.as_str(), "extensions_external_id_key"),
        (&topup, "another", "extensions_open"),
    ] {
        let copy = sqlx::query(
            "INSERT INTO extensions (extension_id, partner_id, topup_id, provider, external_id, option_id, provider_option_id)
             SELECT gen_random_uuid(), partner_id, $2, provider, $3, option_id, provider_option_id
             FROM extensions WHERE extension_id = $1",
        );
        let copy = copy.bind(id.uuid()).bind(at.as_str()).bind(external_id);
        let error = copy.execute(&mut *connection).await.unwrap_err();
        let broken = error
            .as_database_error()
            .and_then(|error| error.constraint());
        assert_eq!(broken, Some(index), "{error}");
    }
}

/// A repeat buys nothing, and what cannot be proved afterwards is not stored.
#[tokio::test]
async fn an_external_id_names_one_extension_and_an_esim_has_one_that_is_open() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let mut connection = bench.connection().await;
    let topup = bench.esim(partner).await;
    let other = bench.esim(partner).await;
    let option = bench.option().await;
    let mut ask = async |partner: PartnerId, topup: &TopupId, external_id: &str, option| {
        order(&mut connection, partner, new(topup, external_id, option))
            .await
            .unwrap()
    };
    let first = bench.extend(partner, new(&topup, "more-1", option)).await;
    let repeated = ask(partner, &topup, "more-1", option).await;
    assert!(
        matches!(&repeated, ExtensionOrdered::Stored(one) if one.extension_id == first.extension_id),
        "{repeated:?}"
    );
    for (topup, option) in [(&other, option), (&topup, bench.option().await)] {
        let differs = ask(partner, topup, "more-1", option).await;
        assert!(matches!(differs, ExtensionOrdered::Differs), "{differs:?}");
    }
    let busy = ask(partner, &topup, "more-2", option).await;
    assert!(
        matches!(&busy, ExtensionOrdered::Busy(id) if id == "more-1"),
        "{busy:?}"
    );
    let stranger = ask(PartnerId::new(), &topup, "more-1", option).await;
    assert!(
        matches!(stranger, ExtensionOrdered::NotReady),
        "{stranger:?}"
    );
    let unknown = ask(partner, &other, "more-3", OptionId::new()).await;
    assert!(
        matches!(unknown, ExtensionOrdered::NotOffered),
        "{unknown:?}"
    );
    let rows = "SELECT count(*) FROM extensions WHERE partner_id::text = $1";
    assert_eq!(bench.value::<i64>(rows, partner).await, 1);

    // An eSIM that is extended is not given back, and the other way round.
    let mut asking = bench.connection().await;
    for topup in [&topup, &other] {
        esims::ask_give_back(&mut asking, partner, topup, GiveBackCause::Other)
            .await
            .unwrap();
    }
    let asked = "SELECT string_agg(topup_id, ' ') FROM esim_requests
                 WHERE give_back = 'asked' AND partner_id::text = $1";
    assert_eq!(bench.value::<String>(asked, partner).await, other.as_str());
    let returning = ask(partner, &other, "more-3", option).await;
    assert!(
        matches!(returning, ExtensionOrdered::GivingBack),
        "{returning:?}"
    );

    // One that has ended leaves the way free for another.
    let refused = settled(EsimChangeEvent::Refuse);
    settle(&mut asking, first.extension_id, &refused).await;
    let next = ask(partner, &topup, "more-2", option).await;
    assert!(matches!(next, ExtensionOrdered::Stored(_)), "{next:?}");
    assert_eq!(bench.claim_extensions().await.len(), 1);
}

/// An extension that is refused, whatever for, leaves the day's units to the key.
#[tokio::test]
async fn a_key_with_a_limit_extends_so_many_a_day() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let mut connection = bench.connection().await;
    let option = bench.option().await;
    let limited_key = Some(LimitedKey {
        key_id: KeyId::new(),
        units_per_day: 2,
    });
    let mut answers = Vec::new();
    for option in [option, OptionId::new(), option, option, option] {
        let topup = bench.esim(partner).await;
        let new = NewExtension {
            limited_key,
            ..new(&topup, topup.as_str(), option)
        };
        let answer = order(&mut connection, partner, new).await.unwrap();
        answers.push(match answer {
            ExtensionOrdered::Stored(_) => "stored",
            ExtensionOrdered::NotOffered => "not offered",
            ExtensionOrdered::OverLimit => "over the limit",
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(
        answers,
        [
            "stored",
            "not offered",
            "stored",
            "over the limit",
            "over the limit"
        ]
    );
}

/// A damaged row does not keep the others from being extended, and does not come again. What was
/// certainly not sent is refused, and what may be on its way is parked.
#[tokio::test]
async fn an_extension_that_cannot_be_read_is_set_aside_alone() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let mut connection = bench.connection().await;
    let mut all = Vec::new();
    for _ in 0..5 {
        all.push(bench.extended(partner).await);
    }
    let [good, asked, sending, strange, elsewhere] = all.as_slice() else {
        panic!("{all:?}");
    };
    bench
        .sql(&format!(
            "UPDATE esims SET iccid = 'none of ' || topup_id WHERE topup_id IN ('{}', '{}');
             UPDATE extensions SET state = 'sending', attempt = 1 WHERE extension_id = '{}';
             UPDATE extensions SET state = 'lent', attempt = 1 WHERE extension_id = '{}';
             UPDATE esims SET provider = 'another' WHERE topup_id = '{}'",
            asked.0, sending.0, sending.1, strange.1, elsewhere.0
        ))
        .await;
    let claimed = bench.claim_extensions().await;
    let claimed: Vec<ExtensionId> = claimed.iter().map(|one| one.extension_id).collect();
    assert_eq!(claimed, [good.1]);
    let left = "SELECT count(*) FROM work WHERE kind = 'extend' AND lane <> $1";
    assert_eq!(
        bench.value::<i64>(left, &good.0).await,
        0,
        "they are not due again"
    );
    for (one, state) in [
        (asked, EsimChangeState::Refused),
        (sending, EsimChangeState::Parked),
        (strange, EsimChangeState::Parked),
        (elsewhere, EsimChangeState::Refused),
    ] {
        assert_eq!(bench.extension(one.1).await.state, state, "{one:?}");
        let (reason, message) = bench.ended_with(one.1).await;
        assert_eq!(reason.as_deref(), Some("unreadable"));
        assert!(message.is_some());
    }
    let kind = Some(EsimChangeKind::Extension);
    let listed = esim_changes::list(&mut connection, kind, None, 10).await;
    assert_eq!(listed.unwrap().len(), 2);
}

/// Both kinds are one list, the oldest first, and one act settles each. An act that has seen
/// another extension than the one that waits now settles nothing.
#[tokio::test]
async fn operators_list_and_settle_both_kinds_of_changes() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let (topup, id) = bench.extended(partner).await;
    let other = bench.esim(partner).await;
    let mut connection = bench.connection().await;
    esims::ask_give_back(&mut connection, partner, &other, GiveBackCause::Other)
        .await
        .unwrap();
    bench
        .sql(
            "UPDATE extensions SET state = 'parked', attempt = 1, ended_at = now();
             UPDATE esim_requests SET give_back = 'parked', attempt = 1, ended_at = now() - interval '1 hour'",
        )
        .await;
    let listed = esim_changes::list(&mut connection, None, None, 10)
        .await
        .unwrap();
    let shown: Vec<_> = listed
        .iter()
        .map(|one| (one.kind(), one.topup_id.as_str()))
        .collect();
    assert_eq!(
        shown,
        [
            (EsimChangeKind::GiveBack, other.as_str()),
            (EsimChangeKind::Extension, topup.as_str())
        ]
    );
    let extension = listed[1].extension.as_ref().unwrap();
    assert_eq!(
        (extension.extension_id, extension.external_id.as_str()),
        (id, topup.as_str())
    );
    for (kind, provider, count) in [
        (Some(EsimChangeKind::GiveBack), None, 1),
        (Some(EsimChangeKind::Extension), Some(PROVIDER), 1),
        (None, Some("another"), 0),
    ] {
        let listed = esim_changes::list(&mut connection, kind, provider, 10).await;
        assert_eq!(listed.unwrap().len(), count);
    }
    let of = (EsimChangeKind::Extension, &topup);
    let seen = listed[1].seen();
    for (seen, is_settled) in [
        (SeenEsimChange { attempt: 2, ..seen }, false),
        (
            SeenEsimChange {
                extension_id: Some(ExtensionId::new()),
                ..seen
            },
            false,
        ),
        (seen, true),
    ] {
        let found = EsimChangeFinding::Done;
        let settled =
            esim_changes::resolve(&mut connection, of, found, Some(seen), applied()).await;
        match settled {
            Ok(one) => assert!(is_settled && one.state == "added", "{one:?}"),
            Err(EsimChangeNotResolved::Changed(attempt)) => assert!(!is_settled && attempt == 1),
            Err(other) => panic!("{other}"),
        }
    }
    let (before, after) = bench.changed().await;
    assert_eq!(
        (&before["extension"], &after["extension"]),
        (&"parked".into(), &"added".into())
    );
    assert_eq!(bench.extension(id).await.state, EsimChangeState::Done);
    let (reason, _) = bench.ended_with(id).await;
    assert_eq!(reason.as_deref(), Some("resolved"));
}

/// A profile as the provider sends it with an extension.
fn profile(topup: &TopupId, digest: &[u8]) -> (Iccid, SealedProfile) {
    let number = iccid(topup).as_str().replacen("89", "88", 1);
    let profile = SealedProfile {
        sealed: b"another".to_vec(),
        code_digest: Some(digest.to_vec()),
    };
    (Iccid::parse(&number).unwrap(), profile)
}

fn with_profile(topup: &TopupId, digest: &[u8]) -> EsimChangeSettlement {
    EsimChangeSettlement {
        event: Some(EsimChangeEvent::Done),
        profile: Some(profile(topup, digest)),
        again_in: MINUTE,
        ..EsimChangeSettlement::default()
    }
}

/// Where the provider sells another eSIM instead, the partner gets its profile by the webhook of
/// the topup. An attempt that is in flight meanwhile has the old one, so its acknowledgement ends
/// nothing.
#[tokio::test]
async fn a_new_profile_is_delivered_although_the_old_one_was_or_is_on_its_way() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://example.com/hook")).await;
    let option = bench.option().await;
    let mut connection = bench.connection().await;
    for is_delivered in [true, false] {
        let topup = bench.deliveries(partner, 1, false).await.remove(0);
        let id = delivery_id(&topup);
        let in_flight = [attempted(id, 0, AttemptResult::Delivered)];
        if is_delivered {
            bench.record(&in_flight).await;
        } else {
            assert_eq!(bench.claim_due_deliveries(&look(9, 9)).await.len(), 1);
        }
        let stored = bench
            .extend(partner, new(&topup, topup.as_str(), option))
            .await;
        extensions::begin(
            &mut connection,
            stored.extension_id,
            EsimChange::NEW,
            &baseline(),
        )
        .await
        .unwrap();
        let added = with_profile(&topup, topup.as_str().as_bytes());
        let (state, _) = settle(&mut connection, stored.extension_id, &added).await;
        assert_eq!(state, Some(EsimChangeState::Done));
        if !is_delivered {
            bench.record(&in_flight).await;
            // It waits until the old one cannot arrive any more.
            assert!(bench.claim_due_deliveries(&look(9, 9)).await.is_empty());
            bench.sql("UPDATE work SET at = now()").await;
        }
        let claimed = bench.claim_due_deliveries(&look(9, 9)).await;
        let due: Vec<_> = claimed.iter().map(|one| one.id).collect();
        assert_eq!(due, ids(std::slice::from_ref(&topup)), "{is_delivered}");
        assert_eq!(esim(&claimed[0]).profile, b"another", "{is_delivered}");
        let mut ended = attempted(id, claimed[0].ended_attempts, AttemptResult::Delivered);
        ended.schedule_start = claimed[0].schedule_start;
        bench.record(&[ended]).await;
        assert_eq!(bench.states(&topup).await.1, "delivered");
        let flagged = "SELECT has_new_profile FROM extensions WHERE topup_id = $1";
        assert!(bench.value::<bool>(flagged, &topup).await);
    }
}

/// One of the two must be wrong, so a person looks at it. The eSIM stays as it is.
#[tokio::test]
async fn the_code_of_another_topup_parks_the_extension() {
    let bench = Bench::new().await;
    let (topup, id) = bench.extended(PartnerId::new()).await;
    let other = bench.esim(PartnerId::new()).await;
    let mut connection = bench.connection().await;
    extensions::begin(&mut connection, id, EsimChange::NEW, &baseline())
        .await
        .unwrap();
    let taken = sealed(&other).code_digest.unwrap();
    let (state, moved) = settle(&mut connection, id, &with_profile(&topup, &taken)).await;
    assert_eq!((state, moved), (Some(EsimChangeState::Parked), true));
    let (reason, message) = bench.ended_with(id).await;
    assert_eq!(reason.as_deref(), Some("unknown"));
    assert!(message.unwrap().contains("another topup"));
    let number = "SELECT iccid FROM esims WHERE topup_id = $1";
    let number: String = bench.value(number, &topup).await;
    assert_eq!(number, iccid(&topup).as_str());
}

/// An eSIM that is erased gets no profile again, and nothing is delivered of it.
#[tokio::test]
async fn an_erased_esim_gets_no_new_profile() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://example.com/hook")).await;
    let topup = bench.deliveries(partner, 1, true).await.remove(0);
    let stored = bench
        .extend(partner, new(&topup, "more-1", bench.option().await))
        .await;
    bench
        .sql("UPDATE esims SET profile = NULL, erased_at = now(); DELETE FROM work WHERE kind = 'deliver'")
        .await;
    let mut connection = bench.connection().await;
    settle(
        &mut connection,
        stored.extension_id,
        &with_profile(&topup, b"new"),
    )
    .await;
    let flagged = "SELECT has_new_profile FROM extensions WHERE topup_id = $1";
    assert!(!bench.value::<bool>(flagged, &topup).await);
    let due = "SELECT count(*) FROM work WHERE kind = 'deliver' AND partner_id::text = $1";
    assert_eq!(bench.value::<i64>(due, partner).await, 0);
}

/// More data is the next plan of an eSIM, of which its partner wants to hear.
#[tokio::test]
async fn an_extended_esim_is_looked_at_soon() {
    let bench = Bench::new().await;
    let (topup, id) = bench.extended(PartnerId::new()).await;
    bench
        .sql(&format!(
            "INSERT INTO esim_requests (topup_id, partner_id, provider, poll_at)
             VALUES ('{topup}', gen_random_uuid(), '{PROVIDER}', now() + interval '1 day')"
        ))
        .await;
    let mut connection = bench.connection().await;
    settle(&mut connection, id, &settled(EsimChangeEvent::Done)).await;
    let soon = "SELECT poll_at <= now() FROM esim_requests WHERE topup_id = $1";
    assert!(bench.value::<bool>(soon, &topup).await);
}

/// An operator has found nothing, and the response comes after all. Its partner was told that
/// nothing was added, and pays for what was, so it is told that, too.
#[tokio::test]
async fn a_partner_is_told_of_an_extension_that_is_added_after_all() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://example.com/hook")).await;
    bench
        .sql("UPDATE partner_endpoints SET events = '{topup.ready,extension.ready,extension.failed}'")
        .await;
    let (topup, id) = bench.extended(partner).await;
    let mut connection = bench.connection().await;
    let told = async || -> Option<String> {
        let kinds = "SELECT string_agg(kind, ' ' ORDER BY kind) FROM deliveries
                     WHERE kind LIKE 'extension%' AND topup_id = $1";
        bench.value(kinds, &topup).await
    };
    let parked = EsimChange {
        state: EsimChangeState::Parked,
        attempt: 1,
        not_done: false,
    };
    bench.put_extension(id, parked).await;
    assert_eq!(told().await, None);
    let of = (EsimChangeKind::Extension, &topup);
    let found = EsimChangeFinding::NotDone;
    esim_changes::resolve(&mut connection, of, found, None, applied())
        .await
        .unwrap();
    assert_eq!(told().await.as_deref(), Some("extension.failed"));
    settle(&mut connection, id, &settled(EsimChangeEvent::Done)).await;
    assert_eq!(
        told().await.as_deref(),
        Some("extension.failed extension.ready")
    );
}

/// An order with an extension whose outcome is open is not erased. Afterwards its row stays, so
/// that its external id stays taken, without what the provider said.
#[tokio::test]
async fn an_erasure_waits_for_an_extension_and_keeps_its_row() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let (topup, id) = bench.extended(partner).await;
    let mut connection = bench.connection().await;
    let order_id: uuid::Uuid = bench
        .value(
            "SELECT p.order_id FROM topups t JOIN placements p USING (placement_id) WHERE t.topup_id = $1",
            &topup,
        )
        .await;
    for state in ["asked", "sending", "parked"] {
        bench
            .sql(&format!(
                "UPDATE extensions SET state = '{state}'; DELETE FROM work WHERE kind = 'deliver';
                           UPDATE deliveries SET state = 'delivered'"
            ))
            .await;
        let erased = erase::order(&mut connection, order_id.into(), applied()).await;
        assert!(erased.is_err(), "{state}");
        execute(&mut connection, "SELECT 1").await;
    }
    settle(&mut connection, id, &settled(EsimChangeEvent::Refused(0))).await;
    bench
        .sql("UPDATE extensions SET state = 'refused', message = 'their words'")
        .await;
    erase::order(&mut connection, order_id.into(), applied())
        .await
        .unwrap();
    let kept: (String, Option<String>) =
        sqlx::query_as("SELECT external_id, message FROM extensions WHERE extension_id = $1")
            .bind(id.uuid())
            .fetch_one(&bench.pool)
            .await
            .unwrap();
    assert_eq!(kept, (topup.to_string(), None));
}

/// A program that knows no extensions may have begun to give the eSIM back after this one was
/// stored. What is sent then would be bought for an eSIM that is gone.
#[tokio::test]
async fn no_attempt_begins_while_the_esim_is_given_back() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let (topup, id) = bench.extended(partner).await;
    let mut connection = bench.connection().await;
    for (state, begun) in [
        ("asked", None),
        ("sending", None),
        ("parked", None),
        ("returned", None),
        ("refused", Some(1)),
    ] {
        bench
            .sql(&format!(
                "INSERT INTO esim_requests (topup_id, partner_id, provider, give_back)
                 SELECT topup_id, partner_id, provider, '{state}' FROM extensions WHERE topup_id = '{topup}'
                 ON CONFLICT (topup_id) DO UPDATE SET give_back = excluded.give_back"
            ))
            .await;
        let attempt = extensions::begin(&mut connection, id, EsimChange::NEW, &baseline()).await;
        assert_eq!(attempt.unwrap(), begun, "{state}");
    }
}

/// The purchase of the topup is that of the eSIM before it, so the provider would take that one
/// back, or suspend it.
#[tokio::test]
async fn an_esim_that_was_sold_instead_is_neither_given_back_nor_suspended() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let (topup, id) = bench.extended(partner).await;
    let mut connection = bench.connection().await;
    extensions::begin(&mut connection, id, EsimChange::NEW, &baseline())
        .await
        .unwrap();
    let (state, _) = settle(&mut connection, id, &with_profile(&topup, b"new")).await;
    assert_eq!(state, Some(EsimChangeState::Done));
    esims::ask_give_back(&mut connection, partner, &topup, GiveBackCause::Other)
        .await
        .unwrap();
    esims::ask_suspension(&mut connection, partner, &topup, true)
        .await
        .unwrap();
    let asked = "SELECT count(*) FROM esim_requests
                 WHERE topup_id = $1 AND coalesce(give_back, suspension) IS NOT NULL";
    assert_eq!(bench.value::<i64>(asked, &topup).await, 0);
    let work = "SELECT count(*) FROM work WHERE lane = $1 AND kind IN ('give_back', 'suspend')";
    assert_eq!(bench.value::<i64>(work, &topup).await, 0);
}
