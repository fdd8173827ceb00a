//! Reads settings from files. All programs read their secrets in this way: `config::parse` calls
//! [`add`] before clap reads the settings.
//!
//! `NAME_FILE` is the path of a file with the value of the secret setting `NAME`. `SETTINGS_DIR` is
//! a folder, such as a mounted secret, with files that are named like their settings. It exists so
//! that manifests need not name the settings of each provider. Both only add arguments to the
//! command line, so the rest of the program does not notice where a value comes from.
//!
//! A mistake stops the start instead of being ignored: a value that is set twice, a file that
//! cannot be read, and a file in the folder that belongs to no setting, because its name is
//! probably misspelt.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io,
    path::{Path, PathBuf},
};

use clap::{Arg, Command};

use crate::files;

const FOLDER: &str = "SETTINGS_DIR";

pub(crate) const HELP: &str = "Settings from files: NAME_FILE=PATH reads the secret setting NAME from a file. \
    SETTINGS_DIR=FOLDER reads every setting for which the folder has a file of its name, for example \
    SETTINGS_DIR=/run/secrets/providers with the file USIMSA_URL.";

/// Adds an argument to `arguments` for each setting that comes from a file, also for the settings
/// of the subcommand that `arguments` choose. Files of other subcommands are not read, because the
/// operator may not be allowed to read them. `variable` reads an environment variable. The error is
/// one line that names the setting.
pub(crate) fn add(
    command: &Command,
    arguments: impl IntoIterator<Item = OsString>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Vec<OsString>, String> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    let mut folder = match set(FOLDER).map(PathBuf::from) {
        Some(path) => {
            named_files(&path).map_err(|error| format!("{FOLDER}={}: {error}", path.display()))?
        }
        None => BTreeMap::new(),
    };
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let mut command = command;
    let mut position = 1.min(arguments.len());
    loop {
        let added = from_files(command, &set, &mut folder)?;
        arguments.splice(position..position, added);
        let Some((index, chosen)) = subcommand(command, &arguments[position..]) else {
            break;
        };
        command = chosen;
        position += index + 1;
    }
    match folder.into_values().next() {
        Some(path) => Err(format!(
            "{FOLDER}: {} is not named like a setting of this program; correct its name or remove it",
            path.display()
        )),
        None => Ok(arguments),
    }
}

/// Returns the arguments for the settings of one command that come from a file. A setting is secret
/// if the help hides its value; other settings ignore `NAME_FILE`. [`files::value`] says what of
/// the file is not part of the value.
fn from_files(
    command: &Command,
    set: &impl Fn(&str) -> Option<OsString>,
    folder: &mut BTreeMap<String, PathBuf>,
) -> Result<Vec<OsString>, String> {
    let mut added = Vec::new();
    for argument in command.get_arguments() {
        let Some((long, name)) = argument
            .get_long()
            .zip(argument.get_env().and_then(|env| env.to_str()))
        else {
            continue;
        };
        let file = format!("{name}_FILE");
        let named = set(&file).filter(|_| argument.is_hide_env_values_set());
        let sources = [
            named.map(|path| (file, path.into())),
            folder
                .remove(name)
                .map(|path| (format!("{FOLDER}/{name}"), path)),
        ];
        let mut sources: Vec<(String, PathBuf)> = sources.into_iter().flatten().collect();
        let Some((source, path)) = sources.pop() else {
            continue;
        };
        let other = sources.pop().map(|(other, _)| other);
        if let Some(other) = other.or_else(|| set(name).map(|_| name.to_owned())) {
            return Err(format!(
                "both {other} and {source} are set; set only one of them"
            ));
        }
        let value = files::value(&path).map_err(|error| format!("{source}: {error:#}"))?;
        // Somebody has named this file. An empty one in the folder is a setting that is not set, as
        // it is in the environment, and who needs it says so.
        if value.trim().is_empty() && source.ends_with("_FILE") {
            return Err(format!("{source}: {} holds no value", path.display()));
        }
        added.push(format!("--{long}={value}").into());
    }
    Ok(added)
}

/// Which file the setting of an argument comes from, if any: `NAME_FILE=PATH` or
/// `SETTINGS_DIR/NAME`. Nothing is read.
pub(crate) fn source(
    argument: &Arg,
    name: &str,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Option<String> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    let file = format!("{name}_FILE");
    if let Some(path) = set(&file).filter(|_| argument.is_hide_env_values_set()) {
        return Some(format!("{file}={}", Path::new(&path).display()));
    }
    let folder = PathBuf::from(set(FOLDER)?);
    folder
        .join(name)
        .exists()
        .then(|| format!("{FOLDER}/{name}"))
}

/// Finds the subcommand that `arguments` choose, and its position. The value of a flag is not a
/// subcommand, even if it has the name of one, as in `--name list`.
fn subcommand<'command>(
    command: &'command Command,
    arguments: &[OsString],
) -> Option<(usize, &'command Command)> {
    let takes_value = |word: &str| {
        let flag = word.strip_prefix("--").and_then(|long| {
            let mut flags = command.get_arguments();
            flags.find(|argument| argument.get_long() == Some(long))
        });
        flag.is_some_and(|argument| argument.get_action().takes_values())
    };
    let mut is_value = false;
    for (index, argument) in arguments.iter().enumerate() {
        let word = argument.to_str()?;
        if is_value {
            is_value = false;
        } else if let Some(chosen) = command.find_subcommand(word) {
            return Some((index, chosen));
        } else {
            is_value = takes_value(word);
        }
    }
    None
}

