//! What must hold when a cell divides, one condition at a time. Each has an entry in
//! `tests/safeguards`, which removes it and demands that its test here fails.

use std::{os::unix::fs::PermissionsExt, path::PathBuf, time::Duration};

use domain::event::Kind;
use pg::schema;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, postgres::PgConnectOptions};
use store::deliveries::{events, notices};
use testkit::{database::Database, postgres::PostgresServer, wait};
use tokio::process::Command;
use tools::cells::{
    division::{self, NotDivided},
    purge,
};

use super::{ACTION, CELLS, Cell, activate, copy, count, owner, owner_that_sees, stage};
use crate::bench::{Bench, answered, execute};

/// One row of each table that belongs to processes and people of the old side.
const OLD_SIDE: [(&str, &str); 6] = [
    (
        "pulses",
        "INSERT INTO pulses (instance, stage, number, timeline, replicated, at)
         VALUES (gen_random_uuid(), 'ingress', 1, 1, false, now())",
    ),
    (
        "provider_replicas",
        "INSERT INTO provider_replicas (provider, instance, share, until) VALUES ('sandbox', 'old', 1, now())",
    ),
    (
        "provider_lanes",
        "INSERT INTO provider_lanes (provider, lane, instance, max_in_flight, unsettled, reason, since)
         VALUES ('sandbox', 'lane', 'old', 1, 0, 'slow', now())",
    ),
    (
        "operator_sessions",
        "INSERT INTO operator_sessions (token_digest, operator_id, source, ends_at)
         VALUES ('x', gen_random_uuid(), '192.0.2.1', now() + interval '1 hour')",
    ),
    (
        "operator_sign_ins",
        "INSERT INTO operator_sign_ins (subject, attempts, until) VALUES ('name', 1, now())",
    ),
    (
        "minutely",
        "INSERT INTO minutely (span, at, measure, subject, instance, n, failed, histogram)
         VALUES ('minute', now(), 'orders', '', gen_random_uuid(), 1, 0, '{1}')",
    ),
];
/// What a cell could still tell partners that live elsewhere.
const ENDPOINTS_ELSEWHERE: &str =
    "SELECT count(*) FROM partner_endpoints e JOIN partners p USING (partner_id)
    WHERE p.moved_to IS NOT NULL AND (e.url IS NOT NULL OR e.nth > 0 OR p.has_further_endpoints)";

