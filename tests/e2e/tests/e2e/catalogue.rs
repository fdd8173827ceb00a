//! The catalogue and the money: what a provider sells and has sold us is compared with our options
//! and placements, by esimctl as operators run it. The sandbox plays the providers.

use crate::partner::{ask, assert_refused, get};
use crate::shop::{SOON, Shop, fresh, ids};
use anyhow::Result;
use domain::{PlacementId, sandbox_option};
use serde_json::{Value, json};
use signing::SecretKey;
use sqlx::PgConnection;
use testkit::stack::{SANDBOX_ACCESS_KEY, SANDBOX_SECRET_KEY, Stack};

/// The scripted options, and the further products that an import takes.
const SCRIPTED: usize = 20;
const REASON: [&str; 3] = ["--reason", "a test", "--yes"];

async fn pull(stack: &Stack, provider: &str, more: &[&str]) -> Result<Value> {
    let command = [&["catalogue", "pull", provider][..], more].concat();
    stack.esimctl.run(&command).await
}

fn counts(report: &Value) -> [u64; 6] {
    let length = |name: &str| report[name].as_array().unwrap().len() as u64;
    [
        length("new"),
        length("priced"),
        length("changed"),
        length("gone"),
        length("refused"),
        report["unchanged"].as_u64().unwrap(),
    ]
}

/// Each refused product with its reason.
fn refused(report: &Value) -> Vec<(String, String)> {
    let of = |one: &Value, field: &str| one[field].as_str().unwrap().to_owned();
    let rows = report["refused"].as_array().unwrap().iter();
    let mut rows: Vec<_> = rows
        .map(|one| (of(one, "product"), of(one, "reason")))
        .collect();
    rows.sort();
    rows
}

fn expected(rows: &[(&str, &str)]) -> Vec<(String, String)> {
    let mut rows: Vec<_> = rows
        .iter()
        .map(|(name, reason)| (sandbox_option(name).to_string(), (*reason).to_owned()))
        .collect();
    rows.sort();
    rows
}

async fn sql(connection: &mut PgConnection, statement: &str) -> u64 {
    let done = sqlx::query(sqlx::AssertSqlSafe(statement.to_owned())).execute(connection);
    done.await.unwrap().rows_affected()
}

/// Takes over only what is known. Nothing is taken out of sale by itself, and what belongs to the
/// operator stays.
async fn take_known(stack: &Stack, provider: &str, becomes: &str) {
    let known = [&["--only-known"][..], &REASON].concat();
    let known = pull(stack, provider, &known).await.unwrap();
    assert_eq!(
        [&known["created"], &known["updated"], &known["disabled"]],
        [&json!(0), &json!(3), &json!(0)]
    );
    let options: Vec<Value> = stack.esimctl.run(&["option", "list"]).await.unwrap();
    let option = |name: &str| {
        options
            .iter()
            .find(|option| option["name"] == name)
            .unwrap()
    };
    assert_eq!(option("slow")["enabled"], true);
    assert_eq!(option("ready")["provider_option_id"], becomes);
    assert_eq!(option("delayed")["standard"]["days"], 30);
    let mine = option("mine");
    assert_eq!(
        (&mine["enabled"], &mine["details"]),
        (&json!(false), &json!({ "mine": 1 }))
    );
    assert_eq!(mine["standard"]["countries"], json!(["JP"]));
}

