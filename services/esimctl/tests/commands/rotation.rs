//! `esimctl partner rotate-…` and `esimctl master-key`: secrets are replaced in place.

use accounts::partners;
use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use crate::support::{MASTER_KEY, Operator, record, run, vault};
use crate::text;

const SECOND: &str = "second:AQECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

#[tokio::test]
async fn new_keys_are_shown_once_and_the_old_ones_with_their_end() {
    let operator = Operator::new().await;
    let made = operator.create_partner().await;
    let id = text(&made, "partner_id");
    let first = text(&made, "access_key");
    let rotated = operator.json(&["partner", "rotate", first, "keys"]).await;
    let second = text(&rotated, "access_key");
    assert_eq!(text(&rotated, "partner_id"), id);
    assert_eq!(text(&rotated, "old_access_key"), first);
    assert!(second.starts_with("ak_") && second != first, "{rotated}");
    assert_ne!(rotated["secret_key"], made["secret_key"]);

    let mut connection = operator.database.connect().await.unwrap();
    let stored = partners::by_access_key(&mut connection, second)
        .await
        .unwrap()
        .unwrap();
    for (keys, made) in stored.keys.iter().zip([&rotated, &made]) {
        assert_eq!(keys.access_key, text(made, "access_key"));
        let key = partners::open_secret_key(
            &vault(),
            stored.partner_id,
            keys.secret_key.as_deref().unwrap(),
        );
        assert_eq!(key.unwrap().to_base64(), text(made, "secret_key"));
    }
    for which in [id, first, second] {
        let shown = operator.json(&["partner", "show", which]).await;
        assert_eq!(shown["old_keys_until"], rotated["old_keys_until"]);
        operator
            .run(&["partner", "show", which])
            .await
            .says(&format!("{first} until "));
    }
    operator
        .run(&["partner", "list"])
        .await
        .says("enabled, old keys until ");

    let refused = operator
        .run(&["partner", "rotate", id, "keys", "--overlap", "1h"])
        .await;
    for part in [
        "nothing was changed",
        "valid until 20",
        "`--keep-old`",
        "`--overlap 0`",
    ] {
        refused.fails(1, part);
    }
    let refused = operator
        .run(&[
            "partner",
            "rotate",
            id,
            "keys",
            "--keep-old",
            "--overlap",
            "0",
        ])
        .await;
    refused.fails(1, "choose one");
    let kept = operator
        .json(&["partner", "rotate", id, "keys", "--keep-old"])
        .await;
    assert_eq!(text(&kept, "old_access_key"), first);
    let lost = partners::by_access_key(&mut connection, second)
        .await
        .unwrap();
    assert!(lost.is_none(), "{lost:?}");
    let at_once = operator
        .json(&["partner", "rotate", id, "keys", "--overlap", "0"])
        .await;
    assert!(at_once["old_access_key"].is_null() && at_once["old_keys_until"].is_null());
    for gone in [first, second] {
        assert!(
            partners::by_access_key(&mut connection, gone)
                .await
                .unwrap()
                .is_none(),
            "{gone}"
        );
    }
    let human = operator.run(&["partner", "rotate", id, "keys"]).await;
    for part in [
        "secret_key is shown only now",
        text(&at_once, "access_key"),
        "stay valid until 20",
    ] {
        human.says(part);
    }
    operator
        .run(&["partner", "rotate", "ak_nobody", "keys"])
        .await
        .fails(1, "`esimctl partner list`");
}

#[tokio::test]
async fn a_key_that_leaked_ends_at_once_and_the_other_one_goes_on() {
    let operator = Operator::new().await;
    let made = operator.create_partner().await;
    let id = text(&made, "partner_id");
    let first = text(&made, "access_key");
    let rotated = operator.json(&["partner", "rotate", first, "keys"]).await;
    let second = text(&rotated, "access_key");
    let mut connection = operator.database.connect().await.unwrap();
    let mut valid = async |key: &str| {
        let found = partners::by_access_key(&mut connection, key).await.unwrap();
        found.is_some()
    };
    let leaked = ["--reason", "in a public repository"];
    // The partner is named, and not which of its keys.
    operator
        .run(&[&["partner", "leaked", id][..], &leaked].concat())
        .await
        .fails(1, "is no access key; name the key that leaked");
    assert!(valid(first).await && valid(second).await);
    // It needs no master key, and makes no keys.
    let arguments = [&["partner", "leaked", second, "--json"][..], &leaked].concat();
    let mut command = operator.command(&arguments);
    let ended = run(command.env_remove("MASTER_KEY")).await.json();
    assert_eq!(ended["ended"], json!([second]));
    assert_eq!(ended["goes_on"], first);
    assert!(!valid(second).await && valid(first).await);
    let shown = operator.json(&["partner", "show", id]).await;
    assert_eq!(
        (
            &shown["access_key"],
            &shown["old_keys_until"],
            &shown["keys_ended"]
        ),
        (&json!(first), &Value::Null, &json!(false)),
        "the other one goes on without an end"
    );
    operator
        .run(&[&["partner", "leaked", id, "--all"][..], &leaked].concat())
        .await
        .says("has no key any more");
    assert!(!valid(first).await);
    operator
        .run(&["partner", "show", id])
        .await
        .says("but its keys were ended");
    let again = [&["partner", "leaked", id, "--all"][..], &leaked].concat();
    operator.run(&again).await.fails(1, "no valid key");
    // New ones, of which none is old.
    let new = operator.json(&["partner", "rotate", id, "keys"]).await;
    assert_eq!(
        (&new["old_access_key"], &new["old_keys_until"]),
        (&Value::Null, &Value::Null)
    );
    assert!(valid(text(&new, "access_key")).await && !valid(first).await);
    let recorded = operator.json(&["action", "list"]).await;
    let leaks = recorded.as_array().unwrap().iter();
    let leaks = leaks.filter(|one| one["command"] == "partner leaked");
    assert_eq!(leaks.count(), 2, "{recorded}");
}

