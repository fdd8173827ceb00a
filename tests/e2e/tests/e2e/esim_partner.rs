//! The partners' command line against the real service, and the endpoint that `listen` uses.

mod listening;
mod mcp;

use crate::examples::is_present;
use crate::shop::{PATH, SOON, Shop, fresh, open};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{net::SocketAddr, os::unix::fs::PermissionsExt, path::PathBuf, time::Duration};
use tempfile::TempDir;
use testkit::client::{Answer, Client};
use testkit::receiver::{self, Receiver};
use testkit::stack::{Stack, Stage};
use testkit::{bin_dir, esimctl::Partner, ports, process::output, wait, workspace};
use time::format_description::well_known::Rfc3339;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, ChildStderr, Command};

const LISTEN: &str = "/api/v1/api_partner/webhook/listen";
/// The example receivers: file, and the program that runs it.
const RECEIVERS: [(&str, &str); 2] = [("esim.py", "python3"), ("esim.mjs", "node")];

/// `esim-partner` with a home of its own, in which the partner has logged in.
pub struct Tool {
    home: TempDir,
}

impl Tool {
    pub async fn login(base_url: &str, partner: &Partner) -> Result<Self> {
        let tool = Self {
            home: tempfile::tempdir()?,
        };
        let keys = json!({"access_key": partner.access_key, "secret_key": partner.secret_key,
            "webhook_secret": partner.webhook_secret});
        let mut login = tool.command(&["login", "--from", "-", "--base-url", base_url]);
        login
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut login = login.spawn()?;
        let mut input = login.stdin.take().context("stdin")?;
        input.write_all(keys.to_string().as_bytes()).await?;
        drop(input);
        let output = tokio::time::timeout(SOON, login.wait_with_output()).await??;
        ensure!(
            output.status.success(),
            "login: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let shown = String::from_utf8(output.stdout)? + &String::from_utf8(output.stderr)?;
        ensure!(!shown.contains(&partner.secret_key), "login shows a secret");
        ensure!(
            !shown.contains(&partner.webhook_secret),
            "login shows a secret"
        );
        Ok(tool)
    }

    fn keys(&self) -> PathBuf {
        self.home.path().join(".config/esim-partner/default.env")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(bin_dir().join("esim-partner"));
        command
            .args(arguments)
            .env_clear()
            .env("HOME", self.home.path());
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    pub async fn run(&self, arguments: &[&str]) -> Result<Output> {
        let output = output(&mut self.command(arguments), Duration::from_mins(1)).await;
        output.with_context(|| format!("{arguments:?}"))
    }

    /// The standard output of a successful command.
    async fn text(&self, arguments: &[&str]) -> Result<String> {
        let output = self.run(arguments).await?;
        ensure!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The standard error of a command that fails.
    pub async fn failure(&self, arguments: &[&str]) -> Result<String> {
        let output = self.run(arguments).await?;
        ensure!(!output.status.success(), "{arguments:?} succeeded");
        Ok(String::from_utf8(output.stderr)?)
    }

    pub async fn json(&self, arguments: &[&str]) -> Result<Value> {
        Ok(serde_json::from_str(&self.text(arguments).await?)?)
    }

    /// Starts `listen`, and waits until it has begun.
    async fn listen(&self, url: &str, count: &str) -> Result<(Child, BufReader<ChildStderr>)> {
        let arguments = ["listen", "--forward-to", url, "--count", count];
        let mut listening = self
            .command(&arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut errors = BufReader::new(listening.stderr.take().context("stderr")?);
        let mut line = String::new();
        tokio::time::timeout(SOON, errors.read_line(&mut line)).await??;
        ensure!(line.starts_with("Forwarding webhooks to "), "{line}");
        Ok((listening, errors))
    }
}

#[tokio::test]
async fn keys_are_checked_before_they_are_stored_for_the_user_alone() {
    let stack = Stack::start().await.unwrap();
    let partner = stack.create_partner("sandbox", None).await.unwrap();
    let tool = Tool::login(&stack.base_url, &partner).await.unwrap();
    assert_eq!(
        std::fs::metadata(tool.keys()).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let stored = std::fs::read_to_string(tool.keys()).unwrap();

    // Wrong keys change nothing.
    let file = tool.home.path().join("wrong.env");
    let lines = format!(
        "BASE_URL={}\nACCESS_KEY={}\nSECRET_KEY=d3Jvbmc=\n",
        stack.base_url, partner.access_key
    );
    std::fs::write(&file, lines).unwrap();
    let path = file.display().to_string();
    let shown = tool.failure(&["login", "--from", &path]).await.unwrap();
    assert!(shown.contains("signature_invalid"), "{shown}");
    assert_eq!(std::fs::read_to_string(tool.keys()).unwrap(), stored);
    // Without a terminal there is no prompt. The error names a missing profile.
    tool.failure(&["login"]).await.unwrap();
    let shown = tool
        .failure(&["--profile", "live", "options"])
        .await
        .unwrap();
    assert!(shown.contains("--profile live login"), "{shown}");
    // A file that others can read works, with a warning.
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    std::fs::write(&file, stored).unwrap();
    let options = tool.run(&["--keys", &path, "options"]).await.unwrap();
    let shown = String::from_utf8(options.stderr).unwrap();
    assert!(
        options.status.success() && shown.contains("chmod 600"),
        "{shown}"
    );
}

/// A server before ingress that takes the first request, passes it on, and loses the response.
async fn loses_the_first_response(ingress: SocketAddr) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let requests = Arc::new(AtomicUsize::new(0));
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let first = requests.fetch_add(1, Ordering::SeqCst) == 0;
            tokio::spawn(async move {
                let mut upstream = TcpStream::connect(ingress).await?;
                if !first {
                    return tokio::io::copy_bidirectional(&mut client, &mut upstream)
                        .await
                        .map(|_| ());
                }
                let mut from = client.split();
                let mut to = upstream.split();
                let mut answer = [0; 1024];
                tokio::select! {
                    _ = tokio::io::copy(&mut from.0, &mut to.1) => {}
                    _ = to.0.read(&mut answer) => {}
                }
                Ok(())
            });
        }
    });
    Ok(address)
}

#[tokio::test]
async fn an_order_whose_answer_was_lost_is_a_success() {
    let stack = Stack::start().await.unwrap();
    let partner = stack.create_partner("sandbox", None).await.unwrap();
    let ready = stack.option("ready").unwrap();
    let tool = Tool::login(&stack.base_url, &partner).await.unwrap();
    let ingress = stack
        .base_url
        .strip_prefix("http://")
        .unwrap()
        .parse()
        .unwrap();
    let lossy = loses_the_first_response(ingress).await.unwrap();
    let keys = std::fs::read_to_string(tool.keys()).unwrap();
    let keys = keys.replace(&stack.base_url, &format!("http://{lossy}"));
    let file = tool.home.path().join("lossy.env");
    std::fs::write(&file, keys).unwrap();
    let file = file.display().to_string();

    let id = fresh("lost");
    let ordered = tool
        .run(&["--keys", &file, "order", &id, ready])
        .await
        .unwrap();
    let said = String::from_utf8(ordered.stderr).unwrap();
    assert!(ordered.status.success(), "{said}");
    assert!(
        said.contains("no answer") && said.contains("not bought again"),
        "{said}"
    );
    let order: Value = serde_json::from_slice(&ordered.stdout).unwrap();
    assert_eq!(order["products"][0]["option_id"], json!(ready), "{order}");
    // Another order with the same id is a failure.
    let said = tool
        .failure(&["order", &id, ready, "--qty", "2"])
        .await
        .unwrap();
    assert!(
        said.contains("other units") && said.contains("external_order_id_taken"),
        "{said}"
    );
    // An option's name is no id, and the command knows the id of the name.
    let said = tool.failure(&["order", &fresh("name"), "ready"]).await;
    let said = said.unwrap();
    let hint = format!("the option's id is {ready}");
    assert!(
        said.contains("option_not_found") && said.contains(&hint),
        "{said}"
    );
    let bought = async || Ok(Some(stack.ledger().await?).filter(|ledger| ledger.units == 1));
    assert_eq!(wait::soon("the purchase", bought).await.purchases, 1);
}

#[tokio::test]
async fn outcomes_are_triggered_in_the_sandbox_only_and_logged() {
    let (stack, shop) = open().await;
    testkit::shop::verdicts_come(&stack, &shop.client)
        .await
        .unwrap();
    shop.receiver.fail_first(PATH, 500);
    let tool = Tool::login(&stack.base_url, &shop.partner).await.unwrap();
    let listed = tool.text(&["trigger"]).await.unwrap();
    for name in ["ready", "refused", "never-ready", "rate-limited"] {
        let line = listed.lines().find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("{name} is not listed: {listed}"));
        let option = stack.option(name).unwrap();
        let (_, follows) = line.split_once(option).expect("the option's id");
        assert!(!follows.trim().is_empty(), "{line}");
    }
    // A reader that leaves, such as `head`, is no failure.
    let mut command = tool.command(&["trigger"]);
    let mut unread = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(unread.stdout.take());
    let unread = unread.wait_with_output().await.unwrap();
    assert!(
        unread.status.success() && unread.stderr.is_empty(),
        "{unread:?}"
    );

