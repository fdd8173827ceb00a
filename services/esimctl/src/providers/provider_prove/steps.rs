//! The steps of a proof, each with what was asked, what came and what follows.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use domain::{PlacementId, esim_change::GiveBackCause};
use pg::PgConnection;
use provisioner::providers::{
    BoughtUnits, Capabilities, Custody, DeliveredEsim, GiveBackResponse, GiveBackWay, Heard,
    LiveAnswer, LookUp, LookUpRequest, LookUpResponse, Provider, ProviderId, ProviderUnit,
    ProviderUnitState, Purchase, PurchasePeriod, PurchaseResponse, SoldPurchase, Trouble,
};
use runtime::{clock::Moment, terminal};
use serde::Serialize;
use store::proofs::{self, LeftPurchase, ProofPurchase, ProvedAccount};

use super::{
    esims::BoughtEsims,
    purchases::{ProofBuy, ProofOutcome, Purchases},
};
use crate::provider_check::describe;

/// How long a new purchase may be missing in the provider's list, and profiles in a purchase. eSIM
/// Access allocates them within 30 s (reference of April 2026).
const LISTED_WITHIN: Duration = Duration::from_secs(90);
/// How often the provider is asked meanwhile.
const PACE: Duration = Duration::from_secs(3);
/// After this time a purchase that no look-up has ever found was not made.
const GONE: Duration = Duration::from_hours(24);
/// Around a purchase, the list of purchases is asked for so much time, because some lists know
/// minutes only.
const NEAR: Duration = Duration::from_mins(1);
/// How much the clock of a list of purchases may differ from ours, as it would with another zone.
const DAY: Duration = Duration::from_hours(24);
/// How many pages of such a list are read.
const LIST_PAGES: u32 = 20;
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
    /// Of an answer that is as documented, or not; `None` if no document says what should come.
    fn of(is_documented: Option<bool>) -> Self {
        match is_documented {
            Some(true) => Self::Documented,
            Some(false) => Self::Contradicted,
            None => Self::Seen,
        }
    }

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
    /// The most that a unit may cost, if the option names it.
    pub price: Option<f64>,
    /// A purchase has cost more than that, so nothing more is bought.
    pub is_too_dear: bool,
    pub wait: Duration,
    pub keep: bool,
    /// The largest number of units of a purchase that is tried, and one more; `None`: neither.
    pub batch: Option<usize>,
    /// What must not be in the evidence, whatever the provider says.
    pub secrets: Vec<String>,
    pub steps: Vec<Step>,
    pub purchases: Purchases,
    /// The eSIMs that were bought.
    pub esims: BoughtEsims,
}

