//! What is settled: the outcome of an attempt, and the effect of recording it.

use std::{collections::HashMap, time::Duration};

use accounts::profile::SealedProfile;
use domain::{DeliveryId, Iccid, OrderId, PartnerId, PlacementId, Reason, StoredAgreed, TopupId};
use time::OffsetDateTime;

/// The outcome of an attempt, or of a look-up or collect after it.
#[derive(Clone, Debug)]
pub struct PlacementSettlement {
    pub placement_id: PlacementId,
    pub attempt: u32,
    pub outcome: AttemptOutcome,
    /// Whether its units have prices, so that what becomes of them is booked.
    pub is_priced: bool,
    /// What is known of a placement that was claimed fresh, whose units have no eSIM yet. With it a
    /// complete purchase is recorded by the lean statement, which then need not read it. Such a
    /// placement usually has no row in `work`. If one is left over, for example after a late job,
    /// it does no harm, because the claim that finds it deletes it.
    pub known: Option<KnownColumns>,
}

/// The columns of a freshly claimed placement that its eSIMs and deliveries repeat.
#[derive(Clone, Debug)]
pub struct KnownColumns {
    pub order_id: OrderId,
    pub partner_id: PartnerId,
    pub provider: String,
    pub external_order_id: String,
    pub ordered_at: OffsetDateTime,
    /// W3C trace context of the order's POST.
    pub traceparent: Option<String>,
    /// What was agreed about each unit.
    pub agreed: HashMap<TopupId, StoredAgreed>,
    /// A look-up at the provider proves the purchase.
    pub is_proved_by_look_up: bool,
}

/// The outcome of an attempt; see [`domain::placement::PlacementEvent`].
#[derive(Clone, Debug)]
pub enum AttemptOutcome {
    /// The provider has the purchase. Units with a profile become ready and get a delivery.
    Bought {
        /// The provider's own id of the purchase; `None` if the provider has none or did not name
        /// it this time. One that is already stored is kept then.
        reference: Option<String>,
        /// The units that the provider has listed, as far as they belong to topups.
        units: Vec<SettledUnit>,
        /// How many units the provider has listed, which may be more.
        listed: usize,
        /// The delay until the next collect; `None` if no profile is missing.
        collect_in: Option<Duration>,
        /// Why the purchase is parked: its profiles have been missing for too long. `None` if it is
        /// not parked.
        park: Option<Reason>,
        /// Whether a readiness event will announce the new deliveries. Otherwise they get due work,
        /// for `answer_by` at the earliest.
        announced: bool,
    },
    /// The attempt certainly bought nothing; a further attempt may follow. It changes nothing once
    /// the attempt is in doubt.
    NotBought { retry_in: Duration, reason: Reason },
    /// The provider rejected the purchase for good. It goes to the next provider of its option, or
    /// fails if there is none. It changes nothing once the attempt is in doubt.
    Rejected { status: String, message: String },
    /// A look-up found no such purchase.
    NotFound {
        /// The look-up began after the settling delay, so the purchase can no longer arrive.
        after_settling_delay: bool,
        look_in: Duration,
    },
    /// The call left the outcome of the attempt unknown, so it may have bought something. So no
    /// other provider is asked any more: the alternatives are forgotten. The count of such calls
    /// and the time of the next one change, too.
    ///
    /// For a purchase that is placed or parked it says that its profiles could not be collected.
    /// Nothing is in doubt then, and the alternatives stay as they are.
    Unknown { look_in: Duration, reason: Reason },
    /// The outcome stayed unknown for too long. An operator must resolve the placement.
    Parked { reason: Reason },
    /// The provider's response cannot be stored, or the row cannot be read. An operator must act.
    /// The placement is parked, and [disputed](domain::placement::Placement::disputed) if it was
    /// placed before.
    Unstorable { reason: Reason },
}

/// What is known about one unit that the provider has named.
#[derive(Clone, Debug)]
pub struct SettledUnit {
    pub topup_id: TopupId,
    /// The provider's id of the unit that is assigned to the topup.
    pub provider_unit_id: String,
    pub progress: Progress,
}

#[derive(Clone, Debug)]
pub enum Progress {
    /// No profile yet.
    Pending,
    /// The profile has arrived.
    Ready(ReadyProfile),
    /// It will never have a profile, with the provider's word for that.
    Failed(String),
}

/// A profile that has arrived.
#[derive(Clone, Debug)]
pub struct ReadyProfile {
    pub iccid: Iccid,
    /// The sealed profile, with the digest of its code.
    pub profile: SealedProfile,
    /// The delivery that is created together with the profile.
    pub delivery_id: DeliveryId,
}

/// The effect of a settlement.
#[derive(Clone, Debug, Default)]
pub struct SettlementEffect {
    /// Whether the settlement changed the placement. A late one does not. A purchase that
    /// is settled again while it is the last attempt does.
    pub moved: bool,
    /// The purchase was unexpected, so the placement is parked and an operator must look at it. A
    /// repeat of the settlement says so, too, and has not moved it.
    pub unexpected: bool,
    /// The provider to which the placement went, because it was rejected and its option names a
    /// further one.
    pub rerouted: Option<String>,
    /// The deliveries of the units that the settlement made ready.
    pub ready: Vec<DeliveryId>,
}

/// The placements of a batch that have moved so far.
pub(super) type Changes = HashMap<PlacementId, SettlementEffect>;
