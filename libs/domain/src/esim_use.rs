//! The use of a delivered eSIM: what its provider says, which of it is news for its partner, and
//! when the provider is asked again.
//!
//! A provider says how things are, again and again, sometimes late and sometimes less than before.
//! A partner is told once of each [`Milestone`] that an eSIM has reached. So the milestones that
//! were reached are stored with the eSIM, whether somebody wanted to hear of them or not, and only
//! one that is not among them is news. A milestone that follows from a later one is reached with it
//! and not told: of an eSIM that is used up nobody has to hear that three quarters are.
//!
//! An eSIM that was extended has a new [`EsimPlan`], which reaches most milestones again. It is
//! known by what the provider says, and not by the extension, because providers count with a delay
//! of hours, in which an extended eSIM still looks used up.

use serde::{Deserialize, Serialize};
use time::{Duration, OffsetDateTime, serde::rfc3339};

use crate::event::EventKind;

/// What a provider says about a delivered eSIM. Each part is `None` if it does not say it. An event
/// about the use carries it in this form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    #[serde(default)]
    pub installed: Option<bool>,
    /// The data that was used, in bytes.
    #[serde(default)]
    pub data_used: Option<u64>,
    /// The data that was bought, in bytes; `None` for an eSIM without a limit, too.
    #[serde(default)]
    pub data_total: Option<u64>,
    /// When the plan of the eSIM ends, which is known once it has begun.
    #[serde(default, with = "rfc3339::option")]
    pub ends_at: Option<OffsetDateTime>,
    /// When the provider counted the data, which may be hours before it is asked.
    #[serde(default, with = "rfc3339::option")]
    pub as_of: Option<OffsetDateTime>,
    /// The provider says that the eSIM was downloaded, and not that it is installed. If it goes on
    /// saying so, the installation has failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub only_downloaded: bool,
}

/// What is known of the plan of an eSIM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EsimPlan {
    /// Which plan of the eSIM it is; 1 before any extension.
    pub number: u32,
    /// The most data that the provider has said of it, in bytes.
    pub most_data: Option<u64>,
    /// The latest end that the provider has said of it.
    pub latest_end: Option<OffsetDateTime>,
}

impl EsimPlan {
    /// Of an eSIM of which nothing is known.
    pub const FIRST: Self = Self {
        number: 1,
        most_data: None,
        latest_end: None,
    };

    /// The plan after a reading. One with more data than ever before, or a later end, is the next
    /// plan. A reading with less is late, or a mistake of the provider.
    #[must_use]
    pub fn after(self, reading: &Reading) -> Self {
        let data_total = reading.data_total.filter(|total| *total > 0);
        let has_more = self
            .most_data
            .zip(data_total)
            .is_some_and(|(most, total)| total > most);
        let latest_end = self.latest_end.zip(reading.ends_at);
        let lasts_longer =
            latest_end.is_some_and(|(latest, end)| end >= latest.saturating_add(A_NEW_END));
        Self {
            number: self
                .number
                .saturating_add(u32::from(has_more || lasts_longer)),
            most_data: self.most_data.max(data_total),
            latest_end: self.latest_end.max(reading.ends_at),
        }
    }
}

/// Something that an eSIM reaches once, or once with each plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Milestone {
    pub kind: EventKind,
    /// Of `esim.low_data`, the percentage of the data that is used at least; of `esim.expiring`,
    /// the days that are left at most.
    pub threshold: Option<u8>,
}

/// How many days before its end a plan is told as expiring.
const EXPIRING_DAYS: [u8; 2] = [3, 1];

impl Milestone {
    const fn of(kind: EventKind) -> Self {
        Self {
            kind,
            threshold: None,
        }
    }

