//! Checks that each single flaw in the evidence makes the run red, under the right name. Otherwise
//! a green run would prove nothing.

use crate::book::{Arrival, Asked, Settled};
use crate::events::FORGED;
use crate::histories::compare;
use crate::inject::Happened;
use crate::orders::NEVER_READY;
use crate::report::{Kind, recoveries};
use crate::stored::{
    Books, Stored, StoredAccount, StoredChange, StoredEntry, StoredOrder, StoredPlacement,
    StoredUnit,
};
use crate::verdict::{Broken, Evidence, Loss, Sold, Verdict};
use std::collections::BTreeSet;
use std::time::Duration;
use testkit::stack::{LedgerExtension, LedgerOrder, StoredExtension};

/// The whole verdict on the state at rest.
fn judge(evidence: &Evidence) -> Verdict {
    let mut verdict = crate::verdict::judge(evidence);
    crate::money::judge(evidence, &mut verdict);
    verdict
}

fn asked(id: &str, sent: u64, topups: &[&str]) -> Asked {
    Asked {
        external_order_id: id.into(),
        settled: Some(Settled::Created),
        sent: Duration::from_secs(sent),
        answered: Duration::from_secs(sent),
        topups: topups.iter().map(ToString::to_string).collect(),
        ..Asked::default()
    }
}

fn arrival(topup: &str, at: u64) -> Arrival {
    Arrival {
        at: Duration::from_secs(at),
        partner: 0,
        topup_id: topup.into(),
        iccid: format!("89 {topup}"),
        acknowledged: true,
        genuine: true,
    }
}

/// The books of that order: both units are charged.
fn books() -> Books {
    let entry = |number: i64, topup: &str| StoredEntry {
        partner_id: "partner".into(),
        number,
        kind: "charge".into(),
        amount: -7,
        balance: -7 * number,
        released: 7,
        topup_id: Some(topup.into()),
        extension_id: None,
    };
    Books {
        accounts: vec![StoredAccount {
            partner_id: "partner".into(),
            posted: -14,
            held: 0,
            last_entry: 2,
        }],
        entries: vec![entry(1, "t1"), entry(2, "t2")],
    }
}

/// Both units have a price, and the account is right.
fn priced(evidence: &mut Evidence) {
    evidence.books = books();
    for unit in &mut evidence.stored.units {
        unit.price = Some(7);
    }
}

/// One order of two units, answered, bought and delivered.
fn good() -> Evidence {
    let unit = |topup: &str| StoredUnit {
        topup_id: topup.into(),
        placement_id: "placement".into(),
        order_id: "order".into(),
        option: "ready".into(),
        state: "ready".into(),
        iccid: Some(format!("89 {topup}")),
        delivery: Some("delivered".into()),
        ..StoredUnit::default()
    };
    let order = StoredOrder {
        order_id: "order".into(),
        partner_id: "partner".into(),
        external_order_id: "external".into(),
        refused: false,
        waits: true,
        answer_by: 107.0,
    };
    let placement = StoredPlacement {
        placement_id: "placement".into(),
        order_id: "order".into(),
        state: "placed".into(),
        placed: true,
        reason: None,
    };
    let change = |state: &str, attempt, at| StoredChange {
        at,
        placement_id: Some("placement".into()),
        state: state.into(),
        attempt,
        placed: state == "placed",
        attempted: (attempt > 0).then_some(101.0),
        ..StoredChange::default()
    };
    let recorded = |topup: &str| StoredChange {
        at: 102.1,
        topup_id: Some(topup.into()),
        state: "delivered".into(),
        ..StoredChange::default()
    };
    let bought = LedgerOrder {
        order_id: "placement".into(),
        units: 2,
        purchased_times: 1,
        canceled: 0,
    };
    Evidence {
        provider: "sandbox",
        asked: vec![asked("external", 1, &["t1", "t2"])],
        arrivals: vec![arrival("t1", 2), arrival("t2", 2)],
        ledger: vec![bought],
        extended: vec![LedgerExtension {
            extension_id: "more".into(),
            topup_id: "u1".into(),
        }],
        extensions: vec![StoredExtension {
            extension_id: "more".into(),
            external_id: "more".into(),
            topup_id: "t1".into(),
            unit_id: "u1".into(),
            state: "added".into(),
            price: None,
            partner_id: "partner".into(),
        }],
        books: Books::default(),
        sold: vec![Sold {
            order_id: "placement".into(),
            at: Duration::from_millis(1_100),
            option: "ready".into(),
        }],
        began: Duration::from_secs(100),
        detects_duplicates: false,
        settle: Duration::from_secs(8),
        stalls: Vec::new(),
        crashes: Vec::new(),
        slow_commits: Vec::new(),
        stored: Stored {
            orders: vec![order],
            placements: vec![placement],
            units: vec![unit("t1"), unit("t2")],
            changes: vec![
                change("accepted", 0, 100.8),
                change("placing", 1, 101.0),
                change("placed", 1, 101.2),
                recorded("t1"),
                recorded("t2"),
            ],
        },
        partners: vec!["partner".into()],
        losses: Vec::new(),
        orphans: BTreeSet::new(),
        given_back: BTreeSet::new(),
    }
}

