//! `esimctl` as operators run it: the real program on a real database.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod accounts;
mod apply;
mod archive;
mod deliveries;
mod doctor;
mod erasure;
mod ledger;
mod money;
mod operators;
mod options;
mod orders;
mod output;
mod prove;
mod roles;
mod rotation;
mod support;

use std::time::Duration;

use ::accounts::{
    partners,
    profile::{Profile, SealedProfile},
};
use domain::{ActivationCode, Iccid, PartnerId};
use serde_json::{Value, json};
use store::deliveries as stored;
use store::placements::{
    self, AttemptOutcome, PlacementClaim, PlacementSettlement, Progress, ReadyProfile, SettledUnit,
};
use tokio::io::{AsyncBufReadExt, BufReader, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use url::Url;

use support::{MASTER_KEY, Operator, Order, ended, esimctl, run, store_order, vault, words};

const NOWHERE: &str = "postgres://esim:hush@127.0.0.1:1/esim";

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field]
        .as_str()
        .unwrap_or_else(|| panic!("no {field} in {value}"))
}

fn option(name: &str) -> Value {
    json!({
        "option_id": domain::OptionId::new(), "name": name, "provider": "sandbox", "provider_option_id": name,
        "environment": "sandbox",
    })
}

#[tokio::test]
async fn migrate_is_needed_once_and_harmless_twice() {
    let operator = Operator::on_empty_database().await;
    operator
        .run(&["partner", "list"])
        .await
        .fails(1, "run `esimctl migrate`");
    let version = pg::schema::latest();
    let roles = pg::schema::ROLES.map(|role| role.name);
    for was in [0, version] {
        let expected = json!({ "schema_version": version, "was": was, "roles": roles });
        assert_eq!(operator.json(&["migrate"]).await, expected);
    }
    operator
        .run(&["migrate"])
        .await
        .says(&format!("at version {version} already"));
    assert_eq!(operator.json(&["partner", "list"]).await, json!([]));
}

#[tokio::test]
async fn migrate_waits_for_a_server_that_is_just_starting() {
    let operator = Operator::on_empty_database().await;
    let real: Url = operator.database.url().parse().unwrap();
    let real = format!(
        "{}:{}",
        real.host_str().unwrap(),
        real.port().unwrap_or(5432)
    );
    let port = testkit::ports::free().unwrap();
    let mut url: Url = operator.database.url().parse().unwrap();
    url.set_host(Some("127.0.0.1")).unwrap();
    url.set_port(Some(port)).unwrap();

    let mut command = esimctl(&["migrate"]);
    let mut child = command.env("DATABASE_URL", url.as_str()).spawn().unwrap();
    let mut said = String::new();
    let stderr = child.stderr.take().unwrap();
    BufReader::new(stderr).read_line(&mut said).await.unwrap();
    assert!(said.contains("waiting up to 30s for PostgreSQL"), "{said}");

    let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let real = real.clone();
            tokio::spawn(async move {
                let mut server = TcpStream::connect(real).await.unwrap();
                copy_bidirectional(&mut client, &mut server).await
            });
        }
    });
    assert!(ended(child).await.text().contains("it was at 0"));
}

