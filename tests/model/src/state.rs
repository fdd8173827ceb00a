//! The state of the modelled system: what the database stores, what each process remembers, and
//! which messages and purchases are on their way. A process that dies loses its own part only.

use domain::placement::Placement;

/// The age of an attempt when its settling delay is over, in ticks.
pub const SETTLED: u8 = 2;
/// The age, in ticks, at which a placement whose look-ups keep failing is parked. Ages do not grow
/// beyond it, so that the number of states stays finite.
pub const OVERDUE: u8 = 3;

/// One state of the whole system.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The ingress that has the order.
    pub ingress: Ingress,
    /// The partner's response.
    pub answer: Option<Answer>,
    /// The row of the order says that ingress waits for a verdict (`orders.answering`).
    pub answering: bool,
    /// `answer_by` has passed.
    pub late: bool,
    /// The order's placements, each with one unit.
    pub rows: Vec<Row>,
    /// The work of two provisioners, in no particular order. Each has room for one placement at a
    /// time.
    pub provisioners: [Work; 2],
    /// Purchases on their way to the provider or not yet shown by it, in no particular order.
    pub requests: Vec<Request>,
    pub notifier: Notifier,
    /// The number of faults that may still happen.
    pub faults: u8,
    /// A webhook was sent before the 201. This must never happen.
    pub overtaken: bool,
    /// A second POST with the id of the order.
    pub second: Second,
    /// A third POST with this id.
    pub third: Third,
}

/// The progress of a second POST, which asks about the order that has its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Second {
    /// It asks again and again.
    Asks,
    /// The first of its two statements found no order. This is only possible without the safeguard
    /// that makes them one.
    FoundNone,
    /// It was answered "already taken" because of the first order.
    Taken,
    /// It was answered "already taken" because of the third order.
    TakenByThird,
}

/// The order of a third POST. Its purchase is not modelled: it is decided at any moment and either
/// way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Third {
    /// Not stored. It is stored only after the first order was refused, which frees the id.
    Unborn,
    /// Stored; it may still be refused.
    Undecided,
    /// It can no longer be refused.
    Stands,
    Refused,
}

/// The progress of ingress with its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ingress {
    /// Before the commit.
    Checking,
    /// Committed; waits for no verdict.
    Answering,
    /// Answered or given up, without a verdict; publishes the jobs now.
    Publishing,
    /// Committed; publishes the jobs and will wait for verdicts.
    Asking,
    /// Published; waits for verdicts. The model lets it decide at any time and either way, because
    /// nothing may rest on a verdict: *placed* is sent before the purchase is recorded, any verdict
    /// may be lost, and a forged one may say anything.
    Waiting,
    /// Decided on 201.
    Standing,
    /// Decided on 422; the order is refused.
    Refusing,
    /// Answered, or never will.
    Done,
    /// Died.
    Crashed,
}

/// A response to the partner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// 201.
    Created,
    /// 422.
    Refused,
}

/// A placement: its row, its messages, and its purchase at the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, as the row's columns are"
)]
pub struct Row {
    /// The state machine's data.
    pub placement: Placement,
    /// Which of its providers it is bought from, from 0.
    pub provider: u8,
    /// The age of its attempt, in ticks; counted in state `placing`.
    pub age: u8,
    /// How a provisioner finds it without a message.
    pub turn: Turn,
    /// Its profile is stored.
    pub ready: bool,
    pub delivery: Delivery,
    /// Its job in the stream; any provisioner may get it at any time, also repeatedly.
    pub job: bool,
    /// Its readiness event on the way to ingress.
    pub report: bool,
    /// Its readiness event in the memory of ingress, until the answer has left.
    pub held: bool,
    /// Its readiness event in the stream.
    pub event: bool,
    /// The number of purchases.
    pub bought: u8,
    /// Whether a look-up at its provider finds the purchase.
    pub shown: bool,
    /// The webhook was sent.
    pub told: bool,
}

/// How a row is found without a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Turn {
    /// Only by the sweep, which has not read it yet: its first lease has not ended.
    Young,
    /// As due work.
    Due,
    /// Not at all, because it is finished or because a missing safeguard let it be forgotten.
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// Not ready.
    Unborn,
    /// To be attempted.
    Pending(Turn),
    /// Acknowledged, as far as the row says.
    Delivered,
}

/// A claimed placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Job {
    /// The row's index.
    pub row: usize,
    /// The attempt.
    pub attempt: u32,
    /// The provider that it is bought from.
    pub provider: u8,
    /// Ingress might still answer the order at the time of the claim, so its readiness event goes
    /// to ingress.
    pub answering: bool,
}

