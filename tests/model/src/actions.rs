//! The steps that are possible in a state. Their effects are in the module `steps`.

use domain::PlacementState;

use crate::{
    Assumption, Safeguard,
    rules::Protocol,
    state::{Delivery, Ingress, Notifier, Second, Settlement, State, Third, Turn, Work},
};

/// One step of one participant; a process may die or stall after each. Provisioners are named by
/// their index in [`State::provisioners`], placements by their index in [`State::rows`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Ingress stores the order; `waits`: it will wait for a verdict.
    Store { waits: bool },
    /// Ingress publishes the jobs.
    Publish,
    /// Ingress ends its wait: it tries to refuse the order, or lets it stand.
    Decide { refuses: bool },
    /// A second POST finds the order, and the response is "already taken".
    Repeat,
    /// The first of two statements of a second POST finds no order that stands. This is only
    /// possible without the safeguard that makes them one.
    FindNone,
    /// A second POST finds the order of the third one, and the response is "already taken".
    FindThird,
    /// A third POST with the id of the refused order is stored.
    StoreThird,
    /// The order of the third POST is decided.
    DecideThird { refuses: bool },
    /// Ingress sends the response.
    Answer,
    /// The partner has hung up, or `answer_by` has passed: ingress sends no response.
    GiveUp,
    /// `answer_by` passes.
    AnswerBy,
    /// Half of the settling delay passes.
    Tick,
    /// The stream loses a job, or removes it after it was delivered.
    LoseJob(usize),
    /// The stream loses a readiness event, or removes it after it was delivered.
    LoseEvent(usize),
    /// The sweep finds a placement that did not finish within its first lease.
    SweepPlacement(usize),
    /// The sweep finds such a delivery.
    SweepDelivery(usize),
    /// A provisioner gets a job, and so has a ticket.
    TakeJob(usize, usize),
    /// A provisioner claims the placement of its ticket.
    Claim(usize),
    /// A provisioner claims a due row to buy it.
    TakeDue(usize, usize),
    /// A provisioner claims a due row with an unknown outcome, and looks it up.
    LookUp(usize, usize, Found),
    /// A provisioner claims a due row with an unknown outcome, and sends the request of its attempt
    /// again.
    SendAgain(usize, usize),
    /// A provisioner claims a due row and collects its profile.
    Collect(usize, usize),
    /// A provisioner gets the response to its claim only now, and counts the time from here. This
    /// is only possible without the safeguard that counts from before the claim.
    StartClock(usize),
    /// A provisioner sends the purchase.
    Send(usize),
    /// A provisioner abandons an attempt that is too late to send.
    Abandon(usize),
    /// A purchase arrives at the provider, whose response may be lost.
    Arrive {
        request: usize,
        does: Does,
        answered: bool,
    },
    /// The provider's look-ups show a purchase from now on.
    Show(usize),
    /// A purchase never arrives. Its sender may notice that.
    Vanish { request: usize, noticed: bool },
    /// A provisioner stops waiting for the provider's response. `recorded`: it records the unknown
    /// outcome, which makes the row due at once; else it dies or fails before that.
    TimeOut { by: usize, recorded: bool },
    /// A provisioner records an outcome. `announces`: it is connected to NATS, so it will send the
    /// readiness event of a unit that becomes ready.
    Record { by: usize, announces: bool },
    /// A provisioner sends a readiness event: to ingress while the order may still be answered,
    /// else to the stream.
    Announce(usize),
    /// Ingress receives a readiness event: it holds the event while the order is pending, else it
    /// publishes the event.
    TakeReport(usize),
    /// The message to ingress is lost.
    LoseReport(usize),
    /// The notifier gets a readiness event.
    TakeEvent(usize),
    /// The notifier claims a due delivery.
    TakeDelivery(usize),
    /// The webhook is sent; the endpoint acknowledges it or not.
    Post { acknowledged: bool },
    /// The notifier records the acknowledgement.
    RecordDelivery,
    /// Ingress dies.
    CrashIngress,
    /// A provisioner dies and starts again.
    CrashProvisioner(usize),
    /// The notifier dies and starts again.
    CrashNotifier,
}

/// The result of a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Found {
    /// The purchase; with its profile or not yet.
    Purchase { ready: bool },
    /// "No such purchase."
    Nothing,
    /// No definite response.
    Unknown,
}

