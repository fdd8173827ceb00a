//! A form that is sent again after it was carried out: from the page before, by Back, or by a
//! second click. It must do nothing, even if what it is about is in the same state again.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use console::{access::OperatorRole, routes::routes};
use reqwest::Method;
use testkit::settings::MASTER_KEY;
use uuid::Uuid;

use crate::support::{Bench, Browser};

/// What the form with this path carries along of what its page shows.
pub async fn seen(browser: &mut Browser, page: &str, path: &str) -> String {
    let page = browser.get(page).await.text().await.unwrap();
    let (_, form) = page
        .split_once(&format!("action=\"{path}\""))
        .unwrap_or_else(|| panic!("no form for {path} in {page}"));
    let (_, seen) = form.split_once("name=\"seen\" value=\"").unwrap();
    seen.split('"').next().unwrap().to_owned()
}

async fn send(browser: &mut Browser, path: &str, seen: &str) -> (u16, String) {
    let token = browser.token.clone();
    let form = [("token", &*token), ("reason", "a test"), ("seen", seen)];
    let answer = browser.post(path, &form).await;
    (answer.status().as_u16(), answer.text().await.unwrap())
}

#[tokio::test]
async fn one_form_sends_a_webhook_again_once() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("sue", OperatorRole::Support).await;
    let order = format!("/orders/{}", bench.order);
    let path = format!("/deliveries/{}/resend", bench.topup);
    let form = seen(&mut browser, &order, &path).await;
    assert_eq!(send(&mut browser, &path, &form).await.0, 303);
    assert_eq!(send(&mut browser, &path, &form).await.0, 409);
    // The attempt fails like the one before, so the webhook is in the state that the form has seen.
    let mut connection = bench.database.connect().await.unwrap();
    for sql in [
        "UPDATE deliveries SET state = 'exhausted', attempt = attempt + 1, attempted_at = now()",
        "DELETE FROM work WHERE kind = 'deliver'",
    ] {
        sqlx::query(sql).execute(&mut connection).await.unwrap();
    }
    let (status, page) = send(&mut browser, &path, &form).await;
    assert_eq!(status, 409, "{page}");
    // What was refused is not in the record.
    assert_eq!(bench.recorded().await, ["sue resend start"]);
    let form = seen(&mut browser, &order, &path).await;
    assert_eq!(send(&mut browser, &path, &form).await.0, 303);
    // A form that does not say what it has seen cannot be about that.
    assert_eq!(send(&mut browser, &path, "exhausted").await.0, 422);
    bench.stop().await;
}

#[tokio::test]
async fn one_form_pauses_an_endpoint_once() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Operator).await;
    let page = format!("/partners/{}", bench.partner);
    let pause = format!("/endpoints/{}/pause", bench.partner);
    let resume = format!("/endpoints/{}/resume", bench.partner);
    let form = seen(&mut browser, &page, &pause).await;
    assert_eq!(send(&mut browser, &pause, &form).await.0, 303);
    let resuming = seen(&mut browser, &page, &resume).await;
    assert_eq!(send(&mut browser, &resume, &resuming).await.0, 303);
    for (path, form) in [(&pause, &form), (&resume, &resuming)] {
        let (status, page) = send(&mut browser, path, form).await;
        assert_eq!(status, 409, "{page}");
        assert!(page.contains("and is open now"), "{page}");
    }
    assert_eq!(
        bench.recorded().await,
        ["ana endpoint pause", "ana endpoint resume"]
    );
    // The record names the partner, too, so that its filter finds what was done to its endpoints.
    let record = format!("/actions?partner={}", bench.partner);
    let record = browser.get(&record).await.text().await.unwrap();
    assert!(record.contains("<small>endpoint pause</small>"), "{record}");
    let form = seen(&mut browser, &page, &pause).await;
    assert_eq!(send(&mut browser, &pause, &form).await.0, 303);
    bench.stop().await;
}

