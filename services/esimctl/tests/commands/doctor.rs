//! `esimctl doctor` on a real PostgreSQL and a real NATS server: a healthy system, on which it says
//! nothing, and each fault planted alone and taken away again.

mod openid;
mod system;

use std::os::unix::fs::PermissionsExt;

use sqlx::{Connection, PgConnection};

use system::System;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_healthy_system_says_nothing_and_each_planted_fault_is_found() {
    let mut system = System::new().await;
    system.says_nothing().await;
    of_roles(&mut system).await;
    of_the_database(&mut system).await;
    of_work(&mut system).await;
    of_proofs(&mut system).await;
    system.says_nothing().await;
    of_settings(&system).await;
    of_nats(&mut system).await;
    of_backups(&system).await;
    openid::faults(&system).await;
    system.says_nothing().await;

    let text = system.doctor(&[], &[]).await;
    let last = text.text().trim_end().lines().last().unwrap().to_owned();
    assert!(last.ends_with(" fine, 0 warnings, 0 faults"), "{last}");
}

async fn of_roles(system: &mut System) {
    let found = |state, part| (state, "privileges", part);
    system
        .by_sql(
            "REVOKE SELECT ON options FROM esim_ingress",
            "GRANT SELECT ON options TO esim_ingress",
            found("fault", "esim_ingress lacks SELECT ON options"),
        )
        .await;
    system
        .by_sql(
            "REVOKE UPDATE (state) ON topups FROM esim_provisioner",
            "GRANT UPDATE (state) ON topups TO esim_provisioner",
            found("fault", "esim_provisioner lacks UPDATE (state) ON topups"),
        )
        .await;
    system
        .by_sql(
            "REVOKE EXECUTE ON FUNCTION refuse_order(uuid, boolean) FROM esim_ingress",
            "GRANT EXECUTE ON FUNCTION refuse_order(uuid, boolean) TO esim_ingress",
            found("fault", "EXECUTE ON refuse_order(uuid, boolean)"),
        )
        .await;
    system
        .by_sql(
            "ALTER ROLE esim_notifier SET search_path = evil",
            "ALTER ROLE esim_notifier RESET search_path",
            found(
                "warning",
                "esim_notifier has settings of its own (search_path=evil)",
            ),
        )
        .await;
    system
        .by_sql(
            "ALTER ROLE esim_notifier CREATEROLE",
            "ALTER ROLE esim_notifier NOCREATEROLE",
            found("warning", "esim_notifier may do the work of all roles"),
        )
        .await;
    system
        .by_sql(
            "ALTER ROLE esim_notifier NOLOGIN",
            "ALTER ROLE esim_notifier LOGIN",
            found("fault", "esim_notifier may not log in"),
        )
        .await;
    system
        .by_sql(
            "ALTER ROLE esim_notifier RENAME TO gone",
            "ALTER ROLE gone RENAME TO esim_notifier",
            found("fault", "do not exist"),
        )
        .await;
    system
        .by_file(
            "secrets/database-ingress",
            "guessed\n",
            ("fault", "logins", "refuses esim_ingress"),
        )
        .await;
}

