//! Overload is answered, costs the others nothing, and is seen in logs and metrics.

use crate::{
    partner::{ask, header},
    shop::fresh,
};
use anyhow::{Context, Result};
use futures_util::future::{join_all, try_join_all};
use serde_json::json;
use std::time::Duration;
use testkit::client::{Answer, Client, order};
use testkit::stack::{Stack, Stage};
use testkit::{esimctl::Partner, raw, wait};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const SOON: Duration = Duration::from_secs(10);

async fn partners(stack: &Stack) -> Result<(Partner, Partner)> {
    tokio::try_join!(
        stack.create_partner("sandbox", None),
        stack.create_partner("sandbox", None)
    )
}

async fn one(stack: &Stack, client: &Client) -> Answer {
    client
        .order(&fresh("limits"), &[(stack.option("ready").unwrap(), 1)])
        .await
        .unwrap()
}

/// A request whose body doesn't come, and the first bytes of its answer.
async fn unfinished(stack: &Stack, partner: &Partner) -> Result<TcpStream> {
    let mut connection = raw::connect(&stack.base_url).await?;
    connection
        .write_all(&raw::head(partner, "Content-Length: 100")?)
        .await?;
    Ok(connection)
}

/// All sums of a metric's series that hold `text`.
async fn metric(stack: &mut Stack, name: &str, text: &str) -> Result<f64> {
    let metrics = stack.process(Stage::Ingress)?.metrics().await?;
    let series = metrics
        .lines()
        .filter(|line| line.starts_with(name) && line.contains(text));
    Ok(series
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
        .sum())
}

async fn in_flight(stack: &mut Stack, orders: f64) {
    let as_many = async || {
        let in_flight = metric(stack, "esim_orders_in_flight ", "").await?;
        Ok(((in_flight - orders).abs() < 0.5).then_some(()))
    };
    wait::soon("the orders in flight", as_many).await;
}

#[tokio::test]
async fn a_flood_of_one_partner_leaves_room_for_the_others() {
    let mut stack = Stack::with(Stage::Ingress, &[("MAX_IN_FLIGHT", "16")])
        .await
        .unwrap();
    let (flooding, other) = partners(&stack).await.unwrap();
    let flood = (0..24).map(|_| unfinished(&stack, &flooding));
    let flood = try_join_all(flood).await.unwrap();
    // The other partner has room while the flood lasts.
    let full =
        async || Ok((metric(&mut stack, "esim_orders_in_flight ", "").await? >= 8.0).then_some(()));
    wait::soon("the flood to take its share", full).await;
    let answer = one(&stack, &stack.client(&other).unwrap()).await;
    assert_eq!(answer.status, 201, "{answer:?}");

    let answers = try_join_all(flood.into_iter().map(raw::answer))
        .await
        .unwrap();
    let with = |status| {
        answers
            .iter()
            .filter(|(answer, _)| answer.status == status)
            .count()
    };
    assert_eq!(
        (with(503), with(408)),
        (16, 8),
        "half of the capacity, then 503"
    );
    assert!(
        answers
            .iter()
            .all(|(answer, _)| answer.json && answer.identified && answer.closes)
    );
    let (refused, bytes) = answers
        .iter()
        .find(|(answer, _)| answer.status == 503)
        .unwrap();
    let body =
        json!({"error": "Too many requests in progress; nothing was stored. Try again later"});
    assert_eq!(
        serde_json::from_slice::<serde_json::Value>(&bytes[refused.body.clone()]).unwrap(),
        body
    );
    assert!(String::from_utf8_lossy(bytes).contains("retry-after: 1\r\n"));
    // The permits are free again.
    let answer = one(&stack, &stack.client(&flooding).unwrap()).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    let share = metric(
        &mut stack,
        "esim_requests_refused_total",
        "reason=\"in_flight_share\"",
    )
    .await;
    assert!((share.unwrap() - 16.0).abs() < 0.5);
}

