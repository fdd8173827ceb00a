//! What a proof has bought, as far as is known: the list that is printed at the end, also after an
//! interruption, so that nobody loses money without knowing.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use domain::PlacementId;
use provisioner::providers::{BoughtUnits, LookUpRequest};
use serde::Serialize;
use store::proofs::LeftPurchase;

use crate::output::{cells, or_dash, table};

/// The outcome of a purchase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProofOutcome {
    /// It was sent, and whether it was sold is not known.
    Unclear,
    /// It was sold, and not all of it was given back.
    Bought,
    /// Nothing was sold.
    NotBought,
    /// All of it was given back.
    GivenBack,
    /// It was sold, and the provider takes nothing back.
    Stays,
}

impl ProofOutcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Unclear => "unclear",
            Self::Bought => "bought",
            Self::NotBought => "not bought",
            Self::GivenBack => "given back",
            Self::Stays => "stays",
        }
    }
}

/// A purchase with its outcome.
#[derive(Clone, Debug, Serialize)]
pub struct ProofLine {
    /// Our id of it.
    purchase_id: String,
    option: String,
    units: usize,
    /// The provider's ids of it; more than one if it was sold more than once.
    references: Vec<String>,
    outcome: ProofOutcome,
}

impl ProofLine {
    fn text(&self) -> String {
        let Self {
            purchase_id,
            option,
            units,
            references,
            outcome,
        } = self;
        let about = format!("{}, {units} x {option}", outcome.as_str());
        let ids = references.iter().map(String::as_str);
        let about = std::iter::once(&*about).chain(ids).collect::<Vec<_>>();
        format!("{purchase_id} ({})", about.join(", "))
    }
}

/// All purchases of a proof, and those of earlier ones that were left.
#[derive(Debug, Default)]
pub struct Purchases(Vec<ProofLine>);

impl Purchases {
    /// Notes what is known of a purchase now.
    pub fn mark(&mut self, bought: &ProofBuy, outcome: ProofOutcome) {
        let line = ProofLine {
            purchase_id: bought.id.to_string(),
            option: bought.option.clone(),
            units: bought.units,
            references: bought.references.iter().cloned().collect(),
            outcome,
        };
        let known = self.0.iter_mut();
        let mut known = known.filter(|known| known.purchase_id == line.purchase_id);
        match known.next() {
            Some(known) => *known = line,
            None => self.0.push(line),
        }
    }

    pub fn lines(&self) -> &[ProofLine] {
        &self.0
    }

    /// Those that may have cost something that can still be had back, for an error.
    pub fn left(&self) -> Option<String> {
        let left = self.0.iter();
        let left = left
            .filter(|line| matches!(line.outcome, ProofOutcome::Unclear | ProofOutcome::Bought));
        let left: Vec<String> = left.map(ProofLine::text).collect();
        (!left.is_empty()).then(|| left.join("; "))
    }

    /// The list as text.
    pub fn text(&self) -> String {
        table(self.0.iter().map(|line| {
            let references = (!line.references.is_empty()).then(|| line.references.join(" "));
            cells!(line:
                purchase = line.purchase_id.clone(), option, units,
                "provider's id" = or_dash(references), outcome = line.outcome.as_str().to_owned(),
            )
        }))
    }
}

/// A purchase of this or of an earlier proof.
pub struct ProofBuy {
    pub id: PlacementId,
    pub option: String,
    pub units: usize,
    /// How old it was when this process first knew it, and when that was.
    age: Duration,
    since: Instant,
    /// The provider's ids of it.
    pub references: BTreeSet<String>,
    /// Whether the provider has said that it has sold it.
    pub is_sold: bool,
}

impl ProofBuy {
    pub fn new(option: &str, units: usize) -> Self {
        Self {
            id: PlacementId::new(),
            option: option.to_owned(),
            units,
            age: Duration::ZERO,
            since: Instant::now(),
            references: BTreeSet::new(),
            is_sold: false,
        }
    }

    /// The purchase that an earlier proof has left.
    pub fn of(left: &LeftPurchase) -> Self {
        Self {
            id: left.id,
            option: left.provider_option_id.clone(),
            units: usize::try_from(left.units).unwrap_or_default(),
            age: left.age,
            since: Instant::now(),
            references: BTreeSet::new(),
            is_sold: left.is_sold,
        }
    }

    /// Whether it was made after this moment.
    pub fn is_later(&self, moment: Instant) -> bool {
        self.age.is_zero() && self.since > moment
    }

    pub fn age(&self) -> Duration {
        self.age + self.since.elapsed()
    }

    /// A look-up by our id only.
    pub fn by_id(&self) -> LookUpRequest {
        LookUpRequest {
            placement_id: self.id,
            reference: None,
            attempt_age: self.age(),
            options: Vec::new(),
            arrives_within: Duration::from_mins(1),
        }
    }

    /// Notes that it was sold, with an id of the provider. Returns whether that is another one than
    /// those before.
    pub fn add(&mut self, bought: &BoughtUnits) -> bool {
        self.is_sold = true;
        let Some(reference) = &bought.reference else {
            return false;
        };
        let knew = !self.references.is_empty();
        self.references.insert(reference.as_str().to_owned()) && knew
    }
}