#[tokio::test]
async fn one_form_disables_a_partner_once() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Operator).await;
    let partner = format!("/partners/{}", bench.partner);
    let page = format!("{partner}/access");
    let disable = format!("{partner}/disable");
    let enable = format!("{partner}/enable");
    let form = seen(&mut browser, &page, &disable).await;
    assert_eq!(send(&mut browser, &disable, &form).await.0, 303);
    let (status, told) = send(&mut browser, &disable, &form).await;
    assert_eq!(status, 409);
    assert!(told.contains("is disabled now"), "{told}");
    let shown = browser.get(&partner).await.text().await.unwrap();
    assert!(shown.contains("each of its requests gets a 401"), "{shown}");
    let enabling = seen(&mut browser, &page, &enable).await;
    assert_eq!(send(&mut browser, &enable, &enabling).await.0, 303);
    assert_eq!(send(&mut browser, &enable, &enabling).await.0, 409);
    // The partner is enabled, as the first form has seen it, and that form has acted already.
    let (status, told) = send(&mut browser, &disable, &form).await;
    assert_eq!(status, 409);
    assert!(told.contains("is enabled now"), "{told}");
    assert_eq!(
        bench.recorded().await,
        ["ana partner disable", "ana partner enable"]
    );
    bench.stop().await;
}

#[tokio::test]
async fn a_resend_is_cancelled_once() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Operator).await;
    let path = format!("/resends/{}/cancel", bench.resend().await);
    assert_eq!(send(&mut browser, &path, "").await.0, 303);
    let (status, page) = send(&mut browser, &path, "").await;
    assert_eq!(status, 409);
    assert!(page.contains("was cancelled already"), "{page}");
    assert_eq!(bench.recorded().await, ["ana resend cancel"]);
    bench.stop().await;
}

/// Between the two, the first one has come to its end, so that what it is about is as it was
/// before.
#[tokio::test]
async fn one_form_asks_a_provider_once() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Operator).await;
    let mut connection = bench.database.connect().await.unwrap();
    let page = format!("/esims/{}", bench.topup);
    let usage = format!("{page}/usage");
    let form = seen(&mut browser, &page, &usage).await;
    assert_eq!(send(&mut browser, &usage, &form).await.0, 303);
    for sql in [
        "UPDATE esim_requests SET usage_asked_at = NULL, read_at = now(), data_used = 1, data_total = 2",
        "DELETE FROM work WHERE kind = 'usage'",
    ] {
        sqlx::query(sql).execute(&mut connection).await.unwrap();
    }
    assert_eq!(send(&mut browser, &usage, &form).await.0, 409);
    let form = seen(&mut browser, &page, &usage).await;
    assert_eq!(send(&mut browser, &usage, &form).await.0, 303);

    let settling = settling(&mut browser).await;
    let shown = browser.get(&settling).await.text().await.unwrap();
    let mut form = hidden(&shown, "/purchases/ask");
    form.push(("reason".to_owned(), "a test".to_owned()));
    assert_eq!(post(&mut browser, "/purchases/ask", &form).await.0, 303);
    // The provider has not got it, so it is on hold as before.
    sqlx::query("DELETE FROM work WHERE kind = 'look_again'")
        .execute(&mut connection)
        .await
        .unwrap();
    let (status, told, _) = post(&mut browser, "/purchases/ask", &form).await;
    assert_eq!(status, 409, "{told}");
    assert_eq!(
        bench.recorded().await,
        [
            "ana topup usage",
            "ana topup usage",
            "ana provider reconcile"
        ]
    );
    bench.stop().await;
}

#[tokio::test]
async fn one_preview_starts_one_resend_even_if_that_was_cancelled() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Operator).await;
    let preview = "/resends/preview?state=exhausted&since=1h";
    let shown = browser.get(preview).await.text().await.unwrap();
    // Which ones these are is a list of its own, of the same filter.
    let list = shown
        .split("data-label=\"Webhooks\"><a href=\"")
        .nth(1)
        .unwrap();
    let list = list.split('"').next().unwrap().replace("&#38;", "&");
    let page = browser.get(&list).await.text().await.unwrap();
    let order = format!("/orders/{}", bench.order);
    assert!(
        list.contains("state=exhausted&from=") && page.contains(&order),
        "{list}: {page}"
    );
    let mut form = hidden(&shown, "/resends");
    form.push(("reason".to_owned(), "a test".to_owned()));
    let (status, told, to) = post(&mut browser, "/resends", &form).await;
    assert_eq!(status, 303, "{told}");
    let cancel = format!("{to}/cancel");
    let cancelling = seen(&mut browser, &to, &cancel).await;
    assert_eq!(send(&mut browser, &cancel, &cancelling).await.0, 303);
    let mut connection = bench.database.connect().await.unwrap();
    sqlx::query("UPDATE resends SET ended_at = now()")
        .execute(&mut connection)
        .await
        .unwrap();
    let (status, told, _) = post(&mut browser, "/resends", &form).await;
    assert_eq!(status, 409, "{told}");
    assert!(told.contains("by the same form"), "{told}");
    assert_eq!(
        bench.recorded().await,
        ["ana resend start", "ana resend cancel"]
    );
    bench.stop().await;
}