/// The current work of a provisioner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Work {
    /// Nothing.
    Idle,
    /// Has a ticket from a job, and claims the placement once it has a permit. The stream may have
    /// forgotten the job by now. Ingress publishes jobs for the first provider only, so the ticket
    /// is one of its provisioners'.
    Ticket {
        /// The row's index.
        row: usize,
    },
    /// Has recorded an attempt that it hasn't sent.
    Fresh {
        /// The placement.
        job: Job,
        /// At least one tick has passed since the claim, as far as the process knows.
        late: bool,
    },
    /// Waits for the provider's response.
    Sent(Job),
    /// Waits for the response to a repeat of the request.
    SentAgain(Job),
    /// Has an outcome that is not recorded yet.
    Settling(Job, Settlement),
    /// Will send the readiness event next: to ingress or to the stream.
    Announcing(Job),
}

/// The outcome that a provisioner records for an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Settlement {
    /// Bought; with its profile or not yet.
    Bought {
        /// The profile came with it.
        ready: bool,
    },
    /// The provider rejected it.
    Rejected,
    /// Never reached the provider.
    NotSent,
    /// The provider was busy.
    Busy,
    /// A look-up found nothing.
    NotFound {
        /// The settling delay had passed.
        settled: bool,
    },
    /// Look-ups have failed for too long.
    Hopeless,
}

/// A purchase in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request {
    /// The row's index.
    pub row: usize,
    /// The attempt.
    pub attempt: u32,
    /// The provider that it is sent to.
    pub provider: u8,
    /// It repeats the request of the attempt.
    pub again: bool,
    /// It is bought, but look-ups do not show it yet.
    pub bought: bool,
    /// A tick has passed since it was sent.
    pub old: bool,
}

/// The current work of the notifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Notifier {
    /// Nothing.
    Idle,
    /// Has claimed this row's delivery.
    Taken(usize),
    /// The endpoint has acknowledged this row's delivery.
    Acknowledged(usize),
}

impl State {
    /// Before the order is stored.
    pub fn new(placements: u8, providers: u8, faults: u8) -> Self {
        let row = Row {
            placement: Placement {
                alternatives: u32::from(providers - 1),
                ..Placement::NEW
            },
            provider: 0,
            age: 0,
            turn: Turn::Young,
            ready: false,
            delivery: Delivery::Unborn,
            job: false,
            report: false,
            held: false,
            event: false,
            bought: 0,
            shown: false,
            told: false,
        };
        Self {
            ingress: Ingress::Checking,
            answer: None,
            answering: false,
            late: false,
            rows: vec![row; placements.into()],
            provisioners: [Work::Idle; 2],
            requests: Vec::new(),
            notifier: Notifier::Idle,
            faults,
            overtaken: false,
            second: Second::Asks,
            third: Third::Unborn,
        }
    }

    /// Ingress knows the order and has not answered it; only this memory says so.
    pub fn is_pending(&self) -> bool {
        matches!(
            self.ingress,
            Ingress::Asking | Ingress::Waiting | Ingress::Standing | Ingress::Refusing
        )
    }

    /// The order is stored.
    pub fn is_stored(&self) -> bool {
        self.ingress != Ingress::Checking
    }

    /// Whether the order is refused, so that its id is free.
    pub fn is_refused(&self) -> bool {
        let refused = |row: &Row| row.placement.state == domain::PlacementState::Refused;
        self.rows.iter().any(refused)
    }

    /// Whether the order can't be refused any more, as a second POST of it finds.
    pub fn is_decided(&self) -> bool {
        let bought = |row: &Row| {
            matches!(
                row.placement.state,
                domain::PlacementState::Placed | domain::PlacementState::Parked
            )
        };
        self.late || self.rows.iter().any(bought)
    }
}

impl Request {
    /// Whether a provisioner waits for the response to it.
    pub fn is_awaited(&self, work: &Work) -> bool {
        match work {
            Work::Sent(job) => !self.again && self.is_of(*job),
            Work::SentAgain(job) => self.again && self.is_of(*job),
            _ => false,
        }
    }

    fn is_of(&self, job: Job) -> bool {
        (self.row, self.attempt) == (job.row, job.attempt)
    }
}

impl Row {
    /// Whether no work is left for it.
    pub fn is_settled(&self) -> bool {
        use domain::PlacementState::{Accepted, Failed, Parked, Placed, Placing, Refused};
        match self.placement.state {
            Accepted | Placing => false,
            Placed => self.delivery == Delivery::Delivered && self.told,
            Refused | Failed => self.bought == 0,
            Parked => true,
        }
    }
}
