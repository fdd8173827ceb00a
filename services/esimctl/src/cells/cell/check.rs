//! `esimctl cell check`: what must hold across cells.

use std::collections::BTreeSet;

use anyhow::{Context, bail};
use pg::schema;
use serde_json::json;
use tools::cells::{
    check::{self, CatalogueOption},
    division, membrane,
};

use super::{
    map,
    open::{Open, open},
};
use crate::{cell_file::Cells, console::Console, output::printable};

/// How many ICCIDs of each cell are in memory at once.
const PAGE: u32 = 10_000;
/// How many faults of one kind are reported. A fault often repeats for many rows.
const NAMED: usize = 20;

/// What was checked, and what is wrong.
#[derive(Default)]
struct Report {
    faults: Vec<String>,
    /// What is not wrong but explains a fault that ends by itself.
    notes: Vec<String>,
    esims: u64,
    /// Each eSIM of a partner that has left is in two cells, until it is purged.
    has_copies: bool,
}

pub(super) async fn run(cells: &Cells, console: &Console) -> anyhow::Result<()> {
    let mut report = Report::default();
    for (provider, sum) in cells.exceeded() {
        report.faults.push(format!(
            "the shares of the rate at {provider} add up to {sum:.3}: lower them in the file of cells, so that the cells together stay within the provider's limit"
        ));
    }
    let mut opened = open(cells, console).await?;
    schemas(&mut opened, &mut report).await?;
    catalogues(&mut opened, &mut report).await?;
    partners(&mut opened, &mut report).await?;
    if !report.has_copies {
        esims(&mut opened, &mut report).await?;
    }
    let Report {
        faults,
        notes,
        esims,
        ..
    } = &report;
    let shown =
        json!({ "cells": cells.cells.len(), "esims": esims, "faults": faults, "notes": notes });
    console.print(&shown, || {
        let mut lines: Vec<String> = faults.iter().map(|fault| printable(fault)).collect();
        lines.extend(notes.iter().cloned());
        lines.push(format!(
            "{} cells and {esims} eSIMs checked: {} faults",
            cells.cells.len(),
            faults.len()
        ));
        lines.join("\n")
    })?;
    if !faults.is_empty() {
        bail!(
            "the cells do not fit together: {} faults, which standard output lists",
            faults.len()
        );
    }
    Ok(())
}

