//! Figures by the time of the event: how many orders were answered, bought, parked and delivered in
//! each minute and each hour, how long that took, and how much of it failed.
//!
//! Nothing counts orders when somebody looks, and no order pays for it. Each process counts in
//! memory what it does (`pipeline::figures`), and adds its counts to its own rows once in five
//! seconds with [`add`]. So rows of two processes never wait for each other, and what a process has
//! counted since its last write is lost if it dies: figures show how the system does, and are no
//! accounts.
//!
//! A minute is kept for [`MINUTES_KEPT`] and an hour for [`HOURS_KEPT`]. Each statement adds to
//! both, so nothing has to be summed up later. What became of requests is also counted in ticks of
//! ten seconds ([`Measure::is_outcome`]), because who asks whether orders get through now cannot
//! wait for the end of a minute.

use std::{collections::BTreeMap, fmt, time::Duration};

use pg::{Result, count};
use serde::Serialize;
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

/// How long minutes are kept, in hours.
pub const MINUTES_KEPT: i32 = 48;
/// How long hours are kept, in days.
pub const HOURS_KEPT: i32 = 90;
/// How long ticks are kept, in hours.
const TICKS_KEPT: i32 = 2;
/// The length of a tick, in seconds.
pub const TICK: u8 = 10;
/// The span of ticks, of which only [`outcomes`] are read.
const TICKS: &str = "tick";

/// What is counted.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    strum::EnumIter,
    strum::EnumString,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Measure {
    /// Create-order requests that were answered: with a 201 or a 4xx, or failed, with a 5xx.
    Answered,
    /// Those of them that the provider refused, which got a 422, by partner.
    Refused,
    /// Those of them that were answered with a 5xx, by partner.
    Errors,
    /// Those of them that were refused with another 4xx, because of what is in them, the limit of a
    /// key or the balance, by partner.
    Invalid,
    /// Those of them that were refused for a limit of their partner, with a 429, by partner.
    Limited,
    /// Requests that were answered with a 401, by the partner of their access key; without a
    /// subject if it belongs to none.
    Denied,
    /// Purchases that a provider has confirmed, since their orders.
    Bought,
    /// Units whose profiles are stored, since their orders.
    Ready,
    /// Units that failed for good.
    Failed,
    /// Units that were parked.
    Parked,
    /// Calls to a provider. One without a usable response has failed.
    Call,
    /// Webhook requests to an endpoint. One that was not acknowledged has failed.
    Attempt,
    /// Webhooks of eSIMs that were acknowledged, since their orders.
    Delivered,
    /// Webhooks that have used up their retries.
    Exhausted,
}

impl Measure {
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether it tells what became of requests.
    pub fn is_outcome(self) -> bool {
        matches!(
            self,
            Self::Answered
                | Self::Refused
                | Self::Errors
                | Self::Invalid
                | Self::Limited
                | Self::Denied
        )
    }
}

/// The upper limits of the buckets of a histogram, in seconds. A last bucket holds what took
/// longer.
pub const BOUNDS: [f64; 15] = [
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 7_200.0,
];
pub const BUCKETS: usize = BOUNDS.len() + 1;

/// The upper limits of the fine buckets, in seconds: the series E12, so that whatever is told as
/// such a limit took at least four fifths of it. A last bucket holds what took longer.
pub const FINE: [f64; 47] = [
    0.01, 0.012, 0.015, 0.018, 0.022, 0.027, 0.033, 0.039, 0.047, 0.056, 0.068, 0.082, //
    0.1, 0.12, 0.15, 0.18, 0.22, 0.27, 0.33, 0.39, 0.47, 0.56, 0.68, 0.82, //
    1.0, 1.2, 1.5, 1.8, 2.2, 2.7, 3.3, 3.9, 4.7, 5.6, 6.8, 8.2, //
    10.0, 12.0, 15.0, 18.0, 22.0, 27.0, 33.0, 39.0, 47.0, 56.0, 60.0,
];

