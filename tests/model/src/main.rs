//! Checks the protocol and prints counterexamples.

use std::process::ExitCode;

use clap::Parser;
use model::{Settings, check};

/// Model-checks the pipeline's protocol: every interleaving of ingress, two provisioners, a notifier, a
/// provider, and lost, repeated and reordered messages, with crashes and stalls at any step.
///
/// Exit status: 0 if every promise holds in every state, 1 if one is broken (with the shortest
/// counterexample), 2 for an invalid argument.
#[derive(Parser, Debug)]
#[command(name = "model", version)]
struct Arguments {
    #[command(flatten)]
    settings: Settings,
    /// Print every (placement, event) pair that occurred
    #[arg(long)]
    pairs: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let report = check(&arguments.settings);
    if arguments.pairs {
        let mut pairs: Vec<String> =
            report.visited.iter().map(|(placement, event)| format!("{placement:?} {event:?}")).collect();
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
