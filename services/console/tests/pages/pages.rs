//! What the pages say, and what their actions do.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use console::access::OperatorRole;
use desk::{operator::placements::parking, self_service::esims};
use pg::{
    PgConnection, TransactionEnd,
    actions::{self, Action, ActionChange, Actor},
    transaction,
};
use reqwest::header;

use crate::support::{Bench, Browser, CODE, EXTERNAL, ICCID, URL_SECRET, text, text_when};

/// Each of these parts, which `|` separates, must be on the page.
fn has(page: &str, parts: &str) {
    for part in parts.split(" | ") {
        assert!(page.contains(part), "no {part:?} in {page}");
    }
}

/// Where the box leads for this text.
async fn find(browser: &mut Browser, what: &str) -> String {
    let query: String = url::form_urlencoded::byte_serialize(what.as_bytes()).collect();
    let answer = browser.get(&format!("/find?q={query}")).await;
    let to = answer.headers().get(header::LOCATION);
    to.map_or_else(String::new, |to| to.to_str().unwrap().to_owned())
}

#[tokio::test]
async fn the_box_finds_an_order_by_each_of_the_seven_ids() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    let order = format!("/orders/{}", bench.order);
    let page = text(&mut browser, &order).await;
    let (_, placement) = page.split_once("<dt>Our purchase id</dt>").unwrap();
    let (_, placement) = placement.split_once("<span class=\"id\">").unwrap();
    let placement = placement.split('<').next().unwrap();
    for id in [
        EXTERNAL,
        &bench.order.to_string(),
        placement,
        bench.topup.as_str(),
        ICCID,
        "8981 0000 0000 0000 001",
        "P-4711",
    ] {
        assert_eq!(find(&mut browser, id).await, order, "{id}");
    }
    let partner = format!("/partners/{}", bench.partner);
    assert_eq!(find(&mut browser, "Acme & <Sons>").await, partner);
    assert_eq!(find(&mut browser, "nothing").await, "");
    bench.stop().await;
}

#[tokio::test]
async fn no_page_shows_a_credential_or_markup_of_others() {
    let bench = Bench::start_with(&[(
        "CONSOLE_TRACE_URL",
        "https://jaeger.example/trace/{trace_id}",
    )])
    .await;
    let mut browser = bench.sign_in("ana", OperatorRole::Operator).await;
    for path in [
        "/".to_owned(),
        format!("/orders/{}", bench.order),
        "/needs".to_owned(),
        "/partners".to_owned(),
        "/orders".to_owned(),
        "/webhooks".to_owned(),
        "/providers".to_owned(),
        "/resends".to_owned(),
        "/zone".to_owned(),
        format!("/partners/{}", bench.partner),
        "/actions".to_owned(),
        "/find?q=nothing".to_owned(),
    ] {
        let answer = browser.get(&path).await;
        assert_eq!(answer.status(), 200, "{path}");
        let policy = answer.headers()["content-security-policy"]
            .to_str()
            .unwrap();
        assert!(
            policy.contains("default-src 'none'") && !policy.contains("unsafe"),
            "{policy}"
        );
        assert_eq!(answer.headers()["cache-control"], "no-store", "{path}");
        let page = answer.text().await.unwrap();
        for secret in [CODE, URL_SECRET] {
            assert!(!page.contains(secret), "{path} shows {secret}");
        }
        assert!(!page.contains("<Sons>"), "{path} does not escape");
        for inline in [" style=", "<style", " onclick=", "javascript:"] {
            assert!(!page.contains(inline), "{path} has {inline}");
        }
        assert_eq!(page.matches("<script").count(), 2, "{path}");
    }
    let order = text(&mut browser, &format!("/orders/{}", bench.order)).await;
    assert!(order.contains("https://jaeger.example/trace/4bf92f3577b34da6a3ce929d0e0e4736"));
    assert!(
        !order.contains("Show its activation code"),
        "no key is configured"
    );
    bench.stop().await;
}

/// The version of the breaker of the provider.
async fn version(connection: &mut PgConnection) -> i64 {
    sqlx::query_scalar("SELECT version FROM providers WHERE name = 'sandbox'")
        .fetch_one(connection)
        .await
        .unwrap()
}

/// Records an action that has changed nothing.
async fn record_nothing_changed(connection: &mut PgConnection, target: &str) {
    let nothing = Action {
        actor: Actor::console("ana", "127.0.0.1"),
        command: domain::Command::ResendStart,
        target,
        reason: "a test",
    };
    let recorded: Result<(), pg::Error> = transaction!(connection, "a test", |transaction| {
        actions::record(transaction, nothing, 0, ActionChange::nothing()).await?;
        Ok(TransactionEnd::Commit(()))
    });
    recorded.unwrap();
}

