//! Purchases on hold: the provider is asked for them, or its list is compared, and they are settled
//! together.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use console::access::OperatorRole;
use domain::{HistoryKind, PlacementId, Reason, reason::ReasonCode};
use pg::PgConnection;
use store::placements::asked;
use uuid::Uuid;

use crate::support::{Bench, Browser, text};

/// The value of a hidden field of a page.
fn value(page: &str, name: &str) -> String {
    let (_, rest) = page
        .split_once(&format!("name=\"{name}\" value=\""))
        .unwrap();
    rest.split('"').next().unwrap().replace("&#34;", "\"")
}

/// The page that settles the purchases with one cause, as Needs a person leads to it.
async fn path(browser: &mut Browser) -> String {
    let needs = text(browser, "/needs").await;
    let (_, link) = needs.split_once("href=\"/purchases/settle?").unwrap();
    let query = link.split('"').next().unwrap().replace("&#38;", "&");
    format!("/purchases/settle?{query}")
}

/// Stores a second purchase with the cause of the first one.
async fn another(connection: &mut PgConnection) -> Uuid {
    sqlx::query_scalar(
        "WITH p AS (
             INSERT INTO placements (placement_id, order_id, partner_id, provider, lane, state, attempt, reason)
             SELECT gen_random_uuid(), order_id, partner_id, provider, lane, state, attempt, reason FROM placements
             WHERE state = 'parked' RETURNING placement_id, partner_id
         ), h AS (
             INSERT INTO held (id, state, provider, partner_id) SELECT placement_id, 'parked', 'sandbox', partner_id FROM p
         ), t AS (
             INSERT INTO topups (topup_id, placement_id, position, option_id, provider_option_id)
             SELECT '20240000000000000000000009', placement_id, 1, gen_random_uuid(), 'ready' FROM p
         )
         SELECT placement_id FROM p",
    )
    .fetch_one(connection)
    .await
    .unwrap()
}

#[tokio::test]
async fn purchases_on_hold_are_compared_with_the_list_of_the_provider_and_settled_together() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Operator).await;
    let mut connection = bench.database.connect().await.unwrap();
    let other = another(&mut connection).await;
    let path = path(&mut browser).await;
    let page = text(&mut browser, &path).await;
    let first = bench.parked.to_string();
    assert!(
        page.contains(&first) && page.contains(&other.to_string()),
        "{page}"
    );
    assert!(
        !page.contains("<select"),
        "nothing is settled before a list was compared: {page}"
    );

    let cause = value(&page, "cause");
    let token = browser.token.clone();
    let base = [
        ("token", token.as_str()),
        ("provider", "sandbox"),
        ("cause", &cause),
    ];
    let mut form = base.to_vec();
    let list = format!("order;number\n{};4711\n", first.to_uppercase());
    form.push(("list", &list));
    let answer = browser.post("/purchases/compare", &form).await;
    assert_eq!(answer.status(), 200);
    let page = answer.text().await.unwrap();
    assert!(page.contains("1 of the 2 are in the list."), "{page}");
    assert_eq!(
        page.matches("value=\"bought\" selected").count(),
        1,
        "{page}"
    );
    assert_eq!(page.matches("value=\"retry\"").count(), 1, "{page}");
    assert_eq!(bench.recorded().await, Vec::<String>::new());

    let other = other.to_string();
    let mut form = base.to_vec();
    let of_first = format!("seen-{first}");
    let of_other = format!("seen-{other}");
    let seen_first = value(&page, &of_first);
    let seen_other = value(&page, &of_other);
    form.extend([
        ("reason", "a test"),
        (first.as_str(), "bought"),
        (other.as_str(), "not-bought"),
        (of_first.as_str(), &seen_first),
        (of_other.as_str(), &seen_other),
    ]);
    let answer = browser.post("/purchases/settle", &form).await;
    assert_eq!(answer.status(), 303, "{}", answer.text().await.unwrap());
    let again = browser.post("/purchases/settle", &form).await;
    assert_eq!(
        again.status(),
        404,
        "the second time there is nothing to settle"
    );
    let mut recorded = bench.recorded().await;
    recorded.sort_unstable();
    assert_eq!(
        recorded,
        [
            "ana placement resolve --bought",
            "ana placement resolve --not-bought"
        ]
    );
    bench.stop().await;
}