/// An operator makes, changes and ends a key for a partner that cannot do it itself.
#[tokio::test]
async fn further_keys_are_made_changed_and_ended() {
    let operator = Operator::new().await;
    let made = operator.create_partner().await;
    let id = text(&made, "partner_id");
    let create = [
        "partner",
        "key",
        "create",
        id,
        "--name",
        "an agent",
        "--rights",
        "order,read",
    ];
    let limits = [
        "--units-per-day",
        "20",
        "--networks",
        "10.1.2.3/16,2001:db8::1",
    ];
    let key = operator.json(&[&create[..], &limits].concat()).await;
    assert_eq!(key["rights"], json!(["order", "read"]));
    assert_eq!(key["networks"], json!(["10.1.0.0/16", "2001:db8::1"]));
    let access_key = text(&key, "access_key");
    let mut connection = operator.database.connect().await.unwrap();
    let found = partners::by_access_key(&mut connection, access_key).await;
    let found = found.unwrap().unwrap();
    let opened = found.further_keys[0]
        .open(&vault(), found.partner_id)
        .unwrap();
    assert_eq!(opened.to_base64(), text(&key, "secret_key"));
    // Whoever has only the access key of a log line finds the partner.
    let shown = operator.json(&["partner", "show", access_key]).await;
    assert_eq!(text(&shown, "partner_id"), id);

    let set = [
        "partner",
        "key",
        "set",
        id,
        access_key,
        "--any-network",
        "--units-per-day",
        "none",
    ];
    let changed = operator.json(&set).await;
    assert_eq!(
        (&changed["networks"], &changed["units_per_day"]),
        (&json!([]), &Value::Null)
    );
    assert_eq!(changed["rights"], key["rights"]);
    let listed = operator.json(&["partner", "key", "list", id]).await;
    assert_eq!(listed.as_array().unwrap().len(), 1);
    assert!(!listed.to_string().contains("secret"), "{listed}");
    for nth in 3..=10 {
        let name = format!("key {nth}");
        let create = [
            "partner", "key", "create", id, "--name", &name, "--rights", "read",
        ];
        operator.json(&create).await;
    }
    operator
        .run(&create)
        .await
        .fails(1, "10 keys with its first one, which is the maximum");
    let wrong = [&create[..7], &["everything"]].concat();
    operator
        .run(&wrong)
        .await
        .fails(2, "[possible values: order, read, webhooks, keys]");

    let end = [
        "partner",
        "key",
        "end",
        id,
        text(&key, "key_id"),
        "--reason",
        "the laptop was stolen",
    ];
    let ended = operator.json(&end).await;
    assert_eq!(ended["ended"], key["access_key"]);
    operator.run(&end).await.fails(1, "has no further key");
    let leaked = ["--reason", "their server was broken into"];
    let all = [&["partner", "leaked", id, "--all", "--json"][..], &leaked].concat();
    let ended = run(operator.command(&all).env_remove("MASTER_KEY"))
        .await
        .json();
    assert_eq!(ended["ended"].as_array().unwrap().len(), 9, "{ended}");
    let recorded = operator.json(&["action", "list"]).await;
    let recorded = recorded.as_array().unwrap().iter();
    let ends: Vec<_> = recorded
        .filter(|one| one["command"] == "partner key end")
        .collect();
    assert_eq!(ends.len(), 1);
    assert_eq!(ends[0]["reason"], "the laptop was stolen");
    assert!(text(ends[0], "before").contains("an agent"), "{ends:?}");
}

