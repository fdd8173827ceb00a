//! `partner apply` and `option apply`: a file is applied as a whole or not at all, twice is as good
//! as once, and everything is recorded as the act that it is.

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::support::{Ended, Operator, ended, esimctl, run, vault};
use crate::{option, text};

const TWO: &str = "
partners:
  - name: Acme
    environment: sandbox
    webhook_url: https://acme.example/hooks/a-token
    events: [topup.failed]
    limits: {orders_per_second: 20, units_per_second: default}
    signed_body: required
    endpoints:
      - url: https://crm.example/esims/b-token
        events: [topup.failed, topup.ready]
      - url: https://log.example/
  - name: Beta
    environment: live
";

async fn apply(operator: &Operator, more: &[&str], file: &str) -> Ended {
    let arguments = [&["partner", "apply", "-f", "-"], more].concat();
    operator.run_with_input(&arguments, file.to_owned()).await
}

/// The same for a file that creates something: its secrets go to a file.
async fn create(operator: &Operator, more: &[&str], file: &str) -> (Ended, Value) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secrets.json");
    let to = ["--secrets", path.to_str().unwrap()];
    let done = apply(operator, &[more, &to].concat(), file).await;
    let secrets = std::fs::read(&path).map_or(Value::Null, |secrets| {
        serde_json::from_slice(&secrets).unwrap()
    });
    (done, secrets)
}

/// The commands of the recorded actions, the oldest first.
async fn commands(operator: &Operator) -> Vec<String> {
    let actions = operator.json(&["action", "list"]).await;
    let all = actions.as_array().unwrap().iter().rev();
    all.map(|one| text(one, "command").to_owned()).collect()
}

#[tokio::test]
async fn a_file_of_partners_is_applied_once_however_often_it_is_given() {
    let operator = Operator::new().await;
    // A dry run needs no master key, and says by its status that something would change.
    let mut dry = esimctl(&[
        "partner",
        "apply",
        "-f",
        "/dev/stdin",
        "--dry-run",
        "--json",
    ]);
    dry.env(
        "DATABASE_URL",
        operator.database.url_of("operator").unwrap(),
    );
    let mut child = dry.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stdin, TWO.as_bytes())
        .await
        .unwrap();
    drop(stdin);
    let dry = ended(child).await;
    assert_eq!(dry.code, Some(3), "{dry:?}");
    let plan: Value = serde_json::from_str(&dry.stdout).unwrap();
    assert_eq!(
        (&plan["created"], &plan["dry_run"]),
        (&json!(2), &json!(true))
    );
    assert!(dry.stderr.contains("2 to create, 0 to change"), "{dry:?}");
    assert_eq!(operator.json(&["partner", "list"]).await, json!([]));
    assert!(commands(&operator).await.is_empty());

    let (done, secrets) = create(&operator, &["--json", "--reason", "ticket 7"], TWO).await;
    let done = done.json();
    assert_eq!((&done["created"], &done["changed"]), (&json!(2), &json!(0)));
    let secrets = secrets.as_array().unwrap();
    assert_eq!(secrets.len(), 4, "two accounts and two endpoints: {done}");
    let plan = done["plan"].to_string();
    assert!(
        !plan.contains("token") && plan.contains("crm.example"),
        "{plan}"
    );
    let listed = operator.json(&["partner", "list"]).await;
    let [acme, beta] = [&listed[0], &listed[1]];
    assert_eq!(acme["webhook_url"], "https://acme.example/hooks/a-token");
    assert_eq!(acme["webhook_events"], json!(["topup.failed"]));
    assert_eq!(
        (
            &acme["orders_per_second"],
            &acme["units_per_second"],
            &acme["signed_body_required"]
        ),
        (&json!(20), &json!(null), &json!(true))
    );
    assert_eq!(
        (text(beta, "environment"), &beta["webhook_url"]),
        ("live", &json!(null))
    );
    // The printed key is the stored one.
    let mut connection = operator.database.connect().await.unwrap();
    let stored =
        accounts::partners::by_access_key(&mut connection, text(&secrets[0], "access_key"));
    let stored = stored.await.unwrap().unwrap();
    let sealed = stored.keys[0].secret_key.as_deref().unwrap();
    let key = accounts::partners::open_secret_key(&vault(), stored.partner_id, sealed).unwrap();
    assert_eq!(key.to_base64(), text(&secrets[0], "secret_key"));
    let endpoints = operator.json(&["endpoint", "list"]).await;
    assert_eq!(endpoints.as_array().unwrap().len(), 4, "{endpoints}");

    let expected = [
        "partner create",
        "partner set-events",
        "partner set-signing",
        "endpoint create",
        "endpoint create",
        "partner create",
    ];
    assert_eq!(commands(&operator).await, expected);
    let actions = operator.json(&["action", "list"]).await;
    assert!(
        actions
            .as_array()
            .unwrap()
            .iter()
            .all(|one| one["reason"] == "ticket 7")
    );
    let recorded = actions.to_string();
    for secret in [
        "token",
        text(&secrets[0], "secret_key"),
        text(&secrets[1], "webhook_secret"),
    ] {
        assert!(!recorded.contains(secret), "{recorded}");
    }

    // The same file again changes nothing, needs no master key and records nothing.
    let again = apply(&operator, &["--json"], TWO).await.json();
    assert_eq!(
        (&again["unchanged"], &again["secrets"]),
        (&json!(2), &json!([]))
    );
    apply(&operator, &["--dry-run"], TWO)
        .await
        .says("2 unchanged; nothing was changed");
    assert_eq!(commands(&operator).await.len(), expected.len());
}

