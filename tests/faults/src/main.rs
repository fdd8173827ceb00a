//! The fault run: partners order from real processes while processes are killed and stalled,
//! servers are stopped, and the provider misbehaves. After the faults the run waits until the
//! system is at rest. Then it compares what the partners saw, what the provider sold and what the
//! database says. If these disagree, the promise is broken.
//!
//! A seed decides all faults and orders, so a red run can be repeated with the same faults. It will
//! not be the same run in every detail, because the processes' timing differs.
//!
//! [`schedule`], which draws each [`fault`] from a [`deck`], and [`orders`] plan the run and do no
//! I/O. [`world`] is the system under test, with the [`servers`] that it needs and the [`proxy`] in
//! front of a primary. [`inject`] applies the faults, some by what is [`preload`]ed into processes,
//! and some by dropped [`packets`]. [`operator`] repairs what lost commits leave. [`client`] and
//! [`endpoints`], one of them behind [`tls`], are the partners. [`book`] and [`stored`] hold the
//! evidence, [`verdict`] judges it without I/O, [`histories`] compares it with the model of the
//! protocol, and [`report`] prints the result.

mod book;
mod client;
mod deck;
mod endpoints;
mod events;
mod fault;
mod histories;
mod inject;
mod money;
mod operator;
mod orders;
mod packets;
mod preload;
mod proxy;
mod report;
mod returns;
mod schedule;
mod servers;
mod stored;
mod tls;
mod verdict;
#[cfg(test)]
mod verdict_tests;
mod world;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use fault::Terms;
use orders::{OPTIONS, ROUTED};
use report::Report;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use stored::OnTheWay;
use testkit::progress::Progress;
use testkit::stack::Stage;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use verdict::Broken;
use world::{Load, Setting, World};

