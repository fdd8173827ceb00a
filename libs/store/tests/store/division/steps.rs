//! Random steps: what the stages, partners and operators do, between any two steps of a division and of
//! the purge after it.

use std::{cell::RefCell, collections::BTreeMap, time::Duration};

use desk::{
    retention::{self, Class},
    self_service::esims,
};
use domain::{DeliveryId, PartnerId, PlacementId, TopupId, give_back, standing::DeliveryState};
use sqlx::{Connection, PgConnection};
use store::{
    deliveries::{self, AttemptResult, resends},
    esim_requests,
    orders::{self, NewOrder},
    placements::{self, Activity, Claim, Claimed},
};
use tools::{
    archive,
    cells::{division, purge},
};
use uuid::Uuid;

use super::{
    ACTION, Cell, FORGOTTEN, NO_LEASE, activate, copy, count, owner, owner_that_sees, stage,
};
use crate::{
    bench::{Bench, LEASE, PROVIDER, answered, bought, bought_pending, placement, ready, topups},
    deliveries::{BLOCK_POLICY, attempted},
    esim_requests::due_requests,
};

/// Further rows of a partner that this database serves which nobody would work on any more: units that are
/// not collected, and give-backs.
const LEFT: &str = "
    SELECT (SELECT count(*) FROM placements p JOIN partners USING (partner_id)
            WHERE moved_to IS NULL AND p.state = 'placed' AND NOT EXISTS (SELECT FROM work w WHERE w.id = p.placement_id)
              AND EXISTS (SELECT FROM topups t LEFT JOIN esims e USING (topup_id)
                          WHERE t.placement_id = p.placement_id AND t.state <> 'failed' AND e.ready_at IS NULL))
         + (SELECT count(*) FROM esim_requests r JOIN partners USING (partner_id)
            WHERE moved_to IS NULL AND r.give_back IN ('asked', 'sending')
              AND NOT EXISTS (SELECT FROM work w WHERE w.id = md5('give_back ' || r.topup_id)::uuid))";
/// How many of the ids in `$1` belong to partners that this database does not serve.
const FOREIGN: &str = "SELECT count(*) FROM (
        SELECT placement_id AS id, partner_id FROM placements UNION ALL SELECT delivery_id, partner_id FROM deliveries
        UNION ALL SELECT md5('give_back ' || topup_id)::uuid, partner_id FROM esim_requests) named
    JOIN partners USING (partner_id) WHERE moved_to IS NOT NULL AND id = ANY ($1)";

/// Numbers that look random, and are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }
}

/// How far the division has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reached {
    NotBegun,
    Frozen,
    Fenced,
    Copied,
    Active,
}

struct World {
    random: Random,
    cell: Cell,
    b: Option<Bench>,
    reached: Reached,
    /// Each order, and whether its partner leaves.
    placed: Vec<(NewOrder, bool)>,
    /// The partners and external ids of the orders that are archived.
    archived: Vec<(PartnerId, String)>,
    /// How often each of these has happened, because random steps could leave it out.
    seen: RefCell<BTreeMap<&'static str, usize>>,
}

impl World {
    async fn new(seed: u64) -> Self {
        let cell = Cell::new().await;
        // Retention erases nothing, so that delivered orders can be archived.
        let keep = "UPDATE walks SET days = NULL WHERE name IN ('profiles', 'attempts')";
        cell.a.sql(keep).await;
        Self {
            random: Random(seed),
            cell,
            b: None,
            reached: Reached::NotBegun,
            placed: Vec::new(),
            archived: Vec::new(),
            seen: RefCell::default(),
        }
    }

    fn note(&self, what: &'static str, often: usize) {
        *self.seen.borrow_mut().entry(what).or_default() += often;
    }

    /// The sides whose stages work: the old cell, and the new one once it is active.
    fn working(&self) -> Vec<&Bench> {
        let b = self.b.as_ref().filter(|_| self.reached == Reached::Active);
        [Some(&self.cell.a), b].into_iter().flatten().collect()
    }

    /// Where orders of the partner are taken now, if they are.
    fn home(&self, leaves: bool) -> Option<&Bench> {
        match (leaves, self.reached) {
            (true, Reached::Active) => self.b.as_ref(),
            (false, _) | (true, Reached::NotBegun) => Some(&self.cell.a),
            (true, _) => None,
        }
    }

    fn partner(&self, leaves: bool) -> PartnerId {
        if leaves {
            self.cell.leaving
        } else {
            self.cell.staying
        }
    }