/// A count with its failures and its histograms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count {
    pub n: u64,
    pub failed: u64,
    /// How many of them took how long. What has no duration is in no bucket.
    pub histogram: [u64; BUCKETS],
    /// The same in fine buckets. What a program of an older version has counted is in none of them.
    pub fine: [u64; FINE.len() + 1],
}

impl Default for Count {
    fn default() -> Self {
        Self {
            n: 0,
            failed: 0,
            histogram: [0; BUCKETS],
            fine: [0; FINE.len() + 1],
        }
    }
}

impl Count {
    /// Counts one event.
    pub fn note(&mut self, took: Option<Duration>, failed: bool) {
        self.n = self.n.saturating_add(1);
        self.failed = self.failed.saturating_add(u64::from(failed));
        if let Some(took) = took {
            let took = took.as_secs_f64();
            let coarse = &mut self.histogram[BOUNDS.partition_point(|most| *most < took)];
            *coarse = coarse.saturating_add(1);
            let fine = &mut self.fine[FINE.partition_point(|most| *most < took)];
            *fine = fine.saturating_add(1);
        }
    }

    /// All buckets, as they are stored one after the other.
    fn buckets(&mut self) -> impl Iterator<Item = &mut u64> {
        self.histogram.iter_mut().chain(&mut self.fine)
    }

    /// The buckets as they are stored: without the empty fine ones at the end. Programs of an older
    /// version read the coarse ones, which come first.
    fn stored(&self) -> impl Iterator<Item = u64> {
        let last = self.fine.iter().rposition(|number| *number > 0);
        let fine = self.fine.iter().take(last.map_or(0, |last| last + 1));
        self.histogram.iter().chain(fine).copied()
    }

    /// Adds another count.
    pub fn merge(&mut self, other: &Self) {
        self.n = self.n.saturating_add(other.n);
        self.failed = self.failed.saturating_add(other.failed);
        let others = other.histogram.iter().chain(&other.fine);
        for (mine, others) in self.buckets().zip(others) {
            *mine = mine.saturating_add(*others);
        }
    }

    /// Within which time this share of all ended; `None` if nothing has a duration. The limits are
    /// those of the bucket, because where in it the events lie is not known: of a fine one, if all
    /// of them are in such buckets.
    pub fn within(&self, share: f64) -> Option<Within> {
        let coarse = within(&self.histogram, &BOUNDS, share)?;
        let all: u64 = self.histogram.iter().sum();
        let is_fine = self.fine.iter().sum::<u64>() == all;
        let fine = is_fine.then(|| within(&self.fine, &FINE, share)).flatten();
        Some(fine.filter(|fine| fine.most.is_some()).unwrap_or(coarse))
    }

    /// The share that failed.
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    pub fn failed_share(&self) -> Option<f64> {
        (self.n > 0).then(|| self.failed as f64 / self.n as f64)
    }
}

/// Between which limits of buckets this share of all ended.
#[expect(clippy::cast_precision_loss, reason = "a share of a count")]
fn within(buckets: &[u64], limits: &[f64], share: f64) -> Option<Within> {
    let all: u64 = buckets.iter().sum();
    let wanted = (share.clamp(0.0, 1.0) * all as f64).ceil().max(1.0);
    let mut ended = 0;
    let bucket = buckets.iter().position(|inside| {
        ended += inside;
        ended as f64 >= wanted
    })?;
    Some(Within {
        over: bucket.checked_sub(1).map_or(0.0, |below| limits[below]),
        most: limits.get(bucket).copied(),
    })
}

/// What is known of a time: it is more than one limit, and at most another one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Within {
    /// In seconds.
    pub over: f64,
    /// In seconds; `None` beyond the last limit.
    pub most: Option<f64>,
}

impl Within {
    /// The upper limit, or the lower one if there is no upper one, for a picture.
    pub fn drawn(self) -> f64 {
        self.most.unwrap_or(self.over)
    }