#[tokio::test]
async fn a_new_webhook_secret_is_shown_once() {
    let operator = Operator::new().await;
    let made = operator.create_partner().await;
    let id = text(&made, "partner_id");
    let rotate = ["partner", "rotate", id, "webhook-secret"];
    let rotated = operator.json(&rotate).await;
    assert_ne!(rotated["webhook_secret"], made["webhook_secret"]);
    signing::webhook::Secret::parse(text(&rotated, "webhook_secret")).unwrap();
    let shown = operator.json(&["partner", "show", id]).await;
    let until = &shown["old_webhook_secret_until"];
    assert_eq!(*until, rotated["old_webhook_secret_until"]);
    assert!(until.is_string() && shown["old_keys_until"].is_null());
    operator
        .run(&["partner", "show", id])
        .await
        .says("old webhook_secret");
    operator
        .run(&rotate)
        .await
        .fails(1, "webhook secret of Acme is valid until 20");
    operator
        .run(&[&rotate[..], &["--overlap", "0"]].concat())
        .await
        .says("no longer signs webhooks");
    let shown = operator.json(&["partner", "show", id]).await;
    assert!(shown["old_webhook_secret_until"].is_null(), "{shown}");
    operator
        .run(&[&rotate[..], &["--overlap", "-1h"]].concat())
        .await
        .fails(2, "negative");
}

#[tokio::test]
async fn nothing_is_rotated_under_another_master_key() {
    let operator = Operator::new().await;
    let made = operator.create_partner().await;
    for what in ["keys", "webhook-secret"] {
        let mut command = operator.command(&["partner", "rotate", text(&made, "partner_id"), what]);
        run(command.env("MASTER_KEY", SECOND))
            .await
            .fails(1, "nothing was changed");
    }
}

#[tokio::test]
async fn what_needs_which_master_key_is_counted_and_encrypted_anew() {
    let operator = Operator::new().await;
    let made = operator.create_partner().await;
    let (mut connection, order) = operator.ready_order(&made, "o-1").await;
    record(&mut connection, &order, 0, None).await;
    let both = format!("{SECOND},{MASTER_KEY}");
    let with_both =
        async |arguments: &[&str]| run(operator.command(arguments).env("MASTER_KEY", &both)).await;
    let status = ["master-key", "status", "--json"];
    let reencrypt = ["master-key", "reencrypt", "--replicas-restarted", "--json"];
    let row = |key: &str, encrypts: bool, used: bool| {
        json!({
            "key": key, "configured": true, "encrypts": encrypts,
            "purposes": if encrypts { vec!["partners", "webhooks", "profiles"] } else { vec![] },
            "partner_secrets": if used { 2 } else { 0 }, "webhook_secrets": i32::from(used),
            "profiles": i32::from(used), "answers": i32::from(used),
        })
    };
    let expected = json!({ "keys": [row("test", true, true)], "left": 0 });
    assert_eq!(operator.json(&status[..2]).await, expected);
    let expected =
        json!({ "keys": [row("second", true, false), row("test", false, true)], "left": 4 });
    assert_eq!(with_both(&status).await.json(), expected);
    let unsaid = with_both(&reencrypt[..2]).await;
    assert_eq!(unsaid.code, Some(1), "{unsaid:?}");
    let warned =
        unsaid.stderr.contains("4 values") && unsaid.stderr.contains("--replicas-restarted");
    assert!(warned, "{unsaid:?}");
    let expected = json!({ "key": "second", "reencrypted": 4, "failed": [], "left": 0 });
    assert_eq!(with_both(&reencrypt).await.json(), expected);
    let done = with_both(&reencrypt[..2]).await;
    assert_eq!(
        done.text(),
        "encrypted again under second: 0; failed: 0; left: 0\n"
    );
    let expected =
        json!({ "keys": [row("second", true, true), row("test", false, false)], "left": 0 });
    assert_eq!(with_both(&status).await.json(), expected);
    let show = ["delivery", "show", order.topup.as_str(), "--answers"];
    run(operator.command(&show).env("MASTER_KEY", SECOND))
        .await
        .says("no room");

    // Everything is encrypted under a key that is not given. Another key with the same id is
    // refused too.
    let other = format!("second:{}", BASE64_STANDARD.encode([3; 32]));
    for (keys, state) in [(MASTER_KEY, "missing"), (other.as_str(), "encrypts")] {
        let without = run(operator.command(&status[..2]).env("MASTER_KEY", keys)).await;
        assert_eq!(without.code, Some(1), "{without:?}");
        assert!(without.stdout.contains(state), "{without:?}");
        assert!(
            without.stderr.contains("put the right ones back"),
            "{without:?}"
        );
        run(operator.command(&reencrypt).env("MASTER_KEY", keys))
            .await
            .fails(1, "put the right ones back");
    }

    // A value that cannot be decrypted is reported, and the other values are still encrypted again.
    let spoil = sqlx::query("UPDATE esims SET profile = '\\x04676f6e65' || profile");
    spoil.execute(&mut connection).await.unwrap();
    let failed = run(operator.command(&reencrypt).env("MASTER_KEY", SECOND)).await;
    assert_eq!(
        (failed.code, failed.stderr.lines().count()),
        (Some(1), 1),
        "{failed:?}"
    );
    let shown: Value = serde_json::from_str(&failed.stdout).unwrap();
    assert_eq!(shown["left"], 1);
    assert_eq!(shown["failed"].as_array().unwrap().len(), 1);
    assert_eq!(shown["failed"][0]["id"], order.topup.as_str());
}
