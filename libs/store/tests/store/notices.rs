//! Notices: they are created with the change that they report, only for partners with a verified
//! channel, once for each change, and at most so many a day; and the codes that verify a channel.

use std::time::Duration;

use desk::self_service::{self, SetChannel, Verification, VerificationLimits};
use domain::{
    DeliveryId, EndpointId, PartnerId, TopupId, endpoint::BlockPolicy, event::NoticeKind,
};
use signing::{code, webhook};
use sqlx::{Connection, PgConnection};
use store::deliveries::events::Subject;
use store::deliveries::notices::{self, NoticeContent, NoticeCounts};
use store::deliveries::{self, AttemptResult, ClaimedDelivery, DeliveryContent, EndedAttempt};

use crate::bench::{Bench, VAULT, delivery_id, look};
use crate::deliveries::{attempted, failure};

const URL: Option<&str> = Some("https://shop.example/hook");
const CHANNEL: &str = "https://status.example/notices";
const MAIL: &str = "mailto:ops@shop.example";
/// Blocks at the fourth failure.
const POLICY: BlockPolicy = BlockPolicy {
    failures: 4,
    first: Duration::from_mins(1),
    longest: Duration::from_mins(10),
};
const LIMITS: VerificationLimits = VerificationLimits {
    interval: Duration::from_mins(1),
    per_day: 3,
};

impl Bench {
    async fn set_channel(
        &self,
        partner: PartnerId,
        target: &str,
        limits: VerificationLimits,
    ) -> SetChannel {
        let secret = webhook::Secret::from_bytes(vec![7; 32]).unwrap();
        let mut connection = self.connection().await;
        self_service::set_channel(&mut connection, &VAULT, partner, target, &secret, limits)
            .await
            .unwrap()
    }

    async fn channel_of(&self, partner: PartnerId) -> Option<self_service::NoticeChannel> {
        self_service::channel(&mut *self.connection().await, partner)
            .await
            .unwrap()
    }

    async fn verify(&self, partner: PartnerId, code: &str) -> Verification {
        self_service::verify_channel(&mut *self.connection().await, partner, code)
            .await
            .unwrap()
    }

    /// Notes a code as the notifier does when it sends one.
    async fn send_code(&self, channel: EndpointId) -> String {
        let code = code::generate().unwrap();
        let digest = code::digest(channel.uuid().as_bytes(), &code);
        let mut connection = self.connection().await;
        assert!(
            notices::note_code(&mut connection, channel, &digest)
                .await
                .unwrap()
        );
        code
    }

    /// A partner with an endpoint and a verified channel.
    async fn told_partner(&self) -> PartnerId {
        let partner = self.partner(URL).await;
        self.verified_channel(partner).await;
        partner
    }

    pub async fn verified_channel(&self, partner: PartnerId) {
        let limits = VerificationLimits {
            interval: Duration::ZERO,
            per_day: 100,
        };
        assert_eq!(
            self.set_channel(partner, CHANNEL, limits).await,
            SetChannel::Set
        );
        let channel = self.channel_of(partner).await.unwrap().endpoint_id;
        let code = self.send_code(channel).await;
        assert_eq!(self.verify(partner, &code).await, Verification::Verified);
        let (before, after) = self.changed().await;
        assert_eq!(
            (&before["verified"], &after["verified"]),
            (&false.into(), &true.into())
        );
    }

    async fn record_told(&self, notices_per_day: u32, attempts: &[EndedAttempt]) -> NoticeCounts {
        deliveries::record(
            &mut *self.connection().await,
            attempts,
            &POLICY,
            notices_per_day,
        )
        .await
        .unwrap()
    }

    /// The notices of a partner that are due, in the order of their creation, with their kinds.
    async fn notices(&self, partner: PartnerId) -> Vec<(NoticeKind, NoticeContent)> {
        let mut due: Vec<ClaimedDelivery> = self.claim_due_deliveries(&look(100, 100)).await;
        due.sort_by_key(|delivery| delivery.id.uuid());
        let told = due
            .into_iter()
            .filter(|delivery| delivery.partner_id == partner);
        told.filter_map(|delivery| match delivery.content {
            DeliveryContent::Event(event) => match event.subject {
                Subject::Notice { kind, notice } => Some((kind, notice)),
                _ => None,
            },
            DeliveryContent::Esim(_) => None,
        })
        .filter(|(kind, _)| *kind != NoticeKind::Verify)
        .collect()
    }

    async fn kinds(&self, partner: PartnerId) -> Vec<NoticeKind> {
        let notices = self.notices(partner).await;
        notices.into_iter().map(|(kind, _)| kind).collect()
    }
}

