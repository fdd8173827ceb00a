//! The search for a purchase by the time of its attempt, because eSIM Access has no look-up by our
//! id.
//!
//! A busy account makes thousands of eSIMs within the time in which a purchase may have arrived,
//! each page of them costs a call, and after an outage hundreds of purchases are searched at once.
//! So the time is cut into slots. What was made in a slot is read once for all purchases that ask
//! within [`FRESH`], or within [`KEPT`] if nothing can arrive in it any more, and a search reads
//! the slots from the attempt outward, until it has found the purchase. Only the calls take turns
//! under `PROVIDER_RATE`. So what searches cost depends on the length of an outage, and hardly on
//! the number of its purchases.
//!
//! A search that finds nothing proves nothing, so it does no harm that an answer is a little old,
//! or that a slot with very many eSIMs is not read to its end.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use runtime::lock;
use time::{OffsetDateTime, UtcOffset};

use super::{
    client::{Client, found, within},
    wire::EsimAccessEsim,
};
use crate::providers::provider::{Heard, LookUpRequest, LookUpResponse, Trouble};

/// The length of a slot, in seconds. A time of a search has no seconds.
const SLOT: i64 = 60;
/// The maximum number of pages of a slot. They hold what an account makes at 200 eSIMs per second.
const PAGES: u32 = 24;
/// How long an answer serves other searches.
const FRESH: Duration = Duration::from_secs(2);
/// How long it serves them if the slot is so old that purchases can no longer arrive in it.
const KEPT: Duration = Duration::from_mins(1);
/// A search begins with the slots from this long before the attempt until this long after now.
/// Nearly every purchase is there, because the clocks are seldom seconds apart.
const NEAR: Duration = Duration::from_secs(5);
/// A search first reads the slots until this long after the attempt. The reference (April 2026)
/// does not say by which time it selects, and the eSIMs of a purchase are made up to 30 s after it.
const MADE_WITHIN: Duration = Duration::from_mins(1);
/// From this age of an attempt on, a search also reads what is further away.
const WIDE_FROM: Duration = Duration::from_secs(15);
/// How far a wide search goes beyond the time in which the purchase may have arrived. It covers the
/// difference between our clock and the provider's.
const MARGIN: Duration = Duration::from_mins(1);

/// What was made in a slot, by our ids of the purchases.
type Made = Arc<HashMap<String, Vec<EsimAccessEsim>>>;

/// The last answer about a slot, and how long it serves. Whoever reads the slot holds the lock.
type Slot = Arc<tokio::sync::Mutex<Option<(Instant, Result<Made, Trouble>)>>>;

/// The slots that were read a moment ago, or are being read.
#[derive(Default)]
pub(super) struct Slots(Mutex<HashMap<i64, Slot>>);

impl Slots {
    fn get(&self, slot: i64) -> Slot {
        let mut slots = lock(&self.0);
        let is_fresh = |slot: &Slot| {
            let read = slot.try_lock();
            read.is_ok_and(|read| {
                read.as_ref()
                    .is_some_and(|(until, _)| Instant::now() < *until)
            })
        };
        slots.retain(|_, slot| Arc::strong_count(slot) > 1 || is_fresh(slot));
        Arc::clone(slots.entry(slot).or_default())
    }
}

/// The slots that a search reads, one after the other.
fn slots(look_up: &LookUpRequest, now: OffsetDateTime) -> Vec<i64> {
    let of = |at: OffsetDateTime| at.unix_timestamp().div_euclid(SLOT);
    let attempted = now - look_up.attempt_age;
    let near = of(attempted - NEAR)..=of(now.min(attempted + MADE_WITHIN) + NEAR);
    let wide = of(attempted - MARGIN)..=of(attempted + look_up.arrives_within + MARGIN);
    let middle = of(attempted);
    let is_wide = look_up.attempt_age >= WIDE_FROM;
    let mut all: Vec<i64> = if is_wide { wide } else { near.clone() }.collect();
    // The near ones first, and of each kind the nearest first; a purchase is later than its
    // attempt.
    all.sort_by_key(|slot| (!near.contains(slot), (slot - middle).abs(), *slot < middle));
    all
}

impl Slots {
    /// Searches the eSIMs that were made around the time of the attempt for our id.
    pub(super) async fn by_time(
        &self,
        client: &Client,
        look_up: &LookUpRequest,
    ) -> Result<LookUpResponse, Trouble> {
        let ours = look_up.placement_id.to_string();
        for slot in slots(look_up, runtime::clock::now()) {
            let made = self.slot(client, slot, look_up.arrives_within).await?;
            if let Some(esims) = made.get(&ours) {
                return found(esims.clone());
            }
        }
        Ok(LookUpResponse::NotFound)
    }

