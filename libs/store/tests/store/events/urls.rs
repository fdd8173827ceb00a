//! Waiting deliveries move to a new URL, which is tested first if the endpoint is blocked.

use domain::EndpointKey;
use store::deliveries::{self, endpoints};

use super::{HOUR, URL};
use crate::bench::{Bench, ids};
use crate::deliveries::failure;

#[tokio::test]
async fn a_new_url_of_a_partner_is_probed_at_once_and_ends_no_block() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some(URL)).await;
    bench.deliveries(partner, 2, false).await;
    assert!(!bench.change(partner, URL).await, "the same URL again");
    assert!(bench.actions().await.is_empty());
    let sql = "UPDATE partner_endpoints SET failures = 20, blocks = 7, blocked_until = now() + interval '1 hour'
             WHERE endpoint_id::text = $1";
    bench.set(sql, partner).await;
    for (url, blocks) in [("https://other.example/", 8), (URL, 9)] {
        assert!(bench.change(partner, url).await);
        bench.make_all_due(partner).await;
        // A host that is not proven is tested a second later, so that choosing it again and again
        // is no faster than its pace.
        let paced = "UPDATE partner_endpoints SET blocked_until = now()
                     WHERE endpoint_id::text = $1 AND unproven_since IS NOT NULL
                       AND blocked_until < now() + interval '2 s'";
        bench.set(paced, partner).await;
        let probes = bench.all_due().await;
        assert_eq!(probes.len(), 1, "one delivery tests the new URL");
        bench.attempt(&probes[0], failure(Some(HOUR))).await;
        assert!(bench.all_due().await.is_empty());
        let state =
            "SELECT blocks || ' ' || (blocked_until > now() + interval '20 s') FROM partner_endpoints
                     WHERE partner_id::text = $1";
        assert_eq!(
            bench.value::<String>(state, partner).await,
            format!("{blocks} true")
        );
    }
    let recorded = bench.actions().await;
    assert_eq!(recorded.len(), 2);
    assert_eq!(
        (recorded[0].operator.as_str(), recorded[0].command.as_str()),
        ("partner", "webhook set")
    );
    assert!(recorded.iter().all(|one| !one.target.contains("example")));
    // A pause stays.
    endpoints::pause(&mut *bench.connection().await, partner.first_endpoint())
        .await
        .unwrap();
    assert!(bench.change(partner, "https://other.example/").await);
    bench.make_all_due(partner).await;
    assert!(bench.all_due().await.is_empty());
}

#[tokio::test]
async fn waiting_deliveries_move_in_batches() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let held = bench.deliveries(partner, 5, false).await;
    let retried = bench.deliveries(partner, 5, false).await;
    let fresh = bench.deliveries(partner, 1, false).await;
    // The hosts that a live partner chooses need no proof.
    bench.sql("UPDATE partners SET environment = 'live'").await;
    let mut connection = bench.connection().await;
    deliveries::set_no_endpoint(&mut connection, &ids(&held))
        .await
        .unwrap();
    bench.deliver_in(&retried, 3600.0).await;
    bench.deliver_in(&fresh, 3600.0).await;
    let tried = "UPDATE deliveries SET attempt = 1, attempted_at = now() - interval '1 min' WHERE topup_id = $1";
    for topup in &retried {
        bench.set(tried, topup).await;
    }
    assert!(bench.change(partner, URL).await);
    let moving = "SELECT count(*) FROM partner_endpoints WHERE moving_since IS NOT NULL AND partner_id::text = $1";
    assert_eq!(bench.value::<i64>(moving, partner).await, 1);
    // Failed at the new URL meanwhile: it keeps its retry.
    let failed_there = "UPDATE deliveries SET attempt = 1, attempted_at = now() + interval '1 s' WHERE topup_id = $1";
    bench.set(failed_there, &fresh[0]).await;
    let mut batches = Vec::new();
    loop {
        let moved = endpoints::move_waiting(&mut connection, EndpointKey::first(partner), 2)
            .await
            .unwrap();
        if !moved.more {
            break;
        }
        batches.push(moved.due);
        assert!(batches.len() < 10, "{batches:?}");
    }
    assert_eq!(batches, [4, 4], "bounded");
    assert_eq!(bench.value::<i64>(moving, partner).await, 0);
    assert_eq!(bench.all_due().await.len(), 10);
}
