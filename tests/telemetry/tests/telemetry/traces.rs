//! One order, one trace, from three services and the provider; a webhook that is tried again is a
//! trace of its own.

use crate::sink::{Book, Sink, Span};
use crate::tree::{Rule, check, rules};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind::{self, Internal};
use serde_json::Value;
use std::time::Duration;
use testkit::shop::{PATH, Shop, verdicts_come};
use testkit::stack::{Stack, Stage};

const POST: &str = "POST /api/v1/api_partner/orders";
/// As the sandbox sees it.
const FETCHED: &str = "GET /api/v2/order/{order_id}";
const INBOUND: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

/// The spans of an order of two units that are ready at once and one that comes later: name, kind,
/// service, names of possible parents, the least and the most of them; `linked`: to the parent as
/// well.
const ORDER: &str = "
    POST /api/v1/api_partner/orders ; Server   ; ingress     ;                                        ; 1 ; 1
    INSERT orders                   ; Client   ; ingress     ; POST /api/v1/api_partner/orders        ; 1 ; 1
    publish TOPUP_JOBS              ; Producer ; ingress     ; POST /api/v1/api_partner/orders        ; 1 ; 1
    receive TOPUP_JOBS              ; Client   ; provisioner ; publish TOPUP_JOBS                     ; 1 ; 1
    process TOPUP_JOBS              ; Consumer ; provisioner ; publish TOPUP_JOBS                     ; 1 ; 1 ; linked
    POST /api/v2/order              ; Client   ; provisioner ; process TOPUP_JOBS                     ; 1 ; 1
    POST /api/v2/order              ; Server   ; sandbox     ; POST /api/v2/order                     ; 1 ; 1
    due placement               ; Internal ; provisioner ; POST /api/v1/api_partner/orders        ; 1 ; 20 ; linked
    GET /api/v2/order/{orderId}     ; Client   ; provisioner ; process TOPUP_JOBS | due placement ; 2 ; 21
    GET /api/v2/order/{order_id}    ; Server   ; sandbox     ; GET /api/v2/order/{orderId}            ; 2 ; 21
    UPDATE placements               ; Client   ; provisioner ; publish TOPUP_JOBS | process TOPUP_JOBS | due placement ; 3 ; 22
    publish TOPUP_READY             ; Producer ; ingress     ; process TOPUP_JOBS | due placement ; 2 ; 3
    receive TOPUP_READY             ; Client   ; notifier    ; publish TOPUP_READY                    ; 1 ; 3
    SELECT deliveries               ; Client   ; notifier    ; publish TOPUP_READY                    ; 1 ; 3
    process TOPUP_READY             ; Consumer ; notifier    ; publish TOPUP_READY                    ; 3 ; 3 ; linked
    POST webhook                    ; Client   ; notifier    ; process TOPUP_READY                    ; 3 ; 3
    UPDATE deliveries               ; Client   ; notifier    ; process TOPUP_READY                    ; 3 ; 3";

/// Attributes by the semantic conventions, of spans by name.
const ATTRIBUTES: &str = "
    POST /api/v1/api_partner/orders ; http.request.method=POST ; http.route=/api/v1/api_partner/orders ; url.path=/api/v1/api_partner/orders ; url.scheme=http ; http.response.status_code=201
    INSERT orders ; db.system.name=postgresql ; db.operation.name=INSERT ; db.collection.name=orders
    publish TOPUP_JOBS ; messaging.system=nats ; messaging.operation.name=publish ; messaging.operation.type=send ; messaging.destination.name=TOPUP_JOBS
    receive TOPUP_JOBS ; messaging.operation.type=receive ; messaging.consumer.group.name=provisioner-sandbox ; messaging.batch.message_count=1
    process TOPUP_JOBS ; messaging.operation.type=process ; messaging.destination.name=TOPUP_JOBS ; provider.name=sandbox
    POST /api/v2/order ; http.request.method=POST ; url.template=/api/v2/order ; server.address=127.0.0.1 ; http.response.status_code=200
    GET /api/v2/order/{order_id} ; http.request.method=GET ; http.route=/api/v2/order/{order_id} ; url.scheme=http ; http.response.status_code=200
    POST webhook ; http.request.method=POST ; server.address=127.0.0.1 ; url.scheme=http ; http.response.status_code=200
    UPDATE deliveries ; db.system.name=postgresql ; db.collection.name=deliveries";