/// Changes the evidence to that of a refused order, of which nothing was bought or delivered.
fn refused(evidence: &mut Evidence) {
    evidence.asked[0].settled = Some(Settled::Refused);
    evidence.asked[0].topups.clear();
    evidence.arrivals.clear();
    evidence.ledger.clear();
    evidence.stored.orders[0].refused = true;
    evidence.stored.placements[0].state = "refused".into();
    evidence.stored.placements[0].placed = false;
    for unit in &mut evidence.stored.units {
        unit.state = "pending".into();
        unit.iccid = None;
        unit.delivery = None;
    }
}

/// Parks the placement of both units. The first one has no profile.
fn parked(evidence: &mut Evidence, option: &str) {
    evidence.stored.placements[0].state = "parked".into();
    evidence.stored.placements[0].reason = Some("its profiles do not come".into());
    let unit = &mut evidence.stored.units[0];
    (unit.state, unit.option, unit.delivery) = ("pending".into(), option.into(), None);
}

#[test]
fn each_flaw_is_red_under_its_name_and_nothing_else() {
    type Spoil = fn(&mut Evidence);
    let flaws: [(&str, &[Broken], Spoil); 36] = testkit::rows! {
        "none", &[] => |_| {};
        "a refused order", &[] => refused;
        "a repeated webhook", &[] => |all| all.arrivals.push(all.arrivals[0].clone());
        "profiles that do not come", &[] => |all| parked(all, NEVER_READY);
        "a failed unit", &[] => |all| {
            let unit = &mut all.stored.units[0];
            (unit.state, unit.delivery, unit.reason) = ("failed".into(), None, Some("no profile".into()));
        };
        "twice", &[Broken::BoughtTwice] => |all| (all.ledger[0].purchased_times, all.ledger[0].units) = (2, 4);
        "three units", &[Broken::BoughtBeyondStored] => |all| all.ledger[0].units = 3;
        "another order", &[Broken::BoughtBeyondStored] => |all| {
            let mut stranger = all.ledger[0].clone();
            stranger.order_id = "another".into();
            all.ledger.push(stranger);
        };
        "no sale", &[Broken::NotBoughtThoughPlaced] => |all| all.ledger.clear();
        "bought and refused", &[Broken::BoughtThoughRefused] => |all| {
            let ledger = all.ledger.clone();
            refused(all);
            all.ledger = ledger;
        };
        "refused and stored", &[Broken::BoughtThoughRefused]
            => |all| (all.asked[0].settled, all.asked[0].topups) = (Some(Settled::Refused), Vec::new());
        "no delivery", &[Broken::Lost] => |all| all.stored.units[0].delivery = None;
        "no profile", &[Broken::Lost] => |all| all.stored.units[0].state = "pending".into();
        "failed without a reason", &[Broken::Lost] => |all| all.stored.units[0].state = "failed".into();
        "pending", &[Broken::Lost] => |all| all.stored.units[0].delivery = Some("pending".into());
        "not acknowledged", &[Broken::Lost] => |all| all.arrivals[0].acknowledged = false;
        "not stored", &[Broken::AnsweredButNotStored] => |all| all.asked[0].topups.push("t3".into());
        "taken by the first request", &[Broken::AnsweredButNotStored]
            => |all| all.asked[0].settled = Some(Settled::Taken);
        "taken, then refused", &[Broken::TakenThenRefused] => |all| {
            refused(all);
            (all.asked[0].settled, all.asked[0].unanswered) = (Some(Settled::Taken), 1);
        };
        "denied", &[Broken::DeniedWithoutCause] => |all| {
            refused(all);
            all.asked[0].settled = Some(Settled::Denied("401".into()));
        };
        "no answer", &[Broken::NeverSettled] => |all| all.asked[0].settled = None;
        "parked", &[Broken::ParkedThoughFindable] => |all| parked(all, "ready");
        "one ICCID", &[Broken::IccidTwice] => |all| all.stored.units[1].iccid = Some("89 t1".into());
        "an ICCID again", &[] => |all| {
            all.stored.units[1].iccid = Some("89 t1".into());
            all.given_back.insert("t1".into());
        };
        "extended twice", &[Broken::ExtendedTwice] => |all| all.extended.push(all.extended[0].clone());
        "extended and refused", &[Broken::ExtendedThoughRefused]
            => |all| all.extensions[0].state = "refused".into();
        "told and not extended", &[Broken::NotExtendedThoughTold] => |all| all.extended.clear();
        "another extension", &[Broken::ExtendedBeyondStored] => |all| {
            let mut stranger = all.extended[0].clone();
            stranger.extension_id = "another".into();
            all.extended.push(stranger);
        };
        "taken back", &[Broken::TakenBack] => |all| all.ledger[0].canceled = 1;
        "two ICCIDs", &[Broken::Lost, Broken::IccidTwice] => |all| all.arrivals[1].topup_id = "t1".into();
        "early", &[Broken::WebhookBeforeAnswer] => |all| all.arrivals[0].at = Duration::from_millis(500);
        "forged", &[Broken::WebhookForged] => |all| all.arrivals[0].genuine = false;
        "a forged event", &[Broken::EventBelieved] => |all| all.arrivals[0].iccid = FORGED.into();
        "unknown", &[Broken::Lost, Broken::WebhookForNothing] => |all| all.arrivals[0].topup_id = "t9".into();
        "another partner's", &[Broken::WebhookForNothing] => |all| {
            all.partners.push("another".into());
            all.arrivals[0].partner = 1;
        };
        "never delivered", &[Broken::Lost] => |all| all.arrivals.truncate(1);
    };
    for (name, expected, spoil) in flaws {
        let mut evidence = good();
        spoil(&mut evidence);
        let broken: Vec<Broken> = judge(&evidence).broken.into_keys().collect();
        assert_eq!(broken, expected, "{name}");
    }
}