/// Somebody who has acted is led to a page that shows what the act has changed, and not a look from
/// before.
#[tokio::test]
async fn the_page_after_an_act_shows_what_it_has_changed() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Operator).await;
    let stop = "/providers/sandbox/open";
    let resume = "/providers/sandbox/close";
    for _ in 0..3 {
        for path in [stop, resume] {
            let form = seen(&mut browser, "/providers", path).await;
            assert_eq!(send(&mut browser, path, &form).await.0, 303);
        }
    }
    bench.stop().await;
}

/// The page that settles purchases on hold, as Needs a person leads to it.
async fn settling(browser: &mut Browser) -> String {
    let needs = browser.get("/needs").await.text().await.unwrap();
    let (_, link) = needs.split_once("href=\"/purchases/settle?").unwrap();
    let query = link.split('"').next().unwrap().replace("&#38;", "&");
    format!("/purchases/settle?{query}")
}

/// How often an act may be carried out if its form is sent twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Twice {
    /// Once: the second form is refused, because what it is about has changed.
    Once,
    /// It only shows something. Each time is recorded.
    Shows,
    /// It changes nothing that is recorded.
    Free,
}

/// What somebody fills in beside the reason.
type Filled = &'static [(&'static str, &'static str)];

/// The statements that make what an act is about.
type Before = &'static [&'static str];

/// An act as somebody finds it.
struct Found {
    /// The page with its form.
    page: String,
    action: String,
    fields: Filled,
    twice: Twice,
    /// Makes what the act is about, because another act may have ended it.
    before: Before,
}

