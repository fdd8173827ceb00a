//! Endpoints that the notifier knows, and that change between the settlement of a unit and its
//! read.

use domain::PartnerId;

use crate::support::Bench;

impl Bench {
    /// The paths at which webhooks of this unit arrived.
    fn paths_of(&self, topup: &domain::TopupId) -> Vec<String> {
        let received = self.receiver.received().into_iter();
        let of_topup = received.filter(|one| one.topup_id() == topup.as_str());
        of_topup.map(|one| one.path).collect()
    }

    async fn move_to(&self, partner: PartnerId, path: &str) {
        let url = self.receiver.url(path);
        self.sql(&format!(
            "UPDATE partner_endpoints SET url = '{url}' WHERE endpoint_id = '{partner}'"
        ))
        .await;
    }
}

#[tokio::test]
async fn a_url_that_changes_between_settlement_and_read_is_never_used_again() {
    let (mut bench, partner) = Bench::start_for("/0").await;
    for change in 1..=5 {
        // The endpoint is known after the first of these two, and the second one is read with it.
        bench.delivers(partner).await;
        bench.delivers(partner).await;
        let settled = bench.ready(partner).await;
        let path = format!("/{change}");
        bench.move_to(partner, &path).await;
        bench.announce(partner, &settled).await;
        bench.delivered(&settled).await;
        assert_eq!(bench.paths_of(&settled), [path]);
    }
    bench.stop().await;
}

#[tokio::test]
async fn a_pause_between_settlement_and_read_is_kept() {
    let (mut bench, partner) = Bench::start_for("/hook").await;
    let other = bench.partner_at("/other").await;
    bench.delivers(partner).await;
    bench.delivers(other).await;
    let settled = bench.ready(partner).await;
    bench.pause(partner).await;
    bench.announce(partner, &settled).await;
    // The claim that leaves it out gives it due work.
    bench
        .stored(&settled, |stored| stored.due_in.is_some())
        .await;
    bench.delivers(other).await;
    assert_eq!(bench.paths_of(&settled), [""; 0]);
    bench.resume(partner).await;
    assert_eq!(bench.delivered(&settled).await.attempt, 1);
    bench.stop().await;
}
