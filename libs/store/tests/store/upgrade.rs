//! Migrations that move rows into other tables: nothing is lost, and programs of the version before
//! find their rows under the old names and change them there, each with the rights of its role.

use domain::{PartnerId, TopupId};
use pg::schema::{self, Patience};
use sqlx::migrate::Migrator;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::bench::{Bench, execute, order, topups};

/// A database with the schema before the migration with this name.
pub(crate) async fn before(name: &str) -> Bench {
    let bench = Bench::empty().await;
    let all = schema::migrations();
    let moved = all.iter().find(|one| one.description == name).unwrap();
    let older = all
        .iter()
        .filter(|one| one.version < moved.version)
        .cloned()
        .collect();
    let older = Migrator::with_migrations(older);
    let mut connection = bench.connection().await;
    schema::apply(&mut connection, &older, Patience::default(), |_| {})
        .await
        .unwrap();
    bench
}

/// Applies the other migrations, too.
pub(crate) async fn upgrade(bench: &Bench) {
    schema::migrate(&mut *bench.connection().await)
        .await
        .unwrap();
}

/// What a query shows, as one text.
pub(crate) async fn shown(connection: &mut PgConnection, query: &str) -> String {
    let query =
        format!("SELECT coalesce(string_agg(x::text, ' ' ORDER BY x), '') FROM ({query}) x");
    sqlx::query_scalar(AssertSqlSafe(query))
        .fetch_one(connection)
        .await
        .unwrap()
}

async fn role(bench: &Bench, stage: &str) -> PgConnection {
    PgConnection::connect(&bench.database.url_of(stage).unwrap())
        .await
        .unwrap()
}

/// Old names of tables and what the version before reads there.
const SMALL: [&str; 5] = [
    "SELECT singleton, version FROM configuration_version",
    "SELECT singleton, addresses, told_at FROM source_addresses",
    "SELECT stage, up_to, fence_at, fence_xid FROM sweeps",
    "SELECT class, days, after, up_to, began_at FROM retention WHERE class <> 'changes'",
    "SELECT archive, partner_id, orders FROM archive_partners",
];

