//! Changes of partners and options as ingress sees them: a reader that asks by version misses no
//! change, however changes overlap, and an import that changes nothing costs no reader anything.

use std::{collections::HashMap, time::Duration};

use accounts::{
    facts::{Facts, PlanKind},
    options::{self, ProductOption},
    partners,
};
use desk::{
    operator::catalogue::{
        self, CatalogueCounts, CatalogueUpdate, ListedProduct, PairPosition, Update,
    },
    self_service::{self, OptionFilter, OptionPage},
};
use domain::{
    Environment, OptionId, PartnerId,
    cut::OptionAtProvider,
    product::{Country, Standard},
};
use pg::actions::{self, Action, Actor, Mode};
use serde_json::Value;
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use crate::bench::{Bench, VAULT};

const WRITERS: usize = 6;
const CHANGES: usize = 25;

fn option(name: &str) -> ProductOption {
    let sold = OptionAtProvider {
        provider: "sandbox".into(),
        provider_option_id: name.to_owned(),
    };
    ProductOption::new(OptionId::new(), name, sold, Environment::Sandbox)
}

/// A service's view, by following changes.
#[derive(Default)]
struct Follower {
    version: i64,
    partners_seen: i64,
    options_seen: i64,
    disabled: HashMap<PartnerId, bool>,
    names: HashMap<Uuid, String>,
}

impl Follower {
    async fn follow(&mut self, bench: &Bench) {
        let mut connection = bench.connection().await;
        let newest = options::configuration_version(&mut connection)
            .await
            .unwrap();
        if newest == self.version {
            return;
        }
        let changed = partners::changed_since(&mut connection, self.partners_seen).await;
        for partner in changed.unwrap() {
            self.partners_seen = self.partners_seen.max(partner.row_version);
            self.disabled.insert(partner.partner_id, partner.disabled);
        }
        let changed = options::changed_since(&mut connection, self.options_seen).await;
        for changed in changed.unwrap() {
            self.options_seen = self.options_seen.max(changed.row_version);
            let option = changed.option.unwrap();
            self.names.insert(option.option_id.uuid(), option.name);
        }
        // Last, because the test drops a follower that is under way.
        self.version = newest;
    }
}

/// Changes its own partner and its own option repeatedly, each in a transaction that lasts for a
/// random time before and after the change; returns the final values.
async fn write(bench: &Bench, writer: usize) -> ((PartnerId, bool), (Uuid, String)) {
    let partner = bench.partner(None).await;
    let mut option = option("first");
    let mut connection = bench.database.connect().await.unwrap();
    let mut disabled = false;
    for change in 0..CHANGES {
        let mut transaction = connection.begin().await.unwrap();
        let pause = "SELECT pg_sleep(random() * 0.003)";
        sqlx::query(pause).execute(&mut *transaction).await.unwrap();
        if (change + writer).is_multiple_of(2) {
            disabled = !disabled;
            assert!(
                partners::set_disabled(&mut transaction, partner, disabled)
                    .await
                    .unwrap()
            );
        } else {
            option.name = format!("change {change}");
            assert!(options::import(&mut transaction, &option).await.unwrap());
        }
        sqlx::query(pause).execute(&mut *transaction).await.unwrap();
        transaction.commit().await.unwrap();
    }
    ((partner, disabled), (option.option_id.uuid(), option.name))
}

#[tokio::test]
async fn a_follower_misses_no_change() {
    let bench = Bench::new().await;
    let mut follower = Follower::default();
    let written = {
        let writing =
            futures_util::future::join_all((0..WRITERS).map(|writer| write(&bench, writer)));
        let mut writing = std::pin::pin!(writing);
        loop {
            tokio::select! {
                written = &mut writing => break written,
                () = follower.follow(&bench) => {}
            }
        }
    };
    follower.follow(&bench).await;
    let (disabled, names): (HashMap<_, _>, HashMap<_, _>) = written.into_iter().unzip();
    assert_eq!(follower.disabled, disabled);
    assert_eq!(follower.names, names);
}

/// The whole catalogue, of which each row can be read.
async fn all(connection: &mut PgConnection) -> Vec<ProductOption> {
    let read = options::all(connection).await.unwrap();
    read.into_iter().map(|one| one.option.unwrap()).collect()
}

