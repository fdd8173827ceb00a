//! `esimctl master-key status` and `reencrypt`: which keys are in use, and everything under the first.

use std::io::{IsTerminal, Write};

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use serde_json::json;
use store::{
    PgConnection,
    config::{DatabaseConfig, MasterKeyConfig},
    master_key::{self, Failed, Pass, Usage, Usages},
    partners,
    vault::Vault,
};

use crate::{
    database::connect,
    output::{Output, printable, table},
};

pub const STATUS_EXAMPLES: &str = "Examples:
  esimctl master-key status
  MASTER_KEY_FILE=master.key esimctl master-key status --json

A key that encrypts nothing any more may be taken out of MASTER_KEY_FILE. Backups that are older than that need it.";

pub const REENCRYPT_EXAMPLES: &str = "Examples:
  esimctl master-key reencrypt --replicas-restarted
  MASTER_KEY_FILE=master.key esimctl master-key reencrypt --replicas-restarted --json

Only once every replica of every stage has these keys: one that lacks the first can read no partner's key any more,
and answers its orders with 500.
It runs beside the live system, in small batches; broken off, it goes on where it was when it is run again.
Exit status 1: something is left, and the ids of what can't be encrypted anew are named.";

#[derive(Args, Clone, Debug)]
pub struct Reencrypt {
    /// Every ingress, provisioner and notifier has been restarted with the first of these keys
    #[arg(long)]
    replicas_restarted: bool,
    #[command(flatten)]
    master_key: MasterKeyConfig,
}

/// One after another, as long as somebody holds or changes what is to be written.
const PASSES: usize = 3;
/// How many failures are named for people.
const NAMED: usize = 20;

/// What a key is needed for.
#[derive(Serialize)]
struct Row {
    /// Its id; null for values that name no key.
    key: Option<String>,
    /// Whether it is among the given ones.
    configured: bool,
    /// Whether it is what new values are encrypted under.
    encrypts: bool,
    #[serde(flatten)]
    usage: Usage,
}

pub async fn status(
    master_key: &MasterKeyConfig,
    database: &DatabaseConfig,
    output: &Output,
) -> anyhow::Result<()> {
    let vault = master_key.vault()?;
    let mut connection = connect(database).await?;
    let checked = check(&mut connection, &vault).await;
    let mut usages = master_key::usages(&mut connection).await?;
    let left = left(&usages, &vault);
    let configured = vault.key_ids().enumerate().map(|(index, id)| {
        let key = Some(id.to_owned());
        let usage = usages.remove(&key).unwrap_or_default();
        Row {
            key,
            configured: true,
            encrypts: index == 0,
            usage,
        }
    });
    let mut rows: Vec<Row> = configured.collect();
    rows.extend(usages.into_iter().map(|(key, usage)| Row {
        key,
        configured: false,
        encrypts: false,
        usage,
    }));
    output.print(&json!({ "keys": rows, "left": left }), || {
        let header = ["key", "state", "partner secrets", "profiles", "answers"];
        let table = table(header, rows.iter().map(cells));
        match left {
            0 => format!("{table}\n\nNothing is encrypted under another key than the first."),
            left => {
                format!(
                    "{table}\n\nNot encrypted under the first key: {left}; see `esimctl master-key reencrypt --help`."
                )
            }
        }
    })?;
    // After the table, which says which keys are needed.
    checked
}

/// Ids of keys are not enough: another key may have the same.
async fn check(connection: &mut PgConnection, vault: &Vault) -> anyhow::Result<()> {
    partners::check_master_key(connection, vault)
        .await
        .context("these are not the master keys of the services: put the right ones back")
}

fn cells(row: &Row) -> [String; 5] {
    let state = match (row.encrypts, row.configured, &row.key) {
        (true, ..) => "encrypts",
        (_, true, _) => "decrypts",
        (_, _, Some(_)) => "missing",
        (_, _, None) => "damaged",
    };
    [
        row.key.clone().unwrap_or_else(|| "-".to_owned()),
        state.to_owned(),
        row.usage.partner_secrets.to_string(),
        row.usage.profiles.to_string(),
        row.usage.answers.to_string(),
    ]
}

/// How many values are not under the first key.
fn left(usages: &Usages, vault: &Vault) -> u64 {
    let first = vault.key_ids().next();
    let others = usages.iter().filter(|(key, _)| key.as_deref() != first);
    others.map(|(_, usage)| usage.total()).sum()
}

pub async fn run(asked: &Reencrypt, database: &DatabaseConfig, output: &Output) -> anyhow::Result<()> {
    let vault = asked.master_key.vault()?;
    let key = vault.key_ids().next().unwrap_or_default();
    let mut connection = connect(database).await?;
    check(&mut connection, &vault).await?;
    let mut left_now = left(&master_key::usages(&mut connection).await?, &vault);
    if left_now > 0 && !asked.replicas_restarted {
        bail!(
            "nothing was changed: {left_now} values are to be encrypted under {key:?}, which every replica must have by \
             then, or it answers all orders with 500; once each was restarted with it, say `--replicas-restarted`"
        );
    }
    let (all, mut reencrypted) = (left_now, 0);
    let mut failed = Vec::new();
    for _ in 0..PASSES {
        let before = reencrypted;
        let pass = master_key::reencrypt(&mut connection, &vault, |pass: &Pass| {
            progress(before + pass.reencrypted, all);
        })
        .await?;
        reencrypted += pass.reencrypted;
        failed = pass.failed;
        left_now = left(&master_key::usages(&mut connection).await?, &vault);
        if left_now <= failed.len() as u64 {
            break;
        }
    }
    progress_is_over();
    let shown = json!({ "key": key, "reencrypted": reencrypted, "failed": failed, "left": left_now });
    output.print(&shown, || describe(key, reencrypted, &failed, left_now))?;
    if left_now > failed.len() as u64 {
        bail!(
            "some of what is left was written meanwhile: run it again once every replica has {key:?} as its first key"
        );
    }
    if left_now > 0 {
        bail!("what failed is still encrypted as it was; keep the other keys");
    }
    Ok(())
}

fn describe(key: &str, reencrypted: u64, failed: &[Failed], left: u64) -> String {
    let mut lines = vec![format!(
        "encrypted anew under {}: {reencrypted}; failed: {}; left: {left}",
        printable(key),
        failed.len()
    )];
    if !failed.is_empty() {
        let rows = failed
            .iter()
            .take(NAMED)
            .map(|one| [one.what.to_owned(), one.id.clone(), one.reason.clone()]);
        lines.push(table(["failed", "id", "reason"], rows));
    }
    if failed.len() > NAMED {
        lines.push("… and more; --json names all".to_owned());
    }
    lines.join("\n")
}

/// For people who watch; a log has no use for it.
fn progress(done: u64, all: u64) {
    let mut stderr = std::io::stderr();
    if stderr.is_terminal() {
        let _ = write!(stderr, "\r{done} of {all} encrypted anew");
    }
}

fn progress_is_over() {
    let mut stderr = std::io::stderr();
    if stderr.is_terminal() {
        let _ = write!(stderr, "\r\x1b[K");
    }
}
