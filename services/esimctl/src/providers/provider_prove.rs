//! `esimctl provider prove`: asks a provider, with a few real purchases, what its documents leave
//! open and no test against a stand-in can answer, above all whether an identical request is the
//! same purchase.
//!
//! Each purchase is recorded before it is sent ([`store::proofs`]), so a command that is
//! interrupted forgets none: the next one asks about what is left, repeats it once more, which then
//! proves a longer time, and gives it back. What is seen holds for this account, named by a digest
//! of its address and access key. The provisioner reads it within a second.
//!
//! The evidence holds neither keys nor activation codes.

use std::{io::IsTerminal, path::PathBuf, time::Duration};

use anyhow::{Context, bail, ensure};
use clap::{Args, builder::NonEmptyStringValueParser};
use desk::operator::words::counted;
use provisioner::providers::{Accounts, CallLimits, Capabilities, PacedCalls};
use runtime::terminal;
use serde::Serialize;
use serde_json::json;
use store::proofs::{self, LeftPurchase, ProvedAccount};

use self::steps::{Follows, Proving, Step};
use crate::{
    console::Console,
    output::{cells, one_line, table},
};

mod steps;

pub const EXAMPLES: &str = "Examples:
  esimctl provider prove esim-access --option JP-1GB-7D@0.90 --plan
  esimctl provider prove esim-access --option JP-1GB-7D@0.90 --evidence proof.json
  esimctl provider prove esim-access --option JP-1GB-7D@0.90 --batch --yes

It reads the account from the settings of the provisioner, as `provider check` does. Take the cheapest product, and a time
without orders, because it watches the balance. It shows what it buys and the most that it costs, and asks. What it has
bought is given back at the end, where the provider takes eSIMs back. After an interruption run it again: it takes up what
is left. With --keep the last purchase stays, and the next run, a day later, proves that a repeat is safe for so long.

--json prints {\"provider\":…,\"account\":…,\"steps\":[{\"question\":…,\"asked\":…,\"came\":…,\"follows\":…}]}. The exit status is
1 if an answer contradicts what the provider documents.";

/// The largest response that is read.
const RESPONSE_MAX: usize = 64 << 20;

#[derive(Args, Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each one is a separate option of the command line"
)]
pub struct ProviderProveArgs {
    /// The provider's name, as in `PROVIDERS` of the provisioner
    name: String,
    /// The product to buy, as options name it: the provider's id, best with the price behind `@`
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    option: String,
    /// Buy the largest batch, and one unit more, which should be refused
    #[arg(long)]
    batch: bool,
    /// How long to wait before the last repeat: a repeat is proved to be safe for this long
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = runtime::config::duration)]
    wait: Duration,
    /// Give nothing back, so that a later run repeats the purchase once more
    #[arg(long)]
    keep: bool,
    /// Write the evidence into this file
    #[arg(long, value_name = "FILE")]
    evidence: Option<PathBuf>,
    /// Show what would be bought, and buy nothing
    #[arg(long, conflicts_with = "yes")]
    plan: bool,
    /// Buy without asking
    #[arg(long)]
    yes: bool,
    /// Timeout of each call
    #[arg(long, default_value = "60s", value_parser = runtime::config::positive_duration)]
    timeout: Duration,
    #[command(flatten)]
    accounts: Accounts,
}

/// The evidence.
#[derive(Serialize)]
struct ProofReport<'a> {
    provider: &'a str,
    account: &'a str,
    option: &'a str,
    #[serde(with = "time::serde::rfc3339")]
    at: time::OffsetDateTime,
    steps: &'a [Step],
}

