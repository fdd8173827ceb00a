//! A `PostgreSQL` database of a test's own.

use crate::{cleanup, required};
use anyhow::{Context, Result};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use std::{env, sync::LazyLock};
use url::Url;
use uuid::Uuid;

/// Who has a role of its own in the database: the stages, the operator and the console.
const ROLES: [&str; 5] = ["ingress", "provisioner", "notifier", "operator", "console"];

/// A database with a random name. It is dropped together with this value, even if connections to it
/// are open.
#[derive(Debug)]
pub struct Database {
    server: Url,
    name: String,
    url: String,
    kept: bool,
}

impl Database {
    /// Creates a database on the server of `TEST_DATABASE_URL`. If `TEST_DATABASE_TEMPLATE` is set,
    /// it is a copy of that database, which saves the time of the migrations. The caller has to
    /// migrate it in any case: without a template it is empty, and a copy lacks the privileges on
    /// the database itself.
    pub async fn create() -> Result<Self> {
        let template = env::var("TEST_DATABASE_TEMPLATE").unwrap_or_else(|_| "template1".into());
        Self::create_at(&required("TEST_DATABASE_URL")?.parse()?, &template).await
    }

    /// Creates a database without tables on the server of `TEST_DATABASE_URL`.
    pub async fn empty() -> Result<Self> {
        Self::create_at(&required("TEST_DATABASE_URL")?.parse()?, "template1").await
    }

    /// Creates a database and the stages' roles on another server. The role in the URL must be
    /// allowed to do that.
    pub async fn create_on(server: &str) -> Result<Self> {
        let server: Url = server
            .parse()
            .context("the URL of the PostgreSQL server is not a URL")?;
        create_roles(&server).await?;
        Self::create_at(&server, "template1").await
    }

    async fn create_at(server: &Url, template: &str) -> Result<Self> {
        let server = server.clone();
        let name = format!("test_{}", Uuid::now_v7().simple());
        execute(
            &server,
            format!("CREATE DATABASE {name} TEMPLATE {template}"),
        )
        .await?;
        let mut url = server.clone();
        url.set_path(&name);
        Ok(Self {
            server,
            name,
            url: url.into(),
            kept: false,
        })
    }

    /// Takes a database that exists already. It is not dropped.
    pub fn existing(url: &str) -> Result<Self> {
        let server: Url = url
            .parse()
            .context("the URL of the database is not a URL")?;
        Ok(Self {
            name: server.path().trim_start_matches('/').to_owned(),
            server,
            url: url.to_owned(),
            kept: true,
        })
    }

    /// The value for `DATABASE_URL`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The value for the `DATABASE_URL` of a stage or of `operator`: this database with the role of
    /// that name.
    ///
    /// The role must exist. On the shared server its password is taken from `INGRESS_DATABASE_URL`,
    /// `PROVISIONER_DATABASE_URL` and so on.
    pub fn url_of(&self, stage: &str) -> Result<String> {
        let (name, password) = role(stage)?;
        let mut url: Url = self.url.parse()?;
        let set = url.set_username(&name);
        set.and_then(|()| url.set_password(Some(&password)))
            .map_err(|()| anyhow::anyhow!("{} takes no user", self.name))?;
        Ok(url.into())
    }

    /// Keeps the database for inspection when this is dropped.
    pub fn keep(&mut self) {
        self.kept = true;
    }

    /// A connection for reading what the services stored.
    pub async fn connect(&self) -> Result<PgConnection> {
        PgConnection::connect(&self.url)
            .await
            .with_context(|| format!("cannot connect to database {}", self.name))
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        let statement = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        cleanup::run(&self.name, execute(&self.server, statement));
    }
}

/// The name and the password of a stage's role. On the shared server the password is known; on a
/// test's own server it is random.
fn role(stage: &str) -> Result<(String, String)> {
    static PASSWORD: LazyLock<String> = LazyLock::new(|| Uuid::now_v7().simple().to_string());
    let Ok(known) = env::var(format!("{}_DATABASE_URL", stage.to_uppercase())) else {
        return Ok((format!("esim_{stage}"), PASSWORD.clone()));
    };
    let known: Url = known.parse()?;
    Ok((
        known.username().to_owned(),
        known.password().unwrap_or_default().to_owned(),
    ))
}

/// Creates the stages' roles on a server of a test's own, unless they exist already.
async fn create_roles(server: &Url) -> Result<()> {
    for stage in ROLES {
        let (name, password) = role(stage)?;
        let statement = format!(
            "DO $$ BEGIN CREATE ROLE {name} LOGIN PASSWORD '{password}';
             EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
        );
        execute(server, statement).await?;
    }
    Ok(())
}

/// Runs a statement. Its only variable parts are generated names and passwords, so nothing in it
/// has to be escaped.
async fn execute(server: &Url, statement: String) -> Result<()> {
    let failed = |what: &str| format!("PostgreSQL: {what}");
    let mut connection = PgConnection::connect(server.as_str())
        .await
        .with_context(|| failed("cannot connect"))?;
    let done = sqlx::raw_sql(AssertSqlSafe(statement.clone()))
        .execute(&mut connection)
        .await;
    done.with_context(|| failed(&statement))?;
    connection.close().await?;
    Ok(())
}