/// Takes everything over, with what is gone.
async fn take_all(stack: &Stack, provider: &str, further: u64, price: &str) {
    let all = [&["--new-disabled", "--disable-gone"][..], &REASON].concat();
    let all = pull(stack, provider, &all).await.unwrap();
    assert_eq!(
        [&all["created"], &all["updated"], &all["disabled"]],
        [&json!(further + 1), &json!(0), &json!(1)]
    );
    let options: Vec<Value> = stack.esimctl.run(&["option", "list"]).await.unwrap();
    let option = |name: &str| {
        options
            .iter()
            .find(|option| option["name"] == name)
            .unwrap()
    };
    assert_eq!(option("slow")["enabled"], false);
    let europe = options
        .iter()
        .find(|option| option["name"].as_str().unwrap().ends_with("europe"))
        .unwrap();
    assert_eq!(europe["enabled"], false);
    assert_eq!(
        europe["standard"],
        json!({
            "countries": ["DE", "FR", "IT"], "data_mb": 10240, "days": 30, "cost": { "price": price, "currency": "USD" },
        })
    );
    let again = pull(stack, provider, &REASON).await.unwrap();
    let [new, priced, changed, gone, _, _] = counts(&again);
    assert_eq!([new, priced, changed, gone], [0; 4], "{again}");
}

/// Plants a new, a gone, and a dearer product, pulls, and returns what was refused.
async fn pulled(provider: &str, price: &str) -> (Stack, Vec<(String, String)>) {
    let stack = Stack::builder().provider(provider).start().await.unwrap();
    let mut database = stack.database.connect().await.unwrap();
    let scripted = SCRIPTED as u64;
    // They are no products of the list, and their ids do not say so as those of eSIM Access do.
    sql(
        &mut database,
        "DELETE FROM options WHERE name LIKE 'extension%'",
    )
    .await;
    let further = if provider == "airalo" { 2 } else { 1 };
    let first = pull(&stack, provider, &["--dry-run"]).await.unwrap();
    let refused = refused(&first);
    let [new, priced, changed, gone, _, unchanged] = counts(&first);
    // Of the known options only what the provider tells beside their standard fields is new.
    assert_eq!(
        [new, priced, changed, gone, unchanged],
        [further, 0, scripted, 0, 0],
        "{first}"
    );
    let facts = first["changed"][0]["facts"].as_array().unwrap();
    assert!(facts.contains(&json!("coverage")), "{first}");
    assert_eq!(first["not_understood"], json!([]));
    let told = [&["--only-known"][..], &REASON].concat();
    let told = pull(&stack, provider, &told).await.unwrap();
    assert_eq!(told["updated"], json!(scripted));

    let planted = sql(
        &mut database,
        "UPDATE options SET provider_option_id = replace(provider_option_id, '@', '@9')
                                      WHERE name = 'ready'",
    )
    .await
        + sql(
            &mut database,
            "UPDATE options SET days = 3 WHERE name = 'delayed'",
        )
        .await
        + sql(
            &mut database,
            "UPDATE options SET provider_option_id = 'ended@1.50' WHERE name = 'slow'",
        )
        .await
        + sql(
            &mut database,
            "UPDATE options SET enabled = false, details = '{\"mine\": 1}', name = 'mine'
                              WHERE name = 'partly'",
        )
        .await
        + sql(
            &mut database,
            "UPDATE options SET countries = NULL WHERE name = 'mine'",
        )
        .await;
    assert_eq!(planted, 5);
    let preview = pull(&stack, provider, &["--dry-run"]).await.unwrap();
    let [new, priced, changed, gone, _, unchanged] = counts(&preview);
    let seen = [new, priced, changed, gone, unchanged];
    assert_eq!(seen, [further + 1, 1, 2, 1, scripted - 4], "{preview}");
    assert_eq!(preview["gone"][0]["product"], "ended");
    let was = preview["priced"][0]["was"].as_str().unwrap();
    let becomes = preview["priced"][0]["becomes"].as_str().unwrap();
    assert!(
        was.contains("@9") && becomes.ends_with(&format!("@{price}")),
        "{preview}"
    );
    assert_eq!(
        pull(&stack, provider, &["--dry-run"]).await.unwrap(),
        preview,
        "a preview changes nothing"
    );

    take_known(&stack, provider, becomes).await;
    take_all(&stack, provider, further, price).await;

    let actions: Vec<Value> = stack.esimctl.run(&["action", "list"]).await.unwrap();
    let recorded: Vec<_> = actions
        .iter()
        .filter(|action| {
            let command = action["command"].as_str();
            command.is_some_and(|command| command.starts_with("catalogue"))
        })
        .map(|action| (action["command"].clone(), action["affected"].clone()))
        .collect();
    let record = [
        (json!("catalogue pull --disable-gone"), json!(further + 2)),
        (json!("catalogue pull"), json!(3)),
        (json!("catalogue pull"), json!(scripted)),
    ];
    assert_eq!(recorded, record);
    (stack, refused)
}

