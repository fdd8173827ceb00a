//! `esimctl archive`: moves finished orders into files, and finds, checks and restores them.
//!
//! `tools::archive` says what is moved when, and why nothing is lost or duplicated if the program
//! dies. This module has the commands: `run` writes the files, `restore` puts orders back, and
//! `list --verify` checks files without a database. The files themselves are in `folder` and `records`.

mod bucket;
mod folder;
mod manifest;
mod place;
mod records;
mod restore;
mod run;

use anyhow::bail;
use clap::Subcommand;
use serde::Serialize;
use serde_json::json;
use tools::archive::{self, Archive};

use self::bucket::Place;
pub use self::place::where_it_is;
use crate::{
    console::Console,
    output::{Row, cells, or_dash, table, utc},
};

const LIST_EXAMPLES: &str = "Examples:
  esimctl archive list
  esimctl archive list --json
  esimctl archive list --verify /srv/archives
  esimctl archive list --verify /srv/archives/archive-7 --json
  esimctl archive list --verify s3://acme-archives/esim

An archive without a completion time is being written, or its run was interrupted; the next `esimctl archive run` with
the same folder continues it.

--verify needs no database. It reads all files, so it takes about a minute for 10 GB. Exit status 1 means that a file
is missing or was changed; take it from a copy.";

#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Move finished orders that are old enough into files
    ///
    /// It writes the orders to a new folder `archive-N` and deletes them from the database, beside
    /// the live system and at a limited rate. It may be interrupted at any moment, even by a crash:
    /// the next run continues where it stopped, and no order is lost or duplicated.
    #[command(after_help = run::EXAMPLES)]
    Run(run::Run),
    /// List all archives, or check the files of some against the sums and counts in their manifests
    #[command(after_help = LIST_EXAMPLES)]
    List {
        /// Check the archive in this folder or bucket, or all archives in it
        #[arg(long, value_name = "DIR|BUCKET", value_parser = Place::parse)]
        verify: Option<Place>,
    },
    /// Show an archive, or an archived order as `order show` would show it
    ///
    /// For an order the command restores it inside a transaction, reads it and rolls back, so the
    /// database does not change.
    #[command(after_help = restore::SHOW_EXAMPLES)]
    Show(restore::Show),
    /// Put an archived order, or all orders of an archive, back into the database
    ///
    /// Every column gets the value that it had. The files stay as they are.
    #[command(after_help = restore::RESTORE_EXAMPLES)]
    Restore(restore::Restore),
}

pub async fn run(command: &Command, console: &Console) -> anyhow::Result<()> {
    match command {
        Command::Run(asked) => run::run(asked, console).await,
        Command::List {
            verify: Some(folder),
        } => verify(folder, console).await,
        Command::List { verify: None } => {
            let archives = archive::list(&mut console.connect().await?).await?;
            console.print_list(&archives, "There are no archives.", row)
        }
        Command::Show(asked) => restore::show(asked, console).await,
        Command::Restore(asked) => restore::restore(asked, console).await,
    }
}

fn row(archive: &Archive) -> Row<7> {
    let completed = archive
        .completed_at
        .map_or_else(|| "not complete".to_owned(), utc);
    cells!(archive:
        archive, orders, restored, oldest = or_dash(archive.first_at.map(utc)),
        newest = or_dash(archive.last_at.map(utc)), completed = completed, folder,
    )
}

/// What `verify` has found in one folder.
#[derive(Serialize)]
struct Verified {
    folder: String,
    orders: u64,
    faults: Vec<String>,
}

async fn verify(place: &Place, console: &Console) -> anyhow::Result<()> {
    let files = place.files(None).await?;
    let mut verified = Vec::new();
    for folder in folder::folders(&files.folder).map_err(|error| files.error(error))? {
        let (orders, faults) = match folder::manifest(&folder) {
            Ok((manifest, _)) => (manifest.orders, folder::faults(&folder, &manifest)),
            Err(error) => (0, vec![format!("{error:#}")]),
        };
        verified.push(Verified {
            folder: files.named(&folder.display().to_string()),
            orders,
            faults: faults.iter().map(|fault| files.named(fault)).collect(),
        });
    }
    if verified.is_empty() {
        bail!(
            "there is no archive in {place}; name the folder that `esimctl archive run --to` has written to, or the bucket of \
             --copy-to"
        );
    }
    let bad = verified.iter().filter(|one| !one.faults.is_empty()).count();
    console.print(&json!({ "archives": verified }), || {
        table(verified.iter().map(|one| {
            let state = if one.faults.is_empty() {
                "ok".to_owned()
            } else {
                one.faults.join("; ")
            };
            cells!(one: folder, orders, state = state)
        }))
    })?;
    if bad > 0 {
        bail!(
            "{bad} of {} archives do not match their manifests; take their files from a copy",
            verified.len()
        );
    }
    Ok(())
}
