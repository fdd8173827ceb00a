//! The account at the sandbox provider, and the two requests of a purchase.

use crate::{client, setting};
use anyhow::{Context, Result, bail, ensure};
use reqwest::{Method, RequestBuilder};
use serde::{Deserialize, Serialize};
use serde_json::json;
use signing::{SecretKey, usimsa};
use std::time::{SystemTime, UNIX_EPOCH};
use uuid::Uuid;

const ORDER: &str = "/api/v2/order";

/// A unit of an order. The job of a purchase carries it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Unit {
    /// Ours, which the partner knows.
    pub topup_id: String,
    pub option_id: Uuid,
}

/// The profile that was bought for a unit. It has no `Debug`, because it holds an activation code.
pub struct Esim {
    pub topup_id: String,
    pub iccid: String,
    pub smdp: String,
    pub activate_code: String,
    pub expired_date: String,
}

/// What became of a purchase.
pub enum Purchase {
    Bought(Vec<Esim>),
    /// It is bought, but its profiles are not there yet.
    NotReady,
    /// The provider does not sell it.
    Refused,
}

/// The account.
#[derive(Clone)]
pub struct Provider {
    client: reqwest::Client,
    url: String,
    access_key: String,
    secret_key: SecretKey,
}

#[derive(Deserialize)]
struct Answer {
    code: String,
    #[serde(default)]
    products: Vec<Product>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Product {
    option_id: Uuid,
    status: Option<String>,
    #[serde(flatten)]
    profile: Option<Profile>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Profile {
    iccid: String,
    smdp: String,
    activate_code: String,
    expired_date: String,
}

impl Provider {
    pub fn from_settings() -> Result<Self> {
        Ok(Self {
            client: client()?,
            url: setting("SANDBOX_URL")?,
            access_key: setting("SANDBOX_ACCESS_KEY")?,
            secret_key: SecretKey::from_base64(&setting("SANDBOX_SECRET_KEY")?)?,
        })
    }

    /// Buys the units of an order and fetches their profiles. It may be called again for the same
    /// order: the provider refuses an order id that it knows, and what was bought is fetched. A
    /// provider that does not refuse it sells once more.
    pub async fn buy(&self, order_id: Uuid, units: &[Unit]) -> Result<Purchase> {
        let products: Vec<_> = units
            .iter()
            .map(|unit| json!({ "optionId": unit.option_id, "qty": 1 }))
            .collect();
        let order = json!({ "orderId": order_id, "products": products });
        let request = self.request(Method::POST, ORDER)?.json(&order);
        match answer(request).await?.code.as_str() {
            "0000" | "9003" => self.fetch(order_id, units).await,
            "9000" | "9001" | "9005" => Ok(Purchase::Refused),
            code => bail!("the provider's code {code} says nothing about the purchase"),
        }
    }

    async fn fetch(&self, order_id: Uuid, units: &[Unit]) -> Result<Purchase> {
        let request = self.request(Method::GET, &format!("{ORDER}/{order_id}"))?;
        let answer = answer(request).await?;
        ensure!(answer.code == "0000", "the provider's code {}", answer.code);
        let all = |status: &str| {
            let mut products = answer.products.iter();
            products.all(|product| product.status.as_deref() == Some(status))
        };
        if !all("READY") {
            return Ok(if all("FAILED") {
                Purchase::Refused
            } else {
                Purchase::NotReady
            });
        }
        let mut bought = answer.products;
        let esim = |unit: &Unit| -> Result<Esim> {
            let same = |product: &Product| product.option_id == unit.option_id;
            let found = bought.iter().position(same).context("a unit is missing")?;
            let profile = bought.swap_remove(found).profile;
            let profile = profile.context("a profile is incomplete")?;
            Ok(Esim {
                topup_id: unit.topup_id.clone(),
                iccid: profile.iccid,
                smdp: profile.smdp,
                activate_code: profile.activate_code,
                expired_date: profile.expired_date,
            })
        };
        let esims: Result<Vec<_>> = units.iter().map(esim).collect();
        Ok(Purchase::Bought(esims?))
    }

    /// A signed request without body.
    fn request(&self, method: Method, path: &str) -> Result<RequestBuilder> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let now = now.as_millis().to_string();
        let Self {
            access_key,
            secret_key,
            ..
        } = self;
        let signature = usimsa::sign(secret_key, method.as_str(), path, &now, access_key);
        let request = self.client.request(method, format!("{}{path}", self.url));
        Ok(request
            .header("x-gat-timestamp", now)
            .header("x-gat-access-key", access_key)
            .header("x-gat-signature", signature))
    }
}

async fn answer(request: RequestBuilder) -> Result<Answer> {
    Ok(request.send().await?.error_for_status()?.json().await?)
}
