//! `esimctl cell divide`, `cell activate` and `cell purge`.
//!
//! `tools::cells::division` has the steps and the reasons why no order is lost or bought twice. This
//! module runs them and shows how long each took. What was interrupted, even by a kill, goes on when
//! the same command is run again.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;
use pg::{PgConnection, actions::Changed};
use runtime::terminal::say;
use serde_json::{Map, Value, json};
use tools::cells::{
    division::{self, State},
    purge,
};
use uuid::Uuid;

use crate::{cell_file::Cell, confirm::Confirm, console::Console, lookup::find};

pub const DIVIDE_EXAMPLES: &str = "Examples:
  esimctl cell divide b --from-cell a ak_0123456789abcdef01234567 --dry-run
  esimctl cell divide b --from-cell a ak_0123456789abcdef01234567 'Second partner' --reason 'cell a is full' --yes
  esimctl cell divide b --from-cell a ak_0123456789abcdef01234567 --cancel --reason 'b is too slow' --yes
  esimctl cell map --output /etc/haproxy/cells.map      afterwards, and then reload the proxy

The database of b is a standby of that of a, both are in the file of cells with the owner of the tables, and the stages of b
run with CELL=b. The partners' requests get 503 (code partner_moving) with Retry-After for some 8 seconds, and then until the
proxy has the new map. If the command is interrupted, run it again: it continues. There is no way back once b is activated.
docs/reference.md#divide-a-cell is the runbook.";

pub const ACTIVATE_EXAMPLES: &str = "Examples:
  esimctl cell activate b --reason 'the server of a is lost' --yes
  esimctl cell activate a --reason 'the first cell gets its name' --yes

`cell divide` activates by itself. This command is for a division whose old cell was lost after the fence: b must have been
promoted. In a database that is no copy it only writes the name, which the setting CELL of each stage is compared with.";

pub const PURGE_EXAMPLES: &str = "Examples:
  esimctl cell purge a --dry-run
  esimctl cell purge a --reason 'a has divided' --yes

Run it in both cells soon after a division: until then each has a copy of the other's orders, which takes space, which no
erasure reaches, and which keeps a dump by the owner from working.";

/// How often something is asked while the command waits for it.
const PAUSE: Duration = Duration::from_millis(50);
/// How long an operator may take to promote the standby, if the command must not.
const PROMOTED: Duration = Duration::from_mins(10);
/// How long the standby may take to replay the fence, and answers to leave. Both take seconds.
const SOON: Duration = Duration::from_mins(1);
/// How long the session of an earlier command may take to end.
const LOCKED: Duration = Duration::from_secs(10);
/// How long a purge leaves the database alone after each step.
const BREATH: Duration = Duration::from_millis(20);
/// How often the progress of something that takes long is shown.
const SHOWN: Duration = Duration::from_secs(2);

#[derive(Args, Clone, Debug)]
pub struct Divide {
    /// The cell that becomes, whose database is a standby
    #[arg(value_name = "CELL")]
    to: String,
    /// The partners that go there, by id, access key or unique name
    #[arg(value_name = "PARTNER", required = true)]
    partners: Vec<String>,
    /// The cell that divides
    #[arg(long, value_name = "CELL")]
    from_cell: String,
    /// Take back what is not activated yet: the old cell serves the partners again
    ///
    /// If the server of the new cell is gone for good, take the cell out of the file of cells first.
    #[arg(long)]
    cancel: bool,
    #[command(flatten)]
    confirm: Confirm,
}

#[derive(Args, Clone, Debug)]
pub struct OneCell {
    /// The name of the cell in the file of cells
    cell: String,
    #[command(flatten)]
    confirm: Confirm,
}

/// How far a division has come. Each run takes the steps that are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reached {
    NotBegun,
    Frozen,
    Fenced,
    Activated,
}

impl Reached {
    /// What the databases of the old cell and of the new one, which is called `to`, say.
    fn of(old: &State, new: &State, to: &str) -> Self {
        if new.cell.as_deref() == Some(to) {
            Self::Activated
        } else if old.to.is_none() {
            Self::NotBegun
        } else if old.is_fenced {
            Self::Fenced
        } else {
            Self::Frozen
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::NotBegun => "not begun",
            Self::Frozen => "frozen",
            Self::Fenced => "fenced",
            Self::Activated => "activated",
        }
    }
}

/// Shows on standard error what was done, and keeps how long each step took.
struct Steps {
    began: Instant,
    last: Instant,
    seconds: Map<String, Value>,
}

impl Steps {
    fn new() -> Self {
        let began = Instant::now();
        Self {
            began,
            last: began,
            seconds: Map::new(),
        }
    }

