//! The partners, options and requests that the tables use.

use crate::shop::{fresh, verdicts_come};
use anyhow::{Context, Result};
use bytes::Bytes;
use serde_json::{Value, json};
use std::{collections::BTreeMap, time::Duration};
use testkit::client::{Client, ORDERS, Request, SIGNATURE};
use testkit::{esimctl::Partner, stack::Stack, wait};

/// A live option of a provider that isn't configured.
const LIVE: &str = "7a1c1f6e-2d0e-4b51-9c06-1d7f3b6c8a11";
/// Live options of two providers: one of which only the second provider is configured, and one
/// whose first provider has none left, and whose second one is not configured.
const ROUTED: [(&str, &str); 2] = [
    ("sold-elsewhere", "7a1c1f6e-2d0e-4b51-9c06-1d7f3b6c8a12"),
    ("sold-out-here", "7a1c1f6e-2d0e-4b51-9c06-1d7f3b6c8a13"),
];
/// An id that no option has.
pub const NO_OPTION: &str = "00000000-0000-4000-8000-000000000000";

/// A stack with partners of all kinds.
pub struct World {
    pub stack: Stack,
    /// In the sandbox, without webhook URL: the tables are about answers.
    pub partner: Partner,
    pub client: Client,
    /// A second partner in the sandbox.
    pub other: Client,
    pub live: Partner,
    pub disabled: Client,
    pub without_secret: Client,
    /// Has a secret that was damaged in the database.
    pub undecryptable: Client,
    /// An external id of an order of `client`.
    pub taken: String,
    /// An external id that rows of one table use one after the other.
    pub reused: String,
    options: BTreeMap<&'static str, String>,
}

impl World {
    pub async fn make() -> Result<Self> {
        Self::on(Stack::start().await?).await
    }

    pub async fn on(stack: Stack) -> Result<Self> {
        import_options(&stack).await?;
        let mut options = BTreeMap::from([("live", LIVE.to_owned())]);
        options.extend(ROUTED.map(|(name, id)| (name, id.to_owned())));
        for name in ["ready", "delayed", "refused", "out-of-stock"] {
            options.insert(name, stack.option(name)?.to_owned());
        }
        let partner = stack.create_partner("sandbox", None).await?;
        let client = stack.client(&partner)?;
        verdicts_come(&stack, &client).await?;
        let taken = fresh("taken");
        let ready = options["ready"].clone();
        client.order(&taken, &[(&ready, 1)]).await?.products()?;
        Ok(Self {
            other: stack.client(&stack.create_partner("sandbox", None).await?)?,
            live: stack.create_partner("live", None).await?,
            disabled: disabled(&stack).await?,
            without_secret: changed(&stack, "NULL", 401).await?,
            undecryptable: changed(&stack, r"secret_key || '\x00'", 500).await?,
            reused: fresh("reused"),
            stack,
            partner,
            client,
            taken,
            options,
        })
    }

    /// The `option_id` of a sandbox option, or of the option named `live`.
    pub fn option(&self, name: &str) -> &str {
        &self.options[name]
    }

    pub fn ready(&self) -> &str {
        self.option("ready")
    }

    /// A good order of one unit.
    pub fn order(&self) -> Request {
        self.ordered_by(&self.client)
    }

    /// A good order of one unit, by another partner.
    pub fn ordered_by(&self, client: &Client) -> Request {
        client.post(self.body().to_string())
    }

    /// A good order whose signature is changed.
    pub fn resigned(&self, change: impl FnOnce(&str) -> String) -> Request {
        let request = self.order();
        let signature = change(&request.signature());
        request.header(SIGNATURE, signature)
    }

    /// A signed request with any body.
    pub fn post(&self, body: impl Into<Bytes>) -> Request {
        self.client.post(body)
    }

    /// The JSON of a good order.
    pub fn body(&self) -> Value {
        json!({"external_order_id": fresh("order"), "products": [{"option_id": self.ready(), "qty": 1}]})
    }

    /// An order of one unit with any external id.
    pub fn with_id(&self, external_order_id: impl Into<Value>) -> Request {
        let mut body = self.body();
        body["external_order_id"] = external_order_id.into();
        self.post(body.to_string())
    }

