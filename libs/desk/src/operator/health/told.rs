//! What people are told of a finding: what it is, who is affected, what to do, and where to read
//! on. Nothing decides by these sentences.

use std::borrow::Cow;

use domain::standing::EndpointState;
use pg::down;
use serde::Serialize;
use store::{
    figures::{self, Measure},
    provider_lanes::WaitingLane,
    providers::BreakerState,
};
use time::OffsetDateTime;

use super::{
    finding::{
        AffectedEnvironment, Clock, FailureKind, Finding, FindingKind, LeadingCode, Severity,
    },
    phrases::{leads, named, still_used, times, wait, whose},
    slow::{bound, took_of},
    stages::Stage,
    waiting::SANDBOX,
};
use crate::operator::{
    esim_changes::ListedEsimChange,
    minute::minute,
    words::{counted, noun},
};

/// A finding in sentences.
#[derive(Clone, Debug, Serialize)]
pub struct FindingText {
    pub severity: Severity,
    /// Whether somebody has to do something. Otherwise it ends by itself.
    pub needs_person: bool,
    pub what: String,
    #[serde(with = "time::serde::rfc3339::option")]
    pub since: Option<OffsetDateTime>,
    /// The effect on partners.
    pub felt: Cow<'static, str>,
    /// What to do.
    #[serde(rename = "do")]
    pub remedy: Cow<'static, str>,
    /// The command that ends it, once the cause is gone or known, or that shows the cause.
    pub command: Option<String>,
    /// The section of the runbook.
    pub see: String,
    /// The alert that fires for it.
    pub alert: Option<&'static str>,
}

impl Finding {
    /// The finding in sentences.
    pub fn told(&self) -> FindingText {
        FindingText {
            severity: self.severity(),
            needs_person: self.needs_person(),
            what: self.kind.what(),
            since: self.since,
            felt: self.kind.felt(),
            remedy: self.remedy(),
            command: self.kind.command(),
            see: self.see(),
            alert: self.alert(),
        }
    }

    /// What to do. What needs a stage that is dead says so, because nothing else ends it.
    fn remedy(&self) -> Cow<'static, str> {
        let remedy = match &self.kind {
            FindingKind::BreakerOpen { breaker } if self.is_long() && !breaker.denied => {
                "ask the provider what is wrong; once it responds, a running provisioner finds that with the next order that waits, and buys again. Products that another provider sells can be bought there first meanwhile".into()
            }
            FindingKind::LanesHeldBack { .. } if self.is_long() => {
                "ask the provider what became of these purchases; they are bought again once look-ups have settled the unknown ones".into()
            }
            kind => kind.remedy(),
        };
        match self.after {
            None => remedy,
            Some(stage) => Cow::Owned(format!(
                "{} has to run again first, because nothing else ends this; then {remedy}",
                stage.as_str()
            )),
        }
    }
}

