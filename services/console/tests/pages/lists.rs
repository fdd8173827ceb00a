//! The lists, the box while somebody types, the zone of times, and what each page says of its
//! system.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use console::access::OperatorRole;
use pg::PgConnection;
use store::figures;
use uuid::Uuid;

use crate::support::{Bench, Browser, EXTERNAL, ICCID, text};

#[tokio::test]
async fn orders_are_listed_by_partner_state_and_time_and_as_csv() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    let link = |id: String| format!("href=\"/orders/{id}\"");
    let one = link(bench.order.to_string());
    let all = text(&mut browser, "/orders").await;
    assert!(all.contains(&one) && all.contains(">parked<"), "{all}");
    for fits in [
        "?partner=acme".to_owned(),
        format!("?partner={}", bench.partner),
        "?state=ready".to_owned(),
        "?provider=sandbox&since=1h".to_owned(),
        "?from=2020-01-01T00:00".to_owned(),
    ] {
        let page = text(&mut browser, &format!("/orders{fits}")).await;
        assert!(page.contains(&one), "{fits}: {page}");
    }
    for fits_not in [
        "?partner=nobody",
        "?state=refused",
        "?provider=airalo",
        "?until=2020-01-01T00:00",
    ] {
        let page = text(&mut browser, &format!("/orders{fits_not}")).await;
        assert!(!page.contains(&one), "{fits_not}: {page}");
    }
    let nobody = text(&mut browser, "/orders?partner=%3Cnobody").await;
    assert!(nobody.contains("No partner has “&#60;nobody”"), "{nobody}");

    // What others have chosen is no formula in the program that opens the file.
    let mut connection = bench.database.connect().await.unwrap();
    sqlx::query("UPDATE orders SET external_order_id = '=1+1' WHERE external_order_id = 'parked'")
        .execute(&mut connection)
        .await
        .unwrap();
    let answer = browser.get("/orders.csv").await;
    assert_eq!(answer.headers()["content-type"], "text/csv; charset=utf-8");
    let bytes = answer.bytes().await.unwrap();
    assert!(
        bytes.starts_with("\u{feff}".as_bytes()),
        "Excel needs the mark of UTF-8"
    );
    let csv = String::from_utf8(bytes.to_vec()).unwrap();
    let csv = csv.trim_start_matches('\u{feff}');
    assert_eq!(csv.lines().count(), 3, "{csv}");
    assert!(csv.contains(EXTERNAL) && csv.contains(",'=1+1,"), "{csv}");
    // It is sent to partners: where we buy is ours, and why and whether the webhook came is theirs.
    assert!(!csv.contains("sandbox"), "{csv}");
    let (head, rows) = csv.split_once('\n').unwrap();
    // From the end, because a comma stands in the products of an order.
    let column = |name: &str| head.rsplit(',').position(|one| one == name).unwrap();
    let of = |order: &str, name: &str| {
        let row = rows.lines().find(|row| row.contains(order)).unwrap();
        row.rsplit(',').nth(column(name)).unwrap().to_owned()
    };
    assert_eq!(
        of("'=1+1", "reason"),
        "we are clarifying the purchase with the provider"
    );
    assert_eq!(of(EXTERNAL, "reason"), "");
    assert_eq!(of(EXTERNAL, "webhooks_given_up"), "1");
    bench.stop().await;
}

