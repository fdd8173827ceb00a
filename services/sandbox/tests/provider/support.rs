//! Starts sandboxes and calls them.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::{ops::Deref, time::Duration};

use reqwest::{Client, Method, RequestBuilder, StatusCode};
use runtime::{CommonConfig, Shutdown, clock};
use sandbox::{Config, ServeConfig, script::option_id};
use serde_json::{Value, json};
use signing::SecretKey;
use tempfile::TempDir;
use testkit::wait;
use tokio::task::JoinHandle;

pub const ACCESS_KEY: &str = "sandbox-access";
pub const SECRET: &str = "c2FuZGJveC1zZWNyZXQ=";

pub struct Caller {
    pub http: Client,
    pub base: String,
    pub secret: SecretKey,
}

impl Caller {
    /// Waits until the sandbox at `address` is ready.
    pub async fn new(address: SocketAddr) -> Self {
        let caller = Self {
            http: testkit::http::client().unwrap(),
            base: format!("http://{address}"),
            secret: SecretKey::from_base64(SECRET).unwrap(),
        };
        let faults = format!("{}/faults", caller.base);
        wait::soon("the sandbox", async || {
            Ok(caller.http.get(&faults).send().await.ok())
        })
        .await;
        caller
    }

    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: impl Into<reqwest::Body>,
    ) -> (StatusCode, Value) {
        let response = self.signed(method, path, body).send().await.unwrap();
        (response.status(), response.json().await.unwrap())
    }

    fn signed(&self, method: Method, path: &str, body: impl Into<reqwest::Body>) -> RequestBuilder {
        let timestamp = clock::unix_milliseconds().to_string();
        let signature =
            signing::usimsa::sign(&self.secret, method.as_str(), path, &timestamp, ACCESS_KEY);
        self.http
            .request(method, format!("{}{path}", self.base))
            .header("x-gat-timestamp", timestamp)
            .header("x-gat-access-key", ACCESS_KEY)
            .header("x-gat-signature", signature)
            .header("content-type", "application/json")
            .body(body)
    }

    /// An order that is ready to be sent. The caller sends it, because it expects an unusual answer
    /// or none.
    pub fn ordering(&self, order_id: &str, products: &[(&str, u32)]) -> RequestBuilder {
        self.signed(
            Method::POST,
            "/api/v2/order",
            order_body(order_id, products),
        )
    }

    /// Orders like a client that gives up before it has an answer.
    pub async fn order_and_go(&self, order_id: &str, products: &[(&str, u32)]) {
        let request = self.ordering(order_id, products);
        let error = request
            .timeout(Duration::from_millis(300))
            .send()
            .await
            .unwrap_err();
        assert!(error.is_timeout(), "{error:?}");
    }

    /// Orders products given as (option id, quantity); HTTP status 200 is asserted.
    pub async fn order(&self, order_id: &str, products: &[(&str, u32)]) -> Value {
        self.ok(
            Method::POST,
            "/api/v2/order",
            order_body(order_id, products),
        )
        .await
    }

    pub async fn fetch(&self, order_id: &str) -> Value {
        self.ok(
            Method::GET,
            &format!("/api/v2/order/{order_id}"),
            String::new(),
        )
        .await
    }

    pub async fn cancel(&self, topup_id: &str) -> Value {
        self.ok(
            Method::POST,
            &format!("/api/v2/cancel/{topup_id}"),
            String::new(),
        )
        .await
    }

    async fn ok(&self, method: Method, path: &str, body: String) -> Value {
        let (status, answer) = self.send(method, path, body).await;
        assert_eq!(status, StatusCode::OK);
        answer
    }

    pub async fn code(&self, order_id: &str, products: &[(&str, u32)]) -> String {
        let answer = self.order(order_id, products).await;
        answer["code"].as_str().unwrap().to_owned()
    }

    /// Waits until the order id has bought one unit, although its client has no answer yet.
    pub async fn until_bought(&self, order_id: &str) {
        let bought = async || Ok((self.bought(order_id).await == (1, 1)).then_some(()));
        wait::soon("the purchase", bought).await;
    }

    /// Fetches the order until `enough` is true of the answer.
    pub async fn fetch_until(&self, order_id: &str, enough: impl Fn(&Value) -> bool) -> Value {
        let fetched = async || Ok(Some(self.fetch(order_id).await).filter(&enough));
        wait::soon("the order", fetched).await
    }

    pub async fn ledger(&self) -> Value {
        self.get("/ledger").await
    }

    /// How many purchases and units an order id bought.
    pub async fn bought(&self, order_id: &str) -> (u64, u64) {
        let ledger = self.get(&format!("/ledger?order_id={order_id}")).await;
        let number = |field: &str| ledger[field].as_u64().unwrap();
        (number("purchases"), number("units"))
    }

    pub async fn faults(&self, faults: Value) -> (StatusCode, Value) {
        let request = self.http.put(format!("{}/faults", self.base));
        let response = request.body(faults.to_string()).send().await.unwrap();
        (response.status(), response.json().await.unwrap())
    }

    pub async fn get(&self, path: &str) -> Value {
        let request = self.http.get(format!("{}{path}", self.base));
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        response.json().await.unwrap()
    }
}

