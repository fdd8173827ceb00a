//! `esimctl archive run`.
//!
//! A run works in rounds. It reserves the external ids of many orders, a file's worth at a time,
//! lets them wait together for the grace of `tools::archive`, and then moves them file by file:
//! copy, store, read back, delete, commit. Reserving and moving share the rate, so that the load of
//! a run is even.
//!
//! If the program dies, reserved orders stay reserved in the database, and the next run begins by
//! moving them. Each try stores a file with a name of its own, so whoever was stopped and goes on
//! late replaces no file: it finds that it has lost its archive, and removes what it has stored.

use std::{
    collections::VecDeque,
    io::Write,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use clap::Args;
use flate2::{Compression, write::GzEncoder};
use pg::{
    PgConnection, Transaction, TransactionEnd,
    actions::{self, ActionChange},
    transaction,
    transaction::TransactionKind,
};
use runtime::terminal::{progress, say};
use serde_json::json;
use sqlx::Connection;
use time::OffsetDateTime;
use tools::archive::{self, Archive, GRACE};
use uuid::Uuid;

use super::{
    bucket::Unavailable,
    place::{ArchiveLocation, ArchiveStore},
};
use crate::{
    confirm::Confirm,
    console::Console,
    output::{took, utc},
};

pub const EXAMPLES: &str = "Examples:
  esimctl archive run --to /srv/archives --older-than 400d --dry-run
  esimctl archive run --to /srv/archives --older-than 400d --yes --reason 'yearly archive'
  esimctl archive run --to s3://acme-archives/esim --older-than 400d --yes --reason nightly
  esimctl retention set orders --days 400 --reason 'the term of our contracts'
  esimctl archive run --to /srv/archives --yes --reason nightly       with the stored term, for cron
  cd /srv/archives && sha256sum -c *.sha256                           checks the files
  zcat /srv/archives/orders-*.jsonl.gz | grep acme-1001               looks for an order

An order is moved when it is finished: nothing of it is being bought or sent, no placement is parked, no webhook is
exhausted or waits for a URL, and retention has erased its profiles, and its attempts if these have a term. Other orders
stay in the database, and a later run looks at them again. Where profiles are kept for ever, every order that has one stays.

A file has one line for each order: a JSON object with the rows of the order, named as the tables. It has no activation
code and no response of an endpoint; `null` stands there. Nothing brings an order back from it.

Look-ups of an archived order say that it is archived, and its external id stays taken for the term `archived` of
`esimctl retention list`, a year by default.

Run it with the database's owner, as `esimctl migrate`. A folder must be on a disk that keeps what was synced; copy its
files to a second place. The keys of a bucket, which may put, get and delete objects, come from the environment:
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN if there is one, AWS_REGION, and AWS_ENDPOINT for another
service that speaks S3 (with AWS_ALLOW_HTTP=true if it has no TLS).";

/// The age in days of the youngest orders that may be archived. A late purchase or a resend may
/// still change younger ones.
const YOUNGEST: i64 = 1;
/// The largest age in days, as for the terms of retention.
const OLDEST: i64 = 36_500;
/// The number of orders that one statement counts.
const COUNTED: u32 = 50_000;
/// For how long a round moves orders at the rate. The grace at its beginning is a quarter of the
/// whole.
const ROUND: Duration = Duration::from_mins(1);
/// How often progress is reported.
const REPORT: Duration = Duration::from_secs(5);
/// How often a file is tried again after a conflict with an operator, a resend or retention, or
/// while the bucket does not answer.
const TRIES: u32 = 10;
/// A low level, because a higher one costs twice the processor time and saves a tenth of the space.
const LEVEL: u32 = 3;

/// What somebody who finds the files has to know. It is the first file that a run stores, so a
/// place that cannot be written is noticed before anything else is done.
const README: &str = "Finished orders of the eSIM ordering system, archived by `esimctl archive run`.
orders-*.jsonl.gz: one line for each order, a JSON object with its rows, named as the tables of the database.
Check the files with `sha256sum -c *.sha256`, and look for an order with `zcat orders-*.jsonl.gz | grep ID`.
There are no activation codes in them; null stands there.
";

#[derive(Args, Clone, Debug)]
pub struct ArchiveRunArgs {
    /// Where the files are stored: a folder, or a bucket of S3 or of a service that speaks S3
    #[arg(long, value_name = "DIR|s3://BUCKET", value_parser = ArchiveLocation::parse)]
    to: ArchiveLocation,
    /// Export orders that are older than this, at least a day
    ///
    /// It is a number of days, such as `400d`. Without this option the term of the class `orders`
    /// applies, which `esimctl retention set orders` stores; by default orders are kept for ever.
    #[arg(long, value_name = "AGE", value_parser = age)]
    older_than: Option<time::Duration>,
    /// The number of orders in one file, which one transaction moves
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=5_000))]
    batch: u32,
    /// The maximum number of orders per second
    ///
    /// A higher rate is faster, and takes more of the database from the orders that arrive.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
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