#[tokio::test]
async fn what_a_file_leaves_out_stays_and_what_it_changes_is_named() {
    let operator = Operator::new().await;
    let (created, _) = create(&operator, &[], TWO).await;
    created.says("2 created").says("The new secrets are in");
    let changed = "
partners:
  - name: acme
    environment: sandbox
    webhook_url: null
    limits: {orders_per_second: default}
    disabled: true
    endpoints:
      - {url: 'https://crm.example/esims/b-token', events: [topup.ready]}
";
    let dry = apply(&operator, &["--dry-run"], changed).await;
    assert_eq!(dry.code, Some(3));
    for part in [
        "webhook host: acme.example → -",
        "orders_per_second: 20 → default",
        "disabled: false → true",
        "endpoint at crm.example: events: topup.failed, topup.ready → topup.ready",
        "0 to create, 1 to change, 0 unchanged",
    ] {
        assert!(dry.stdout.contains(part), "no {part:?} in {dry:?}");
    }
    apply(&operator, &[], changed)
        .await
        .says("0 created, 1 changed");
    let acme = &operator.json(&["partner", "list"]).await[0];
    assert!(
        acme["disabled_at"].is_string() && acme["webhook_url"].is_null(),
        "{acme}"
    );
    assert_eq!(
        acme["webhook_events"],
        json!(["topup.failed"]),
        "it was left out"
    );
    assert_eq!(acme["signed_body_required"], true, "it was left out");
    let endpoints = operator.json(&["endpoint", "list"]).await;
    assert!(
        endpoints.to_string().contains("log.example"),
        "it was left out: {endpoints}"
    );
    let commands = commands(&operator).await;
    let expected = [
        "partner set-webhook",
        "partner set-limits",
        "partner disable",
        "endpoint set",
    ];
    assert_eq!(commands[6..], expected);
}