#[tokio::test]
async fn an_action_on_a_changed_row_is_a_readable_conflict() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Operator).await;
    let token = browser.token.clone();
    let mut act = async |path: &str, more: &[(&str, &str)]| {
        let form = [&[("token", token.as_str()), ("reason", "a test")], more].concat();
        let answer = browser.post(path, &form).await;
        let status = answer.status().as_u16();
        let Some(to) = answer.headers().get(header::LOCATION).cloned() else {
            return (status, answer.text().await.unwrap());
        };
        // The next page says what was done, and a reload of it does not.
        let to = to.to_str().unwrap();
        let page = text(&mut browser, to).await;
        assert!(page.contains("It is in the record of actions"), "{page}");
        let reloaded = text(&mut browser, to).await;
        assert!(!reloaded.contains("It is in the record"), "{reloaded}");
        (status, page)
    };
    let resolve = format!("/placements/{}/resolve", bench.parked);
    let mut connection = bench.database.connect().await.unwrap();
    let (attempt, reason): (i32, Option<String>) =
        sqlx::query_as("SELECT attempt, reason FROM placements WHERE placement_id = $1")
            .bind(bench.parked.uuid())
            .fetch_one(&mut connection)
            .await
            .unwrap();
    // The page was shown before the placement was bought again and parked again.
    let before = parking(attempt - 1, &reason.clone().into());
    let (status, page) = act(&resolve, &[("found", "retry"), ("seen", &before)]).await;
    assert_eq!(status, 409, "{page}");
    // The page of a problem is a page like any other one: its reader can search, or go back.
    has(
        &page,
        "It has changed meanwhile | put on hold anew | role=\"search\" | role: operator | Back to the page",
    );
    let seen = parking(attempt, &reason.clone().into());
    let (status, page) = act(&resolve, &[("found", "not-bought"), ("seen", &seen)]).await;
    assert_eq!(status, 303, "{page}");
    let (status, page) = act(&resolve, &[("found", "retry"), ("seen", &seen)]).await;
    assert_eq!(status, 409, "{page}");
    has(&page, "The purchase no longer waits for you");

    let resend = format!("/deliveries/{}/resend", bench.topup);
    let (status, page) = act(&resend, &[("seen", "exhausted 8")]).await;
    assert_eq!(status, 303, "{page}");
    let (status, page) = act(&resend, &[("seen", "exhausted 8")]).await;
    assert_eq!(status, 409, "{page}");

    let closed = version(&mut connection).await.to_string();
    let open = [("seen", &closed[..]), ("for", "1h")];
    let (status, page) = act("/providers/sandbox/open", &open).await;
    assert_eq!(status, 303, "{page}");
    let (status, page) = act("/providers/sandbox/open", &open).await;
    assert_eq!(status, 409, "{page}");
    assert!(page.contains("now it is: stopped buying"), "{page}");
    let opened = version(&mut connection).await.to_string();
    // Lost commits open the breaker for ever. What was seen before is no longer true, and what is
    // seen now leads to a shell.
    sqlx::query(
        "UPDATE providers SET open_until = '9999-12-31 00:00:00+00', version = version + 1",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    let lost = version(&mut connection).await.to_string();
    for seen in [&opened, &lost] {
        let (status, page) = act("/providers/sandbox/close", &[("seen", seen)]).await;
        assert_eq!(status, 409, "{page}");
        assert!(page.contains("esimctl recover"), "{page}");
    }
    sqlx::query(
        "UPDATE providers SET open_until = now() + interval '1 hour', version = version + 1",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    let opened = version(&mut connection).await.to_string();
    let (status, page) = act("/providers/sandbox/close", &[("seen", &opened)]).await;
    assert_eq!(status, 303, "{page}");

    assert_eq!(
        bench.recorded().await,
        [
            "ana placement resolve --not-bought",
            "ana resend start",
            "ana provider open",
            "ana provider close",
        ]
    );
    // The timeline marks what found nothing to change as the screen of actions does.
    record_nothing_changed(&mut connection, &format!("delivery {}", bench.topup)).await;
    let order = text(&mut browser, &format!("/orders/{}", bench.order)).await;
    let mark = "<span class=\"badge note\">changed nothing</span>";
    assert_eq!(order.matches(mark).count(), 1, "{order}");
    let page = text(&mut browser, "/actions").await;
    let marked = page.matches(mark).count();
    assert!(
        page.contains("console at 127.0.0.1") && marked == 1,
        "{page}"
    );
    bench.stop().await;
}

/// A person says which provider has a purchase that several may have, and what became of a
/// give-back. Both are done in the console's own database role.
#[tokio::test]
async fn a_routed_purchase_and_a_parked_give_back_are_resolved_on_the_page_of_their_order() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Operator).await;
    let mut connection = bench.database.connect().await.unwrap();
    let parked_order: uuid::Uuid = sqlx::query_scalar(
        r#"UPDATE placements SET alternatives = '[{"provider": "airalo", "lane": "jp", "options": {}}]'
           WHERE placement_id = $1 RETURNING order_id"#,
    )
    .bind(bench.parked.uuid())
    .fetch_one(&mut connection)
    .await
    .unwrap();
    sqlx::query(
        "INSERT INTO esim_requests (topup_id, partner_id, provider, give_back, give_back_asked_at, attempt, reason,
                                    message, ended_at)
         VALUES ($1, $2, 'sandbox', 'parked', now(), 1, 'unknown', 'timeout', now())",
    )
    .bind(bench.topup.as_str())
    .bind(bench.partner.uuid())
    .execute(&mut connection)
    .await
    .unwrap();
    let is_there = |needs: &str| needs.contains("the last answer was: timeout");
    let needs = text_when(&mut browser, "/needs", is_there).await;
    let row = format!(
        "<a href=\"/esims/{topup}\" class=\"nowrap\">{topup}</a></td><td role=\"cell\" data-label=\"Partner\">Acme &#38; &#60;Sons&#62;</td>",
        topup = bench.topup
    );
    has(&needs, &row);
    has(
        &needs,
        "Number there | unit-1 | Settle them … | the last answer was: timeout | look it up at airalo, too",
    );

    let page = text(&mut browser, &format!("/orders/{parked_order}")).await;
    has(
        &page,
        "<option>sandbox</option><option>airalo</option> | it may also be at airalo: look there, too",
    );
    let token = browser.token.clone();
    let seen = parking(1, &Some("outcome_unknown: no answer".to_owned()).into());
    let mut form = vec![
        ("token", token.as_str()),
        ("reason", "a test"),
        ("found", "bought"),
        ("seen", &seen),
        ("provider", "nobody"),
    ];
    let path = format!("/placements/{}/resolve", bench.parked);
    let answer = browser.post(&path, &form).await;
    assert_eq!(answer.status(), 409);
    let page = answer.text().await.unwrap();
    has(&page, "<h1>That provider cannot have it</h1>");
    form[4].1 = "airalo";
    let answer = browser.post(&path, &form).await;
    assert_eq!(answer.status(), 303, "{:?}", answer.text().await);
    let (provider, lane): (String, String) =
        sqlx::query_as("SELECT provider, lane FROM placements WHERE placement_id = $1")
            .bind(bench.parked.uuid())
            .fetch_one(&mut connection)
            .await
            .unwrap();
    assert_eq!((&*provider, &*lane), ("airalo", "jp"));
    let page = text(&mut browser, &format!("/orders/{parked_order}")).await;
    has(&page, "ana found that airalo has the purchase");

    let page = text(&mut browser, &format!("/orders/{}", bench.order)).await;
    has(&page, "is on hold: find out at the provider");
    let path = format!("/give-backs/{}/resolve", bench.topup);
    let form = [
        ("token", token.as_str()),
        ("reason", "a test"),
        ("found", "returned"),
        ("seen", "1"),
    ];
    // What a page showed before the partner asked anew resolves nothing.
    let mut stale = form;
    stale[3].1 = "0";
    let answer = browser.post(&path, &stale).await;
    assert_eq!(answer.status(), 409);
    let answer = browser.post(&path, &form).await;
    assert_eq!(answer.status(), 303, "{:?}", answer.text().await);
    let answer = browser.post(&path, &form).await;
    assert_eq!(answer.status(), 409);
    let returned: bool = sqlx::query_scalar(
        "SELECT returned_at IS NOT NULL AND profile IS NULL FROM esims WHERE topup_id = $1",
    )
    .bind(bench.topup.as_str())
    .fetch_one(&mut connection)
    .await
    .unwrap();
    assert!(returned);
    assert_eq!(
        bench.recorded().await,
        [
            "ana placement resolve --bought",
            "ana give-back resolve --returned"
        ]
    );
    bench.stop().await;
}