/// Stores what a provisioner stores when it has bought the unit and its profile is ready, so that
/// the unit has a delivery. `number` makes the unit id and the ICCID unique.
async fn make_unit_ready(connection: &mut pg::PgConnection, order: &Order, number: u32) {
    let lease = Duration::from_mins(1);
    let claimed = placements::claim(
        connection,
        "sandbox",
        &[order.placement],
        PlacementClaim::Fresh,
        lease,
    )
    .await;
    let profile = Profile {
        code: ActivationCode::new("smdp.example.com", "TOP-SECRET").unwrap(),
        expired_date: "2026-01-29".to_owned(),
    };
    let unit = SettledUnit {
        topup_id: order.topup.clone(),
        provider_unit_id: format!("unit-{number}"),
        progress: Progress::Ready(ReadyProfile {
            iccid: Iccid::parse(&format!("898100000000000000{number}")).unwrap(),
            profile: SealedProfile {
                code_digest: Some(order.topup.as_str().into()),
                ..profile.seal(&vault(), order.partner, &order.topup).unwrap()
            },
            delivery_id: order.delivery,
        }),
    };
    let outcome = AttemptOutcome::Bought {
        reference: None,
        units: vec![unit],
        listed: 1,
        collect_in: None,
        park: None,
        announced: true,
    };
    let attempt = claimed.unwrap()[0].attempt;
    let settlement = PlacementSettlement {
        placement_id: order.placement,
        attempt,
        outcome,
        is_priced: false,
        known: None,
    };
    let settled = placements::settle(connection, &[settlement]).await.unwrap();
    assert_eq!(settled[0].ready, [order.delivery]);
}

#[tokio::test]
async fn a_url_makes_waiting_webhooks_due() {
    let operator = Operator::new().await;
    let made = operator.create_partner().await;
    let id = text(&made, "partner_id");
    let (mut connection, order) = operator.ready_order(&made, "o-1").await;
    assert_eq!(
        stored::set_no_endpoint(&mut connection, &[order.delivery])
            .await
            .unwrap(),
        1
    );

    let set = [
        "partner",
        "set",
        id,
        "--webhook-url",
        "https://acme.example/hooks",
    ];
    let expected = json!({ "partner_id": id, "webhook_url": set[4] });
    assert_eq!(operator.json(&set).await, expected);
    // The notifiers make them due.
    let moved = "SELECT count(*) FROM work WHERE kind = 'moved' AND id::text = $1";
    let moved = sqlx::query_scalar::<_, i64>(moved).bind(id);
    assert_eq!(moved.fetch_one(&mut connection).await.unwrap(), 1);
    let again = operator.run(&set).await;
    assert!(
        again.text().contains("those that wait are sent"),
        "{again:?}"
    );
    let removed = [
        "partner",
        "set",
        text(&made, "access_key"),
        "--no-webhook-url",
    ];
    let expected = json!({ "partner_id": id, "webhook_url": null });
    assert_eq!(operator.json(&removed).await, expected);
    for wrong in [&set[..3], &[&set[..], &["--no-webhook-url"]].concat()] {
        assert!(operator.run(wrong).await.line(2).contains("--webhook-url"));
    }
}