#[tokio::test]
async fn a_file_that_cannot_be_applied_changes_nothing() {
    let operator = Operator::new().await;
    let nobody = json!(operator.json(&["partner", "list"]).await);
    let unknown = domain::PartnerId::new();
    for (entry, part) in testkit::rows! {
        "environment: moon" => "line 4: partners[1].environment: unknown variant `moon`";
        "environment: live\n    webhook_url: http://a.example/" => "line 4: partners[1].webhook_url: the partner is live";
        &*format!("environment: live\n    partner_id: {unknown}") => "partners[1].partner_id: there is no partner";
        "environment: live\n    endpoints: [{url: 'https://1.example'}, {url: 'https://2.example'}, {url: 'https://3.example'}, \
         {url: 'https://4.example'}, {url: 'https://5.example'}, {url: 'https://6.example'}, {url: 'https://7.example'}, \
         {url: 'https://8.example'}, {url: 'https://9.example'}, {url: 'https://10.example'}]"
            => "partners[1].endpoints: the partner would have 11 endpoints with the first one, and 10 are allowed";
    } {
        let file = format!(
            "partners:\n  - name: Acme\n    environment: sandbox\n  - name: Beta\n    {entry}\n"
        );
        let refused = apply(&operator, &[], &file).await;
        refused.fails(1, part);
        assert!(
            refused.stderr.contains("nothing was changed by -"),
            "{refused:?}"
        );
        assert_eq!(operator.json(&["partner", "list"]).await, nobody);
    }
    // Two accounts of one name and environment: the file has to say which one.
    let twins = [
        operator.create_partner().await,
        operator.create_partner().await,
    ];
    let file = "partners: [{name: Acme, environment: sandbox, disabled: true}]";
    apply(&operator, &[], file)
        .await
        .fails(1, "say which one with partner_id");
    let id = text(&twins[1], "partner_id");
    let file = format!(
        "partners: [{{name: Acme, environment: sandbox, partner_id: {id}, disabled: true}}]"
    );
    apply(&operator, &[], &file).await.says("1 changed");
    let listed = operator.json(&["partner", "list"]).await;
    assert!(
        listed[0]["disabled_at"].is_null() && listed[1]["disabled_at"].is_string(),
        "{listed}"
    );
    // Another master key than that of the services.
    let mut other = operator.command(&["partner", "apply", "-f", "/dev/null"]);
    run(&mut other)
        .await
        .fails(1, "is not of the form `partners:`");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("partners.yaml");
    std::fs::write(&file, TWO.replace("Acme", "Gamma")).unwrap();
    let file = file.to_str().unwrap();
    let to = folder.path().join("secrets.json");
    let to = to.to_str().unwrap();
    let mut other = operator.command(&["partner", "apply", "-f", file, "--secrets", to]);
    other.env(
        "MASTER_KEY",
        "test:AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=",
    );
    run(&mut other)
        .await
        .fails(1, "not the master key of the services");
    assert_eq!(operator.json(&["partner", "list"]).await, listed);
}

#[tokio::test]
async fn secrets_go_to_a_new_file_that_only_its_owner_reads() {
    let operator = Operator::new().await;
    // The log of a job is no terminal, so no secret goes there.
    let refused = apply(&operator, &["--json"], TWO).await;
    refused.fails(1, "name a new file for them with --secrets FILE");
    assert!(refused.stdout.is_empty(), "{refused:?}");
    assert_eq!(operator.json(&["partner", "list"]).await, json!([]));

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secrets.json");
    let to = ["--secrets", path.to_str().unwrap()];
    std::fs::write(&path, "kept").unwrap();
    apply(&operator, &to, TWO)
        .await
        .fails(1, "exists already and may hold secrets");
    assert_eq!(operator.json(&["partner", "list"]).await, json!([]));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "kept");
    std::fs::remove_file(&path).unwrap();

    let done = apply(&operator, &to, TWO).await;
    done.says("The new secrets are in");
    let secrets: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(secrets.as_array().unwrap().len(), 4);
    assert!(!done.stdout.contains(text(&secrets[0], "secret_key")));
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
}

/// An account by its name in one entry and by its id in another, and a URL in two spellings.
#[tokio::test]
async fn what_is_the_same_is_known_whatever_way_it_is_written() {
    let operator = Operator::new().await;
    create(&operator, &[], TWO).await.0.says("2 created");
    let listed = operator.json(&["partner", "list"]).await;
    let endpoints = operator.json(&["endpoint", "list"]).await;
    let id = text(&listed[0], "partner_id");
    let twice = format!(
        "partners:\n- {{name: Acme, environment: sandbox, disabled: true}}\n- {{name: ' acme', environment: sandbox, partner_id: {id}, disabled: false}}\n"
    );
    let refused = apply(&operator, &[], &twice).await;
    refused.fails(1, "line 3: partners[1]: it is partner ");
    assert!(
        refused
            .stderr
            .contains("the same account as entry 0 of the file"),
        "{refused:?}"
    );

    let spelled = "
partners:
  - name: Acme
    environment: sandbox
    webhook_url: HTTPS://ACME.example:443/hooks/./a%2Dtoken
    endpoints:
      - url: https://CRM.example/x/../esims/b-token
        events: [topup.failed, topup.ready]
      - url: https://log.example
";
    apply(&operator, &[], spelled).await.says("1 unchanged");
    for (entry, part) in testkit::rows! {
        "endpoints: [{url: 'https://acme.EXAMPLE/hooks/a-token'}]"
            => "partners[0].endpoints[0].url: the same URL as that of the first endpoint";
        "webhook_url: 'https://x.example', endpoints: [{url: 'https://X.example/'}]"
            => "partners[0].endpoints[0].url: the same URL as webhook_url";
        "endpoints: [{url: 'https://x.example'}, {url: 'https://x.example:443/'}]"
            => "partners[0].endpoints[1].url: the same URL as before";
        "webhook_url: 'https://LOG.example/'"
            => "partners[0].webhook_url: a further endpoint of the account has this URL";
    } {
        let file = format!("partners:\n- {{name: Acme, environment: sandbox, {entry}}}\n");
        apply(&operator, &[], &file).await.fails(1, part);
    }
    assert_eq!(operator.json(&["partner", "list"]).await, listed);
    assert_eq!(operator.json(&["endpoint", "list"]).await, endpoints);
}