#[tokio::test]
async fn each_failed_esim_is_a_line_of_a_file_for_its_partner() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    let mut connection = bench.database.connect().await.unwrap();
    sqlx::query(
        "WITH failed AS (UPDATE placements SET state = 'failed', reason = 'rejected: no stock at sandbox'
                         WHERE state = 'parked' RETURNING placement_id)
         UPDATE topups SET state = 'failed' WHERE placement_id IN (SELECT placement_id FROM failed)",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    let failed: String = sqlx::query_scalar("SELECT topup_id FROM topups WHERE state = 'failed'")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    let page = text(&mut browser, "/orders?state=failed").await;
    assert!(
        page.contains("href=\"/failed-esims.csv?state=failed\""),
        "{page}"
    );
    let csv = text(&mut browser, "/failed-esims.csv?state=failed").await;
    assert_eq!(csv.lines().count(), 2, "{csv}");
    let row = csv.lines().nth(1).unwrap();
    assert!(
        row.contains(&format!("Z,{failed},ready,the provider rejected")),
        "{row}"
    );
    assert!(
        row.contains(",parked,") && !csv.contains("sandbox"),
        "{csv}"
    );
    // Both files say the same of an order that was refused.
    for sql in [
        "UPDATE placements SET reason = 'order_refused' WHERE state = 'failed'",
        "UPDATE orders SET refused_at = now() WHERE external_order_id = 'parked'",
    ] {
        sqlx::query(sql).execute(&mut connection).await.unwrap();
    }
    for file in ["orders", "failed-esims"] {
        let csv = text(&mut browser, &format!("/{file}.csv?state=refused")).await;
        let row = csv.lines().nth(1).unwrap_or_default();
        assert!(row.contains(",the provider could not be reached,"), "{csv}");
    }
    bench.stop().await;
}

/// The clock that makes ids may be ahead of that which stores when an order was received.
#[tokio::test]
async fn the_time_that_is_shown_decides_which_orders_fit() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    let mut connection = bench.database.connect().await.unwrap();
    let until: String = sqlx::query_scalar(
        "WITH moved AS (UPDATE orders SET created_at = created_at - interval '4 minutes' RETURNING created_at)
         SELECT to_char(max(created_at) AT TIME ZONE 'UTC' + interval '1 minute', 'YYYY-MM-DD\"T\"HH24:MI') FROM moved",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    let csv = text(&mut browser, &format!("/orders.csv?until={until}")).await;
    assert_eq!(csv.lines().count(), 3, "{csv}");
    bench.stop().await;
}

/// Stores copies of an order, one a second before the other.
async fn copies(connection: &mut PgConnection, order: Uuid, number: i32) {
    sqlx::query(
        "INSERT INTO orders (order_id, partner_id, external_order_id, answer_by, created_at)
         SELECT gen_random_uuid(), partner_id, 'copy-' || n, answer_by, created_at - n * interval '1 second'
         FROM orders, generate_series(1, $2) n WHERE order_id = $1",
    )
    .bind(order)
    .bind(number)
    .execute(connection)
    .await
    .unwrap();
}

#[tokio::test]
async fn a_list_goes_on_where_its_page_ended() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    let mut connection = bench.database.connect().await.unwrap();
    copies(&mut connection, bench.order.uuid(), 60).await;
    let mut path = "/orders".to_owned();
    let mut seen = Vec::new();
    for _ in 0..10 {
        let page = text(&mut browser, &path).await;
        let rows = page.split("class=\"lead\" data-label=\"Order\"><a href=\"");
        seen.extend(
            rows.skip(1)
                .map(|row| row.split('"').next().unwrap().to_owned()),
        );
        let Some((before, _)) = page.split_once("\">Older") else {
            break;
        };
        path = before.rsplit('"').next().unwrap().replace("&#38;", "&");
    }
    assert_eq!(seen.len(), 62, "{seen:?}");
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 62, "an order stands on two pages");
    bench.stop().await;
}

/// The rows of the pages of a list, read to its end by the links to the older ones.
async fn rows_of(browser: &mut Browser, path: &str, row: &str) -> Vec<String> {
    let mut path = path.to_owned();
    let mut seen = Vec::new();
    for _ in 0..10 {
        let page = text(browser, &path).await;
        let rows = page.split(row);
        seen.extend(
            rows.skip(1)
                .map(|row| row.split(['"', '<']).next().unwrap().to_owned()),
        );
        let Some((before, _)) = page.split_once("\">Older") else {
            break;
        };
        path = before.rsplit('"').next().unwrap().replace("&#38;", "&");
    }
    seen.sort_unstable();
    seen
}