/// How long something has lasted, in its largest units: `12 s`, `3 min`, `2 h 5 min`, `3 d 4 h`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from a float saturates"
)]
pub fn lasted(seconds: f64) -> String {
    match seconds.max(0.0) as u64 {
        seconds @ ..100 => format!("{seconds} s"),
        seconds @ 100..3_600 => format!("{} min", seconds / 60),
        seconds @ 3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
        seconds => format!("{} d {} h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

fn of_seconds(seconds: u64) -> String {
    u32::try_from(seconds).map_or_else(|_| "136 years".to_owned(), |seconds| lasted(seconds.into()))
}

/// Where those ran that do not answer: they may have died, or hang.
fn ran_on(hosts: &[String]) -> String {
    match hosts {
        [] => String::new(),
        hosts => format!(
            " ({} {} not answer)",
            named(hosts),
            noun(hosts.len(), "does", "do")
        ),
    }
}

fn what_waits(stage: Stage, waiting: u64, oldest: f64) -> String {
    let (one, several) = match stage {
        Stage::Ingress => return String::new(),
        Stage::Provisioner => ("purchase or look-up", "purchases and look-ups"),
        Stage::Notifier => ("webhook", "webhooks"),
    };
    if waiting == 0 {
        return "; nothing waits for it yet".to_owned();
    }
    format!(
        "; {} {} for it, the oldest for {}",
        times(waiting, one, several),
        noun(waiting, "waits", "wait"),
        lasted(oldest)
    )
}

/// Changes of eSIMs that are on hold at a provider.
fn parked_changes(changes: &[ListedEsimChange], at: &str, provider: &str) -> String {
    match changes {
        [one] => format!(
            "{} of {} {at} {provider} is on hold. Look there for its number {}; the last answer was: {}",
            one.kind().with_article(),
            one.partner.as_deref().unwrap_or("a partner"),
            one.provider_unit_id.as_deref().unwrap_or("not known"),
            one.message.as_deref().unwrap_or("no reason is recorded")
        ),
        several => {
            let kind = several.first().map_or("", |one| one.kind().words());
            format!("{} {kind} {at} {provider} are on hold", several.len())
        }
    }
}

impl FindingKind {
    /// What it is, without since when.
    #[expect(
        clippy::too_many_lines,
        reason = "one match, so that a kind without a sentence does not compile"
    )]
    pub fn what(&self) -> String {
        match self {
            Self::StageDead {
                stage,
                waiting,
                oldest,
                on,
            } => format!(
                "{}: no process has committed for ten seconds{}{}",
                stage.as_str(),
                ran_on(on),
                what_waits(*stage, *waiting, *oldest)
            ),
            Self::DatabaseDown { why } => down::what(why),
            Self::CommitsLost { providers, told } => format!(
                "PostgreSQL has lost commits, so nothing is bought from {}: {}",
                named(providers),
                told.as_deref().unwrap_or("no reason is recorded")
            ),
            Self::OnStandby => "DATABASE_URL leads to a standby, which takes no orders".into(),
            Self::NotDurable { settings } => {
                let settings: Vec<&str> = settings.iter().map(|one| (*one).into()).collect();
                format!(
                    "a crash of the server loses answered orders, because it is off: {}",
                    settings.join(", ")
                )
            }
            Self::StandbyMissing => {
                "synchronous_standby_names names a standby, but none streams, so commits wait".into()
            }
            Self::ClockOff { of, ahead } => {
                let (whose, compared, effect) = match of {
                    Clock::Stage(stage) => (
                        format!("a process of {}", stage.as_str()),
                        "PostgreSQL's",
                        ", so that process does nothing",
                    ),
                    _ => (of.owner().to_owned(), "this machine's", ""),
                };
                format!(
                    "{}{effect}",
                    down::clock(&whose, *ahead, compared)
                )
            }
            Self::OrdersFail {
                how,
                partner,
                everything,
                failed,
                all,
                last,
                partners,
                others,
                ended_keys,
                leading,
            } => {
                let which = if *everything {
                    format!("all {all} of the newest")
                } else {
                    format!("{failed} of the newest {all}")
                };
                let names: Vec<String> = partners.iter().map(|one| one.name.clone()).collect();
                let (of, felt) = match (partner, &names[..]) {
                    (_, []) => (String::new(), String::new()),
                    (Some(_), [name, ..]) => (format!(" of {name}"), String::new()),
                    (None, names) if *others > 0 => {
                        let in_all = names.len().saturating_add(*others);
                        (String::new(), format!("; {in_all} partners feel it"))
                    }
                    (None, names) => (String::new(), format!("; felt by {}", named(names))),
                };
                format!(
                    "{}{of} {}: {which}{felt}, the last one at {}{}{}",
                    if *how == FailureKind::Denied { "requests" } else { "orders" },
                    match how {
                        FailureKind::Errors => "fail with a 5xx",
                        FailureKind::Denied if names.is_empty() => {
                            "without an access key that we know are answered with a 401"
                        }
                        FailureKind::Denied => "are answered with a 401",
                        FailureKind::Refused => {
                            "are refused with a 422, because the provider rejects them or cannot be reached"
                        }
                        FailureKind::Invalid => {
                            "are refused with a 4xx, because of what is in them, the limit of a key or the balance"
                        }
                        FailureKind::Limited => "are refused with a 429, because they are above a limit",
                    },
                    minute(*last),
                    still_used(ended_keys, partner.is_none().then_some(partners)),
                    leads(leading.as_ref())
                )
            }
            Self::Wraparound { age } => format!(
                "the oldest row is {age} transactions old; PostgreSQL stops all writes near 2 billion"
            ),
            Self::ProcessesMissing {
                stage,
                missing,
                running,
                on,
            } => format!(
                "{}: {running} of {} processes run{}",
                stage.as_str(),
                running.saturating_add(*missing),
                ran_on(on)
            ),
            Self::Unserved { providers, .. } => format!(
                "products name {}, which no provisioner has ever served",
                named(providers)
            ),
            Self::PurchasesLate {
                provider,
                waiting,
                oldest,
                breaker_open,
            } => format!(
                "{provider}: {waiting} wait to be bought{}, the oldest for {}",
                if *breaker_open {
                    " while it has stopped buying"
                } else {
                    ""
                },
                lasted(*oldest)
            ),
            Self::WebhooksLate {
                environment,
                waiting,
                oldest,
            } => {
                let partners = match environment {
                    AffectedEnvironment::Live => "live",
                    AffectedEnvironment::Sandbox => "sandbox",
                };
                format!(
                    "{} to be sent; the oldest to {partners} partners for {}",
                    counted(*waiting, "webhook waits", "webhooks wait"),
                    lasted(*oldest)
                )
            }
            Self::Slow {
                measure,
                subject,
                half,
                before,
                newest,
                hours,
                ..
            } => {
                // Both are limits: the lower one of now, and the upper one of before.
                let now = format!(
                    "{}: usually more than {} (the newest {newest})",
                    took_of(*measure, subject),
                    figures::told(*half),
                );
                match before {
                    Some(before) => format!(
                        "{now}, before that up to {} ({})",
                        figures::told(*before),
                        counted(*hours, "hour", "hours")
                    ),
                    None => format!(
                        "{now}; no usual time is known yet, and more than {} is slow",
                        figures::told(bound(*measure))
                    ),
                }
            }
            Self::Parked {
                provider,
                reason,
                purchases,
                in_all,
            } => {
                let reason = reason.as_deref().unwrap_or("no reason is recorded");
                let elsewhere = purchases.iter().flat_map(|one| one.elsewhere.iter().cloned());
                let mut elsewhere: Vec<String> = elsewhere.collect();
                elsewhere.sort_unstable();
                elsewhere.dedup();
                let elsewhere = if elsewhere.is_empty() {
                    String::new()
                } else {
                    format!(" (look it up at {}, too)", named(&elsewhere))
                };
                match &purchases[..] {
                    [] => format!(
                        "{} at {provider} {} on hold in all, and only the oldest are listed",
                        times(*in_all, "purchase", "purchases"),
                        noun(*in_all, "is", "are")
                    ),
                    [one] if one.bought => format!(
                        "order {} is bought, and on hold at {provider}: {reason}{elsewhere}",
                        one.external_order_id
                    ),
                    [one] => format!(
                        "order {} is on hold at {provider}, unknown whether it was bought: {reason}{elsewhere}",
                        one.external_order_id
                    ),
                    several if several.iter().any(|one| one.bought) => format!(
                        "{} purchases are on hold at {provider}: {reason}{elsewhere}",
                        several.len()
                    ),
                    several => format!(
                        "{} purchases are on hold at {provider}, unknown whether they were bought: {reason}{elsewhere}",
                        several.len()
                    ),
                }
            }
            Self::GiveBacksParked { provider, changes } => parked_changes(changes, "to", provider),
            Self::ExtensionsParked { provider, changes } => parked_changes(changes, "at", provider),
            Self::NoAddress { name, webhooks, .. } => format!(
                "{} of {name} {} for an address: {name} has set no URL for them",
                times(*webhooks, "webhook", "webhooks"),
                noun(*webhooks, "waits", "wait"),
            ),
            Self::Exhausted { endpoint } => format!(
                "{} to {} {} given up after the last retry",
                counted(endpoint.exhausted, "webhook", "webhooks"),
                whose(endpoint),
                noun(endpoint.exhausted, "was", "were"),
            ),
            Self::Paused { endpoint } if endpoint.state == EndpointState::PausedByPartner => format!(
                "the partner has paused {} itself, and {}",
                whose(endpoint),
                wait(endpoint)
            ),
            Self::Paused { endpoint } => format!(
                "an operator has paused {}, and {}",
                whose(endpoint),
                wait(endpoint)
            ),
            Self::BreakerOpen { breaker } if breaker.opened_by_operator() => format!(
                "an operator has stopped buying at {}{}: {}",
                breaker.name,
                breaker
                    .open_until
                    .map(|until| format!(" until {}", minute(until)))
                    .unwrap_or_default(),
                breaker.reason.as_deref().unwrap_or("no reason is recorded")
            ),
            Self::BreakerOpen { breaker } if breaker.denied => format!(
                "{} denies our account, so nothing is bought there: {}",
                breaker.name,
                breaker.reason.as_deref().unwrap_or("no reason is recorded")
            ),
            Self::BreakerOpen { breaker } => format!(
                "{}: {}",
                match breaker.state {
                    // While a test is under way it is open.
                    BreakerState::HalfOpen => {
                        format!("buying at {} has stopped, and its test is due", breaker.name)
                    }
                    BreakerState::Open | BreakerState::Closed => {
                        format!("buying at {} has stopped", breaker.name)
                    }
                },
                breaker.reason.as_deref().unwrap_or("no reason is recorded")
            ),
            Self::LanesHeldBack { provider, lanes } => {
                let name = |one: &WaitingLane| one.product.clone().unwrap_or_else(|| one.lane.clone());
                let names: Vec<String> = lanes.iter().map(name).collect();
                format!(
                    "{} {} held back at {provider}: {}",
                    named(&names),
                    noun(names.len(), "is", "are"),
                    lanes.first().map_or("", |one| one.reason.as_str())
                )
            }
            Self::Blocked { endpoint } => format!(
                "{} is blocked after {} in a row, and {}",
                whose(endpoint),
                counted(endpoint.failures, "failure", "failures"),
                wait(endpoint)
            ),
            Self::ConnectionsFew { used, most } => {
                format!("{used} of {most} connections are in use")
            }
            Self::StandbyLags { seconds } => format!("a standby is {} behind", of_seconds(*seconds)),
            Self::LongTransaction { seconds, of } => {
                format!("a transaction has been open for {} ({of})", of_seconds(*seconds))
            }
            Self::NotArchived => {
                "WAL is not archived, so a restore loses everything since the last base backup".into()
            }
            Self::ArchiveLags { seconds } => {
                format!("WAL has not been archived for {}", of_seconds(*seconds))
            }
            Self::AccountsDisagree {
                checked_at,
                found,
                first,
            } => {
                let named = first.first().map_or_else(String::new, |one| {
                    format!(", such as: {} in {}: {}", one.partner, one.currency, one.what)
                });
                format!(
                    "accounts disagree with what was ordered in {}, as was found at {}{named}",
                    counted(*found, "place", "places"),
                    minute(*checked_at)
                )
            }
            Self::BalanceRunsOut(one) => format!(
                "{} has {} left to order for, and has spent {} in the last 24 hours",
                one.name, one.available, one.spent
            ),
            Self::SoldBelowCost(list) => {
                let options = list.options.iter();
                let mut named: Vec<String> = options
                    .map(|one| format!("{} for {}, which costs {}", one.option, one.price, one.cost))
                    .collect();
                let named_count = u64::try_from(named.len()).unwrap_or(u64::MAX);
                let more = list.in_all.saturating_sub(named_count);
                if more > 0 {
                    named.push(format!("{more} more"));
                }
                format!("the price list {} sells below cost: {}", list.price_list, named.join("; "))
            }
            Self::RetentionBehind { seconds } => {
                format!("rows have been past their term for {}", of_seconds(*seconds))
            }
            Self::NotSynchronous => {
                "commits wait for no standby, although REQUIRE_SYNCHRONOUS is set, so no stage works".into()
            }
            Self::NatsDown { why } => why.clone(),
            Self::NatsRefuses { stage, what } => format!(
                "NATS refuses messages of {}, because its user lacks a permission: {what}",
                stage.as_str()
            ),
            Self::StreamMissing { stream } => format!("{stream} does not exist"),
            Self::ReplicasMissing { stream, on } => {
                format!("{stream} lacks its copies on {}", named(on))
            }
            Self::ConsumerMissing { stream } => format!(
                "nobody takes the messages of {stream}, so work begins seconds later than it could"
            ),
            Self::DeadMessages { stream, messages } => {
                format!(
                    "{stream} holds {} that a stage could not read",
                    counted(*messages, "message", "messages")
                )
            }
            Self::BackupOld { hours: None } => "no file tells of a base backup".into(),
            Self::BackupOld { hours: Some(hours) } => {
                format!(
                    "the last base backup is {} old",
                    counted(*hours, "hour", "hours")
                )
            }
            Self::DrillOld { days: None } => "no file tells of a restore that was tried".into(),
            Self::DrillOld { days: Some(days) } => {
                format!(
                    "the last restore was tried {} ago",
                    counted(*days, "day", "days")
                )
            }
            Self::DiskFilling { volume, percent } => {
                format!("{percent:.0} % of {volume} are free")
            }
        }
    }

    /// Who feels it, and how. Each sentence stands beside those of other findings, so it says
    /// nothing of what another stage does.
    pub fn felt(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::StageDead { stage, .. } => match stage {
                Stage::Ingress => "No partner can order: requests get no response, or a 5xx.",
                Stage::Provisioner => "Nothing is bought. Orders that were accepted wait.",
                Stage::Notifier => "No partner gets a webhook until one runs again.",
            },
            Self::DatabaseDown { .. } => down::FELT,
            Self::CommitsLost { .. } => "Nothing is bought there. Orders that were accepted wait.",
            Self::OnStandby => "No partner can order.",
            Self::NotDurable { .. } => "Nobody now. A crash would lose orders that were answered.",
            Self::StandbyMissing | Self::NotSynchronous => {
                "No partner can order: commits wait, and orders get a 5xx."
            }
            Self::ClockOff {
                of: Clock::Stage(stage),
                ..
            } => match stage {
                Stage::Ingress => "Orders that reach this process get a 500 or a 401.",
                Stage::Provisioner => "If all have it, nothing is bought. Orders wait.",
                Stage::Notifier => "If all have it, no partner gets a webhook.",
            },
            Self::ClockOff { .. } => down::CLOCK_FELT,
            Self::Wraparound { .. } => "Nobody yet. At 2.1 billion, every order gets a 500.",
            Self::ProcessesMissing { .. } => "Nobody, as long as the others carry the load.",
            Self::Unserved { .. } => {
                "Partners get option_not_found; if ingress has it in PROVIDERS, their orders wait."
            }
            Self::PurchasesLate { provider, .. } if provider == SANDBOX => {
                "Sandbox partners wait for their test eSIMs."
            }
            Self::PurchasesLate { .. } => "Customers of partners wait for their eSIMs.",
            Self::WebhooksLate { environment, .. } => match environment {
                AffectedEnvironment::Live => "Customers of partners wait for their eSIMs.",
                AffectedEnvironment::Sandbox => "Sandbox partners wait for their webhooks.",
            },
            Self::Slow { before: None, .. } => "Partners and their customers wait for long.",
            Self::Slow { .. } => "Partners and their customers wait longer than they are used to.",
            Self::Parked { .. } => "The customers of these orders wait for their eSIMs.",
            Self::GiveBacksParked { .. } => "Partners wait for the answer to their give-backs.",
            Self::ExtensionsParked { .. } => {
                "Customers wait for the data that partners have ordered for their eSIMs."
            }
            Self::OrdersFail { how, .. } => match how {
                FailureKind::Errors => {
                    "The partners whose orders fail. They repeat them under the same id, and nothing is bought twice."
                }
                FailureKind::Denied => {
                    "Whoever sends these requests: nothing of them is stored, and no repeat helps."
                }
                FailureKind::Refused | FailureKind::Invalid => {
                    "The partners whose orders are refused. Nothing is bought for these."
                }
                FailureKind::Limited => {
                    "Whoever sent these orders has to send them again, more slowly."
                }
            },
            Self::NoAddress { .. } | Self::Exhausted { .. } => {
                "Partners do not know of these eSIMs, unless they ask."
            }
            Self::Paused { .. } | Self::Blocked { .. } => {
                "No webhook is sent there. No retry is used up."
            }
            Self::BreakerOpen { .. } => "Orders for it wait or are refused. Nothing is lost.",
            Self::LanesHeldBack { .. } => "Orders of these products wait.",
            Self::ConnectionsFew { .. } => "Nobody yet. Without connections, orders get a 500.",
            Self::StandbyLags { .. } => "Nobody. A failover would have to wait for it.",
            Self::LongTransaction { .. } => {
                "Nobody yet. Tables grow, and migrations wait; so do orders whose message was lost, if it writes orders."
            }
            Self::NotArchived | Self::ArchiveLags { .. } => {
                "Nobody now. A restore would lose the changes since then."
            }
            Self::AccountsDisagree { .. } => {
                "Nobody at once. A balance or a statement may be wrong, and then too much is sold or refused."
            }
            Self::BalanceRunsOut(_) => {
                "Nobody yet. Once nothing is left, its orders get a 422 and buy nothing."
            }
            Self::SoldBelowCost(_) => "Nobody of the partners. We lose with each of these eSIMs.",
            Self::RetentionBehind { .. } => "Nobody. Data is kept for longer than was promised.",
            Self::NatsDown { .. }
            | Self::NatsRefuses { .. }
            | Self::StreamMissing { .. }
            | Self::ConsumerMissing { .. }
            | Self::DeadMessages { .. } => {
                "Partners wait some seconds longer, because a stage finds its work only when it looks."
            }
            Self::ReplicasMissing { .. } => {
                "Nobody. Without a majority, work begins seconds later."
            }
            Self::BackupOld { .. } | Self::DrillOld { .. } => {
                "Nobody now. A restore may take long, or fail."
            }
            Self::DiskFilling { .. } => "Nobody yet. On a full disk, every order gets a 500.",
        })
    }

    /// What to do, where nothing else is wrong.
    #[expect(
        clippy::too_many_lines,
        reason = "one match, so that a kind without a remedy does not compile"
    )]
    pub fn remedy(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::StageDead { .. } => {
                "ask it why it is not ready; if nothing answers it is dead or hangs: end it, start it again, and read its log"
            }
            Self::DatabaseDown { .. } => down::REMEDY,
            Self::CommitsLost { .. } => {
                "compare with the providers first; closing a breaker before could buy again what was forgotten"
            }
            Self::OnStandby => "point DATABASE_URL, or the proxy that it names, at the primary",
            Self::NotDurable { .. } => "turn it on and restart PostgreSQL",
            Self::StandbyMissing => {
                "start the standby; only if it is lost for good, empty synchronous_standby_names"
            }
            Self::ClockOff { .. } => down::CLOCK_REMEDY,
            Self::Wraparound { .. } => "find what holds vacuum back",
            Self::ProcessesMissing { .. } => {
                "ask it why it is not ready; if nothing answers it is dead or hangs: end it, start it again, and read its log; after an hour it is no longer missed"
            }
            Self::Unserved { .. } => {
                "add it to PROVIDERS of ingress and provisioner, or disable the products that name it"
            }
            Self::PurchasesLate { breaker_open, .. } => {
                if *breaker_open {
                    "call the provider; a running provisioner goes on buying there when it responds"
                } else {
                    "see whether a provisioner serves it, and how long its calls take"
                }
            }
            Self::WebhooksLate { .. } => "see whether notifiers run and can reach the internet",
            Self::Slow {
                measure,
                part_is_slow,
                ..
            } => match (measure, part_is_slow) {
                (Measure::Call, _) => "ask the provider why its calls take so long",
                (Measure::Bought, true) => {
                    "its calls are slow, too: ask the provider why they take so long"
                }
                (Measure::Bought, false) => {
                    "its calls are not slow, so orders wait here, or calls fail and are repeated: the figures of the last minutes say which; where many wait, raise PROVIDER_CONCURRENCY, PROVIDER_RATE or the number of provisioners"
                }
                (Measure::Delivered, true) => {
                    "the endpoints are slow, too: the figures of the last minutes name them"
                }
                (Measure::Delivered, false) => {
                    "the endpoints are not slow: see whether purchases are slow, and how many webhooks wait for notifiers"
                }
                (Measure::Answered, _) => {
                    "see whether purchases are slow, too; otherwise look at PostgreSQL, its disk and its standby"
                }
                (Measure::Attempt, _) => {
                    "see in the figures of the last minutes which endpoints respond slowly"
                }
                _ => {
                    "see in the figures of the last minutes what is slow since then: the calls to a provider, or the webhooks"
                }
            },
            Self::Parked { .. } => "look each one up at the provider, then record the outcome",
            Self::GiveBacksParked { .. } | Self::ExtensionsParked { .. } => {
                "look each eSIM up at the provider, then record the outcome"
            }
            Self::OrdersFail {
                how,
                partner,
                ended_keys,
                leading,
                ..
            } => match (how, partner) {
                (FailureKind::Errors, _) => {
                    "read in the log of ingress why (`answered with 500`): nearly always PostgreSQL does not take the order, because it is down, its disk is full or a right is missing; a 503 is a limit of ours"
                }
                (FailureKind::Denied, _) if !ended_keys.is_empty() => {
                    "tell the partner which key has ended, so that it gives its programs a valid one; if the key was in wrong hands, whoever has it is kept out, and nothing is to be done"
                }
                (FailureKind::Denied, Some(_)) => {
                    "ask the partner whether its keys or its clock have changed; the list of its refused requests says which check fails"
                }
                (FailureKind::Denied, None) => {
                    "see whether the clocks of our machines are right, and whether the proxy passes the headers and the path on as they came"
                }
                (FailureKind::Refused, _) => {
                    "read the reasons; if an option is sold out, take it out of sale, and if the provider cannot be reached, ask it"
                }
                (FailureKind::Invalid, _)
                    if leading.as_ref().is_some_and(LeadingCode::is_of_balance) =>
                {
                    "tell the partner that it has nothing left to order for; when it has paid, book the payment, or raise what it may owe"
                }
                (FailureKind::Invalid, Some(_)) => {
                    "see in the list of its refused requests what is wrong with them, and tell the partner"
                }
                (FailureKind::Invalid, None) => {
                    "see in the refused requests of these partners what is wrong with them: options that were taken out of sale, or a change of ours"
                }
                (FailureKind::Limited, _) => {
                    "ask the partner whether it means to send so many; if so, raise its limits"
                }
            },
            Self::NoAddress { .. } => {
                "tell the partner to set the URL for its webhooks; a running notifier then sends them"
            }
            Self::Exhausted { .. } => "when the endpoint works again, send them again",
            Self::Paused { endpoint } if endpoint.state == EndpointState::PausedByPartner => {
                "nothing: the partner ends it; ask the partner before you resume it"
            }
            Self::Paused { .. } => "when it may have webhooks again, resume it",
            Self::BreakerOpen { breaker } if breaker.opened_by_operator() => {
                "nothing: from that time on a running provisioner tests it with the next order that waits, and buying goes on when the provider responds; close the breaker to buy there sooner"
            }
            Self::BreakerOpen { breaker } if breaker.denied => {
                "set its key right and restart the provisioner, or ask the provider why it denies the account; buying then goes on by itself, with the next order that waits. Products that another provider sells can be bought there first meanwhile"
            }
            Self::BreakerOpen { breaker } => {
                return Cow::Owned(match breaker.open_until {
                    Some(until) => format!(
                        "nothing: from {} on a running provisioner tests it with the next order that waits, and buys again when the provider responds",
                        minute(until)
                    ),
                    None => {
                        "nothing: a running provisioner tests it, and buys again when the provider responds"
                            .to_owned()
                    }
                });
            }
            Self::LanesHeldBack { .. } => {
                "nothing: look-ups settle what is unknown, and then these products are bought by themselves"
            }
            Self::Blocked { endpoint } => {
                return Cow::Owned(match endpoint.blocked_until {
                    Some(until) if until > endpoint.read_at => format!(
                        "nothing: its next test is at {}, and the block ends when it succeeds; tell the partner",
                        minute(until)
                    ),
                    _ => "nothing: its next test is due now or under way, and the block ends when it succeeds; tell the partner"
                        .to_owned(),
                });
            }
            Self::ConnectionsFew { .. } => "lower DATABASE_CONNECTIONS, or raise max_connections",
            Self::StandbyLags { .. } => "see the load of the standby and the network to it",
            Self::LongTransaction { .. } => {
                "end it with pg_terminate_backend(pid), unless it is a dump"
            }
            Self::NotArchived => {
                "set archive_mode and archive_command, or use the operator's plug-in"
            }
            Self::ArchiveLags { .. } => {
                "see the log of the archiver; the disk fills until it works"
            }
            Self::AccountsDisagree { .. } => {
                "list all places, and find out what has changed these rows; correct a balance by an adjustment, then compare again"
            }
            Self::BalanceRunsOut(_) => {
                "tell the partner to pay; book what it has paid, or raise what it may owe"
            }
            Self::SoldBelowCost(_) => {
                "set higher prices, or take these options out of the list; if it is meant so, take the matter on and say why"
            }
            Self::RetentionBehind { .. } => "see whether a notifier runs, which erases them",
            Self::NotSynchronous => {
                "connect a synchronous standby and name it in synchronous_standby_names"
            }
            Self::NatsDown { .. } => "start it, or correct NATS_URL and NATS_CA_FILE",
            Self::NatsRefuses { .. } => {
                "give its user the permissions that deploy/nats/nats.conf lists, and reload the server"
            }
            Self::StreamMissing { .. } => {
                "start the stages, which create it; if STREAM_PREFIX is set for them, set it here, too"
            }
            Self::ReplicasMissing { .. } => {
                "start these servers, or wait until they have caught up"
            }
            Self::ConsumerMissing { .. } => "start the stage that takes them",
            Self::DeadMessages { .. } => "look at them and delete them",
            Self::BackupOld { .. } => "see why the daily backup failed, and make one now",
            Self::DrillOld { .. } => "run deploy/drill",
            Self::DiskFilling { .. } => {
                "look for WAL that is kept for a slot or for the archive, or enlarge the volume"
            }
        })
    }

    /// The command that ends it, or that shows why it is so.
    pub fn command(&self) -> Option<String> {
        match self {
            Self::StageDead { stage, .. } => Some(format!(
                "curl -sS -m 5 \"${}_ADMIN_URL/readyz\"",
                stage.as_str().to_uppercase()
            )),
            Self::BreakerOpen { breaker } if breaker.opened_by_operator() => {
                Some(format!("esimctl provider close {}", breaker.name))
            }
            Self::BreakerOpen { breaker } if breaker.denied => {
                Some(format!("esimctl provider check {}", breaker.name))
            }
            Self::OrdersFail { how, partner, .. } => match (how, partner) {
                (FailureKind::Refused, _) => {
                    Some("esimctl placement list --state refused".to_owned())
                }
                (FailureKind::Denied | FailureKind::Invalid | FailureKind::Limited, Some(id)) => {
                    Some(format!("esimctl partner show {id} --refused"))
                }
                _ => None,
            },
            Self::NoAddress { partner_id, .. } => {
                Some(format!("esimctl partner show {partner_id}"))
            }
            Self::CommitsLost { .. } => Some("esimctl recover".to_owned()),
            Self::AccountsDisagree { .. } => Some("esimctl account check".to_owned()),
            Self::BalanceRunsOut(one) => Some(format!("esimctl account show {}", one.partner_id)),
            Self::SoldBelowCost(list) => Some(format!("esimctl price list {}", list.price_list)),
            Self::Parked { purchases, .. } => {
                let id = match &purchases[..] {
                    [one] => one.placement_id.to_string(),
                    _ => "ID".to_owned(),
                };
                Some(format!(
                    "esimctl placement resolve {id} --bought|--not-bought|--retry --reason TEXT"
                ))
            }
            Self::GiveBacksParked { changes, .. } | Self::ExtensionsParked { changes, .. } => {
                let id = match &changes[..] {
                    [one] => one.topup_id.as_str(),
                    _ => "TOPUP_ID",
                };
                let found = match self {
                    Self::GiveBacksParked { .. } => {
                        "give-back resolve {id} --returned|--not-returned"
                    }
                    _ => "extension resolve {id} --added|--not-added",
                };
                Some(format!(
                    "esimctl {} --reason TEXT",
                    found.replace("{id}", id)
                ))
            }
            Self::Exhausted { endpoint } => Some(format!(
                "esimctl resend start --partner {} --since 48h --reason TEXT",
                endpoint.partner_id
            )),
            Self::Paused { endpoint } => {
                Some(format!("esimctl endpoint resume {}", endpoint.endpoint_id))
            }
            // It has the figures of the last minutes.
            Self::Slow { .. } => Some("esimctl status".to_owned()),
            Self::DatabaseDown { .. }
            | Self::OnStandby
            | Self::NotDurable { .. }
            | Self::StandbyMissing
            | Self::ClockOff { .. }
            | Self::Wraparound { .. }
            | Self::ProcessesMissing { .. }
            | Self::Unserved { .. }
            | Self::PurchasesLate { .. }
            | Self::WebhooksLate { .. }
            | Self::BreakerOpen { .. }
            | Self::LanesHeldBack { .. }
            | Self::Blocked { .. }
            | Self::ConnectionsFew { .. }
            | Self::StandbyLags { .. }
            | Self::LongTransaction { .. }
            | Self::NotArchived
            | Self::ArchiveLags { .. }
            | Self::RetentionBehind { .. }
            | Self::NotSynchronous
            | Self::NatsDown { .. }
            | Self::NatsRefuses { .. }
            | Self::StreamMissing { .. }
            | Self::ReplicasMissing { .. }
            | Self::ConsumerMissing { .. }
            | Self::DeadMessages { .. }
            | Self::BackupOld { .. }
            | Self::DrillOld { .. }
            | Self::DiskFilling { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use pg::down::ServerAway;
    use serde_json::json;
    use store::providers::ProviderBreaker;
    use time::macros::datetime;

    use super::*;
    use crate::operator::health::samples::samples;

    /// Who cannot read the database tells it in the form of what is read.
    #[test]
    fn a_server_that_cannot_be_used_is_told_alike_by_whoever_notices_it() {
        let since = datetime!(2026-11-28 12:00 UTC);
        let why = "a commit takes too long".to_owned();
        let read = FindingKind::DatabaseDown { why: why.clone() };
        let noticed = ServerAway::Down(why);
        assert_eq!(
            json!(Finding::new(read, Some(since)).told()),
            noticed.told(since)
        );
        for ahead in [-600.0, 12.0, 31.0] {
            let of = Clock::Postgresql;
            let read = Finding::new(FindingKind::ClockOff { of, ahead }, Some(since));
            assert_eq!(json!(read.told()), ServerAway::Clock(ahead).told(since));
        }
    }

    /// A process that is stopped or hangs does not answer, either, and nobody here knows which.
    #[test]
    fn who_does_not_answer_is_not_said_to_have_died() {
        for (on, told) in [
            (vec!["fra-1"], " (fra-1 does not answer)"),
            (vec!["fra-1", "fra-2"], " (fra-1, fra-2 do not answer)"),
            (vec![], ""),
        ] {
            let on: Vec<String> = on.into_iter().map(str::to_owned).collect();
            assert_eq!(ran_on(&on), told);
        }
    }

    /// A page puts findings together that are about several partners.
    #[test]
    fn who_feels_it_is_said_of_one_partner_and_of_several_alike() {
        for one in samples(datetime!(2026-11-28 12:00 UTC)) {
            let felt = one.kind.felt();
            assert!(!felt.contains("his partner"), "{felt}");
        }
    }

    /// Its time is over, and whether a provisioner runs that tests it is not known here.
    #[test]
    fn nothing_says_that_a_breaker_is_tested_now() {
        let at = datetime!(2026-11-28 12:00 UTC);
        let breaker = ProviderBreaker {
            name: "usimsa".to_owned(),
            state: BreakerState::HalfOpen,
            open_until: Some(at),
            reason: Some("it answers 500".to_owned()),
            openings: 1,
            version: 2,
            changed_at: at,
            failing_since: Some(at),
            denied: false,
            balance: None,
            balance_at: None,
        };
        let told = Finding::new(FindingKind::BreakerOpen { breaker }, Some(at)).told();
        assert_eq!(
            told.what,
            "buying at usimsa has stopped, and its test is due: it answers 500"
        );
        assert!(!told.needs_person, "{told:?}");
        let text = json!(told).to_string();
        assert!(
            !text.contains("is tested") && !text.contains("tests itself"),
            "{text}"
        );
    }

    /// A breaker that is tested is open and half open by turns, which is no change for anybody.
    #[test]
    fn a_breaker_needs_somebody_once_the_alert_fires_whatever_its_tests_do() {
        let at = datetime!(2026-11-28 12:00 UTC);
        for state in [BreakerState::Open, BreakerState::HalfOpen] {
            for (name, is_long, severity) in [
                ("usimsa", false, Severity::Mends),
                ("usimsa", true, Severity::Fault),
                (SANDBOX, true, Severity::Mends),
            ] {
                let breaker = ProviderBreaker {
                    name: name.to_owned(),
                    state,
                    open_until: Some(at),
                    reason: Some("it answers 500".to_owned()),
                    openings: 1,
                    version: 2,
                    changed_at: at,
                    failing_since: Some(at),
                    denied: false,
                    balance: None,
                    balance_at: None,
                };
                let kind = FindingKind::BreakerOpen { breaker };
                let mut finding = Finding::new(kind, Some(at));
                finding.lasts = is_long;
                assert_eq!(finding.severity(), severity, "{state:?} {name} {is_long}");
                let needed = severity != Severity::Mends;
                assert_eq!(finding.told().needs_person, needed);
                // Nobody else tests it.
                let tested = finding.told().remedy;
                finding.after = Some(Stage::Provisioner);
                assert_ne!(finding.severity(), Severity::Mends);
                let told = finding.told().remedy;
                assert!(
                    told.starts_with("provisioner has to run again first"),
                    "{told}"
                );
                assert!(told.ends_with(&*tested), "{told}");
                finding.told_at = Some(at);
                assert_eq!(finding.severity(), Severity::Mends);
            }
        }
    }
}
