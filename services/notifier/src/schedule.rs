//! Decides what a response leads to, and when to try again. The functions are pure: time and
//! randomness are arguments, so that property tests can check every case. [`crate::deliver`] calls
//! them after each attempt.

use std::{sync::Arc, time::Duration};

/// The share by which a wait varies, so that deliveries that failed together are not retried
/// together.
const JITTER: f64 = 0.1;
/// The longest wait that `Retry-After` can ask for.
const LONGEST_WAIT: Duration = Duration::from_hours(24);

/// The maximum number of retries of a schedule.
const MOST_RETRIES: usize = 32;
/// The longest wait of a schedule.
const LONGEST_SCHEDULED: Duration = Duration::from_hours(24 * 7);

/// The waits between attempts. A delivery is exhausted when its attempt after the last wait fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule(Arc<[Duration]>);

impl Schedule {
    /// Parses waits such as `5s,5m,2h`, separated by commas.
    pub fn parse(text: &str) -> Result<Self, String> {
        let waits = text
            .split(',')
            .map(|wait| runtime::config::duration(wait.trim()));
        let waits: Vec<Duration> = waits.collect::<Result<_, _>>()?;
        if waits.len() > MOST_RETRIES {
            return Err(format!(
                "it has {} waits, and at most {MOST_RETRIES} are allowed",
                waits.len()
            ));
        }
        if waits.iter().any(|wait| *wait > LONGEST_SCHEDULED) {
            return Err(format!(
                "a wait is longer than {}, the longest that is allowed",
                humantime::format_duration(LONGEST_SCHEDULED)
            ));
        }
        Ok(Self(waits.into()))
    }
}

/// The response of an endpoint or a mail relay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointResponse {
    /// The HTTP status, or the reply code of a relay.
    pub status: u16,
    /// The wait that it asks for.
    pub retry_after: Option<Duration>,
    /// The beginning of the body.
    pub beginning: Vec<u8>,
    /// Whether it returned the code of a test, which proves that the partner reads at this
    /// endpoint.
    pub proves: bool,
}

impl EndpointResponse {
    /// Whether it acknowledges the webhook.
    pub fn acknowledges(&self) -> bool {
        matches!(self.status, 200..=299)
    }
}

impl Schedule {
    /// How long after an attempt that was not acknowledged the next one is made. `None` means that
    /// the delivery is exhausted: none is made until an operator or the partner has it sent again.
    ///
    /// A 410 ends the retries, because the endpoint says that it is gone for good. Everything else
    /// is retried after the next wait of the schedule, or later if the endpoint asks for that.
    /// `response` is `None` if there was none. `attempt` is the number of earlier attempts of this
    /// schedule. `random` is a number from 0 to 1.
    pub fn retry_in(
        &self,
        attempt: u32,
        response: Option<&EndpointResponse>,
        random: f64,
    ) -> Option<Duration> {
        if response.is_some_and(|response| response.status == 410) {
            return None;
        }
        let wait = self.0.get(usize::try_from(attempt).ok()?)?;
        let wait = wait.mul_f64(1.0 - JITTER + 2.0 * JITTER * random.clamp(0.0, 1.0));
        let asked = response
            .and_then(|response| response.retry_after)
            .unwrap_or_default();
        Some(wait.max(asked.min(LONGEST_WAIT)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn schedule() -> Schedule {
        Schedule::parse(crate::RETRY_SCHEDULE).unwrap()
    }

    fn retry_in(attempt: u32, response: &EndpointResponse, random: f64) -> Option<Duration> {
        schedule().retry_in(attempt, Some(response), random)
    }

    #[test]
    fn a_schedule_is_read_as_it_is_written() {
        let minutes = [5, 30, 120, 300, 600, 600].map(Duration::from_mins);
        assert_eq!(
            schedule().0.split_first(),
            Some((&Duration::from_secs(5), &minutes[..]))
        );
        let short = Schedule::parse("100ms, 0").unwrap();
        assert_eq!(short.retry_in(1, None, 0.5), Some(Duration::ZERO));
        assert_eq!(short.retry_in(2, None, 0.5), None);
        for bad in ["", "5s,", "5", "5s;5m", "-1s", "8days", &"1s,".repeat(40)] {
            assert!(Schedule::parse(bad).is_err(), "{bad}");
        }
        assert!(
            Schedule::parse(&["1s"; 33].join(","))
                .unwrap_err()
                .contains("32")
        );
    }

    fn responded(status: u16) -> EndpointResponse {
        EndpointResponse {
            status,
            ..EndpointResponse::default()
        }
    }

    #[test]
    fn only_success_acknowledges_and_only_gone_ends_at_once() {
        for status in [200, 201, 202, 204, 299] {
            assert!(responded(status).acknowledges(), "{status}");
        }
        let first = Some(Duration::from_secs(5));
        for status in [
            100, 301, 302, 304, 307, 308, 400, 401, 404, 409, 429, 500, 503, 599,
        ] {
            let response = responded(status);
            assert!(!response.acknowledges(), "{status}");
            assert_eq!(retry_in(0, &response, 0.5), first, "{status}");
        }
        assert_eq!(retry_in(0, &responded(410), 0.5), None);
        assert_eq!(schedule().retry_in(0, None, 0.5), first);
    }

    proptest! {
        #[test]
        fn a_wait_is_the_schedules_within_its_jitter(attempt in 0..7_u32, status in 300..600_u16, random in 0.0..1.0) {
            prop_assume!(status != 410);
            let scheduled = schedule().0[attempt as usize];
            let Some(wait) = retry_in(attempt, &responded(status), random) else {
                return Err(TestCaseError::fail("not retried"));
            };
            prop_assert!(wait >= scheduled.mul_f64(0.9) && wait <= scheduled.mul_f64(1.1), "{wait:?}");
        }

        #[test]
        fn an_endpoint_can_ask_for_more_time_but_not_for_less(attempt in 0..7_u32, asked: u64, random in 0.0..1.0) {
            let retry_after = Some(Duration::from_secs(asked));
            let plain = retry_in(attempt, &responded(503), random);
            let polite = retry_in(attempt, &EndpointResponse { retry_after, ..responded(503) }, random);
            let (Some(plain), Some(polite)) = (plain, polite) else {
                return Err(TestCaseError::fail("not retried"));
            };
            prop_assert!(polite >= plain && polite <= LONGEST_WAIT);
            prop_assert!(polite >= Duration::from_secs(asked).min(LONGEST_WAIT));
        }

        #[test]
        fn whatever_is_responded_ends_after_the_last_attempt(attempt in 7..u32::MAX, status in 300..600_u16) {
            prop_assert_eq!(retry_in(attempt, &responded(status), 0.5), None);
        }
    }
}
