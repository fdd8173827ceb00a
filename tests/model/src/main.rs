//! Checks the protocol and prints counterexamples.

use std::process::ExitCode;

use clap::Parser;
use model::{Assumption, Safeguard, Settings, check};

/// Model-checks the pipeline's protocol: every interleaving of ingress, two provisioners, a notifier, a
/// provider, and lost, repeated and reordered messages, with crashes and stalls at any step.
///
/// Exit status: 0 if every promise holds in every state, 1 if one is broken (with the shortest
/// counterexample), 2 for an invalid argument.
#[derive(Parser, Debug)]
#[command(name = "model", version)]
struct Arguments {
    /// Switch off a safeguard; repeatable
    #[arg(long, value_name = "SAFEGUARD")]
    without: Vec<Safeguard>,
    /// Drop an assumption; repeatable
    #[arg(long = "break", value_name = "ASSUMPTION")]
    broken: Vec<Assumption>,
    /// Number of placements of the one order
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    placements: u8,
    /// Maximum number of crashes and failing endpoints, together
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(0..=4))]
    faults: u8,
    /// Maximum number of attempts before a placement is parked
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=4))]
    attempts: u32,
    /// The provider recognises a second purchase under the same key
    #[arg(long)]
    detects_duplicates: bool,
    /// One "no such purchase" allows another attempt, once SETTLE has passed
    #[arg(long)]
    one_look: bool,
    /// Print every (placement, event) pair that occurred
    #[arg(long)]
    pairs: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let report = check(&Settings {
        placements: arguments.placements.into(),
        faults: arguments.faults,
        attempts: arguments.attempts,
        detects_duplicates: arguments.detects_duplicates,
        one_look: arguments.one_look,
        without: arguments.without,
        broken: arguments.broken,
    });
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
        println!("broken: {}", broken.promise);
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
