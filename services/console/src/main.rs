use std::process::ExitCode;

fn main() -> ExitCode {
    runtime::main("console", console::run, console::Config::check, |config| {
        &config.common
    })
}