#[test]
fn each_flaw_of_the_books_is_red() {
    type Spoil = fn(&mut Evidence);
    let flaws: [(&str, &[Broken], Spoil); 7] = testkit::rows! {
        "not charged", &[Broken::BookedWrongly] => |all| {
            priced(all);
            all.books.entries.pop();
            (all.books.accounts[0].posted, all.books.accounts[0].last_entry) = (-7, 1);
        };
        "charged and failed", &[Broken::BookedWrongly] => |all| {
            priced(all);
            let unit = &mut all.stored.units[0];
            (unit.state, unit.delivery, unit.reason) = ("failed".into(), None, Some("no profile".into()));
        };
        "charged too much", &[Broken::BookedWrongly] => |all| {
            priced(all);
            all.books.entries[1].amount = -8;
            all.books.entries[1].balance = -15;
            all.books.accounts[0].posted = -15;
        };
        "a gap", &[Broken::BookedWrongly] => |all| {
            priced(all);
            all.books.entries[1].number = 3;
            all.books.accounts[0].last_entry = 3;
        };
        "held for nothing", &[Broken::BookedWrongly] => |all| {
            priced(all);
            all.books.accounts[0].held = 7;
        };
        "charged and never bought", &[Broken::NotBoughtThoughPlaced, Broken::ChargedForNothing] => |all| {
            priced(all);
            all.ledger.clear();
        };
        "prices", &[] => priced;
    };
    for (name, expected, spoil) in flaws {
        let mut evidence = good();
        spoil(&mut evidence);
        let broken: Vec<Broken> = judge(&evidence).broken.into_keys().collect();
        assert_eq!(broken, expected, "{name}");
    }
}

/// Loses the commits of the second in which the order was answered.
fn forgotten(evidence: &mut Evidence) {
    evidence.stored = Stored::default();
    evidence.asked[0].answered = Duration::from_millis(1_500);
    evidence.losses = vec![Loss {
        from: Duration::from_millis(1_200),
        until: Duration::from_secs(2),
    }];
    evidence.orphans = BTreeSet::from(["placement".into()]);
}

#[test]
fn only_lost_commits_excuse_an_order_that_is_gone_and_only_a_named_orphan_its_purchase() {
    type Spoil = fn(&mut Evidence);
    let flaws: [(&str, &[Broken], Spoil); 7] = testkit::rows! {
        "forgotten", &[] => |_| {};
        "taken and forgotten", &[] => |all| all.asked[0].settled = Some(Settled::Taken);
        "not named", &[Broken::BoughtBeyondStored] => |all| all.orphans.clear();
        "twice", &[Broken::BoughtTwice] => |all| all.ledger[0].purchased_times = 2;
        "answered before", &[Broken::AnsweredButNotStored]
            => |all| all.asked[0].answered = Duration::from_millis(1_100);
        "asked afterwards", &[Broken::AnsweredButNotStored]
            => |all| (all.asked[0].sent, all.asked[0].answered) = (Duration::from_secs(2), Duration::from_secs(2));
        "a late webhook", &[Broken::WebhookForNothing] => |all| all.arrivals[0].at = Duration::from_secs(20);
    };
    for (name, expected, spoil) in flaws {
        let mut evidence = good();
        forgotten(&mut evidence);
        spoil(&mut evidence);
        let broken: Vec<Broken> = judge(&evidence).broken.into_keys().collect();
        assert_eq!(broken, expected, "{name}");
    }
    let mut evidence = good();
    forgotten(&mut evidence);
    let counts = judge(&evidence).counts;
    assert_eq!((counts.answers_forgotten, counts.orphans_named), (1, 1));
}

