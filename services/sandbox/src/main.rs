use std::process::ExitCode;

use sandbox::{Config, SandboxCommand};

fn main() -> ExitCode {
    let config =
        runtime::config::parse(|config: &Config| runtime::checked(|| config.serve.check()));
    match config.command {
        Some(SandboxCommand::Catalogue) => {
            sandbox::print(&sandbox::script::catalogue(&config.provider, None))
        }
        Some(SandboxCommand::Serve) | None => runtime::main(
            "sandbox",
            sandbox::run,
            |_| Ok(()),
            |config: &Config| &config.serve.common,
        ),
    }
}
