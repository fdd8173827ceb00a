use std::process::ExitCode;

fn main() -> ExitCode {
    runtime::main(
        "provisioner",
        provisioner::run,
        provisioner::Config::check,
        |config| &config.common,
    )
}