/// How long the system may take to come to rest after the last fault, or after it last got further,
/// in addition to `PARK_AFTER`. At many orders a second some options wait longer than the run
/// lasts: `flapping` answers the first two attempts of each order with an error, each of which is
/// unsettled for `SETTLE`, and a lane has few unsettled attempts at a time. What is still bought is
/// not lost.
///
/// The longest way is that of a `rate-limited` order whose sandbox was restarted last: it has
/// forgotten the attempts, so three more are needed, which may be two minutes apart.
const REST: Duration = Duration::from_mins(7);
/// How many placements fewer to buy count as getting further.
const REST_PROGRESS: i64 = 20;
const PROGRESS: Duration = Duration::from_secs(5);
/// How often a healing run is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Send orders through the pipeline while faults occur, and check that nothing is bought twice and
/// nothing is lost
///
/// The run starts a `PostgreSQL`, a nats-server and a sandbox of its own, and two processes of each
/// stage. With `--cluster` it starts a primary with a synchronous standby behind proxies and three
/// nats-servers instead, and plays the failover manager. The exit status is 0 if the promise held.
/// It is 1 if it is broken; then the ids are printed, and everything is kept in a folder for
/// inspection. It is 2 if the run could not be carried out.
#[derive(Debug, Parser)]
#[command(
    name = "tests/faults/run",
    after_help = "Examples:
  tests/faults/run                                   three minutes, a random seed
  tests/faults/run --seed 7 --minutes 30             what docs/reliability.md reports
  tests/faults/run --no-duplicate-detection          the promise rests on look-ups alone
  tests/faults/run --cluster --minutes 10            primaries and majorities are lost, too
  tests/faults/run --cluster --asynchronous          … and so are the last commits of each primary
  tests/faults/run --provider airalo                 the protocol of another provider
  tests/faults/run --provider-latency 1s             calls as slow as a real provider's
  tests/faults/run --items refused,slow --only 'provisioner killed'   one thing, again and again"
)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each one is a flag of the command line"
)]
struct Settings {
    /// Seed that decides the faults and the orders [default: random; the run prints it]
    #[arg(long)]
    seed: Option<u64>,
    /// Time in minutes during which orders are placed and faults begin; the run takes some minutes
    /// longer
    #[arg(long, default_value_t = 3.0, value_parser = |text: &str| within(text, 0.2, 600.0))]
    minutes: f64,
    /// Number of orders per second
    #[arg(long, default_value_t = 12.5, value_parser = |text: &str| within(text, 0.1, 1000.0))]
    orders_per_second: f64,
    /// Mean time between two faults
    #[arg(long, default_value = "7s", value_parser = interval)]
    fault_every: Duration,
    /// Let the provider refuse to sell the same placement twice [default: on for even seeds, off
    /// for odd ones and for zendit]
    #[arg(long, overrides_with = "no_duplicate_detection")]
    duplicate_detection: bool,
    /// Let the provider sell whatever it is asked for, even repeatedly, so that only the pipeline
    /// prevents a second purchase
    #[arg(long)]
    no_duplicate_detection: bool,
    /// Run PostgreSQL as a primary with a synchronous standby, and NATS as a cluster of three, and
    /// let them fail over
    #[arg(long)]
    cluster: bool,
    /// Let commits not wait for the standby, and lose those of the last seconds before each
    /// promotion. The run plays the operator, who runs `esimctl recover`
    #[arg(long, requires = "cluster")]
    asynchronous: bool,
    /// Let packets be lost, and servers vanish behind connections that seem to live, in a network
    /// namespace of the run's own. Needs root and iptables
    #[arg(long, conflicts_with = "cluster")]
    lose_packets: bool,
    /// Take the commit fence out of the database, to see that such a run is red without it
    #[arg(long, requires = "asynchronous")]
    without_fence: bool,
    /// Provider whose protocol the sandbox speaks: `sandbox`, `usimsa`, `esim-access`, `airalo` or
    /// `zendit`
    ///
    /// At all but the sandbox and Zendit a look-up proves no absence, so an attempt that got no
    /// answer and is not found is parked.
    #[arg(long, default_value = "sandbox", value_parser = provider)]
    provider: &'static str,
    /// Let each call to the provider take this long, at most 1500ms, as with a real provider
    ///
    /// The provisioners of a run wait 2s for a response.
    #[arg(long, default_value = "0s", value_parser = latency)]
    provider_latency: Duration,
    /// SETTLE of the provisioners [default: 8s, or 20s if the run takes at least 10 minutes]
    #[arg(long, value_parser = interval)]
    settle: Option<Duration>,
    /// Play only faults whose kind has this text in its name, such as `NATS` or `ingress stalled`.
    /// Can be given several times [default: every kind]
    #[arg(long, value_name = "KIND")]
    only: Vec<String>,
    /// Let every order have these options of the sandbox, such as `refused,slow` [default: a mix of
    /// all]. `routed` is sold out at the sandbox and comes from the provider of `--provider`, and
    /// so does `routed-slow`, which that provider takes 5 s to sell
    #[arg(long, value_delimiter = ',', value_parser = option)]
    items: Vec<&'static str>,
    /// Number of equal requests that a client sends at once for each order
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=20))]
    at_once: u8,
    /// Set a variable of every process of a stage, such as `ingress:PLACEMENT_WAIT=0s`. Can be
    /// given several times
    #[arg(long, value_name = "STAGE:NAME=VALUE", value_parser = setting)]
    set: Vec<Setting>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

fn within(text: &str, least: f64, most: f64) -> Result<f64, String> {
    let number = text.parse().map_err(|_| "it is not a number".to_owned())?;
    let fits = (least..=most).contains(&number);
    fits.then_some(number)
        .ok_or_else(|| format!("it must be from {least} to {most}"))
}

/// The provider that is asked again after an exact look-up, and whose stand-in then always sells
/// again.
const SELLS_AGAIN: &str = "zendit";

/// The provider that sends no event when an eSIM becomes ready.
const SENDS_NONE: &str = "airalo";

fn provider(text: &str) -> Result<&'static str, String> {
    const NAMES: [&str; 5] = ["airalo", "esim-access", "sandbox", "usimsa", "zendit"];
    let known = NAMES.into_iter().find(|name| *name == text);
    known.ok_or_else(|| format!("it must be one of {}", NAMES.join(", ")))
}