/// A purchase on hold, and no other one for its cause.
const ON_HOLD: Before = &[
    "UPDATE placements SET state = 'parked', attempt = attempt + 1, reason = 'outcome_unknown: no answer', placed_at = NULL
     WHERE placement_id IN (SELECT placement_id FROM topups WHERE topup_id NOT IN (SELECT topup_id FROM esims WHERE ready_at IS NOT NULL))",
    "DELETE FROM work WHERE kind <> 'deliver'",
    "UPDATE topups SET state = 'pending' WHERE topup_id NOT IN (SELECT topup_id FROM esims WHERE ready_at IS NOT NULL)",
    "INSERT INTO held (id, state, provider, partner_id)
     SELECT placement_id, 'parked', provider, partner_id FROM placements WHERE state = 'parked' ON CONFLICT DO NOTHING",
];
/// A webhook that was given up.
const GIVEN_UP: Before = &[
    "UPDATE resends SET ended_at = now() WHERE ended_at IS NULL",
    "UPDATE deliveries SET state = 'exhausted', attempt = attempt + 1, attempted_at = now() WHERE kind = 'topup.ready'",
    "DELETE FROM work WHERE kind = 'deliver'",
    "INSERT INTO held (id, state, provider, partner_id)
     SELECT delivery_id, 'exhausted', '', partner_id FROM deliveries WHERE kind = 'topup.ready' ON CONFLICT DO NOTHING",
];
/// The same of an order of two eSIMs.
const TWO_GIVEN_UP: Before = &[
    "INSERT INTO topups (topup_id, placement_id, position, option_id, provider_option_id)
     SELECT '20240000000000000000000007', t.placement_id, 1, t.option_id, t.provider_option_id
     FROM topups t JOIN esims e ON e.topup_id = t.topup_id AND e.ready_at IS NOT NULL LIMIT 1 ON CONFLICT DO NOTHING",
    "INSERT INTO esims (topup_id, provider, provider_unit_id, ready_at, delivery_id)
     VALUES ('20240000000000000000000007', 'sandbox', 'twin', now(), '00000000-0000-4000-8000-000000000007')
     ON CONFLICT DO NOTHING",
    "INSERT INTO deliveries (delivery_id, partner_id, kind, topup_id, order_id, state, attempt, attempted_at, status, created_at)
     SELECT '00000000-0000-4000-8000-000000000007', partner_id, kind, '20240000000000000000000007', order_id, 'exhausted', 1, now(),
            500, now()
     FROM deliveries WHERE kind = 'topup.ready' LIMIT 1 ON CONFLICT DO NOTHING",
    "UPDATE deliveries SET state = 'exhausted', attempt = attempt + 1, attempted_at = now() WHERE kind = 'topup.ready'",
    "DELETE FROM work WHERE kind = 'deliver'",
    "INSERT INTO held (id, state, provider, partner_id)
     SELECT delivery_id, 'exhausted', '', partner_id FROM deliveries WHERE kind = 'topup.ready' ON CONFLICT DO NOTHING",
];
/// An eSIM about which nobody has asked its provider.
const NOTHING_ASKED: Before = &[
    "DELETE FROM esim_requests",
    "DELETE FROM work WHERE kind <> 'deliver'",
];
/// An eSIM that its provider has suspended.
const SUSPENDED: Before = &[
    "DELETE FROM esim_requests",
    "DELETE FROM work WHERE kind <> 'deliver'",
    "INSERT INTO esim_requests (topup_id, partner_id, provider, suspend, suspension, suspension_asked_at)
     SELECT topup_id, partner_id, 'sandbox', true, 'done', now() - interval '1 hour'
     FROM deliveries WHERE kind = 'topup.ready'",
];
/// A give-back of which nobody knows what became of it.
const GIVE_BACK: Before = &[
    "DELETE FROM esim_requests",
    "INSERT INTO esim_requests (topup_id, partner_id, provider, give_back, give_back_asked_at, attempt, reason, message, ended_at)
     SELECT topup_id, partner_id, 'sandbox', 'parked', now(), 1, 'unknown', 'timeout', now()
     FROM deliveries WHERE kind = 'topup.ready'",
];
/// An extension of which nobody knows whether it was added.
const EXTENSION: Before = &[
    "DELETE FROM extensions",
    "INSERT INTO extensions (extension_id, partner_id, topup_id, provider, external_id, option_id, provider_option_id, state,
                             attempt, reason, message, ended_at)
     SELECT gen_random_uuid(), partner_id, topup_id, 'sandbox', 'more ' || topup_id, gen_random_uuid(), 'eu-5', 'parked',
            1, 'unknown', 'timeout', now()
     FROM deliveries WHERE kind = 'topup.ready'",
];

/// A product that two providers sell.
const TWO_PROVIDERS: Before = &[
    "INSERT INTO options (option_id, name, provider, provider_option_id, environment, version, alternatives)
     VALUES ('00000000-0000-4000-8000-000000000009', 'Routed', 'sandbox', 'ready', 'live', 0,
             '[{\"provider\": \"other\", \"provider_option_id\": \"x\"}]')",
];

/// An account to book in.
const AN_ACCOUNT: Before = &[
    "INSERT INTO accounts (partner_id, currency) SELECT partner_id, 'EUR' FROM partners ON CONFLICT DO NOTHING",
];

/// A key of the partner's people or programs.
const A_KEY: Before = &[
    "INSERT INTO partner_keys (key_id, partner_id, name, access_key, secret_key, rights)
     SELECT '00000000-0000-4000-8000-000000000008', partner_id, 'their agent', 'ak_agent', 'x', '{order}' FROM partners",
];

