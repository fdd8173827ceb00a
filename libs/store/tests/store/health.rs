//! Every statement that changes the health of an endpoint is executed in every health, and its
//! effect is compared with [`Health::after`]. So the SQL and the machine of `libs/domain` cannot
//! drift apart.

use std::time::Duration;

use accounts::partners::endpoints::EndpointUpdate;
use desk::self_service;
use domain::EndpointKey;
use domain::endpoint::{
    BlockPolicy, EndpointEvent, EndpointGate, Health, HealthNotice, ReportedHealth,
};
use domain::event::NoticeKind;
use domain::{DeliveryId, PartnerId, TopupId};
use sqlx::Row;
use store::deliveries::endpoints;
use store::deliveries::{self, AttemptResult, DeliveryClaim, EndedAttempt};
use time::OffsetDateTime;

use crate::bench::{Bench, delivery_id};
use crate::deliveries::{attempted, failure};

const POLICY: BlockPolicy = BlockPolicy {
    failures: 4,
    first: Duration::from_secs(100),
    longest: Duration::from_secs(1000),
};
const LEASE: Duration = Duration::from_secs(20);
const HOUR: Duration = Duration::from_hours(1);
const URL: &str = "https://shop.example/hook";

/// All kinds of health: each field has the values that a statement may tell apart.
fn all(now: OffsetDateTime, probe: DeliveryId) -> Vec<Health> {
    let gates = [
        EndpointGate::Open,
        EndpointGate::BlockedUntil(now - HOUR),
        EndpointGate::BlockedUntil(now + HOUR),
        EndpointGate::Paused { by_partner: true },
        EndpointGate::Paused { by_partner: false },
    ];
    let mut all = Vec::new();
    for gate in gates {
        let probes: &[_] = match gate {
            EndpointGate::BlockedUntil(_) => &[None, Some(probe)],
            _ => &[None],
        };
        for failures in [0, 1, 3] {
            for blocks in [0, 2, 9] {
                for told in [
                    None,
                    Some(ReportedHealth::Failing),
                    Some(ReportedHealth::Blocked),
                ] {
                    for failing_since in [None, Some(now - HOUR)] {
                        all.extend(probes.iter().map(|probe| Health {
                            gate,
                            failures,
                            blocks,
                            probe: *probe,
                            failing_since,
                            told,
                        }));
                    }
                }
            }
        }
    }
    all
}

fn events(probe: DeliveryId, now: OffsetDateTime) -> Vec<EndpointEvent> {
    let mut events = vec![
        EndpointEvent::Acknowledged,
        EndpointEvent::Probe {
            delivery: probe,
            until: now + LEASE,
        },
    ];
    for attempts in [1, 4] {
        for probe in [false, true] {
            events.push(EndpointEvent::Failed { attempts, probe });
        }
    }
    for by_partner in [false, true] {
        events.extend([
            EndpointEvent::Pause { by_partner },
            EndpointEvent::Resume { by_partner },
            EndpointEvent::NewUrl { by_partner },
        ]);
    }
    events
}

impl Bench {
    async fn put_health(&self, partner: PartnerId, health: Health) {
        let told = health.told.map(|told| match told {
            ReportedHealth::Failing => "failing",
            ReportedHealth::Blocked => "blocked",
        });
        let until = match health.gate {
            EndpointGate::BlockedUntil(until) => Some(until),
            _ => None,
        };
        sqlx::query(
            "UPDATE partner_endpoints
             SET failures = $2, blocks = $3, blocked_until = CASE WHEN $4 THEN 'infinity' ELSE $5::timestamptz END,
                 probe = $6, failing_since = $7, told = $8, told_at = now() - interval '1 day', paused_by_partner = $9
             WHERE endpoint_id = $1",
        )
        .bind(partner.uuid())
        .bind(i32::try_from(health.failures).unwrap())
        .bind(i32::try_from(health.blocks).unwrap())
        .bind(matches!(health.gate, EndpointGate::Paused { .. }))
        .bind(until)
        .bind(health.probe.map(DeliveryId::uuid))
        .bind(health.failing_since)
        .bind(told)
        .bind(matches!(health.gate, EndpointGate::Paused { by_partner: true }))
        .execute(&self.pool)
        .await
        .unwrap();
    }

    async fn health(&self, partner: PartnerId) -> Health {
        let row = sqlx::query(
            "SELECT failures, blocks, nullif(blocked_until, 'infinity'), blocked_until = 'infinity', paused_by_partner,
                    probe, failing_since, told
             FROM partner_endpoints WHERE endpoint_id = $1",
        )
        .bind(partner.uuid())
        .fetch_one(&self.pool)
        .await
        .unwrap();
        let until: Option<OffsetDateTime> = row.get(2);
        let gate = if row.get::<Option<bool>, _>(3) == Some(true) {
            EndpointGate::Paused {
                by_partner: row.get(4),
            }
        } else {
            until.map_or(EndpointGate::Open, EndpointGate::BlockedUntil)
        };
        Health {
            gate,
            failures: u32::try_from(row.get::<i32, _>(0)).unwrap(),
            blocks: u32::try_from(row.get::<i32, _>(1)).unwrap(),
            probe: row.get::<Option<uuid::Uuid>, _>(5).map(DeliveryId::from),
            failing_since: row.get(6),
            told: row
                .get::<Option<String>, _>(7)
                .map(|told| match told.as_str() {
                    "failing" => ReportedHealth::Failing,
                    _ => ReportedHealth::Blocked,
                }),
        }
    }

