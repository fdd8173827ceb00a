//! What the statements rely on is set by each session itself, whatever an administrator has set for
//! the database or for a role.

use domain::PartnerId;
use pg::{config::RELIED_ON, schema};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use store::orders;

use crate::bench::{Bench, config, execute, order, placement};
use crate::stolen::connect;

/// Each setting has its value although the database has another one, and an order goes its way.
#[tokio::test]
async fn a_session_sets_what_it_relies_on() {
    const FOREIGN: [(&str, &str); 13] = testkit::rows! {
        "search_path" => "evil";
        "row_security" => "off";
        "default_transaction_isolation" => "serializable";
        "default_transaction_read_only" => "on";
        "default_transaction_deferrable" => "on";
        "lock_timeout" => "1";
        "statement_timeout" => "1";
        "idle_in_transaction_session_timeout" => "1";
        "idle_session_timeout" => "1";
        "standard_conforming_strings" => "off";
        "transform_null_equals" => "on";
        // Those that sqlx sets.
        "TimeZone" => "Asia/Tokyo";
        "DateStyle" => "German, DMY";
    };
    let bench = Bench::new().await;
    let database: String = sqlx::query_scalar("SELECT current_database()")
        .fetch_one(&bench.pool)
        .await
        .unwrap();
    let foreign = FOREIGN
        .map(|(name, value)| format!(r#"ALTER DATABASE "{database}" SET {name} = '{value}'"#));
    bench.sql(&foreign.join(";")).await;
    let url = bench.database.url_of("ingress").unwrap();
    let server = config(&url).server;
    let mut session = PgConnection::connect_with(&server.options("a test").unwrap())
        .await
        .unwrap();
    for (name, foreign) in FOREIGN {
        let set: String = sqlx::query_scalar("SELECT current_setting($1)")
            .bind(name)
            .fetch_one(&mut session)
            .await
            .unwrap();
        let expected = RELIED_ON.iter().find(|(relied, _)| *relied == name);
        match expected {
            // PostgreSQL writes a comma and a blank between the parts of a path.
            Some((_, expected)) => assert_eq!(set.replace(", ", ","), *expected, "{name}"),
            None => assert_ne!(set, foreign, "{name}"),
        }
    }
    assert!(
        RELIED_ON
            .iter()
            .all(|(name, _)| FOREIGN.iter().any(|(foreign, _)| foreign == name))
    );
    let new = order(PartnerId::new(), 1);
    assert_eq!(orders::insert(&mut session, &[new]).await.unwrap(), [true]);
}

/// PostgreSQL looks for tables in a schema that is named like the role first, unless the session
/// says otherwise. A migrator would build a second system there.
#[tokio::test]
async fn a_schema_named_like_the_owner_is_no_trap() {
    let bench = Bench::empty().await;
    let options = config(bench.database.url())
        .server
        .options("a test")
        .unwrap();
    let mut owner = PgConnection::connect_with(&options).await.unwrap();
    let me: String = sqlx::query_scalar("SELECT current_user::text")
        .fetch_one(&mut owner)
        .await
        .unwrap();
    execute(&mut owner, &format!(r#"CREATE SCHEMA "{me}""#)).await;
    schema::migrate(&mut owner).await.unwrap();
    let tables =
        "SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relnamespace = to_regnamespace($1)";
    let count = async |connection: &mut PgConnection, schema: &str| {
        let query = sqlx::query_scalar(AssertSqlSafe(tables)).bind(format!("\"{schema}\""));
        let count: i64 = query.fetch_one(connection).await.unwrap();
        count
    };
    assert_eq!(count(&mut owner, &me).await, 0);
    assert!(count(&mut owner, "public").await > 20);
    assert_eq!(schema::check(&mut owner).await.unwrap(), schema::latest());
}

/// Row-level security without a policy hides every row, so a stored order would seem to be unknown.
#[tokio::test]
async fn row_level_security_that_somebody_switches_on_hides_no_row() {
    let bench = Bench::new().await;
    let stored = bench.stored(order(PartnerId::new(), 1)).await;
    bench.claim(&[placement(&stored)]).await;
    bench
        .sql(
            "DO $$ DECLARE t regclass; BEGIN
                 FOR t IN SELECT oid FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace LOOP
                     EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', t);
                 END LOOP;
             END $$",
        )
        .await;
    let mut ingress = connect(&bench, "ingress").await;
    let taken = orders::is_taken(&mut ingress, stored.partner_id, &stored.external_order_id);
    assert!(!taken.await.unwrap(), "it may still be refused");
    let status = orders::status(&mut ingress, stored.partner_id, &stored.external_order_id);
    assert!(status.await.unwrap().is_some());
    for table in ["placements", "topups"] {
        let count = format!("SELECT count(*) FROM {table}");
        let count: i64 = sqlx::query_scalar(AssertSqlSafe(count))
            .fetch_one(&mut ingress)
            .await
            .unwrap();
        assert_eq!(count, 1, "{table}");
    }
    let without: Vec<String> = sqlx::query_scalar(
        "SELECT relname::text FROM pg_class c
         WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
           AND NOT EXISTS (SELECT FROM pg_policy WHERE polrelid = c.oid)",
    )
    .fetch_all(&bench.pool)
    .await
    .unwrap();
    assert_eq!(
        without,
        Vec::<String>::new(),
        "a new table needs the policy all_rows"
    );
}
