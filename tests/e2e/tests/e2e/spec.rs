//! The specification as tables: one row per rule, each answer compared whole. A row is a request to
//! a real ingress, and its table is run in order.

mod authentication;
mod body;
mod http;
mod ordering;
mod products;
mod self_service;
mod world;

use crate::shop::{fresh, show};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::{collections::HashSet, time::Duration};
use testkit::client::{ACCESS_KEY, Client, Product, Request, SIGNATURE, TIMESTAMP};
use testkit::stack::{Stack, Stage};
use testkit::{esimctl::Partner, raw, rows, wait};
use tokio::io::AsyncWriteExt;
use uuid::Uuid;
use world::World;

/// A rule, a request that breaks or keeps it, and the expected answer.
type Row<R = Request> = (&'static str, fn(&World) -> R, Expected);

/// A whole answer.
#[derive(Clone, Copy)]
enum Expected {
    /// 201 with this number of entries of each option, by name, in this order.
    Created(&'static [(&'static str, usize)]),
    /// 401 with this message.
    Denied(&'static str),
    /// 422 with these messages.
    Unprocessable(&'static [&'static str]),
    /// Any other status, and the message of its body.
    Error(u16, &'static str),
    /// A status without a body, for HEAD.
    Bare(u16),
}

const ONE: Expected = Expected::Created(&[("ready", 1)]);
const NOT_FOUND: Expected = Expected::Error(404, "Not found");
const NOT_ALLOWED: Expected = Expected::Error(405, "Method not allowed");

/// The results of all tables.
#[derive(Default)]
struct Results {
    passed: usize,
    failed: Vec<String>,
    topup_ids: HashSet<String>,
}

impl Results {
    async fn run(&mut self, world: &World, rows: &[Row]) {
        for (rule, request, expected) in rows {
            let outcome = match request(world).send().await {
                Ok(answer) if !answer.headers.contains_key("x-request-id") => {
                    Err(anyhow::anyhow!("the answer has no X-Request-Id"))
                }
                Ok(answer)
                    if answer
                        .headers
                        .get("cache-control")
                        .map(reqwest::header::HeaderValue::as_bytes)
                        != Some(b"no-store") =>
                {
                    Err(anyhow::anyhow!("a cache may store the answer"))
                }
                Ok(answer) => {
                    let kind = answer.headers.get("content-type");
                    let json = kind.is_some_and(|kind| kind == "application/json");
                    self.compare(world, *expected, answer.status, json, &answer.body)
                }
                Err(error) => Err(error),
            };
            self.note(rule, outcome);
        }
    }

    async fn run_raw(&mut self, world: &World, rows: &[Row<Result<Vec<u8>>>]) {
        for (rule, request, expected) in rows {
            let outcome = async {
                let (answer, bytes) =
                    raw::exchange(&world.stack.base_url, &request(world)?).await?;
                ensure!(answer.identified, "the answer has no X-Request-Id");
                self.compare(
                    world,
                    *expected,
                    answer.status,
                    answer.json,
                    &bytes[answer.body],
                )
            };
            let outcome = outcome.await;
            self.note(rule, outcome);
        }
    }

    fn note(&mut self, rule: &str, outcome: Result<()>) {
        match outcome {
            Ok(()) => self.passed += 1,
            Err(error) => self.failed.push(format!("{rule}: {error:#}")),
        }
    }

    fn compare(
        &mut self,
        world: &World,
        expected: Expected,
        status: u16,
        json: bool,
        body: &[u8],
    ) -> Result<()> {
        let came = || {
            format!(
                "came {status} {}",
                String::from_utf8_lossy(&body[..body.len().min(500)])
            )
        };
        self.check(world, expected, status, json, body)
            .with_context(came)
    }