fn of(partner: PartnerId, topup: &TopupId, attempt: u32, result: AttemptResult) -> EndedAttempt {
    EndedAttempt {
        endpoint_id: partner.first_endpoint(),
        ..attempted(delivery_id(topup), attempt, result)
    }
}

fn failed(partner: PartnerId, topup: &TopupId) -> EndedAttempt {
    of(partner, topup, 0, failure(Some(Duration::from_hours(1))))
}

fn acknowledged(partner: PartnerId, topup: &TopupId) -> EndedAttempt {
    of(partner, topup, 9, AttemptResult::Delivered)
}

fn exhausted(partner: PartnerId, topup: &TopupId) -> EndedAttempt {
    of(partner, topup, 0, failure(None))
}

#[tokio::test]
async fn each_change_of_health_is_told_once() {
    let bench = Bench::new().await;
    let partner = bench.told_partner().await;
    let topups = bench.deliveries(partner, 12, false).await;
    let record = async |attempts: &[EndedAttempt]| bench.record_told(100, attempts).await.notices;

    assert_eq!(record(&[failed(partner, &topups[0])]).await, []);
    let half = [(NoticeKind::EndpointFailing, false)];
    assert_eq!(record(&[failed(partner, &topups[1])]).await, half);
    assert_eq!(record(&[failed(partner, &topups[2])]).await, []);
    let whole = [(NoticeKind::EndpointBlocked, false)];
    assert_eq!(record(&[failed(partner, &topups[3])]).await, whole);
    assert_eq!(record(&[failed(partner, &topups[4])]).await, []);
    // The probe fails: the endpoint is still blocked.
    let probe = "UPDATE partner_endpoints SET probe = (SELECT delivery_id FROM deliveries WHERE topup_id = $1)";
    bench.set(probe, &topups[5]).await;
    assert_eq!(record(&[failed(partner, &topups[5])]).await, []);
    // An operator ends the block, and the endpoint has not recovered before it acknowledges.
    bench
        .sql("UPDATE partner_endpoints SET failures = 0, blocks = 0, blocked_until = NULL, probe = NULL")
        .await;
    let back = [(NoticeKind::EndpointRecovered, false)];
    assert_eq!(record(&[acknowledged(partner, &topups[6])]).await, back);
    assert_eq!(record(&[acknowledged(partner, &topups[7])]).await, []);
    assert_eq!(
        record(&[failed(partner, &topups[8]), failed(partner, &topups[9])]).await,
        half
    );

    let notices = bench.notices(partner).await;
    let kinds: Vec<NoticeKind> = notices.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(
        kinds,
        [
            NoticeKind::EndpointFailing,
            NoticeKind::EndpointBlocked,
            NoticeKind::EndpointRecovered,
            NoticeKind::EndpointFailing,
        ]
    );
    let (_, blocked) = &notices[1];
    assert_eq!(blocked.host.as_deref(), Some("shop.example"));
    assert_eq!(blocked.endpoint_id, Some(partner.uuid()));
    assert_eq!((blocked.failures, blocked.status), (Some(4), Some(500)));
    assert_eq!(blocked.outcome.as_deref(), Some("status_5xx"));
    assert_eq!(blocked.since, notices[0].1.since);
    assert!(blocked.since.is_some());
}

#[tokio::test]
async fn one_batch_tells_the_block_and_not_the_way_to_it() {
    let bench = Bench::new().await;
    let partner = bench.told_partner().await;
    let topups = bench.deliveries(partner, 6, false).await;
    let all: Vec<EndedAttempt> = topups.iter().map(|topup| failed(partner, topup)).collect();
    let told = bench.record_told(100, &all).await;
    assert_eq!(told.notices, [(NoticeKind::EndpointBlocked, false)]);
}

#[tokio::test]
async fn the_first_exhausted_webhook_is_told_until_the_endpoint_recovers() {
    let bench = Bench::new().await;
    let partner = bench.told_partner().await;
    let topups = bench.deliveries(partner, 8, false).await;
    let record = async |attempts: &[EndedAttempt]| bench.record_told(100, attempts).await.notices;
    let told = [(NoticeKind::WebhookExhausted, false)];
    assert_eq!(record(&[exhausted(partner, &topups[0])]).await, told);
    // The second failure is also half of a block; the exhausted webhook is not told again.
    let half = [(NoticeKind::EndpointFailing, false)];
    assert_eq!(record(&[exhausted(partner, &topups[1])]).await, half);
    record(&[acknowledged(partner, &topups[2])]).await;
    assert_eq!(record(&[exhausted(partner, &topups[3])]).await, told);
    // A day later it is told again, even if the endpoint never failed twice in a row.
    record(&[acknowledged(partner, &topups[4])]).await;
    assert_eq!(record(&[exhausted(partner, &topups[5])]).await, []);
    bench
        .sql("UPDATE partner_endpoints SET exhausted_told_at = now() - interval '25 hours', failures = 0")
        .await;
    assert_eq!(record(&[exhausted(partner, &topups[6])]).await, told);
    let (_, notice) = bench.notices(partner).await.remove(0);
    assert_eq!(notice.webhook_id.as_deref(), Some(topups[0].as_str()));
    assert_eq!(notice.status, Some(500));
}