    /// An order of anything under a new external id.
    pub fn products(&self, products: impl Into<Value>) -> Request {
        let mut body = self.body();
        body["products"] = products.into();
        self.post(body.to_string())
    }

    /// An order of options by name.
    pub fn items(&self, items: &[(&str, u32)]) -> Request {
        let items = items
            .iter()
            .map(|(name, qty)| json!({"option_id": self.option(name), "qty": qty}));
        self.products(items.collect::<Vec<_>>())
    }

    /// An order of one item with any JSON text for its quantity.
    pub fn qty(&self, text: &str) -> Request {
        let id = fresh("qty");
        let ready = self.ready();
        self.post(format!(
            r#"{{"external_order_id":"{id}","products":[{{"option_id":"{ready}","qty":{text}}}]}}"#
        ))
    }

    /// A good order, signed over the text that the function makes of path, timestamp and access
    /// key.
    pub fn signed_over(&self, text: fn(&str, &str, &str) -> [String; 4]) -> Request {
        let timestamp = runtime::clock::unix_seconds().to_string();
        let [method, path, signed_timestamp, access_key] =
            text(ORDERS, &timestamp, &self.partner.access_key);
        let secret = signing::SecretKey::from_base64(&self.partner.secret_key)
            .expect("esimctl prints Base64");
        let signature =
            signing::request::sign(&secret, &method, &path, &signed_timestamp, &access_key);
        self.order()
            .timestamp(&timestamp)
            .header(SIGNATURE, signature)
    }
}

async fn import_options(stack: &Stack) -> Result<()> {
    let sold_out = stack.esimctl.sandbox_option("out-of-stock").await?;
    let sold_out = sold_out.provider_option_id;
    let further = |provider: &str| json!([{"provider": provider, "provider_option_id": sold_out}]);
    let option = |id: &str, provider: &str, alternatives: Value| {
        json!({
            "option_id": id, "name": id, "provider": provider, "provider_option_id": sold_out,
            "environment": "live", "alternatives": alternatives,
        })
    };
    let [(_, elsewhere), (_, sold_out_here)] = ROUTED;
    let options = [
        option(LIVE, "usimsa", json!([])),
        option(elsewhere, "usimsa", further("sandbox")),
        option(sold_out_here, "sandbox", further("usimsa")),
    ];
    let imported = stack
        .esimctl
        .import(json!({ "options": options }).to_string())
        .await?;
    anyhow::ensure!(imported["imported"] == 3, "{imported}");
    Ok(())
}

/// A partner that an operator disabled, once ingress knows.
async fn disabled(stack: &Stack) -> Result<Client> {
    let partner = stack.create_partner("sandbox", None).await?;
    let _: Value = stack
        .esimctl
        .run(&["partner", "set", &partner.partner_id, "--disabled"])
        .await?;
    let client = stack.client(&partner)?;
    known(&client, 401).await?;
    Ok(client)
}

/// A partner whose stored secret was set to an SQL expression, once ingress answers accordingly.
async fn changed(stack: &Stack, secret_key: &str, status: u16) -> Result<Client> {
    let partner = stack.create_partner("sandbox", None).await?;
    let statement = format!("UPDATE partners SET secret_key = {secret_key} WHERE access_key = $1");
    let mut database = stack.database.connect().await?;
    let changed = sqlx::query(sqlx::AssertSqlSafe(statement))
        .bind(&partner.access_key)
        .execute(&mut database);
    anyhow::ensure!(
        changed.await?.rows_affected() == 1,
        "the partner is not in the database"
    );
    let client = stack.client(&partner)?;
    known(&client, status).await?;
    Ok(client)
}

/// A revoked partner stops within a second; a test machine may be slower.
async fn known(client: &Client, status: u16) -> Result<()> {
    let answered = async || Ok((client.post("{}").send().await?.status == status).then_some(()));
    wait::until(
        Duration::from_secs(5),
        "ingress to know of a changed partner",
        answered,
    )
    .await
    .with_context(|| format!("expected {status}"))
}
