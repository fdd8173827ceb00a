//! What can be wrong, as codes with their detail.

use accounts::partners::keys::EndedKey;
use domain::{PartnerId, esim_change::EsimChangeKind, standing::EndpointState};
use serde::{Deserialize, Serialize};
use store::{
    deliveries::endpoints::ListedEndpoint, figures::Measure, provider_lanes::WaitingLane,
    providers::ProviderBreaker,
};
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use super::{
    money::{RunningOut, SoldBelowCost},
    stages::Stage,
};
use crate::operator::{balances::Disagreement, esim_changes::ListedEsimChange, placements};

/// Something that is wrong.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    #[serde(flatten)]
    pub kind: FindingKind,
    /// Since when, if that is stored.
    #[serde(with = "time::serde::rfc3339::option")]
    pub since: Option<OffsetDateTime>,
    /// When its partner was told of it last. For a day after that nobody is needed.
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub told_at: Option<OffsetDateTime>,
    /// Whether it has lasted for longer than what ends by itself usually does, so that somebody
    /// should ask. It is as long as the alert waits.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lasts: bool,
    /// The stage that has to work again before anything ends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Stage>,
    /// Who has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taken: Option<FindingOwner>,
}

/// Who has a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FindingOwner {
    pub by: String,
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub until: OffsetDateTime,
    pub note: String,
}

/// How bad it is. Every view and every exit status follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// It ends by itself, or somebody has decided it. Nobody is needed.
    Mends,
    /// Orders go on. Somebody looks at it today.
    Warning,
    /// Orders are refused, late or not safe, or soon will be.
    Fault,
}

/// Whether partners with real orders or test partners feel it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AffectedEnvironment {
    Live,
    Sandbox,
}

/// How requests fail.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    strum::EnumIter,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum FailureKind {
    /// Orders get a 5xx.
    Errors,
    /// Requests get a 401.
    Denied,
    /// Orders get a 422, because the provider rejects them or cannot be reached.
    Refused,
    /// Orders get another 4xx, because of what is in them, the limit of a key or the balance.
    Invalid,
    /// Orders get a 429.
    Limited,
}

impl FailureKind {
    pub const ALL: [Self; 5] = [
        Self::Errors,
        Self::Denied,
        Self::Refused,
        Self::Invalid,
        Self::Limited,
    ];

    pub(super) fn measure(self) -> Measure {
        match self {
            Self::Errors => Measure::Errors,
            Self::Denied => Measure::Denied,
            Self::Refused => Measure::Refused,
            Self::Invalid => Measure::Invalid,
            Self::Limited => Measure::Limited,
        }
    }
}

/// A partner that feels it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FailingPartner {
    pub partner_id: Uuid,
    pub name: String,
    pub is_live: bool,
}

/// The code that most of the refused requests of partners have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeadingCode {
    pub code: String,
    /// How many have it, of how many that are kept.
    pub count: u64,
    pub of: u64,
}

impl LeadingCode {
    /// Whether orders are refused because nothing is left to pay for them.
    pub(super) fn is_of_balance(&self) -> bool {
        self.code == "balance_insufficient"
    }
}

/// Whose clock is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Clock {
    Postgresql,
    Nats,
    /// That of the console's OpenID provider.
    Openid,
    /// That of a process of a stage, compared with PostgreSQL's.
    Stage(Stage),
}

impl Clock {
    pub fn owner(self) -> &'static str {
        match self {
            Self::Postgresql => "PostgreSQL",
            Self::Nats => "NATS",
            Self::Openid => "the OpenID provider",
            Self::Stage(stage) => stage.as_str(),
        }
    }
}

/// A setting of PostgreSQL without which a crash loses answered orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum DurabilitySetting {
    Fsync,
    FullPageWrites,
    SynchronousCommit,
}

