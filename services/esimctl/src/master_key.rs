//! `esimctl master-key`: the key that secrets at rest are encrypted under.

use std::path::PathBuf;

use anyhow::bail;
use base64::{Engine, prelude::BASE64_STANDARD};
use clap::Subcommand;
use serde_json::json;

use crate::{made_once, output::Output};

pub const EXAMPLES: &str = "Examples:
  esimctl master-key create master.key                 refuses if there is one already
  esimctl master-key create master.key --if-missing    leaves the one that is there

Keep a copy of it elsewhere: without it nobody can read the stored secrets again.";

#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Make a new key in a file that only its owner may read
    #[command(after_help = EXAMPLES)]
    Create {
        /// The value for MASTER_KEY_FILE
        file: PathBuf,
        /// What the key is called in what is encrypted under it
        #[arg(long, default_value = "first", value_parser = id)]
        id: String,
        /// Do nothing if the file is there already
        #[arg(long)]
        if_missing: bool,
    },
}

fn id(text: &str) -> Result<String, String> {
    let plain = text
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    if !plain || !(1..=32).contains(&text.len()) {
        return Err("use 1 to 32 letters, digits, `-` or `_`".into());
    }
    if text == store::vault::EXAMPLE_ID {
        return Err("a key of this name is refused by every service".into());
    }
    Ok(text.to_owned())
}

pub fn run(command: &Command, output: &Output) -> anyhow::Result<()> {
    let Command::Create { file, id, if_missing } = command;
    let key: [u8; 32] = rand::random();
    let made = made_once::make(file, &format!("{id}:{}\n", BASE64_STANDARD.encode(key)))?;
    if !made && !if_missing {
        bail!(
            "{} exists already; a master key is never overwritten, since what it encrypted could not be read again",
            file.display()
        );
    }
    output.print(&json!({ "file": file, "created": made }), || {
        let path = file.display();
        if made {
            format!("{path} holds a new master key. Keep a copy of it elsewhere")
        } else {
            format!("{path} is there already")
        }
    })
}