/// Where the form of a route is found. A new route of an act belongs here, too.
fn found(bench: &Bench, route: &str, settling: &str, resend: &str) -> Found {
    use Twice::{Free, Once, Shows};
    let id = resend.rsplit('/').next().and_then(|id| id.parse().ok());
    let action = crate::path(bench, id.unwrap_or_default(), route);
    let partner = format!("/partners/{}", bench.partner);
    let access = format!("{partner}/access");
    let order = format!("/orders/{}", bench.order);
    let esim = format!("/esims/{}", bench.topup);
    let preview = "/resends/preview?state=exhausted&since=1h";
    let act = |page: &str, fields: Filled, twice: Twice, before: Before| Found {
        page: page.to_owned(),
        action: action.clone(),
        fields,
        twice,
        before,
    };
    match route {
        "/sign-out" => act("/", &[], Free, &[]),
        "/zone" => act("/zone", &[("zone", "Asia/Tokyo")], Free, &[]),
        "/purchases/settle" => act(settling, &[], Once, &[]),
        "/purchases/ask" => act(settling, &[], Once, ON_HOLD),
        "/purchases/compare" => act(settling, &[("list", "order;number")], Free, ON_HOLD),
        "/placements/{id}/resolve" => act(settling, &[("found", "not-bought")], Once, ON_HOLD),
        "/give-backs/settle" => act(
            "/give-backs/settle?provider=sandbox",
            &[("found", "not-returned")],
            Once,
            GIVE_BACK,
        ),
        "/give-backs/{id}/resolve" => act(&order, &[("found", "not-returned")], Once, GIVE_BACK),
        "/extensions/settle" => act(
            "/extensions/settle?provider=sandbox",
            &[("found", "not-added")],
            Once,
            EXTENSION,
        ),
        "/extensions/{id}/resolve" => act(&order, &[("found", "added")], Once, EXTENSION),
        "/deliveries/{id}/resend" => act(&order, &[], Once, GIVEN_UP),
        "/orders/{id}/resend" => act(&order, &[], Once, TWO_GIVEN_UP),
        "/topups/{id}/code" => act(&order, &[], Shows, &[]),
        "/esims/{id}/usage" | "/esims/{id}/suspend" => act(&esim, &[], Once, NOTHING_ASKED),
        "/esims/{id}/give-back" => act(&esim, &[("cause", "no_coverage")], Once, NOTHING_ASKED),
        "/esims/{id}/resume" => act(&esim, &[], Once, SUSPENDED),
        "/providers/{name}/open" => act("/providers", &[("for", "1h")], Once, &[]),
        // Buying was stopped by the act before, which the page shows at once.
        "/providers/{name}/close" => act("/providers", &[], Once, &[]),
        "/resends" => act(preview, &[], Once, GIVEN_UP),
        "/resends/{id}/cancel" => act(resend, &[], Once, &[]),
        "/partners/{id}/disable" | "/partners/{id}/enable" => act(&access, &[], Once, &[]),
        "/partners/{id}/webhook-url" => {
            act(&action, &[("url", "https://new.example.com/")], Once, &[])
        }
        "/partners/{id}/end-key" => act(&access, &[], Once, A_KEY),
        "/partners/{id}/leaked" => act(&action, &[("key", "all")], Once, &[]),
        "/partners/{id}/keys" | "/partners/{id}/webhook-secret" => {
            act(&action, &[("overlap", "24h")], Once, &[])
        }
        "/partners/{id}/limits" => act(&action, &[("orders_per_second", "20")], Once, &[]),
        "/partners/{id}/deposit" | "/partners/{id}/adjust" => {
            let page = format!(
                "{action}?amount=12.50&currency=EUR&reference={}",
                action.len()
            );
            act(&page, &[], Once, AN_ACCOUNT)
        }
        "/partners/{id}/credit" => {
            let page = format!("{action}?limit=postpaid&currency=EUR");
            act(&page, &[], Once, AN_ACCOUNT)
        }
        "/partners/{id}/told" => act("/needs", &[], Once, GIVEN_UP),
        "/endpoints/{id}/test" | "/endpoints/{id}/pause" | "/endpoints/{id}/resume" => {
            act(&partner, &[], Once, &[])
        }
        "/endpoints/{id}/show-url" => act(&partner, &[], Shows, &[]),
        "/products/{id}/route" => act(&action, &[("first", "other")], Once, TWO_PROVIDERS),
        "/needs/{name}/take" => Found {
            action: "/needs/stage_dead%3Aprovisioner/take".to_owned(),
            ..act("/needs", &[("for", "1h")], Once, &[])
        },
        other => panic!("say here where the form of {other} is, and what sending it twice does"),
    }
}

