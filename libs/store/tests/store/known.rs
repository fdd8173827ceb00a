//! Endpoints that a notifier knows: which deliveries the lean claim returns, and which changes it
//! sees.

use std::{cell::Cell, collections::HashMap, sync::Arc, time::Duration};

use accounts::{
    options,
    partners::{self, Overlap, endpoints},
};
use domain::{DeliveryId, EndpointId, EndpointKey, PartnerId, TopupId};
use pg::Transaction;
use signing::webhook::Secret;
use store::deliveries::{self, ClaimResult, DeliveryClaim, DeliveryTarget};
use time::OffsetDateTime;

use crate::bench::{
    Bench, VAULT, answered, bought, committed, esim, execute, fresh, ids, placement, ready, topups,
};
use crate::further::READY;

const URL: &str = "https://partner.example/hook";
const YOUNGER_THAN: Duration = Duration::from_mins(1);

/// What a notifier remembers of a claim.
pub struct Known {
    version: i64,
    targets: HashMap<EndpointId, Arc<DeliveryTarget>>,
}

impl Known {
    pub fn of(claimed: &ClaimResult) -> Option<Self> {
        let (.., validity) = claimed.targets.first()?;
        let targets = claimed.targets.iter();
        let targets = targets.map(|(id, target, _)| (*id, Arc::clone(target)));
        Some(Self {
            version: validity.configuration_version,
            targets: targets.collect(),
        })
    }
}

impl Bench {
    /// Units whose purchases the lean statement has settled.
    async fn settled(&self, partner: PartnerId, count: usize) -> Vec<TopupId> {
        let order = self.stored(answered(partner, count)).await;
        let id = placement(&order);
        self.claim(&[id]).await;
        let units = topups(&order).iter().map(ready).collect();
        self.settle(&[fresh(&order, bought(id, 1, units, true))])
            .await;
        topups(&order)
    }

    pub async fn read_all(&self, topups: &[TopupId]) -> ClaimResult {
        let claim = DeliveryClaim::Fresh {
            younger_than: YOUNGER_THAN,
        };
        deliveries::claim(&mut *self.connection().await, &ids(topups), claim)
            .await
            .unwrap()
    }

    /// The deliveries that the lean claim returns.
    pub async fn known(&self, topups: &[TopupId], known: &Known) -> Vec<DeliveryId> {
        let version = known.version;
        let target = |id, _| known.targets.get(&id).cloned();
        let mut connection = self.connection().await;
        let ids = ids(topups);
        let claimed =
            deliveries::claim_known(&mut connection, &ids, YOUNGER_THAN, version, target).await;
        claimed.unwrap().iter().map(|one| one.id).collect()
    }
}

#[tokio::test]
async fn the_lean_claim_reads_what_the_other_one_reads() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some(URL)).await;
    let other = bench.partner(Some(URL)).await;
    let lean = bench.settled(partner, 2).await;
    let general = bench.deliveries(partner, 1, true).await;
    let all = [lean.clone(), general, bench.settled(other, 1).await].concat();
    let read = bench.read_all(&all).await;
    let mut known = Known::of(&read).unwrap();
    known.targets.remove(&other.first_endpoint());
    let target = |id, _| known.targets.get(&id).cloned();
    let mut connection = bench.connection().await;
    let ids = ids(&all);
    let claimed =
        deliveries::claim_known(&mut connection, &ids, YOUNGER_THAN, known.version, target);
    let mut claimed = claimed.await.unwrap();
    claimed.sort_by_key(|one| esim(one).topup_id.clone());
    assert_eq!(claimed.len(), 3, "not those of an unknown endpoint");
    for one in &claimed {
        let same = read.deliveries.iter().find(|same| same.id == one.id);
        let same = same.unwrap();
        assert_eq!((&one.target, one.endpoint), (&same.target, same.endpoint));
        let told = |delivery| {
            let esim = esim(delivery).clone();
            let ids = (esim.topup_id, esim.order_id, esim.agreed);
            (ids, esim.external_order_id, esim.iccid, esim.profile)
        };
        assert_eq!(told(one), told(same));
        assert_eq!(esim(one).traceparent, esim(same).traceparent);
        assert!(esim(one).age.abs_diff(esim(same).age) < Duration::from_secs(30));
        assert!(esim(one).ready_age < Duration::from_secs(30));
    }
}