/// What is wrong. The order is that in which findings are shown: first what stops most.
///
/// The variants after [`FindingKind::RetentionBehind`] are those that the database cannot show, but
/// for [`FindingKind::NatsDown`] and [`FindingKind::NatsRefuses`]. Only `esimctl doctor` finds
/// them.
#[derive(Clone, Debug, Serialize, strum::EnumDiscriminants)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[strum_discriminants(
    name(Matter),
    derive(
        PartialOrd,
        Ord,
        Hash,
        strum::EnumIter,
        strum::EnumString,
        strum::IntoStaticStr
    ),
    strum(serialize_all = "snake_case")
)]
pub enum FindingKind {
    /// No process of a stage has committed for ten seconds.
    StageDead {
        stage: Stage,
        /// The stored work that waits for it.
        waiting: u64,
        /// The age of the oldest of that, in seconds.
        oldest: f64,
        /// Where those ran that died last, as far as they have said so.
        on: Vec<String>,
    },
    /// PostgreSQL does not answer, or a commit takes too long. Who notices it cannot read anything
    /// else, so it is found by the processes themselves (`/readyz`) and by the doctor.
    DatabaseDown { why: String },
    /// Commits were lost, so nothing is bought until somebody has compared with the providers.
    CommitsLost {
        providers: Vec<String>,
        told: Option<String>,
    },
    /// The connection leads to a standby.
    OnStandby,
    /// A crash loses answered orders.
    NotDurable { settings: Vec<DurabilitySetting> },
    /// Commits wait for a standby that does not stream.
    StandbyMissing,
    /// A clock differs from that of the machine that looks, or from PostgreSQL's.
    ClockOff { of: Clock, ahead: f64 },
    /// Requests are not answered as they should be, of all partners or of one.
    OrdersFail {
        how: FailureKind,
        /// The only partner that it is about; `None` if it is about all.
        partner: Option<Uuid>,
        /// Whether none gets through.
        everything: bool,
        /// How many of the newest requests failed, of how many, and when the last one did.
        failed: u64,
        all: u64,
        #[serde(with = "time::serde::rfc3339")]
        last: OffsetDateTime,
        /// Who feels it, as far as that is known, and how many more partners there may be.
        partners: Vec<FailingPartner>,
        others: usize,
        /// The keys of these partners that have ended and are named by these requests, if they get
        /// a 401.
        ended_keys: Vec<EndedKey>,
        /// The code that most of their refused requests got that are kept, if they are refused
        /// with a 4xx.
        #[serde(skip_serializing_if = "Option::is_none")]
        leading: Option<LeadingCode>,
    },
    /// PostgreSQL will refuse every write when its transaction ids are used up.
    Wraparound { age: u64 },
    /// Some processes of a stage died, and others run.
    ProcessesMissing {
        stage: Stage,
        missing: u64,
        running: u64,
        /// Where they ran, as far as they have said so.
        on: Vec<String>,
    },
    /// Products name providers that no provisioner has ever served.
    Unserved {
        providers: Vec<String>,
        /// Whether an order waits for one of them that sells real eSIMs.
        keeps_orders: bool,
    },
    /// Purchases or look-ups are late, although nothing stops them.
    PurchasesLate {
        provider: String,
        waiting: u64,
        oldest: f64,
        breaker_open: bool,
    },
    /// Webhooks are late, although their endpoints take them.
    WebhooksLate {
        environment: AffectedEnvironment,
        waiting: u64,
        oldest: f64,
    },
    /// Something takes much longer than in the last day, or is slow in a system of which no usual
    /// time is known yet.
    Slow {
        measure: Measure,
        /// The provider of purchases and calls; otherwise nothing.
        subject: String,
        /// How many seconds half of them take now or more, and within how many they ended before;
        /// nothing if no usual time is known yet.
        half: f64,
        before: Option<f64>,
        /// How many of the newest events that rests on, and on how many hours the time before.
        newest: u64,
        hours: usize,
        /// What it is made of is slow, too: the calls of a purchase, the webhook requests of a
        /// delivery. Otherwise the time passes here.
        part_is_slow: bool,
    },
    /// Purchases of which a person has to find out the outcome, for one reason at one provider.
    Parked {
        provider: String,
        reason: Option<String>,
        /// The oldest ones.
        purchases: Vec<placements::ListedPlacement>,
        /// How many are parked at the provider, for whatever reason, if not all were read; then
        /// none is listed here, and the others stand in findings of their own.
        in_all: u64,
    },
    /// Give-backs of which a person has to find out whether the provider has the eSIMs back.
    GiveBacksParked {
        provider: String,
        #[serde(rename = "give_backs")]
        changes: Vec<ListedEsimChange>,
    },
    /// Extensions of which a person has to find out whether the provider has added them.
    ExtensionsParked {
        provider: String,
        #[serde(rename = "extensions")]
        changes: Vec<ListedEsimChange>,
    },
    /// Webhooks of a partner have no endpoint with an address, so they wait.
    NoAddress {
        partner_id: Uuid,
        name: String,
        webhooks: u64,
    },
    /// Webhooks to an endpoint have used up their retries.
    Exhausted { endpoint: Box<ListedEndpoint> },
    /// Somebody has paused an endpoint.
    Paused { endpoint: Box<ListedEndpoint> },
    /// The breaker of a provider is not closed. It tests itself, and needs somebody only if the
    /// provider denies our account.
    BreakerOpen { breaker: ProviderBreaker },
    /// Purchases of some products are held back until look-ups have settled others.
    LanesHeldBack {
        provider: String,
        lanes: Vec<WaitingLane>,
    },
    /// An endpoint has failed too often. It is tested.
    Blocked { endpoint: Box<ListedEndpoint> },
    /// Most connections that PostgreSQL accepts are in use.
    ConnectionsFew { used: u64, most: u64 },
    /// A standby has not replayed for long.
    StandbyLags { seconds: u64 },
    /// A transaction keeps vacuum and migrations waiting, and the sweeps if it writes orders.
    LongTransaction { seconds: u64, of: String },
    /// WAL is not archived at all.
    NotArchived,
    /// Archiving of WAL fails.
    ArchiveLags { seconds: u64 },
    /// Accounts of partners disagree with their entries or with what was ordered, as the last
    /// comparison has found.
    AccountsDisagree {
        #[serde(with = "time::serde::rfc3339")]
        checked_at: OffsetDateTime,
        found: u64,
        /// The first ones.
        first: Vec<Disagreement>,
    },
    /// What a partner has left to order for is less than what it has spent in the last 24 hours.
    BalanceRunsOut(RunningOut),
    /// Partners pay less for options than these cost us.
    SoldBelowCost(SoldBelowCost),
    /// Rows have passed their term.
    RetentionBehind { seconds: u64 },
    /// Commits should wait for a standby, and do not.
    NotSynchronous,
    /// NATS cannot be used. The pulses of the stages tell it, too.
    NatsDown { why: String },
    /// NATS refuses messages of a stage, for lack of a permission. Its pulses tell it.
    NatsRefuses { stage: Stage, what: String },
    /// A stream does not exist.
    StreamMissing { stream: String },
    /// Servers lack their copies of a stream.
    ReplicasMissing { stream: String, on: Vec<String> },
    /// Nobody takes the messages of a stream.
    ConsumerMissing { stream: String },
    /// A stage could not read messages.
    DeadMessages { stream: String, messages: u64 },
    /// The last base backup is old; `None` if no file tells of one.
    BackupOld { hours: Option<u64> },
    /// The last tested restore is old; `None` if no file tells of one.
    DrillOld { days: Option<u64> },
    /// A volume has little room left.
    DiskFilling { volume: String, percent: f64 },
}

