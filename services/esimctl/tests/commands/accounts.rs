//! `esimctl partner`: partners are created, disabled and limited, their webhook URLs are checked,
//! and they are required to sign their bodies.

use super::*;

#[tokio::test]
async fn a_new_partner_is_stored_sealed_and_its_secrets_shown_once() {
    let operator = Operator::new().await;
    let url = "https://127.0.0.1:9000/webhooks";
    let create = format!("partner create --name Acme --environment live --webhook-url {url}");
    let made = operator.json(&words(&create)).await;
    assert_eq!(
        (text(&made, "name"), text(&made, "environment")),
        ("Acme", "live")
    );
    assert_eq!(text(&made, "webhook_url"), url);
    let access_key = text(&made, "access_key");
    assert!(
        access_key.starts_with("ak_") && access_key.len() == 27,
        "{access_key}"
    );

    let mut connection = operator.database.connect().await.unwrap();
    let stored = partners::by_access_key(&mut connection, access_key)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(stored.partner_id.to_string(), text(&made, "partner_id"));
    let sealed = stored.keys[0].secret_key.as_deref().unwrap();
    let key = partners::open_secret_key(&vault(), stored.partner_id, sealed).unwrap();
    assert_eq!(key.to_base64(), text(&made, "secret_key"));
    assert_eq!(key.expose().len(), 32);
    let webhook_secret = signing::webhook::Secret::parse(text(&made, "webhook_secret")).unwrap();
    assert_eq!(webhook_secret.expose().len(), 32);

    for id in [access_key, text(&made, "partner_id")] {
        let shown = operator.run(&["partner", "show", id]).await;
        assert!(
            shown.text().contains(access_key) && !shown.text().contains(text(&made, "secret_key"))
        );
        let shown = operator.json(&["partner", "show", id]).await;
        assert_eq!(shown["partner_id"], made["partner_id"]);
        assert!(shown.get("secret_key").is_none() && shown.get("webhook_secret").is_none());
    }
    let shown = operator
        .run(&[
            "partner",
            "create",
            "--name",
            "B",
            "--environment",
            "sandbox",
        ])
        .await;
    shown.says("shown only now");
    assert!(!shown.text().contains("warning"), "{}", shown.text());
    let list = operator.json(&["partner", "list"]).await;
    assert_eq!(list.as_array().unwrap().len(), 2);
    operator
        .run(&["partner", "list"])
        .await
        .says(access_key)
        .says(url);
}

#[tokio::test]
async fn a_second_account_of_a_name_is_made_with_a_warning_that_names_the_first() {
    let operator = Operator::new().await;
    let create = words("partner create --name Acme --environment live");
    let first = operator.json(&create).await;
    assert_eq!(first["same_name"], json!([]));
    // The other environment has accounts of its own.
    let sandbox = words("partner create --name Acme --environment sandbox");
    assert_eq!(operator.json(&sandbox).await["same_name"], json!([]));
    let id = text(&first, "partner_id");
    let again = words("partner create --name acme --environment live");
    let shown = operator.run(&again).await;
    shown.says("warning: this name and environment were taken already");
    shown.says(&format!("{id} (live)"));
    shown.says("shown only now");
    let third = operator.json(&create).await;
    let others = third["same_name"].as_array().unwrap();
    assert!(
        others.len() == 2 && others.contains(&first["partner_id"]),
        "{third}"
    );
}

#[tokio::test]
async fn a_partner_is_disabled_and_enabled() {
    let operator = Operator::new().await;
    let made = operator.create_partner().await;
    let id = text(&made, "partner_id");
    let first = operator.json(&["partner", "set", id, "--disabled"]).await;
    assert!(first["disabled_at"].is_string(), "{first}");
    let again = ["partner", "set", text(&made, "access_key"), "--disabled"];
    assert_eq!(operator.json(&again).await, first);
    operator
        .run(&["partner", "list"])
        .await
        .says("disabled since");
    assert!(operator.json(&["partner", "set", id, "--enabled"]).await["disabled_at"].is_null());
    operator
        .run(&["partner", "set", "ak_nobody", "--disabled"])
        .await
        .fails(1, "`esimctl partner list`");
}

