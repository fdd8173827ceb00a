//! What becomes of a page, a form and a refresh whose session has ended.

use console::access::OperatorRole;
use reqwest::header;

use crate::support::{Bench, PASSWORD, token_of};

#[tokio::test]
async fn a_form_whose_session_has_ended_leads_back_to_its_page_and_says_so() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Operator).await;
    let token = browser.token.clone();
    let mut connection = bench.database.connect().await.unwrap();
    sqlx::query("UPDATE operator_sessions SET ends_at = now()")
        .execute(&mut connection)
        .await
        .unwrap();
    let page = format!("/partners/{}", bench.partner);
    let pause = format!("/endpoints/{}/pause", bench.partner);
    let form = [
        ("token", token.as_str()),
        ("reason", "a test"),
        ("seen", "open"),
        ("back", page.as_str()),
    ];
    let answer = browser.post(&pause, &form).await;
    let to = answer.headers()[header::LOCATION].to_str().unwrap();
    let back: String = url::form_urlencoded::byte_serialize(page.as_bytes()).collect();
    assert_eq!(to, format!("/sign-in?back={back}&lost=1"));
    let sign_in = browser.get(to).await.text().await.unwrap();
    assert!(sign_in.contains("was not carried out"), "{sign_in}");
    assert!(sign_in.contains(&format!("value=\"{page}\"")), "{sign_in}");
    assert_eq!(bench.recorded().await, Vec::<String>::new());

    // htmx would put the sign-in into the middle of the page, so it is told to leave the page.
    let refresh = testkit::http::client()
        .unwrap()
        .get(format!("{}/", bench.base))
        .header("HX-Request", "true");
    let answer = browser.send(refresh).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["hx-redirect"], "/sign-in?back=%2F");
    // Otherwise the browser would keep the empty answer, and show it to a person who goes back.
    assert_eq!(answer.headers()[header::CACHE_CONTROL], "no-store");
    assert_eq!(answer.headers()[header::VARY], "hx-request");
    assert_eq!(answer.text().await.unwrap(), "");
    bench.stop().await;
}

#[tokio::test]
async fn an_address_that_takes_forms_says_so_to_who_opens_it() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Operator).await;
    for path in ["/endpoints/1/pause", "/sign-out", "/resends/1/cancel"] {
        let answer = browser.get(path).await;
        assert_eq!(answer.status(), 405, "{path}");
        let page = answer.text().await.unwrap();
        assert!(page.contains("nothing was done"), "{page}");
    }
    bench.stop().await;
}

#[tokio::test]
async fn who_signs_in_again_has_one_session() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    let before = browser.cookies["console"].clone();
    let page = browser.get("/sign-in").await.text().await.unwrap();
    let token = token_of(&page);
    let form = [
        ("token", token.as_str()),
        ("name", "ana"),
        ("password", PASSWORD),
    ];
    assert_eq!(browser.post("/sign-in", &form).await.status(), 303);
    assert_ne!(browser.cookies["console"], before);
    assert_eq!(browser.get("/").await.status(), 200);
    browser.cookies.insert("console".into(), before);
    let answer = browser.get("/").await;
    assert_eq!(answer.status(), 303, "the session before has ended");
    bench.stop().await;
}
