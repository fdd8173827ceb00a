//! What the overview, the navigation and the pages of providers show of the whole system.
//!
//! It is read once for all viewers and kept for some seconds, so that many open pages cost the
//! database no more than one.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use accounts::partners;
use desk::operator::{
    health::{
        self, HealthReport,
        life::{self, FindingEvent},
    },
    partners_lately::{self, PartnerActivity},
};
use pg::{
    Database, PgConnection,
    actions::{self, ActionFilter, RecordedAction},
};
use store::figures::{Count, FigureSpan, Figures, Measure, MeasureCounts};
use time::OffsetDateTime;
use tokio::sync::Mutex;
use uuid::Uuid;

use crate::pages::acts::partner_of;

/// How long a look is shown before the next one is taken. A dead stage has to be named within 15 s,
/// of which its silence takes ten.
const FRESH: Duration = Duration::from_secs(2);
/// Where somebody works off what is listed, a look is shown for so many times as long as it took:
/// taking it costs the database no more than a tenth of its time, and on a small system it is new.
const TIMES: u32 = 10;
/// The same for the count in the navigation, which every page has.
const COUNTED: Duration = Duration::from_secs(15);
/// A page does not wait for that count for longer.
const PATIENCE: Duration = Duration::from_millis(500);
/// How old the look is, at most about, with which the newest one is compared to see what drains.
const COMPARED: Duration = Duration::from_mins(1);
/// How long the figures of charts are shown.
const CHARTED: Duration = Duration::from_secs(20);
/// The minutes of the latencies and errors.
pub(crate) const MINUTES: i32 = 10;
/// For how long the overview tells what was wrong. The record tells it for good.
const MENDED: Duration = Duration::from_hours(24);
/// The maximum number of actions of people that are shown.
const ACTIONS: u32 = 5;

/// What one look at the database has read.
pub(crate) struct SystemSnapshot {
    at: Instant,
    /// How long it took.
    took: Duration,
    pub(crate) report: HealthReport,
    /// What was mended lately, the newest first.
    pub(crate) mended: Vec<FindingEvent>,
    /// The last minutes, of everybody and of each provider and endpoint.
    pub(crate) now: MeasureCounts,
    pub(crate) subjects: Vec<(Measure, String, Count)>,
    /// The newest events of them, which say how long it takes now.
    pub(crate) newest: MeasureCounts,
    newest_of: Vec<(Measure, String, Count)>,
    /// What people have done lately, and the names of the partners of it.
    pub(crate) actions: Vec<RecordedAction>,
    pub(crate) names: HashMap<Uuid, String>,
}

impl SystemSnapshot {
    /// What was counted of a provider or an endpoint in the last minutes.
    pub(crate) fn of_subject(&self, measure: Measure, subject: &str) -> Option<&Count> {
        of_subject(&self.subjects, measure, subject)
    }

    /// The newest events of a provider.
    pub(crate) fn newest_of(&self, measure: Measure, subject: &str) -> Option<&Count> {
        of_subject(&self.newest_of, measure, subject)
    }
}

fn of_subject<'a>(
    all: &'a [(Measure, String, Count)],
    measure: Measure,
    subject: &str,
) -> Option<&'a Count> {
    let mut all = all.iter();
    let found = all.find(|(of, name, _)| *of == measure && name == subject);
    found.map(|(_, _, count)| count)
}

#[cfg(test)]
impl SystemSnapshot {
    /// A look that has found these things while so much was counted of `sandbox` and in all.
    pub(crate) fn with(findings: Vec<health::Finding>, counted: &Count) -> Self {
        use desk::operator::health::samples;
        use strum::IntoEnumIterator;
        let at = OffsetDateTime::UNIX_EPOCH;
        let all = Measure::iter().map(|measure| (measure, counted.clone()));
        let breaker = store::providers::ProviderBreaker {
            name: "sandbox".to_owned(),
            state: store::providers::BreakerState::Closed,
            open_until: None,
            reason: None,
            openings: 0,
            version: 1,
            changed_at: at,
            failing_since: None,
            denied: false,
            balance: None,
            balance_at: None,
        };
        Self {
            at: Instant::now(),
            took: Duration::ZERO,
            report: HealthReport {
                breakers: vec![breaker],
                ..samples::report(at, findings)
            },
            mended: Vec::new(),
            now: all.clone().collect(),
            newest: all.clone().collect(),
            subjects: all
                .clone()
                .map(|(measure, count)| (measure, "sandbox".to_owned(), count))
                .collect(),
            newest_of: all
                .map(|(measure, count)| (measure, "sandbox".to_owned(), count))
                .collect(),
            actions: Vec::new(),
            names: std::collections::HashMap::new(),
        }
    }
}