#[tokio::test]
async fn only_verified_channels_are_told_and_not_too_often() {
    let bench = Bench::new().await;
    let blocks = async |partner: PartnerId, per_day: u32| {
        let topups = bench.deliveries(partner, 5, false).await;
        let all: Vec<EndedAttempt> = topups[1..]
            .iter()
            .map(|topup| failed(partner, topup))
            .collect();
        let blocked = bench.record_told(per_day, &all).await;
        let back = bench
            .record_told(per_day, &[acknowledged(partner, &topups[0])])
            .await;
        [blocked.notices, back.notices].concat()
    };
    let none = bench.partner(URL).await;
    assert_eq!(blocks(none, 100).await, []);
    let unverified = bench.partner(URL).await;
    bench.set_channel(unverified, CHANNEL, LIMITS).await;
    assert_eq!(blocks(unverified, 100).await, []);

    let flapping = bench.told_partner().await;
    let other = bench.told_partner().await;
    let blocked = NoticeKind::EndpointBlocked;
    let back = NoticeKind::EndpointRecovered;
    assert_eq!(blocks(flapping, 3).await, [(blocked, false), (back, false)]);
    assert_eq!(blocks(flapping, 3).await, [(blocked, false), (back, true)]);
    assert_eq!(blocks(other, 3).await, [(blocked, false), (back, false)]);
    assert_eq!(bench.kinds(flapping).await, [blocked, back, blocked]);
}

#[tokio::test]
async fn a_channel_that_fails_is_not_told_of_itself() {
    let bench = Bench::new().await;
    let partner = bench.told_partner().await;
    let channel = bench.channel_of(partner).await.unwrap().endpoint_id;
    let failing: Vec<EndedAttempt> = (0..5)
        .map(|_| EndedAttempt {
            endpoint_id: channel,
            is_event: true,
            ..attempted(DeliveryId::new(), 0, failure(Some(Duration::from_mins(1))))
        })
        .collect();
    assert_eq!(
        bench.record_told(100, &failing).await,
        NoticeCounts::default()
    );
    assert_eq!(
        bench.channel_of(partner).await.unwrap().state.as_str(),
        "blocked"
    );
}

#[tokio::test]
async fn keys_that_end_are_told_once_even_without_the_event() {
    let bench = Bench::new().await;
    let partner = bench.told_partner().await;
    let silent = bench.partner(URL).await;
    bench
        .sql("UPDATE partners SET old_keys_until = now() + interval '1 hour'")
        .await;
    let expire = async || {
        let mut connection = bench.connection().await;
        notices::keys_expire(&mut connection, Duration::from_hours(6))
            .await
            .unwrap()
    };
    assert_eq!((expire().await, expire().await), (1, 0));
    let (kind, notice) = bench.notices(partner).await.remove(0);
    assert_eq!(kind, NoticeKind::KeysExpire);
    assert_eq!(notice.credential.as_deref(), Some("keys"));
    assert!(notice.ends_at.is_some());
    assert_eq!(bench.kinds(silent).await, []);
}

#[tokio::test]
async fn a_change_of_our_addresses_is_told_once() {
    let bench = Bench::new().await;
    let partner = bench.told_partner().await;
    bench.partner(URL).await;
    let tell = async |addresses: &[&str]| {
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let mut connection = bench.connection().await;
        notices::source_addresses(&mut connection, &addresses)
            .await
            .unwrap()
    };
    assert_eq!(tell(&[]).await, 0);
    assert_eq!(tell(&["192.0.2.1"]).await, 1);
    assert_eq!(tell(&["192.0.2.1"]).await, 0);
    assert_eq!(tell(&[]).await, 0);
    assert_eq!(tell(&["192.0.2.1", "192.0.2.2"]).await, 1);
    let notices = bench.notices(partner).await;
    assert_eq!(notices.len(), 2);
    // PostgreSQL has made the ids of these notices, so they are in no order.
    let addresses = notices
        .iter()
        .filter_map(|(_, notice)| notice.addresses.clone());
    let mut counts: Vec<usize> = addresses.map(|list| list.len()).collect();
    counts.sort_unstable();
    assert_eq!(counts, [1, 2]);
}

