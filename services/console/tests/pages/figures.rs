//! What the pages say of products, and of the last hours of partners and providers.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::time::Duration;

use console::access::OperatorRole;
use store::figures::{self, Count, Figure, Measure};
use testkit::wait;
use uuid::Uuid;

use crate::support::{Bench, text};

/// A figure of this minute: so many events of 120 ms, of which so many failed.
fn figure(measure: Measure, subject: String, events: u32, failed: u32) -> Figure {
    timed((measure, subject), (events, failed), 120, 0)
}

/// A figure of the minute that was so many hours ago: so many events of so many milliseconds.
fn timed(
    (measure, subject): (Measure, String),
    (events, failed): (u32, u32),
    milliseconds: u64,
    hours: i64,
) -> Figure {
    let mut count = Count::default();
    for event in 0..events {
        count.note(Some(Duration::from_millis(milliseconds)), event < failed);
    }
    let now = runtime::clock::now().unix_timestamp();
    let minute = now - now.rem_euclid(60) - hours * 3_600;
    let minute = time::OffsetDateTime::from_unix_timestamp(minute);
    Figure {
        at: minute.unwrap(),
        measure,
        subject,
        count,
    }
}

#[tokio::test]
async fn orders_name_their_products_which_are_chosen_by_name_in_any_case() {
    let bench = Bench::start().await;
    let mut connection = bench.database.connect().await.unwrap();
    sqlx::query(
        "INSERT INTO options (option_id, name, provider, provider_option_id, environment, version)
         SELECT option_id, 'Thailand 1 GB', 'sandbox', provider_option_id, 'live', 1 FROM topups WHERE topup_id = $1",
    )
    .bind(bench.topup.as_str())
    .execute(&mut connection)
    .await
    .unwrap();
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    for path in ["/orders".to_owned(), format!("/partners/{}", bench.partner)] {
        let page = browser.get(&path).await.text().await.unwrap();
        assert!(page.contains("1 × Thailand 1 GB"), "{path}: {page}");
    }
    for path in ["/orders", "/webhooks"] {
        let page = browser.get(path).await.text().await.unwrap();
        let choice = "<option value=\"Thailand 1 GB\"></option>";
        assert!(page.contains(choice), "{path}: {page}");
    }
    let page = browser.get("/orders?product=thailand+1+gb").await;
    let page = page.text().await.unwrap();
    assert!(
        page.contains(&format!("href=\"/orders/{}\"", bench.order)) && !page.contains(">parked<"),
        "{page}"
    );
    let csv = browser.get("/orders.csv").await.text().await.unwrap();
    assert!(csv.contains(",1 × Thailand 1 GB,"), "{csv}");
    bench.stop().await;
}

#[tokio::test]
async fn a_partner_and_a_provider_show_how_their_last_hours_went() {
    let bench = Bench::start().await;
    let mut connection = bench.database.connect().await.unwrap();
    let counted = [
        figure(Measure::Attempt, bench.partner.to_string(), 4, 1),
        figure(Measure::Attempt, Uuid::now_v7().to_string(), 4, 4),
        figure(Measure::Call, "sandbox".to_owned(), 10, 2),
        figure(Measure::Bought, "sandbox".to_owned(), 3, 0),
    ];
    figures::add(&mut connection, Uuid::now_v7(), &counted)
        .await
        .unwrap();
    // The first page that is opened reads the figures, and they are kept for some seconds.
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    let path = format!("/partners/{}", bench.partner);
    let page = browser.get(&path).await.text().await.unwrap();
    for part in [
        "<dd class=\"big\">2</dd>",
        "<b>Sending webhooks</b><span>3 of 4 tries in 24 h</span>",
        "<dt>Taken, 24 h</dt><dd>3 of 4 tries</dd>",
        "2 in an hour",
    ] {
        assert!(page.contains(part), "no {part:?} in {page}");
    }
    let page = browser.get("/providers").await.text().await.unwrap();
    for part in ["<b>Failed calls</b><span>20.0 % of 10</span>", "3 in all"] {
        assert!(page.contains(part), "no {part:?} in {page}");
    }
    bench.stop().await;
}

/// A provider that buys, but takes much longer than it did, is said to be slow wherever its state
/// stands.
#[tokio::test]
async fn a_provider_that_has_become_slow_is_told_so_with_since_when() {
    let bench = Bench::start().await;
    let mut connection = bench.database.connect().await.unwrap();
    let call = || (Measure::Call, "sandbox".to_owned());
    let mut counted: Vec<Figure> = (2..8)
        .map(|hours| timed(call(), (20, 0), 80, hours))
        .collect();
    counted.push(timed(call(), (20, 0), 4_000, 0));
    figures::add(&mut connection, Uuid::now_v7(), &counted)
        .await
        .unwrap();
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    let page = browser.get("/providers").await.text().await.unwrap();
    let dead = "<span class=\"badge bad\">no provisioner works</span>";
    assert!(page.contains(dead), "{page}");
    sqlx::query(
        "INSERT INTO pulses (instance, stage, number, timeline, replicated, at)
         VALUES (gen_random_uuid(), 'provisioner', 1, 1, false, now() + interval '1 hour')",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    wait::soon("the provisioner to work", async || {
        let page = text(&mut browser, "/providers").await;
        Ok((!page.contains(dead)).then_some(()))
    })
    .await;
    let badge = "<span class=\"badge warn\">slow</span>";
    let page = browser.get("/providers").await.text().await.unwrap();
    for part in [
        badge,
        "sandbox is slow.</p>",
        "<p>It buys, but since <time",
        "calls to sandbox are slow: usually more than",
    ] {
        assert!(page.contains(part), "no {part:?} in {page}");
    }
    assert!(!page.contains("The others buy"), "{page}");
    let page = browser.get("/").await.text().await.unwrap();
    assert!(page.contains(badge), "{page}");
    assert!(
        page.contains("<a class=\"btn small\" href=\"/providers#sandbox\""),
        "{page}"
    );
    bench.stop().await;
}

/// Nobody knows what is usual, and eight seconds are slow all the same.
#[tokio::test]
async fn a_provider_that_is_slow_from_the_first_minute_on_is_not_said_to_buy() {
    let bench = Bench::start().await;
    let mut connection = bench.database.connect().await.unwrap();
    sqlx::query(
        "INSERT INTO pulses (instance, stage, number, timeline, replicated, at)
         VALUES (gen_random_uuid(), 'provisioner', 1, 1, false, now() + interval '1 hour')",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    let slow = timed((Measure::Call, "sandbox".to_owned()), (20, 0), 8_000, 0);
    figures::add(&mut connection, Uuid::now_v7(), &[slow])
        .await
        .unwrap();
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    let page = text(&mut browser, "/providers").await;
    for part in [
        "<span class=\"badge warn\">slow</span>",
        "calls to sandbox are slow: usually more than 6.8\u{a0}s (the newest 20); no usual time is known yet, and more \
         than 5\u{a0}s is slow",
        "<dt>Calls</dt><dd>usually up to 8.2\u{a0}s, at worst up to 8.2\u{a0}s</dd>",
    ] {
        assert!(page.contains(part), "no {part:?} in {page}");
    }
    assert!(!page.contains("All of them buy"), "{page}");
    bench.stop().await;
}
