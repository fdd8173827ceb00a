use std::process::ExitCode;

fn main() -> ExitCode {
    runtime::main("ingress", ingress::run, |config| &config.common)
}
