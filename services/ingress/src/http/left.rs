//! Which orders have got their answers, so that they can be cancelled before `answer_by`.
//!
//! Until `answer_by` PostgreSQL does not know whether the answer of an order has left, because a
//! record of that would be one more write for each order. Only the process that answered it knows.
//! So a cancellation that comes early asks: first the memory of this process, and then, by plain
//! NATS messages, all other ingress processes at once.
//!
//! Guarantee: [`LeftAnswers::has_left`] is true only if a process has said that it no longer
//! answers this order: the last byte of its 201 has left, or never will. Silence proves nothing,
//! because the process may be stalled or cut off from NATS. Then the order has to wait for
//! `answer_by`, as if nobody had been asked. So a lost message costs seconds and nothing else.
//!
//! What is remembered is bounded by the orders of the last seconds, and a question costs one
//! message for each early cancellation, which the limits of self-service bound.
//!
//! The module [`handshake`](crate::orders::handshake) remembers answered orders, too, but other
//! ones and for another purpose: only those that waited for verdicts and still miss units, with all
//! that has arrived for them, until the last unit arrives. Here it is each order, with nothing but
//! its deadline, for some seconds longer. One memory of both would have to keep everything for all
//! of them.

use std::{
    collections::HashMap,
    sync::Mutex,
    time::{Duration, Instant},
};

use domain::OrderId;
use pipeline::{
    Nats,
    payload::{LeftQuestion, LeftReply},
};
use runtime::{lock, make_room};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

/// How long the other processes have to say that the answer has left. It takes them about a
/// millisecond, unless the one that knows is stalled or dead.
const ASK: Duration = Duration::from_millis(500);
/// How much longer than the deadline of its answer an order is remembered. `answer_by` counts from
/// a moment after that deadline began; afterwards nobody asks.
const LONGER: Duration = Duration::from_secs(10);
/// The maximum number of replies that wait to be sent. Further ones are dropped, and the askers
/// wait for `answer_by`.
const REPLIES: usize = 256;

pub(crate) struct LeftAnswers {
    nats: Nats,
    /// The id of this process, which is also its address for replies.
    ingress_id: Uuid,
    /// The orders that this process no longer answers, and until when that matters.
    left: Mutex<HashMap<OrderId, Instant>>,
    /// The questions of this process that have no reply yet.
    asked: Mutex<HashMap<OrderId, Vec<oneshot::Sender<()>>>>,
}

impl LeftAnswers {
    pub(crate) fn new(nats: &Nats, ingress_id: Uuid) -> Self {
        Self {
            nats: nats.clone(),
            ingress_id,
            left: Mutex::default(),
            asked: Mutex::default(),
        }
    }

    /// Notes that this process no longer answers an order whose answer had this deadline.
    pub(crate) fn note(&self, order_id: OrderId, deadline: Instant) {
        let mut left = lock(&self.left);
        let now = Instant::now();
        make_room(&mut left, |_, until| *until > now);
        left.insert(order_id, deadline + LONGER);
    }

    fn knows(&self, order_id: OrderId) -> bool {
        lock(&self.left).contains_key(&order_id)
    }

    /// Whether a process has said that it no longer answers this order.
    pub(crate) async fn has_left(&self, order_id: OrderId) -> bool {
        if self.knows(order_id) {
            return true;
        }
        let (sender, reply) = oneshot::channel();
        lock(&self.asked).entry(order_id).or_default().push(sender);
        let mut asked = Asked {
            left_answers: self,
            order_id,
            reply,
        };
        let question = LeftQuestion::V1 {
            order_id,
            ingress: self.ingress_id,
        };
        self.nats.ask_left(&question).await;
        let replied = tokio::time::timeout(ASK, &mut asked.reply).await;
        matches!(replied, Ok(Ok(())))
    }

    /// Replies to the questions of other processes, and receives their replies. Returns only if a
    /// subscription ends, always with an error.
    pub(crate) async fn listen(&self) -> anyhow::Result<()> {
        let (sender, mut replies) = mpsc::channel(REPLIES);
        let questions = self.nats.listen(
            self.nats.left_subject(None),
            |LeftQuestion::V1 { order_id, ingress }| {
                if self.knows(order_id) {
                    let _ = sender.try_send((ingress, order_id));
                }
            },
        );
        let received = self.nats.listen(
            self.nats.left_subject(Some(self.ingress_id)),
            |LeftReply::V1 { order_id }| {
                let waiting = lock(&self.asked).remove(&order_id);
                for one in waiting.into_iter().flatten() {
                    let _ = one.send(());
                }
            },
        );
        let replying = async {
            while let Some((ingress, order_id)) = replies.recv().await {
                let reply = LeftReply::V1 { order_id };
                self.nats.tell_left(ingress, &reply).await;
            }
            Ok(())
        };
        tokio::try_join!(questions, received, replying).map(|_| ())
    }
}

/// A question that waits for its reply. Dropping it forgets it, also if its partner has hung up
/// meanwhile and nobody replies.
struct Asked<'a> {
    left_answers: &'a LeftAnswers,
    order_id: OrderId,
    reply: oneshot::Receiver<()>,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.reply.close();
        let mut asked = lock(&self.left_answers.asked);
        if let Some(waiting) = asked.get_mut(&self.order_id) {
            waiting.retain(|one| !one.is_closed());
            if waiting.is_empty() {
                asked.remove(&self.order_id);
            }
        }
    }
}
