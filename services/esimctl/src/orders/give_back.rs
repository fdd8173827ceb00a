//! `esimctl give-back`: lists parked give-backs, and resolves them.
//!
//! A partner gives a delivered eSIM back to its provider. If the provider does not say for too long
//! whether it has the eSIM back, the give-back is parked, because a wrong guess would either cost
//! the price of the eSIM or let somebody use it for free. The operator looks the eSIM up at the
//! provider and says what was found.

use anyhow::anyhow;
use clap::{Args, Subcommand};
use desk::operator::give_backs::{
    self, GiveBackFinding, GiveBackNotResolved, ListedGiveBack, ResolvedGiveBack,
};
use domain::{EsimChangeState, TopupId};
use pg::actions::Mode;
use serde_json::json;

use crate::{
    confirm::{Confirm, ConfirmedChange},
    console::{self, Console},
    output::{TableRow, cells, or_dash, utc},
};

const LIST_EXAMPLES: &str = "Examples:
  esimctl give-back list
  esimctl give-back list --provider esim-access --json

The list has the parked give-backs, the oldest first. --json prints {\"give_backs\":[…]}";

const RESOLVE_EXAMPLES: &str = "Examples:
  esimctl give-back resolve 20250129123456123456789012 --returned --reason 'their portal says cancelled'
  esimctl give-back resolve 20250129123456123456789012 --not-returned --reason 'still active, ticket 4711'
  esimctl give-back resolve 20250129123456123456789012 --returned --dry-run

Before you run it, look the unit up at the provider by the id that the list shows. Then say what you found:
  --returned      the provider has the eSIM back: the partner sees it as given back, and its fields are erased here
  --not-returned  the provider does not have it back: it stays with the partner, who may ask again";

const MOST: i64 = 10_000;

#[derive(Subcommand, Clone, Debug)]
pub enum GiveBackCommand {
    /// List the give-backs that wait for an operator
    #[command(after_help = LIST_EXAMPLES)]
    List {
        /// List only those of this provider
        #[arg(long)]
        provider: Option<String>,
        /// The maximum number of give-backs to list
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(i64).range(1..=MOST))]
        limit: i64,
    },
    /// Record the outcome of a parked give-back
    #[command(after_help = RESOLVE_EXAMPLES)]
    Resolve {
        /// The topup id of the eSIM
        #[arg(value_name = "TOPUP_ID")]
        topup_id: TopupId,
        #[command(flatten)]
        found: GiveBackFindingArgs,
        #[command(flatten)]
        confirm: Confirm,
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

impl GiveBackFindingArgs {
    /// What was found, and the command in the form in which it is recorded.
    fn state(&self) -> (GiveBackFinding, domain::Command) {
        if self.returned {
            (GiveBackFinding::Returned, domain::Command::GiveBackReturned)
        } else {
            (
                GiveBackFinding::NotReturned,
                domain::Command::GiveBackNotReturned,
            )
        }
    }
}

pub async fn run(command: &GiveBackCommand, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    match command {
        GiveBackCommand::List { provider, limit } => {
            let found = give_backs::list(&mut connection, provider.as_deref(), *limit).await?;
            console.print(&json!({ "give_backs": found }), || {
                console::list(&found, "No give-back is parked.", row)
            })
        }
        GiveBackCommand::Resolve {
            topup_id,
            found,
            confirm,
        } => {
            let (state, command) = found.state();
            let target = format!("topup {topup_id}");
            let run = async |mode: Mode<'_>| {
                let resolved = give_backs::resolve(&mut connection, topup_id, state, None, mode);
                resolved.await.map_err(|error: GiveBackNotResolved| {
                    anyhow!("the give-back of topup {topup_id} was not resolved: {error}")
                })
            };
            let print = |resolved: &ResolvedGiveBack, dry_run| {
                console.print(resolved, || describe(resolved, dry_run))
            };
            let preview = |resolved: &ResolvedGiveBack| describe(resolved, true);
            let change = ConfirmedChange {
                run,
                describe: preview,
                print,
            };
            confirm.carry_out(command, &target, change).await
        }
    }
}

fn row(one: &ListedGiveBack) -> TableRow<7> {
    cells!(one:
        topup_id, provider, provider_unit_id = or_dash(one.provider_unit_id.as_ref()), attempt, asked = utc(one.asked_at), parked = utc(one.parked_at),
        message = or_dash(one.message.as_ref()),
    )
}

fn describe(resolved: &ResolvedGiveBack, is_preview: bool) -> String {
    let ResolvedGiveBack { topup_id, state } = resolved;
    let verb = if is_preview { "will be" } else { "is" };
    match state {
        EsimChangeState::Done => format!(
            "topup {topup_id} {verb} given back: its fields are erased here, and nobody can install it"
        ),
        _ => format!("topup {topup_id} {verb} not given back: it stays with the partner"),
    }
}