fn order_body(order_id: &str, products: &[(&str, u32)]) -> String {
    let products: Vec<_> = products
        .iter()
        .map(|(option, qty)| json!({ "optionId": option, "qty": qty }))
        .collect();
    json!({ "orderId": order_id, "products": products }).to_string()
}

pub fn option(name: &str) -> String {
    option_id(name).to_string()
}

pub fn units(answer: &Value) -> &Vec<Value> {
    answer["products"].as_array().unwrap()
}

pub fn strings<'a>(products: &'a Value, field: &str) -> Vec<&'a str> {
    products
        .as_array()
        .unwrap()
        .iter()
        .map(|unit| unit[field].as_str().unwrap())
        .collect()
}

/// A field of each product, sorted: units are listed in any order.
pub fn sorted<'a>(products: &'a Value, field: &str) -> Vec<&'a str> {
    let mut values = strings(products, field);
    values.sort_unstable();
    values
}

/// A sandbox that runs in the process of the test.
pub struct Started {
    pub caller: Caller,
    pub shutdown: Shutdown,
    pub running: JoinHandle<anyhow::Result<()>>,
    /// Keeps the folder of the ledger, if the ledger is its own.
    folder: Option<TempDir>,
}

impl Deref for Started {
    type Target = Caller;

    fn deref(&self) -> &Caller {
        &self.caller
    }
}

impl Started {
    pub async fn new(ledger: &Path) -> Self {
        Self::with(config(ledger)).await
    }

    pub async fn with(config: Config) -> Self {
        let shutdown = Shutdown::new();
        let address = config.serve.listen;
        let running = tokio::spawn(sandbox::run(config, shutdown.clone()));
        Self {
            caller: Caller::new(address).await,
            shutdown,
            running,
            folder: None,
        }
    }

    /// Starts a sandbox with a new ledger.
    pub async fn fresh() -> Self {
        let (folder, path) = ledger_file();
        Self {
            folder: Some(folder),
            ..Self::new(&path).await
        }
    }

    pub async fn stop(self) {
        drop(self.caller);
        self.shutdown.stop();
        self.running.await.unwrap().unwrap();
        self.shutdown.finished().await.unwrap();
        drop(self.folder);
    }
}

pub fn config(ledger: &Path) -> Config {
    Config {
        command: None,
        provider: "sandbox".into(),
        serve: ServeConfig {
            listen: free_address(),
            admin_listen: free_address(),
            ledger: Some(ledger.to_owned()),
            access_key: Some(ACCESS_KEY.into()),
            secret_key: Some(SECRET.into()),
            detect_duplicates: true,
            callback_url: None,
            common: CommonConfig::default(),
        },
    }
}

pub fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, testkit::ports::free().unwrap()).into()
}

pub fn ledger_file() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.jsonl");
    (folder, path)
}

/// The real program as a process, which is killed when this is dropped.
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
        .env("ADMIN_LISTEN", free_address().to_string());
    process
        .env("SANDBOX_LEDGER", ledger)
        .env("SANDBOX_ACCESS_KEY", ACCESS_KEY);
    process
        .env("SANDBOX_SECRET_KEY", SECRET)
        .stderr(Stdio::null());
    Killed(process.spawn().unwrap())
}
