use std::process::ExitCode;

fn main() -> ExitCode {
    runtime::main::<ingress::Config, _, _>("ingress", ingress::run)
}
