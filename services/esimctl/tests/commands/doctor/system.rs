//! The system that the doctor looks at: a real PostgreSQL, a real NATS server with the users of
//! production, a name server, and files.

use std::{
    collections::BTreeMap,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use pipeline::{Nats, NatsConfig};
use serde_json::Value;
use sqlx::{Connection, PgConnection};
use testkit::{
    names::{NameServer, Zone},
    nats::NatsServer,
    postgres::PostgresServer,
};

use crate::support::{Ended, esimctl, run};

const ZONE: Zone = &[("hooks.example.com", &[[203, 0, 113, 7]])];
const STAGES: [&str; 3] = ["ingress", "provisioner", "notifier"];

/// A system without a fault. What the stages would store is stored by the test.
pub struct System {
    pub folder: tempfile::TempDir,
    pub postgres: PostgresServer,
    pub nats: NatsServer,
    pub names: NameServer,
    /// A superuser's connection to the database of the system.
    pub admin: PgConnection,
    pub settings: BTreeMap<String, String>,
}

impl System {
    pub async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
        let at = |name: &str| folder.path().join(name);
        let text = |name: &str| at(name).to_str().unwrap().to_owned();
        std::fs::create_dir(at("secrets")).unwrap();
        let shares = text("shares");
        let make = ["secrets", "create", &text("secrets"), "--into", &shares];
        run(&mut esimctl(&make)).await.text();

        let (postgres, admin) = start_postgres(folder.path()).await;
        let (_, address) = postgres.url().rsplit_once('@').unwrap();
        let address = address.replace("/postgres", "/esim");
        let nats = start_nats(folder.path()).await;
        let secret = |name: &str| {
            let text = std::fs::read_to_string(at("secrets").join(name)).unwrap();
            text.trim_end().to_owned()
        };
        let operator = format!(
            "postgres://esim_operator:{}@{address}",
            secret("database-operator")
        );
        let names = NameServer::start(ZONE).await.unwrap();
        let mut settings = BTreeMap::new();
        for (name, value) in [
            ("DATABASE_URL", operator),
            ("NATS_URL", nats.url().to_owned()),
            ("NATS_PASSWORD", secret("nats-operator")),
            (
                "MASTER_KEY_PARTNERS_FILE",
                text("secrets/master-partners.key"),
            ),
            (
                "MASTER_KEY_WEBHOOKS_FILE",
                text("secrets/master-webhooks.key"),
            ),
            (
                "MASTER_KEY_PROFILES_FILE",
                text("secrets/master-profiles.key"),
            ),
            ("WEBHOOK_RESOLVERS", names.address.to_string()),
        ] {
            settings.insert(name.to_owned(), value);
        }
        let mut system = Self {
            folder,
            postgres,
            nats,
            names,
            admin,
            settings,
        };
        system.make_streams().await;
        system.metrics(1, 1, 0.5);
        let mut create = esimctl(&[
            "partner",
            "create",
            "--name",
            "Acme",
            "--environment",
            "sandbox",
            "--webhook-url",
            "https://hooks.example.com/esim",
        ]);
        run(create.envs(&system.settings)).await.text();
        system
            .sql(
                "INSERT INTO providers (name) VALUES ('sandbox'), ('usimsa');
                  INSERT INTO options (option_id, name, provider, provider_option_id, environment)
                  VALUES (gen_random_uuid(), 'one', 'usimsa', 'one', 'live')",
            )
            .await;
        system
    }

    pub async fn sql(&mut self, statements: &str) {
        let done = sqlx::raw_sql(sqlx::AssertSqlSafe(statements)).execute(&mut self.admin);
        done.await
            .unwrap_or_else(|error| panic!("{statements}: {error}"));
    }

    /// The streams and their consumers, as the stages make them.
    pub async fn make_streams(&mut self) {
        let config = NatsConfig {
            nats_url: self.settings["NATS_URL"].clone().into(),
            access: pipeline::NatsAccess {
                nats_password: Some(self.settings["NATS_PASSWORD"].clone().into()),
                ..pipeline::NatsAccess::default()
            },
            stream_prefix: String::new(),
            stream_replicas: 1,
        };
        let nats = Nats::connect(&config, "operator").await.unwrap();
        nats.until_up().await;
        nats.ensure_streams().await.unwrap();
        let context = async_nats::jetstream::new(nats.client().clone());
        for stream in ["TOPUP_JOBS", "TOPUP_READY"] {
            let consumer = async_nats::jetstream::consumer::pull::Config {
                durable_name: Some("one".into()),
                ..Default::default()
            };
            context
                .create_consumer_on_stream(consumer, stream)
                .await
                .unwrap();
        }
    }

    /// Asks JetStream for something as the operator.
    pub async fn jetstream(&self, subject: &str, payload: &'static str) {
        let options = async_nats::ConnectOptions::with_user_and_password(
            "operator".into(),
            self.settings["NATS_PASSWORD"].clone(),
        );
        let client = options.connect(self.nats.url()).await.unwrap();
        client
            .request(subject.to_owned(), payload.into())
            .await
            .unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes the file of metrics: the ages of backup and drill in hours and days, and how much of
    /// the disk is free.
    pub fn metrics(&self, backup_hours: i64, drill_days: i64, free: f64) {
        let now = runtime::clock::now().unix_timestamp();
        let hours = |hours: i64| now - hours * 3600;
        let text = format!(
            "# TYPE esim_backup_timestamp_seconds gauge\nesim_backup_timestamp_seconds {}\n\
             esim_drill_timestamp_seconds {}\n\
             node_filesystem_avail_bytes{{mountpoint=\"/data\"}} {free}\n\
             node_filesystem_size_bytes{{mountpoint=\"/data\"}} 1\n",
            hours(backup_hours),
            hours(drill_days * 24)
        );
        std::fs::write(self.path("metrics.prom"), text).unwrap();
    }

    pub async fn doctor(&self, further: &[&str], settings: &[(&str, &str)]) -> Ended {
        let metrics = self.path("metrics.prom");
        let secrets = self.path("secrets");
        let mut arguments = vec!["doctor", "--metrics", metrics.to_str().unwrap()];
        arguments.extend(["--secrets", secrets.to_str().unwrap()]);
        arguments.extend(further);
        let mut command = esimctl(&arguments);
        command.envs(&self.settings);
        for (name, value) in settings {
            command.env(name, value);
        }
        run(&mut command).await
    }

    pub async fn says_nothing(&self) {
        let ended = self.doctor(&["--quiet"], &[]).await;
        assert_eq!(
            (ended.code, ended.stdout.as_str(), ended.stderr.as_str()),
            (Some(0), "", ""),
            "{ended:?}"
        );
    }

    /// Asserts that the doctor finds this and, except for what follows from it, nothing else.
    pub async fn finds(&self, settings: &[(&str, &str)], state: &str, check: &str, part: &str) {
        let ended = self.doctor(&["--json"], settings).await;
        let found: Value = serde_json::from_str(&ended.stdout)
            .unwrap_or_else(|error| panic!("{check}: {error}: {ended:?}"));
        let lines = found["lines"].as_array().unwrap();
        let bad: Vec<&Value> = lines
            .iter()
            .filter(|line| line["state"] != "fine")
            .collect();
        let matching = bad.iter().any(|line| {
            line["state"] == state
                && line["check"] == check
                && line["found"].as_str().unwrap().contains(part)
                && line["remedy"].is_string()
                && [
                    "docs/operations.md#",
                    "docs/providers.md#",
                    "docs/reference.md#",
                ]
                .iter()
                .any(|page| line["see"].as_str().unwrap().starts_with(page))
        });
        assert!(matching, "no {state} of {check} with {part:?} in {bad:#?}");
        let foreign: Vec<_> = bad.iter().filter(|line| line["check"] != check).collect();
        let follows = [
            // A missing role can't log in, and one that the doctor logs in as can't read.
            ("privileges", "logins"),
            ("role", "endpoints"),
        ];
        for line in foreign {
            let expected = follows.contains(&(check, line["check"].as_str().unwrap()));
            assert!(
                expected || check == "role" || check == "connection",
                "besides {check}: {line}"
            );
        }
        let is_any = |state| bad.iter().any(|line| line["state"] == state);
        let status = if is_any("fault") {
            2
        } else {
            i32::from(is_any("warning"))
        };
        assert_eq!(ended.code, Some(status), "{check}");
    }

    /// Plants a fault by SQL, and takes it away again.
    pub async fn by_sql(&mut self, plant: &str, undo: &str, found: (&str, &str, &str)) {
        self.sql(plant).await;
        let (state, check, part) = found;
        self.finds(&[], state, check, part).await;
        self.sql(undo).await;
    }

    /// Changes a file for as long as the doctor looks.
    pub async fn by_file(&self, name: &str, text: &str, found: (&str, &str, &str)) {
        let before = std::fs::read(self.path(name)).unwrap();
        std::fs::write(self.path(name), text).unwrap();
        let (state, check, part) = found;
        self.finds(&[], state, check, part).await;
        std::fs::write(self.path(name), before).unwrap();
    }
}

/// A migrated database with a role for each stage, whose owner is no superuser. Each stage seems to
/// run.
async fn start_postgres(folder: &Path) -> (PostgresServer, PgConnection) {
    let mut postgres = PostgresServer::start(folder).await.unwrap();
    let mut first = PgConnection::connect(postgres.url()).await.unwrap();
    for statement in [
        "CREATE ROLE esim LOGIN CREATEROLE PASSWORD 'owner'",
        "GRANT pg_read_all_stats TO esim WITH ADMIN OPTION",
        "CREATE DATABASE esim OWNER esim",
        "ALTER SYSTEM SET archive_mode = on",
        "ALTER SYSTEM SET archive_command = 'true'",
    ] {
        sqlx::raw_sql(statement).execute(&mut first).await.unwrap();
    }
    drop(first);
    postgres.stop_fast().await.unwrap();
    postgres.start_again().await.unwrap();
    let url = postgres.url().rsplit_once('/').unwrap().0.to_owned() + "/esim";
    let (_, address) = url.rsplit_once('@').unwrap();
    let owner = format!("postgres://esim:owner@{address}");
    let mut migrate = esimctl(&[
        "migrate",
        "--roles",
        folder.join("secrets").to_str().unwrap(),
    ]);
    run(migrate.env("DATABASE_URL", &owner)).await.text();
    let mut admin = PgConnection::connect(&url).await.unwrap();
    for stage in STAGES {
        let pulse = format!(
            "INSERT INTO pulses (instance, stage, number, timeline, replicated, at)
             VALUES (gen_random_uuid(), '{stage}', 1, 1, false, now() + interval '1 hour')"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(pulse))
            .execute(&mut admin)
            .await
            .unwrap();
    }
    (postgres, admin)
}

/// A server with the users of production.
async fn start_nats(folder: &Path) -> NatsServer {
    let conf = folder.join("nats");
    std::fs::create_dir(&conf).unwrap();
    std::fs::create_dir(conf.join("secrets")).unwrap();
    let passwords = std::fs::read(folder.join("shares/nats/passwords.conf")).unwrap();
    std::fs::write(conf.join("secrets/passwords.conf"), passwords).unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/nats/nats.conf");
    std::fs::copy(source, conf.join("nats.conf")).unwrap();
    let file = conf.join("nats.conf");
    NatsServer::start_with(&conf, Some(&file)).await.unwrap()
}
