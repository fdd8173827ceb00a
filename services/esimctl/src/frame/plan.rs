//! What `partner apply`, `option apply` and `price apply` change, before they change it: each entry
//! of the file is created, changed or unchanged. Nothing is ever removed because a file does not
//! mention it.

use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    console::Console,
    exit::WouldChange,
    output::{one_line, printable},
};

/// The maximum number of entries that the text lists. JSON has all of them.
const LISTED: usize = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PlannedEffect {
    Create,
    Change,
    Unchanged,
}

/// What becomes of one entry of the file.
#[derive(Debug, Serialize)]
pub struct PlannedEntry {
    pub effect: PlannedEffect,
    /// The id, if it exists already or the file gives it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    pub name: String,
    /// The fields that change, without secrets.
    pub changes: Vec<String>,
}

impl PlannedEntry {
    fn line(&self) -> String {
        let Self {
            effect,
            id,
            name,
            changes,
        } = self;
        let effect = match effect {
            PlannedEffect::Create => "create",
            PlannedEffect::Change => "change",
            PlannedEffect::Unchanged => "unchanged",
        };
        let id = id.as_ref().map(|id| format!(" ({id})"));
        let name = printable(name);
        let changes = Some(changes.join("; ")).filter(|changes| !changes.is_empty());
        let changes = changes.map(|changes| format!(": {}", one_line(&changes)));
        let id = id.unwrap_or_default();
        let changes = changes.unwrap_or_default();
        format!("{effect:9}  {name}{id}{changes}")
    }
}

#[derive(Debug, Default)]
pub struct Plan(pub Vec<PlannedEntry>);

impl Plan {
    pub fn count(&self, effect: PlannedEffect) -> usize {
        self.0.iter().filter(|one| one.effect == effect).count()
    }

    pub fn changes_nothing(&self) -> bool {
        self.count(PlannedEffect::Unchanged) == self.0.len()
    }

    /// The plan as JSON, to which a command adds what it has to say besides.
    pub fn json(&self, dry_run: bool) -> Value {
        json!({
            "created": self.count(PlannedEffect::Create), "changed": self.count(PlannedEffect::Change),
            "unchanged": self.count(PlannedEffect::Unchanged), "dry_run": dry_run, "plan": self.0,
        })
    }

    pub fn text(&self, dry_run: bool) -> String {
        let differs = self
            .0
            .iter()
            .filter(|one| one.effect != PlannedEffect::Unchanged);
        let mut lines: Vec<String> = differs.map(PlannedEntry::line).collect();
        let more = lines.len().saturating_sub(LISTED);
        lines.truncate(LISTED);
        if more > 0 {
            lines.push(format!("and {more} more; --json lists all"));
        }
        let [created, changed, unchanged] = [
            PlannedEffect::Create,
            PlannedEffect::Change,
            PlannedEffect::Unchanged,
        ]
        .map(|effect| self.count(effect));
        lines.push(if dry_run {
            format!("{created} to create, {changed} to change, {unchanged} unchanged; nothing was changed")
        } else {
            format!("{created} created, {changed} changed, {unchanged} unchanged")
        });
        lines.join("\n")
    }

    /// Prints the plan as the result of a dry run, whose exit status says whether it changes
    /// anything.
    pub fn print_dry_run(
        &self,
        console: &Console,
        more: impl FnOnce(&mut Value),
    ) -> anyhow::Result<()> {
        let mut shown = self.json(true);
        more(&mut shown);
        console.print(&shown, || self.text(true))?;
        if self.changes_nothing() {
            return Ok(());
        }
        Err(WouldChange {
            created: self.count(PlannedEffect::Create),
            changed: self.count(PlannedEffect::Change),
        }
        .into())
    }
}
