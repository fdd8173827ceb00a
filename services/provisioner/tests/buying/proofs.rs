//! What a proof of `esimctl provider prove` changes: only with one that holds for our account is a
//! purchase without an answer settled by its repeat. How a proof is made is tested in
//! services/esimctl/tests/commands/prove.rs.

use crate::support::Bench;

/// A provisioner that buys at eSIM Access.
async fn bench() -> Bench {
    Bench::start(|config| config.providers = ["esim-access".to_owned()].into()).await
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

/// The process that recorded the attempt may hold a rejection that it could not store, which sends
/// the placement to the next provider. So the attempt is looked up first, because after a recorded
/// look-up no other provider follows.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_of_which_nothing_is_recorded_is_looked_up_before_it_is_repeated() {
    let mut bench =
        Bench::stopped(|config| config.providers = ["esim-access".to_owned()].into()).await;
    let account = bench.config.accounts.digest("esim-access");
    store(&bench, &account, true, 1800).await;
    let id = bench.store("esim-access", 1, &["ready"]).await[0];
    let recorded = "UPDATE placements SET state = 'placing', attempt = 1, attempted_at = now() - interval '1 minute'
                    WHERE placement_id = $1";
    bench.set(recorded, id).await;
    bench.due_now(id).await;
    bench.run().await;
    let stored = bench
        .until(id, |stored| stored.state != "placing" || stored.not_found)
        .await;
    assert_eq!((&stored.state[..], stored.attempt), ("placing", 1));
    assert_eq!(bench.sandbox.bought(id).await, (0, 0));
    bench.due_now(id).await;
    let stored = bench.ready(id).await;
    assert_eq!((stored.attempt, stored.ready), (1, 1));
    assert_eq!(bench.sandbox.bought(id).await, (1, 1));
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
