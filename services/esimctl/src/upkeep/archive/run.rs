//! `esimctl archive run`.
//!
//! A run works through a queue of batches. It reserves the external ids of a batch, lets the batch
//! wait for the grace of `tools::archive`, and then moves it: copy, write to disk, delete, commit.
//! So many batches wait at a time that the grace does not limit the rate. Reserving and moving share
//! the rate, so that the load of a run is even.
//!
//! If the program dies, reserved orders stay reserved in the database, and the next run begins by
//! moving them. Everything else that it needs to know is in the row of the archive.

use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use clap::Args;
use pg::{PgConnection, schema};
use runtime::terminal::{progress, say};
use serde_json::json;
use sqlx::Connection;
use time::OffsetDateTime;
use tools::{
    archive::{self, Archive, Copied, GRACE},
    cells::division,
};
use url::Url;
use uuid::Uuid;

use super::{
    bucket::{self, Bucket, name_of},
    folder::{self, MANIFEST, Writer},
};
use crate::{
    confirm::Confirm,
    console::Console,
    output::{took, utc},
};

pub const EXAMPLES: &str = "Examples:
  esimctl archive run --to /srv/archives --older-than 400d --dry-run
  esimctl archive run --to /srv/archives --older-than 400d --yes --reason 'yearly archive'
  esimctl archive run --to /srv/archives --copy-to s3://acme-archives/esim --older-than 400d --yes --reason nightly
  esimctl retention set orders --days 400 --reason 'the term of our contracts'
  esimctl archive run --to /srv/archives --yes --reason nightly       with the stored term, for cron

An order is moved when it is finished: nothing of it is being bought or sent, no placement is parked, no webhook is
exhausted or waits for a URL, and retention has erased its profiles and attempts (unless these are kept for ever). Other
orders stay in the database, and a later run looks at them again.

Look-ups of an archived order say that it is archived, and its external id stays taken for the term `archived` of
`esimctl retention list`, a year by default.

Run it with the database's owner, as `esimctl migrate`, and only when every ingress has at least the version of this
program. The folder must be on a disk that keeps what was synced. Copy complete archives to a second place, which --copy-to
does, for example to a bucket.";

/// The age in days of the youngest orders that may be archived. A late purchase or a resend may
/// still change younger ones.
const YOUNGEST: i64 = 1;
/// The largest age in days, as for the terms of retention.
const OLDEST: i64 = 36_500;
/// The number of orders that one statement counts.
const COUNTED: u32 = 50_000;
/// How often progress is reported.
const REPORT: Duration = Duration::from_secs(5);
/// How often a batch is tried that lost a conflict with an operator, a resend or retention.
const TRIES: u32 = 10;

#[derive(Args, Clone, Debug)]
pub struct Run {
    /// The folder in which the folder of the archive is made
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// The bucket to which complete archives are copied, with their manifests last
    ///
    /// Archives of the folder that are missing there are copied, too, so a run whose copy failed is
    /// made good by the next one. `s3://…`, `gs://…`, `az://…` or `file:///…`; the keys come from the
    /// environment, as `archive show --help` says.
    #[arg(long, value_name = "BUCKET", value_parser = bucket::url)]
    copy_to: Option<Url>,
    /// Move orders that are older than this, at least a day
    ///
    /// It is a number of days, such as `400d`. Without this option the term of the class `orders` applies, which
    /// `esimctl retention set orders` stores; by default orders are kept for ever.
    #[arg(long, value_name = "AGE", value_parser = age)]
    older_than: Option<time::Duration>,
    /// The number of orders that one transaction moves
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=5_000))]
    batch: u32,
    /// The maximum number of orders per second
    ///
    /// A higher rate is faster, and takes more of the database from the orders that arrive.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// The number of orders after which a further archive is begun
    #[arg(long, value_name = "ORDERS", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    archive_size: u64,
    #[command(flatten)]
    confirm: Confirm,
}

/// Reads an age in days, which may be longer than other durations of settings.
fn age(text: &str) -> Result<time::Duration, String> {
    let days = text
        .strip_suffix('d')
        .and_then(|days| days.parse::<i64>().ok());
    match days {
        Some(days) if (YOUNGEST..=OLDEST).contains(&days) => Ok(time::Duration::days(days)),
        Some(0) => Err(
            "it is less than a day; younger orders may still be changed by a late purchase or a resend"
                .to_owned(),
        ),
        _ => Err(format!(
            "it is not a number of days from {YOUNGEST} to {OLDEST}; write it like `400d`"
        )),
    }
}