fn named<'a>(book: &'a Book, name: &str, trace: &str) -> Vec<&'a Span> {
    let named = |span: &&Span| span.name == name && (trace.is_empty() || span.trace == trace);
    book.spans.iter().filter(named).collect()
}

fn post_of<'a>(book: &'a Book, trace: &str) -> &'a Span {
    let posts = named(book, POST, trace);
    assert_eq!(posts.len(), 1, "{posts:#?}");
    posts[0]
}

/// Of the webhook's own header: `00-<trace>-<span>-<flags>`.
fn trace_of(webhook: &testkit::receiver::Received) -> (String, String) {
    let header = webhook.headers["traceparent"].to_str().unwrap();
    let parts: Vec<&str> = header.split('-').collect();
    assert_eq!((parts.len(), parts[3]), (4, "01"), "{header}");
    (parts[1].to_owned(), parts[2].to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_is_one_trace_and_a_retried_webhook_one_of_its_own() {
    let sink = Sink::start().await.unwrap();
    let builder = sink
        .hears(Stack::builder())
        .env(Stage::Notifier, "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        .env(Stage::Notifier, "RETRY_SCHEDULE", "300ms,300ms")
        .env(Stage::Notifier, "LOG_FORMAT", "json");
    let mut stack = builder.start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    verdicts_come(&stack, &shop.client).await.unwrap();

    let items = [
        (stack.option("ready").unwrap(), 2),
        (stack.option("delayed").unwrap(), 1),
    ];
    let order = testkit::client::order("traced", &items).to_string();
    let request = shop.client.post(order).header("traceparent", INBOUND);
    assert_eq!(request.send().await.unwrap().products().unwrap().len(), 3);
    let told = shop
        .receiver
        .wait_for(3, Duration::from_secs(20))
        .await
        .unwrap();
    let (trace, _) = trace_of(&told[0]);
    let [_, inbound, caller, _] = INBOUND.split('-').collect::<Vec<_>>()[..] else {
        panic!("{INBOUND}")
    };
    assert_ne!(trace, inbound, "an inbound trace is not trusted");

    // Each process exports its spans by itself, so those of one process can come after all others.
    let all_parents_are_there = |book: &Book| {
        let of_trace = || book.spans.iter().filter(|span| span.trace == trace);
        of_trace()
            .all(|span| span.parent.is_empty() || of_trace().any(|parent| parent.id == span.parent))
    };
    let whole = |book: &Book| {
        let count = |name: &str| named(book, name, &trace).len();
        count("UPDATE deliveries") == 3
            && count("process TOPUP_READY") == 3
            && count("publish TOPUP_READY") >= 2
            && count("receive TOPUP_READY") == count("SELECT deliveries")
            && count("due placement") > 0
            && count("POST /api/v2/order") == 2
            && count("GET /api/v2/order/{orderId}") == count(FETCHED)
            && all_parents_are_there(book)
    };
    let book = sink.wait_until("the order's trace", whole).await.unwrap();
    let mut spans = book.spans.clone();
    spans.retain(|span| span.trace == trace);
    check(&rules(ORDER), &spans).unwrap();
    still_sees_what_is_wrong(&spans);

    let post = post_of(&book, &trace);
    let inbound = (inbound.to_owned(), caller.to_owned());
    assert_eq!(post.links, [inbound], "an inbound trace is linked");
    let order_id = &post.attributes["order.id"];
    let elsewhere =
        |span: &&Span| span.attributes.get("order.id") == Some(order_id) && span.trace != trace;
    let elsewhere = book.spans.iter().filter(elsewhere).count();
    assert_eq!(elsewhere, 0, "all of the order is in its trace");
    for webhook in &told {
        let (of, span) = trace_of(webhook);
        let sent = spans
            .iter()
            .find(|one| one.id == span)
            .expect("the webhook's span");
        assert_eq!((&of, sent.name.as_str()), (&trace, "POST webhook"));
    }
    attributes_follow_the_conventions(&spans);
    everybody_is_heard(&book);
    latency_leads_to(&trace, &mut stack).await;

    retried_webhook(&sink, &mut stack, &shop).await;
}

/// The histograms of every stage that the last order passed name its trace to whoever asks for
/// `OpenMetrics`.
async fn latency_leads_to(trace: &str, stack: &mut Stack) {
    let http = testkit::http::client().unwrap();
    let exemplar = format!("# {{trace_id=\"{trace}\"");
    for (stage, histograms) in [
        (
            Stage::Ingress,
            &["http_server_request_duration_seconds"][..],
        ),
        (
            Stage::Provisioner,
            &[
                "esim_provider_call_duration_seconds",
                "esim_topup_ready_duration_seconds",
            ],
        ),
        (
            Stage::Notifier,
            &[
                "esim_delivery_attempt_duration_seconds",
                "esim_delivery_duration_seconds",
                "esim_delivery_ready_duration_seconds",
            ],
        ),
    ] {
        let ready = &stack.process(stage).unwrap().program().ready_url;
        let asked = http.get(ready.replace("readyz", "metrics"));
        let asked = asked.header("accept", "application/openmetrics-text; version=1.0.0");
        let text = asked.send().await.unwrap().text().await.unwrap();
        for histogram in histograms {
            let named = text
                .lines()
                .any(|line| line.starts_with(histogram) && line.contains(&exemplar));
            assert!(named, "{histogram} names no {trace}:\n{text}");
        }
    }
}

/// The checker itself: each of these is one step less of what carries the trace on.
fn still_sees_what_is_wrong(spans: &[Span]) {
    let rules = rules(ORDER);
    let spoil = |rule: &Rule, spoil: &dyn Fn(&mut Span)| {
        let mut spans = spans.to_vec();
        spans
            .iter_mut()
            .filter(|span| rule.is_of(span))
            .for_each(spoil);
        check(&rules, &spans).unwrap_err()
    };
    for rule in &rules[1..] {
        spoil(rule, &|span| span.parent = "0123456789abcdef".into());
        spoil(rule, &|span| span.parent.clear());
        spoil(rule, &|span| span.name = "other".into());
        spoil(rule, &|span| span.service = "other".into());
        spoil(rule, &|span| span.kind = SpanKind::Unspecified);
        if rule.linked {
            spoil(rule, &|span| span.links.clear());
        }
        let without: Vec<Span> = spans
            .iter()
            .filter(|span| !rule.is_of(span))
            .cloned()
            .collect();
        check(&rules, &without).unwrap_err();
    }
}

fn attributes_follow_the_conventions(spans: &[Span]) {
    let of = |name: &str| {
        let named =
            |span: &&Span| span.name == name && (span.service != "sandbox" || name == FETCHED);
        &spans.iter().find(named).unwrap().attributes
    };
    for line in ATTRIBUTES.trim().lines() {
        let (name, expected) = line.trim().split_once(" ; ").unwrap();
        for pair in expected.split(" ; ") {
            let (key, value) = pair.split_once('=').unwrap();
            let found = of(name).get(key).map(String::as_str);
            assert_eq!(found, Some(value), "{key} of {name}");
        }
    }
    assert!(spans.iter().all(|span| !span.failed), "{spans:#?}");
    assert_eq!(
        spans.iter().map(|span| span.events).sum::<usize>(),
        0,
        "what is logged is sent as logs"
    );
    assert!(!of("POST webhook").contains_key("http.request.resend_count"));
}

fn everybody_is_heard(book: &Book) {
    for service in Stage::ALL.map(Stage::name) {
        let protocol = if service == "notifier" {
            "grpc"
        } else {
            "http/protobuf"
        };
        let known = book.protocols.contains(&(service.into(), protocol));
        assert!(known, "{:?}", book.protocols);
        let resource = &book.resources[service];
        assert_eq!(resource["service.namespace"], "esim");
        assert_eq!(resource["service.version"], runtime::version::VERSION);
        let revision = resource.get("vcs.ref.head.revision").map(String::as_str);
        assert_eq!(revision, runtime::version::COMMIT);
        assert!(!resource["service.instance.id"].is_empty());
        assert!(
            book.logs.iter().any(|log| log.service == service),
            "logs of {service}"
        );
    }
    for (service, metric) in [
        ("ingress", "esim.orders"),
        ("provisioner", "esim.topups"),
        ("notifier", "esim.deliveries"),
        ("sandbox", "esim.sandbox.purchases"),
        ("ingress", "process.cpu.time"),
    ] {
        let known = book.metrics.contains(&(service.into(), metric.into()));
        assert!(known, "{:?}", book.metrics);
    }
}

async fn retried_webhook(sink: &Sink, stack: &mut Stack, shop: &Shop) {
    let before = shop.receiver.received().len();
    shop.receiver.fail_first(PATH, 503);
    let ready = stack.option("ready").unwrap().to_owned();
    shop.buy("retried", &ready, 1).await.unwrap();
    let told = shop.receiver.wait_for(before + 2, Duration::from_secs(20));
    let told = told.await.unwrap();
    let (trace, _) = trace_of(&told[before]);
    let (second_trace, second_span) = trace_of(&told[before + 1]);
    assert_ne!(trace, second_trace, "a later attempt is a trace of its own");

    let whole = |book: &Book| {
        let has = |name: &str, trace: &str| !named(book, name, trace).is_empty();
        has("due delivery", &second_trace)
            && has("UPDATE deliveries", &second_trace)
            && has("process TOPUP_READY", &trace)
            && book
                .logs
                .iter()
                .any(|log| log.service == "notifier" && log.trace == trace)
    };
    let book = sink
        .wait_until("both traces of the webhook", whole)
        .await
        .unwrap();
    let post = post_of(&book, &trace);
    let [redrive] = named(&book, "due delivery", &second_trace)[..] else {
        panic!("one attempt")
    };
    assert_eq!(
        (redrive.kind, redrive.parent.as_str()),
        (Internal, ""),
        "it is a root"
    );
    let order = (trace.clone(), post.id.clone());
    assert_eq!(redrive.links, [order], "linked to the order");
    let [attempt] = named(&book, "POST webhook", &second_trace)[..] else {
        panic!("one request")
    };
    assert_eq!((&attempt.parent, &attempt.id), (&redrive.id, &second_span));
    assert_eq!(attempt.attributes["http.request.resend_count"], "1");
    let [first] = named(&book, "POST webhook", &trace)[..] else {
        panic!("one request")
    };
    assert!(first.failed && !attempt.failed);
    assert_eq!(first.attributes["error.type"], "503");
    let roots = book
        .spans
        .iter()
        .filter(|span| span.trace == second_trace && span.parent.is_empty());
    assert_eq!(roots.count(), 1);

    // Its line on standard error has the same trace as the log record.
    let log = stack.process(Stage::Notifier).unwrap().log().unwrap();
    let mut lines = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect(line));
    let line = lines.find(|line| line["trace_id"] == trace.as_str());
    let line = line.expect("a line of the attempt");
    let record = book.logs.iter().find(|log| log.trace == trace).unwrap();
    assert_eq!(line["span_id"], record.span.as_str());
    assert_eq!(line["message"], record.body.as_str());
    assert_eq!(line["order.id"], post.attributes["order.id"].as_str());
}