    let refused = tool.json(&["trigger", "refused"]).await.unwrap();
    let error = refused["errors"][0].as_str().unwrap();
    assert!(error.starts_with("eSIM Request failed"), "{error}");
    tool.failure(&["trigger", "nothing"]).await.unwrap();

    let ordered = tool.run(&["trigger", "ready"]).await.unwrap();
    let said = String::from_utf8(ordered.stderr).unwrap();
    assert!(said.contains("201, and the webhook at once"), "{said}");
    let order: Value = serde_json::from_slice(&ordered.stdout).unwrap();
    let topup_id = order["products"][0]["topup_id"].as_str().unwrap();
    let delivered = async || {
        let log = tool.text(&["logs", "tail", "--once"]).await?;
        Ok(log
            .contains(&format!("webhook {topup_id} delivered"))
            .then_some(log))
    };
    let log = wait::soon("the delivery in the log", delivered).await;
    for part in [
        "refused\n".to_owned(),
        format!("topup   {topup_id} of \"trigger-ready-"),
        format!("webhook {topup_id} attempt 1: status_5xx status 500 after "),
        format!("webhook {topup_id} attempt 2: delivered status 200 after "),
    ] {
        assert!(log.contains(&part), "{part} is not in:\n{log}");
    }
    let shown = said.lines().last().unwrap();
    let id = "esim-partner orders show ";
    let (_, id) = shown.split_once(id).expect("the command that follows");
    let shown = tool.json(&["orders", "show", id]).await.unwrap();
    let code = shown["topups"][0]["esim"]["activate_code"]
        .as_str()
        .unwrap();
    assert!(!log.contains(code), "the log holds an activation code");

