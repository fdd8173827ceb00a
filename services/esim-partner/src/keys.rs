//! `esim-partner keys`: the access key and the secret key of the account.
//!
//! New keys go to a file that only the user can read, because other users of the machine can see
//! arguments, and logs may keep the output. The file is made before the request is sent, so that no
//! keys are made that could not be stored.

use std::{fs, path::PathBuf};

use anyhow::Context;
use clap::Subcommand;
use runtime::terminal::say;
use serde_json::{Value, json};

use crate::{
    account::{ApiClient, ApiResponse, UNEXPECTED},
    private, profile,
};

pub(crate) const EXAMPLES: &str = "Examples:
  esim-partner keys list
  esim-partner keys replace --keys-file new.env";

const REPLACE_EXAMPLES: &str = "Examples:
  esim-partner keys replace --keys-file new.env
  esim-partner login --from new.env

The old keys stay valid for 24 hours. If they have leaked, ask us to end them at once.";

#[derive(Subcommand, Clone, Debug)]
pub(crate) enum KeysCommand {
    /// List the access keys that are valid, without their secret keys
    #[command(after_help = "Examples:\n  esim-partner keys list")]
    List,
    /// Make a new access key and a new secret key, and store them in a new file
    ///
    /// The file has the other settings of the account, too, so that `--keys` and `login --from` can
    /// read it.
    #[command(after_help = REPLACE_EXAMPLES)]
    Replace {
        /// A new file for the new keys
        #[arg(long, value_name = "FILE")]
        keys_file: PathBuf,
    },
}

impl KeysCommand {
    /// Sends the request of the command. The answer that is returned has no secret.
    pub(crate) async fn run(&self, account: &ApiClient) -> anyhow::Result<ApiResponse> {
        let Self::Replace { keys_file } = self else {
            let mut answer = account.send("GET", "/account", "", None).await?;
            if answer.is_success() {
                let names = ["access_key", "old_access_key", "old_keys_until"];
                let known = names.map(|name| (name.to_owned(), answer.json[name].clone()));
                answer.json = Value::Object(known.into_iter().collect());
            }
            return Ok(answer);
        };
        let keys_file = &std::path::absolute(keys_file)?;
        let shown = keys_file.display();
        let file = private::new_file().open(keys_file);
        drop(
            file.with_context(|| {
                format!("cannot create {shown}: the file of the keys must be new")
            })?,
        );
        let sent = account.send("POST", "/keys", "", None).await;
        let replaced = match sent {
            Ok(mut answer) if answer.is_success() => {
                let secret = answer.json.as_object_mut().and_then(|fields| fields.remove("secret_key"));
                let access = answer.json["access_key"].clone();
                let mut settings = account.settings.clone();
                for (name, key) in [("ACCESS_KEY", access), ("SECRET_KEY", json!(secret))] {
                    let key = key.as_str().context(UNEXPECTED)?.to_owned();
                    settings.insert(name.to_owned(), key);
                }
                profile::write(keys_file, &settings).context(
                    "the new keys are lost, but the ones in use stay valid for a day at least: ask us for others",
                )?;
                say(format_args!("The new keys are in {shown}."));
                return Ok(answer);
            }
            Ok(answer) => Ok(answer),
            Err(error) => Err(error.context(
                "it is unknown whether new keys were made; the ones in use stay valid for a day at least, so run \
                 `esim-partner keys list`, and ask us if it shows an access key that you do not have",
            )),
        };
        fs::remove_file(keys_file).with_context(|| format!("cannot remove {shown}"))?;
        replaced
    }
}