/// All cells must have the same schema, because rows are copied between them.
async fn schemas(opened: &mut [Open<'_>], report: &mut Report) -> anyhow::Result<()> {
    let mut versions = Vec::new();
    for one in opened.iter_mut() {
        versions.push(schema::check(&mut one.connection).await?);
    }
    if versions.iter().collect::<BTreeSet<_>>().len() > 1 {
        let named: Vec<String> = opened
            .iter()
            .zip(&versions)
            .map(|(one, version)| format!("{} has {version}", one.cell.name))
            .collect();
        report.faults.push(format!(
            "the schemas differ: {}; run `esimctl --all-cells migrate`",
            named.join(", ")
        ));
    }
    Ok(())
}

/// All cells must offer the same options, because a moved partner orders the same ones.
async fn catalogues(opened: &mut [Open<'_>], report: &mut Report) -> anyhow::Result<()> {
    let mut first: Option<(&str, Vec<CatalogueOption>)> = None;
    for one in opened {
        let name = one.cell.name.as_str();
        let options = check::catalogue(&mut one.connection).await?;
        let Some((first_name, expected)) = &first else {
            first = Some((name, options));
            continue;
        };
        let different: Vec<String> = expected
            .iter()
            .filter(|option| !options.contains(option))
            .chain(options.iter().filter(|option| !expected.contains(option)))
            .map(|option| option.option_id.to_string())
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        if !different.is_empty() {
            report.faults.push(format!(
                "the catalogues of {first_name} and {name} differ in {} options, for example {}: import the same catalogue into both with `esimctl --all-cells option apply`",
                different.len(),
                different[0]
            ));
        }
    }
    Ok(())
}

/// A partner must be served by one cell, which has its name, and have rows in no other.
async fn partners(opened: &mut [Open<'_>], report: &mut Report) -> anyhow::Result<()> {
    let homes = map::homes(opened).await?;
    let routes = map::routes(&homes);
    report.faults.extend(routes.faults.into_iter().take(NAMED));
    for partner in &routes.moving {
        report.notes.push(format!(
            "partner {partner} leaves its cell, and none serves it until `esimctl cell divide` has ended"
        ));
    }
    for one in opened {
        let name = &one.cell.name;
        let found = division::state(&mut one.connection).await?;
        if found.is_standby {
            report
                .notes
                .push(format!("cell {name} is a standby, and serves nobody yet"));
        } else if found.cell.as_ref().is_some_and(|cell| cell != name) {
            report.faults.push(format!(
                "the database of cell {name} belongs to cell {}: no stage with CELL={name} works there until `esimctl cell activate`",
                found.cell.unwrap_or_default()
            ));
        } else if membrane::is_up(&mut one.connection).await? && found.to.is_none() {
            report.faults.push(format!(
                "cell {name} has rows of partners that live in another cell: run `esimctl cell purge {name}`"
            ));
            report.has_copies = true;
        }
    }
    Ok(())
}

/// The ICCIDs of one cell in ascending order, read page by page.
struct Iccids<'a, 'b> {
    open: &'a mut Open<'b>,
    page: std::vec::IntoIter<String>,
    head: Option<String>,
    ended: bool,
}

impl Iccids<'_, '_> {
    async fn advance(&mut self, provider: &str) -> anyhow::Result<()> {
        let last = self.head.take();
        self.head = self.page.next();
        if self.head.is_none() && !self.ended {
            let after = last.as_deref().unwrap_or_default();
            let page = check::iccids(&mut self.open.connection, provider, after, PAGE)
                .await
                .with_context(|| format!("cell {}", self.open.cell.name))?;
            self.ended = page.len() < PAGE as usize;
            self.page = page.into_iter();
            self.head = self.page.next();
        }
        if let (Some(last), Some(head)) = (&last, &self.head)
            && head <= last
        {
            bail!(
                "cell {} sorts ICCIDs in an unexpected order ({last} before {head}), so the cells cannot be compared: check the collation of its database",
                self.open.cell.name
            );
        }
        Ok(())
    }
}

/// No eSIM of a provider may be in two cells. The sorted ICCIDs of all cells are merged, so that
/// only a page of each is in memory.
async fn esims(opened: &mut [Open<'_>], report: &mut Report) -> anyhow::Result<()> {
    let mut providers = BTreeSet::new();
    for one in opened.iter_mut() {
        providers.extend(check::providers(&mut one.connection).await?);
    }
    for provider in &providers {
        let mut all: Vec<Iccids> = opened
            .iter_mut()
            .map(|open| Iccids {
                open,
                page: Vec::new().into_iter(),
                head: None,
                ended: false,
            })
            .collect();
        for one in &mut all {
            one.advance(provider).await?;
        }
        let mut found = 0;
        while let Some(least) = all.iter().filter_map(|one| one.head.clone()).min() {
            let mut holders = Vec::new();
            for one in &mut all {
                if one.head.as_ref() == Some(&least) {
                    holders.push(one.open.cell.name.clone());
                    one.advance(provider).await?;
                    report.esims += 1;
                }
            }
            if holders.len() > 1 {
                found += 1;
                if found <= NAMED {
                    report.faults.push(format!(
                        "the eSIM {least} of {provider} is in several cells ({}): the provider sold it twice",
                        holders.join(", ")
                    ));
                }
            }
        }
        if found > NAMED {
            report.faults.push(format!(
                "{} further eSIMs of {provider} are in several cells",
                found - NAMED
            ));
        }
    }
    Ok(())
}
