use std::process::ExitCode;

fn main() -> ExitCode {
    runtime::main::<notifier::Config, _, _>("notifier", notifier::run)
}
