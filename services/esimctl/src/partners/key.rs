//! `esimctl partner key`: the further keys of a partner, for its people and programs.
//!
//! Partners make and change these keys themselves. An operator does it for one that cannot, and
//! ends a key for a reason. The first key is not among them: `partner rotate` and `partner leaked`
//! replace and end it.

use accounts::partners::{
    self, Partner,
    keys::{self, FurtherKey, KeyUpdate, NewKey},
};
use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand, builder::PossibleValuesParser, builder::TypedValueParser};
use domain::{
    KeyId, KeyTerms, PartnerId, Right, Rights,
    partner_key::{MOST_KEYS, MOST_NAME, MOST_NETWORKS, Network, network},
};
use pg::{
    PgConnection, Transaction,
    actions::{self, ActionChange},
    config::MasterKeyConfig,
};
use serde_json::json;
use signing::generate;

use crate::{
    confirm::ReasonArgs,
    console::Console,
    lookup::{PartnerArgs, find},
    output::{TableRow, cells, or_dash, printable, properties, utc},
    terms::{check_vault, vault},
};

pub const EXAMPLES: &str = "Examples:
  esimctl partner key list 'Acme Travel'
  esimctl partner key create 'Acme Travel' --name 'their agent' --rights order,read --units-per-day 20
  esimctl partner key set 'Acme Travel' 0199aabb-ccdd-7eee-8fff-001122334455 --networks 198.51.100.0/24
  esimctl partner key end 'Acme Travel' ak_0123456789abcdef01234567 --reason 'the laptop was stolen'

The rights: order (order, cancel, give back), read (all that only shows something, activation codes included), webhooks (where
webhooks and notices go, and sending them again), keys (make, change and end keys). A partner has at most ten keys with its
first one, which has all rights; see `esimctl partner rotate`. A change holds within a second.";

const LIST_EXAMPLES: &str = "Examples:
  esimctl partner key list 'Acme Travel'
  esimctl partner key list ak_0123456789abcdef01234567 --json";

const CREATE_EXAMPLES: &str = "Examples:
  esimctl partner key create 'Acme Travel' --name 'their agent' --rights order,read --units-per-day 20

The secret key is stored encrypted and is shown only once: hand it to the partner over a safe channel.";

const SET_EXAMPLES: &str = "Examples:
  esimctl partner key set 'Acme Travel' 0199aabb-ccdd-7eee-8fff-001122334455 --rights read
  esimctl partner key set 'Acme Travel' ak_0123456789abcdef01234567 --any-network --units-per-day none";

const END_EXAMPLES: &str = "Examples:
  esimctl partner key end 'Acme Travel' 0199aabb-ccdd-7eee-8fff-001122334455 --reason 'ticket 4711'

Within a second, requests with the key get 401. The other keys go on, and what is ordered is bought and sent.";

#[derive(Subcommand, Clone, Debug)]
pub enum KeyCommand {
    /// List a partner's further keys with their rights and last use
    #[command(after_help = LIST_EXAMPLES)]
    List(PartnerArgs),
    /// Make a further key, and print its secret, which is shown only once
    #[command(after_help = CREATE_EXAMPLES)]
    Create(CreateKey),
    /// Change the name, rights, networks or limit of a further key
    #[command(after_help = SET_EXAMPLES)]
    Set(SetKey),
    /// End a further key at once
    #[command(after_help = END_EXAMPLES)]
    End(EndKey),
}

#[derive(Args, Clone, Debug)]
pub struct CreateKey {
    #[command(flatten)]
    which: PartnerArgs,
    /// Whose key it is, or of which program
    #[arg(long, value_parser = key_name)]
    name: String,
    /// What it may do, separated by commas
    #[arg(long, required = true, value_delimiter = ',', value_parser = right_parser())]
    rights: Vec<Right>,
    /// From where it may be used, separated by commas; without this from anywhere
    #[arg(long, value_delimiter = ',', value_name = "NETWORK", value_parser = network)]
    networks: Vec<Network>,
    /// How many units it may order in a day of UTC; without this any number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=2_147_483_647))]
    units_per_day: Option<u32>,
    #[command(flatten)]
    why: ReasonArgs,
    #[command(flatten)]
    master_key: MasterKeyConfig,
}

/// A further key of a partner.
#[derive(Args, Clone, Debug)]
struct WhichKey {
    #[command(flatten)]
    which: PartnerArgs,
    /// The id or the access key of the key
    #[arg(value_name = "KEY")]
    key: String,
}