fn option(text: &str) -> Result<&'static str, String> {
    let routed = ROUTED.iter().map(|(name, _)| *name);
    let names = OPTIONS.iter().map(|(name, _)| *name);
    let names: Vec<_> = names.chain(routed).collect();
    let known = names.iter().copied().find(|name| *name == text);
    known.ok_or_else(|| format!("it must be one of {}", names.join(", ")))
}

fn setting(text: &str) -> Result<Setting, String> {
    let parts = text
        .split_once(':')
        .and_then(|(stage, rest)| Some((stage, rest.split_once('=')?)));
    let (stage, (name, value)) = parts.ok_or("it must have the form STAGE:NAME=VALUE")?;
    let stage = Stage::ALL.into_iter().find(|one| one.name() == stage);
    Ok(Setting {
        stage: stage.ok_or("there is no such stage")?,
        name: name.into(),
        value: value.into(),
    })
}

fn latency(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    (duration <= Duration::from_millis(1_500))
        .then_some(duration)
        .ok_or_else(|| "it must be at most 1500ms".into())
}

fn interval(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    (duration >= Duration::from_millis(500))
        .then_some(duration)
        .ok_or_else(|| "it must be at least 500ms".into())
}

/// The settings with every default filled in.
struct Run {
    terms: Terms,
    load: Load,
    park_after: Duration,
    orders: u64,
    orders_per_second: f64,
    command: String,
    json: bool,
}

impl Run {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the settings' ranges keep the product small and positive"
    )]
    fn of(settings: &Settings) -> Self {
        let seed = settings
            .seed
            .unwrap_or_else(|| u64::from(rand::random::<u32>()));
        let sells_again = settings.provider == SELLS_AGAIN;
        let length = Duration::from_secs_f64(settings.minutes * 60.0);
        let short = length < Duration::from_mins(10);
        let settle = settings
            .settle
            .unwrap_or(Duration::from_secs(if short { 8 } else { 20 }));
        let detects_duplicates = settings.duplicate_detection
            || (!settings.no_duplicate_detection && !sells_again && seed.is_multiple_of(2));
        let park_after = (length / 15).clamp(Duration::from_secs(45), Duration::from_mins(2));
        let provider = match settings.provider {
            "sandbox" => String::new(),
            name => format!(" --provider {name}"),
        };
        let detection = if detects_duplicates { "" } else { "no-" };
        let command = format!(
            "tests/faults/run --seed {seed} --minutes {} --orders-per-second {} --fault-every {} --settle {} --{detection}duplicate-detection{}{provider}{}",
            settings.minutes,
            settings.orders_per_second,
            humantime::format_duration(settings.fault_every),
            humantime::format_duration(settle),
            [
                (settings.cluster, " --cluster"),
                (settings.asynchronous, " --asynchronous"),
                (settings.without_fence, " --without-fence"),
                (settings.lose_packets, " --lose-packets"),
            ]
            .into_iter()
            .filter_map(|(is_set, option)| is_set.then_some(option))
            .collect::<String>(),
            provoking(settings),
        );
        Self {
            terms: Terms {
                seed,
                length,
                every: settings.fault_every,
                settle,
                detects_duplicates,
                is_cluster: settings.cluster,
                is_asynchronous: settings.asynchronous,
                is_fenced: !settings.without_fence,
                loses_packets: settings.lose_packets,
                provider: settings.provider,
                sends_events: settings.provider != SENDS_NONE,
                provider_latency: settings.provider_latency,
                only: settings.only.clone(),
            },
            load: Load {
                items: settings.items.clone(),
                at_once: settings.at_once,
                settings: settings.set.clone(),
            },
            park_after,
            orders: (length.as_secs_f64() * settings.orders_per_second).ceil() as u64,
            orders_per_second: settings.orders_per_second,
            command,
            json: settings.json,
        }
    }
}

