//! Migrations beside live traffic, and the check of the schema that every program makes at its
//! start.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use domain::PartnerId;
use pg::schema::{self, LockPatience, MigrationError, SchemaError};
use sqlx::SqlSafeStr;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use tokio::time::timeout;
use vault::Purpose;

use crate::bench::{Bench, NEW_KEY, VAULT, execute, order, vault};

#[tokio::test]
async fn a_schema_that_is_behind_names_the_command_that_helps() {
    let bench = Bench::empty().await;
    let error = accounts::start::wait(&bench.store, &VAULT)
        .await
        .unwrap_err();
    assert!(
        matches!(error, SchemaError::Behind { found: 0, needed } if needed == schema::latest())
    );
    assert!(error.to_string().contains("esimctl migrate"), "{error}");
}

#[tokio::test]
async fn several_may_migrate_at_once_and_again() {
    let bench = Bench::empty().await;
    let mut first = bench.connection().await;
    let mut second = bench.connection().await;
    let (one, other) = tokio::join!(schema::migrate(&mut first), schema::migrate(&mut second));
    one.unwrap();
    other.unwrap();
    schema::migrate(&mut first).await.unwrap();
    accounts::start::wait(&bench.store, &VAULT).await.unwrap();
}

/// The migrations of this version, followed by others.
fn with(newer: &[&'static str]) -> Migrator {
    let mut all: Vec<Migration> = schema::migrations().iter().cloned().collect();
    for (version, sql) in (schema::latest() + 1..).zip(newer) {
        let no_tx = sql.starts_with("-- no-transaction");
        all.push(Migration::new(
            version,
            "newer".into(),
            MigrationType::Simple,
            sql.into_sql_str(),
            no_tx,
        ));
    }
    Migrator::with_migrations(all)
}

const QUICK: LockPatience = LockPatience {
    lock_timeout: Duration::from_millis(100),
    give_up: Duration::from_mins(1),
};

async fn upgrade(bench: &Bench, newer: &[&'static str]) -> Result<i64, MigrationError> {
    schema::apply(&mut *bench.connection().await, &with(newer), QUICK, |_| {}).await
}

#[tokio::test]
async fn a_newer_schema_that_serves_this_version_is_fine() {
    let bench = Bench::new().await;
    let served = "-- serves: 1\nALTER TABLE orders ADD COLUMN newer text;";
    let newer = upgrade(&bench, &[served]).await.unwrap();
    assert_eq!(newer, schema::latest() + 1);
    accounts::start::wait(&bench.store, &VAULT).await.unwrap();
    assert_eq!(
        schema::migrate(&mut *bench.connection().await)
            .await
            .unwrap(),
        newer
    );
    bench.store(&[order(PartnerId::new(), 1)]).await;
}

#[tokio::test]
async fn a_newer_schema_that_does_not_serve_this_version_is_refused() {
    // It serves only newer programs; it has no `serves` line; a later one serves more than an
    // earlier one.
    for newer in [
        &["-- serves: 1000\nCREATE TABLE newer ();"][..],
        &["CREATE TABLE newer ();"],
        &[
            "CREATE TABLE newer ();",
            "-- serves: 1\nCREATE TABLE newest ();",
        ],
    ] {
        let bench = Bench::new().await;
        upgrade(&bench, newer).await.unwrap();
        let known = schema::latest();
        let error = accounts::start::wait(&bench.store, &VAULT)
            .await
            .unwrap_err();
        assert!(
            error.to_string().contains("deploy a newer version"),
            "{error}"
        );
        let newest = known + i64::try_from(newer.len()).unwrap();
        let is_ahead = |error: &SchemaError| {
            matches!(*error, SchemaError::Ahead { found, known: ours, serves }
                if found == newest && ours == known && serves > known)
        };
        assert!(is_ahead(&error), "{error}");
        let error = schema::migrate(&mut *bench.connection().await)
            .await
            .unwrap_err();
        assert!(
            matches!(&error, MigrationError::Schema(error) if is_ahead(error)),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_migration_that_was_changed_is_refused() {
    let bench = Bench::new().await;
    let newer = upgrade(&bench, &["-- serves: 1\nCREATE TABLE newer ();"])
        .await
        .unwrap();
    let error = upgrade(&bench, &["-- serves: 1\nCREATE TABLE other ();"])
        .await
        .unwrap_err();
    assert!(
        matches!(error, MigrationError::Changed(version) if version == newer),
        "{error}"
    );
}

/// Such a database has more migrations than this version, which must not send its operator to a
/// newer one.
#[tokio::test]
async fn a_database_from_before_the_baseline_is_refused_in_one_line() {
    let bench = Bench::new().await;
    let of_an_earlier_version =
        "UPDATE _sqlx_migrations SET checksum = 'another' WHERE version = 1;
         INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
         VALUES (68, 'of the past', true, '', 0)";
    bench.sql(of_an_earlier_version).await;
    let refused = accounts::start::wait(&bench.store, &VAULT).await;
    let error = refused.unwrap_err();
    assert!(matches!(error, SchemaError::BeforeBaseline), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("empty database in DATABASE_URL") && !text.contains('\n'),
        "{text}"
    );
    let refused = schema::migrate(&mut *bench.connection().await).await;
    let error = refused.unwrap_err();
    assert!(
        matches!(error, MigrationError::Schema(SchemaError::BeforeBaseline)),
        "{error}"
    );
}

/// Like `pg_dump`, which holds every table for hours. Queries would queue behind a waiting
/// migration.
#[tokio::test]
async fn orders_go_on_while_a_migration_waits_for_a_dump() {
    let bench = Bench::new().await;
    let mut dump = bench.connection().await;
    execute(&mut dump, "BEGIN; LOCK TABLE orders IN ACCESS SHARE MODE").await;
    let waits = std::sync::atomic::AtomicUsize::new(0);
    let migrator = with(&["-- serves: 1\nALTER TABLE orders ADD COLUMN newer text;"]);
    let mut connection = bench.connection().await;
    let migration = schema::apply(&mut connection, &migrator, QUICK, |wait| {
        assert_eq!(wait.version, Some(schema::latest() + 1));
        assert!(wait.oldest_transaction.is_some(), "{wait}");
        waits.fetch_add(1, Ordering::Relaxed);
    });
    let orders = async {
        let mut longest = Duration::ZERO;
        while waits.load(Ordering::Relaxed) < 3 {
            let began = Instant::now();
            let new = [order(PartnerId::new(), 1)];
            let stored = timeout(Duration::from_secs(5), bench.store(&new));
            stored.await.expect("orders queue behind the migration");
            longest = longest.max(began.elapsed());
        }
        execute(&mut dump, "COMMIT").await;
        longest
    };
    let (version, longest) = tokio::join!(migration, orders);
    assert_eq!(version.unwrap(), schema::latest() + 1);
    assert!(longest < Duration::from_secs(2), "{longest:?}");
}

#[tokio::test]
async fn a_migrator_that_gives_up_names_the_transaction_in_its_way() {
    let bench = Bench::new().await;
    let mut dump = bench.connection().await;
    let lock = "SET application_name = 'pg_dump'; BEGIN; LOCK TABLE orders IN ACCESS SHARE MODE";
    execute(&mut dump, lock).await;
    let patience = LockPatience {
        give_up: Duration::from_millis(500),
        ..QUICK
    };
    let migrator = with(&["-- serves: 1\nALTER TABLE orders ADD COLUMN newer text;"]);
    let error = schema::apply(&mut *bench.connection().await, &migrator, patience, |_| {})
        .await
        .unwrap_err();
    assert!(matches!(error, MigrationError::Locked { .. }), "{error}");
    assert!(error.to_string().contains("pg_dump (pid "), "{error}");
    accounts::start::wait(&bench.store, &VAULT).await.unwrap();
}

#[tokio::test]
async fn a_concurrent_index_waits_for_a_dump_and_blocks_no_order() {
    let bench = Bench::new().await;
    let mut dump = bench.connection().await;
    let lock =
        "BEGIN ISOLATION LEVEL REPEATABLE READ; LOCK TABLE orders IN ACCESS SHARE MODE; SELECT 1";
    execute(&mut dump, lock).await;
    let newer = [
        "-- no-transaction\n-- serves: 1\nCREATE INDEX CONCURRENTLY newer ON orders (created_at);",
    ];
    let build = upgrade(&bench, &newer);
    let orders = async {
        let building =
            "SELECT count(*) FROM pg_stat_progress_create_index WHERE phase LIKE 'waiting for%'";
        let count = async || {
            sqlx::query_scalar::<_, i64>(building)
                .fetch_one(&bench.pool)
                .await
        };
        while count().await.unwrap() == 0 {
            tokio::task::yield_now().await;
        }
        let new = [order(PartnerId::new(), 1)];
        timeout(Duration::from_secs(5), bench.store(&new))
            .await
            .expect("orders queue behind the build");
        execute(&mut dump, "COMMIT").await;
    };
    let (version, ()) = tokio::join!(build, orders);
    version.unwrap();
    accounts::start::wait(&bench.store, &VAULT).await.unwrap();
}

const INDEX: &str =
    "-- no-transaction\n-- serves: 1\nCREATE INDEX CONCURRENTLY newer ON orders (created_at);";

/// Begins a transaction that holds up the build of an index, as a dump does.
async fn dump(bench: &Bench) -> sqlx::PgConnection {
    let mut dump = bench.connection().await.detach();
    let begin = "SET application_name = 'pg_dump'; BEGIN ISOLATION LEVEL REPEATABLE READ;
                 LOCK TABLE orders IN ACCESS SHARE MODE; SELECT 1";
    execute(&mut dump, begin).await;
    dump
}

#[tokio::test]
async fn a_build_that_waits_for_too_long_is_given_up_and_the_next_run_finishes_it() {
    let bench = Bench::new().await;
    let mut dump = dump(&bench).await;
    let patience = LockPatience {
        give_up: Duration::from_secs(1),
        ..QUICK
    };
    let mut connection = bench.connection().await;
    let migrator = with(&[INDEX]);
    let build = schema::apply(&mut connection, &migrator, patience, |_| {});
    let given_up = timeout(Duration::from_secs(20), build);
    let error = given_up.await.expect("--give-up is ignored").unwrap_err();
    let text = error.to_string();
    for part in ["pg_dump (pid ", "open for ", "the next run drops it"] {
        assert!(text.contains(part), "{text}");
    }
    // The next run cannot drop the unfinished index while the transaction is open, and says so.
    let build = schema::apply(&mut connection, &migrator, patience, |_| {});
    let error = timeout(Duration::from_secs(20), build).await.unwrap();
    assert!(matches!(error, Err(MigrationError::Locked { .. })));
    execute(&mut dump, "COMMIT").await;
    upgrade(&bench, &[INDEX]).await.unwrap();
    let valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = 'newer'::regclass";
    assert!(
        sqlx::query_scalar::<_, bool>(valid)
            .fetch_one(&bench.pool)
            .await
            .unwrap()
    );
}

#[tokio::test]
async fn the_progress_of_a_build_names_the_session_that_it_waits_for() {
    let bench = Bench::new().await;
    let mut dump = dump(&bench).await;
    let mut connection = bench.connection().await;
    let mut observer = bench.connection().await;
    let pid = schema::pid(&mut connection).await.unwrap();
    assert_eq!(schema::index_build(&mut observer, pid).await.unwrap(), None);
    let migrator = with(&[INDEX]);
    let build = schema::apply(&mut connection, &migrator, QUICK, |_| {});
    let watch = async {
        let seen = loop {
            let seen = schema::index_build(&mut observer, pid).await.unwrap();
            // For a moment it may also wait for the session that looks.
            let seen = seen.map(|seen| seen.to_string());
            if let Some(seen) =
                seen.filter(|seen| seen.contains("pg_dump") && seen.contains("waiting for "))
            {
                break seen;
            }
            tokio::task::yield_now().await;
        };
        execute(&mut dump, "COMMIT").await;
        seen
    };
    let (version, seen) = timeout(Duration::from_mins(1), async { tokio::join!(build, watch) })
        .await
        .unwrap();
    version.unwrap();
    for part in [
        "waiting for ",
        "waits for pg_dump (pid ",
        "idle in transaction",
        "open for ",
    ] {
        assert!(seen.contains(part), "{seen}");
    }
}

#[tokio::test]
async fn an_index_whose_build_failed_is_built_anew() {
    let bench = Bench::new().await;
    bench.store(&[order(PartnerId::new(), 1)]).await;
    let newer = [
        "-- no-transaction\n-- serves: 1\nCREATE UNIQUE INDEX CONCURRENTLY newer ON orders ((order_id IS NULL));",
    ];
    bench.store(&[order(PartnerId::new(), 1)]).await;
    let error = upgrade(&bench, &newer).await.unwrap_err();
    assert!(matches!(error, MigrationError::Failed { .. }), "{error}");
    let valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = 'newer'::regclass";
    let is_valid = async || {
        sqlx::query_scalar::<_, bool>(valid)
            .fetch_one(&bench.pool)
            .await
    };
    assert!(!is_valid().await.unwrap());
    bench.sql("TRUNCATE orders").await;
    upgrade(&bench, &newer).await.unwrap();
    assert!(is_valid().await.unwrap());
}

#[tokio::test]
async fn another_master_key_stops_the_start() {
    let bench = Bench::new().await;
    let other = vault("test:AQECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=");
    accounts::start::wait(&bench.store, &other)
        .await
        .expect("nothing is stored yet");
    bench.partner(None).await;
    accounts::start::wait(&bench.store, &VAULT).await.unwrap();
    let error = accounts::start::wait(&bench.store, &other)
        .await
        .unwrap_err();
    assert!(matches!(error, SchemaError::MasterKey(_)), "{error}");
}

/// In the middle of a rotation, the newest partners' key is not the only one.
#[tokio::test]
async fn a_key_that_any_partner_needs_may_not_be_missing() {
    let bench = Bench::new().await;
    bench.partner(None).await;
    let old = bench.partner(None).await;
    let newer = vault(NEW_KEY);
    let id = PartnerId::new();
    let sealed = |purpose| newer.seal(purpose, &[7; 32]).unwrap();
    sqlx::query(
        "INSERT INTO partners (partner_id, name, environment, access_key, secret_key)
         VALUES ($1, 'newer', 'sandbox', 'ak_newer', $2)",
    )
    .bind(id.uuid())
    .bind(sealed(Purpose::SecretKey(id)))
    .execute(&bench.pool)
    .await
    .unwrap();
    sqlx::query(
        "UPDATE partner_endpoints SET secrets = ARRAY[$2::bytea], secret_ends = ARRAY[NULL::timestamptz]
         WHERE endpoint_id = $1",
    )
    .bind(id.uuid())
    .bind(sealed(Purpose::WebhookSecret(id)))
    .execute(&bench.pool)
    .await
    .unwrap();
    let error = accounts::start::wait(&bench.store, &newer)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("\"test\""), "{error}");
    let error = accounts::start::wait(&bench.store, &VAULT)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("\"second\""), "{error}");
    for sql in [
        "UPDATE partners SET secret_key = '\\x' WHERE partner_id::text <> $1",
        "UPDATE partner_endpoints SET secrets = ARRAY['\\x'::bytea] WHERE partner_id::text <> $1 AND secrets <> '{}'",
    ] {
        bench.set(sql, old).await;
    }
    accounts::start::wait(&bench.store, &VAULT)
        .await
        .expect("damaged rows are theirs alone");
}
