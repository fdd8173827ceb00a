use std::process::ExitCode;

use runtime::terminal;
use sandbox::{Command, Config};

fn main() -> ExitCode {
    let config = runtime::config::parse::<Config>();
    match config.command {
        Some(Command::Catalogue) => {
            let catalogue = sandbox::script::catalogue(&config.provider);
            match terminal::print(format_args!("{catalogue:#}")) {
                Err(error) if !terminal::is_closed(&error) => {
                    terminal::say(format_args!("sandbox: {error:#}"));
                    ExitCode::FAILURE
                }
                _ => ExitCode::SUCCESS,
            }
        }
        Some(Command::Serve) | None => {
            runtime::main("sandbox", sandbox::run, |config| &config.common)
        }
    }
}
