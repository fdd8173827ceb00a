//! The file of cells: which cells there are, where their databases are, and what they share.
//!
//! It is read by `esimctl` only (`--cells FILE` or `ESIM_CELLS`). No stage reads it, because a
//! stage knows one database and no cells.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};
use pg::config::DatabaseConfig;
use runtime::files;
use secrecy::SecretString;
use serde::Deserialize;

/// How far the sum of the shares may be above 1. Shares such as 0.1 are not exact in binary.
const ROUNDING: f64 = 1e-9;

/// Whether a file of cells is named. Most systems have one cell, and their help leaves out what is about
/// several.
pub fn is_named() -> bool {
    let names_it = |argument: OsString| {
        let argument = argument.to_string_lossy();
        argument == "--cells" || argument.starts_with("--cells=")
    };
    env::var_os("ESIM_CELLS").is_some_and(|file| !file.is_empty()) || env::args_os().any(names_it)
}

/// The content of the file, in JSON.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cells {
    /// What each provider allows all cells together, in calls per second.
    #[serde(default)]
    pub provider_rates: BTreeMap<String, u32>,
    pub cells: Vec<Cell>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    pub name: String,
    /// The URL of the cell's database with its owner. It contains a password, so a file is better.
    #[serde(default, deserialize_with = "secret")]
    database_url: Option<SecretString>,
    /// A file that contains the URL.
    database_url_file: Option<PathBuf>,
    /// The backend of the proxy that leads to the cell's ingress. `esimctl cell map` writes it
    /// behind the access keys of the cell's partners.
    pub backend: String,
    /// The cell's part of each rate in `provider_rates`, from 0 to 1.
    #[serde(default)]
    pub rate_shares: BTreeMap<String, f64>,
    /// The name of the account at a provider, for those at which the cells have different ones. An
    /// account that is not named here is the same in all cells.
    #[serde(default)]
    pub accounts: BTreeMap<String, String>,
}

/// Reads a secret, which is a text in the file.
fn secret<'de, D: serde::Deserializer<'de>>(text: D) -> Result<Option<SecretString>, D::Error> {
    Ok(Option::<String>::deserialize(text)?.map(SecretString::from))
}

impl Cells {
    /// Reads the file, and checks everything that can be checked without a database, except for the
    /// sum of the shares: `esimctl cell check` reports that.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let text = files::read(path).context("the file of cells (ESIM_CELLS)")?;
        Self::parse(&text).with_context(|| {
            format!(
                "the file of cells {shown} is not valid; `esimctl cell --help` shows an example"
            )
        })
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let json = &mut serde_json::Deserializer::from_str(text);
        let cells: Self = serde_path_to_error::deserialize(json)?;
        ensure!(!cells.cells.is_empty(), "it lists no cell");
        let mut names = BTreeSet::new();
        for cell in &cells.cells {
            let name = &cell.name;
            let plain =
                |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
            ensure!(
                plain(name) && plain(&cell.backend),
                "the name {name:?} and the backend {:?} must be visible ASCII without blanks",
                cell.backend
            );
            ensure!(names.insert(name), "the name {name:?} appears twice");
            ensure!(
                cell.database_url.is_some() != cell.database_url_file.is_some(),
                "cell {name:?} needs either database_url or database_url_file"
            );
            for (provider, share) in &cell.rate_shares {
                ensure!(
                    (0.0..=1.0).contains(share),
                    "the share {share} of cell {name:?} at {provider:?} is not from 0 to 1"
                );
                ensure!(
                    cells.provider_rates.contains_key(provider),
                    "cell {name:?} has a share at {provider:?}, but provider_rates has no rate of it"
                );
            }
        }
        Ok(cells)
    }

    pub fn find(&self, name: &str) -> anyhow::Result<&Cell> {
        let Some(found) = self.cells.iter().find(|cell| cell.name == name) else {
            let names: Vec<&str> = self.cells.iter().map(|cell| cell.name.as_str()).collect();
            bail!(
                "there is no cell {name:?} in the file of cells; it lists {}",
                names.join(", ")
            );
        };
        Ok(found)
    }

    /// The sum of the shares of each provider that is above 1.
    pub fn exceeded(&self) -> Vec<(&str, f64)> {
        let sums = self.provider_rates.keys().map(|provider| {
            let shares = self
                .cells
                .iter()
                .filter_map(|cell| cell.rate_shares.get(provider));
            (provider.as_str(), shares.sum::<f64>())
        });
        sums.filter(|(_, sum)| *sum > 1.0 + ROUNDING).collect()
    }
}

