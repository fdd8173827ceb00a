//! `esimctl option`: lists the catalogue, which is the set of options that partners may order,
//! brings it to what a file says ([`crate::option_file`]), takes an option out of sale, and puts
//! another one of its providers first.

use accounts::{
    facts::{Facts, ShownFact},
    options::{self, ProductOption},
};
use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand, builder::NonEmptyStringValueParser};
use desk::operator::{
    self,
    options::{NamedOption, PutFirst},
};
use pg::actions::Mode;
use serde_json::json;

use crate::{
    catalogue,
    confirm::{self, Confirm},
    console::Console,
    option_file::{self, OptionApplyArgs},
    output::{TableRow, cells, or_dash, table},
};

const LIST_EXAMPLES: &str = "Examples:
  esimctl option list
  esimctl option list --json
  esimctl option list --json > options.json && esimctl option apply -f options.json

`esimctl option apply` takes what --json prints, so that a catalogue can be kept in a file, edited, and copied to
another system.";

const SHOW_EXAMPLES: &str = "Examples:
  esimctl option show JP-7D-1G
  esimctl option show 'Japan 7 days 1 GB' --json

It lists what partners are told of the option: networks, activation, hotspot and the like. Of each it says whether the provider
tells it (origin provider) or a file of yours sets it (origin file), which counts. --json prints the option as `option list`
does, and these facts as shown.";

const SET_EXAMPLES: &str = "Examples:
  esimctl option set JP-7D-1G --disabled --reason 'sold out at the provider, ticket 4711'
  esimctl option set d4c6c0a4-7f65-4f0b-9d0e-1f6f5a6f3c11 --disabled --reason 'sold out' --yes
  esimctl option set 'Japan 7 days 1 GB' --disabled --dry-run
  esimctl option set JP-7D-1G --enabled --reason 'in stock again'

New orders of a disabled option are refused as soon as each ingress has read the change, which takes a few seconds. Orders
that were accepted before are still bought and delivered. To stop these too, open the breaker of the provider with
`esimctl provider open`, which stops all options of that provider.

A later `esimctl option apply` of a file that does not say enabled: false for the option puts it back on sale.";

const ROUTE_EXAMPLES: &str = "Examples:
  esimctl option route JP-7D-1G --first airalo --reason 'usimsa denies our account, ticket 4711'
  esimctl option route 'Japan 7 days 1 GB' --first airalo --dry-run

New orders of the option are bought there as soon as each ingress has read the change, which takes a few seconds; its other
providers follow in their order. Orders that were accepted before stay where they are. The same command with the other
provider undoes it, and so does a later `esimctl option apply` of a file that names the providers. What the option costs is
not known until the next `esimctl catalogue pull`.";

#[derive(Subcommand, Clone, Debug)]
pub enum OptionCommand {
    /// List the catalogue
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Show an option with all that is known of it, and who says so
    #[command(after_help = SHOW_EXAMPLES)]
    Show {
        /// The option's id, its name, or its name at the provider
        #[arg(value_name = "NAME|ID", value_parser = NonEmptyStringValueParser::new())]
        option: String,
    },
    /// Make the options match a file: create new ones, and change the others
    ///
    /// The same file again changes nothing, so a script may apply it at every deployment.
    #[command(after_help = option_file::EXAMPLES)]
    Apply(OptionApplyArgs),
    /// Take an option out of sale, or put it back
    #[command(after_help = SET_EXAMPLES)]
    Set(OptionSetArgs),
    /// Have an option bought at another one of its providers first
    #[command(after_help = ROUTE_EXAMPLES)]
    Route(OptionRouteArgs),
}

#[derive(Args, Clone, Debug)]
pub struct OptionRouteArgs {
    /// The option's id, its name, or its name at the provider
    #[arg(value_name = "NAME|ID", value_parser = NonEmptyStringValueParser::new())]
    option: String,
    /// The provider that is asked first from now on: one that sells the option
    #[arg(long, value_name = "PROVIDER")]
    first: String,
    #[command(flatten)]
    confirm: Confirm,
}

#[derive(Args, Clone, Debug)]
pub struct OptionSetArgs {
    /// The option's id, its name, or its name at the provider
    ///
    /// If several options have this name, the command changes nothing and lists their ids.
    #[arg(value_name = "NAME|ID", value_parser = NonEmptyStringValueParser::new())]
    option: String,
    #[command(flatten)]
    sale: Sale,
    #[command(flatten)]
    confirm: Confirm,
}

#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
struct Sale {
    /// Take it out of sale: new orders of it are refused, accepted ones are still bought
    #[arg(long)]
    disabled: bool,
    /// Put it back on sale
    #[arg(long)]
    enabled: bool,
}

pub async fn run(command: &OptionCommand, console: &Console) -> anyhow::Result<()> {
    match command {
        OptionCommand::List => {
            let (catalogue, unreadable) =
                options::readable(options::all(&mut console.connect().await?).await?);
            console.print_list(
                &catalogue,
                "The catalogue is empty; see `esimctl option apply --help`.",
                row,
            )?;
            ensure!(
                unreadable.is_empty(),
                "not listed, because their rows cannot be read, so nobody can order them; apply them again: {}",
                unreadable.join("; ")
            );
            Ok(())
        }
        OptionCommand::Show { option } => show(option, console).await,
        OptionCommand::Apply(asked) => option_file::apply(asked, console).await,
        OptionCommand::Set(change) => set_enabled(change, console).await,
        OptionCommand::Route(change) => put_first(change, console).await,
    }
}