#[tokio::test]
async fn the_rows_of_small_tables_are_carried_over_and_served_under_their_old_names() {
    let bench = before("small tables").await;
    let rows = "INSERT INTO options (option_id, name, provider, provider_option_id, environment)
         SELECT gen_random_uuid(), 'an option', 'sandbox', n, 'sandbox' FROM generate_series(1, 7) n;
         INSERT INTO source_addresses (addresses, told_at) VALUES ('{192.0.2.1}', '2026-01-01');
         UPDATE sweeps SET up_to = '2026-02-01', fence_at = '2026-02-02', fence_xid = '77' WHERE stage = 'placements';
         UPDATE sweeps SET up_to = '2026-02-03' WHERE stage = 'deliveries';
         UPDATE retention SET days = 17, after = 'topup 3', up_to = '2026-03-01', began_at = '2025-01-01' WHERE class = 'profiles';
         INSERT INTO archives (archive, folder, ordered_before, reserved_to, moved_to, orders)
         SELECT n, 'folder', now(), gen_random_uuid(), gen_random_uuid(), 5 FROM generate_series(1, 3) n;
         INSERT INTO archive_partners (archive, partner_id, orders)
         SELECT n, md5(partner)::uuid, n + 1 FROM generate_series(1, 2) n, unnest('{one,other}'::text[]) partner";
    bench.sql(rows).await;
    let mut owner = bench.connection().await;
    let mut stored = Vec::new();
    for query in SMALL {
        stored.push(shown(&mut owner, query).await);
    }
    assert!(stored.iter().all(|rows| !rows.is_empty()), "{stored:?}");
    upgrade(&bench).await;
    for (query, before) in SMALL.into_iter().zip(stored) {
        assert_eq!(shown(&mut owner, query).await, before, "{query}");
    }
    let archives = "SELECT archive, orders FROM archives";
    assert_eq!(shown(&mut owner, archives).await, "(1,5) (2,5) (3,5)");

    // What the version before does with its rows.
    let mut notifier = role(&bench, "notifier").await;
    let told = "WITH changed AS (
                    INSERT INTO source_addresses AS s (addresses) VALUES ($1::text[])
                    ON CONFLICT (singleton) DO UPDATE SET addresses = excluded.addresses, told_at = now()
                    WHERE s.addresses <> excluded.addresses RETURNING 1)
                SELECT count(*) FROM changed";
    for (addresses, changed) in [("{192.0.2.1}", 0), ("{192.0.2.2}", 1), ("{192.0.2.2}", 0)] {
        let told = sqlx::query_scalar::<_, i64>(told).bind(addresses);
        assert_eq!(told.fetch_one(&mut notifier).await.unwrap(), changed);
    }
    let walked =
        "UPDATE retention SET after = 'topup 4', up_to = '2026-03-02' WHERE class = 'profiles';
                  UPDATE sweeps SET up_to = '2026-04-01' WHERE stage = 'deliveries'";
    execute(&mut notifier, walked).await;
    let mut provisioner = role(&bench, "provisioner").await;
    let mut sweep = provisioner.begin().await.unwrap();
    let taken =
        "SELECT up_to FROM sweeps WHERE stage = 'placements' FOR UPDATE OF sweeps SKIP LOCKED";
    assert_eq!(
        sqlx::query(taken)
            .fetch_all(&mut *sweep)
            .await
            .unwrap()
            .len(),
        1
    );
    let moved = "UPDATE sweeps SET up_to = '2026-04-02', fence_xid = pg_snapshot_xmax(pg_current_snapshot())
                 WHERE stage = 'placements'";
    execute(&mut sweep, moved).await;
    sweep.commit().await.unwrap();
    let walks = "SELECT name, up_to AT TIME ZONE 'UTC', after FROM walks WHERE name IN ('placements', 'deliveries', 'profiles')";
    assert_eq!(
        shown(&mut owner, walks).await,
        r#"(deliveries,"2026-04-01 00:00:00","") (placements,"2026-04-02 00:00:00","") (profiles,"2026-03-02 00:00:00","topup 4")"#
    );
    // The version of the configuration goes on where it was, whoever changes it.
    let next = "UPDATE configuration_version SET version = version + 1 RETURNING version";
    let mut ingress = role(&bench, "ingress").await;
    let version: i64 = sqlx::query_scalar(next)
        .fetch_one(&mut ingress)
        .await
        .unwrap();
    assert_eq!(version, 8);
    bench.sql("UPDATE options SET name = 'newer'").await;
    let newest =
        "SELECT max(version) = 15 AND max(version) = (SELECT version FROM system) FROM options";
    assert_eq!(shown(&mut owner, newest).await, "(t)");
}

/// The provisioner can neither hide deliveries from their sweep nor end the erasing of data.
#[tokio::test]
async fn a_stage_moves_its_own_walks_only() {
    let bench = Bench::new().await;
    for (stage, own) in [
        ("provisioner", "(placements)"),
        (
            "notifier",
            "(archived) (attempts) (audit) (changes) (deliveries) (orders) (profiles) (refusals)",
        ),
    ] {
        let mut connection = role(&bench, stage).await;
        let moved = "UPDATE walks SET up_to = now() RETURNING name";
        let mut names: Vec<String> = sqlx::query_scalar(moved)
            .fetch_all(&mut connection)
            .await
            .unwrap();
        names.sort_unstable();
        assert_eq!(format!("({})", names.join(") (")), own, "{stage}");
    }
}

