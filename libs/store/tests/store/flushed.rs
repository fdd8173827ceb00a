//! An order that waits for a verdict is committed without a flush of the log. Whoever is told of
//! it, by whatever way, is told of an order that survives a crash of the server right after.

use std::{os::unix::fs::PermissionsExt, time::Duration};

use desk::operator::{
    looking::ListPatience, order_list, orders as shown, placements as listed, search,
};
use domain::{PartnerId, PlacementId};
use pg::{TransactionEnd, schema, transaction};
use sqlx::{Connection, PgConnection};
use store::Unflushed;
use store::{
    orders::{self, NewOrder},
    placements::{self, PlacementClaim, PlacementSettlement, SettledUnit},
    providers,
};
use tempfile::TempDir;
use testkit::postgres::PostgresServer;

use crate::bench::{
    Bench, LEASE, PROVIDER, Told as _, bought, fresh, order, placement, ready, topups,
};

/// A server that flushes nothing by itself for ten seconds after its start.
struct Server {
    postgres: PostgresServer,
    folder: TempDir,
}

impl Server {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
        let postgres = PostgresServer::start(folder.path()).await.unwrap();
        let mut connection = PgConnection::connect(postgres.url()).await.unwrap();
        schema::migrate(&mut connection).await.unwrap();
        providers::register(&mut connection, &[PROVIDER.to_owned()])
            .await
            .unwrap();
        for setting in [
            "ALTER SYSTEM SET wal_writer_delay = '10s'",
            "ALTER SYSTEM SET autovacuum = off",
        ] {
            postgres.sql(setting).await.unwrap();
        }
        let mut server = Self { postgres, folder };
        server.crash().await;
        server
    }

    /// As `kill -QUIT` of the postmaster: what was not flushed is lost.
    async fn crash(&mut self) {
        self.postgres.stop_immediately().await.unwrap();
        self.postgres.start_again().await.unwrap();
    }

    async fn connect(&self) -> PgConnection {
        PgConnection::connect(self.postgres.url()).await.unwrap()
    }

    /// Whether the order is there, with its placement.
    async fn has(&self, order: &NewOrder) -> bool {
        is_in(&mut self.connect().await, order).await
    }
}

async fn is_in(connection: &mut PgConnection, order: &NewOrder) -> bool {
    let found =
        "SELECT count(*) = 1 FROM orders JOIN placements USING (order_id) WHERE order_id = $1";
    let found = sqlx::query_scalar(found).bind(order.order_id.uuid());
    found.fetch_one(connection).await.unwrap()
}

/// Stores an order that waits for a verdict.
async fn store(connection: &mut PgConnection) -> NewOrder {
    let order = order(PartnerId::new(), 1);
    let stored = orders::insert(connection, std::slice::from_ref(&order)).await;
    assert_eq!(stored.unwrap(), [true]);
    order
}

/// Everything that tells somebody of an order, or buys it.
#[derive(Clone, Copy, Debug)]
enum Told {
    /// An answer without a verdict *placed*.
    Answered,
    /// Whatever self-service has read.
    Flush,
    /// The same on one snapshot.
    FlushOfASnapshot,
    /// "Already taken", or that it is undecided.
    Taken,
    /// The recorded attempt, before the purchase.
    Claim,
    Defer,
    Refused,
    CancelledTooEarly,
    Shown,
    Listed,
    Found,
    ListedPlacements,
}

impl Told {
    const ALL: [Self; 12] = [
        Self::Answered,
        Self::Flush,
        Self::FlushOfASnapshot,
        Self::Taken,
        Self::Claim,
        Self::Defer,
        Self::Refused,
        Self::CancelledTooEarly,
        Self::Shown,
        Self::Listed,
        Self::Found,
        Self::ListedPlacements,
    ];

