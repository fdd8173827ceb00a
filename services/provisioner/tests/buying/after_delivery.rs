//! What partners ask about delivered eSIMs: the data use, and giving them back, at each provider
//! that can do it. After any crash our state and that of the provider agree.

use std::time::Duration;

use desk::self_service::esims;
use domain::{PartnerId, PlacementId, TopupId, esim_change::GiveBackCause};
use provisioner::providers::{
    Custody, DeliveredEsim, EsimStatus, GiveBackResponse, ProviderId, Trouble,
};
use serde_json::json;
use testkit::wait;

use crate::hostile::answering;
use crate::support::{Bench, PATIENCE, change_account};

/// The row of a unit.
#[derive(Clone, Debug, sqlx::FromRow)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, as the row's columns are"
)]
pub struct Row {
    usage_open: bool,
    installed: Option<bool>,
    data_used: Option<i64>,
    data_total: Option<i64>,
    /// Whether the provider says when it counted the data.
    is_counted: bool,
    ends: bool,
    failure: Option<String>,
    give_back: Option<String>,
    attempt: i32,
    reason: Option<String>,
    due: bool,
    returned: bool,
    has_profile: bool,
    /// The seconds from the request for a give-back to its last attempt.
    pause: f64,
}

/// A delivered unit.
pub struct Unit {
    pub topup: TopupId,
    pub partner: PartnerId,
    pub placement: PlacementId,
}

impl Bench {
    /// Buys one unit of an option and waits for its profile.
    pub async fn delivered(&self, provider: &str, option: &str) -> Unit {
        let placement = self.accept_at(provider, &[option]).await;
        self.ready(placement).await;
        let (topup, partner): (String, uuid::Uuid) = sqlx::query_as(
            "SELECT topup_id, partner_id FROM topups JOIN placements USING (placement_id) WHERE placement_id = $1",
        )
        .bind(placement.uuid())
        .fetch_one(&self.pool)
        .await
        .unwrap();
        Unit {
            topup: topup.try_into().unwrap(),
            partner: partner.into(),
            placement,
        }
    }

    pub async fn ask_give_back(&self, unit: &Unit) {
        let mut connection = self.pool.acquire().await.unwrap();
        esims::ask_give_back(
            &mut connection,
            unit.partner,
            &unit.topup,
            GiveBackCause::NoCoverage,
        )
        .await
        .unwrap();
    }

    async fn ask_usage(&self, unit: &Unit) {
        let mut connection = self.pool.acquire().await.unwrap();
        esims::ask_usage(&mut connection, unit.partner, &unit.topup)
            .await
            .unwrap();
    }

    /// Reads the row of a unit when `condition` holds; every wait is due at once.
    async fn row(&self, unit: &Unit, condition: impl Fn(&Row) -> bool) -> Row {
        let mut last = None;
        let found = wait::until(PATIENCE, "a request about an eSIM", async || {
            sqlx::query(
                "UPDATE work SET at = now() WHERE lane = $1 AND at < now() + interval '8 seconds'",
            )
            .bind(unit.topup.as_str())
            .execute(&self.pool)
            .await?;
            let row: Row = sqlx::query_as(
                "SELECT usage_asked_at IS NOT NULL AS usage_open, installed, data_used, data_total,
                        coalesce(as_of < read_at, false) AS is_counted, ends_at IS NOT NULL AS ends,
                        usage_failure AS failure, give_back, attempt, reason, EXISTS (SELECT FROM work WHERE lane = topup_id) AS due,
                        returned_at IS NOT NULL AS returned, profile IS NOT NULL AS has_profile,
                        coalesce(extract(epoch FROM attempted_at - give_back_asked_at), 0)::float8 AS pause
                 FROM esim_requests JOIN esims USING (topup_id) WHERE topup_id = $1",
            )
            .bind(unit.topup.as_str())
            .fetch_one(&self.pool)
            .await?;
            last = Some(row.clone());
            Ok(condition(&row).then_some(row))
        });
        found
            .await
            .unwrap_or_else(|error| panic!("{error}: {last:?}"))
    }

