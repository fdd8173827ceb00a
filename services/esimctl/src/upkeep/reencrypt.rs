//! `esimctl master-key status` and `esimctl master-key reencrypt`: show which keys are in use, and
//! encrypt all stored values again under the first key.
//!
//! They are the last steps of a rotation (docs/key-rotation.md): after `reencrypt`, `status` shows
//! no value under the old key, and the key may be removed. Both refuse keys that do not open the
//! partners' secrets, even if their ids match. `reencrypt` runs beside the live system in small
//! batches (`desk::master_key`), and may be interrupted and repeated. A replica that does not have
//! the new key yet could not read a value under it. So `reencrypt` changes nothing until the
//! operator confirms with `--replicas-restarted` that every replica has the key.

use accounts::partners;
use anyhow::{Context, bail};
use clap::Args;
use desk::master_key::{self, KeyUsage, ResealFailure, ResealPass};
use desk::operator::words::counted;
use pg::{PgConnection, config::MasterKeyConfig};
use runtime::terminal::progress;
use serde::Serialize;
use serde_json::json;
use vault::{Keyring, Vault};

use crate::{
    console::Console,
    output::{self, or_dash, printable, table},
};

pub const STATUS_EXAMPLES: &str = "Examples:
  esimctl master-key status
  MASTER_KEY_FILE=master.key esimctl master-key status --json

The states: `encrypts` is the key for new values, `decrypts` a configured key for old values, `missing` a key that stored
values need and that is not configured, and `damaged` counts values that name no key.

A key without values may be removed from MASTER_KEY_FILE. Keep a copy of it, because backups from before the last
`reencrypt` still need it.";

pub const REENCRYPT_EXAMPLES: &str = "Examples:
  esimctl master-key reencrypt --replicas-restarted
  MASTER_KEY_FILE=master.key esimctl master-key reencrypt --replicas-restarted --json

Run it only when every replica of every stage has these keys, because an ingress without the first one answers all orders
with 500. The command runs beside the live system in small batches. After an interruption, run it again.

Exit status 1 means that some values are not under the first key yet. The command then lists the ids of the values that it
could not encrypt again.";

#[derive(Args, Clone, Debug)]
pub struct Reencrypt {
    /// Confirm that every ingress, provisioner and notifier has these keys
    ///
    /// They read the keys when they start, so each must have been restarted since the first key was
    /// added. Without this option the command only says how many values it would change.
    #[arg(long)]
    replicas_restarted: bool,
    #[command(flatten)]
    master_key: MasterKeyConfig,
}

/// The maximum number of passes. One pass may not be enough, because other sessions may lock or
/// change values meanwhile.
const PASSES: usize = 3;
/// The maximum number of failures that the text lists.
const NAMED: usize = 20;

/// A key, and the number of stored values under it.
#[derive(Default, Serialize)]
struct Row {
    /// The key's id; null for damaged values, which name no key.
    key: Option<String>,
    configured: bool,
    /// Whether the key encrypts new values.
    encrypts: bool,
    /// The purposes for which it encrypts: partners, webhooks, profiles.
    purposes: Vec<String>,
    #[serde(flatten)]
    usage: KeyUsage,
}

pub async fn status(keys: &MasterKeyConfig, console: &Console) -> anyhow::Result<()> {
    let vault = keys.vault(&Keyring::ALL)?;
    let mut connection = console.connect().await?;
    let checked = check(&mut connection, &vault).await;
    let mut usages = master_key::usages(&mut connection).await?;
    let left = master_key::left(&usages, &vault);
    let mut rows: Vec<Row> = Vec::new();
    for ring in Keyring::ALL {
        for (index, id) in vault.key_ids(ring).enumerate() {
            let key = Some(id.to_owned());
            if !rows.iter().any(|row| row.key == key) {
                let usage = usages.remove(&key).unwrap_or_default();
                rows.push(Row {
                    key: key.clone(),
                    configured: true,
                    usage,
                    ..Row::default()
                });
            }
            let row = rows.iter_mut().find(|row| row.key == key);
            if let Some(row) = row.filter(|_| index == 0) {
                row.encrypts = true;
                row.purposes.push(ring.to_string());
            }
        }
    }
    rows.extend(usages.into_iter().map(|(key, usage)| Row {
        key,
        usage,
        ..Row::default()
    }));
    let shown = json!({ "keys": rows, "left": left });
    console.print(&shown, || {
        let table = table(rows.iter().map(cells));
        let state = if left == 0 {
            "All values are encrypted under the first key.".to_owned()
        } else {
            let see = "see `esimctl master-key reencrypt --help`";
            format!("Not encrypted under the first key: {left}; {see}.")
        };
        format!("{table}\n\n{state}")
    })?;
    // Only now, because the table shows which keys are needed.
    checked
}