#[tokio::test]
async fn a_partner_beyond_its_rate_gets_429_and_buys_nothing() {
    let limits = [("PARTNER_ORDERS_PER_SECOND", "1"), ("MAX_UNITS", "2")];
    let stack = Stack::with(Stage::Ingress, &limits).await.unwrap();
    let (eager, other) = partners(&stack).await.unwrap();
    let client = stack.client(&eager).unwrap();
    let answers = join_all((0..5).map(|_| one(&stack, &client))).await;
    let accepted = answers.iter().filter(|answer| answer.status == 201).count();
    let limited: Vec<&Answer> = answers
        .iter()
        .filter(|answer| answer.status == 429)
        .collect();
    assert!(
        (1..5).contains(&accepted) && accepted + limited.len() == 5,
        "{answers:?}"
    );
    for answer in limited {
        let body = json!({"error": "Rate limit exceeded: at most 1 orders per second"});
        assert_eq!(answer.json().unwrap(), body);
        // The connection stays: the body was read.
        let told = [
            "retry-after",
            "ratelimit-limit",
            "ratelimit-remaining",
            "ratelimit-reset",
            "connection",
        ];
        assert_eq!(
            told.map(|name| header(answer, name)),
            ["1", "1", "0", "1", ""]
        );
    }
    assert_eq!(
        one(&stack, &stack.client(&other).unwrap()).await.status,
        201
    );
    let mut database = stack.database.connect().await.unwrap();
    let stored: i64 = sqlx::query_scalar("SELECT count(*) FROM orders")
        .fetch_one(&mut database)
        .await
        .unwrap();
    assert_eq!(usize::try_from(stored).unwrap(), accepted + 1);
}

/// An order of 120 bytes made 10,000 webhooks: 1,000 units to ten endpoints of a free account.
#[tokio::test]
async fn an_order_of_a_new_sandbox_account_is_small_and_so_is_its_rate() {
    let stack = Stack::builder().start().await.unwrap();
    let create = [
        "partner",
        "create",
        "--name",
        "stranger",
        "--environment",
        "sandbox",
    ];
    let stranger: Partner = stack.esimctl.run(&create).await.unwrap();
    let client = stack.client(&stranger).unwrap();
    let option = stack.option("ready").unwrap();
    let large = client.order(&fresh("large"), &[(option, 1000)]).await;
    let large = large.unwrap();
    assert_eq!(large.status, 422, "{large:?}");
    let text = large.json().unwrap().to_string();
    assert!(text.contains("50"), "{text}");
    let account = ask(&client, "GET", "/account").await.unwrap();
    let account = account.json().unwrap();
    let limits = &account["limits"];
    assert_eq!(
        (&limits["orders_per_second"], &limits["units_per_second"]),
        (&json!(5), &json!(5))
    );
    assert_eq!(limits["units_per_order"], 50);
    let largest = client.order(&fresh("largest"), &[(option, 50)]).await;
    assert_eq!(largest.unwrap().status, 201);
    // Each second gives room for five further units.
    let next = client.order(&fresh("next"), &[(option, 50)]).await.unwrap();
    assert_eq!(next.status, 429, "{next:?}");
    let limited = async || {
        let many = join_all((0..20).map(|_| one(&stack, &client))).await;
        Ok(many.into_iter().find(|answer| answer.status == 429))
    };
    wait::soon("a limited order", limited).await;
    // Who tests its load has other limits, and so has everybody else.
    let set = [
        "partner",
        "set",
        &stranger.access_key,
        "--units-per-second",
        "default",
    ];
    let _: serde_json::Value = stack.esimctl.run(&set).await.unwrap();
    let whole = async || {
        let account = ask(&client, "GET", "/account").await?.json()?;
        Ok((account["limits"]["units_per_order"] == 1000).then_some(()))
    };
    wait::soon("the limits of the settings", whole).await;
}

