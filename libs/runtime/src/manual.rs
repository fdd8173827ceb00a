//! The subcommands `completions` and `man` of the command lines for people: what a shell needs to
//! complete their arguments, and their man pages. Both are made from the same definitions as
//! `--help`, so they never disagree with it.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use clap::{Arg, ArgMatches, Command, value_parser};
use clap_complete::Shell;

const COMPLETIONS: &str = "completions";
const MAN: &str = "man";

/// Adds the subcommands to a program that people type. A service is started by a machine and needs
/// neither.
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
    let folder = Arg::new("folder")
        .required(true)
        .value_parser(value_parser!(PathBuf))
        .help("The folder for the pages, for example one that MANPATH names, with man1 at its end");
    command
        .subcommand(
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
        .subcommand(
            Command::new(MAN)
                .about("Write the man pages of this program and its commands into a folder")
                .after_help(format!("Examples:\n  {name} man /usr/local/share/man/man1"))
                .arg(folder),
        )
}

/// What `completions` prints or says, or `man` says, if one of them was given. The error is one line.
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
        (MAN, chosen) => {
            let folder = chosen.get_one::<PathBuf>("folder")?;
            let written = write(command, folder)
                .map(|pages| format!("{pages} pages are in {}", folder.display()))
                .map_err(|error| format!("{}: {error}", folder.display()));
            Some(written)
        }
        _ => None,
    }
}

/// Writes a page for the program and for each of its commands, and returns their number.
fn write(command: &Command, folder: &Path) -> io::Result<usize> {
    fs::create_dir_all(folder)?;
    let mut command = command.clone();
    command.build();
    let name = command.get_name().to_owned();
    page(&command, &name, folder)
}

fn page(command: &Command, name: &str, folder: &Path) -> io::Result<usize> {
    let mut text = Vec::new();
    let titled = command.clone().display_name(name.to_owned());
    clap_mangen::Man::new(titled)
        .title(name.to_owned())
        .render(&mut text)?;
    fs::write(folder.join(format!("{name}.1")), text)?;
    let mut pages = 1;
    for subcommand in command.get_subcommands() {
        if subcommand.get_name() != "help" && !subcommand.is_hide_set() {
            pages += page(
                subcommand,
                &format!("{name}-{}", subcommand.get_name()),
                folder,
            )?;
        }
    }
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_and_is_completed() {
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
        let into = folder.path().join("man1");
        let said = ask(&["esimctl", "man", into.to_str().unwrap()]);
        assert!(said.unwrap().unwrap().starts_with("5 pages"));
        let page = fs::read_to_string(into.join("esimctl-work-begin.1")).unwrap();
        assert!(page.contains("Begins"), "{page}");
        let services = offer(Command::new("ingress"));
        assert_eq!(services.get_subcommands().count(), 0);
    }
}
