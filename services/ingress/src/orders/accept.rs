//! Stores orders by group commit, publishes their jobs and answers them.
//!
//! An answer waits for the verdicts of the provisioners if they can be expected in time, and the
//! order of the steps depends on that. The batch writer stores the order either way, and one of two
//! functions answers it:
//!
//! ```text
//!               InsertAndAnnounce::write        answer_by_verdicts
//! verdicts:     commit ──▶ publish jobs ──▶ verdicts ──▶ 201 or 422 ──▶ publish readiness events
//!                                      (none placed ──▶ flush ──▶ 201)
//!               InsertAndAnnounce::write        answer_at_once
//! no verdicts:  commit ─────────────────▶ 201 ──▶ publish jobs
//! ```
//!
//! Guarantees:
//!
//! - An order beyond the limit of units a day of its key, or beyond what is available in its
//!   partner's account, is not stored: both are counted in the transaction that stores orders.
//! - A 201 is sent only after the commit is on disk. The verdict *placed* says that it is, because
//!   the claim before the purchase was flushed; otherwise this module flushes it
//!   ([`store::orders::flush_order`]). A 422 of the provider is sent only after PostgreSQL has
//!   refused the whole order in one transaction.
//! - No webhook precedes the 201 of its order. With verdicts, this process holds the readiness
//!   events until the 201 has left. Without verdicts nobody holds them, so the jobs are published
//!   only after the 201.
//! - The commit and everything after it run in a task of their own ([`OrderService::submit`]). A
//!   partner that hangs up cancels only the future of its request, and not a half-finished order.
//!
//! [`super::create`] calls [`OrderService::submit`] with an order that [`OrderService::check`] has
//! made. The module relies on [`super::handshake`] for verdicts and readiness events, and on
//! [`pipeline::timing`] for deadlines that fit those of the other stages.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use domain::{OrderId, PartnerId, TopupIds};
use opentelemetry::trace::FutureExt;
use pg::{Database, PgConnection};
use pipeline::{
    Batcher, Effect, GroupCommit,
    group_commit::{BatchWriter, WriterPanicked},
    payload::{JobPlacement, Verdict},
    perform,
    publish::{AnnouncedRow, Job},
    timing::ANSWER,
};
use runtime::{Shutdown, clock::Moment};
use store::orders::{Inserted, NewOrder, NewTopup, OrderStatus, OrderedUnits};
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::{
    access::{admission::AdmittedOrder, directory::Directory},
    http::{
        codes::ErrorCode,
        error::{ApiError, RequestFault},
    },
    metrics::{Metrics, OrderResult},
    orders::{
        answer::created_body,
        decide,
        handshake::{Handshake, PendingAnswer},
        repeat::{self, IfTaken, RepeatAnswer, WantedOrder},
        result,
    },
};

/// The maximum number of orders in one commit, which bounds how long its transaction holds locks.
/// Larger ones cost as much for each item.
const BATCH: usize = 256;
/// The first pause before an undecided order with the same external id is read again. Each further
/// pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest such pause. It is short, because a partner waits for its answer.
const LONGEST_PAUSE: Duration = Duration::from_millis(400);
/// The maximum number of retries with fresh topup ids after a conflict. Even one conflict is rare:
/// two processes make the same ids only if their random starts are close to each other.
const FRESH_IDS: usize = 3;

/// A 201, as the handler sends it.
pub(crate) struct CreatedAnswer {
    pub(crate) body: Bytes,
    /// The deadline: after it, the response is not sent.
    pub(crate) deadline: Moment,
    /// Signals that the response has left. Dropping it means that the response never will.
    pub(crate) left: oneshot::Sender<()>,
}

/// What a request gets that succeeds.
pub(crate) enum OrderSuccess {
    Created(CreatedAnswer),
    /// An earlier request has stored the order, and this one asks for its answer.
    Repeated(RepeatAnswer),
}

pub(crate) type OrderAnswer = Result<OrderSuccess, ApiError>;

