//! The result of a run, as a table or as JSON.

use crate::book::{Arrival, Asked, Settled};
use crate::inject::Happened;
use crate::verdict::{Counts, Verdict};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Display, Formatter};
use std::time::Duration;
use testkit::rows;
use testkit::table::{figure, table};

/// How many counted faults of a kind, none of which struck, make the run red. With a fault every
/// two seconds the least share of a kind that struck was one in three, so none of ten strikes once
/// in 60 runs that have so many of it; with fewer faults at a time the shares are two in three and
/// more.
const MUST_STRIKE: usize = 10;
/// How many ids the text shows for each broken promise. JSON lists all of them.
const SHOWN: usize = 20;

#[derive(Debug, Serialize)]
pub struct Report {
    pub seed: u64,
    pub command: String,
    pub detects_duplicates: bool,
    pub settle_seconds: f64,
    pub park_after_seconds: f64,
    pub orders_per_second: f64,
    /// The time from the first order to the verdict.
    pub took_seconds: f64,
    /// The time from the end of the last fault until nothing was in flight any more.
    pub healed_after_seconds: f64,
    pub faults: usize,
    pub faults_by_kind: BTreeMap<String, Kind>,
    pub happened: Vec<Happened>,
    pub verdict: Verdict,
}

/// The faults of one kind, and how long the system took to recover from them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Kind {
    pub faults: usize,
    pub median_recovery_seconds: Option<f64>,
    pub longest_recovery_seconds: Option<f64>,
    /// Of how many of them somebody counted how often they were met; how many of these were; and
    /// how often in all.
    pub counted: usize,
    pub struck: usize,
    pub met: u64,
}

impl Kind {
    /// Whether some of these faults should have struck, and none did. Then the run has not tried
    /// what it says.
    pub fn never_struck(&self) -> bool {
        self.counted >= MUST_STRIKE && self.struck == 0
    }

    /// How many of these faults struck, and how often they were met. Nothing if nobody counts that,
    /// because the fault itself is the effect: a process that is killed has ended.
    fn strikes(&self) -> String {
        if self.counted == 0 {
            return String::new();
        }
        format!("{} of {}, {} times", self.struck, self.counted, self.met)
    }
}

/// Measures how long the system took to recover from each fault. This is the time from the end of
/// the fault until the first webhook of an order that was sent after that end, because such an
/// order has passed through every stage. A fault without such an order has no recovery time.
pub fn recoveries(
    happened: &[Happened],
    asked: &[Asked],
    arrivals: &[Arrival],
) -> BTreeMap<String, Kind> {
    let created = asked
        .iter()
        .filter(|one| one.settled == Some(Settled::Created));
    let sent: HashMap<&str, Duration> = created
        .flat_map(|one| one.topups.iter().map(|topup| (topup.as_str(), one.sent)))
        .collect();
    let passed = arrivals
        .iter()
        .filter_map(|one| Some((one.at, *sent.get(one.topup_id.as_str())?)));
    let mut passed: Vec<(Duration, Duration)> = passed.collect();
    passed.sort_unstable();
    let mut times: BTreeMap<String, (Kind, Vec<f64>)> = BTreeMap::new();
    for fault in happened {
        let after = passed.partition_point(|(at, _)| *at <= fault.until);
        let first = passed[after..]
            .iter()
            .find(|(_, sent)| *sent >= fault.until);
        let (kind, times) = times.entry(fault.kind.clone()).or_default();
        kind.faults += 1;
        if let Some(met) = fault.met {
            kind.counted += 1;
            kind.struck += usize::from(met > 0);
            kind.met += met;
        }
        times.extend(first.map(|(at, _)| at.saturating_sub(fault.until).as_secs_f64()));
    }
    let kind = |(kind, mut times): (Kind, Vec<f64>)| {
        times.sort_unstable_by(f64::total_cmp);
        Kind {
            median_recovery_seconds: times.get(times.len() / 2).copied(),
            longest_recovery_seconds: times.last().copied(),
            ..kind
        }
    };
    times
        .into_iter()
        .map(|(name, times)| (name, kind(times)))
        .collect()
}

