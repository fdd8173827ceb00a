//! The settings of a program. Each setting is a clap flag and an environment variable; secrets can
//! also come from files. `--help` is their reference, so a help text says what the setting does, in
//! which unit, and what happens beyond it.
//!
//! An unknown, invalid or contradictory setting stops the start with exit status 2 and one line on
//! standard error that names the setting and its variable.

use std::{
    collections::BTreeSet, ffi::OsString, fmt::Display, io::Write, net::SocketAddr, process::exit,
    time::Duration,
};

use anyhow::Context;
use clap::{
    Args, Parser, ValueEnum,
    error::{
        ContextKind, ContextValue,
        ErrorKind::{
            self, DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion,
            InvalidSubcommand, UnknownArgument,
        },
    },
};

use crate::{healthcheck, log_filter, manual, setting_files, shown, terminal, version};

/// The settings that every service has.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Process")]
pub struct CommonConfig {
    /// Level of the log: error, warn, info, debug or trace
    ///
    /// Directives such as `info,ingress=debug` set the level of single modules.
    #[arg(long, env = "LOG", value_parser = log_directives, default_value = "info")]
    pub log: String,
    /// Format of the log lines on standard error
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value_t = LogFormat::Auto)]
    pub log_format: LogFormat,
    /// Maximum time that a stop may take to finish the work in flight
    ///
    /// After SIGTERM or SIGINT the service takes no new work. When this time has passed, the work
    /// in flight is dropped, and the process ends with exit status 1. Nothing is lost by that, but
    /// purchases in flight have to be looked up, and webhooks in flight may be sent twice. The
    /// orchestrator must wait longer than this before it kills the process.
    #[arg(long, env = "SHUTDOWN_TIMEOUT", value_parser = duration, default_value = "25s")]
    pub shutdown_timeout: Duration,
}

impl Default for CommonConfig {
    fn default() -> Self {
        Self {
            log: "info".into(),
            log_format: LogFormat::Auto,
            shutdown_timeout: Duration::from_secs(25),
        }
    }
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    /// One line of text per event.
    Text,
    /// One JSON object per line.
    Json,
}

/// The longest duration that a setting accepts. It is short enough that the sum of a few durations
/// and the current time never overflows.
pub const LONGEST: Duration = Duration::from_hours(365 * 24);

/// The error of [`duration`] for a duration that is longer than it accepts.
pub const TOO_LONG: &str = "it may be at most 365 days";

/// Parses a duration like [`duration`], and refuses 0.
pub fn positive_duration(text: &str) -> Result<Duration, String> {
    let duration = duration(text)?;
    if duration.is_zero() {
        Err("it must be more than 0; write it like `2s` or `500ms`".into())
    } else {
        Ok(duration)
    }
}

/// Parses a duration such as `2s`, `500ms` or `1m 30s`. A `0` needs no unit.
pub fn duration(text: &str) -> Result<Duration, String> {
    let duration = any_duration(text)?;
    if duration > LONGEST {
        Err(TOO_LONG.into())
    } else {
        Ok(duration)
    }
}

/// Parses a duration like [`duration`], however long it is.
pub fn any_duration(text: &str) -> Result<Duration, String> {
    if text.trim() == "0" {
        return Ok(Duration::ZERO);
    }
    if text.trim().starts_with('-') {
        return Err("it is negative; write it like `2s` or `500ms`".into());
    }
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}; write it like `2s` or `500ms`"))
}

/// A setting turned out to be invalid after clap had accepted it, for example together with another
/// one. A service that fails with this error ends like one whose arguments clap refuses: with one
/// line on standard error and exit status 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadSetting(String);

impl BadSetting {
    /// Makes the error. `reason` has to name the setting.
    pub fn error(reason: impl Display) -> anyhow::Error {
        anyhow::Error::new(Self(reason.to_string()))
    }
}

/// Reads the settings from the arguments, the environment and files (`NAME_FILE`, `SETTINGS_DIR`).
///
/// `check` holds the rules that clap does not know, such as those between two settings.
///
/// It does not return if a setting is invalid: it prints one line that names the setting, and ends
/// the process with exit status 2. It does not return either for `--help`, `--version` and the
/// subcommands `healthcheck`, `config show` and `completions`. `config show` refuses what a
/// start would refuse, but for a setting that is missing, which it shows as such.
pub fn parse<C: Parser>(check: impl FnOnce(&C) -> anyhow::Result<()>) -> C {
    parse_from(std::env::args_os(), check)
}

