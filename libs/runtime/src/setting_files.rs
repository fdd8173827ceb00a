//! Settings from files: `NAME_FILE` names a file with the value of the secret setting `NAME`. `SETTINGS_DIR` is a folder,
//! such as a mounted secret, with files that are named like their settings.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io,
    path::{Path, PathBuf},
};

use clap::Command;

const FOLDER: &str = "SETTINGS_DIR";

pub(crate) const HELP: &str = "Settings from files: NAME_FILE=PATH for a secret setting NAME. SETTINGS_DIR=FOLDER for all settings \
    that have a file of their name in the folder, e.g. SETTINGS_DIR=/run/secrets/providers with the file USIMSA_URL.";

/// Adds an argument for each setting of the command that comes from a file. A setting is secret if the help hides its
/// value. A line end at the end of the file is not part of the value.
pub(crate) fn add(
    command: &Command,
    arguments: impl IntoIterator<Item = OsString>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Vec<OsString>, String> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    let mut folder = match set(FOLDER).map(PathBuf::from) {
        Some(path) => files(&path).map_err(|error| format!("{FOLDER}={}: {error}", path.display()))?,
        None => BTreeMap::new(),
    };
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let own = |name: &str| command.get_arguments().any(|one| one.get_env().is_some_and(|env| env == name));
    for argument in command.get_arguments() {
        let Some((long, name)) = argument.get_long().zip(argument.get_env().and_then(|env| env.to_str())) else {
            continue;
        };
        let file = format!("{name}_FILE");
        let named = set(&file).filter(|_| argument.is_hide_env_values_set() && !own(&file));
        let sources =
            [named.map(|path| (file, path.into())), folder.remove(name).map(|path| (format!("{FOLDER}/{name}"), path))];
        let mut sources: Vec<(String, PathBuf)> = sources.into_iter().flatten().collect();
        let Some((source, path)) = sources.pop() else {
            continue;
        };
        let other = sources.pop().map(|(other, _)| other);
        if let Some(other) = other.or_else(|| set(name).map(|_| name.to_owned())) {
            return Err(format!("both {other} and {source} are set: set one"));
        }
        let value = std::fs::read_to_string(&path).map_err(|error| format!("{source}={}: {error}", path.display()))?;
        let value = format!("--{long}={}", value.trim_end_matches(['\r', '\n']));
        // Before a subcommand.
        arguments.insert(1.min(arguments.len()), value.into());
    }
    match folder.into_values().next() {
        Some(path) => Err(format!("{FOLDER}: {} is no setting of this program", path.display())),
        None => Ok(arguments),
    }
}

/// The files of a folder by their names. Kubernetes keeps the versions of a mounted secret in hidden ones.
fn files(folder: &Path) -> io::Result<BTreeMap<String, PathBuf>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') {
            files.insert(name, entry.path());
        }
    }
    Ok(files)
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
        let variable =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
        Ok(Probe::parse_from(add(&Probe::command(), [OsString::from("probe")], variable)?))
    }

    #[test]
    fn a_secret_comes_from_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "-hush --level=high\n").unwrap();
        let file = file.to_str().unwrap();

        let read_it =
            read(&[("PROBE_TOKEN_FILE", file), ("PROBE_LEVEL_FILE", file), ("PROBE_KEY_FILE", file)]).unwrap();
        assert_eq!(read_it.secrets.token.as_deref(), Some("-hush --level=high"));
        assert_eq!(read_it.level, "low", "it is no secret");
        assert_eq!(read_it.secrets.key, None, "the program has a setting of this name");
        assert_eq!(read_it.secrets.key_file, None);

        assert_eq!(read(&[("PROBE_TOKEN_FILE", "")]).unwrap().secrets.token, None);
        let both = read(&[("PROBE_TOKEN_FILE", file), ("PROBE_TOKEN", "other")]).err().unwrap();
        assert_eq!(both, "both PROBE_TOKEN and PROBE_TOKEN_FILE are set: set one");
        let missing = read(&[("PROBE_TOKEN_FILE", "/nowhere/token")]).err().unwrap();
        assert!(missing.starts_with("PROBE_TOKEN_FILE=/nowhere/token: "), "{missing}");
    }

    #[test]
    fn settings_come_from_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let path = folder.path().to_str().unwrap();
        write("PROBE_TOKEN", "hush\n");
        write("PROBE_LEVEL", "high\n");
        write("..data", "an older version");

        let probe = read(&[("SETTINGS_DIR", path)]).unwrap();
        assert_eq!(probe.secrets.token.as_deref(), Some("hush"));
        assert_eq!(probe.level, "high");

        let error = |variables: &[(&str, &str)]| read(variables).err().unwrap();
        assert_eq!(
            error(&[("SETTINGS_DIR", path), ("PROBE_LEVEL", "low")]),
            "both PROBE_LEVEL and SETTINGS_DIR/PROBE_LEVEL are set: set one"
        );
        assert_eq!(
            error(&[("SETTINGS_DIR", path), ("PROBE_TOKEN_FILE", "/any")]),
            "both PROBE_TOKEN_FILE and SETTINGS_DIR/PROBE_TOKEN are set: set one"
        );
        write("PROBE_TOKN", "hush");
        assert_eq!(
            error(&[("SETTINGS_DIR", path)]),
            format!("SETTINGS_DIR: {path}/PROBE_TOKN is no setting of this program")
        );
        let missing = error(&[("SETTINGS_DIR", "/nowhere")]);
        assert!(missing.starts_with("SETTINGS_DIR=/nowhere: "), "{missing}");
    }
}
