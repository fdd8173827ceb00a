use std::process::ExitCode;

use sandbox::{Command, Config};

fn main() -> ExitCode {
    match runtime::config::parse::<Config>().command {
        Some(Command::Catalogue) => {
            println!("{:#}", sandbox::script::catalogue());
            ExitCode::SUCCESS
        }
        Some(Command::Serve) | None => {
            runtime::main("sandbox", sandbox::run, |config| &config.common)
        }
    }
}
