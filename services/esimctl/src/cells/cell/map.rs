//! `esimctl cell map`: the proxy's map from access keys to backends.
//!
//! A partner lives in the cell that serves it. While its cell divides, none may; then its requests go
//! to the cell that it leaves, which answers them with 503 until the division has ended and the map is
//! written again.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    io::Write as _,
    path::Path,
};

use anyhow::{Context, bail};
use serde_json::json;
use tools::cells::{
    check::{Keys, keys},
    division,
};
use uuid::Uuid;

use super::open::{Open, open};
use crate::{cell_file::Cells, console::Console};

/// A partner as one cell stores it.
#[derive(Clone, Debug)]
pub(super) struct Home<'a> {
    pub(super) cell: &'a str,
    pub(super) keys: Keys,
}

/// Where each access key leads, and everything that contradicts "one partner, one cell".
#[derive(Debug, Default)]
pub(super) struct Routes<'a> {
    /// The cell of each access key.
    pub(super) cells: BTreeMap<String, &'a str>,
    /// The partners that no cell serves now, because they move.
    pub(super) moving: Vec<Uuid>,
    pub(super) faults: Vec<String>,
}

/// Routes the access keys of all partners. `homes` has an entry for each cell in which a partner
/// has a row.
pub(super) fn routes<'a>(homes: &[Home<'a>]) -> Routes<'a> {
    let mut of_partner: BTreeMap<Uuid, Vec<&Home<'a>>> = BTreeMap::new();
    for home in homes {
        of_partner
            .entry(home.keys.partner_id)
            .or_default()
            .push(home);
    }
    let mut routes = Routes::default();
    let mut owners: BTreeMap<String, Uuid> = BTreeMap::new();
    for (partner, homes) in of_partner {
        let serving: Vec<&&Home> = homes
            .iter()
            .filter(|home| home.keys.moved_to.is_none())
            .collect();
        if serving.len() > 1 {
            let cells: Vec<&str> = serving.iter().map(|home| home.cell).collect();
            routes.faults.push(format!(
                "partner {partner} is served by several cells: {}; disable it in all but one",
                cells.join(", ")
            ));
        }
        if serving.is_empty() {
            routes.moving.push(partner);
        }
        let Some(home) = serving.first().copied().or_else(|| homes.first()) else {
            continue;
        };
        let keys = &home.keys;
        for access_key in [Some(&keys.access_key), keys.old_access_key.as_ref()]
            .into_iter()
            .flatten()
        {
            if let Some(other) = owners.insert(access_key.clone(), partner) {
                routes.faults.push(format!(
                    "access key {access_key} belongs to two partners, {other} and {partner}: rotate the keys of one of them"
                ));
            }
            routes.cells.insert(access_key.clone(), home.cell);
        }
    }
    routes
}

/// Reads the partners of all cells.
pub(super) async fn homes<'a>(opened: &mut [Open<'a>]) -> anyhow::Result<Vec<Home<'a>>> {
    let mut homes = Vec::new();
    for one in opened {
        let cell = one.cell.name.as_str();
        let found = division::state(&mut one.connection).await?;
        if found.is_standby || found.cell.is_some_and(|name| name != cell) {
            // A copy of another cell serves nobody.
            continue;
        }
        let keys = keys(&mut one.connection)
            .await
            .with_context(|| format!("cell {cell}"))?;
        homes.extend(keys.into_iter().map(|keys| Home { cell, keys }));
    }
    Ok(homes)
}

pub(super) async fn run(
    cells: &Cells,
    output: Option<&Path>,
    console: &Console,
) -> anyhow::Result<()> {
    let mut opened = open(cells, console).await?;
    let homes = homes(&mut opened).await?;
    let routes = routes(&homes);
    if let Some(fault) = routes.faults.first() {
        bail!(
            "no map was written, because {fault} ({} faults in all; `esimctl cell check` lists them)",
            routes.faults.len()
        );
    }
    let mut map = String::new();
    let mut used = BTreeSet::new();
    for (access_key, name) in &routes.cells {
        let backend = &cells.find(name)?.backend;
        used.insert(backend);
        let _ = writeln!(map, "{access_key} {backend}");
    }
    let Some(path) = output else {
        return console.print(&json!({ "map": map }), || map.trim_end().to_owned());
    };
    replace(path, &map)?;
    let result = json!({ "access_keys": routes.cells.len(), "backends": used, "file": path.display().to_string() });
    console.print(&result, || {
        format!(
            "{} access keys are in {}; reload the proxy, so that it reads them",
            routes.cells.len(),
            path.display()
        )
    })
}

/// Replaces the file as a whole. Its mode stays that of a new file, which the proxy can read.
fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let written = || -> std::io::Result<()> {
        let mut file = tempfile::Builder::new()
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
            .tempfile_in(folder)?;
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    };
    written().with_context(|| format!("cannot write the map to {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home<'a>(
        cell: &'a str,
        partner: u128,
        access_key: &str,
        moved_to: Option<&str>,
    ) -> Home<'a> {
        Home {
            cell,
            keys: Keys {
                partner_id: Uuid::from_u128(partner),
                access_key: access_key.to_owned(),
                old_access_key: None,
                moved_to: moved_to.map(str::to_owned),
            },
        }
    }

    #[test]
    fn a_key_leads_to_the_cell_that_serves_its_partner() {
        let mut rotated = home("a", 1, "new", None);
        rotated.keys.old_access_key = Some("old".to_owned());
        let homes = [
            rotated,
            home("a", 2, "moved", Some("b")),
            home("b", 2, "moved", None),
            home("b", 3, "moving", Some("a")),
        ];
        let routes = routes(&homes);
        assert_eq!(routes.faults, Vec::<String>::new());
        assert_eq!(routes.moving, [Uuid::from_u128(3)]);
        let cells: Vec<(&str, &str)> = routes
            .cells
            .iter()
            .map(|(key, cell)| (key.as_str(), *cell))
            .collect();
        assert_eq!(
            cells,
            [("moved", "b"), ("moving", "b"), ("new", "a"), ("old", "a")]
        );
    }

    #[test]
    fn a_partner_or_a_key_in_two_cells_is_a_fault() {
        let twice = routes(&[home("a", 1, "one", None), home("b", 1, "one", None)]).faults;
        assert!(twice[0].contains("several cells: a, b"), "{twice:?}");
        let shared = routes(&[home("a", 1, "one", None), home("b", 2, "one", None)]).faults;
        assert!(shared[0].contains("two partners"), "{shared:?}");
    }
}