#[tokio::test]
async fn a_partner_has_limits_of_its_own_within_a_second() {
    let stack = Stack::builder().start().await.unwrap();
    let (small, other) = partners(&stack).await.unwrap();
    let set = async |limits: &[&str]| {
        let arguments = [&["partner", "set", &small.access_key], limits].concat();
        stack
            .esimctl
            .run::<serde_json::Value>(&arguments)
            .await
            .unwrap()
    };
    let shown = set(&["--orders-per-second", "1", "--units-per-second", "1000"]).await;
    assert_eq!(
        (&shown["orders_per_second"], &shown["max_in_flight"]),
        (&json!(1), &json!(null))
    );
    let client = stack.client(&small).unwrap();
    let limited = async || {
        let answers = join_all((0..3).map(|_| one(&stack, &client))).await;
        Ok(answers.into_iter().find(|answer| answer.status == 429))
    };
    let answer = wait::soon("a limited order", limited).await;
    let body = json!({"error": "Rate limit exceeded: at most 1 orders per second"});
    assert_eq!(answer.json().unwrap(), body);
    // Nothing changes for the others.
    let others = stack.client(&other).unwrap();
    for answer in join_all((0..5).map(|_| one(&stack, &others))).await {
        assert_eq!(answer.status, 201, "{answer:?}");
    }
    set(&["--orders-per-second", "default", "--max-in-flight", "1"]).await;
    let ended = async || {
        let answers = [one(&stack, &client).await, one(&stack, &client).await];
        Ok(answers
            .iter()
            .all(|answer| answer.status == 201)
            .then_some(()))
    };
    wait::soon("the end of the limit", ended).await;
    // One that finds another request in flight is refused itself.
    let mut held = Vec::new();
    let full = async || {
        held.push(unfinished(&stack, &small).await?);
        let answer = one(&stack, &client).await;
        Ok((answer.status == 429).then_some(answer))
    };
    let answer = wait::soon("a full partner", full).await;
    let text = answer.json().unwrap().to_string();
    assert!(text.contains("at most 1"), "{text}");
}

/// With a database that doesn't answer, what waits to be stored is dropped: its clients get a 503,
/// or have gone.
#[tokio::test]
async fn an_order_that_queues_too_long_is_not_stored_later() {
    let mut stack = Stack::with(
        Stage::Ingress,
        &[("QUEUE_DEADLINE", "2s"), ("PLACEMENT_WAIT", "0s")],
    )
    .await
    .unwrap();
    let (partner, _) = partners(&stack).await.unwrap();
    let client = stack.client(&partner).unwrap();
    assert_eq!(one(&stack, &client).await.status, 201);
    let mut database = stack.database.connect().await.unwrap();
    sqlx::raw_sql("BEGIN; LOCK TABLE orders IN EXCLUSIVE MODE")
        .execute(&mut database)
        .await
        .unwrap();

    let ready = stack.option("ready").unwrap().to_owned();
    let base_url = stack.base_url.clone();
    let send = async |id: &str| {
        let body = order(id, &[(&ready, 1)]).to_string();
        let mut connection = raw::connect(&base_url).await?;
        connection
            .write_all(&raw::create_order(&partner, body.as_bytes())?)
            .await?;
        anyhow::Ok(connection)
    };
    // The first one is in the statement, the others queue behind it.
    let first = send("first").await.unwrap();
    let mut witness = stack.database.connect().await.unwrap();
    let in_statement = async || {
        let waiting =
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'orders'::regclass";
        let waiting: i64 = sqlx::query_scalar(waiting).fetch_one(&mut witness).await?;
        Ok((waiting > 0).then_some(()))
    };
    wait::soon("the first order to be written", in_statement).await;
    // A client that hangs up takes its order with it, long before the deadline.
    let gone = send("gone").await.unwrap();
    in_flight(&mut stack, 2.0).await;
    drop(gone);
    in_flight(&mut stack, 1.0).await;
    let queued = try_join_all([send("queued-1"), send("queued-2")])
        .await
        .unwrap();
    for (answer, bytes) in try_join_all(queued.into_iter().map(raw::answer))
        .await
        .unwrap()
    {
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(answer.status, 503, "{text}");
        assert!(
            text.contains("retry-after: 1\r\n") && text.contains("nothing was stored"),
            "{text}"
        );
    }
    sqlx::raw_sql("ROLLBACK")
        .execute(&mut database)
        .await
        .unwrap();
    let (answer, _) = raw::answer(first).await.unwrap();
    assert_eq!(answer.status, 201);
    let ids = "SELECT external_order_id FROM orders WHERE external_order_id !~ '^limits'";
    let stored: Vec<String> = sqlx::query_scalar(ids)
        .fetch_all(&mut database)
        .await
        .unwrap();
    assert_eq!(stored, ["first"]);
    assert!(
        metric(&mut stack, "esim_orders_total", "outcome=\"expired\"")
            .await
            .unwrap()
            >= 2.0
    );
}

