//! `esimctl master-key`: creates and replaces the keys that encrypt the stored secrets.
//!
//! A file of master keys has one `<id>:<key>` entry per line. The first key encrypts, all of them
//! decrypt. A stored value can only be read with the key that encrypted it, so the guarantee of
//! this module is that no command removes a key from a file: [`write`] keeps an existing file,
//! unless the new content includes all of its keys. `reencrypt` holds the commands that count and
//! re-encrypt stored values.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use base64::{Engine, prelude::BASE64_STANDARD};
use clap::Subcommand;
use pg::config::{MasterKeyConfig, MasterKeyError};
use runtime::files;
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use vault::Vault;

use crate::{console::Console, reencrypt, secret_file};

const EXAMPLES: &str = "Examples:
  esimctl master-key create master.key                 fails if the file exists
  esimctl master-key create master.key --if-missing    keeps an existing file
  esimctl master-key create master.key --if-missing --keys keys.txt
                                                       adds new keys to the old ones
  esimctl master-key status
  esimctl master-key reencrypt --replicas-restarted

Keep a copy of the file in another place: without its keys nobody can read the stored secrets again.";

#[derive(Subcommand, Clone, Debug)]
pub enum MasterKeyCommand {
    /// Write a new random key, or given keys, to a file that only its owner can read
    ///
    /// If the file exists, the command fails, so that no key in use is lost. With `--if-missing` it
    /// keeps all keys of the file instead.
    #[command(after_help = EXAMPLES)]
    Create {
        /// The file to write, which is then the value of `MASTER_KEY_FILE`
        file: PathBuf,
        /// A file with the keys to write, in the form of `MASTER_KEY` [default: a new random key]
        ///
        /// It is a file, because everybody on the machine can see the arguments of a program.
        #[arg(long, value_name = "FILE")]
        keys: Option<PathBuf>,
        /// Do not fail if the file exists
        ///
        /// Without given keys the file stays as it is. Given keys replace its content if they
        /// include all keys of the file; otherwise the command fails.
        #[arg(long)]
        if_missing: bool,
    },
    /// Show how many stored values each key encrypts
    #[command(after_help = reencrypt::STATUS_EXAMPLES)]
    Status(MasterKeyConfig),
    /// Encrypt all stored values again under the first key of each purpose
    #[command(after_help = reencrypt::REENCRYPT_EXAMPLES)]
    Reencrypt(reencrypt::Reencrypt),
}

pub async fn run(command: &MasterKeyCommand, console: &Console) -> anyhow::Result<()> {
    match command {
        MasterKeyCommand::Create {
            file,
            keys,
            if_missing,
        } => {
            let keys = keys.as_deref().map(files::value).transpose()?;
            create(
                file,
                keys.map(SecretString::from).as_ref(),
                *if_missing,
                console,
            )
        }
        MasterKeyCommand::Status(master_key) => reencrypt::status(master_key, console).await,
        MasterKeyCommand::Reencrypt(asked) => reencrypt::run(asked, console).await,
    }
}

fn create(
    file: &Path,
    keys: Option<&SecretString>,
    keep: bool,
    console: &Console,
) -> anyhow::Result<()> {
    let (what, text) = write(file, keys, keep)?;
    console.print(&json!({ "file": file, "outcome": what }), || text)
}

/// Writes a file of master keys, and returns the outcome as a word for JSON and as a text. With
/// `keep` an existing file is no error. The keys are parsed as the services parse them, so that a
/// file that they would refuse is not written.
pub fn write(
    file: &Path,
    keys: Option<&SecretString>,
    keep: bool,
) -> anyhow::Result<(&'static str, String)> {
    let given = keys
        .map(|keys| keys.expose_secret().trim())
        .filter(|keys| !keys.is_empty());
    let content = match given {
        Some(keys) => entries(keys).collect::<Vec<_>>().join("\n"),
        None => format!(
            "first:{}",
            BASE64_STANDARD.encode(rand::random::<[u8; 32]>())
        ),
    };
    let setting = if given.is_some() {
        "the given keys"
    } else {
        "the new key"
    };
    Vault::parse(&content.as_str().into()).map_err(|cause| MasterKeyError { setting, cause })?;
    let content = format!("{content}\n");

    let path = file.display();
    let exists = file
        .try_exists()
        .with_context(|| format!("cannot read {path}"))?;
    let old = exists.then(|| files::read(file)).transpose()?;
    Ok(match old {
        None => {
            if !secret_file::make(file, &content)? {
                bail!(
                    "another process created {path} just now, and its content was kept; run the command again to check it"
                );
            }
            (
                "created",
                format!("{path} is created. Keep a copy of it in another place"),
            )
        }
        Some(_) if !keep => bail!(
            "{path} exists, and a master key is never overwritten, because nobody could read the values under it again; \
             --if-missing keeps the file"
        ),
        Some(old) if given.is_none() || old == content => {
            ("kept", format!("{path} exists already and was kept"))
        }
        Some(old) => {
            let new: BTreeSet<&str> = entries(&content).collect();
            if !entries(&old).all(|key| new.contains(key)) {
                bail!(
                    "{path} holds a key that the given keys lack, and nobody could read the values under it again; nothing was \
                     changed. Append the old keys to the new one, separated by commas"
                );
            }
            secret_file::replace(file, &content)?;
            ("replaced", format!("{path} holds the given keys now"))
        }
    })
}

/// The `<id>:<key>` entries of a text, split as the services split them.
fn entries(text: &str) -> impl Iterator<Item = &str> {
    text.split(['\n', ','])
        .map(str::trim)
        .filter(|entry| !entry.is_empty() && !entry.starts_with('#'))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn create(file: &std::path::Path, keys: Option<&str>, if_missing: bool) -> anyhow::Result<()> {
        super::create(
            file,
            keys.map(SecretString::from).as_ref(),
            if_missing,
            &Console::new(true, None),
        )
    }

    #[test]
    fn keys_are_added_and_never_lost() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("master.key");
        create(&file, None, false).unwrap();
        let first = fs::read_to_string(&file).unwrap();
        assert!(create(&file, None, false).is_err());
        create(&file, None, true).unwrap();
        create(&file, Some(""), true).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), first);

        let other = format!("second:{}", BASE64_STANDARD.encode([2; 32]));
        let refused = create(&file, Some(&other), true).unwrap_err().to_string();
        assert!(
            refused.contains("holds a key that the given keys lack"),
            "{refused}"
        );
        assert_eq!(fs::read_to_string(&file).unwrap(), first);
        create(&file, Some(&format!("{other},{first}")), true).unwrap();
        assert_eq!(
            fs::read_to_string(&file).unwrap(),
            format!("{other}\n{first}")
        );
    }

    #[test]
    fn what_services_would_refuse_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("master.key");
        let example = format!("example:{}", BASE64_STANDARD.encode([7; 32]));
        for bad in ["nonsense", "a:c2hvcnQ=", &example] {
            assert!(create(&file, Some(bad), true).is_err(), "{bad}");
        }
        assert!(!file.exists());
    }
}