pub async fn run(asked: &Run, console: &Console) -> anyhow::Result<()> {
    let to = std::fs::canonicalize(&asked.to).with_context(|| {
        format!(
            "cannot use the folder {}; make it first, with mode 0700",
            asked.to.display()
        )
    })?;
    let mut connection = console.connect().await?;
    archive::prepare(&mut connection).await?;
    let ordered_before = match asked.older_than {
        Some(age) => runtime::clock::now() - age,
        None => archive::term(&mut connection).await?.context(
            "no age was named, and orders are kept for ever: add --older-than, for example `--older-than 400d`, or store a \
             term with `esimctl retention set orders --days 400`",
        )?,
    };
    if asked.confirm.dry_run {
        return preview(&mut connection, ordered_before, console).await;
    }
    let bucket = asked.copy_to.as_ref().map(Bucket::open).transpose()?;
    if let Some(bucket) = &bucket {
        bucket.reach().await?;
    }
    ensure!(
        archive::lock(&mut connection).await?,
        "another `esimctl archive run` is at work on this database; wait until it ends"
    );
    // A division that was interrupted holds the lock no longer.
    if let Some(cell) = division::state(&mut connection).await?.to {
        bail!(
            "this cell divides, and cell {cell} would inherit an archive that is not complete, and go on with it in the same folder: \
             end the division first, with the same `esimctl cell divide`"
        );
    }
    let interrupted = archive::unfinished(&mut connection).await?;
    let after = interrupted
        .as_ref()
        .map_or(Uuid::nil(), |one| one.reserved_to);
    let total = total(&mut connection, after, ordered_before).await?;
    asked.confirm.ask(&format!(
        "Up to {total} orders from before {} are moved into files in {}.",
        utc(ordered_before),
        to.display()
    ))?;
    let mut runner = Runner {
        connection,
        asked,
        to: &to,
        total,
        done: 0,
        left: 0,
        began: Instant::now(),
        reported: Instant::now(),
    };
    let mut archives = Vec::new();
    if let Some(interrupted) = interrupted {
        say(format_args!(
            "archive {} was interrupted after {} orders and is continued",
            interrupted.archive, interrupted.orders
        ));
        archives.push(runner.write(interrupted).await?);
    }
    while let Some(begun) = runner.begin(ordered_before).await? {
        archives.push(runner.write(begun).await?);
    }
    let left = runner.left;
    let orders = runner.done;
    let mut copied = 0;
    if let Some(bucket) = &bucket {
        copied = copy(bucket, &to).await?;
    }
    let shown = json!({
        "archives": archives, "orders": orders, "left": left, "copied": copied, "dry_run": false,
    });
    console.print(&shown, || {
        let names: Vec<&str> = archives.iter().map(|one| one.folder.as_str()).collect();
        let into = if names.is_empty() {
            "No order was moved".to_owned()
        } else {
            format!("{orders} orders were moved into {}", names.join(", "))
        };
        let copies = match &asked.copy_to {
            Some(bucket) => format!(" {copied} archives were copied to {bucket}."),
            None => String::new(),
        };
        format!("{into}; {left} old orders stay, because they are not finished.{copies}")
    })
}

/// Copies the complete archives of a folder that are not in the bucket, and returns how many.
async fn copy(bucket: &Bucket, to: &Path) -> anyhow::Result<u64> {
    let mut copied = 0;
    for folder in folder::folders(to)? {
        if folder.join(MANIFEST).exists() {
            let pushed = bucket.push(&folder).await.with_context(|| {
                format!(
                    "the archives in {} are complete, but not all are copied; run the command again to copy the others",
                    to.display()
                )
            })?;
            copied += u64::from(pushed);
        }
    }
    Ok(copied)
}

