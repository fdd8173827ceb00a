//! `esimctl archive`: exports finished orders into files and deletes them.
//!
//! `tools::archive` says what is moved when, and why nothing is lost or duplicated if the program
//! dies. `run` makes the files, and `place` stores them in a folder or a bucket and reads them
//! back.

mod bucket;
mod place;
mod run;

use clap::Subcommand;
use time::OffsetDateTime;
use tools::archive::{self, Archive};
use uuid::Uuid;

use crate::{
    console::Console,
    output::{TableRow, cells, or_dash, utc},
};

const LIST_EXAMPLES: &str = "Examples:
  esimctl archive list
  esimctl archive list --json

An archive without a completion time is being written, or its run was interrupted: its orders are still in the database,
and the next `esimctl archive run` to the same place completes it.";

#[derive(Subcommand, Clone, Debug)]
pub enum ArchiveCommand {
    /// Export finished orders that are old enough into files, and delete them
    ///
    /// It stores the orders in files, and then deletes them from the database, beside the live
    /// system and at a limited rate. It may be interrupted at any moment, even by a crash: the next
    /// run continues where it stopped, and no order is lost or in two files.
    #[command(after_help = run::EXAMPLES)]
    Run(run::ArchiveRunArgs),
    /// List the archives, each of which is one file
    #[command(after_help = LIST_EXAMPLES)]
    List,
}

pub async fn run(command: &ArchiveCommand, console: &Console) -> anyhow::Result<()> {
    match command {
        ArchiveCommand::Run(asked) => run::run(asked, console).await,
        ArchiveCommand::List => {
            let archives = archive::list(&mut console.connect().await?).await?;
            console.print_list(&archives, "There are no archives.", row)
        }
    }
}

fn row(archive: &Archive) -> TableRow<6> {
    let completed = archive
        .completed_at
        .map_or_else(|| "not complete".to_owned(), utc);
    cells!(archive:
        archive, orders, oldest = or_dash(accepted_at(archive.first_order)),
        newest = or_dash(accepted_at(archive.last_order)), completed = completed, file,
    )
}

/// The time in the id of an order.
fn accepted_at(order: Uuid) -> Option<String> {
    let (seconds, _) = order.get_timestamp()?.to_unix();
    let at = OffsetDateTime::from_unix_timestamp(seconds.try_into().ok()?);
    at.ok().map(utc)
}