async fn of_the_database(system: &mut System) {
    system
        .by_sql(
            "CREATE TABLE kept AS SELECT * FROM _sqlx_migrations ORDER BY version DESC LIMIT 1;
             DELETE FROM _sqlx_migrations WHERE version = (SELECT version FROM kept)",
            "INSERT INTO _sqlx_migrations SELECT * FROM kept; DROP TABLE kept",
            ("fault", "schema", "esimctl migrate"),
        )
        .await;
    // A clock that differs cannot be planted: each session sets its `search_path`, so no schema of
    // somebody else stands for `clock_timestamp`. `openid` has the same line for another server.
    for (setting, value, found) in [
        ("fsync", "off", ("fault", "durability", "fsync")),
        (
            "synchronous_commit",
            "off",
            ("fault", "durability", "synchronous_commit"),
        ),
        (
            "synchronous_standby_names",
            "'gone'",
            ("fault", "standbys", "none streams"),
        ),
    ] {
        // Nothing here may wait for the standby that does not exist.
        system.sql("SET synchronous_commit = local").await;
        let before = current(&mut system.admin, setting).await;
        system
            .sql(&format!("ALTER SYSTEM SET {setting} = {value}"))
            .await;
        reload(system, setting, Some(&before)).await;
        system.finds(&[], found.0, found.1, found.2).await;
        system.sql(&format!("ALTER SYSTEM RESET {setting}")).await;
        reload(system, setting, None).await;
    }
    system
        .by_sql(
            "CREATE TABLE broken (a int); CREATE INDEX broken_a ON broken (a);
             UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'broken_a'::regclass",
            "DROP TABLE broken",
            ("warning", "indexes", "broken_a"),
        )
        .await;
    system
        .by_sql(
            // Since PostgreSQL 16 only who has granted it takes it away.
            "SET ROLE esim; REVOKE pg_read_all_stats FROM esim_operator; RESET ROLE",
            "SET ROLE esim; GRANT pg_read_all_stats TO esim_operator; RESET ROLE",
            ("warning", "statistics", "cannot see standbys"),
        )
        .await;
    let down = [(
        "DATABASE_URL",
        "postgres://esim_operator:hush@127.0.0.1:1/esim",
    )];
    system
        .finds(&down, "fault", "connection", "cannot be reached")
        .await;
}

/// The value of a setting in a new session, which sees the server's configuration.
async fn current(admin: &mut PgConnection, setting: &str) -> String {
    let query = format!("SELECT reset_val FROM pg_settings WHERE name = '{setting}'");
    let query = sqlx::query_scalar(sqlx::AssertSqlSafe(query));
    query.fetch_one(admin).await.unwrap()
}

/// Makes the server read its configuration, and waits until the setting has changed from `before`,
/// or has its default again.
async fn reload(system: &mut System, setting: &str, before: Option<&str>) {
    system.sql("SELECT pg_reload_conf()").await;
    let url = system.postgres.url().to_owned();
    let patience = std::time::Duration::from_secs(20);
    testkit::wait::until(patience, "the new setting", async || {
        let mut fresh = PgConnection::connect(&url).await?;
        let now = current(&mut fresh, setting).await;
        let query = format!("SELECT boot_val FROM pg_settings WHERE name = '{setting}'");
        let default: Option<String> = sqlx::query_scalar(sqlx::AssertSqlSafe(query))
            .fetch_one(&mut fresh)
            .await?;
        let done = match before {
            Some(before) => now != before,
            None => Some(now) == default,
        };
        Ok(done.then_some(()))
    })
    .await
    .unwrap();
}

async fn of_proofs(system: &mut System) {
    for (same_again, proved, ended, part) in [
        (
            true,
            "100 days",
            "now()",
            "more than a quarter of a year ago",
        ),
        (
            false,
            "1 hour",
            "now()",
            "a repeat was not the same purchase",
        ),
        (true, "1 hour", "NULL", "1 purchase of a proof since"),
    ] {
        let proof = format!(
            "INSERT INTO provider_proofs (purchase_id, provider, account, provider_option_id, units, recorded_at,
                 same_again, same_for_s, proved_at, ended_at)
             VALUES (gen_random_uuid(), 'esim-access', '0123456789abcdef', 'x', 1, now() - interval '2 days',
                 {same_again}, 60, now() - interval '{proved}', {ended})"
        );
        system
            .by_sql(
                &proof,
                "DELETE FROM provider_proofs",
                ("warning", "proofs", part),
            )
            .await;
    }
}