    /// Whether the stages of this side may act for partners that leave: until the fence those of the old
    /// cell go on.
    fn acts_for_all(&self, side: &Bench) -> bool {
        self.reached < Reached::Fenced && std::ptr::eq(side, &raw const self.cell.a)
    }

    /// Checks that a side has taken up nothing that belongs to a partner of the other one.
    async fn check_own(&self, side: &Bench, ids: Vec<Uuid>) {
        let foreign: i64 = sqlx::query_scalar(FOREIGN)
            .bind(ids)
            .fetch_one(&mut owner_that_sees(side).await)
            .await
            .unwrap();
        assert!(foreign == 0 || self.acts_for_all(side), "{foreign} foreign");
    }

    async fn claimed(&self, side: &Bench, named: &[PlacementId], which: Claim) -> Vec<Claimed> {
        let mut connection = stage(side).await;
        let claimed = placements::claim(&mut connection, PROVIDER, named, which, LEASE).await;
        let claimed = claimed.unwrap();
        let ids = claimed.iter().map(|one| one.placement_id.uuid()).collect();
        self.check_own(side, ids).await;
        claimed
    }

    async fn order(&mut self, leaves: bool) {
        let partner = self.partner(leaves);
        if let Some(home) = self.home(leaves) {
            let order = home.stored(answered(partner, 1)).await;
            self.placed.push((order, leaves));
        }
    }

    /// A side is told of any order, as by an old message, and buys it. The profile may come later.
    async fn buy(&mut self) {
        if self.placed.is_empty() {
            return;
        }
        let chosen = self.random.below(self.placed.len());
        let end = self.random.below(4);
        let order = self.placed[chosen].0.clone();
        let id = placement(&order);
        let first = self.random.below(2);
        let working = self.working();
        let side = working[first % working.len()];
        if self.claimed(side, &[id], Claim::Fresh).await.is_empty() || end == 0 {
            return;
        }
        let units = topups(&order).iter().map(ready).collect();
        let settlement = match end {
            1 => bought_pending(id, 1),
            _ => bought(id, 1, units, true),
        };
        let mut connection = stage(side).await;
        placements::settle(&mut connection, &[settlement])
            .await
            .unwrap();
    }

    /// All sides look for profiles that come later, and get them.
    async fn collect(&self) {
        for side in self.working() {
            side.sql("UPDATE work SET at = now() WHERE kind = 'collect'")
                .await;
            let named: Vec<PlacementId> = self
                .placed
                .iter()
                .map(|(order, _)| placement(order))
                .collect();
            for claimed in self
                .claimed(side, &named, Claim::Due(Activity::LookUps))
                .await
            {
                let of = |(order, _): &&(NewOrder, bool)| placement(order) == claimed.placement_id;
                let order = self.placed.iter().find(of).unwrap();
                if claimed.was != domain::PlacementState::Placed {
                    continue;
                }
                let units = topups(&order.0).iter().map(ready).collect();
                let collected = [bought(claimed.placement_id, claimed.attempt, units, true)];
                placements::settle(&mut stage(side).await, &collected)
                    .await
                    .unwrap();
                self.note("collected", 1);
            }
        }
    }

    async fn sweep(&self) {
        for side in self.working() {
            let mut connection = stage(side).await;
            placements::sweep(&mut connection, NO_LEASE).await.unwrap();
            deliveries::sweep(&mut connection, NO_LEASE).await.unwrap();
        }
    }

    /// The time of all webhooks has come, and all sides claim and deliver them.
    async fn deliver(&self) {
        for side in self.working() {
            let mut connection = stage(side).await;
            deliveries::sweep(&mut connection, NO_LEASE).await.unwrap();
            side.sql("UPDATE work SET at = now() WHERE kind = 'deliver'")
                .await;
            let ids: Vec<Uuid> = sqlx::query_scalar("SELECT delivery_id FROM deliveries")
                .fetch_all(&mut owner_that_sees(side).await)
                .await
                .unwrap();
            let ids: Vec<DeliveryId> = ids.into_iter().map(DeliveryId::from).collect();
            let due = deliveries::Claim::Due { lease: LEASE };
            let claimed = deliveries::claim(&mut connection, &ids, due).await.unwrap();
            let claimed = claimed.deliveries;
            let ids = claimed.iter().map(|one| one.id.uuid()).collect();
            self.check_own(side, ids).await;
            let attempts: Vec<_> = claimed
                .iter()
                .map(|one| attempted(one.id, one.ended_attempts, AttemptResult::Delivered))
                .collect();
            deliveries::record(&mut connection, &attempts, &BLOCK_POLICY, 100)
                .await
                .unwrap();
            self.note("delivered", attempts.len());
        }
    }

