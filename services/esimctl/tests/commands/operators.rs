//! What operators look at all day, and their accounts: `find`, `attention`, `status`, `operator`
//! and `operation`; and `placement resolve` of a purchase that several providers may have.

use std::time::Duration;

use desk::operator::health::life::FindingWatch;
use pg::PgConnection;
use serde_json::{Value, json};
use store::deliveries::resends;
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{ChildStdout, Command},
    time::timeout,
};

use super::*;
use crate::support::{CONFIRMED, record};

/// The commands of recorded actions, oldest first.
async fn recorded(operator: &Operator) -> Vec<String> {
    let actions = operator.actions().await;
    let commands = actions.iter().rev();
    commands
        .map(|action| text(action, "command").to_owned())
        .collect()
}

/// An order whose placement is parked, and may be bought at `airalo`, too.
async fn parked(operator: &Operator, connection: &mut PgConnection) -> Order {
    let partner = operator.create_partner().await;
    let id = text(&partner, "partner_id").parse().unwrap();
    let order = store_order(connection, id, "o-parked").await;
    sqlx::query(
        r#"WITH parked AS (
               UPDATE placements
               SET state = 'parked', attempt = 1, reason = 'restored from a dump',
                   alternatives = '[{"provider": "airalo", "lane": "jp", "options": {}}]'
               WHERE placement_id = $1)
           INSERT INTO held (id, state, provider, partner_id) VALUES ($1, 'parked', 'sandbox', $2)"#,
    )
    .bind(order.placement.uuid())
    .bind(order.partner.uuid())
    .execute(connection)
    .await
    .unwrap();
    order
}

/// A give-back of this unit that is parked.
async fn park_give_back(connection: &mut PgConnection, order: &Order) {
    sqlx::query(
        "INSERT INTO esim_requests (topup_id, partner_id, provider, give_back, give_back_asked_at, attempt, reason,
                                    message, ended_at)
         VALUES ($1, $2, 'sandbox', 'parked', now(), 1, 'unknown', 'timeout', now())",
    )
    .bind(order.topup.as_str())
    .bind(order.partner.uuid())
    .execute(connection)
    .await
    .unwrap();
}

/// An extension of this unit that is parked.
async fn park_extension(connection: &mut PgConnection, order: &Order) {
    sqlx::query(
        "INSERT INTO extensions (extension_id, partner_id, topup_id, provider, external_id, option_id, provider_option_id, state,
                                 attempt, reason, message, ended_at)
         VALUES (gen_random_uuid(), $2, $1, 'sandbox', 'more-1', gen_random_uuid(), 'eu-5', 'parked', 1, 'unknown', 'timeout',
                 now())",
    )
    .bind(order.topup.as_str())
    .bind(order.partner.uuid())
    .execute(connection)
    .await
    .unwrap();
}

#[tokio::test]
async fn a_purchase_at_another_provider_is_resolved_with_its_name() {
    let operator = Operator::new().await;
    let mut connection = operator.database.connect().await.unwrap();
    let order = parked(&operator, &mut connection).await;
    let id = order.placement.to_string();
    operator
        .run(&["placement", "list", "--state", "parked"])
        .await
        .says("airalo");
    operator
        .run(&["order", "show", &id])
        .await
        .says("it may also be at airalo");
    let resolve = |found: &'static str, provider: &'static str| {
        let asked = ["placement", "resolve", &id, found, "--provider", provider];
        [&asked[..], &CONFIRMED].concat()
    };
    let ended = operator.run(&resolve("--retry", "airalo")).await;
    assert_eq!(ended.code, Some(2), "{ended:?}");
    operator
        .run(&resolve("--bought", "usimsa"))
        .await
        .fails(1, "it can be at sandbox, airalo");
    let resolved = operator.json(&resolve("--bought", "airalo")).await;
    assert_eq!(
        (text(&resolved, "provider"), text(&resolved, "state")),
        ("airalo", "placed")
    );
    let work: Vec<(String, String, String)> =
        sqlx::query_as("SELECT kind, provider, lane FROM work WHERE id = $1")
            .bind(order.placement.uuid())
            .fetch_all(&mut connection)
            .await
            .unwrap();
    assert_eq!(work, [("collect".into(), "airalo".into(), "jp".into())]);
    let actions = operator.json(&["action", "list"]).await;
    assert_eq!(
        text(&actions[0], "target"),
        format!("placement {id} at airalo")
    );
    // An order's text says who did what about it, and what of that found nothing to change.
    sqlx::query(
        "INSERT INTO operator_actions (action_id, operator, command, target, affected, reason, via)
         VALUES (gen_random_uuid(), 'ana', 'resend start', 'delivery ' || $1, 0, 'ticket 7', 'console')",
    )
    .bind(order.topup.as_str())
    .execute(&mut connection)
    .await
    .unwrap();
    let shown = operator.run(&["order", "show", &id]).await;
    let row = |command: &str| {
        let mut lines = shown.text().lines();
        let line = lines.find(|line| line.trim_start().starts_with(command));
        line.unwrap_or_else(|| panic!("no {command} in {shown:?}"))
    };
    let resolved = row("placement resolve --bought");
    assert!(
        resolved.contains(" done ") && resolved.ends_with("a test"),
        "{resolved}"
    );
    let resent = row("resend start");
    assert!(
        resent.contains("ana (console)") && resent.contains("changed nothing"),
        "{resent}"
    );
}

