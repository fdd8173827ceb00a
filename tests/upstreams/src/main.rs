use std::process::ExitCode;

use sandbox::Command;
use upstreams::Config;

fn main() -> ExitCode {
    let config =
        runtime::config::parse(|config: &Config| runtime::checked(|| config.serve.check()));
    match config.command {
        Some(Command::Catalogue) => sandbox::print(&upstreams::catalogue(&config.provider)),
        // Logs and traces say `sandbox`, because it stands where the sandbox does.
        Some(Command::Serve) | None => runtime::main(
            "sandbox",
            upstreams::run,
            |_| Ok(()),
            |config: &Config| &config.serve.common,
        ),
    }
}
