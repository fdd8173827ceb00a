//! Fills the database with finished orders or with due ones, by COPY, because millions of real
//! orders would take too long. It is the only file of the load test that knows the pipeline's
//! tables, so a migration that changes them concerns this file only.

use accounts::partners::{self, NewPartner};
use anyhow::{Context, Result};
use domain::{Environment, PartnerId};
use signing::{SecretKey, webhook};
use sqlx::{Connection, PgConnection};
use std::fmt::Write;
use testkit::esimctl::CatalogueOption;
use time::OffsetDateTime;
use time::macros::format_description;
use uuid::{NoContext, Timestamp, Uuid};
use vault::Vault;

pub const BATCH: u64 = 20_000;
/// The creation times of filled orders are spread over this many seconds before now (120 days).
const SPREAD: i64 = 120 * 24 * 3600;
/// The length of an encrypted profile in bytes.
const PROFILE_BYTES: usize = 176;

/// The connection that writes the rows, and the partners and the option of the rows.
pub struct Fill {
    connection: PgConnection,
    partners: Vec<Uuid>,
    option: CatalogueOption,
    /// Unix time in seconds.
    now: i64,
}

/// The rows of a batch of orders for each table, in the text format of COPY.
#[derive(Default)]
struct Rows {
    orders: String,
    placements: String,
    work: String,
    topups: String,
    esims: String,
    deliveries: String,
}

impl Fill {
    /// `admin` is the URL of the pipeline's database for a superuser. Triggers are switched off for
    /// this connection, because finished orders must not cause any work.
    pub async fn new(admin: &str, partners: Vec<Uuid>, option: CatalogueOption) -> Result<Self> {
        let mut connection = PgConnection::connect(admin)
            .await
            .context("cannot connect as DATABASE_ADMIN_URL")?;
        sqlx::raw_sql(
            "SET session_replication_role = replica; SET synchronous_commit = off; SET statement_timeout = 0",
        )
        .execute(&mut connection)
        .await?;
        Ok(Self {
            connection,
            partners,
            option,
            now: runtime::clock::unix_seconds(),
        })
    }

    /// Makes partners without endpoints, for orders that are finished.
    pub async fn partners(database_url: &str, vault: &Vault, count: u32) -> Result<Vec<Uuid>> {
        let mut connection = PgConnection::connect(database_url).await?;
        let mut transaction = connection.begin().await?;
        let mut made = Vec::new();
        for number in 0..count {
            let id = Uuid::now_v7();
            let secret = id.as_bytes().repeat(2);
            let partner = NewPartner {
                partner_id: PartnerId::from(id),
                name: &format!("filled {number}"),
                environment: Environment::Sandbox,
                access_key: &format!("filled-{}", id.simple()),
                secret_key: &SecretKey::from_bytes(secret.clone())?,
                webhook_url: None,
                webhook_secret: &webhook::Secret::from_bytes(secret)?,
                limits: accounts::partners::PartnerLimits::default(),
            };
            partners::create(&mut transaction, vault, &partner).await?;
            made.push(id);
        }
        transaction.commit().await?;
        Ok(made)
    }

    /// The number of orders that [`Fill::finished`] has stored so far, also in earlier runs.
    pub async fn stored(&mut self) -> Result<u64> {
        let last: Option<String> =
            sqlx::query_scalar("SELECT max(topup_id) FROM topups WHERE topup_id < '20000102'")
                .fetch_one(&mut self.connection)
                .await?;
        Ok(last.map_or(0, |last| last[14..].parse().unwrap_or(0)))
    }

    /// Stores `count` delivered orders of one topup after the `first` existing ones.
    pub async fn finished(&mut self, first: u64, count: u64, of: u64) -> Result<()> {
        let mut rows = Rows::default();
        for number in first + 1..=first + count {
            let age = SPREAD - SPREAD * i64::try_from(number)? / i64::try_from(of.max(1))?;
            let external = format!("filled-{number}");
            let topup = format!("20000101000000{number:012}");
            let ([order, _, partner], at) =
                self.order(&mut rows, number, age.max(60), &external, &topup, true)?;
            let provider = &self.option.provider;
            let unit = Uuid::now_v7().simple().to_string();
            let profile = unit.repeat(PROFILE_BYTES / 16);
            let delivery = Uuid::now_v7();
            writeln!(
                rows.esims,
                "{topup}\t{provider}\t{unit}\t89{number:018}\t\\\\x{profile}\t{at}\t{delivery}"
            )?;
            writeln!(
                rows.deliveries,
                "{delivery}\t{partner}\ttopup.ready\t{topup}\t{order}\tdelivered\t1\t{at}\t200\t{at}\t{at}"
            )?;
        }
        self.copy(rows).await
    }

    /// Stores `count` due orders of one topup each. They are stored in one transaction, so that the
    /// provisioner sees all of them at once. Their topups are `backlog_topups(run, count)`.
    pub async fn backlog(
        &mut self,
        run: u64,
        count: u64,
        mut progress: impl FnMut(u64),
    ) -> Result<()> {
        sqlx::raw_sql("BEGIN").execute(&mut self.connection).await?;
        let mut first = 0;
        while first < count {
            let batch = BATCH.min(count - first);
            let mut rows = Rows::default();
            for number in first..first + batch {
                let external = format!("backlog-{run}-{number}");
                let topup = format!("{:026}", backlog_topup(run, number));
                let ([_, placement, partner], at) =
                    self.order(&mut rows, number, 60, &external, &topup, false)?;
                let provider = &self.option.provider;
                let lane = &self.option.provider_option_id;
                writeln!(
                    rows.work,
                    "{placement}\tbuy\t{provider}\t{lane}\t{partner}\t{at}"
                )?;
            }
            self.copy(rows).await?;
            first += batch;
            progress(first);
        }
        sqlx::raw_sql("COMMIT")
            .execute(&mut self.connection)
            .await?;
        Ok(())
    }

