use std::process::ExitCode;

fn main() -> ExitCode {
    runtime::main(
        "notifier",
        notifier::run,
        notifier::Config::check,
        |config| &config.common,
    )
}