async fn rows(bench: &Bench, table: &str) -> i64 {
    let query = AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
    sqlx::query_scalar(query)
        .fetch_one(&mut owner(bench).await)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_new_cell_begins_without_processes_sessions_and_figures_of_the_old_one() {
    let cell = Cell::new().await;
    for (_, insert) in OLD_SIDE {
        cell.a.sql(insert).await;
    }
    cell.fence().await;
    let b = copy(&cell.a).await;
    activate(&b).await.unwrap();
    let mut left = Vec::new();
    for (table, _) in OLD_SIDE {
        assert_eq!(rows(&cell.a, table).await, 1, "{table}");
        if rows(&b, table).await > 0 {
            left.push(table);
        }
    }
    assert_eq!(left, Vec::<&str>::new());
}

/// Both sides forget the endpoints of those that live in the other one, and keep their own.
#[tokio::test]
async fn a_cell_keeps_no_endpoint_of_a_partner_that_lives_elsewhere() {
    let cell = Cell::new().await;
    for partner in [cell.leaving, cell.staying] {
        cell.a.further(partner, "further", &[]).await;
    }
    cell.fence().await;
    let b = copy(&cell.a).await;
    activate(&b).await.unwrap();
    division::finish(&mut owner(&cell.a).await).await.unwrap();
    let new = count(&b, ENDPOINTS_ELSEWHERE).await;
    let old = count(&cell.a, ENDPOINTS_ELSEWHERE).await;
    assert_eq!((new, old), (0, 0), "the new cell, the old one");
    let own = "SELECT count(*) FROM partner_endpoints e JOIN partners p USING (partner_id)
               WHERE p.moved_to IS NULL AND p.has_further_endpoints AND e.url IS NOT NULL";
    for bench in [&cell.a, &b] {
        assert_eq!(count(bench, own).await, 2);
    }
}

/// An archive run that has not ended would go on in both cells, into one folder.
#[tokio::test]
async fn an_archive_run_that_has_not_ended_refuses_the_activation() {
    let cell = Cell::new().await;
    cell.fence().await;
    let b = copy(&cell.a).await;
    b.sql("INSERT INTO archives (archive, file, first_order, last_order) VALUES (1, 'f', gen_random_uuid(), gen_random_uuid())").await;
    assert!(matches!(activate(&b).await, Err(NotDivided::Archive(_))));
    b.sql("UPDATE archives SET completed_at = now()").await;
    activate(&b).await.unwrap();
}

/// The session of a provisioner that is logged in like this, until it is closed.
async fn provisioner(options: PgConnectOptions) -> PgConnection {
    let options = options.application_name("provisioner");
    options.connect().await.unwrap()
}

/// Ends the session, and waits until the server has noticed that.
async fn end(session: PgConnection, bench: &Bench) {
    session.close().await.unwrap();
    let left = "SELECT count(*) FROM pg_stat_activity
                WHERE datname = current_database() AND application_name = 'provisioner'";
    wait::soon("the end of the session", async || {
        Ok((count(bench, left).await == 0).then_some(()))
    })
    .await;
}

#[tokio::test]
async fn a_stage_that_no_policy_binds_refuses_the_activation() {
    let cell = Cell::new().await;
    cell.fence().await;
    let b = copy(&cell.a).await;
    b.sql(
        "DO $$ BEGIN CREATE ROLE esim_bypassing LOGIN BYPASSRLS PASSWORD 'bypassing';
         EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$",
    )
    .await;
    let superuser: PgConnectOptions = b.database.url().parse().unwrap();
    let bypassing = superuser
        .clone()
        .username("esim_bypassing")
        .password("bypassing");
    for options in [superuser, bypassing] {
        let session = provisioner(options).await;
        let refused = activate(&b).await;
        assert!(
            matches!(refused, Err(NotDivided::Bypassed { .. })),
            "{refused:?}"
        );
        end(session, &b).await;
    }
    let bound = b.database.url_of("provisioner").unwrap();
    let _bound = provisioner(bound.parse().unwrap()).await;
    activate(&b).await.unwrap();
}

/// Makes the next look tell of keys that end soon, and returns how many events, notices of keys and
/// notices of addresses the looks have made.
async fn told(bench: &Bench, addresses: &str) -> [u64; 3] {
    bench
        .sql("UPDATE partners SET old_keys_until = coalesce(old_keys_until, now() + interval '1 hour') + interval '1 minute'")
        .await;
    let mut connection = stage(bench).await;
    let notice = Duration::from_hours(6);
    let addresses = [addresses.to_owned()];
    [
        events::expiring(&mut connection, notice).await.unwrap(),
        notices::keys_expire(&mut connection, notice).await.unwrap(),
        notices::source_addresses(&mut connection, &addresses)
            .await
            .unwrap(),
    ]
}

/// An insert of a hidden row would fail for all partners. So the statements that look for partners leave
/// those out that live elsewhere, from the freeze on. (After the fence they do not see the endpoints
/// either, so they find nobody to tell.)
#[tokio::test]
async fn nothing_is_told_to_a_partner_that_leaves() {
    let cell = Cell::new().await;
    for partner in [cell.leaving, cell.staying] {
        cell.a.set_events(partner, &[Kind::KeyExpiring]).await;
        cell.a.verified_channel(partner).await;
    }
    assert_eq!(told(&cell.a, "192.0.2.1").await, [2, 2, 2]);
    cell.freeze().await;
    assert_eq!(told(&cell.a, "192.0.2.2").await, [1, 1, 1]);
    division::fence(&mut owner(&cell.a).await).await.unwrap();
    assert_eq!(told(&cell.a, "192.0.2.3").await, [1, 1, 1]);
    let b = copy(&cell.a).await;
    activate(&b).await.unwrap();
    assert_eq!(told(&b, "192.0.2.4").await, [1, 1, 1]);
}

/// Purges all that is foreign.
async fn purge_all(bench: &Bench) {
    let mut connection = owner_that_sees(bench).await;
    for partner in purge::foreign(&mut connection).await.unwrap() {
        while purge::step(&mut connection, partner).await.unwrap().1 {}
    }
    purge::end(&mut connection).await.unwrap();
}

/// Dumps the tables as an owner who is no superuser.
async fn dump(bench: &Bench) -> Result<(), String> {
    let programs = PathBuf::from(std::env::var("PG_BIN").unwrap());
    let dumped = Command::new(programs.join("pg_dump"))
        .arg(format!("--dbname={}", bench.database.url()))
        .args(["--role=esim_bound", "--schema=public", "--format=custom"])
        .output()
        .await
        .unwrap();
    if dumped.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&dumped.stderr).into_owned())
    }
}

