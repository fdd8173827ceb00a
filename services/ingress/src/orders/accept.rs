//! Checks orders, stores them by group commit, publishes their jobs and answers them. An answer waits for
//! the verdicts if the provisioners promise them in time.
//!
//! The commit and everything after it run in a separate task. A partner that hangs up cancels only the
//! request's future.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use domain::{Environment, OptionId, OrderId, PlacementId, TopupIds};
use opentelemetry::trace::FutureExt;
use pipeline::{
    Batcher, Effect, GroupCommit,
    group_commit::Writer,
    payload::{JobPlacement, Verdict},
    perform,
    publish::JobRow,
    timing::ANSWER,
    trace,
};
use runtime::Shutdown;
use serde::Serialize;
use store::{
    Database, PgConnection,
    orders::{NewOrder, NewPlacement, NewTopup, OrderStatus, Refusal},
};
use tokio::sync::{Semaphore, oneshot};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use utoipa::ToSchema;

use crate::{
    access::{
        admission::Admitted,
        directory::{Directory, KnownPartner, Options},
    },
    http::{
        codes::Code,
        error::{ApiError, Fault},
    },
    metrics::{Metrics, OrderResult},
    orders::{
        handshake::Handshake,
        request::{Draft, Item},
    },
};

/// The provider of every order from a sandbox partner.
pub(crate) const SANDBOX: &str = "sandbox";
/// The most orders in one commit.
const BATCH: usize = 256;
/// The first wait before an undecided order with the same external id is read again; it doubles.
const UNDECIDED: Duration = Duration::from_millis(50);
/// The longest such wait.
const UNDECIDED_MOST: Duration = Duration::from_millis(400);
/// The most retries with fresh topup ids after a conflict.
const FRESH_IDS: usize = 3;

/// A 201 that the handler sends.
pub(crate) struct Created {
    pub(crate) body: Bytes,
    /// The time after which the response is not sent.
    pub(crate) deadline: Instant,
    /// Signals that the response has left.
    pub(crate) left: oneshot::Sender<()>,
}

pub(crate) type Answer = Result<Created, ApiError>;

pub(crate) struct Orders {
    pub(crate) database: Database,
    pub(crate) commit: GroupCommit<InsertOrders>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) handshake: Arc<Handshake>,
    pub(crate) jobs: Batcher<JobRow>,
    pub(crate) topup_ids: TopupIds,
    pub(crate) providers: Vec<String>,
    pub(crate) placement_wait: Duration,
    /// `QUEUE_DEADLINE`: the longest wait in the queue of the group commit.
    pub(crate) queue_deadline: Duration,
    /// `DUPLICATES_WAITING`: the requests that may wait for an undecided order with the same external id.
    pub(crate) duplicates: Semaphore,
    pub(crate) metrics: Metrics,
    pub(crate) shutdown: Shutdown,
}

/// The group commit of orders: one statement per batch, then the jobs of the orders that wait for a verdict.
pub(crate) struct InsertOrders {
    database: Database,
    jobs: Batcher<JobRow>,
}

impl InsertOrders {
    pub(crate) fn start(database: &Database, jobs: &Batcher<JobRow>, shutdown: &Shutdown) -> GroupCommit<Self> {
        let (database, jobs) = (database.clone(), jobs.clone());
        GroupCommit::start(Self { database, jobs }, BATCH, shutdown)
    }
}

pub(crate) struct Inserted {
    /// Whether it was stored; otherwise its external id is taken.
    stored: bool,
    /// The moment before the INSERT was sent. The time of the answer counts from here; see [`ANSWER`].
    sent: Instant,
}

impl Writer for InsertOrders {
    const NAME: &'static str = "commit-orders";
    const STATEMENT: (&'static str, &'static str) = ("INSERT", "orders");
    type Item = NewOrder;
    type Output = Inserted;
    type Error = store::Error;

    async fn write(&self, orders: &[NewOrder]) -> Result<Vec<Inserted>, store::Error> {
        let insert = async |connection: &mut PgConnection| {
            let sent = Instant::now();
            let stored = store::orders::insert(connection, orders).await?;
            Ok::<Vec<_>, store::Error>(stored.into_iter().map(|stored| Inserted { stored, sent }).collect())
        };
        let inserted = perform(Effect::CommitOrders, self.database.run(insert)).await?;
        // If no answer waits for the verdict, the job is published after the 201; see `store_and_answer`.
        let awaited = |(order, inserted): &(&NewOrder, &Inserted)| order.answering.is_some() && inserted.stored;
        for (order, _) in orders.iter().zip(&inserted).filter(awaited) {
            publish(&self.jobs, order);
        }
        Ok(inserted)
    }

