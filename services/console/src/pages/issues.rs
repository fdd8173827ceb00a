//! A finding as the overview and the page of a partner show it: one line, which unfolds to who
//! feels it, what to do and the page on which it is ended. Equal findings are one line.

use desk::operator::health::{Finding, FindingKind, finding::FailureKind, finding::Severity};
use store::figures::Measure;
use url::form_urlencoded::byte_serialize;

use crate::{
    access::{ConsoleSession, OperatorRole},
    format::{counted, number},
    times::{TimeElement, Times},
};

/// The maximum number of equal findings that a line names when it is unfolded.
const EQUAL: usize = 10;

/// On whose side something has to change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Concern {
    #[default]
    Ours,
    Provider,
    Partner,
}

/// On whose side something has to change before this ends.
pub(crate) fn concern(kind: &FindingKind) -> Concern {
    match kind {
        FindingKind::BreakerOpen { .. }
        | FindingKind::LanesHeldBack { .. }
        | FindingKind::PurchasesLate { .. }
        | FindingKind::Parked { .. }
        | FindingKind::GiveBacksParked { .. }
        | FindingKind::ExtensionsParked { .. }
        | FindingKind::OrdersFail {
            how: FailureKind::Refused,
            ..
        }
        | FindingKind::Slow {
            measure: Measure::Call,
            ..
        }
        | FindingKind::Slow {
            measure: Measure::Bought,
            part_is_slow: true,
            ..
        } => Concern::Provider,
        FindingKind::NoAddress { .. }
        | FindingKind::Exhausted { .. }
        | FindingKind::Paused { .. }
        | FindingKind::Blocked { .. }
        | FindingKind::BalanceRunsOut(_)
        | FindingKind::OrdersFail {
            how: FailureKind::Denied | FailureKind::Invalid | FailureKind::Limited,
            partner: Some(_),
            ..
        } => Concern::Partner,
        _ => Concern::Ours,
    }
}

/// A page, and what a link to it says.
pub(crate) type PageLink = (String, String);

/// What is wrong, or what ends by itself.
#[derive(Default)]
pub(crate) struct Issue {
    pub(crate) class: &'static str,
    pub(crate) what: String,
    /// Whom it is about, in a few words.
    pub(crate) who: String,
    pub(crate) concern: Concern,
    /// Empty if it is not stored.
    pub(crate) since: TimeElement,
    pub(crate) ago: TimeElement,
    pub(crate) felt: String,
    pub(crate) remedy: String,
    /// Only for operators: others have no shell.
    pub(crate) command: Option<String>,
    /// The page that shows it, or on which it is ended.
    pub(crate) page: Option<PageLink>,
    /// The single ones, if it is several equal findings, and how many more there are.
    pub(crate) equal: Vec<(String, Option<PageLink>)>,
    pub(crate) more: usize,
    /// Where this session may say that it has it.
    pub(crate) take: Option<String>,
    /// Empty if no part of the runbook is about it.
    pub(crate) see: String,
    /// A text for the partner whose page it is on.
    pub(crate) text: Option<String>,
    pub(crate) taken: Option<TakenView>,
}

/// Who has it.
pub(crate) struct TakenView {
    pub(crate) by: String,
    pub(crate) until: TimeElement,
    pub(crate) note: String,
}

/// Who has a finding, if somebody does.
pub(crate) fn taken(one: &Finding, times: &Times) -> Option<TakenView> {
    let taken = one.taken.as_ref()?;
    Some(TakenView {
        by: taken.by.clone(),
        until: times.clock(taken.until),
        note: taken.note.clone(),
    })
}

/// How a severity is coloured.
pub(crate) fn class_of(severity: Severity) -> &'static str {
    match severity {
        Severity::Mends => "",
        Severity::Warning => "warn",
        Severity::Fault => "bad",
    }
}