impl Cell {
    /// The providers at which the two cells have different accounts.
    pub fn separate_accounts(&self, other: &Self) -> Vec<String> {
        let providers: BTreeSet<&String> =
            self.accounts.keys().chain(other.accounts.keys()).collect();
        providers
            .into_iter()
            .filter(|provider| self.accounts.get(*provider) != other.accounts.get(*provider))
            .cloned()
            .collect()
    }

    /// How to connect to the cell's database.
    pub fn database(&self) -> anyhow::Result<DatabaseConfig> {
        let database_url = match (&self.database_url, &self.database_url_file) {
            (Some(url), _) => url.clone(),
            (None, Some(file)) => {
                let value = files::value(file)
                    .with_context(|| format!("database_url_file of cell {}", self.name))?;
                SecretString::from(value)
            }
            (None, None) => bail!("cell {} has no database_url", self.name),
        };
        Ok(DatabaseConfig { database_url })
    }

    /// What the cell may call each provider per second: its share of the provider's rate, rounded
    /// down, because the cells together must not exceed the rate.
    pub fn rates(&self, cells: &Cells) -> BTreeMap<String, u32> {
        let rate = |(provider, total): (&String, &u32)| {
            let share = self.rate_shares.get(provider).copied().unwrap_or_default();
            // The product is between 0 and the total, so the conversion is exact.
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "the share is from 0 to 1"
            )]
            let part = (f64::from(*total) * share + ROUNDING).floor() as u32;
            (provider.clone(), part)
        };
        cells.provider_rates.iter().map(rate).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(shares: (f64, f64)) -> anyhow::Result<Cells> {
        Cells::parse(&format!(
            r#"{{"provider_rates": {{"usimsa": 100}}, "cells": [
                {{"name": "a", "database_url": "postgres://a", "backend": "ingress-a", "rate_shares": {{"usimsa": {}}}}},
                {{"name": "b", "database_url": "postgres://b", "backend": "ingress-b", "rate_shares": {{"usimsa": {}}},
                  "accounts": {{"usimsa": "second"}}}}]}}"#,
            shares.0, shares.1
        ))
    }

    #[test]
    fn shares_divide_the_rate() {
        let cells = parse((0.7, 0.3)).unwrap();
        assert!(cells.exceeded().is_empty());
        let rates = |name: &str| cells.find(name).unwrap().rates(&cells)["usimsa"];
        assert_eq!((rates("a"), rates("b")), (70, 30));
        assert!((parse((0.7, 0.31)).unwrap().exceeded()[0].1 - 1.01).abs() < 1e-6);
        assert!(parse((1.1, 0.0)).is_err());
    }

    #[test]
    fn accounts_that_differ_are_separate() {
        let cells = parse((0.5, 0.5)).unwrap();
        let separate = cells.cells[0].separate_accounts(&cells.cells[1]);
        assert_eq!(separate, ["usimsa"]);
        assert!(cells.cells[0].separate_accounts(&cells.cells[0]).is_empty());
    }

    #[test]
    fn bad_files_are_refused() {
        for bad in [
            "{}",
            r#"{"cells": []}"#,
            r#"{"cells": [{"name": "a", "backend": "a"}]}"#,
            r#"{"cells": [{"name": "a b", "backend": "a", "database_url": "x"}]}"#,
            r#"{"cells": [{"name": "a", "backend": "a", "database_url": "x", "databse": 1}]}"#,
            r#"{"cells": [{"name": "a", "backend": "a", "database_url": "x", "rate_shares": {"usimsa": 1}}]}"#,
            r#"{"cells": [{"name": "a", "backend": "a", "database_url": "x"}, {"name": "a", "backend": "b", "database_url": "y"}]}"#,
        ] {
            assert!(Cells::parse(bad).is_err(), "{bad}");
        }
    }
}
