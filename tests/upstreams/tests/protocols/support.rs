//! Starts upstreams in the process of a test.

use std::net::{Ipv4Addr, SocketAddr};

use reqwest::Client;
use runtime::{CommonConfig, Shutdown};
use sandbox::{ServeConfig, script::option_id};
use serde_json::Value;
use tempfile::TempDir;
use testkit::wait;
use upstreams::Config;

pub const ACCESS_KEY: &str = "sandbox-access";
pub const SECRET: &str = "c2FuZGJveC1zZWNyZXQ=";

/// Upstreams with a ledger of their own. They end with the test.
pub struct Started {
    pub http: Client,
    pub base: String,
    shutdown: Shutdown,
    _folder: TempDir,
}

impl Drop for Started {
    fn drop(&mut self) {
        self.shutdown.stop();
    }
}

impl Started {
    pub async fn fresh() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listen = free_address();
        let config = Config {
            command: None,
            provider: "sandbox".into(),
            serve: ServeConfig {
                listen,
                admin_listen: free_address(),
                ledger: Some(folder.path().join("ledger.jsonl")),
                access_key: Some(ACCESS_KEY.into()),
                secret_key: Some(SECRET.into()),
                detect_duplicates: true,
                callback_url: None,
                common: CommonConfig::default(),
            },
            esim_access_callback_url: None,
            zendit_callback_url: None,
            airalo_callback_url: None,
            events: false,
            airalo_places: 200,
        };
        let shutdown = Shutdown::new();
        tokio::spawn(upstreams::run(config, shutdown.clone()));
        let started = Self {
            http: testkit::http::client().unwrap(),
            base: format!("http://{listen}"),
            shutdown,
            _folder: folder,
        };
        let faults = format!("{}/faults", started.base);
        wait::soon("the upstreams", async || {
            Ok(started.http.get(&faults).send().await.ok())
        })
        .await;
        started
    }

    /// How many purchases and units an order id bought.
    pub async fn bought(&self, order_id: &str) -> (u64, u64) {
        let url = format!("{}/ledger?order_id={order_id}", self.base);
        let response = self.http.get(url).send().await.unwrap();
        let ledger: Value = response.json().await.unwrap();
        let number = |field: &str| ledger[field].as_u64().unwrap();
        (number("purchases"), number("units"))
    }
}

fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, testkit::ports::free().unwrap()).into()
}

pub fn option(name: &str) -> String {
    option_id(name).to_string()
}