/// Says how many orders a run would move. It judges every order, so it reads as much as a run does.
async fn preview(
    connection: &mut PgConnection,
    ordered_before: OffsetDateTime,
    console: &Console,
) -> anyhow::Result<()> {
    let mut orders = 0;
    let mut left = 0;
    let mut after = Uuid::nil();
    while let Some(page) = archive::page(connection, after, ordered_before, 1_000).await? {
        orders += page.finished.len();
        left += page.seen - page.finished.len();
        after = page.last;
    }
    let shown = json!({ "orders": orders, "left": left, "dry_run": true });
    console.print(&shown, || {
        format!(
            "{orders} orders from before {} would be moved; {left} would stay, because they are not finished.",
            utc(ordered_before)
        )
    })
}

/// Counts the orders that a run has to look at, in statements that are all short.
async fn total(
    connection: &mut PgConnection,
    mut after: Uuid,
    ordered_before: OffsetDateTime,
) -> anyhow::Result<u64> {
    let mut total = 0;
    loop {
        let (count, last) = archive::count(connection, after, ordered_before, COUNTED).await?;
        total += count;
        match last {
            Some(last) if count == u64::from(COUNTED) => after = last,
            _ => return Ok(total),
        }
    }
}

/// Orders whose external ids are reserved.
struct Batch {
    orders: Vec<Uuid>,
    /// When the grace has passed. It counts from the moment at which this process knew that the
    /// reservation is committed, which is later than the time in the row.
    ripe: Instant,
}

struct Runner<'a> {
    connection: PgConnection,
    asked: &'a Run,
    to: &'a Path,
    /// About how many orders this run will look at.
    total: u64,
    done: u64,
    /// Orders that were old enough and are not finished.
    left: u64,
    began: Instant,
    reported: Instant,
}