/// A dump by the owner of the tables would lack the hidden rows, so PostgreSQL refuses it, and names the
/// policies. After the purge there are none.
#[tokio::test]
async fn a_dump_by_the_owner_names_the_policies_until_the_purge() {
    let cell = Cell::new().await;
    drop(stage(&cell.a).await);
    cell.a
        .sql(
            "DO $$ DECLARE t regclass; BEGIN
                 FOR t IN SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'v') LOOP
                     EXECUTE format('ALTER TABLE %s OWNER TO esim_bound', t);
                 END LOOP;
             END $$;
             GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO esim_bound",
        )
        .await;
    dump(&cell.a).await.unwrap();
    cell.fence().await;
    let refused = dump(&cell.a).await.unwrap_err();
    assert!(refused.contains("row-level security"), "{refused}");
    division::finish(&mut owner(&cell.a).await).await.unwrap();
    purge_all(&cell.a).await;
    dump(&cell.a).await.unwrap();
}

/// PostgreSQL cancels an autovacuum for a waiting session only after `deadlock_timeout`, a second. A
/// fence whose tries are all shorter would give up, and blame a dump.
#[tokio::test]
async fn a_fence_ends_an_autovacuum_that_holds_one_of_the_tables() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let server = PostgresServer::start(folder.path()).await.unwrap();
    let often = "ALTER SYSTEM SET autovacuum_naptime = '1s'";
    server.sql(often).await.unwrap();
    server.sql("SELECT pg_reload_conf()").await.unwrap();
    let a = Bench::of(Database::create_on(server.url()).await.unwrap());
    schema::migrate(&mut *a.connection().await).await.unwrap();
    let leaving = a.partner(Some("https://leaving.example/")).await;
    a.stored(answered(leaving, 1)).await;
    // It rests at least 100 ms after each of some 1,000 pages.
    a.sql(
        "ALTER TABLE archived_orders SET (autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1,
             autovacuum_vacuum_insert_threshold = 1, autovacuum_vacuum_insert_scale_factor = 0);
         INSERT INTO archived_orders (order_id, partner_id, external_order_id, refused, archive)
         SELECT gen_random_uuid(), gen_random_uuid(), 'order ' || n, false, 1 FROM generate_series(1, 100000) n",
    )
    .await;
    let works = "SELECT count(*) FROM pg_stat_progress_vacuum JOIN pg_stat_activity USING (pid)
                 WHERE backend_type = 'autovacuum worker' AND relid = 'archived_orders'::regclass";
    wait::until(Duration::from_mins(2), "an autovacuum", async || {
        Ok((count(&a, works).await > 0).then_some(()))
    })
    .await
    .unwrap();
    let mut connection = owner(&a).await;
    division::freeze(&mut connection, CELLS, &[leaving.uuid()], ACTION)
        .await
        .unwrap();
    division::fence(&mut connection).await.unwrap();
    execute(&mut connection, "SELECT FROM archived_orders LIMIT 1").await;
}