/// Sends a request that authenticates on a new connection, and keeps the connection open.
async fn authenticated(stack: &Stack, partner: &Partner) -> Result<TcpStream> {
    let mut connection = raw::connect(&stack.base_url).await?;
    connection
        .write_all(&raw::create_order(partner, b"{}")?)
        .await?;
    let (answer, _) = raw::answer(&mut connection).await?;
    anyhow::ensure!(answer.status == 422 && !answer.closes, "{answer:?}");
    Ok(connection)
}

/// Reads the 503 of a refused connection, which closes it.
async fn refused(connection: TcpStream) {
    let (answer, bytes) = raw::answer(connection).await.unwrap();
    assert!(answer.status == 503 && answer.json && answer.closes);
    let head = String::from_utf8_lossy(&bytes[..answer.body.start]).to_lowercase();
    assert!(head.contains("\r\ncache-control: no-store\r\n"), "{head}");
    let body: serde_json::Value = serde_json::from_slice(&bytes[answer.body]).unwrap();
    assert_eq!(
        body,
        json!({"error": "Too many connections are open; try again later"})
    );
}

#[tokio::test]
async fn connections_are_bounded_and_silent_ones_end() {
    let limits = [("MAX_CONNECTIONS", "2"), ("HEAD_TIMEOUT", "6s")];
    let mut stack = Stack::with(Stage::Ingress, &limits).await.unwrap();
    let (partner, other) = partners(&stack).await.unwrap();
    let mut silent = raw::connect(&stack.base_url).await.unwrap();
    let closed = tokio::time::timeout(SOON, silent.read(&mut [0; 16])).await;
    assert_eq!(closed.expect("it is closed").unwrap(), 0);
    // Each has one place, so nobody has to make room.
    let both = [&partner, &other].map(|one| authenticated(&stack, one));
    let mut held = try_join_all(both).await.unwrap();
    refused(raw::connect(&stack.base_url).await.unwrap()).await;
    // They make room by themselves.
    for connection in &mut held {
        let closed = tokio::time::timeout(SOON, connection.read(&mut [0; 16])).await;
        assert_eq!(closed.expect("it is closed").unwrap(), 0);
    }
    let room = async || Ok(authenticated(&stack, &partner).await.ok());
    wait::soon("room for connections", room).await;
    let refused = metric(
        &mut stack,
        "esim_connections_refused_total",
        "reason=\"all\"",
    );
    assert!(refused.await.unwrap() >= 1.0);
}

#[tokio::test]
async fn connections_without_keys_keep_nobody_out() {
    let mut stack = Stack::with(Stage::Ingress, &[("MAX_CONNECTIONS", "20")])
        .await
        .unwrap();
    let (partner, other) = partners(&stack).await.unwrap();
    let mut kept = authenticated(&stack, &partner).await.unwrap();
    // More than all places, half of them with a head that never ends.
    let mut flood = Vec::new();
    for number in 0..60 {
        let mut connection = raw::connect(&stack.base_url).await.unwrap();
        if number % 2 == 0 {
            let _ = connection.write_all(b"GET / HTTP/1.1\r\nHost: x").await;
        }
        flood.push(connection);
    }
    // Each of these requests is sent on a new connection.
    for _ in 0..10 {
        drop(authenticated(&stack, &other).await.unwrap());
    }
    // A partner's connection stays, and those that made room learn why.
    kept.write_all(&raw::create_order(&partner, b"{}").unwrap())
        .await
        .unwrap();
    assert_eq!(raw::answer(&mut kept).await.unwrap().0.status, 422);
    for connection in flood.drain(..40) {
        refused(connection).await;
    }
    let displaced = metric(
        &mut stack,
        "esim_connections_refused_total",
        "reason=\"displaced\"",
    );
    assert!(displaced.await.unwrap() >= 40.0);
}

