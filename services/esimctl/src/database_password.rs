//! `esimctl database-password`: creates the password of the database's role for a first start.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Subcommand;
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;

use crate::{output::Output, secret_file};

pub const EXAMPLES: &str = "Examples:
  esimctl database-password create secrets/                 fails if the files exist
  esimctl database-password create secrets/ --if-missing    keeps existing files

Writes `password` for the server (POSTGRES_PASSWORD_FILE) and `pgpass` for its clients (PGPASSFILE).";

#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Write a random password, or a given one, to files that only their owner may read
    #[command(after_help = EXAMPLES)]
    Create {
        /// The folder for `password` and `pgpass`
        folder: PathBuf,
        /// The password [default: a random one]
        #[arg(long, env = "POSTGRES_PASSWORD", hide_env_values = true)]
        password: Option<SecretString>,
        /// Don't fail if the files exist
        #[arg(long)]
        if_missing: bool,
    },
}

pub fn run(command: &Command, output: &Output) -> anyhow::Result<()> {
    let Command::Create {
        folder,
        password,
        if_missing,
    } = command;
    let made = make(folder, password.as_ref(), *if_missing)?;
    let file = folder.join("password");
    let path = file.display();
    output.print(&json!({ "file": file, "created": made }), || {
        if made {
            format!("{path} holds the database's password")
        } else {
            format!("{path} exists already")
        }
    })
}

/// The password of the database's owner, made once.
pub fn ensure(folder: &Path, given: Option<&SecretString>) -> anyhow::Result<()> {
    make(folder, given, true).map(drop)
}

/// A file for `PGPASSFILE` with this password for every server.
pub fn pgpass(password: &str) -> String {
    let escaped = password.replace('\\', "\\\\").replace(':', "\\:");
    format!("*:*:*:*:{escaped}\n")
}

/// Writes both files; `false` if they exist.
fn make(folder: &Path, password: Option<&SecretString>, if_missing: bool) -> anyhow::Result<bool> {
    let given = password.map(ExposeSecret::expose_secret);
    let given = given.filter(|password| !password.is_empty());
    let password = match given {
        Some(password) if password.contains(['\n', '\r', '\0']) => {
            bail!("the password has a line break or a NUL, which the file can't hold")
        }
        Some(password) => password.to_owned(),
        None => hex::encode(rand::random::<[u8; 24]>()),
    };
    let file = folder.join("password");
    let path = file.display();
    let made = secret_file::make(&file, &format!("{password}\n"))?;
    if !made && !if_missing {
        bail!("{path} exists; it is never overwritten");
    }
    let stored = std::fs::read_to_string(&file).with_context(|| format!("cannot read {path}"))?;
    let stored = stored.trim_end_matches('\n');
    if given.is_some_and(|given| given != stored) {
        bail!(
            "{path} holds another password, and so does the database that was created with it: change it there \
             (ALTER ROLE) and in both files, or restore the old POSTGRES_PASSWORD"
        );
    }
    // After a crash between the two files, the next call writes the second.
    secret_file::make(&folder.join("pgpass"), &pgpass(stored))?;
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(folder: &std::path::Path, password: Option<&str>, if_missing: bool) -> anyhow::Result<()> {
        let command = Command::Create {
            folder: folder.to_owned(),
            password: password.map(Into::into),
            if_missing,
        };
        run(&command, &Output::new(true))
    }

    #[test]
    fn a_password_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        create(folder.path(), Some(r"a:b\c"), true).unwrap();
        assert_eq!(
            (read("password").as_str(), read("pgpass").as_str()),
            ("a:b\\c\n", "*:*:*:*:a\\:b\\\\c\n")
        );
        assert!(create(folder.path(), None, false).is_err());
        create(folder.path(), None, true).unwrap();
        let other = create(folder.path(), Some("other"), true)
            .unwrap_err()
            .to_string();
        assert!(other.contains("another password"), "{other}");
        assert_eq!(read("password"), "a:b\\c\n");
    }
}
