//! Runs the real program on a database of the test's own, and stores there what the services would
//! store.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a helper that fails fails its test"
)]

use std::{process::Stdio, sync::LazyLock, time::Duration};

use domain::{
    DeliveryId, OptionId, OrderId, PartnerId, PlacementId, TopupId, TopupIds, endpoint::BlockPolicy,
};
use pg::PgConnection;
use serde_json::Value;
use store::deliveries::{self, AttemptResult, EndedAttempt};
use store::orders::{self, NewOrder, NewPlacement, NewTopup};
use testkit::database::Database;
use tokio::process::{Child, Command};
use tokio::{io::AsyncWriteExt, time::timeout};
use vault::{Purpose, Vault};

pub const MASTER_KEY: &str = "test:AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
/// The arguments that confirm a command in a script.
pub const CONFIRMED: [&str; 3] = ["--yes", "--reason", "a test"];
static TOPUP_IDS: LazyLock<TopupIds> = LazyLock::new(|| TopupIds::new([7; 32]));
const TIMEOUT: Duration = Duration::from_mins(1);

/// `esimctl` with an empty environment, so that the settings of the test's caller do not matter.
pub fn esimctl(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_esimctl"));
    command.args(arguments).env_clear().kill_on_drop(true);
    // Without a name no change is made.
    command.env("ESIMCTL_OPERATOR", "test");
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Splits a command line whose arguments have no blanks.
pub fn words(text: &str) -> Vec<&str> {
    text.split(' ').collect()
}

#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// The JSON on standard output.
    pub fn json(&self) -> Value {
        assert_eq!(self.code, Some(0), "{self:?}");
        serde_json::from_str(&self.stdout).unwrap()
    }

    /// The text on standard output.
    pub fn text(&self) -> &str {
        assert_eq!(self.code, Some(0), "{self:?}");
        &self.stdout
    }

    /// Asserts that the text on standard output has this part.
    #[track_caller]
    pub fn says(&self, part: &str) -> &Self {
        assert!(self.text().contains(part), "no {part:?} in {self:?}");
        self
    }

    /// Asserts that the run ended with this status and one error line, which has this part.
    #[track_caller]
    pub fn fails(&self, code: i32, part: &str) {
        assert!(self.line(code).contains(part), "no {part:?} in {self:?}");
    }

    /// Asserts that the run ended with this status and one error line, and returns that line.
    pub fn line(&self, code: i32) -> &str {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.stdout, "");
        assert_eq!(self.stderr.lines().count(), 1, "{self:?}");
        self.stderr.trim_end()
    }
}

