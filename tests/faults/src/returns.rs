//! Partners that give delivered eSIMs back while orders are placed. eSIM Access sells their ICCIDs
//! again, so two units may have one, one after the other.

use crate::book::lock;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;
use testkit::client::Client;
use testkit::database::Database;
use testkit::esimctl::Partner;

/// The interval at which an eSIM is given back.
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
    /// Gives one eSIM after the other back. Never returns.
    pub async fn give_back(&self, database: &Database, ingress: &str, partners: &[Partner]) {
        let mut ticks = tokio::time::interval(EVERY);
        loop {
            ticks.tick().await;
            // A fault may have cut the database or ingress off. Another eSIM follows.
            let one = self.give_back_one(database, ingress, partners);
            let _ = tokio::time::timeout(PATIENCE, one).await;
        }
    }

    /// The topups that may be given back.
    pub fn asked(&self) -> BTreeSet<String> {
        lock(&self.asked).clone()
    }

    async fn give_back_one(
        &self,
        database: &Database,
        ingress: &str,
        partners: &[Partner],
    ) -> Result<()> {
        let delivered: Option<(String, String)> = sqlx::query_as(
            "SELECT topup_id, partner_id::text FROM deliveries d
             WHERE state = 'delivered' AND kind = 'topup.ready' AND NOT EXISTS (
                 SELECT FROM esim_requests r WHERE r.topup_id = d.topup_id)
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
        let path = format!("/api/v1/api_partner/topups/{topup_id}/give-back");
        lock(&self.asked).insert(topup_id);
        client.post("").path(&path).send().await?;
        Ok(())
    }
}