/// Checks that the keys open the stored secrets, because another key may have the same id.
async fn check(connection: &mut PgConnection, vault: &Vault) -> anyhow::Result<()> {
    partners::check_master_key(connection, vault)
        .await
        .context(
            "these are not the master keys of the services: put the right ones back and repeat the command",
        )
}

fn cells(row: &Row) -> output::TableRow<5> {
    let state = match (row.encrypts, row.configured, &row.key) {
        (true, ..) if row.purposes.len() < Keyring::ALL.len() => {
            &format!("encrypts {}", row.purposes.join(", "))
        }
        (true, ..) => "encrypts",
        (_, true, _) => "decrypts",
        (_, _, Some(_)) => "missing",
        (_, _, None) => "damaged",
    };
    [
        ("key", or_dash(row.key.as_ref())),
        ("state", state.to_owned()),
        ("partner secrets", row.usage.partner_secrets.to_string()),
        ("profiles", row.usage.profiles.to_string()),
        ("answers", row.usage.answers.to_string()),
    ]
}

/// The ids of the keys that encrypt new values, separated by commas.
fn first_keys(vault: &Vault) -> String {
    let mut first: Vec<&str> = Vec::new();
    for id in Keyring::ALL
        .iter()
        .filter_map(|ring| vault.key_ids(*ring).next())
    {
        if !first.contains(&id) {
            first.push(id);
        }
    }
    first.join(", ")
}

pub async fn run(asked: &Reencrypt, console: &Console) -> anyhow::Result<()> {
    let vault = asked.master_key.vault(&Keyring::ALL)?;
    let key = &first_keys(&vault);
    let mut connection = console.connect().await?;
    check(&mut connection, &vault).await?;
    let mut left_now = master_key::left(&master_key::usages(&mut connection).await?, &vault);
    if left_now > 0 && !asked.replicas_restarted {
        bail!(
            "nothing was changed: {} would be encrypted under {key:?}. An ingress without that key answers all orders with \
             500, so restart every replica with it first, and then add `--replicas-restarted`",
            counted(left_now, "value", "values")
        );
    }
    let all = left_now;
    let mut reencrypted = 0;
    let mut failed = Vec::new();
    for _ in 0..PASSES {
        let before = reencrypted;
        let pass = master_key::reencrypt(&mut connection, &vault, |pass: &ResealPass| {
            progress(format!(
                "{} of {all} encrypted again",
                before + pass.reencrypted
            ));
        })
        .await?;
        reencrypted += pass.reencrypted;
        failed = pass.failed;
        left_now = master_key::left(&master_key::usages(&mut connection).await?, &vault);
        if left_now <= failed.len() as u64 {
            break;
        }
    }
    progress("");
    let shown =
        json!({ "key": key, "reencrypted": reencrypted, "failed": failed, "left": left_now });
    console.print(&shown, || describe(key, reencrypted, &failed, left_now))?;
    if left_now > failed.len() as u64 {
        bail!(
            "some values were written under another key meanwhile: a replica still has another first key. Run the command again \
             when every replica has {key:?} as its first key"
        );
    }
    if left_now > 0 {
        bail!(
            "the failed values were not changed; keep the other keys, because these values may still need them"
        );
    }
    Ok(())
}

fn describe(key: &str, reencrypted: u64, failed: &[ResealFailure], left: u64) -> String {
    let key = printable(key);
    let count = failed.len();
    let mut lines = vec![format!(
        "encrypted again under {key}: {reencrypted}; failed: {count}; left: {left}"
    )];
    if !failed.is_empty() {
        let rows = failed.iter().take(NAMED).map(|one| {
            [
                ("failed", one.what.to_owned()),
                ("id", one.id.clone()),
                ("reason", one.reason.clone()),
            ]
        });
        lines.push(table(rows));
    }
    if failed.len() > NAMED {
        lines.push("… and more; --json lists all".to_owned());
    }
    lines.join("\n")
}