/// Does the same as [`parse`] with these arguments. The first one is the name of the program.
pub fn parse_from<C: Parser>(
    arguments: impl IntoIterator<Item = OsString>,
    check: impl FnOnce(&C) -> anyhow::Result<()>,
) -> C {
    let arguments = setting_files::add(&command::<C>(), arguments, |name| std::env::var_os(name))
        .map_err(|reason| format!("{}: {reason}", C::command().get_name()));
    match arguments.and_then(|arguments| try_parse(arguments, check)) {
        Ok(Asked::Run(config)) => config,
        Ok(Asked::Text(text) | Asked::Show(text, _)) => answered::<C>(terminal::print(text), 0),
        Ok(Asked::Help(help)) => {
            let status = help.exit_code();
            let printed = help.print().and_then(|()| std::io::stdout().flush());
            answered::<C>(printed.context("cannot write to standard output"), status)
        }
        Ok(Asked::Healthcheck(address)) => {
            let answer = healthcheck::ask(address);
            let (Ok(line) | Err(line)) = &answer;
            answered::<C>(terminal::print(line), answer.is_err().into())
        }
        Err(line) => {
            terminal::say(line);
            exit(2)
        }
    }
}

/// Checks `LOG` with the other settings, so that `config show` refuses what the program would.
fn log_directives(text: &str) -> anyhow::Result<String> {
    log_filter::filter(text).map(|_| text.to_owned())
}

/// Ends the process after it has printed what was asked for, with `status` if that worked.
fn answered<C: Parser>(printed: anyhow::Result<()>, status: i32) -> ! {
    match printed {
        Err(error) if !terminal::is_closed(&error) => {
            terminal::say(format_args!("{}: {error:#}", C::command().get_name()));
            exit(1)
        }
        _ => exit(status),
    }
}

#[derive(Debug)]
enum Asked<C> {
    Run(C),
    Healthcheck(SocketAddr),
    /// Print the settings and end; without those that could be checked if one is missing.
    Show(String, Option<C>),
    /// Print this and end.
    Text(String),
    /// Print the help or the version and end.
    Help(clap::Error),
}

fn try_parse<C: Parser>(
    arguments: impl IntoIterator<Item = OsString>,
    check: impl FnOnce(&C) -> anyhow::Result<()>,
) -> Result<Asked<C>, String> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let read = || {
        let mut matches = command::<C>().try_get_matches_from(&arguments)?;
        if let Some((healthcheck::NAME, arguments)) = matches.subcommand()
            && let Some(address) = healthcheck::address(arguments)
        {
            return Ok(Asked::Healthcheck(address));
        }
        let asked = command::<C>();
        if let Some(text) = shown::asked(&asked, &matches, |name| std::env::var_os(name)) {
            shown::check_subcommands(&asked)?;
            // The struct of the settings knows nothing of this subcommand.
            matches.remove_subcommand();
            let complete = C::from_arg_matches_mut(&mut matches).ok();
            return Ok(Asked::Show(text, complete));
        }
        match manual::asked(&asked, &matches) {
            Some(Ok(text)) => return Ok(Asked::Text(text)),
            Some(Err(reason)) => return Err(clap::Error::raw(ErrorKind::Io, reason)),
            None => {}
        }
        C::from_arg_matches_mut(&mut matches).map(Asked::Run)
    };
    let asked = read().or_else(|mut error: clap::Error| {
        name_whole(&mut error, &arguments);
        let error = error.format(&mut command::<C>());
        if matches!(
            error.kind(),
            DisplayHelp | DisplayVersion | DisplayHelpOnMissingArgumentOrSubcommand
        ) {
            return Ok(Asked::Help(error));
        }
        Err(one_line::<C>(&error))
    })?;
    if let Asked::Run(config) | Asked::Show(_, Some(config)) = &asked {
        check(config).map_err(|error| format!("{}: {error:#}", C::command().get_name()))?;
    }
    Ok(asked)
}

/// Of `show -b7`, clap says that there is no `-b`, and how to pass `-b`. Whoever writes this has an
/// id that begins with a hyphen, so the message names all of it.
fn name_whole(error: &mut clap::Error, arguments: &[OsString]) {
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else {
        return;
    };
    let is_cluster =
        error.kind() == UnknownArgument && flag.chars().count() == 2 && flag.starts_with('-');
    let texts = arguments.iter().skip(1).filter_map(|one| one.to_str());
    let mut options = texts.take_while(|one| *one != "--");
    let whole = options.find(|one| one.starts_with(flag.as_str()));
    let Some(whole) = whole.filter(|one| is_cluster && one.len() > flag.len()) else {
        return;
    };
    let whole = whole.to_owned();
    if error.get(ContextKind::Suggested).is_some() {
        let tip = format!("to pass '{whole}' as a value, use '-- {whole}'");
        error.insert(
            ContextKind::Suggested,
            ContextValue::StyledStrs(vec![tip.into()]),
        );
    }
    error.insert(ContextKind::InvalidArg, ContextValue::String(whole));
}