    /// What tells it apart from others of its kind of the same eSIM, such as `75`, or `75 #2` with
    /// the second plan; `None` if there is no other.
    pub fn detail(self, plan: &EsimPlan) -> Option<String> {
        let is_of_plan = !matches!(
            self.kind,
            EventKind::EsimInstalled | EventKind::EsimFirstUsed
        );
        let plan = (is_of_plan && plan.number > 1).then(|| format!("#{}", plan.number));
        let threshold = self.threshold.map(|threshold| threshold.to_string());
        let parts: Vec<String> = threshold.into_iter().chain(plan).collect();
        (!parts.is_empty()).then(|| parts.join(" "))
    }

    /// Its name among those that an eSIM has reached, such as `esim.low_data 75`.
    fn name(self, plan: &EsimPlan) -> String {
        let kind = self.kind.as_str();
        match self.detail(plan) {
            Some(detail) => format!("{kind} {detail}"),
            None => kind.to_owned(),
        }
    }
}

/// What a reading has brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// What the partner is told.
    pub told: Vec<Milestone>,
    /// The names of all milestones that are reached for the first time.
    pub reached: Vec<String>,
}

impl Reading {
    /// The share of the data that is used, in percent; `None` if the provider does not say it.
    fn used_percent(&self) -> Option<u64> {
        let (used, total) = self.data_used.zip(self.data_total)?;
        let percent = u128::from(used) * 100 / u128::from(total.max(1));
        (total > 0).then(|| u64::try_from(percent).unwrap_or(u64::MAX))
    }

    fn has_ended(&self, now: OffsetDateTime) -> bool {
        self.ends_at.is_some_and(|ends_at| ends_at <= now)
    }

    /// What is news in it for an eSIM with this plan that has `reached` these milestones.
    /// `low_data` are the percentages of used data that are told.
    pub fn news(
        &self,
        plan: &EsimPlan,
        reached: &[String],
        low_data: &[u8],
        now: OffsetDateTime,
    ) -> News {
        let mut news = News::default();
        let mut reach = |milestone: Milestone, is_told: bool| {
            let name = milestone.name(plan);
            if !reached.contains(&name) && !news.reached.contains(&name) {
                news.reached.push(name);
                if is_told {
                    news.told.push(milestone);
                }
            }
        };
        // Whoever has used data has installed the eSIM.
        let is_used = self.data_used.is_some_and(|used| used > 0);
        if self.installed == Some(true) || is_used {
            reach(Milestone::of(EventKind::EsimInstalled), true);
        }
        if is_used {
            reach(Milestone::of(EventKind::EsimFirstUsed), true);
        }
        let used = self.used_percent().unwrap_or_default();
        let is_used_up = used >= 100;
        if is_used_up {
            reach(Milestone::of(EventKind::EsimUsedUp), true);
        }
        let mut percentages: Vec<u8> = low_data.to_vec();
        percentages.sort_unstable_by(|left, right| right.cmp(left));
        let mut is_told = !is_used_up;
        for percentage in percentages {
            if used >= u64::from(percentage) {
                let threshold = Some(percentage);
                let kind = EventKind::EsimLowData;
                reach(Milestone { kind, threshold }, is_told);
                is_told = false;
            }
        }
        let has_ended = self.has_ended(now);
        if has_ended {
            reach(Milestone::of(EventKind::EsimExpired), true);
        }
        let mut is_told = !has_ended;
        for days in EXPIRING_DAYS.into_iter().rev() {
            let begins = self
                .ends_at
                .map(|ends_at| ends_at.saturating_sub(Duration::days(days.into())));
            if begins.is_some_and(|begins| begins <= now) {
                let threshold = Some(days);
                let kind = EventKind::EsimExpiring;
                reach(Milestone { kind, threshold }, is_told);
                is_told = false;
            }
        }
        news
    }

