//! What `esim-partner` does with answers that the service does not give: `BASE_URL` may be wrong, or lead to
//! a server of somebody else. Nothing of it may change the terminal, choose what this machine sends
//! elsewhere, or stand in a command that the user is told to run.
//!
//! Also what it does if standard output cannot be written, and that it asks this machine without a proxy.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::{
    fs::OpenOptions,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Command, Output, Stdio},
    sync::{Arc, Mutex},
    thread,
};

use runtime::terminal::is_hidden;
use serde_json::{Value, json};

const TOPUP: &str = "20250129123456123456789012";
const HOSTILE: &str = "x\u{1b}]0;owned\u{7}\u{202e}\u{200b}\u{9b}2J\n; rm -rf ~";

/// The requests that a server got: each with its first line and its headers, in lower case.
type Requests = Arc<Mutex<Vec<String>>>;

/// A server that answers each request with what `answer` makes of its first line: a 200, or a 422 whose code
/// is the value of `error`.
fn server(answer: impl Fn(&str) -> Value + Send + 'static) -> (SocketAddr, Requests) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let requests = Requests::default();
    let seen = requests.clone();
    thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let Some(request) = head(&client) else {
                continue;
            };
            let line = request.lines().next().unwrap_or_default().to_owned();
            seen.lock().unwrap().push(request.to_ascii_lowercase());
            let body = answer(&line);
            let status = match body["error"].as_str() {
                Some(code) => format!("422 Unprocessable Content\r\nX-Service-Error: {code}"),
                None => "200 OK".to_owned(),
            };
            let body = body.to_string();
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            let _ = client.write_all((head + &body).as_bytes());
        }
    });
    (address, requests)
}

/// Reads a request with its body, and returns its head.
fn head(client: &TcpStream) -> Option<String> {
    let mut reader = BufReader::new(client);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let lower = head.to_ascii_lowercase();
    let length = lower
        .lines()
        .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    reader
        .take(length.unwrap_or(0))
        .read_to_end(&mut Vec::new())
        .ok()?;
    Some(head)
}

/// A command with these keys, and with a proxy that nobody listens at.
fn command(base_url: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_esim-partner"));
    command
        .args(arguments)
        .env_clear()
        .env("BASE_URL", base_url)
        .env("ACCESS_KEY", "ak")
        .env("SECRET_KEY", "c2VjcmV0LWtleQ==")
        .env(
            "WEBHOOK_SECRET",
            signing::generate::webhook_secret().unwrap().to_text(),
        )
        .env("HTTP_PROXY", "http://127.0.0.1:9")
        .env("http_proxy", "http://127.0.0.1:9");
    command
}

fn run(address: SocketAddr, arguments: &[&str]) -> Output {
    command(&format!("http://{address}"), arguments)
        .output()
        .unwrap()
}

/// What a command printed, whose characters were checked.
fn said(output: &Output) -> String {
    let text = [output.stdout.clone(), output.stderr.clone()].concat();
    let text = String::from_utf8(text).unwrap();
    let hidden = text.chars().find(|one| is_hidden(*one) && *one != '\n');
    assert_eq!(hidden, None, "{text}");
    text
}

#[test]
fn a_hostile_server_changes_no_terminal_and_gets_no_command_proposed() {
    let (hook, hooked) = server(|_| json!({}));
    let (address, _) = server(|line| {
        let topup =
            json!({"topup_id": TOPUP, "state": HOSTILE, "error": HOSTILE, "delivery": HOSTILE});
        let order = json!({"order_id": HOSTILE, "external_order_id": HOSTILE, "state": HOSTILE,
            "created_at": "2025-01-29T12:34:56Z", "topups": [topup]});
        let webhook = |id: &str| {
            json!({"body": json!({"external_order_id": HOSTILE}).to_string(), "headers": {
                "webhook-id": id, "webhook-signature": "v1,x", "Host": "elsewhere",
                "Authorization": "hush", "Cookie": "hush", "webhook-type": HOSTILE}})
        };
        if line.contains("/webhook/listen") {
            json!({"webhooks": [webhook(HOSTILE), webhook(TOPUP)], "next_cursor": HOSTILE})
        } else if line.contains("/deliveries") {
            json!({"attempts": [{"attempt": 1, "at": "2025-01-29T12:34:56Z", "duration_ms": 1,
                "status": 500, "outcome": HOSTILE, "answer": HOSTILE}]})
        } else if line.contains("/webhooks") {
            json!({"webhooks": [{"webhook_id": HOSTILE, "type": HOSTILE, "state": HOSTILE,
                "created_at": HOSTILE}], "next_cursor": null})
        } else if line.contains("/orders") {
            json!({"orders": [order], "next_cursor": null})
        } else if line.contains("/options") {
            json!({"options": [{"name": HOSTILE, "option_id": HOSTILE, "details": {"outcome": HOSTILE}}]})
        } else {
            json!({"environment": "sandbox", "name": HOSTILE, "anything": HOSTILE})
        }
    });
    for arguments in [
        &["logs", "tail", "--once"][..],
        &["orders", "list"],
        &["orders", "show", HOSTILE],
        &["webhooks", "list"],
        &["webhooks", "list", "--json"],
        &["trigger"],
        &["options"],
        &["usage", TOPUP],
    ] {
        let text = said(&run(address, arguments));
        let forged = text.lines().any(|line| line.starts_with("; rm"));
        assert!(text.contains("owned") && !forged, "{arguments:?}: {text}");
    }

    let to = format!("http://me:hush@{hook}/hook?token=hush");
    let listened = run(address, &["listen", "--forward-to", &to, "--count", "2"]);
    let text = said(&listened);
    assert!(!listened.status.success(), "{text}");
    assert!(!text.contains("hush"), "{text}");
    assert!(text.contains("was not forwarded"), "{text}");
    let forwarded = hooked.lock().unwrap();
    assert_eq!(forwarded.len(), 1, "{forwarded:?}");
    assert!(!forwarded[0].contains("cookie"), "{}", forwarded[0]);
    assert!(!forwarded[0].contains("elsewhere"), "{}", forwarded[0]);
    assert!(
        forwarded[0].contains("webhook-signature: v1,x"),
        "{}",
        forwarded[0]
    );
}

