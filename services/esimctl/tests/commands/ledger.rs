//! `recover --ledger`: a provider's list of purchases is compared with the placements.

use std::fmt::Write;

use domain::PlacementId;
use pg::PgConnection;
use serde_json::{Value, json};
use tools::ledger::{CompletePeriod, ListedPurchase, Loader, compare};

use crate::support::{CONFIRMED, Ended, Operator, Order, store_order};
use crate::text;

const HEADER: &str = "order_id,at,units,option,partner\n";

/// An operator's system with the provider `sandbox`.
async fn system() -> (Operator, PgConnection, Value) {
    let operator = Operator::new().await;
    let partner = operator.create_partner().await;
    let mut connection = operator.database.connect().await.unwrap();
    let sql = "INSERT INTO providers (name) VALUES ('sandbox')";
    sqlx::query(sql).execute(&mut connection).await.unwrap();
    (operator, connection, partner)
}

async fn set(connection: &mut PgConnection, order: &Order, state: &str) {
    let sql = "UPDATE placements SET state = $2, placed_at = CASE WHEN $2 = 'placed' THEN now() END
               WHERE placement_id = $1";
    let statement = sqlx::query(sql).bind(order.placement.uuid()).bind(state);
    statement.execute(connection).await.unwrap();
}

impl Operator {
    async fn compare(&self, list: &str, more: &[&str]) -> Ended {
        let command = [&["recover", "--ledger", "-", "--json"][..], more].concat();
        self.run_with_input(&command, list.to_owned()).await
    }
}

/// The JSON of a run that has found something.
fn found(ended: &Ended) -> Value {
    assert_eq!(ended.code, Some(3), "{ended:?}");
    serde_json::from_str(&ended.stdout).unwrap()
}

#[tokio::test]
async fn orphans_and_mismatches_are_listed_and_adopted_purchases_are_not() {
    let (operator, mut connection, partner) = system().await;
    let id = text(&partner, "partner_id").parse().unwrap();
    let mut orders = Vec::new();
    for (number, state) in [
        "placed", "placed", "placed", "placing", "accepted", "refused", "failed", "parked",
    ]
    .into_iter()
    .enumerate()
    {
        let order = store_order(&mut connection, id, &format!("o-{number}")).await;
        set(&mut connection, &order, state).await;
        orders.push(order);
    }
    let orphan = PlacementId::new();
    let mut list = HEADER.to_owned();
    for (number, order) in orders.iter().enumerate() {
        let units = if number == 1 { 3 } else { 1 };
        writeln!(list, "{},2026-11-20,{units},ready,", order.placement).unwrap();
    }
    writeln!(list, "{},,,,", orders[2].placement).unwrap();
    writeln!(list, "{orphan},\"2026-11-20, 12:00\",1,ready,Acme").unwrap();
    writeln!(list, "bought by hand,,,,").unwrap();

    let ended = operator.compare(&list, &["--dry-run"]).await;
    let ledger = &found(&ended)["ledger"];
    assert!(
        ended.stderr.contains("without a placement: 1;"),
        "{ended:?}"
    );
    for (name, number) in [
        ("purchases", 11),
        ("orphans", 1),
        ("mismatches", 7),
        ("placing", 1),
        ("not_ours", 1),
    ] {
        assert_eq!(ledger[name], number, "{name} in {ledger}");
    }
    let findings = ledger["findings"].as_array().unwrap();
    let kinds: Vec<_> = findings
        .iter()
        .map(|finding| (text(finding, "kind"), finding["line"].as_i64().unwrap()))
        .collect();
    let expected = [
        ("orphan", 11),
        ("units_differ", 3),
        ("bought_twice", 4),
        ("forgotten", 6),
        ("not_bought_here", 7),
        ("not_bought_here", 8),
        ("parked", 9),
        ("bought_twice", 10),
        ("not_ours", 12),
    ];
    assert_eq!(kinds, expected);
    assert_eq!(findings[0]["order_id"], orphan.to_string());
    assert_eq!(
        (&findings[0]["at"], &findings[0]["partner"]),
        (&json!("2026-11-20, 12:00"), &json!("Acme"))
    );
    assert_eq!(findings[1]["external_order_id"], "o-1");
    assert!(
        operator.actions().await.is_empty(),
        "a dry run records nothing"
    );

    // Without --dry-run the orphan is recorded, and the accepted placement is adopted by a look-up.
    let ended = operator.compare(&list, &CONFIRMED).await;
    assert_eq!(found(&ended)["accepted"], 1);
    let actions = operator.json(&["action", "list"]).await;
    let targets: Vec<_> = actions
        .as_array()
        .unwrap()
        .iter()
        .map(|action| text(action, "target"))
        .collect();
    let named = format!("purchase {orphan} at sandbox, bought 2026-11-20, 12:00, partner Acme");
    assert!(targets.contains(&named.as_str()), "{targets:?}");
    let again = found(&operator.compare(&list, &["--dry-run"]).await);
    assert_eq!(
        (&again["ledger"]["mismatches"], &again["ledger"]["placing"]),
        (&json!(6), &json!(2))
    );
}

