//! `esimctl partner move`: moves a partner to another cell while both cells work.
//!
//! `tools::cells::moving` has the steps and the reasons why no order is lost or bought twice. This
//! module runs them, waits in between for orders that may not move yet, and shows the progress. A
//! move that was interrupted, even by a kill, continues when the same command is run again.

use std::time::{Duration, Instant};

use accounts::partners;
use anyhow::{Context, bail, ensure};
use clap::Args;
use pg::{
    actions::{Action, Mode},
    config::MasterKeyConfig,
};
use runtime::terminal::say;
use serde_json::json;
use tools::cells::moving::{Move, Moved, Phase, Ready};
use uuid::Uuid;
use vault::Keyring;

use crate::{confirm::Confirm, console::Console, lookup::find, output::printable};

pub const EXAMPLES: &str = "Examples:
  esimctl partner move ak_0123456789abcdef01234567 --from-cell a --to-cell b --reason 'cell a is full' --yes
  esimctl partner move ak_0123456789abcdef01234567 --from-cell a --to-cell b --dry-run
  esimctl partner move ak_0123456789abcdef01234567 --from-cell a --to-cell b --cancel --reason 'b is down' --yes
  esimctl cell map --output /etc/haproxy/cells.map      afterwards, and then reload the proxy

The partner's requests get 503 (code partner_moving) with Retry-After from the first step until the proxy has the new map. An
order that was answered before is carried out in the new cell. If the command is interrupted, run it again: it continues.

The file of cells (--cells or ESIM_CELLS) must name the owner of the tables as the user of both databases, because the
command copies all columns and adds a check to the table of orders. MASTER_KEY must be the key of both cells, because secrets
are copied as they are encrypted; the command checks that it opens the secrets of both.";

/// How often the source is asked whether further orders may move.
const PAUSE: Duration = Duration::from_millis(250);
/// How long the first order waits after the freeze. Ingress reads changes of partners twice a
/// second, and until then self-service could still show or change rows that are leaving.
const NOTICED: Duration = Duration::from_secs(2);
/// How often the progress is shown.
const SHOWN: Duration = Duration::from_secs(2);

#[derive(Args, Clone, Debug)]
pub struct MovePartner {
    /// The partner's id, access key or unique name
    #[arg(value_name = "ID|ACCESS_KEY|NAME")]
    partner: String,
    /// The cell in which the partner lives, as the file of cells names it
    #[arg(long, value_name = "CELL")]
    from_cell: String,
    /// The cell to which it moves
    #[arg(long, value_name = "CELL")]
    to_cell: String,
    /// How long purchases that are under way may end in the old cell
    ///
    /// A purchase without an outcome after this time moves, too. It is then looked up in the new
    /// cell, which takes a settling delay longer than if it had ended before.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = runtime::config::duration)]
    drain: Duration,
    /// How long to wait for orders that may not move yet
    ///
    /// An order waits until its answer has certainly left. If the cells have different accounts at
    /// a provider, it also waits until nothing about its purchase there is unknown. After this time
    /// the command fails, the partner stays frozen, and the command can be run again.
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = runtime::config::duration)]
    give_up: Duration,
    /// Take the freeze back, which is possible as long as nothing was copied
    #[arg(long)]
    cancel: bool,
    #[command(flatten)]
    master_key: MasterKeyConfig,
    #[command(flatten)]
    confirm: Confirm,
}

/// Shows the progress on standard error.
struct Progress {
    began: Instant,
    shown: Instant,
}

impl Progress {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            began: now,
            shown: now,
        }
    }

    fn say(&mut self, what: &str) {
        self.shown = Instant::now();
        say(format_args!(
            "esimctl: after {:.1} s: {what}",
            self.began.elapsed().as_secs_f64()
        ));
    }

    fn say_sometimes(&mut self, what: impl FnOnce() -> String) {
        if self.shown.elapsed() >= SHOWN {
            self.say(&what());
        }
    }
}

