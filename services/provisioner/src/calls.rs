//! The calls to a provider. Each call waits for its turn under the rate limit and is measured. The
//! calls of orders are also reported to the breaker, because they show whether purchases work;
//! those about the balance and about delivered eSIMs do not open it. The results of purchases and
//! look-ups are reported to the limits of the lanes, too.
//!
//! All calls to a provider go through [`Calls`], so that none escapes the rate limit.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use domain::{esim_change::GiveBackCause, extension::Baseline};
use pipeline::{Effect, perform};
use runtime::clock::Moment;
use tokio::time::timeout_at;

use crate::{
    breaker::Breaker,
    limiter::{LaneLimiters, PurchaseResult},
    metrics::Metrics,
    providers::{
        Balance, BeforeExtension, Custody, DeliveredEsim, EsimStatus, ExtendResponse, Extension,
        ExtensionOffer, ExtensionSeen, GiveBackResponse, Heard, LookUp, LookUpRequest,
        LookUpResponse, Provider, Purchase, PurchaseResponse, SuspendResponse, Trouble,
    },
    rate::Rate,
};

/// A provider, together with what paces and observes the calls to it.
pub struct Calls {
    pub name: String,
    pub provider: Arc<dyn Provider>,
    pub rate: Arc<Rate>,
    pub breaker: Arc<Breaker>,
    pub limiters: Arc<LaneLimiters>,
    pub metrics: Metrics,
    /// The timeout of one call (`PROVIDER_TIMEOUT`).
    pub timeout: Duration,
}

/// A look-up, or another operation that buys nothing, is ended after the time of this many calls. A
/// search at a busy account asks for dozens of pages, and each of them may wait for its turn.
const LONGEST: u32 = 30;

impl Calls {
    /// Sends a purchase. Returns `None`, and sends nothing, if its turn under the rate limit comes
    /// after `send_by` of the purchase. It ends within the provider's time for a purchase after
    /// that ([`Provider::purchase_timeout`]), whatever else the adapter has to ask before.
    pub async fn purchase(
        &self,
        lane: &Arc<str>,
        purchase: &Purchase,
    ) -> Option<Result<PurchaseResponse, Trouble>> {
        let turn = timeout_at(purchase.send_by.monotonic.into(), self.rate.turn()).await;
        if turn.is_err() || purchase.send_by.has_passed() {
            return None;
        }
        let begun = self.limiters.begin(lane, Instant::now());
        let purchasing = perform(Effect::Purchase, self.provider.purchase(purchase));
        let timeout = self.provider.purchase_timeout(self.timeout);
        let purchasing = within((purchase.send_by + timeout).monotonic, purchasing);
        let outcome = |response: &PurchaseResponse| match response {
            PurchaseResponse::Bought(_) => "bought",
            PurchaseResponse::Rejected { .. } => "rejected",
        };
        let shows = Shows::Lane(lane);
        let response = self.measure("purchase", shows, purchasing, outcome).await;
        let result = match &response {
            Ok(_) => PurchaseResult::Responded,
            Err(Trouble::NotSent(reason)) => PurchaseResult::NotSent(reason),
            Err(Trouble::Unknown { reason, .. }) => PurchaseResult::Unknown(reason),
            Err(
                Trouble::Denied(_)
                | Trouble::Busy { .. }
                | Trouble::Waiting { .. }
                | Trouble::RefusedHere(_),
            ) => PurchaseResult::Inconclusive,
        };
        begun.end(result, Instant::now());
        Some(response)
    }

    /// Looks a purchase up.
    pub async fn look_up(
        &self,
        look_up: &LookUpRequest,
        wanted: Wanted<'_>,
    ) -> Result<LookUpResponse, Trouble> {
        if !self.provider.paces_look_ups() {
            self.rate.turn().await;
        }
        let (effect, call) = match wanted {
            Wanted::Outcome { .. } | Wanted::HeldOutcome => (Effect::LookUp, "look_up"),
            Wanted::Profiles => (Effect::Collect, "collect"),
        };
        let is_search = self.provider.capabilities().look_up == LookUp::Search;
        let part = if is_search && look_up.reference.is_none() {
            Shows::Search
        } else {
            Shows::LookUp
        };
        let looking = perform(effect, self.provider.look_up(look_up));
        let looking = within(self.longest(), looking);
        let response = self.measure(call, part, looking, found).await;
        if let Wanted::Outcome { lane, was_unknown } = wanted {
            match &response {
                Ok(LookUpResponse::Found(_)) => {
                    self.limiters.found(lane, was_unknown, Instant::now());
                }
                Ok(LookUpResponse::NotFound) if was_unknown => {
                    self.limiters.not_found(lane, Instant::now());
                }
                Ok(LookUpResponse::NotFound) | Err(_) => {}
            }
        }
        response
    }

