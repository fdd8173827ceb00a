//! Starts sandboxes and calls them.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command as Process, Stdio},
    time::{Duration, Instant},
};

use reqwest::{Client, Method, StatusCode};
use runtime::{CommonConfig, Shutdown, clock};
use sandbox::Config;
use serde_json::{Value, json};
use signing::SecretKey;
use tempfile::TempDir;
use tokio::task::JoinHandle;

pub const ACCESS_KEY: &str = "sandbox-access";
pub const SECRET: &str = "c2FuZGJveC1zZWNyZXQ=";

/// A client of one sandbox.
pub struct Caller {
    pub http: Client,
    pub base: String,
    pub secret: SecretKey,
}

impl Caller {
    /// Waits until the sandbox at `address` is ready.
    pub async fn new(address: SocketAddr) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = Client::builder()
            .no_proxy()
            .timeout(Duration::from_secs(10))
            .build()
            .unwrap();
        let base = format!("http://{address}");
        let caller = Self {
            http,
            base,
            secret: SecretKey::from_base64(SECRET).unwrap(),
        };
        let started = Instant::now();
        while caller
            .http
            .get(format!("{}/readyz", caller.base))
            .send()
            .await
            .is_err()
        {
            assert!(
                started.elapsed() < Duration::from_secs(20),
                "the sandbox is not ready"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        caller
    }

    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: impl Into<reqwest::Body>,
    ) -> (StatusCode, Value) {
        let timestamp = clock::unix_milliseconds().to_string();
        self.send_at(method, path, body, &timestamp, ACCESS_KEY, &self.secret)
            .await
    }

    pub async fn send_at(
        &self,
        method: Method,
        path: &str,
        body: impl Into<reqwest::Body>,
        timestamp: &str,
        access_key: &str,
        secret: &SecretKey,
    ) -> (StatusCode, Value) {
        let signature = signing::usimsa::sign(secret, method.as_str(), path, timestamp, access_key);
        let request = self
            .http
            .request(method, format!("{}{path}", self.base))
            .header("x-gat-timestamp", timestamp)
            .header("x-gat-access-key", access_key)
            .header("x-gat-signature", signature)
            .header("content-type", "application/json")
            .body(body);
        let response = request.send().await.unwrap();
        (response.status(), response.json().await.unwrap())
    }

    /// Orders products given as (option id, quantity); HTTP status 200 is asserted.
    pub async fn order(&self, order_id: &str, products: &[(&str, u32)]) -> Value {
        let products: Vec<_> = products
            .iter()
            .map(|(option, qty)| json!({ "optionId": option, "qty": qty }))
            .collect();
        let body = json!({ "orderId": order_id, "products": products }).to_string();
        let (status, answer) = self.send(Method::POST, "/api/v2/order", body).await;
        assert_eq!(status, StatusCode::OK);
        answer
    }

    pub async fn fetch(&self, order_id: &str) -> Value {
        let (status, answer) = self
            .send(Method::GET, &format!("/api/v2/order/{order_id}"), "")
            .await;
        assert_eq!(status, StatusCode::OK);
        answer
    }

    pub async fn cancel(&self, topup_id: &str) -> Value {
        let (status, answer) = self
            .send(Method::POST, &format!("/api/v2/cancel/{topup_id}"), "")
            .await;
        assert_eq!(status, StatusCode::OK);
        answer
    }

    pub async fn ledger(&self) -> Value {
        self.http
            .get(format!("{}/ledger", self.base))
            .send()
            .await
            .unwrap()
            .json()
            .await
            .unwrap()
    }
}

/// A sandbox started in this process.
pub struct Started {
    pub caller: Caller,
    pub shutdown: Shutdown,
    pub running: JoinHandle<anyhow::Result<()>>,
}

impl Started {
    pub async fn new(ledger: &Path) -> Self {
        let shutdown = Shutdown::new();
        let config = config(ledger);
        let address = config.listen;
        let running = tokio::spawn(sandbox::run(config, shutdown.clone()));
        Self {
            caller: Caller::new(address).await,
            shutdown,
            running,
        }
    }

    pub async fn stop(self) {
        drop(self.caller);
        self.shutdown.stop();
        self.running.await.unwrap().unwrap();
    }
}

pub fn config(ledger: &Path) -> Config {
    Config {
        command: None,
        listen: free_address(),
        ledger: Some(ledger.to_owned()),
        access_key: Some(ACCESS_KEY.into()),
        secret_key: Some(SecretKey::from_base64(SECRET).unwrap()),
        common: CommonConfig::default(),
    }
}

pub fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .unwrap()
        .local_addr()
        .unwrap()
}

pub fn ledger_file() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.jsonl");
    (folder, path)
}

/// The real binary; killed when dropped.
pub struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn binary() -> Process {
    let mut process = Process::new(env!("CARGO_BIN_EXE_sandbox"));
    process.env_clear().stdin(Stdio::null());
    process
}

pub fn start_binary(ledger: &Path, listen: SocketAddr) -> Killed {
    let mut process = binary();
    process
        .args(["serve", "--listen", &listen.to_string()])
        .env("SANDBOX_LEDGER", ledger)
        .env("SANDBOX_ACCESS_KEY", ACCESS_KEY)
        .env("SANDBOX_SECRET_KEY", SECRET)
        .stderr(Stdio::null());
    Killed(process.spawn().unwrap())
}