pub(crate) struct OrderService {
    pub(crate) database: Database,
    pub(crate) commit: GroupCommit<InsertAndAnnounce>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) handshake: Arc<Handshake>,
    pub(crate) jobs: Batcher<Job>,
    pub(crate) topup_ids: TopupIds,
    pub(crate) providers: Vec<String>,
    pub(crate) placement_wait: Duration,
    /// `QUEUE_DEADLINE`: the longest time that an order waits in the queue of the group commit.
    pub(crate) queue_deadline: Duration,
    /// Limits the requests that wait for an undecided order with the same
    /// external id.
    pub(crate) duplicates: Semaphore,
    pub(crate) metrics: Metrics,
    pub(crate) shutdown: Shutdown,
}

/// The group commit of orders. One statement stores a batch; then the jobs of those orders whose
/// answers wait for verdicts are published, because every millisecond until then is part of the
/// answer's time.
pub(crate) struct InsertAndAnnounce {
    database: Database,
    jobs: Batcher<Job>,
}

impl InsertAndAnnounce {
    pub(crate) fn start(
        database: &Database,
        jobs: &Batcher<Job>,
        shutdown: &Shutdown,
    ) -> GroupCommit<Self> {
        let database = database.clone();
        let jobs = jobs.clone();
        GroupCommit::start(Self { database, jobs }, BATCH, shutdown)
    }
}

/// An order that is stored, and what its answer needs.
struct StoredOrder {
    order: NewOrder,
    /// Takes the answer to the handler.
    answer: oneshot::Sender<OrderAnswer>,
    /// When the task of the order began.
    began: Instant,
    /// The time from then until the order was stored.
    time_to_store: Duration,
    /// The moment before the INSERT was sent; see [`InsertResult::sent`].
    sent: Moment,
    /// When the order can no longer be answered. It is a moment before the `answer_by` that
    /// PostgreSQL has stored; see [`pipeline::timing`].
    answer_deadline: Moment,
}

/// What has become of the earlier order with the same external id.
enum EarlierOrder {
    /// It is carried out. An archived order has no rows, and so no id here.
    Stands(Option<OrderId>),
    /// It was refused, so its external id is free again.
    Refused,
    /// It may still be refused.
    Undecided,
}

/// Why an order was not stored.
enum NotStored {
    /// An earlier order has its external id, whose answer this request gets.
    Repeated(RepeatAnswer),
    Failed(ApiError),
}

impl From<ApiError> for NotStored {
    fn from(error: ApiError) -> Self {
        Self::Failed(error)
    }
}

pub(crate) struct InsertResult {
    inserted: Inserted,
    /// The moment before the INSERT was sent, from which the time of the answer counts. PostgreSQL
    /// counts from a later moment, so this process always gives up first; see [`ANSWER`].
    sent: Moment,
}

impl BatchWriter for InsertAndAnnounce {
    const NAME: &'static str = "commit-orders";
    const STATEMENT: (&'static str, &'static str) = ("INSERT", "orders");
    type Item = NewOrder;
    type Output = InsertResult;
    type Error = pg::Error;

    async fn write(&self, orders: &[NewOrder]) -> Result<Vec<InsertResult>, pg::Error> {
        let insert = async |connection: &mut PgConnection| {
            let sent = Moment::now();
            // Orders without a limit pay nothing for those that have one.
            let inserted = if orders.iter().any(NewOrder::is_limited) {
                store::orders::insert_limited(connection, orders).await?
            } else {
                let stored = store::orders::insert(connection, orders).await?.into_iter();
                stored.map(Inserted::of).collect()
            };
            let result = |inserted| InsertResult { inserted, sent };
            Ok::<Vec<_>, pg::Error>(inserted.into_iter().map(result).collect())
        };
        let inserted = perform(Effect::CommitOrders, self.database.run(insert)).await?;
        // The jobs of the others are published by `answer_at_once`, after their 201.
        let awaited = |(order, inserted): &(&NewOrder, &InsertResult)| {
            order.awaits_verdicts() && inserted.inserted == Inserted::Stored
        };
        for (order, _) in orders.iter().zip(&inserted).filter(awaited) {
            publish(&self.jobs, order);
        }
        Ok(inserted)
    }