#[tokio::test]
async fn what_needs_a_person_is_listed_with_the_command_that_ends_it() {
    let operator = Operator::new().await;
    let ended = operator.run(&["attention"]).await;
    // Without any stage nobody can order.
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(
        ended.stdout.contains("ingress: no process has committed"),
        "{ended:?}"
    );
    let mut connection = operator.database.connect().await.unwrap();
    every_stage_runs(&mut connection).await;
    let ended = operator.run(&["attention"]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(
        ended.stdout.trim(),
        "Nothing wrong shows, but no order came in the last 10 minutes."
    );
    let made = operator.create_partner().await;
    let (mut connection, ready) = operator.ready_order(&made, "o-1").await;
    sqlx::query("INSERT INTO providers (name, open_until, reason) VALUES ('sandbox', now() + interval '1 hour', 'busy')")
        .execute(&mut connection)
        .await
        .unwrap();
    record(&mut connection, &ready, 0, None).await;
    park_give_back(&mut connection, &ready).await;
    park_extension(&mut connection, &ready).await;
    let placement = parked(&operator, &mut connection).await;
    let partner = text(&made, "partner_id");
    let topup = ready.topup.to_string();
    let expected = [
        (
            "parked",
            format!(
                "esimctl placement resolve {} --bought|--not-bought|--retry --reason TEXT",
                placement.placement
            ),
        ),
        (
            "give_backs_parked",
            format!("esimctl give-back resolve {topup} --returned|--not-returned --reason TEXT"),
        ),
        (
            "extensions_parked",
            format!("esimctl extension resolve {topup} --added|--not-added --reason TEXT"),
        ),
        (
            "exhausted",
            format!("esimctl resend start --partner {partner} --since 48h --reason TEXT"),
        ),
    ];
    let listed = attention(&operator).await;
    let needed = listed["needs_person"].as_array().unwrap();
    let commands = needed.iter().map(|one| {
        let kind = text(&one["finding"], "kind");
        (kind, text(&one["told"], "command").to_owned())
    });
    assert_eq!(commands.collect::<Vec<_>>(), expected);
    // The breaker is open for the time that an operator gave, so nobody is asked for.
    let mending = &listed["ends_by_itself"];
    assert_eq!(mending.as_array().unwrap().len(), 1, "{mending}");
    assert_eq!(mending[0]["finding"]["kind"], "breaker_open");
    assert_eq!(
        mending[0]["told"]["command"],
        "esimctl provider close sandbox"
    );
    let ended = operator.run(&["attention"]).await;
    assert_eq!(ended.code, Some(3), "{ended:?}");
    for part in [
        "4 things are wrong, and 1 more ends by itself.",
        "look it up at airalo, too",
        "Look there for its number unit-1; the last answer was: timeout",
        "\n  since  ",
        "\n  felt   ",
        "\n  do     look each one up at the provider",
        "docs/operations.md#placementsparked (alert PlacementsParked)",
        "These end by themselves:",
    ] {
        assert!(ended.stdout.contains(part), "{part}: {}", ended.stdout);
    }
    operator.run(&["order", "show", &topup]).await.says(
        "is on hold: find out at the provider whether it has the eSIM back (the provider did not say whether it has the eSIM back: timeout)",
    );
    operator.run(&["order", "show", &topup]).await.says(
        "is on hold: find out at the provider whether it was added (the provider did not say whether it has extended the eSIM: timeout)",
    );
    doctor_names_the_give_back(&operator).await;

    let resolve = ["give-back", "resolve", &topup, "--not-returned"];
    let resolved = operator.json(&[&resolve[..], &CONFIRMED].concat()).await;
    assert_eq!(text(&resolved, "state"), "refused");
    let left = attention(&operator).await;
    let left = left["needs_person"].as_array().unwrap();
    assert_eq!(left.len(), expected.len() - 1);

    let listed = operator.json(&["extension", "list"]).await;
    assert_eq!(listed["extensions"][0]["provider_option_id"], "eu-5");
    let resolve = ["extension", "resolve", &topup, "--added"];
    let resolved = operator.json(&[&resolve[..], &CONFIRMED].concat()).await;
    assert_eq!(text(&resolved, "state"), "added");
    operator
        .run(&["order", "show", &topup])
        .await
        .says("the extension more-1 of topup");
}

async fn doctor_names_the_give_back(operator: &Operator) {
    // Without the other areas, which ask servers that this test does not have.
    let doctor = "doctor --without nats,backup,keys,stages,names,database --json";
    let ended = operator.run(&words(doctor)).await;
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    let lines = report["lines"].as_array().unwrap();
    let line = |check: &str| {
        let found = lines.iter().find(|line| line["check"] == check);
        text(found.unwrap(), "found").to_owned()
    };
    assert!(
        line("parked give-backs").starts_with("a give-back of "),
        "{ended:?}"
    );
}

/// A pulse of each stage, from a process that lives for another hour.
async fn every_stage_runs(connection: &mut sqlx::PgConnection) {
    sqlx::query(
        "INSERT INTO pulses (instance, stage, number, timeline, replicated, at)
         SELECT gen_random_uuid(), stage, 1, 1, false, now() + interval '1 hour'
         FROM unnest('{ingress,provisioner,notifier}'::text[]) AS stage",
    )
    .execute(connection)
    .await
    .unwrap();
}

/// What `attention --json` says. Its exit status is not that of a failure.
async fn attention(operator: &Operator) -> Value {
    let ended = operator.run(&["attention", "--json"]).await;
    assert!(matches!(ended.code, Some(0 | 3)), "{ended:?}");
    serde_json::from_str(&ended.stdout).unwrap()
}

/// The next line of what follows the findings.
async fn next(lines: &mut Lines<BufReader<ChildStdout>>) -> Value {
    let line = timeout(Duration::from_mins(1), lines.next_line()).await;
    serde_json::from_str(&line.unwrap().unwrap().unwrap()).unwrap()
}

#[tokio::test]
async fn what_opens_and_is_mended_is_followed_and_somebody_has_it() {
    const PROVISIONER: &str = "stage_dead:provisioner";
    let operator = Operator::new().await;
    let mut connection = operator.database.connect().await.unwrap();
    every_stage_runs(&mut connection).await;
    let dies = "UPDATE pulses SET at = now() - interval '12 s' WHERE stage = 'provisioner'";
    sqlx::query(dies).execute(&mut connection).await.unwrap();

    let nothing = ["attention", "take", "nats_down"];
    operator
        .run(&nothing)
        .await
        .fails(1, "nothing that is wrong now has the name nats_down");
    let take = [
        "attention",
        "take",
        PROVISIONER,
        "--for",
        "2h",
        "--reason",
        "ticket 7",
    ];
    operator.run(&take).await.says("is yours until ");
    // Nobody takes it from somebody without saying so.
    let other = [&take[..3], &["--operator", "bob"]].concat();
    operator
        .run(&other)
        .await
        .fails(1, "ticket 7; ask them, or take it with --take-over");
    let over = [&other[..], &["--take-over"]].concat();
    operator.run(&over).await.says("ticket 7 had it");
    let again = [&take[..], &["--take-over"]].concat();
    operator.run(&again).await.says("; bob until ");
    let listed = attention(&operator).await;
    let finding = &listed["needs_person"][0];
    assert_eq!(finding["key"], PROVISIONER);
    assert_eq!(finding["finding"]["taken"]["note"], "ticket 7");
    let shown = operator.run(&["attention"]).await;
    assert!(shown.stdout.contains(": ticket 7\n"), "{}", shown.stdout);

    let mut following = operator
        .command(&["attention", "--follow", "--json"])
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines();
    let open = next(&mut lines).await;
    assert_eq!(
        (&open["change"], &open["key"]),
        (&json!("is_open"), &json!(PROVISIONER))
    );
    every_stage_runs(&mut connection).await;
    // A process that does not wait for a minute notes the end.
    let mut watch = FindingWatch::new(Duration::ZERO);
    let noted = watch.update(&mut connection).await.unwrap().noted;
    assert_eq!(noted.len(), 1, "{noted:?}");
    let mended = next(&mut lines).await;
    assert_eq!(
        (&mended["change"], &mended["key"]),
        (&json!("mended"), &json!(PROVISIONER))
    );
    assert_eq!(
        mended["what"],
        "nothing was bought, because no provisioner ran"
    );
    assert!(
        mended["since"].is_string() && mended["until"].is_string(),
        "{mended}"
    );
    // It is over, so whoever had it does not have the next one.
    sqlx::query("DELETE FROM pulses WHERE stage = 'provisioner'")
        .execute(&mut connection)
        .await
        .unwrap();
    let opened = next(&mut lines).await;
    assert_eq!(
        (&opened["change"], &opened["key"]),
        (&json!("opened"), &json!(PROVISIONER))
    );
    let listed = attention(&operator).await;
    assert_eq!(
        listed["needs_person"][0]["finding"]["taken"],
        Value::Null,
        "{listed}"
    );

    let pid = following.id().unwrap().to_string();
    let killed = Command::new("kill").args(["-TERM", &pid]).status().await;
    assert!(killed.unwrap().success());
    let ended = timeout(Duration::from_secs(10), following.wait()).await;
    assert_eq!(ended.unwrap().unwrap().code(), Some(0));
}

/// A provider that only an alternative names is known to all who look for work that nobody does.
#[tokio::test]
async fn a_provider_that_nobody_serves_is_found_although_it_is_an_alternative() {
    let operator = Operator::new().await;
    let mut routed = option("routed");
    routed["alternatives"] = json!([{ "provider": "second", "provider_option_id": "x" }]);
    let catalogue = json!({ "options": [routed] }).to_string();
    operator
        .run_with_input(&["option", "apply", "-f", "-"], catalogue)
        .await
        .text();
    let mut connection = operator.database.connect().await.unwrap();
    sqlx::query("INSERT INTO providers (name) VALUES ('sandbox')")
        .execute(&mut connection)
        .await
        .unwrap();
    let doctor = "doctor --without nats,backup,keys,stages,names,database --json";
    let ended = operator.run(&words(doctor)).await;
    assert!(
        ended
            .stdout
            .contains("products name second, which no provisioner"),
        "{ended:?}"
    );
    let status = operator.json(&words("status --over 0s")).await;
    let queues = status["queues"].as_array().unwrap();
    let names: Vec<&Value> = queues.iter().map(|one| &one["queue"]["name"]).collect();
    assert_eq!(names, ["sandbox", "second"]);
}

#[tokio::test]
async fn status_shows_what_waits_and_the_last_hours() {
    let operator = Operator::new().await;
    operator
        .run(&words("status --over 0s"))
        .await
        .says("No provider and no endpoint has work")
        .says("Nothing has figures yet");
    let made = operator.create_partner().await;
    let (mut connection, order) = operator.ready_order(&made, "o-1").await;
    record(&mut connection, &order, 0, Some(Duration::from_hours(1))).await;
    sqlx::query(
        "WITH due AS (UPDATE work SET at = now() - interval '1 minute'),
              url AS (UPDATE partner_endpoints SET url = 'https://hooks.acme.example/secret-path?token=7')
         INSERT INTO minutely (span, at, measure, subject, instance, n, failed, histogram)
         SELECT span, date_trunc(span, now(), 'UTC'), measure, '', gen_random_uuid(), n, 1,
                array_fill(0, ARRAY[8]) || ARRAY[n, 0, 0, 0, 0, 0, 0, 0]
         FROM unnest('{minute,hour}'::text[]) AS span,
              (VALUES ('answered', 40), ('refused', 3), ('parked', 2)) AS counted (measure, n)",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    let status = operator.json(&words("status --over 0s --hours 2")).await;
    let endpoint = &status["queues"][0];
    assert_eq!(endpoint["queue"]["of"], "endpoint");
    assert_eq!(endpoint["queue"]["partner_id"], made["partner_id"]);
    assert_eq!(endpoint["backlog"]["due"], 1);
    assert!(endpoint["drain"].is_null(), "one look estimates nothing");
    let hour = &status["hours"][0];
    assert_eq!(
        (&hour["answered"]["n"], &hour["answered"]["failed"]),
        (&json!(40), &json!(1))
    );
    assert_eq!(
        (&hour["refused"]["n"], &hour["parked"]["n"]),
        (&json!(3), &json!(2))
    );
    assert!(hour["failed"].is_null(), "{hour}");
    // They took between 2.5 and 5 s.
    let most = hour["answered"]["most_within_s"].as_f64().unwrap();
    assert!((most - 5.0).abs() < 1e-9, "{hour}");
    let minutes = operator.json(&words("status --over 0s --minutes 30")).await;
    assert_eq!(minutes["minutes"][0]["answered"]["n"], 40);
    operator
        .run(&words("status --over 0s"))
        .await
        .says("answered")
        .says("2.5 %")
        .says("≤ 5 s");
    // The second look finds as much as the first one.
    let status = operator.json(&words("status --over 1100ms")).await;
    assert_eq!(status["queues"][0]["drain"]["drain"], "never");
    operator
        .run(&words("status --over 1100ms"))
        .await
        .says("does not become less")
        .says("Acme at hooks.acme.example");
    let shown = format!("{status}");
    assert!(!shown.contains("secret-path"), "{shown}");
    assert_eq!(status["queues"][0]["host"], "hooks.acme.example");
}

#[tokio::test]
async fn find_says_by_which_id_an_order_was_found() {
    let operator = Operator::new().await;
    let made = operator.create_partner().await;
    let (mut connection, order) = operator.ready_order(&made, "o-1").await;
    sqlx::query("UPDATE placements SET provider_reference = 'P-4711'")
        .execute(&mut connection)
        .await
        .unwrap();
    sqlx::query("INSERT INTO providers (name) VALUES ('sandbox')")
        .execute(&mut connection)
        .await
        .unwrap();
    for (id, by) in [
        ("o-1".to_owned(), "external_order_id"),
        (order.id.to_string(), "order"),
        (order.placement.to_string(), "placement"),
        (order.topup.to_string(), "topup"),
        ("8981 0000 0000 0000 001".to_owned(), "iccid"),
        ("P-4711".to_owned(), "provider"),
        ("unit-1".to_owned(), "provider"),
    ] {
        let found = operator.json(&["find", &id]).await;
        let hit = &found["orders"][0];
        assert_eq!(text(hit, "order_id"), order.id.to_string(), "{id}");
        assert_eq!(text(hit, "by"), by, "{id}");
    }
    for id in ["Acme", text(&made, "access_key")] {
        let found = operator.json(&["find", id]).await;
        assert_eq!(
            found["partners"][0]["partner_id"], made["partner_id"],
            "{id}"
        );
    }
    operator
        .run(&["find", "unit-1"])
        .await
        .says("provider")
        .says("o-1");
    operator.run(&["find", "o-2"]).await.fails(
        1,
        r#"nothing has the id or name "o-2": looked for it as an order,"#,
    );
    let partner = operator.run(&["find", "Acme"]).await;
    assert!(partner.text().starts_with("Partners:\n"), "{partner:?}");
}

/// eSIM Access sells the ICCID of a cancelled eSIM again (its reference of April 2026).
#[tokio::test]
async fn find_lists_all_orders_of_an_iccid_the_newest_first() {
    let operator = Operator::new().await;
    let made = operator.create_partner().await;
    let (mut connection, first) = operator.ready_order(&made, "o-1").await;
    let second = store_order(&mut connection, first.partner, "o-2").await;
    make_unit_ready(&mut connection, &second, 2).await;
    sqlx::query("UPDATE esims SET iccid = '8981000000000000001'")
        .execute(&mut connection)
        .await
        .unwrap();
    let found = operator.json(&["find", "8981000000000000001"]).await;
    let hits = found["orders"].as_array().unwrap();
    let hits: Vec<_> = hits
        .iter()
        .map(|hit| (text(hit, "order_id").to_owned(), text(hit, "by")))
        .collect();
    let expected = [&second, &first].map(|order| (order.id.to_string(), "iccid"));
    assert_eq!(hits, expected, "{found}");
}

#[tokio::test]
async fn an_account_of_an_operator_is_made_changed_and_never_shows_a_password() {
    let operator = Operator::new().await;
    operator
        .run(&words("operator list"))
        .await
        .says("There are no operators");
    let create = "operator create ana --role viewer --console-url https://console.example/";
    let made = operator.json(&words(create)).await;
    let link = text(&made, "link");
    assert!(
        link.starts_with("https://console.example/set-up#"),
        "{link}"
    );
    let token = link.split('#').nth(1).unwrap();
    operator
        .run(&words(create))
        .await
        .fails(1, r#"operator "ana""#);
    operator
        .run(&words("operator set nobody --role support"))
        .await
        .fails(1, r#"operator "nobody""#);
    operator
        .run(&words("operator set ana --role operator"))
        .await
        .says("ana is operator now");
    operator
        .run(&words("operator set ana --disabled"))
        .await
        .says("disabled");
    let listed = operator.run(&words("operator list")).await;
    listed.says("disabled").says("operator");
    operator
        .run(&words("operator set ana --enabled"))
        .await
        .says("enabled");
    let again = operator
        .json(&words("operator set ana --new-password"))
        .await;
    assert_ne!(again["link"], made["link"]);
    let listed = operator.run(&words("operator list --json")).await;
    assert!(!listed.text().contains(token), "{listed:?}");
    assert_eq!(
        recorded(&operator).await,
        [
            "operator create",
            "operator role",
            "operator disable",
            "operator enable",
            "operator reset"
        ]
    );
}

#[tokio::test]
async fn an_operation_is_previewed_started_shown_and_cancelled() {
    let operator = Operator::new().await;
    let made = operator.create_partner().await;
    let start = ["resend", "start", "--since", "1h"];
    let confirmed = [&start[..], &CONFIRMED].concat();
    operator
        .run(&confirmed)
        .await
        .fails(1, "no resend was started: nothing matches");
    let (mut connection, order) = operator.ready_order(&made, "o-1").await;
    sqlx::query("UPDATE partner_endpoints SET url = 'https://partner.example/hooks'")
        .execute(&mut connection)
        .await
        .unwrap();
    record(&mut connection, &order, 0, None).await;
    let preview = operator.json(&[&start[..], &["--dry-run"]].concat()).await;
    assert_eq!(
        (&preview["matching"]["number"], &preview["parts"][0]["name"]),
        (&json!(1), &json!("Acme"))
    );
    assert_eq!(operator.json(&["resend", "list"]).await, json!([]));
    let started = operator.json(&confirmed).await;
    let id = text(&started, "resend_id");
    assert_eq!(
        (&started["parts"], &started["matching"]),
        (&json!(1), &json!(1))
    );
    // An endpoint gets one resend at a time.
    operator
        .run(&confirmed)
        .await
        .fails(1, "no resend was started");
    let running = resends::running(&mut connection, None, 10).await;
    assert_eq!(running.unwrap().len(), 1);
    operator
        .run(&["resend", "show", id])
        .await
        .says("running")
        .says("0 of 1 have ended");
    let cancel = ["resend", "cancel", id, "--reason", "a test"];
    let cancelled = operator.json(&cancel).await;
    assert!(cancelled["cancelled_at"].is_string(), "{cancelled}");
    operator.run(&["resend", "list"]).await.says("cancelled");
    let none = "resend show 01994b7c-7d3e-7c3e-9c1d-0f6a5b4c3d2e";
    operator
        .run(&words(none))
        .await
        .fails(1, "there is no resend");
    assert_eq!(recorded(&operator).await, ["resend start", "resend cancel"]);
}

/// "Nothing matches" is said together with what waits all the same, where, and why.
#[tokio::test]
async fn a_preview_that_finds_nothing_says_what_waits_for_a_blocked_endpoint() {
    let operator = Operator::new().await;
    let made = operator.create_partner().await;
    let (mut connection, _) = operator.ready_order(&made, "o-1").await;
    for change in [
        "UPDATE partner_endpoints SET url = 'https://partner.example/hooks'",
        "INSERT INTO work (id, kind, provider, lane, partner_id, at)
         SELECT delivery_id, 'deliver', '', '', partner_id, now() + interval '1 hour' FROM deliveries
         ON CONFLICT (id) DO UPDATE SET at = excluded.at",
        "UPDATE partner_endpoints SET failures = 20, blocks = 1, blocked_until = now() + interval '5 minutes'",
    ] {
        sqlx::query(change).execute(&mut connection).await.unwrap();
    }
    let start = ["resend", "start", "--since", "1h"];
    let preview = operator.run(&[&start[..], &["--dry-run"]].concat()).await;
    preview
        .says("partner.example: 1 webhook waits for the next try, 0 were given up; the endpoint is blocked until");
    let json = operator.json(&[&start[..], &["--dry-run"]].concat()).await;
    assert_eq!(json["waiting"][0]["pending"], 1, "{json}");
    operator
        .run(&[&start[..], &CONFIRMED].concat())
        .await
        .fails(
            1,
            "no resend was started: nothing matches. These webhooks do not match",
        );
}