/// The hidden fields of a form.
fn hidden(page: &str, action: &str) -> Vec<(String, String)> {
    let (_, form) = page
        .split_once(&format!("action=\"{action}\""))
        .unwrap_or_else(|| panic!("no form for {action} in {page}"));
    let (form, _) = form.split_once("</form>").unwrap();
    let fields = form.split("<input type=\"hidden\" name=\"").skip(1);
    fields
        .map(|field| {
            let (name, rest) = field.split_once("\" value=\"").unwrap();
            let value = rest.split('"').next().unwrap();
            let value = value.replace("&#34;", "\"").replace("&#38;", "&");
            (name.to_owned(), value)
        })
        .collect()
}

/// Every act of the console, from the list of its routes, so that a new one cannot be forgotten:
/// its form is found on its page and sent twice. The second one is refused, and only one is in the
/// record.
#[tokio::test]
async fn every_act_sent_twice_is_carried_out_once() {
    let bench = Bench::start_with(&[
        ("CONSOLE_ACTIVATION_CODES", "true"),
        ("MASTER_KEY_PROFILES", MASTER_KEY),
        ("MASTER_KEY_PARTNERS", MASTER_KEY),
        ("MASTER_KEY_WEBHOOKS", MASTER_KEY),
    ])
    .await;
    let mut browser = bench.sign_in("ana", OperatorRole::Operator).await;
    let mut connection = bench.database.connect().await.unwrap();
    let (last, rest): (Vec<_>, Vec<_>) = routes()
        .into_iter()
        .filter(|route| route.method == Method::POST && route.needs.is_some())
        .partition(|route| route.path == "/sign-out");
    let settling = settling(&mut browser).await;
    let parked_order: Uuid =
        sqlx::query_scalar("SELECT order_id FROM placements WHERE placement_id = $1")
            .bind(bench.parked.uuid())
            .fetch_one(&mut connection)
            .await
            .unwrap();
    let mut resend = String::new();
    for route in rest.iter().chain(&last) {
        let mut found = found(&bench, route.path, &settling, &resend);
        for sql in found.before {
            sqlx::query(*sql).execute(&mut connection).await.unwrap();
        }
        if route.path == "/placements/{id}/resolve" {
            found.page = format!("/orders/{parked_order}");
        }
        let mut shown = browser.get(&found.page).await.text().await.unwrap();
        if route.path == "/purchases/settle" {
            // Nothing is settled before a list was compared.
            let mut form = hidden(&shown, "/purchases/compare");
            form.push(("list".to_owned(), "order;number".to_owned()));
            shown = post(&mut browser, "/purchases/compare", &form).await.1;
        }
        let mut form = hidden(&shown, &found.action);
        form.push(("reason".to_owned(), "a test".to_owned()));
        let more = found.fields.iter();
        form.extend(more.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        if matches!(route.path, "/give-backs/settle" | "/extensions/settle") {
            let ticked = format!("name=\"{}\" value=\"", bench.topup);
            let (_, seen) = shown.split_once(&ticked).unwrap();
            let (seen, _) = seen.split_once("\" checked").unwrap();
            form.push((bench.topup.to_string(), seen.to_owned()));
        }
        if route.path == "/purchases/settle" {
            form.push((bench.parked.to_string(), "not-bought".to_owned()));
        }
        let recorded = bench.recorded().await.len();
        let (first, text, to) = post(&mut browser, &found.action, &form).await;
        let what = format!("{}: {first} {to} {text}", found.action);
        assert!(matches!(first, 200 | 303), "{what}");
        if route.path == "/resends" {
            resend = to;
        }
        let (second, text, _) = post(&mut browser, &found.action, &form).await;
        let what = format!("{}: {second} {text}", found.action);
        let refused = match found.twice {
            Twice::Once => matches!(second, 404 | 409),
            Twice::Shows | Twice::Free => matches!(second, 200 | 303),
        };
        assert!(refused, "{what}");
        let recorded = bench.recorded().await.len() - recorded;
        let expected = match found.twice {
            Twice::Once => 1,
            Twice::Shows => 2,
            Twice::Free => 0,
        };
        assert_eq!(recorded, expected, "{what}");
    }
    bench.stop().await;
}

async fn post(
    browser: &mut Browser,
    path: &str,
    form: &[(String, String)],
) -> (u16, String, String) {
    let form: Vec<(&str, &str)> = form
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let answer = browser.post(path, &form).await;
    let to = answer.headers().get("location");
    let to = to.map_or("", |to| to.to_str().unwrap()).to_owned();
    (answer.status().as_u16(), answer.text().await.unwrap(), to)
}
