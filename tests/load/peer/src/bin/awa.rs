//! The peer on `awa`.
//!
//! An order and its `buy` job are stored in one transaction. That job buys, and in one transaction
//! records the profiles and inserts a `deliver` job for each of them. A `deliver` job sends one
//! webhook. awa completes both kinds in batches, and what it keeps of a `deliver` job is the record
//! of the delivery.
//!
//! A crash between the purchase and the job's completion runs `buy` again, after awa's rescuer has
//! found the job. So a provider that does not refuse an order id that it knows sells twice.

use anyhow::Result;
use awa::{Client, InsertOpts, JobArgs, JobContext, JobError, JobResult, QueueConfig};
use peer::partner::{Partners, Row};
use peer::provider::{Esim, Provider, Purchase, Unit};
use peer::server::{Order, Orders, router};
use peer::webhook::{Stored, Webhooks};
use peer::{JOB_CONNECTIONS, NOT_READY, REQUEST_CONNECTIONS, WORKERS, log, setting, stopped};
use serde::{Deserialize, Serialize};
use sqlx::{PgPool, postgres::PgPoolOptions};
use std::time::Duration;
use tokio::net::TcpListener;
use uuid::Uuid;

/// The longest time in which running jobs may end after SIGTERM.
const STOP: Duration = Duration::from_secs(10);

#[derive(Deserialize, JobArgs, Serialize)]
struct Buy {
    order_id: Uuid,
    units: Vec<Unit>,
}

#[derive(Deserialize, JobArgs, Serialize)]
struct Deliver {
    partner_id: Uuid,
    topup_id: String,
}

/// What the jobs need.
#[derive(Clone)]
struct Tools {
    pool: PgPool,
    provider: Provider,
    webhooks: Webhooks,
    partners: Partners,
}

#[tokio::main]
async fn main() -> Result<()> {
    log();
    let pool = PgPoolOptions::new()
        .max_connections(JOB_CONNECTIONS)
        .connect(&setting("DATABASE_URL")?)
        .await?;
    awa::migrations::run(&pool).await?;
    sqlx::raw_sql(peer::TABLES).execute(&pool).await?;
    let partners = Partners::default();
    for row in partners_of(&pool).await? {
        partners.add(row)?;
    }

    let tools = Tools {
        pool: pool.clone(),
        provider: Provider::from_settings()?,
        webhooks: Webhooks::new()?,
        partners: partners.clone(),
    };
    let queue = || QueueConfig {
        max_workers: WORKERS.into(),
        ..QueueConfig::default()
    };
    let (buying, delivering) = (tools.clone(), tools);
    let client = Client::builder(pool.clone())
        .queue("buy", queue())
        .queue("deliver", queue())
        .register(move |args: Buy, _: &JobContext| buy(args, buying.clone()))
        .register(move |args: Deliver, _: &JobContext| deliver(args, delivering.clone()))
        .build()?;
    client.start().await?;

    let listener = TcpListener::bind(setting("LISTEN")?).await?;
    let requests = PgPoolOptions::new()
        .max_connections(REQUEST_CONNECTIONS)
        .connect(&setting("DATABASE_URL")?)
        .await?;
    let router = router(Awa { pool: requests }, partners)?;
    tokio::select! {
        served = async { axum::serve(listener, router).await } => served?,
        signal = stopped() => signal?,
    }
    client.shutdown(STOP).await;
    Ok(())
}

struct Awa {
    pool: PgPool,
}

