//! `esimctl provider prove` against stand-ins that speak the protocol of each provider, once as it
//! is documented and once not.

use std::process::Stdio;

use domain::PlacementId;
use runtime::{CommonConfig, Shutdown};
use sandbox::{ServeConfig, script};
use serde_json::{Value, json};
use testkit::wait;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
};
use uuid::Uuid;

use crate::support::{Ended, Operator, run, words};
use crate::text;

const ACCESS_KEY: &str = "an-access-key";
const SECRET_KEY: &str = "c2FuZGJveC1zZWNyZXQ=";

/// An operator with an account at a provider.
struct Account {
    operator: Operator,
    provider: &'static str,
    base: String,
    http: reqwest::Client,
    shutdown: Shutdown,
    _folder: tempfile::TempDir,
}

impl Drop for Account {
    fn drop(&mut self) {
        self.shutdown.stop();
    }
}

impl Account {
    async fn new(provider: &'static str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listen = |port| ([127, 0, 0, 1], port).into();
        let address: std::net::SocketAddr = listen(testkit::ports::free().unwrap());
        let config = upstreams::Config {
            command: None,
            provider: "sandbox".into(),
            serve: ServeConfig {
                listen: address,
                admin_listen: listen(testkit::ports::free().unwrap()),
                ledger: Some(folder.path().join("ledger")),
                access_key: Some(ACCESS_KEY.into()),
                secret_key: Some(SECRET_KEY.into()),
                detect_duplicates: true,
                callback_url: None,
                common: CommonConfig::default(),
            },
            esim_access_callback_url: None,
            zendit_callback_url: None,
            airalo_callback_url: None,
            airalo_places: 30,
            events: false,
        };
        let shutdown = Shutdown::new();
        tokio::spawn(upstreams::run(config, shutdown.clone()));
        let account = Self {
            operator: Operator::new().await,
            provider,
            base: format!("http://{address}"),
            http: testkit::http::client().unwrap(),
            shutdown,
            _folder: folder,
        };
        wait::soon("the provider", async || {
            let faults = account.http.get(format!("{}/faults", account.base));
            Ok(faults.send().await.ok().map(drop))
        })
        .await;
        account
    }

    /// From now on it does something else than it documents.
    async fn lies(&self) {
        let faults = match self.provider {
            "zendit" => json!({ "not_found_lag_ms": 3_600_000 }),
            _ => json!({ "detect_duplicates": false }),
        };
        let faults = faults.to_string();
        let put = self.http.put(format!("{}/faults", self.base)).body(faults);
        assert!(put.send().await.unwrap().status().is_success());
    }

    /// The number of purchases with our id, their units, and how many of these were given back.
    async fn sold(&self, id: PlacementId) -> (u64, u64, u64) {
        let ledger = format!("{}/ledger?order_id={id}", self.base);
        let ledger: Value = self
            .http
            .get(ledger)
            .send()
            .await
            .unwrap()
            .json()
            .await
            .unwrap();
        let number = |field: &str| ledger[field].as_u64().unwrap();
        (number("purchases"), number("units"), number("canceled"))
    }

    fn command(&self, more: &str) -> Command {
        let price = match self.provider {
            "esim-access" => "@1.50",
            "airalo" => "@4.50",
            _ => "",
        };
        let option = script::option_id("ready");
        let line = format!(
            "provider prove {} --option {option}{price} {more}",
            self.provider
        );
        let mut command = self.operator.command(&words(line.trim_end()));
        let prefix = self.provider.to_uppercase().replace('-', "_");
        for (setting, value) in [
            ("URL", self.base.as_str()),
            ("ACCESS_KEY", ACCESS_KEY),
            ("SECRET_KEY", SECRET_KEY),
        ] {
            command.env(format!("{prefix}_{setting}"), value);
        }
        command
    }

    async fn prove(&self, more: &str) -> Ended {
        run(&mut self.command(&format!("{more} --json"))).await
    }