/// Other roles write these rows, and a later version may write names that this one does not know.
#[tokio::test]
async fn a_row_that_cannot_be_read_is_set_aside_alone() {
    let bench = Bench::new().await;
    let mut connection = bench.connection().await;
    let fine = bench.partner(None).await;
    let broken = bench.partner(None).await;
    let option = option("fine");
    let unreadable = OptionId::new();
    options::import(&mut connection, &option).await.unwrap();
    options::import(
        &mut connection,
        &ProductOption {
            option_id: unreadable,
            ..option.clone()
        },
    )
    .await
    .unwrap();
    bench
        .sql(&format!(
            "ALTER TABLE partners DROP CONSTRAINT IF EXISTS partners_environment_check;
             ALTER TABLE options DROP CONSTRAINT IF EXISTS options_environment_check;
             UPDATE partners SET environment = 'moon' WHERE partner_id = '{broken}';
             UPDATE partners SET old_access_key = 'old', old_keys_until = '9999-12-31' WHERE partner_id = '{fine}';
             UPDATE options SET environment = 'moon' WHERE option_id = '{unreadable}'"
        ))
        .await;
    let partners = partners::changed_since(&mut connection, 0).await.unwrap();
    let read: HashMap<_, _> = partners
        .iter()
        .map(|one| (one.partner_id, (one.environment.is_some(), one.keys.len())))
        .collect();
    assert_eq!(
        read,
        HashMap::from([(fine, (true, 2)), (broken, (false, 1))])
    );
    for read in [
        options::changed_since(&mut connection, 0).await.unwrap(),
        options::by_ids(
            &mut connection,
            &[option.option_id.uuid(), unreadable.uuid()],
        )
        .await
        .unwrap(),
        options::all(&mut connection).await.unwrap(),
    ] {
        let read: HashMap<_, _> = read
            .iter()
            .map(|one| (one.option_id, one.option.is_ok()))
            .collect();
        assert_eq!(
            read,
            HashMap::from([(option.option_id, true), (unreadable, false)])
        );
    }
}

/// A row of which one part is damaged. What the catalogue says of the others stays readable.
#[tokio::test]
async fn each_part_of_an_option_may_be_damaged_alone() {
    let bench = Bench::new().await;
    let mut connection = bench.connection().await;
    let mut fine = option("fine");
    let mut damaged = option("damaged");
    damaged.option_id = OptionId::new();
    fine.enabled = true;
    for one in [&fine, &damaged] {
        options::import(&mut connection, one).await.unwrap();
    }
    let id = damaged.option_id;
    for part in [
        "alternatives = '[7]'",
        "alternatives = '[]', details = '[7]'",
        "details = '{}', countries = ARRAY['nowhere'], data_mb = 1, unlimited = false, days = 1",
    ] {
        let damage = format!(
            "ALTER TABLE options DROP CONSTRAINT IF EXISTS options_details;
             UPDATE options SET {part} WHERE option_id = '{id}'"
        );
        bench.sql(&damage).await;
        let read = options::all(&mut connection).await.unwrap();
        let read: HashMap<_, _> = read
            .iter()
            .map(|one| (one.option_id, one.option.is_ok()))
            .collect();
        let expected = HashMap::from([(fine.option_id, true), (id, false)]);
        assert_eq!(read, expected, "{part}");
    }
}

/// A row that was restored or written by hand, and that no program can read, keeps no stage from
/// starting, whatever it sorts behind.
#[tokio::test]
async fn a_row_that_nobody_can_read_stops_no_start() {
    let bench = Bench::new().await;
    let broken = bench.partner(None).await;
    for id in ["no topup id", "99", "999999999999999999999999999", "12.4"] {
        bench
            .sql(&format!(
                "INSERT INTO esims (topup_id, provider, provider_unit_id, profile) VALUES ('{id}', 'p', '{id}', '\\x00')"
            ))
            .await;
    }
    bench
        .sql(&format!(
            "ALTER TABLE partners DROP CONSTRAINT IF EXISTS partners_environment_check;
             UPDATE partners SET environment = 'moon' WHERE partner_id = '{broken}'"
        ))
        .await;
    let waiting = accounts::start::wait(&bench.store, &VAULT);
    let started = tokio::time::timeout(Duration::from_secs(20), waiting).await;
    started.expect("the start waits").unwrap();
}

#[tokio::test]
async fn importing_the_same_option_again_changes_nothing() {
    let bench = Bench::new().await;
    let mut connection = bench.connection().await;
    let mut option = option("ready");
    assert!(options::import(&mut connection, &option).await.unwrap());
    let seen = options::changed_since(&mut connection, 0).await.unwrap()[0].row_version;
    assert!(!options::import(&mut connection, &option).await.unwrap());
    assert!(
        options::changed_since(&mut connection, seen)
            .await
            .unwrap()
            .is_empty()
    );
    option.enabled = false;
    assert!(options::import(&mut connection, &option).await.unwrap());
    let changed = options::changed_since(&mut connection, seen).await.unwrap();
    assert!(!changed[0].option.as_ref().unwrap().enabled && changed[0].row_version > seen);
    let by_id = options::by_ids(&mut connection, &[option.option_id.uuid(), Uuid::nil()]).await;
    assert_eq!(by_id.unwrap().len(), 1);
}