pub async fn run(prove: &ProviderProveArgs, console: &Console) -> anyhow::Result<()> {
    // The HTTP client of the adapter needs it. Only the first installation of a process counts.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let limits = CallLimits {
        timeout: prove.timeout,
        response_max: RESPONSE_MAX,
    };
    let paced = PacedCalls::without_rate(limits);
    let provider = prove.accounts.connect(&prove.name, paced)?.provider;
    let can = provider.capabilities();
    let account = prove.accounts.digest(&prove.name);
    let mut connection = console.connect().await?;
    let of = ProvedAccount {
        provider: &prove.name,
        account: &account,
    };
    let left = proofs::left(&mut connection, of).await?;
    let plan = plan(prove, can, &left);
    if prove.plan {
        return console.print(&json!({ "plan": plan }), || plan.join("\n"));
    }
    confirm(prove, &plan.join("\n"))?;
    let mut proving = Proving {
        provider,
        can,
        connection: &mut connection,
        of,
        option: &prove.option,
        wait: prove.wait,
        keep: prove.keep,
        steps: Vec::new(),
    };
    let interrupted =
        "the proof was interrupted; run the same command again, and it gives back what is left";
    tokio::select! {
        ended = proving.all(left, prove.batch) => ended.context(interrupted)?,
        _ = tokio::signal::ctrl_c() => bail!("{interrupted}"),
    }
    let steps = proving.steps;
    let report = ProofReport {
        provider: &prove.name,
        account: &account,
        option: &prove.option,
        at: runtime::clock::now(),
        steps: &steps,
    };
    if let Some(file) = &prove.evidence {
        std::fs::write(file, serde_json::to_string_pretty(&report)?)
            .with_context(|| format!("cannot write the evidence to {}", file.display()))?;
    }
    console.print(&report, || {
        table(steps.iter().map(|step| {
            cells!(step:
                question = step.question.to_owned(), came = step.came.clone(),
                follows = step.follows.as_str().to_owned(),
            )
        }))
    })?;
    let contradicted = steps
        .iter()
        .filter(|step| step.follows == Follows::Contradicted);
    let said: Vec<String> = contradicted
        .map(|step| format!("{}: {}", step.question, step.came))
        .collect();
    ensure!(
        said.is_empty(),
        "{} does not do what it documents, so nothing relies on it: {}",
        prove.name,
        said.join("; ")
    );
    Ok(())
}

/// What is bought, what it costs at most, and how it is given back.
fn plan(prove: &ProviderProveArgs, can: Capabilities, left: &[LeftPurchase]) -> Vec<String> {
    let mut plan = Vec::new();
    if !left.is_empty() {
        plan.push(format!(
            "takes up {} of an earlier proof: looks it up, repeats it once if that was the same purchase before, and \
             gives it back",
            counted(left.len(), "purchase", "purchases")
        ));
    }
    let mut units = 1;
    plan.push(format!("buys one unit of {}", prove.option));
    if can.purchase_key {
        units += 4;
        plan.push(
            "repeats the identical request at once and after the wait, and then asks for two units under the same id; \
             if the provider keeps its word, none of these buys anything"
                .into(),
        );
    }
    if prove.batch {
        units += steps::BATCH * 2 + 1;
        plan.push(format!(
            "asks for {} units, which the provider should refuse, and for {}",
            steps::BATCH + 1,
            steps::BATCH
        ));
    }
    let price = prove.option.rsplit_once('@');
    let price = price.and_then(|(_, price)| price.parse::<f64>().ok());
    let units_text = counted(units, "unit", "units");
    plan.push(match price {
        Some(price) => format!(
            "costs at most {:.2} ({units_text}), before anything is given back",
            price * f64::from(u32::try_from(units).unwrap_or(u32::MAX))
        ),
        None => format!("costs at most the price of {units_text}, before anything is given back"),
    });
    plan.push(
        match (can.give_back && can.usage, prove.keep) {
            (true, false) => "gives back at the end what it has bought, and tries to do so twice",
            (true, true) => "keeps the last purchase until the next run (--keep)",
            (false, _) => {
                "cannot give anything back: the protocol has no call for it, or we do not use it"
            }
        }
        .into(),
    );
    plan
}

/// Asks, unless `--yes` was given. Without a terminal nothing is bought.
fn confirm(prove: &ProviderProveArgs, plan: &str) -> anyhow::Result<()> {
    if prove.yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        bail!(
            "nothing was bought: {}; standard input is not a terminal, so confirm with --yes, or read the plan with --plan",
            one_line(plan)
        );
    }
    terminal::ask(format_args!("{plan}\nGo on? (yes/no) "))?;
    let mut answer = String::new();
    std::io::stdin()
        .read_line(&mut answer)
        .context("cannot read the answer")?;
    ensure!(
        answer.trim() == "yes",
        "nothing was bought, because the answer was not `yes`"
    );
    Ok(())
}
