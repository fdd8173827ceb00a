//! The subcommand `config show`, which prints the settings that a program would run with, and where
//! each came from. It exists because a setting may come from an argument, the environment, a file
//! or a default, and in a container nobody can look at all of them:
//! `kubectl exec deployment/ingress -- ingress config show`.
//!
//! Secrets are never printed, only whether they are set. Neither are the passwords of URLs that are
//! no secret otherwise, such as `NATS_URL`.

use std::{collections::BTreeSet, ffi::OsString, fmt::Write};

use clap::{Arg, ArgAction, ArgMatches, Command, error::ErrorKind, parser::ValueSource};
use serde::Serialize;

use crate::{
    setting_files,
    terminal::{printable, without_passwords},
};

const NAME: &str = "config";
const SHOW: &str = "show";
const REDACTED: &str = "[redacted]";

/// A setting as the program would use it.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Shown {
    name: String,
    /// `None` if the setting has no value.
    value: Option<String>,
    /// `argument`, `environment`, `default`, `unset`, or the variable that names the file.
    source: String,
}

/// Adds the subcommand to a program that has settings with variables.
pub fn offer(command: Command) -> Command {
    if command.get_arguments().all(|one| one.get_env().is_none()) {
        return command;
    }
    let json = Arg::new("json-settings")
        .long("json")
        .action(ArgAction::SetTrue)
        .help("Print a list of {name, value, source}");
    let json = if command
        .get_arguments()
        .any(|one| one.get_long() == Some("json"))
    {
        None
    } else {
        Some(json)
    };
    let name = command.get_name().to_owned();
    let show = Command::new(SHOW)
        .about("Print each setting with its value and where it came from; secrets are not shown")
        .after_help(format!(
            "Examples:\n  {name} config show\n  {name} config show --json"
        ))
        .args(json);
    command.subcommand_negates_reqs(true).subcommand(
        Command::new(NAME)
            .about("Show the settings that this program runs with")
            .after_help(format!("Examples:\n  {name} config show"))
            .subcommand_required(true)
            .subcommand(show),
    )
}

