//! The command line of the model: checks the protocol and prints a counterexample if there is one.

use std::process::ExitCode;

use clap::Parser;
use model::{Settings, check, give_back};

/// Check the protocol of the pipeline in every state that it can reach
///
/// The checker explores every interleaving of ingress, two provisioners, a notifier and a provider,
/// with lost, repeated and reordered messages, and with crashes and stalls at any step.
///
/// With `--give-back` it explores the give-back of a delivered eSIM instead.
///
/// The exit status is 0 if every promise holds in every state. It is 1 if one is broken; then the
/// shortest counterexample that was found is printed. It is 2 for an invalid argument.
#[derive(Parser, Debug)]
#[command(name = "model", version)]
struct Arguments {
    #[command(flatten)]
    settings: Settings,
    /// Print every pair of placement and event that occurred
    #[arg(long)]
    pairs: bool,
    /// Check the give-back of a delivered eSIM instead of a purchase
    #[arg(long, conflicts_with_all = ["without", "broken", "placements", "faults", "attempts"])]
    give_back: bool,
    /// Switch off a safeguard of the give-back. Can be given several times
    #[arg(long, value_name = "SAFEGUARD", requires = "give_back")]
    give_back_without: Vec<give_back::Safeguard>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.give_back {
        return check_give_back(&arguments.give_back_without);
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
    println!("{} states, {} steps deep", report.states, report.depth);
    if let Some(broken) = report.counterexample {
        println!("broken: {}", broken.promise.name());
        for (number, step) in broken.steps.iter().enumerate() {
            println!("{:>4}. {step}", number + 1);
        }
        return ExitCode::FAILURE;
    }
    for end in report.unreached {
        println!("never reached: {end}");
    }
    println!("every promise holds");
    ExitCode::SUCCESS
}

fn check_give_back(without: &[give_back::Safeguard]) -> ExitCode {
    let report = give_back::check(without);
    println!("{} states", report.states);
    if let Some((promise, steps)) = report.counterexample {
        println!("broken: {}", promise.name());
        for (number, step) in steps.iter().enumerate() {
            println!("{:>4}. {step}", number + 1);
        }
        return ExitCode::FAILURE;
    }
    for end in report.unreached {
        println!("never reached: {end}");
    }
    println!("every promise holds");
    ExitCode::SUCCESS
}
