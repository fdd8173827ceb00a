//! `--all-cells`: runs a command in every cell, one after the other.
//!
//! Only commands that make sense everywhere are allowed: those that look something up or list it,
//! and those that must do the same in each cell. A command that changes one row names its cell by
//! `DATABASE_URL`, so that it cannot hit a cell that nobody thought of.

use anyhow::anyhow;

use crate::{
    commands::{Command, dispatch},
    console::{Console, NotFound},
    exit::{FAILED, FOUND, USAGE, status},
    option, order, partner, provider,
};

/// How a command runs in several cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// It looks for one thing, which is in one cell. The others do not have it, and that is no
    /// failure.
    LookUp,
    /// It does the same in each cell.
    Each,
    NotAllowed,
}

fn kind(command: &Command) -> Kind {
    match command {
        Command::Find(_)
        | Command::Order(order::Command::Show { .. })
        | Command::Partner(partner::Command::Show(_)) => Kind::LookUp,
        Command::Partner(partner::Command::List)
        | Command::Option(option::Command::List | option::Command::Apply(_))
        | Command::Provider(provider::Command::List { .. })
        | Command::Migrate(_) => Kind::Each,
        _ => Kind::NotAllowed,
    }
}

/// Runs the command in every cell, and returns the exit status. A cell that fails does not keep the
/// others from being tried, because an operator who looks for an order needs what can be found.
pub async fn run(command: &Command, console: &Console) -> u8 {
    let kind = kind(command);
    if kind == Kind::NotAllowed {
        let error = anyhow!(
            "this command does not work with --all-cells; name the database of one cell in DATABASE_URL. It works with find, \
             order show, partner list, partner show, option list, option apply, provider list and migrate"
        );
        return status(Err(error), "").max(USAGE);
    }
    if let Command::Option(option::Command::Apply(asked)) = command
        && asked.source.name() == "-"
    {
        let error = anyhow!(
            "with --all-cells the options must be in a file, because standard input can be read only once"
        );
        return status(Err(error), "").max(USAGE);
    }
    let cells = match console.cells() {
        Ok(cells) => cells,
        Err(error) => return status(Err(error), ""),
    };
    let mut worst = 0;
    let mut found = false;
    let mut missing = Vec::new();
    for cell in &cells.cells {
        let of = format!("cell {}: ", cell.name);
        let result = match console.of_cell(cell) {
            Ok(console) => dispatch(command, &console).await,
            Err(error) => Err(error),
        };
        match result {
            Err(error) if kind == Kind::LookUp && error.is::<NotFound>() => {
                missing.push((of, error));
            }
            result => {
                found |= result.is_ok();
                worst = worse(worst, status(result, &of));
            }
        }
    }
    if kind == Kind::LookUp && !found {
        for (of, error) in missing {
            worst = worst.max(status(Err(error), &of)).max(FAILED);
        }
    }
    worst
}

/// Of two exit statuses the one that is told: a cell that failed says more than one where something was found.
fn worse(one: u8, other: u8) -> u8 {
    match (one, other) {
        (FOUND, FAILED | USAGE) => other,
        (FAILED | USAGE, FOUND) => one,
        _ => one.max(other),
    }
}
