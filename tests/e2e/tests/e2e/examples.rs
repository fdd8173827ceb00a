//! The partner guide's examples against the real service, in every language that is present, and
//! its numbers.

use crate::shop::{SOON, Shop, fresh};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use signing::{SecretKey, ed25519::PublicKey, webhook::Secret};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;
use testkit::stack::{Stack, Stage};
use testkit::{ports, process::output, wait, workspace};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::{net::TcpStream, process::Command};

/// The examples: file, a program that they need, whether they receive webhooks.
const EXAMPLES: [(&str, &str, bool); 5] = [
    ("esim.sh", "openssl", false),
    ("esim.py", "python3", true),
    ("esim.mjs", "node", true),
    ("esim.go", "go", true),
    ("esim.php", "php", true),
];

/// One partner's view of one example.
struct Example<'a> {
    file: &'a str,
    program: PathBuf,
    stack: &'a Stack,
    shop: &'a Shop,
}

impl Example<'_> {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        let partner = &self.shop.partner;
        command
            .args(arguments)
            .env("BASE_URL", &self.stack.base_url);
        command.env("NO_PROXY", "*").env("no_proxy", "*");
        command
            .env("ACCESS_KEY", &partner.access_key)
            .env("SECRET_KEY", &partner.secret_key);
        command
            .env("WEBHOOK_SECRET", &partner.webhook_secret)
            .kill_on_drop(true);
        command
    }

    async fn output(&self, arguments: &[&str]) -> Result<Output> {
        output(&mut self.command(arguments), Duration::from_mins(1)).await
    }

    /// The JSON that a successful command prints.
    async fn json(&self, arguments: &[&str]) -> Result<Value> {
        let output = self.output(arguments).await?;
        ensure!(
            output.status.success(),
            "{} {arguments:?}: {}",
            self.file,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Waits until the first attempt has failed, starts the receiver at `address`, and has the
    /// webhook sent again.
    async fn recovers(&self, address: &str, id: &str, topup_id: &str) -> Result<()> {
        let failed = async || {
            let path = format!("/api/v1/api_partner/topups/{topup_id}/deliveries");
            let deliveries = self.shop.client.get(&path).send().await?.json()?;
            Ok(deliveries["attempts"][0].is_object().then_some(()))
        };
        wait::until(SOON, "the first attempt", failed).await?;

        let (_, port) = address.split_once(':').context("a port")?;
        let mut receiver = self
            .command(&["receive", port])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut lines = BufReader::new(receiver.stdout.take().context("stdout")?).lines();
        let listens = async || Ok(TcpStream::connect(address).await.ok());
        wait::until(SOON, "the example's receiver", listens).await?;
        // A forged webhook is refused and not printed.
        let forged = testkit::http::client()?
            .post(format!("http://{address}/"))
            .body("{}");
        ensure!(
            forged.send().await?.status() == 401,
            "{}: forged",
            self.file
        );

        let redelivers = async || {
            let output = self.output(&["redeliver", topup_id]).await?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(
                output.status.success() || said.contains("HTTP status 429 redelivered_recently"),
                "{}: {said}",
                self.file
            );
            Ok(output.status.success().then_some(()))
        };
        wait::until(SOON, "a redelivery", redelivers).await?;
        let line = tokio::time::timeout(SOON, lines.next_line()).await??;
        ensure!(
            line == Some(format!("ready {id} {topup_id}")),
            "{}: {line:?}",
            self.file
        );
        // A further event is acknowledged, and is no eSIM.
        let path = "/api/v1/api_partner/webhook/test";
        let tested = self.shop.client.post("").path(path).send().await?.json()?;
        ensure!(tested["state"] == "delivered", "{}: {tested}", self.file);
        let line = tokio::time::timeout(SOON, lines.next_line()).await??;
        let event = tested["event_id"].as_str().unwrap_or_default();
        ensure!(
            line == Some(format!("event webhook.test {event}")),
            "{}: {line:?}",
            self.file
        );
        Ok(())
    }
}

pub fn is_present(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// The program of an example. Go's is built into `folder`: `go run` would outlive its end.
async fn prepared(file: &str, folder: &Path) -> PathBuf {
    let source = workspace().join("docs/examples").join(file);
    if file != "esim.go" {
        return source;
    }
    let built = folder.join("esim-go");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&built).arg(source);
    // Go needs a folder for its cache.
    build
        .env("GOCACHE", folder.join("go-cache"))
        .env("GOPROXY", "off");
    let output = build.output().await.unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    built
}

/// Each example orders before its receiver runs, so the first webhook is lost; it is recovered.
#[tokio::test]
async fn the_examples_order_look_up_and_recover_a_lost_webhook() {
    let stack = Stack::builder()
        .env(Stage::Ingress, "REDELIVER_INTERVAL", "1s")
        // No retry in the test's time.
        .env(Stage::Notifier, "RETRY_SCHEDULE", "1h")
        .start()
        .await
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let ready = stack.option("ready").unwrap();
    let mut run = 0;
    for (file, program, receives) in EXAMPLES {
        if !is_present(program) {
            eprintln!("{program} is not installed: {file} is NOT run");
            continue;
        }
        run += 1;
        let shop = Shop::open(&stack).await.unwrap();
        let example = Example {
            file,
            program: prepared(file, folder.path()).await,
            stack: &stack,
            shop: &shop,
        };
        let address = format!("127.0.0.1:{}", ports::free().unwrap());
        if receives {
            let url = format!("http://{address}/webhooks");
            assert_eq!(example.json(&["webhook", &url]).await.unwrap()["url"], url);
        }
        let id = fresh(&file.replace('.', "/"));
        let id = if receives { id } else { id.replace('/', "-") };
        let created = example.json(&["order", &id, ready, "1"]).await.unwrap();
        let topup_id = created["products"][0]["topup_id"].as_str().unwrap();
        let shown = async || {
            let order = example.json(&["show", &id]).await?;
            Ok((order["state"] == "ready").then_some(order))
        };
        let order = wait::until(Duration::from_mins(1), "the order to be ready", shown)
            .await
            .unwrap();
        assert_eq!(order["topups"][0]["esim"]["topup_id"], topup_id);
        if receives {
            example.recovers(&address, &id, topup_id).await.unwrap();
        }
        let options = example.json(&["options"]).await.unwrap();
        let offered = options["options"].as_array().unwrap();
        assert!(
            offered.iter().any(|option| option["option_id"] == ready),
            "{options}"
        );

        // A repeated order is not a failure: it is looked up. The shell client shows the code
        // instead.
        let again = example.output(&["order", &id, ready, "1"]).await.unwrap();
        if receives {
            let again: Value = serde_json::from_slice(&again.stdout).unwrap();
            assert_eq!(again["topups"][0]["topup_id"], topup_id, "{file}");
        } else {
            let said = String::from_utf8_lossy(&again.stderr).into_owned();
            assert_eq!(said, "HTTP status 422 external_order_id_taken\n");
        }
    }
    assert!(run > 0, "no example was run");
}

/// The lines of the guide's code block that follows a marker.
fn block<'a>(guide: &'a str, marker: &str) -> Vec<&'a str> {
    let (_, rest) = guide.split_once(marker).expect(marker);
    let (_, rest) = rest.split_once("```").expect("a code block");
    let (block, _) = rest.split_once("```").expect("its end");
    block.lines().skip(1).collect()
}

