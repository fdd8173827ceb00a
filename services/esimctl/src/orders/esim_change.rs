//! `esimctl give-back` and `esimctl extension`: list the changes of delivered eSIMs that are
//! parked, and resolve them.
//!
//! A partner gives a delivered eSIM back to its provider, or adds data to it. If the provider does
//! not say for too long whether it has done so, the change is parked, because a wrong guess would
//! cost somebody its price; where people at the provider decide, it is a claim. The operator looks
//! the eSIM up at the provider and says what was found.

use anyhow::anyhow;
use clap::{Args, Subcommand};
use desk::operator::esim_changes::{
    self, EsimChangeFinding, EsimChangeNotResolved, ListedClaim, ListedEsimChange,
    ResolvedEsimChange,
};
use domain::{Command, TopupId, esim_change::EsimChangeKind};
use pg::actions::Mode;
use serde_json::json;

use crate::{
    confirm::{Confirm, ConfirmedChange},
    console::{self, Console},
    output::{TableRow, cells, or_dash, utc},
};

const LIST_GIVE_BACKS: &str = "Examples:
  esimctl give-back list
  esimctl give-back list --provider esim-access --json
  esimctl give-back list --claimed

The list has the parked give-backs, the oldest first, or with --claimed those that people at the provider
decide. --json prints {\"give_backs\":[…]}";

const LIST_EXTENSIONS: &str = "Examples:
  esimctl extension list
  esimctl extension list --provider airalo --json

The list has the parked extensions, the oldest first. --json prints {\"extensions\":[…]}";

const RESOLVE_GIVE_BACK: &str = "Examples:
  esimctl give-back resolve 20250129123456123456789012 --returned --reason 'their portal says cancelled'
  esimctl give-back resolve 20250129123456123456789012 --not-returned --reason 'still active, ticket 4711'
  esimctl give-back resolve 20250129123456123456789012 --returned --dry-run

Before you run it, look the unit up at the provider by the id that the list shows. Then say what you found:
  --returned      the provider has the eSIM back: the partner sees it as given back, and its fields are erased here
  --not-returned  the provider does not have it back, or has denied the claim: it stays with the partner, who may ask again";

const RESOLVE_EXTENSION: &str = "Examples:
  esimctl extension resolve 20250129123456123456789012 --added --reason 'their portal shows the package'
  esimctl extension resolve 20250129123456123456789012 --not-added --reason 'not there, ticket 4711'
  esimctl extension resolve 20250129123456123456789012 --added --dry-run

Before you run it, look the unit up at the provider by the id that the list shows. Then say what you found:
  --added      the provider has added the package: the partner is told so, and pays for it
  --not-added  the provider has added nothing: the partner is told that it was refused, and may order another";

const MOST: i64 = 10_000;

#[derive(Args, Clone, Debug)]
pub struct ListArgs {
    /// List only those of this provider
    #[arg(long)]
    provider: Option<String>,
    /// The maximum number to list
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(i64).range(1..=MOST))]
    limit: i64,
}

#[derive(Args, Clone, Debug)]
pub struct ResolvedTopup {
    /// The topup id of the eSIM
    #[arg(value_name = "TOPUP_ID")]
    topup_id: TopupId,
    #[command(flatten)]
    confirm: Confirm,
}

#[derive(Subcommand, Clone, Debug)]
pub enum GiveBackCommand {
    /// List the give-backs that wait for an operator
    #[command(after_help = LIST_GIVE_BACKS)]
    List {
        /// List the claims that people at the provider decide
        #[arg(long)]
        claimed: bool,
        #[command(flatten)]
        args: ListArgs,
    },
    /// Record the outcome of a parked give-back, or of a claim
    #[command(after_help = RESOLVE_GIVE_BACK)]
    Resolve {
        #[command(flatten)]
        found: GiveBackFindingArgs,
        #[command(flatten)]
        topup: ResolvedTopup,
    },
}

#[derive(Subcommand, Clone, Debug)]
pub enum ExtensionCommand {
    /// List the extensions that wait for an operator
    #[command(after_help = LIST_EXTENSIONS)]
    List(ListArgs),
    /// Record the outcome of a parked extension
    #[command(after_help = RESOLVE_EXTENSION)]
    Resolve {
        #[command(flatten)]
        found: ExtensionFindingArgs,
        #[command(flatten)]
        topup: ResolvedTopup,
    },
}

/// What the operator found at the provider.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct GiveBackFindingArgs {
    /// The provider has the eSIM back
    #[arg(long)]
    returned: bool,
    /// The provider does not have the eSIM back
    #[arg(long)]
    not_returned: bool,
}

/// The same for an extension.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct ExtensionFindingArgs {
    /// The provider has added the package
    #[arg(long)]
    added: bool,
    /// The provider has added nothing
    #[arg(long)]
    not_added: bool,
}

/// What was found, and the command in the form in which it is recorded.
type Found = (EsimChangeFinding, Command);