    async fn tell(self, connection: &mut PgConnection, order: &NewOrder) {
        let id = order.order_id.to_string();
        let ids = [placement(order)];
        match self {
            Self::Answered => {
                let stored = orders::flush_order(connection, order.order_id).await;
                assert!(stored.unwrap());
            }
            Self::Flush => Unflushed::of(()).after_flush(connection).await.unwrap(),
            Self::FlushOfASnapshot => {
                let read = async |connection: &mut PgConnection| {
                    let partner = order.partner_id;
                    desk::self_service::order(connection, partner, &id, None).await
                };
                let seen = desk::self_service::snapshot(&mut *connection, read)
                    .await
                    .unwrap();
                seen.after_flush(connection).await.unwrap();
            }
            Self::Taken => {
                let status = orders::status(connection, order.partner_id, &order.external_order_id);
                assert!(!status.await.unwrap().unwrap().decided);
            }
            Self::Claim => {
                let claimed =
                    placements::claim(connection, PROVIDER, &ids, PlacementClaim::Fresh, LEASE)
                        .await;
                assert_eq!(claimed.unwrap().len(), 1);
            }
            Self::Defer => {
                assert_eq!(placements::defer(connection, &ids).await.unwrap().len(), 1);
            }
            Self::Refused => {
                // Nothing was tried, so the order stands, and the 201 is flushed by its own call.
                let refused = orders::refuse(&mut *connection, order.order_id, false).await;
                assert_eq!(refused.unwrap(), None);
                Unflushed::of(()).after_flush(connection).await.unwrap();
            }
            Self::CancelledTooEarly => {
                let cancelled = orders::cancel(
                    &mut *connection,
                    order.partner_id,
                    &order.external_order_id,
                    None,
                );
                let cancelled = cancelled.await.unwrap();
                assert!(matches!(
                    cancelled,
                    orders::OrderCancellation::Undecided { .. }
                ));
                Unflushed::of(()).after_flush(connection).await.unwrap();
            }
            Self::Shown => {
                assert_eq!(
                    shown::find(&mut *connection, &id)
                        .await
                        .told(&mut *connection)
                        .await
                        .len(),
                    1
                );
            }
            Self::Listed => {
                let filter = order_list::OrderFilter::default();
                let page =
                    order_list::list(&mut *connection, &filter, None, 1_000, ListPatience::Whole)
                        .await
                        .told(&mut *connection)
                        .await;
                let mut listed = page.orders.into_iter();
                assert!(listed.any(|one| one.order_id == order.order_id));
            }
            Self::Found => {
                let hits = search::find(&mut *connection, &id)
                    .await
                    .told(&mut *connection)
                    .await;
                assert_eq!(hits.orders.len(), 1);
            }
            Self::ListedPlacements => {
                let list = listed::list(&mut *connection, None, None, 1_000)
                    .await
                    .told(&mut *connection)
                    .await;
                assert!(list.iter().any(|one| one.placement_id == ids[0]));
            }
        }
    }
}

/// Without this, the tests below would show nothing.
#[tokio::test]
async fn an_order_that_waits_for_a_verdict_may_be_lost_while_nobody_knows_of_it() {
    let mut server = Server::start().await;
    for _ in 0..10 {
        let mut connection = server.connect().await;
        let awaited = store(&mut connection).await;
        server.crash().await;
        if !server.has(&awaited).await {
            // Its answer learns that, whatever session it asks.
            let mut answering = server.connect().await;
            let stored = orders::flush_order(&mut answering, awaited.order_id).await;
            assert!(!stored.unwrap());
            // The same batch with an order that waits for no verdict is flushed.
            let mut connection = server.connect().await;
            let mut batch = [order(PartnerId::new(), 1), order(PartnerId::new(), 1)];
            batch[1].answering = None;
            orders::insert(&mut connection, &batch).await.unwrap();
            server.crash().await;
            for order in &batch {
                assert!(server.has(order).await);
            }
            return;
        }
    }
    panic!("every order was flushed, so this test and the next ones show nothing");
}

#[tokio::test]
async fn an_order_that_somebody_was_told_of_survives_a_crash() {
    let mut server = Server::start().await;
    for told in Told::ALL {
        let mut connection = server.connect().await;
        let order = store(&mut connection).await;
        // Another session, as each of them is in the system.
        told.tell(&mut server.connect().await, &order).await;
        server.crash().await;
        assert!(server.has(&order).await, "{told:?}");
    }
}

/// Whoever looks for orders waits for no standby. Otherwise nothing could be seen while it is gone.
#[tokio::test]
async fn orders_are_read_while_a_standby_that_commits_wait_for_is_gone() {
    let server = Server::start().await;
    let mut connection = server.connect().await;
    let order = store(&mut connection).await;
    let gone = "ALTER SYSTEM SET synchronous_standby_names = 'gone'";
    server.postgres.sql(gone).await.unwrap();
    server
        .postgres
        .sql("SELECT pg_reload_conf()")
        .await
        .unwrap();
    let mut reader = server.connect().await;
    // Something is in the log that is not flushed.
    for sql in ["SET synchronous_commit = off", "CREATE TABLE unflushed ()"] {
        execute(&mut connection, sql).await;
    }
    for told in [
        Told::Flush,
        Told::Shown,
        Told::Listed,
        Told::Found,
        Told::ListedPlacements,
    ] {
        let telling = told.tell(&mut reader, &order);
        let told_in_time = tokio::time::timeout(Duration::from_secs(30), telling).await;
        assert!(told_in_time.is_ok(), "{told:?} waits for the standby");
    }
}

async fn execute(connection: &mut PgConnection, sql: &'static str) {
    sqlx::query(sql).execute(connection).await.unwrap();
}

/// Where commits wait for a standby, the order is there before somebody is told, too.
#[tokio::test]
async fn an_order_that_somebody_was_told_of_survives_the_loss_of_the_primary() {
    for told in [Told::Flush, Told::Taken, Told::Claim, Told::Shown] {
        let mut server = Server::start().await;
        let folder = server.folder.path();
        let standby = server.postgres.start_standby(folder).await.unwrap();
        server.postgres.require_standby().await.unwrap();
        let order = store(&mut server.connect().await).await;
        told.tell(&mut server.connect().await, &order).await;
        server.postgres.stop_immediately().await.unwrap();
        standby.promote().await.unwrap();
        let mut connection = PgConnection::connect(standby.url()).await.unwrap();
        assert!(is_in(&mut connection, &order).await, "{told:?}");
    }
}