    /// For sentences: `up to 0.047 s`, `under 0.01 s`, `over 2 h`. It is a limit, and is told as
    /// one: what ended at a timeout of 15 s did not take the 18 s of its bucket.
    pub fn told(self) -> String {
        match self.most {
            Some(most) if self.over > 0.0 => format!("up to {}", told(most)),
            Some(most) => format!("under {}", told(most)),
            None => format!("over {}", told(self.over)),
        }
    }
}

/// A limit for sentences, in which nothing is told in milliseconds: `0.047 s`, `5 min`.
pub fn told(seconds: f64) -> String {
    if seconds < 60.0 {
        format!("{seconds}\u{a0}s")
    } else {
        limit(seconds)
    }
}

/// Says what is known: `≤ 250 ms`, `> 2 h`.
impl fmt::Display for Within {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.most {
            Some(most) => write!(f, "≤\u{a0}{}", limit(most)),
            None => write!(f, ">\u{a0}{}", limit(self.over)),
        }
    }
}

/// A limit of [`BOUNDS`] or [`FINE`] in its largest unit. The blank in it parts no number from its
/// unit.
pub fn limit(seconds: f64) -> String {
    match seconds {
        of if of < 1.0 => format!("{:.0}\u{a0}ms", of * 1_000.0),
        of if of < 60.0 => format!("{of}\u{a0}s"),
        of if of < 3_600.0 => format!("{}\u{a0}min", of / 60.0),
        of => format!("{}\u{a0}h", of / 3_600.0),
    }
}

/// What was counted of a subject in a minute, or in a tick if it is an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    pub at: OffsetDateTime,
    pub measure: Measure,
    /// A provider's name, an endpoint's or a partner's id, or nothing.
    pub subject: String,
    pub count: Count,
}

