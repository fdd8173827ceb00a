use std::process::ExitCode;

fn main() -> ExitCode {
    runtime::main::<provisioner::Config, _, _>("provisioner", provisioner::run)
}