/// Each column of an option that another value stands in is as it was after an import. One that the
/// import left out would keep its old value for ever, without an error. The second half adds a
/// column and shows that this test would notice it.
#[tokio::test]
async fn an_import_writes_each_column() {
    let bench = Bench::new().await;
    let mut connection = bench.connection().await;
    let option = option("ready");
    options::import(&mut connection, &option).await.unwrap();
    let row = "SELECT to_jsonb(o) - 'version' FROM options o";
    let mut left_out = async || {
        let columns = "SELECT column_name::text, data_type::text FROM information_schema.columns
                       WHERE table_schema = 'public' AND table_name = 'options'
                         AND column_name NOT IN ('option_id', 'version', 'updated_at', 'networks')";
        let columns: Vec<(String, String)> = sqlx::query_as(columns)
            .fetch_all(&mut *connection)
            .await
            .unwrap();
        let others = columns.iter().map(|(column, kind)| match kind.as_str() {
            _ if column == "environment" => "environment = 'live'".to_owned(),
            "text" => format!("{column} = 'other'"),
            "integer" | "bigint" => format!("{column} = 7"),
            "boolean" => format!("{column} = coalesce(NOT {column}, true)"),
            "jsonb" => format!("{column} = jsonb_build_object('other', 1)"),
            "ARRAY" => format!("{column} = ARRAY['XX']"),
            _ => panic!("{column}: give this test a value of the type {kind}"),
        });
        let others: Vec<String> = others.collect();
        let before: Value = sqlx::query_scalar(row)
            .fetch_one(&mut *connection)
            .await
            .unwrap();
        let change = format!("UPDATE options SET {}", others.join(", "));
        bench.sql(&change).await;
        assert!(options::import(&mut connection, &option).await.unwrap());
        let now: Value = sqlx::query_scalar(row)
            .fetch_one(&mut *connection)
            .await
            .unwrap();
        let names = columns.into_iter().map(|(column, _)| column);
        let differing = names.filter(|column| before[column] != now[column]);
        differing.collect::<Vec<_>>()
    };
    assert_eq!(left_out().await, [""; 0]);
    bench
        .sql("ALTER TABLE options ADD COLUMN made_up text")
        .await;
    assert_eq!(left_out().await, ["made_up"]);
}

/// An import by file may set the standard fields, and removes those that it does not name.
#[tokio::test]
async fn standard_fields_are_stored_and_read() {
    let bench = Bench::new().await;
    let mut connection = bench.connection().await;
    let mut stored = option("ready");
    for standard in [
        serde_json::json!({ "countries": ["DE", "FR"], "data_mb": 1024, "days": 7,
                            "cost": { "price": "1.50", "currency": "USD" } }),
        serde_json::json!({ "countries": ["JP"], "data_mb": "unlimited", "days": 30 }),
        serde_json::Value::Null,
    ] {
        stored.standard = serde_json::from_value(standard).unwrap();
        assert!(options::import(&mut connection, &stored).await.unwrap());
        assert!(!options::import(&mut connection, &stored).await.unwrap());
        let read = all(&mut connection).await;
        assert_eq!(read[0].standard, stored.standard);
    }
}

fn facts(facts: Value) -> Facts {
    serde_json::from_value(facts).unwrap()
}