/// From these ages in seconds on, work is late, and needs a person although its cause may be known.
pub const LATE: f64 = 60.0;
pub const VERY_LATE: f64 = 900.0;
/// As in the alert `XidAgeCritical`.
pub const XID_CRITICAL: u64 = 1_500_000_000;
/// The difference of clocks at which no stage works.
pub const SKEW_AT_START: f64 = pg::down::CLOCK_FAULT;
/// The difference from which on somebody has to mend it at once.
const SKEW_GRAVE: f64 = pg::down::CLOCK_GRAVE;
/// As in the alert `DiskAlmostFull`.
pub const DISK_FULL: f64 = 10.0;

impl Finding {
    pub fn new(kind: FindingKind, since: Option<OffsetDateTime>) -> Self {
        Self {
            kind,
            since,
            told_at: None,
            lasts: false,
            after: None,
            taken: None,
        }
    }

    /// What of it is about this partner; `None` if nothing is. What keeps the orders or webhooks of
    /// all partners of its environment back is about it, too. Whoever looks at one partner is not
    /// told how many purchases of others are on hold.
    #[must_use]
    pub fn of(&self, partner: PartnerId, is_live: bool) -> Option<Self> {
        let (kind, since) = match &self.kind {
            FindingKind::Parked {
                provider,
                reason,
                purchases,
                ..
            } => {
                let mine = purchases.iter().filter(|one| one.partner_id == partner);
                let purchases: Vec<_> = mine.cloned().collect();
                let since = purchases
                    .iter()
                    .map(placements::ListedPlacement::since)
                    .min()?;
                let kind = FindingKind::Parked {
                    provider: provider.clone(),
                    reason: reason.clone(),
                    purchases,
                    in_all: 0,
                };
                (kind, Some(since))
            }
            FindingKind::GiveBacksParked { provider, changes }
            | FindingKind::ExtensionsParked { provider, changes } => {
                let mine = changes.iter().filter(|one| one.partner_id == partner);
                let mine: Vec<_> = mine.cloned().collect();
                let kind = mine.first()?.kind();
                let since = mine.iter().map(|one| one.parked_at).min();
                (
                    FindingKind::parked_changes(kind, provider.clone(), mine),
                    since,
                )
            }
            FindingKind::Exhausted { endpoint }
            | FindingKind::Paused { endpoint }
            | FindingKind::Blocked { endpoint }
                if endpoint.partner_id == partner.uuid() =>
            {
                (self.kind.clone(), self.since)
            }
            FindingKind::OrdersFail {
                partner: Some(of), ..
            }
            | FindingKind::NoAddress { partner_id: of, .. }
                if *of == partner.uuid() =>
            {
                (self.kind.clone(), self.since)
            }
            FindingKind::BalanceRunsOut(one) if one.partner_id == partner => {
                (self.kind.clone(), self.since)
            }
            kind if kind.keeps_back(is_live) => (kind.clone(), self.since),
            _ => return None,
        };
        Some(Self {
            kind,
            since,
            ..self.clone()
        })
    }

