use std::process::ExitCode;

fn main() -> ExitCode {
    runtime::main("provisioner", provisioner::run, |config| &config.common)
}