    /// What was made in a slot, perhaps from the answer to another search.
    async fn slot(
        &self,
        client: &Client,
        slot: i64,
        arrives_within: Duration,
    ) -> Result<Made, Trouble> {
        let kept = self.get(slot);
        let mut kept = kept.lock().await;
        if let Some((until, made)) = &*kept
            && Instant::now() < *until
        {
            return made.clone().map_err(shared);
        }
        let made = read_slot(client, slot).await;
        let end = (slot + 1).saturating_mul(SLOT);
        let is_over = runtime::clock::now().unix_timestamp()
            > end + (arrives_within + MARGIN).as_secs().cast_signed();
        let serves = if is_over && made.is_ok() { KEPT } else { FRESH };
        *kept = Some((Instant::now() + serves, made.clone()));
        made
    }
}

async fn read_slot(client: &Client, slot: i64) -> Result<Made, Trouble> {
    let at = |slot: i64| {
        OffsetDateTime::from_unix_timestamp(slot.saturating_mul(SLOT))
            .map(|at| at.to_offset(UtcOffset::UTC))
            .map_err(|_| Trouble::NotSent("the time of the search is no time".into()))
    };
    let filter = within(at(slot)?, at(slot + 1)?)?;
    let mut made: HashMap<String, Vec<EsimAccessEsim>> = HashMap::new();
    for number in 1..=PAGES {
        client.http.turn().await;
        let page = match client.page(&filter, number).await? {
            Ok(page) => page,
            Err(failure) => return Err(failure.trouble()),
        };
        let is_last = page.is_last(number);
        for one in page.esim_list {
            if let Some(id) = one.transaction_id() {
                made.entry(id.to_owned()).or_default().push(one);
            }
        }
        if is_last {
            return Ok(Arc::new(made));
        }
    }
    tracing::warn!(
        "more than {PAGES} pages of eSIMs were made within {SLOT} s, and the rest of them is not \
         searched for purchases without an answer"
    );
    Ok(Arc::new(made))
}

/// The failure of another search's call. It counts towards the breaker once, and not for each
/// search that has waited for it.
fn shared(trouble: Trouble) -> Trouble {
    match trouble {
        Trouble::NotSent(reason)
        | Trouble::Denied(reason)
        | Trouble::Unknown {
            heard: Heard::Nothing,
            reason,
        } => Trouble::not_understood(format!("the call of another search failed: {reason}")),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use domain::PlacementId;
    use reqwest::header::HeaderValue;
    use signing::SecretKey;
    use time::macros::datetime;
    use tokio::{io::AsyncReadExt, net::TcpListener};

    use super::*;
    use crate::providers::{CallLimits, PacedCalls, http::Http};

    /// Several searches wait for one page, which never comes. That is one call without a response.
    #[tokio::test]
    async fn a_page_that_does_not_come_counts_once_however_many_searches_wait_for_it() {
        testkit::http::client().unwrap(); // This installs the TLS provider.
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", server.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((mut connection, _)) = server.accept().await {
                // It takes the request and closes the connection.
                let _ = connection.read(&mut [0; 8192]).await;
            }
        });
        let limits = CallLimits {
            timeout: Duration::from_secs(5),
            response_max: 1024,
        };
        let paced = PacedCalls::without_rate(limits);
        let client = Client {
            http: Http::new(&url.parse().unwrap(), paced, |status| status.is_success()).unwrap(),
            access_code: "code".into(),
            access_code_header: HeaderValue::from_static("code"),
            secret_key: SecretKey::from_bytes(b"secret".to_vec()).unwrap(),
        };
        let slots = Slots::default();
        let search = async || {
            let look_up = LookUpRequest {
                placement_id: PlacementId::new(),
                reference: None,
                attempt_age: Duration::ZERO,
                options: Vec::new(),
                arrives_within: Duration::from_mins(1),
            };
            slots.by_time(&client, &look_up).await.unwrap_err()
        };
        let troubles: [Trouble; 3] = tokio::join!(search(), search(), search()).into();
        let count = |heard| {
            let heard = troubles.iter().filter(|one| one.heard() == Some(heard));
            heard.count()
        };
        assert_eq!(count(Heard::Nothing), 1, "{troubles:?}");
        assert_eq!(count(Heard::NotUnderstood), 2, "{troubles:?}");
    }

    #[test]
    fn a_search_reads_from_the_attempt_outward() {
        let attempted = datetime!(2026-11-24 12:00:07 UTC);
        let middle = attempted.unix_timestamp() / SLOT;
        let read = |age: u64| -> Vec<i64> {
            let look_up = LookUpRequest {
                placement_id: PlacementId::new(),
                reference: None,
                attempt_age: Duration::from_secs(age),
                options: Vec::new(),
                arrives_within: Duration::from_mins(1),
            };
            let now = attempted + look_up.attempt_age;
            let slots = slots(&look_up, now);
            slots.into_iter().map(|slot| slot - middle).collect()
        };
        assert_eq!(read(2), [0]);
        assert_eq!(read(14), [0]);
        assert_eq!(read(15), [0, 1, -1, 2]);
        // The near ones may hold what was made later, so they come first, whatever their distance.
        assert_eq!(read(70), [0, 1, -1, 2]);
        assert_eq!(read(3_000), read(70));
    }
}
