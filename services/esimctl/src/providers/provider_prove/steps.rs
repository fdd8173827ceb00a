//! The steps of a proof, each with what was asked, what came and what follows.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use domain::PlacementId;
use pg::PgConnection;
use provisioner::providers::{
    BoughtUnits, Capabilities, Custody, DeliveredEsim, GiveBackResponse, LookUpRequest,
    LookUpResponse, Provider, ProviderUnit, ProviderUnitState, Purchase, PurchaseResponse, Trouble,
};
use runtime::clock::Moment;
use serde::Serialize;
use store::proofs::{self, LeftPurchase, ProofPurchase, ProvedAccount};

use crate::provider_check::describe;

/// The largest batch of eSIM Access (reference of April 2026).
pub const BATCH: usize = 30;
/// How long a new purchase may be missing in the provider's list, and profiles in a purchase.
const LISTED_WITHIN: Duration = Duration::from_secs(90);
/// How often the provider is asked meanwhile.
const PACE: Duration = Duration::from_secs(3);
/// After this time a purchase that no look-up has ever found was not made.
const GONE: Duration = Duration::from_hours(24);
/// What a balance may differ without having changed.
const CENT: f64 = 0.000_01;

/// What follows from an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Follows {
    /// The provider does what it documents.
    Documented,
    /// It does something else.
    Contradicted,
    /// No document says what should come.
    Seen,
    /// The question is still open.
    Unanswered,
}

impl Follows {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Documented => "as documented",
            Self::Contradicted => "CONTRADICTS the documents",
            Self::Seen => "seen; nothing is documented",
            Self::Unanswered => "not answered",
        }
    }
}

/// A question with its answer.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    pub question: &'static str,
    pub asked: String,
    pub came: String,
    pub follows: Follows,
}

/// A proof under way.
pub struct Proving<'a> {
    pub provider: Arc<dyn Provider>,
    pub can: Capabilities,
    pub connection: &'a mut PgConnection,
    pub of: ProvedAccount<'a>,
    pub option: &'a str,
    pub wait: Duration,
    pub keep: bool,
    pub steps: Vec<Step>,
}

/// A purchase of this or of an earlier proof.
struct ProofBuy {
    id: PlacementId,
    option: String,
    units: usize,
    /// How old it was when this process first knew it, and when that was.
    age: Duration,
    since: Instant,
    references: BTreeSet<String>,
}

impl ProofBuy {
    fn age(&self) -> Duration {
        self.age + self.since.elapsed()
    }

    /// A look-up by our id only.
    fn by_id(&self) -> LookUpRequest {
        LookUpRequest {
            placement_id: self.id,
            reference: None,
            attempt_age: self.age(),
            arrives_within: Duration::from_mins(1),
        }
    }

    /// Adds an id of the provider. Returns whether it is another one than those before.
    fn add(&mut self, bought: &BoughtUnits) -> bool {
        let Some(reference) = &bought.reference else {
            return false;
        };
        let knew = !self.references.is_empty();
        self.references.insert(reference.as_str().to_owned()) && knew
    }
}