/// An extension of which the provider did not say whether it was added is settled on the page of
/// its eSIM. A form that has seen another extension settles nothing.
#[tokio::test]
async fn a_parked_extension_is_resolved_on_the_page_of_its_esim() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Operator).await;
    let mut connection = bench.database.connect().await.unwrap();
    let id: uuid::Uuid = sqlx::query_scalar(
        "INSERT INTO extensions (extension_id, partner_id, topup_id, provider, external_id, option_id, provider_option_id, state,
                                 attempt, attempted_at, reason, message, ended_at)
         VALUES (gen_random_uuid(), $2, $1, 'sandbox', 'more-1', gen_random_uuid(), 'eu-5', 'parked', 1, now(), 'unknown',
                 'timeout', now())
         RETURNING extension_id",
    )
    .bind(bench.topup.as_str())
    .bind(bench.partner.uuid())
    .fetch_one(&mut connection)
    .await
    .unwrap();
    let is_there = |needs: &str| needs.contains("the last answer was: timeout");
    let needs = text_when(&mut browser, "/needs", is_there).await;
    has(&needs, "the last answer was: timeout");
    has(&needs, "/extensions/settle?provider=sandbox");
    let page = text(&mut browser, &format!("/esims/{}", bench.topup)).await;
    has(
        &page,
        "is on hold: find out at the provider whether it was added (the provider did not say whether it has extended the eSIM: \
         timeout)",
    );
    let page = text(&mut browser, &format!("/orders/{}", bench.order)).await;
    has(&page, "the extension more-1 of ");
    let path = format!("/extensions/{}/resolve", bench.topup);
    let token = browser.token.clone();
    let other = format!("1 {}", uuid::Uuid::nil());
    let seen = format!("1 {id}");
    for (seen, status) in [(&other, 409), (&seen, 303), (&seen, 409)] {
        let form = [
            ("token", token.as_str()),
            ("reason", "a test"),
            ("found", "added"),
            ("seen", seen),
        ];
        let answer = browser.post(&path, &form).await;
        assert_eq!(answer.status(), status, "{:?}", answer.text().await);
    }
    assert_eq!(bench.recorded().await, ["ana extension resolve --added"]);
    let page = text(&mut browser, &format!("/orders/{}", bench.order)).await;
    has(&page, "said that an extension was added");
    bench.stop().await;
}

