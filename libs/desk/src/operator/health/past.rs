//! What a finding is called: its key, by which it is the same one from look to look, and what was
//! wrong once it is over.

use domain::standing::EndpointState;
use store::deliveries::endpoints::ListedEndpoint;

use super::{
    finding::{AffectedEnvironment, FailureKind, FindingKind},
    phrases::{named, whose},
    slow::took_of,
    stages::Stage,
};

/// The length of a key. An index has the first 100 characters of it.
const KEY: usize = 100;

/// Letters and digits of a text, joined to a word.
fn word(text: &str) -> String {
    let words = text.split(|one: char| !one.is_ascii_alphanumeric());
    let words: Vec<&str> = words.filter(|one| !one.is_empty()).collect();
    words.join("-").to_lowercase()
}

impl FindingKind {
    /// Its name without figures: the same for as long as it lasts. It is one word, because that is
    /// what a recorded act names.
    pub fn key(&self) -> String {
        let matter: &'static str = self.matter().into();
        let of: Vec<String> = match self {
            Self::StageDead { stage, .. }
            | Self::ProcessesMissing { stage, .. }
            | Self::NatsRefuses { stage, .. } => vec![stage.as_str().to_owned()],
            Self::ClockOff { of, .. } => vec![of.owner().to_owned()],
            Self::OrdersFail { how, partner, .. } => {
                let how: &'static str = how.into();
                let partner = partner.map(|id| id.to_string());
                [how.to_owned()].into_iter().chain(partner).collect()
            }
            Self::PurchasesLate { provider, .. }
            | Self::GiveBacksParked { provider, .. }
            | Self::ExtensionsParked { provider, .. }
            | Self::LanesHeldBack { provider, .. } => vec![provider.clone()],
            // Not by the words of the reason, which may change while it lasts.
            Self::Parked {
                provider,
                purchases,
                ..
            } => {
                let code = purchases.first().and_then(|one| one.reason.code());
                let code = code.map_or("", Into::<&'static str>::into);
                vec![provider.clone(), code.to_owned()]
            }
            Self::BreakerOpen { breaker } => vec![breaker.name.clone()],
            Self::WebhooksLate { environment, .. } => vec![match environment {
                AffectedEnvironment::Live => "live".to_owned(),
                AffectedEnvironment::Sandbox => "sandbox".to_owned(),
            }],
            Self::Slow {
                measure, subject, ..
            } => vec![measure.as_str().to_owned(), subject.clone()],
            Self::NoAddress { partner_id, .. } => vec![partner_id.to_string()],
            Self::BalanceRunsOut(one) => {
                vec![
                    one.partner_id.to_string(),
                    one.available.currency.to_string(),
                ]
            }
            Self::SoldBelowCost(list) => vec![list.price_list.clone()],
            Self::Exhausted { endpoint }
            | Self::Paused { endpoint }
            | Self::Blocked { endpoint } => vec![endpoint.endpoint_id.to_string()],
            Self::StreamMissing { stream }
            | Self::ReplicasMissing { stream, .. }
            | Self::ConsumerMissing { stream }
            | Self::DeadMessages { stream, .. } => vec![stream.clone()],
            Self::DiskFilling { volume, .. } => vec![volume.clone()],
            Self::DatabaseDown { .. }
            | Self::CommitsLost { .. }
            | Self::OnStandby
            | Self::NotDurable { .. }
            | Self::StandbyMissing
            | Self::Wraparound { .. }
            | Self::Unserved { .. }
            | Self::ConnectionsFew { .. }
            | Self::StandbyLags { .. }
            | Self::LongTransaction { .. }
            | Self::NotArchived
            | Self::ArchiveLags { .. }
            | Self::AccountsDisagree { .. }
            | Self::RetentionBehind { .. }
            | Self::NotSynchronous
            | Self::NatsDown { .. }
            | Self::BackupOld { .. }
            | Self::DrillOld { .. } => Vec::new(),
        };
        let parts = [matter.to_owned()]
            .into_iter()
            .chain(of.iter().map(|one| word(one)));
        let key: Vec<String> = parts.filter(|one| !one.is_empty()).collect();
        key.join(":").chars().take(KEY).collect()
    }

    /// What was wrong, for when it is over.
    pub fn was(&self) -> String {
        let endpoint = |endpoint: &ListedEndpoint, was: &str| format!("{} {was}", whose(endpoint));
        match self {
            Self::StageDead { stage, .. } => match stage {
                Stage::Ingress => "no order was taken, because no ingress ran".into(),
                Stage::Provisioner => "nothing was bought, because no provisioner ran".into(),
                Stage::Notifier => "no webhook was sent, because no notifier ran".into(),
            },
            Self::DatabaseDown { why } => format!("PostgreSQL took nothing: {why}"),
            Self::CommitsLost { providers, .. } => format!(
                "nothing was bought from {}, because PostgreSQL had lost commits",
                named(providers)
            ),
            Self::OnStandby => "DATABASE_URL led to a standby".into(),
            Self::NotDurable { .. } => "a crash would have lost answered orders".into(),
            Self::StandbyMissing => "commits waited for a standby that did not stream".into(),
            Self::NotSynchronous => "commits waited for no standby, so no stage worked".into(),
            Self::ClockOff { of, .. } => format!("the clock of {} was wrong", of.owner()),
            Self::OrdersFail {
                how,
                partner,
                partners,
                ..
            } => {
                let of = match (partner, &partners[..]) {
                    (Some(_), [only, ..]) => format!(" of {}", only.name),
                    _ => String::new(),
                };
                match how {
                    FailureKind::Errors => format!("orders{of} failed with a 5xx"),
                    FailureKind::Denied => format!("requests{of} were answered with a 401"),
                    FailureKind::Refused => format!("orders{of} were refused with a 422"),
                    FailureKind::Invalid => format!("orders{of} were refused with a 4xx"),
                    FailureKind::Limited => format!("orders{of} were refused with a 429"),
                }
            }
            Self::Wraparound { .. } => "transaction ids became few".into(),
            Self::ProcessesMissing { stage, .. } => {
                format!("some processes of {} did not run", stage.as_str())
            }
            Self::Unserved { providers, .. } => {
                format!("no provisioner had ever served {}", named(providers))
            }
            Self::PurchasesLate { provider, .. } => format!("purchases at {provider} were late"),
            Self::WebhooksLate { environment, .. } => match environment {
                AffectedEnvironment::Live => "webhooks to live partners were late".into(),
                AffectedEnvironment::Sandbox => "webhooks to sandbox partners were late".into(),
            },
            Self::Slow {
                measure, subject, ..
            } => took_of(*measure, subject).replace(" are slow", " were slow"),
            Self::Parked { provider, .. } => format!("purchases at {provider} were on hold"),
            Self::GiveBacksParked { provider, .. } => {
                format!("give-backs to {provider} were on hold")
            }
            Self::ExtensionsParked { provider, .. } => {
                format!("extensions at {provider} were on hold")
            }
            Self::NoAddress { name, .. } => format!("webhooks of {name} had no address"),
            Self::Exhausted { endpoint: one } => endpoint(one, "had webhooks that were given up"),
            Self::Paused { endpoint: one } if one.state == EndpointState::PausedByPartner => {
                endpoint(one, "was paused by its partner")
            }
            Self::Paused { endpoint: one } => endpoint(one, "was paused by an operator"),
            Self::Blocked { endpoint: one } => endpoint(one, "was blocked"),
            Self::BreakerOpen { breaker } => format!("nothing was bought from {}", breaker.name),
            Self::LanesHeldBack { provider, .. } => {
                format!("some products were not bought at {provider}")
            }
            Self::ConnectionsFew { .. } => "most connections to PostgreSQL were in use".into(),
            Self::StandbyLags { .. } => "a standby was behind".into(),
            Self::LongTransaction { .. } => "a transaction was open for very long".into(),
            Self::NotArchived => "WAL was not archived".into(),
            Self::ArchiveLags { .. } => "WAL was archived late".into(),
            Self::AccountsDisagree { .. } => "accounts disagreed with what was ordered".into(),
            Self::BalanceRunsOut(one) => {
                format!("{} had little left in {}", one.name, one.available.currency)
            }
            Self::SoldBelowCost(list) => {
                format!(
                    "options of the price list {} were sold below their cost",
                    list.price_list
                )
            }
            Self::RetentionBehind { .. } => "rows were kept past their term".into(),
            Self::NatsDown { .. } => "NATS was down".into(),
            Self::NatsRefuses { stage, .. } => {
                format!("NATS refused messages of {}", stage.as_str())
            }
            Self::StreamMissing { stream } => format!("{stream} did not exist"),
            Self::ReplicasMissing { stream, .. } => format!("{stream} lacked copies"),
            Self::ConsumerMissing { stream } => {
                format!("nobody took the messages of {stream}")
            }
            Self::DeadMessages { stream, .. } => {
                format!("{stream} held messages that a stage could not read")
            }
            Self::BackupOld { .. } => "the last base backup was old".into(),
            Self::DrillOld { .. } => "no restore was tried for long".into(),
            Self::DiskFilling { volume, .. } => format!("{volume} had little room left"),
        }
    }
}