/// The text to print, if `config show` was given. `variable` reads an environment variable.
pub fn asked(
    command: &Command,
    matches: &ArgMatches,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Option<String> {
    let (name, inner) = matches.subcommand()?;
    let (show, inner) = inner.subcommand().filter(|_| name == NAME)?;
    if show != SHOW {
        return None;
    }
    let json = ["json-settings", "json"].iter().any(|id| {
        inner
            .try_get_one::<bool>(id)
            .ok()
            .flatten()
            .copied()
            .unwrap_or_default()
    });
    let settings = settings(command, matches, &variable);
    Some(if json {
        serde_json::to_string(&settings).unwrap_or_default()
    } else {
        text(&settings)
    })
}

/// Refuses a setting of a subcommand that this subcommand would refuse. Without their arguments
/// most subcommands are incomplete, which is no fault of a setting.
pub fn check_subcommands(command: &Command) -> Result<(), clap::Error> {
    let mut path = vec![command.get_name().to_owned()];
    check_below(command, command, &mut path)
}

fn check_below(
    root: &Command,
    command: &Command,
    path: &mut Vec<String>,
) -> Result<(), clap::Error> {
    for subcommand in command.get_subcommands() {
        path.push(subcommand.get_name().to_owned());
        let mut arguments = subcommand.get_arguments();
        if arguments.any(|one| one.get_env().is_some())
            && let Err(error) = root.clone().try_get_matches_from(&*path)
            && matches!(
                error.kind(),
                ErrorKind::InvalidValue | ErrorKind::ValueValidation
            )
        {
            return Err(error);
        }
        check_below(root, subcommand, path)?;
        path.pop();
    }
    Ok(())
}

fn text(settings: &[Shown]) -> String {
    let width = |of: fn(&Shown) -> usize| settings.iter().map(of).max().unwrap_or_default();
    let names = width(|one| one.name.len());
    let sources = width(|one| one.source.len());
    let mut text = String::new();
    for one in settings {
        let value = printable(one.value.as_deref().unwrap_or("-"));
        // Writing into a string cannot fail.
        let _ = writeln!(
            text,
            "{:names$}  {:sources$}  {value}",
            one.name, one.source
        );
    }
    text.trim_end().to_owned()
}

/// The settings of the program, and of its subcommands, each once.
fn settings(
    command: &Command,
    matches: &ArgMatches,
    variable: &impl Fn(&str) -> Option<OsString>,
) -> Vec<Shown> {
    let mut known = BTreeSet::new();
    let mut settings = Vec::new();
    collect(command, Some(matches), variable, &mut known, &mut settings);
    settings
}

fn collect(
    command: &Command,
    matches: Option<&ArgMatches>,
    variable: &impl Fn(&str) -> Option<OsString>,
    known: &mut BTreeSet<String>,
    settings: &mut Vec<Shown>,
) {
    for argument in command.get_arguments() {
        let Some(name) = argument.get_env().and_then(|name| name.to_str()) else {
            continue;
        };
        if known.insert(name.to_owned()) {
            settings.push(one(argument, name, matches, variable));
        }
    }
    for subcommand in command.get_subcommands() {
        // Nothing parses the settings of a subcommand that was not chosen.
        collect(subcommand, None, variable, known, settings);
    }
}

fn one(
    argument: &Arg,
    name: &str,
    matches: Option<&ArgMatches>,
    variable: &impl Fn(&str) -> Option<OsString>,
) -> Shown {
    let id = argument.get_id().as_str();
    let file = setting_files::source(argument, name, variable);
    let raw = |values: &mut dyn Iterator<Item = OsString>| {
        let texts = values.map(|value| value.to_string_lossy().into_owned());
        texts.collect::<Vec<_>>().join(",")
    };
    let (source, value) = match matches.map(|matches| (matches, matches.value_source(id))) {
        Some((matches, Some(found))) => {
            let mut values = matches
                .get_raw(id)
                .into_iter()
                .flatten()
                .map(std::ffi::OsStr::to_owned);
            let source = match found {
                ValueSource::EnvVariable => "environment".to_owned(),
                ValueSource::DefaultValue => "default".to_owned(),
                _ => file.unwrap_or_else(|| "argument".to_owned()),
            };
            (source, Some(raw(&mut values)))
        }
        Some((_, None)) => ("unset".to_owned(), None),
        None => {
            let set = variable(name).filter(|value| !value.is_empty());
            let defaults = argument.get_default_values();
            match (set, file) {
                (Some(value), _) => (
                    "environment".to_owned(),
                    Some(raw(&mut std::iter::once(value))),
                ),
                // The file is not read: it is the subcommand's own.
                (None, Some(file)) => (file, Some("[in the file]".to_owned())),
                (None, None) if defaults.is_empty() => ("unset".to_owned(), None),
                (None, None) => {
                    let mut values = defaults.iter().map(clap::builder::OsStr::to_os_string);
                    ("default".to_owned(), Some(raw(&mut values)))
                }
            }
        }
    };
    let value = value.map(|value| {
        if argument.is_hide_env_values_set() {
            REDACTED.to_owned()
        } else {
            without_passwords(&value).into_owned()
        }
    });
    Shown {
        name: name.to_owned(),
        value,
        source,
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Parser)]
    #[command(name = "probe")]
    struct Probe {
        #[arg(long, env = "SHOWN_PROBE_URL", hide_env_values = true)]
        url: String,
        #[arg(long, env = "SHOWN_PROBE_TOKEN", hide_env_values = true)]
        token: Option<String>,
        #[arg(long, env = "SHOWN_PROBE_LEVEL", default_value = "low")]
        level: String,
        #[arg(long, env = "SHOWN_PROBE_DEPTH")]
        depth: Option<u8>,
        #[arg(
            long,
            env = "SHOWN_PROBE_NATS",
            default_value = "nats://me:hush@127.0.0.1:4222"
        )]
        nats: String,
    }

    #[test]
    fn each_setting_has_its_source_and_no_secret_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "hush\n").unwrap();
        let variable = |name: &str| (name == "SHOWN_PROBE_TOKEN_FILE").then(|| file.clone().into());
        let command = offer(Probe::command());
        command.clone().debug_assert();
        let arguments = [
            "probe",
            "--url=postgres://hush",
            "--depth=3",
            "config",
            "show",
        ];
        let arguments = setting_files::add(&command, arguments.map(OsString::from), variable);
        let matches = command.clone().try_get_matches_from(arguments.unwrap());
        let text = asked(&command, &matches.unwrap(), variable).unwrap();
        assert!(!text.contains("hush"), "{text}");
        let file = format!("SHOWN_PROBE_TOKEN_FILE={}", file.display());
        for (name, source, value) in [
            ("SHOWN_PROBE_URL", "argument", REDACTED),
            ("SHOWN_PROBE_TOKEN", file.as_str(), REDACTED),
            ("SHOWN_PROBE_LEVEL", "default", "low"),
            ("SHOWN_PROBE_DEPTH", "argument", "3"),
            (
                "SHOWN_PROBE_NATS",
                "default",
                "nats://[redacted]@127.0.0.1:4222",
            ),
        ] {
            let line = text.lines().find(|line| line.starts_with(name));
            let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
            assert_eq!(words, [name, source, value], "{text}");
        }
        // A missing setting is shown as such instead of refused.
        let matches = command
            .clone()
            .try_get_matches_from(["probe", "config", "show", "--json"]);
        let text = asked(&command, &matches.unwrap(), |_| None).unwrap();
        let url = r#"{"name":"SHOWN_PROBE_URL","value":null,"source":"unset"}"#;
        assert!(text.contains(url), "{text}");
    }
}