async fn of_work(system: &mut System) {
    system
        .by_sql(
            "INSERT INTO accounts (partner_id, currency, posted) SELECT partner_id, 'EUR', 1 FROM partners",
            "DELETE FROM accounts",
            (
                "warning",
                "accounts",
                "such as: Acme in EUR: the balance is 1, and the entries add up to 0",
            ),
        )
        .await;
    system
        .by_sql(
            "DELETE FROM pulses WHERE stage = 'notifier'",
            "INSERT INTO pulses (instance, stage, number, timeline, replicated, at)
             VALUES (gen_random_uuid(), 'notifier', 1, 1, false, now() + interval '1 hour')",
            ("fault", "stages", "notifier: no process"),
        )
        .await;
    // What ends by itself needs somebody once it should have ended.
    for (minutes, breaker, endpoint) in [(1, "mends", "mends"), (60, "fault", "warning")] {
        let open = format!(
            "UPDATE providers SET open_until = now() + interval '1 hour', reason = 'planted', openings = 1,
                 failing_since = now() - interval '{minutes} minutes' WHERE name = 'usimsa'"
        );
        let closed = "UPDATE providers SET open_until = NULL, failing_since = NULL";
        let found = "buying at usimsa has stopped: planted";
        system
            .by_sql(&open, closed, (breaker, "breakers", found))
            .await;
        let block = format!(
            "UPDATE partner_endpoints SET blocked_until = now() + interval '1 hour',
                 failing_since = now() - interval '{minutes} minutes'"
        );
        let open = "UPDATE partner_endpoints SET blocked_until = NULL, failing_since = NULL";
        let found = "of Acme at hooks.example.com is blocked";
        system
            .by_sql(&block, open, (endpoint, "endpoints", found))
            .await;
    }
    let row = |kind: &str, provider: &str, ago: &str| {
        format!(
            "INSERT INTO work (id, kind, provider, lane, partner_id, at)
             SELECT gen_random_uuid(), '{kind}', '{provider}', '', partner_id, now() - interval '{ago}' FROM partners"
        )
    };
    for (kind, provider, ago, found) in [
        (
            "buy",
            "usimsa",
            "1 hour",
            ("fault", "due placements", "usimsa: 1 wait to be bought"),
        ),
        (
            "buy",
            "usimsa",
            "2 minutes",
            ("warning", "due placements", "usimsa"),
        ),
        (
            "deliver",
            "",
            "1 hour",
            ("warning", "due webhooks", "sandbox partners"),
        ),
    ] {
        system
            .by_sql(&row(kind, provider, ago), "DELETE FROM work", found)
            .await;
    }
    for (state, check, part) in [
        ("parked", "parked", "1 purchase at usimsa is on hold"),
        (
            "exhausted",
            "exhausted webhooks",
            "1 webhook to the endpoint of Acme",
        ),
    ] {
        let provider = if state == "parked" { "usimsa" } else { "" };
        let plant = format!(
            "INSERT INTO held (id, state, provider, partner_id)
             SELECT gen_random_uuid(), '{state}', '{provider}', partner_id FROM partners"
        );
        system
            .by_sql(&plant, "DELETE FROM held", ("warning", check, part))
            .await;
    }
    system
        .by_sql(
            "INSERT INTO work (id, kind, provider, lane, partner_id, at)
             VALUES (gen_random_uuid(), 'erase', '', 'tp_1', gen_random_uuid(), now() - interval '3 days')",
            "DELETE FROM work WHERE kind = 'erase'",
            ("warning", "retention", "past their term"),
        )
        .await;
}