/// The provider's reaction to a purchase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Does {
    /// Buys; the profile comes with the response or later.
    Buy { ready: bool },
    /// Rejects the purchase.
    Reject,
    /// Is too busy.
    Defer,
}

impl Protocol {
    /// Every action that this state allows.
    pub fn offers(&self, state: &State, actions: &mut Vec<Action>) {
        self.receives(state, actions);
        if !state.is_stored() {
            return;
        }
        for by in 0..state.provisioners.len() {
            self.provisions(state, by, actions);
        }
        Self::provider(state, actions);
        self.notifies(state, actions);
        for (index, row) in state.rows.iter().enumerate() {
            if row.job {
                actions.push(Action::LoseJob(index));
            }
            if row.report {
                actions.push(Action::LoseReport(index));
                if state.ingress != Ingress::Crashed {
                    actions.push(Action::TakeReport(index));
                }
            }
            if row.event {
                actions.push(Action::LoseEvent(index));
            }
            let leased = self.has(Safeguard::FirstLease) && !state.answering && !state.late;
            if self.has(Safeguard::Sweep) && row.turn == Turn::Young && !leased {
                actions.push(Action::SweepPlacement(index));
            }
            if self.has(Safeguard::Sweep) && row.delivery == Delivery::Pending(Turn::Young) {
                actions.push(Action::SweepDelivery(index));
            }
        }
        actions.push(Action::Tick);
    }

    /// The claims of an idle provisioner.
    fn takes(&self, state: &State, by: usize, index: usize, actions: &mut Vec<Action>) {
        let row = &state.rows[index];
        let accepted = row.placement.state == PlacementState::Accepted;
        if row.job && (accepted || !self.has(Safeguard::IdempotentClaim)) {
            actions.push(Action::TakeJob(by, index));
        }
        // A row of due work can be claimed at any moment, because a lease is not a safeguard.
        if !self.has(Safeguard::DueWork) || row.turn != Turn::Due {
            return;
        }
        match row.placement.state {
            PlacementState::Accepted => actions.push(Action::TakeDue(by, index)),
            PlacementState::Placing if !self.has(Safeguard::LookUp) => {
                actions.push(Action::TakeDue(by, index));
            }
            PlacementState::Placing => {
                if row.shown {
                    actions.push(Action::LookUp(by, index, Found::Purchase { ready: true }));
                    actions.push(Action::LookUp(by, index, Found::Purchase { ready: false }));
                }
                let lies = !self.holds(Assumption::HonestLookUp) && state.faults > 0;
                if !row.shown || lies {
                    actions.push(Action::LookUp(by, index, Found::Nothing));
                }
                actions.push(Action::LookUp(by, index, Found::Unknown));
                let doubted = row.placement.doubted || !self.has(Safeguard::RecordedDoubt);
                if self.settings.repeatable && doubted {
                    actions.push(Action::SendAgain(by, index));
                }
            }
            PlacementState::Placed if !row.ready => actions.push(Action::Collect(by, index)),
            _ => {}
        }
    }

    fn provisions(&self, state: &State, by: usize, actions: &mut Vec<Action>) {
        match state.provisioners[by] {
            // Two placements of one order are bought from two providers, each served by its own.
            Work::Idle if state.rows.len() > 1 => return self.takes(state, by, by, actions),
            // Two provisioners in the same state would lead to the same next states, so one of them
            // is enough.
            Work::Idle if by == 1 && state.provisioners[0] == state.provisioners[1] => return,
            Work::Idle => return self.takes(state, by, 0, actions),
            Work::Ticket { .. } => actions.push(Action::Claim(by)),
            Work::Fresh { late, .. } => {
                if late && !self.has(Safeguard::EarlyClock) {
                    actions.push(Action::StartClock(by));
                }
                if late && self.has(Safeguard::Abandon) {
                    actions.push(Action::Abandon(by));
                } else {
                    actions.push(Action::Send(by));
                }
            }
            Work::Sent(_) | Work::SentAgain(_) => {
                let times_out = |recorded| Action::TimeOut { by, recorded };
                actions.extend([true, false].map(times_out));
            }
            Work::Settling(_, outcome) => {
                actions.push(Action::Record {
                    by,
                    announces: true,
                });
                if outcome == (Settlement::Bought { ready: true }) {
                    actions.push(Action::Record {
                        by,
                        announces: false,
                    });
                }
            }
            Work::Announcing(_) => actions.push(Action::Announce(by)),
        }
        if state.faults > 0 {
            actions.push(Action::CrashProvisioner(by));
        }
    }