    /// The purchases of all proofs: our id, what was said of their repeats, and whether nothing of
    /// them is left.
    async fn rows(&self) -> Vec<(PlacementId, Option<bool>, bool)> {
        let mut connection = self.operator.database.connect().await.unwrap();
        let rows = "SELECT purchase_id, same_again, ended_at IS NOT NULL FROM provider_proofs
                    ORDER BY recorded_at";
        let rows: Vec<(Uuid, Option<bool>, bool)> = sqlx::query_as(rows)
            .fetch_all(&mut connection)
            .await
            .unwrap();
        let rows = rows.into_iter();
        rows.map(|(id, same, ended)| (id.into(), same, ended))
            .collect()
    }
}

/// What was printed, also if it ended with an error.
fn report(ended: &Ended) -> Value {
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

/// What follows from the answers to a question.
fn follows(report: &Value, question: &str) -> Vec<String> {
    let steps = report["steps"].as_array().into_iter().flatten();
    let steps = steps.filter(|step| step["question"] == question);
    steps.map(|step| text(step, "follows").to_owned()).collect()
}

/// What came to a question, of all of its answers.
fn came_to(report: &Value, question: &str) -> String {
    let steps = report["steps"].as_array().into_iter().flatten();
    let steps = steps.filter(|step| step["question"] == question);
    steps.map(|step| text(step, "came")).collect()
}

fn fates(report: &Value) -> Vec<&str> {
    let purchases = report["purchases"].as_array().into_iter().flatten();
    purchases.map(|one| text(one, "outcome")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_bought_without_a_plan_that_somebody_has_confirmed() {
    let account = Account::new("esim-access").await;
    let plan = account.prove("--plan --batch").await.json();
    let lines = plan["plan"].to_string();
    assert!(lines.contains("costs at most 106.50 (71 units)"), "{plan}");
    assert_eq!(
        (&plan["units_most"], &plan["cost_most"]),
        (&json!(71), &json!("106.50"))
    );
    // What no program can ask is named, with how.
    let person = "leaves to a person a top-up that is sent twice: send esim/topup twice";
    assert!(lines.contains(person), "{plan}");
    account
        .prove("--wait 1s")
        .await
        .fails(1, "nothing was bought: ");
    account
        .prove("--yes --evidence /nowhere/proof.json")
        .await
        .fails(1, "cannot write the evidence to /nowhere/proof.json");
    assert!(account.rows().await.is_empty());
    let usimsa = Account::new("usimsa").await;
    usimsa
        .prove("--batch --yes")
        .await
        .fails(1, "usimsa documents no largest number of units");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_keeps_its_word_is_proved_and_gets_everything_back() {
    for provider in ["esim-access", "usimsa"] {
        let account = Account::new(provider).await;
        let ended = account.prove("--wait 1s --keep --yes").await;
        let kept = ended.json();
        assert_eq!(
            fates(&kept),
            ["not_bought", "bought", "given_back", "given_back"],
            "{kept}"
        );
        let id = account.rows().await[1].0;
        assert_eq!(account.sold(id).await, (1, 1, 0), "{kept}");

        // The next run takes up what was kept.
        let report = account.prove("--wait 1s --yes").await.json();
        assert_eq!(account.sold(id).await, (1, 1, 1), "{report}");
        for question in [
            "a product that is refused",
            "the identical request much later",
            "a purchase",
            "the identical request at once",
            "two identical requests at the same moment",
            "the identical request later",
            "two units in one purchase",
            "the activation codes of several eSIMs",
        ] {
            assert_eq!(
                follows(&report, question),
                ["documented"],
                "{question}: {report}"
            );
        }
        for question in [
            "the delay until the purchase is found",
            "the same id with another count",
            "a call without a signature",
            "the name of the option in a purchase",
            "an ICCID that was given back",
        ] {
            assert_eq!(follows(&report, question), ["seen"], "{question}: {report}");
        }
        if provider == "esim-access" {
            let question = "what a new eSIM says of its purchase";
            assert_eq!(follows(&report, question), ["documented"], "{report}");
            for (question, came) in [
                ("an ICCID that was given back", "it was sold again"),
                ("the list of purchases by its times", "it is listed"),
                ("the list of purchases after a give-back", "it is listed "),
                ("a time with seconds and the zone", "code 000105"),
                (
                    "the same id with another count",
                    "; the balance is the same",
                ),
            ] {
                let answers = came_to(&report, question);
                assert!(answers.contains(came), "{question}: {report}");
            }
        }
        let (signature, of_its_own) = if provider == "esim-access" {
            ("documented", "a purchase in the list of purchases")
        } else {
            ("seen", "an eSIM by a topupId in the path")
        };
        let question = "a call with a wrong signature";
        assert_eq!(follows(&report, question), [signature], "{report}");
        assert_eq!(follows(&report, of_its_own), ["seen"], "{report}");
        assert_eq!(
            follows(&report, "giving back"),
            ["documented"; 4],
            "{report}"
        );
        for (id, same_again, is_ended) in account.rows().await {
            let (purchases, units, canceled) = account.sold(id).await;
            assert!(is_ended && purchases <= 1 && canceled == units, "{report}");
            // Two units in one purchase are not asked for again.
            assert_eq!(same_again, (units == 1).then_some(true), "{report}");
        }
        // No key and no code is in what was printed.
        let printed = format!("{ended:?}");
        for secret in [ACCESS_KEY, SECRET_KEY, "LPA:", "smdp"] {
            assert!(!printed.contains(secret), "{secret}: {printed}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exact_look_up_is_tried_and_what_nobody_promises_is_not() {
    let account = Account::new("zendit").await;
    let report = account.prove("--wait 2s --yes").await.json();
    assert_eq!(fates(&report), ["not_bought", "given_back"], "{report}");
    for question in ["a purchase that does not exist", "a call with a wrong key"] {
        assert_eq!(
            follows(&report, question),
            ["documented"],
            "{question}: {report}"
        );
    }
    assert_eq!(
        follows(&report, "the delay until the purchase is found"),
        ["seen"]
    );
    assert!(follows(&report, "the identical request at once").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn airalo_is_asked_by_its_test_packages_and_by_the_shape_of_its_lists() {
    let account = Account::new("airalo").await;
    let report = account.prove("--wait 1s --yes").await.json();
    let refused = follows(&report, "a product that is refused");
    assert_eq!(refused, ["documented"; 5], "{report}");
    assert_eq!(follows(&report, "a call with a wrong key"), ["documented"]);
    let listed = follows(&report, "a purchase in the list of purchases");
    assert_eq!(listed, ["seen"], "{report}");
    let steps = report["steps"].to_string();
    assert!(steps.contains("an object of 1 entries"), "{steps}");
    assert!(steps.contains("an array of "), "{steps}");
    assert_eq!(fates(&report)[5..], ["stays", "stays"], "{report}");
    // How many units a price is for is told by the balance.
    assert!(came_to(&report, "a purchase").contains("fallen by 4.5000"));
    let two = came_to(&report, "two units in one purchase");
    assert!(two.contains("fallen by 9.0000"), "{report}");
    let price = came_to(&report, "the price that an order names");
    assert!(
        price.contains("quantity 2, price 9.0, net_price 4.5"),
        "{report}"
    );
    assert!(steps.contains("pricing net_pricing of 0.0 %"), "{steps}");
    let codes = follows(&report, "the activation codes of several eSIMs");
    assert_eq!(codes, ["documented"], "{report}");
    assert_eq!(
        follows(&report, "the delay until the purchase is found"),
        ["seen"]
    );
    // Nothing is sent twice where nobody says that it would be the same.
    assert!(follows(&report, "the identical request at once").is_empty());
    let rows = account.rows().await;
    assert!(
        rows.iter()
            .all(|(_, same_again, is_ended)| same_again.is_none() && *is_ended)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_does_not_keep_its_word_is_caught() {
    for (provider, parts) in [
        (
            "esim-access",
            &["sold a second time", "purchase: no transactionId"][..],
        ),
        ("usimsa", &["sold a second time"]),
        (
            "airalo",
            &[
                "a product that is refused: it was sold",
                // One unit is too dear, so two are not bought.
                "fallen by 9.0000, which is more than the option allows",
                "the activation codes of several eSIMs: one is that of several",
            ],
        ),
        (
            "zendit",
            &["the delay until the purchase is found: it was not found"],
        ),
    ] {
        let account = Account::new(provider).await;
        account.lies().await;
        let ended = account.prove("--wait 1s --yes").await;
        assert_eq!(ended.code, Some(1), "{ended:?}");
        // The error names each contradiction; the lines before it tell every step.
        let (_, error) = ended
            .stderr
            .split_once("does not do what it documents")
            .unwrap_or_else(|| panic!("{ended:?}"));
        for part in parts {
            assert!(error.contains(part), "{part}: {ended:?}");
        }
        let rows = account.rows().await;
        match provider {
            "airalo" => continue,
            // It was sold, so it is never taken for what was not bought.
            "zendit" => {
                assert_eq!(
                    fates(&report(&ended)),
                    ["not_bought", "bought"],
                    "{ended:?}"
                );
                continue;
            }
            _ => {}
        }
        if provider == "esim-access" {
            let listed = came_to(&report(&ended), "the list of purchases by its times");
            assert_eq!(listed, "it is not listed, so its times are of another zone");
        }
        // Both are given back, and it was not tried a third time.
        let &[_, (id, Some(false), true), (two, None, true)] = rows.as_slice() else {
            panic!("{rows:?} {ended:?}");
        };
        assert_eq!(account.sold(id).await, (2, 2, 2), "{ended:?}");
        assert_eq!(account.sold(two).await, (1, 2, 2), "{ended:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_interrupts_a_proof_is_told_what_was_bought_and_the_next_run_gives_it_back() {
    let account = Account::new("esim-access").await;
    let folder = tempfile::tempdir().unwrap();
    let evidence = folder.path().join("proof.json");
    let more = format!("--wait 1h --yes --json --evidence {}", evidence.display());
    let mut child = account.command(&more).stdin(Stdio::null()).spawn().unwrap();
    let mut told = BufReader::new(child.stderr.take().unwrap()).lines();
    // After this step it waits for an hour.
    while let Some(line) = told.next_line().await.unwrap() {
        if line.contains("giving back: ") {
            break;
        }
    }
    let pid = child.id().unwrap().to_string();
    let killed = Command::new("kill").args(["-INT", &pid]).status().await;
    assert!(killed.unwrap().success());
    let output = child.wait_with_output().await.unwrap();
    assert_eq!(output.status.code(), Some(1));
    let mut error = String::new();
    while let Some(line) = told.next_line().await.unwrap() {
        error = line;
    }
    let id = account.rows().await[1].0;
    assert!(
        error.contains(&format!("not given back: {id} (bought, 1 x ")),
        "{error}"
    );
    assert!(error.contains("run the same command again"), "{error}");
    for text in [output.stdout, std::fs::read(&evidence).unwrap()] {
        let report: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(report["interrupted"], true);
        assert_eq!(
            fates(&report),
            ["not_bought", "bought", "given_back"],
            "{report}"
        );
    }

    let report = account.prove("--wait 1s --yes").await.json();
    assert_eq!(account.sold(id).await, (1, 1, 1), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_whose_answer_is_unclear_is_neither_forgotten_nor_taken_for_bought() {
    let account = Account::new("esim-access").await;
    let report = account.prove("--wait 1s --batch --yes").await.json();
    assert_eq!(
        follows(&report, "one unit more than a batch"),
        ["unanswered"]
    );
    assert_eq!(
        follows(&report, "the outcome of an unclear answer"),
        ["unanswered"]
    );
    assert_eq!(follows(&report, "a whole batch"), ["documented"]);
    let expected = [
        "not_bought",
        "given_back",
        "given_back",
        "given_back",
        "unclear",
        "given_back",
    ];
    assert_eq!(fates(&report), expected, "{report}");
    let left = |rows: Vec<(PlacementId, Option<bool>, bool)>| {
        rows.into_iter().filter(|(.., is_ended)| !is_ended).count()
    };
    assert_eq!(left(account.rows().await), 1, "{report}");

    // After a day it counts as not bought.
    let mut connection = account.operator.database.connect().await.unwrap();
    let later = "UPDATE provider_proofs SET recorded_at = recorded_at - interval '25 hours'";
    sqlx::query(later).execute(&mut connection).await.unwrap();
    let report = account.prove("--wait 1s --yes").await.json();
    assert_eq!(fates(&report)[0], "not_bought", "{report}");
    assert_eq!(left(account.rows().await), 0, "{report}");
}