async fn of_settings(system: &System) {
    let stage = std::fs::read_to_string(system.path("secrets/database-ingress")).unwrap();
    let address = system.settings["DATABASE_URL"]
        .rsplit_once('@')
        .unwrap()
        .1
        .to_owned();
    let as_ingress = format!("postgres://esim_ingress:{}@{address}", stage.trim_end());
    let superuser = system.postgres.url().rsplit_once('/').unwrap().0.to_owned() + "/esim";
    let other = "first:AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=";
    let swapped = system.path("secrets/master-webhooks.key");
    for (settings, state, check, part) in [
        (
            vec![("DATABASE_URL", as_ingress.as_str())],
            "fault",
            "role",
            "the role of a stage",
        ),
        (
            vec![("DATABASE_URL", superuser.as_str())],
            "warning",
            "role",
            "a superuser",
        ),
        (
            vec![("REQUIRE_SYNCHRONOUS", "true")],
            "fault",
            "synchronous",
            "no standby",
        ),
        (
            vec![
                ("MASTER_KEY_PARTNERS_FILE", ""),
                ("MASTER_KEY_PARTNERS", other),
            ],
            "fault",
            "master keys",
            "partners do not open",
        ),
        (
            vec![("MASTER_KEY_PARTNERS_FILE", swapped.to_str().unwrap())],
            "fault",
            "master keys",
            "partners do not open",
        ),
        (
            vec![("WEBHOOK_RESOLVERS", "127.0.0.1:9")],
            "fault",
            "names",
            "hooks.example.com",
        ),
    ] {
        system.finds(&settings, state, check, part).await;
    }
    assert_eq!(system.names.unanswered(), 0);

    let key = system.path("secrets/master-profiles.key");
    let mode =
        |mode| std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(0o644);
    system
        .finds(&[], "warning", "key files", "read by everybody")
        .await;
    mode(0o600);

    // Without a setting its checks are missing, which is no silence, unless that is wanted.
    let ended = system.doctor(&["--quiet"], &[("NATS_URL", "")]).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stdout.contains("NATS_URL is not set"), "{ended:?}");
    let ended = system
        .doctor(&["--quiet", "--without", "nats"], &[("NATS_URL", "")])
        .await;
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (Some(0), ""),
        "{ended:?}"
    );
}

async fn of_nats(system: &mut System) {
    for (settings, state, check, part) in [
        (
            vec![("NATS_PASSWORD", "guessed")],
            "fault",
            "nats",
            "refuses the user operator",
        ),
        (
            vec![("NATS_URL", "nats://127.0.0.1:1")],
            "warning",
            "nats",
            "cannot be reached",
        ),
        (
            vec![("STREAM_REPLICAS", "3")],
            "warning",
            "streams",
            "STREAM_REPLICAS is 3",
        ),
    ] {
        system.finds(&settings, state, check, part).await;
    }
    system
        .by_file(
            "secrets/nats-notifier",
            "guessed\n",
            ("fault", "nats", "refuses the user notifier"),
        )
        .await;
    system
        .jetstream("topup.dead.job", "what nobody can read")
        .await;
    system
        .finds(&[], "warning", "dead messages", "1 message")
        .await;
    system
        .jetstream("$JS.API.STREAM.PURGE.TOPUP_DEAD", "")
        .await;
    system
        .jetstream("$JS.API.CONSUMER.DELETE.TOPUP_JOBS.one", "")
        .await;
    system
        .finds(&[], "warning", "consumers", "TOPUP_JOBS")
        .await;
    system.make_streams().await;
    system
        .jetstream("$JS.API.STREAM.DELETE.TOPUP_READY", "")
        .await;
    system
        .finds(&[], "warning", "streams", "TOPUP_READY does not exist")
        .await;
    system.make_streams().await;
}

async fn of_backups(system: &System) {
    for (backup, drill, free, state, check, part) in [
        (30, 1, 0.5, "warning", "backup", "30 hours"),
        (100, 1, 0.5, "warning", "backup", "100 hours"),
        (1, 40, 0.5, "warning", "drill", "40 days"),
        (1, 1, 0.15, "warning", "disk", "15 %"),
        (1, 1, 0.05, "fault", "disk", "5 %"),
    ] {
        system.metrics(backup, drill, free);
        system.finds(&[], state, check, part).await;
    }
    system.metrics(1, 1, 0.5);
    let text = std::fs::read_to_string(system.path("metrics.prom")).unwrap();
    for (name, state, check, part) in [
        (
            "esim_backup",
            "warning",
            "backup",
            "no file tells of a base backup",
        ),
        (
            "esim_drill",
            "warning",
            "drill",
            "no file tells of a restore",
        ),
    ] {
        let without: Vec<&str> = text
            .lines()
            .filter(|line| !line.starts_with(name))
            .collect();
        system
            .by_file("metrics.prom", &without.join("\n"), (state, check, part))
            .await;
    }
}