#[tokio::test]
async fn a_code_verifies_once_and_ends() {
    let bench = Bench::new().await;
    let partner = bench.partner(URL).await;
    assert_eq!(bench.verify(partner, "x").await, Verification::NoChannel);
    bench.set_channel(partner, MAIL, LIMITS).await;
    let channel = bench.channel_of(partner).await.unwrap();
    assert_eq!(
        (channel.target.as_str(), channel.state.as_str()),
        (MAIL, "unverified")
    );
    assert_eq!(
        bench.verify(partner, "x").await,
        Verification::Ended,
        "none was sent yet"
    );

    let first = bench.send_code(channel.endpoint_id).await;
    let code = bench.send_code(channel.endpoint_id).await;
    assert_eq!(
        bench.verify(partner, &first).await,
        Verification::Wrong { left: 4 }
    );
    let other = bench.partner(URL).await;
    assert_eq!(bench.verify(other, &code).await, Verification::NoChannel);
    for left in [3, 2, 1, 0] {
        assert_eq!(
            bench.verify(partner, "2222").await,
            Verification::Wrong { left }
        );
    }
    assert_eq!(
        bench.verify(partner, &code).await,
        Verification::Ended,
        "too many were wrong"
    );

    let code = bench.send_code(channel.endpoint_id).await;
    bench
        .sql("UPDATE partner_endpoints SET code_until = now()")
        .await;
    assert_eq!(
        bench.verify(partner, &code).await,
        Verification::Ended,
        "it is too late"
    );
    let code = bench.send_code(channel.endpoint_id).await;
    assert_eq!(bench.verify(partner, &code).await, Verification::Verified);
    assert_eq!(
        bench.channel_of(partner).await.unwrap().state.as_str(),
        "open"
    );
    assert_eq!(
        bench.verify(partner, "2222").await,
        Verification::Verified,
        "since earlier"
    );
    let stored =
        "SELECT count(*) FROM partner_endpoints WHERE code_digest IS NOT NULL AND $1 <> ''";
    assert_eq!(bench.value::<i64>(stored, partner).await, 0);
    // A verified channel gets no code any more.
    let mut connection = bench.connection().await;
    let noted = notices::note_code(&mut connection, channel.endpoint_id, b"digest").await;
    assert!(!noted.unwrap());
}

#[tokio::test]
async fn codes_are_sent_rarely() {
    let bench = Bench::new().await;
    let partner = bench.partner(URL).await;
    let older = async || {
        bench
            .sql("UPDATE deliveries SET created_at = created_at - interval '2 minutes'")
            .await;
    };
    assert_eq!(
        bench.set_channel(partner, MAIL, LIMITS).await,
        SetChannel::Set
    );
    let SetChannel::TooSoon(wait) = bench.set_channel(partner, CHANNEL, LIMITS).await else {
        panic!("a second code within a minute");
    };
    assert!(
        wait <= LIMITS.interval && wait > LIMITS.interval / 2,
        "{wait:?}"
    );
    // A channel that is removed makes no room for more codes.
    let mut connection = bench.connection().await;
    assert!(
        self_service::remove_channel(&mut connection, partner)
            .await
            .unwrap()
    );
    assert!(
        !self_service::remove_channel(&mut connection, partner)
            .await
            .unwrap()
    );
    older().await;
    assert_eq!(
        bench.set_channel(partner, CHANNEL, LIMITS).await,
        SetChannel::Set
    );
    older().await;
    assert_eq!(
        bench.set_channel(partner, CHANNEL, LIMITS).await,
        SetChannel::Set
    );
    older().await;
    let SetChannel::TooSoon(wait) = bench.set_channel(partner, MAIL, LIMITS).await else {
        panic!("a fourth code within a day");
    };
    assert!(wait > Duration::from_hours(23), "{wait:?}");
    // There is one channel, and what was meant for the earlier ones is not sent.
    let channels = "SELECT count(*) FROM partner_endpoints WHERE nth > 0 AND partner_id::text = $1";
    assert_eq!(bench.value::<i64>(channels, partner).await, 1);
    let due = bench.claim_due_deliveries(&look(100, 100)).await;
    assert_eq!(due.len(), 1);
    let codes =
        "SELECT count(*) FROM deliveries WHERE kind = 'notice.verify' AND partner_id::text = $1";
    assert_eq!(
        bench.value::<i64>(codes, partner).await,
        3,
        "those that cannot be sent any more still count"
    );
    let SetChannel::TooSoon(_) = bench.set_channel(partner, MAIL, LIMITS).await else {
        panic!("the claim has made room for a code");
    };
}