/// What a provisioner notes when it has asked: it has no such purchase, or there was no usable
/// response.
async fn noted(connection: &mut PgConnection, id: PlacementId, kind: HistoryKind) {
    let attempt: i32 = sqlx::query_scalar("SELECT attempt FROM placements WHERE placement_id = $1")
        .bind(id.uuid())
        .fetch_one(&mut *connection)
        .await
        .unwrap();
    let failed = Reason::with(ReasonCode::OutcomeUnknown, "it answers 500");
    let reason = (kind == HistoryKind::Unknown).then_some(&failed);
    let attempt = attempt.try_into().unwrap();
    asked::note(connection, id, attempt, kind, reason)
        .await
        .unwrap();
}

#[tokio::test]
async fn the_provider_is_asked_for_purchases_on_hold_and_only_what_is_certainly_not_there_is_settled()
 {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Operator).await;
    let mut connection = bench.database.connect().await.unwrap();
    let other = PlacementId::from(another(&mut connection).await);
    let path = path(&mut browser).await;
    let page = text(&mut browser, &path).await;
    assert_eq!(page.matches(">not asked yet<").count(), 2, "{page}");
    // Before anybody asks, the page says what comes of it, and that nobody asks now and why.
    for part in [
        "one that sandbox has is taken as bought",
        "sandbox is not asked now, because no provisioner runs: start one.",
    ] {
        assert!(page.contains(part), "no {part:?} in {page}");
    }
    let cause = value(&page, "cause");
    let token = browser.token.clone();
    let seen = value(&page, "seen");
    let form = [
        ("token", token.as_str()),
        ("seen", &seen),
        ("provider", "sandbox"),
        ("cause", &cause),
        ("reason", "a test"),
    ];
    let answer = browser.post("/purchases/ask", &form).await;
    assert_eq!(answer.status(), 303, "{}", answer.text().await.unwrap());
    let to = answer.headers()["location"].to_str().unwrap().to_owned();
    assert_eq!(to, format!("{path}&asked=2"));
    let page = text(&mut browser, &to).await;
    assert!(!page.contains("sandbox is asked now"), "{page}");
    assert_eq!(page.matches(">being asked<").count(), 2, "{page}");
    assert!(page.contains("hx-trigger=\"every 5s\""), "{page}");
    assert!(!page.contains("<select"), "{page}");

    noted(&mut connection, bench.parked, HistoryKind::NotFound).await;
    noted(&mut connection, other, HistoryKind::Unknown).await;
    let page = text(&mut browser, &to).await;
    for part in [
        "sandbox was asked for 2 purchases. On hold now are 2: 1 certainly not there, 0 being asked, 1 not known.",
        ">not there<",
        ">no answer<",
        "it answers 500",
    ] {
        assert!(page.contains(part), "no {part:?} in {page}");
    }
    assert_eq!(page.matches("value=\"retry\"").count(), 1, "{page}");
    assert!(!page.contains("value=\"bought\""), "{page}");
    assert_eq!(bench.recorded().await, ["ana provider reconcile"]);
    bench.stop().await;
}