pub async fn run(asked: &ArchiveRunArgs, console: &Console) -> anyhow::Result<()> {
    let to = asked.to.open()?;
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
    ensure!(
        archive::lock(&mut connection).await?,
        "another `esimctl archive run` is at work on this database; wait until it ends"
    );
    let interrupted = interrupted(&mut connection, &to).await?;
    let total = total(&mut connection, ordered_before).await?;
    asked.confirm.ask(&format!(
        "Up to {total} orders from before {} are moved into files in {to}, and nothing brings them back into the database.",
        utc(ordered_before),
    ))?;
    let stored = to.store("README.txt", README.as_bytes()).await;
    stored.context("nothing was changed")?;
    let mut runner = Runner {
        connection,
        asked,
        to: &to,
        ordered_before,
        total,
        done: 0,
        left: 0,
        files: 0,
        began: Instant::now(),
        reported: Instant::now(),
    };
    let target = format!("orders from before {} into {to}", utc(ordered_before));
    runner.note(&target, "begun").await?;
    let moved = runner.work(interrupted).await;
    let noted = runner.note(&target, "ended").await;
    moved.context("the run stopped; nothing is lost, run the command again to go on")?;
    noted?;
    let Runner {
        done, left, files, ..
    } = runner;
    let shown = json!({ "orders": done, "files": files, "left": left, "dry_run": false });
    console.print(&shown, || {
        format!(
            "{done} orders were moved into {files} files in {to}; {left} old orders stay, because they are not finished or still \
             have profiles or attempts."
        )
    })
}

/// The archives that an interrupted run has left, with the orders that are reserved for them.
async fn interrupted(
    connection: &mut PgConnection,
    to: &ArchiveStore,
) -> anyhow::Result<VecDeque<Reserved>> {
    let mut found = VecDeque::new();
    for archive in archive::unfinished(connection).await? {
        ensure!(
            to.of(name_of(&archive.file)) == archive.file,
            "archive {} is not complete, and its file is {}; run the command with --to and the place of this file, so that no order \
             is in two files",
            archive.archive,
            archive.file
        );
        let orders = archive::reserved(connection, &archive).await?;
        found.push_back(Reserved {
            archive,
            orders,
            is_tried: true,
        });
    }
    Ok(found)
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
            "{orders} orders from before {} would be moved; {left} would stay, because they are not finished or still have profiles \
             or attempts.",
            utc(ordered_before)
        )
    })
}

/// Counts the orders that a run has to look at, in statements that are all short.
async fn total(
    connection: &mut PgConnection,
    ordered_before: OffsetDateTime,
) -> anyhow::Result<u64> {
    let mut total = 0;
    let mut after = Uuid::nil();
    loop {
        let (count, last) = archive::count(connection, after, ordered_before, COUNTED).await?;
        total += count;
        match last {
            Some(last) if count == u64::from(COUNTED) => after = last,
            _ => return Ok(total),
        }
    }
}

/// An archive whose orders are reserved and still in the tables.
struct Reserved {
    archive: Archive,
    orders: Vec<Uuid>,
    /// Whether its file may be stored, by a try that has failed or by a run that has died.
    is_tried: bool,
}

/// A name for the file of an archive, which no other try has. The number alone would also be given
/// out again after the database was restored from a backup, and the file of an order that is
/// nowhere else would be replaced.
fn fresh_name(number: i32) -> String {
    format!("orders-{number}-{:08x}.jsonl.gz", rand::random::<u32>())
}

/// The name of a file without its place.
fn name_of(file: &str) -> &str {
    file.rsplit('/').next().unwrap_or_default()
}

struct Runner<'a> {
    connection: PgConnection,
    asked: &'a ArchiveRunArgs,
    to: &'a ArchiveStore,
    ordered_before: OffsetDateTime,
    /// About how many orders this run will look at.
    total: u64,
    done: u64,
    /// Orders that were old enough and are not finished.
    left: u64,
    files: u64,
    began: Instant,
    reported: Instant,
}