impl Runner<'_> {
    /// Begins an archive if there is a finished order for it.
    async fn begin(&mut self, ordered_before: OffsetDateTime) -> anyhow::Result<Option<Archive>> {
        let mut after = Uuid::nil();
        self.left = 0;
        loop {
            let page = archive::page(
                &mut self.connection,
                after,
                ordered_before,
                self.asked.batch,
            )
            .await?;
            let Some(page) = page else {
                return Ok(None);
            };
            if !page.finished.is_empty() {
                break;
            }
            self.left += page.seen as u64;
            after = page.last;
        }
        let to = self.to;
        let folder = |number| folder_of(to, number).display().to_string();
        let target = format!("orders from before {}", utc(ordered_before));
        let action = self
            .asked
            .confirm
            .action(domain::Command::ArchiveRun, &target);
        let begun =
            archive::begin(&mut self.connection, folder, after, ordered_before, action).await?;
        Ok(Some(begun))
    }

    /// Writes an archive to its end.
    async fn write(&mut self, mut archive: Archive) -> anyhow::Result<Archive> {
        let folder = folder_of(self.to, archive.archive);
        ensure!(
            folder.display().to_string() == archive.folder,
            "archive {} is not complete, and its folder was {}; run the command with --to and the folder that holds it",
            archive.archive,
            archive.folder
        );
        let mut writer = Writer::open(&folder, &archive)?;
        let mut queue = self.interrupted(&archive).await?;
        let mut waiting: u64 = queue.iter().map(|batch| batch.orders.len() as u64).sum();
        let mut has_more = true;
        // Enough batches for the time of the grace, so that it does not limit the rate.
        let most = u64::from(self.asked.rate) * GRACE.as_secs() * 3 / 2;
        loop {
            let stored = u64::try_from(archive.orders).unwrap_or_default();
            let has_room = waiting < most && stored + waiting < self.asked.archive_size;
            if queue
                .front()
                .is_some_and(|batch| batch.ripe <= Instant::now())
            {
                let Some(batch) = queue.pop_front() else {
                    break;
                };
                let began = Instant::now();
                self.move_batch(&mut archive, &mut writer, &batch.orders)
                    .await?;
                waiting -= batch.orders.len() as u64;
                self.pace(began, batch.orders.len()).await;
                self.report();
            } else if has_more && has_room {
                let began = Instant::now();
                let page =
                    archive::reserve(&mut self.connection, &mut archive, self.asked.batch).await?;
                let Some(page) = page else {
                    has_more = false;
                    continue;
                };
                self.left += (page.seen - page.finished.len()) as u64;
                waiting += page.finished.len() as u64;
                if !page.finished.is_empty() {
                    queue.push_back(Batch {
                        orders: page.finished,
                        ripe: Instant::now() + GRACE,
                    });
                }
                self.pace(began, page.seen).await;
            } else if let Some(batch) = queue.front() {
                tokio::time::sleep_until(batch.ripe.into()).await;
            } else {
                break;
            }
        }
        let manifest = writer.complete(&archive, schema::latest())?;
        let target = format!("archive {} in {}", archive.archive, archive.folder);
        let action = self
            .asked
            .confirm
            .action(domain::Command::ArchiveRun, &target);
        archive::complete(&mut self.connection, &archive, &manifest, action).await?;
        let completed = archive::get(&mut self.connection, archive.archive).await?;
        Ok(completed.unwrap_or(archive))
    }

    /// The batches that an interrupted run has reserved and not moved.
    async fn interrupted(&mut self, archive: &Archive) -> anyhow::Result<VecDeque<Batch>> {
        let mut queue = VecDeque::new();
        let mut after = archive.moved_to;
        loop {
            let orders =
                archive::reserved(&mut self.connection, archive, after, self.asked.batch).await?;
            let Some(last) = orders.last() else {
                return Ok(queue);
            };
            after = *last;
            queue.push_back(Batch {
                orders,
                ripe: Instant::now() + GRACE,
            });
        }
    }

    /// Moves a batch. A batch that lost a conflict is tried again.
    async fn move_batch(
        &mut self,
        archive: &mut Archive,
        writer: &mut Writer,
        batch: &[Uuid],
    ) -> anyhow::Result<()> {
        let mut tries = 1;
        loop {
            match self.try_to_move(archive, writer, batch).await {
                Ok(moved) => {
                    self.done += moved;
                    self.left += batch.len() as u64 - moved;
                    return Ok(());
                }
                Err(error) => {
                    let is_conflict = error
                        .downcast_ref::<pg::Error>()
                        .is_some_and(pg::Error::is_transient);
                    if !is_conflict || tries == TRIES || self.connection.ping().await.is_err() {
                        return Err(error.context(format!(
                            "archive {} stopped after {} orders; nothing is lost, run the command again to go on",
                            archive.archive, archive.orders
                        )));
                    }
                    tries += 1;
                    say(format_args!("a batch is tried again: {error:#}"));
                    writer.rollback()?;
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }

    /// Moves a batch in one transaction, and returns how many orders were moved.
    async fn try_to_move(
        &mut self,
        archive: &mut Archive,
        writer: &mut Writer,
        batch: &[Uuid],
    ) -> anyhow::Result<u64> {
        let mut transaction = self.connection.begin().await.map_err(pg::Error::from)?;
        let copied: Copied = archive::copy(&mut transaction, archive, batch).await?;
        let rows = writer.append(&copied.parts)?;
        let mut moved = archive.clone();
        let written = writer.written();
        archive::delete(&mut transaction, &mut moved, &copied, &rows, &written).await?;
        transaction.commit().await.map_err(pg::Error::from)?;
        writer.committed();
        *archive = moved;
        Ok(copied.orders.len() as u64)
    }

    /// Waits as long as a step with this many orders must take at the rate of the run. An order is
    /// in two steps, each of which gets half of its time.
    async fn pace(&self, began: Instant, orders: usize) {
        let orders = u32::try_from(orders).unwrap_or(u32::MAX);
        let takes = Duration::from_secs(1).mul_f64(f64::from(orders) / f64::from(self.asked.rate));
        tokio::time::sleep_until((began + takes / 2).into()).await;
    }

    /// Says on standard error how far the run is.
    fn report(&mut self) {
        if self.reported.elapsed() < REPORT {
            return;
        }
        self.reported = Instant::now();
        let seen = self.done + self.left;
        let elapsed = self.began.elapsed().as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "the figures are approximate")]
        let rate = seen as f64 / elapsed;
        #[expect(clippy::cast_precision_loss, reason = "the figures are approximate")]
        let rest =
            time::Duration::seconds_f64(self.total.saturating_sub(seen) as f64 / rate.max(1.0));
        let text = format!(
            "{} orders moved, {} not finished, of about {}; {rate:.0} per second, about {} left",
            self.done,
            self.left,
            self.total.max(seen),
            took(rest),
        );
        if !progress(&text) {
            say(text);
        }
    }
}

fn folder_of(to: &Path, archive: i32) -> PathBuf {
    to.join(name_of(archive))
}
