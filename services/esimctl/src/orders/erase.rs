//! `esimctl order erase` and `esimctl partner erase`: erase personal data on request.
//!
//! Both commands erase only what is finished, because an unfinished order still needs its data.
//! Both end by printing [`COPIES`], since copies in backups and logs are out of this program's
//! reach and the operator may have promised that they go too.
//!
//! An order is erased in one transaction. A partner is erased in two steps. The first transaction
//! checks that nothing of the disabled partner is unfinished, erases the partner itself and records
//! the action. Then the orders follow in batches of [`BATCH`], so that no long transaction holds up
//! the live system. If the second step is interrupted, a repetition of the command finishes it.

use anyhow::{Context, bail};
use clap::{Args, builder::NonEmptyStringValueParser};
use desk::operator::words::{counted, noun};
use desk::{
    archived::PartnerArchive,
    operator::{
        erase::{self, ErasureCounts},
        orders,
    },
};
use pg::{PgConnection, actions::Mode};
use runtime::terminal::say;
use serde_json::json;

use crate::{
    confirm::{Confirm, ConfirmedChange},
    console::Console,
    lookup::{PartnerArgs, find},
    output::printable,
};

pub const ORDER_EXAMPLES: &str = "Examples:
  esimctl order erase 0199aabb-ccdd-7eee-8fff-001122334455 --dry-run
  esimctl order erase acme-1001 --reason 'request 4711'

The command erases the profiles of the order, the recorded attempts of its webhooks, and texts such as error messages.
It keeps ids, ICCIDs, states and times, so the external order id cannot be used again, and a purchase at the provider
still finds its order. An order that is not finished is refused. At the end the command says where copies are left.";

pub const PARTNER_EXAMPLES: &str = "Examples:
  esimctl partner erase ak_0123456789abcdef01234567 --dry-run
  esimctl partner erase ak_0123456789abcdef01234567 --reason 'contract ended'

The command erases the partner's name, keys, webhook URL and webhook secret, and then all its orders as `order erase`
does. The partner must be disabled first (`esimctl partner set PARTNER --disabled`), and all its orders must be finished. After an
interruption repeat the command with the partner's id, because the access key is erased by then.";

/// The number of orders that one transaction erases.
const BATCH: u32 = 200;

/// Where copies are left that no command can erase. It is printed after each erasure.
const COPIES: &str = "Copies are left: in dumps and base backups until they are deleted; in archived WAL, with the old \
                      pages, until the archive's retention ends; in PostgreSQL's data files until autovacuum has run. \
                      Messages and logs hold ids only: messages for a minute (TOPUP_DEAD 30 days), logs and traces as \
                      long as you keep them.";

#[derive(Args, Clone, Debug)]
pub struct EraseOrder {
    /// An id of the order
    ///
    /// It is our order id, a placement id, a topup id, an ICCID, or the partner's external order
    /// id. If several orders have it, the command erases nothing and lists their order ids.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    id: String,
    #[command(flatten)]
    confirm: Confirm,
}

#[derive(Args, Clone, Debug)]
pub struct ErasePartner {
    #[command(flatten)]
    which: PartnerArgs,
    #[command(flatten)]
    confirm: Confirm,
}

pub async fn order(asked: &EraseOrder, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let found = orders::find(&mut connection, &asked.id).await?;
    let found = found.after_flush(&mut connection).await?;
    let id = &asked.id;
    let order = match &found[..] {
        [order] => order,
        [] => {
            if let [one, ..] = &desk::archived::find(&mut connection, id).await?[..] {
                bail!(
                    "nothing was erased: order {id:?} is archived in {}, without activation codes; take its line out of the file \
                     (zcat, grep -v {}, gzip, and a new sum with sha256sum), or delete the file when its other orders are not \
                     needed any more",
                    one.file,
                    one.order_id
                );
            }
            bail!(
                "there is no order {id:?}; `esimctl order show --help` lists the ids that name an order"
            )
        }
        several => {
            let ids: Vec<String> = several
                .iter()
                .map(|order| order.order_id.to_string())
                .collect();
            bail!(
                "nothing was erased: {id:?} names several orders; repeat the command with one of their order ids: {}",
                ids.join(", ")
            );
        }
    };
    let target = format!("order {}", order.order_id);
    let name = format!("{target} ({})", printable(&order.external_order_id));
    let run = async |mode: Mode<'_>| {
        let erasing = erase::order(&mut connection, order.order_id.into(), mode);
        erasing
            .await
            .with_context(|| format!("cannot erase {name}"))
    };
    let describe = |erased: &ErasureCounts| describe(&name, *erased, "is erased for good");
    let print = |erased: &ErasureCounts, dry_run| print(console, &name, *erased, &[], dry_run);
    let change = ConfirmedChange {
        run,
        describe,
        print,
    };
    asked
        .confirm
        .carry_out(domain::Command::OrderErase, &target, change)
        .await
}