/// The place of what is coloured in this way: the gravest comes first.
pub(crate) fn weight(class: &str) -> u8 {
    match class {
        "bad" => 0,
        "warn" => 1,
        _ => 2,
    }
}

/// The colour of a verdict about these findings, if there are any.
pub(crate) fn worst<'a>(findings: impl Iterator<Item = &'a Finding>) -> Option<&'static str> {
    let worst = findings.map(Finding::severity).max()?;
    (worst != Severity::Mends).then(|| class_of(worst))
}

/// Whether support ends it, or tells the partner, who does.
fn is_for_support(kind: &FindingKind) -> bool {
    matches!(
        kind,
        FindingKind::NoAddress { .. }
            | FindingKind::Exhausted { .. }
            | FindingKind::Paused { .. }
            | FindingKind::Blocked { .. }
            | FindingKind::BalanceRunsOut(_)
            | FindingKind::OrdersFail {
                partner: Some(_),
                ..
            }
    )
}

/// What somebody of this role does about it.
pub(crate) fn remedy(one: &Finding, remedy: &str, role: OperatorRole) -> String {
    if role < OperatorRole::Operator && one.needs_person() && !is_for_support(&one.kind) {
        format!("ask the operator on call, who does this: {remedy}")
    } else {
        remedy.to_owned()
    }
}

/// The command of a finding, for those who have a shell. It is shown where the console itself
/// neither does it nor leads to what it shows.
pub(crate) fn shell_command(command: Option<String>, session: &ConsoleSession) -> Option<String> {
    command.filter(|_| session.may(OperatorRole::Operator))
}

/// The section of the runbook, which the console does not serve.
pub(crate) fn section(see: &str) -> String {
    see.rsplit('#').next().unwrap_or_default().to_owned()
}

/// The place of a finding on the page of what needs a person.
pub(crate) fn anchor(kind: &FindingKind) -> String {
    byte_serialize(kind.key().as_bytes()).collect()
}

/// A finding as the pages show it.
pub(crate) fn issue(one: &Finding, session: &ConsoleSession) -> Issue {
    let told = one.told();
    let times = &session.times;
    let may_take = one.needs_person() && session.may(OperatorRole::Support);
    Issue {
        class: class_of(told.severity),
        what: told.what,
        who: who(&one.kind),
        concern: concern(&one.kind),
        since: told.since.map(|at| times.clock(at)).unwrap_or_default(),
        ago: told.since.map(|at| times.ago(at)).unwrap_or_default(),
        felt: told.felt.into_owned(),
        remedy: remedy(one, &told.remedy, session.role),
        command: shell_command(told.command, session).filter(|_| page_of(&one.kind).is_none()),
        page: page_of(&one.kind),
        equal: Vec::new(),
        more: 0,
        take: (may_take && one.taken.is_none()).then(|| format!("/needs#{}", anchor(&one.kind))),
        see: section(&told.see),
        text: one.for_partner(),
        taken: taken(one, times),
    }
}

/// Findings as lines, in their order. Equal ones are one line, where the first of them stands.
pub(crate) fn lines<'a>(
    findings: impl Iterator<Item = &'a Finding>,
    session: &ConsoleSession,
) -> Vec<Issue> {
    groups(findings)
        .into_iter()
        .filter_map(|group| line(&group, session))
        .collect()
}