/// Adds what this process has counted to its ticks, minutes and hours.
pub async fn add(connection: &mut PgConnection, instance: Uuid, figures: &[Figure]) -> Result<()> {
    let mut counts: BTreeMap<_, Count> = BTreeMap::new();
    for figure in figures {
        let minute = figure.at.replace_second(0).unwrap_or(figure.at);
        let hour = minute.replace_minute(0).unwrap_or(minute);
        let minute: (&str, _) = (FigureSpan::Minute.into(), minute);
        let hour = (FigureSpan::Hour.into(), hour);
        let is_outcome = figure.measure.is_outcome();
        let tick = is_outcome.then_some((TICKS, figure.at));
        for (span, at) in [minute, hour].into_iter().chain(tick) {
            let key = (span, at, figure.measure, figure.subject.as_str());
            counts.entry(key).or_default().merge(&figure.count);
        }
    }
    let spans: Vec<&str> = counts.keys().map(|key| key.0).collect();
    let times: Vec<OffsetDateTime> = counts.keys().map(|key| key.1).collect();
    let measures: Vec<&str> = counts.keys().map(|key| key.2.as_str()).collect();
    let subjects: Vec<&str> = counts.keys().map(|key| key.3).collect();
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let numbers: Vec<i64> = counts.values().map(|count| signed(count.n)).collect();
    let failed: Vec<i64> = counts.values().map(|count| signed(count.failed)).collect();
    // The histograms come as one list, of which each row takes its part.
    let mut histograms: Vec<i64> = Vec::new();
    let mut parts: (Vec<i32>, Vec<i32>) = (Vec::new(), Vec::new());
    let place = |histograms: &Vec<i64>| i32::try_from(histograms.len()).unwrap_or(i32::MAX);
    for count in counts.values() {
        parts.0.push(place(&histograms) + 1);
        histograms.extend(count.stored().map(signed));
        parts.1.push(place(&histograms));
    }
    let statement = sqlx::query!(
        "INSERT INTO minutely AS m (span, at, measure, subject, instance, n, failed, histogram)
         SELECT span, at, measure, subject, $1, n, failed, ($8::bigint[])[first : last]
         FROM unnest($2::text[], $3::timestamptz[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $9::int[], $10::int[])
              AS new (span, at, measure, subject, n, failed, first, last)
         ON CONFLICT (span, at, measure, subject, instance) DO UPDATE
         SET n = m.n + excluded.n, failed = m.failed + excluded.failed,
             histogram = ARRAY (SELECT coalesce(a, 0) + coalesce(b, 0)
                                FROM unnest(m.histogram, excluded.histogram) WITH ORDINALITY AS pair (a, b, nth)
                                ORDER BY nth)",
        instance,
        &spans as &[&str],
        &times,
        &measures as &[&str],
        &subjects as &[&str],
        &numbers,
        &failed,
        &histograms,
        &parts.0,
        &parts.1,
    );
    statement.execute(connection).await?;
    Ok(())
}

/// Deletes figures that are past their time.
pub async fn erase_old(connection: &mut PgConnection) -> Result<()> {
    let statement = sqlx::query!(
        "DELETE FROM minutely
         WHERE (span = 'minute' AND at < now() - make_interval(hours => $1))
            OR (span = 'hour' AND at < now() - make_interval(days => $2))
            OR (span = 'tick' AND at < now() - make_interval(hours => $3))",
        MINUTES_KEPT,
        HOURS_KEPT,
        TICKS_KEPT,
    );
    statement.execute(connection).await?;
    Ok(())
}

/// The histograms of these measures in the last minutes or hours, those of all processes together:
/// purchases and calls by provider, all others without a subject. What has no duration is left out.
pub async fn halves(
    connection: &mut PgConnection,
    span: FigureSpan,
    spans: i32,
    measures: &[Measure],
) -> Result<BTreeMap<(Measure, String), BTreeMap<OffsetDateTime, Count>>> {
    let name: &str = span.into();
    let measures: Vec<&str> = measures.iter().map(|one| one.as_str()).collect();
    let query = sqlx::query!(
        r#"SELECT at, measure, CASE WHEN measure IN ('bought', 'call') THEN subject ELSE '' END AS "subject!",
                  bucket.nth AS "nth!", sum(bucket.number)::bigint AS "number!"
           FROM minutely, unnest(histogram) WITH ORDINALITY AS bucket (number, nth)
           WHERE span = $1 AND at > date_trunc($1, now(), 'UTC') - $2::int * ('1 ' || $1)::interval
             AND measure = ANY ($3) AND bucket.number > 0
           GROUP BY 1, 2, 3, 4"#,
        name,
        spans,
        &measures as &[&str],
    );
    let mut halves: BTreeMap<_, BTreeMap<OffsetDateTime, Count>> = BTreeMap::new();
    for row in query.fetch_all(connection).await? {
        let (Ok(measure), Ok(nth)) = (row.measure.parse::<Measure>(), usize::try_from(row.nth))
        else {
            continue;
        };
        let times = halves.entry((measure, row.subject)).or_default();
        let one: &mut Count = times.entry(row.at).or_default();
        let number = count(row.number);
        if nth <= BUCKETS {
            one.n = one.n.saturating_add(number);
        }
        if let Some(bucket) = nth.checked_sub(1).and_then(|nth| one.buckets().nth(nth)) {
            *bucket = number;
        }
    }
    Ok(halves)
}

/// What was counted of these subjects in the last hours, the one that is not over yet among them.
/// Each hour of each subject is read by its key.
pub async fn of_subjects(
    connection: &mut PgConnection,
    measure: Measure,
    subjects: &[String],
    hours: i32,
) -> Result<BTreeMap<String, Count>> {
    let query = sqlx::query!(
        "SELECT m.subject, m.n, m.failed, m.histogram
           FROM generate_series(0, $3::int - 1) AS ago (hours)
           CROSS JOIN LATERAL (
               -- OFFSET makes it a look-up of each hour by the key, whatever the statistics say.
               SELECT subject, n, failed, histogram FROM minutely
               WHERE span = 'hour' AND at = date_trunc('hour', now(), 'UTC') - ago.hours * interval '1 hour'
                 AND measure = $1 AND subject = ANY ($2::text[]) OFFSET 0) m",
        measure.as_str(),
        subjects,
        hours,
    );
    let mut counts: BTreeMap<String, Count> = BTreeMap::new();
    for row in query.fetch_all(connection).await? {
        let one = read_count(row.n, row.failed, &row.histogram);
        counts.entry(row.subject).or_default().merge(&one);
    }
    Ok(counts)
}

fn read_count(n: i64, failed: i64, histogram: &[i64]) -> Count {
    let mut one = Count {
        n: count(n),
        failed: count(failed),
        ..Count::default()
    };
    for (bucket, number) in one.buckets().zip(histogram) {
        *bucket = count(*number);
    }
    one
}

/// A minute or an hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum FigureSpan {
    Minute,
    Hour,
}

