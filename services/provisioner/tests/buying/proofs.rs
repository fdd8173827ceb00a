//! `esimctl provider prove` against a provider that keeps its word and one that does not, and what
//! a proof changes: only with one that holds for our account is a purchase without an answer
//! settled by its repeat.

use domain::PlacementId;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{ACCESS_KEY, Bench, SECRET_KEY, provider_option};

/// A provisioner that buys at eSIM Access.
async fn bench() -> Bench {
    Bench::start(|config| config.providers = ["esim-access".to_owned()].into()).await
}

async fn prove(bench: &Bench, more: &str) -> Value {
    let option = provider_option("ready");
    let command = format!("provider prove esim-access --option {option}@1.50 {more}");
    bench.esimctl(&command).await
}

/// The purchases of all proofs: our id, what was said of its repeat, and whether nothing is left.
async fn rows(bench: &Bench) -> Vec<(Uuid, Option<bool>, bool)> {
    let rows = "SELECT purchase_id, same_again, ended_at IS NOT NULL FROM provider_proofs
                ORDER BY recorded_at";
    sqlx::query_as(rows).fetch_all(&bench.pool).await.unwrap()
}

/// What follows from the answer to a question.
fn follows<'a>(report: &'a Value, question: &str) -> &'a str {
    let steps = report["steps"].as_array().into_iter().flatten();
    let mut answers = steps.filter(|step| step["question"] == question);
    let answer = answers.next().and_then(|step| step["follows"].as_str());
    answer.unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_keeps_its_word_is_proved_and_gets_everything_back() {
    let bench = bench().await;
    let plan = prove(&bench, "--plan").await;
    let plan = plan["plan"].to_string();
    assert!(plan.contains("costs at most 7.50 (5 units)"), "{plan}");
    assert!(rows(&bench).await.is_empty());
    let asked = prove(&bench, "--wait 1s").await["error"].to_string();
    assert!(asked.contains("nothing was bought"), "{asked}");

    let kept = prove(&bench, "--wait 1s --keep --yes").await;
    let id = match rows(&bench).await[..] {
        [(id, Some(true), false)] => PlacementId::from(id),
        ref other => panic!("{other:?} {kept}"),
    };
    assert_eq!(bench.sandbox.bought(id).await, (1, 1), "{kept}");
    assert_eq!(bench.sandbox.canceled(id).await, 0);

    // The next run takes up what was kept.
    let report = prove(&bench, "--wait 1s --batch --yes").await;
    for (question, expected) in [
        ("a purchase that does not exist", "documented"),
        ("the identical request much later", "documented"),
        ("a purchase", "documented"),
        ("the identical request at once", "documented"),
        ("the identical request later", "documented"),
        ("the same id with another count", "seen"),
        ("the delay until the purchase is found", "seen"),
        ("giving back twice", "seen"),
        ("giving back", "documented"),
        ("one unit more than a batch", "unanswered"),
        ("a whole batch", "documented"),
    ] {
        assert_eq!(follows(&report, question), expected, "{question}: {report}");
    }
    assert_eq!(bench.sandbox.canceled(id).await, 1, "{report}");
    let rows = rows(&bench).await;
    assert_eq!(rows.len(), 4, "{rows:?}");
    for (id, _, is_ended) in rows {
        let id = PlacementId::from(id);
        let (purchases, units) = bench.sandbox.bought(id).await;
        assert!(purchases <= 1, "{report}");
        assert_eq!(bench.sandbox.canceled(id).await, units, "{report}");
        // What was perhaps not refused is asked about again.
        assert_eq!(is_ended, units > 0, "{report}");
    }
    // No key and no code is in the evidence.
    let evidence = report.to_string().replace("esim-access", "");
    for secret in [ACCESS_KEY, SECRET_KEY, "LPA:", "smdp"] {
        assert!(!evidence.contains(secret), "{secret}: {evidence}");
    }
    // What a proof has bought is no surplus.
    let compared = bench
        .esimctl("provider reconcile esim-access --since 1h")
        .await;
    assert_eq!(compared["ledger"]["orphans"], 0, "{compared}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_sells_a_repeat_again_is_caught() {
    let bench = bench().await;
    let lies = json!({ "detect_duplicates": false });
    bench.sandbox.faults(lies).await;
    let report = prove(&bench, "--wait 1s --yes").await;
    let error = report["error"].as_str().unwrap_or_default();
    assert!(error.contains("does not do what it documents"), "{report}");
    assert!(error.contains("sold a second time"), "{report}");
    let rows = rows(&bench).await;
    let [(id, Some(false), true)] = rows[..] else {
        panic!("{rows:?} {report}");
    };
    // Both are given back, and it was not tried a third time.
    let id = PlacementId::from(id);
    assert_eq!(bench.sandbox.bought(id).await, (2, 2));
    assert_eq!(bench.sandbox.canceled(id).await, 2);
}

/// Stores a proof of an account, as `esimctl provider prove` does.
async fn store(bench: &Bench, account: &str, is_same: bool, same_for: i32) {
    let row = "INSERT INTO provider_proofs
                   (purchase_id, provider, account, provider_option_id, units, same_again, same_for_s, proved_at)
               VALUES (gen_random_uuid(), 'esim-access', $1, 'x', 1, $2, $3, clock_timestamp())";
    let row = sqlx::query(row).bind(account).bind(is_same).bind(same_for);
    row.execute(&bench.pool).await.unwrap();
}

/// The first request is lost and buys nothing, which nobody can know; its repeat buys.
#[tokio::test(flavor = "multi_thread")]
async fn with_a_proof_a_lost_answer_is_settled_by_the_identical_request() {
    let bench = bench().await;
    store(
        &bench,
        &bench.config.accounts.digest("esim-access"),
        true,
        1800,
    )
    .await;
    for (options, units) in [
        (&["flapping", "flapping"][..], 2),
        (&["bought-then-error", "bought-then-error"], 2),
        (&["bought-then-silent"], 1),
    ] {
        let id = bench.accept_at("esim-access", options).await;
        let stored = bench
            .hurry(id, |stored| stored.state == "placed" && stored.pending == 0)
            .await;
        assert_eq!((stored.attempt, stored.ready), (1, units), "{options:?}");
        let bought = u64::try_from(units).unwrap();
        assert_eq!(bench.sandbox.bought(id).await, (1, bought), "{options:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_valid_proof_nothing_is_sent_again() {
    let bench = bench().await;
    let ours = bench.config.accounts.digest("esim-access");
    // The account had another key; the proof is of a shorter time; a later one denies it.
    for proofs in [
        &[("0123456789abcdef", true, 1800)][..],
        &[(&ours, true, 0)],
        &[(&ours, true, 1800), (&ours, false, 0)],
    ] {
        sqlx::query("DELETE FROM provider_proofs")
            .execute(&bench.pool)
            .await
            .unwrap();
        for (account, is_same, same_for) in proofs {
            store(&bench, account, *is_same, *same_for).await;
        }
        let id = bench.accept_at("esim-access", &["flapping"]).await;
        // A repeat would buy: `flapping` fails a few times only.
        for _ in 0..5 {
            bench
                .hurry(id, |stored| stored.state == "placing" && stored.not_found)
                .await;
            let forget = "UPDATE placements SET not_found_at = NULL WHERE placement_id = $1";
            sqlx::query(forget)
                .bind(id.uuid())
                .execute(&bench.pool)
                .await
                .unwrap();
        }
        assert_eq!(bench.sandbox.bought(id).await, (0, 0), "{proofs:?}");
    }
}
