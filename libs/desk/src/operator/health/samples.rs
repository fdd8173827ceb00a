//! Each kind of finding in each degree, so that tests of the crates that show findings compare all
//! of them with the one severity ([`Finding::severity`]). No program uses it.

use std::collections::BTreeMap;

use accounts::partners::keys::EndedKey;
use domain::{
    Amount, ExtensionId, OptionId, OrderId, PartnerId, PlacementId, PlacementState, Stored,
    StoredReason,
    esim_change::EsimChangeKind,
    product::{Cost, Currency, Price},
    standing::EndpointState,
};
use store::{
    deliveries::endpoints::ListedEndpoint,
    figures::Measure,
    provider_lanes::WaitingLane,
    providers::{BreakerState, ProviderBreaker},
};
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use super::{
    answers::OrdersLately,
    examine::HealthReport,
    finding::{
        AffectedEnvironment, Clock, DurabilitySetting, FailingPartner, FailureKind, Finding,
        FindingKind, LeadingCode, VERY_LATE, XID_CRITICAL,
    },
    money::{BelowCost, RunningOut, SoldBelowCost},
    stages::Stage,
    waiting::{SANDBOX, WaitingWork},
};
use crate::operator::{
    balances::Disagreement,
    esim_changes::{ListedEsimChange, ParkedExtension},
    placements::ListedPlacement,
};

const REAL: &str = "usimsa";

fn breaker(name: &str, at: OffsetDateTime, (openings, denied): (i32, bool)) -> FindingKind {
    let breaker = ProviderBreaker {
        name: name.to_owned(),
        state: BreakerState::Open,
        open_until: Some(at + Duration::minutes(1)),
        reason: Some("it answers 500".to_owned()),
        openings,
        version: 1,
        changed_at: at,
        failing_since: Some(at),
        denied,
        balance: None,
        balance_at: None,
    };
    FindingKind::BreakerOpen { breaker }
}

fn endpoint(state: EndpointState, at: OffsetDateTime) -> Box<ListedEndpoint> {
    let partner = Uuid::nil();
    Box::new(ListedEndpoint {
        endpoint_id: partner,
        partner_id: partner,
        name: "Acme".to_owned(),
        webhook_url: Some("https://hooks.example.com/".to_owned()),
        state: Stored::Known(state),
        blocked_until: Some(at + Duration::minutes(1)),
        failures: 20,
        failing_since: Some(at),
        pending: 3,
        exhausted: 2,
        exhausted_since: Some(at),
        read_at: at,
    })
}

fn fail(how: FailureKind, is_of_one: bool, everything: bool, at: OffsetDateTime) -> FindingKind {
    let partner = FailingPartner {
        partner_id: Uuid::nil(),
        name: "Acme".to_owned(),
        is_live: true,
    };
    FindingKind::OrdersFail {
        how,
        partner: is_of_one.then(Uuid::nil),
        everything,
        failed: 60,
        all: 60,
        last: at,
        ended_keys: ended_keys(how, is_of_one, at),
        leading: (how == FailureKind::Invalid && everything).then(|| LeadingCode {
            code: "balance_insufficient".to_owned(),
            count: 12,
            of: 15,
        }),
        partners: vec![partner],
        others: 0,
    }
}

/// Requests of one partner get a 401 because of a key that has ended.
fn ended_keys(how: FailureKind, is_of_one: bool, at: OffsetDateTime) -> Vec<EndedKey> {
    let key = EndedKey {
        partner_id: Uuid::nil(),
        name: Some("shop".to_owned()),
        access_key: "ak_1".to_owned(),
        ended_at: at - Duration::hours(1),
        used_since: at,
        used_at: at,
    };
    let is_one = how == FailureKind::Denied && is_of_one;
    is_one.then_some(key).into_iter().collect()
}

fn purchase(at: OffsetDateTime) -> ListedPlacement {
    ListedPlacement {
        placement_id: PlacementId::new(),
        order_id: OrderId::new(),
        partner_id: PartnerId::new(),
        partner: Some("Acme".to_owned()),
        external_order_id: "o-1".to_owned(),
        provider: REAL.to_owned(),
        elsewhere: Vec::new(),
        lane: "1gb".to_owned(),
        state: Stored::Known(PlacementState::Parked),
        attempt: 1,
        reason: StoredReason(None),
        bought: false,
        units: 1,
        pending: 1,
        created_at: at,
        parked_at: Some(at),
        due_at: None,
    }
}

