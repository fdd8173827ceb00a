//! Refused requests are kept for operators, and only so many of them.

use accounts::refused::{self, RefusedKind, RefusedRequest};
use desk::{
    operator::{erase, search},
    retention::{self, DataClass},
};
use domain::PartnerId;
use runtime::clock;
use uuid::Uuid;

use crate::bench::{Bench, Told as _, applied};

fn refusal(
    partner_id: PartnerId,
    kind: RefusedKind,
    external_order_id: Option<&str>,
) -> RefusedRequest {
    RefusedRequest {
        request_id: Uuid::now_v7(),
        partner_id,
        kind,
        at: clock::now(),
        status: 422,
        reason: "qty_invalid",
        errors: "qty_invalid; item=1".to_owned(),
        method: "POST".to_owned(),
        path: "/api/v1/api_partner/orders".to_owned(),
        external_order_id: external_order_id.map(str::to_owned),
        unrecorded: 0,
    }
}

impl Bench {
    async fn keep_refused(&self, refusals: &[RefusedRequest], newest: u32) {
        refused::keep(&mut *self.connection().await, refusals, newest)
            .await
            .unwrap();
    }

    /// The kinds and external ids of what is kept of a partner, newest first.
    async fn refused(&self, partner: PartnerId) -> Vec<(String, Option<String>)> {
        let all = refused::list(&mut *self.connection().await, partner, 100).await;
        let all = all.unwrap().into_iter();
        all.map(|one| (one.kind, one.external_order_id)).collect()
    }
}

#[tokio::test]
async fn the_newest_of_each_kind_are_kept_and_a_flood_pushes_out_only_its_own_kind() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let other = bench.partner(None).await;
    let orders = ["o-1", "o-2", "o-3"].map(|id| refusal(partner, RefusedKind::Order, Some(id)));
    bench.keep_refused(&orders, 2).await;
    bench
        .keep_refused(&[refusal(other, RefusedKind::Order, None)], 2)
        .await;
    for _ in 0..3 {
        let flood: Vec<_> = (0..5)
            .map(|_| refusal(partner, RefusedKind::Unsigned, None))
            .collect();
        bench.keep_refused(&flood, 2).await;
    }
    // A write that is repeated after an error of unknown effect stores nothing twice.
    bench.keep_refused(&orders[2..], 2).await;
    let unsigned = ("unsigned".to_owned(), None);
    let order = |id: &str| ("order".to_owned(), Some(id.to_owned()));
    assert_eq!(
        bench.refused(partner).await,
        [unsigned.clone(), unsigned, order("o-3"), order("o-2")]
    );
    assert_eq!(bench.refused(other).await.len(), 1);

    let found = search::find(&mut *bench.connection().await, "o-3")
        .await
        .told(&mut *bench.connection().await)
        .await;
    assert_eq!(found.refused[0].request_id, orders[2].request_id);
    let request = orders[1].request_id.simple().to_string();
    let mut found = search::find(&mut *bench.connection().await, &request)
        .await
        .told(&mut *bench.connection().await)
        .await;
    let found = found.refused.remove(0);
    assert_eq!(found.external_order_id.as_deref(), Some("o-2"));
    assert_eq!(found.request(), request);
}

#[tokio::test]
async fn refused_requests_end_with_their_term_and_with_their_partner() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let mut old = refusal(partner, RefusedKind::Other, None);
    old.at -= time::Duration::days(31);
    bench
        .keep_refused(
            &[old, refusal(partner, RefusedKind::Order, Some("new"))],
            10,
        )
        .await;
    let step = retention::step(&mut *bench.connection().await, DataClass::Refusals, 100).await;
    assert_eq!(step.unwrap().erased, 1);
    assert_eq!(
        bench.refused(partner).await,
        [("order".to_owned(), Some("new".to_owned()))]
    );

    bench
        .sql("UPDATE partners SET disabled_at = now() - interval '1 hour'; UPDATE walks SET up_to = now() WHERE name IN ('placements', 'deliveries')")
        .await;
    erase::partner(&mut *bench.connection().await, partner, 0, applied())
        .await
        .unwrap();
    assert_eq!(bench.refused(partner).await, []);
}