    /// When an operation that begins now is given up.
    fn longest(&self) -> Instant {
        Instant::now() + self.timeout * LONGEST
    }

    /// Asks for the balance of our account. It says nothing about purchases, so it neither opens
    /// nor closes the breaker.
    pub async fn balance(&self) -> Result<Balance, Trouble> {
        self.rate.turn().await;
        let balance = within(self.longest(), self.provider.balance());
        self.timed("balance", balance, |_| "answered").await
    }

    /// Asks for the state of a delivered eSIM. Its turn comes behind the calls of orders. Like
    /// [`Self::balance`], it opens no breaker. It closes one only if it is the probe.
    pub async fn status(&self, esim: &DeliveredEsim) -> Result<EsimStatus, Trouble> {
        let asking = self.provider.status(esim);
        self.ask_behind("status", asking, |_| "answered").await
    }

    /// Whether a change to a delivered eSIM is sent, once it has its turn. It queues like the calls
    /// of orders, because an attempt that waited behind them could never be sent in time during a
    /// long backlog. While the breaker is not closed it is not sent, because what a half-open
    /// breaker stops, it stops for every call.
    async fn may_change(&self, send_by: Moment) -> bool {
        let turn = timeout_at(send_by.monotonic.into(), self.rate.turn()).await;
        let is_late = turn.is_err() || send_by.has_passed();
        !is_late && self.breaker.is_closed()
    }

    /// Gives a delivered eSIM back. Returns `None`, and sends nothing, if its turn comes after
    /// `send_by` or the breaker is not closed. Like [`Self::balance`], it opens no breaker.
    pub async fn give_back(
        &self,
        esim: &DeliveredEsim,
        cause: GiveBackCause,
        send_by: Moment,
    ) -> Option<Result<GiveBackResponse, Trouble>> {
        if !self.may_change(send_by).await {
            return None;
        }
        let giving_back = perform(Effect::GiveBack, self.provider.give_back(esim, cause));
        let giving_back = within((send_by + self.timeout).monotonic, giving_back);
        let given_back = self.timed("give_back", giving_back, |response| match response {
            GiveBackResponse::Returned => "returned",
            GiveBackResponse::Refused(_) => "refused",
            GiveBackResponse::Claimed { .. } => "claimed",
        });
        Some(given_back.await)
    }

    /// Looks what became of a claim. It counts like [`Self::status`].
    pub async fn find_claim(&self, esim: &DeliveredEsim) -> Result<Custody, Trouble> {
        let asking = self.provider.find_claim(esim);
        self.ask_behind("find_claim", asking, |_| "answered").await
    }

    /// Suspends a delivered eSIM, or resumes it. It is sent, or not, as [`Self::give_back`] is.
    pub async fn suspend(
        &self,
        esim: &DeliveredEsim,
        suspend: bool,
        send_by: Moment,
    ) -> Option<Result<SuspendResponse, Trouble>> {
        if !self.may_change(send_by).await {
            return None;
        }
        let suspending = perform(Effect::Suspend, self.provider.suspend(esim, suspend));
        let suspending = within((send_by + self.timeout).monotonic, suspending);
        let suspended = self.timed("suspend", suspending, |response| match response {
            SuspendResponse::Done => "done",
            SuspendResponse::Refused(_) => "refused",
        });
        Some(suspended.await)
    }

    /// Asks what can be added to a delivered eSIM. It counts like [`Self::status`].
    pub async fn offers(
        &self,
        esim: &DeliveredEsim,
    ) -> Result<Option<Vec<ExtensionOffer>>, Trouble> {
        let asking = self.provider.offers(esim);
        self.ask_behind("offers", asking, |_| "answered").await
    }

    /// Reads the baseline of an extension. It counts like [`Self::status`].
    pub async fn before_extension(
        &self,
        extension: &Extension,
    ) -> Result<BeforeExtension, Trouble> {
        let asking = self.provider.before_extension(extension);
        let outcome = |before: &BeforeExtension| match before {
            BeforeExtension::Possible(_) => "answered",
            BeforeExtension::Refused(_) => "refused",
        };
        self.ask_behind("before_extension", asking, outcome).await
    }