    fn check(
        &mut self,
        world: &World,
        expected: Expected,
        status: u16,
        json: bool,
        body: &[u8],
    ) -> Result<()> {
        if let Expected::Bare(bare) = expected {
            ensure!(status == bare && body.is_empty(), "expected a bare {bare}");
            return Ok(());
        }
        ensure!(json, "the answer's Content-Type is not application/json");
        let parsed: Value = serde_json::from_slice(body)?;
        let (expected, whole) = match expected {
            Expected::Created(items) => {
                ensure!(status == 201, "expected 201");
                return self.created(world, items, &parsed);
            }
            Expected::Denied(message) => {
                let error = json!({"code": "unauthorized", "message": message});
                (401, json!({"error": error}))
            }
            Expected::Unprocessable(messages) => (422, json!({"errors": messages})),
            Expected::Error(status, message) => (status, json!({"error": message})),
            Expected::Bare(_) => unreachable!("it has no body"),
        };
        ensure!(
            status == expected && parsed == whole,
            "expected {expected} {whole}"
        );
        Ok(())
    }

    /// A 201: exactly the field `products`, one entry per unit in the order of the items, each with
    /// an id that no other unit has.
    fn created(&mut self, world: &World, items: &[(&str, usize)], body: &Value) -> Result<()> {
        let fields: Vec<&String> = body.as_object().context("no object")?.keys().collect();
        ensure!(fields == ["products"], "fields of the answer: {fields:?}");
        let products: Vec<Product> = serde_json::from_value(body["products"].clone())?;
        let ordered: Vec<&str> = items
            .iter()
            .flat_map(|(name, units)| std::iter::repeat_n(world.option(name), *units))
            .collect();
        let entered: Vec<&str> = products
            .iter()
            .map(|product| product.option_id.as_str())
            .collect();
        ensure!(
            entered == ordered,
            "entries for {entered:?} instead of {ordered:?}"
        );
        for Product { topup_id, .. } in products {
            ensure!(
                is_topup_id(&topup_id),
                "topup_id {topup_id} is not a UTC time and 12 digits"
            );
            ensure!(
                self.topup_ids.insert(topup_id.clone()),
                "topup_id {topup_id} was given twice"
            );
        }
        Ok(())
    }

    fn assert(&self) {
        let passed = self.passed;
        let failed = self.failed.len();
        assert!(
            failed == 0,
            "{failed} of {} rules are broken:\n{}",
            passed + failed,
            self.failed.join("\n")
        );
        println!("{passed} rules hold");
    }
}

/// 26 digits that begin with a UTC time of today, give or take a day.
fn is_topup_id(text: &str) -> bool {
    let format = time::macros::format_description!("[year][month][day][hour][minute][second]");
    let digits = text.len() == 26 && text.bytes().all(|byte| byte.is_ascii_digit());
    digits
        && time::PrimitiveDateTime::parse(&text[..14], format)
            .is_ok_and(|at| (at.assume_utc() - runtime::clock::now()).abs() < time::Duration::DAY)
}

#[tokio::test]
async fn the_specification_holds_rule_by_rule() {
    let world = World::make().await.unwrap();
    let mut results = Results::default();
    for table in [
        authentication::ROWS,
        body::ROWS,
        products::ROWS,
        ordering::ROWS,
        http::ROWS,
        self_service::ROWS,
    ] {
        results.run(&world, table).await;
    }
    results.run_raw(&world, http::RAW).await;
    // Where this is set, the system has a proxy in front.
    if std::env::var_os("TEST_BASE_URL").is_none() {
        results.run_raw(&world, http::DIRECT).await;
    }
    results.assert();
}

/// A client that does not know that the connection ends would lose its next request.
#[tokio::test]
async fn an_answer_that_leaves_the_body_unread_announces_the_end_of_the_connection() {
    let world = World::make().await.unwrap();
    let mut stranger = world.partner.clone();
    stranger.secret_key = "c29tZWJvZHkgZWxzZQ==".into();
    for framing in [
        "Content-Length: 100",
        "Expect: 100-continue\r\nContent-Length: 100",
        "Transfer-Encoding: chunked",
    ] {
        let request = raw::head(&stranger, framing).unwrap();
        let (answer, _) = raw::exchange(&world.stack.base_url, &request)
            .await
            .unwrap();
        assert_eq!((answer.status, answer.closes), (401, true), "{framing}");
    }
    let whole = raw::create_order(&stranger, b"{}").unwrap();
    let (answer, _) = raw::exchange(&world.stack.base_url, &whole).await.unwrap();
    assert_eq!((answer.status, answer.closes), (401, false));
}