pub async fn run(asked: &MovePartner, console: &Console) -> anyhow::Result<()> {
    let cells = console.cells()?;
    let from = cells.find(&asked.from_cell)?;
    let to = cells.find(&asked.to_cell)?;
    ensure!(
        from.name != to.name,
        "--from-cell and --to-cell both name cell {}",
        from.name
    );
    let rings = [Keyring::Partners, Keyring::Webhooks, Keyring::Profiles];
    let vault = asked.master_key.vault(&rings)?;
    let mut source = console.connect_to(from).await?;
    let mut target = console.connect_to(to).await?;
    let partner = find(&mut source, &asked.partner)
        .await
        .with_context(|| format!("cell {}", from.name))?;
    for (cell, connection) in [(from, &mut source), (to, &mut target)] {
        let opens = partners::check_master_key(connection, &vault).await;
        opens.with_context(|| {
            format!(
                "nothing was changed, because the given master keys do not open the secrets of cell {}: both cells must use the same keys, and the command needs them",
                cell.name
            )
        })?;
    }
    let mut moving = Move {
        partner_id: partner.partner_id.into(),
        source: &mut source,
        target: &mut target,
        from: from.name.clone(),
        to: to.name.clone(),
    };
    let phase = moving.begin().await?;
    let name = printable(&partner.name);
    let size = moving.size().await?;
    let preview = format!(
        "{name} with {} orders, of which {} are under way, moves from cell {} to cell {}",
        size.orders, size.under_way, from.name, to.name
    );
    if asked.confirm.dry_run {
        let shown = json!({ "dry_run": true, "partner_id": partner.partner_id, "phase": phase_name(phase),
                            "orders": size.orders, "under_way": size.under_way });
        return console.print(&shown, || preview);
    }
    let target_text = format!(
        "partner {}, cell {} to {}",
        partner.partner_id, from.name, to.name
    );
    asked.confirm.ask(&preview)?;
    let Mode::Apply(action) = asked
        .confirm
        .apply(domain::Command::PartnerMove, &target_text)
    else {
        bail!("nothing was changed, because the command has no reason");
    };
    if asked.cancel {
        return cancel(&mut moving, phase, console).await;
    }
    let separate = from.separate_accounts(to);
    let done = carry_out(&mut moving, asked, phase, &separate, action).await?;
    let shown = json!({
        "partner_id": partner.partner_id, "from": from.name, "to": to.name, "moved": done.moved,
        "frozen_seconds": done.frozen.as_secs_f64(), "copy_seconds": done.copy.as_secs_f64(),
    });
    console.print(&shown, || {
        format!(
            "{name} lives in cell {} now: {} orders and {} deliveries were moved by this run, and the partner was frozen for {:.1} s of it. \
             Write the proxy's map with `esimctl cell map`, and reload the proxy: until then the partner's requests get 503",
            to.name, done.moved.orders, done.moved.deliveries, done.frozen.as_secs_f64()
        )
    })
}

fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Source => "not begun",
        Phase::Frozen => "frozen",
        Phase::Target => "moved",
    }
}

async fn cancel(moving: &mut Move<'_>, phase: Phase, console: &Console) -> anyhow::Result<()> {
    ensure!(
        phase == Phase::Frozen,
        "there is no move to cancel: {}",
        phase_name(phase)
    );
    ensure!(
        moving.thaw().await?,
        "orders were moved already, so the move cannot be cancelled; run the command without --cancel, and move the partner back afterwards"
    );
    let shown = json!({ "cancelled": true });
    console.print(&shown, || {
        format!(
            "the move is cancelled: cell {} serves the partner",
            moving.from
        )
    })
}

/// What a run has done.
struct Done {
    moved: Moved,
    /// The time from the freeze, or from the start of this run, until the target serves the
    /// partner.
    frozen: Duration,
    /// The time of it in which rows were copied.
    copy: Duration,
}

async fn carry_out(
    moving: &mut Move<'_>,
    asked: &MovePartner,
    phase: Phase,
    separate: &[String],
    action: Action<'_>,
) -> anyhow::Result<Done> {
    let mut progress = Progress::new();
    let mut done = Done {
        moved: Moved::default(),
        frozen: Duration::ZERO,
        copy: Duration::ZERO,
    };
    if phase == Phase::Source {
        moving.freeze(action).await?;
        progress.say("the partner is frozen: its requests get 503");
    }
    let frozen = Instant::now();
    if phase != Phase::Target {
        tokio::time::sleep(NOTICED).await;
        move_orders(moving, asked, separate, &mut done, &mut progress).await?;
        move_events(moving, &mut done).await?;
        let orders = i64::try_from(done.moved.orders).unwrap_or(i64::MAX);
        moving.activate(action, orders).await?;
        done.frozen = frozen.elapsed();
        progress.say("the new cell serves the partner");
    }
    moving.finish().await?;
    progress.say("the old cell has forgotten its work");
    Ok(done)
}

/// Moves all orders, oldest first, and waits for those that may not move yet.
async fn move_orders(
    moving: &mut Move<'_>,
    asked: &MovePartner,
    separate: &[String],
    done: &mut Done,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut after = Uuid::nil();
    loop {
        let ready = Ready {
            finished_only: began.elapsed() < asked.drain,
            separate,
            after,
        };
        let orders = moving.ready(ready).await?;
        if let Some(last) = orders.last() {
            let copying = Instant::now();
            let moved = moving.copy(&orders).await?;
            moving.release().await?;
            done.copy += copying.elapsed();
            done.moved.add(moved);
            after = *last;
            progress.say_sometimes(|| format!("{} orders moved", done.moved.orders));
            continue;
        }
        let left = moving.left().await?;
        if left == 0 {
            progress.say(&format!("all {} orders moved", done.moved.orders));
            return Ok(());
        }
        if began.elapsed() > asked.give_up {
            bail!(
                "{left} orders may not move yet after {:?}: their purchases or give-backs at a provider at which the cells have different accounts are not settled. \
                 The partner stays frozen. `esimctl placement list` and `esimctl give-back list` show what they wait for; run the command again when they have ended",
                asked.give_up
            );
        }
        // From the first order again, because those that were left out may be ready now.
        after = Uuid::nil();
        progress.say_sometimes(|| format!("{left} orders wait until they may move"));
        tokio::time::sleep(PAUSE).await;
    }
}

/// Moves the events about the partner itself.
async fn move_events(moving: &mut Move<'_>, done: &mut Done) -> anyhow::Result<()> {
    loop {
        let moved = moving.copy_events().await?;
        moving.release().await?;
        done.moved.add(moved);
        if moved.deliveries == 0 {
            return Ok(());
        }
    }
}