    /// Buys an extension. As with [`Self::give_back`], `None` means that nothing was sent, because
    /// its turn came after `send_by` or the breaker is not closed, and it opens no breaker.
    pub async fn extend(&self, extension: &Extension) -> Option<Result<ExtendResponse, Trouble>> {
        let send_by = extension.send_by;
        if !self.may_change(send_by).await {
            return None;
        }
        let extending = perform(Effect::Extend, self.provider.extend(extension));
        let timeout = self.provider.purchase_timeout(self.timeout);
        let extending = within((send_by + timeout).monotonic, extending);
        let extended = self.timed("extend", extending, |response| match response {
            ExtendResponse::Added(_) => "added",
            ExtendResponse::Refused { .. } => "refused",
        });
        Some(extended.await)
    }

    /// Looks for an extension. It counts like [`Self::status`].
    pub async fn find_extension(
        &self,
        extension: &Extension,
        baseline: &Baseline,
    ) -> Result<ExtensionSeen, Trouble> {
        let looking = self.provider.find_extension(extension, baseline);
        let outcome = |seen: &ExtensionSeen| match seen {
            ExtensionSeen::Added(_) => "found",
            ExtensionSeen::NotAdded => "not_found",
            ExtensionSeen::Refused { .. } => "refused",
        };
        self.ask_behind("find_extension", looking, outcome).await
    }

    /// Asks something about a delivered eSIM, whose turn comes behind the calls of orders. It opens
    /// no breaker, and closes one only if it is the probe.
    async fn ask_behind<T>(
        &self,
        call: &'static str,
        asking: impl Future<Output = Result<T, Trouble>>,
        outcome: fn(&T) -> &'static str,
    ) -> Result<T, Trouble> {
        self.rate.turn_behind().await;
        let breaker_version = self.breaker.version_at_begin();
        let asking = within(self.longest(), asking);
        let response = self.timed(call, asking, outcome).await;
        if matches!(response, Ok(_) | Err(Trouble::Busy { .. })) {
            self.breaker.responded_to_probe(breaker_version).await;
        }
        response
    }

    /// Awaits a call, and reports its duration and its result to the metrics, unless nothing was
    /// sent. `outcome` is how they name a definite response.
    async fn timed<T>(
        &self,
        call: &'static str,
        calling: impl Future<Output = Result<T, Trouble>>,
        outcome: fn(&T) -> &'static str,
    ) -> Result<T, Trouble> {
        let began = Instant::now();
        let response = calling.await;
        let outcome = match &response {
            Ok(definite) => outcome(definite),
            Err(trouble) if trouble.is_of_adapter() => return response,
            Err(trouble) => trouble.class(),
        };
        self.metrics.call(
            &self.name,
            call,
            outcome,
            began.elapsed(),
            response.is_err(),
        );
        response
    }

    /// Awaits a call of an order, and reports it to the metrics and the breaker.
    async fn measure<T>(
        &self,
        call: &'static str,
        shows: Shows<'_>,
        calling: impl Future<Output = Result<T, Trouble>>,
        outcome: fn(&T) -> &'static str,
    ) -> Result<T, Trouble> {
        let breaker_version = self.breaker.version_at_begin();
        let response = self.timed(call, calling, outcome).await;
        let heard = response.as_ref().err().and_then(Trouble::heard);
        let is_of_search = shows == Shows::Search && self.breaker.is_closed();
        match &response {
            // A provider that says that it is busy, or something that proves nothing, has
            // responded, so it does not count as failing.
            Ok(_) | Err(Trouble::Busy { .. }) => self.breaker.responded(breaker_version).await,
            Err(_) if heard == Some(Heard::ProvesNothing) => {
                self.breaker.responded(breaker_version).await;
            }
            Err(trouble) if trouble.is_of_adapter() => {}
            Err(_) if heard == Some(Heard::NotUnderstood) && is_of_search => {}
            Err(trouble) => {
                let lane = match shows {
                    Shows::Lane(lane) => Some(lane),
                    Shows::LookUp | Shows::Search => None,
                };
                self.breaker.failed(breaker_version, lane, trouble).await;
            }
        }
        response
    }
}

/// What a look-up is for.
#[derive(Clone, Copy)]
pub enum Wanted<'a> {
    /// The outcome of an attempt, which says whether its lane works.
    ///
    /// `was_unknown` says that the purchase ended without a response and that no look-up has given
    /// a definite one since, so that this look-up shows whether the purchase failed. If it is
    /// false, a look-up that finds nothing says nothing about the lane: the attempt was perhaps
    /// never sent, or its failure has been counted already.
    Outcome {
        lane: &'a Arc<str>,
        was_unknown: bool,
    },
    /// The outcome of an attempt of a purchase on hold. It has long been counted, so it says
    /// nothing about the lane any more.
    HeldOutcome,
    /// The profiles of a purchase. It has been confirmed, so they say nothing about the lane.
    Profiles,
}