/// Claims the placement of a new order. Returns its purchase, which the lean statement settles.
async fn purchase(connection: &mut PgConnection, comes_again: bool) -> PlacementSettlement {
    let order = store(connection).await;
    let id = placement(&order);
    let claimed =
        placements::claim(connection, PROVIDER, &[id], PlacementClaim::Fresh, LEASE).await;
    assert_eq!(claimed.unwrap()[0].attempt, 1);
    let units: Vec<SettledUnit> = topups(&order).iter().map(ready).collect();
    let mut settlement = fresh(&order, bought(id, 1, units, true));
    let Some(known) = &mut settlement.known else {
        panic!("the lean statement may record it");
    };
    known.is_proved_by_look_up = comes_again;
    settlement
}

async fn settle(connection: &mut PgConnection, settlements: &[PlacementSettlement]) {
    for settled in placements::settle(connection, settlements).await.unwrap() {
        assert_eq!((settled.moved, settled.ready.len()), (true, 1));
    }
}

/// The state of a placement, its attempt, and the ICCIDs of its units.
async fn stored(
    connection: &mut PgConnection,
    id: PlacementId,
) -> (String, i32, Option<Vec<String>>) {
    let stored = "SELECT state, attempt, (SELECT array_agg(iccid ORDER BY iccid) FROM topups JOIN esims USING (topup_id)
                                          WHERE topups.placement_id = placements.placement_id)
                  FROM placements WHERE placement_id = $1";
    let stored = sqlx::query_as(stored).bind(id.uuid());
    stored.fetch_one(connection).await.unwrap()
}

#[tokio::test]
async fn a_settlement_that_a_look_up_brings_again_may_be_lost_and_keeps_its_attempt() {
    let mut server = Server::start().await;
    for _ in 0..10 {
        let mut connection = server.connect().await;
        let settlement = purchase(&mut connection, true).await;
        let id = settlement.placement_id;
        settle(&mut connection, std::slice::from_ref(&settlement)).await;
        let (.., iccids) = stored(&mut connection, id).await;
        server.crash().await;
        let mut connection = server.connect().await;
        let (state, attempt, left) = stored(&mut connection, id).await;
        assert_eq!(attempt, 1, "the attempt is flushed before it is sent");
        if state == "placed" {
            continue;
        }
        assert_eq!((state.as_str(), left), ("placing", None));
        // As a look-up settles it.
        let again = PlacementSettlement {
            known: None,
            ..settlement
        };
        settle(&mut connection, &[again]).await;
        server.crash().await;
        let mut connection = server.connect().await;
        let placed = ("placed".to_owned(), 1, iccids);
        assert_eq!(stored(&mut connection, id).await, placed);
        return;
    }
    panic!("every settlement was flushed, so this test and the next one show nothing");
}

#[tokio::test]
async fn a_settlement_that_no_look_up_brings_again_survives_a_crash() {
    let mut server = Server::start().await;
    for others in [&[][..], &[true], &[true, true]] {
        let mut connection = server.connect().await;
        let mut batch = vec![purchase(&mut connection, false).await];
        for comes_again in others {
            batch.push(purchase(&mut connection, *comes_again).await);
        }
        settle(&mut connection, &batch).await;
        server.crash().await;
        let mut connection = server.connect().await;
        for settlement in batch {
            let (state, ..) = stored(&mut connection, settlement.placement_id).await;
            assert_eq!(state, "placed");
        }
    }
}

/// Where commits wait for a standby, settlements do, too.
#[tokio::test]
async fn a_settlement_survives_the_loss_of_the_primary() {
    let mut server = Server::start().await;
    let folder = server.folder.path();
    let standby = server.postgres.start_standby(folder).await.unwrap();
    server.postgres.require_standby().await.unwrap();
    let mut connection = server.connect().await;
    let settlement = purchase(&mut connection, true).await;
    let id = settlement.placement_id;
    settle(&mut connection, &[settlement]).await;
    server.postgres.stop_immediately().await.unwrap();
    standby.promote().await.unwrap();
    let mut connection = PgConnection::connect(standby.url()).await.unwrap();
    assert_eq!(stored(&mut connection, id).await.0, "placed");
}

/// The flush of what was read would make the commit of the transaction wait for no standby.
#[tokio::test]
async fn what_a_transaction_has_read_is_not_flushed_in_it() {
    let bench = Bench::new().await;
    let mut connection = bench.connection().await;
    let told = transaction!(
        &mut connection,
        "a test",
        |transaction| -> Result<(), pg::Error> {
            let write = "INSERT INTO providers (name) VALUES ('one')";
            sqlx::query(write).execute(&mut **transaction).await?;
            Unflushed::of(()).after_flush(transaction).await?;
            Ok(TransactionEnd::Commit(()))
        }
    );
    assert!(told.unwrap_err().to_string().contains("in a transaction"));
}
