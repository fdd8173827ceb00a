//! What support staff without a shell find on the pages.

use accounts::refused::{self, RefusedKind, RefusedRequest};
use console::access::OperatorRole;
use pg::PgConnection;
use runtime::clock;
use testkit::wait;
use uuid::Uuid;

use crate::support::{Bench, Browser, text};

#[tokio::test]
async fn a_refused_request_is_on_the_page_of_its_partner_and_found_by_its_ids() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    let partner = format!("/partners/{}", bench.partner);
    let refused = format!("{partner}/refused");
    assert!(text(&mut browser, &refused).await.contains("None is kept."));
    let request_id = Uuid::now_v7();
    let refusal = |request_id, kind, external_order_id: Option<&str>, unrecorded| RefusedRequest {
        request_id,
        partner_id: bench.partner,
        kind,
        at: clock::now(),
        status: 422,
        reason: "qty_invalid",
        errors: "qty_invalid; item=0".to_owned(),
        method: "POST".to_owned(),
        path: "/api/v1/api_partner/orders".to_owned(),
        external_order_id: external_order_id.map(str::to_owned),
        unrecorded,
    };
    let mut connection = bench.database.connect().await.unwrap();
    let kept = [
        refusal(request_id, RefusedKind::Order, Some("never <came>"), 0),
        refusal(Uuid::now_v7(), RefusedKind::Unsigned, None, 1234),
        RefusedRequest {
            reason: "signature_invalid",
            ..refusal(Uuid::now_v7(), RefusedKind::Unsigned, None, 0)
        },
        RefusedRequest {
            reason: "access_key_unknown",
            ..refusal(Uuid::now_v7(), RefusedKind::Unsigned, None, 0)
        },
    ];
    refused::keep(&mut connection, &kept, 100).await.unwrap();

    let page = text(&mut browser, &format!("{refused}?code=qty_invalid")).await;
    for part in [
        "never &#60;came&#62;",
        "qty_invalid; item=0",
        &request_id.simple().to_string(),
        "refused before the signature was looked at, so anybody",
        "the key had ended or the account was disabled, so the signature was not",
        "1\u{202f}234 more of this kind",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert_eq!(
        page.matches("the signature was not valid").count(),
        1,
        "{page}"
    );
    // One cause with its meaning and a text for the partner; three of its requests at first.
    let page = text(&mut browser, &refused).await;
    for part in [
        "1\u{202f}238 × qty_invalid (422)",
        "1\u{202f}238 requests of yours were answered with status 422 and the code qty_invalid",
        "?code=qty_invalid",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert_eq!(
        page.matches("data-label=\"Request id\"").count(),
        3,
        "{page}"
    );
    // Which of them was an order: by its id or a part of it, in any case, and by the request's id.
    for asked in ["NEVER", &request_id.simple().to_string()] {
        let page = text(&mut browser, &format!("{refused}?order={asked}")).await;
        for part in [
            format!("1 request names “{asked}”. Of 3 requests nobody knows the order"),
            "<h2>1 × qty_invalid (422)</h2>".to_owned(),
            "<a href=\"/find?q=never+%3Ccame%3E\"".to_owned(),
        ] {
            assert!(page.contains(&part), "{part}: {page}");
        }
    }
    let page = text(&mut browser, &format!("{refused}?order=another")).await;
    assert!(
        page.contains("None of the requests that are kept names “another”."),
        "{page}"
    );
    for id in ["never%20%3Ccame%3E", &request_id.simple().to_string()] {
        let found = text(&mut browser, &format!("/find?q={id}")).await;
        let link = format!("<a href=\"{partner}\">Acme &#38; &#60;Sons&#62;</a>");
        assert!(found.contains(&link), "{found}");
        assert!(found.contains("qty_invalid"), "{found}");
        assert!(!found.contains("Nothing has the id"), "{found}");
    }
    bench.stop().await;
}

/// Without a notifier that lives nothing is being sent, and nothing on the pages says so. Returns
/// the path of the webhook.
async fn waits_for_the_notifier(
    connection: &mut PgConnection,
    browser: &mut Browser,
    order: &str,
) -> String {
    sqlx::query("UPDATE work SET at = now() - interval '38 seconds'")
        .execute(&mut *connection)
        .await
        .unwrap();
    let delivery: Uuid = sqlx::query_scalar("SELECT delivery_id FROM deliveries LIMIT 1")
        .fetch_one(&mut *connection)
        .await
        .unwrap();
    let webhook = format!("/webhooks/{delivery}");
    let page = text(browser, order).await;
    assert!(
        page.contains("our service that sends webhooks does not work"),
        "{page}"
    );
    assert!(
        page.contains("It waits for our notifier, which does not work"),
        "{page}"
    );
    let next = "data-label=\"Next try\">once a notifier works<";
    assert!(
        page.contains(next) && !page.contains("It is being sent"),
        "{page}"
    );
    let page = text(browser, "/webhooks").await;
    assert!(page.contains(next), "{page}");
    let page = text(browser, &webhook).await;
    assert!(
        page.contains("It waits: our service that sends webhooks does not work"),
        "{page}"
    );
    assert!(page.contains("next try once a notifier works"), "{page}");
    webhook
}

#[tokio::test]
async fn support_is_led_to_what_it_may_do_and_offered_nothing_that_would_be_refused() {
    let bench = Bench::start().await;
    let mut support = bench.sign_in("sue", OperatorRole::Support).await;
    let mut operator = bench.sign_in("ana", OperatorRole::Operator).await;
    let needs = text(&mut support, "/needs").await;
    let exhausted = format!("/webhooks?partner={}&#38;state=exhausted", bench.partner);
    assert!(needs.contains(&exhausted), "{needs}");
    assert!(!needs.contains("/resends?partner="), "{needs}");
    // A parked purchase names its order and its partner.
    assert!(
        needs.contains(">parked</a></td><td role=\"cell\" data-label=\"Partner\">Acme &#38; &#60;Sons&#62;</td>"),
        "{needs}"
    );
    let needs = text(&mut operator, "/needs").await;
    assert!(needs.contains("/resends?partner="), "{needs}");
    let list = format!("/webhooks?partner={}&state=exhausted", bench.partner);
    let list = text(&mut support, &list).await;
    let order = format!("/orders/{}", bench.order);
    assert!(list.contains(&order) && list.contains("given up"), "{list}");

    let order = format!("/orders/{}", bench.order);
    assert!(
        text(&mut support, &order)
            .await
            .contains("Send its webhook again")
    );
    let mut connection = bench.database.connect().await.unwrap();
    for sql in [
        "UPDATE deliveries SET state = 'pending', attempt = 2",
        "DELETE FROM held WHERE state = 'exhausted'",
        "INSERT INTO work (id, kind, provider, lane, partner_id, at)
         SELECT delivery_id, 'deliver', '', '', partner_id, now() + interval '1 hour' FROM deliveries",
    ] {
        sqlx::query(sql).execute(&mut connection).await.unwrap();
    }
    let page = text(&mut support, &order).await;
    assert!(page.contains("Send its webhook again"), "{page}");
    let webhook = waits_for_the_notifier(&mut connection, &mut support, &order).await;
    // With one that lives, the state of the endpoint counts.
    sqlx::query(
        "INSERT INTO pulses (instance, stage, number, timeline, replicated, at)
         VALUES (gen_random_uuid(), 'notifier', 1, 1, false, now() + interval '1 minute')",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    let blocked = "UPDATE partner_endpoints SET failures = 20, blocks = 1, blocked_until = now() + interval '3 minutes'
                   WHERE endpoint_id = $1";
    let blocked = sqlx::query(blocked).bind(bench.partner.uuid());
    blocked.execute(&mut connection).await.unwrap();
    let page = text(&mut support, &order).await;
    assert!(!page.contains("Send its webhook again"), "{page}");
    assert!(
        page.contains("Its endpoint is blocked, so it waits"),
        "{page}"
    );
    assert!(page.contains("it only gets an occasional test"), "{page}");
    // What waits for the test of its endpoint is not tried in the past.
    let in_two = |page: &str| {
        let (_, next) = page.rsplit_once("data-label=\"Next try\">").unwrap();
        next.split("</td>").next().unwrap().contains(">in 2 min<")
    };
    assert!(in_two(&page) && !page.contains("38 s ago"), "{page}");
    wait::soon("the list of webhooks", async || {
        let page = text(&mut support, "/webhooks?state=pending").await;
        Ok(in_two(&page).then_some(()))
    })
    .await;
    let page = text(&mut support, &webhook).await;
    assert!(
        page.contains("It waits: your endpoint failed many times in a row"),
        "{page}"
    );
    assert!(!page.contains("It is sent again at"), "{page}");
    // In the list of steps + is since the order was received, as in the bar above it.
    let earlier = "UPDATE orders SET created_at = created_at - interval '2 hours'";
    sqlx::query(earlier).execute(&mut connection).await.unwrap();
    let page = text(&mut support, &order).await;
    let steps = page.matches("<span class=\"plus\">").count();
    let late = page.matches("<span class=\"plus\">+2h 0m</span>").count();
    assert!(late > 1 && late == steps - 1, "{late} of {steps}: {page}");
    // The overview does not say that nothing waits.
    let waits = "INSERT INTO work (id, kind, provider, lane, partner_id, at)
                 SELECT delivery_id, 'deliver', '', '', partner_id, now() FROM deliveries LIMIT 1
                 ON CONFLICT DO NOTHING";
    sqlx::query(waits).execute(&mut connection).await.unwrap();
    wait::soon("the webhooks of the blocked endpoint", async || {
        let page = text(&mut support, "/").await;
        let held_back = "<dt>Held back (endpoints)</dt><dd>1</dd>";
        Ok(page.contains(held_back).then_some(()))
    })
    .await;
    bench.stop().await;
}

/// A page that is not there says what it was asked for, and its reader can search from it.
#[tokio::test]
async fn who_asks_for_something_else_is_told_which_ids_there_are() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    let unknown = Uuid::now_v7();
    for (path, says) in [
        (
            "/orders/4711%20%C3%A9".to_owned(),
            "“4711 é” is not the id of an order: an id of this kind is a UUID",
        ),
        (format!("/orders/{unknown}"), "No order has the id"),
        (
            "/orders/%FF".to_owned(),
            "“\u{fffd}” is not the id of an order",
        ),
        (
            "/partners/x%E2%80%AEy".to_owned(),
            "“x\\u{202e}y” is not the id of a partner",
        ),
        (
            format!("/orders/{}", "1".repeat(10_000)),
            "1…” is not the id of an order",
        ),
        ("/resends/x".to_owned(), "No resend has the id"),
        ("/nothing".to_owned(), "no such page"),
    ] {
        let answer = browser.get(&path).await;
        assert_eq!(answer.status(), 404, "{path}");
        assert_eq!(answer.headers()["cache-control"], "no-store", "{path}");
        let page = answer.text().await.unwrap();
        for part in [says, "role=\"search\"", "role: viewer"] {
            assert!(page.contains(part), "{path}: no {part:?} in {page}");
        }
        // Without a session there is nothing to search.
        let page = bench.browser().get(&path).await.text().await.unwrap();
        assert!(!page.contains("role: viewer"), "{page}");
    }
    for asked in ["4711", &"9".repeat(10_000)] {
        let found = text(&mut browser, &format!("/find?q={asked}")).await;
        assert!(found.contains("What to try next"), "{found}");
    }
    bench.stop().await;
}

/// A page that takes no forms, and an action that is no page, say which of the two they are.
#[tokio::test]
async fn an_address_says_what_it_takes() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    let answer = browser.post("/needs", &[("reason", "x")]).await;
    assert_eq!(answer.status(), 405);
    let page = answer.text().await.unwrap();
    assert!(page.contains("This address takes no form"), "{page}");
    assert!(!page.contains("takes the forms"), "{page}");
    let answer = browser.get("/resends/1/cancel").await;
    assert_eq!(answer.status(), 405);
    let page = answer.text().await.unwrap();
    assert!(page.contains("This address takes the forms"), "{page}");
    bench.stop().await;
}