/// What a call shows to work.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shows<'a> {
    /// The sale of what is in this lane.
    Lane(&'a Arc<str>),
    /// The look-up of one purchase by our id or by that of the provider, at any provider, whether
    /// or not it proves an absence. Each purchase needs it, so it counts as the sale does.
    LookUp,
    /// The search for purchases in a list. A provider that responds to ours with an error sells all
    /// the same, so such a search does not count for the breaker. One without any response does.
    Search,
}

/// Awaits an operation until `end`. If it is given up, nobody knows its outcome, as with a call
/// that gets no response.
async fn within<T>(
    end: Instant,
    operation: impl Future<Output = Result<T, Trouble>>,
) -> Result<T, Trouble> {
    timeout_at(end.into(), operation)
        .await
        .unwrap_or_else(|_| Err(Trouble::no_response("it took too long and was given up")))
}

fn found(response: &LookUpResponse) -> &'static str {
    match response {
        LookUpResponse::Found(_) => "found",
        LookUpResponse::NotFound => "not_found",
    }
}

#[cfg(test)]
mod tests {
    use domain::PlacementId;
    use pg::{
        config::{DatabaseConfig, PoolConfig},
        primary::DurabilityConfig,
    };
    use store::providers::{BreakerLimits, BreakerState, ProviderBreaker};

    use super::*;
    use crate::providers::{Adapter, Capabilities, ProviderFacts, ProviderId};

    /// A provider that responds to purchases and look-ups as it is told.
    struct Scripted {
        look_up: LookUp,
        bought: fn() -> Result<PurchaseResponse, Trouble>,
        found: fn() -> Result<LookUpResponse, Trouble>,
    }

    impl ProviderFacts for Scripted {
        fn capabilities(&self) -> Capabilities {
            Capabilities {
                purchase_key: false,
                look_up: self.look_up,
                callbacks: false,
                cancel: false,
                give_back: None,
                suspend: false,
                usage: false,
                extend: None,
                balance: false,
                catalogue: false,
                purchases: false,
            }
        }

        fn clock_ahead(&self) -> Option<i64> {
            None
        }
    }

    impl Adapter for Scripted {
        async fn purchase(&self, _: &Purchase) -> Result<PurchaseResponse, Trouble> {
            (self.bought)()
        }

        async fn look_up(&self, _: &LookUpRequest) -> Result<LookUpResponse, Trouble> {
            (self.found)()
        }
    }

    /// The number of failures after which the breaker opens, and no provider counts as healthy.
    const FAILURES: u32 = 3;

    fn calls_of(provider: impl Provider) -> Calls {
        let name = "test".to_owned();
        let metrics = Metrics::default();
        let limiters = Arc::new(LaneLimiters::new(name.clone(), 4, Instant::now()));
        let server = DatabaseConfig {
            database_url: "postgres://localhost/none".into(),
        };
        let database = PoolConfig {
            server,
            database_connections: 1,
            database_timeout: Duration::from_secs(5),
            durability: DurabilityConfig::default(),
        }
        .open("test")
        .unwrap();
        let limits = BreakerLimits {
            failures: FAILURES,
            open: Duration::from_secs(10),
            open_most: Duration::from_mins(1),
        };
        let breaker = Breaker::new(
            name.clone(),
            limits,
            database,
            Arc::clone(&limiters),
            metrics.clone(),
        );
        Calls {
            name,
            provider: Arc::new(provider),
            rate: Arc::new(Rate::new(0, "replica".into())),
            breaker,
            limiters,
            metrics,
            timeout: Duration::from_secs(10),
        }
    }

    fn closed() -> ProviderBreaker {
        ProviderBreaker {
            name: "test".to_owned(),
            state: BreakerState::Closed,
            open_until: None,
            reason: None,
            openings: 0,
            version: 1,
            changed_at: runtime::clock::now(),
            failing_since: None,
            denied: false,
            balance: None,
            balance_at: None,
        }
    }

    fn purchase(send_by: Moment) -> Purchase {
        Purchase {
            placement_id: PlacementId::new(),
            items: vec![("option".into(), 1)],
            send_by,
        }
    }