impl Runner<'_> {
    /// Moves all finished orders that are old enough, round by round.
    async fn work(&mut self, mut waiting: VecDeque<Reserved>) -> anyhow::Result<()> {
        let mut after = Uuid::nil();
        let most = usize::try_from(u64::from(self.asked.rate) * ROUND.as_secs())?;
        loop {
            // Only when nothing waits: what is reserved already is still in the tables, too.
            let mut reserved = if waiting.is_empty() { 0 } else { most };
            while reserved < most {
                let began = Instant::now();
                let to = self.to;
                let file = |number| to.of(&fresh_name(number));
                let next = archive::reserve(
                    &mut self.connection,
                    after,
                    self.ordered_before,
                    self.asked.batch,
                    file,
                );
                let Some((page, archive)) = next.await? else {
                    break;
                };
                after = page.last;
                self.left += (page.seen - page.finished.len()) as u64;
                reserved += page.finished.len();
                self.pace(began, page.seen).await;
                if let Some(archive) = archive {
                    let orders = page.finished;
                    waiting.push_back(Reserved {
                        archive,
                        orders,
                        is_tried: false,
                    });
                }
            }
            if waiting.is_empty() {
                return Ok(());
            }
            tokio::time::sleep(GRACE).await;
            while let Some(reserved) = waiting.pop_front() {
                let began = Instant::now();
                let orders = reserved.orders.len();
                self.move_orders(reserved).await?;
                self.pace(began, orders).await;
                self.report();
            }
        }
    }

    /// Moves the orders of an archive. It is tried again after a conflict, and while the bucket
    /// does not answer.
    async fn move_orders(&mut self, mut reserved: Reserved) -> anyhow::Result<()> {
        let mut tries = 1;
        loop {
            match self.try_to_move(&mut reserved).await {
                Ok(moved) => {
                    self.files += 1;
                    self.done += moved;
                    self.left += reserved.orders.len() as u64 - moved;
                    return Ok(());
                }
                Err(error) => {
                    let is_passing = error.is::<Unavailable>()
                        || error
                            .downcast_ref::<pg::Error>()
                            .is_some_and(pg::Error::is_transient);
                    if !is_passing || tries == TRIES || self.connection.ping().await.is_err() {
                        return Err(error);
                    }
                    tries += 1;
                    say(format_args!("a file is tried again: {error:#}"));
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }

    /// Moves the orders of an archive in one transaction, and returns how many were moved.
    async fn try_to_move(&mut self, reserved: &mut Reserved) -> anyhow::Result<u64> {
        if reserved.is_tried {
            self.rename(&mut reserved.archive).await?;
        }
        reserved.is_tried = true;
        let (to, reserved) = (self.to, &*reserved);
        transaction::once(
            &mut self.connection,
            TransactionKind::Writing,
            "archive::move",
            async |transaction| match store_and_delete(transaction, to, reserved).await {
                Ok(moved) => Ok(TransactionEnd::Commit(moved)),
                Err(error) => {
                    // This try commits nothing, so its file counts for nothing. Another run may
                    // have its archive.
                    discard(to, &reserved.archive.file).await;
                    Err(error)
                }
            },
        )
        .await
    }

    /// Gives the archive a new file name. From then on nobody can complete it with its earlier
    /// file, which is removed: an order would be in two files otherwise. Nobody completes it
    /// meanwhile either, because this session has the lock of the runs. If this program dies here,
    /// the next run does the same again.
    async fn rename(&mut self, archive: &mut Archive) -> anyhow::Result<()> {
        let to = self.to;
        *archive = transaction!(
            &mut self.connection,
            "archive::rename",
            |transaction| -> anyhow::Result<Archive> {
                let mut renamed = archive.clone();
                let file = to.of(&fresh_name(archive.archive));
                let earlier = archive::rename(transaction, &mut renamed, file).await?;
                discard(to, &earlier).await;
                Ok(TransactionEnd::Commit(renamed))
            }
        )?;
        Ok(())
    }

    /// Records the action.
    async fn note(&mut self, target: &str, what: &str) -> anyhow::Result<()> {
        let action = self
            .asked
            .confirm
            .action(domain::Command::ArchiveRun, target);
        let done = i64::try_from(self.done)?;
        let changed = ActionChange::created(
            json!({ "run": what, "orders": self.done, "files": self.files, "left": self.left }),
        );
        transaction!(&mut self.connection, "archive::note", |transaction| {
            actions::record(transaction, action, done, changed.clone()).await?;
            Ok(TransactionEnd::Commit(()))
        })
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

/// The name of the file with the checksum of a file.
fn sums_of(name: &str) -> String {
    format!("{name}.sha256")
}

/// Removes a file that counts for nothing, with its checksum. A bucket may keep what it has, so the
/// run goes on if this fails.
async fn discard(to: &ArchiveStore, file: &str) {
    let name = name_of(file);
    for name in [name, &sums_of(name)] {
        if let Err(error) = to.remove(name).await {
            say(format_args!(
                "remove {} if it is there, because it counts for nothing: {error:#}",
                to.of(name)
            ));
            return;
        }
    }
}

/// Copies the orders of an archive, stores its file, and deletes them. The caller commits.
async fn store_and_delete(
    transaction: &mut Transaction<'_>,
    to: &ArchiveStore,
    reserved: &Reserved,
) -> anyhow::Result<u64> {
    let mut archive = reserved.archive.clone();
    let copied = archive::copy(transaction, &archive, &reserved.orders).await?;
    let name = name_of(&reserved.archive.file);
    let mut packed = GzEncoder::new(Vec::new(), Compression::new(LEVEL));
    packed.write_all(copied.lines.as_bytes())?;
    let sha256 = to.store(name, &packed.finish()?).await?;
    let sums = format!("{sha256}  {name}\n");
    to.store(&sums_of(name), sums.as_bytes()).await?;
    archive::complete(transaction, &mut archive, &copied, &sha256).await?;
    Ok(copied.orders.len() as u64)
}