    // An event is made once the first endpoint asks for it.
    let unwanted = tool.failure(&["trigger", "key.expiring"]).await.unwrap();
    assert!(unwanted.contains("event_not_wanted"), "{unwanted}");
    let listed = tool.json(&["endpoints", "list"]).await.unwrap();
    let first = listed["endpoints"][0]["endpoint_id"].as_str().unwrap();
    let set = ["endpoints", "set", first, "--event", "topup.ready"];
    let set = [&set[..], &["--event", "key.expiring"]].concat();
    tool.json(&set).await.unwrap();
    tool.json(&["trigger", "key.expiring"]).await.unwrap();

    let live = stack.create_partner("live", None).await.unwrap();
    let live = Tool::login(&stack.base_url, &live).await.unwrap();
    let said = live.failure(&["trigger", "ready"]).await.unwrap();
    assert!(said.contains("buys for real"), "{said}");
}

/// A new line of `logs tail` for each event while it follows.
#[tokio::test]
async fn the_log_is_followed() {
    let (stack, shop) = open().await;
    let tool = Tool::login(&stack.base_url, &shop.partner).await.unwrap();
    let ready = stack.option("ready").unwrap();
    let before = fresh("before");
    shop.buy(&before, ready, 1).await.unwrap();
    let mut following = tool
        .command(&["logs", "tail", "--lines", "1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines();
    let mut until = async |part: &str| -> Result<()> {
        while let Some(line) = tokio::time::timeout(SOON, lines.next_line()).await?? {
            if line.contains(part) {
                return Ok(());
            }
        }
        anyhow::bail!("the log ended before {part}")
    };
    until(&format!("order   {before:?}")).await.unwrap();
    let after = fresh("after");
    let bought = shop.buy(&after, ready, 1).await.unwrap();
    until(&format!("order   {after:?}")).await.unwrap();
    until(&format!("webhook {} delivered", bought[0].topup_id))
        .await
        .unwrap();
}

#[tokio::test]
async fn the_example_receivers_pass_certify() {
    let stack = Stack::start().await.unwrap();
    let partner = stack.create_partner("sandbox", None).await.unwrap();
    let tool = Tool::login(&stack.base_url, &partner).await.unwrap();
    for (file, program) in RECEIVERS {
        if !is_present(program) {
            eprintln!("{program} is not here: {file} is not certified");
            continue;
        }
        let port = ports::free().unwrap().to_string();
        let mut receiver = Command::new(workspace().join("docs/examples").join(file));
        receiver
            .args(["receive", &port])
            .env("WEBHOOK_SECRET", &partner.webhook_secret);
        let _receiver = receiver
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let address = format!("127.0.0.1:{port}");
        let listens = async || Ok(TcpStream::connect(&address).await.ok());
        wait::soon("the example's receiver", listens).await;
        let url = format!("http://{address}/webhooks");
        let report = tool.json(&["certify", &url, "--json"]).await.unwrap();
        let checks = report["checks"].as_array().unwrap();
        let failed: Vec<_> = checks
            .iter()
            .filter(|check| check["passed"] != true)
            .collect();
        assert!(
            failed.is_empty() && report["passed"] == true,
            "{file}: {failed:?}"
        );
        // The endpoint passes, but this is no live account, and no https.
        let item = |name: &str| {
            let items = report["checklist"].as_array().unwrap();
            let item = items.iter().find(|item| item["name"] == name);
            item.unwrap_or_else(|| panic!("no {name}"))["done"].clone()
        };
        for (name, done) in [
            ("endpoint", "yes"),
            ("https", "no"),
            ("public", "no"),
            ("live_keys", "no"),
            ("configured", "no"),
            ("exhausted", "yes"),
            ("clock", "yes"),
            ("hides_codes", "by_hand"),
        ] {
            assert_eq!(item(name), done, "{name}");
        }
        assert_eq!(report["ready"], false);
        let text = tool.text(&["certify", &url]).await.unwrap();
        assert!(
            text.contains("[x] the endpoint passes all checks"),
            "{text}"
        );
        assert!(text.contains("[ ] the webhook URL is https"), "{text}");
    }
}