    /// Executes the statement of an event. Returns what the partner is told.
    async fn happens(
        &self,
        partner: PartnerId,
        topup: &TopupId,
        event: EndpointEvent,
    ) -> Vec<NoticeKind> {
        let probe = delivery_id(topup);
        let first = EndpointKey::first(partner);
        let mut connection = self.connection().await;
        let attempt = |id, result| EndedAttempt {
            endpoint_id: first.id,
            ..attempted(id, 99, result)
        };
        let batch: Vec<EndedAttempt> = match event {
            // They are of deliveries that do not exist, or are not due for this attempt, so nothing
            // but the endpoint changes.
            EndpointEvent::Failed {
                attempts,
                probe: of,
            } => (0..attempts)
                .map(|nth| {
                    let id = if of && nth == 0 {
                        probe
                    } else {
                        DeliveryId::new()
                    };
                    attempt(id, failure(Some(HOUR)))
                })
                .collect(),
            EndpointEvent::Acknowledged => {
                vec![attempt(DeliveryId::new(), AttemptResult::Delivered)]
            }
            EndpointEvent::Probe { .. } => {
                let claim = DeliveryClaim::Due { lease: LEASE };
                deliveries::claim(&mut connection, &[probe], claim)
                    .await
                    .unwrap();
                return Vec::new();
            }
            EndpointEvent::Pause { by_partner: false } => {
                endpoints::pause(&mut connection, first.id).await.unwrap();
                return Vec::new();
            }
            EndpointEvent::Pause { by_partner: true } => {
                self_service::pause_endpoint(&mut connection, first)
                    .await
                    .unwrap();
                return Vec::new();
            }
            EndpointEvent::Resume { by_partner: false } => {
                endpoints::resume(&mut connection, first).await.unwrap();
                return Vec::new();
            }
            EndpointEvent::Resume { by_partner: true } => {
                self_service::resume_endpoint(&mut connection, first)
                    .await
                    .unwrap();
                return Vec::new();
            }
            EndpointEvent::NewUrl { by_partner: false } => {
                self.set_url(partner, Some(URL)).await;
                return Vec::new();
            }
            EndpointEvent::NewUrl { by_partner: true } => {
                let url = format!("{URL}/{}", DeliveryId::new());
                let change = EndpointUpdate {
                    url: Some(Some(&url)),
                    ..EndpointUpdate::default()
                };
                self_service::change_endpoint(&mut connection, first, &change)
                    .await
                    .unwrap();
                return Vec::new();
            }
        };
        let made = deliveries::record(&mut connection, &batch, &POLICY, u32::MAX)
            .await
            .unwrap();
        made.notices.into_iter().map(|(kind, _)| kind).collect()
    }
}

/// The same, with times that differ by less than the statements and this test may take.
fn same(one: Health, other: Health) -> bool {
    let near =
        |one: OffsetDateTime, other: OffsetDateTime| (one - other).abs() < Duration::from_secs(15);
    let gates = match (one.gate, other.gate) {
        (EndpointGate::BlockedUntil(one), EndpointGate::BlockedUntil(other)) => near(one, other),
        (one, other) => one == other,
    };
    let since = match (one.failing_since, other.failing_since) {
        (Some(one), Some(other)) => near(one, other),
        (one, other) => one == other,
    };
    let rest = |health: Health| Health {
        gate: EndpointGate::Open,
        failing_since: None,
        ..health
    };
    gates && since && rest(one) == rest(other)
}

#[tokio::test]
async fn each_statement_does_what_the_machine_says() {
    let bench = Bench::new().await;
    // A live partner, whose own URLs need no proof.
    let partner = bench.partner(Some(URL)).await;
    bench.sql("UPDATE partners SET environment = 'live'").await;
    bench.verified_channel(partner).await;
    let topup = bench.deliveries(partner, 1, false).await.remove(0);
    let probe = delivery_id(&topup);
    let mut cases = 0;
    for start in all(runtime::clock::now(), probe) {
        for event in events(probe, runtime::clock::now()) {
            let now = runtime::clock::now();
            // A failed probe is one that there is.
            if matches!(event, EndpointEvent::Failed { probe: true, .. }) && start.probe.is_none() {
                continue;
            }
            bench.put_health(partner, start).await;
            bench.deliver_in(std::slice::from_ref(&topup), -1.0).await;
            let told = bench.happens(partner, &topup, event).await;
            let (expected, notice) = start.after(event, now, POLICY);
            let found = bench.health(partner).await;
            assert!(
                same(found, expected),
                "{start:?}\n{event:?}\nthe statement:   {found:?}\nthe machine says {expected:?}"
            );
            let notice = notice.map(|notice| match notice {
                HealthNotice::Failing => NoticeKind::EndpointFailing,
                HealthNotice::Blocked => NoticeKind::EndpointBlocked,
                HealthNotice::Recovered => NoticeKind::EndpointRecovered,
            });
            assert_eq!(told, Vec::from_iter(notice), "{start:?}\n{event:?}");
            cases += 1;
        }
    }
    assert!(cases > 1_000, "{cases}");
}