    fn provider(state: &State, actions: &mut Vec<Action>) {
        for (request, sent) in state.requests.iter().enumerate() {
            if sent.bought {
                actions.push(Action::Show(request));
                continue;
            }
            let awaited = state.provisioners.iter().any(|work| sent.is_awaited(work));
            for does in [
                Does::Buy { ready: true },
                Does::Buy { ready: false },
                Does::Reject,
                Does::Defer,
            ] {
                if awaited {
                    actions.push(Action::Arrive {
                        request,
                        does,
                        answered: true,
                    });
                }
            }
            actions.push(Action::Arrive {
                request,
                does: Does::Buy { ready: false },
                answered: false,
            });
            // A rejection whose response is lost has the same effect as a purchase that never
            // arrived.
            actions.push(Action::Vanish {
                request,
                noticed: false,
            });
            if awaited {
                actions.push(Action::Vanish {
                    request,
                    noticed: true,
                });
            }
        }
    }

    fn notifies(&self, state: &State, actions: &mut Vec<Action>) {
        let faulty = state.faults > 0;
        match state.notifier {
            Notifier::Idle => {
                for (index, row) in state.rows.iter().enumerate() {
                    let Delivery::Pending(turn) = row.delivery else {
                        continue;
                    };
                    if row.event {
                        actions.push(Action::TakeEvent(index));
                    }
                    let due = state.late || !self.has(Safeguard::AnswerBy);
                    if self.has(Safeguard::DueWork) && turn == Turn::Due && due {
                        actions.push(Action::TakeDelivery(index));
                    }
                }
            }
            Notifier::Taken(_) => {
                actions.push(Action::Post { acknowledged: true });
                if faulty {
                    actions.extend([
                        Action::Post {
                            acknowledged: false,
                        },
                        Action::CrashNotifier,
                    ]);
                }
            }
            Notifier::Acknowledged(_) => {
                actions.push(Action::RecordDelivery);
                if faulty {
                    actions.push(Action::CrashNotifier);
                }
            }
        }
    }

    /// What a second and a third POST can do once the order is refused.
    fn repeats(&self, state: &State, actions: &mut Vec<Action>) {
        let decided = match state.third {
            Third::Unborn => {
                actions.push(Action::StoreThird);
                None
            }
            Third::Undecided => {
                let decides = |refuses| Action::DecideThird { refuses };
                actions.extend([true, false].map(decides));
                Some(false)
            }
            Third::Stands => Some(true),
            Third::Refused => None,
        };
        match (state.second, decided) {
            (Second::Asks, Some(decided)) if decided || !self.has(Safeguard::Undecided) => {
                actions.push(Action::FindThird);
            }
            // The second of two statements only asks whether any order has the id.
            (Second::FoundNone, Some(_)) => actions.push(Action::FindThird),
            (Second::Asks, None) if !self.has(Safeguard::OneStatement) => {
                actions.push(Action::FindNone);
            }
            _ => {}
        }
    }

    fn receives(&self, state: &State, actions: &mut Vec<Action>) {
        match state.ingress {
            Ingress::Checking => {
                actions.extend([
                    Action::Store { waits: true },
                    Action::Store { waits: false },
                ]);
                return;
            }
            Ingress::Answering | Ingress::Standing => {
                if !state.late || !self.has(Safeguard::AnswerBy) {
                    actions.push(Action::Answer);
                }
                actions.push(Action::GiveUp);
            }
            Ingress::Refusing => actions.extend([Action::Answer, Action::GiveUp]),
            Ingress::Publishing | Ingress::Asking => actions.push(Action::Publish),
            Ingress::Waiting => {
                actions.extend([
                    Action::Decide { refuses: true },
                    Action::Decide { refuses: false },
                ]);
            }
            Ingress::Done | Ingress::Crashed => {}
        }
        if state.faults > 0 && !matches!(state.ingress, Ingress::Done | Ingress::Crashed) {
            actions.push(Action::CrashIngress);
        }
        let undecided = matches!(state.ingress, Ingress::Asking | Ingress::Waiting);
        if undecided && (state.is_decided() || !self.has(Safeguard::Undecided)) {
            actions.push(Action::Repeat);
        }
        // Later moments add nothing, because the answer of the refused order changes no row.
        if state.ingress == Ingress::Refusing {
            self.repeats(state, actions);
        }
        if !state.late {
            actions.push(Action::AnswerBy);
        }
    }
}