/// The value of a line `name: value` of a block.
fn value<'a>(block: &[&'a str], name: &str) -> &'a str {
    block
        .iter()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
        .expect(name)
}

#[test]
fn the_test_vectors_of_the_guide_and_the_reference_are_true() {
    let guide = std::fs::read_to_string(workspace().join("docs/partner-guide.md")).unwrap();
    let vector = block(&guide, "<!-- request vector -->");
    let secret = SecretKey::from_base64(value(&vector, "secret key")).unwrap();
    let [method, path, timestamp, access_key] =
        ["method", "path", "timestamp", "access key"].map(|name| value(&vector, name));
    let digest = signing::request::digest(value(&vector, "body").as_bytes());
    assert_eq!(value(&vector, "content sha256"), digest);
    let signature =
        signing::request::sign_whole(&secret, method, path, timestamp, access_key, &digest);
    assert_eq!(value(&vector, "signature"), signature);
    let signature = signing::request::sign(&secret, method, path, timestamp, access_key);
    assert_eq!(
        value(&vector, "signature without content sha256"),
        signature
    );

    let vector = block(&guide, "<!-- webhook vector -->");
    let secret = Secret::parse(value(&vector, "webhook secret")).unwrap();
    let timestamp: i64 = value(&vector, "webhook-timestamp").parse().unwrap();
    let signature = secret.sign(
        value(&vector, "webhook-id"),
        timestamp,
        value(&vector, "body").as_bytes(),
    );
    assert_eq!(value(&vector, "webhook-signature"), signature);

    let document = std::fs::read(workspace().join("docs/openapi.json")).unwrap();
    let document: Value = serde_json::from_slice(&document).unwrap();
    let groups = document["tags"].as_array().unwrap();
    let group = groups.iter().find(|group| group["name"] == "Webhook");
    let reference = group.unwrap()["description"].as_str().unwrap();
    let vector = block(reference, "<!-- public key vector -->");
    let key = PublicKey::parse(value(&vector, "public key")).unwrap();
    let timestamp = value(&vector, "webhook-timestamp").parse().unwrap();
    assert!(key.verify(
        value(&vector, "webhook-id"),
        timestamp,
        value(&vector, "body").as_bytes(),
        value(&vector, "webhook-signature"),
    ));
}

#[tokio::test]
async fn the_reference_names_every_sandbox_option_by_its_id() {
    let stack = Stack::start().await.unwrap();
    let url = format!("{}/partner-reference.md", stack.base_url);
    let answer = testkit::http::client().unwrap().get(url).send().await;
    let reference = answer.unwrap().text().await.unwrap();
    let options = stack.esimctl.options().await.unwrap();
    assert!(options.len() >= 12);
    for option in options {
        let row = format!("| `{}` | `{}` |", option.name, option.option_id);
        assert!(reference.contains(&row), "{row}");
    }
}