    /// A partner asks for all its webhooks again, and the notifiers of all sides work on all that is
    /// asked.
    async fn resend(&self, leaves: bool) {
        if let Some(home) = self.home(leaves) {
            let wanted = resends::Wanted {
                state: Some(DeliveryState::Delivered),
                since: runtime::clock::now() - Duration::from_hours(1),
                until: None,
            };
            let partner = self.partner(leaves);
            let mut connection = stage(home).await;
            resends::begin(&mut connection, partner, &wanted, Duration::ZERO)
                .await
                .unwrap();
        }
        for side in self.working() {
            let query = "SELECT resend_id, moved_to IS NOT NULL FROM resends JOIN partners USING (partner_id) WHERE ended_at IS NULL";
            let running: Vec<(Uuid, bool)> = sqlx::query_as(query)
                .fetch_all(&mut owner_that_sees(side).await)
                .await
                .unwrap();
            for (id, is_foreign) in running {
                let mut connection = stage(side).await;
                // A step looks at a part of the webhooks.
                for _ in 0..6 {
                    let step = resends::step(&mut connection, id, 10).await.unwrap();
                    self.note("resent", usize::try_from(step.resent).unwrap());
                    assert!(
                        !is_foreign || step.gone || self.acts_for_all(side),
                        "a foreign resend goes on"
                    );
                }
            }
        }
    }

    /// A partner gives a unit back, and the provisioners of all sides work on all give-backs.
    async fn give_back(&mut self, leaves: bool) {
        if self.placed.is_empty() {
            return;
        }
        let chosen = self.random.below(self.placed.len());
        let end = self.random.below(3);
        let topup: TopupId = topups(&self.placed[chosen].0).remove(0);
        if let Some(home) = self.home(leaves) {
            let mut connection = stage(home).await;
            esims::ask_give_back(&mut connection, self.partner(leaves), &topup)
                .await
                .unwrap();
        }
        for side in self.working() {
            let mut connection = stage(side).await;
            let due = due_requests(&mut connection).await;
            let claimed = esim_requests::claim(&mut connection, PROVIDER, &due, LEASE, false).await;
            let claimed = claimed.unwrap();
            let ids = claimed.iter().map(|one| one.id).collect();
            self.check_own(side, ids).await;
            self.note("given back", claimed.len());
            for one in claimed {
                let event = match end {
                    0 => None,
                    1 => Some(give_back::Event::Refuse),
                    _ => Some(give_back::Event::Returned),
                };
                let settlement = esim_requests::Settlement {
                    event,
                    reason: None,
                    again_in: Duration::ZERO,
                };
                esim_requests::settle(&mut connection, &one.topup_id, &settlement)
                    .await
                    .unwrap();
            }
        }
    }

    /// An archive run from its beginning to its end. `esimctl` lets none begin while the cell divides.
    async fn archive(&mut self) {
        if self.reached > Reached::NotBegun && self.reached < Reached::Active {
            return;
        }
        let mut moved = Vec::new();
        for side in self.working() {
            let mut connection = stage(side).await;
            moved.extend(archive_all(side, &mut connection).await);
        }
        let is_moved = |(order, _): &(NewOrder, bool)| moved.contains(&order.order_id.uuid());
        for (order, leaves) in self.placed.extract_if(.., |one| is_moved(one)) {
            let partner = if leaves {
                self.cell.leaving
            } else {
                self.cell.staying
            };
            self.archived.push((partner, order.external_order_id));
        }
    }

    async fn beside(&self) {
        for side in self.working() {
            let mut connection = stage(side).await;
            for class in Class::ALL {
                retention::step(&mut connection, class, 10).await.unwrap();
            }
            let notice = Duration::from_hours(6);
            deliveries::events::expiring(&mut connection, notice)
                .await
                .unwrap();
            deliveries::notices::keys_expire(&mut connection, notice)
                .await
                .unwrap();
        }
    }