fn esim_change(kind: EsimChangeKind, at: OffsetDateTime) -> ListedEsimChange {
    let extension = || ParkedExtension {
        extension_id: ExtensionId::new(),
        external_id: "more-1".to_owned(),
        provider_option_id: "eu-5".to_owned(),
    };
    ListedEsimChange {
        topup_id: "tp_1".to_owned(),
        extension: (kind == EsimChangeKind::Extension).then(extension),
        order_id: None,
        partner_id: PartnerId::new(),
        partner: Some("Acme".to_owned()),
        provider: REAL.to_owned(),
        provider_unit_id: None,
        attempt: 1,
        message: None,
        asked_at: at,
        parked_at: at,
    }
}

/// What the stages find, and what partners feel at once.
fn of_stages(at: OffsetDateTime) -> Vec<FindingKind> {
    let mut all = Vec::new();
    for stage in Stage::ALL {
        all.push(FindingKind::StageDead {
            stage,
            waiting: 3,
            oldest: 70.0,
            on: vec!["fra-1".to_owned(), "fra-2".to_owned()],
        });
        all.push(FindingKind::ProcessesMissing {
            stage,
            missing: 1,
            running: 1,
            on: vec!["fra-1".to_owned()],
        });
        all.push(FindingKind::ClockOff {
            of: Clock::Stage(stage),
            ahead: 31.0,
        });
        let what = "publish to topup.ready".to_owned();
        all.push(FindingKind::NatsRefuses { stage, what });
    }
    for how in FailureKind::ALL {
        for is_of_one in [false, true] {
            for everything in [false, true] {
                all.push(fail(how, is_of_one, everything, at));
            }
        }
    }
    all
}

/// What waits for a provider, an endpoint or a person.
fn of_work(at: OffsetDateTime) -> Vec<FindingKind> {
    let mut all = Vec::new();
    for keeps_orders in [false, true] {
        all.push(FindingKind::Unserved {
            providers: vec![REAL.to_owned()],
            keeps_orders,
        });
    }
    for (provider, oldest) in [(REAL, 70.0), (REAL, VERY_LATE), (SANDBOX, VERY_LATE)] {
        all.push(FindingKind::PurchasesLate {
            provider: provider.to_owned(),
            waiting: 3,
            oldest,
            breaker_open: false,
        });
    }
    for environment in [AffectedEnvironment::Live, AffectedEnvironment::Sandbox] {
        for oldest in [70.0, VERY_LATE] {
            all.push(FindingKind::WebhooksLate {
                environment,
                waiting: 3,
                oldest,
            });
        }
    }
    for measure in [
        Measure::Answered,
        Measure::Call,
        Measure::Bought,
        Measure::Delivered,
    ] {
        for (part_is_slow, before) in [(false, Some(0.1)), (true, Some(0.1)), (true, None)] {
            all.push(FindingKind::Slow {
                measure,
                subject: REAL.to_owned(),
                half: 5.0,
                before,
                newest: 20,
                hours: 5,
                part_is_slow,
            });
        }
    }
    all.push(FindingKind::Parked {
        provider: REAL.to_owned(),
        reason: None,
        purchases: vec![purchase(at)],
        in_all: 0,
    });
    for kind in [EsimChangeKind::GiveBack, EsimChangeKind::Extension] {
        let changes = vec![esim_change(kind, at)];
        all.push(FindingKind::parked_changes(kind, REAL.to_owned(), changes));
    }
    all.push(FindingKind::NoAddress {
        partner_id: Uuid::nil(),
        name: "Acme".to_owned(),
        webhooks: 80,
    });
    all.push(FindingKind::Exhausted {
        endpoint: endpoint(EndpointState::Open, at),
    });
    for state in [EndpointState::Paused, EndpointState::PausedByPartner] {
        let endpoint = endpoint(state, at);
        all.push(FindingKind::Paused { endpoint });
    }
    all.push(FindingKind::Blocked {
        endpoint: endpoint(EndpointState::Blocked, at),
    });
    for name in [REAL, SANDBOX] {
        for of in [(0, false), (1, false), (1, true)] {
            all.push(breaker(name, at, of));
        }
    }
    all.push(FindingKind::LanesHeldBack {
        provider: REAL.to_owned(),
        lanes: vec![WaitingLane {
            provider: REAL.to_owned(),
            lane: "1gb".to_owned(),
            product: Some("Japan 3 GB, 10 days".to_owned()),
            max_in_flight: 1,
            unsettled: 64,
            reason: "it answers 500".to_owned(),
            since: at,
        }],
    });
    all
}

