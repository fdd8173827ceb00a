//! `esim-partner keys`: the access key and the secret key of the account, and its further keys.
//!
//! New keys go to a file that only the user can read, because other users of the machine can see
//! arguments, and logs may keep the output. The file is made before the request is sent, so that no
//! keys are made that could not be stored.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::{Args, Subcommand};
use domain::KeyId;
use runtime::terminal::say;
use serde_json::{Map, Value, json};

use crate::{
    account::{ApiClient, ApiResponse, UNEXPECTED},
    private, profile,
};

pub(crate) const EXAMPLES: &str = "Examples:
  esim-partner keys list
  esim-partner keys replace --keys-file new.env
  esim-partner keys add 'our agent' --rights order,read --units-per-day 20 --keys-file agent.env
  esim-partner keys end 01994b7c-7d3e-7c3e-9c1d-0f6a5b4c3d2e";

const REPLACE_EXAMPLES: &str = "Examples:
  esim-partner keys replace --keys-file new.env
  esim-partner login --from new.env

The old keys stay valid for 24 hours. If they have leaked, ask us to end them at once.";

const ADD_EXAMPLES: &str = "Examples:
  esim-partner keys add 'our agent' --rights order,read --units-per-day 20 --keys-file agent.env
  esim-partner --keys agent.env mcp --allow-orders
  esim-partner keys add 'Anna' --rights read --network 198.51.100.0/24 --keys-file anna.env

The rights: order (order, cancel, give back), read (all that only shows something, activation codes included), webhooks (where
webhooks and notices go, and sending them again), keys (make, change and end keys). An account has at most ten keys.";

const CHANGE_EXAMPLES: &str = "Examples:
  esim-partner keys change 01994b7c-7d3e-7c3e-9c1d-0f6a5b4c3d2e --rights read
  esim-partner keys change 01994b7c-7d3e-7c3e-9c1d-0f6a5b4c3d2e --any-network --units-per-day none

The id is in `esim-partner keys list`. A change holds within a second.";

const END_EXAMPLES: &str = "Examples:
  esim-partner keys end 01994b7c-7d3e-7c3e-9c1d-0f6a5b4c3d2e

The id is in `esim-partner keys list`. Requests with the key get 401 within a second; what it has ordered goes on.";

#[derive(Subcommand, Clone, Debug)]
pub(crate) enum KeysCommand {
    /// List the access keys that are valid, without their secret keys
    ///
    /// The further keys, with rights and last use, are among them if your own key has the right
    /// `keys`.
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
    /// Make a further key for a person or a program, and store it in a new file
    #[command(after_help = ADD_EXAMPLES)]
    Add {
        /// Whose key it is, or of which program
        name: String,
        /// What it may do, separated by commas: order, read, webhooks, keys
        #[arg(long, required = true, value_delimiter = ',')]
        rights: Vec<String>,
        /// A network or an address that it may be used from; give it again for more
        #[arg(long, value_name = "NETWORK")]
        network: Vec<String>,
        /// How many units it may order in a day of UTC
        #[arg(long, value_name = "N")]
        units_per_day: Option<u32>,
        /// A new file for the key
        #[arg(long, value_name = "FILE")]
        keys_file: PathBuf,
    },
    /// Change the name, rights, networks or limit of a further key
    #[command(after_help = CHANGE_EXAMPLES)]
    Change(ChangeKey),
    /// End a further key at once
    #[command(after_help = END_EXAMPLES)]
    End {
        /// The id of the key
        key_id: KeyId,
    },
}

#[derive(Args, Clone, Debug)]
pub(crate) struct ChangeKey {
    /// The id of the key
    key_id: KeyId,
    /// Whose key it is, or of which program
    #[arg(long)]
    name: Option<String>,
    /// What it may do, separated by commas; they replace those that it has
    #[arg(long, value_delimiter = ',')]
    rights: Vec<String>,
    /// A network or an address that it may be used from; give it again for more
    #[arg(long, value_name = "NETWORK")]
    network: Vec<String>,
    /// Let it be used from anywhere
    #[arg(long, conflicts_with = "network")]
    any_network: bool,
    /// How many units it may order in a day of UTC, or `none`
    #[arg(long, value_name = "N|none", value_parser = units)]
    units_per_day: Option<Value>,
}

fn units(text: &str) -> Result<Value, String> {
    match text.parse::<u32>() {
        Ok(units) => Ok(json!(units)),
        Err(_) if text == "none" => Ok(Value::Null),
        Err(_) => Err("it is neither `none` nor a whole number from 0 on".to_owned()),
    }
}

