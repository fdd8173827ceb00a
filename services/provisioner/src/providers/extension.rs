//! Extensions: adding data or days to an eSIM that is delivered.
//!
//! An extension is bought as an order is, so the rule of `provider.rs` holds here, too: what
//! is not certain is [`Trouble::Unknown`]. After a lost answer the extension is looked for, by our
//! id where the provider shows it and otherwise by what has changed since the [`Baseline`], which
//! was read before the attempt. A change is believed only if it is exactly what the package adds.
//! No change never proves that there will be none ([`FindExtension`]).

use domain::{ActivationCode, ExtensionId, Iccid, extension::Baseline, product::Cost};
use runtime::clock::Moment;
use time::{Duration, OffsetDateTime};

use super::{
    text::{ProviderId, one_line},
    trouble::{DeliveredEsim, Heard, Trouble},
};

/// How a provider shows whether an extension was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindExtension {
    /// The provider knows extensions by our id. If it says that there is none, there is none.
    Exact,
    /// A list names extensions by our id. One that is found is certain. One that is not listed may
    /// still exist or come.
    ById,
    /// Nothing need name the extension. It is found if the eSIM differs from the baseline by
    /// exactly what its package adds. No difference proves nothing.
    ByDifference,
}

/// More data or days for a delivered eSIM.
#[derive(Clone, Debug)]
pub struct Extension {
    /// Our id of the extension at the provider, the same in every attempt.
    pub id: ExtensionId,
    pub esim: DeliveredEsim,
    /// The provider's id of what is added; as that of an option it may name the most that we pay
    /// behind an `@`.
    pub provider_option_id: String,
    /// The time until which it may be sent. An adapter that needs other calls before it checks the
    /// time again after them.
    pub send_by: Moment,
}

impl Extension {
    /// Whether it may still be sent, for an adapter that has made other calls before it.
    pub(super) fn is_in_time(&self) -> Result<(), Trouble> {
        if self.send_by.has_passed() {
            let late = "its time was over before it could be sent";
            return Err(Trouble::NotSent(late.to_owned()));
        }
        Ok(())
    }
}

impl BeforeExtension {
    /// What it means that the adapter refuses an extension, for example because of its price.
    pub(super) fn refused_here(trouble: Trouble) -> Result<Self, Trouble> {
        match trouble {
            Trouble::RefusedHere(reason) => Ok(Self::Refused(reason)),
            trouble => Err(trouble),
        }
    }
}

/// What it means that an extension was accepted and is not carried out yet.
pub(super) fn under_way(state: &str) -> Trouble {
    Trouble::Unknown {
        heard: Heard::ProvesNothing,
        reason: format!("the extension is {}", one_line(state)),
    }
}

/// Something that can be added to an eSIM now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtensionOffer {
    /// The provider's id of it, without a price.
    pub provider_option_id: ProviderId,
    /// One short line; it may be empty.
    pub name: String,
    /// In bytes; `None` if it has no limit, or the provider does not say it.
    pub data: Option<u64>,
    pub days: Option<u32>,
    /// What it costs us.
    pub cost: Option<Cost>,
}

/// What a look at the eSIM before an attempt has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BeforeExtension {
    Possible(Baseline),
    /// The provider does not add this to this eSIM, for example because it has expired: one short
    /// line.
    Refused(String),
}

/// A definite response to an extension. Anything that is not definite is a [`Trouble`]. So is one
/// that was only accepted and may still fail ([`Heard::ProvesNothing`](super::trouble::Heard)): it
/// is asked about.
#[derive(Clone, Debug)]
pub enum ExtendResponse {
    Added(AddedExtension),
    /// The provider refuses for good, and no earlier attempt of this extension has added anything.
    Refused {
        status: String,
        /// The provider's message: one short line.
        message: String,
    },
}

/// An extension that the provider has carried out.
#[derive(Clone, Debug, Default)]
pub struct AddedExtension {
    /// The provider's own id of the extension, or of the other eSIM, if it names one.
    pub reference: Option<ProviderId>,
    /// The profile of another eSIM, if the provider has not extended this one but sold a new one.
    pub profile: Option<ProviderProfile>,
}

/// A definite response to the question whether an extension was carried out.
#[derive(Clone, Debug)]
pub enum ExtensionSeen {
    Added(AddedExtension),
    /// The provider does not show it. Only with [`FindExtension::Exact`] that is certain.
    NotAdded,
    /// The provider has refused it after it was accepted, and it is not paid: as
    /// [`ExtendResponse::Refused`].
    Refused {
        status: String,
        message: String,
    },
}

/// The profile of an eSIM, as it can be delivered.
#[derive(Clone, Debug)]
pub struct ProviderProfile {
    pub iccid: Iccid,
    pub code: ActivationCode,
    /// The provider gives this code to other eSIMs, too, because our account is in its test mode.
    /// Such a code installs nothing.
    pub is_code_shared: bool,
    /// The last day on which the eSIM can still be started, `YYYY-MM-DD`, a real day. This is one
    /// rule for all providers: where the provider says it, it is that day, in UTC, and otherwise a
    /// day until which its eSIMs can usually be started. When the plan of the eSIM ends follows
    /// from its start, so it is no part of a profile.
    pub expired_date: String,
}