/// What is wrong with the money of partners.
fn of_money(at: OffsetDateTime) -> Vec<FindingKind> {
    let currency = Currency::of_money("EUR");
    let amount = |minor| currency.map(|currency| Amount { minor, currency });
    let disagree = FindingKind::AccountsDisagree {
        checked_at: at,
        found: 2,
        first: vec![Disagreement {
            partner: "Acme".to_owned(),
            currency: "EUR".to_owned(),
            what: "entry 7 does not follow from the one before".to_owned(),
        }],
    };
    let mut all = vec![disagree];
    if let (Ok(available), Ok(spent)) = (amount(1_200), amount(4_000)) {
        all.push(FindingKind::BalanceRunsOut(RunningOut {
            partner_id: PartnerId::from(Uuid::nil()),
            name: "Acme".to_owned(),
            available,
            spent,
        }));
        all.push(FindingKind::SoldBelowCost(SoldBelowCost {
            price_list: "retail".to_owned(),
            in_all: 2,
            options: vec![BelowCost {
                option_id: OptionId::from(Uuid::nil()),
                option: "Japan 3 GB, 10 days".to_owned(),
                price: available,
                cost: Cost {
                    price: Price(125_000),
                    currency: available.currency,
                },
            }],
        }));
    }
    all
}

/// What is found in the servers.
fn of_servers() -> Vec<FindingKind> {
    let why = || "no route to host".to_owned();
    let stream = || "TOPUP_JOBS".to_owned();
    let volume = || "esim-db-1".to_owned();
    vec![
        FindingKind::DatabaseDown { why: why() },
        FindingKind::CommitsLost {
            providers: vec![REAL.to_owned()],
            told: None,
        },
        FindingKind::OnStandby,
        FindingKind::NotDurable {
            settings: vec![DurabilitySetting::Fsync],
        },
        FindingKind::StandbyMissing,
        FindingKind::ClockOff {
            of: Clock::Nats,
            ahead: 3.0,
        },
        FindingKind::ClockOff {
            of: Clock::Postgresql,
            ahead: -12.0,
        },
        FindingKind::Wraparound { age: 500_000_000 },
        FindingKind::Wraparound { age: XID_CRITICAL },
        FindingKind::ConnectionsFew {
            used: 90,
            most: 100,
        },
        FindingKind::StandbyLags { seconds: 90 },
        FindingKind::LongTransaction {
            seconds: 4_000,
            of: "pid 7".to_owned(),
        },
        FindingKind::NotArchived,
        FindingKind::ArchiveLags { seconds: 1_000 },
        FindingKind::RetentionBehind { seconds: 90_000 },
        FindingKind::NotSynchronous,
        FindingKind::NatsDown { why: why() },
        FindingKind::StreamMissing { stream: stream() },
        FindingKind::ReplicasMissing {
            stream: stream(),
            on: vec!["n2".to_owned()],
        },
        FindingKind::ConsumerMissing { stream: stream() },
        FindingKind::DeadMessages {
            stream: stream(),
            messages: 1,
        },
        FindingKind::BackupOld { hours: Some(100) },
        FindingKind::DrillOld { days: None },
        FindingKind::DiskFilling {
            volume: volume(),
            percent: 15.0,
        },
        FindingKind::DiskFilling {
            volume: volume(),
            percent: 5.0,
        },
    ]
}

/// A look that has found these, and nothing else.
pub fn report(at: OffsetDateTime, findings: Vec<Finding>) -> HealthReport {
    HealthReport {
        at,
        stages: Vec::new(),
        waiting: WaitingWork {
            at,
            queues: BTreeMap::new(),
        },
        breakers: Vec::new(),
        endpoints: Vec::new(),
        orders: OrdersLately::default(),
        findings,
        unseen: Vec::new(),
    }
}

/// Each kind in each of its degrees: as it begins, once it has lasted, while the stage is dead that
/// ends it, and once its partner was told.
pub fn samples(at: OffsetDateTime) -> Vec<Finding> {
    let kinds = [of_stages(at), of_work(at), of_money(at), of_servers()];
    let mut all = Vec::new();
    for kind in kinds.into_iter().flatten() {
        let new = Finding::new(kind, Some(at));
        if new.kind.ends_within().is_some() {
            let lasts = true;
            all.push(Finding {
                lasts,
                ..new.clone()
            });
        }
        if let after @ Some(_) = new.kind.ended_by() {
            all.push(Finding {
                after,
                ..new.clone()
            });
        }
        if new.kind.tells().is_some() {
            let told_at = Some(at);
            all.push(Finding {
                told_at,
                ..new.clone()
            });
        }
        all.push(new);
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use strum::IntoEnumIterator;
    use time::macros::datetime;

    use super::{super::finding::Matter, *};

    #[test]
    fn each_kind_has_a_sample() {
        let all = samples(datetime!(2026-11-28 12:00 UTC));
        let found: BTreeSet<Matter> = all.iter().map(|one| one.kind.matter()).collect();
        let missing: Vec<Matter> = Matter::iter().filter(|one| !found.contains(one)).collect();
        assert_eq!(missing, Vec::<Matter>::new());
    }
}