/// The files of a folder by their names. Hidden ones are left out, because Kubernetes keeps the
/// versions of a mounted secret in hidden folders.
fn named_files(folder: &Path) -> io::Result<BTreeMap<String, PathBuf>> {
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
    }

    #[derive(Parser)]
    struct Tool {
        #[arg(long, env = "PROBE_TOKEN", hide_env_values = true)]
        token: Option<String>,
        #[arg(long, global = true)]
        actor: Option<String>,
        #[command(subcommand)]
        command: Subcommand,
    }

    #[derive(clap::Subcommand)]
    enum Subcommand {
        List,
        Seal {
            #[arg(long, env = "PROBE_KEY", hide_env_values = true)]
            key: Option<String>,
        },
    }

    fn parse<P: Parser>(arguments: &[&str], variables: &[(&str, &str)]) -> Result<P, String> {
        let variable = |name: &str| {
            variables
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| OsString::from(value))
        };
        Ok(P::parse_from(add(
            &P::command(),
            arguments.iter().map(OsString::from),
            variable,
        )?))
    }

    fn read(variables: &[(&str, &str)]) -> Result<Probe, String> {
        parse(&["probe"], variables)
    }

    #[test]
    fn a_secret_comes_from_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "-hush --level=high\n").unwrap();
        let file = file.to_str().unwrap();

        let read_it = read(&[("PROBE_TOKEN_FILE", file), ("PROBE_LEVEL_FILE", file)]).unwrap();
        assert_eq!(read_it.secrets.token.as_deref(), Some("-hush --level=high"));
        assert_eq!(read_it.level, "low", "it is no secret");
        // Editors on Windows add the mark and the line ends, and people who copy from a shell the
        // quotes.
        std::fs::write(file, "\u{feff}\"postgres://a\"\r\n").unwrap();
        let edited = read(&[("PROBE_TOKEN_FILE", file)]).unwrap();
        assert_eq!(edited.secrets.token.as_deref(), Some("postgres://a"));

        assert_eq!(
            read(&[("PROBE_TOKEN_FILE", "")]).unwrap().secrets.token,
            None
        );
        // A file that was cut, or that an editor has saved empty, is named; the setting alone would
        // not help.
        for empty in ["", "\u{feff}", "\u{feff}\r\n", "\"\"\n"] {
            std::fs::write(file, empty).unwrap();
            let cut = read(&[("PROBE_TOKEN_FILE", file)]).err().unwrap();
            assert_eq!(cut, format!("PROBE_TOKEN_FILE: {file} holds no value"));
        }
        let both = read(&[("PROBE_TOKEN_FILE", file), ("PROBE_TOKEN", "other")])
            .err()
            .unwrap();
        assert_eq!(
            both,
            "both PROBE_TOKEN and PROBE_TOKEN_FILE are set; set only one of them"
        );
        let missing = read(&[("PROBE_TOKEN_FILE", "/nowhere/token")])
            .err()
            .unwrap();
        assert!(
            missing.starts_with("PROBE_TOKEN_FILE: cannot read /nowhere/token: "),
            "{missing}"
        );
    }

    #[test]
    fn a_subcommand_reads_its_own_files_only() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        std::fs::write(&file, "hush\n").unwrap();
        let file = file.to_str().unwrap();
        let tool = |arguments: &[&str], variables| parse::<Tool>(arguments, variables);

        let variables = &[("PROBE_TOKEN_FILE", file), ("PROBE_KEY_FILE", file)];
        for arguments in [
            &["tool", "seal"][..],
            &["tool", "--actor", "list", "seal"],
            &["tool", "seal", "--actor", "list"],
        ] {
            let read_it = tool(arguments, variables).unwrap();
            assert_eq!(read_it.token.as_deref(), Some("hush"));
            assert!(
                matches!(read_it.command, Subcommand::Seal { key: Some(key) } if key == "hush"),
                "{arguments:?}"
            );
        }
        let unreadable = &[("PROBE_KEY_FILE", "/nowhere/key")];
        assert!(matches!(
            tool(&["tool", "list"], unreadable).unwrap().command,
            Subcommand::List
        ));
        let refused = tool(&["tool", "seal"], unreadable).err().unwrap();
        assert!(
            refused.starts_with("PROBE_KEY_FILE: cannot read /nowhere/key: "),
            "{refused}"
        );
    }

    #[test]
    fn settings_come_from_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
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
            "both PROBE_LEVEL and SETTINGS_DIR/PROBE_LEVEL are set; set only one of them"
        );
        assert_eq!(
            error(&[("SETTINGS_DIR", path), ("PROBE_TOKEN_FILE", "/any")]),
            "both PROBE_TOKEN_FILE and SETTINGS_DIR/PROBE_TOKEN are set; set only one of them"
        );
        write("PROBE_TOKN", "hush");
        assert_eq!(
            error(&[("SETTINGS_DIR", path)]),
            format!(
                "SETTINGS_DIR: {path}/PROBE_TOKN is not named like a setting of this program; correct its name or remove it"
            )
        );
        let missing = error(&[("SETTINGS_DIR", "/nowhere")]);
        assert!(missing.starts_with("SETTINGS_DIR=/nowhere: "), "{missing}");
    }
}