    fn one_is_at_fault(error: &store::Error) -> bool {
        error.is_about_data()
    }
}

/// The answer of create-order: one entry per unit, in the order of the items.
#[derive(Serialize, ToSchema)]
pub(crate) struct CreatedOrder<'a> {
    products: Vec<CreatedProduct<'a>>,
}

/// One unit.
#[derive(Serialize, ToSchema)]
struct CreatedProduct<'a> {
    #[schema(example = "20250129123456123456789012")]
    topup_id: &'a str,
    #[schema(value_type = Uuid)]
    option_id: OptionId,
}

impl Orders {
    /// Turns a draft into an order, or returns all its errors.
    pub(crate) async fn check(&self, partner: &KnownPartner, draft: Draft) -> Result<NewOrder, ApiError> {
        let Draft { external_order_id, items, mut errors } = draft;
        let ids: Vec<_> = items.iter().filter_map(|item| item.option_id).collect();
        let mut options = self.directory.options(&ids).await.map_err(ApiError::internal)?;
        options.retain(|_, option| {
            let live = || option.environment == Environment::Live && self.providers.contains(&option.provider);
            option.enabled && (partner.environment == Environment::Sandbox || live())
        });
        let exists = |item: &Item| item.option_id.is_some_and(|id| options.contains_key(&id));
        let missing: Vec<usize> = items.iter().filter(|item| !exists(item)).map(|item| item.index).collect();
        if !missing.is_empty() {
            errors.push(Fault { items: missing, ..Fault::new(Code::OptionNotFound) });
        }
        let Some(external_order_id) = external_order_id else { return Err(ApiError::Unprocessable(errors)) };
        if errors.is_empty() {
            return Ok(NewOrder {
                order_id: OrderId::new(),
                partner_id: partner.id,
                external_order_id,
                traceparent: trace::context_of(&Span::current()),
                answer_within: ANSWER,
                answering: None,
                placements: self.placements(partner, &items, &options),
            });
        }
        // The external id is checked too, so that one response lists all errors.
        let taken = self
            .database
            .run(async |connection| store::orders::is_taken(connection, partner.id, &external_order_id).await);
        if taken.await.map_err(ApiError::internal)? {
            errors.insert(0, taken_fault());
        }
        Err(ApiError::Unprocessable(errors))
    }

    /// Creates one placement per provider, in the order of the items.
    fn placements(&self, partner: &KnownPartner, items: &[Item], options: &Options) -> Vec<NewPlacement> {
        let now = runtime::clock::now();
        let mut placements: Vec<NewPlacement> = Vec::with_capacity(1);
        let mut position = 0;
        for item in items {
            let Some(option) = item.option_id.and_then(|id| options.get(&id)) else { continue };
            // A sandbox partner buys only at the sandbox, which knows other providers' options by our id.
            let (provider, provider_option_id) = match partner.environment {
                Environment::Sandbox if option.provider != SANDBOX => (SANDBOX, option.option_id.to_string()),
                _ => (option.provider.as_str(), option.provider_option_id.clone()),
            };
            let index = placements.iter().position(|placement| placement.provider == provider).unwrap_or_else(|| {
                let (provider, lane, topups) = (provider.to_owned(), String::new(), Vec::new());
                placements.push(NewPlacement { placement_id: PlacementId::new(), provider, lane, topups });
                placements.len() - 1
            });
            for _ in 0..item.quantity {
                placements[index].topups.push(NewTopup {
                    topup_id: self.topup_ids.next(now),
                    position,
                    option_id: option.option_id,
                    provider_option_id: provider_option_id.clone(),
                });
                position += 1;
            }
        }
        for placement in &mut placements {
            let topups = placement.topups.iter();
            placement.lane = domain::lane(topups.map(|topup| topup.provider_option_id.as_str()));
        }
        placements
    }

    /// Stores an order in a task that sends its answer to the handler. The task continues if the handler
    /// is gone. The order is in flight until `admitted` is dropped.
    pub(crate) fn submit(self: &Arc<Self>, order: NewOrder, admitted: Admitted) -> oneshot::Receiver<Answer> {
        let (sender, answer) = oneshot::channel();
        let orders = Arc::clone(self);
        let task = async move {
            orders.store_and_answer(order, sender).await;
            drop(admitted);
        };
        // The task belongs to the request's trace. The request's span ends with its response and does not
        // wait for the task.
        self.shutdown.tracker().spawn(task.with_context(Span::current().context()));
        answer
    }

