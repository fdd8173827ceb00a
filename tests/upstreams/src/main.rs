use std::process::ExitCode;

use sandbox::SandboxCommand;
use upstreams::Config;

fn main() -> ExitCode {
    let config =
        runtime::config::parse(|config: &Config| runtime::checked(|| config.serve.check()));
    match config.command {
        Some(SandboxCommand::Catalogue) => sandbox::print(&upstreams::catalogue(&config.provider)),
        // Logs and traces say `sandbox`, because it stands where the sandbox does.
        Some(SandboxCommand::Serve) | None => runtime::main(
            "sandbox",
            upstreams::run,
            |_| Ok(()),
            |config: &Config| &config.serve.common,
        ),
    }
}