    /// The next step of the division.
    async fn divide(&mut self) {
        match self.reached {
            Reached::NotBegun => {
                self.cell.freeze().await;
                self.reached = Reached::Frozen;
            }
            Reached::Frozen => {
                let mut connection = owner(&self.cell.a).await;
                division::fence(&mut connection).await.unwrap();
                self.reached = Reached::Fenced;
            }
            Reached::Fenced => {
                self.b = Some(copy(&self.cell.a).await);
                self.reached = Reached::Copied;
            }
            Reached::Copied => {
                activate(self.b.as_ref().unwrap()).await.unwrap();
                self.reached = Reached::Active;
            }
            Reached::Active => {
                let mut connection = owner(&self.cell.a).await;
                division::finish(&mut connection).await.unwrap();
            }
        }
    }

    async fn cancel(&mut self) {
        if self.reached > Reached::NotBegun && self.reached < Reached::Active {
            let mut connection = owner(&self.cell.a).await;
            division::cancel(&mut connection, ACTION).await.unwrap();
            self.reached = Reached::NotBegun;
            self.b = None;
        }
    }

    /// One step of a purge on each side, if the cell does not divide any more.
    async fn purge(&self) {
        for side in self.working() {
            if self.reached == Reached::Active
                && let Ok(foreign) = purge::foreign(&mut owner(side).await).await
            {
                let mut connection = owner_that_sees(side).await;
                purge::step(&mut connection, foreign[0]).await.unwrap();
                purge::end(&mut connection).await.unwrap();
            }
        }
    }

    async fn step(&mut self) {
        let leaves = self.random.below(2) == 0;
        match self.random.below(32) {
            0..=4 => self.order(leaves).await,
            5..=10 => {
                for _ in 0..3 {
                    self.buy().await;
                }
            }
            11 | 12 => self.collect().await,
            13 => self.sweep().await,
            14..=17 => self.deliver().await,
            18 | 19 => self.resend(leaves).await,
            20 | 21 => self.give_back(leaves).await,
            22..=24 => self.archive().await,
            25 => self.beside().await,
            26..=29 => self.divide().await,
            30 if self.random.below(3) == 0 => self.cancel().await,
            _ => self.purge().await,
        }
    }

    /// Nothing of a partner is forgotten in the database that serves it, and its archived external ids
    /// stay taken there.
    async fn check(&self) {
        for side in self.working() {
            assert_eq!(count(side, FORGOTTEN).await, 0, "forgotten by the sweep");
            assert_eq!(count(side, LEFT).await, 0, "nobody works on it");
        }
        for leaves in [true, false] {
            let partner = self.partner(leaves);
            let Some(home) = self.home(leaves) else {
                continue;
            };
            let mut connection = stage(home).await;
            for (_, external_id) in self.archived.iter().filter(|(of, _)| *of == partner) {
                let taken = orders::is_taken(&mut connection, partner, external_id).await;
                assert!(taken.unwrap(), "the id of an archived order is free");
            }
        }
    }
}

/// Moves all finished orders of a side that this session sees into archives.
async fn archive_all(side: &Bench, connection: &mut PgConnection) -> Vec<Uuid> {
    let before = runtime::clock::now() + Duration::from_mins(1);
    let mut moved = Vec::new();
    let mut after = Uuid::nil();
    loop {
        let file = |number| format!("/srv/orders-{number}.jsonl.gz");
        let reserved = archive::reserve(connection, after, before, 100, file).await;
        let Some((page, archive)) = reserved.unwrap() else {
            return moved;
        };
        after = page.last;
        let Some(mut archive) = archive else {
            continue;
        };
        side.ripen().await;
        let mut transaction = connection.begin().await.unwrap();
        let copied = archive::copy(&mut transaction, &archive, &page.finished)
            .await
            .unwrap();
        archive::complete(&mut transaction, &mut archive, &copied, "sum")
            .await
            .unwrap();
        transaction.commit().await.unwrap();
        moved.extend(copied.orders);
    }
}

/// Nothing is forgotten in the database that serves a partner, and nobody works on what is foreign. Some
/// divisions are taken back.
#[tokio::test]
async fn any_steps_beside_a_division_forget_nothing_and_claim_nothing_foreign() {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for seed in 0..3 {
        let mut world = World::new(seed).await;
        for step in 0..60 {
            // Shown only if the test fails.
            println!("seed {seed}, step {step}, {:?}", world.reached);
            world.step().await;
            world.check().await;
        }
        world.note("archived", world.archived.len());
        for (what, often) in world.seen.take() {
            *seen.entry(what).or_default() += often;
        }
    }
    println!("{seen:?}");
    for what in ["archived", "collected", "delivered"] {
        assert!(seen[what] > 0, "nothing was {what}");
    }
}