#[derive(Args, Clone, Debug)]
#[command(group(clap::ArgGroup::new("change").required(true).multiple(true).args([
    "name", "rights", "networks", "any_network", "units_per_day",
])))]
pub struct SetKey {
    #[command(flatten)]
    which: WhichKey,
    /// Whose key it is, or of which program
    #[arg(long, value_parser = key_name)]
    name: Option<String>,
    /// What it may do, separated by commas; they replace the rights that it has
    #[arg(long, value_delimiter = ',', value_parser = right_parser())]
    rights: Vec<Right>,
    /// From where it may be used, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "NETWORK", value_parser = network)]
    networks: Vec<Network>,
    /// Let it be used from anywhere
    #[arg(long, conflicts_with = "networks")]
    any_network: bool,
    /// How many units it may order in a day of UTC
    #[arg(long, value_name = "N|none", value_parser = units)]
    units_per_day: Option<Units>,
    #[command(flatten)]
    why: ReasonArgs,
}

#[derive(Args, Clone, Debug)]
pub struct EndKey {
    #[command(flatten)]
    which: WhichKey,
    #[command(flatten)]
    why: ReasonArgs,
}

/// Reads the name of a right; help and errors list all of them.
fn right_parser() -> impl TypedValueParser<Value = Right> {
    PossibleValuesParser::new(Rights::all().names()).try_map(|name| name.parse::<Right>())
}

/// A limit of units a day, or none.
#[derive(Clone, Copy, Debug)]
struct Units(Option<u32>);

fn units(text: &str) -> Result<Units, String> {
    if text == "none" {
        return Ok(Units(None));
    }
    let units = text
        .parse()
        .ok()
        .filter(|units| i32::try_from(*units).is_ok());
    units
        .map(|units| Units(Some(units)))
        .ok_or_else(|| "it is neither `none` nor a whole number from 0 on".to_owned())
}

fn key_name(text: &str) -> Result<String, String> {
    let name = text.trim();
    let is_fit = (1..=MOST_NAME).contains(&name.chars().count());
    if is_fit && !name.chars().any(char::is_control) {
        Ok(name.to_owned())
    } else {
        Err(format!(
            "a name has 1 to {MOST_NAME} characters, and no line break among them"
        ))
    }
}

pub async fn run(command: &KeyCommand, console: &Console) -> anyhow::Result<()> {
    match command {
        KeyCommand::List(which) => {
            let mut connection = console.connect().await?;
            let partner = find(&mut connection, &which.partner).await?;
            let found = keys::list(&mut connection, partner.partner_id.into(), None).await?;
            let none = "The partner has no further keys; see `esimctl partner key create --help`.";
            console.print_list(&found, none, row)
        }
        KeyCommand::Create(new) => create(new, console).await,
        KeyCommand::Set(asked) => set(asked, console).await,
        KeyCommand::End(asked) => end(asked, console).await,
    }
}

fn row(key: &FurtherKey) -> TableRow<7> {
    let networks = key.networks.join(", ");
    let units = key
        .units_per_day
        .map(|most| format!("{} of {most}", key.units_today));
    cells!(key:
        key_id, name, access_key, rights = key.rights.join(", "),
        networks = if networks.is_empty() { "any".to_owned() } else { networks },
        units_today = or_dash(units), last_used = or_dash(key.last_used_at.map(utc)),
    )
}

async fn create(new: &CreateKey, console: &Console) -> anyhow::Result<()> {
    few_enough(&new.networks)?;
    let vault = vault(&new.master_key)?;
    let mut connection = console.connect().await?;
    check_vault(&vault, &mut connection, "nothing was created").await?;
    let partner = find(&mut connection, &new.which.partner).await?;
    ensure!(
        partner.has_secret_key,
        "nothing was created: the partner is erased"
    );
    let partner_id: PartnerId = partner.partner_id.into();
    let (access_key, secret_key) = generate::keys()?;
    let terms = KeyTerms {
        rights: new.rights.iter().copied().collect(),
        networks: new.networks.clone(),
        units_per_day: new.units_per_day,
    };
    let key = NewKey {
        key_id: KeyId::new(),
        partner_id,
        name: &new.name,
        access_key: &access_key,
        secret_key: &secret_key,
        terms: &terms,
    };
    let target = format!("partner {partner_id}");
    let action = new.why.action(domain::Command::KeyCreate, &target);
    let create = async |transaction: &mut Transaction<'_>| {
        partners::lock(transaction, partner_id).await?;
        if !keys::create(transaction, &vault, &key).await? {
            return Ok(None);
        }
        let made = keys::list(transaction, partner_id, Some(&access_key))
            .await?
            .pop();
        Ok(made.map(|made| {
            let changed = ActionChange::created(made.shown());
            (made, changed)
        }))
    };
    let made = actions::recorded(&mut connection, action, create).await?;
    let Some(made) = made else {
        bail!(
            "nothing was created: {} has {MOST_KEYS} keys with its first one, which is the maximum; end one with `esimctl partner key end`",
            printable(&partner.name)
        );
    };
    let mut shown = made.shown();
    shown["partner_id"] = json!(partner_id);
    shown["secret_key"] = json!(secret_key.to_base64());
    let text = || {
        let properties = properties(&cells!(made:
            key_id, name, access_key, secret_key = secret_key.to_base64(), rights = made.rights.join(", "),
        ));
        format!("{properties}\n\nsecret_key is shown only now: keep it safe.")
    };
    console.print(&shown, text).with_context(|| {
        format!(
            "the key is made, but its secret could not be shown: end it with `esimctl partner key end {partner_id} {access_key}`, \
             and make another one"
        )
    })
}