/// Findings, with equal ones beside each other.
pub(crate) fn groups<'a>(findings: impl Iterator<Item = &'a Finding>) -> Vec<Vec<&'a Finding>> {
    let mut groups: Vec<Vec<&Finding>> = Vec::new();
    for one in findings {
        let is_equal = |group: &&mut Vec<&Finding>| {
            let alike = together(&group[0].kind, 0);
            alike.is_some()
                && alike == together(&one.kind, 0)
                && group[0].severity() == one.severity()
        };
        match groups.iter_mut().find(is_equal) {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    groups
}

fn line(group: &[&Finding], session: &ConsoleSession) -> Option<Issue> {
    let (first, others) = group.split_first()?;
    let line = issue(first, session);
    if others.is_empty() {
        return Some(line);
    }
    let since = group.iter().filter_map(|one| one.since).min();
    let times = &session.times;
    Some(Issue {
        what: together(&first.kind, group.len())?,
        who: String::new(),
        since: since.map(|at| times.clock(at)).unwrap_or_default(),
        ago: since.map(|at| times.ago(at)).unwrap_or_default(),
        command: None,
        page: None,
        equal: (group.iter().take(EQUAL))
            .map(|one| (one.kind.what(), page_of(&one.kind)))
            .collect(),
        more: group.len().saturating_sub(EQUAL),
        text: None,
        taken: None,
        ..line
    })
}

/// What so many findings like this one are called together; `None` if each is told by itself.
pub(crate) fn together(kind: &FindingKind, count: usize) -> Option<String> {
    let partners = counted(count, "partner", "partners");
    let endpoints = counted(count, "endpoint", "endpoints");
    Some(match kind {
        FindingKind::Exhausted { .. } => {
            format!("webhooks to {endpoints} were given up after the last retry")
        }
        FindingKind::Blocked { .. } => format!("{endpoints} do not take webhooks and are blocked"),
        FindingKind::Paused { .. } => format!("{endpoints} are paused"),
        FindingKind::NoAddress { .. } => format!("webhooks of {partners} wait for an address"),
        FindingKind::BalanceRunsOut(_) => {
            format!("{partners} have less left than they have spent in the last 24 hours")
        }
        FindingKind::SoldBelowCost(_) => {
            format!("{} price lists sell below cost", number(count))
        }
        FindingKind::OrdersFail {
            partner: Some(_),
            how,
            ..
        } => match how {
            FailureKind::Errors => format!("orders of {partners} fail with a 5xx"),
            FailureKind::Denied => format!("requests of {partners} are answered with a 401"),
            FailureKind::Refused => format!("orders of {partners} are refused by the provider"),
            FailureKind::Invalid => {
                format!("orders of {partners} are refused with a 4xx")
            }
            FailureKind::Limited => format!("orders of {partners} are above a limit"),
        },
        FindingKind::Parked { purchases, .. } if !purchases.is_empty() => {
            format!("purchases are on hold, for {} reasons", number(count))
        }
        FindingKind::GiveBacksParked { .. } => {
            format!("give-backs to {} providers are on hold", number(count))
        }
        FindingKind::ExtensionsParked { .. } => {
            format!("extensions at {} providers are on hold", number(count))
        }
        _ => return None,
    })
}

/// Whom a finding is about.
fn who(kind: &FindingKind) -> String {
    match kind {
        FindingKind::NoAddress { name, .. } => name.clone(),
        FindingKind::BalanceRunsOut(one) => one.name.clone(),
        FindingKind::Exhausted { endpoint }
        | FindingKind::Paused { endpoint }
        | FindingKind::Blocked { endpoint } => endpoint.name.clone(),
        FindingKind::OrdersFail {
            partners, others, ..
        } => of_partners(partners.iter().map(|one| one.name.as_str()), *others),
        FindingKind::Parked { purchases, .. } => {
            let names = purchases.iter().filter_map(|one| one.partner.as_deref());
            of_partners(names, 0)
        }
        FindingKind::GiveBacksParked { changes, .. }
        | FindingKind::ExtensionsParked { changes, .. } => {
            let names = changes.iter().filter_map(|one| one.partner.as_deref());
            of_partners(names, 0)
        }
        FindingKind::StageDead { .. }
        | FindingKind::DatabaseDown { .. }
        | FindingKind::CommitsLost { .. }
        | FindingKind::OnStandby
        | FindingKind::StandbyMissing
        | FindingKind::NotSynchronous => "all partners".to_owned(),
        _ => String::new(),
    }
}

fn of_partners<'a>(names: impl Iterator<Item = &'a str>, others: usize) -> String {
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names.dedup();
    match (&names[..], others) {
        ([], 0) => String::new(),
        ([one], 0) => (*one).to_owned(),
        (some, others) => counted(some.len() + others, "partner", "partners"),
    }
}