impl ChangeKey {
    /// The body of the request: only what is given.
    fn body(&self) -> Value {
        let mut body = Map::new();
        if let Some(name) = &self.name {
            body.insert("name".to_owned(), json!(name));
        }
        if !self.rights.is_empty() {
            body.insert("rights".to_owned(), json!(self.rights));
        }
        if self.any_network || !self.network.is_empty() {
            body.insert("networks".to_owned(), json!(self.network));
        }
        if let Some(units) = &self.units_per_day {
            body.insert("units_per_day".to_owned(), units.clone());
        }
        Value::Object(body)
    }
}

impl KeysCommand {
    /// Sends the request of the command. The answer that is returned has no secret.
    pub(crate) async fn run(&self, account: &ApiClient) -> anyhow::Result<ApiResponse> {
        match self {
            Self::List => list(account).await,
            Self::Replace { keys_file } => {
                let lost = Lost {
                    unwritten: "the new keys are lost, but the ones in use stay valid for a day at least: ask us for others",
                    unknown: "it is unknown whether new keys were made; the ones in use stay valid for a day at least, so run \
                              `esim-partner keys list`, and ask us if it shows an access key that you do not have",
                };
                into_file(account, ("/keys", None), keys_file, lost).await
            }
            Self::Add {
                name,
                rights,
                network,
                units_per_day,
                keys_file,
            } => {
                let body = json!({
                    "name": name, "rights": rights, "networks": network, "units_per_day": units_per_day,
                });
                let lost = Lost {
                    unwritten: "the new key is lost: end it with `esim-partner keys end`, and make another one",
                    unknown: "it is unknown whether the key was made: run `esim-partner keys list`, and end it if it is there",
                };
                into_file(account, ("/account/keys", Some(&body)), keys_file, lost).await
            }
            Self::Change(change) => {
                let path = format!("/account/keys/{}", change.key_id);
                account.send("PUT", &path, "", Some(&change.body())).await
            }
            Self::End { key_id } => {
                let path = format!("/account/keys/{key_id}");
                account.send("DELETE", &path, "", None).await
            }
        }
    }
}

/// The keys of the account. A key without the right `keys` sees only the first one.
async fn list(account: &ApiClient) -> anyhow::Result<ApiResponse> {
    let mut answer = account.send("GET", "/account", "", None).await?;
    if answer.is_success() {
        let names = ["access_key", "old_access_key", "old_keys_until"];
        let known = names.map(|name| (name.to_owned(), answer.json[name].clone()));
        let mut known: Map<String, Value> = known.into_iter().collect();
        let all = account.send("GET", "/account/keys", "", None).await?;
        if all.is_success() {
            known.insert("keys".to_owned(), all.json["keys"].clone());
        }
        answer.json = Value::Object(known);
    }
    Ok(answer)
}

/// What the user is told if new keys are lost.
struct Lost {
    unwritten: &'static str,
    unknown: &'static str,
}

/// Sends a request that makes keys, and stores them in a new file, with the other settings of the
/// account. A request with a body makes a further key, whose file has no webhook secret. The file
/// is made before the request is sent.
async fn into_file(
    account: &ApiClient,
    (path, body): (&str, Option<&Value>),
    keys_file: &Path,
    lost: Lost,
) -> anyhow::Result<ApiResponse> {
    let keys_file = &std::path::absolute(keys_file)?;
    let shown = keys_file.display();
    let file = private::new_file().open(keys_file);
    drop(file.with_context(|| format!("cannot create {shown}: the file of the keys must be new"))?);
    let sent = account.send("POST", path, "", body).await;
    let unmade = match sent {
        Ok(mut answer) if answer.is_success() => {
            let fields = answer.json.as_object_mut();
            let secret = fields.and_then(|fields| fields.remove("secret_key"));
            let access = answer.json["access_key"].clone();
            let mut settings = account.settings.clone();
            // Whoever gets a further key can do what its rights say, and not forge webhooks.
            if body.is_some() {
                settings.remove("WEBHOOK_SECRET");
            }
            for (name, key) in [("ACCESS_KEY", access), ("SECRET_KEY", json!(secret))] {
                let key = key.as_str().context(UNEXPECTED)?.to_owned();
                settings.insert(name.to_owned(), key);
            }
            profile::write(keys_file, &settings).context(lost.unwritten)?;
            say(format_args!("The new keys are in {shown}."));
            return Ok(answer);
        }
        Ok(answer) => Ok(answer),
        Err(error) => Err(error.context(lost.unknown)),
    };
    fs::remove_file(keys_file).with_context(|| format!("cannot remove {shown}"))?;
    unmade
}