    /// Unlike the later stages, ingress inserts new rows only. So an error that is not about their
    /// data, such as a missing privilege, concerns all orders of the batch, and a statement for
    /// each of them would only add load while their partners wait.
    fn one_is_at_fault(error: &pg::Error) -> bool {
        error.is_about_data()
    }
}

impl OrderService {
    /// Stores an order in a task of its own, and returns where its answer will arrive. The task
    /// goes on if the handler is gone, because after the commit the order has to be completed. The
    /// order is in flight until `admitted` is dropped at the end of the task.
    pub(crate) fn submit(
        self: &Arc<Self>,
        order: NewOrder,
        if_taken: IfTaken,
        admitted: AdmittedOrder,
    ) -> oneshot::Receiver<OrderAnswer> {
        let (answer, answered) = oneshot::channel();
        let orders = Arc::clone(self);
        let task = async move {
            orders
                .store_and_answer(order, if_taken, answer, &admitted)
                .await;
            drop(admitted);
        };
        // The task continues the trace of the request. It is no part of the request's span, because
        // that span ends with the response and does not wait for the task.
        self.shutdown
            .tracker()
            .spawn(task.with_context(Span::current().context()));
        answered
    }

    /// Stores an order and sends its answer to the handler. After the commit it takes one of the
    /// two paths in the diagram at the head of this module.
    async fn store_and_answer(
        &self,
        mut order: NewOrder,
        if_taken: IfTaken,
        mut answer: oneshot::Sender<OrderAnswer>,
        admitted: &AdmittedOrder,
    ) {
        let began = Instant::now();
        order.answer_within = ANSWER;
        // The provisioners' heartbeats say whether a verdict can be expected. The answer's time is
        // longer then, and `answering` tells provisioners where to send their reports.
        if !self.placement_wait.is_zero() && self.handshake.expects_verdicts(&order.placements) {
            order.answering = Some(self.handshake.ingress_id());
            order.answer_within += self.placement_wait;
        }
        // The handshake must know the order before the commit, because reports can arrive right
        // after it.
        let awaited = order.awaits_verdicts();
        let pending_answer = awaited.then(|| self.handshake.expect_reports(&order));
        let stored = self.store_unless_taken(&mut order, if_taken, &mut answer);
        let sent = match stored.await {
            Ok(sent) => sent,
            Err(not_stored) => {
                match not_stored {
                    NotStored::Repeated(repeated) => {
                        self.count_repeat(order.partner_id, &repeated);
                        let _ = answer.send(Ok(OrderSuccess::Repeated(repeated)));
                    }
                    NotStored::Failed(error) => self.fail(order.partner_id, error, answer),
                }
                if let Some(pending_answer) = pending_answer {
                    pending_answer.unanswered();
                }
                return;
            }
        };
        let order_id = order.order_id;
        let answer_deadline = sent + order.answer_within;
        let stored = StoredOrder {
            began,
            time_to_store: began.elapsed(),
            sent,
            answer_deadline,
            order,
            answer,
        };
        match pending_answer {
            Some(pending_answer) => {
                self.answer_by_verdicts(stored, pending_answer, admitted)
                    .await;
            }
            None => self.answer_at_once(stored, admitted).await,
        }
        // From here on this process sends no 201 of the order and does not refuse it. A 500 may
        // still be on its way; it promises nothing.
        self.handshake
            .left_answers
            .note(order_id, answer_deadline.monotonic);
    }

    /// Answers an order whose answer waits for no verdict: it gets its 201 at once.
    async fn answer_at_once(&self, stored: StoredOrder, admitted: &AdmittedOrder) {
        let StoredOrder {
            order,
            answer,
            began,
            time_to_store,
            answer_deadline,
            sent: _,
        } = stored;
        admitted.took(began, time_to_store);
        self.metrics.order(
            order.partner_id,
            OrderResult::Accepted,
            topups(&order).count(),
        );
        // The jobs are published after the 201. No process holds back the readiness events of this
        // order, so if it were bought earlier, its webhook could precede the answer.
        send_201_and_wait(&order, answer_deadline, answer).await;
        publish(&self.jobs, &order);
    }