/// Setting a channel, removing it and setting another one, again and again, while the notifier
/// works: each code that is not acknowledged would be retried, and is pointless once its channel is
/// gone.
#[tokio::test]
async fn removing_a_channel_makes_no_room_for_codes() {
    let bench = Bench::new().await;
    let partner = bench.partner(URL).await;
    let mut sent = 0;
    for number in 0..20 {
        let target = format!("mailto:stranger{number}@example.com");
        sent += usize::from(bench.set_channel(partner, &target, LIMITS).await == SetChannel::Set);
        for due in bench.claim_due_deliveries(&look(100, 100)).await {
            let failed = EndedAttempt {
                endpoint_id: due.endpoint.id,
                is_event: true,
                ..attempted(
                    due.id,
                    due.ended_attempts,
                    failure(Some(Duration::from_secs(5))),
                )
            };
            bench.record_told(100, &[failed]).await;
        }
        let mut connection = bench.connection().await;
        self_service::remove_channel(&mut connection, partner)
            .await
            .unwrap();
        // The retry of the code is due, and finds no channel.
        bench.sql("UPDATE work SET at = now()").await;
        assert!(bench.claim_due_deliveries(&look(100, 100)).await.is_empty());
        bench
            .sql("UPDATE deliveries SET created_at = created_at - interval '2 minutes'")
            .await;
    }
    assert_eq!(u32::try_from(sent), Ok(LIMITS.per_day));
}

/// The role of ingress acts for partners, but a channel is verified by its code only.
#[tokio::test]
async fn the_role_of_ingress_verifies_no_channel_without_its_code() {
    let bench = Bench::new().await;
    let partner = bench.partner(URL).await;
    bench.set_channel(partner, MAIL, LIMITS).await;
    let channel = bench.channel_of(partner).await.unwrap();
    let code = bench.send_code(channel.endpoint_id).await;
    let mut ingress = PgConnection::connect(&bench.database.url_of("ingress").unwrap())
        .await
        .unwrap();
    for statement in [
        "UPDATE partner_endpoints SET verified_at = now()",
        "UPDATE partner_endpoints SET code_digest = ''",
        "UPDATE partner_endpoints SET code_tries = 0",
        "UPDATE partner_endpoints SET purpose = 'notices'",
        "INSERT INTO partner_endpoints (endpoint_id, partner_id, nth, purpose, url, events, verified_at)
         VALUES (gen_random_uuid(), gen_random_uuid(), 1, 'notices', 'mailto:a@b.example', '{}', now())",
        "INSERT INTO partner_endpoints (endpoint_id, partner_id, nth, purpose, url, events, code_digest)
         VALUES (gen_random_uuid(), gen_random_uuid(), 1, 'notices', 'mailto:a@b.example', '{}', '')",
    ] {
        let error = sqlx::raw_sql(statement).execute(&mut ingress).await.unwrap_err();
        let error = error.as_database_error().unwrap();
        assert_eq!(error.code().as_deref(), Some("42501"), "{statement}");
    }
    let verify = "SELECT outcome FROM verify_channel($1, $2)";
    let mut tried: Vec<String> = Vec::new();
    for guess in ["", "2222", &"2".repeat(64), &"2".repeat(65), "ä"] {
        let outcome = sqlx::query_scalar(verify).bind(partner.uuid()).bind(guess);
        tried.push(outcome.fetch_one(&mut ingress).await.unwrap());
    }
    assert_eq!(tried, ["wrong"; 5]);
    assert_eq!(bench.verify(partner, &code).await, Verification::Ended);

    // A code proves the address that it was sent to, and no other one.
    let code = bench.send_code(channel.endpoint_id).await;
    sqlx::raw_sql("UPDATE partner_endpoints SET url = 'mailto:stranger@example.com'")
        .execute(&mut ingress)
        .await
        .unwrap();
    assert_eq!(bench.verify(partner, &code).await, Verification::Ended);
    let code = bench.send_code(channel.endpoint_id).await;
    assert_eq!(bench.verify(partner, &code).await, Verification::Verified);
    sqlx::raw_sql("UPDATE partner_endpoints SET url = 'mailto:other@example.com'")
        .execute(&mut ingress)
        .await
        .unwrap();
    assert_eq!(
        bench.channel_of(partner).await.unwrap().state.as_str(),
        "unverified"
    );
}
