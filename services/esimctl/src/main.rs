use std::process::ExitCode;

fn main() -> ExitCode {
    esimctl::run(&runtime::config::parse(esimctl::Config::check))
}