#[tokio::test]
async fn what_the_lean_claim_cannot_read_is_left_to_the_other_one() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some(URL)).await;
    let mut left = Vec::new();
    for change in [
        // An operator has entered it.
        "UPDATE deliveries SET option_id = NULL, terms = NULL, external_order_id = NULL, ordered_at = NULL WHERE topup_id = $1",
        "UPDATE esims SET profile = NULL, erased_at = now() WHERE topup_id = $1",
        "UPDATE deliveries SET attempt = 1 WHERE topup_id = $1",
        "UPDATE deliveries SET state = 'delivered' WHERE topup_id = $1",
        "UPDATE deliveries SET created_at = now() - interval '2 minutes' WHERE topup_id = $1",
    ] {
        let topup = bench.settled(partner, 1).await.remove(0);
        bench.set(change, &topup).await;
        left.push(topup);
    }
    let read = bench.settled(partner, 1).await;
    let known = Known::of(&bench.read_all(&read).await).unwrap();
    assert_eq!(bench.known(&left, &known).await, []);
    assert_eq!(bench.known(&read, &known).await, ids(&read));
    let others = bench.read_all(&left).await.deliveries;
    assert_eq!(others.len(), 2, "the older one and the erased one");
}

#[tokio::test]
async fn each_change_of_an_endpoint_ends_what_is_known_of_it() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some(URL)).await;
    let first = EndpointKey::first(partner);
    let read = bench.settled(partner, 1).await;
    let mut seen = 0;
    for change in 0..8 {
        let known = Known::of(&bench.read_all(&read).await).unwrap();
        assert!(known.version > seen, "change {change} raised the version");
        seen = known.version;
        assert_eq!(bench.known(&read, &known).await, ids(&read));
        let mut connection = bench.connection().await;
        match change {
            0 => drop(bench.set_url(partner, Some("https://new.example/")).await),
            1 => {
                let secret = Secret::from_bytes(vec![8; 32]).unwrap();
                let overlap = Overlap {
                    lasts: Duration::from_hours(1),
                    keep_old: false,
                };
                let rotate = async |transaction: &mut Transaction<'_>| {
                    partners::rotate_secret(transaction, &VAULT, first, &secret, overlap).await
                };
                committed(&mut connection, rotate).await.unwrap();
            }
            2 => {
                let headers = endpoints::Headers::from([("x-api-key".into(), "1".into())]);
                let change = endpoints::EndpointUpdate {
                    headers: Some((&VAULT, &headers)),
                    ..endpoints::EndpointUpdate::default()
                };
                let change = async |transaction: &mut Transaction<'_>| {
                    endpoints::change(transaction, first, &change, endpoints::Block::ProbeNow).await
                };
                committed(&mut connection, change).await.unwrap();
            }
            3 => deliveries::endpoints::pause(&mut connection, partner.first_endpoint())
                .await
                .unwrap(),
            4 => {
                let block = "UPDATE partner_endpoints SET blocks = 1, blocked_until = now() + interval '1 hour'
                             WHERE endpoint_id::text = $1";
                bench.set(block, partner).await;
            }
            5 => drop(bench.further(partner, "further", READY).await),
            6 => {
                let elsewhere =
                    "UPDATE partners SET environment = 'live' WHERE partner_id::text = $1";
                bench.set(elsewhere, partner).await;
            }
            _ => {
                let gone = "DELETE FROM partner_endpoints WHERE endpoint_id::text = $1";
                bench.set(gone, partner).await;
            }
        }
        assert_eq!(bench.known(&read, &known).await, [], "change {change}");
        let again = bench.read_all(&read).await;
        if [3, 4].contains(&change) {
            // A blocked endpoint is not learnt again.
            assert!(again.deliveries.is_empty() && again.targets.is_empty());
            bench.sql("DELETE FROM work").await;
            let open = "UPDATE partner_endpoints SET blocks = 0, blocked_until = NULL, probe = NULL
                        WHERE endpoint_id::text = $1";
            bench.set(open, partner).await;
        } else if change == 5 {
            assert!(again.targets.is_empty(), "the claim also fans out");
            bench
                .sql("DELETE FROM partner_endpoints WHERE nth > 0")
                .await;
            let alone =
                "UPDATE partners SET has_further_endpoints = false WHERE partner_id::text = $1";
            bench.set(alone, partner).await;
        }
    }
    assert!(Known::of(&bench.read_all(&read).await).is_none());
}

