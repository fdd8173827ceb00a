use std::process::ExitCode;

fn main() -> ExitCode {
    runtime::main("console", console::run, |config| &config.common)
}