/// The command line of `C`, with the version, the subcommands that programs share, and the
/// explanation of settings from files at the end of the help unless it already has notes there.
fn command<C: Parser>() -> clap::Command {
    let command = C::command().version(version::DESCRIPTION);
    let notes = command.get_after_help().cloned();
    let command = command.after_help(notes.unwrap_or_else(|| setting_files::HELP.into()));
    manual::offer(shown::offer(healthcheck::offer(command)))
}

/// The arguments of a command and of its subcommands.
fn arguments(command: &clap::Command) -> Vec<&clap::Arg> {
    let below = command.get_subcommands().flat_map(arguments);
    command.get_arguments().chain(below).collect()
}

/// Turns clap's message into one line. The usage block is left out, and the environment variables
/// of the flags that the message names are added, because most operators set variables and not
/// flags. Who names what there is not is told whose `--help` says what there is.
fn one_line<C: Parser>(error: &clap::Error) -> String {
    let command = C::command();
    let text = error.to_string();
    let message: Vec<&str> = text
        .lines()
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let message = message.join(" ");
    let is_named = |long: &str| {
        let mut words = message.split(|c: char| !(c.is_alphanumeric() || c == '-'));
        words.any(|word| word.strip_prefix("--") == Some(long))
    };
    let named = arguments(&command);
    let named = named
        .into_iter()
        .filter(|argument| argument.get_long().is_some_and(is_named));
    // Several subcommands may have one setting.
    let variables: BTreeSet<&str> = named
        .filter_map(|argument| argument.get_env()?.to_str())
        .collect();
    let variables: Vec<&str> = variables.into_iter().collect();
    let mut hints = Vec::new();
    if !variables.is_empty() {
        hints.push(format!("environment: {}", variables.join(", ")));
    }
    let mut usage = text.lines().filter_map(|line| line.strip_prefix("Usage: "));
    if let (UnknownArgument | InvalidSubcommand, Some(usage)) = (error.kind(), usage.next()) {
        // The words before the first flag or value.
        let words = usage.split(' ');
        let words = words.take_while(|word| word.starts_with(|c: char| c.is_ascii_lowercase()));
        let words: Vec<&str> = words.collect();
        hints.push(format!("see `{} --help`", words.join(" ")));
    }
    let hint = match &hints[..] {
        [] => String::new(),
        hints => format!(" ({})", hints.join("; ")),
    };
    format!("{}: {message}{hint}", command.get_name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Parser, Debug)]
    #[command(name = "probe")]
    struct Probe {
        /// Where
        #[arg(long, env = "RUNTIME_PROBE_TARGET_URL")]
        target_url: String,
        /// How long
        #[arg(long, env = "RUNTIME_PROBE_WAIT", value_parser = duration, default_value = "2s")]
        wait: Duration,
    }

    /// A command line like that of a service.
    #[derive(Parser, Debug)]
    #[command(name = "service", version)]
    struct Service {
        /// Where orders come in
        #[arg(long, env = "RUNTIME_PROBE_LISTEN", default_value = "127.0.0.1:8080")]
        listen: SocketAddr,
        /// Where probes are answered
        #[arg(
            long,
            env = "RUNTIME_PROBE_ADMIN_LISTEN",
            default_value = "127.0.0.1:8081"
        )]
        admin_listen: SocketAddr,
        /// Where the database is
        #[arg(long, env = "RUNTIME_PROBE_DATABASE")]
        database: String,
        /// What to do
        word: Option<String>,
    }

    /// A command line with subcommands, like that of esimctl.
    #[derive(Parser, Debug)]
    #[command(name = "tool")]
    enum Tool {
        /// Does something
        Work,
    }

    fn asked<C: Parser>(arguments: &[&str]) -> Result<Asked<C>, String> {
        try_parse(arguments.iter().map(OsString::from), |_| Ok(()))
    }

    fn line(arguments: &[&str]) -> String {
        asked::<Probe>(arguments).unwrap_err()
    }

    #[test]
    fn a_health_check_asks_the_admin_port_and_needs_no_other_setting() {
        command::<Service>().debug_assert();
        let port = |arguments: &[&str]| match asked::<Service>(arguments) {
            Ok(Asked::Healthcheck(address)) => address.port(),
            other => panic!("{other:?}"),
        };
        assert_eq!(port(&["service", "healthcheck"]), 8081);
        assert_eq!(
            port(&["service", "healthcheck", "--admin-listen", "127.0.0.1:9090"]),
            9090
        );
        let missing = asked::<Service>(&["service"]).unwrap_err();
        assert!(missing.contains("--database"), "{missing}");
        let run = asked::<Service>(&["service", "--database", "here", "there"]);
        assert!(
            matches!(&run, Ok(Asked::Run(Service { database, word: Some(word), .. })) if database == "here" && word == "there"),
            "{run:?}"
        );
    }

    #[test]
    fn only_what_listens_has_a_health_check() {
        assert!(line(&["probe", "healthcheck"]).contains("healthcheck"));
        assert!(matches!(
            asked(&["tool", "work"]),
            Ok(Asked::Run(Tool::Work))
        ));
    }

    #[test]
    fn what_is_wrong_is_one_line_with_flag_and_variable_or_reason() {
        for (arguments, parts) in [
            (
                &["probe"][..],
                &["--target-url", "RUNTIME_PROBE_TARGET_URL"][..],
            ),
            (
                &["probe", "--target-url", "x", "--wait", "soon"],
                &["--wait", "soon", "`2s`"],
            ),
            (&["probe", "--colour"], &["--colour", "see `probe --help`"]),
            (
                &["probe", "--wiat", "2s"],
                &["--wait", "RUNTIME_PROBE_WAIT", "see `probe --help`"],
            ),
        ] {
            let line = line(arguments);
            assert!(parts.iter().all(|part| line.contains(part)), "{line}");
            assert_eq!(line.lines().count(), 1);
        }
    }

    #[test]
    fn the_settings_are_shown_only_if_a_start_would_take_them() {
        let check = |probe: &Probe| {
            if probe.wait < Duration::from_secs(1) {
                return Err(BadSetting::error(
                    "RUNTIME_PROBE_WAIT is too short for its URL",
                ));
            }
            Ok(())
        };
        let ask = |arguments: &[&str]| try_parse(arguments.iter().map(OsString::from), check);
        let set = ["probe", "--target-url", "x", "--wait"];
        for command in [&[][..], &["config", "show"]] {
            let refused = ask(&[&set[..], &["5ms"], command].concat()).unwrap_err();
            assert_eq!(
                refused,
                "probe: RUNTIME_PROBE_WAIT is too short for its URL"
            );
            assert!(ask(&[&set[..], &["5s"], command].concat()).is_ok());
        }
        // A setting that is missing is shown as such.
        let shown = ask(&["probe", "--wait", "5ms", "config", "show"]);
        assert!(matches!(shown, Ok(Asked::Show(_, None))), "{shown:?}");
    }

    #[test]
    fn an_id_that_begins_with_a_hyphen_is_named_whole_with_the_way_to_pass_it() {
        let set = ["service", "--database", "x"];
        let line = asked::<Service>(&[&set[..], &["-b7-id"]].concat()).unwrap_err();
        assert_eq!(
            line,
            "service: error: unexpected argument '-b7-id' found tip: to pass '-b7-id' as a value, use '-- -b7-id' (see `service --help`)"
        );
        let Asked::Run(read) = asked::<Service>(&[&set[..], &["--", "-b7-id"]].concat()).unwrap()
        else {
            panic!("not run")
        };
        assert_eq!(read.word.as_deref(), Some("-b7-id"));
        // Where no value is expected there is no tip, and a flag of one letter is named as it is.
        let see = "(see `tool work --help`)";
        for argument in ["-b7-id", "-b"] {
            let line = asked::<Tool>(&["tool", "work", argument]).unwrap_err();
            let found = format!("tool: error: unexpected argument '{argument}' found {see}");
            assert_eq!(line, found);
        }
    }

    #[test]
    fn who_names_what_there_is_not_is_told_whose_help_says_what_there_is() {
        let line = asked::<Tool>(&["tool", "wokr"]).unwrap_err();
        assert!(
            line.contains("'wokr'") && line.ends_with("(see `tool --help`)"),
            "{line}"
        );
    }

    #[test]
    fn durations_read_as_people_write_them() {
        assert_eq!(duration("1m 30s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        assert!(duration("2").is_err());
        assert!(duration("-2s").is_err_and(|reason| reason.contains("negative")));
        assert!(duration("366d").is_err());
        assert!(positive_duration("0s").is_err());
    }
}