    /// Vacuums and analyses the tables and writes them to disk. This is the state in which real
    /// tables are, unlike tables right after a fill.
    pub async fn settle(&mut self) -> Result<()> {
        let vacuum = "VACUUM (ANALYZE) orders, placements, work, topups, esims, deliveries";
        for statement in [vacuum, "CHECKPOINT"] {
            sqlx::raw_sql(statement)
                .execute(&mut self.connection)
                .await?;
        }
        Ok(())
    }

    /// The size of the whole database in bytes.
    pub async fn size(&mut self) -> Result<i64> {
        let size = sqlx::query_scalar("SELECT pg_database_size(current_database())");
        Ok(size.fetch_one(&mut self.connection).await?)
    }

    /// An order of one topup, made `age` seconds ago; its placement is bought or not. Returns the
    /// ids of order, placement and partner, and the time.
    fn order(
        &self,
        rows: &mut Rows,
        number: u64,
        age: i64,
        external: &str,
        topup: &str,
        bought: bool,
    ) -> Result<([Uuid; 3], String)> {
        let seconds = self.now - age;
        let timestamp = Timestamp::from_unix(NoContext, u64::try_from(seconds)?, 0);
        let [order, placement] = [timestamp; 2].map(Uuid::new_v7);
        let format = format_description!("[year]-[month]-[day] [hour]:[minute]:[second]+00");
        let at = OffsetDateTime::from_unix_timestamp(seconds)?.format(format)?;
        let partner = self.partners[usize::try_from(number)? % self.partners.len()];
        let CatalogueOption {
            option_id,
            provider,
            provider_option_id: lane,
            ..
        } = &self.option;
        let state = if bought {
            format!("placed\t1\t{at}\t{at}")
        } else {
            "accepted\t0\t\\N\t\\N".to_owned()
        };
        writeln!(rows.orders, "{order}\t{partner}\t{external}\t{at}\t{at}")?;
        writeln!(
            rows.placements,
            "{placement}\t{order}\t{partner}\t{provider}\t{lane}\t{state}\t{at}"
        )?;
        writeln!(rows.topups, "{topup}\t{placement}\t0\t{option_id}\t{lane}")?;
        Ok(([order, placement, partner], at))
    }

    async fn copy(&mut self, rows: Rows) -> Result<()> {
        let tables = [
            (
                "orders (order_id, partner_id, external_order_id, answer_by, created_at)",
                rows.orders,
            ),
            (
                "placements (placement_id, order_id, partner_id, provider, lane, state, attempt, attempted_at, \
                 placed_at, created_at)",
                rows.placements,
            ),
            (
                "topups (topup_id, placement_id, position, option_id, provider_option_id)",
                rows.topups,
            ),
            (
                "esims (topup_id, provider, provider_unit_id, iccid, profile, ready_at, delivery_id)",
                rows.esims,
            ),
            ("work (id, kind, provider, lane, partner_id, at)", rows.work),
            (
                "deliveries (delivery_id, partner_id, kind, topup_id, order_id, state, attempt, attempted_at, status, \
                 delivered_at, created_at)",
                rows.deliveries,
            ),
        ];
        for (table, text) in tables {
            let mut copy = self
                .connection
                .copy_in_raw(&format!("COPY {table} FROM STDIN"))
                .await?;
            copy.send(text.as_bytes()).await?;
            copy.finish().await?;
        }
        Ok(())
    }
}

/// The id of a topup of a backlog. It is lower than every id that ingress makes, so that the two
/// never collide.
pub fn backlog_topup(run: u64, number: u64) -> u128 {
    20_000_202_000_000_000_000_000_000 + u128::from(run) * 100_000_000 + u128::from(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use testkit::database::Database;
    use testkit::esimctl::Esimctl;

    /// This test fails if a migration changes a table that this file writes.
    #[tokio::test]
    async fn filled_orders_are_what_the_pipeline_would_have_stored() {
        let database = Database::create().await.unwrap();
        let esimctl = Esimctl::new([("DATABASE_URL".into(), database.url().into())]);
        let _: Value = esimctl.run(&["migrate"]).await.unwrap();
        let option = json!({"option_id": Uuid::now_v7(), "name": "ready", "provider": "sandbox",
            "provider_option_id": "ready", "environment": "sandbox"});
        let option: CatalogueOption = serde_json::from_value(option).unwrap();
        let mut fill = Fill::new(database.url(), vec![Uuid::now_v7()], option)
            .await
            .unwrap();
        fill.finished(0, 3, 10).await.unwrap();
        fill.finished(3, 2, 10).await.unwrap();
        assert_eq!(fill.stored().await.unwrap(), 5);
        let mut seen = 0;
        fill.backlog(7, 2, |stored| seen = stored).await.unwrap();
        fill.settle().await.unwrap();
        assert_eq!((seen, fill.stored().await.unwrap()), (2, 5));

        let finished = esimctl
            .order_times("20000101000000000000000004")
            .await
            .unwrap()
            .remove(0);
        assert_eq!((finished.placements.len(), finished.topups.len()), (1, 1));
        assert!(finished.placements[0].placed_at.is_some());
        let topup = &finished.topups[0];
        assert!(topup.ready_at.is_some() && topup.delivered_at.is_some());
        let due = esimctl
            .order_times(&backlog_topup(7, 1).to_string())
            .await
            .unwrap()
            .remove(0);
        assert!(due.placements[0].placed_at.is_none() && due.topups[0].ready_at.is_none());
    }
}