    /// When the provider is asked next about an eSIM that is this old; `None` if nothing changes
    /// any more that a partner is told. An eSIM in use is asked about sooner the nearer its data is
    /// to its end, and at each time when its plan is told as expiring or ended. One that nobody has
    /// used is asked about less often the older it is.
    pub fn next_look(&self, age: Duration, now: OffsetDateTime) -> Option<OffsetDateTime> {
        if self.has_ended(now) || age > FORGOTTEN {
            return None;
        }
        let pause = match (self.data_used, self.used_percent()) {
            // Its customer may need help.
            _ if self.only_downloaded => SHORTEST,
            (None | Some(0), _) if age < FRESH => SHORTEST * 3,
            (None | Some(0), _) | (_, Some(100..)) => LONGEST,
            (_, Some(50..)) => SHORTEST,
            _ => SHORTEST * 3,
        };
        let days = EXPIRING_DAYS.into_iter().chain([0]);
        let of_the_end = self.ends_at.into_iter().flat_map(|ends_at| {
            days.clone()
                .map(move |days| ends_at.saturating_sub(Duration::days(days.into())))
        });
        let first = of_the_end.filter(|at| *at > now).min();
        let regular = now.saturating_add(pause);
        Some(first.map_or(regular, |at| at.min(regular)))
    }
}