#[tokio::test]
async fn a_block_that_only_becomes_longer_raises_no_version() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some(URL)).await;
    let version = async || {
        let version: i64 = sqlx::query_scalar("SELECT version FROM system")
            .fetch_one(&bench.pool)
            .await
            .unwrap();
        version
    };
    let block = "UPDATE partner_endpoints SET failures = failures + 1, blocked_until = now() + interval '1 hour'
                 WHERE endpoint_id::text = $1";
    bench.set(block, partner).await;
    let blocked = version().await;
    bench.set(block, partner).await;
    assert_eq!(version().await, blocked);
}

/// A catalogue of thousands of options takes seconds to write.
#[tokio::test]
async fn a_block_does_not_wait_for_a_long_change_of_the_catalogue_or_of_partners() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some(URL)).await;
    let other = bench.partner(Some(URL)).await;
    let read = bench.settled(partner, 1).await;
    let known = Known::of(&bench.read_all(&read).await).unwrap();
    let mut long = bench.pool.begin().await.unwrap();
    let changes = format!(
        "UPDATE options SET name = name || ' ';
         UPDATE partners SET environment = 'live' WHERE partner_id = '{other}'"
    );
    execute(&mut long, &changes).await;
    let block = format!(
        "SET lock_timeout = '5s';
         UPDATE partner_endpoints SET blocks = 1, blocked_until = now() + interval '1 hour' WHERE partner_id = '{partner}'"
    );
    execute(&mut *bench.connection().await, &block).await;
    assert_eq!(bench.known(&read, &known).await, []);
    // The long change is one change, however many rows it has, and it is seen, too.
    let version = async || {
        let mut connection = bench.connection().await;
        options::configuration_version(&mut connection)
            .await
            .unwrap()
    };
    let before = version().await;
    long.commit().await.unwrap();
    assert_eq!(version().await, before + 1);
}

/// The secret that a rotation has replaced ends by the clock of the database. A clock of the
/// notifier stands still while its machine is suspended.
#[tokio::test]
async fn the_end_of_a_replaced_secret_is_that_of_the_database() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some(URL)).await;
    let secret = Secret::from_bytes(vec![8; 32]).unwrap();
    let overlap = Overlap {
        lasts: Duration::from_hours(1),
        keep_old: false,
    };
    let first = EndpointKey::first(partner);
    let rotate = async |transaction: &mut Transaction<'_>| {
        partners::rotate_secret(transaction, &VAULT, first, &secret, overlap).await
    };
    committed(&mut *bench.connection().await, rotate)
        .await
        .unwrap();
    let read = bench.settled(partner, 1).await;
    let claimed = bench.read_all(&read).await;
    let (_, target, validity) = claimed.targets.first().unwrap();
    assert_eq!(target.secrets.len(), 2);
    let stored: OffsetDateTime = bench
        .value(
            "SELECT secret_ends[2] FROM partner_endpoints WHERE endpoint_id::text = $1",
            partner,
        )
        .await;
    assert_eq!(validity.until, Some(stored));
    let mut connection = bench.connection().await;
    let present: OffsetDateTime = sqlx::query_scalar("SELECT now()")
        .fetch_one(&mut *connection)
        .await
        .unwrap();
    let asked = Cell::new(None);
    let known = |_, now| {
        asked.set(Some(now));
        None
    };
    let version = validity.configuration_version;
    let none =
        deliveries::claim_known(&mut connection, &ids(&read), YOUNGER_THAN, version, known).await;
    assert!(none.unwrap().is_empty() && asked.get() >= Some(present));
}
