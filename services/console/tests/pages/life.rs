//! What was wrong stays on the overview for a day, and who has taken a matter is shown to all.

use std::time::Duration;

use console::access::OperatorRole;
use desk::operator::health::life::FindingWatch;
use testkit::wait;

use crate::support::{Bench, text};

/// The console notes by itself what has opened, before anybody looks at a page. The test looks in
/// its place for the end, because a console waits for a minute whether something comes back.
#[tokio::test]
async fn what_was_wrong_is_noted_without_a_page_and_stays_on_the_overview() {
    let bench = Bench::start().await;
    let mut connection = bench.database.connect().await.unwrap();
    let opened = "SELECT count(*) FROM history
                  WHERE kind = 'finding_opened' AND reason = 'stage_dead:provisioner'";
    wait::soon("the console to note it", async || {
        let noted: i64 = sqlx::query_scalar(opened)
            .fetch_one(&mut connection)
            .await?;
        Ok((noted == 1).then_some(()))
    })
    .await;
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    let was = "<b>nothing was bought, because no provisioner ran</b>";
    let page = text(&mut browser, "/").await;
    assert!(!page.contains(was), "{page}");
    sqlx::query(
        "INSERT INTO pulses (instance, stage, number, timeline, replicated, at)
         VALUES (gen_random_uuid(), 'provisioner', 1, 1, false, now() + interval '1 hour')",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    let mut watch = FindingWatch::new(Duration::ZERO);
    let mended = watch.update(&mut connection).await.unwrap().noted;
    assert_eq!(mended.len(), 1, "{mended:?}");
    wait::soon("the overview to tell it", async || {
        let page = text(&mut browser, "/").await;
        Ok(page.contains(was).then_some(()))
    })
    .await;
    // Nobody looked shortly before, as far as this process knows.
    let page = text(&mut browser, "/").await;
    let (_, told) = page
        .split_once("What was wrong in the last 24 hours")
        .unwrap();
    let (told, _) = told.split_once("</section>").unwrap();
    assert!(told.contains("</time> at the latest <b>"), "{told}");
    bench.stop().await;
}

#[tokio::test]
async fn a_matter_that_somebody_has_is_shown_as_theirs_to_all() {
    let bench = Bench::start().await;
    let mut support = bench.sign_in("sue", OperatorRole::Support).await;
    let mut viewer = bench.sign_in("ana", OperatorRole::Viewer).await;
    let action = "/needs/stage_dead%3Aprovisioner/take";
    let page = text(&mut viewer, "/needs").await;
    assert!(!page.contains(action), "{page}");
    let page = text(&mut support, "/needs").await;
    let (_, form) = page.split_once(action).unwrap();
    let (_, seen) = form.split_once("name=\"seen\" value=\"").unwrap();
    let (seen, _) = seen.split_once('"').unwrap();
    let token = support.token.clone();
    let fields = [
        ("token", token.as_str()),
        ("seen", seen),
        ("for", "4h"),
        ("reason", "I start it again"),
        ("back", "/needs"),
    ];
    assert_eq!(support.post(action, &fields).await.status(), 303);
    for path in ["/", "/needs"] {
        let page = text(&mut viewer, path).await;
        for part in ["<b>sue</b> has it until <time", ": “I start it again”"] {
            assert!(page.contains(part), "no {part:?} on {path}: {page}");
        }
    }
    // Of two who take it at once only one has it, and what is not wrong is nobody's.
    assert_eq!(support.post(action, &fields).await.status(), 409);
    let other = "/needs/nats_down/take";
    assert_eq!(support.post(other, &fields).await.status(), 409);
    assert_eq!(bench.recorded().await, ["sue attention take"]);
    bench.stop().await;
}