/// A product that is sold out stays out of sale, although the file of the catalogue is applied
/// again.
#[tokio::test]
async fn what_a_file_of_options_leaves_out_stays_as_it_is() {
    let operator = Operator::new().await;
    let one = option("one");
    let catalogue = json!({ "options": [one] }).to_string();
    let apply = async |catalogue: &str| {
        operator
            .run_with_input(&["option", "apply", "-f", "-"], catalogue.to_owned())
            .await
    };
    apply(&catalogue).await.says("1 created");
    operator
        .run(&[
            "option",
            "set",
            text(&one, "option_id"),
            "--disabled",
            "--reason",
            "sold out",
            "--yes",
        ])
        .await
        .says("out of sale");
    apply(&catalogue).await.says("1 unchanged");
    let listed = operator.json(&["option", "list"]).await;
    assert_eq!(listed[0]["enabled"], false, "{listed}");
    // A new list of the whole catalogue changes nothing either.
    apply(&listed.to_string()).await.says("1 unchanged");
    let mut other = one.clone();
    other["enabled"] = json!(true);
    apply(&json!([other]).to_string()).await.says("1 changed");
}

/// A name of a product that looks like a number would become another one.
#[tokio::test]
async fn a_number_that_would_change_is_refused_with_its_line() {
    let operator = Operator::new().await;
    let one = option("one");
    let id = text(&one, "option_id");
    for number in ["007", "0012345678905", "72044e0"] {
        let file = format!(
            "options:\n- option_id: {id}\n  name: one\n  provider: sandbox\n  provider_option_id: one\n  environment: sandbox\n  \
             details: {{sku: {number}}}\n"
        );
        operator
            .run_with_input(&["option", "apply", "-f", "-"], file)
            .await
            .fails(1, &format!("line 7: {number} is read as the number"));
    }
    assert_eq!(operator.json(&["option", "list"]).await, json!([]));
}

