//! `esimctl order list`: the filters, the pages and the CSV.

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
