use std::process::ExitCode;

fn main() -> ExitCode {
    esim_partner::run(&runtime::config::parse(|_| Ok(())))
}
