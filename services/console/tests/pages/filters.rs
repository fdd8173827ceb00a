//! Filters: what they find, what they show, and what is said if nothing fits them.

use std::collections::BTreeSet;

use console::access::OperatorRole;

use crate::support::{Bench, text};

/// One filter has all that did not get through, whatever became of it, and goes on page by page.
#[tokio::test]
async fn one_filter_lists_all_webhooks_that_did_not_get_through() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    let mut connection = bench.database.connect().await.unwrap();
    // 30 were given up, 30 have no address, 30 failed so far; 30 have not been tried, and 30 were
    // delivered.
    for (number, state, attempted) in [
        (0, "exhausted", true),
        (1, "no_endpoint", true),
        (2, "pending", true),
        (3, "pending", false),
        (4, "delivered", true),
    ] {
        sqlx::query(
            "WITH new AS (
                 INSERT INTO deliveries (delivery_id, partner_id, kind, topup_id, order_id, state, attempt, attempted_at, created_at)
                 SELECT gen_random_uuid(), partner_id, 'topup.ready', '2025' || lpad(($1 * 100 + n)::text, 22, '0'), order_id, $2, 1,
                        CASE WHEN $3 THEN now() END, now() - n * interval '1 second'
                 FROM deliveries, generate_series(1, 30) n WHERE topup_id = $4
                 RETURNING delivery_id, partner_id, state)
             INSERT INTO held (id, state, provider, partner_id)
             SELECT delivery_id, state, '', partner_id FROM new WHERE state IN ('exhausted', 'no_endpoint')",
        )
        .bind(number)
        .bind(state)
        .bind(attempted)
        .bind(bench.topup.as_str())
        .execute(&mut connection)
        .await
        .unwrap();
    }
    for partner in ["", "&partner=acme"] {
        let mut path = format!("/webhooks?state=untaken{partner}");
        let mut seen = BTreeSet::new();
        for _ in 0..20 {
            let page = text(&mut browser, &path).await;
            assert!(
                page.contains("aria-current=\"page\">Not taken</a>"),
                "{page}"
            );
            let rows = page.split("href=\"/esims/").skip(1);
            seen.extend(rows.map(|row| row.split('"').next().unwrap().to_owned()));
            let Some((link, _)) = page
                .split_once("Older →")
                .or_else(|| page.split_once("Look further"))
            else {
                break;
            };
            let (_, link) = link.rsplit_once("href=\"").unwrap();
            path = link.split('"').next().unwrap().replace("&#38;", "&");
        }
        let of = |number: u32| {
            let begin = format!("2025{:0>22}", number * 100);
            let kind = &begin[..24];
            seen.iter().filter(|id| id.starts_with(kind)).count()
        };
        if partner.is_empty() {
            assert_eq!([0, 1, 2, 3, 4].map(of), [30, 30, 30, 0, 0], "{seen:?}");
        } else {
            // What waits without work is found by the time of readiness only.
            assert_eq!([0, 1, 3, 4].map(of), [30, 30, 0, 0], "{seen:?}");
        }
        // The one that the bench has given up.
        assert!(seen.contains(bench.topup.as_str()), "{seen:?}");
    }
    bench.stop().await;
}

/// One filter has all orders that did not get through: failed, refused, on hold, or with a webhook
/// that was given up.
#[tokio::test]
async fn one_filter_lists_all_orders_that_did_not_get_through() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    let filter = "/orders?state=not_through";
    let given_up = format!("href=\"/orders/{}\"", bench.order);
    // The bench has one whose webhook was given up, and one that is on hold.
    let page = text(&mut browser, filter).await;
    assert!(
        page.contains("aria-current=\"page\">Did not get through</a>"),
        "{page}"
    );
    assert!(
        page.contains(&given_up) && page.contains(">parked</a>"),
        "{page}"
    );
    let mut connection = bench.database.connect().await.unwrap();
    for change in [
        "UPDATE deliveries SET state = 'delivered', delivered_at = now()",
        "UPDATE placements SET state = 'placing' WHERE state = 'parked'",
    ] {
        sqlx::query(change).execute(&mut connection).await.unwrap();
    }
    let page = text(&mut browser, filter).await;
    assert!(page.contains("No order fits."), "{page}");
    sqlx::query("UPDATE orders SET refused_at = now() WHERE external_order_id = 'parked'")
        .execute(&mut connection)
        .await
        .unwrap();
    let page = text(&mut browser, filter).await;
    assert!(
        page.contains(">parked</a>") && !page.contains(&given_up),
        "{page}"
    );
    bench.stop().await;
}

/// An address names a partner by its id, and the page says which one that is.
#[tokio::test]
async fn a_filter_shows_the_name_of_its_partner() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Operator).await;
    let name = "Acme &#38; &#60;Sons&#62;";
    for page in ["/orders", "/webhooks", "/actions", "/resends"] {
        let page = text(&mut browser, &format!("{page}?partner={}", bench.partner)).await;
        let field = format!("name=\"partner\" value=\"{name}\"");
        assert!(page.contains(&field), "{page}");
    }
    // Two have this name, so the field keeps the id.
    let mut connection = bench.database.connect().await.unwrap();
    sqlx::query(
        "INSERT INTO partners (partner_id, name, environment, access_key, secret_key, version)
         SELECT gen_random_uuid(), name, environment, 'another', secret_key, 0 FROM partners",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    let page = text(&mut browser, &format!("/orders?partner={}", bench.partner)).await;
    let field = format!("name=\"partner\" value=\"{}\"", bench.partner);
    assert!(
        page.contains(&field) && page.contains(&format!("\">{name}</a></p>")),
        "{page}"
    );
    bench.stop().await;
}

#[tokio::test]
async fn who_sends_again_names_the_partner_and_is_told_why_nothing_matches() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Operator).await;
    let preview = "/resends/preview?since=1h&partner=acme&state=";
    let page = text(&mut browser, &format!("{preview}exhausted")).await;
    assert!(page.contains("<strong>1 webhook</strong>"), "{page}");
    let nobody = browser.get("/resends/preview?partner=nobody").await;
    assert_eq!(nobody.status(), 422);
    let page = text(&mut browser, &format!("{preview}delivered")).await;
    // The bench has given up one webhook, which is delivered to nobody.
    assert!(page.contains("0 webhooks wait"), "{page}");
    assert!(page.contains("1 was given up"), "{page}");
    assert!(
        page.contains(
            "1 webhook of this time was given up, and the filter asks for delivered ones"
        ),
        "{page}"
    );
    let mut connection = bench.database.connect().await.unwrap();
    sqlx::query(
        "UPDATE partner_endpoints SET failures = 20, failing_since = now(), blocked_until = now() + interval '1 hour'",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    let page = text(&mut browser, &format!("{preview}delivered")).await;
    assert!(page.contains("the endpoint is blocked until"), "{page}");
    sqlx::query("DELETE FROM held")
        .execute(&mut connection)
        .await
        .unwrap();
    let page = text(&mut browser, &format!("{preview}delivered")).await;
    assert!(
        page.contains("No webhook waits or was given up, either"),
        "{page}"
    );
    bench.stop().await;
}
