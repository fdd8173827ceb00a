//! The subcommand `completions` of the command lines for people: what a shell needs to complete
//! their arguments. It is made from the same definitions as `--help`, so they never disagree.

use std::{fs, path::PathBuf};

use clap::{Arg, ArgMatches, Command, value_parser};
use clap_complete::Shell;

const COMPLETIONS: &str = "completions";

/// Adds the subcommand to a program that people type. A service is started by a machine and does
/// not need it.
pub fn offer(command: Command) -> Command {
    let name = command.get_name().to_owned();
    if !["esimctl", "esim-partner"].contains(&name.as_str()) {
        return command;
    }
    let shell = Arg::new("shell")
        .required(true)
        .value_parser(value_parser!(Shell))
        .help("The shell that should complete the arguments");
    let file = Arg::new("file")
        .value_parser(value_parser!(PathBuf))
        .help("The file to write; without it the text is printed");
    command.subcommand(
        Command::new(COMPLETIONS)
            .about("Print what a shell needs to complete the arguments of this program")
            .after_help(format!(
                "Examples:\n  {name} completions bash >/etc/bash_completion.d/{name}\n  \
                 {name} completions zsh >/usr/local/share/zsh/site-functions/_{name}\n  \
                 {name} completions fish >~/.config/fish/completions/{name}.fish"
            ))
            .arg(shell)
            .arg(file),
    )
}

/// What `completions` prints or says, if it was given. The error is one line.
pub fn asked(command: &Command, matches: &ArgMatches) -> Option<Result<String, String>> {
    match matches.subcommand()? {
        (COMPLETIONS, chosen) => {
            let shell = *chosen.get_one::<Shell>("shell")?;
            let mut text = Vec::new();
            let name = command.get_name().to_owned();
            clap_complete::generate(shell, &mut command.clone(), name, &mut text);
            // An image without a shell can't redirect what is printed.
            Some(match chosen.get_one::<PathBuf>("file") {
                Some(file) => fs::write(file, text)
                    .map(|()| format!("the completions are in {}", file.display()))
                    .map_err(|error| format!("{}: {error}", file.display())),
                None => Ok(String::from_utf8_lossy(&text).trim_end().to_owned()),
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_completed() {
        let command =
            offer(Command::new("esimctl").about("A tool").subcommand(
                Command::new("work").subcommand(Command::new("begin").about("Begins")),
            ));
        let ask = |arguments: &[&str]| {
            let matches = command.clone().try_get_matches_from(arguments).unwrap();
            asked(&command, &matches)
        };
        assert!(ask(&["esimctl", "work"]).is_none());
        for shell in ["bash", "zsh", "fish"] {
            let text = ask(&["esimctl", "completions", shell]).unwrap().unwrap();
            assert!(text.contains("begin"), "{shell}: {text}");
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("esimctl.bash");
        let said = ask(&["esimctl", "completions", "bash", file.to_str().unwrap()]);
        assert!(
            said.unwrap()
                .unwrap()
                .starts_with("the completions are in ")
        );
        assert!(fs::read_to_string(&file).unwrap().contains("begin"));
        let nowhere = folder.path().join("nowhere/esimctl.bash");
        let said = ask(&["esimctl", "completions", "bash", nowhere.to_str().unwrap()]);
        assert!(said.unwrap().is_err());
        let services = offer(Command::new("ingress"));
        assert_eq!(services.get_subcommands().count(), 0);
    }
}
