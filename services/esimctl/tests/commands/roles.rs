//! `esimctl migrate --roles` on a server where the owner of the tables is no superuser.

use std::{os::unix::fs::PermissionsExt, path::Path};

use serde_json::json;
use sqlx::{Connection, PgConnection};
use testkit::postgres::PostgresServer;
use tokio::io::AsyncBufReadExt;

use crate::support::{ended as ended_of, esimctl, run};

async fn migrate(url: &str, roles: &Path) -> crate::support::Ended {
    let mut command = esimctl(&["migrate", "--json", "--roles", roles.to_str().unwrap()]);
    run(command.env("DATABASE_URL", url)).await
}

#[tokio::test]
async fn an_owner_that_is_no_superuser_creates_the_roles() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let server = PostgresServer::start(folder.path()).await.unwrap();
    let mut admin = PgConnection::connect(server.url()).await.unwrap();
    sqlx::raw_sql("CREATE ROLE owner LOGIN PASSWORD 'owner'")
        .execute(&mut admin)
        .await
        .unwrap();
    sqlx::raw_sql("CREATE DATABASE esim OWNER owner")
        .execute(&mut admin)
        .await
        .unwrap();
    let (_, address) = server.url().rsplit_once('@').unwrap();
    let address = address.replace("/postgres", "/esim");
    let owner = format!("postgres://owner:owner@{address}");

    let passwords = folder.path().join("passwords");
    std::fs::create_dir(&passwords).unwrap();
    let password = |role: &str, password: &str| {
        std::fs::write(
            passwords.join(format!("database-{role}")),
            format!("{password}\n"),
        )
        .unwrap();
    };
    for role in ["ingress", "provisioner", "notifier", "operator"] {
        password(role, "first");
    }
    // Without CREATEROLE the schema is migrated all the same, and the stages can use the owner's
    // URL.
    let without = migrate(&owner, &passwords).await;
    assert_eq!(without.json()["roles"], json!([]), "{without:?}");
    assert!(without.stderr.contains("CREATEROLE"), "{without:?}");
    // A folder from before the console existed is enough.
    assert!(
        without.stderr.contains("esim_console is left out"),
        "{without:?}"
    );
    password("console", "first");

    sqlx::raw_sql("ALTER ROLE owner CREATEROLE")
        .execute(&mut admin)
        .await
        .unwrap();
    let with = migrate(&owner, &passwords).await;
    let roles = pg::schema::ROLES.map(|role| role.name);
    assert_eq!(with.json()["roles"], json!(roles), "{with:?}");

    let as_ingress = |password: &str| format!("postgres://esim_ingress:{password}@{address}");
    let mut ingress = PgConnection::connect(&as_ingress("first")).await.unwrap();
    sqlx::query("SELECT secret_key FROM partners")
        .execute(&mut ingress)
        .await
        .unwrap();
    assert!(
        sqlx::query("SELECT erased_at FROM partners")
            .execute(&mut ingress)
            .await
            .is_err()
    );
    assert!(PgConnection::connect(&as_ingress("guessed")).await.is_err());

    password("ingress", "second");
    migrate(&owner, &passwords).await.json();
    assert!(PgConnection::connect(&as_ingress("first")).await.is_err());
    PgConnection::connect(&as_ingress("second")).await.unwrap();

    password("ingress", "with a blank");
    migrate(&owner, &passwords)
        .await
        .fails(1, "database-ingress");
}

/// In Kubernetes the operator of PostgreSQL creates the roles after the database.
#[tokio::test]
async fn the_migration_waits_for_roles_that_another_tool_creates() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let server = PostgresServer::start(folder.path()).await.unwrap();
    let mut admin = PgConnection::connect(server.url()).await.unwrap();
    for role in pg::schema::ROLES
        .iter()
        .filter(|role| role.of != "notifier")
    {
        let create = format!("CREATE ROLE {} LOGIN PASSWORD 'a'", role.name);
        sqlx::raw_sql(sqlx::AssertSqlSafe(create))
            .execute(&mut admin)
            .await
            .unwrap();
    }

    let mut command = esimctl(&["migrate", "--await-roles", "10ms"]);
    let ended = run(command.env("DATABASE_URL", server.url())).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(
        ended.stderr.contains("after 10ms: esim_notifier;"),
        "{ended:?}"
    );

    let mut command = esimctl(&["migrate", "--json", "--await-roles", "1m"]);
    let mut waiting = command.env("DATABASE_URL", server.url()).spawn().unwrap();
    let mut said = String::new();
    tokio::io::BufReader::new(waiting.stderr.take().unwrap())
        .read_line(&mut said)
        .await
        .unwrap();
    assert!(said.contains("waiting"), "{said}");
    sqlx::raw_sql("CREATE ROLE esim_notifier LOGIN PASSWORD 'a'")
        .execute(&mut admin)
        .await
        .unwrap();
    let roles = pg::schema::ROLES.map(|role| role.name);
    assert_eq!(ended_of(waiting).await.json()["roles"], json!(roles));
}
