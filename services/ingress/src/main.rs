use std::process::ExitCode;

fn main() -> ExitCode {
    runtime::main("ingress", ingress::run, ingress::Config::check, |config| {
        &config.common
    })
}
