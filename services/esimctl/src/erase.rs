//! `esimctl order erase`, `esimctl partner erase`: erasure on request.

use anyhow::{Context, bail};
use clap::{Args, builder::NonEmptyStringValueParser};
use serde_json::json;
use store::{
    PgConnection,
    config::DatabaseConfig,
    operator::{
        actions::Mode,
        erase::{self, Erased},
        orders,
    },
};

use crate::{
    confirm::Confirm,
    database::connect,
    lookup::{Which, find},
    output::{Output, printable},
};

pub const ORDER_EXAMPLES: &str = "Examples:
  esimctl order erase 0199aabb-ccdd-7eee-8fff-001122334455 --dry-run
  esimctl order erase acme-1001 --reason 'request 4711'

Profiles, attempts of webhooks and texts go; ids, ICCIDs, states and times stay, so the external order id can't be
bought again. An order that is not finished is refused. It prints where copies are left.";

pub const PARTNER_EXAMPLES: &str = "Examples:
  esimctl partner disable ak_0123456789abcdef01234567
  esimctl partner erase ak_0123456789abcdef01234567 --dry-run
  esimctl partner erase ak_0123456789abcdef01234567 --reason 'contract ended'

All its orders are erased like with `order erase`, then its name, keys, webhook URL and secret. The partner must be
disabled, and all its orders finished. After an interruption repeat the command with the partner's id.";

/// Orders of one transaction.
const BATCH: u32 = 200;

/// What no command of ours can erase.
const COPIES: &str = "Copies are left: in dumps and base backups until they are deleted; in archived WAL, with the old \
                      pages, until the archive's retention ends; in PostgreSQL's data files until autovacuum has run. \
                      Messages and logs hold ids only: messages 10 minutes (TOPUP_DEAD 30 days), logs and traces as \
                      long as you keep them.";

#[derive(Args, Clone, Debug)]
pub struct EraseOrder {
    /// Our order id, a placement id, a topup id, an ICCID, or an external order id
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    id: String,
    #[command(flatten)]
    confirm: Confirm,
}

#[derive(Args, Clone, Debug)]
pub struct ErasePartner {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    confirm: Confirm,
}

pub async fn order(asked: &EraseOrder, database: &DatabaseConfig, output: &Output) -> anyhow::Result<()> {
    let mut connection = connect(database).await?;
    let found = orders::find(&mut connection, &asked.id).await?;
    let [order] = &found[..] else {
        if found.is_empty() {
            bail!(
                "there is no order {:?}; see `esimctl order show --help`",
                asked.id
            );
        }
        let ids: Vec<String> = found.iter().map(|order| order.order_id.to_string()).collect();
        bail!(
            "{:?} names several orders, give one order id: {}",
            asked.id,
            ids.join(", ")
        );
    };
    let name = format!(
        "order {} ({})",
        order.order_id,
        printable(&order.external_order_id)
    );
    let preview = erase::order(&mut connection, order.order_id.into(), Mode::Preview)
        .await
        .with_context(|| format!("cannot erase {name}"))?;
    if asked.confirm.dry_run {
        return print(output, &name, preview, true);
    }
    asked
        .confirm
        .ask(&describe(&name, preview, "is erased for good"))?;
    let target = format!("order {}", order.order_id);
    let mode = asked.confirm.apply("order erase", &target);
    let erased = erase::order(&mut connection, order.order_id.into(), mode)
        .await
        .with_context(|| format!("cannot erase {name}"))?;
    print(output, &name, erased, false)
}

pub async fn partner(asked: &ErasePartner, database: &DatabaseConfig, output: &Output) -> anyhow::Result<()> {
    let mut connection = connect(database).await?;
    let partner = find(&mut connection, &asked.which).await?;
    let (id, name) = (partner.partner_id, format!("partner {}", partner.partner_id));
    let orders = erase::partner_orders(&mut connection, id.into())
        .await
        .with_context(|| format!("cannot erase {name}"))?;
    let preview = Erased {
        orders,
        ..Erased::default()
    };
    let shown = format!("{name} ({}) and its {orders} orders", printable(&partner.name));
    if asked.confirm.dry_run {
        let json = json!({ "partner_id": id, "orders": preview.orders, "dry_run": true });
        return output.print(&json, || format!("{shown} would be erased.\n{COPIES}"));
    }
    asked.confirm.ask(&format!("{shown} are erased for good."))?;
    let mode = asked.confirm.apply("partner erase", &name);
    erase::partner(&mut connection, id.into(), orders, mode).await?;
    let erased = all_orders(&mut connection, id.into()).await?;
    print(output, &name, erased, false)
}

async fn all_orders(connection: &mut PgConnection, partner_id: domain::PartnerId) -> anyhow::Result<Erased> {
    let (mut erased, mut after) = (Erased::default(), String::new());
    loop {
        let (batch, next) = erase::partner_batch(connection, partner_id, &after, BATCH).await?;
        erased += batch;
        match next {
            Some(next) => after = next,
            None => return Ok(erased),
        }
        eprintln!("{} orders erased", erased.orders);
    }
}

fn print(output: &Output, name: &str, erased: Erased, dry_run: bool) -> anyhow::Result<()> {
    let mut shown = json!(erased);
    shown["dry_run"] = json!(dry_run);
    shown["copies"] = json!(COPIES);
    let verb = if dry_run { "would be erased" } else { "is erased" };
    output.print(&shown, || format!("{}\n{COPIES}", describe(name, erased, verb)))
}

fn describe(name: &str, erased: Erased, verb: &str) -> String {
    let Erased {
        orders,
        profiles,
        attempts,
        undelivered,
    } = erased;
    let rest = if undelivered > 0 {
        format!(" {undelivered} webhooks were never acknowledged and are not sent any more.")
    } else {
        String::new()
    };
    format!("{name} {verb}: {orders} orders, {profiles} profiles, {attempts} attempts of webhooks.{rest}")
}