    pub async fn ended(&self, unit: &Unit) -> Row {
        let is_over = |state: &str| matches!(state, "returned" | "refused" | "parked");
        self.row(unit, |row| row.give_back.as_deref().is_some_and(is_over))
            .await
    }

    /// The number of eSIMs that the provider has back of the purchase of this unit.
    async fn canceled(&self, unit: &Unit) -> u64 {
        self.sandbox.canceled(unit.placement).await
    }
}

pub async fn bench(change: impl FnOnce(&mut provisioner::Config)) -> Bench {
    Bench::start(|config| {
        config.providers = ["sandbox", "esim-access", "airalo", "usimsa", "zendit"]
            .map(str::to_owned)
            .into();
        let url = config.accounts.get("sandbox", "URL").unwrap().to_owned();
        change_account(config, "usimsa", "URL", &url);
        change(config);
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_about_the_use_is_answered_by_each_provider_that_can() {
    let bench = bench(|_| {}).await;
    let gib = 1024 * 1024 * 1024;
    let total = Some(5 * gib);
    for (provider, unused, total) in [
        ("sandbox", Some(false), total),
        ("esim-access", Some(false), total),
        // Airalo does not say that an eSIM is not installed.
        ("airalo", None, total),
        // USIMSA does not say how much data was bought.
        ("usimsa", Some(false), None),
        ("zendit", None, total),
    ] {
        for (option, used, installed) in [("ready", 0, unused), ("in-use", gib * 3 / 2, Some(true))]
        {
            let unit = bench.delivered(provider, option).await;
            bench.ask_usage(&unit).await;
            let row = bench.row(&unit, |row| !row.usage_open).await;
            assert_eq!(row.failure, None, "{provider} {option}");
            assert_eq!(
                (row.installed, row.data_used, row.data_total, row.due),
                (installed, Some(used), total, false),
                "{provider} {option}"
            );
            // Before its first use the end of the plan is not known, whatever date the provider
            // shows. Only eSIM Access says when it has counted the data.
            let is_used = option == "in-use";
            assert_eq!(
                (row.ends, row.is_counted),
                (
                    is_used && provider != "usimsa",
                    is_used && provider == "esim-access"
                ),
                "{provider} {option}"
            );
        }
    }
    // Without an answer the question is not open for ever.
    let unit = bench.delivered("sandbox", "ready").await;
    bench.sandbox.faults(json!({ "error_rate": 1.0 })).await;
    bench.ask_usage(&unit).await;
    let row = bench.row(&unit, |row| !row.usage_open).await;
    assert_eq!((row.failure.as_deref(), row.due), (Some("failed"), false));
}

/// A partner asks for events about the use of its eSIMs and asks nothing else. Its eSIMs at each
/// provider are polled, and it is told what follows from the answers.
#[tokio::test(flavor = "multi_thread")]
async fn who_wants_events_about_the_use_gets_them_from_polls_of_each_provider() {
    let bench = bench(|_| {}).await;
    let mut units = Vec::new();
    for provider in ["sandbox", "esim-access", "airalo", "usimsa", "zendit"] {
        let unit = bench.delivered(provider, "in-use").await;
        sqlx::query(
            "INSERT INTO partners (partner_id, name, environment, access_key, version) VALUES ($1, 'shop', 'live', $1::text, 0)
             ON CONFLICT DO NOTHING",
        )
        .bind(unit.partner.uuid())
        .execute(&bench.pool)
        .await
        .unwrap();
        units.push(unit);
    }
    for change in [
        "UPDATE deliveries SET created_at = created_at - interval '2 minutes'",
        "UPDATE partner_endpoints SET url = 'https://shop.example/', polls_up_to = now() - interval '1 hour',
                events = '{topup.ready,esim.installed,esim.first_used}'",
    ] {
        sqlx::query(change).execute(&bench.pool).await.unwrap();
    }
    let told = "SELECT count(*) FROM deliveries WHERE topup_id = $1 AND kind IN ('esim.installed', 'esim.first_used')";
    for unit in &units {
        let waited = wait::until(PATIENCE * 2, "two events", async || {
            let told: i64 = sqlx::query_scalar(told)
                .bind(unit.topup.as_str())
                .fetch_one(&bench.pool)
                .await?;
            Ok((told == 2).then_some(()))
        });
        waited.await.unwrap();
    }
    // One call for each of them was enough, and the next one is due in hours.
    assert!(bench.calls(&["call=\"status\""]).await <= 5.0);
    let next: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM esim_requests WHERE poll_at > now() + interval '50 minutes' AND polled_at IS NULL",
    )
    .fetch_one(&bench.pool)
    .await
    .unwrap();
    assert_eq!(next, 5);
}

/// What a half-open breaker stops, it stops for every kind of call: one request probes, and the
/// others wait for its result. No placement is due here that could be the probe.
#[tokio::test(flavor = "multi_thread")]
async fn a_half_open_breaker_lets_one_request_through_as_its_probe() {
    let bench = bench(|_| {}).await;
    let mut units = Vec::new();
    for _ in 0..3 {
        units.push(bench.delivered("sandbox", "ready").await);
    }
    let opened = bench
        .esimctl("provider open sandbox --for 1h --reason test")
        .await;
    assert_eq!(opened["state"], "open", "{opened}");
    bench.sandbox.faults(json!({ "down": true })).await;
    for unit in &units {
        bench.ask_usage(unit).await;
    }
    // The questions that no process has begun with. Metrics would count those of other tests, too.
    let waiting = async || -> i64 {
        sqlx::query_scalar(
            "SELECT count(*) FROM esim_requests JOIN work ON lane = topup_id WHERE usage_asked_at IS NOT NULL AND work.at <= now()",
        )
        .fetch_one(&bench.pool)
        .await
        .unwrap()
    };
    assert_eq!(waiting().await, 3, "the breaker is open");
    bench.half_open("sandbox").await;
    wait::soon("a probe", async || Ok((waiting().await < 3).then_some(()))).await;
    bench.until_breaker("sandbox", "open").await;
    // The failed probe neither lets the others through nor opens the breaker for longer.
    assert_eq!(
        (waiting().await, bench.breaker("sandbox").await),
        (2, ("open", 0))
    );

    bench.sandbox.faults(json!({})).await;
    bench.half_open("sandbox").await;
    bench.until_breaker("sandbox", "closed").await;
    for unit in &units[1..] {
        bench.row(unit, |row| !row.usage_open).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unused_esim_is_given_back_and_a_used_one_is_not() {
    let bench = bench(|_| {}).await;
    for provider in ["sandbox", "esim-access", "zendit"] {
        // The second one gets no answer to its give-back, and a look shows that it was carried out.
        for option in ["ready", "return-lost"] {
            let unit = bench.delivered(provider, option).await;
            bench.ask_give_back(&unit).await;
            // A second request changes nothing.
            bench.ask_give_back(&unit).await;
            let row = bench.ended(&unit).await;
            assert_eq!(
                (row.give_back.as_deref(), row.attempt, row.due),
                (Some("returned"), 1, false),
                "{provider} {option}"
            );
            assert!(row.returned && !row.has_profile, "{provider} {option}");
            assert_eq!(bench.canceled(&unit).await, 1, "{provider} {option}");
        }
        let unit = bench.delivered(provider, "in-use").await;
        bench.ask_give_back(&unit).await;
        let row = bench.ended(&unit).await;
        assert_eq!(
            (row.give_back.as_deref(), row.reason.as_deref(), row.attempt),
            (Some("refused"), Some("installed"), 0),
            "{provider}: it was asked first, and nothing was sent"
        );
        assert!(!row.returned && row.has_profile);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_give_back_without_an_outcome_is_parked_and_never_guessed() {
    let bench = bench(|config| config.park_after = Duration::from_secs(4)).await;
    for provider in ["sandbox", "esim-access", "zendit"] {
        let unit = bench.delivered(provider, "return-unclear").await;
        bench.ask_give_back(&unit).await;
        let row = bench.ended(&unit).await;
        assert_eq!(
            (row.give_back.as_deref(), row.reason.as_deref(), row.attempt),
            (Some("parked"), Some("unknown"), 1),
            "{provider}"
        );
        assert!(!row.returned && row.has_profile && !row.due, "{provider}");
        assert_eq!(bench.canceled(&unit).await, 1, "{provider}");
    }
}

/// A partner asks about many eSIMs at once, and then another one about one of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_partner_that_asks_a_lot_does_not_keep_another_one_waiting() {
    let bench = bench(|_| {}).await;
    let placement = bench.accept(&["ready"; 24]).await;
    bench.ready(placement).await;
    let units: Vec<(String, uuid::Uuid)> = sqlx::query_as(
        "SELECT topup_id, partner_id FROM topups JOIN placements USING (placement_id) WHERE placement_id = $1",
    )
    .bind(placement.uuid())
    .fetch_all(&bench.pool)
    .await
    .unwrap();
    let other = bench.delivered("sandbox", "ready").await;
    bench.sandbox.faults(json!({ "latency_ms": 300 })).await;
    let partner = units[0].1;
    for (topup, partner) in units {
        let unit = Unit {
            topup: topup.try_into().unwrap(),
            partner: partner.into(),
            placement,
        };
        bench.ask_usage(&unit).await;
    }
    bench.ask_usage(&other).await;
    let open = async || -> anyhow::Result<i64> {
        let open = "SELECT count(*) FROM esim_requests WHERE partner_id = $1 AND usage_asked_at IS NOT NULL";
        Ok(sqlx::query_scalar(open)
            .bind(partner)
            .fetch_one(&bench.pool)
            .await?)
    };
    let still_open = wait::until(PATIENCE, "the other partner's answer", async || {
        let is_open = "SELECT usage_asked_at IS NOT NULL FROM esim_requests WHERE topup_id = $1";
        let is_open: bool = sqlx::query_scalar(is_open)
            .bind(other.topup.as_str())
            .fetch_one(&bench.pool)
            .await?;
        let open = open().await?;
        Ok((!is_open).then_some(open))
    });
    // By age it would have come last.
    let still_open = still_open.await.unwrap();
    assert!(still_open >= 6, "{still_open} of 24 were still open");
    wait::until(PATIENCE, "all answers", async || {
        Ok((open().await? == 0).then_some(()))
    })
    .await
    .unwrap();
}

/// No look at USIMSA shows whether it has an eSIM back. The repeat of the same attempt does.
#[tokio::test(flavor = "multi_thread")]
async fn a_give_back_that_no_look_shows_is_settled_by_its_repeat() {
    let bench = bench(|config| config.park_after = Duration::from_secs(8)).await;
    for (option, state, attempt, canceled) in [
        ("ready", "returned", 1, 1),
        ("return-lost", "returned", 1, 1),
        // It is asked first whether the eSIM is installed.
        ("in-use", "refused", 0, 0),
        ("return-unclear", "parked", 1, 1),
    ] {
        let unit = bench.delivered("usimsa", option).await;
        bench.ask_give_back(&unit).await;
        let row = bench.ended(&unit).await;
        assert_eq!(
            (row.give_back.as_deref(), row.attempt),
            (Some(state), attempt),
            "{option}: {row:?}"
        );
        assert_eq!(row.returned, state == "returned", "{option}");
        assert_eq!(bench.canceled(&unit).await, canceled, "{option}");
    }
}

#[tokio::test]
async fn what_usimsa_answers_to_a_cancellation_is_read_by_the_table_of_that_call() {
    for (code, expected) in [
        ("0000", "returned"),
        ("9002", "returned"),
        ("9003", "refused"),
        ("9004", "refused"),
        ("9006", "refused"),
        ("9001", "unknown"),
        ("9005", "unknown"),
        ("9999", "unknown"),
        ("1003", "unknown"),
    ] {
        let body = format!(r#"{{"code":"{code}","message":"why"}}"#);
        let account = answering("usimsa", "200 OK", &body).await;
        let class = match account.give_back(&esim(), GiveBackCause::Other).await {
            Ok(GiveBackResponse::Returned) => "returned",
            Ok(GiveBackResponse::Refused(said)) => {
                assert_eq!(said, "why");
                "refused"
            }
            Ok(GiveBackResponse::Claimed { .. }) => "claimed",
            Err(trouble) => trouble.class(),
        };
        assert_eq!(class, expected, "{code}");
    }
    // One response answers both calls of a look.
    for (body, expected) in [
        (
            r#"{"code":"0000","usage":{"history":[{"usageMb":1},{"usageMb":"1.5GB"},{"usageMb":" 2 MB"}]},"installCount":1}"#,
            Some((Some(true), Some(1539 << 20))),
        ),
        (
            r#"{"code":"0000","usage":{"history":[]},"installCount":0}"#,
            Some((Some(false), Some(0))),
        ),
        (
            r#"{"code":"0000","usage":{"history":[]},"device":{"installTime":"2026-11-20 10:00:00"}}"#,
            Some((Some(true), Some(0))),
        ),
        (r#"{"code":"1002"}"#, Some((None, Some(0)))),
        (r#"{"code":"1003"}"#, Some((None, None))),
        (r#"{"code":"1001"}"#, None),
        (r#"{"code":"0000"}"#, None),
        (
            r#"{"code":"0000","usage":{"history":[{"usageMb":-1}]}}"#,
            None,
        ),
        (
            r#"{"code":"0000","usage":{"history":[{"usageMb":"much"}]}}"#,
            None,
        ),
    ] {
        let account = answering("usimsa", "200 OK", body).await;
        let status = account.status(&esim()).await;
        if status.is_ok() {
            assert_eq!(custody(&status), "unshown", "{body}");
        }
        let read = status.ok().map(|status| status.reading);
        let read = read.map(|reading| (reading.installed, reading.data_used));
        assert_eq!(read, expected, "{body}");
    }
}

/// Clients of USIMSA have seen numbers, GUIDs and codes such as `60MN` as its ids (2025, 2026).
#[tokio::test]
async fn an_id_of_usimsa_may_have_letters_and_nothing_that_has_a_meaning_in_a_path() {
    let account = answering("usimsa", "200 OK", r#"{"code":"0000"}"#).await;
    let given_back = async |id: &str| {
        let esim = DeliveredEsim {
            unit_id: ProviderId::parse(id.to_owned()).unwrap(),
            ..esim()
        };
        account.give_back(&esim, GiveBackCause::Other).await
    };
    for id in ["25", "60MN", "8c1f0a52-0f6c-4d1e-9d0e-7b1f4f1d2a33", "a_b"] {
        assert_eq!(given_back(id).await, Ok(GiveBackResponse::Returned), "{id}");
    }
    for id in ["../x", "a/b", "a?b", "a%2Fb"] {
        let answer = given_back(id).await;
        assert!(
            matches!(answer, Err(Trouble::NotSent(_))),
            "{id}: {answer:?}"
        );
    }
}

/// A process has recorded an attempt and died, before the call or after it.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_of_a_dead_process_is_settled_by_what_the_esim_shows() {
    let bench = bench(|_| {}).await;
    for provider in ["sandbox", "esim-access", "zendit"] {
        for (option, attempts) in [("ready", 2), ("in-use", 1)] {
            let unit = bench.delivered(provider, option).await;
            sqlx::query(
                "WITH asked AS (
                     INSERT INTO esim_requests (topup_id, partner_id, provider, give_back, give_back_asked_at, attempt,
                                                attempted_at)
                     VALUES ($1, $2, $3, 'sending', now(), 1, now())
                 )
                 INSERT INTO work (id, kind, provider, lane, partner_id, at)
                 VALUES (md5('give_back ' || $1)::uuid, 'give_back', $3, $1, $2, now())",
            )
            .bind(unit.topup.as_str())
            .bind(unit.partner.uuid())
            .bind(provider)
            .execute(&bench.pool)
            .await
            .unwrap();
            let row = bench.ended(&unit).await;
            let expected = if option == "ready" {
                "returned"
            } else {
                "refused"
            };
            assert_eq!(
                (row.give_back.as_deref(), row.attempt),
                (Some(expected), attempts),
                "{provider} {option}"
            );
            // The second attempt follows only once the first one can no longer arrive.
            let settle = bench.config.settle.as_secs_f64();
            assert!(attempts == 1 || row.pause >= settle, "{provider}: {row:?}");
            let canceled = bench.canceled(&unit).await;
            assert_eq!(
                canceled,
                u64::from(expected == "returned"),
                "{provider} {option}"
            );
        }
    }
}

fn esim() -> DeliveredEsim {
    DeliveredEsim {
        unit_id: ProviderId::parse("25".to_owned()).unwrap(),
        iccid: domain::Iccid::parse("8982123456789012345").unwrap(),
    }
}

/// The custody that a response means, or the class of the trouble.
fn custody(status: &Result<EsimStatus, Trouble>) -> String {
    match status {
        Ok(status) => match &status.custody {
            Custody::Returnable => "returnable".to_owned(),
            Custody::Returned => "returned".to_owned(),
            Custody::Kept(_) => "kept".to_owned(),
            Custody::Unshown => "unshown".to_owned(),
            Custody::Claimed(_) => "claimed".to_owned(),
            Custody::ClaimUnshown(_) => "claim unshown".to_owned(),
        },
        Err(trouble) => trouble.class().to_owned(),
    }
}

#[tokio::test]
async fn only_what_esim_access_says_clearly_is_believed() {
    let account = async |body: &str| answering("esim-access", "200 OK", body).await;
    let one = |id: &str, esim: &str, smdp: &str| {
        format!(
            r#"{{"esimTranNo":"{id}","esimStatus":"{esim}","smdpStatus":"{smdp}","totalVolume":5,"orderUsage":2,"expiredTime":"2026-12-31T00:00:00+0000"}}"#
        )
    };
    let page =
        |list: &str| format!(r#"{{"success":true,"errorCode":"0","obj":{{"esimList":[{list}]}}}}"#);
    let failed = r#"{"success":false,"errorCode":"310211","errorMsg":"none"}"#.to_owned();
    let ours = one("25", "GOT_RESOURCE", "RELEASED");
    for (body, expected) in [
        (page(&ours), "returnable"),
        (page(&one("25", "CANCEL", "RELEASED")), "returned"),
        (page(&one("25", "REVOKED", "RELEASED")), "kept"),
        (page(&one("25", "UNUSED_EXPIRED", "RELEASED")), "kept"),
        (page(&one("25", "REVOKE", "RELEASED")), "kept"),
        (page(&one("25", "GOT_RESOURCE", "DOWNLOAD")), "kept"),
        (page(&one("25", "GOT_RESOURCE", "ODD")), "kept"),
        (page(&one("25", "IN_USE", "ENABLED")), "kept"),
        (page(&one("26", "GOT_RESOURCE", "RELEASED")), "unknown"),
        (page(&format!("{ours},{ours}")), "unknown"),
        (page(""), "unknown"),
        (page(r#"{"esimTranNo":"25"}"#), "unknown"),
        (page(&ours.replace("5,", "-5,")), "unknown"),
        (failed.clone(), "unknown"),
    ] {
        let status = account(&body).await.status(&esim()).await;
        assert_eq!(custody(&status), expected, "{body}");
    }
    let status = account(&page(&ours)).await.status(&esim()).await.unwrap();
    assert_eq!(
        (
            status.reading.data_used,
            status.reading.data_total,
            status.reading.installed
        ),
        (Some(2), Some(5), Some(false))
    );
    // Whoever has downloaded an eSIM has perhaps not installed it.
    for (smdp, installed) in [("DOWNLOAD", None), ("INSTALLATION", Some(true))] {
        let body = page(&one("25", "GOT_RESOURCE", smdp));
        let status = account(&body).await.status(&esim()).await.unwrap();
        assert_eq!(status.reading.installed, installed, "{smdp}");
        assert_eq!(status.reading.only_downloaded, installed.is_none());
    }
    // No code of a failed cancellation is documented, so a look has to settle it.
    let done = r#"{"success":true,"errorCode":"0","obj":{}}"#;
    let answer = account(done)
        .await
        .give_back(&esim(), GiveBackCause::Other)
        .await;
    assert_eq!(answer, Ok(GiveBackResponse::Returned));
    let answer = account(&failed)
        .await
        .give_back(&esim(), GiveBackCause::Other)
        .await;
    assert!(matches!(answer, Err(Trouble::Unknown { .. })), "{answer:?}");
}

#[tokio::test]
async fn only_what_airalo_says_clearly_is_believed() {
    let account = async |body: &str| answering("airalo", "200 OK", body).await;
    let usage = |remaining: &str, status: &str| {
        format!(
            r#"{{"data":{{"remaining":{remaining},"total":2048,"expired_at":"2026-12-31 00:00:00","is_unlimited":false,"status":"{status}"}}}}"#
        )
    };
    for (body, expected) in [
        (usage("1024", "ACTIVE"), Some((Some(true), Some(1 << 30)))),
        (usage("2048", "NOT_ACTIVE"), Some((None, Some(0)))),
        (usage("4096", "FINISHED"), Some((Some(true), Some(0)))),
        // It may have expired before anybody has installed it.
        (usage("2048", "EXPIRED"), Some((None, Some(0)))),
        (usage("-1", "ACTIVE"), None),
        (usage("1e40", "ACTIVE"), None),
        (usage("null", "ACTIVE"), None),
        ("{}".to_owned(), None),
    ] {
        let status = account(&body).await.status(&esim()).await;
        let read = status.ok();
        if let Some(read) = &read {
            assert_eq!(read.custody, Custody::Returnable, "{body}");
        }
        let read = read.map(|read| (read.reading.installed, read.reading.data_used));
        assert_eq!(read, expected, "{body}");
    }
    // The amounts of an unlimited package are to be ignored, and a recycled eSIM has none.
    let unlimited = usage("0", "ACTIVE").replace("false", "true");
    let recycled = usage("0", "RECYCLED")
        .replace("false", "null")
        .replace("\"2026-12-31 00:00:00\"", "null");
    for (body, installed) in [(unlimited, Some(true)), (recycled, None)] {
        let read = account(&body).await.status(&esim()).await.unwrap().reading;
        assert_eq!((read.data_used, read.data_total), (None, None), "{body}");
        assert_eq!(read.installed, installed, "{body}");
    }
    // The provider says that it does not know the ICCID, and nothing else that is not found says
    // so.
    for (body, expected) in [
        (r#"{"data":[],"meta":{"message":"Sim not found"}}"#, "kept"),
        ("<html>Not found</html>", "unknown"),
        ("", "unknown"),
    ] {
        let account = answering("airalo", "404 X", body).await;
        assert_eq!(custody(&account.status(&esim()).await), expected, "{body}");
    }
}