pub async fn give_back(command: &GiveBackCommand, console: &Console) -> anyhow::Result<()> {
    match command {
        GiveBackCommand::List {
            claimed: true,
            args,
        } => claims(args, console).await,
        GiveBackCommand::List { args, .. } => list(EsimChangeKind::GiveBack, args, console).await,
        GiveBackCommand::Resolve { found, topup } => {
            let found = if found.returned {
                (EsimChangeFinding::Done, Command::GiveBackReturned)
            } else {
                (EsimChangeFinding::NotDone, Command::GiveBackNotReturned)
            };
            resolve(EsimChangeKind::GiveBack, topup, found, console).await
        }
    }
}

pub async fn extension(command: &ExtensionCommand, console: &Console) -> anyhow::Result<()> {
    match command {
        ExtensionCommand::List(args) => list(EsimChangeKind::Extension, args, console).await,
        ExtensionCommand::Resolve { found, topup } => {
            let found = if found.added {
                (EsimChangeFinding::Done, Command::ExtensionAdded)
            } else {
                (EsimChangeFinding::NotDone, Command::ExtensionNotAdded)
            };
            resolve(EsimChangeKind::Extension, topup, found, console).await
        }
    }
}

async fn list(kind: EsimChangeKind, args: &ListArgs, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let provider = args.provider.as_deref();
    let found = esim_changes::list(&mut connection, Some(kind), provider, args.limit).await?;
    let none = format!("No {} is parked.", kind.word());
    match kind {
        EsimChangeKind::GiveBack => console.print(&json!({ "give_backs": found }), || {
            console::list(&found, &none, give_back_row)
        }),
        EsimChangeKind::Extension => console.print(&json!({ "extensions": found }), || {
            console::list(&found, &none, extension_row)
        }),
    }
}

async fn claims(args: &ListArgs, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let provider = args.provider.as_deref();
    let found = esim_changes::claims(&mut connection, provider, args.limit).await?;
    console.print(&json!({ "give_backs": found }), || {
        console::list(&found, "No claim waits for a verdict.", claim_row)
    })
}

async fn resolve(
    kind: EsimChangeKind,
    ResolvedTopup { topup_id, confirm }: &ResolvedTopup,
    (found, command): Found,
    console: &Console,
) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let target = format!("topup {topup_id}");
    let run = async |mode: Mode<'_>| {
        let of = (kind, topup_id);
        let resolved = esim_changes::resolve(&mut connection, of, found, None, mode);
        resolved.await.map_err(|error: EsimChangeNotResolved| {
            anyhow!(
                "the {} of topup {topup_id} was not resolved: {error}",
                kind.word()
            )
        })
    };
    let described = |resolved: &ResolvedEsimChange, is_preview| {
        let verb = if is_preview { "will be" } else { "is" };
        format!(
            "topup {} {verb} {}",
            resolved.topup_id,
            outcome(kind, found)
        )
    };
    let print = |resolved: &ResolvedEsimChange, dry_run| {
        console.print(resolved, || described(resolved, dry_run))
    };
    let preview = |resolved: &ResolvedEsimChange| described(resolved, true);
    let change = ConfirmedChange {
        run,
        describe: preview,
        print,
    };
    confirm.carry_out(command, &target, change).await
}

fn claim_row(one: &ListedClaim) -> TableRow<7> {
    cells!(one:
        topup_id, provider, provider_unit_id = or_dash(one.provider_unit_id.as_ref()), claim = or_dash(one.claim.as_ref()),
        cause = or_dash(one.cause.as_ref()), asked = utc(one.asked_at), message = or_dash(one.message.as_ref()),
    )
}

fn give_back_row(one: &ListedEsimChange) -> TableRow<7> {
    cells!(one:
        topup_id, provider, provider_unit_id = or_dash(one.provider_unit_id.as_ref()), attempt, asked = utc(one.asked_at), parked = utc(one.parked_at),
        message = or_dash(one.message.as_ref()),
    )
}

fn extension_row(one: &ListedEsimChange) -> TableRow<8> {
    let package = one.extension.as_ref().map(|it| &it.provider_option_id);
    cells!(one:
        topup_id, provider, provider_unit_id = or_dash(one.provider_unit_id.as_ref()), package = or_dash(package), attempt,
        asked = utc(one.asked_at), parked = utc(one.parked_at), message = or_dash(one.message.as_ref()),
    )
}

fn outcome(kind: EsimChangeKind, found: EsimChangeFinding) -> &'static str {
    match (kind, found) {
        (EsimChangeKind::GiveBack, EsimChangeFinding::Done) => {
            "given back: its fields are erased here, and nobody can install it"
        }
        (EsimChangeKind::GiveBack, EsimChangeFinding::NotDone) => {
            "not given back: it stays with the partner"
        }
        (EsimChangeKind::Extension, EsimChangeFinding::Done) => {
            "extended: its partner is told so, and pays for it"
        }
        (EsimChangeKind::Extension, EsimChangeFinding::NotDone) => {
            "not extended: its partner is told that it was refused"
        }
    }
}