pub async fn partner(asked: &ErasePartner, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let partner = find(&mut connection, &asked.which.partner).await?;
    let id = partner.partner_id;
    let name = format!("partner {}", partner.partner_id);
    let counting = erase::partner_orders(&mut connection, id.into());
    let orders = counting
        .await
        .with_context(|| format!("cannot erase {name}"))?;
    let shown = format!(
        "{name} ({}) and its {}",
        printable(&partner.name),
        counted(orders, "order", "orders")
    );
    let archives = desk::archived::of_partner(&mut connection, id.into()).await?;
    if asked.confirm.dry_run {
        let json =
            json!({ "partner_id": id, "orders": orders, "archives": archives, "dry_run": true });
        return console.print(&json, || {
            format!(
                "{shown} would be erased.{}\n{COPIES}",
                in_archives(&archives)
            )
        });
    }
    asked
        .confirm
        .ask(&format!("{shown} are erased for good."))?;
    erase::partner(
        &mut connection,
        id.into(),
        orders,
        asked.confirm.apply(domain::Command::PartnerErase, &name),
    )
    .await?;
    let erased = all_orders(&mut connection, id.into()).await?;
    print(console, &name, erased, &archives, false)
}

/// Which archives still hold data of an erased partner.
fn in_archives(archives: &[PartnerArchive]) -> String {
    if archives.is_empty() {
        return String::new();
    }
    let of = |one: &PartnerArchive| format!("{} ({} orders)", one.file, one.orders);
    let all: Vec<String> = archives.iter().map(of).collect();
    format!(
        "\nFiles hold data of this partner, which this command does not erase: {}. They have no activation \
         codes. Delete them when the other orders in them are not needed any more.",
        all.join(", ")
    )
}

async fn all_orders(
    connection: &mut PgConnection,
    partner_id: domain::PartnerId,
) -> anyhow::Result<ErasureCounts> {
    let mut erased = ErasureCounts::default();
    let mut after = None;
    loop {
        let (batch, next) = erase::partner_batch(connection, partner_id, after, BATCH).await?;
        erased += batch;
        if next.is_none() {
            return Ok(erased);
        }
        after = next;
        say(counted(erased.orders, "order erased", "orders erased"));
    }
}

fn print(
    console: &Console,
    name: &str,
    erased: ErasureCounts,
    archives: &[PartnerArchive],
    dry_run: bool,
) -> anyhow::Result<()> {
    let mut shown = json!(erased);
    shown["archives"] = json!(archives);
    shown["dry_run"] = json!(dry_run);
    shown["copies"] = json!(COPIES);
    let verb = if dry_run {
        "would be erased"
    } else {
        "is erased"
    };
    console.print(&shown, || {
        format!(
            "{}{}\n{COPIES}",
            describe(name, erased, verb),
            in_archives(archives)
        )
    })
}

fn describe(name: &str, erased: ErasureCounts, verb: &str) -> String {
    let ErasureCounts {
        orders,
        profiles,
        attempts,
        undelivered,
    } = erased;
    let rest = if undelivered > 0 {
        format!(
            " {} never acknowledged and {} no longer sent.",
            counted(undelivered, "webhook was", "webhooks were"),
            noun(undelivered, "is", "are")
        )
    } else {
        String::new()
    };
    format!(
        "{name} {verb}: {}, {}, {} of webhooks.{rest}",
        counted(orders, "order", "orders"),
        counted(profiles, "profile", "profiles"),
        counted(attempts, "attempt", "attempts")
    )
}