impl Display for Report {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let detection = if self.detects_duplicates { "on" } else { "off" };
        let orders = table("orders |", counted(&self.verdict.counts));
        writeln!(
            formatter,
            "seed {}, the provider's duplicate detection {detection}",
            self.seed
        )?;
        writeln!(formatter, "repeat with: {}\n\n{orders}\n", self.command)?;
        let kinds = self.faults_by_kind.iter().map(|(name, kind)| {
            let median = kind.median_recovery_seconds;
            let longest = kind.longest_recovery_seconds;
            [
                name.clone(),
                kind.faults.to_string(),
                figure(median, 1),
                figure(longest, 1),
                kind.strikes(),
            ]
        });
        let total = [
            "all".into(),
            self.faults.to_string(),
            String::new(),
            String::new(),
            String::new(),
        ];
        let head = "fault | times | median s to recover | longest | struck, and was met";
        writeln!(formatter, "{}", table(head, kinds.chain([total])))?;
        writeln!(
            formatter,
            "\n{:.0} s in all; at rest {:.0} s after the last fault",
            self.took_seconds, self.healed_after_seconds
        )?;
        for (broken, ids) in &self.verdict.broken {
            writeln!(formatter, "\nBROKEN: {} ({})", broken.text(), ids.len())?;
            for id in ids.iter().take(SHOWN) {
                writeln!(formatter, "  {id}")?;
            }
            if ids.len() > SHOWN {
                writeln!(
                    formatter,
                    "  and {} more (--json has all)",
                    ids.len() - SHOWN
                )?;
            }
        }
        let result = if self.verdict.green() {
            "the promise held"
        } else {
            "THE PROMISE IS BROKEN"
        };
        write!(formatter, "\n{result}")
    }
}

fn counted(counts: &Counts) -> Vec<[String; 2]> {
    let bought = usize::try_from(counts.units_bought).unwrap_or(usize::MAX);
    let given_back = usize::try_from(counts.units_given_back).unwrap_or(usize::MAX);
    let all: [(&str, usize); 26] = rows! {
        "orders" => counts.orders;
        "  answered 201" => counts.answered_201;
        "    of these after a request without answer" => counts.answered_201_later;
        "  answered 4xx" => counts.answered_4xx;
        "  unanswered, then already taken" => counts.unanswered_then_taken;
        "  never settled" => counts.never_settled;
        "requests" => counts.requests;
        "clients that hung up" => counts.clients_hung_up;
        "units stored (without refused orders)" => counts.units_stored;
        "units bought" => bought;
        "placements bought twice" => counts.placements_bought_twice;
        "units never bought" => counts.units_never_bought;
        "units delivered" => counts.units_delivered;
        "units lost" => counts.lost;
        "units given back" => given_back;
        "extensions stored" => counts.extensions;
        "extensions added" => counts.extensions_added;
        "entries of accounts" => counts.entries;
        "units whose ICCID another one has, too" => counts.iccids_again;
        "answers forgotten with lost commits" => counts.answers_forgotten;
        "purchases that recover names as orphans" => counts.orphans_named;
        "histories compared with the model" => counts.histories;
        "  different ones" => counts.histories_distinct;
        "  given up" => counts.histories_undecided;
        "webhooks" => counts.webhooks;
        "  acknowledged again" => counts.duplicates;
    };
    let number = |name: &str, value: usize| [name.to_owned(), value.to_string()];
    let mut rows: Vec<_> = all
        .into_iter()
        .map(|(name, value)| number(name, value))
        .collect();
    for (what, reasons) in [("parked", &counts.parked), ("failed", &counts.failed)] {
        rows.push(number(&format!("units {what}"), reasons.values().sum()));
        rows.extend(
            reasons
                .iter()
                .map(|(reason, units)| number(&format!("  {reason}"), *units)),
        );
    }
    rows
}
