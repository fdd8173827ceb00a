//! A model of the cut by which a cell divides: one order, the stages of the old cell and of the new
//! one, and the command that divides. The command may die after each step, and the old server may be
//! lost once the order is fenced.
//!
//! The order is of a partner that leaves, or of one that stays. What is modelled of its purchase is
//! what a copy of the database can repeat or forget: whether it is recorded, in flight or settled, the
//! row of due work, and the position of the sweep. `tools::cells::division` has the steps, and its
//! tests run them on two databases.
//!
//! That a look-up waits until no call is under way any more is the settling delay, which the model of
//! a purchase shows to be needed. So here a second attempt begins only when no process has one.

use clap::ValueEnum;
use stateright::{Model, Property};

use crate::explore::{Condition, Promised, SmallModel, properties};

/// The deaths of provisioners, lost messages and cancelled divisions in one run.
const FAULTS: u8 = 2;

/// A rule of the cut, without which a promise breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Safeguard {
    /// From the freeze on the old cell stores no order of a partner that leaves
    Freeze,
    /// Each side sees the rows of its own partners only
    Membrane,
    /// The activation puts the sweep back to where the fence has found it
    Positions,
    /// So does a cancellation
    PositionsBack,
    /// No stage works in a copy before its activation
    Gate,
}

/// What must be true in every state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Promise {
    BoughtOnce,
    /// In every final state the cell that serves the partner has its order as bought.
    NothingLost,
}

/// How far a placement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Row {
    None,
    Accepted,
    /// An attempt is recorded.
    Placing,
    Placed,
}

/// What a database says of the order, and of the division.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Database {
    pub row: Row,
    /// There is a row of due work.
    pub work: bool,
    /// The sweep has passed the order, and never looks at it again.
    pub swept: bool,
    /// The partner that leaves is marked.
    pub frozen: bool,
    /// Its rows are hidden. The value is the saved position of the sweep.
    pub fenced: Option<bool>,
}

/// What a provisioner of a cell has in hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Provisioner {
    Idle,
    /// Has recorded an attempt that it has not sent.
    Claimed,
    Bought,
}

/// The copy that becomes the new cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Copy {
    /// It has what the old cell has.
    Standby,
    Promoted(Database),
    Active(Database),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct State {
    /// The order is of a partner that leaves.
    pub leaves: bool,
    pub old: Database,
    pub copy: Copy,
    /// The provisioners of the old cell and of the new one.
    pub provisioners: [Provisioner; 2],
    /// The message about the order is on its way in the old cell.
    pub message: bool,
    /// The server of the old cell is lost.
    pub lost: bool,
    /// The number of purchases at the provider.
    pub bought: u8,
    /// The order was in flight when its partner was hidden.
    pub taken_along: bool,
    pub cancelled: bool,
    pub faults: u8,
}

impl State {
    /// The database in which the stages of this side work.
    fn database(&mut self, side: usize) -> Option<&mut Database> {
        match (side, &mut self.copy) {
            (0, _) => Some(&mut self.old),
            (_, Copy::Promoted(copy) | Copy::Active(copy)) => Some(copy),
            (_, Copy::Standby) => None,
        }
    }
}

/// One step. The sides are 0, the old cell, and 1, the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// An ingress of the old cell stores the order, perhaps after a long stall.
    Store,
    /// A sweep passes everything that was stored before.
    Sweep(usize),
    /// By the message, or as due work.
    Claim(usize),
    /// Due work with an attempt whose process is gone: the purchase is found, or made.
    LookUp(usize),
    Buy(usize),
    Settle(usize),
    Freeze,
    Fence,
    /// The standby is promoted, by the command or by an operator, at any time.
    Promote,
    Activate,
    Cancel,
    LoseMessage,
    CrashProvisioner(usize),
    /// The old server is gone for good.
    LoseOld,
}

/// The protocol with these safeguards switched off.
pub struct Protocol {
    without: Vec<Safeguard>,
}