/// The time that charts show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Range {
    Hour,
    SixHours,
    Day,
    Week,
}

impl Range {
    pub(crate) const ALL: [Self; 4] = [Self::Hour, Self::SixHours, Self::Day, Self::Week];

    /// Its name in an address.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Hour => "1h",
            Self::SixHours => "6h",
            Self::Day => "24h",
            Self::Week => "7d",
        }
    }

    pub(crate) fn parse(key: Option<&str>) -> Self {
        let mut all = Self::ALL.into_iter();
        all.find(|range| Some(range.key()) == key)
            .unwrap_or(Self::SixHours)
    }

    /// What is read for it, and the seconds of one bar.
    fn read(self) -> (FigureSpan, i32, i64) {
        match self {
            Self::Hour => (FigureSpan::Minute, 60, 60),
            Self::SixHours => (FigureSpan::Minute, 360, 300),
            Self::Day => (FigureSpan::Hour, 24, 3_600),
            Self::Week => (FigureSpan::Hour, 168, 3_600),
        }
    }

    /// The seconds of one bar.
    pub(crate) fn step(self) -> i64 {
        self.read().2
    }

    /// The number of bars.
    pub(crate) fn bars(self) -> i64 {
        let (span, spans, step) = self.read();
        let seconds = match span {
            FigureSpan::Minute => 60,
            FigureSpan::Hour => 3_600,
        };
        i64::from(spans) * seconds / step
    }
}

/// The bars of a range: each with its beginning, the oldest first. Those without figures are empty.
pub(crate) type Bars = Vec<(OffsetDateTime, MeasureCounts)>;

/// The bars of each provider.
pub(crate) type ByProvider = BTreeMap<String, Bars>;
/// What each partner did lately.
pub(crate) type Activities = HashMap<Uuid, PartnerActivity>;

/// The newest look, and an older one to compare it with.
#[derive(Default)]
struct Looks {
    newest: Option<Arc<SystemSnapshot>>,
    earlier: Option<Arc<SystemSnapshot>>,
    /// How many acts there were when the newest one began.
    acts: u64,
}

/// The looks that all viewers share.
pub(crate) struct SharedSnapshots {
    looks: Mutex<Looks>,
    charts: Mutex<BTreeMap<Range, (Instant, Arc<Bars>)>>,
    providers: Mutex<Option<(Instant, Arc<ByProvider>)>>,
    partners: Mutex<Option<(Instant, Arc<Activities>)>>,
    /// How many things need a person; [`UNKNOWN`] before the first look.
    needs: AtomicU64,
    /// How many acts this console has carried out. What they have changed is not in a look from
    /// before.
    acts: AtomicU64,
}

const UNKNOWN: u64 = u64::MAX;

impl Default for SharedSnapshots {
    fn default() -> Self {
        Self {
            looks: Mutex::default(),
            charts: Mutex::default(),
            providers: Mutex::default(),
            partners: Mutex::default(),
            needs: AtomicU64::new(UNKNOWN),
            acts: AtomicU64::new(0),
        }
    }
}

impl SharedSnapshots {
    /// Notes that an act may have changed something, so that the next page does not show what was
    /// before it.
    pub(crate) fn acted(&self) {
        self.acts.fetch_add(1, Ordering::AcqRel);
    }

    /// The newest look and the one that it is compared with. It is taken again if it is not fresh
    /// any more, or if somebody has acted since; viewers that ask meanwhile wait for the same one.
    pub(crate) async fn look(
        &self,
        database: &Database,
    ) -> Result<(Arc<SystemSnapshot>, Option<Arc<SystemSnapshot>>), pg::Error> {
        self.within(database, |_| FRESH).await
    }