/// Partners see what a file sets, and otherwise what the provider tells, and find options by it.
#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one table of filters")]
async fn options_are_found_by_what_is_known_of_them() {
    let bench = Bench::new().await;
    let mut connection = bench.connection().await;
    let coverage = |country: &str, networks: &[&str]| {
        let networks: Vec<Value> = networks
            .iter()
            .map(|name| serde_json::json!({ "name": name, "generations": ["4G"] }))
            .collect();
        serde_json::json!({ "country": country, "generations": ["4G"], "networks": networks })
    };
    let two = [coverage("JP", &["NTT Docomo"]), coverage("KR", &["SK"])];
    let mut told = option("told");
    told.told = facts(serde_json::json!({ "kind": "data", "hotspot": false, "coverage": two }));
    told.standard = serde_json::from_value(
        serde_json::json!({ "countries": ["JP", "KR"], "data_mb": 1024, "days": 7 }),
    )
    .unwrap();
    let mut set = told.clone();
    set.option_id = OptionId::new();
    set.name = "set".into();
    set.facts = facts(serde_json::json!({
        "kind": "data_voice_text", "hotspot": true, "coverage": [coverage("KR", &["SK", "KT"])],
    }));
    let plain = option("plain");
    for option in [&told, &set, &plain] {
        options::import(&mut connection, option).await.unwrap();
    }
    let mut found = async |filter: OptionFilter<'_>| {
        let page = OptionPage {
            environment: Environment::Sandbox,
            providers: &[],
            price_list: None,
            filter,
            after: None,
            limit: 10,
        };
        let found = self_service::options(&mut connection, page).await.unwrap();
        let mut names: Vec<String> = found.iter().map(|one| one.name.clone()).collect();
        names.sort_unstable();
        (names, found)
    };
    let all = OptionFilter::default();
    let korea: Country = "KR".parse().unwrap();
    for (filter, expected) in [
        (all, &["plain", "set", "told"][..]),
        (
            OptionFilter {
                kind: Some(PlanKind::Data),
                ..all
            },
            &["told"],
        ),
        (
            OptionFilter {
                kind: Some(PlanKind::DataVoiceText),
                ..all
            },
            &["set"],
        ),
        (
            OptionFilter {
                network: Some("ntt docomo"),
                ..all
            },
            &["told"],
        ),
        (
            OptionFilter {
                network: Some("SK"),
                ..all
            },
            &["set", "told"],
        ),
        (
            OptionFilter {
                network: Some("SK"),
                country: Some(korea),
                ..all
            },
            &["set", "told"],
        ),
        (
            OptionFilter {
                network: Some("NTT Docomo"),
                country: Some(korea),
                ..all
            },
            &[],
        ),
        (
            OptionFilter {
                network: Some("S%"),
                ..all
            },
            &[],
        ),
        (
            OptionFilter {
                max_data_mb: Some(1024),
                ..all
            },
            &["set", "told"],
        ),
        (
            OptionFilter {
                max_data_mb: Some(1023),
                ..all
            },
            &[],
        ),
        (
            OptionFilter {
                option: Some(plain.option_id),
                ..all
            },
            &["plain"],
        ),
        (
            OptionFilter {
                option: Some(OptionId::new()),
                ..all
            },
            &[],
        ),
    ] {
        assert_eq!(found(filter).await.0, expected, "{filter:?}");
    }
    let (_, shown) = found(all).await;
    let of = |name: &str| shown.iter().find(|one| one.name == name).unwrap();
    assert_eq!(of("told").facts, told.told);
    assert_eq!(of("set").facts, set.facts);
    assert_eq!(of("plain").facts, Facts::default());
}

/// A change of a moment ago is listed again, because its transaction may have been open at the last
/// walk. An import that changes nothing is no change.
#[tokio::test]
async fn options_that_have_changed_since_a_time_are_found() {
    let bench = Bench::new().await;
    let mut connection = bench.connection().await;
    let [old, new] = [option("old"), option("new")];
    for option in [&old, &new] {
        options::import(&mut connection, option).await.unwrap();
    }
    // Each in a transaction of its own, because a table with pending triggers cannot be altered.
    for statement in [
        "ALTER TABLE options DISABLE TRIGGER option_updated",
        "UPDATE options SET updated_at = now() - interval '1 day'",
        "ALTER TABLE options ENABLE TRIGGER option_updated",
    ] {
        bench.sql(statement).await;
    }
    let now = runtime::clock::now();
    let since = async |connection: &mut PgConnection, seconds: i64| {
        let page = OptionPage {
            environment: Environment::Sandbox,
            providers: &[],
            price_list: None,
            filter: OptionFilter {
                updated_since: Some(now + time::Duration::seconds(seconds)),
                ..OptionFilter::default()
            },
            after: None,
            limit: 10,
        };
        let found = self_service::options(connection, page).await.unwrap();
        found.into_iter().map(|one| one.name).collect::<Vec<_>>()
    };
    assert!(!options::import(&mut connection, &old).await.unwrap());
    assert_eq!(since(&mut connection, -3_600).await, [""; 0]);
    let mut changed = new.clone();
    changed.facts = facts(serde_json::json!({ "hotspot": true }));
    assert!(options::import(&mut connection, &changed).await.unwrap());
    assert_eq!(since(&mut connection, -3_600).await, ["new"]);
    assert_eq!(since(&mut connection, 30).await, ["new"]);
    assert_eq!(since(&mut connection, 3_600).await, [""; 0]);
    assert_eq!(since(&mut connection, -200_000).await.len(), 2);
}