    /// How bad it is: the one answer that all views, exit statuses and alerts follow.
    pub fn severity(&self) -> Severity {
        let is_needed = self.kind.needs_person() || self.is_long() || self.after.is_some();
        if self.told_at.is_none() && is_needed {
            self.kind.severity()
        } else {
            Severity::Mends
        }
    }

    /// Whether somebody is needed, because it should have ended by itself.
    pub(super) fn is_long(&self) -> bool {
        self.lasts && self.kind.ends_within().is_some()
    }

    pub fn needs_person(&self) -> bool {
        self.severity() != Severity::Mends
    }
}

impl FindingKind {
    pub fn matter(&self) -> Matter {
        self.into()
    }

    /// Parked changes of one kind at one provider.
    pub fn parked_changes(
        kind: EsimChangeKind,
        provider: String,
        changes: Vec<ListedEsimChange>,
    ) -> Self {
        match kind {
            EsimChangeKind::GiveBack => Self::GiveBacksParked { provider, changes },
            EsimChangeKind::Extension => Self::ExtensionsParked { provider, changes },
        }
    }

    /// The partner who has to hear of it, because only its own side can mend it.
    pub fn tells(&self) -> Option<Uuid> {
        match self {
            Self::Exhausted { endpoint } | Self::Blocked { endpoint } => Some(endpoint.partner_id),
            Self::BalanceRunsOut(one) => Some(one.partner_id.uuid()),
            _ => None,
        }
    }

    /// Within which time it usually ends by itself: as long as its alert waits.
    pub(super) fn ends_within(&self) -> Option<Duration> {
        match self {
            Self::BreakerOpen { breaker } => {
                let is_real = breaker.name != super::waiting::SANDBOX;
                (is_real && !breaker.opened_by_operator()).then_some(Duration::minutes(5))
            }
            Self::LanesHeldBack { .. } => Some(Duration::minutes(10)),
            Self::Blocked { .. } => Some(Duration::minutes(30)),
            _ => None,
        }
    }

    /// The stage that ends it, by itself or once somebody has done something.
    pub(super) fn ended_by(&self) -> Option<Stage> {
        match self {
            Self::BreakerOpen { .. } | Self::PurchasesLate { .. } | Self::LanesHeldBack { .. } => {
                Some(Stage::Provisioner)
            }
            Self::WebhooksLate { .. }
            | Self::NoAddress { .. }
            | Self::Exhausted { .. }
            | Self::Blocked { .. }
            | Self::RetentionBehind { .. } => Some(Stage::Notifier),
            _ => None,
        }
    }