    fn done(&mut self, step: &str, what: &str) {
        let took = self.last.elapsed().as_secs_f64();
        self.last = Instant::now();
        self.seconds.insert(step.to_owned(), json!(took));
        let after = self.began.elapsed().as_secs_f64();
        say(format_args!(
            "esimctl: after {after:.1} s: {what} ({took:.1} s)"
        ));
    }
}

/// Asks until there is an answer, or `limit` has passed.
async fn until(
    limit: Duration,
    what: &str,
    mut ask: impl AsyncFnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let began = Instant::now();
    while !ask().await? {
        ensure!(
            began.elapsed() < limit,
            "{what} did not happen within {limit:?}; the partners stay frozen: run the command again, or give --cancel"
        );
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

async fn connect(console: &Console, cell: &Cell) -> anyhow::Result<PgConnection> {
    let mut connection = console.connect_to(cell).await?;
    division::begin(&mut connection).await?;
    Ok(connection)
}

/// The old cell, in which no archive run and no other division may begin while this one runs.
async fn connect_alone(console: &Console, cell: &Cell) -> anyhow::Result<PgConnection> {
    let mut connection = connect(console, cell).await?;
    let began = Instant::now();
    // The session of a command that was killed ends soon.
    while !tools::archive::lock(&mut connection).await? {
        ensure!(
            began.elapsed() < LOCKED,
            "an archive run or another division of cell {} is running: wait for its end",
            cell.name
        );
        tokio::time::sleep(PAUSE).await;
    }
    Ok(connection)
}

pub(super) async fn run(asked: &Divide, console: &Console) -> anyhow::Result<()> {
    let cells = console.cells()?;
    let from = cells.find(&asked.from_cell)?;
    let to = cells.cells.iter().find(|cell| cell.name == asked.to);
    ensure!(
        asked.to != from.name,
        "both cells are {}: a cell divides into two",
        from.name
    );
    let mut source = connect_alone(console, from).await?;
    let mut partners: Vec<Uuid> = Vec::new();
    let mut have_left = true;
    for partner in &asked.partners {
        let found = find(&mut source, partner).await;
        let found = found.with_context(|| format!("cell {}", from.name))?;
        have_left &= found.moved_to.as_ref() == Some(&asked.to);
        partners.push(found.partner_id);
    }
    partners.sort_unstable();
    partners.dedup();
    let before = division::state(&mut source).await?;
    if before.to.is_some() {
        ensure!(
            before.to.as_ref() == Some(&asked.to) && before.partners == partners,
            "cell {} divides already, into cell {} with the partners {:?}: name the same, to continue or to cancel",
            from.name,
            before.to.unwrap_or_default(),
            before.partners
        );
    }
    if asked.cancel {
        return cancel(asked, (from, to), source, before, console).await;
    }
    let Some(to) = to else {
        bail!("the file of cells has no cell {}", asked.to)
    };
    let separate = from.separate_accounts(to);
    ensure!(
        separate.is_empty(),
        "the cells have different accounts at {}, so the new cell would look for purchases at the wrong one: give both the same",
        separate.join(", ")
    );
    let mut target = connect(console, to).await?;
    let copy = division::state(&mut target).await?;
    let names = (from.name.as_str(), to.name.as_str());
    let reached = Reached::of(&before, &copy, names.1);
    if reached == Reached::Activated && before.to.is_none() {
        ensure!(
            have_left,
            "cell {} is activated already; a partner goes into a new cell only, not into one that exists",
            names.1
        );
    }
    if reached == Reached::NotBegun {
        division::check(&mut source, &mut target, names).await?;
    }
    let orders = purge::orders(&mut source, &partners).await?;
    let preview = format!(
        "cell {} divides: {} partners with {orders} orders go to cell {}, for good; their requests get 503 for some seconds",
        names.0,
        partners.len(),
        names.1
    );
    if asked.confirm.dry_run {
        let shown = json!({ "dry_run": true, "state": reached.name(), "partners": partners, "orders": orders });
        return console.print(&shown, || preview);
    }
    asked.confirm.ask(&preview)?;
    let division = Division {
        source,
        target,
        names,
        partners,
        reached,
    };
    let (partners, steps, frozen) = division.carry_out(asked).await?;
    let shown = json!({ "from": names.0, "to": names.1, "partners": partners, "orders": orders,
                        "frozen_seconds": frozen, "seconds": steps.seconds });
    console.print(&shown, || {
        format!(
            "cell {} serves {} partners now, which were frozen for {frozen:.1} s of this run. Write the proxy's map with `esimctl \
             cell map`, and reload the proxy: until then their requests get 503. Then run `esimctl cell purge` in both cells",
            names.1,
            partners.len()
        )
    })
}

/// A division that is confirmed.
struct Division<'a> {
    source: PgConnection,
    target: PgConnection,
    /// Of the old and of the new cell.
    names: (&'a str, &'a str),
    partners: Vec<Uuid>,
    /// How far earlier runs have come.
    reached: Reached,
}

impl Division<'_> {
    /// Takes all steps that are left. Returns the partners, the times of the steps, and for how many
    /// seconds of this run the partners were frozen.
    async fn carry_out(self, asked: &Divide) -> anyhow::Result<(Vec<Uuid>, Steps, f64)> {
        let Self {
            mut source,
            mut target,
            names,
            partners,
            reached,
        } = self;
        let what = format!("cell {} to {}", names.0, names.1);
        let action = asked.confirm.action(domain::Command::CellDivide, &what);
        let mut steps = Steps::new();
        if reached < Reached::Frozen {
            division::freeze(&mut source, names, &partners, action).await?;
            steps.done("freeze", "the partners are frozen: their requests get 503");
        }
        if reached < Reached::Fenced {
            until(SOON, "the end of the last answers", async || {
                Ok(division::unanswered(&mut source, &partners).await? == 0)
            })
            .await?;
            steps.done("drain", "all answers have left");
            division::fence(&mut source).await?;
            steps.done("fence", "the old cell does nothing for them any more");
        }
        if reached < Reached::Activated {
            promote(&mut target, names.1, &mut steps).await?;
            let action = asked.confirm.action(domain::Command::CellActivate, &what);
            division::activate(&mut target, names.1, action).await?;
            steps.done("activate", "the new cell serves the partners");
        }
        let frozen = steps.began.elapsed().as_secs_f64();
        division::finish(&mut source).await?;
        steps.done("finish", "the old cell has forgotten their endpoints");
        Ok((partners, steps, frozen))
    }
}

