//! What was looked at of a partner, each with its figure, from stored rows. Only what has a figure
//! is green, and nothing that keeps it back now is; what has none is not known.

use std::borrow::Cow;

use desk::operator::health::{Finding, FindingKind, HealthReport, stages::Stage};
use domain::{Environment, PartnerId, standing::EndpointState};
use store::{
    figures::Measure,
    providers::{BreakerState, ProviderBreaker},
};
use time::Duration;

use crate::{
    format::{brief, counted, measured, number, relative},
    pages::{
        issues::{class_of, worst},
        partner_health::{PartnerFacts, lately},
    },
    times::Times,
};

/// Something that was looked at: how it is coloured, what it is, and the figure.
pub(crate) type Check = (&'static str, Cow<'static, str>, String);

/// What the checks look at.
struct Looked<'a> {
    known: &'a PartnerFacts,
    report: &'a HealthReport,
    times: &'a Times,
    /// What concerns the partner.
    found: Vec<Finding>,
}

pub(crate) fn checks(known: &PartnerFacts, report: &HealthReport, times: &Times) -> [Check; 12] {
    let id = PartnerId::from(known.partner.partner_id);
    let is_live = known.partner.environment == Environment::Live.as_str();
    let looked = Looked {
        known,
        report,
        times,
        found: report.of_partner(id, is_live, &known.waiting),
    };
    [
        looked.orders(),
        looked.buying(),
        looked.on_hold(),
        looked.esims(),
        looked.webhooks(),
        looked.endpoints(),
        looked.addresses(),
        looked.refused(),
        looked.keys(),
        looked.limit(),
        looked.silence(),
        looked.balance(),
    ]
}

/// What stops a stage, or all of them.
fn stops(kind: &FindingKind, stage: Stage) -> bool {
    match kind {
        FindingKind::StageDead { stage: dead, .. } => *dead == stage,
        FindingKind::DatabaseDown { .. }
        | FindingKind::OnStandby
        | FindingKind::StandbyMissing
        | FindingKind::NotSynchronous => true,
        FindingKind::OrdersFail { .. } => stage == Stage::Ingress,
        FindingKind::CommitsLost { .. } => stage == Stage::Provisioner,
        FindingKind::WebhooksLate { .. } => stage == Stage::Notifier,
        _ => false,
    }
}