    /// Whether it keeps back the orders or webhooks of all partners with real orders, or of all
    /// test partners.
    pub(super) fn keeps_back(&self, is_live: bool) -> bool {
        match self {
            Self::StageDead { .. }
            | Self::DatabaseDown { .. }
            | Self::CommitsLost { .. }
            | Self::OnStandby
            | Self::StandbyMissing
            | Self::NotSynchronous
            | Self::ConnectionsFew { .. } => true,
            Self::OrdersFail { partner, .. } => partner.is_none(),
            Self::ClockOff { ahead, .. } => ahead.abs() > SKEW_AT_START,
            Self::Wraparound { age } => *age >= XID_CRITICAL,
            Self::BreakerOpen { breaker } => (breaker.name != super::waiting::SANDBOX) == is_live,
            Self::PurchasesLate { provider, .. } | Self::LanesHeldBack { provider, .. } => {
                (provider != super::waiting::SANDBOX) == is_live
            }
            Self::WebhooksLate { environment, .. } => {
                (*environment == AffectedEnvironment::Live) == is_live
            }
            Self::Unserved { .. } | Self::Slow { .. } => is_live,
            Self::NotDurable { .. }
            | Self::ProcessesMissing { .. }
            | Self::Parked { .. }
            | Self::GiveBacksParked { .. }
            | Self::ExtensionsParked { .. }
            | Self::NoAddress { .. }
            | Self::Exhausted { .. }
            | Self::Paused { .. }
            | Self::Blocked { .. }
            | Self::StandbyLags { .. }
            | Self::LongTransaction { .. }
            | Self::NotArchived
            | Self::ArchiveLags { .. }
            | Self::AccountsDisagree { .. }
            | Self::BalanceRunsOut(_)
            | Self::SoldBelowCost(_)
            | Self::RetentionBehind { .. }
            | Self::NatsDown { .. }
            | Self::NatsRefuses { .. }
            | Self::StreamMissing { .. }
            | Self::ReplicasMissing { .. }
            | Self::ConsumerMissing { .. }
            | Self::DeadMessages { .. }
            | Self::BackupOld { .. }
            | Self::DrillOld { .. }
            | Self::DiskFilling { .. } => false,
        }
    }

    /// How bad it is if somebody is needed. [`Finding::severity`] is what the views show.
    fn severity(&self) -> Severity {
        let is_fault = match self {
            Self::StageDead { .. }
            | Self::DatabaseDown { .. }
            | Self::CommitsLost { .. }
            | Self::OnStandby
            | Self::NotDurable { .. }
            | Self::StandbyMissing
            | Self::NotSynchronous => true,
            Self::Unserved { keeps_orders, .. } => *keeps_orders,
            Self::ClockOff { ahead, .. } => ahead.abs() > SKEW_GRAVE,
            Self::Wraparound { age } => *age >= XID_CRITICAL,
            Self::PurchasesLate {
                provider, oldest, ..
            } => *oldest >= VERY_LATE && provider != super::waiting::SANDBOX,
            Self::WebhooksLate {
                environment,
                oldest,
                ..
            } => *oldest >= VERY_LATE && *environment == AffectedEnvironment::Live,
            Self::BreakerOpen { breaker } => breaker.name != super::waiting::SANDBOX,
            Self::OrdersFail {
                how,
                partner,
                everything,
                partners,
                ..
            } => match how {
                FailureKind::Errors => true,
                // Without a known partner, nobody knows that they are test partners.
                FailureKind::Refused | FailureKind::Denied => {
                    let is_felt = partners.is_empty() || partners.iter().any(|one| one.is_live);
                    *everything && partner.is_none() && is_felt
                }
                FailureKind::Invalid | FailureKind::Limited => false,
            },
            Self::DiskFilling { percent, .. } => *percent < DISK_FULL,
            Self::ProcessesMissing { .. }
            | Self::Slow { .. }
            | Self::Parked { .. }
            | Self::GiveBacksParked { .. }
            | Self::ExtensionsParked { .. }
            | Self::NoAddress { .. }
            | Self::Exhausted { .. }
            | Self::Paused { .. }
            | Self::LanesHeldBack { .. }
            | Self::Blocked { .. }
            | Self::ConnectionsFew { .. }
            | Self::StandbyLags { .. }
            | Self::LongTransaction { .. }
            | Self::NotArchived
            | Self::ArchiveLags { .. }
            | Self::AccountsDisagree { .. }
            | Self::BalanceRunsOut(_)
            | Self::SoldBelowCost(_)
            | Self::RetentionBehind { .. }
            | Self::NatsDown { .. }
            | Self::NatsRefuses { .. }
            | Self::StreamMissing { .. }
            | Self::ReplicasMissing { .. }
            | Self::ConsumerMissing { .. }
            | Self::DeadMessages { .. }
            | Self::BackupOld { .. }
            | Self::DrillOld { .. } => false,
        };
        if is_fault {
            Severity::Fault
        } else {
            Severity::Warning
        }
    }