#[test]
fn a_failed_purchase_may_be_found_at_zendit_although_nothing_was_sold() {
    let unsold = [Broken::NotBoughtThoughPlaced];
    for (provider, expected) in [("zendit", &[][..]), ("sandbox", &unsold)] {
        let mut evidence = good();
        evidence.provider = provider;
        evidence.ledger.clear();
        evidence.sold.clear();
        evidence.arrivals.clear();
        for unit in &mut evidence.stored.units {
            unit.state = "failed".into();
            unit.reason = Some("unit_failed".into());
            unit.iccid = None;
            unit.delivery = None;
        }
        let broken: Vec<Broken> = judge(&evidence).broken.into_keys().collect();
        assert_eq!(broken, expected, "{provider}");
    }
}

#[test]
fn what_happened_is_counted() {
    let mut evidence = good();
    evidence.arrivals.push(evidence.arrivals[0].clone());
    let counts = judge(&evidence).counts;
    assert_eq!(
        (
            counts.answered_201,
            counts.units_delivered,
            counts.units_bought
        ),
        (1, 2, 2)
    );
    assert_eq!((counts.webhooks, counts.duplicates, counts.lost), (3, 1, 0));
}

#[test]
fn recovery_counts_from_the_end_to_an_order_that_was_sent_later() {
    let happened = |kind: &str, until| Happened {
        kind: kind.into(),
        from: Duration::ZERO,
        until: Duration::from_secs(until),
        stalls_purchases: false,
        crashes_database: false,
        delays_commits: false,
        met: Some(until % 20),
    };
    let asked = [("a", 9), ("b", 11), ("c", 30)].map(|(topup, sent)| asked(topup, sent, &[topup]));
    // Topup a was ordered before the first fault ended, so its webhook does not show that the
    // system has recovered.
    let arrivals = [arrival("b", 15), arrival("a", 12), arrival("c", 31)];
    let faults = [
        happened("killed", 10),
        happened("killed", 20),
        happened("wiped", 40),
    ];
    let kinds = recoveries(&faults, &asked, &arrivals);
    let killed = &kinds["killed"];
    assert_eq!(
        (killed.faults, killed.longest_recovery_seconds),
        (2, Some(11.0))
    );
    assert_eq!(kinds["wiped"].longest_recovery_seconds, None);
    // Whoever counts how often a fault was met also shows which ones struck.
    assert_eq!((killed.counted, killed.struck, killed.met), (2, 1, 10));
}

#[test]
fn a_kind_of_fault_that_never_strikes_is_red_once_some_should_have() {
    let kind = |counted, struck| Kind {
        faults: 10,
        counted,
        struck,
        ..Kind::default()
    };
    assert!(kind(10, 0).never_struck());
    assert!(!kind(10, 1).never_struck());
    assert!(!kind(9, 0).never_struck(), "too few to expect a strike");
    // Nobody counts how often a process meets its own end.
    assert!(!kind(0, 0).never_struck());
}

#[test]
fn a_history_that_the_model_does_not_allow_is_red() {
    let compared = |evidence: &Evidence| {
        let mut verdict = judge(evidence);
        compare(evidence, &mut verdict);
        verdict
    };
    let verdict = compared(&good());
    assert!(verdict.green(), "{:?}", verdict.broken);
    assert_eq!(
        (verdict.counts.histories, verdict.counts.histories_distinct),
        (2, 1)
    );
    // Nothing else notices that an attempt was recorded only after its purchase.
    let mut evidence = good();
    evidence.stored.changes[1].at = 101.4;
    evidence.stored.changes[2].at = 101.5;
    let verdict = compared(&evidence);
    assert!(!verdict.green());
    assert_eq!(
        verdict.broken.keys().collect::<Vec<_>>(),
        [&Broken::ImpossibleInTheModel]
    );
    // A webhook cannot come before the settlement, unless a crash has lost the first one.
    let mut evidence = good();
    for change in &mut evidence.stored.changes[2..] {
        change.at += 2.0;
    }
    assert!(!compared(&evidence).green());
    evidence.crashes = vec![Duration::from_millis(2_500)];
    let verdict = compared(&evidence);
    assert!(verdict.green(), "{:?}", verdict.broken);
    assert_eq!(verdict.counts.histories, 0);
}
