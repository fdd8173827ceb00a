//! What a check may leave out, and what it looks for: the safeguards, the assumptions and the
//! promises.

use clap::{Args, ValueEnum};

/// A rule of the protocol, without which a promise breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Safeguard {
    /// An attempt is recorded before the provider is called
    RecordedAttempt,
    /// Only an `accepted` placement can be claimed to buy it, so a repeated job claims nothing
    IdempotentClaim,
    /// Only a rejection leads to the next provider, and an unknown outcome never does
    CertainRouting,
    /// A ticket claims a placement only at the provider whose job brought it, so that of a
    /// placement that has gone to the next provider claims nothing
    RoutedClaim,
    /// An attempt with an unknown outcome is looked up before anything is bought again
    LookUp,
    /// "No such purchase" allows another attempt only once SETTLE has passed
    Settle,
    /// An attempt is sent again only once something is recorded that leaves it in doubt
    RecordedDoubt,
    /// Of an attempt in doubt nobody is believed that it was rejected or not bought
    LateRefusal,
    /// A process no longer sends an attempt once SETTLE/2 has passed since its claim
    Abandon,
    /// This time counts from before the claim is sent, and not from the response to it
    EarlyClock,
    /// Due rows are claimed without a message
    DueWork,
    /// Rows that did not finish within their first lease get a row of due work
    Sweep,
    /// The sweep passes a time only after every transaction that began before it has ended
    SweepFence,
    /// A 422 is sent only if one transaction found every placement accepted or failed and refused
    /// it, whatever the verdicts said
    RefusalTransaction,
    /// That transaction refuses nothing after `answer_by`
    RefusalInTime,
    /// A second POST is answered "already taken" only after the order can no longer be refused
    Undecided,
    /// A second POST sees in one statement whether an order stands and whether it is decided. Two
    /// statements may see two orders, if a third POST is stored in between
    OneStatement,
    /// Readiness of an order that is still being answered goes to its ingress, not to the stream
    AnsweredFirst,
    /// Ingress publishes such readiness only once the answer has left
    HeldReadiness,
    /// A placement whose answer waits for no verdict is not due before `answer_by`, because its
    /// first lease is longer
    FirstLease,
    /// A delivery is not due before `answer_by`, and ingress does not answer after it
    AnswerBy,
    /// A delivery counts as delivered only after the endpoint has acknowledged it
    RecordedDelivery,
}

/// A condition outside of the protocol, without which the promise breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Assumption {
    /// A purchase arrives, and look-ups show it, within SETTLE/2 after its sender checked that it
    /// is not late
    PromptArrival,
    /// The provider never says "no such purchase" about one that look-ups have shown; without this
    /// assumption, each such response counts as one of the faults
    HonestLookUp,
}

/// The settings of a check.
#[derive(Clone, Debug, Args)]
pub struct Settings {
    /// Switch off a safeguard. Can be given several times
    #[arg(long, value_name = "SAFEGUARD")]
    pub without: Vec<Safeguard>,
    /// Drop an assumption. Can be given several times
    #[arg(long = "break", value_name = "ASSUMPTION")]
    pub broken: Vec<Assumption>,
    /// Number of placements of the one order, each bought from a provider of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub placements: u8,
    /// Number of providers that sell the option of a placement, in order of preference
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub providers: u8,
    /// Maximum number of faults in one history: crashes, and requests that an endpoint fails
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(0..=4))]
    pub faults: u8,
    /// Maximum number of attempts before a placement is parked
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=4))]
    pub attempts: u32,
    /// Let the provider recognise a second purchase with the same placement id
    #[arg(long)]
    pub detects_duplicates: bool,
    /// Let the provider be one that can only be searched, where an identical request is proved to
    /// be the same purchase, so that an attempt in doubt is sent again
    #[arg(long)]
    pub repeatable: bool,
    /// Allow the next attempt after a single "no such purchase", once SETTLE has passed
    #[arg(long)]
    pub one_look: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            placements: 1,
            providers: 1,
            faults: 2,
            attempts: 2,
            detects_duplicates: false,
            repeatable: false,
            one_look: false,
            without: Vec::new(),
            broken: Vec::new(),
        }
    }
}

/// A property that every state must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Promise {
    /// No placement is bought twice.
    BoughtOnce,
    /// Nothing is bought for an order that was answered with 422.
    NothingForRefused,
    /// An order that was called "already taken" is never refused, whichever of the orders with its
    /// id it is.
    TakenStands,
    /// No webhook is sent before the order's 201.
    AnswerFirst,
    /// In every final state, every unit is delivered, failed or parked, and every bought unit is
    /// delivered or parked.
    NothingLost,
}

impl Promise {
    pub const ALL: [Self; 5] = [
        Self::BoughtOnce,
        Self::NothingForRefused,
        Self::TakenStands,
        Self::AnswerFirst,
        Self::NothingLost,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::BoughtOnce => "nothing is bought twice",
            Self::NothingForRefused => "nothing is bought for an order answered with 422",
            Self::TakenStands => "what is already taken is never refused",
            Self::AnswerFirst => "no webhook precedes the answer",
            Self::NothingLost => "everything accepted ends delivered, failed or parked",
        }
    }
}