    /// Whether somebody has to do something. What mends itself asks for nobody, and neither does a
    /// pause that the partner has set and can end. A provider that denies our account is tested,
    /// too, but no test mends a key.
    fn needs_person(&self) -> bool {
        match self {
            Self::BreakerOpen { breaker } => breaker.denied,
            Self::LanesHeldBack { .. } | Self::Blocked { .. } => false,
            Self::Paused { endpoint } => endpoint.state != EndpointState::PausedByPartner,
            Self::StageDead { .. }
            | Self::DatabaseDown { .. }
            | Self::CommitsLost { .. }
            | Self::OnStandby
            | Self::NotDurable { .. }
            | Self::StandbyMissing
            | Self::ClockOff { .. }
            | Self::OrdersFail { .. }
            | Self::Wraparound { .. }
            | Self::ProcessesMissing { .. }
            | Self::Unserved { .. }
            | Self::PurchasesLate { .. }
            | Self::WebhooksLate { .. }
            | Self::Slow { .. }
            | Self::Parked { .. }
            | Self::GiveBacksParked { .. }
            | Self::ExtensionsParked { .. }
            | Self::NoAddress { .. }
            | Self::Exhausted { .. }
            | Self::ConnectionsFew { .. }
            | Self::StandbyLags { .. }
            | Self::LongTransaction { .. }
            | Self::NotArchived
            | Self::ArchiveLags { .. }
            | Self::AccountsDisagree { .. }
            | Self::BalanceRunsOut(_)
            | Self::SoldBelowCost(_)
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
            | Self::DiskFilling { .. } => true,
        }
    }
}

/// The alerts that page somebody. The others make a ticket. A test compares them with the rules.
const PAGES: [&str; 15] = [
    "IngressDown",
    "IngressErrors",
    "NothingGetsThrough",
    "UnservedProvider",
    "ProvisionerDown",
    "ProvisionerFarBehind",
    "ProviderBreakerOpen",
    "NotifierDown",
    "NotifierFarBehind",
    "DatabaseDown",
    "CommitsLost",
    "StandbyNotSynchronous",
    "ClockSkew",
    "DiskAlmostFull",
    "XidAgeCritical",
];

impl Finding {
    /// The alert that fires for it, and is as urgent: a fault pages, a warning makes a ticket, and
    /// what ends by itself does neither.
    pub fn alert(&self) -> Option<&'static str> {
        let urgent = match self.severity() {
            Severity::Mends => return None,
            Severity::Warning => false,
            Severity::Fault => true,
        };
        let alert = self.kind.named_alert();
        alert.filter(|alert| PAGES.contains(alert) == urgent)
    }

    /// The section of the runbook: that of the alert, or another one where it has none.
    pub fn see(&self) -> String {
        let kind = &self.kind;
        let section = match (kind.named_alert(), kind) {
            (_, FindingKind::StandbyMissing) => "standbymissing".to_owned(),
            (Some(alert), _) => alert.to_lowercase(),
            (None, FindingKind::OnStandby) => "failover-of-postgresql".to_owned(),
            (None, FindingKind::NotDurable { .. }) => "commitslost".to_owned(),
            (None, FindingKind::NotArchived) => "back-up-and-restore".to_owned(),
            (None, FindingKind::OrdersFail { .. }) => "ordersrefused".to_owned(),
            (None, _) => "endpointsblocked".to_owned(),
        };
        format!("docs/operations.md#{section}")
    }
}