#[tokio::test]
async fn a_list_that_agrees_ends_with_0_beside_a_provisioner() {
    let (operator, mut connection, partner) = system().await;
    let id = text(&partner, "partner_id").parse().unwrap();
    let order = store_order(&mut connection, id, "o-1").await;
    set(&mut connection, &order, "placed").await;
    let name = "SET application_name = 'provisioner'";
    sqlx::query(name).execute(&mut connection).await.unwrap();
    let list = format!("{HEADER}{},,1,,\n", order.placement);
    let compared = operator.compare(&list, &["--dry-run"]).await.json();
    assert_eq!(compared["ledger"]["purchases"], 1);
    assert_eq!(compared["ledger"]["findings"], json!([]));
    operator
        .compare(&list, &CONFIRMED)
        .await
        .fails(1, "stop all provisioners");
}

#[tokio::test]
async fn a_bad_list_is_refused_with_its_line_and_a_long_one_is_read() {
    let (operator, mut connection, _) = system().await;
    for (list, part) in testkit::rows! {
        "" => "the file is empty";
        "id;at\n1;2\n" => "line 1: the header has no column order_id, only id;at";
        "order_id,units\n\n1,x\n" => "line 3: units is \"x\"";
        "order_id,units\n1\n" => "line 2: it has 1 fields, but the header has 2";
        "order_id\n12345\n" => "not the provider's own number";
    } {
        operator.compare(list, &["--dry-run"]).await.fails(1, part);
    }
    let mut list = "order_id\n".to_owned();
    for _ in 0..20_000 {
        writeln!(list, "{}", PlacementId::new()).unwrap();
    }
    let ledger = found(&operator.compare(&list, &["--dry-run"]).await);
    assert_eq!(ledger["ledger"]["orphans"], 20_000);

    let sql = "INSERT INTO providers (name) VALUES ('usimsa')";
    sqlx::query(sql).execute(&mut connection).await.unwrap();
    let command = ["recover", "--ledger", "/nowhere", "--dry-run"];
    operator
        .run(&command)
        .await
        .fails(1, "--provider with one of sandbox, usimsa");
    let command = [&command[..], &["--provider", "sandbox"]].concat();
    operator
        .run(&command)
        .await
        .fails(1, "cannot open /nowhere");
}

/// What is missing in a complete list, and what is said about the purchases of one.
async fn kinds_in(
    connection: &mut PgConnection,
    provider: &str,
    list: &[&Order],
) -> Vec<(String, String)> {
    let mut loader = Loader::begin(&mut *connection).await.unwrap();
    for order in list {
        let purchase = ListedPurchase {
            order_id: order.placement.to_string(),
            units: Some(1),
            ..ListedPurchase::default()
        };
        loader.add(&purchase).await.unwrap();
    }
    loader.finish().await.unwrap();
    let now = runtime::clock::now();
    let complete = CompletePeriod {
        since: now - time::Duration::HOUR,
        until: now + time::Duration::HOUR,
    };
    let found = compare(connection, provider, Some(complete), 100).await;
    let findings = found.unwrap().findings.into_iter();
    findings
        .map(|one| (<&str>::from(one.kind).to_owned(), one.order_id))
        .collect()
}

