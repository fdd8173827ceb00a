use std::process::ExitCode;

use sandbox::{Command, Config};

fn main() -> ExitCode {
    let config =
        runtime::config::parse(|config: &Config| runtime::checked(|| config.serve.check()));
    match config.command {
        Some(Command::Catalogue) => {
            sandbox::print(&sandbox::script::catalogue(&config.provider, None))
        }
        Some(Command::Serve) | None => runtime::main(
            "sandbox",
            sandbox::run,
            |_| Ok(()),
            |config: &Config| &config.serve.common,
        ),
    }
}