impl Proving<'_> {
    pub async fn all(&mut self, left: Vec<LeftPurchase>, batch: bool) -> anyhow::Result<()> {
        self.ask_for_nothing().await;
        for one in left {
            self.take_up(one).await?;
        }
        if let Some(mut bought) = self.buy("a purchase", 1).await? {
            let mut is_same = true;
            if self.can.purchase_key {
                is_same = self
                    .repeat("the identical request at once", &mut bought)
                    .await?;
            }
            self.list(&mut bought).await;
            if self.can.purchase_key && is_same && !self.wait.is_zero() {
                tokio::time::sleep(self.wait).await;
                is_same = self
                    .repeat("the identical request later", &mut bought)
                    .await?;
            }
            if self.can.purchase_key && is_same {
                self.change_count(&mut bought).await;
            }
            self.end(bought, self.keep).await?;
        }
        if batch {
            if let Some(bought) = self.buy("one unit more than a batch", BATCH + 1).await? {
                self.end(bought, false).await?;
            }
            if let Some(bought) = self.buy("a whole batch", BATCH).await? {
                self.end(bought, false).await?;
            }
        }
        Ok(())
    }

    fn note(&mut self, question: &'static str, asked: &str, came: String, follows: Follows) {
        self.steps.push(Step {
            question,
            asked: asked.to_owned(),
            came,
            follows,
        });
    }

    /// Looks up a purchase that does not exist.
    async fn ask_for_nothing(&mut self) {
        let nothing = LookUpRequest {
            placement_id: PlacementId::new(),
            reference: None,
            attempt_age: Duration::ZERO,
            arrives_within: Duration::from_mins(1),
        };
        let (came, follows) = match self.provider.look_up(&nothing).await {
            Ok(LookUpResponse::NotFound) => ("there is none".to_owned(), Follows::Documented),
            Ok(LookUpResponse::Found(_)) => ("one was found".to_owned(), Follows::Contradicted),
            Err(trouble) => (describe(&trouble), Follows::Unanswered),
        };
        let asked = "a look-up of an id that was never sent";
        self.note("a purchase that does not exist", asked, came, follows);
    }

    /// Records a purchase, sends it, and tells what came. `None` if nothing was bought for certain.
    async fn buy(
        &mut self,
        question: &'static str,
        units: usize,
    ) -> anyhow::Result<Option<ProofBuy>> {
        let mut bought = ProofBuy {
            id: PlacementId::new(),
            option: self.option.to_owned(),
            units,
            age: Duration::ZERO,
            since: Instant::now(),
            references: BTreeSet::new(),
        };
        let record = ProofPurchase {
            id: bought.id,
            provider_option_id: self.option,
            units: i32::try_from(units)?,
        };
        proofs::record(self.connection, self.of, record).await?;
        let is_too_many = units > BATCH;
        let response = self.send(&bought, units).await;
        let (came, follows) = match &response {
            Ok(PurchaseResponse::Bought(first)) => {
                bought.add(first);
                let follows = if is_too_many {
                    Follows::Contradicted
                } else {
                    Follows::Documented
                };
                ("it was sold".to_owned(), follows)
            }
            Ok(PurchaseResponse::Rejected { status, message }) => {
                let follows = if is_too_many {
                    Follows::Documented
                } else {
                    Follows::Unanswered
                };
                (format!("refused with {status}: {message}"), follows)
            }
            Ok(PurchaseResponse::RefusedHere(why)) => {
                (format!("not sent: {why}"), Follows::Unanswered)
            }
            Err(trouble) => (describe(trouble), Follows::Unanswered),
        };
        self.note(
            question,
            &format!("{units} units under a new id"),
            came,
            follows,
        );
        self.note_references(&bought).await?;
        let is_nothing = matches!(
            response,
            Ok(PurchaseResponse::Rejected { .. } | PurchaseResponse::RefusedHere(_))
                | Err(
                    Trouble::NotSent(_)
                        | Trouble::Denied(_)
                        | Trouble::Busy { .. }
                        | Trouble::Waiting { .. }
                )
        );
        if is_nothing {
            self.store(bought.id, true).await?;
            return Ok(None);
        }
        Ok(Some(bought))
    }

    async fn send(&self, bought: &ProofBuy, units: usize) -> Result<PurchaseResponse, Trouble> {
        let purchase = Purchase {
            placement_id: bought.id,
            items: vec![(bought.option.clone(), units)],
            send_by: Moment::now() + Duration::from_mins(1),
        };
        self.provider.purchase(&purchase).await
    }

    /// How long to wait for what takes the provider some time; less if the proof is in a hurry.
    fn patience(&self) -> Duration {
        self.wait.min(LISTED_WITHIN)
    }

    async fn balance(&self) -> Option<f64> {
        if !self.can.balance {
            return None;
        }
        let balance = self.provider.balance().await.ok();
        balance.map(|balance| balance.amount)
    }

    /// Sends the identical request. Returns whether it was the same purchase, as far as this shows.
    async fn repeat(
        &mut self,
        question: &'static str,
        bought: &mut ProofBuy,
    ) -> anyhow::Result<bool> {
        let before = self.balance().await;
        let age = bought.age();
        let response = self.send(bought, bought.units).await;
        let after = self.balance().await;
        let has_paid =
            matches!((before, after), (Some(before), Some(after)) if after < before - CENT);
        let asked = format!("the same request, {} s after the purchase", age.as_secs());
        let (came, is_same) = match response {
            Ok(PurchaseResponse::Bought(again)) if bought.add(&again) => (
                "it was sold a second time, under another number".to_owned(),
                Some(false),
            ),
            Ok(PurchaseResponse::Bought(_)) if has_paid => (
                "it has the same number, and the balance has fallen".to_owned(),
                Some(false),
            ),
            Ok(PurchaseResponse::Bought(_)) => {
                let listed = self.listed(bought).await.len();
                if listed > bought.units {
                    (
                        format!("{listed} units are listed under its id"),
                        Some(false),
                    )
                } else {
                    ("it is the same purchase".to_owned(), Some(true))
                }
            }
            Ok(PurchaseResponse::Rejected { status, message }) => {
                (format!("refused with {status}: {message}"), Some(false))
            }
            Ok(PurchaseResponse::RefusedHere(why)) => (format!("not sent: {why}"), None),
            Err(trouble) => (describe(&trouble), None),
        };
        let follows = match is_same {
            Some(true) => Follows::Documented,
            Some(false) => Follows::Contradicted,
            None => Follows::Unanswered,
        };
        self.note(question, &asked, came, follows);
        self.note_references(bought).await?;
        if let Some(is_same) = is_same {
            proofs::note_repeat(self.connection, bought.id, is_same, age).await?;
        }
        Ok(is_same == Some(true))
    }

    /// Asks for more units under the same id. No document says what comes, so it is only seen.
    async fn change_count(&mut self, bought: &mut ProofBuy) {
        let came = match self.send(bought, bought.units + 1).await {
            Ok(PurchaseResponse::Bought(again)) if bought.add(&again) => {
                "it was sold under another number".to_owned()
            }
            Ok(PurchaseResponse::Bought(_)) => "it has the number of the first purchase".to_owned(),
            Ok(PurchaseResponse::Rejected { status, message }) => {
                format!("refused with {status}: {message}")
            }
            Ok(PurchaseResponse::RefusedHere(why)) => format!("not sent: {why}"),
            Err(trouble) => describe(&trouble),
        };
        let asked = format!("{} units under the same id", bought.units + 1);
        self.note(
            "the same id with another count",
            &asked,
            came,
            Follows::Seen,
        );
    }

    /// How long it takes until the provider finds the purchase by our id.
    async fn list(&mut self, bought: &mut ProofBuy) {
        let began = Instant::now();
        let mut trouble = None;
        let found = loop {
            match self.provider.look_up(&bought.by_id()).await {
                Ok(LookUpResponse::Found(found)) => break Some(found),
                Ok(LookUpResponse::NotFound) => {}
                Err(error) => trouble = Some(describe(&error)),
            }
            if began.elapsed() >= self.patience() {
                break None;
            }
            tokio::time::sleep(PACE).await;
        };
        let asked = "look-ups by our id only";
        let question = "the delay until the purchase is found";
        let Some(found) = found else {
            let came = trouble.unwrap_or_else(|| "it was not found".to_owned());
            return self.note(question, asked, came, Follows::Unanswered);
        };
        bought.add(&found);
        let came = format!(
            "it was found {} s after it was sent",
            bought.age().as_secs()
        );
        self.note(question, asked, came, Follows::Seen);
    }

    /// The units of all purchases with this id: those that the provider lists by our id, and those
    /// of each of its own ids.
    async fn listed(&self, bought: &mut ProofBuy) -> Vec<ProviderUnit> {
        let mut units = BTreeMap::new();
        let mut keep = |found: BoughtUnits| {
            for unit in found.units {
                units.insert(unit.unit_id.as_str().to_owned(), unit);
            }
        };
        if let Ok(LookUpResponse::Found(found)) = self.provider.look_up(&bought.by_id()).await {
            bought.add(&found);
            keep(found);
        }
        for reference in &bought.references {
            let request = LookUpRequest {
                reference: provisioner::providers::ProviderId::parse(reference.clone()).ok(),
                ..bought.by_id()
            };
            if let Ok(LookUpResponse::Found(found)) = self.provider.collect(&request).await {
                keep(found);
            }
        }
        units.into_values().collect()
    }

    /// Waits for the profiles, and gives everything back that was bought under this id.
    async fn end(&mut self, mut bought: ProofBuy, keep: bool) -> anyhow::Result<()> {
        let began = Instant::now();
        let units = loop {
            let units = self.listed(&mut bought).await;
            let is_pending = |unit: &ProviderUnit| matches!(unit.state, ProviderUnitState::Pending);
            let is_whole = units.len() >= bought.units && !units.iter().any(is_pending);
            if is_whole || began.elapsed() >= self.patience() {
                break units;
            }
            tokio::time::sleep(PACE).await;
        };
        self.note_references(&bought).await?;
        if self.can.purchase_key && units.len() > bought.units && bought.units <= 1 {
            let came = format!("{} units are listed under its id", units.len());
            self.note(
                "the units of all requests with one id",
                "the list",
                came,
                Follows::Seen,
            );
        }
        if keep {
            self.note(
                "giving back",
                "nothing",
                "kept for the next run".into(),
                Follows::Unanswered,
            );
            return self.store(bought.id, false).await;
        }
        if !(self.can.give_back && self.can.usage) {
            let came = format!("{} units stay in the account", units.len());
            self.note("giving back", "nothing", came, Follows::Seen);
            return self.store(bought.id, !units.is_empty()).await;
        }
        let mut returned = 0;
        for (position, unit) in units.iter().enumerate() {
            let ProviderUnitState::Ready { iccid, .. } = &unit.state else {
                continue;
            };
            let esim = DeliveredEsim {
                unit_id: unit.unit_id.clone(),
                iccid: iccid.clone(),
            };
            let first = self.provider.give_back(&esim).await;
            let is_back = match &first {
                Ok(GiveBackResponse::Returned) => true,
                // The outcome is unknown, and a look settles it.
                _ => self
                    .provider
                    .status(&esim)
                    .await
                    .is_ok_and(|status| status.custody == Custody::Returned),
            };
            returned += usize::from(is_back);
            if position == 0 {
                let asked = "the same eSIM given back twice";
                let second = self.provider.give_back(&esim).await;
                let came = format!("{}, then {}", given_back(&first), given_back(&second));
                self.note("giving back twice", asked, came, Follows::Seen);
            }
        }
        let is_ended = returned == units.len() && !units.is_empty();
        let came = format!("{returned} of {} were given back", units.len());
        let follows = if is_ended {
            Follows::Documented
        } else {
            Follows::Unanswered
        };
        self.note("giving back", "all units of this purchase", came, follows);
        self.store(bought.id, is_ended).await
    }

    /// Takes up a purchase that an earlier proof has left.
    async fn take_up(&mut self, left: LeftPurchase) -> anyhow::Result<()> {
        let mut bought = ProofBuy {
            id: left.id,
            option: left.provider_option_id,
            units: usize::try_from(left.units)?,
            age: left.age,
            since: Instant::now(),
            references: BTreeSet::new(),
        };
        let found = match self.provider.look_up(&bought.by_id()).await {
            Ok(LookUpResponse::Found(found)) => found,
            Ok(LookUpResponse::NotFound) => {
                let came = "it was not found".to_owned();
                let asked = "a look-up by our id";
                self.note(
                    "a purchase of an earlier proof",
                    asked,
                    came,
                    Follows::Unanswered,
                );
                return self.store(bought.id, left.age > GONE).await;
            }
            Err(trouble) => {
                let came = describe(&trouble);
                let asked = "a look-up by our id";
                self.note(
                    "a purchase of an earlier proof",
                    asked,
                    came,
                    Follows::Unanswered,
                );
                return Ok(());
            }
        };
        bought.add(&found);
        // It is repeated only if a repeat was the same purchase before. Otherwise it could be sold
        // once more.
        if self.can.purchase_key && left.same_again == Some(true) {
            self.repeat("the identical request much later", &mut bought)
                .await?;
        }
        self.end(bought, false).await
    }

    async fn note_references(&mut self, bought: &ProofBuy) -> anyhow::Result<()> {
        if bought.references.is_empty() {
            return Ok(());
        }
        let all: Vec<&str> = bought.references.iter().map(String::as_str).collect();
        Ok(proofs::note_reference(self.connection, bought.id, &all.join(" ")).await?)
    }

    /// Stores the steps so far as the evidence of a purchase.
    async fn store(&mut self, id: PlacementId, is_ended: bool) -> anyhow::Result<()> {
        let evidence = serde_json::to_string(&self.steps)?;
        Ok(proofs::note_evidence(self.connection, id, &evidence, is_ended).await?)
    }
}

fn given_back(response: &Result<GiveBackResponse, Trouble>) -> String {
    match response {
        Ok(GiveBackResponse::Returned) => "returned".to_owned(),
        Ok(GiveBackResponse::Refused(message)) => format!("refused: {message}"),
        Err(trouble) => describe(trouble),
    }
}