    /// Answers an order as the verdicts on its placements say.
    async fn answer_by_verdicts(
        &self,
        stored: StoredOrder,
        mut pending_answer: PendingAnswer,
        admitted: &AdmittedOrder,
    ) {
        let StoredOrder {
            order,
            answer,
            began,
            time_to_store,
            sent,
            answer_deadline,
        } = stored;
        // The jobs of an order that waits for verdicts are published already: the group commit does
        // it right after the commit ([`InsertAndAnnounce`]).
        let verdicts = pending_answer
            .verdicts(sent.monotonic + self.placement_wait)
            .await;
        // Without a verdict nobody knows what the order waited for after it was stored.
        admitted.took(
            began,
            verdicts.provider_time.map_or(time_to_store, |provider| {
                began.elapsed().saturating_sub(provider)
            }),
        );
        let verdicts = verdicts.known;
        for placement in &order.placements {
            self.metrics
                .verdict(verdicts.get(&placement.placement_id).copied());
        }
        match decide::refuse_or_flush(&self.database, &order, &verdicts).await {
            Ok(None) => {
                let units = topups(&order).count();
                self.metrics
                    .order(order.partner_id, OrderResult::Accepted, units);
                // The provisioner has not counted these, because the order might have been refused
                // (`count` in its `purchases/settle.rs`).
                for placement in &order.placements {
                    let verdict = verdicts.get(&placement.placement_id);
                    if matches!(verdict, Some(Verdict::Rejected)) {
                        self.metrics
                            .failed(&placement.provider, placement.topups.len());
                    }
                }
                send_201_and_wait(&order, answer_deadline, answer).await;
                // Readiness events were held until now, so that no webhook precedes its 201.
                pending_answer.answered(answer_deadline.monotonic);
            }
            Ok(Some(refusals)) => {
                let options: Vec<String> = order
                    .placements
                    .iter()
                    .map(|placement| format!("{} at {}", placement.lane, placement.provider))
                    .collect();
                tracing::info!(
                    order.id = %order.order_id,
                    partner.id = %order.partner_id,
                    provider.options = options.join("; "),
                    "the order got a 422: the provider rejected it or could not be reached, and \
                     nothing of it is bought"
                );
                let errors = decide::refusal_errors(order.order_id, &refusals);
                self.fail(order.partner_id, ApiError::Unprocessable(errors), answer);
                pending_answer.unanswered();
            }
            // PostgreSQL has refused the order, lets it stand or has lost it. A 500 promises
            // nothing, and a repeated request learns which of them is true.
            Err(error) => {
                self.fail(order.partner_id, error, answer);
                pending_answer.unanswered();
            }
        }
    }

    /// Counts an order that gets no 201, and sends its error to the handler.
    fn fail(&self, partner: PartnerId, error: ApiError, answer: oneshot::Sender<OrderAnswer>) {
        self.metrics.order(partner, result::of(&error), 0);
        let _ = answer.send(Err(error));
    }

    /// Counts a request that gets the answer of an earlier order.
    pub(super) fn count_repeat(&self, partner: PartnerId, repeated: &RepeatAnswer) {
        let result = match repeated {
            RepeatAnswer::Same(_) => OrderResult::Repeated,
            RepeatAnswer::Undecided => OrderResult::Undecided,
        };
        self.metrics.order(partner, result, 0);
    }