    /// The newest look, which is taken again sooner: see [`TIMES`].
    pub(crate) async fn look_now(
        &self,
        database: &Database,
    ) -> Result<Arc<SystemSnapshot>, pg::Error> {
        let fresh = |took: Duration| took.saturating_mul(TIMES).min(FRESH);
        Ok(self.within(database, fresh).await?.0)
    }

    async fn within(
        &self,
        database: &Database,
        fresh: impl Fn(Duration) -> Duration,
    ) -> Result<(Arc<SystemSnapshot>, Option<Arc<SystemSnapshot>>), pg::Error> {
        let mut looks = self.looks.lock().await;
        let acts = self.acts.load(Ordering::Acquire);
        let is_of_now = looks.acts == acts;
        let is_fresh =
            |look: &&Arc<SystemSnapshot>| is_of_now && look.at.elapsed() < fresh(look.took);
        let newest = if let Some(fresh) = looks.newest.as_ref().filter(is_fresh) {
            Arc::clone(fresh)
        } else {
            let look = Arc::new(database.run(look).await?);
            let needed = look.report.needed().count();
            let needed = u64::try_from(needed).unwrap_or(UNKNOWN);
            self.needs.store(needed, Ordering::Relaxed);
            let before = looks.newest.replace(Arc::clone(&look));
            looks.acts = acts;
            let is_old = |look: &Arc<SystemSnapshot>| look.at.elapsed() > COMPARED;
            if looks.earlier.as_ref().is_none_or(is_old) {
                looks.earlier = before;
            }
            look
        };
        Ok((newest, looks.earlier.clone()))
    }

    /// Brings the count of the navigation up to date, if that is quick. A page shows an older
    /// count, or none, rather than wait.
    pub(crate) async fn note_needs(&self, database: &Database) {
        let noted = tokio::time::timeout(PATIENCE, self.within(database, |_| COUNTED));
        if let Ok(Err(error)) = noted.await {
            tracing::debug!(%error, "the count of what needs a person could not be read for a page");
        }
    }

    /// How many things need a person, if that is known and there are any.
    pub(crate) fn needs(&self) -> Option<u64> {
        let needs = self.needs.load(Ordering::Relaxed);
        (needs != UNKNOWN && needs > 0).then_some(needs)
    }

    /// The figures of a range.
    pub(crate) async fn bars(
        &self,
        database: &Database,
        range: Range,
    ) -> Result<Arc<Bars>, pg::Error> {
        let mut charts = self.charts.lock().await;
        if let Some((at, bars)) = charts.get(&range)
            && at.elapsed() < CHARTED
        {
            return Ok(Arc::clone(bars));
        }
        let (span, spans, _) = range.read();
        let read = async |connection: &mut PgConnection| {
            Figures::read(connection, span, spans, false).await
        };
        let figures = database.run(read).await?;
        let bars = Arc::new(bars(range, &figures.by_time(), runtime::clock::now()));
        charts.insert(range, (Instant::now(), Arc::clone(&bars)));
        Ok(bars)
    }
}

impl SharedSnapshots {
    /// The purchases and calls of the last six hours, by provider.
    pub(crate) async fn bars_of_providers(
        &self,
        database: &Database,
    ) -> Result<Arc<ByProvider>, pg::Error> {
        let mut providers = self.providers.lock().await;
        if let Some((at, bars)) = providers.as_ref()
            && at.elapsed() < CHARTED
        {
            return Ok(Arc::clone(bars));
        }
        let range = Range::SixHours;
        let (span, spans, _) = range.read();
        let read = async |connection: &mut PgConnection| {
            Figures::of_providers(connection, span, spans).await
        };
        let figures = database.run(read).await?.by_subject_and_time();
        let now = runtime::clock::now();
        let figures = figures.into_iter();
        let drawn = figures.map(|(name, times)| (name, bars(range, &times, now)));
        let drawn: Arc<ByProvider> = Arc::new(drawn.collect());
        *providers = Some((Instant::now(), Arc::clone(&drawn)));
        Ok(drawn)
    }
}

