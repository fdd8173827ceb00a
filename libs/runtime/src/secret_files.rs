//! Secrets from files: `NAME_FILE` names a file with the value of the setting `NAME`.

use std::ffi::OsString;

use clap::Command;

/// Adds an argument for each secret setting of the command whose `…_FILE` variable is set. A setting is secret if the
/// help hides its value. A line end at the end of the file is not part of the value.
pub(crate) fn add(
    command: &Command,
    arguments: impl IntoIterator<Item = OsString>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Vec<OsString>, String> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let own = |name: &str| {
        command
            .get_arguments()
            .any(|other| other.get_env().is_some_and(|env| env == name))
    };
    for argument in command.get_arguments().filter(|one| one.is_hide_env_values_set()) {
        let Some((long, name)) = argument
            .get_long()
            .zip(argument.get_env().and_then(|env| env.to_str()))
        else {
            continue;
        };
        let file = format!("{name}_FILE");
        let Some(path) = set(&file).filter(|_| !own(&file)) else {
            continue;
        };
        if set(name).is_some() {
            return Err(format!("both {name} and {file} are set: set one"));
        }
        let value = std::fs::read_to_string(&path)
            .map_err(|error| format!("{file}={}: {error}", path.to_string_lossy()))?;
        let value = format!("--{long}={}", value.trim_end_matches(['\r', '\n']));
        // Before a subcommand.
        arguments.insert(1.min(arguments.len()), value.into());
    }
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use clap::{Args, Parser};

    use super::*;

    #[derive(Parser)]
    struct Probe {
        #[command(flatten)]
        secrets: Secrets,
        #[arg(long, env = "PROBE_LEVEL", default_value = "low")]
        level: String,
    }

    #[derive(Args)]
    struct Secrets {
        #[arg(long, env = "PROBE_TOKEN", hide_env_values = true)]
        token: Option<String>,
        #[arg(long, env = "PROBE_KEY", hide_env_values = true)]
        key: Option<String>,
        #[arg(long, env = "PROBE_KEY_FILE")]
        key_file: Option<String>,
    }

    fn read(variables: &[(&str, &str)]) -> Result<Probe, String> {
        use clap::CommandFactory;
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        };
        let arguments = add(&Probe::command(), [OsString::from("probe")], variable)?;
        Ok(Probe::parse_from(arguments))
    }

    #[test]
    fn a_secret_comes_from_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "-hush --level=high\n").unwrap();
        let file = file.to_str().unwrap();

        let read_it = read(&[
            ("PROBE_TOKEN_FILE", file),
            ("PROBE_LEVEL_FILE", file),
            ("PROBE_KEY_FILE", file),
        ])
        .unwrap();
        assert_eq!(read_it.secrets.token.as_deref(), Some("-hush --level=high"));
        assert_eq!(read_it.level, "low", "it is no secret");
        assert_eq!(
            read_it.secrets.key, None,
            "the program has a setting of this name"
        );
        assert_eq!(read_it.secrets.key_file, None);

        assert_eq!(read(&[("PROBE_TOKEN_FILE", "")]).unwrap().secrets.token, None);
        let both = read(&[("PROBE_TOKEN_FILE", file), ("PROBE_TOKEN", "other")])
            .err()
            .unwrap();
        assert_eq!(both, "both PROBE_TOKEN and PROBE_TOKEN_FILE are set: set one");
        let missing = read(&[("PROBE_TOKEN_FILE", "/nowhere/token")]).err().unwrap();
        assert!(
            missing.starts_with("PROBE_TOKEN_FILE=/nowhere/token: "),
            "{missing}"
        );
    }
}