impl Orders for Awa {
    async fn add_partner(&self, row: &Row) -> Result<()> {
        sqlx::query("INSERT INTO partners VALUES ($1, $2, $3, $4, $5)")
            .bind(row.partner_id)
            .bind(&row.access_key)
            .bind(&row.secret_key)
            .bind(&row.webhook_secret)
            .bind(&row.webhook_url)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    async fn store(&self, order: Order) -> Result<bool> {
        let units = order.units.iter();
        let (topup_ids, option_ids): (Vec<&str>, Vec<Uuid>) = units
            .map(|unit| (unit.topup_id.as_str(), unit.option_id))
            .unzip();
        let mut transaction = self.pool.begin().await?;
        let stored = sqlx::query(peer::STORE)
            .bind(order.order_id)
            .bind(order.partner_id)
            .bind(&order.external_order_id)
            .bind(topup_ids)
            .bind(option_ids)
            .execute(&mut *transaction)
            .await?;
        if stored.rows_affected() == 0 {
            return Ok(false);
        }
        let buy = Buy {
            order_id: order.order_id,
            units: order.units,
        };
        awa::insert_with(&mut *transaction, &buy, in_queue("buy")).await?;
        transaction.commit().await?;
        Ok(true)
    }
}

fn in_queue(name: &str) -> InsertOpts {
    InsertOpts {
        queue: name.to_owned(),
        ..InsertOpts::default()
    }
}

async fn partners_of(pool: &PgPool) -> Result<Vec<Row>> {
    type Columns = (Uuid, String, String, String, String);
    let rows: Vec<Columns> = sqlx::query_as(peer::PARTNERS).fetch_all(pool).await?;
    let row = |(partner_id, access_key, secret_key, webhook_secret, webhook_url)| Row {
        partner_id,
        access_key,
        secret_key,
        webhook_secret,
        webhook_url,
    };
    Ok(rows.into_iter().map(row).collect())
}

async fn buy(args: Buy, tools: Tools) -> Result<JobResult, JobError> {
    match tools.provider.buy(args.order_id, &args.units).await? {
        Purchase::Bought(esims) => record(args.order_id, &esims, &tools.pool).await?,
        Purchase::NotReady => return Ok(JobResult::Snooze(NOT_READY)),
        Purchase::Refused => return Ok(JobResult::Cancel("the provider does not sell it".into())),
    }
    Ok(JobResult::Completed)
}

/// Records the profiles of an order, together with the jobs that deliver them.
async fn record(order_id: Uuid, esims: &[Esim], pool: &PgPool) -> Result<()> {
    let column =
        |value: fn(&Esim) -> &String| -> Vec<&String> { esims.iter().map(value).collect() };
    let mut transaction = pool.begin().await?;
    let partner_id: Uuid = sqlx::query_scalar(peer::RECORD)
        .bind(column(|esim| &esim.topup_id))
        .bind(column(|esim| &esim.iccid))
        .bind(column(|esim| &esim.smdp))
        .bind(column(|esim| &esim.activate_code))
        .bind(column(|esim| &esim.expired_date))
        .bind(order_id)
        .fetch_one(&mut *transaction)
        .await?;
    let mut deliveries = Vec::with_capacity(esims.len());
    for esim in esims {
        let deliver = Deliver {
            partner_id,
            topup_id: esim.topup_id.clone(),
        };
        deliveries.push(awa::insert::params_with(&deliver, in_queue("deliver"))?);
    }
    awa::insert_many(&mut *transaction, &deliveries).await?;
    Ok(transaction.commit().await?)
}

async fn deliver(args: Deliver, tools: Tools) -> Result<JobResult, JobError> {
    type Columns = (String, String, String, String, String, String);
    let (option_id, external_order_id, iccid, smdp, activate_code, expired_date): Columns =
        sqlx::query_as(peer::STORED)
            .bind(&args.topup_id)
            .fetch_one(&tools.pool)
            .await
            .map_err(JobError::retryable)?;
    let stored = Stored {
        topup_id: args.topup_id,
        option_id,
        external_order_id,
        iccid,
        smdp,
        activate_code,
        expired_date,
    };
    let partner = tools.partners.by_id(args.partner_id)?;
    tools.webhooks.deliver(&partner, &stored).await?;
    Ok(JobResult::Completed)
}