    async fn store_and_answer(&self, mut order: NewOrder, mut answer: oneshot::Sender<Answer>) {
        let awaits_verdicts = !self.placement_wait.is_zero() && self.handshake.expects_verdicts(&order.placements);
        if awaits_verdicts {
            order.answering = Some(self.handshake.ingress_id());
            order.answer_within += self.placement_wait;
        }
        let pending_answer = awaits_verdicts.then(|| self.handshake.expect_reports(&order));
        let sent = match self.store_unless_taken(&mut order, &mut answer).await {
            Ok(Some(sent)) => sent,
            Ok(None) => {
                let taken = ApiError::Unprocessable(vec![taken_fault()]);
                return self.fail(OrderResult::Duplicate, taken, answer);
            }
            Err(error @ ApiError::Unavailable { .. }) => {
                return self.fail(OrderResult::Expired, error, answer);
            }
            Err(error) => return self.fail(OrderResult::Error, error, answer),
        };
        // Our own deadline passes a moment before PostgreSQL's `answer_by`; see `pipeline::timing`.
        let answer_deadline = sent + order.answer_within;
        let Some(mut pending_answer) = pending_answer else {
            self.metrics.order(OrderResult::Accepted, topups(&order).count());
            // The job is published after the 201. No process holds back the readiness events of this order, so its
            // webhook could precede the answer if it were bought earlier.
            send_201_and_wait(&order, answer_deadline, answer).await;
            publish(&self.jobs, &order);
            return;
        };
        // The jobs of an order that waits for verdicts are already published: the writer of the group commit does it
        // right after the commit ([`InsertOrders`]).
        let verdicts = pending_answer.verdicts(sent + self.placement_wait).await;
        for placement in &order.placements {
            self.metrics.verdict(verdicts.get(&placement.placement_id).copied());
        }
        // Usually one verdict says that the order is carried out. Then this asks nobody, and the order gets its 201.
        match self.refuse_unless_carried_out(&order, &verdicts).await {
            Ok(None) => {
                self.metrics.order(OrderResult::Accepted, topups(&order).count());
                pending_answer.expect_units(answer_deadline);
                send_201_and_wait(&order, answer_deadline, answer).await;
                // The 201 has left, or never will. Dropping this publishes the readiness events that were held for it,
                // so that no webhook precedes its 201.
                drop(pending_answer);
            }
            Ok(Some(refusals)) => {
                tracing::info!(order.id = %order.order_id, partner.id = %order.partner_id, "refused");
                let rejected = refusals.iter().any(|refusal| matches!(refusal, Refusal::Rejected { .. }));
                let outcome = if rejected { OrderResult::Refused } else { OrderResult::Unreachable };
                self.fail(outcome, ApiError::Unprocessable(refusal_errors(order.order_id, &refusals)), answer);
            }
            // The refusal's outcome is unknown: the order is refused or stands as PostgreSQL has it.
            Err(error) => self.fail(OrderResult::Error, ApiError::internal(error), answer),
        }
    }

    fn fail(&self, result: OrderResult, error: ApiError, answer: oneshot::Sender<Answer>) {
        self.metrics.order(result, 0);
        let _ = answer.send(Err(error));
    }

    /// Stores the order and returns when the statement was sent, or `None` if its external id is taken.
    /// Waits for an earlier order that may still be refused: "already taken" promises that the earlier
    /// order is carried out, and a refused order frees its id.
    async fn store_unless_taken(
        &self,
        order: &mut NewOrder,
        answer: &mut oneshot::Sender<Answer>,
    ) -> Result<Option<Instant>, ApiError> {
        let give_up = Instant::now() + self.placement_wait + ANSWER;
        let mut duplicate_permit = None;
        loop {
            let mut wait = UNDECIDED;
            let inserted = self.store(order, answer).await?;
            if inserted.stored {
                return Ok(Some(inserted.sent));
            }
            while let Some(OrderStatus { decided, undecided_for }) = self.status(order).await? {
                if decided {
                    return Ok(None);
                }
                if duplicate_permit.is_none() {
                    duplicate_permit = Some(self.duplicates.try_acquire().map_err(|_| UNDECIDED_ORDER)?);
                }
                tokio::time::sleep(wait.min(undecided_for)).await;
                wait = (wait * 2).min(UNDECIDED_MOST);
            }
            if Instant::now() >= give_up {
                return Err(UNDECIDED_ORDER);
            }
        }
    }

    async fn status(&self, order: &NewOrder) -> Result<Option<OrderStatus>, ApiError> {
        let status = self.database.run(async |connection| {
            store::orders::status(connection, order.partner_id, &order.external_order_id).await
        });
        status.await.map_err(ApiError::internal)
    }