/// Waits for a program started with [`esimctl`].
pub async fn ended(child: Child) -> Ended {
    let output = timeout(TIMEOUT, child.wait_with_output())
        .await
        .expect("esimctl hangs")
        .unwrap();
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs to the end with nothing on standard input.
pub async fn run(command: &mut Command) -> Ended {
    ended(command.stdin(Stdio::null()).spawn().unwrap()).await
}

/// A database, empty or migrated, and the program set up for it.
pub struct Operator {
    pub database: Database,
}

impl Operator {
    pub async fn on_empty_database() -> Self {
        Self {
            database: Database::empty().await.unwrap(),
        }
    }

    pub async fn new() -> Self {
        let operator = Self {
            database: Database::create().await.unwrap(),
        };
        operator.run(&["migrate"]).await.text();
        operator
    }

    fn database_url(&self, arguments: &[&str]) -> String {
        if testkit::esimctl::needs_owner(arguments) {
            self.database.url().to_owned()
        } else {
            self.database.url_of("operator").unwrap()
        }
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = esimctl(arguments);
        command
            .env("DATABASE_URL", self.database_url(arguments))
            .env("MASTER_KEY", MASTER_KEY);
        command
    }

    pub async fn run(&self, arguments: &[&str]) -> Ended {
        run(&mut self.command(arguments)).await
    }

    pub async fn json(&self, arguments: &[&str]) -> Value {
        self.run(&[arguments, &["--json"]].concat()).await.json()
    }

    /// Runs with this text on standard input, and asserts that the program reads all of it.
    pub async fn run_with_input(&self, arguments: &[&str], input: String) -> Ended {
        let mut child = self.command(arguments).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let written = tokio::spawn(async move { stdin.write_all(input.as_bytes()).await });
        let ended = ended(child).await;
        written
            .await
            .unwrap()
            .expect("standard input was closed before its end");
        ended
    }

    pub async fn create_partner(&self) -> Value {
        self.json(&[
            "partner",
            "create",
            "--name",
            "Acme",
            "--environment",
            "sandbox",
        ])
        .await
    }

    /// The recorded actions, newest first, without those of `esimctl partner`, which tests use to
    /// prepare.
    pub async fn actions(&self) -> Vec<Value> {
        let actions = self.json(&["action", "list"]).await;
        let mut actions: Vec<Value> = serde_json::from_value(actions).unwrap();
        actions.retain(|action| !crate::text(action, "command").starts_with("partner "));
        actions
    }

    /// A connection to the database, and a new order of this partner in it, whose unit is ready.
    pub async fn ready_order(
        &self,
        partner: &Value,
        external_order_id: &str,
    ) -> (PgConnection, Order) {
        let mut connection = self.database.connect().await.unwrap();
        let id = crate::text(partner, "partner_id").parse().unwrap();
        let order = store_order(&mut connection, id, external_order_id).await;
        crate::make_unit_ready(&mut connection, &order, 1).await;
        (connection, order)
    }
}

/// An order of one unit, as ingress stores it.
pub struct Order {
    pub id: OrderId,
    pub partner: PartnerId,
    pub placement: PlacementId,
    pub topup: TopupId,
    /// The delivery of the unit, once it is ready.
    pub delivery: DeliveryId,
}

pub async fn store_order(
    connection: &mut PgConnection,
    partner: PartnerId,
    external_order_id: &str,
) -> Order {
    let topup = TOPUP_IDS.next(runtime::clock::now());
    let order = Order {
        id: OrderId::new(),
        partner,
        placement: PlacementId::new(),
        topup,
        delivery: DeliveryId::new(),
    };
    let placement = NewPlacement {
        placement_id: order.placement,
        provider: "sandbox".to_owned(),
        lane: "ready".to_owned(),
        alternatives: Vec::new(),
        topups: vec![NewTopup::new(
            order.topup.clone(),
            0,
            OptionId::new(),
            "ready".to_owned(),
        )],
    };
    let new = NewOrder {
        order_id: order.id,
        ..NewOrder::new(partner, external_order_id.to_owned(), vec![placement])
    };
    assert_eq!(orders::insert(connection, &[new]).await.unwrap(), [true]);
    order
}

pub fn vault() -> Vault {
    Vault::parse(&MASTER_KEY.to_owned().into()).unwrap()
}

/// Records an attempt with the response 500. Without `retry_in` the delivery is exhausted.
pub async fn record(
    connection: &mut PgConnection,
    order: &Order,
    attempt: u32,
    retry_in: Option<Duration>,
) {
    let answer = vault().seal(
        Purpose::Response(order.delivery, attempt),
        b"no room\x1b[2J",
    );
    let attempted = EndedAttempt {
        id: order.delivery,
        endpoint_id: order.partner.first_endpoint(),
        is_event: false,
        leased: true,
        ended_attempts: attempt,
        schedule_start: 0,
        at: runtime::clock::now(),
        duration: Duration::from_millis(12),
        status: Some(500),
        class: "status_5xx",
        detail: None,
        proves: false,
        response_start: Some(answer.unwrap()),
        result: AttemptResult::Failed {
            error: "status".to_owned(),
            retry_in,
            retry_if_resent: retry_in,
            endpoint_failed: true,
        },
    };
    store_attempt(connection, attempted).await;
}

/// Records an attempt by a policy in which two failures block the endpoint.
pub async fn store_attempt(connection: &mut PgConnection, attempted: EndedAttempt) {
    let policy = BlockPolicy {
        failures: 2,
        first: Duration::from_mins(1),
        longest: Duration::from_mins(1),
    };
    deliveries::record(connection, &[attempted], &policy, 0)
        .await
        .unwrap();
}