/// With keys, too: whoever holds most makes room, whether its connections are idle or wait for the
/// rest of a body.
#[tokio::test]
async fn connections_of_one_partner_keep_nobody_out() {
    let stack = Stack::with(Stage::Ingress, &[("MAX_CONNECTIONS", "20")])
        .await
        .unwrap();
    let (hoarder, other) = partners(&stack).await.unwrap();
    let mut kept = authenticated(&stack, &other).await.unwrap();
    let mut hoard = Vec::new();
    let order = raw::create_order(&hoarder, &vec![b' '; 1000]).unwrap();
    for number in 0..40 {
        let connection = if number % 2 == 0 {
            authenticated(&stack, &hoarder).await.unwrap()
        } else {
            let mut connection = raw::connect(&stack.base_url).await.unwrap();
            connection
                .write_all(&order[..order.len() - 1])
                .await
                .unwrap();
            connection
        };
        hoard.push(connection);
    }
    // Each of these requests is sent on a new connection.
    for _ in 0..10 {
        drop(authenticated(&stack, &other).await.unwrap());
    }
    kept.write_all(&raw::create_order(&other, b"{}").unwrap())
        .await
        .unwrap();
    assert_eq!(raw::answer(&mut kept).await.unwrap().0.status, 422);
    refused(hoard.swap_remove(0)).await;
}

#[tokio::test]
async fn refused_requests_leave_a_line_with_the_id_of_the_answer() {
    let mut stack = Stack::start().await.unwrap();
    let (partner, _) = partners(&stack).await.unwrap();
    let client = stack.client(&partner).unwrap();
    let unsigned = client.post("{}").header("x-service-signature", "00").send();
    let invalid = client.post("{}").send();
    let not_json = client.post("{").send();
    let lost = client.post("").path("/nowhere").send();
    let answers = tokio::try_join!(unsigned, invalid, not_json, lost).unwrap();
    let expected = [
        (&answers.0, 401, "signature_invalid", false),
        (&answers.1, 422, "external_order_id_blank", true),
        (&answers.2, 400, "invalid_json", true),
        (&answers.3, 404, "not_found", false),
    ];
    let log = stack.process(Stage::Ingress).unwrap().log().unwrap();
    for (answer, status, reason, known) in expected {
        assert_eq!(answer.status, status);
        let id = header(answer, "x-request-id");
        assert!(!id.is_empty());
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(id)).collect();
        let [line] = lines[..] else {
            panic!("not one line with {id}: {lines:?}");
        };
        assert!(
            line.contains("request refused") && line.contains(&status.to_string()),
            "{line}"
        );
        assert!(line.contains(reason), "{line}");
        assert_eq!(
            line.contains(&format!("partner.id={}", partner.partner_id)),
            known,
            "{line}"
        );
        let of = if known {
            partner.partner_id.as_str()
        } else {
            ""
        };
        let series = format!("{{partner=\"{of}\",reason=\"{reason}\"");
        let counted = metric(&mut stack, "esim_requests_refused_total", &series[1..]).await;
        assert!(counted.unwrap() >= 1.0, "{series}");
    }
}

#[tokio::test]
async fn pictures_wait_for_their_turn_and_then_get_503() {
    let stack = Stack::start().await.unwrap();
    let url = format!("{}/qr/LPA%3A1%24smdp.example%24AB12/300", stack.base_url);
    let http = testkit::http::client().unwrap();
    let draw = || async {
        let answer = http.get(&url).send().await?;
        let status = answer.status().as_u16();
        let retry = answer.headers().contains_key("retry-after");
        anyhow::Ok((status, retry, answer.bytes().await?))
    };
    // A hundred are drawn at once and a hundred more per second, and none waits longer than a
    // second.
    let drawn = try_join_all((0..500).map(|_| draw())).await.unwrap();
    let (good, refused): (Vec<_>, Vec<_>) =
        drawn.into_iter().partition(|(status, ..)| *status == 200);
    let (_, _, png) = good.first().context("none was drawn").unwrap();
    assert_eq!(png[24], 1, "one bit for a pixel");
    assert!(!refused.is_empty());
    assert!(
        refused
            .iter()
            .all(|(status, retry, _)| *status == 503 && *retry),
        "{refused:?}"
    );
}