    /// Stores the order, unless its client hangs up or its deadline passes while it is queued.
    async fn store(&self, order: &mut NewOrder, answer: &mut oneshot::Sender<Answer>) -> Result<Inserted, ApiError> {
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
            let written = written.map_err(|_| ApiError::internal(anyhow::anyhow!("the process is stopping")))?;
            match written.ok_or(QUEUED_TOO_LONG)? {
                Err(error) if error.constraint() == Some("topups_topup_id_key") && tries < FRESH_IDS => {
                    tries += 1;
                    let now = runtime::clock::now();
                    for topup in order.placements.iter_mut().flat_map(|placement| &mut placement.topups) {
                        topup.topup_id = self.topup_ids.next(now);
                    }
                }
                result => return result.map_err(ApiError::internal),
            }
        }
    }

    /// Refuses the order if no verdict says that it is carried out, and PostgreSQL shows that no placement is bought or
    /// being bought. Without any verdict it is not refused. Returns `None` if the order stands.
    async fn refuse_unless_carried_out(
        &self,
        order: &NewOrder,
        verdicts: &HashMap<PlacementId, Verdict>,
    ) -> Result<Option<Vec<Refusal>>, store::Error> {
        if verdicts.is_empty() || verdicts.values().any(|verdict| verdict.means_carried_out()) {
            return Ok(None);
        }
        let refusing = self.database.run(async |connection| store::orders::refuse(connection, order.order_id).await);
        perform(Effect::CommitRefusal, refusing).await
    }
}

/// 503: an earlier request with the same external id may still be refused.
const UNDECIDED_ORDER: ApiError = ApiError::Unavailable { code: Code::OrderUndecided, bound: "undecided" };
/// 503: the order waited longer than `QUEUE_DEADLINE` to be stored. It was not stored.
const QUEUED_TOO_LONG: ApiError = ApiError::overloaded("queue_deadline");

fn taken_fault() -> Fault {
    Fault::new(Code::ExternalOrderIdTaken)
}

/// Whether the taken external id is the only error.
pub(crate) fn is_taken(errors: &[Fault]) -> bool {
    matches!(errors, [only] if only.code == Code::ExternalOrderIdTaken)
}

/// Whether the taken external id is one of the errors.
pub(crate) fn names_taken(errors: &[Fault]) -> bool {
    errors.iter().any(|fault| fault.code == Code::ExternalOrderIdTaken)
}

fn topups(order: &NewOrder) -> impl Iterator<Item = &NewTopup> {
    order.placements.iter().flat_map(|placement| &placement.topups)
}

/// Hands an order's jobs to the publisher.
fn publish(jobs: &Batcher<JobRow>, order: &NewOrder) {
    for placement in &order.placements {
        let (provider, traceparent) = (placement.provider.clone(), order.traceparent.clone());
        let (placement_id, lane) = (placement.placement_id, placement.lane.clone());
        let placement = JobPlacement { placement_id, partner_id: order.partner_id, lane };
        jobs.push(JobRow { provider, placement, traceparent });
    }
}

/// The errors of a 422, each once.
fn refusal_errors(order_id: OrderId, refusals: &[Refusal]) -> Vec<Fault> {
    let mut errors: Vec<Fault> = Vec::new();
    for refusal in refusals {
        let error = match refusal {
            Refusal::Rejected { status, message } => {
                Fault::with(Code::ProviderRejected, webhooks::event::rejection(status, message))
            }
            Refusal::NotSent => Fault::with(Code::ProviderUnreachable, order_id),
        };
        if !errors.contains(&error) {
            errors.push(error);
        }
    }
    errors
}

/// Hands the 201 to the handler. Returns when it has left, or when it never will.
async fn send_201_and_wait(order: &NewOrder, deadline: Instant, answer: oneshot::Sender<Answer>) {
    let mut topups: Vec<&NewTopup> = topups(order).collect();
    topups.sort_unstable_by_key(|topup| topup.position);
    let products = topups
        .into_iter()
        .map(|topup| CreatedProduct { topup_id: topup.topup_id.as_str(), option_id: topup.option_id })
        .collect();
    let Ok(body) = serde_json::to_vec(&CreatedOrder { products }) else { return };
    let (left, departure) = oneshot::channel();
    perform(Effect::Answer, async {
        if answer.send(Ok(Created { body: body.into(), deadline, left })).is_ok() {
            // After the deadline the response is never sent.
            let _ = tokio::time::timeout_at(deadline.into(), departure).await;
        }
    })
    .await;
}