/// What ingress doesn't know yet it looks up; how often it does so is limited, and that must not
/// deny a partner that is in the database.
#[tokio::test]
async fn a_new_partner_works_at_once_however_much_it_begins_with() {
    // The delay that ingress measures is that of a process that was stalled, on a machine that may
    // be busy with other tests. Overload is not the subject here, and neither is how long ingress
    // waits for the head of a request.
    let mut stack = Stack::builder()
        .env(Stage::Ingress, "--target-delay", "1m")
        .env(Stage::Ingress, "--head-timeout", "1m")
        .env(Stage::Ingress, "QUEUE_DEADLINE", "20s")
        .start()
        .await
        .unwrap();
    let ready = stack.option("ready").unwrap().to_owned();
    let connecting = (0..300).map(|_| raw::connect(&stack.base_url));
    let mut connections = futures_util::future::try_join_all(connecting)
        .await
        .unwrap();
    // Stalled meanwhile, ingress finds all of them at once, of a partner that it never heard of.
    stack.process(Stage::Ingress).unwrap().pause().unwrap();
    let partner = stack.create_partner("sandbox", None).await.unwrap();
    for connection in &mut connections {
        let body = testkit::client::order(&fresh("new"), &[(&ready, 1)]).to_string();
        connection
            .write_all(&raw::create_order(&partner, body.as_bytes()).unwrap())
            .await
            .unwrap();
    }
    stack.process(Stage::Ingress).unwrap().resume().unwrap();
    let answers = futures_util::future::try_join_all(connections.into_iter().map(raw::answer));
    let mut denied = answers.await.unwrap();
    denied.retain(|(answer, _)| answer.status != 201);
    let first = denied
        .first()
        .map(|(_, bytes)| String::from_utf8_lossy(bytes));
    assert!(
        denied.is_empty(),
        "{} of 300 were denied: {first:?}",
        denied.len()
    );
}

/// The second upstream 422: certainly nothing was sent, so certainly nothing was bought.
#[tokio::test]
async fn a_provider_that_cannot_be_reached_refuses_the_order() {
    let mut world = World::make().await.unwrap();
    let before = world.stack.ledger().await.unwrap().purchases;
    world
        .stack
        .process(Stage::Sandbox)
        .unwrap()
        .kill()
        .await
        .unwrap();
    let external_order_id = fresh("unreachable");
    let ready = world.option("ready").to_owned();
    let items = [(ready.as_str(), 1)];
    let answer = world
        .client
        .order(&external_order_id, &items)
        .await
        .unwrap();

    let body = answer.json().unwrap();
    let message = body["errors"][0].as_str().unwrap();
    let order_id = message
        .strip_prefix("API connection error (Order ID: ")
        .and_then(|rest| rest.strip_suffix(')'));
    let order_id: Uuid = order_id
        .unwrap_or_else(|| panic!("{body}"))
        .parse()
        .unwrap();
    assert_eq!((answer.status, &body), (422, &json!({"errors": [message]})));

    let order = show(&world.stack, &order_id.to_string()).await.unwrap();
    assert_eq!(
        (&order["refused"], &order["placements"][0]["state"]),
        (&json!(true), &json!("refused")),
        "{order}"
    );
    assert_eq!(order["external_order_id"], external_order_id);

    world
        .stack
        .process(Stage::Sandbox)
        .unwrap()
        .start()
        .await
        .unwrap();
    assert_eq!(world.stack.ledger().await.unwrap().purchases, before);

    // The refused order left its id free, and it stays refused now that the provider is back.
    let again = async || {
        Ok(world
            .client
            .order(&external_order_id, &items)
            .await?
            .products()
            .ok())
    };
    wait::soon("an order after the provider is back", again).await;
    let bought = async || Ok((world.stack.ledger().await?.purchases == before + 1).then_some(()));
    wait::soon("the second order's purchase", bought).await;
    assert_eq!(
        show(&world.stack, &order_id.to_string()).await.unwrap()["placements"][0]["state"],
        "refused"
    );
}

