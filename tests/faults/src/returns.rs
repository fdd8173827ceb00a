//! Partners that give delivered eSIMs back and extend others while orders are placed. eSIM Access
//! sells the ICCIDs of what was given back again, so two units may have one, one after the other.

use crate::book::lock;
use anyhow::{Context, Result};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;
use testkit::client::Client;
use testkit::database::Database;
use testkit::esimctl::Partner;

/// The interval at which an eSIM is given back, or extended.
const EVERY: Duration = Duration::from_secs(2);
/// How long a question to the database, and a request, may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// What partners have given back.
#[derive(Default)]
pub struct Returns {
    /// The topups. Nobody knows whether a request without an answer was carried out.
    asked: Mutex<BTreeSet<String>>,
}

impl Returns {
    /// Gives one eSIM after the other back, and extends others by this option. Never returns.
    pub async fn go_on(
        &self,
        database: &Database,
        ingress: &str,
        partners: &[Partner],
        option_id: &str,
    ) {
        let mut ticks = tokio::time::interval(EVERY);
        for tick in 0_u64.. {
            ticks.tick().await;
            // A fault may have cut the database or ingress off. Another eSIM follows.
            let extension = tick.is_multiple_of(2).then_some(option_id);
            let one = self.change_one(database, ingress, partners, extension);
            let _ = tokio::time::timeout(PATIENCE, one).await;
        }
    }

    /// The topups that may be given back.
    pub fn asked(&self) -> BTreeSet<String> {
        lock(&self.asked).clone()
    }

    /// Gives an eSIM back, or extends it by an option. The topup id is the external id of the
    /// extension, too.
    async fn change_one(
        &self,
        database: &Database,
        ingress: &str,
        partners: &[Partner],
        extension: Option<&str>,
    ) -> Result<()> {
        let delivered: Option<(String, String)> = sqlx::query_as(
            "SELECT topup_id, partner_id::text FROM deliveries d
             WHERE state = 'delivered' AND kind = 'topup.ready' AND NOT EXISTS (
                 SELECT FROM esim_requests r WHERE r.topup_id = d.topup_id)
             AND NOT EXISTS (SELECT FROM extensions x WHERE x.topup_id = d.topup_id)
             ORDER BY delivery_id DESC LIMIT 1",
        )
        .fetch_optional(&mut database.connect().await?)
        .await?;
        let Some((topup_id, partner_id)) = delivered else {
            return Ok(());
        };
        let mut partners = partners.iter();
        let partner = partners.find(|one| one.partner_id == partner_id);
        let client = Client::of(ingress, partner.context("an unknown partner")?)?;
        let path = format!("/api/v1/api_partner/topups/{topup_id}");
        if let Some(option_id) = extension {
            let body = json!({"external_id": topup_id, "option_id": option_id}).to_string();
            let path = format!("{path}/extensions");
            // Two requests at once are one extension, and a third one follows if they are lost.
            let send = async || client.post(body.clone()).path(&path).send().await;
            let both = tokio::join!(send(), send());
            if both.0.is_err() || both.1.is_err() {
                send().await?;
            }
        } else {
            lock(&self.asked).insert(topup_id);
            let path = format!("{path}/give-back");
            client.post("").path(&path).send().await?;
        }
        Ok(())
    }
}