/// Partners see what the provider tells, and find an option by it. What a file sets counts, also
/// after the next pull, and operators see who says what.
async fn what_is_told_is_found_and_a_file_counts(stack: &Stack, shop: &Shop, ready: &Value) {
    let id = ready["option_id"].as_str().unwrap();
    let facts = &ready["facts"];
    assert_eq!(
        [&facts["activation"], &facts["top_up"], &facts["hotspot"]],
        [&json!("first_use"), &json!("yes"), &json!(null)]
    );
    assert_eq!(facts["coverage"][0]["networks"][0]["name"], "JP Mobile");
    let found = async |query: &str| {
        let path = format!("/options?limit=100&{query}");
        let found = get(&shop.client, &path).await.unwrap();
        let found = found["options"].as_array().unwrap().iter();
        found.filter(|one| one["option_id"] == id).count()
    };
    assert_eq!(found("network=jp%20mobile&country=JP&kind=data").await, 1);
    assert_eq!(found("network=KR%20Mobile").await, 0);
    assert_eq!(found("kind=data_voice_text").await, 0);
    assert_eq!(found("updated_since=2026-01-01T00:00:00Z").await, 1);
    assert_eq!(found("updated_since=2126-01-01T00:00:00Z").await, 0);
    let path = format!("/options/{id}");
    assert_eq!(&get(&shop.client, &path).await.unwrap(), ready);
    for unknown in ["00000000-0000-4000-8000-000000000000", "ready"] {
        let none = ask(&shop.client, "GET", &format!("/options/{unknown}")).await;
        assert_refused(&none.unwrap(), 404, "not_found");
    }

    let listed: Vec<Value> = stack.esimctl.run(&["option", "list"]).await.unwrap();
    let mut file = listed
        .iter()
        .find(|one| one["option_id"] == id)
        .unwrap()
        .clone();
    file["facts"] =
        json!({ "hotspot": true, "activation": "installation", "names": { "de": "Japan" } });
    let file = json!([file]).to_string();
    assert_eq!(stack.esimctl.import(file).await.unwrap()["changed"], 1);
    let again = pull(stack, "airalo", &REASON).await.unwrap();
    assert_eq!(again["updated"], 0, "{again}");
    let facts = &get(&shop.client, &path).await.unwrap()["facts"];
    assert_eq!(
        [&facts["activation"], &facts["top_up"], &facts["hotspot"]],
        [&json!("installation"), &json!("yes"), &json!(true)]
    );
    let shown: Value = stack.esimctl.run(&["option", "show", id]).await.unwrap();
    let shown = shown["shown"].as_array().unwrap();
    let origin =
        |fact: &str| shown.iter().find(|one| one["fact"] == fact).unwrap()["origin"].clone();
    assert_eq!(
        [origin("hotspot"), origin("activation"), origin("top_up")],
        [json!("file"), json!("file"), json!("provider")]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_catalogue_of_airalo_is_pulled() {
    let (stack, refused) = pulled("airalo", "4.50").await;
    let rows = [
        ("confirmation-code", "confirmation_code"),
        ("identity", "identity"),
        ("top-up", "top_up"),
        ("extension", "top_up"),
        ("extension-lost", "top_up"),
        ("extension-late", "top_up"),
        ("extension-expired", "top_up"),
        ("extension-other", "top_up"),
    ];
    assert_eq!(refused, expected(&rows));

    // The catalogue has several pages, and a list that is not read to its end is not used.
    let short = pull(&stack, "airalo", &["--dry-run", "--max-pages", "1"]).await;
    assert!(short.is_ok(), "one page of places is enough: {short:?}");
    // A provider without a catalogue says what to do.
    let none = pull(&stack, "sandbox", &["--dry-run"]).await.unwrap_err();
    let none = format!("{none:#}");
    assert!(
        none.contains("SANDBOX_URL") || none.contains("option apply"),
        "{none}"
    );

    // A pulled product is bought at the guarded price, and partners see its standard fields only.
    let shop = Shop::open(&stack).await.unwrap();
    let offered = get(
        &shop.client,
        "/options?country=JP&min_data_mb=5000&max_days=30&limit=100",
    )
    .await
    .unwrap();
    let offered = offered["options"].as_array().unwrap();
    let ready = offered
        .iter()
        .find(|option| option["name"] == "ready")
        .unwrap();
    assert_eq!(
        (&ready["countries"], &ready["unlimited"]),
        (&json!(["JP"]), &json!(false))
    );
    assert!(
        !ready.to_string().contains("4.50"),
        "the cost is ours: {ready}"
    );
    what_is_told_is_found_and_a_file_counts(&stack, &shop, ready).await;
    let bought = shop
        .buy(&fresh("pulled"), ready["option_id"].as_str().unwrap(), 2)
        .await
        .unwrap();
    shop.delivered(&ids(&bought), SOON).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_catalogue_of_esim_access_is_pulled_at_its_rate() {
    let (stack, refused) = pulled("esim-access", "1.50").await;
    let rows = [
        ("confirmation-code", "confirmation_code"),
        ("by-the-day", "daily_data"),
        ("unlimited", "daily_data"),
    ];
    assert_eq!(refused, expected(&rows));
    // It takes a share of the rate, as a replica does, and gets its turn.
    let rate = pull(
        &stack,
        "esim-access",
        &["--dry-run", "--provider-rate", "50"],
    )
    .await
    .unwrap();
    assert_eq!(counts(&rate)[0], 0);
    let mut database = stack.database.connect().await.unwrap();
    let shares = "SELECT FROM provider_replicas WHERE instance LIKE 'esimctl-%' AND share > 0";
    assert_eq!(sql(&mut database, shares).await, 1);
}

/// A purchase that our system does not make itself, by Airalo's protocol.
async fn buy_at_airalo(stack: &Stack, description: &str) {
    let http = testkit::http::client().unwrap();
    let form = |fields: &[(&str, &str)]| {
        let field = |(name, value): &(&str, &str)| {
            format!("--b\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
        };
        fields.iter().map(field).collect::<String>() + "--b--\r\n"
    };
    let send = async |path: &str, token: &str, fields: &[(&str, &str)]| {
        let request = http
            .post(format!("{}/v2/{path}", stack.sandbox_url))
            .bearer_auth(token);
        let request = request.header("content-type", "multipart/form-data; boundary=b");
        let answer: Value = request
            .body(form(fields))
            .send()
            .await
            .unwrap()
            .json()
            .await
            .unwrap();
        answer["data"].clone()
    };
    let keys = [
        ("client_id", SANDBOX_ACCESS_KEY),
        ("client_secret", SANDBOX_SECRET_KEY),
        ("grant_type", "client_credentials"),
    ];
    let token = send("token", "", &keys).await["access_token"]
        .as_str()
        .unwrap()
        .to_owned();
    let ready = sandbox_option("ready").to_string();
    let order = [
        ("package_id", &ready[..]),
        ("quantity", "1"),
        ("type", "sim"),
        ("description", description),
    ];
    assert!(send("orders", &token, &order).await["id"].is_u64());
}

/// A purchase that our system does not make itself, by the protocol of eSIM Access.
async fn buy_at_esim_access(stack: &Stack, id: &str) {
    let body = json!({ "transactionId": id, "packageInfoList": [{ "packageCode": sandbox_option("ready"), "count": 2 }] });
    let body = body.to_string();
    let timestamp = runtime::clock::unix_milliseconds().to_string();
    let secret = SecretKey::from_bytes(SANDBOX_SECRET_KEY.as_bytes().to_vec()).unwrap();
    let signature = signing::esim_access::sign(
        &secret,
        &timestamp,
        "1",
        SANDBOX_ACCESS_KEY,
        body.as_bytes(),
    );
    let request = testkit::http::client()
        .unwrap()
        .post(format!("{}/api/v1/open/esim/order", stack.sandbox_url));
    let headers = [
        ("rt-accesscode", SANDBOX_ACCESS_KEY),
        ("rt-timestamp", &timestamp),
        ("rt-requestid", "1"),
        ("rt-signature", &signature),
    ];
    let request = headers.iter().fold(request, |request, (name, value)| {
        request.header(*name, *value)
    });
    let answer: Value = request
        .body(body)
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(answer["success"], true, "{answer}");
}

async fn reconcile(stack: &Stack, provider: &str, more: &[&str]) -> (i32, Value) {
    let command = [
        &["provider", "reconcile", provider, "--since", "1d"][..],
        more,
    ]
    .concat();
    let (status, found): (i32, Value) = stack.esimctl.run_allowing(&command, &[3]).await.unwrap();
    (status, found["ledger"].clone())
}

/// The placement of an order of two units, bought and delivered.
async fn placement(stack: &Stack, shop: &Shop, option: &str) -> PlacementId {
    let order = fresh("reconciled");
    let bought = shop
        .buy(&order, stack.option(option).unwrap(), 2)
        .await
        .unwrap();
    shop.delivered(&ids(&bought), SOON).await.unwrap();
    let shown = crate::shop::show(stack, &order).await.unwrap();
    shown["placements"][0]["placement_id"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_difference_to_the_purchases_of_a_provider_is_found() {
    for provider in ["airalo", "esim-access"] {
        let stack = Stack::builder().provider(provider).start().await.unwrap();
        let shop = Shop::open(&stack).await.unwrap();
        let [twice, dear, units] = [
            placement(&stack, &shop, "ready").await,
            placement(&stack, &shop, "ready").await,
            placement(&stack, &shop, "delayed").await,
        ];
        let (status, found) = reconcile(&stack, provider, &[]).await;
        assert_eq!(
            (status, &found["purchases"], &found["findings"]),
            (0, &json!(3), &json!([])),
            "{found}"
        );

        let mut database = stack.database.connect().await.unwrap();
        let orphan = PlacementId::new();
        if provider == "airalo" {
            buy_at_airalo(&stack, &orphan.to_string()).await;
            buy_at_airalo(&stack, &twice.to_string()).await;
            buy_at_airalo(&stack, "by hand").await;
        } else {
            buy_at_esim_access(&stack, &orphan.to_string()).await;
            buy_at_esim_access(&stack, "by hand").await;
        }
        let raise = format!(
            "UPDATE topups SET provider_option_id = replace(provider_option_id, '@', '@1') WHERE placement_id = '{dear}'"
        );
        assert_eq!(sql(&mut database, &raise).await, 2);
        // One that the provider should have, and a copy of it that is too new to be missed.
        let copy = |id: PlacementId, placed: &str| {
            format!("INSERT INTO placements (placement_id, order_id, partner_id, provider, lane, state, attempt, attempted_at, placed_at)
                     SELECT '{id}', order_id, partner_id, provider, lane, 'placed', 1, {placed}, {placed}
                     FROM placements WHERE placement_id = '{units}'")
        };
        let missing = PlacementId::new();
        assert_eq!(
            sql(&mut database, &copy(missing, "now() - interval '1 hour'")).await,
            1
        );
        assert_eq!(
            sql(&mut database, &copy(PlacementId::new(), "now()")).await,
            1
        );

        let (status, found) = reconcile(&stack, provider, &[]).await;
        assert_eq!(status, 3, "{found}");
        let mut kinds: Vec<(&str, String)> = Vec::new();
        for finding in found["findings"].as_array().unwrap() {
            assert!(
                finding["remedy"]
                    .as_str()
                    .is_some_and(|remedy| remedy.len() > 20),
                "{finding}"
            );
            kinds.push((
                finding["kind"].as_str().unwrap(),
                finding["order_id"].as_str().unwrap().to_owned(),
            ));
        }
        kinds.sort();
        let mut expected = vec![
            ("missing", missing.to_string()),
            ("orphan", orphan.to_string()),
            ("not_ours", "by hand".into()),
        ];
        if provider == "airalo" {
            expected.push(("bought_twice", twice.to_string()));
            expected.push(("bought_twice", twice.to_string()));
        }
        expected.sort();
        assert_eq!(kinds, expected, "{provider}");
        assert_eq!(
            (&found["orphans"], &found["missing"]),
            (&json!(1), &json!(1))
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_without_lists_says_what_to_do_instead() {
    let stack = Stack::builder().provider("usimsa").start().await.unwrap();
    let list = "provider reconcile usimsa --since 1h";
    for (command, remedy) in [
        (list, "recover --ledger FILE"),
        ("catalogue pull usimsa --dry-run", "option apply -f FILE"),
    ] {
        let command: Vec<&str> = command.split(' ').collect();
        let error = stack.esimctl.run::<Value>(&command).await.unwrap_err();
        let error = format!("{error:#}");
        assert!(
            error.contains("the protocol of usimsa has no list of") && error.contains(remedy),
            "{error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn partners_filter_options_by_their_standard_fields() {
    let (stack, shop) = crate::shop::open().await;
    let option = |name: &str, standard: Value| {
        json!({ "option_id": domain::option_of("test", name), "name": name, "provider": "sandbox", "provider_option_id": name,
                "environment": "sandbox", "standard": standard })
    };
    let catalogue = json!([
        option(
            "europe",
            json!({ "countries": ["DE", "FR"], "data_mb": 1024, "days": 7 })
        ),
        option(
            "france",
            json!({ "countries": ["FR"], "data_mb": "unlimited", "days": 30 })
        ),
        option("unknown", Value::Null),
    ]);
    stack.esimctl.import(catalogue.to_string()).await.unwrap();
    let names = async |query: &str| {
        let mut names = Vec::new();
        let mut cursor = String::new();
        loop {
            // Pages of one entry: a filter never makes a page shorter or skips an entry.
            let page = get(&shop.client, &format!("/options?{query}&limit=1{cursor}"))
                .await
                .unwrap();
            let options = page["options"].as_array().unwrap();
            names.extend(
                options
                    .iter()
                    .map(|option| option["name"].as_str().unwrap().to_owned()),
            );
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
            assert_eq!(options.len(), 1);
        }
        names.sort();
        names
    };
    for (query, expected) in [
        ("country=FR", &["europe", "france"][..]),
        ("country=DE", &["europe"]),
        ("country=US", &[]),
        ("country=FR&min_data_mb=1024", &["europe", "france"]),
        ("country=FR&min_data_mb=1025", &["france"]),
        ("unlimited=true", &["france"]),
        ("country=FR&unlimited=false", &["europe"]),
        ("country=FR&min_days=8", &["france"]),
        ("country=FR&max_days=7", &["europe"]),
        ("country=FR&min_days=8&max_days=29", &[]),
    ] {
        assert_eq!(names(query).await, expected, "{query}");
    }
    let all = get(&shop.client, "/options?limit=100").await.unwrap();
    let unknown = all["options"]
        .as_array()
        .unwrap()
        .iter()
        .find(|option| option["name"] == "unknown")
        .unwrap();
    let fields = ["countries", "data_mb", "unlimited", "days"].map(|field| &unknown[field]);
    assert_eq!(fields, [&Value::Null; 4]);
}