#[test]
fn an_order_is_looked_up_by_a_query_that_names_every_id() {
    let (address, requests) = server(|line| {
        let found = line.contains("external_order_id=..%2F%20 ");
        let order = json!({"external_order_id": "../ ", "state": "ready", "topups": []});
        json!({"orders": if found { vec![order] } else { vec![] }, "next_cursor": null})
    });
    let shown = run(address, &["orders", "show", "../ "]);
    let order: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(order["external_order_id"], "../ ");
    let missing = run(address, &["orders", "show", ".."]);
    assert!(!missing.status.success());
    assert!(said(&missing).contains("not_found"));
    let requests = requests.lock().unwrap();
    assert!(
        requests[1].contains("/orders?external_order_id=.. "),
        "{}",
        requests[1]
    );
}

#[test]
fn a_taken_id_is_a_success_only_if_something_was_bought() {
    for (state, is_bought) in [
        ("processing", true),
        ("ready", true),
        ("refused", false),
        ("cancelled", false),
    ] {
        let (address, _) = server(move |line| {
            if line.starts_with("POST") {
                return json!({"error": "external_order_id_taken"});
            }
            let topup = json!({"topup_id": TOPUP, "option_id": "o"});
            json!({"orders": [{"external_order_id": "A", "state": state, "topups": [topup]}]})
        });
        let ordered = run(address, &["order", "A", "o"]);
        let text = said(&ordered);
        assert_eq!(ordered.status.success(), is_bought, "{state}: {text}");
        assert_eq!(text.contains("nothing was bought"), !is_bought, "{text}");
    }
}

#[test]
fn this_machine_is_asked_without_a_proxy() {
    let (hook, _) = server(|_| json!({}));
    for host in ["localhost", "127.0.0.1"] {
        let url = format!("http://{host}:{}/hook", hook.port());
        let certified = run(hook, &["certify", &url, "--timeout", "2s"]);
        let text = said(&certified);
        assert!(text.contains("ok   reached"), "{text}");
        assert!(text.contains("ok   good"), "{text}");
    }
    let elsewhere = run(
        hook,
        &["certify", "http://shop.invalid/hook", "--timeout", "2s"],
    );
    let text = said(&elsewhere);
    assert!(text.contains("FAIL reached"), "{text}");
}

#[test]
fn a_closed_pipe_ends_quietly_and_a_failed_write_is_an_error() {
    let (address, _) = server(|_| json!({"orders": [], "next_cursor": null}));
    let base_url = format!("http://{address}");
    for arguments in [
        &["orders", "list"][..],
        &["--help"],
        &["completions", "bash"],
    ] {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = command(&base_url, arguments).stdout(full).output().unwrap();
        let text = said(&output);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {text}");
        assert!(text.contains("cannot write to standard output"), "{text}");

        let mut child = command(&base_url, arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(said(&output), "", "{arguments:?}");
        assert!(output.status.success(), "{arguments:?}");
    }
    // Nobody could be told that standard error is full, so the exit status is the one of the command.
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = command("localhost", &["orders", "list"])
        .stderr(full)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_wrong_setting_is_named() {
    let output = command("esim.example.com", &["orders", "list"])
        .output()
        .unwrap();
    let text = said(&output);
    assert!(
        text.contains("in the environment: BASE_URL is not a URL"),
        "{text}"
    );
}

/// Whoever has set too little gets to know what is missing. Nothing was sent, so nothing is repeated, and
/// no order is in doubt.
#[test]
fn without_a_setting_nothing_is_sent_and_no_order_is_in_doubt() {
    for missing in ["BASE_URL", "ACCESS_KEY", "SECRET_KEY"] {
        let mut command = command("http://127.0.0.1:9", &["order", "A-1", TOPUP]);
        // An empty value is as good as none, and keeps the environment as the source of the keys.
        let output = command.env(missing, "").output().unwrap();
        let text = said(&output);
        assert!(!output.status.success(), "{text}");
        assert!(text.contains(&format!("{missing} is not set")), "{text}");
        assert!(
            !text.contains("repeat") && !text.contains("unknown"),
            "{text}"
        );
    }
}
