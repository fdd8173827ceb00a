//! The peer on `riverqueue`.
//!
//! An order and its `buy` job are stored in one transaction. That job buys, and in one transaction
//! records the profiles, inserts a `deliver` job for each of them, and is completed. A `deliver`
//! job sends one webhook; its row, which River completes in batches, is the record of the delivery.
//!
//! A crash between the purchase and its record runs `buy` again, after River's rescuer has found
//! the job. So a provider that does not refuse an order id that it knows sells twice.

use anyhow::{Context, Result};
use peer::partner::{Partners, Row};
use peer::provider::{Provider, Purchase, Unit};
use peer::server::{Order, Orders, router};
use peer::webhook::{Stored, Webhooks};
use peer::{JOB_CONNECTIONS, NOT_READY, REQUEST_CONNECTIONS, WORKERS, log, setting, stopped};
use riverqueue::database::begin_postgres;
use riverqueue::migrate::PostgresMigrator;
use riverqueue::sqlx::{self, PgPool, postgres::PgPoolOptions};
use riverqueue::{Client, Job, JobArgs, QueueConfig, WorkContext, WorkOutcome, Workers};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::net::TcpListener;
use uuid::Uuid;

/// The shortest pause between two fetches of a queue, and how often it is polled when no
/// notification arrives. The defaults of 100 ms and 1 s would be most of an order's time.
const FETCH_COOLDOWN: Duration = Duration::from_millis(5);
const FETCH_POLL: Duration = Duration::from_millis(50);

#[derive(Clone, Deserialize, JobArgs, Serialize)]
#[river(kind = "buy")]
struct Buy {
    order_id: Uuid,
    units: Vec<Unit>,
}

#[derive(Clone, Deserialize, JobArgs, Serialize)]
#[river(kind = "deliver")]
struct Deliver {
    partner_id: Uuid,
    topup_id: String,
}

#[tokio::main]
async fn main() -> Result<()> {
    log();
    let pool = PgPoolOptions::new()
        .max_connections(JOB_CONNECTIONS)
        .connect(&setting("DATABASE_URL")?)
        .await?;
    PostgresMigrator::new(pool.clone()).migrate_up().await?;
    sqlx::raw_sql(peer::TABLES).execute(&pool).await?;
    let partners = Partners::default();
    for row in partners_of(&pool).await? {
        partners.add(row)?;
    }

    let mut workers = Workers::new();
    let (provider, buying) = (Provider::from_settings()?, pool.clone());
    workers.add_fn(move |context, job| buy(context, job, provider.clone(), buying.clone()))?;
    let (webhooks, reading, known) = (Webhooks::new()?, pool.clone(), partners.clone());
    workers.add_fn(move |_: WorkContext, job: Job<Deliver>| {
        deliver(job, webhooks.clone(), reading.clone(), known.clone())
    })?;
    let queue = || {
        let config = QueueConfig::new(WORKERS.into());
        config.with_fetch_poll_interval(FETCH_POLL)
    };
    let client = Client::builder(pool.clone())
        .workers(workers)
        .fetch_cooldown(FETCH_COOLDOWN)
        .queue("buy", queue())
        .queue("deliver", queue())
        .build()?;
    let mut run = client.start()?;
    run.wait_ready().await?;

    let listener = TcpListener::bind(setting("LISTEN")?).await?;
    let requests = PgPoolOptions::new()
        .max_connections(REQUEST_CONNECTIONS)
        .connect(&setting("DATABASE_URL")?)
        .await?;
    let orders = River {
        client,
        pool: requests,
    };
    let router = router(orders, partners)?;
    tokio::select! {
        served = async { axum::serve(listener, router).await } => served?,
        signal = stopped() => signal?,
    }
    Ok(run.stop().await?)
}

struct River {
    client: Client,
    pool: PgPool,
}

impl Orders for River {
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
        let mut transaction = begin_postgres(&self.pool).await?;
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
        let insert = self.client.insert(buy).opts(in_queue("buy"));
        insert.tx(&mut transaction).await?;
        transaction.commit().await?;
        Ok(true)
    }
}

fn in_queue(name: &str) -> riverqueue::InsertOpts {
    riverqueue::InsertOpts::default().with_queue(name)
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

async fn buy(
    context: WorkContext,
    job: Job<Buy>,
    provider: Provider,
    pool: PgPool,
) -> Result<WorkOutcome> {
    let Buy { order_id, units } = &job.args;
    let esims = match provider.buy(*order_id, units).await? {
        Purchase::Bought(esims) => esims,
        Purchase::NotReady => return Ok(WorkOutcome::Snooze(NOT_READY)),
        Purchase::Refused => return Ok(WorkOutcome::Cancel),
    };
    let client = context.client().context("the job has no client")?;
    let mut transaction = begin_postgres(&pool).await?;
    let column = |value: fn(&peer::provider::Esim) -> &String| -> Vec<&String> {
        esims.iter().map(value).collect()
    };
    let partner_id: Uuid = sqlx::query_scalar(peer::RECORD)
        .bind(column(|esim| &esim.topup_id))
        .bind(column(|esim| &esim.iccid))
        .bind(column(|esim| &esim.smdp))
        .bind(column(|esim| &esim.activate_code))
        .bind(column(|esim| &esim.expired_date))
        .bind(order_id)
        .fetch_one(&mut *transaction)
        .await?;
    let deliveries = esims.iter().map(|esim| {
        let deliver = Deliver {
            partner_id,
            topup_id: esim.topup_id.clone(),
        };
        (deliver, in_queue("deliver"))
    });
    let insert = client.insert_many(deliveries);
    insert.tx(&mut transaction).await?;
    context.job_complete_tx(&mut transaction).await?;
    transaction.commit().await?;
    Ok(WorkOutcome::Complete)
}

async fn deliver(
    job: Job<Deliver>,
    webhooks: Webhooks,
    pool: PgPool,
    partners: Partners,
) -> Result<WorkOutcome> {
    type Columns = (String, String, String, String, String, String);
    let (option_id, external_order_id, iccid, smdp, activate_code, expired_date): Columns =
        sqlx::query_as(peer::STORED)
            .bind(&job.args.topup_id)
            .fetch_one(&pool)
            .await?;
    let stored = Stored {
        topup_id: job.args.topup_id,
        option_id,
        external_order_id,
        iccid,
        smdp,
        activate_code,
        expired_date,
    };
    let partner = partners.by_id(job.args.partner_id)?;
    webhooks.deliver(&partner, &stored).await?;
    Ok(WorkOutcome::Complete)
}