#[tokio::test]
async fn an_order_is_found_by_each_of_its_ids() {
    let operator = Operator::new().await;
    let made = operator.create_partner().await;
    let partner: PartnerId = text(&made, "partner_id").parse().unwrap();
    let mut connection = operator.database.connect().await.unwrap();
    let order = store_order(&mut connection, partner, "o\u{1b}[2J-1").await;
    operator
        .run(&["order", "show", &order.id.to_string()])
        .await
        .says("accepted")
        .says("waits to be bought");
    make_unit_ready(&mut connection, &order, 1).await;
    support::record(&mut connection, &order, 0, Some(Duration::from_secs(5))).await;

    // A look-up by ICCID searches the providers of the catalogue, so the catalogue must not be
    // empty.
    let catalogue = json!({ "options": [option("ready")] }).to_string();
    operator
        .run_with_input(&["option", "apply", "-f", "-"], catalogue)
        .await
        .text();
    let ids = [
        order.id.to_string(),
        order.placement.to_string(),
        order.topup.to_string(),
    ];
    let others = [
        "8981000000000000001",
        "8981000000000000001F",
        " 8981 0000-0000 0000\u{a0}001 ",
        "o\u{1b}[2J-1",
    ]
    .map(str::to_owned);
    for id in ids.into_iter().chain(others) {
        let shown = operator.json(&["order", "show", &id]).await;
        let found = &shown["orders"][0];
        assert_eq!(text(found, "order_id"), order.id.to_string());
        assert_eq!(text(&found["placements"][0], "state"), "placed");
        assert_eq!(text(&found["topups"][0], "state"), "ready");
        assert_eq!(found["topups"][0]["delivery_status"], 500);
    }
    let shown = operator
        .run(&["order", "show", &order.topup.to_string()])
        .await;
    for part in [
        r"o\u{1b}[2J-1",
        "placed",
        "ready",
        "1 webhook attempt; responded 500; status; next ",
        " +0.",
    ] {
        assert!(shown.text().contains(part), "{part} in {}", shown.stdout);
    }
    assert!(!shown.stdout.contains("TOP-SECRET") && !shown.stdout.contains('\u{1b}'));
    operator
        .run(&["order", "show", "o-2"])
        .await
        .fails(1, r#"no order "o-2""#);
}

/// The columns of an order and its parts that `order show` does not print under their own name,
/// each with the reason.
const NOT_SHOWN: [(&str, &str, &str); 22] = testkit::rows! {
    "orders", "refused_at" => "printed as `refused`";
    "orders", "cancelled_at" => "a cancelled order is printed as refused";
    "orders", "answer_by" => "of use only for seconds, while the request is answered";
    "orders", "answering" => "the id of a process, which no other command knows";
    "esims", "install_page" => "a number that is of use only in the address of the traveller's page";
    "placements", "order_id" => "printed with the order";
    "placements", "partner_id" => "printed with the order";
    "placements", "not_found_at" => "a purchase in doubt is told by its reason";
    "placements", "unknowns" => "a purchase in doubt is told by its reason";
    "placements", "hinted_at" => "of use only until the next collect";
    "placements", "refusal_status" => "`reason` has it";
    "placements", "refusal_message" => "`reason` has it";
    "placements", "disputed" => "a disputed purchase is told by its reason";
    "placements", "created_at" => "that of the order";
    "placements", "first_claim" => "a copy of what is printed, for the first claim";
    "topups", "terms" => "each of its fields is printed by itself";
    "topups", "position" => "the units are printed in its order";
    "esims", "provider" => "printed with the placement";
    "esims", "provider_unit_id" => "printed by `give-back list`, for the look-up in the provider's portal";
    "esims", "profile" => "it has the activation code";
    "esims", "delivery_id" => "the delivery is printed instead";
    "esims", "code_digest" => "it says something about the activation code";
};

/// An operator sees each column of an order and its parts, unless there is a reason against it. The
/// second half adds columns and shows that this test would notice them.
#[tokio::test]
async fn each_column_of_an_order_is_shown_or_left_out_for_a_reason() {
    let operator = Operator::new().await;
    let made = operator.create_partner().await;
    let (mut connection, order) = operator.ready_order(&made, "o-1").await;
    let id = order.id.to_string();
    let mut missing = async || {
        let sql = "SELECT table_name::text, column_name::text FROM information_schema.columns
                   WHERE table_schema = 'public' AND table_name IN ('orders', 'placements', 'topups', 'esims') ORDER BY 1, 2";
        let columns: Vec<(String, String)> = sqlx::query_as(sql)
            .fetch_all(&mut connection)
            .await
            .unwrap();
        for (table, column, _) in NOT_SHOWN {
            let is_there = columns.iter().any(|one| one.0 == table && one.1 == column);
            assert!(is_there, "{table}.{column}");
        }
        let shown = operator.json(&["order", "show", &id]).await;
        let order = &shown["orders"][0];
        let is_known = |table: &str, column: &str| {
            let shown = match table {
                "orders" => order,
                "placements" => &order["placements"][0],
                _ => &order["topups"][0],
            };
            let is_listed = |row: &(&str, &str, &str)| row.0 == table && row.1 == column;
            shown.get(column).is_some() || NOT_SHOWN.iter().any(is_listed)
        };
        let columns = columns.into_iter();
        let missing = columns.filter(|(table, column)| !is_known(table, column));
        missing
            .map(|(table, column)| format!("{table}.{column}"))
            .collect::<Vec<_>>()
    };
    let now = missing().await;
    assert!(
        now.is_empty(),
        "`order show` lacks {now:?}: add them to the views of desk/operator/orders.rs, or to NOT_SHOWN with the reason"
    );
    let mut owner = operator.database.connect().await.unwrap();
    for table in ["esims", "orders", "placements", "topups"] {
        let statement = format!("ALTER TABLE {table} ADD COLUMN made_up text");
        sqlx::query(sqlx::AssertSqlSafe(statement))
            .execute(&mut owner)
            .await
            .unwrap();
    }
    let added = [
        "esims.made_up",
        "orders.made_up",
        "placements.made_up",
        "topups.made_up",
    ];
    assert_eq!(missing().await, added);
}

#[tokio::test]
async fn options_are_imported_whole_or_not_at_all() {
    let operator = Operator::new().await;
    let mut one = option("one");
    let other = option("other");
    let catalogue = |options: &[&Value]| json!({ "options": options }).to_string();
    let import = async |text: String| {
        operator
            .run_with_input(&["option", "apply", "-f", "-", "--json"], text)
            .await
    };
    let counts = |imported: u32, unchanged: u32| [json!(imported), json!(unchanged)];
    let counted = |report: Value| ["imported", "unchanged"].map(|name| report[name].clone());

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("options.json");
    std::fs::write(&file, catalogue(&[&one])).unwrap();
    let file = file.to_str().unwrap();
    assert_eq!(
        counted(operator.json(&["option", "apply", "-f", file]).await),
        counts(1, 0)
    );
    assert_eq!(
        operator.run(&["option", "apply", "-f", file]).await.text(),
        "0 created, 0 changed, 1 unchanged\n"
    );

    one["name"] = json!("renamed");
    let mut wrong = option("wrong");
    wrong["environment"] = json!("moon");
    let refused = import(catalogue(&[&one, &wrong, &one])).await;
    let line = refused.line(1);
    assert!(
        line.contains("options[1].environment") && line.contains("options[2].option_id"),
        "{line}"
    );
    let listed = operator.json(&["option", "list"]).await;
    assert_eq!(listed.as_array().unwrap().len(), 1);
    assert_eq!(text(&listed[0], "name"), "one");

    one["details"] = json!({"country": "JP"});
    assert_eq!(
        counted(import(catalogue(&[&one, &other])).await.json()),
        counts(2, 0)
    );
    assert_eq!(
        counted(import(catalogue(&[&one, &other])).await.json()),
        counts(0, 2)
    );
    let listed = operator.json(&["option", "list"]).await;
    for (listed, given) in listed.as_array().unwrap().iter().zip([&other, &one]) {
        for (field, value) in given.as_object().unwrap() {
            assert_eq!(listed[field], *value, "{field}");
        }
        assert_eq!(listed["enabled"], true);
    }
    let mut plain = listed[1].clone();
    plain["details"] = json!({});
    let imported = import(catalogue(&[&plain])).await.json();
    assert_eq!(counted(imported), counts(1, 0));
    assert_eq!(
        operator.json(&["option", "list"]).await[1]["details"],
        json!({})
    );
    assert!(
        operator
            .run(&["option", "list"])
            .await
            .text()
            .contains("renamed")
    );
    let refused = operator
        .run(&["option", "apply", "-f", "/nowhere/options.json"])
        .await;
    refused.fails(1, "cannot open /nowhere/options.json");
}

#[tokio::test]
async fn standard_input_is_read_to_its_end_before_anything_fails() {
    // The text is longer than a pipe can hold, and the import fails because the database has no
    // schema.
    let operator = Operator::on_empty_database().await;
    let options: Vec<Value> = (0..5_000)
        .map(|number| option(&format!("option {number}")))
        .collect();
    let input = json!({ "options": options }).to_string();
    operator
        .run_with_input(&["option", "apply", "-f", "-"], input)
        .await
        .fails(1, "esimctl migrate");
}

#[tokio::test]
async fn a_database_that_is_away_is_one_line_without_its_password() {
    let away = run(esimctl(&["partner", "list"]).env("DATABASE_URL", NOWHERE)).await;
    let line = away.line(1);
    assert!(
        line.contains("check DATABASE_URL") && line.matches("refused").count() == 1,
        "{line}"
    );
    assert!(!line.contains("hush"), "{line}");
}

#[tokio::test]
async fn wrong_settings_are_one_line_that_names_them() {
    run(&mut esimctl(&["partner", "list"]))
        .await
        .fails(2, "DATABASE_URL");
    let bad_url = run(esimctl(&["partner", "list"]).env("DATABASE_URL", "mysql//hush")).await;
    assert!(
        bad_url.line(2).contains("DATABASE_URL") && !bad_url.stderr.contains("hush"),
        "{bad_url:?}"
    );
    // `config show` refuses what only some commands take, too.
    let shown = run(esimctl(&["config", "show"]).env("STREAM_REPLICAS", "three")).await;
    let line = shown.line(2);
    assert!(
        line.contains("STREAM_REPLICAS") && line.contains("three"),
        "{line}"
    );

    let create = [
        "partner",
        "create",
        "--name",
        "Acme",
        "--environment",
        "sandbox",
    ];
    for (settings, part) in testkit::rows! {
        &[][..] => "MASTER_KEY or MASTER_KEY_FILE";
        &[("MASTER_KEY", MASTER_KEY), ("MASTER_KEY_FILE", "/keys")] => "both MASTER_KEY and MASTER_KEY_FILE";
        &[("MASTER_KEY_FILE", "/nowhere/keys")] => "MASTER_KEY_FILE: cannot read /nowhere/keys";
        &[("MASTER_KEY", "hush")] => "master key number 1";
    } {
        let mut command = esimctl(&create);
        let refused = run(command
            .env("DATABASE_URL", NOWHERE)
            .envs(settings.iter().copied()))
        .await;
        assert!(
            refused.line(2).contains(part) && !refused.stderr.contains("hush"),
            "{refused:?}"
        );
    }
    let open = [
        "provider", "open", "sandbox", "--reason", "test", "--for", "-1h",
    ];
    run(esimctl(&open).env("DATABASE_URL", NOWHERE))
        .await
        .fails(2, "it is negative");
    for (arguments, part) in testkit::rows! {
        "--environment moon" => "possible values: sandbox, live";
        "--environment live --webhook-url https://user:hush@example.com" => "remove it";
        "--environment live --webhook-url example.com" => "https://example.com/webhooks";
    } {
        let arguments = [&create[..4], &words(arguments)].concat();
        let refused = run(esimctl(&arguments).env("DATABASE_URL", NOWHERE)).await;
        assert!(
            refused.line(2).contains(part) && !refused.stderr.contains("hush"),
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn where_there_is_nothing_a_line_says_so() {
    let operator = Operator::new().await;
    for list in words("partner option delivery endpoint placement provider") {
        let text = operator.run(&[list, "list"]).await;
        let text = text.text();
        let says_so = text.starts_with("There are no ") || text.contains("is empty");
        assert!(says_so && text.lines().count() == 1, "{list}: {text}");
    }
    let partner = operator.create_partner().await;
    let id = text(&partner, "partner_id");
    let since = ["delivery", "list", "--partner", id, "--since", "1h"];
    assert_eq!(
        operator.run(&since).await.text(),
        "There are no such deliveries.\n"
    );
    let none = json!({ "deliveries": [], "next_cursor": null });
    assert_eq!(operator.json(&since).await, none);
    let (_, order) = operator.ready_order(&partner, "o-1").await;
    operator
        .run(&["delivery", "show", order.topup.as_str()])
        .await
        .says("No attempt has ended yet.");
}

#[tokio::test]
async fn help_needs_no_settings() {
    for arguments in [
        &["--help"][..],
        &["partner", "--help"],
        &["option", "apply", "--help"],
    ] {
        run(&mut esimctl(arguments)).await.says("Examples:");
    }
}
