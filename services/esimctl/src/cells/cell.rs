//! `esimctl cell`: lists the cells, writes the proxy's map, checks what must hold across cells, and
//! divides a cell ([`divide`]).
//!
//! Each PostgreSQL enforces its rules for itself only. What holds across several (a partner lives
//! in one cell, an eSIM was sold once, the shares of a provider's rate add up) is checked here, by
//! reading every cell.

mod check;
mod divide;
mod map;
mod open;

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::json;
use sqlx::ConnectOptions;
use tools::cells::check::keys;

use crate::{
    cell_file::{Cell, Cells},
    console::Console,
    output::cells,
};

const LIST_EXAMPLES: &str = "Examples:
  esimctl --cells cells.json cell list

The file of cells is JSON. The rates are calls per second at each provider, and each share is the cell's part of it. The
backend is the name of the proxy's backend for this cell. Accounts are named only if the cells have different accounts at a
provider:

  {\"provider_rates\": {\"usimsa\": 100},
   \"cells\": [
     {\"name\": \"a\", \"database_url_file\": \"/etc/esim/cell-a\", \"backend\": \"ingress-a\", \"rate_shares\": {\"usimsa\": 0.5}},
     {\"name\": \"b\", \"database_url_file\": \"/etc/esim/cell-b\", \"backend\": \"ingress-b\", \"rate_shares\": {\"usimsa\": 0.5},
      \"accounts\": {\"usimsa\": \"second\"}}]}";

const MAP_EXAMPLES: &str = "Examples:
  esimctl cell map --output /etc/haproxy/cells.map
  esimctl cell map

The map has a line for each access key, with the backend of the cell in which its partner lives. The same partners always
give the same text. The file is replaced as a whole, so a proxy never reads half of it; reload the proxy afterwards.";

const CHECK_EXAMPLES: &str = "Examples:
  esimctl cell check
  esimctl cell check --json

The command reads every ICCID of every cell, page by page. Its exit status is 1 if anything is wrong, so run it from a
timer and alert on it.";

const SETTINGS_EXAMPLES: &str = "Examples:
  esimctl cell settings a
  esimctl cell settings a >> cell-a.env

PROVIDER_RATE holds for each provider of a provisioner. If the cell's rates differ, the line shows the smallest one, because
a larger one would exceed a provider's limit; the comments show all.";

#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// List the cells of the file, with the number of their partners
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Write the map with which the proxy finds the cell of an access key
    #[command(after_help = MAP_EXAMPLES)]
    Map {
        /// The file to replace [default: standard output]
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Check that the cells fit together: shares, partners, eSIMs, schema and catalogue
    #[command(after_help = CHECK_EXAMPLES)]
    Check,
    /// Divide a cell: a standby of it becomes a cell of its own, with these partners
    #[command(after_help = divide::DIVIDE_EXAMPLES)]
    Divide(divide::Divide),
    /// Make a promoted copy a cell of its own, or name a database that has no name
    #[command(after_help = divide::ACTIVATE_EXAMPLES)]
    Activate(divide::OneCell),
    /// Delete what a cell has of partners that live in another one
    #[command(after_help = divide::PURGE_EXAMPLES)]
    Purge(divide::OneCell),
    /// Print the settings of a cell's stages that depend on its share
    #[command(after_help = SETTINGS_EXAMPLES)]
    Settings {
        /// The name of the cell in the file of cells
        cell: String,
    },
}

pub async fn run(command: &Command, console: &Console) -> anyhow::Result<()> {
    let cells = console.cells()?;
    match command {
        Command::List => list(&cells, console).await,
        Command::Map { output } => map::run(&cells, output.as_deref(), console).await,
        Command::Check => check::run(&cells, console).await,
        Command::Divide(asked) => divide::run(asked, console).await,
        Command::Activate(asked) => divide::activate(asked, console).await,
        Command::Purge(asked) => divide::purge(asked, console).await,
        Command::Settings { cell } => settings(&cells, cell, console),
    }
}

struct Listed {
    cell: String,
    backend: String,
    server: String,
    /// How many partners it has, or why it cannot be reached.
    found: String,
}

/// Lists the cells. One that cannot be reached is listed with the reason.
async fn list(cells: &Cells, console: &Console) -> anyhow::Result<()> {
    let mut listed = Vec::new();
    for cell in &cells.cells {
        let options = cell.database()?.options("esimctl")?;
        let url = options.to_url_lossy();
        let server = format!(
            "{}:{}{}",
            url.host_str().unwrap_or_default(),
            url.port().unwrap_or(5432),
            url.path()
        );
        let found = match partners(cell, console).await {
            Ok(partners) => format!("{partners} partners"),
            Err(error) => crate::output::one_line(&crate::exit::with_causes(&error)),
        };
        listed.push(Listed {
            cell: cell.name.clone(),
            backend: cell.backend.clone(),
            server,
            found,
        });
    }
    let shown: Vec<_> = listed
        .iter()
        .map(|one| json!({ "cell": one.cell, "backend": one.backend, "server": one.server, "state": one.found }))
        .collect();
    console.print(&shown, || {
        crate::output::table(
            listed
                .iter()
                .map(|one| cells!(one: cell, backend, server, state = one.found.clone())),
        )
    })
}

/// The number of partners that the cell serves.
async fn partners(cell: &Cell, console: &Console) -> anyhow::Result<usize> {
    let mut connection = console.connect_to(cell).await?;
    let keys = keys(&mut connection).await?;
    Ok(keys.iter().filter(|one| one.moved_to.is_none()).count())
}

fn settings(cells: &Cells, name: &str, console: &Console) -> anyhow::Result<()> {
    let cell = cells.find(name)?;
    let rates = cell.rates(cells);
    for (provider, rate) in &rates {
        anyhow::ensure!(
            *rate > 0,
            "cell {name} has a rate of less than 1 call per second at {provider}, and PROVIDER_RATE=0 would mean no limit: raise its share in the file of cells"
        );
    }
    // Without any rate in the file there is no limit, which the setting calls 0.
    let rate = rates.values().min().copied().unwrap_or_default();
    let shown = json!({ "cell": name, "rates": rates, "settings": { "CELL": name, "PROVIDER_RATE": rate } });
    console.print(&shown, || {
        let mut lines: Vec<String> = rates
            .iter()
            .map(|(provider, rate)| format!("# {provider}: {rate} calls per second"))
            .collect();
        lines.push(format!("PROVIDER_RATE={rate}\nCELL={name}"));
        lines.join("\n")
    })
}
