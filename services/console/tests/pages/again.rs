//! A form that is sent again after it was carried out: from the page before, by Back, or by a second
//! click. It must do nothing, even if what it is about is in the same state again.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use console::access::Role;

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
    let mut browser = bench.sign_in("sue", Role::Support).await;
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
    let mut browser = bench.sign_in("ana", Role::Operator).await;
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
    let form = seen(&mut browser, &page, &pause).await;
    assert_eq!(send(&mut browser, &pause, &form).await.0, 303);
    bench.stop().await;
}

#[tokio::test]
async fn one_form_disables_a_partner_once() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", Role::Operator).await;
    let partner = format!("/partners/{}", bench.partner);
    let page = format!("{partner}/access");
    let disable = format!("{partner}/disable");
    let enable = format!("{partner}/enable");
    let form = seen(&mut browser, &page, &disable).await;
    assert_eq!(send(&mut browser, &disable, &form).await.0, 303);
    let (status, told) = send(&mut browser, &disable, &form).await;
    assert_eq!(status, 409);
    assert!(told.contains("is disabled now"), "{told}");
    let enabling = seen(&mut browser, &page, &enable).await;
    assert_eq!(send(&mut browser, &enable, &enabling).await.0, 303);
    assert_eq!(send(&mut browser, &enable, &enabling).await.0, 409);
    assert_eq!(
        bench.recorded().await,
        ["ana partner disable", "ana partner enable"]
    );
    bench.stop().await;
}

#[tokio::test]
async fn a_resend_is_cancelled_once() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", Role::Operator).await;
    let path = format!("/resends/{}/cancel", bench.resend().await);
    assert_eq!(send(&mut browser, &path, "").await.0, 303);
    let (status, page) = send(&mut browser, &path, "").await;
    assert_eq!(status, 409);
    assert!(page.contains("was cancelled already"), "{page}");
    assert_eq!(bench.recorded().await, ["ana resend cancel"]);
    bench.stop().await;
}