#[tokio::test]
async fn what_an_operator_may_not_say_of_a_purchase_is_not_offered() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Operator).await;
    let mut connection = bench.database.connect().await.unwrap();
    let order: Uuid = sqlx::query_scalar("SELECT order_id FROM placements WHERE placement_id = $1")
        .bind(bench.parked.uuid())
        .fetch_one(&mut connection)
        .await
        .unwrap();
    let page = format!("/orders/{order}");
    let mut offered = async |expected: &[&str]| {
        let shown = text(&mut browser, &page).await;
        let all = ["bought", "not-bought", "retry"];
        let found: Vec<&str> = all
            .into_iter()
            .filter(|one| shown.contains(&format!("name=\"found\" value=\"{one}\"")))
            .collect();
        assert_eq!(found, expected, "{shown}");
    };
    offered(&["bought", "not-bought", "retry"]).await;
    // The provider has named a unit, so another purchase would be a second one.
    sqlx::query(
        "INSERT INTO esims (topup_id, provider, provider_unit_id, iccid)
         SELECT topup_id, 'sandbox', 'unit-9', '8981000000000000009' FROM topups WHERE placement_id = $1",
    )
    .bind(bench.parked.uuid())
    .execute(&mut connection)
    .await
    .unwrap();
    offered(&["bought", "not-bought"]).await;
    // Nothing may be delivered for an order that was answered with 422.
    sqlx::query("UPDATE orders SET refused_at = now() WHERE order_id = $1")
        .bind(order)
        .execute(&mut connection)
        .await
        .unwrap();
    offered(&["not-bought"]).await;
    bench.stop().await;
}

/// Lets the database fail with this code whenever a row of this table is changed whose column has
/// this value.
async fn failing(
    connection: &mut PgConnection,
    code: &str,
    (table, column): (&str, &str),
    value: &str,
) {
    let sql = format!(
        "CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'a disk is broken' USING ERRCODE = '{code}'; END $$;
         CREATE TRIGGER fails BEFORE UPDATE ON {table} FOR EACH ROW WHEN (OLD.{column} = '{value}') EXECUTE FUNCTION fails()"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
        .execute(connection)
        .await
        .unwrap();
}

/// A form that settles several and ends in the middle says how many are recorded, which one failed,
/// and that nothing of the rest was changed.
#[tokio::test]
async fn purchases_that_are_settled_until_the_database_fails_are_told() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Operator).await;
    let mut connection = bench.database.connect().await.unwrap();
    // Oldest first: the one of the bench, the second, the third, each with an order of its own.
    for number in [2, 3] {
        sqlx::query(
            "WITH o AS (
                 INSERT INTO orders (order_id, partner_id, external_order_id, answer_by)
                 SELECT gen_random_uuid(), partner_id, 'parked-' || $1::int, answer_by FROM orders WHERE external_order_id = 'parked'
                 RETURNING order_id, partner_id
             ), p AS (
                 INSERT INTO placements (placement_id, order_id, partner_id, provider, lane, state, attempt, reason)
                 SELECT gen_random_uuid(), o.order_id, o.partner_id, 'sandbox', 'ready', 'parked', 1, 'outcome_unknown: no answer' FROM o
                 RETURNING placement_id, partner_id
             ), t AS (
                 INSERT INTO topups (topup_id, placement_id, position, option_id, provider_option_id)
                 SELECT '202500000000000000000000' || lpad(($1::int)::text, 2, '0'), placement_id, 0, gen_random_uuid(), 'ready' FROM p
             )
             INSERT INTO held (id, state, provider, partner_id, at)
             SELECT placement_id, 'parked', 'sandbox', partner_id, now() + $1::int * interval '1 second' FROM p",
        )
        .bind(number)
        .execute(&mut connection)
        .await
        .unwrap();
    }
    let all: Vec<(String, String)> = sqlx::query_as(
        "SELECT placement_id::text, external_order_id FROM placements JOIN orders USING (order_id) JOIN held ON id = placement_id
         ORDER BY held.at",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    failing(
        &mut connection,
        "P0001",
        ("placements", "placement_id"),
        &all[1].0,
    )
    .await;

    let path = path(&mut browser).await;
    let page = text(&mut browser, &path).await;
    let cause = value(&page, "cause");
    let token = browser.token.clone();
    let base = [
        ("token", token.as_str()),
        ("provider", "sandbox"),
        ("cause", &cause),
        ("reason", "a test"),
        ("list", "order;number"),
    ];
    let answer = browser.post("/purchases/compare", &base).await;
    let page = answer.text().await.unwrap();
    let seen: Vec<(String, String)> = all
        .iter()
        .map(|(id, _)| format!("seen-{id}"))
        .map(|name| (name.clone(), value(&page, &name)))
        .collect();
    let mut form = base.to_vec();
    form.extend(all.iter().map(|(id, _)| (id.as_str(), "not-bought")));
    form.extend(
        seen.iter()
            .map(|(name, seen)| (name.as_str(), seen.as_str())),
    );

    // What makes no sense is found before anything is recorded.
    let mut senseless = form.clone();
    senseless[base.len() + 2].1 = "perhaps";
    let answer = browser.post("/purchases/settle", &senseless).await;
    assert_eq!(answer.status(), 422);
    assert_eq!(bench.recorded().await, Vec::<String>::new());

    let answer = browser.post("/purchases/settle", &form).await;
    assert_eq!(answer.status(), 500);
    let page = answer.text().await.unwrap();
    for part in [
        "<h1>Not all of it was recorded</h1>",
        "1 of 3 purchases was recorded. Number 2, parked-2, failed because the database refused it",
        "Nothing of the rest was changed.",
    ] {
        assert!(page.contains(part), "no {part:?} in {page}");
    }
    assert_eq!(
        bench.recorded().await,
        ["ana placement resolve --not-bought"]
    );
    let left: Vec<String> = sqlx::query_scalar(
        "SELECT placement_id::text FROM placements JOIN held ON id = placement_id WHERE placements.state = 'parked' ORDER BY held.at",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    assert_eq!(left, [all[1].0.clone(), all[2].0.clone()]);
    bench.stop().await;
}