/// Each order of a partner says what its units are at, and control characters of others do nothing.
#[tokio::test]
async fn an_order_that_is_on_hold_or_given_back_says_so() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    let mut connection = bench.database.connect().await.unwrap();
    for sql in [
        "UPDATE esims SET returned_at = now()",
        "UPDATE orders SET external_order_id = E'a\\u202Eb\\u0007' WHERE external_order_id = 'parked'",
    ] {
        sqlx::query(sql).execute(&mut connection).await.unwrap();
    }
    let page = text(&mut browser, &format!("/partners/{}", bench.partner)).await;
    for part in [
        "given back</span></td><td role=\"cell\" data-label=\"eSIMs\">1 × ready<small>1 eSIM: 1 given back</small></td>",
        "on hold</span></td><td role=\"cell\" data-label=\"eSIMs\">1 × ready<small>1 eSIM: 1 on hold</small></td>",
        "a\\u{202e}b\\u{7}",
    ] {
        assert!(page.contains(part), "no {part:?} in {page}");
    }
    bench.stop().await;
}

/// The form of a parked purchase carries why it is parked. Whatever a provider has written there,
/// the form that comes back is about the same parking.
#[tokio::test]
async fn a_reason_with_control_characters_does_not_keep_a_purchase_from_being_resolved() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Operator).await;
    let mut connection = bench.database.connect().await.unwrap();
    let order: Uuid = sqlx::query_scalar(
        "UPDATE placements SET reason = E' said \"no\"\\r\\n\\u202Ebecause \\u0007é ' WHERE placement_id = $1
         RETURNING order_id",
    )
    .bind(bench.parked.uuid())
    .fetch_one(&mut connection)
    .await
    .unwrap();
    let page = text(&mut browser, &format!("/orders/{order}")).await;
    let (_, seen) = page.split_once("name=\"seen\" value=\"").unwrap();
    let seen = seen.split('"').next().unwrap().replace("&#34;", "\"");
    let token = browser.token.clone();
    let form = [
        ("token", token.as_str()),
        ("reason", "a test"),
        ("found", "not-bought"),
        ("seen", &seen),
    ];
    let path = format!("/placements/{}/resolve", bench.parked);
    let answer = browser.post(&path, &form).await;
    assert_eq!(answer.status(), 303, "{:?}", answer.text().await);
    bench.stop().await;
}