/// Waits until the copy has the fence, and makes it a primary.
async fn promote(target: &mut PgConnection, name: &str, steps: &mut Steps) -> anyhow::Result<()> {
    until(SOON, "the replay of the fence in the standby", async || {
        let copy = division::state(target).await?;
        ensure!(
            copy.is_standby || copy.is_fenced,
            "the standby of cell {name} was promoted before it had the fence, so it lacks orders: cancel, and make it anew"
        );
        Ok(copy.is_fenced)
    })
    .await?;
    steps.done("replay", "the standby has all that belongs to them");
    if division::state(target).await?.is_standby {
        // An owner who may not promote leaves it to whoever runs the server, such as CloudNativePG.
        let promoted = sqlx::query("SELECT pg_promote(false)")
            .execute(&mut *target)
            .await;
        match promoted.map_err(pg::Error::from) {
            Err(error) if error.is_denied() => say(format_args!(
                "esimctl: promote the database of cell {name} now, because the owner of its tables may not: {error}"
            )),
            // A promotion that an earlier run began may end before this one asks for it.
            Err(error) if error.is_of(&["55000"]) => {}
            promoted => {
                promoted?;
            }
        }
    }
    until(PROMOTED, "the promotion", async || {
        Ok(!division::state(target).await?.is_standby)
    })
    .await?;
    steps.done("promote", "the standby is a primary");
    Ok(())
}

async fn cancel(
    asked: &Divide,
    (from, to): (&Cell, Option<&Cell>),
    mut source: PgConnection,
    before: State,
    console: &Console,
) -> anyhow::Result<()> {
    ensure!(
        before.to.is_some(),
        "cell {} does not divide, so there is nothing to take back",
        from.name
    );
    let preview = match to {
        Some(_) => format!(
            "cell {} serves its partners again, and cell {} never begins",
            from.name, asked.to
        ),
        None => format!(
            "cell {} serves its partners again. Cell {} is not in the file of cells: nobody may ever activate its database, because it \
             would buy everything a second time",
            from.name, asked.to
        ),
    };
    if asked.confirm.dry_run {
        let shown = json!({ "dry_run": true, "partners": before.partners });
        return console.print(&shown, || preview);
    }
    asked.confirm.ask(&preview)?;
    let mut standby = None;
    if let Some(to) = to {
        let mut target = connect(console, to).await?;
        if division::state(&mut target).await?.is_standby {
            standby = Some(target);
        } else {
            // It replays nothing of the old cell any more, so it is spoiled here.
            division::void(&mut target, &to.name).await?;
        }
    }
    let what = format!("cell {} to {}", from.name, asked.to);
    let action = asked
        .confirm
        .action(domain::Command::CellDivideCancel, &what);
    division::cancel(&mut source, action).await?;
    if let Some(mut target) = standby {
        let replayed = until(SOON, "the replay of this in the standby", async || {
            let copy = division::state(&mut target).await?;
            Ok(copy.to.is_none() && copy.cell.as_deref() != Some(&asked.to))
        });
        ensure!(
            replayed.await.is_ok(),
            "cell {} serves its partners again, but the standby of cell {} does not replay that: make it anew, and never promote it, \
             because it could still be activated by hand",
            from.name,
            asked.to
        );
    }
    let shown = json!({ "cancelled": true, "partners": before.partners });
    console.print(&shown, || {
        format!(
            "the division is taken back: cell {} serves its partners",
            from.name
        )
    })
}

