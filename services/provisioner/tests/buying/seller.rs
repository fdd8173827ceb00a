//! A sandbox provider in the process of a test.

use domain::PlacementId;
use runtime::{CommonConfig, Shutdown};
use sandbox::ServeConfig;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{ACCESS_KEY, SECRET_KEY, address, answers};

/// A sandbox provider in this process.
pub struct Seller {
    base: String,
    http: reqwest::Client,
    shutdown: Shutdown,
    _folder: TempDir,
}

impl Seller {
    /// Starts a sandbox provider with an optional callback address.
    pub async fn start(callback_url: Option<&str>) -> Self {
        Self::start_with(callback_url, false).await
    }

    /// Starts one that also tells of the use of eSIMs, in the protocols that have events.
    pub async fn with_events(callback_url: &str) -> Self {
        Self::start_with(Some(callback_url), true).await
    }

    async fn start_with(callback_url: Option<&str>, events: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listen = address();
        let config = upstreams::Config {
            command: None,
            provider: "sandbox".into(),
            serve: ServeConfig {
                listen,
                admin_listen: address(),
                ledger: Some(folder.path().join("ledger")),
                access_key: Some(ACCESS_KEY.into()),
                secret_key: Some(SECRET_KEY.into()),
                detect_duplicates: true,
                callback_url: callback_url.map(Into::into),
                common: CommonConfig::default(),
            },
            esim_access_callback_url: callback_url
                .map(|url| url.replace("/sandbox/", "/esim-access/").into()),
            zendit_callback_url: callback_url
                .map(|url| url.replace("/sandbox/", "/zendit/").into()),
            airalo_callback_url: callback_url
                .map(|url| url.replace("/sandbox/", "/airalo/").into()),
            events,
            airalo_places: 200,
        };
        let shutdown = Shutdown::new();
        tokio::spawn(upstreams::run(config, shutdown.clone()));
        let seller = Self {
            base: format!("http://{listen}"),
            http: testkit::http::client().unwrap(),
            shutdown,
            _folder: folder,
        };
        answers(&seller.http, &format!("{}/faults", seller.base)).await;
        seller
    }

    pub fn url(&self) -> reqwest::Url {
        self.base.parse().unwrap()
    }

    /// Replaces the faults of the whole provider.
    pub async fn faults(&self, faults: Value) {
        self.put("/faults", faults).await;
    }

    /// The ids of all extensions, whether they have taken effect or not.
    pub async fn extensions(&self) -> Vec<String> {
        let url = format!("{}/ledger", self.base);
        let response = self.http.get(url).send().await.unwrap();
        let ledger: Value = response.json().await.unwrap();
        let extensions = ledger["extensions"].as_array().cloned().unwrap_or_default();
        let id = |one: &Value| one["extension_id"].as_str().unwrap().to_owned();
        extensions.iter().map(id).collect()
    }

    /// From now on our account at Airalo pays the prices for consumers less this percentage.
    pub async fn airalo_discount(&self, percentage: u8) {
        self.put("/airalo/discount", percentage.into()).await;
    }

    async fn put(&self, path: &str, body: Value) {
        let put = self.http.put(format!("{}{path}", self.base));
        let put = put.header("content-type", "application/json");
        let answer = put.body(body.to_string()).send().await.unwrap();
        assert!(answer.status().is_success(), "{answer:?}");
    }

    async fn ledger(&self, query: &str) -> Value {
        self.http
            .get(format!("{}/ledger{query}", self.base))
            .send()
            .await
            .unwrap()
            .json()
            .await
            .unwrap()
    }

    /// The number of purchases of a placement, and their units in total.
    pub async fn bought(&self, placement: PlacementId) -> (u64, u64) {
        let ledger = self.ledger(&format!("?order_id={placement}")).await;
        (
            ledger["purchases"].as_u64().unwrap(),
            ledger["units"].as_u64().unwrap(),
        )
    }

    /// How often something was added to eSIMs.
    pub async fn extended(&self) -> usize {
        let ledger = self.ledger("").await;
        ledger["extensions"].as_array().map_or(0, Vec::len)
    }

    /// How many units of a placement were given back.
    pub async fn canceled(&self, placement: PlacementId) -> u64 {
        let ledger = self.ledger(&format!("?order_id={placement}")).await;
        ledger["canceled"].as_u64().unwrap()
    }

    /// How many units of a placement are suspended.
    pub async fn suspended(&self, placement: PlacementId) -> usize {
        let ledger = self.ledger(&format!("?order_id={placement}")).await;
        ledger["suspended"].as_array().map_or(0, Vec::len)
    }

    /// The number of all purchases.
    pub async fn purchases(&self) -> u64 {
        self.ledger("").await["purchases"].as_u64().unwrap()
    }
}

impl Drop for Seller {
    fn drop(&mut self) {
        self.shutdown.stop();
    }
}
