//! A finding as the overview and the page of a partner show it, and the page on which it is ended.

use desk::operator::health::{Finding, FindingKind, finding::Severity};
use store::figures::Measure;

use crate::times::{TimeElement, Times};

/// What is wrong, or what ends by itself.
#[derive(Default)]
pub(crate) struct Issue {
    pub(crate) class: &'static str,
    pub(crate) what: String,
    /// Empty if it is not stored.
    pub(crate) since: TimeElement,
    pub(crate) ago: TimeElement,
    pub(crate) felt: String,
    pub(crate) remedy: String,
    pub(crate) command: Option<String>,
    /// The page that shows it, or on which it is ended.
    pub(crate) page: Option<String>,
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

/// A finding as the pages show it.
pub(crate) fn issue(one: &Finding, times: &Times) -> Issue {
    let told = one.told();
    Issue {
        class: class_of(told.severity),
        what: told.what,
        since: told.since.map(|at| times.clock(at)).unwrap_or_default(),
        ago: told.since.map(|at| times.ago(at)).unwrap_or_default(),
        felt: told.felt.into_owned(),
        remedy: told.remedy.into_owned(),
        command: told.command,
        page: page_of(&one.kind),
        see: told.see,
        text: one.for_partner(),
        taken: taken(one, times),
    }
}

/// The page of the console on which somebody sees more of it or ends it.
fn page_of(kind: &FindingKind) -> Option<String> {
    match kind {
        FindingKind::Parked { purchases, .. } => Some(match &purchases[..] {
            [one] => format!("/orders/{}", one.order_id),
            _ => "/needs".to_owned(),
        }),
        FindingKind::GiveBacksParked { .. } => Some("/needs".to_owned()),
        FindingKind::OrdersFail {
            partner: Some(id), ..
        } => Some(format!("/partners/{id}/refused")),
        FindingKind::NoAddress { partner_id, .. } => Some(format!("/partners/{partner_id}")),
        FindingKind::BreakerOpen { breaker } => Some(format!("/providers#{}", breaker.name)),
        FindingKind::Slow {
            measure: Measure::Call | Measure::Bought,
            subject: provider,
            ..
        }
        | FindingKind::PurchasesLate { provider, .. }
        | FindingKind::LanesHeldBack { provider, .. } => Some(format!("/providers#{provider}")),
        FindingKind::CommitsLost { .. } => Some("/providers".to_owned()),
        FindingKind::Exhausted { endpoint }
        | FindingKind::Paused { endpoint }
        | FindingKind::Blocked { endpoint } => Some(format!("/partners/{}", endpoint.partner_id)),
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