impl Looked<'_> {
    /// How bad the worst finding is that concerns something. One that ends by itself takes the
    /// green, too.
    fn kept(&self, concerns: impl Fn(&FindingKind) -> bool) -> Option<&'static str> {
        let mut found = self
            .found
            .iter()
            .filter(|one| concerns(&one.kind))
            .peekable();
        found.peek()?;
        Some(worst(found).unwrap_or("warn"))
    }

    /// Green only for a partner that ordered.
    fn earned(&self) -> &'static str {
        if self.known.day.orders() > 0 {
            "good"
        } else {
            ""
        }
    }

    fn orders(&self) -> Check {
        let newest = self.known.day.newest();
        let class = match newest {
            None => "",
            Some((_, hour)) if hour.failed == 0 => "good",
            Some((_, hour)) if hour.taken == 0 => "bad",
            Some(_) => "warn",
        };
        let figure = lately(self.known, self.times);
        (
            self.kept(|kind| stops(kind, Stage::Ingress))
                .unwrap_or(class),
            "Orders are taken".into(),
            figure.unwrap_or_else(|| "none came in 24 h".to_owned()),
        )
    }

    /// The providers of its orders.
    fn providers(&self) -> Vec<&str> {
        let waiting = self.known.waiting.iter().map(|one| one.provider.as_str());
        let bought = self.known.day.providers.iter().map(String::as_str);
        let mut all: Vec<&str> = waiting.chain(bought).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn breaker(&self, provider: &str) -> Option<&ProviderBreaker> {
        let mut all = self.report.breakers.iter();
        all.find(|one| one.name == provider)
    }

    /// Whether something keeps us from buying at a provider.
    fn is_stopped(&self, provider: &str) -> bool {
        let mut found = self.found.iter();
        let is_found = found.any(|one| match &one.kind {
            FindingKind::BreakerOpen { breaker } => breaker.name == provider,
            FindingKind::LanesHeldBack { provider: of, .. } => of == provider,
            kind => stops(kind, Stage::Provisioner),
        });
        let breaker = self.breaker(provider);
        let waits = self
            .known
            .waiting
            .iter()
            .any(|one| one.provider == provider);
        is_found || waits || breaker.is_some_and(|one| one.state != BreakerState::Closed)
    }

    fn buying(&self) -> Check {
        let name = "Buying".into();
        let all = self.providers();
        if all.is_empty() {
            let kept = self.kept(|kind| stops(kind, Stage::Provisioner));
            let figure = "nothing was bought for it in 24 h".to_owned();
            return (kept.unwrap_or(""), name, figure);
        }
        let sell = all.iter().filter(|one| !self.is_stopped(one)).count();
        let class = match sell {
            0 => "bad",
            some if some < all.len() => "warn",
            _ => "good",
        };
        let kept = self.kept(|kind| stops(kind, Stage::Provisioner));
        let figure = format!(
            "{} of {} of its orders {}",
            number(sell),
            counted(all.len(), "provider", "providers"),
            if sell == 1 {
                "sells to us"
            } else {
                "sell to us"
            }
        );
        (kept.unwrap_or(class), name, figure)
    }

    fn on_hold(&self) -> Check {
        let parked = self
            .report
            .findings
            .iter()
            .filter_map(|one| match &one.kind {
                FindingKind::Parked {
                    purchases, in_all, ..
                } => Some((purchases, *in_all)),
                _ => None,
            });
        let id = self.known.partner.partner_id;
        let [mut mine, mut all] = [0; 2];
        let mut is_known = true;
        for (purchases, unlisted) in parked {
            mine += purchases
                .iter()
                .filter(|one| one.partner_id.uuid() == id)
                .count();
            all += purchases.len();
            is_known &= unlisted == 0;
        }
        let (class, figure) = match (mine, is_known) {
            (0, true) => (self.earned(), "none of its own".to_owned()),
            (0, false) => ("", "none of those that were read".to_owned()),
            (mine, _) => (
                "warn",
                format!("{} of {} in all", number(mine), number(all)),
            ),
        };
        (class, "Purchases on hold".into(), figure)
    }

    /// What was slow for it lately, or waits.
    fn esims(&self) -> Check {
        let known = self.known;
        let took = |of: Option<f64>| of.map(|of| measured(Duration::seconds_f64(of)));
        let times = took(known.day.half).zip(took(known.day.most));
        let mut figure = match &times {
            Some((half, most)) => format!("usually {half}, at worst {most}"),
            None => "none in 24 h".to_owned(),
        };
        let waiting: u64 = known.waiting.iter().map(|one| one.number).sum();
        if waiting > 0 {
            figure = format!(
                "{}; {figure}",
                counted(waiting, "order waits", "orders wait")
            );
        }
        let oldest = known.waiting.iter().map(|one| one.severity(self.times.now));
        let providers = self.providers();
        let slow = self.kept(|kind| match kind {
            FindingKind::Slow {
                measure: Measure::Bought | Measure::Call,
                subject,
                ..
            } => providers.contains(&subject.as_str()),
            FindingKind::Slow {
                measure: Measure::Ready,
                ..
            } => true,
            kind => stops(kind, Stage::Provisioner),
        });
        let class = oldest.max().map(class_of).or(slow);
        let earned = if times.is_some() { "good" } else { "" };
        (class.unwrap_or(earned), "Getting the eSIMs".into(), figure)
    }

    fn webhooks(&self) -> Check {
        let tries = self.known.tries();
        let class = match (tries.n, tries.failed) {
            (0, _) => "",
            (_, 0) => "good",
            _ => "warn",
        };
        let kept = self.kept(|kind| stops(kind, Stage::Notifier));
        let figure = format!(
            "{} of {} in 24 h",
            number(tries.n.saturating_sub(tries.failed)),
            counted(tries.n, "try", "tries")
        );
        (kept.unwrap_or(class), "Sending webhooks".into(), figure)
    }

    fn endpoints(&self) -> Check {
        let all = &self.known.endpoints;
        let tries = self.known.tries();
        let open = all
            .iter()
            .filter(|one| one.state == EndpointState::Open && one.failures == 0);
        let open = open.count();
        let class = if open < all.len().max(1) {
            "warn"
        } else if tries.n > tries.failed {
            "good"
        } else {
            ""
        };
        let figure = format!("{} of {} can be sent to", number(open), number(all.len()));
        (class, "Its endpoints".into(), figure)
    }

    fn addresses(&self) -> Check {
        let all = &self.known.endpoints;
        let with = all.iter().filter(|one| one.webhook_url.is_some()).count();
        let lacks = self.kept(|kind| matches!(kind, FindingKind::NoAddress { .. }));
        let class = match with {
            _ if all.is_empty() => "",
            with if with < all.len() => "warn",
            _ => "good",
        };
        let figure = match all.len() {
            0 => "it has no endpoint".to_owned(),
            1 => format!("{} of 1 endpoint has one", number(with)),
            all => format!("{} of {} endpoints have one", number(with), number(all)),
        };
        (lacks.unwrap_or(class), "Addresses".into(), figure)
    }

    fn refused(&self) -> Check {
        let day = &self.known.day;
        let class = if day.refused > 0 {
            "warn"
        } else {
            self.earned()
        };
        let orders = counted(day.orders(), "order", "orders");
        let figure = format!("{}, beside {orders} in 24 h", number(day.refused));
        (class, "Refused requests".into(), figure)
    }

    fn keys(&self) -> Check {
        let partner = &self.known.partner;
        let now = self.times.now;
        let old = partner.old_keys_until.filter(|until| *until > now);
        let first = usize::from(!partner.keys_ended) + usize::from(old.is_some());
        let valid = first + self.known.further.len();
        let full = self.known.used_up();
        let denied = self.known.day.denied;
        let mut figure = counted(valid, "is valid", "are valid");
        if let Some(until) = old {
            figure = format!("{figure}, the old one ends {}", relative(now, until));
        }
        if denied > 0 {
            figure = format!(
                "{figure}; {} got a 401 in 24 h",
                counted(denied, "request", "requests")
            );
        }
        if let Some(full) = &full {
            figure = format!("{figure}; {full}");
        }
        let class = match (valid, old, denied) {
            (0, ..) => "bad",
            (_, Some(_), _) => "warn",
            (_, None, denied) if denied > 0 || full.is_some() => "warn",
            _ => "good",
        };
        (class, "Keys".into(), figure)
    }

    fn limit(&self) -> Check {
        let (_, all) = self.known.day.taken();
        let limited = self.known.day.limited;
        let class = if limited > 0 { "warn" } else { self.earned() };
        let orders = counted(all, "order", "orders");
        let figure = format!("{} of {orders} above it in 24 h", number(limited));
        (class, "Its limit".into(), figure)
    }

    fn silence(&self) -> Check {
        let known = self.known;
        let ago = known.last.map(|last| brief(self.times.now - last));
        let (class, figure) = match (known.usual, ago) {
            (Some(usual), Some(ago)) => {
                let usual = counted(usual, "order", "orders");
                ("warn", format!("yes, for {ago}; usually {usual} a day"))
            }
            (_, Some(ago)) if known.day.orders() > 0 => {
                let hours = known.day.hours.values().filter(|hour| hour.orders > 0);
                let hours = number(hours.count());
                (
                    "good",
                    format!("no: the last order {ago} ago, in {hours} hours of 24"),
                )
            }
            (_, Some(ago)) => ("", format!("the last order {ago} ago")),
            (_, None) => ("", "it has never ordered".to_owned()),
        };
        (class, "Quiet?".into(), figure)
    }

    /// What is left at its provider. Whether that is enough nobody has said, so it is never green.
    fn balance(&self) -> Check {
        let providers = self.providers();
        let told = providers.iter().find_map(|name| {
            let breaker = self.breaker(name)?;
            Some((*name, breaker.balance.as_ref()?, breaker.balance_at?))
        });
        match (told, &providers[..]) {
            (Some((name, balance, at)), _) => {
                let ago = relative(self.times.now, at);
                (
                    "",
                    format!("Balance at {name}").into(),
                    format!("{balance}, told {ago}"),
                )
            }
            (None, [name, ..]) => (
                "",
                format!("Balance at {name}").into(),
                "not known".to_owned(),
            ),
            (None, []) => ("", "Balance".into(), "not known".to_owned()),
        }
    }
}