fn few_enough(networks: &[Network]) -> anyhow::Result<()> {
    ensure!(
        networks.len() <= MOST_NETWORKS,
        "nothing was changed: a key has at most {MOST_NETWORKS} networks"
    );
    Ok(())
}

/// The partner and its further key that an argument names.
async fn find_key(
    connection: &mut PgConnection,
    asked: &WhichKey,
) -> anyhow::Result<(Partner, FurtherKey)> {
    let partner = find(connection, &asked.which.partner).await?;
    let mut found = keys::list(connection, partner.partner_id.into(), Some(&asked.key)).await?;
    let key = found.pop().with_context(|| {
        format!(
            "nothing was changed: {} has no further key {:?}; see `esimctl partner key list`",
            printable(&partner.name),
            asked.key
        )
    })?;
    Ok((partner, key))
}

async fn set(asked: &SetKey, console: &Console) -> anyhow::Result<()> {
    few_enough(&asked.networks)?;
    let mut connection = console.connect().await?;
    let (partner, key) = find_key(&mut connection, &asked.which).await?;
    let partner_id: PartnerId = partner.partner_id.into();
    let update = KeyUpdate {
        name: asked.name.clone(),
        rights: (!asked.rights.is_empty()).then(|| asked.rights.iter().copied().collect()),
        networks: (asked.any_network || !asked.networks.is_empty()).then(|| asked.networks.clone()),
        units_per_day: asked.units_per_day.map(|units| units.0),
    };
    let id = key.key_id.to_string();
    let target = format!("partner {partner_id}");
    let action = asked.why.action(domain::Command::KeySet, &target);
    let change = async |transaction: &mut Transaction<'_>| {
        partners::lock(transaction, partner_id).await?;
        // What stays is read under the lock, so that two changes at once do not undo each other.
        let found = keys::list(transaction, partner_id, Some(&id)).await?.pop();
        let changed = found.and_then(|key| Some((update.terms_of(&key)?, key)));
        let Some((terms, before)) = changed else {
            return Ok(None);
        };
        let name = update.name.as_deref().unwrap_or(&before.name);
        keys::change(transaction, partner_id, key.key_id.into(), name, &terms).await?;
        let after = keys::list(transaction, partner_id, Some(&id)).await?.pop();
        Ok(after.map(|after| {
            let changed = ActionChange::between(before.shown(), after.shown());
            (after, changed)
        }))
    };
    let after = actions::recorded(&mut connection, action, change).await?;
    let after = after.context("nothing was changed: the key has ended meanwhile, or a network of it cannot be read: then name its networks, too")?;
    console.print(&after.shown(), || {
        format!(
            "{} of {}: changed, which holds within a second.",
            printable(&after.name),
            printable(&partner.name)
        )
    })
}

async fn end(asked: &EndKey, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let (partner, key) = find_key(&mut connection, &asked.which).await?;
    let partner_id: PartnerId = partner.partner_id.into();
    let target = format!("partner {partner_id}");
    let action = asked.why.action(domain::Command::KeyEnd, &target);
    let end = async |transaction: &mut Transaction<'_>| {
        let ended = keys::end(transaction, partner_id, Some(&key.access_key)).await?;
        let changed = || ActionChange::removed(key.shown());
        Ok((!ended.is_empty()).then(|| ((), changed())))
    };
    let ended = actions::recorded(&mut connection, action, end).await?;
    ended.context("nothing was changed: the key has ended meanwhile")?;
    let shown = json!({ "partner_id": partner_id, "key_id": key.key_id, "ended": key.access_key });
    console.print(&shown, || {
        format!(
            "{} ({}) of {}: ended, requests get 401 within a second.",
            printable(&key.name),
            key.access_key,
            printable(&partner.name)
        )
    })
}
