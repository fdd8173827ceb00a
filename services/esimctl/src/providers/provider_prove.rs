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

use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, anyhow, bail, ensure};
use clap::{Args, builder::NonEmptyStringValueParser};
use desk::operator::words::counted;
use provisioner::providers::{Accounts, CallLimits, PacedCalls, Provider};
use runtime::terminal;
use serde::Serialize;
use store::proofs::{self, LeftPurchase, ProvedAccount};

use self::{
    esims::BoughtEsims,
    purchases::{ProofLine, Purchases},
    steps::{Follows, Proving, Step, gives_back, sells_two},
};
use crate::{
    console::{Console, stopped},
    output::{cells, one_line, table},
};

mod esims;
mod purchases;
mod steps;

pub const EXAMPLES: &str = "Examples:
  esimctl provider prove esim-access --option JP-1GB-7D@0.90 --plan
  esimctl provider prove esim-access --option JP-1GB-7D@0.90 --evidence proof.json
  esimctl provider prove esim-access --option JP-1GB-7D@0.90 --batch --yes
  esimctl provider prove airalo --option change-7days-1gb@1.10

It reads the account from the settings of the provisioner, as `provider check` does. Take the cheapest product, and a time
without orders, because it watches the balance. It shows what it buys and the most that it costs, and asks. What it has
bought is given back at the end, where the provider takes eSIMs back. In Airalo's sandbox mode nothing costs anything.

Ctrl-C prints what was bought and is not given back. Run the same command again: it takes up what is left. With --keep the
last purchase stays, and the next run, a day later, proves that a repeat is safe for so long.