    /// Stores the order, unless its external id is taken. Returns the moment at which the statement
    /// was sent.
    ///
    /// "Already taken" promises that the earlier order is carried out. While that order waits for
    /// its verdict it may still be refused, and then its id is free again. So this request waits
    /// until the earlier order is decided, looking at it from time to time. Without this wait, a
    /// partner that repeats a request could be told that its order is stored although it is refused
    /// a moment later.
    ///
    /// If the earlier order was refused, this request tries to store its own order again. It ends
    /// with a 503 if that has not worked after the longest time that one order can take to be
    /// decided, and at once if too many requests wait already. A request that asks for the answer
    /// of the earlier order is told instead that it is undecided.
    async fn store_unless_taken(
        &self,
        order: &mut NewOrder,
        if_taken: IfTaken,
        answer: &mut oneshot::Sender<OrderAnswer>,
    ) -> Result<Moment, NotStored> {
        let give_up = Instant::now() + self.placement_wait + ANSWER;
        let mut place = None;
        loop {
            let inserted = self.insert(order, answer).await?;
            match inserted.inserted {
                Inserted::Stored => return Ok(inserted.sent),
                Inserted::OverLimit { left } => {
                    return Err(ApiError::units_per_day_reached(order.limited_key, left).into());
                }
                Inserted::BalanceInsufficient {
                    required,
                    available,
                } => return Err(ApiError::balance_insufficient(required, available).into()),
                Inserted::Taken => {}
            }
            let earlier = self.until_decided(order, give_up, &mut place, answer);
            match (earlier.await?, if_taken) {
                (EarlierOrder::Refused, _) if Instant::now() < give_up => {}
                (EarlierOrder::Stands(_), IfTaken::Refuse) => {
                    let taken = RequestFault::new(ErrorCode::ExternalOrderIdTaken);
                    return Err(ApiError::Unprocessable(vec![taken]).into());
                }
                (EarlierOrder::Stands(earlier), IfTaken::Answer) => {
                    let ordered = self.stored_units(earlier).await?;
                    let wanted = WantedOrder::of_order(in_order(order), order.metadata.as_ref());
                    return Err(NotStored::Repeated(repeat::answer(&ordered, &wanted)?));
                }
                (EarlierOrder::Refused | EarlierOrder::Undecided, IfTaken::Refuse) => {
                    return Err(UNDECIDED_ORDER.into());
                }
                (EarlierOrder::Refused | EarlierOrder::Undecided, IfTaken::Answer) => {
                    return Err(NotStored::Repeated(RepeatAnswer::Undecided));
                }
            }
        }
    }

