use std::process::ExitCode;

use sandbox::{Command, Config};

fn main() -> ExitCode {
    let config = runtime::config::parse::<Config>();
    match config.command {
        Some(Command::Catalogue) => {
            println!("{:#}", sandbox::script::catalogue(&config.provider));
            ExitCode::SUCCESS
        }
        Some(Command::Serve) | None => {
            runtime::main("sandbox", sandbox::run, |config| &config.common)
        }
    }
}