impl FindingKind {
    /// Which of the alerts of its matter it is, which follows from the detail.
    fn named_alert(&self) -> Option<&'static str> {
        let alerts = self.matter().alerts().ok()?;
        let nth = match self {
            Self::StageDead { stage, .. } => match stage {
                Stage::Ingress => 0,
                Stage::Provisioner => 1,
                Stage::Notifier => 2,
            },
            // Commits wait, so no pulse comes through.
            Self::StandbyMissing => 1,
            Self::Wraparound { age } => usize::from(*age >= XID_CRITICAL),
            Self::PurchasesLate { provider, .. } if provider == super::waiting::SANDBOX => 0,
            Self::PurchasesLate { oldest, .. } => 1 + usize::from(*oldest >= VERY_LATE),
            Self::WebhooksLate {
                environment,
                oldest,
                ..
            } => usize::from(*oldest >= VERY_LATE && *environment == AffectedEnvironment::Live),
            Self::DiskFilling { percent, .. } => usize::from(*percent < DISK_FULL),
            Self::Slow { measure, .. } => match measure {
                Measure::Answered => 0,
                Measure::Call => 2,
                _ => 1,
            },
            Self::OrdersFail { how, partner, .. } => match (how, self.severity()) {
                (FailureKind::Errors, _) => 0,
                (FailureKind::Refused | FailureKind::Denied, Severity::Fault) => 3,
                (FailureKind::Refused | FailureKind::Invalid, _) if partner.is_some() => 4,
                (FailureKind::Refused, _) => 1,
                (FailureKind::Denied, _) => 2,
                (FailureKind::Invalid | FailureKind::Limited, _) => return None,
            },
            _ => 0,
        };
        alerts.get(nth).copied()
    }
}