/// The options of the command line that provoke something special.
fn provoking(settings: &Settings) -> String {
    let only = settings.only.iter().map(|kind| format!(" --only '{kind}'"));
    let items = (!settings.items.is_empty()).then(|| settings.items.join(","));
    let items = items.map(|items| format!(" --items {items}"));
    let at_once = (settings.at_once > 1).then(|| format!(" --at-once {}", settings.at_once));
    let latency = settings.provider_latency;
    let latency = (!latency.is_zero()).then(|| {
        format!(
            " --provider-latency {}",
            humantime::format_duration(latency)
        )
    });
    let set = settings.set.iter();
    let set = set.map(|one| format!(" --set {}:{}={}", one.stage.name(), one.name, one.value));
    only.chain(items)
        .chain(at_once)
        .chain(latency)
        .chain(set)
        .collect()
}

fn main() -> ExitCode {
    let run = Run::of(&Settings::parse());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let result = runtime.map_err(anyhow::Error::from).and_then(|runtime| {
        runtime.block_on(async {
            tokio::select! {
                result = carry_out(&run) => result,
                // Dropping the world stops everything that was started.
                stopped = stopped() => {
                    stopped?;
                    eprintln!("interrupted; seed {}", run.terms.seed);
                    Ok(ExitCode::from(130))
                }
            }
        })
    });
    result.unwrap_or_else(|error| {
        eprintln!("faults: {error:#}");
        ExitCode::from(2)
    })
}

/// Waits for SIGINT or SIGTERM.
async fn stopped() -> std::io::Result<()> {
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminated.recv() => Ok(()),
    }
}

async fn carry_out(run: &Run) -> Result<ExitCode> {
    eprintln!("seed {}: {}", run.terms.seed, run.command);
    let is_routed = run.load.items.iter().any(|name| orders::is_routed(name));
    ensure!(
        !is_routed || run.terms.provider != "sandbox",
        "an option of two providers needs --provider, with the name of a real one"
    );
    ensure!(
        !run.terms.detects_duplicates || run.terms.provider != SELLS_AGAIN,
        "{SELLS_AGAIN} sells again what it is asked for again; leave --duplicate-detection out"
    );
    let has_faults = !schedule::schedule(&run.terms).is_empty();
    ensure!(
        has_faults,
        "no kind of fault has this text of --only in its name"
    );
    let world = World::start(&run.terms, &run.load, run.park_after)
        .await
        .context("starting the system")?;
    let (report, kept) = watched(run, world).await?;
    if run.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("{report}");
    }
    let Some(kept) = kept else {
        return Ok(ExitCode::SUCCESS);
    };
    eprintln!("\n{kept}");
    Ok(ExitCode::FAILURE)
}

/// Carries out the run and draws its progress line. Returns the report and, if the promise is
/// broken, instructions for inspecting what is left.
async fn watched(run: &Run, world: World) -> Result<(Report, Option<String>)> {
    let mut progress = Progress::start();
    let victims = Arc::clone(&world.victims);
    let result = tokio::select! {
        result = play(run, &world, &mut progress) => result,
        () = victims.watch() => Err(anyhow::anyhow!("the process supervisor ended")),
    };
    drop(progress);
    // The supervisor owns processes, which must end before the servers in the world do.
    drop(victims);
    let report = match result {
        Ok(report) => report,
        Err(error) => {
            eprintln!("{}", world.keep().await?);
            return Err(error);
        }
    };
    let kept = if report.verdict.green() {
        None
    } else {
        Some(world.keep().await?)
    };
    Ok((report, kept))
}