impl Proving<'_> {
    pub async fn all(&mut self, left: Vec<LeftPurchase>) -> anyhow::Result<()> {
        for one in &left {
            let outcome = if one.is_sold {
                ProofOutcome::Bought
            } else {
                ProofOutcome::Unclear
            };
            self.purchases.mark(&ProofBuy::of(one), outcome);
        }
        self.ask_for_nothing().await;
        let answers = self.provider.ask_live().await;
        self.note_answers(answers);
        for one in left {
            self.take_up(one).await?;
        }
        for refused in self.provider.refused_products() {
            self.refused(refused.product, refused.code).await?;
        }
        if let Some(mut bought) = self.buy("a purchase", self.option, 1).await? {
            // A dearer unit is not bought twice, so that the proof keeps to the cost of its plan.
            let mut is_same = !self.is_too_dear;
            if self.can.purchase_key && is_same {
                is_same = self
                    .repeat("the identical request at once", &mut bought)
                    .await?;
            }
            self.list(&mut bought).await;
            if self.can.purchase_key && is_same {
                is_same = self.twins().await?;
            }
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
            if sells_two(self.of.provider) && !self.is_too_dear {
                let question = "two units in one purchase";
                if let Some(bought) = self.buy(question, self.option, 2).await? {
                    self.end(bought, false).await?;
                }
            }
        }
        if let Some(batch) = self.batch.filter(|_| !self.is_too_dear) {
            for (question, units) in [
                ("one unit more than a batch", batch + 1),
                ("a whole batch", batch),
            ] {
                if let Some(bought) = self.buy(question, self.option, units).await? {
                    self.end(bought, false).await?;
                }
            }
        }
        self.compare_esims();
        Ok(())
    }

    /// Notes whether each eSIM has a code of its own, and whether an ICCID was sold again that was
    /// given back.
    fn compare_esims(&mut self) {
        let asked = format!("{} eSIMs of this proof", self.esims.number());
        if let Some((came, is_documented)) = self.esims.codes() {
            let question = "the activation codes of several eSIMs";
            self.note(question, &asked, came, Follows::of(is_documented));
            let question = "the ICCIDs of several eSIMs";
            self.note(question, &asked, self.esims.iccids(), Follows::Seen);
        }
        if let Some(came) = self.esims.resold() {
            let question = "an ICCID that was given back";
            self.note(question, &asked, came, Follows::Seen);
        }
    }

    /// Notes a step, and tells it at once, because a proof takes minutes.
    fn note(&mut self, question: &'static str, asked: &str, came: &str, follows: Follows) {
        let came = without_secrets(came, &self.secrets);
        terminal::say(format_args!("esimctl: {question}: {came}"));
        self.steps.push(Step {
            question,
            asked: without_secrets(asked, &self.secrets),
            came,
            follows,
        });
    }

    /// Notes what the adapter has asked.
    fn note_answers(&mut self, answers: Vec<LiveAnswer>) {
        for answer in answers {
            let follows = Follows::of(answer.is_documented);
            self.note(answer.question, &answer.asked, &answer.came, follows);
        }
    }

    fn was_asked(&self, question: &str) -> bool {
        self.steps.iter().any(|step| step.question == question)
    }

    /// Looks up a purchase that does not exist.
    async fn ask_for_nothing(&mut self) {
        let nothing = LookUpRequest {
            placement_id: PlacementId::new(),
            reference: None,
            attempt_age: Duration::ZERO,
            options: Vec::new(),
            arrives_within: Duration::from_mins(1),
        };
        let (came, follows) = match self.provider.look_up(&nothing).await {
            Ok(LookUpResponse::NotFound) => ("there is none".to_owned(), Follows::Documented),
            Ok(LookUpResponse::Found(_)) => ("one was found".to_owned(), Follows::Contradicted),
            // The provider has answered, and no document says how.
            Err(trouble) => {
                let follows = match trouble.heard() {
                    Some(Heard::NotUnderstood | Heard::ProvesNothing) => Follows::Seen,
                    Some(Heard::Nothing) | None => Follows::Unanswered,
                };
                (describe(&trouble), follows)
            }
        };
        let asked = "a look-up of an id that was never sent";
        self.note("a purchase that does not exist", asked, &came, follows);
    }

    /// Orders a product that the provider refuses by this code, by its documents.
    async fn refused(&mut self, product: &str, code: &str) -> anyhow::Result<()> {
        let bought = self.record(product, 1).await?;
        let response = self.send(&bought, 1).await;
        let asked = format!("a purchase of {product}");
        let is_by_code = |text: &str| {
            text.split(|character: char| !character.is_alphanumeric())
                .any(|word| word == code)
        };
        let (came, follows) = match &response {
            Ok(PurchaseResponse::Bought(_)) => ("it was sold".to_owned(), Follows::Contradicted),
            Ok(PurchaseResponse::Rejected { status, message }) if status == code => (
                format!("refused with {status}: {message}"),
                Follows::Documented,
            ),
            Ok(PurchaseResponse::Rejected { status, message }) => {
                (format!("refused with {status}: {message}"), Follows::Seen)
            }
            Err(trouble) if is_by_code(trouble.reason()) => {
                (describe(trouble), Follows::Documented)
            }
            Err(trouble) => (describe(trouble), Follows::Unanswered),
        };
        // The documented code of what is not for sale says that nothing was sold, also where we
        // would not rely on it.
        let is_refused = follows == Follows::Documented;
        self.note("a product that is refused", &asked, &came, follows);
        if let Some(bought) = self.sent(bought, &response, is_refused).await? {
            self.end(bought, false).await?;
        }
        Ok(())
    }

    /// Records a purchase, before it is sent.
    async fn record(&mut self, option: &str, units: usize) -> anyhow::Result<ProofBuy> {
        let bought = ProofBuy::new(option, units);
        let record = ProofPurchase {
            id: bought.id,
            provider_option_id: option,
            units: i32::try_from(units)?,
        };
        proofs::record(self.connection, self.of, record).await?;
        self.purchases.mark(&bought, ProofOutcome::Unclear);
        Ok(bought)
    }

    /// Notes the outcome of a purchase that was sent. `None` if nothing was bought for certain.
    async fn sent(
        &mut self,
        mut bought: ProofBuy,
        response: &Result<PurchaseResponse, Trouble>,
        is_refused: bool,
    ) -> anyhow::Result<Option<ProofBuy>> {
        if let Ok(PurchaseResponse::Bought(first)) = response {
            bought.add(first);
            self.purchases.mark(&bought, ProofOutcome::Bought);
        }
        self.note_references(&bought).await?;
        let is_nothing = match response {
            Ok(PurchaseResponse::Bought(_)) => false,
            Ok(PurchaseResponse::Rejected { .. }) => true,
            Err(trouble) => !trouble.may_be_carried_out(),
        };
        if is_nothing || is_refused {
            self.purchases.mark(&bought, ProofOutcome::NotBought);
            self.store(bought.id, true).await?;
            return Ok(None);
        }
        Ok(Some(bought))
    }

    /// Records a purchase, sends it, and tells what came. `None` if nothing was bought for certain.
    async fn buy(
        &mut self,
        question: &'static str,
        option: &str,
        units: usize,
    ) -> anyhow::Result<Option<ProofBuy>> {
        let bought = self.record(option, units).await?;
        let is_too_many = self.batch.is_some_and(|batch| units > batch);
        let before = self.balance().await;
        let began = Instant::now();
        let response = self.send(&bought, units).await;
        let seconds = began.elapsed().as_secs();
        let after = self.balance().await;
        let paid = format!(" after {seconds} s{}", paid(before, after));
        let is_dearer = self.is_dearer(units, (before, after));
        self.is_too_dear |= is_dearer;
        let (came, follows) = match &response {
            Ok(PurchaseResponse::Bought(_)) if is_dearer => (
                format!("it was sold{paid}, which is more than the option allows"),
                Follows::Contradicted,
            ),
            // More than the documents promise: we buy no more than they say, all the same.
            Ok(PurchaseResponse::Bought(_)) if is_too_many => {
                (format!("it was sold all the same{paid}"), Follows::Seen)
            }
            Ok(PurchaseResponse::Bought(_)) => (format!("it was sold{paid}"), Follows::Documented),
            Ok(PurchaseResponse::Rejected { status, message }) => {
                let follows = if is_too_many {
                    Follows::Documented
                } else {
                    Follows::Unanswered
                };
                (format!("refused with {status}: {message}"), follows)
            }
            Err(trouble) => (format!("{}{paid}", describe(trouble)), Follows::Unanswered),
        };
        let asked = format!("{units} units under a new id");
        self.note(question, &asked, &came, follows);
        self.sent(bought, &response, false).await
    }

    async fn send(&self, bought: &ProofBuy, units: usize) -> Result<PurchaseResponse, Trouble> {
        let purchase = Purchase {
            placement_id: bought.id,
            items: vec![(bought.option.clone(), units)],
            send_by: Moment::now() + Duration::from_mins(1),
        };
        self.provider.purchase(&purchase).await
    }

    /// Whether a purchase has cost more than its option allows.
    fn is_dearer(&self, units: usize, balance: (Option<f64>, Option<f64>)) -> bool {
        let units = f64::from(u32::try_from(units).unwrap_or(u32::MAX));
        match (self.price, balance) {
            (Some(price), (Some(before), Some(after))) => before - after > price * units + CENT,
            _ => false,
        }
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
        let asked = format!("the same request, {} s after the purchase", age.as_secs());
        let (came, is_same) = self.compare(bought, response, (before, after)).await;
        self.same(question, &asked, (came, is_same), bought, age)
            .await
    }

    /// Sends two identical requests at the same moment, as it happens if the answer to the first
    /// one is late and not lost.
    async fn twins(&mut self) -> anyhow::Result<bool> {
        let mut bought = self.record(self.option, 1).await?;
        let (first, second) = tokio::join!(self.send(&bought, 1), self.send(&bought, 1));
        let (first, second) = match (first, second) {
            (Err(trouble), other) => (other, Err(trouble)),
            both => both,
        };
        let question = "two identical requests at the same moment";
        let asked = "one unit under a new id, twice";
        let (came, is_same) = match &first {
            Ok(PurchaseResponse::Bought(one)) => {
                bought.add(one);
                self.purchases.mark(&bought, ProofOutcome::Bought);
                self.compare(&mut bought, second, (None, None)).await
            }
            Ok(PurchaseResponse::Rejected { status, message }) => {
                (format!("refused with {status}: {message}"), None)
            }
            Err(trouble) => (describe(trouble), None),
        };
        let is_same = self
            .same(question, asked, (came, is_same), &bought, Duration::ZERO)
            .await?;
        self.end(bought, false).await?;
        Ok(is_same)
    }

    /// Whether the response to a repeat shows the same purchase; `None` if it does not tell.
    async fn compare(
        &self,
        bought: &mut ProofBuy,
        response: Result<PurchaseResponse, Trouble>,
        balance: (Option<f64>, Option<f64>),
    ) -> (String, Option<bool>) {
        let has_paid = matches!(balance, (Some(before), Some(after)) if after < before - CENT);
        match response {
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
                        format!(
                            "{listed} units are listed under its id, so it was sold a second time"
                        ),
                        Some(false),
                    )
                } else {
                    ("it is the same purchase".to_owned(), Some(true))
                }
            }
            Ok(PurchaseResponse::Rejected { status, message }) => {
                (format!("refused with {status}: {message}"), Some(false))
            }
            Err(trouble) => (describe(&trouble), None),
        }
    }

    /// Notes whether a repeat was the same purchase.
    async fn same(
        &mut self,
        question: &'static str,
        asked: &str,
        (came, is_same): (String, Option<bool>),
        bought: &ProofBuy,
        age: Duration,
    ) -> anyhow::Result<bool> {
        let follows = match is_same {
            Some(true) => Follows::Documented,
            Some(false) => Follows::Contradicted,
            None => Follows::Unanswered,
        };
        self.note(question, asked, &came, follows);
        self.note_references(bought).await?;
        if let Some(is_same) = is_same {
            proofs::note_repeat(self.connection, bought.id, is_same, age).await?;
        }
        Ok(is_same == Some(true))
    }

    /// Asks for more units under the same id. No document says what comes, so it is only seen.
    async fn change_count(&mut self, bought: &mut ProofBuy) {
        let before = self.balance().await;
        let response = self.send(bought, bought.units + 1).await;
        let after = self.balance().await;
        let came = match response {
            Ok(PurchaseResponse::Bought(again)) if bought.add(&again) => {
                "it was sold under another number".to_owned()
            }
            Ok(PurchaseResponse::Bought(_)) => "it has the number of the first purchase".to_owned(),
            Ok(PurchaseResponse::Rejected { status, message }) => {
                format!("refused with {status}: {message}")
            }
            Err(trouble) => describe(&trouble),
        };
        let came = format!("{came}{}", paid(before, after));
        let asked = format!("{} units under the same id", bought.units + 1);
        let question = "the same id with another count";
        self.note(question, &asked, &came, Follows::Seen);
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
            // Where a look-up is exact, what it does not find is bought again.
            let follows = if self.can.look_up == LookUp::Exact {
                Follows::Contradicted
            } else {
                Follows::Unanswered
            };
            return self.note(question, asked, &came, follows);
        };
        bought.add(&found);
        let came = format!(
            "it was found {} s after it was sent",
            bought.age().as_secs()
        );
        self.note(question, asked, &came, Follows::Seen);
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
                reference: ProviderId::parse(reference.clone()).ok(),
                ..bought.by_id()
            };
            if let Ok(LookUpResponse::Found(found)) = self.provider.look_up(&request).await {
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
        if !bought.is_sold {
            let came = format!(
                "no look-up within {} s finds it; the next run asks again, and after a day it counts as not bought",
                began.elapsed().as_secs()
            );
            let question = "the outcome of an unclear answer";
            self.note(
                question,
                "look-ups by our id only",
                &came,
                Follows::Unanswered,
            );
            return self.store(bought.id, false).await;
        }
        self.purchases.mark(&bought, ProofOutcome::Bought);
        if self.can.purchase_key && units.len() > bought.units {
            let came = format!("{} units are listed under its id", units.len());
            let question = "the units of all requests with one id";
            self.note(question, "the list", &came, Follows::Seen);
        }
        if units.len() < bought.units {
            let came = format!("{} units are listed of {}", units.len(), bought.units);
            let question = "the units of a purchase";
            self.note(question, "the list", &came, Follows::Unanswered);
        }
        self.esims.add(&bought, &units);
        self.name(&bought, &units);
        self.ask_about(&bought).await;
        self.find_in_list(&bought).await;
        self.show(units.first()).await;
        if keep {
            let came = "kept for the next run".to_owned();
            self.note("giving back", "nothing", &came, Follows::Unanswered);
            return self.store(bought.id, false).await;
        }
        if !gives_back(self.can) {
            let came = format!("{} units stay in the account", units.len());
            self.note("giving back", "nothing", &came, Follows::Seen);
            self.purchases.mark(&bought, ProofOutcome::Stays);
            return self.store(bought.id, !units.is_empty()).await;
        }
        let returned = self.give_back(&units).await;
        // Units that are still missing may come and cost something.
        let is_whole = units.len() >= bought.units || bought.age() > GONE;
        let is_ended = returned == units.len() && !units.is_empty() && is_whole;
        let came = format!("{returned} of {} were given back", units.len());
        let follows = if is_ended {
            self.purchases.mark(&bought, ProofOutcome::GivenBack);
            Follows::Documented
        } else {
            Follows::Unanswered
        };
        self.note("giving back", "all units of this purchase", &came, follows);
        if returned > 0 {
            self.find_after_give_back(&bought).await;
        }
        self.store(bought.id, is_ended).await
    }

    /// Asks what the adapter wants to know of a purchase.
    async fn ask_about(&mut self, bought: &ProofBuy) {
        let reference = bought.references.first().cloned();
        let Some(Ok(reference)) = reference.map(ProviderId::parse) else {
            return;
        };
        for mut answer in self.provider.ask_about_purchase(&reference).await {
            answer.asked = format!("{} of {} units", answer.asked, bought.units);
            self.note_answers(vec![answer]);
        }
    }

    /// Whether the units name the option as it was ordered, by which they are told apart.
    fn name(&mut self, bought: &ProofBuy, units: &[ProviderUnit]) {
        let question = "the name of the option in a purchase";
        let Some(unit) = units.first().filter(|_| !self.was_asked(question)) else {
            return;
        };
        let product = self.provider.product(&bought.option);
        let came = match &unit.product_id {
            None => "none".to_owned(),
            Some(named) if named.as_str() == product => "as it was ordered".to_owned(),
            Some(named) => format!("{}, and it was ordered as {product}", named.as_str()),
        };
        self.note(question, "the units of a purchase", &came, Follows::Seen);
    }

    /// How the provider's list of our purchases shows a purchase, of which `provider reconcile`
    /// makes use.
    async fn find_in_list(&mut self, bought: &ProofBuy) {
        let question = "a purchase in the list of purchases";
        if !self.can.purchases || self.was_asked(question) {
            return;
        }
        let now = runtime::clock::now();
        let (came, follows) = match self.listed_within(bought, DAY).await {
            Ok(Some(sold)) => {
                let at = sold.at.as_deref().unwrap_or("no time");
                let price = sold.price.map(|price| price.to_string());
                let price = price.as_deref().unwrap_or("not said");
                let came = format!("{at}, {} units, price {price}; it is {now} now", sold.units);
                (came, Follows::Seen)
            }
            Ok(None) => ("it is not listed".to_owned(), Follows::Unanswered),
            Err(trouble) => (describe(&trouble), Follows::Unanswered),
        };
        self.note(question, "the purchases of these days", &came, follows);
        let is_listed = follows == Follows::Seen;
        if is_listed && let Ok(near) = self.listed_within(bought, NEAR).await {
            let came = match near {
                Some(_) => "it is listed",
                None => "it is not listed, so its times are of another zone",
            };
            let question = "the list of purchases by its times";
            let asked = "the purchases of the minutes around this one, in UTC";
            self.note(question, asked, came, Follows::Seen);
        }
    }

    /// The entry of a purchase in the list of those so long before it until so long after it.
    async fn listed_within(
        &self,
        bought: &ProofBuy,
        around: Duration,
    ) -> Result<Option<SoldPurchase>, Trouble> {
        let at = runtime::clock::now() - bought.age();
        let span = PurchasePeriod {
            since: at - around,
            until: at + around,
        };
        let id = bought.id.to_string();
        let is_it = |sold: &SoldPurchase| {
            sold.order_id == id || bought.references.contains(sold.reference.as_str())
        };
        let mut page = Some(1);
        while let Some(number @ 1..=LIST_PAGES) = page {
            let listed = self.provider.purchases(span, number).await?;
            let found = listed.entries.into_iter().find(is_it);
            if found.is_some() {
                return Ok(found);
            }
            page = listed.next;
        }
        Ok(None)
    }

    /// Whether the list knows a purchase by its time after it was given back. One that selects by
    /// the last change does not, if that was minutes later.
    async fn find_after_give_back(&mut self, bought: &ProofBuy) {
        let question = "the list of purchases after a give-back";
        if !self.can.purchases || self.was_asked(question) {
            return;
        }
        let Ok(found) = self.listed_within(bought, NEAR).await else {
            return;
        };
        let is_listed = if found.is_some() {
            "it is"
        } else {
            "it is not"
        };
        let came = format!(
            "{is_listed} listed {} s after it was sent",
            bought.age().as_secs()
        );
        let asked = "the purchases of the minutes around this one, in UTC";
        self.note(question, asked, &came, Follows::Seen);
    }

    /// What the provider shows of a new eSIM.
    async fn show(&mut self, unit: Option<&ProviderUnit>) {
        let question = "a new eSIM";
        let Some(esim) = unit.and_then(delivered).filter(|_| self.can.usage) else {
            return;
        };
        if !self.was_asked(question) {
            let answers = self.provider.ask_about(&esim).await;
            self.note_answers(answers);
        }
        let (came, follows) = match self.provider.status(&esim).await {
            Ok(status) => {
                let custody = match status.custody {
                    Custody::Returnable => "can be given back".to_owned(),
                    Custody::Returned => "is given back".to_owned(),
                    Custody::Kept(why) => format!("is not taken back: {why}"),
                    Custody::Unshown => "does not show whether it is taken back".to_owned(),
                    Custody::Claimed(said) | Custody::ClaimUnshown(said) => said,
                };
                let installed = match status.reading.installed {
                    Some(true) => "installed",
                    Some(false) => "not installed",
                    None => "not said whether installed",
                };
                (format!("{installed}, {custody}"), Follows::Seen)
            }
            Err(trouble) => (describe(&trouble), Follows::Unanswered),
        };
        self.note(question, "its state", &came, follows);
    }

    /// Gives units back, the first one twice. Returns how many the provider has back.
    async fn give_back(&mut self, units: &[ProviderUnit]) -> usize {
        let mut returned = 0;
        for (position, unit) in units.iter().enumerate() {
            let Some(esim) = delivered(unit) else {
                // What has failed, or was given back before an interruption, costs nothing.
                if let ProviderUnitState::Failed(said) = &unit.state {
                    returned += 1;
                    let question = "a unit that cannot be used";
                    self.note(question, "the units of a purchase", said, Follows::Seen);
                }
                continue;
            };
            let first = self.provider.give_back(&esim, GiveBackCause::Other).await;
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
            if is_back {
                self.esims.note_return(&esim);
            }
            if position == 0 {
                let asked = "the same eSIM given back twice";
                let second = self.provider.give_back(&esim, GiveBackCause::Other).await;
                let came = format!("{}, then {}", given_back(&first), given_back(&second));
                self.note("giving back twice", asked, &came, Follows::Seen);
            }
        }
        returned
    }

    /// Takes up a purchase that an earlier proof has left.
    async fn take_up(&mut self, left: LeftPurchase) -> anyhow::Result<()> {
        let mut bought = ProofBuy::of(&left);
        let question = "a purchase of an earlier proof";
        let asked = format!("a look-up of {} units by our id", bought.units);
        let found = match self.provider.look_up(&bought.by_id()).await {
            Ok(LookUpResponse::Found(found)) => found,
            Ok(LookUpResponse::NotFound) => {
                let is_gone = left.age > GONE && !left.is_sold;
                let came = "it was not found".to_owned();
                self.note(question, &asked, &came, Follows::Unanswered);
                if is_gone {
                    self.purchases.mark(&bought, ProofOutcome::NotBought);
                }
                return self.store(bought.id, is_gone).await;
            }
            Err(trouble) => {
                self.note(question, &asked, &describe(&trouble), Follows::Unanswered);
                return Ok(());
            }
        };
        bought.add(&found);
        self.purchases.mark(&bought, ProofOutcome::Bought);
        // It is repeated only if a repeat was the same purchase before. Otherwise it could be sold
        // once more.
        if self.can.purchase_key && left.same_again == Some(true) {
            self.repeat("the identical request much later", &mut bought)
                .await?;
        }
        self.end(bought, false).await
    }

    async fn note_references(&mut self, bought: &ProofBuy) -> anyhow::Result<()> {
        if !bought.is_sold {
            return Ok(());
        }
        let all: Vec<&str> = bought.references.iter().map(String::as_str).collect();
        let ours = bought.id.to_string();
        let text = if all.is_empty() { ours } else { all.join(" ") };
        Ok(proofs::note_reference(self.connection, bought.id, &text).await?)
    }

    /// Stores the steps so far as the evidence of a purchase.
    async fn store(&mut self, id: PlacementId, is_ended: bool) -> anyhow::Result<()> {
        let evidence = serde_json::to_string(&self.steps)?;
        Ok(proofs::note_evidence(self.connection, id, &evidence, is_ended).await?)
    }
}

