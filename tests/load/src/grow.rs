//! Measures how the rate and the latencies change while the number of stored, finished orders
//! grows. A pipeline whose hot path touches old rows would become slower.

use crate::beside::Beside;
use crate::book::Book;
use crate::chart::{Line, Plot};
use crate::fill::{BATCH, Fill, backlog_topup};
use crate::report::{Circumstances, Quantiles, Report, approximate};
use crate::run::{self, measure};
use crate::settings::{Load, Mode, System};
use crate::sink::Sink;
use crate::{document, pgbench, system};
use anyhow::{Context, Result};
use clap::Parser;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};
use testkit::esimctl::{CatalogueOption, Esimctl};
use testkit::progress::Progress;
use testkit::table::{figure, table};
use url::Url;
use vault::Keyring;

/// A backlog is given up after this time.
const LONGEST_DRAIN: Duration = Duration::from_hours(6);

/// Measure how the rate changes with the number of stored, finished orders
///
/// At each size a closed loop (`--mode deliver`) measures the rate, and an open loop measures the
/// latencies. Other work beside the load is measured at the largest size. This command fills the
/// database of a running pipeline with made-up orders, so use one that you can wipe.
#[derive(Debug, Parser)]
#[command(
    bin_name = "load grow",
    mut_arg("mode", |arg| arg.hide(true)),
    mut_arg("backlog", |arg| arg.hide(true)),
    mut_arg("rate", |arg| arg.help("Orders per second of the open loop [default: half of the first closed loop's rate]")),
    after_help = "Examples:
  load grow --orders 0,1000000,20000000 --fill-partners 10000 --out .local/load/grow
  load grow --orders 0,2000000 --snapshot 10m --base-backup
  load grow --orders 0 --backlogs 10000,1000000"
)]
pub struct Grow {
    /// Numbers of stored, finished orders of one unit at which to measure, separated by commas. The
    /// smallest is measured first, and missing orders are filled in before each
    #[arg(long, value_delimiter = ',', default_value = "0,100000,500000,2000000")]
    orders: Vec<u64>,
    /// Number of partners that own the filled orders
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    fill_partners: u32,
    /// Also measure with a snapshot that was held for this long under load and is held during the
    /// measurement
    #[arg(long, value_parser = humantime::parse_duration)]
    snapshot: Option<Duration>,
    /// Also measure while base backups run one after the other; they are discarded
    #[arg(long)]
    base_backup: bool,
    /// Also measure while this shell command, which erases data, runs repeatedly
    #[arg(long, value_name = "COMMAND")]
    retention: Option<String>,
    /// Also measure the drain of backlogs of these sizes, which are due topups without new orders
    #[arg(long, value_delimiter = ',')]
    backlogs: Vec<u64>,
    /// Write `<PREFIX>.json` and the plots `<PREFIX>-*.svg`
    #[arg(long, value_name = "PREFIX")]
    out: Option<PathBuf>,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    load: Load,
    #[command(flatten)]
    pub system: System,
    #[command(flatten)]
    master_key: pg::config::MasterKeyConfig,
}

#[derive(Debug, Serialize)]
struct Point {
    orders: u64,
    database_bytes: i64,
    beside: String,
    /// How often the other work was completed.
    rounds: Option<u32>,
    closed: Report,
    open: Report,
}

#[derive(Debug, Serialize)]
struct Backlog {
    topups: u64,
    report: Report,
}

#[derive(Debug, Serialize)]
struct Results {
    commit: Option<String>,
    fill_partners: u32,
    points: Vec<Point>,
    backlogs: Vec<Backlog>,
}

