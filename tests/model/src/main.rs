//! The command line of the model: checks the protocol and prints a counterexample if there is one.

use std::process::ExitCode;

use clap::Parser;
use model::{
    Settings, check, crash, esim_change,
    explore::{self, SmallModel},
    money, repeats, resend, routes, webhooks,
};

/// Check the protocol of the pipeline in every state that it can reach
///
/// The checker explores every interleaving of ingress, two provisioners, a notifier and a provider,
/// with lost, repeated and reordered messages, and with crashes and stalls at any step.
///
/// With `--webhooks` it explores the webhooks of ready eSIMs instead, with `--resend` many of them
/// that are sent again, with `--routes` a purchase that arrives after its placement went to another
/// provider, with `--esim-change` the give-back or an extension of a delivered eSIM, with `--crash`
/// what a crash of PostgreSQL may lose, with `--repeats` three POSTs with one external id, and with
/// `--money` a prepaid account.
///
/// The exit status is 0 if every promise holds in every state. It is 1 if one is broken; then the
/// shortest counterexample that was found is printed. It is 2 for an invalid argument.
#[derive(Parser, Debug)]
#[command(name = "model", version)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
struct Arguments {
    #[command(flatten)]
    settings: Settings,
    /// Print every pair of placement and event that occurred
    #[arg(long)]
    pairs: bool,
    /// Check the give-back or an extension of a delivered eSIM instead of a purchase
    #[arg(long, conflicts_with_all = ["without", "broken", "placements", "faults", "attempts"])]
    esim_change: bool,
    /// Check the webhooks of ready eSIMs instead of a purchase
    #[arg(long, conflicts_with_all = ["without", "broken", "placements", "faults", "attempts", "esim_change"])]
    webhooks: bool,
    /// Check what a crash of PostgreSQL may lose instead of a purchase
    #[arg(long, conflicts_with_all = ["without", "broken", "placements", "faults", "attempts", "esim_change", "webhooks"])]
    crash: bool,
    /// Check a purchase that arrives after its placement went to another provider
    #[arg(long, conflicts_with_all = ["without", "broken", "placements", "faults", "attempts", "esim_change", "webhooks", "crash"])]
    routes: bool,
    /// Check many webhooks that are sent again beside their retries
    #[arg(long, conflicts_with_all = ["without", "broken", "placements", "faults", "attempts", "esim_change", "webhooks", "crash", "routes"])]
    resend: bool,
    /// Check three POSTs with one external id, each with a purchase of its own
    #[arg(long, conflicts_with_all = ["without", "broken", "placements", "faults", "attempts", "esim_change", "webhooks", "crash", "routes", "resend"])]
    repeats: bool,
    /// Check a prepaid account, of which two processes spend
    #[arg(long, conflicts_with_all = ["without", "broken", "placements", "faults", "attempts", "esim_change", "webhooks", "crash", "routes", "resend", "repeats"])]
    money: bool,
    /// Switch off a safeguard of the account. Can be given several times
    #[arg(long, value_name = "SAFEGUARD", requires = "money")]
    money_without: Vec<money::Safeguard>,
    /// Switch off a safeguard of repeated POSTs. Can be given several times
    #[arg(long, value_name = "SAFEGUARD", requires = "repeats")]
    repeats_without: Vec<repeats::Safeguard>,
    /// Switch off a safeguard of the routing. Can be given several times
    #[arg(long, value_name = "SAFEGUARD", requires = "routes")]
    routes_without: Vec<routes::Safeguard>,
    /// Switch off a safeguard of a resend. Can be given several times
    #[arg(long, value_name = "SAFEGUARD", requires = "resend")]
    resend_without: Vec<resend::Safeguard>,
    /// Switch off a safeguard against such a loss. Can be given several times
    #[arg(long, value_name = "SAFEGUARD", requires = "crash")]
    crash_without: Vec<crash::Safeguard>,
    /// Switch off a safeguard of the webhooks. Can be given several times
    #[arg(long, value_name = "SAFEGUARD", requires = "webhooks")]
    webhooks_without: Vec<webhooks::Safeguard>,
    /// Switch off a safeguard of the change. Can be given several times
    #[arg(long, value_name = "SAFEGUARD", requires = "esim_change")]
    esim_change_without: Vec<esim_change::Safeguard>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.esim_change {
        return print_small::<esim_change::Protocol>(&arguments.esim_change_without);
    }
    if arguments.webhooks {
        return print_small::<webhooks::Protocol>(&arguments.webhooks_without);
    }
    if arguments.crash {
        return print_small::<crash::Protocol>(&arguments.crash_without);
    }
    if arguments.routes {
        return print_small::<routes::Protocol>(&arguments.routes_without);
    }
    if arguments.resend {
        return print_small::<resend::Protocol>(&arguments.resend_without);
    }
    if arguments.repeats {
        return print_small::<repeats::Protocol>(&arguments.repeats_without);
    }
    if arguments.money {
        return print_small::<money::Protocol>(&arguments.money_without);
    }
    let report = check(&arguments.settings);
    if arguments.pairs {
        let mut pairs: Vec<String> = report
            .visited
            .iter()
            .map(|(placement, event)| format!("{placement:?} {event:?}"))
            .collect();
        pairs.sort_unstable();
        for pair in pairs {
            println!("{pair}");
        }
    }
    println!("{} steps deep", report.depth);
    let found = report.counterexample;
    let found = found.map(|found| (found.promise.name(), found.steps));
    print(report.states, report.unreached, found)
}

fn print_small<Protocol: SmallModel>(without: &[Protocol::Safeguard]) -> ExitCode {
    let report = explore::check::<Protocol>(without);
    let broken = report.counterexample;
    let broken = broken.map(|broken| (broken.name, broken.steps));
    print(report.states, report.unreached, broken)
}

fn print(states: usize, unreached: Vec<&str>, broken: Option<(&str, Vec<String>)>) -> ExitCode {
    println!("{states} states");
    if let Some((promise, steps)) = broken {
        println!("broken: {promise}");
        for (number, step) in steps.iter().enumerate() {
            println!("{:>4}. {step}", number + 1);
        }
        return ExitCode::FAILURE;
    }
    for end in unreached {
        println!("never reached: {end}");
    }
    println!("every promise holds");
    ExitCode::SUCCESS
}