#[tokio::test]
async fn each_change_of_a_partner_is_recorded_without_its_secrets() {
    let operator = Operator::new().await;
    let made = operator.create_partner().await;
    let id = text(&made, "partner_id");
    let url = "https://acme.example/hooks/a-token";
    let mut shown = Vec::new();
    for change in [
        format!("set {id} --webhook-url {url} --reason moved"),
        format!("set {id} --events topup.failed"),
        format!("set {id} --max-in-flight 3"),
        format!("set {id} --signed-body required"),
        format!("set {id} --disabled"),
        format!("set {id} --enabled"),
        format!("rotate {id} keys"),
        format!("rotate {id} webhook-secret"),
    ] {
        let command = format!("partner {change}");
        shown.push(operator.json(&words(&command)).await);
    }
    // What is refused changes nothing.
    let again = format!("partner rotate {id} keys");
    operator
        .run(&words(&again))
        .await
        .fails(1, "nothing was changed");

    let actions = operator.json(&["action", "list"]).await;
    let actions = actions.as_array().unwrap();
    let commands: Vec<_> = actions
        .iter()
        .rev()
        .map(|one| text(one, "command"))
        .collect();
    let expected = [
        "partner create",
        "partner set-webhook",
        "partner set-events",
        "partner set-limits",
        "partner set-signing",
        "partner disable",
        "partner enable",
        "partner rotate-keys",
        "partner rotate-webhook-secret",
    ];
    assert_eq!(commands, expected);
    let target = format!("partner {id}");
    assert!(actions.iter().all(|one| one["target"] == target.as_str()));
    let set = &actions[7];
    assert_eq!(
        (text(set, "reason"), text(set, "after")),
        ("moved", r#"{"webhook_host": "acme.example"}"#)
    );
    let disable = &actions[3];
    assert_eq!(text(disable, "reason"), "");
    assert!(text(disable, "before").contains(r#""disabled": false"#));
    assert!(text(disable, "after").contains(r#""disabled": true"#));
    let record = json!(actions).to_string();
    let secrets = [
        text(&made, "secret_key"),
        text(&made, "webhook_secret"),
        text(&shown[6], "secret_key"),
        text(&shown[7], "webhook_secret"),
        "a-token",
    ];
    for secret in secrets {
        assert!(!record.contains(secret), "{record}");
    }
}

/// Lists and pages show names, so commands take them; one of several partners is never guessed.
#[tokio::test]
async fn a_partner_is_named_by_its_id_its_key_or_a_name_that_it_alone_has() {
    let operator = Operator::new().await;
    let create = |name: &str, environment: &str| {
        let name = name.to_owned();
        let environment = environment.to_owned();
        let operator = &operator;
        async move {
            let create = [
                "partner",
                "create",
                "--name",
                &name,
                "--environment",
                &environment,
            ];
            text(&operator.json(&create).await, "partner_id").to_owned()
        }
    };
    let travel = create("Acme Travel", "sandbox").await;
    let [first, second] = [
        create("Twin", "live").await,
        create("twin", "sandbox").await,
    ];
    for name in ["Acme Travel", " acme travel "] {
        let shown = operator.json(&["partner", "show", name]).await;
        assert_eq!(text(&shown, "partner_id"), travel);
    }
    operator
        .run(&["partner", "set", "Acme Travel", "--disabled"])
        .await
        .says("disabled");
    let listed = ["delivery", "list", "--partner", "Acme Travel"];
    operator.json(&listed).await;
    let ambiguous = operator
        .run(&["partner", "set", "Twin", "--disabled"])
        .await;
    ambiguous.fails(1, "2 partners have the name");
    for id in [&first, &second] {
        ambiguous.fails(1, id);
        let shown = operator.json(&["partner", "show", id]).await;
        assert_eq!(shown["disabled_at"], json!(null));
    }
    operator
        .run(&["partner", "show", "Nobody"])
        .await
        .fails(1, "or name");
}

/// The orders and units per second of a partner.
async fn shown_limits(operator: &Operator, id: &str) -> [Option<i64>; 2] {
    let shown = operator.json(&["partner", "show", id]).await;
    ["orders_per_second", "units_per_second"].map(|limit| shown[limit].as_i64())
}

#[tokio::test]
async fn a_partner_has_limits_of_its_own() {
    let operator = Operator::new().await;
    let made = operator.create_partner().await;
    let id = text(&made, "partner_id");
    // A live account has the limits of the settings; a free one begins with low ones.
    assert_eq!(shown_limits(&operator, id).await, [Some(5); 2]);
    let create = words("partner create --name Paid --environment live");
    let paid = operator.json(&create).await;
    let limits = shown_limits(&operator, text(&paid, "partner_id")).await;
    assert_eq!(limits, [None; 2]);
    let create = "partner create --name Load --environment sandbox --orders-per-second 7 --units-per-second default";
    let load = operator.json(&words(create)).await;
    let limits = shown_limits(&operator, text(&load, "partner_id")).await;
    assert_eq!(limits, [Some(7), None]);
    let set = format!("partner set {id} --max-in-flight 3 --units-per-second 40");
    let set = operator.json(&words(&set)).await;
    assert_eq!(set["max_in_flight"], 3);
    assert_eq!(set["units_per_second"], 40);
    let set = format!("partner set {id} --max-in-flight default --orders-per-second 5");
    let set = operator.json(&words(&set)).await;
    assert_eq!(set["max_in_flight"], json!(null));
    assert_eq!(set["orders_per_second"], 5);
    assert_eq!(set["units_per_second"], 40);
    operator
        .run(&["partner", "show", id])
        .await
        .says("orders_per_second");
    for bad in [
        &[][..],
        &["--orders-per-second", "0"],
        &["--orders-per-second", "many"],
    ] {
        let set = [&["partner", "set", id], bad].concat();
        assert!(!operator.run(&set).await.line(2).is_empty());
    }
}

#[tokio::test]
async fn a_partner_must_sign_bodies_where_the_operator_wants_it() {
    let operator = Operator::new().await;
    let made = operator.create_partner().await;
    let id = text(&made, "partner_id");
    assert_eq!(
        operator.json(&["partner", "show", id]).await["signed_body_required"],
        false
    );
    for (body, required) in [("required", true), ("optional", false)] {
        let set = operator
            .json(&["partner", "set", id, "--signed-body", body])
            .await;
        assert_eq!(set["signed_body_required"], required);
        let shown = operator.run(&["partner", "show", id]).await;
        assert_eq!(shown.text().contains("signed body"), required, "{shown:?}");
    }
    // One call makes one kind of change.
    for bad in [
        &["--signed-body", "maybe"][..],
        &["--signed-body", "required", "--disabled"],
        &["--disabled", "--enabled"],
        &[
            "--webhook-url",
            "https://a.example/",
            "--max-in-flight",
            "3",
        ],
    ] {
        let set = [&["partner", "set", id], bad].concat();
        assert!(!operator.run(&set).await.line(2).is_empty());
    }
}

#[tokio::test]
async fn a_live_partner_gets_an_http_url_only_on_request() {
    let operator = Operator::new().await;
    let url = "http://acme.example/webhooks";
    let create = [
        "partner",
        "create",
        "--name",
        "Acme",
        "--environment",
        "live",
    ];
    let with_url = [&create[..], &["--webhook-url", url]].concat();
    operator
        .run(&with_url)
        .await
        .fails(1, "--webhook-http-live");
    assert_eq!(operator.json(&["partner", "list"]).await, json!([]));
    let made = operator.json(&create).await;
    let set = [
        "partner",
        "set",
        text(&made, "partner_id"),
        "--webhook-url",
        url,
    ];
    operator.run(&set).await.fails(1, "https://");
    assert!(operator.json(&["partner", "show", set[2]]).await["webhook_url"].is_null());
    let allowed = [&set[..], &["--webhook-http-live"]].concat();
    assert_eq!(operator.json(&allowed).await["webhook_url"], url);
    let made = operator
        .json(&[&with_url[..], &["--webhook-http-live=true"]].concat())
        .await;
    assert_eq!(made["webhook_url"], url);
    let sandbox = format!("partner create --name B --environment sandbox --webhook-url {url}");
    assert_eq!(operator.json(&words(&sandbox)).await["webhook_url"], url);
}