/// The maximum number of rows that one look reads.
const MOST: i64 = 50_000;

/// How many requests of a partner, or of all, had an outcome in a tick or an hour.
#[derive(Clone, Debug)]
pub struct OutcomeCount {
    pub at: OffsetDateTime,
    pub measure: Measure,
    /// The partner's id; empty for what is counted without one.
    pub subject: String,
    pub n: u64,
    pub failed: u64,
}

/// The newest rows of ticks that one look reads: a tick has one for each partner with a failure.
const MOST_OUTCOMES: i64 = 20_000;

/// What became of requests in the last hour, by tick; the newest first.
pub async fn outcomes(connection: &mut PgConnection) -> Result<Vec<OutcomeCount>> {
    let query = sqlx::query!(
        r#"SELECT at, measure, subject, sum(n)::bigint AS "n!", sum(failed)::bigint AS "failed!"
           FROM (SELECT at, measure, subject, n, failed FROM minutely
                 WHERE span = 'tick' AND at > now() - interval '1 hour' ORDER BY at DESC LIMIT $1) newest
           GROUP BY at, measure, subject ORDER BY at DESC"#,
        MOST_OUTCOMES,
    );
    let rows = query.fetch_all(connection).await?.into_iter();
    let known = rows.filter_map(|row| {
        Some(OutcomeCount {
            at: row.at,
            measure: row.measure.parse().ok()?,
            subject: row.subject,
            n: count(row.n),
            failed: count(row.failed),
        })
    });
    Ok(known.collect())
}

/// How many requests of a partner failed in each of the last hours, by why they failed; requests
/// that succeeded are not counted here. Each hour of each measure is read by its key, so that the
/// time does not grow with the number of partners.
pub async fn outcomes_of(
    connection: &mut PgConnection,
    partner: Uuid,
    hours: i32,
) -> Result<Vec<OutcomeCount>> {
    use strum::IntoEnumIterator;
    let measures = Measure::iter().filter(|one| one.is_outcome());
    let measures: Vec<&str> = measures.map(Measure::as_str).collect();
    let subject = partner.to_string();
    let query = sqlx::query!(
        r#"SELECT m.at, m.measure, sum(m.n)::bigint AS "n!", sum(m.failed)::bigint AS "failed!"
           FROM generate_series(0, $3::int - 1) AS ago (hours)
           CROSS JOIN unnest($1::text[]) AS wanted (measure)
           CROSS JOIN LATERAL (
               -- OFFSET makes it a look-up of each hour by the key, whatever the statistics say.
               SELECT at, measure, n, failed FROM minutely
               WHERE span = 'hour' AND at = date_trunc('hour', now(), 'UTC') - ago.hours * interval '1 hour'
                 AND measure = wanted.measure AND subject = $2 OFFSET 0) m
           GROUP BY m.at, m.measure"#,
        &measures as &[&str],
        subject,
        hours,
    );
    let rows = query.fetch_all(connection).await?.into_iter();
    let known = rows.filter_map(|row| {
        Some(OutcomeCount {
            at: row.at,
            measure: row.measure.parse().ok()?,
            subject: subject.clone(),
            n: count(row.n),
            failed: count(row.failed),
        })
    });
    Ok(known.collect())
}