#[tokio::test]
async fn options_are_applied_from_yaml_with_a_plan_and_a_record() {
    let operator = Operator::new().await;
    let one = option("one");
    let file = |name: &str| {
        let id = text(&one, "option_id");
        format!(
            "options:\n  - option_id: {id}\n    name: {name}\n    provider: sandbox\n    provider_option_id: one\n    environment: sandbox\n    \
             standard: {{countries: [NO], data_mb: 5120, days: 30, cost: {{price: '4.50', currency: USD}}}}\n"
        )
    };
    let apply = async |more: &[&str], name: &str| {
        let arguments = [&["option", "apply", "-f", "-"], more].concat();
        operator.run_with_input(&arguments, file(name)).await
    };
    let dry = apply(&["--dry-run"], "one").await;
    assert_eq!(dry.code, Some(3), "{dry:?}");
    assert_eq!(operator.json(&["option", "list"]).await, json!([]));
    apply(&[], "one")
        .await
        .says("1 created, 0 changed, 0 unchanged");
    apply(&["--dry-run"], "one")
        .await
        .says("1 unchanged; nothing was changed");
    let dry = apply(&["--dry-run"], "two").await;
    assert!(
        dry.code == Some(3) && dry.stdout.contains(r#"name: "one" → "two""#),
        "{dry:?}"
    );
    let done = apply(&["--json"], "two").await.json();
    assert_eq!(
        (&done["changed"], &done["imported"]),
        (&json!(1), &json!(1))
    );
    let listed = operator.json(&["option", "list"]).await;
    assert_eq!(
        (
            text(&listed[0], "name"),
            &listed[0]["standard"]["countries"]
        ),
        ("two", &json!(["NO"]))
    );
    assert_eq!(commands(&operator).await, ["option apply", "option apply"]);

    // What is known of the product: each fact by itself, and who says it.
    let mut known = listed[0].clone();
    known["told"] = json!({ "hotspot": false, "top_up": "yes" });
    let known = json!([known]).to_string();
    let told = operator
        .run_with_input(&["option", "apply", "-f", "-"], known)
        .await;
    told.says("0 created, 1 changed");
    let file = file("two") + "    facts: {hotspot: true, fair_use: {applies: false}}\n";
    let dry = ["option", "apply", "-f", "-", "--dry-run"];
    let dry = operator.run_with_input(&dry, file.clone()).await;
    assert!(
        dry.stdout.contains("facts.hotspot: null → true") && !dry.stdout.contains("told"),
        "{dry:?}"
    );
    let done = operator
        .run_with_input(&["option", "apply", "-f", "-"], file)
        .await;
    done.says("0 created, 1 changed");
    let shown = operator.run(&["option", "show", "two"]).await;
    let lines = shown.stdout.lines();
    let facts: Vec<Vec<&str>> = lines
        .map(|line| line.split_whitespace().collect())
        .collect();
    for fact in [
        ["hotspot", "yes", "file"],
        ["top_up", "yes", "provider"],
        ["fair_use", "none", "file"],
    ] {
        assert!(facts.contains(&fact.to_vec()), "{shown:?}");
    }
}

/// Another transaction has locked the second account of the file and wants the first one.
/// PostgreSQL ends the command's transaction, which is then made again.
#[tokio::test]
async fn a_file_that_loses_a_deadlock_is_applied_all_the_same() {
    let operator = Operator::new().await;
    create(&operator, &[], TWO).await.0.says("2 created");
    let listed = operator.json(&["partner", "list"]).await;
    let id = |name: &str| {
        let mut all = listed.as_array().unwrap().iter();
        let one = all.find(|one| one["name"] == name).unwrap();
        text(one, "partner_id").parse::<uuid::Uuid>().unwrap()
    };
    let lock = "SELECT FROM partners WHERE partner_id = $1 FOR UPDATE";
    // Only the command looks for a deadlock while it waits, so it is the one that loses it. It
    // looks once, after some seconds, in which this test makes one.
    let mut watch = operator.database.connect().await.unwrap();
    let patient = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = ''5s''', current_database()); END $$";
    sqlx::query(patient).execute(&mut watch).await.unwrap();
    let mut other = operator.database.connect().await.unwrap();
    let mut other = sqlx::Connection::begin(&mut other).await.unwrap();
    for sql in [
        "SET LOCAL deadlock_timeout = '1h'",
        "SET LOCAL lock_timeout = '1min'",
    ] {
        sqlx::query(sql).execute(&mut *other).await.unwrap();
    }
    let held = sqlx::query(lock).bind(id("Beta"));
    held.execute(&mut *other).await.unwrap();

    let limits = "
partners:
  - {name: Acme, environment: sandbox, limits: {orders_per_second: 7}}
  - {name: Beta, environment: live, limits: {orders_per_second: 8}}
";
    let others = async {
        let waits = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')";
        testkit::wait::soon(
            "the command that waits for the second account",
            async || {
                let waits: bool = sqlx::query_scalar(waits).fetch_one(&mut watch).await?;
                Ok(waits.then_some(()))
            },
        )
        .await;
        let wanted = sqlx::query(lock).bind(id("Acme"));
        wanted.execute(&mut *other).await.unwrap();
        other.rollback().await.unwrap();
    };
    let (applied, ()) = tokio::join!(apply(&operator, &[], limits), others);
    applied.says("0 created, 2 changed");
    let partners = operator.json(&["partner", "list"]).await;
    let mut set: Vec<i64> = partners
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|one| one["orders_per_second"].as_i64())
        .collect();
    set.sort_unstable();
    assert_eq!(set, [7, 8], "{partners}");
}