#[tokio::test]
async fn give_backs_that_are_settled_until_the_database_fails_are_told() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Operator).await;
    let mut connection = bench.database.connect().await.unwrap();
    let topups: Vec<String> = sqlx::query_scalar(
        "INSERT INTO esim_requests (topup_id, partner_id, provider, give_back, give_back_asked_at, attempt, reason, message, ended_at)
         SELECT '20250000000000000000000' || lpad(n::text, 3, '0'), $1, 'sandbox', 'parked', now(), 1, 'unknown', 'timeout',
                now() + n * interval '1 second'
         FROM generate_series(1, 4) n RETURNING topup_id",
    )
    .bind(bench.partner.uuid())
    .fetch_all(&mut connection)
    .await
    .unwrap();
    failing(
        &mut connection,
        "57P01",
        ("esim_requests", "topup_id"),
        &topups[2],
    )
    .await;
    // The partner has asked anew for the first one since the page was shown.
    sqlx::query("UPDATE esim_requests SET attempt = 2 WHERE topup_id = $1")
        .bind(&topups[0])
        .execute(&mut connection)
        .await
        .unwrap();
    let token = browser.token.clone();
    let mut form = vec![
        ("token", token.as_str()),
        ("provider", "sandbox"),
        ("back", "/needs"),
        ("found", "not-returned"),
        ("reason", "a test"),
    ];
    form.extend(topups.iter().map(|topup| (topup.as_str(), "1")));

    let mut senseless = form.clone();
    senseless.last_mut().unwrap().1 = "one";
    let answer = browser.post("/give-backs/settle", &senseless).await;
    assert_eq!(answer.status(), 422);
    assert_eq!(bench.recorded().await, Vec::<String>::new());

    let answer = browser.post("/give-backs/settle", &form).await;
    // A page that came of a form does not ask again by itself.
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.headers().get("refresh"), None);
    let page = answer.text().await.unwrap();
    for part in [
        format!(
            "1 of 4 give-backs was recorded. Number 3, {}, failed because the database did not answer. Its page",
            topups[2]
        ),
        format!(
            "Nothing of the rest was changed. Not changed, look at their pages: {}.",
            topups[0]
        ),
        "href=\"/needs\"".to_owned(),
    ] {
        assert!(page.contains(&part), "no {part:?} in {page}");
    }
    assert_eq!(bench.recorded().await.len(), 1);
    let states: Vec<String> =
        sqlx::query_scalar("SELECT coalesce(give_back, '') FROM esim_requests ORDER BY topup_id")
            .fetch_all(&mut connection)
            .await
            .unwrap();
    assert_eq!(states[0], "parked");
    assert_ne!(states[1], "parked");
    assert_eq!(states[2..], ["parked", "parked"]);
    bench.stop().await;
}