/// What became of the requests of all partners in every third of the hours before the last two,
/// which is enough to see what is usual. Each hour of each measure is read by its key.
pub async fn usual_outcomes(
    connection: &mut PgConnection,
    hours: i32,
) -> Result<Vec<OutcomeCount>> {
    use strum::IntoEnumIterator;
    let measures = Measure::iter().filter(|one| one.is_outcome());
    let measures: Vec<&str> = measures.map(Measure::as_str).collect();
    let query = sqlx::query!(
        r#"SELECT hours.at AS "at!", wanted.measure AS "measure!", sums.n AS "n!", sums.failed AS "failed!"
           FROM (SELECT date_trunc('hour', now(), 'UTC') - nth * interval '1 hour' AS at
                 FROM generate_series(2, $1::int, 3) AS nth) hours
           CROSS JOIN unnest($2::text[]) AS wanted (measure)
           CROSS JOIN LATERAL (
               SELECT coalesce(sum(n), 0)::bigint AS n, coalesce(sum(failed), 0)::bigint AS failed
               FROM (SELECT n, failed FROM minutely
                     WHERE span = 'hour' AND at = hours.at AND measure = wanted.measure LIMIT 1000) rows) sums"#,
        hours,
        &measures as &[&str],
    );
    let rows = query.fetch_all(connection).await?.into_iter();
    let known = rows.filter_map(|row| {
        Some(OutcomeCount {
            at: row.at,
            measure: row.measure.parse().ok()?,
            subject: String::new(),
            n: count(row.n),
            failed: count(row.failed),
        })
    });
    Ok(known.collect())
}

/// What was counted in a time, by what is counted.
pub type MeasureCounts = BTreeMap<Measure, Count>;

/// What all processes together have counted in the last minutes or hours.
#[derive(Clone, Debug, Default)]
pub struct Figures(BTreeMap<(OffsetDateTime, Measure, String), Count>);

impl Figures {
    /// Reads the last `spans` minutes or hours; the one that is not over yet is among them. Without
    /// `subjects`, those of all subjects are summed up.
    pub async fn read(
        connection: &mut PgConnection,
        span: FigureSpan,
        spans: i32,
        subjects: bool,
    ) -> Result<Self> {
        Self::select(connection, span, spans, subjects, None).await
    }

    /// The same of purchases and calls only, by provider.
    pub async fn of_providers(
        connection: &mut PgConnection,
        span: FigureSpan,
        spans: i32,
    ) -> Result<Self> {
        let measures = [Measure::Bought, Measure::Call];
        Self::select(connection, span, spans, true, Some(&measures)).await
    }

    async fn select(
        connection: &mut PgConnection,
        span: FigureSpan,
        spans: i32,
        subjects: bool,
        measures: Option<&[Measure]>,
    ) -> Result<Self> {
        let name: &str = span.into();
        let measures: Option<Vec<&str>> =
            measures.map(|all| all.iter().map(|one| one.as_str()).collect());
        let query = sqlx::query!(
            r#"SELECT at, measure, CASE WHEN $3::bool THEN subject ELSE '' END AS "subject!", n, failed, histogram
               FROM minutely
               WHERE span = $1 AND at > date_trunc($1, now(), 'UTC') - $2::int * ('1 ' || $1)::interval
                 AND ($5::text[] IS NULL OR measure = ANY ($5))
               ORDER BY at DESC LIMIT $4"#,
            name,
            spans,
            subjects,
            MOST,
            measures as Option<Vec<&str>>,
        );
        let mut figures = Self::default();
        for row in query.fetch_all(connection).await? {
            // A newer version may count what this one does not know.
            let Ok(measure) = row.measure.parse::<Measure>() else {
                continue;
            };
            let one = read_count(row.n, row.failed, &row.histogram);
            let key = (row.at, measure, row.subject);
            figures.0.entry(key).or_default().merge(&one);
        }
        Ok(figures)
    }