#[tokio::test]
async fn the_list_of_webhooks_goes_on_where_its_page_ended() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    let mut connection = bench.database.connect().await.unwrap();
    let copied = sqlx::query(
        "WITH new AS MATERIALIZED (
             SELECT gen_random_uuid() AS id, '2024' || lpad(n::text, 22, '0') AS topup_id, n FROM generate_series(1, 60) n
         ), t AS (
             INSERT INTO topups (topup_id, placement_id, position, option_id, provider_option_id)
             SELECT new.topup_id, placement_id, n, option_id, provider_option_id FROM new, topups WHERE topups.topup_id = $1
         ), e AS (
             INSERT INTO esims (topup_id, provider, provider_unit_id, iccid, ready_at, delivery_id)
             SELECT topup_id, 'sandbox', 'c' || n, '89' || lpad(n::text, 17, '0'), now(), id FROM new
         )
         INSERT INTO deliveries (delivery_id, partner_id, kind, topup_id, order_id, state, attempt, created_at)
         SELECT id, partner_id, kind, new.topup_id, order_id, 'delivered', 1, created_at - n * interval '1 second'
         FROM new, deliveries WHERE deliveries.topup_id = $1",
    );
    copied
        .bind(bench.topup.as_str())
        .execute(&mut connection)
        .await
        .unwrap();
    let row = "<small><a class=\"id\" href=\"/esims/";
    for filter in ["", "&provider=sandbox", "&since=1h&provider=sandbox"] {
        let path = format!("/webhooks?partner=acme{filter}");
        let mut seen = rows_of(&mut browser, &path, row).await;
        assert_eq!(seen.len(), 61, "{filter}: {seen:?}");
        seen.dedup();
        assert_eq!(seen.len(), 61, "a webhook stands on two pages");
    }
    bench.stop().await;
}

#[tokio::test]
async fn orders_and_webhooks_are_listed_by_product() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    let mut connection = bench.database.connect().await.unwrap();
    let mut option = async |name: &str, provider: &str| {
        let id = Uuid::now_v7();
        sqlx::query(
            "INSERT INTO options (option_id, name, provider, provider_option_id, environment, enabled)
             VALUES ($1, $2, $3, $2, 'live', true)",
        )
        .bind(id)
        .bind(name)
        .bind(provider)
        .execute(&mut connection)
        .await
        .unwrap();
        id
    };
    let sold = option("Thailand <1 GB>", "sandbox").await;
    option("Twice", "sandbox").await;
    option("Twice", "airalo").await;
    sqlx::query("UPDATE topups SET option_id = $1 WHERE topup_id = $2")
        .bind(sold)
        .bind(bench.topup.as_str())
        .execute(&mut connection)
        .await
        .unwrap();
    let link = |order: &str| format!("href=\"/orders/{order}\"");
    let order = link(&bench.order.to_string());
    for list in ["/orders", "/webhooks"] {
        for product in ["Thailand%20%3C1%20GB%3E", &sold.to_string()] {
            let page = text(&mut browser, &format!("{list}?product={product}")).await;
            assert!(page.contains(&order), "{list} {product}: {page}");
            assert!(!page.contains(">parked<"), "{page}");
            let csv = text(&mut browser, &format!("{list}.csv?product={product}")).await;
            assert_eq!(csv.lines().count(), 2, "{csv}");
        }
        let twice = text(&mut browser, &format!("{list}?product=Twice")).await;
        assert!(twice.contains("2 products have the name"), "{twice}");
        let none = text(&mut browser, &format!("{list}?product=%3Cx")).await;
        assert!(
            none.contains("No product has the name or id “&#60;x”"),
            "{none}"
        );
        assert!(!none.contains(&order), "{none}");
    }
    bench.stop().await;
}