#[tokio::test]
async fn an_activation_code_is_shown_with_a_reason_only_and_is_recorded() {
    let bench = Bench::start_with(&[
        ("CONSOLE_ACTIVATION_CODES", "true"),
        ("MASTER_KEY", testkit::settings::MASTER_KEY),
    ])
    .await;
    let mut browser = bench.sign_in("ana", OperatorRole::Support).await;
    let path = format!("/topups/{}/code", bench.topup);
    let token = browser.token.clone();
    let without = browser.post(&path, &[("token", &token)]).await;
    assert_eq!(without.status(), 422);
    assert_eq!(bench.recorded().await, Vec::<String>::new());
    let form = [("token", token.as_str()), ("reason", "ticket 4711")];
    let shown = browser.post(&path, &form).await.text().await.unwrap();
    assert!(shown.contains(CODE), "{shown}");
    assert_eq!(bench.recorded().await, ["ana topup show-code"]);
    bench.stop().await;
}

#[tokio::test]
async fn the_figures_alone_answer_htmx_and_no_cache_mixes_the_two_up() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    let page = browser.get("/").await;
    assert_eq!(page.headers()[header::VARY], "hx-request");
    let page = page.text().await.unwrap();
    assert!(
        page.contains("<!doctype html>") && page.contains("Read at"),
        "{page}"
    );
    let request = testkit::http::client()
        .unwrap()
        .get(format!("{}/", bench.base))
        .header("HX-Request", "true");
    let part = browser.send(request).await;
    assert_eq!(part.headers()[header::VARY], "hx-request");
    let part = part.text().await.unwrap();
    assert!(
        part.contains("Read at") && !part.contains("<html"),
        "{part}"
    );
    let paused = text(&mut browser, "/?paused=1").await;
    assert!(!paused.contains("every 5s"), "{paused}");
    bench.stop().await;
}

#[tokio::test]
async fn the_page_of_an_esim_says_whether_it_is_suspended() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    let mut connection = bench.database.connect().await.unwrap();
    esims::ask_suspension(&mut connection, bench.partner, &bench.topup, true)
        .await
        .unwrap();
    let page = format!("/esims/{}", bench.topup);
    let asked = text(&mut browser, &page).await;
    has(&asked, "asked to suspend it, the answer is awaited");
    for (state, said) in [("done", "yes, "), ("refused", "was refused: it is over, ")] {
        sqlx::query("UPDATE esim_requests SET suspension = $1, suspension_message = $2, suspension_ended_at = now()")
            .bind(state)
            .bind((state == "refused").then_some("it is over"))
            .execute(&mut connection)
            .await
            .unwrap();
        has(&text(&mut browser, &page).await, said);
    }
    let order = text(&mut browser, &format!("/orders/{}", bench.order)).await;
    has(&order, "asked to suspend an eSIM");
    bench.stop().await;
}