/// What an eSIM has at a look after an attempt, in the parts of a [`Baseline`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) data_total: Option<u64>,
    pub(super) days_total: Option<u32>,
    pub(super) ends_at: Option<OffsetDateTime>,
}

/// Whether an eSIM differs from the baseline by exactly what the package adds: at least one part
/// has grown by that, and no part has become anything else, or unknown. What a package adds to a
/// part may be unknown; then the part must not have changed.
pub(super) fn is_extended(baseline: &Baseline, seen: Seen) -> bool {
    let adds_days = baseline.adds_days;
    let adds_time = adds_days.map(|days| Duration::days(days.into()));
    let parts = [
        Part::of(
            baseline.data_total,
            seen.data_total,
            baseline.adds_data,
            u64::checked_add,
        ),
        Part::of(
            baseline.days_total,
            seen.days_total,
            adds_days,
            u32::checked_add,
        ),
        Part::of(
            baseline.ends_at,
            seen.ends_at,
            adds_time,
            OffsetDateTime::checked_add,
        ),
    ];
    parts.contains(&Part::Grown) && !parts.contains(&Part::Other)
}

/// What became of one part of an eSIM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// It is as before, or was not known before.
    AsBefore,
    /// It has grown by what the package adds.
    Grown,
    Other,
}

impl Part {
    fn of<T: Copy + PartialEq, A>(
        before: Option<T>,
        now: Option<T>,
        adds: Option<A>,
        add: fn(T, A) -> Option<T>,
    ) -> Self {
        let Some(before) = before else {
            return Self::AsBefore;
        };
        let Some(now) = now else { return Self::Other };
        match adds.and_then(|adds| add(before, adds)) {
            Some(grown) if grown == now && before != now => Self::Grown,
            Some(grown) if grown == now => Self::AsBefore,
            None if before == now => Self::AsBefore,
            Some(_) | None => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    const GB: u64 = 1 << 30;

    fn baseline() -> Baseline {
        Baseline {
            data_total: Some(5 * GB),
            days_total: Some(30),
            ends_at: Some(datetime!(2026-12-01 10:00 UTC)),
            adds_data: Some(GB),
            adds_days: Some(7),
            ..Baseline::default()
        }
    }

    fn seen(data: Option<u64>, days: Option<u32>, end: Option<OffsetDateTime>) -> Seen {
        Seen {
            data_total: data,
            days_total: days,
            ends_at: end,
        }
    }

    /// What is not exactly the package may be something else, for example two packages, another
    /// one, or the start of the plan.
    #[test]
    fn only_exactly_the_package_is_taken_for_the_extension() {
        let before = datetime!(2026-12-01 10:00 UTC);
        let after = datetime!(2026-12-08 10:00 UTC);
        for (data, days, end, is_it) in [
            (Some(6 * GB), Some(37), Some(after), true),
            (Some(6 * GB), Some(37), None, false),
            (Some(6 * GB), None, Some(after), false),
            (None, Some(37), Some(after), false),
            (Some(5 * GB), Some(30), Some(before), false),
            (Some(7 * GB), Some(44), Some(after), false),
            (Some(6 * GB), Some(44), Some(after), false),
            (Some(6 * GB), Some(37), Some(before), false),
            (Some(6 * GB), Some(30), Some(before), false),
            (Some(5 * GB), Some(37), Some(after), false),
            (Some(6 * GB - 1), Some(37), Some(after), false),
            (Some(u64::MAX), Some(37), Some(after), false),
            (Some(0), Some(0), Some(after), false),
            (None, None, None, false),
        ] {
            let seen = seen(data, days, end);
            assert_eq!(is_extended(&baseline(), seen), is_it, "{seen:?}");
        }
        // A provider that shows only the end.
        let only_end = Baseline {
            data_total: None,
            days_total: None,
            ..baseline()
        };
        assert!(is_extended(&only_end, seen(None, None, Some(after))));
        let later = datetime!(2026-12-08 10:00:01 UTC);
        assert!(!is_extended(&only_end, seen(None, None, Some(later))));
    }

    #[test]
    fn what_a_package_adds_must_be_known_if_something_has_changed() {
        let grown = seen(Some(6 * GB), Some(37), None);
        let only_days = Baseline {
            adds_data: None,
            ends_at: None,
            ..baseline()
        };
        assert!(!is_extended(&only_days, grown));
        assert!(is_extended(&only_days, seen(Some(5 * GB), Some(37), None)));
        let nothing = Baseline {
            adds_data: Some(0),
            adds_days: Some(0),
            ends_at: None,
            ..baseline()
        };
        assert!(!is_extended(&nothing, seen(Some(5 * GB), Some(30), None)));
        let unknown = Baseline {
            data_total: None,
            days_total: None,
            ends_at: None,
            ..baseline()
        };
        assert!(!is_extended(&unknown, grown));
        let huge = Baseline {
            adds_data: Some(u64::MAX),
            adds_days: Some(u32::MAX),
            ..baseline()
        };
        let end = Some(datetime!(2026-12-08 10:00 UTC));
        assert!(!is_extended(&huge, seen(Some(6 * GB), Some(37), end)));
    }
}