#[tokio::test]
async fn the_record_is_listed_by_act() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Operator).await;
    let mut connection = bench.database.connect().await.unwrap();
    for command in ["provider open", "provider close", "provider close"] {
        sqlx::query(
            "INSERT INTO operator_actions (action_id, operator, command, target, affected, reason, via)
             VALUES (gen_random_uuid(), 'ana', $1, 'provider sandbox', 1, 'a test', 'console')",
        )
        .bind(command)
        .execute(&mut connection)
        .await
        .unwrap();
    }
    for (what, rows) in [
        ("provider%20close", 2),
        ("provider%20open", 1),
        ("order%20erase", 0),
    ] {
        let page = text(&mut browser, &format!("/actions?what={what}")).await;
        assert_eq!(page.matches("data-label=\"What\"").count(), rows, "{page}");
        let csv = text(&mut browser, &format!("/actions.csv?what={what}")).await;
        assert_eq!(csv.lines().count(), rows + 1, "{csv}");
    }
    for (filters, rows) in [("via=console", 3), ("via=esimctl", 0), ("via=api", 0)] {
        let page = text(&mut browser, &format!("/actions?{filters}&by=ana")).await;
        let found = page.matches("href=\"/providers#sandbox\"").count();
        assert_eq!(found, rows, "{filters}: {page}");
    }
    sqlx::query(
        "INSERT INTO operator_actions (action_id, operator, command, target, affected, reason, via)
         VALUES (gen_random_uuid(), 'partner', 'topup give-back', 'topup 20240000000000000000000009', 1, 'its request', 'api')",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    let page = text(&mut browser, "/actions?via=api").await;
    let link = "<a href=\"/esims/20240000000000000000000009\">an eSIM</a>";
    assert!(
        page.contains(link) && !page.contains("/providers#"),
        "{page}"
    );
    let page = text(&mut browser, "/actions?what=provider%20close").await;
    assert!(
        page.contains("selected>let a provider buy again<"),
        "{page}"
    );
    assert!(
        page.contains("/actions.csv?what=provider+close\""),
        "{page}"
    );
    bench.stop().await;
}

#[tokio::test]
async fn webhooks_are_listed_by_state_and_as_csv() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    let given_up = text(&mut browser, "/webhooks?state=exhausted&partner=acme").await;
    assert!(given_up.contains(bench.topup.as_str()), "{given_up}");
    // The page with the answer to each try is one click from the list and from the order.
    for page in [
        given_up,
        text(&mut browser, &format!("/orders/{}", bench.order)).await,
    ] {
        let (_, link) = page.split_once("<a href=\"/webhooks/").unwrap();
        let id = link.split('"').next().unwrap();
        let webhook = text(&mut browser, &format!("/webhooks/{id}")).await;
        assert!(
            webhook.contains("What the endpoint has answered")
                && webhook.contains("to hooks.example.com was not sent yet.")
                && webhook.contains("We have given it up."),
            "{webhook}"
        );
    }
    let delivered = text(&mut browser, "/webhooks?state=delivered").await;
    assert!(delivered.contains("No webhook fits."), "{delivered}");
    let csv = text(&mut browser, "/webhooks.csv?state=exhausted").await;
    assert!(csv.contains(bench.topup.as_str()), "{csv}");
    bench.stop().await;
}

/// A webhook that was given up is counted wherever somebody looks, and its order is not called
/// well.
#[tokio::test]
async fn a_webhook_that_was_given_up_is_counted_on_every_page() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    for (path, told) in [
        ("/webhooks?state=exhausted", bench.topup.as_str()),
        ("/webhooks", "Given up <small>1</small>"),
        ("/webhooks", "<h2>Endpoints with failures</h2>"),
        ("/partners", "With a problem of its own <small>1</small>"),
        ("/needs", "given up after the last retry"),
        ("/partners", "1 webhook given up"),
        ("/orders", "ready, not delivered"),
    ] {
        let page = text(&mut browser, path).await;
        assert!(page.contains(told), "no {told:?} at {path}: {page}");
    }
    // With a filter the number would be that of other webhooks.
    let filtered = text(&mut browser, "/webhooks?partner=acme").await;
    assert!(!filtered.contains("Given up <small>"), "{filtered}");
    let page = text(&mut browser, &format!("/partners/{}", bench.partner)).await;
    for part in [
        "ready, not delivered",
        " · status 500</dd>",
        "<dt>Last taken</dt><dd>–</dd>",
        "<dt>Oldest waits</dt>",
        "It has set no channel for notices, so tell it about its endpoints yourself.",
    ] {
        assert!(page.contains(part), "no {part:?} in {page}");
    }
    bench.stop().await;
}