async fn play(run: &Run, world: &World, progress: &mut Progress) -> Result<Report> {
    let epoch = world.epoch;
    let begun = epoch.elapsed();
    let mut schedule = schedule::schedule(&run.terms);
    // The times of the schedule count from the first order, and those of the run from slightly
    // earlier.
    for planned in &mut schedule {
        planned.at += begun;
    }
    let planned = schedule.len();
    let faults = world.victims.suffer(&schedule);
    let mut work = pin!(async { tokio::join!(faults, place_orders(run, world, begun)) });
    let mut returns = pin!(world.change_esims());
    let mut seconds = tokio::time::interval(PROGRESS);
    loop {
        tokio::select! {
            _ = &mut work => break,
            () = &mut returns => {}
            _ = seconds.tick() => progress.show(line(world, planned, "orders and faults").await),
        }
    }
    let happened = world.victims.happened();
    let last_fault = happened
        .iter()
        .map(|fault| fault.until)
        .max()
        .unwrap_or(begun);
    world.heal().await?;
    let rest = run.park_after + REST;
    let healed = epoch.elapsed();
    let mut deadline = healed + rest;
    let mut fewest = i64::MAX;
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut looked = 0_u32;
    while epoch.elapsed() < deadline {
        looks.tick().await;
        if let Ok(way) = world.on_the_way().await {
            if way == OnTheWay::default() {
                break;
            }
            // Nobody waits longer for it than twice as long as the run has lasted.
            if way.unbought + REST_PROGRESS <= fewest {
                fewest = way.unbought;
                deadline = deadline.max((epoch.elapsed() + rest).min(healed * 3));
            }
        }
        if looked.is_multiple_of(5) {
            progress.show(line(world, planned, "healing").await);
        }
        looked += 1;
    }
    let healed_after = epoch.elapsed().saturating_sub(last_fault);

    let evidence = world.evidence().await?;
    let mut verdict = verdict::judge(&evidence);
    money::judge(&evidence, &mut verdict);
    tokio::task::block_in_place(|| histories::compare(&evidence, &mut verdict));
    for trouble in world.victims.troubles() {
        verdict.add(Broken::EndedBySomething, trouble);
    }
    for believed in world.victims.believed() {
        verdict.add(Broken::EventBelieved, believed);
    }
    for number in 0..world.victims.unfenced() {
        let text = format!("loss {}: the breakers stayed closed", number + 1);
        verdict.add(Broken::NotFenced, text);
    }
    let faults_by_kind = report::recoveries(&happened, &evidence.asked, &evidence.arrivals);
    for (name, kind) in &faults_by_kind {
        if kind.never_struck() {
            let text = format!("{name}: none of {} faults", kind.counted);
            verdict.add(Broken::NeverStruck, text);
        }
    }
    Ok(Report {
        seed: run.terms.seed,
        command: run.command.clone(),
        detects_duplicates: run.terms.detects_duplicates,
        settle_seconds: run.terms.settle.as_secs_f64(),
        park_after_seconds: run.park_after.as_secs_f64(),
        orders_per_second: run.orders_per_second,
        took_seconds: epoch.elapsed().saturating_sub(begun).as_secs_f64(),
        healed_after_seconds: healed_after.as_secs_f64(),
        faults: happened.len(),
        faults_by_kind,
        happened,
        verdict,
    })
}

/// Places each order at its time, whether or not earlier ones have been answered. Returns when each
/// order has a definite result or was given up.
async fn place_orders(run: &Run, world: &World, begun: Duration) {
    let gap = Duration::from_secs_f64(1.0 / run.orders_per_second);
    let mut under_way = JoinSet::new();
    let mut at = begun;
    for number in 0..run.orders {
        tokio::time::sleep_until((world.epoch + at).into()).await;
        at += gap;
        let clients = Arc::clone(&world.clients);
        under_way.spawn(async move { clients.order(number).await });
        while under_way.try_join_next().is_some() {}
    }
    while under_way.join_next().await.is_some() {}
}

async fn line(world: &World, planned: usize, what: &str) -> String {
    let orders = book::lock(&world.book).len();
    let webhooks = world.receiver.count();
    let faults = world.victims.happened().len();
    let rest = match world.on_the_way().await {
        Ok(way) => {
            format!(
                "{} to buy, {} to collect, {} to deliver",
                way.unbought, way.uncollected, way.undelivered
            )
        }
        Err(_) => "database away".into(),
    };
    format!(
        "{:>5} s  {what}: {orders} orders settled, {webhooks} webhooks, {faults}/{planned} faults; {rest}",
        world.epoch.elapsed().as_secs()
    )
}
