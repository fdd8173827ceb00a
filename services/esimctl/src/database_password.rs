//! `esimctl database-password`: the password of the database's role, for a start that has none yet.

use std::path::PathBuf;

use anyhow::bail;
use clap::Subcommand;
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;

use crate::{made_once, output::Output};

pub const EXAMPLES: &str = "Examples:
  esimctl database-password create secrets/                 refuses if there is one already
  esimctl database-password create secrets/ --if-missing    leaves the one that is there

Makes `password`, for the server (POSTGRES_PASSWORD_FILE), and `pgpass`, for its clients (PGPASSFILE).";

#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Make a random password, or write down a given one, in files that only their owner may read
    #[command(after_help = EXAMPLES)]
    Create {
        /// Where `password` and `pgpass` are made
        folder: PathBuf,
        /// The password [default: a random one]
        #[arg(long, env = "POSTGRES_PASSWORD", hide_env_values = true)]
        password: Option<SecretString>,
        /// Do nothing if it is there already
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
    let given = password.as_ref().map(ExposeSecret::expose_secret);
    let password = match given.filter(|password| !password.is_empty()) {
        Some(password) if password.contains(['\n', '\r', '\0']) => {
            bail!("the password holds a line break, which no such file can hold")
        }
        Some(password) => password.to_owned(),
        None => hex::encode(rand::random::<[u8; 24]>()),
    };
    let file = folder.join("password");
    let made = made_once::make(&file, &format!("{password}\n"))?;
    if !made && !if_missing {
        bail!("{} exists already; it is never overwritten", file.display());
    }
    // A crash between the two files is mended by the next start.
    let password = std::fs::read_to_string(&file)?;
    let escaped = password.trim_end().replace('\\', "\\\\").replace(':', "\\:");
    made_once::make(&folder.join("pgpass"), &format!("*:*:*:*:{escaped}\n"))?;
    output.print(&json!({ "file": file, "created": made }), || {
        let path = file.display();
        if made {
            format!("{path} holds the database's password")
        } else {
            format!("{path} is there already")
        }
    })
}