/// A second ingress with other settings, beside the first.
#[tokio::test]
async fn settings_change_the_brand_the_limits_and_the_providers() {
    let stack = Stack::builder()
        .replicas(Stage::Ingress, 2)
        .start()
        .await
        .unwrap();
    let mut world = World::on(stack).await.unwrap();
    let ingress = &mut world.stack.replicas(Stage::Ingress)[1];
    ingress.terminate(Duration::from_secs(30)).await.unwrap();
    let settings = [
        ("BRAND", "Acme"),
        ("MAX_ITEMS", "2"),
        ("MAX_UNITS", "3"),
        ("PROVIDERS", "sandbox,usimsa"),
    ];
    for (name, value) in settings {
        ingress.program_mut().env.insert(name.into(), value.into());
    }
    ingress.start().await.unwrap();
    let base_url = world.stack.base_urls()[1].clone();

    // Signed by the client as ever; only the names of the headers change.
    let branded = |partner: &Partner, items: &[(&str, u32)]| {
        let client = Client::of(&base_url, partner).unwrap();
        let request = client.post(testkit::client::order(&fresh("acme"), items).to_string());
        let access_key = &partner.access_key;
        let timestamp = runtime::clock::unix_seconds().to_string();
        let request = request.timestamp(&timestamp);
        let signature = request.signature();
        let request = request
            .without(ACCESS_KEY)
            .without(TIMESTAMP)
            .without(SIGNATURE);
        request
            .header("X-Acme-Access-Key", access_key)
            .header("X-Acme-Timestamp", timestamp)
            .header("X-Acme-Signature", signature)
    };
    let partner = &world.partner;
    let live = &world.live;
    let ready = world.option("ready");
    let of_usimsa = world.option("live");
    let missing = "Missing required authentication headers.";
    let unknown = "Invalid or missing access key. Please provide a valid X-Acme-Access-Key header.";
    let no_option = Expected::Unprocessable(&["Product with option_id not found"]);
    let rows = rows! {
        "BRAND names the headers", branded(partner, &[(ready, 1)]) => Expected::Created(&[("ready", 1)]);
        "BRAND: the default names are gone",
            Client::of(&base_url, partner).unwrap().post("{}") => Expected::Denied(missing);
        "BRAND: the message names the header",
            branded(partner, &[(ready, 1)]).header("X-Acme-Access-Key", "nobody") => Expected::Denied(unknown);
        "MAX_ITEMS: as many", branded(partner, &[(ready, 1); 2]) => Expected::Created(&[("ready", 2)]);
        "MAX_ITEMS: one more", branded(partner, &[(ready, 1); 3])
            => Expected::Unprocessable(&["Products can't have more than 2 items"]);
        "MAX_UNITS: as many", branded(partner, &[(ready, 3)]) => Expected::Created(&[("ready", 3)]);
        "MAX_UNITS: one more", branded(partner, &[(ready, 4)])
            => Expected::Unprocessable(&["Products can't have more than 3 units in total"]);
        "PROVIDERS: a live option exists now",
            branded(live, &[(of_usimsa, 1)]) => Expected::Created(&[("live", 1)]);
        "PROVIDERS: a sandbox option exists for no live partner", branded(live, &[(ready, 1)]) => no_option;
    };
    let mut results = Results::default();
    for (rule, request, expected) in rows {
        let answer = request.send().await.unwrap();
        let outcome = results.compare(&world, expected, answer.status, true, &answer.body);
        results.note(rule, outcome);
    }
    results.assert();
}