/// Stores a partner with an order on each of these days ago, and names it.
async fn store_partner_with_orders(connection: &mut PgConnection, name: &str, days: &[i32]) {
    sqlx::query(
        "WITH partner AS (
             INSERT INTO partners (partner_id, name, environment, access_key, version)
             VALUES (gen_random_uuid(), $1, 'live', $1, 0) RETURNING partner_id
         ), times AS (
             SELECT now() - days * interval '1 day' - interval '1 hour' AS at FROM unnest($2::int[]) days)
         INSERT INTO orders (order_id, partner_id, external_order_id, answer_by, created_at)
         SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '70008000'
                 || left(md5($1 || at), 12))::uuid, partner_id, at::text, at, at
         FROM times, partner",
    )
    .bind(name)
    .bind(days)
    .execute(connection)
    .await
    .unwrap();
}

#[tokio::test]
async fn partners_are_sorted_and_one_that_has_stopped_ordering_is_quiet() {
    let bench = Bench::start().await;
    let mut connection = bench.database.connect().await.unwrap();
    store_partner_with_orders(&mut connection, "Busy", &[0, 1, 2]).await;
    store_partner_with_orders(&mut connection, "Quiet", &[1, 2, 3, 4, 5, 6]).await;
    store_partner_with_orders(&mut connection, "Rare", &[1, 5]).await;
    sqlx::query(
        "INSERT INTO refused_requests
             (request_id, partner_id, kind, at, status, reason, errors, method, path, unrecorded)
         SELECT gen_random_uuid(), partner_id, 'order', now(), 422, 'qty_invalid', 'qty_invalid', 'POST', '/', 0
         FROM partners WHERE name = 'Rare'",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    sqlx::query(
        "WITH placement AS (
             INSERT INTO placements (placement_id, order_id, partner_id, provider, lane, state, attempt, attempted_at)
             SELECT order_id, order_id, partner_id, 'sandbox', 'ready', 'placing', 1, now() FROM orders
             WHERE partner_id = (SELECT partner_id FROM partners WHERE name = 'Busy') RETURNING *)
         INSERT INTO work (id, kind, provider, lane, partner_id, at)
         SELECT placement_id, 'look_up', provider, lane, partner_id, now() FROM placement",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    sqlx::query(
        "INSERT INTO topups (topup_id, placement_id, position, option_id, provider_option_id)
         SELECT '2024' || lpad(row_number() OVER ()::text, 22, '0'), placement_id, 0, placement_id, 'ready' FROM placements
         WHERE partner_id = (SELECT partner_id FROM partners WHERE name = 'Busy')",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    // Nothing has gone wrong with them yet, so no reason is stored.
    let listed = text(&mut browser, "/orders").await;
    assert_eq!(listed.matches("under way</span>").count(), 3, "{listed}");
    let acme = "Acme &#38; &#60;Sons&#62;";
    for (sort, first) in [
        ("orders", acme),
        ("name", acme),
        ("last", "Quiet"),
        ("oldest", "Busy"),
        ("refused", "Rare"),
    ] {
        let page = text(&mut browser, &format!("/partners?sort={sort}")).await;
        let (_, rows) = page.split_once("<tbody").unwrap();
        let name = rows.split("</a>").next().unwrap().rsplit('>').next();
        assert_eq!(name, Some(first), "{sort}");
    }
    let quiet = text(&mut browser, "/partners?state=quiet").await;
    for part in [
        "Quiet for a day <small>1</small>",
        "quiet for 1 d 1 h",
        "none; usually 1 a day",
    ] {
        assert!(quiet.contains(part), "no {part:?} in {quiet}");
    }
    assert!(
        !quiet.contains(">Rare<") && !quiet.contains(">Busy<"),
        "{quiet}"
    );
    let all = text(&mut browser, "/partners").await;
    assert!(
        all.contains("<span class=\"badge bad\">3 purchases wait</span>"),
        "{all}"
    );
    for (name, parts) in [
        (
            "Busy",
            [
                "3 of its orders wait for sandbox",
                "3 of your orders take longer than usual: ",
                "<b>Getting the eSIMs</b><span>3 orders wait; none in 24 h</span>",
            ],
        ),
        (
            "Quiet",
            [
                "it has been quiet for 1 d 1 h; on a day before it sent 1 order",
                "no order of yours has come; before, you sent about 1 order a day.",
                "<b>Refused requests</b><span>0, beside 0 orders in 24 h</span>",
            ],
        ),
    ] {
        let found = browser.get(&format!("/find?q={name}")).await;
        let path = found.headers()["location"].to_str().unwrap().to_owned();
        let page = text(&mut browser, &path).await;
        for part in parts {
            assert!(page.contains(part), "no {part:?} in {page}");
        }
        assert!(page.contains("data-copy=\"say-"), "{page}");
    }
    let csv = text(&mut browser, "/partners.csv?sort=refused").await;
    let first = csv.lines().nth(1).unwrap();
    assert!(first.starts_with("Rare,") && first.ends_with(",1"), "{csv}");
    bench.stop().await;
}

