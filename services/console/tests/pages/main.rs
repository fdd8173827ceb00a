//! The console over HTTP, on a real database and in its own role: who may do what, and what the
//! pages say.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod acts;
mod again;
mod alerts;
mod answers;
mod connections;
mod figures;
mod filters;
mod life;
mod lists;
mod openid;
mod pages;
mod sessions;
mod settle;
mod support;

use console::{access::OperatorRole, routes::routes};
use reqwest::Method;
use uuid::Uuid;

use support::{Bench, Browser, PASSWORD, token_of};

/// The path of a route with the ids of something that is stored.
fn path(bench: &Bench, resend: Uuid, route: &str) -> String {
    let id = match route.split('/').nth(1).unwrap_or_default() {
        "orders" => bench.order.to_string(),
        "resends" => resend.to_string(),
        "placements" => bench.parked.to_string(),
        "deliveries" | "topups" | "esims" | "give-backs" | "extensions" => bench.topup.to_string(),
        // The option that its act is tried with.
        "products" => "00000000-0000-4000-8000-000000000009".to_owned(),
        "partners" | "endpoints" | "webhooks" => bench.partner.to_string(),
        _ => String::new(),
    };
    let path = route.replace("{id}", &id).replace("{name}", "sandbox");
    match route {
        "/find" => format!("{path}?q=x"),
        _ => path,
    }
}

/// The fields of a form that would do something, with this token.
fn fields(token: &str) -> Vec<(&str, &str)> {
    vec![
        ("token", token),
        ("reason", "a test"),
        ("found", "not-bought"),
        ("for", "1h"),
    ]
}

async fn ask(browser: &mut Browser, method: &Method, path: &str, token: &str) -> (u16, String) {
    let answer = if method == Method::GET {
        browser.get(path).await
    } else {
        browser.post(path, &fields(token)).await
    };
    let to = answer.headers().get("location");
    let to = to.map_or("", |to| to.to_str().unwrap()).to_owned();
    (answer.status().as_u16(), to)
}

#[tokio::test]
async fn every_route_without_a_session_leads_to_the_sign_in() {
    let bench = Bench::start().await;
    let resend = bench.resend().await;
    let mut protected = 0;
    for route in routes() {
        // Whether there is something at an address, or whether it can be read, is nobody else's
        // business.
        let unreadable = route.path.replace("{id}", "%FF%FE");
        let unreadable = unreadable.replace("{name}", "%FF%FE");
        for path in [path(&bench, resend, route.path), unreadable] {
            let mut browser = bench.browser();
            let (status, to) = ask(&mut browser, &route.method, &path, "").await;
            let leads = status == 303 && to.starts_with("/sign-in?back=");
            // Set-up and sign-in refuse a form without the token of their own cookie.
            assert_eq!(
                leads,
                route.needs.is_some(),
                "{} {path}: {status} {to}",
                route.method
            );
            protected += usize::from(leads);
        }
    }
    assert!(protected > 10, "only {protected}");
    assert_eq!(bench.recorded().await, Vec::<String>::new());
    bench.stop().await;
}

#[tokio::test]
async fn every_route_answers_those_whose_role_may_use_it_and_nobody_else() {
    let bench = Bench::start().await;
    let resend = bench.resend().await;
    for role in [
        OperatorRole::Viewer,
        OperatorRole::Support,
        OperatorRole::Operator,
    ] {
        let name = role.as_str();
        let mut browser = bench.sign_in(name, role).await;
        // Signing out ends the session, so it is last.
        let (last, rest): (Vec<_>, Vec<_>) = routes()
            .into_iter()
            .partition(|route| route.path == "/sign-out");
        for route in rest.iter().chain(&last) {
            let Some(needs) = route.needs else { continue };
            let path = path(&bench, resend, route.path);
            let token = browser.token.clone();
            let (status, to) = ask(&mut browser, &route.method, &path, &token).await;
            let what = format!("{name}: {} {path}: {status} {to}", route.method);
            assert!(!to.starts_with("/sign-in?"), "{what}");
            assert_eq!(status == 403, role < needs, "{what}");
            assert!(status < 500, "{what}");
            // The resend is there, so these two are tried for real.
            match route.path {
                "/resends/{id}" => assert_eq!(status, 200, "{what}"),
                "/resends/{id}/cancel" if role >= needs => assert_eq!(status, 303, "{what}"),
                _ => {}
            }
        }
    }
    let recorded = bench.recorded().await;
    assert!(
        recorded.iter().all(|one| !one.starts_with("viewer")),
        "{recorded:?}"
    );
    bench.stop().await;
}