impl Matter {
    /// The alerts of `deploy/observability/prometheus/alerts.yml` that fire for it, from the least
    /// to the most urgent one; or why none does. The test at the end of this file compares both
    /// lists.
    pub fn alerts(self) -> Result<&'static [&'static str], &'static str> {
        Ok(match self {
            Self::StageDead => &["IngressDown", "ProvisionerDown", "NotifierDown"],
            Self::DatabaseDown => &[pg::down::ALERT],
            Self::CommitsLost => &["CommitsLost"],
            Self::OnStandby => {
                return Err(
                    "no stage works on a standby, so DatabaseDown fires for those that should write",
                );
            }
            Self::NotDurable => {
                return Err("no metric shows these settings; only who changes them can mend them");
            }
            Self::StandbyMissing => &["StandbyMissing", pg::down::ALERT],
            Self::ClockOff => &[pg::down::CLOCK_ALERT],
            Self::OrdersFail => &[
                "IngressErrors",
                "OrdersRefused",
                "AuthFailures",
                "NothingGetsThrough",
                "PartnerRefused",
            ],
            Self::Wraparound => &["XidAgeHigh", "XidAgeCritical"],
            Self::ProcessesMissing => &["InstanceDown"],
            Self::Unserved => &["UnservedProvider"],
            Self::PurchasesLate => &["SandboxBehind", "ProvisionerBehind", "ProvisionerFarBehind"],
            Self::WebhooksLate => &["NotifierBehind", "NotifierFarBehind"],
            Self::Slow => &["IngressSlow", "SlowerThanBefore", "ProviderSlow"],
            Self::Parked => &["PlacementsParked"],
            Self::GiveBacksParked => &["GiveBacksParked"],
            Self::ExtensionsParked => &["ExtensionsParked"],
            Self::NoAddress => &["NoAddress"],
            Self::Exhausted => &["DeliveriesExhausted"],
            Self::Paused => return Err("somebody has decided it, so nobody has to be alarmed"),
            Self::BreakerOpen => &["ProviderBreakerOpen"],
            Self::LanesHeldBack => &["LaneHeldBack"],
            Self::Blocked => &["EndpointsBlocked"],
            Self::ConnectionsFew => &["DatabasePoolExhausted"],
            Self::StandbyLags => &["StandbyLags"],
            Self::LongTransaction => &["LongTransaction"],
            Self::NotArchived => {
                return Err(
                    "a server without an archive has no metric of it; BackupOld tells of it",
                );
            }
            Self::ArchiveLags => &["ArchiveLags"],
            Self::AccountsDisagree => &["AccountsDisagree"],
            Self::BalanceRunsOut => &["BalanceRunsOut"],
            Self::SoldBelowCost => &["SoldBelowCost"],
            Self::RetentionBehind => &["RetentionBehind"],
            Self::NotSynchronous => &["StandbyNotSynchronous"],
            Self::NatsDown => &["NatsDown"],
            Self::NatsRefuses => &["NatsRefuses"],
            Self::StreamMissing => &["MessagesNotArriving"],
            Self::ReplicasMissing => &["StreamReplicasMissing"],
            Self::ConsumerMissing => &["ConsumerStalled"],
            Self::DeadMessages => &["DeadMessages"],
            Self::BackupOld => &["BackupOld"],
            Self::DrillOld => &["DrillOld"],
            Self::DiskFilling => &["DiskFilling", "DiskAlmostFull"],
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use strum::IntoEnumIterator;

    use super::*;

    /// Alerts for which there is no finding, and why.
    const ONLY_ALERTS: [(&str, &str); 12] = [
        (
            "IngressOverloaded",
            "a rate of responses, which no row shows",
        ),
        ("NoOrders", "silence compared with the day before"),
        (
            "BacklogGrows",
            "a trend over an hour; a look sees what waits, and how old it is",
        ),
        (
            "ProviderCallsFail",
            "a rate of calls; the breaker and held-back products are found",
        ),
        ("ProviderBalanceLow", "the balance is not stored"),
        (
            "WebhooksFail",
            "a rate of requests over all endpoints; each blocked one is found",
        ),
        (
            "ConsoleDown",
            "who asks the console sees it; orders do not need it",
        ),
        ("MixedVersions", "the processes do not store their version"),
        ("OrdersBudgetBurns", "an objective over hours and days"),
        (
            "OrdersBudgetBurnsSlowly",
            "an objective over hours and days",
        ),
        ("WebhooksBudgetBurns", "an objective over hours and days"),
        (
            "WebhooksBudgetBurnsSlowly",
            "an objective over hours and days",
        ),
    ];

    /// Findings that are told before the alert of their matter fires, as what they are by then.
    const NO_ALERT_YET: [(Matter, Severity); 3] = [
        // It pages once an order waits.
        (Matter::Unserved, Severity::Warning),
        // It pages from 10 s on.
        (Matter::ClockOff, Severity::Warning),
        // The sandbox's breaker has no alert.
        (Matter::BreakerOpen, Severity::Warning),
    ];

    #[test]
    fn each_finding_names_its_alert_and_each_alert_has_a_finding_or_a_reason() {
        let rules = include_str!("../../../../../deploy/observability/prometheus/alerts.yml");
        let fired: BTreeSet<&str> = rules
            .lines()
            .filter_map(|line| line.trim().strip_prefix("- alert: "))
            .collect();
        assert!(fired.len() > 40, "{fired:?}");
        let named: BTreeSet<&str> = Matter::iter()
            .filter_map(|matter| matter.alerts().ok())
            .flatten()
            .copied()
            .collect();
        let unknown: Vec<&&str> = named.difference(&fired).collect();
        assert_eq!(
            unknown,
            Vec::<&&str>::new(),
            "findings name alerts that do not exist"
        );
        let without: BTreeSet<&str> = ONLY_ALERTS.iter().map(|(alert, _)| *alert).collect();
        let left: BTreeSet<&str> = fired.difference(&named).copied().collect();
        assert_eq!(
            left, without,
            "alerts without a finding and without a reason"
        );
        // One severity: what pages is a fault, and what makes a ticket a warning.
        let urgency = |alert: &str| {
            let (_, rule) = rules.split_once(&format!("- alert: {alert}\n"))?;
            let (_, severity) = rule.split_once("severity: ")?;
            Some(severity.starts_with("page"))
        };
        for alert in &named {
            assert_eq!(urgency(alert), Some(PAGES.contains(alert)), "{alert}");
        }
        for one in super::super::samples::samples(OffsetDateTime::UNIX_EPOCH) {
            let fires = one.alert();
            let severity = one.severity();
            let named = one.kind.named_alert();
            let is_as_bad = severity == Severity::Mends || fires == named;
            let has_reason = NO_ALERT_YET.contains(&(one.kind.matter(), severity));
            assert!(is_as_bad || has_reason, "{severity:?} {named:?}: {one:?}");
        }
        for matter in Matter::iter() {
            match matter.alerts() {
                Ok(alerts) => assert!(!alerts.is_empty(), "{matter:?}"),
                Err(why) => assert!(why.len() > 20, "{matter:?}"),
            }
        }
    }
}