/// How much later the end of a plan must be to be that of another one. Providers round the end, and
/// some say another one when the plan begins.
const A_NEW_END: Duration = Duration::hours(12);
/// The shortest and the longest pause between two looks at an eSIM. Providers count the data with a
/// delay of one to three hours.
const SHORTEST: Duration = Duration::hours(1);
const LONGEST: Duration = Duration::hours(24);
/// For how long after its delivery an eSIM is likely to be installed soon.
const FRESH: Duration = Duration::days(14);
/// The age from which on an eSIM is not asked about any more.
const FORGOTTEN: Duration = Duration::days(400);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: OffsetDateTime = OffsetDateTime::UNIX_EPOCH;
    const LOW: [u8; 2] = [75, 90];

    fn used(used: u64) -> Reading {
        Reading {
            data_used: Some(used),
            data_total: Some(1000),
            ..Reading::default()
        }
    }

    fn ending(days: i64) -> Reading {
        Reading {
            ends_at: Some(NOW + Duration::days(days)),
            ..Reading::default()
        }
    }

    fn told(reading: &Reading, reached: &[String]) -> Vec<String> {
        told_with(&EsimPlan::FIRST, reading, reached)
    }

    fn told_with(plan: &EsimPlan, reading: &Reading, reached: &[String]) -> Vec<String> {
        let news = reading.news(plan, reached, &LOW, NOW);
        let told = news.told.into_iter();
        told.map(|milestone| milestone.name(plan)).collect()
    }

    #[test]
    fn an_extended_esim_reaches_its_milestones_again() {
        let first = EsimPlan::FIRST.after(&used(1000));
        let reached = used(1000).news(&first, &[], &LOW, NOW).reached;
        // The provider does not count the extension yet, or says less than before.
        let late = first.after(&used(1000)).after(&Reading {
            data_total: Some(500),
            ..used(500)
        });
        assert_eq!(late, first);
        let extended = Reading {
            data_total: Some(2000),
            ..used(1500)
        };
        let second = late.after(&extended);
        assert_eq!(second.number, 2);
        assert_eq!(
            told_with(&second, &extended, &reached),
            ["esim.low_data 75 #2"]
        );
        let longer = first.after(&ending(4)).after(&ending(4 + 30));
        assert_eq!(longer.number, 2);
        assert_eq!(
            told_with(&longer, &ending(3), &reached),
            ["esim.expiring 3 #2"]
        );
        let rounded = Reading {
            ends_at: Some(NOW + Duration::days(4) + Duration::hours(11)),
            ..Reading::default()
        };
        assert_eq!(first.after(&ending(4)).after(&rounded).number, 1);
    }

    #[test]
    fn each_milestone_is_told_and_those_before_it_are_only_reached() {
        let installed = Reading {
            installed: Some(true),
            ..Reading::default()
        };
        assert_eq!(told(&installed, &[]), ["esim.installed"]);
        assert_eq!(told(&used(1), &[]), ["esim.installed", "esim.first_used"]);
        let in_use = ["esim.installed", "esim.first_used"].map(str::to_owned);
        assert!(told(&used(749), &in_use).is_empty());
        assert_eq!(told(&used(750), &in_use), ["esim.low_data 75"]);
        assert_eq!(told(&used(999), &in_use), ["esim.low_data 90"]);
        assert_eq!(told(&used(1000), &in_use), ["esim.used_up"]);
        let all = used(2000)
            .news(&EsimPlan::FIRST, &in_use, &LOW, NOW)
            .reached;
        assert_eq!(
            all,
            ["esim.used_up", "esim.low_data 90", "esim.low_data 75"]
        );
        assert!(told(&ending(4), &[]).is_empty());
        assert_eq!(told(&ending(3), &[]), ["esim.expiring 3"]);
        assert_eq!(told(&ending(1), &[]), ["esim.expiring 1"]);
        assert_eq!(told(&ending(0), &[]), ["esim.expired"]);
    }

    #[test]
    fn what_a_provider_does_not_say_is_no_news() {
        assert_eq!(
            Reading::default().news(&EsimPlan::FIRST, &[], &LOW, NOW),
            News::default()
        );
        let nothing_bought = Reading {
            data_total: Some(0),
            ..used(0)
        };
        assert!(told(&nothing_bought, &[]).is_empty());
        assert_eq!(
            told(&used(u64::MAX), &[]),
            ["esim.installed", "esim.first_used", "esim.used_up"]
        );
    }

    #[test]
    fn the_next_look_is_at_the_next_time_that_is_told_or_before() {
        let day = Duration::days(1);
        assert_eq!(ending(0).next_look(day, NOW), None);
        assert_eq!(used(0).next_look(FORGOTTEN + day, NOW), None);
        assert_eq!(used(0).next_look(day, NOW), Some(NOW + SHORTEST * 3));
        assert_eq!(used(0).next_look(day * 20, NOW), Some(NOW + LONGEST));
        assert_eq!(used(900).next_look(day, NOW), Some(NOW + SHORTEST));
        let downloaded = Reading {
            only_downloaded: true,
            ..used(0)
        };
        assert_eq!(downloaded.next_look(day, NOW), Some(NOW + SHORTEST));
        let soon = Reading {
            ends_at: Some(NOW + day + Duration::minutes(1)),
            ..used(1000)
        };
        assert_eq!(soon.next_look(day, NOW), Some(NOW + Duration::minutes(1)));
    }

    fn any_reading() -> impl Strategy<Value = Reading> {
        let end = proptest::option::of(-5i64..40);
        let installed = any::<Option<bool>>();
        let total = proptest::option::of(0u64..2000);
        (installed, any::<Option<u16>>(), total, end).prop_map(|(installed, used, total, end)| {
            Reading {
                installed,
                data_used: used.map(u64::from),
                data_total: total,
                ends_at: end.map(|days| NOW + Duration::days(days)),
                as_of: None,
                only_downloaded: false,
            }
        })
    }

    proptest! {
        // Whatever a provider says in whatever order, nothing is told twice, and nothing is told
        // that follows from something that was told before.
        #[test]
        fn nothing_is_told_twice(readings in proptest::collection::vec((any_reading(), 0i64..60), 0..30)) {
            let mut reached: Vec<String> = Vec::new();
            let mut all: Vec<Milestone> = Vec::new();
            for (reading, day) in readings {
                let news = reading.news(&EsimPlan::FIRST, &reached, &LOW, NOW + Duration::days(day));
                prop_assert!(news.told.iter().all(|one| news.reached.contains(&one.name(&EsimPlan::FIRST))));
                reached.extend(news.reached);
                for milestone in news.told {
                    prop_assert!(!all.contains(&milestone));
                    let low = all.iter().filter(|one| one.kind == milestone.kind);
                    let was_higher = low.filter_map(|one| one.threshold).max();
                    if milestone.kind == EventKind::EsimLowData {
                        prop_assert!(was_higher < milestone.threshold);
                        prop_assert!(!all.contains(&Milestone::of(EventKind::EsimUsedUp)));
                    }
                    all.push(milestone);
                }
            }
            let mut once = reached.clone();
            once.sort();
            once.dedup();
            prop_assert_eq!(once.len(), reached.len());
        }
    }
}