/// A provider may leave out of its list what it has taken back.
#[tokio::test]
async fn a_purchase_that_was_given_back_is_not_missing() {
    let (operator, mut connection, partner) = system().await;
    let (_, kept) = operator.ready_order(&partner, "o-1").await;
    let id = text(&partner, "partner_id").parse().unwrap();
    let given_back = store_order(&mut connection, id, "o-2").await;
    crate::make_unit_ready(&mut connection, &given_back, 2).await;
    sqlx::query("UPDATE esims SET returned_at = now() WHERE topup_id = $1")
        .bind(given_back.topup.as_str())
        .execute(&mut connection)
        .await
        .unwrap();
    let missing = vec![("missing".to_owned(), kept.placement.to_string())];
    assert_eq!(kinds_in(&mut connection, "sandbox", &[]).await, missing);
    let both = [&kept, &given_back];
    assert_eq!(kinds_in(&mut connection, "sandbox", &both).await, []);
}

/// A purchase at a further provider of a placement is one that a restored dump does not know.
#[tokio::test]
async fn a_purchase_at_a_further_provider_is_forgotten_or_resolved_and_not_cancelled() {
    let (_operator, mut connection, partner) = system().await;
    let id = text(&partner, "partner_id").parse().unwrap();
    let mut orders = Vec::new();
    for (number, state) in ["accepted", "placing", "parked", "failed", "accepted"]
        .into_iter()
        .enumerate()
    {
        let order = store_order(&mut connection, id, &format!("o-{number}")).await;
        set(&mut connection, &order, state).await;
        orders.push(order);
    }
    // All but the last one name a further provider.
    sqlx::query(
        r#"UPDATE placements SET alternatives = '[{"provider": "airalo", "lane": "jp", "options": {}}]'
           WHERE placement_id <> $1"#,
    )
    .bind(orders[4].placement.uuid())
    .execute(&mut connection)
    .await
    .unwrap();
    let list: Vec<&Order> = orders.iter().collect();
    let found = kinds_in(&mut connection, "airalo", &list).await;
    let kinds: Vec<&str> = found.iter().map(|(kind, _)| kind.as_str()).collect();
    let ids: Vec<&str> = found.iter().map(|(_, id)| id.as_str()).collect();
    for (order, kind) in orders.iter().zip([
        "forgotten",
        "forgotten",
        "parked",
        "other_provider",
        "other_provider",
    ]) {
        let id = order.placement.to_string();
        let place = ids.iter().position(|one| *one == id);
        assert_eq!(place.map(|place| kinds[place]), Some(kind), "{found:?}");
    }
}

/// The price behind `@` is what the option allowed for a unit when it was ordered.
#[tokio::test]
async fn a_purchase_at_another_price_is_listed() {
    let (operator, mut connection, partner) = system().await;
    let id = text(&partner, "partner_id").parse().unwrap();
    let order = store_order(&mut connection, id, "o-1").await;
    set(&mut connection, &order, "placed").await;
    let sql = "UPDATE topups SET provider_option_id = provider_option_id || '@1.50' WHERE placement_id = $1";
    let statement = sqlx::query(sql).bind(order.placement.uuid());
    statement.execute(&mut connection).await.unwrap();
    for (paid, code) in [("1.50", 0), ("", 0), ("1.60", 3)] {
        let list = format!("order_id,paid\n{},{paid}\n", order.placement);
        let ended = operator.compare(&list, &["--dry-run"]).await;
        assert_eq!(ended.code, Some(code), "{paid}: {ended:?}");
        if code == 3 {
            let found = found(&ended);
            assert_eq!(found["ledger"]["findings"][0]["kind"], "price_differs");
        }
    }
}