pub(super) async fn activate(asked: &OneCell, console: &Console) -> anyhow::Result<()> {
    let cells = console.cells()?;
    let cell = cells.find(&asked.cell)?;
    let mut target = connect(console, cell).await?;
    let found = division::state(&mut target).await?;
    ensure!(
        !found.is_standby,
        "the database of cell {} is a standby: promote it first",
        cell.name
    );
    let preview = match &found.from {
        Some(from) => format!(
            "cell {} begins to serve {} partners of cell {from}, for good. If cell {from} can still be reached, `esimctl cell divide` does \
             this and more",
            cell.name,
            found.partners.len()
        ),
        None => format!("the database gets the name {}", cell.name),
    };
    if asked.confirm.dry_run {
        let shown = json!({ "dry_run": true, "from": found.from, "is_fenced": found.is_fenced, "partners": found.partners });
        return console.print(&shown, || preview);
    }
    asked.confirm.ask(&preview)?;
    // The old cell may have taken the division back while this copy did not listen any more.
    if let Some(from) = found
        .from
        .as_ref()
        .and_then(|from| cells.find(from).ok())
        .filter(|_| found.to.is_some())
        && let Ok(mut source) = connect(console, from).await
    {
        let still = division::state(&mut source).await?;
        ensure!(
            still.to == found.to && still.is_fenced,
            "cell {} has taken this division back, so its copy is of no use: make it anew",
            from.name
        );
    }
    let what = format!("cell {}", cell.name);
    let action = asked.confirm.action(domain::Command::CellActivate, &what);
    let began = Instant::now();
    let served = division::activate(&mut target, &cell.name, action).await?;
    let seconds = began.elapsed().as_secs_f64();
    let shown = json!({ "cell": cell.name, "partners": served, "seconds": seconds });
    console.print(&shown, || {
        format!(
            "the database is cell {}, with {served} partners, after {seconds:.1} s",
            cell.name
        )
    })
}

pub(super) async fn purge(asked: &OneCell, console: &Console) -> anyhow::Result<()> {
    let cells = console.cells()?;
    let cell = cells.find(&asked.cell)?;
    let mut connection = connect(console, cell).await?;
    let partners = purge::foreign(&mut connection).await?;
    let orders = purge::orders(&mut connection, &partners).await?;
    let preview = format!(
        "{orders} orders of {} partners that live elsewhere are deleted in cell {}",
        partners.len(),
        cell.name
    );
    if asked.confirm.dry_run {
        let shown = json!({ "dry_run": true, "partners": partners, "orders": orders });
        return console.print(&shown, || preview);
    }
    asked.confirm.ask(&preview)?;
    let what = format!("cell {}", cell.name);
    let action = asked.confirm.action(domain::Command::CellPurge, &what);
    pg::actions::record(
        &mut connection,
        action,
        i64::try_from(orders).unwrap_or(i64::MAX),
        Changed::nothing(),
    )
    .await?;
    let began = Instant::now();
    let mut shown_at = began;
    let mut purged = 0;
    for partner in &partners {
        loop {
            let (deleted, more) = purge::step(&mut connection, *partner).await?;
            purged += deleted;
            if shown_at.elapsed() > SHOWN {
                shown_at = Instant::now();
                let after = began.elapsed().as_secs_f64();
                say(format_args!(
                    "esimctl: after {after:.1} s: {purged} of {orders} orders are deleted"
                ));
            }
            if !more {
                break;
            }
            tokio::time::sleep(BREATH).await;
        }
    }
    purge::end(&mut connection).await?;
    let seconds = began.elapsed().as_secs_f64();
    let shown = json!({ "cell": cell.name, "orders": purged, "seconds": seconds });
    console.print(&shown, || {
        format!("{purged} orders were deleted in {seconds:.1} s, and nothing is hidden any more")
    })
}
