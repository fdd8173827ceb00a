//! Options are taken out of sale, and the list can be imported again.

use serde_json::{Value, json};

use crate::support::{CONFIRMED, Operator};
use crate::{option, text};

#[tokio::test]
async fn an_option_is_disabled_and_enabled_with_a_record() {
    let operator = Operator::new().await;
    let mut twin = option("twin");
    twin["name"] = json!("JP");
    let mut other = option("JP");
    other["name"] = json!("JP");
    let catalogue = json!({ "options": [option("one"), twin, other] }).to_string();
    operator
        .run_with_input(&["option", "apply", "-f", "-"], catalogue)
        .await
        .text();
    let enabled = async |name: &str| {
        let all = operator.json(&["option", "list"]).await;
        let options = all.as_array().unwrap().iter();
        let one = options
            .into_iter()
            .find(|one| one["provider_option_id"] == name);
        one.unwrap()["enabled"].clone()
    };

    let preview = ["option", "set", "one", "--disabled", "--dry-run"];
    operator
        .run(&preview)
        .await
        .says("would be out of sale")
        .says("accepted before are still bought");
    assert_eq!(enabled("one").await, true);

    let disable = [&["option", "set", "one", "--disabled"][..], &CONFIRMED].concat();
    let done = operator.json(&disable).await;
    assert_eq!(
        (&done["enabled"], &done["changed"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(enabled("one").await, false);
    let again = operator.json(&disable).await;
    assert_eq!(again["changed"], false);

    let id = text(&done, "option_id").to_owned();
    let enable = [&["option", "set", &id, "--enabled"][..], &CONFIRMED].concat();
    operator.run(&enable).await.says("is now on sale");
    assert_eq!(enabled("one").await, true);

    let mut actions = operator.actions().await;
    let applied = actions.pop().unwrap();
    assert_eq!(
        (text(&applied, "command"), &applied["affected"]),
        ("option apply", &json!(3))
    );
    let recorded: Vec<_> = actions
        .iter()
        .map(|action| {
            assert!(text(action, "target").contains(&id), "{action}");
            (
                text(action, "command"),
                action["affected"].as_i64().unwrap(),
            )
        })
        .collect();
    let expected = [
        ("option enable", 1),
        ("option disable", 0),
        ("option disable", 1),
    ];
    assert_eq!(recorded, expected);
    let change = |one: usize| (&actions[one]["before"], &actions[one]["after"]);
    let (on, off) = (
        json!(r#"{"enabled": true}"#),
        json!(r#"{"enabled": false}"#),
    );
    assert_eq!(change(2), (&on, &off));
    assert_eq!(
        change(1),
        (&json!(null), &json!(null)),
        "it changed nothing"
    );
    assert_eq!(change(0), (&off, &on));

    let several = operator
        .run(&[&["option", "set", "JP", "--disabled"][..], &CONFIRMED].concat())
        .await;
    let line = several.line(1);
    assert!(
        line.contains("2 options have the name \"JP\"") && line.contains("by its id"),
        "{line}"
    );
    operator
        .run(&[&["option", "set", "none", "--disabled"][..], &CONFIRMED].concat())
        .await
        .fails(1, "esimctl option list");
}

/// Its other providers keep their order, and what it bought where stays the same.
#[tokio::test]
async fn another_provider_of_an_option_is_put_first_with_a_record() {
    let operator = Operator::new().await;
    let sold = |provider: &str| json!({ "provider": provider, "provider_option_id": provider });
    let mut one = option("one");
    one["name"] = json!("Japan 1 GB");
    one["alternatives"] = json!([sold("second"), sold("third")]);
    let first = one["provider"].as_str().unwrap().to_owned();
    let catalogue = json!({ "options": [one] }).to_string();
    operator
        .run_with_input(&["option", "apply", "-f", "-"], catalogue)
        .await
        .text();
    let named = ["option", "route", "Japan 1 GB", "--first"];
    operator
        .run(&[&named[..], &["third", "--dry-run"]].concat())
        .await
        .says("would be bought at third first")
        .says(&format!("in this order: third, {first}, second"));
    let route = [&named[..], &["third"], &CONFIRMED].concat();
    let done = operator.json(&route).await;
    assert_eq!(done["changed"], true);
    let listed = operator.json(&["option", "list"]).await;
    assert_eq!(
        (&listed[0]["provider"], &listed[0]["provider_option_id"]),
        (&json!("third"), &json!("third"))
    );
    let further = json!([{ "provider": first, "provider_option_id": "one" }, sold("second")]);
    assert_eq!(listed[0]["alternatives"], further);
    assert_eq!(operator.json(&route).await["changed"], false);
    let only = format!("is sold by third, {first}, second only");
    operator
        .run(&[&named[..], &["nobody"], &CONFIRMED].concat())
        .await
        .fails(1, &only);
    let actions = operator.actions().await;
    let recorded: Vec<_> = actions
        .iter()
        .filter(|one| text(one, "command") == "option route")
        .map(|one| one["after"].as_str().map(str::to_owned))
        .collect();
    // What was accepted before is not moved, and the record says so.
    let after = json!({
        "providers": format!("third, {first}, second"), "bought": sold("third"),
        "orders_moved": 0, "units_moved": 0,
    });
    let recorded: Vec<Option<Value>> = recorded
        .into_iter()
        .map(|one| one.map(|text| serde_json::from_str(&text).unwrap()))
        .collect();
    assert_eq!(recorded, [None, Some(after)]);
}

#[tokio::test]
async fn the_list_can_be_imported_again() {
    let operator = Operator::new().await;
    let mut one = option("one");
    one["details"] = json!({ "country": "JP", "days": 7 });
    one["enabled"] = json!(false);
    let catalogue = json!({ "options": [one, option("two")] }).to_string();
    let import = async |text: String| {
        operator
            .run_with_input(&["option", "apply", "-f", "-", "--json"], text)
            .await
            .json()
    };
    let imported = import(catalogue).await;
    assert_eq!(
        (&imported["imported"], &imported["unchanged"]),
        (&json!(2), &json!(0))
    );
    let listed = operator.run(&["option", "list", "--json"]).await;
    let imported = import(listed.text().to_owned()).await;
    assert_eq!(
        (&imported["imported"], &imported["unchanged"]),
        (&json!(0), &json!(2))
    );
}

/// A catalogue may be imported before its provisioner starts for the first time, so this is a
/// warning.
#[tokio::test]
async fn an_import_warns_of_providers_that_nobody_serves() {
    let operator = Operator::new().await;
    let mut live = option("live");
    live["environment"] = json!("live");
    live["alternatives"] = json!([{ "provider": "airalo", "provider_option_id": "jp" }]);
    let mut withdrawn = live.clone();
    withdrawn["option_id"] = json!(domain::OptionId::new());
    withdrawn["provider"] = json!("usimsa");
    withdrawn["enabled"] = json!(false);
    let catalogue = json!([live, withdrawn, option("test")]).to_string();
    let import = async |more: &[&str]| {
        let arguments = [&["option", "apply", "-f", "-"], more].concat();
        operator.run_with_input(&arguments, catalogue.clone()).await
    };
    let imported = import(&["--json"]).await.json();
    assert_eq!(imported["unserved"], json!(["airalo", "sandbox"]));
    let mut connection = operator.database.connect().await.unwrap();
    sqlx::query("INSERT INTO providers (name) VALUES ('sandbox')")
        .execute(&mut connection)
        .await
        .unwrap();
    import(&[])
        .await
        .says("warning: no provisioner has ever served airalo, so nothing is bought there");
}

#[tokio::test]
async fn a_key_that_stands_twice_is_refused_with_its_line() {
    let operator = Operator::new().await;
    let one = option("one").to_string();
    let twice = one.replace("\"name\":\"one\"", "\"name\":\"one\",\n\"name\":\"other\"");
    assert_ne!(twice, one);
    operator
        .run_with_input(&["option", "apply", "-f", "-"], format!("[{twice}]"))
        .await
        .fails(1, r#"the key "name" stands twice in one object at line 2"#);
}

#[tokio::test]
async fn what_is_bought_is_shown_with_an_order_and_in_the_list_of_placements() {
    let operator = Operator::new().await;
    let partner = operator.create_partner().await;
    let (mut connection, order) = operator.ready_order(&partner, "o-1").await;
    let sql = "UPDATE placements SET reason = 'rejected: 9001', state = 'refused'";
    sqlx::query(sql).execute(&mut connection).await.unwrap();
    let id = order.id.to_string();
    operator
        .run(&["order", "show", &id])
        .await
        .says("placement 1 (option ready): the provider rejected it: 9001");
    let shown = operator.json(&["order", "show", &id]).await;
    assert_eq!(
        shown["orders"][0]["topups"][0]["provider_option_id"],
        "ready"
    );
    let listed = operator.json(&["placement", "list"]).await;
    assert_eq!(listed["placements"][0]["lane"], "ready");
}

/// A row that a newer version has written, or that is damaged, hides no other option.
#[tokio::test]
async fn an_option_that_cannot_be_read_is_named_beside_the_others() {
    let operator = Operator::new().await;
    let catalogue = json!({ "options": [option("fine"), option("damaged")] }).to_string();
    operator
        .run_with_input(&["option", "apply", "-f", "-"], catalogue)
        .await
        .text();
    let mut connection = operator.database.connect().await.unwrap();
    let damage = "UPDATE options SET alternatives = '[7]' WHERE provider_option_id = 'damaged'
                  RETURNING option_id::text";
    let id: String = sqlx::query_scalar(damage)
        .fetch_one(&mut connection)
        .await
        .unwrap();
    let listed = operator.run(&["option", "list"]).await;
    assert!(listed.stdout.contains("fine"), "{}", listed.stdout);
    assert!(!listed.stdout.contains("damaged"), "{}", listed.stdout);
    assert_eq!(listed.code, Some(1), "{listed:?}");
    let named = format!("option {id}: ");
    assert!(listed.stderr.contains(&named), "{}", listed.stderr);
}