    /// What is said before anything is sent neither ends the failures in a row, as a response would
    /// do, nor makes its lane one that responds.
    #[tokio::test]
    async fn what_is_said_before_anything_is_sent_says_nothing_about_the_provider() {
        let lane: Arc<str> = "lane".into();
        let other: Arc<str> = "other".into();
        let send_by = Moment::now() + Duration::from_mins(1);
        let said: [fn() -> Result<PurchaseResponse, Trouble>; 2] = [
            || {
                Err(Trouble::Waiting {
                    after: Duration::from_secs(21),
                    reason: "a token was asked for a moment ago".into(),
                })
            },
            || Err(Trouble::RefusedHere("the price has risen".into())),
        ];
        for bought in said {
            let calls = calls_of(Scripted {
                look_up: LookUp::Search,
                bought,
                found: || Ok(LookUpResponse::NotFound),
            });
            calls.breaker.update(closed());
            let version = calls.breaker.version_at_begin();
            let silent = Trouble::no_response("timed out");
            for _ in 0..FAILURES {
                calls.breaker.failed(version, Some(&other), &silent).await;
            }
            let untested = calls.limiters.state(&lane, Instant::now()).permits;
            assert!(calls.purchase(&lane, &purchase(send_by)).await.is_some());
            assert!(!calls.breaker.is_healthy());
            let state = calls.limiters.state(&lane, Instant::now());
            assert_eq!((state.permits, state.is_shared), (untested, false));
        }
    }

    /// An error of a search says nothing about the sale. That of a look-up by an id does, also
    /// where such a look-up proves no absence. A response that proves nothing is no error.
    #[tokio::test]
    async fn only_an_error_of_a_search_does_not_count() {
        type Found = fn() -> Result<LookUpResponse, Trouble>;
        let unreadable = || Err(Trouble::not_understood("the response is unreadable"));
        let proves_nothing = || {
            let heard = Heard::ProvesNothing;
            let reason = "code 9002".to_owned();
            Err(Trouble::Unknown { heard, reason })
        };
        let silent = || Err(Trouble::no_response("timed out"));
        let rows = [
            (LookUp::Search, unreadable as Found, true),
            (LookUp::Search, silent, false),
            (LookUp::ById, unreadable, false),
            (LookUp::ById, proves_nothing, true),
            (LookUp::Exact, unreadable, false),
        ];
        for (look_up, found, is_healthy) in rows {
            let calls = calls_of(Scripted {
                look_up,
                bought: || unreachable!(),
                found,
            });
            calls.breaker.update(closed());
            let request = LookUpRequest {
                placement_id: PlacementId::new(),
                reference: None,
                attempt_age: Duration::ZERO,
                options: Vec::new(),
                arrives_within: Duration::from_mins(1),
            };
            for _ in 0..FAILURES {
                let lane = &"lane".into();
                let was_unknown = true;
                let wanted = Wanted::Outcome { lane, was_unknown };
                let looked_up = calls.look_up(&request, wanted).await;
                assert!(looked_up.is_err());
            }
            assert_eq!(calls.breaker.is_healthy(), is_healthy, "{look_up:?}");
        }
    }

    #[tokio::test]
    async fn a_purchase_whose_turn_comes_too_late_is_not_sent() {
        let calls = calls_of(Scripted {
            look_up: LookUp::Exact,
            bought: || panic!("the purchase is sent"),
            found: || unreachable!(),
        });
        let send_by = Moment::now();
        let later = send_by + Duration::from_mins(1);
        // The machine was suspended after the claim: only its wall clock has gone on.
        let suspended = Moment {
            wall: send_by.wall,
            ..later
        };
        for send_by in [send_by, suspended] {
            let purchase = purchase(send_by);
            assert!(calls.purchase(&"lane".into(), &purchase).await.is_none());
        }
        let esim = DeliveredEsim {
            unit_id: ProviderId::parse("1".to_owned()).unwrap(),
            iccid: domain::Iccid::parse("8982123456789012345").unwrap(),
        };
        let extension = |send_by| Extension {
            id: domain::ExtensionId::new(),
            esim: esim.clone(),
            provider_option_id: "option".to_owned(),
            send_by,
        };
        // The state of the breaker is not known yet, so it is not closed.
        assert!(
            calls
                .give_back(&esim, GiveBackCause::Other, later)
                .await
                .is_none()
        );
        assert!(calls.extend(&extension(later)).await.is_none());
        calls.breaker.update(closed());
        for send_by in [send_by, suspended] {
            assert!(
                calls
                    .give_back(&esim, GiveBackCause::Other, send_by)
                    .await
                    .is_none()
            );
            assert!(calls.extend(&extension(send_by)).await.is_none());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_operation_that_drips_is_given_up() {
        let began = Instant::now();
        let end = began + Duration::from_secs(30);
        let endless = std::future::pending::<Result<(), Trouble>>();
        let given_up = within(end, endless).await;
        let heard = given_up.unwrap_err().heard();
        assert_eq!(heard, Some(Heard::Nothing));
        assert_eq!(within(end, async { Ok(7) }).await, Ok(7));
    }
}