/// A row with an infinite time that a version before the bounds has let in stops no upgrade, and ends no
/// program after it.
#[tokio::test]
async fn infinite_times_from_before_the_bounds_stop_no_upgrade() {
    let bench = before("finite times").await;
    let mut connection = bench.connection().await;
    for (table, change) in [
        ("sweeps", "up_to = 'infinity', fence_at = 'infinity'"),
        ("retention", "began_at = '-infinity'"),
        (
            "providers",
            "open_until = 'infinity', changed_at = '-infinity'",
        ),
        ("source_addresses", "told_at = 'infinity'"),
    ] {
        let check =
            "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = $1 || '_bounds'";
        let check: String = sqlx::query_scalar(check)
            .bind(table)
            .fetch_one(&mut *connection)
            .await
            .unwrap();
        let spoil = format!(
            "ALTER TABLE {table} DROP CONSTRAINT {table}_bounds; UPDATE {table} SET {change};
             ALTER TABLE {table} ADD CONSTRAINT {table}_bounds {check}"
        );
        if table == "providers" {
            execute(
                &mut connection,
                "INSERT INTO providers (name) VALUES ('usimsa')",
            )
            .await;
        }
        execute(&mut connection, &spoil).await;
    }
    drop(connection);
    upgrade(&bench).await;
    let mut connection = bench.connection().await;
    let all = store::providers::list(&mut connection).await.unwrap();
    assert!(all[0].open_until.is_some() && !all[0].lost_commits());
    let query = "SELECT name FROM walks WHERE NOT isfinite(began_at) OR NOT isfinite(fence_at) OR up_to = 'infinity'";
    assert_eq!(shown(&mut connection, query).await, "");
    // The sweeps look at the last day again, instead of at nothing any more.
    let query = "SELECT count(*) FROM walks WHERE name IN ('placements', 'deliveries') AND up_to < now() - interval '23 hours'";
    assert_eq!(shown(&mut connection, query).await, "(2)");
}

#[tokio::test]
async fn profiles_that_retention_looks_at_again_become_work() {
    let bench = before("work of retention").await;
    let order = bench.stored(order(PartnerId::new(), 3)).await;
    let topups = topups(&order);
    let mut ids: Vec<&str> = topups.iter().map(TopupId::as_str).collect();
    // Ids of one second are in no order.
    ids.sort_unstable();
    let rows = "INSERT INTO retention_due (topup_id, at)
                SELECT topup, '2026-01-01'::timestamptz + make_interval(days => nth::int)
                FROM unnest($1::text[]) WITH ORDINALITY AS t (topup, nth)";
    let rows = sqlx::query(rows).bind(&ids[..2]);
    rows.execute(&bench.pool).await.unwrap();
    let shows = "SELECT topup_id, at FROM retention_due";
    let mut owner = bench.connection().await;
    let stored = shown(&mut owner, shows).await;
    upgrade(&bench).await;
    assert_eq!(shown(&mut owner, shows).await, stored);
    let work =
        "SELECT kind, provider, count(*), count(DISTINCT id), min(lane) FROM work GROUP BY 1, 2";
    let expected = format!("(erase,\"\",2,2,{})", ids[0]);
    assert_eq!(shown(&mut owner, work).await, expected);

    // What the notifier of the version before does with its rows.
    let mut notifier = role(&bench, "notifier").await;
    let insert = "INSERT INTO retention_due (topup_id, at)
                  SELECT topup, now() - interval '1 minute' FROM unnest($1::text[]) topup ON CONFLICT DO NOTHING";
    let insert = sqlx::query(insert).bind(&ids);
    insert.execute(&mut notifier).await.unwrap();
    let page =
        "SELECT topup_id FROM retention_due WHERE at <= now() ORDER BY at FOR UPDATE SKIP LOCKED";
    let page: Vec<String> = sqlx::query_scalar(page)
        .fetch_all(&mut notifier)
        .await
        .unwrap();
    assert_eq!(page, ids);
    let later = format!(
        "UPDATE retention_due due SET at = now() + interval '1 day' WHERE due.topup_id = '{}';
         DELETE FROM retention_due WHERE topup_id = ANY (ARRAY['{}'])",
        ids[1], ids[2]
    );
    execute(&mut notifier, &later).await;
    let work = "SELECT lane, at > now() FROM work";
    let expected = format!("({},f) ({},t)", ids[0], ids[1]);
    assert_eq!(shown(&mut owner, work).await, expected);
}