    /// The minutes or hours in which something was counted, the oldest first.
    pub fn by_time(&self) -> Vec<(OffsetDateTime, MeasureCounts)> {
        let mut times: BTreeMap<OffsetDateTime, MeasureCounts> = BTreeMap::new();
        for ((at, measure, _), count) in &self.0 {
            let counts = times.entry(*at).or_default();
            counts.entry(*measure).or_default().merge(count);
        }
        times.into_iter().collect()
    }

    /// The same of each subject.
    pub fn by_subject_and_time(&self) -> BTreeMap<String, Vec<(OffsetDateTime, MeasureCounts)>> {
        let mut subjects: BTreeMap<String, Vec<(OffsetDateTime, MeasureCounts)>> = BTreeMap::new();
        for ((at, measure, subject), count) in &self.0 {
            let times = subjects.entry(subject.clone()).or_default();
            if times.last().is_none_or(|(last, _)| last != at) {
                times.push((*at, MeasureCounts::new()));
            }
            if let Some((_, counts)) = times.last_mut() {
                counts.entry(*measure).or_default().merge(count);
            }
        }
        subjects
    }

    /// The sums of the whole time, by what is counted and by subject.
    pub fn by_subject(&self) -> Vec<(Measure, String, Count)> {
        let mut subjects: BTreeMap<(Measure, &str), Count> = BTreeMap::new();
        for ((_, measure, subject), count) in &self.0 {
            let sum = subjects.entry((*measure, subject.as_str())).or_default();
            sum.merge(count);
        }
        let subjects = subjects.into_iter();
        subjects
            .map(|((measure, subject), count)| (measure, subject.to_owned(), count))
            .collect()
    }

    /// The sums of the newest minutes or hours in which so many events ended, by what is counted
    /// and by subject: how long it takes now, however fast or slow it was before.
    pub fn newest_by_subject(&self, enough: u64) -> Vec<(Measure, String, Count)> {
        let mut subjects: BTreeMap<(Measure, &str), Count> = BTreeMap::new();
        for ((_, measure, subject), count) in self.0.iter().rev() {
            let sum = subjects.entry((*measure, subject.as_str())).or_default();
            if sum.n < enough {
                sum.merge(count);
            }
        }
        let subjects = subjects.into_iter();
        subjects
            .map(|((measure, subject), count)| (measure, subject.to_owned(), count))
            .collect()
    }

    /// The same of all subjects together.
    pub fn newest(&self, enough: u64) -> MeasureCounts {
        let mut sums = MeasureCounts::new();
        for (_, counts) in self.by_time().iter().rev() {
            for (measure, count) in counts {
                let sum = sums.entry(*measure).or_default();
                if sum.n < enough {
                    sum.merge(count);
                }
            }
        }
        sums
    }