#[tokio::test]
async fn an_esim_has_a_page_with_its_ids_and_its_acts() {
    let bench = Bench::start().await;
    let path = format!("/esims/{}", bench.topup);
    let order = format!("href=\"/orders/{}\"", bench.order);
    for (name, role, may) in [
        ("vic", OperatorRole::Viewer, false),
        ("sue", OperatorRole::Support, true),
    ] {
        let mut browser = bench.sign_in(name, role).await;
        let page = text(&mut browser, &path).await;
        let external = EXTERNAL.replace('&', "&#38;");
        for part in [ICCID, &external, bench.topup.as_str(), &order] {
            assert!(page.contains(part), "no {part:?} in {page}");
        }
        assert_eq!(page.contains("Send its webhook again"), may, "{page}");
        let other = browser.get("/esims/20250101000000000000000000").await;
        assert_eq!(other.status(), 404);
    }
    bench.stop().await;
}

#[tokio::test]
async fn the_sentence_for_a_partner_is_there_as_plain_text() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    let path = format!("/orders/{}/sentence.txt", bench.order);
    let answer = browser.get(&path).await;
    assert_eq!(
        answer.headers()["content-type"],
        "text/plain; charset=utf-8"
    );
    let sentence = answer.text().await.unwrap();
    assert!(
        sentence.starts_with("Order ") && sentence.contains(EXTERNAL),
        "{sentence}"
    );
    bench.stop().await;
}

#[tokio::test]
async fn who_types_a_part_of_a_name_is_led_to_its_partner() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    let partner = format!("/partners/{}", bench.partner);
    let hints = text(&mut browser, "/hints?q=CME").await;
    assert!(hints.contains(&format!("href=\"{partner}\"")), "{hints}");
    assert!(!hints.contains("<Sons>"), "{hints}");
    // The only one with this part is shown at once.
    let found = browser.get("/find?q=cme").await;
    assert_eq!(found.status(), 303);
    assert_eq!(found.headers()["location"], partner.as_str());
    // The beginning of an order's id leads to the order.
    let hints = text(&mut browser, "/hints?q=a%2Fb%3Fc").await;
    assert!(
        hints.contains(&format!("href=\"/orders/{}\"", bench.order)),
        "{hints}"
    );
    assert!(hints.contains("<mark>a/b?c</mark>"), "{hints}");
    let nothing = text(&mut browser, "/hints?q=zz").await;
    assert!(!nothing.contains("href"), "{nothing}");
    bench.stop().await;
}