impl Grow {
    pub async fn run(&self) -> Result<ExitCode> {
        let results = self.measure_all().await?;
        if self.json {
            println!("{}", serde_json::to_string_pretty(&results)?);
        } else {
            println!("{}", results.tables());
        }
        if let Some(prefix) = &self.out {
            document::write_file(
                prefix,
                ".json",
                &(serde_json::to_string_pretty(&results)? + "\n"),
            )?;
            results.plot(prefix)?;
        }
        Ok(if results.complete() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    async fn measure_all(&self) -> Result<Results> {
        let vault = self.master_key.vault(&Keyring::ALL)?;
        let option = Esimctl::new([]).sandbox_option(&self.load.option).await?;
        let partners =
            Fill::partners(&self.system.database_url, &vault, self.fill_partners).await?;
        let mut fill = Fill::new(&self.admin_url()?, partners, option.clone()).await?;

        let mut sizes = self.orders.clone();
        sizes.sort_unstable();
        let mut points = Vec::new();
        let mut open_rate = self.load.rate;
        for size in &sizes {
            fill_up(&mut fill, *size, sizes.last().copied().unwrap_or(*size)).await?;
            points.push(
                self.point(&mut fill, *size, &Beside::Nothing, &mut open_rate)
                    .await?,
            );
        }
        let largest = sizes.last().copied().unwrap_or_default();
        for beside in self.besides() {
            points.push(
                self.point(&mut fill, largest, &beside, &mut open_rate)
                    .await?,
            );
        }
        let mut backlogs = Vec::new();
        for topups in &self.backlogs {
            backlogs.push(self.backlog(*topups, &option).await?);
        }
        Ok(Results {
            commit: self.system.commit.clone(),
            fill_partners: self.fill_partners,
            points,
            backlogs,
        })
    }

    /// The other work, in the order in which it is measured. The snapshot comes before retention,
    /// because what retention began goes on after its measurement. The base backup comes last,
    /// because it leaves old rows in the page cache.
    fn besides(&self) -> Vec<Beside> {
        let snapshot = self.snapshot.map(Beside::Snapshot);
        let retention = self.retention.clone().map(Beside::Command);
        let base_backup = self.base_backup.then_some(Beside::BaseBackup);
        [snapshot, retention, base_backup]
            .into_iter()
            .flatten()
            .collect()
    }

    /// The pipeline's database, as the superuser.
    fn admin_url(&self) -> Result<String> {
        let admin = self.system.database_admin_url.as_deref();
        let mut url: Url = admin.context("grow needs DATABASE_ADMIN_URL")?.parse()?;
        url.set_path(self.system.database_url.parse::<Url>()?.path());
        Ok(url.into())
    }

    async fn point(
        &self,
        fill: &mut Fill,
        orders: u64,
        beside: &Beside,
        open_rate: &mut Option<u32>,
    ) -> Result<Point> {
        let name = beside.name();
        eprintln!("{orders} finished orders, {name}");
        let mut pgbench = pgbench::measure(&self.system, self.load.pgbench_seconds).await?;
        let closed = Load {
            rate: None,
            mode: Mode::Deliver,
            ..self.load.clone()
        };
        let running = beside.start(&self.system).await?;
        if let Some(time) = beside.before() {
            let seconds = u32::try_from(time.as_secs().max(1))?;
            measure(
                &Load {
                    seconds,
                    ..closed.clone()
                },
                &self.system,
                None,
            )
            .await?;
            // The speed of the machine is measured again, because it may have changed during the
            // load before.
            pgbench = pgbench::measure(&self.system, self.load.pgbench_seconds).await?;
        }
        let measured = measure(&closed, &self.system, pgbench).await?.report;
        let half = measured.webhooks_per_second / f64::from(closed.qty) / 2.0;
        let rate = *open_rate.get_or_insert(crate::ladder::whole(half));
        let open = Load {
            rate: Some(rate),
            ..closed
        };
        let open = measure(&open, &self.system, pgbench).await?.report;
        Ok(Point {
            orders,
            database_bytes: fill.size().await?,
            beside: name,
            rounds: running.stop().await?,
            closed: measured,
            open,
        })
    }

    /// Fills in due topups of partners with endpoints, and waits for their webhooks.
    async fn backlog(&self, topups: u64, option: &CatalogueOption) -> Result<Backlog> {
        // Ids of a backlog of an earlier run may still be stored, so this run uses others.
        let run = runtime::clock::unix_seconds().unsigned_abs();
        let book = Rc::new(Book::default());
        let sink = Sink::start(self.system.webhook_address, Rc::clone(&book)).await?;
        let partners = run::partners(&self.load, &sink).await?;
        let ids = partners.iter().map(|partner| partner.partner_id.parse());
        let mut fill = Fill::new(
            &self.admin_url()?,
            ids.collect::<Result<_, _>>()?,
            option.clone(),
        )
        .await?;
        let pgbench = pgbench::measure(&self.system, self.load.pgbench_seconds).await?;
        let mut progress = Progress::start();
        book.stored(
            Instant::now(),
            (0..topups).map(|number| backlog_topup(run, number)),
        );
        system::reset_peaks(&self.system.run_dir)?;
        let before = system::sample(&self.system.run_dir)?;
        let show = |stored| progress.show(format!("{stored} of {topups} due topups stored"));
        fill.backlog(run, topups, show).await?;
        let began = Instant::now();
        let mut line = run::Line::new(Rc::clone(&book), began);
        run::wait_for_webhooks(
            &book,
            self.load.patience,
            LONGEST_DRAIN,
            &mut progress,
            &mut line,
        )
        .await;
        drop(progress);
        let circumstances = Circumstances {
            pgbench,
            window: began.elapsed(),
            drained: began.elapsed(),
            drain_per_second: run::drain_rate(&book.arrivals()),
            before,
            after: system::sample(&self.system.run_dir)?,
            ..Circumstances::default()
        };
        let load = Load {
            mode: Mode::Drain,
            rate: None,
            ..self.load.clone()
        };
        let report = Report::new(&load, &self.system, &book, &circumstances);
        eprintln!("{report}\n");
        Ok(Backlog { topups, report })
    }
}

/// Stores finished orders until there are `size`.
async fn fill_up(fill: &mut Fill, size: u64, largest: u64) -> Result<()> {
    let mut progress = Progress::start();
    let began = Instant::now();
    let mut stored = fill.stored().await?;
    let first = stored;
    while stored < size {
        let batch = BATCH.min(size - stored);
        fill.finished(stored, batch, largest).await?;
        stored += batch;
        let rate = approximate(stored - first) / began.elapsed().as_secs_f64();
        progress.show(format!(
            "{stored} of {size} finished orders stored, {rate:.0}/s"
        ));
    }
    if stored > first {
        progress.show("vacuum, analyze and checkpoint".into());
        fill.settle().await?;
    }
    Ok(())
}

impl Results {
    fn complete(&self) -> bool {
        let points = self
            .points
            .iter()
            .flat_map(|point| [&point.closed, &point.open]);
        let backlogs = self.backlogs.iter().map(|backlog| &backlog.report);
        points.chain(backlogs).all(Report::complete)
    }

    fn tables(&self) -> String {
        let first = self.points.first().map(|point| &point.closed);
        let rows = self.points.iter().map(|point| {
            let Point { closed, open, .. } = point;
            let ratio = first.map(|first| closed.webhooks_per_second / first.webhooks_per_second);
            let speed = first.and_then(|first| Some(first.pgbench? / closed.pgbench?));
            let p99 =
                |latency: &Option<Quantiles>| figure(latency.as_ref().map(|one| one.p99_ms), 1);
            [
                point.orders.to_string(),
                point.beside.clone(),
                format!(
                    "{:.1}",
                    approximate(u64::try_from(point.database_bytes).unwrap_or(0))
                        / f64::from(1 << 30)
                ),
                format!("{:.0}", closed.webhooks_per_second),
                figure(ratio, 3),
                figure(ratio.zip(speed).map(|(ratio, speed)| ratio * speed), 3),
                figure(closed.pgbench, 0),
                open.rate.unwrap_or_default().to_string(),
                p99(&open.answer),
                p99(&open.order_to_webhook),
                point
                    .rounds
                    .map_or_else(String::new, |rounds| rounds.to_string()),
            ]
        });
        let head = "finished orders | beside | GiB | webhooks/s | ÷ first | ÷ pgbench ÷ first | pgbench/s \
                    | open loop/s | answer p99 ms | to webhook p99 ms | rounds";
        let points = table(head, rows);
        if self.backlogs.is_empty() {
            return points;
        }
        let rows = self.backlogs.iter().map(|Backlog { topups, report }| {
            let drain = report.drain_per_second.unwrap_or_default();
            [
                topups.to_string(),
                format!("{drain:.0}"),
                figure(report.pgbench.map(|pgbench| drain / pgbench), 3),
                format!("{:.1}", report.drain_seconds),
                report.missing_webhooks.to_string(),
            ]
        });
        format!(
            "{points}\n\n{}",
            table(
                "backlog | drain/s | ÷ pgbench | all after s | missing",
                rows
            )
        )
    }

    fn plot(&self, prefix: &Path) -> Result<()> {
        let names: Vec<&str> = self.points.iter().fold(Vec::new(), |mut names, point| {
            if !names.contains(&point.beside.as_str()) {
                names.push(&point.beside);
            }
            names
        });
        let lines =
            |label: &str, colour: usize, figure: &dyn Fn(&Point) -> Option<f64>| -> Vec<Line> {
                let line = |(index, name): (usize, &&str)| {
                    let points = self.points.iter().filter(|point| point.beside == **name);
                    let points = points
                        .filter_map(|point| Some((approximate(point.orders), figure(point)?)));
                    let name = if index == 0 {
                        label.to_owned()
                    } else {
                        format!("{label}, {name}")
                    };
                    Line {
                        name,
                        points: points.collect(),
                        dashed: index > 0,
                        colour: colour + 2 * index,
                    }
                };
                names.iter().enumerate().map(line).collect()
            };
        let rate = Plot {
            title: "Rate over finished orders",
            x: "finished orders stored",
            y: "webhooks/s, closed loop",
            logarithmic: false,
            lines: lines("webhooks", 0, &|point| {
                Some(point.closed.webhooks_per_second)
            }),
            marks: Vec::new(),
        };
        document::write_file(prefix, "-rate.svg", &rate.svg())?;
        let mut latencies = lines("answer p99", 0, &|point| {
            Some(point.open.answer.as_ref()?.p99_ms)
        });
        latencies.extend(lines("to webhook p99", 1, &|point| {
            Some(point.open.order_to_webhook.as_ref()?.p99_ms)
        }));
        let latency = Plot {
            title: "p99 over finished orders",
            x: "finished orders stored",
            y: "ms, open loop",
            logarithmic: true,
            lines: latencies,
            marks: Vec::new(),
        };
        document::write_file(prefix, "-p99.svg", &latency.svg())
    }
}