/// Whoever looks at a page while the database is away learns what that means and what to do, and
/// the page asks again by itself. A form does not.
#[tokio::test]
async fn a_database_that_is_away_is_named_with_what_to_do() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    let mut connection = bench.database.connect().await.unwrap();
    let name: String = sqlx::query_scalar("SELECT current_database()::text")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    // It binds everybody but superusers.
    let away = format!("ALTER DATABASE \"{name}\" CONNECTION LIMIT 0");
    let ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                 WHERE datname = current_database() AND usename = 'esim_console'";
    for sql in [away.as_str(), ended] {
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
            .execute(&mut connection)
            .await
            .unwrap();
    }
    let answer = browser.get("/").await;
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.headers()["refresh"], "10");
    let page = answer.text().await.unwrap();
    for part in [
        // Nobody can look who asks, so the page has no navigation, but it says which system it is
        // of.
        "<span class=\"env\">Live</span>",
        "<h1>The console cannot read its database</h1>",
        "nothing is bought twice by that",
        "<code class=\"cmd\">esimctl doctor</code>",
        "href=\"/\">Try again now</a>",
        "again every 10 s",
    ] {
        assert!(page.contains(part), "no {part:?} in {page}");
    }
    let refreshed = testkit::http::client()
        .unwrap()
        .get(format!("{}/?range=24h", bench.base))
        .header("HX-Request", "true");
    let part = browser.send(refreshed).await.text().await.unwrap();
    assert!(
        part.contains("The console cannot read its database"),
        "{part}"
    );
    assert!(
        part.contains("hx-get=\"/?range=24h\"")
            && part.contains("again every 5 s")
            && !part.contains("<html"),
        "{part}"
    );
    let token = browser.token.clone();
    let form = browser.post("/sign-out", &[("token", &token)]).await;
    assert_eq!(form.status(), 503);
    assert!(!form.headers().contains_key("refresh"));
    bench.stop().await;
}