--json prints {\"provider\":…,\"account\":…,\"interrupted\":false,\"steps\":[{\"question\":…,\"asked\":…,\"came\":…,
\"follows\":…}],\"purchases\":[{\"purchase_id\":…,\"option\":…,\"units\":1,\"references\":[…],\"outcome\":…}]}; with --plan
{\"plan\":[…],\"units_most\":…,\"cost_most\":…}. The exit status is 1 if an answer contradicts what the provider documents,
or if the proof did not come to its end.";

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
    /// Buy also as many units as the provider documents for one purchase, and one more
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
    /// Whether it did not come to its end.
    interrupted: bool,
    steps: &'a [Step],
    purchases: &'a [ProofLine],
}

/// What is bought, and what that costs at most.
#[derive(Serialize)]
struct ProofPlan {
    plan: Vec<String>,
    units_most: usize,
    /// In the currency of the account; `None` if the option names no price.
    cost_most: Option<String>,
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
    let batch = batch(prove)?;
    let account = prove.accounts.digest(&prove.name);
    let mut connection = console.connect().await?;
    let of = ProvedAccount {
        provider: &prove.name,
        account: &account,
    };
    let left = proofs::left(&mut connection, of).await?;
    let plan = plan(prove, &*provider, &left, batch);
    if prove.plan {
        return console.print(&plan, || plan.plan.join("\n"));
    }
    confirm(prove, &plan.plan.join("\n"))?;
    // A file that cannot be written is told before anything is bought.
    if let Some(file) = &prove.evidence {
        std::fs::write(file, "").with_context(|| unwritable(file))?;
    }
    let secret = |setting| prove.accounts.get(&prove.name, setting);
    let secrets = ["ACCESS_KEY", "SECRET_KEY", "CALLBACK_TOKEN"].map(secret);
    let secrets = secrets.into_iter().flatten().map(str::trim);
    let mut proving = Proving {
        provider,
        can,
        connection: &mut connection,
        of,
        option: &prove.option,
        price: price_of(&prove.option),
        is_too_dear: false,
        wait: prove.wait,
        keep: prove.keep,
        batch,
        secrets: secrets
            .filter(|one| !one.is_empty())
            .map(str::to_owned)
            .collect(),
        steps: Vec::new(),
        purchases: Purchases::default(),
        esims: BoughtEsims::default(),
    };
    let ended = tokio::select! {
        ended = proving.all(left) => ended,
        signal = stopped() => match signal {
            Ok(()) => Err(anyhow!("it was told to stop")),
            Err(error) => Err(error).context("signals cannot be received"),
        },
    };
    let Proving {
        steps, purchases, ..
    } = proving;
    let report = ProofReport {
        provider: &prove.name,
        account: &account,
        option: &prove.option,
        at: runtime::clock::now(),
        interrupted: ended.is_err(),
        steps: &steps,
        purchases: purchases.lines(),
    };
    let printed = console.print(&report, || text(&steps, &purchases));
    if let Some(file) = &prove.evidence {
        std::fs::write(file, serde_json::to_string_pretty(&report)?)
            .with_context(|| unwritable(file))?;
    }
    if let Err(error) = ended {
        let left = match purchases.left() {
            Some(left) => format!("not given back: {left}; run the same command again, and it is"),
            None => "nothing is left to give back".to_owned(),
        };
        bail!("the proof did not come to its end ({error:#}); {left}");
    }
    printed?;
    judge(prove, &steps)
}

/// An error if the provider contradicts its documents.
fn judge(prove: &ProviderProveArgs, steps: &[Step]) -> anyhow::Result<()> {
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

fn text(steps: &[Step], purchases: &Purchases) -> String {
    let steps = table(steps.iter().map(|step| {
        cells!(step:
            question = step.question.to_owned(), came = step.came.clone(),
            follows = step.follows.as_str().to_owned(),
        )
    }));
    format!("{steps}\n\n{}", purchases.text())
}

fn unwritable(file: &Path) -> String {
    format!("cannot write the evidence to {}", file.display())
}

/// The units of the batch to try.
fn batch(prove: &ProviderProveArgs) -> anyhow::Result<Option<usize>> {
    if !prove.batch {
        return Ok(None);
    }
    let most = domain::cut::cut(&prove.name).units;
    let most = most.filter(|most| most.get() > 1).with_context(|| {
        format!(
            "{} documents no largest number of units of a purchase: leave --batch out",
            prove.name
        )
    })?;
    Ok(Some(most.get()))
}

/// What is bought, what it costs at most, how it is given back, and what only a person can ask.
fn plan(
    prove: &ProviderProveArgs,
    provider: &dyn Provider,
    left: &[LeftPurchase],
    batch: Option<usize>,
) -> ProofPlan {
    let can = provider.capabilities();
    let refused = provider.refused_products().len();
    let mut plan = Vec::new();
    let mut units = 1;
    if !left.is_empty() {
        let repeated = left.iter().filter(|one| one.same_again == Some(true));
        let repeated: i32 = repeated.map(|one| one.units).sum();
        units += usize::try_from(repeated).unwrap_or_default();
        plan.push(format!(
            "takes up {} of an earlier proof: looks it up, repeats it once if that was the same purchase before, and \
             gives it back",
            counted(left.len(), "purchase", "purchases")
        ));
    }
    if refused > 0 {
        units += refused;
        plan.push(format!(
            "asks for {} that the provider refuses, to see how",
            counted(refused, "product", "products")
        ));
    }
    plan.push(format!("buys one unit of {}", prove.option));
    if can.purchase_key {
        // Two repeats, a second purchase that is sent twice, and one of two units.
        units += 6;
        plan.push(
            "repeats the identical request at once and after the wait, asks for two units under the same id, and buys \
             one more unit by two identical requests at the same moment; if the provider keeps its word, only the last \
             of these buys anything"
                .into(),
        );
    }
    if sells_two(&prove.name) {
        units += 2;
        plan.push("buys two units in one purchase".into());
    }
    if let Some(batch) = batch {
        units += batch * 2 + 1;
        plan.push(format!(
            "asks for {} units, which is more than the provider documents, and for {batch}",
            batch + 1,
        ));
    }
    let price = price_of(&prove.option);
    let cost_most = price.map(|price| {
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        format!("{:.2}", price * f64::from(units))
    });
    let units_text = counted(units, "unit", "units");
    plan.push(match &cost_most {
        Some(cost) => format!(
            "costs at most {cost} ({units_text}), before anything is given back, if the provider keeps no word"
        ),
        None => format!(
            "costs at most the price of {units_text}, before anything is given back, if the provider keeps no word"
        ),
    });
    plan.push(
        match (gives_back(can), prove.keep) {
            (true, false) => "gives back at the end what it has bought, and tries to do so twice",
            (true, true) => "keeps the purchase of one unit until the next run (--keep)",
            (false, _) => {
                "cannot give anything back: the protocol has no call for it, or we do not use it"
            }
        }
        .into(),
    );
    let open = provider.open_questions().iter();
    plan.extend(open.map(|one| format!("leaves to a person {}: {}", one.question, one.how)));
    ProofPlan {
        plan,
        units_most: units,
        cost_most,
    }
}

/// The price behind `@`.
fn price_of(option: &str) -> Option<f64> {
    let (_, price) = option.rsplit_once('@')?;
    price.parse().ok()
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