#[tokio::test]
async fn every_form_with_a_foreign_token_is_refused_and_changes_nothing() {
    let bench = Bench::start().await;
    let other = bench.sign_in("other", OperatorRole::Operator).await;
    let mut browser = bench.sign_in("mine", OperatorRole::Operator).await;
    let mut guest = bench.browser();
    let outside = token_of(&guest.get("/sign-in").await.text().await.unwrap());
    let resend = bench.resend().await;
    let mut forms = 0;
    for route in routes() {
        if route.method != Method::POST {
            continue;
        }
        forms += 1;
        let path = path(&bench, resend, route.path);
        for foreign in ["", "x", other.token.as_str(), outside.as_str()] {
            let (status, _) = ask(&mut browser, &route.method, &path, foreign).await;
            assert_eq!(status, 403, "{path} with the token {foreign:?}");
        }
    }
    assert!(forms > 8, "only {forms}");
    assert_eq!(bench.recorded().await, Vec::<String>::new());
    assert_eq!(browser.get("/").await.status(), 200, "the session goes on");
    bench.stop().await;
}

#[tokio::test]
async fn a_link_sets_the_password_once_and_a_wrong_password_opens_nothing() {
    let bench = Bench::start().await;
    bench.sign_in("ana", OperatorRole::Viewer).await;
    let mut browser = bench.browser();
    let page = browser.get("/sign-in?back=%2Fneeds").await;
    let page = page.text().await.unwrap();
    let token = token_of(&page);
    assert!(page.contains("value=\"/needs\""), "{page}");
    let form = [("token", &*token), ("name", "ana"), ("password", "wrong")];
    let wrong = browser.post("/sign-in", &form).await;
    let wrong = wrong.text().await.unwrap();
    assert!(wrong.contains("name=\"name\" value=\"ana\""), "{wrong}");
    let mut attempt = async |name: &str, password: &str, back: &str| {
        let form = [
            ("token", token.as_str()),
            ("name", name),
            ("password", password),
            ("back", back),
        ];
        let answer = browser.post("/sign-in", &form).await;
        let to = answer.headers().get("location").cloned();
        let wait = answer.headers().get("retry-after");
        let wait: Option<u32> = wait.map(|wait| wait.to_str().unwrap().parse().unwrap());
        (answer.status().as_u16(), to, wait)
    };
    assert_eq!(
        attempt("ana", "wrong horse battery staple", "/").await.0,
        422
    );
    assert_eq!(attempt("nobody", PASSWORD, "/").await.0, 422);
    let (status, to, _) = attempt("ana", PASSWORD, "https://evil.example/").await;
    assert_eq!((status, to.unwrap().to_str().unwrap()), (303, "/"));
    // Only what fails counts, so many operators behind one address do not lock each other out.
    for _ in 0..35 {
        assert_eq!(attempt("ana", PASSWORD, "/").await.0, 303);
    }
    for _ in 0..30 {
        if attempt("bob", "wrong horse battery staple", "/").await.0 == 429 {
            let wait = attempt("bob", "wrong horse battery staple", "/").await.2;
            assert!((1..=900).contains(&wait.unwrap()), "{wait:?}");
            bench.stop().await;
            return;
        }
    }
    panic!("attempts are not limited");
}
