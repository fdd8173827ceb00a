//! `esimctl order erase`, `esimctl partner erase`: erasure on request.

use anyhow::{Context, bail};
use clap::{Args, builder::NonEmptyStringValueParser};
use serde_json::json;
use store::{
    PgConnection,
    operator::{
        actions::Mode,
        erase::{self, Erased},
        orders,
    },
};

use crate::{
    confirm::Confirm,
    console::Console,
    lookup::{Which, find},
    output::printable,
};

pub const ORDER_EXAMPLES: &str = "Examples:
  esimctl order erase 0199aabb-ccdd-7eee-8fff-001122334455 --dry-run
  esimctl order erase acme-1001 --reason 'request 4711'

The command erases profiles, attempts of webhooks and texts. It keeps ids, ICCIDs, states and times, so the external
order id can't be used again. It refuses an unfinished order, and prints where copies are left.";

pub const PARTNER_EXAMPLES: &str = "Examples:
  esimctl partner erase ak_0123456789abcdef01234567 --dry-run
  esimctl partner erase ak_0123456789abcdef01234567 --reason 'contract ended'

The command erases all orders of the partner like `order erase`, then its name, keys, webhook URL and secret. The
partner must be disabled (`esimctl partner disable`), and all its orders finished. After an interruption repeat the
command with the partner's id.";

/// Orders of one transaction.
const BATCH: u32 = 200;

/// The copies that no command can erase.
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

pub async fn order(asked: &EraseOrder, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let found = orders::find(&mut connection, &asked.id).await?;
    let id = &asked.id;
    let order = match &found[..] {
        [order] => order,
        [] => bail!("there is no order {id:?}; see `esimctl order show --help`"),
        several => {
            let ids: Vec<String> = several.iter().map(|order| order.order_id.to_string()).collect();
            bail!("{id:?} names several orders, give one order id: {}", ids.join(", "));
        }
    };
    let target = format!("order {}", order.order_id);
    let name = format!("{target} ({})", printable(&order.external_order_id));
    let erase = async |mode: Mode<'_>| {
        let erasing = erase::order(&mut connection, order.order_id.into(), mode);
        erasing.await.with_context(|| format!("cannot erase {name}"))
    };
    let preview = |erased: &Erased| describe(&name, *erased, "is erased for good");
    let print = |erased: &Erased, dry_run| print(console, &name, *erased, dry_run);
    asked.confirm.carry_out("order erase", &target, erase, preview, print).await
}

pub async fn partner(asked: &ErasePartner, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let partner = find(&mut connection, &asked.which.partner).await?;
    let (id, name) = (partner.partner_id, format!("partner {}", partner.partner_id));
    let counting = erase::partner_orders(&mut connection, id.into());
    let orders = counting.await.with_context(|| format!("cannot erase {name}"))?;
    let shown = format!("{name} ({}) and its {orders} orders", printable(&partner.name));
    if asked.confirm.dry_run {
        let json = json!({ "partner_id": id, "orders": orders, "dry_run": true });
        return console.print(&json, || format!("{shown} would be erased.\n{COPIES}"));
    }
    asked.confirm.ask(&format!("{shown} are erased for good."))?;
    erase::partner(&mut connection, id.into(), orders, asked.confirm.apply("partner erase", &name)).await?;
    print(console, &name, all_orders(&mut connection, id.into()).await?, false)
}

async fn all_orders(connection: &mut PgConnection, partner_id: domain::PartnerId) -> anyhow::Result<Erased> {
    let mut erased = Erased::default();
    let mut after = None;
    loop {
        let (batch, next) = erase::partner_batch(connection, partner_id, after, BATCH).await?;
        erased += batch;
        if next.is_none() {
            return Ok(erased);
        }
        after = next;
        eprintln!("{} orders erased", erased.orders);
    }
}

fn print(console: &Console, name: &str, erased: Erased, dry_run: bool) -> anyhow::Result<()> {
    let mut shown = json!(erased);
    shown["dry_run"] = json!(dry_run);
    shown["copies"] = json!(COPIES);
    let verb = if dry_run { "would be erased" } else { "is erased" };
    console.print(&shown, || format!("{}\n{COPIES}", describe(name, erased, verb)))
}

fn describe(name: &str, erased: Erased, verb: &str) -> String {
    let Erased { orders, profiles, attempts, undelivered } = erased;
    let rest = if undelivered > 0 {
        format!(" {undelivered} webhooks were never acknowledged and are no longer sent.")
    } else {
        String::new()
    };
    format!("{name} {verb}: {orders} orders, {profiles} profiles, {attempts} attempts of webhooks.{rest}")
}