/// Whether the provider sells two units in one purchase.
pub fn sells_two(provider: &str) -> bool {
    let most = domain::cut::cut(provider).units;
    most.is_none_or(|most| most.get() >= 2)
}

/// A unit with its profile, as the provider names it.
fn delivered(unit: &ProviderUnit) -> Option<DeliveredEsim> {
    match &unit.state {
        ProviderUnitState::Ready(profile) => Some(DeliveredEsim {
            unit_id: unit.unit_id.clone(),
            iccid: profile.iccid.clone(),
        }),
        ProviderUnitState::Pending
        | ProviderUnitState::Unreadable(_)
        | ProviderUnitState::Failed(_) => None,
    }
}

/// What the balance says of a purchase.
fn paid(before: Option<f64>, after: Option<f64>) -> String {
    match (before, after) {
        (Some(before), Some(after)) if after < before - CENT => {
            format!("; the balance has fallen by {:.4}", before - after)
        }
        (Some(_), Some(_)) => "; the balance is the same".to_owned(),
        _ => String::new(),
    }
}

/// A text without our keys and without activation codes, which a message of a provider may quote.
fn without_secrets(text: &str, secrets: &[String]) -> String {
    let is_secret = |word: &str| {
        word.contains("LPA:") || word.contains('$') || secrets.iter().any(|one| word.contains(one))
    };
    let words = text.split(' ');
    let words = words.map(|word| if is_secret(word) { "(secret)" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

/// Whether what a proof has bought is given back. A claim would be work for people at the provider.
pub(super) fn gives_back(can: Capabilities) -> bool {
    can.usage && can.give_back == Some(GiveBackWay::Uninstalled)
}

fn given_back(response: &Result<GiveBackResponse, Trouble>) -> String {
    match response {
        Ok(GiveBackResponse::Returned) => "returned".to_owned(),
        Ok(GiveBackResponse::Refused(message)) => format!("refused: {message}"),
        Ok(GiveBackResponse::Claimed { said, .. }) => {
            format!("claimed: {}", said.as_deref().unwrap_or("no state"))
        }
        Err(trouble) => describe(trouble),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_and_no_activation_code_gets_into_the_evidence() {
        let secrets = ["hush".to_owned()];
        for (text, expected) in [
            ("code 11: no credit", "code 11: no credit"),
            (
                "the code LPA:1$smdp.example$AB is used",
                "the code (secret) is used",
            ),
            ("wrong key 'hush'", "wrong key (secret)"),
        ] {
            assert_eq!(without_secrets(text, &secrets), expected);
        }
    }
}