impl SmallModel for Protocol {
    type Safeguard = Safeguard;
    type Promise = Promise;
    const PROMISES: &'static [Promised<Self>] = &[
        Promised {
            promise: Promise::BoughtOnce,
            name: "nothing is bought twice",
            is_kept: |_, state| state.bought <= 1,
        },
        Promised {
            promise: Promise::NothingLost,
            name: "a stored order is bought for its partner",
            is_kept: |protocol, state| Self::is_served(state) || protocol.goes_on(state),
        },
    ];
    const ENDS: &'static [(&'static str, Condition<Self>)] = &[
        (
            "a purchase in flight is found by the new cell",
            |_, state| {
                let is_found = matches!(state.copy, Copy::Active(copy) if copy.row == Row::Placed);
                is_found && state.taken_along && state.old.row == Row::Placing
            },
        ),
        (
            "an order without an attempt is bought by the new cell",
            |_, state| {
                let is_bought = matches!(state.copy, Copy::Active(copy) if copy.row == Row::Placed);
                is_bought && state.old.row == Row::Accepted
            },
        ),
        ("the old cell is lost, and the new one buys", |_, state| {
            state.lost && matches!(state.copy, Copy::Active(copy) if copy.row == Row::Placed)
        }),
        (
            "a division is taken back, and the old cell buys",
            |_, state| state.cancelled && state.leaves && state.old.row == Row::Placed,
        ),
        (
            "a partner that stays is served after the division",
            |_, state| {
                let is_active =
                    matches!(state.copy, Copy::Active(copy) if copy.row == Row::Accepted);
                is_active && !state.leaves && state.old.row == Row::Placed
            },
        ),
    ];

    fn without(without: Vec<Safeguard>) -> Self {
        Self { without }
    }
}

impl Protocol {
    fn has(&self, safeguard: Safeguard) -> bool {
        !self.without.contains(&safeguard)
    }

    /// Whether the stages of a side may work, and see the order.
    fn sees(&self, state: &State, side: usize) -> bool {
        let may_work = match state.copy {
            _ if side == 0 => !state.lost,
            Copy::Standby => false,
            Copy::Promoted(_) => !self.has(Safeguard::Gate),
            Copy::Active(_) => true,
        };
        let is_hidden = match state.copy {
            _ if side == 0 => state.leaves && state.old.fenced.is_some(),
            Copy::Active(_) => !state.leaves,
            Copy::Promoted(copy) => state.leaves && copy.fenced.is_some(),
            Copy::Standby => true,
        };
        may_work && !(is_hidden && self.has(Safeguard::Membrane))
    }

    /// Whether the cell that serves the partner has its order as bought. Without a stored order there is
    /// nothing to serve.
    fn is_served(state: &State) -> bool {
        let home = match state.copy {
            Copy::Active(copy) if state.leaves => copy,
            _ => state.old,
        };
        let is_stored = state.old.row != Row::None;
        !is_stored || home.row == Row::Placed
    }

    fn goes_on(&self, state: &State) -> bool {
        let mut actions = Vec::new();
        self.actions(state, &mut actions);
        actions.into_iter().any(|action| {
            let is_fault = matches!(
                action,
                Action::LoseMessage | Action::CrashProvisioner(_) | Action::LoseOld
            );
            !is_fault && self.next_state(state, action).is_some()
        })
    }

    /// What the provisioners and the sweep of a side can do.
    fn stage(&self, state: &State, side: usize, actions: &mut Vec<Action>) {
        match state.provisioners[side] {
            Provisioner::Claimed => actions.push(Action::Buy(side)),
            Provisioner::Bought => actions.push(Action::Settle(side)),
            Provisioner::Idle => {}
        }
        let mut seen = *state;
        let Some(database) = seen.database(side).filter(|_| self.sees(state, side)) else {
            return;
        };
        if state.provisioners[side] != Provisioner::Idle {
            return;
        }
        let is_named = database.work || (side == 0 && state.message);
        if database.row == Row::Accepted && is_named {
            actions.push(Action::Claim(side));
        }
        let is_in_flight = state
            .provisioners
            .iter()
            .any(|one| *one != Provisioner::Idle);
        if database.row == Row::Placing && database.work && !is_in_flight {
            actions.push(Action::LookUp(side));
        }
    }

    fn thaw(&self, database: &mut Database, safeguard: Safeguard) {
        if let Some(swept) = database.fenced.take()
            && self.has(safeguard)
        {
            database.swept = swept;
        }
        database.frozen = false;
    }