/// The page of the console on which somebody sees more of it or ends it.
fn page_of(kind: &FindingKind) -> Option<PageLink> {
    let provider = |name: &str| (format!("/providers#{name}"), format!("Provider {name}"));
    match kind {
        FindingKind::Parked { purchases, .. } => Some(match &purchases[..] {
            [one] => (
                format!("/orders/{}", one.order_id),
                format!("Order {}", one.external_order_id),
            ),
            _ => to_needs(kind, "These purchases"),
        }),
        FindingKind::GiveBacksParked { .. } => Some(to_needs(kind, "These give-backs")),
        FindingKind::ExtensionsParked { .. } => Some(to_needs(kind, "These extensions")),
        FindingKind::OrdersFail {
            partner: Some(id), ..
        } => Some((
            format!("/partners/{id}/refused"),
            "Its refused requests".to_owned(),
        )),
        FindingKind::NoAddress {
            partner_id, name, ..
        } => Some((
            format!("/partners/{partner_id}"),
            format!("{name}, with a text for it"),
        )),
        FindingKind::BalanceRunsOut(one) => Some((
            format!("/partners/{}/access", one.partner_id),
            format!("The account of {}", one.name),
        )),
        FindingKind::BreakerOpen { breaker } => Some(provider(&breaker.name)),
        FindingKind::Slow {
            measure: Measure::Call | Measure::Bought,
            subject: name,
            ..
        }
        | FindingKind::PurchasesLate { provider: name, .. }
        | FindingKind::LanesHeldBack { provider: name, .. } => Some(provider(name)),
        FindingKind::CommitsLost { .. } => {
            Some(("/providers".to_owned(), "The providers".to_owned()))
        }
        FindingKind::Exhausted { endpoint }
        | FindingKind::Paused { endpoint }
        | FindingKind::Blocked { endpoint } => Some((
            format!("/partners/{}", endpoint.partner_id),
            format!("{}, with a text for it", endpoint.name),
        )),
        FindingKind::StageDead { .. }
        | FindingKind::DatabaseDown { .. }
        | FindingKind::OnStandby
        | FindingKind::NotDurable { .. }
        | FindingKind::StandbyMissing
        | FindingKind::ClockOff { .. }
        | FindingKind::OrdersFail { partner: None, .. }
        | FindingKind::Wraparound { .. }
        | FindingKind::ProcessesMissing { .. }
        | FindingKind::Unserved { .. }
        | FindingKind::WebhooksLate { .. }
        | FindingKind::Slow { .. }
        | FindingKind::ConnectionsFew { .. }
        | FindingKind::StandbyLags { .. }
        | FindingKind::LongTransaction { .. }
        | FindingKind::NotArchived
        | FindingKind::ArchiveLags { .. }
        | FindingKind::AccountsDisagree { .. }
        | FindingKind::SoldBelowCost(_)
        | FindingKind::RetentionBehind { .. }
        | FindingKind::NotSynchronous
        | FindingKind::NatsDown { .. }
        | FindingKind::NatsRefuses { .. }
        | FindingKind::StreamMissing { .. }
        | FindingKind::ReplicasMissing { .. }
        | FindingKind::ConsumerMissing { .. }
        | FindingKind::DeadMessages { .. }
        | FindingKind::BackupOld { .. }
        | FindingKind::DrillOld { .. }
        | FindingKind::DiskFilling { .. } => None,
    }
}

fn to_needs(kind: &FindingKind, name: &str) -> PageLink {
    (format!("/needs#{}", anchor(kind)), name.to_owned())
}
