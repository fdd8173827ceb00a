use std::process::ExitCode;

fn main() -> ExitCode {
    runtime::main("notifier", notifier::run, |config| &config.common)
}