    fn divide(&self, state: &mut State, action: Action) {
        match action {
            Action::Freeze => state.old.frozen = true,
            Action::Fence => {
                state.old.fenced = Some(state.old.swept);
                state.taken_along = state.provisioners[0] != Provisioner::Idle;
            }
            Action::Promote => state.copy = Copy::Promoted(state.old),
            Action::Activate => {
                if let Copy::Promoted(mut copy) = state.copy {
                    self.thaw(&mut copy, Safeguard::Positions);
                    state.copy = Copy::Active(copy);
                }
            }
            _ => {
                let is_early = matches!(state.copy, Copy::Promoted(copy) if copy.fenced.is_none());
                state.faults -= u8::from(!is_early);
                state.cancelled = true;
                self.thaw(&mut state.old, Safeguard::PositionsBack);
                // A copy that was promoted is void; the next division begins with a new standby.
                state.copy = Copy::Standby;
            }
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        [true, false]
            .map(|leaves| State {
                leaves,
                old: Database {
                    row: Row::None,
                    work: false,
                    swept: false,
                    frozen: false,
                    fenced: None,
                },
                copy: Copy::Standby,
                provisioners: [Provisioner::Idle; 2],
                message: false,
                lost: false,
                bought: 0,
                taken_along: false,
                cancelled: false,
                faults: FAULTS,
            })
            .to_vec()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let may_store = !state.leaves || !state.old.frozen || !self.has(Safeguard::Freeze);
        if state.old.row == Row::None && may_store && !state.lost {
            actions.push(Action::Store);
        }
        for side in 0..2 {
            self.stage(state, side, actions);
            let works = match state.copy {
                _ if side == 0 => !state.lost,
                Copy::Standby => false,
                Copy::Promoted(_) => !self.has(Safeguard::Gate),
                Copy::Active(_) => true,
            };
            if works {
                actions.push(Action::Sweep(side));
            }
        }
        let is_active = matches!(state.copy, Copy::Active(_));
        match state.copy {
            // What the standby has not replayed yet is as if it had been promoted before.
            Copy::Standby => actions.push(Action::Promote),
            Copy::Promoted(copy) if copy.fenced.is_some() => actions.push(Action::Activate),
            Copy::Promoted(_) | Copy::Active(_) => {}
        }
        // The command does not begin with a copy that was promoted already, and cancels with one that was
        // promoted before it had the fence.
        let is_early = matches!(state.copy, Copy::Promoted(copy) if copy.fenced.is_none());
        if !state.lost && !is_active {
            if state.old.frozen && state.old.fenced.is_none() {
                actions.push(Action::Fence);
            } else if !state.old.frozen && !is_early {
                actions.push(Action::Freeze);
            }
            if is_early || (state.faults > 0 && state.old.frozen) {
                actions.push(Action::Cancel);
            }
        }
        if state.faults > 0 {
            if state.message {
                actions.push(Action::LoseMessage);
            }
            // Without a copy that has the fence this is the loss of any server, for which cells do nothing.
            if state.leaves && state.old.fenced.is_some() && !state.lost && !is_early {
                actions.push(Action::LoseOld);
            }
            for side in 0..2 {
                if state.provisioners[side] != Provisioner::Idle {
                    actions.push(Action::CrashProvisioner(side));
                }
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Store => {
                state.old.row = Row::Accepted;
                state.message = true;
                // A row that is younger than its lease is never behind the position of the sweep.
                state.old.swept = false;
            }
            Action::Sweep(side) => {
                let sees = self.sees(last, side);
                let database = state.database(side)?;
                let is_open = matches!(database.row, Row::Accepted | Row::Placing);
                if is_open && sees && !database.swept {
                    database.work = true;
                }
                database.swept = database.row != Row::None;
            }
            Action::Claim(side) => {
                state.database(side)?.row = Row::Placing;
                state.message &= side != 0;
                state.provisioners[side] = Provisioner::Claimed;
            }
            Action::LookUp(side) if state.bought > 0 => {
                state.provisioners[side] = Provisioner::Bought;
            }
            Action::LookUp(side) => state.provisioners[side] = Provisioner::Claimed,
            Action::Buy(side) => {
                state.bought += 1;
                state.provisioners[side] = Provisioner::Bought;
            }
            Action::Settle(side) => {
                state.provisioners[side] = Provisioner::Idle;
                let sees = self.sees(last, side);
                if let Some(database) = state.database(side).filter(|_| sees)
                    && database.row == Row::Placing
                {
                    database.row = Row::Placed;
                }
            }
            Action::Freeze
            | Action::Fence
            | Action::Promote
            | Action::Activate
            | Action::Cancel => {
                self.divide(&mut state, action);
            }
            Action::LoseMessage => {
                state.faults -= 1;
                state.message = false;
            }
            Action::CrashProvisioner(side) => {
                state.faults -= 1;
                state.provisioners[side] = Provisioner::Idle;
            }
            Action::LoseOld => {
                state.faults -= 1;
                state.lost = true;
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties()
    }
}