async fn show(named: &str, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let found = one(
        operator::options::named(&mut connection, named).await?,
        named,
    )?;
    let option = options::one(&mut connection, found.option_id).await?;
    let option = option.with_context(|| format!("there is no option {named:?} any longer"))?;
    let facts = Facts::shown(&option.told, &option.facts);
    let mut shown = json!(option);
    shown["shown"] = json!(facts);
    console.print(&shown, || {
        let of_option = table([row(&option)]);
        if facts.is_empty() {
            return format!("{of_option}\n\nNeither its provider nor a file says more about it.");
        }
        let facts = table(facts.iter().map(fact));
        format!("{of_option}\n\n{facts}")
    })
}

fn fact(one: &ShownFact) -> TableRow<3> {
    cells!(one: fact, value, origin)
}

async fn put_first(asked: &OptionRouteArgs, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let option = one(
        operator::options::named(&mut connection, &asked.option).await?,
        &asked.option,
    )?;
    let id = option.option_id;
    let first = asked.first.as_str();
    let run = async |mode: Mode<'_>| {
        let routed = operator::options::put_first(&mut connection, id, (first, None), mode);
        Ok(routed.await?)
    };
    let told = |done: &PutFirst, dry_run| {
        let is = match (done.changed, dry_run) {
            (false, _) => "already is",
            (true, true) => "would be",
            (true, false) => "is now",
        };
        format!(
            "option {} ({id}) {is} bought at {first} first; its providers are asked in this order: {}",
            done.option.name,
            done.option.order()
        )
    };
    let print = |done: &PutFirst, dry_run| {
        let mut shown = json!(done);
        shown["dry_run"] = json!(dry_run);
        console.print(&shown, || told(done, dry_run))
    };
    let target = format!("option {id} ({})", option.name);
    let change = confirm::ConfirmedChange {
        run,
        describe: |done: &PutFirst| told(done, true),
        print,
    };
    let command = domain::Command::OptionRoute;
    asked.confirm.carry_out(command, &target, change).await
}

async fn set_enabled(asked: &OptionSetArgs, console: &Console) -> anyhow::Result<()> {
    let enabled = asked.sale.enabled && !asked.sale.disabled;
    let mut connection = console.connect().await?;
    let option = one(
        operator::options::named(&mut connection, &asked.option).await?,
        &asked.option,
    )?;
    let id = option.option_id;
    let run = async |mode: Mode<'_>| {
        let changed = operator::options::set_enabled(&mut connection, id, enabled, mode);
        Ok(changed.await?)
    };
    let print = |changed: &bool, dry_run| {
        let mut shown = json!(option);
        shown["enabled"] = json!(enabled);
        shown["changed"] = json!(changed);
        shown["dry_run"] = json!(dry_run);
        console.print(&shown, || effect(&option, enabled, *changed, dry_run))
    };
    let command = if enabled {
        domain::Command::OptionEnable
    } else {
        domain::Command::OptionDisable
    };
    asked
        .confirm
        .carry_out(
            command,
            &format!("option {id} ({})", option.name),
            confirm::ConfirmedChange {
                run,
                describe: |changed: &bool| effect(&option, enabled, *changed, true),
                print,
            },
        )
        .await
}

/// The only option that was found by what the operator has typed.
pub fn one(found: Vec<NamedOption>, typed: &str) -> anyhow::Result<NamedOption> {
    match <[NamedOption; 1]>::try_from(found) {
        Ok([option]) => Ok(option),
        Err(none) if none.is_empty() => {
            bail!("there is no option with the id or name {typed:?}; see `esimctl option list`")
        }
        Err(several) => {
            let ids: Vec<String> = several
                .iter()
                .map(|option| {
                    let NamedOption {
                        option_id,
                        name,
                        provider,
                        environment,
                        ..
                    } = option;
                    format!("{option_id} ({name}, {environment}, {provider})")
                })
                .collect();
            bail!(
                "{} options have the name {typed:?}; name one of them by its id: {}",
                several.len(),
                ids.join("; ")
            )
        }
    }
}

/// What the command has done, or would do, as text.
fn effect(option: &NamedOption, enabled: bool, changed: bool, dry_run: bool) -> String {
    let NamedOption {
        option_id,
        name,
        provider,
        ..
    } = option;
    let state = match (changed, dry_run) {
        (false, _) => "already is",
        (true, true) => "would be",
        (true, false) => "is now",
    };
    let consequence = if enabled {
        "on sale: partners can order it"
    } else {
        "out of sale: new orders of it are refused, and orders that were accepted before are still bought"
    };
    format!("option {name} ({option_id}, provider {provider}) {state} {consequence}")
}

fn row(option: &ProductOption) -> TableRow<8> {
    let enabled = if option.enabled { "yes" } else { "no" }.to_owned();
    let alternatives: Vec<String> = option
        .alternatives
        .iter()
        .map(|pair| format!("{} {}", pair.provider, pair.provider_option_id))
        .collect();
    let standard = or_dash(option.standard.as_ref().map(catalogue::of));
    cells!(option:
        option_id, name, provider, provider_option_id, environment, enabled = enabled,
        alternatives = alternatives.join(", "),
        standard = standard,
    )
}