    /// Waits until the earlier order that has this order's external id is decided. It may be
    /// another one each time that it is looked at, because of several equal requests one after the
    /// other is refused. `place` is the request's place among those that wait, which it takes when
    /// it has to.
    async fn until_decided<'a>(
        &'a self,
        order: &NewOrder,
        give_up: Instant,
        place: &mut Option<SemaphorePermit<'a>>,
        answer: &mut oneshot::Sender<OrderAnswer>,
    ) -> Result<EarlierOrder, ApiError> {
        let mut pause = FIRST_PAUSE;
        while let Some(earlier) = self
            .status(order.partner_id, &order.external_order_id)
            .await?
        {
            if earlier.decided {
                return Ok(EarlierOrder::Stands(earlier.order_id));
            }
            if Instant::now() >= give_up {
                return Ok(EarlierOrder::Undecided);
            }
            if place.is_none() {
                let Ok(free) = self.duplicates.try_acquire() else {
                    return Ok(EarlierOrder::Undecided);
                };
                *place = Some(free);
            }
            tokio::select! {
                () = tokio::time::sleep(pause.min(earlier.undecided_for)) => {}
                // Nobody reads the answer, and others wait for this place.
                () = answer.closed() => return Err(ApiError::HungUp),
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Ok(EarlierOrder::Refused)
    }

    /// Reads the status of the partner's order with this external id, if one stands.
    async fn status(
        &self,
        partner: PartnerId,
        external_order_id: &str,
    ) -> Result<Option<OrderStatus>, ApiError> {
        let status = self.database.run(async |connection| {
            store::orders::status(connection, partner, external_order_id).await
        });
        status.await.map_err(ApiError::internal)
    }

    /// Reads what an order asked for whose status says that it stands.
    async fn stored_units(&self, order: Option<OrderId>) -> Result<OrderedUnits, ApiError> {
        let Some(order) = order else {
            return Ok(OrderedUnits::default());
        };
        let units = self
            .database
            .run(async |connection| store::orders::units(connection, order).await);
        units.await.map_err(ApiError::internal)
    }

    /// The answer to a repeat that asks for this, although no order can be made of it now,
    /// because the catalogue has changed since the first request. `None` if no order has its
    /// external id.
    pub(super) async fn repeat_of(
        &self,
        partner: PartnerId,
        external_order_id: &str,
        wanted: &WantedOrder,
    ) -> Result<Option<RepeatAnswer>, ApiError> {
        let Some(earlier) = self.status(partner, external_order_id).await? else {
            return Ok(None);
        };
        if !earlier.decided {
            return Ok(Some(RepeatAnswer::Undecided));
        }
        let ordered = self.stored_units(earlier.order_id).await?;
        repeat::answer(&ordered, wanted).map(Some)
    }

    /// Stores the order, unless its client hangs up or its deadline passes while it is queued. An
    /// order that the group commit has taken from the queue is part of its statement, whatever the
    /// client does.
    ///
    /// A conflict of topup ids leads to another try with fresh ids, because the ids are made here
    /// without asking PostgreSQL whether they are used.
    async fn insert(
        &self,
        order: &mut NewOrder,
        answer: &mut oneshot::Sender<OrderAnswer>,
    ) -> Result<InsertResult, ApiError> {
        let deadline = tokio::time::Instant::now() + self.queue_deadline;
        let mut tries = 0;
        loop {
            let given_up = async {
                tokio::select! {
                    () = tokio::time::sleep_until(deadline) => {}
                    () = answer.closed() => {}
                }
            };
            let written = self.commit.write_unless(order.clone(), given_up).await;
            let written = written.map_err(|WriterPanicked| {
                let stops = "the task that stores orders has panicked, so the process stops";
                ApiError::internal(anyhow::anyhow!(stops))
            })?;
            let Some(written) = written else {
                return Err(if answer.is_closed() {
                    ApiError::HungUp
                } else {
                    ApiError::overloaded(result::QUEUE_DEADLINE)
                });
            };
            match written {
                Err(error)
                    if error.constraint() == Some("topups_topup_id_key") && tries < FRESH_IDS =>
                {
                    tries += 1;
                    let now = runtime::clock::now();
                    for topup in order
                        .placements
                        .iter_mut()
                        .flat_map(|placement| &mut placement.topups)
                    {
                        topup.topup_id = self.topup_ids.next(now);
                    }
                }
                result => return result.map_err(ApiError::internal),
            }
        }
    }
}

/// 503: an earlier order with the same external id may still be refused.
const UNDECIDED_ORDER: ApiError = ApiError::Unavailable {
    code: ErrorCode::OrderUndecided,
    limit_name: "undecided",
};

/// The units of an order, by placement.
fn topups(order: &NewOrder) -> impl Iterator<Item = &NewTopup> {
    order
        .placements
        .iter()
        .flat_map(|placement| &placement.topups)
}

/// The units of an order as its answer lists them.
fn in_order(order: &NewOrder) -> impl Iterator<Item = &NewTopup> {
    let mut topups: Vec<&NewTopup> = topups(order).collect();
    topups.sort_unstable_by_key(|topup| topup.position);
    topups.into_iter()
}

/// Hands the jobs of an order to the publisher, which sends them in the background. A job that is
/// lost costs time only: the sweep finds its placement.
fn publish(jobs: &Batcher<Job>, order: &NewOrder) {
    for placement in &order.placements {
        let row = JobPlacement {
            placement_id: placement.placement_id,
            partner_id: order.partner_id,
            lane: placement.lane.clone(),
        };
        let traceparent = order.traceparent.clone();
        jobs.push(Job {
            provider: placement.provider.clone(),
            placement: AnnouncedRow { row, traceparent },
        });
    }
}

/// Hands the 201 to the handler. Returns when it has left, or when it never will: the partner has
/// hung up, or the deadline has passed.
async fn send_201_and_wait(
    order: &NewOrder,
    deadline: Moment,
    answer: oneshot::Sender<OrderAnswer>,
) {
    let units = in_order(order).map(|topup| (&topup.topup_id, topup.agreed.option_id));
    // Text and ids can always be encoded. If it failed all the same, `answer` would be dropped
    // here, and the handler would send a 500.
    let Ok(body) = created_body(units) else {
        return;
    };
    let (left, has_left) = oneshot::channel();
    perform(Effect::Answer, async {
        if answer
            .send(Ok(OrderSuccess::Created(CreatedAnswer {
                body,
                deadline,
                left,
            })))
            .is_ok()
        {
            // After the deadline the connection sends nothing of the response any more.
            let _ = tokio::time::timeout_at(deadline.monotonic.into(), has_left).await;
        }
    })
    .await;
}
