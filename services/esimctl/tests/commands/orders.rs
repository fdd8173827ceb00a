//! `esimctl order list` and `delivery list`: the filters, the pages and the CSV; and
//! `esimctl find`.

use serde_json::{Value, json};

use crate::support::{Operator, store_order};

fn ids(listed: &Value) -> Vec<&str> {
    let orders = listed["orders"].as_array().unwrap().iter();
    orders
        .map(|order| order["external_order_id"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn orders_are_listed_by_partner_state_provider_and_time_page_by_page() {
    let operator = Operator::new().await;
    let acme = operator.create_partner().await;
    let acme = acme["partner_id"].as_str().unwrap().to_owned();
    let other = operator.create_partner().await;
    let other = other["partner_id"].as_str().unwrap().to_owned();
    let mut connection = operator.database.connect().await.unwrap();
    for (partner, id) in [(&acme, "a-1"), (&other, "b,\u{202e}1"), (&acme, "a-2")] {
        store_order(&mut connection, partner.parse().unwrap(), id).await;
    }
    let list = async |filter: &[&str]| {
        let arguments = [&["order", "list"], filter].concat();
        operator.json(&arguments).await
    };
    let all = list(&[]).await;
    assert_eq!(ids(&all), ["a-2", "b,\u{202e}1", "a-1"]);
    assert_eq!(all["next_cursor"], json!(null));
    let first = &all["orders"][0];
    assert_eq!(first["state"], "processing");
    assert_eq!(first["units"], 1);
    assert_eq!(first["providers"], json!(["sandbox"]));
    let option = first["options"][0].as_str().unwrap();
    let order_id = first["order_id"].as_str().unwrap();

    for (filter, expected) in [
        (&["--partner", &acme][..], &["a-2", "a-1"][..]),
        (
            &["--state", "processing", "--since", "1h"],
            &["a-2", "b,\u{202e}1", "a-1"],
        ),
        (&["--state", "ready"], &[]),
        (
            &["--provider", "sandbox", "--partner", &other],
            &["b,\u{202e}1"],
        ),
        (&["--provider", "airalo"], &[]),
        (&["--until", "1h"], &[]),
        (&["--cursor", order_id], &["b,\u{202e}1", "a-1"]),
        (&["--cursor", order_id, "--partner", &acme], &["a-1"]),
    ] {
        assert_eq!(ids(&list(filter).await), expected, "{filter:?}");
    }
    // A page that is full says where the list goes on.
    let mut seen = Vec::new();
    let mut page = list(&["--limit", "1"]).await;
    while let Some(cursor) = page["next_cursor"].as_str().map(str::to_owned) {
        seen.extend(ids(&page).into_iter().map(str::to_owned));
        page = list(&["--limit", "1", "--cursor", &cursor]).await;
    }
    seen.extend(ids(&page).into_iter().map(str::to_owned));
    assert_eq!(seen, ["a-2", "b,\u{202e}1", "a-1"]);

    let csv = operator.run(&["order", "list", "--csv"]).await;
    let lines: Vec<&str> = csv.text().lines().collect();
    assert!(lines[0].starts_with("accepted,order_id,external_order_id,partner,state,units_ready"));
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert!(lines[2].contains(r#","b,\u202e1","#), "{}", lines[2]);
    // Nobody has an option of this id in the catalogue, which is an error and no empty list.
    operator
        .run(&["order", "list", "--option", option])
        .await
        .fails(1, "there is no option");
}

/// What a partner has chosen is no formula in the program that opens the file.
#[tokio::test]
async fn a_csv_holds_no_formula() {
    let operator = Operator::new().await;
    let partner = operator.create_partner().await;
    operator
        .ready_order(&partner, "=HYPERLINK(\"http://x\")")
        .await;
    operator
        .run(&["order", "list", "--csv"])
        .await
        .says("\"'=HYPERLINK(\"\"http://x\"\")\"");
}

#[tokio::test]
async fn deliveries_are_listed_by_partner_state_provider_endpoint_and_time_page_by_page() {
    let operator = Operator::new().await;
    let made = operator.create_partner().await;
    let acme = made["partner_id"].as_str().unwrap().to_owned();
    let second = operator.create_partner().await;
    let other = second["partner_id"].as_str().unwrap().to_owned();
    let mut connection = operator.database.connect().await.unwrap();
    for (number, (partner, id)) in (1..).zip([(&acme, "a-1"), (&other, "b-1"), (&acme, "a-2")]) {
        let order = store_order(&mut connection, partner.parse().unwrap(), id).await;
        crate::make_unit_ready(&mut connection, &order, number).await;
    }
    let list = async |filter: &[&str]| {
        let arguments = [&["delivery", "list"], filter].concat();
        operator.json(&arguments).await
    };
    let ids = |listed: &Value| -> Vec<String> {
        let deliveries = listed["deliveries"].as_array().unwrap().iter();
        let ids = deliveries.map(|one| one["external_order_id"].as_str().unwrap().to_owned());
        ids.collect()
    };
    for (filter, expected) in [
        (&[][..], &["a-2", "b-1", "a-1"][..]),
        (&["--partner", &acme], &["a-2", "a-1"]),
        (&["--endpoint", &other, "--since", "1h"], &["b-1"]),
        (&["--provider", "sandbox", "--partner", &other], &["b-1"]),
        (&["--provider", "airalo"], &[]),
        (&["--state", "exhausted"], &[]),
        (&["--state", "delivered", "--partner", &acme], &[]),
        (&["--until", "1h"], &[]),
    ] {
        assert_eq!(ids(&list(filter).await), expected, "{filter:?}");
    }
    for partner in [None, Some(&acme)] {
        let of = partner.map_or_else(Vec::new, |id| vec!["--partner", id.as_str()]);
        let mut seen = Vec::new();
        let mut page = list(&[&of[..], &["--limit", "1"]].concat()).await;
        while let Some(cursor) = page["next_cursor"].as_str().map(str::to_owned) {
            seen.extend(ids(&page));
            page = list(&[&of[..], &["--limit", "1", "--cursor", &cursor]].concat()).await;
        }
        seen.extend(ids(&page));
        let expected = list(&of).await;
        assert_eq!(seen, ids(&expected), "{partner:?}");
    }
    let csv = operator.run(&["delivery", "list", "--csv"]).await;
    let lines: Vec<&str> = csv.text().lines().collect();
    assert!(lines[0].starts_with("topup_id,external_order_id,endpoint_id,state"));
    assert_eq!(lines.len(), 4, "{lines:?}");
    operator
        .run(&["delivery", "list", "--cursor", "x"])
        .await
        .fails(2, "the cursor must be one that a list has named");
}

/// Whoever has a part of a name, or the beginning of an id, finds what it belongs to.
#[tokio::test]
async fn names_are_found_by_part_and_case_and_ids_by_their_beginning() {
    let operator = Operator::new().await;
    let mut connection = operator.database.connect().await.unwrap();
    let mut rename = async |partner: &Value, name: &str| {
        sqlx::query("UPDATE partners SET name = $2 WHERE partner_id::text = $1")
            .bind(partner["partner_id"].as_str())
            .bind(name)
            .execute(&mut connection)
            .await
            .unwrap();
    };
    let names = [
        "Sakura",
        "Sakura Mobile",
        "sakura-eu",
        "Tokyo SAKURA",
        "The Sakuras",
    ];
    for name in names {
        let partner = operator.create_partner().await;
        rename(&partner, name).await;
    }
    let made = operator.create_partner().await;
    let found = operator.json(&["find", "Sakura"]).await;
    let partners = found["partners"].as_array().unwrap();
    assert_eq!(partners.len(), names.len(), "{found}");
    assert_eq!(partners[0]["name"], "Sakura", "the whole name comes first");

    let (_, order) = operator.ready_order(&made, "acme-2025-0001").await;
    let whole = operator.json(&["find", order.topup.as_str()]).await;
    let order_id = whole["orders"][0]["order_id"].as_str().unwrap().to_owned();
    for beginning in [&order_id[..13], &order.topup.as_str()[..12], "acme-2025"] {
        let found = operator.json(&["find", beginning]).await;
        assert_eq!(
            found["orders"][0]["order_id"],
            order_id.as_str(),
            "{beginning}: {found}"
        );
    }
    // What is not shown is counted, with the way to it.
    for nth in 0..21 {
        let partner = operator.create_partner().await;
        rename(&partner, &format!("Hanami {nth}")).await;
    }
    operator
        .run(&["find", "hanami"])
        .await
        .says("1 more partners: type more of the name");
}

/// What befell a provider after it had brought an order's eSIMs is no part of the order's story.
#[tokio::test]
async fn an_order_tells_of_a_stopped_provider_while_it_waits_for_it() {
    const STOPPED: &str = "buying at sandbox stopped, so its purchases waited";
    const WAITS: &str =
        "the eSIM is accepted and not lost, but buying at the provider is stopped at the moment";
    let operator = Operator::new().await;
    let acme = operator.create_partner().await;
    let (mut connection, ready) = operator.ready_order(&acme, "ready").await;
    store_order(&mut connection, ready.partner, "waits").await;
    for sql in [
        "INSERT INTO providers (name) VALUES ('sandbox'), ('airalo')",
        "INSERT INTO pulses (instance, stage, number, timeline, replicated, at)
         VALUES (gen_random_uuid(), 'provisioner', 1, 1, false, now() + interval '1 hour')",
    ] {
        sqlx::query(sql).execute(&mut connection).await.unwrap();
    }
    let stop = [
        "provider", "open", "sandbox", "--for", "1h", "--reason", "test",
    ];
    operator.run(&stop).await.says("sandbox");

    let show = async |id| operator.run(&["order", "show", id]).await;
    let shown = show("waits").await;
    shown
        .says(STOPPED)
        .says(WAITS)
        .says("waits for the provider");
    let shown = show("ready").await;
    shown.says("the eSIM is ready");
    assert!(!shown.text().contains("buying at"), "{shown:?}");

    operator
        .run(&["provider", "close", "sandbox"])
        .await
        .says("sandbox");
    let shown = show("waits").await;
    shown.says(STOPPED);
    shown.says("the eSIM is being bought or prepared by the provider");
    // It was bought after the first stop, and brings its eSIM after the second one.
    let placed =
        "UPDATE placements SET state = 'placed', placed_at = now() WHERE placement_id <> $1";
    let placed = sqlx::query(placed).bind(ready.placement.uuid());
    placed.execute(&mut connection).await.unwrap();
    operator.run(&stop).await.says("sandbox");
    let text = show("waits").await.text().to_owned();
    assert_eq!(text.matches(STOPPED).count(), 2, "{text}");
    assert!(!text.contains(WAITS), "{text}");

    // A provider that has rejected the purchase holds it up no more.
    let other = [
        "provider", "open", "airalo", "--for", "1h", "--reason", "test",
    ];
    operator.run(&other).await.says("airalo");
    let rejected = r#"UPDATE placements SET tried = jsonb_build_array(jsonb_build_object(
        'provider', 'airalo', 'lane', 'ready', 'attempt', 1, 'reason', 'sold out', 'at',
        to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))) WHERE placement_id <> $1"#;
    let rejected = sqlx::query(rejected).bind(ready.placement.uuid());
    rejected.execute(&mut connection).await.unwrap();
    operator.run(&other).await.says("airalo");
    let text = show("waits").await.text().to_owned();
    assert_eq!(
        text.matches("buying at airalo stopped").count(),
        1,
        "{text}"
    );
    // At the sandbox it waits only since then.
    assert!(!text.contains(STOPPED), "{text}");
}