impl SharedSnapshots {
    /// What all partners did lately.
    pub(crate) async fn activities(
        &self,
        database: &Database,
    ) -> Result<Arc<Activities>, pg::Error> {
        let mut partners = self.partners.lock().await;
        if let Some((at, activities)) = partners.as_ref()
            && at.elapsed() < CHARTED
        {
            return Ok(Arc::clone(activities));
        }
        let now = runtime::clock::now();
        let read =
            async |connection: &mut PgConnection| partners_lately::read(connection, now).await;
        let read = Arc::new(database.run(read).await?);
        *partners = Some((Instant::now(), Arc::clone(&read)));
        Ok(read)
    }
}

/// Puts minutes or hours into the bars of a range, which ends with the bar of now.
fn bars(range: Range, figures: &[(OffsetDateTime, MeasureCounts)], now: OffsetDateTime) -> Bars {
    let step = range.step();
    let last = now.unix_timestamp().div_euclid(step);
    let mut by_bar: BTreeMap<i64, MeasureCounts> = BTreeMap::new();
    for (at, counts) in figures {
        let bar = by_bar
            .entry(at.unix_timestamp().div_euclid(step))
            .or_default();
        for (measure, count) in counts {
            bar.entry(*measure).or_default().merge(count);
        }
    }
    (last - range.bars() + 1..=last)
        .map(|bar| {
            let at = OffsetDateTime::from_unix_timestamp(bar * step).unwrap_or(now);
            (at, by_bar.remove(&bar).unwrap_or_default())
        })
        .collect()
}

async fn look(connection: &mut PgConnection) -> Result<SystemSnapshot, pg::Error> {
    let began = Instant::now();
    let report = health::examine(&mut *connection).await?;
    let mended = life::mended(&mut *connection, report.at - MENDED).await?;
    let now = Figures::read(&mut *connection, FigureSpan::Minute, MINUTES, true).await?;
    let actions = actions::list(&mut *connection, &ActionFilter::default(), ACTIONS).await?;
    let named = actions.iter().filter_map(|one| partner_of(&one.target));
    let named: Vec<Uuid> = named.map(domain::PartnerId::uuid).collect();
    let names = partners::names(connection, &named).await?;
    Ok(SystemSnapshot {
        report,
        mended,
        now: now.sums(),
        subjects: now.by_subject(),
        newest: now.newest(health::ENOUGH),
        newest_of: now.newest_by_subject(health::ENOUGH),
        actions,
        names,
        at: Instant::now(),
        took: began.elapsed(),
    })
}

#[cfg(test)]
mod tests {
    use time::{Duration, macros::datetime};

    use super::*;

    #[test]
    fn each_bar_has_the_figures_of_its_time_and_the_last_one_is_now() {
        let now = datetime!(2026-11-26 14:38 UTC);
        let minute = |minutes: i64, n| {
            let mut counts = MeasureCounts::new();
            let count = Count {
                n,
                ..Count::default()
            };
            counts.insert(Measure::Answered, count);
            (now - Duration::minutes(minutes), counts)
        };
        let figures = [minute(359, 5), minute(4, 1), minute(3, 2), minute(0, 4)];
        for (range, number) in [(Range::Hour, 60), (Range::SixHours, 72)] {
            let bars = bars(range, &figures, now);
            assert_eq!(bars.len(), number);
            let of =
                |bar: &(OffsetDateTime, MeasureCounts)| bar.1.get(&Measure::Answered).map(|c| c.n);
            let last = bars.last().unwrap();
            assert!(last.0 <= now && now - last.0 < Duration::seconds(range.step()));
            let sum: u64 = bars.iter().filter_map(of).sum();
            assert!(sum >= 7, "{range:?}: {sum}");
        }
        let by_five = bars(Range::SixHours, &figures, now);
        let of = |bar: &(OffsetDateTime, MeasureCounts)| bar.1.get(&Measure::Answered).map(|c| c.n);
        assert_eq!(of(&by_five[71]), Some(6));
        assert_eq!(of(&by_five[70]), Some(1));
    }
}