#[tokio::test]
async fn times_are_in_the_zone_that_the_reader_has_chosen() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    let mut connection = bench.database.connect().await.unwrap();
    sqlx::query("UPDATE orders SET created_at = '2026-01-29 12:00:00+00'")
        .execute(&mut connection)
        .await
        .unwrap();
    let order = format!("/orders/{}", bench.order);
    let page = text(&mut browser, &order).await;
    assert!(page.contains("Thu 29 Jan 2026 12:00:00 UTC"), "{page}");
    let token = browser.token.clone();
    for (zone, status) in [("Europe/Nowhere", 422), ("Asia/Tokyo", 303)] {
        let form = [("token", token.as_str()), ("zone", zone), ("back", &order)];
        let answer = browser.post("/zone", &form).await;
        assert_eq!(answer.status(), status, "{zone}");
    }
    let page = text(&mut browser, &order).await;
    assert!(
        page.contains("Thu 29 Jan 2026 21:00:00 Tokyo · 12:00:00 UTC"),
        "{page}"
    );
    assert!(page.contains("times: Tokyo, UTC+9"), "{page}");
    // What is pasted to a partner stays in UTC.
    let (_, sentence) = page.split_once("<blockquote id=\"sentence\">").unwrap();
    let sentence = sentence.split("</blockquote>").next().unwrap();
    assert!(
        sentence.contains("UTC") && !sentence.contains("21:00"),
        "{sentence}"
    );
    assert_eq!(bench.recorded().await, Vec::<String>::new());
    bench.stop().await;
}

#[tokio::test]
async fn each_page_says_which_system_it_is_also_before_the_sign_in() {
    let bench = Bench::start_with(&[
        ("CONSOLE_ENVIRONMENT", "test"),
        ("CONSOLE_PLACE", "staging, Frankfurt"),
    ])
    .await;
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    let mut guest = bench.browser();
    for (browser, path) in [(&mut browser, "/orders"), (&mut guest, "/sign-in")] {
        let page = text(browser, path).await;
        for part in [
            "<body class=\"test\">",
            "is-test\">Test<",
            "· eSIM Partner Orders (test)</title>",
        ] {
            assert!(page.contains(part), "{path}: no {part:?} in {page}");
        }
    }
    let overview = text(&mut browser, "/").await;
    assert!(overview.contains("staging, Frankfurt"), "{overview}");
    // What waits for a person is counted on every page.
    let orders = text(&mut browser, "/orders").await;
    assert!(
        orders.contains("<span class=\"hear\">, waiting: </span>"),
        "{orders}"
    );
    bench.stop().await;
}

#[tokio::test]
async fn the_charts_have_their_values_as_csv() {
    let bench = Bench::start().await;
    let mut connection = bench.database.connect().await.unwrap();
    let mut count = figures::Count::default();
    count.note(Some(std::time::Duration::from_millis(120)), false);
    count.note(Some(std::time::Duration::from_millis(120)), true);
    let now = runtime::clock::now();
    let figure = figures::Figure {
        at: now - time::Duration::seconds(now.unix_timestamp().rem_euclid(60)),
        measure: figures::Measure::Answered,
        subject: String::new(),
        count,
    };
    figures::add(&mut connection, Uuid::now_v7(), &[figure])
        .await
        .unwrap();
    // The first page that is opened reads the figures, and they are kept for some seconds.
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    for (range, rows) in [("1h", 61), ("6h", 73), ("24h", 25), ("7d", 169)] {
        let csv = text(&mut browser, &format!("/figures.csv?range={range}")).await;
        assert_eq!(csv.lines().count(), rows, "{range}: {csv}");
        assert!(csv.contains(",2,1,0.12,"), "{range}: {csv}");
        let page = text(&mut browser, &format!("/?range={range}")).await;
        assert!(page.contains("2 in all"), "{range}: {page}");
    }
    bench.stop().await;
}
