//! `esimctl partner leaked`: ends keys that are in wrong hands, at once.
//!
//! It is an act of its own beside `partner rotate`, which keeps the old keys valid for an overlap.
//! It makes no new keys, so it needs no master key and no way to hand them over, and whoever learns
//! of a leak at night need not wait for somebody who has both.

use accounts::partners::{self, EndedKeys, Partner};
use anyhow::{Context, ensure};
use clap::Args;
use pg::{
    Transaction,
    actions::{self, ActionChange},
};
use serde_json::json;

use crate::{
    confirm::ReasonArgs,
    console::Console,
    lookup::{PartnerArgs, find},
    output::printable,
};

pub const EXAMPLES: &str = "Examples:
  esimctl partner leaked ak_0123456789abcdef01234567 --reason 'it stood in a public repository'
  esimctl partner leaked 'Acme Travel' --all --reason 'their server was broken into, ticket 4711'

Within a second, requests with the key get 401. There is no overlap, and an ended key never works again. The other keys of
the partner go on: a second one during the overlap of a rotation, and further ones (`esimctl partner key list`). What is ordered already is bought and sent, and an
order that is repeated with a new key and the same external_order_id is not bought twice. `esimctl partner rotate` makes
new keys. A webhook secret that leaked with them is replaced by `esimctl partner rotate … webhook-secret`.";

#[derive(Args, Clone, Debug)]
pub struct LeakedArgs {
    #[command(flatten)]
    which: PartnerArgs,
    /// End all keys of the partner, because it is not known which one leaked
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    why: ReasonArgs,
}

pub async fn run(asked: &LeakedArgs, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let partner = find(&mut connection, &asked.which.partner).await?;
    let typed = asked.which.partner.as_str();
    let first = [Some(&partner.access_key), partner.old_access_key.as_ref()];
    let id = partner.partner_id.into();
    let further = partners::keys::list(&mut connection, id, None).await?;
    let further = further.iter().map(|key| &key.access_key);
    let is_key = first
        .into_iter()
        .flatten()
        .chain(further)
        .any(|key| key == typed);
    ensure!(
        asked.all || is_key,
        "nothing was changed: {typed:?} is no access key; name the key that leaked, or end all keys of {} with --all",
        printable(&partner.name)
    );
    let leaked = (!asked.all).then_some(typed);
    let target = format!("partner {}", partner.partner_id);
    let action = asked.why.action(domain::Command::PartnerLeaked, &target);
    let end = async |transaction: &mut Transaction<'_>| {
        let ended = partners::end_keys(transaction, partner.partner_id.into(), leaked).await?;
        Ok(ended.map(|ended| {
            let changed = ActionChange::between(
                json!({ "ended": ended.ended }),
                json!({ "goes_on": ended.goes_on }),
            );
            (ended, changed)
        }))
    };
    let ended = actions::recorded(&mut connection, action, end).await?;
    let ended =
        ended.context("nothing was changed: the partner has no valid key of this name any more")?;
    let shown = json!({
        "partner_id": partner.partner_id, "name": partner.name, "ended": ended.ended, "goes_on": ended.goes_on,
        "further": ended.further,
    });
    console.print(&shown, || describe(&partner, &ended))
}

fn describe(partner: &Partner, ended: &EndedKeys) -> String {
    let name = printable(&partner.name);
    let rotate = format!("`esimctl partner rotate {} keys`", partner.partner_id);
    let next = match (&ended.goes_on, ended.further.is_empty()) {
        (Some(key), _) => format!("Its other key {key} goes on."),
        (None, false) => {
            format!("{name} has no key any more that may order: make one with {rotate}.")
        }
        (None, true) => format!(
            "{name} has no key any more, so each of its requests gets 401: make new ones with {rotate}.",
        ),
    };
    let made = if ended.further.is_empty() {
        String::new()
    } else {
        let names = ended.further.iter().map(|name| printable(name));
        format!(
            " Ask it whether it made its further keys itself, because whoever had the ended one may have made one: {}.",
            names.collect::<Vec<_>>().join(", ")
        )
    };
    let keys = ended.ended.join(" and ");
    format!("{keys} of {name}: ended, requests get 401 within a second. {next}{made}")
}