    /// The sums of the whole time, by what is counted.
    pub fn sums(&self) -> MeasureCounts {
        let mut sums = MeasureCounts::new();
        for ((_, measure, _), count) in &self.0 {
            sums.entry(*measure).or_default().merge(count);
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_all_ended_within_the_time_of_its_bucket() {
        let mut count = Count::default();
        assert_eq!((count.within(0.5), count.failed_share()), (None, None));
        for tenths in 1..=10 {
            count.note(Some(Duration::from_millis(tenths * 10)), tenths == 1);
        }
        assert_eq!(count.n, 10);
        assert!((count.failed_share().unwrap() - 0.1).abs() < 1e-9);
        assert_eq!(count.within(0.5).unwrap().to_string(), "≤\u{a0}56\u{a0}ms");
        assert_eq!(
            count.within(0.95).unwrap().to_string(),
            "≤\u{a0}100\u{a0}ms"
        );
        count.note(Some(Duration::from_hours(9)), false);
        let longest = count.within(1.0).unwrap();
        assert_eq!((longest.over, longest.most), (7_200.0, None));
        assert_eq!(longest.to_string(), ">\u{a0}2\u{a0}h");
        let mut twice = count.clone();
        twice.merge(&count);
        assert_eq!(twice.n, 22);
        assert_eq!(twice.within(0.5), count.within(0.5));
    }

    /// A provider that has been slow for a minute is not told as fast because it was fast before.
    #[test]
    fn how_long_it_takes_now_does_not_follow_from_what_was_before() {
        let at = |minute: i64| OffsetDateTime::UNIX_EPOCH + time::Duration::minutes(minute);
        let events = |number: u64, seconds: u64| {
            let mut count = Count::default();
            (0..number).for_each(|_| count.note(Some(Duration::from_secs(seconds)), false));
            count
        };
        let call =
            |minute: i64, count: Count| ((at(minute), Measure::Call, "usimsa".to_owned()), count);
        let figures = [
            call(0, events(900, 1)),
            call(8, events(12, 8)),
            call(9, events(9, 8)),
        ];
        let figures = Figures(figures.into());
        let all = &figures.by_subject()[0].2;
        assert_eq!(all.within(0.5).unwrap().told(), "up to 1\u{a0}s");
        let newest = &figures.newest_by_subject(20)[0].2;
        assert_eq!((newest.n, figures.newest(20)[&Measure::Call].n), (21, 21));
        assert_eq!(newest.within(0.5).unwrap().told(), "up to 8.2\u{a0}s");
        assert_eq!(figures.newest(22)[&Measure::Call].n, 921);
    }

    /// What took up to about a minute is told to a fifth, and not shorter than it was.
    #[test]
    fn a_time_is_told_to_a_fifth() {
        for milliseconds in (11..60_000).step_by(7) {
            let mut count = Count::default();
            let took = Duration::from_millis(milliseconds);
            (0..9).for_each(|_| count.note(Some(took), false));
            let within = count.within(0.5).unwrap();
            let told = within.told().replace("\u{a0}s", "");
            let told = told.strip_prefix("up to ").unwrap();
            let told = match told.strip_suffix("\u{a0}min") {
                Some(minutes) => 60.0 * minutes.parse::<f64>().unwrap(),
                None => told.parse().unwrap(),
            };
            let took = took.as_secs_f64();
            assert!(took <= told && told * 0.8 <= took + 1e-9, "{took}: {told}");
        }
    }

    /// A row of a program that counted in coarse buckets only makes nothing finer than it is.
    #[test]
    fn of_old_and_new_rows_together_only_the_coarse_limits_are_known() {
        let mut new = Count::default();
        new.note(Some(Duration::from_millis(40)), false);
        let stored: Vec<i64> = new.stored().map(|n| i64::try_from(n).unwrap()).collect();
        assert_eq!(read_count(1, 0, &stored), new);
        assert_eq!(new.within(0.5).unwrap().told(), "up to 0.047\u{a0}s");
        let old = read_count(1, 0, &stored[..BUCKETS]);
        assert_eq!(old.within(0.5).unwrap().told(), "up to 0.05\u{a0}s");
        new.merge(&old);
        assert_eq!(new.within(0.5).unwrap().told(), "up to 0.05\u{a0}s");
    }

    /// What is told is never longer than what happened: all waited for 6 minutes.
    #[test]
    fn of_equal_times_no_time_between_two_limits_is_made_up() {
        let mut count = Count::default();
        for _ in 0..9 {
            count.note(Some(Duration::from_mins(6)), false);
        }
        for share in [0.01, 0.5, 0.95] {
            let within = count.within(share).unwrap();
            assert_eq!((within.over, within.most), (300.0, Some(1_800.0)));
            assert_eq!(within.to_string(), "≤\u{a0}30\u{a0}min");
        }
    }
}