/// The price at a further provider is a part of its pair. The other pairs and the standard fields
/// stay.
#[tokio::test]
async fn a_pulled_price_of_an_alternative_changes_that_pair_alone() {
    let bench = Bench::new().await;
    let mut connection = bench.connection().await;
    let pair = |provider: &str, provider_option_id: &str| OptionAtProvider {
        provider: provider.to_owned(),
        provider_option_id: provider_option_id.to_owned(),
    };
    let mut routed = option("routed");
    routed.alternatives = vec![pair("airalo", "a@1.00"), pair("usimsa", "a@1.00")];
    options::import(&mut connection, &routed).await.unwrap();
    let update = |was: &str| Update {
        option_id: routed.option_id,
        was: was.to_owned(),
        provider_option_id: "a@2.00".to_owned(),
        place: PairPosition::Alternative("usimsa".to_owned()),
    };
    for (was, updated) in [("a@1.00", 1), ("a@1.00", 0)] {
        let pull = CatalogueUpdate {
            updates: vec![update(was)],
            ..CatalogueUpdate::default()
        };
        let action = Mode::Apply(Action {
            actor: Actor::esimctl("o"),
            command: domain::Command::CataloguePull,
            target: "t",
            reason: "r",
        });
        let pulled = catalogue::apply(&mut connection, &pull, action).await;
        assert_eq!(pulled.unwrap().updated, updated, "{was}");
    }
    let read = all(&mut connection).await;
    let expected = [pair("airalo", "a@1.00"), pair("usimsa", "a@2.00")];
    assert_eq!(read[0].alternatives, expected);
    assert_eq!(read[0].provider_option_id, routed.provider_option_id);
    assert_eq!(read[0].standard, None);
}

/// Somebody changes options after the catalogues were compared: a new name stays, and an option
/// with another product is left alone.
#[tokio::test]
async fn a_pulled_catalogue_changes_only_what_was_compared() {
    let bench = Bench::new().await;
    let mut connection = bench.connection().await;
    let mut same = option("same");
    let mut other = option("other");
    for option in [&same, &other] {
        options::import(&mut connection, option).await.unwrap();
    }
    let standard: Standard = serde_json::from_value(serde_json::json!({
        "countries": ["JP"], "data_mb": 1, "days": 1,
    }))
    .unwrap();
    let update = |option: &ProductOption| Update {
        option_id: option.option_id,
        was: option.provider_option_id.clone(),
        provider_option_id: format!("{}@2.00", option.name),
        place: PairPosition::First(Box::new(ListedProduct {
            standard: standard.clone(),
            told: facts(serde_json::json!({ "top_up": "yes" })),
        })),
    };
    let pull = CatalogueUpdate {
        new: vec![same.clone()],
        updates: vec![update(&same), update(&other)],
        disable: vec![other.option_id],
    };
    same.enabled = false;
    same.name = "renamed".into();
    same.facts = facts(serde_json::json!({ "hotspot": true }));
    other.provider_option_id = "mended".into();
    for option in [&same, &other] {
        options::import(&mut connection, option).await.unwrap();
    }
    let expected = CatalogueCounts {
        created: 0,
        updated: 1,
        disabled: 1,
    };
    let preview = catalogue::apply(&mut connection, &pull, Mode::Preview).await;
    assert_eq!(preview.unwrap(), expected);
    let action = Action {
        actor: Actor::esimctl("o"),
        command: domain::Command::CataloguePull,
        target: "t",
        reason: "r",
    };
    let applied = catalogue::apply(&mut connection, &pull, Mode::Apply(action)).await;
    assert_eq!(applied.unwrap(), expected);
    let (before, after) = bench.changed().await;
    assert_eq!(before["enabled"], after["disabled"], "{before} {after}");
    assert_eq!((&after["updated"], &after["gone"]), (&1.into(), &1.into()));
    let read = all(&mut connection).await;
    let seen: Vec<_> = read
        .iter()
        .map(|option| {
            (
                &option.name[..],
                &option.provider_option_id[..],
                option.enabled,
            )
        })
        .collect();
    assert_eq!(
        seen,
        [("other", "mended", false), ("renamed", "same@2.00", false)]
    );
    // What a file sets stays beside what the provider tells.
    let renamed = options::one(&mut connection, same.option_id).await.unwrap();
    let renamed = renamed.unwrap();
    assert_eq!(renamed.facts, same.facts);
    assert_eq!(renamed.told, facts(serde_json::json!({ "top_up": "yes" })));
    let actions = actions::list(&mut connection, &actions::ActionFilter::default(), 10)
        .await
        .unwrap();
    assert_eq!((actions.len(), actions[0].affected), (1, 2));
}
