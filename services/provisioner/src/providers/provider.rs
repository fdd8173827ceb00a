//! The interface to an eSIM provider, and the classes of its responses. Each provider has an
//! adapter that implements [`Adapter`]; [`crate::calls`] calls it as a [`Provider`].
//!
//! The rule for every adapter: if it is not certain what a response means, it returns
//! [`Trouble::Unknown`]. That costs one look-up. A wrong guess costs more: a purchase that is taken
//! for a failure is bought again, and a failure that is taken for a rejection loses the order.

use std::{
    future::{Ready, ready},
    sync::Arc,
    time::Duration,
};

use domain::{
    Iccid, InvalidProfile, PlacementId, Reason, esim_change::GiveBackCause, extension::Baseline,
    reason::ReasonCode,
};
use futures_util::{FutureExt, future::BoxFuture};
use reqwest::header::HeaderMap;
use runtime::clock::Moment;
use signing::CallbackToken;
use store::esim_requests::Reading;

pub use super::trouble::{DeliveredEsim, Heard, Trouble};
use super::{
    extension::{
        BeforeExtension, ExtendResponse, Extension, ExtensionOffer, ExtensionSeen, FindExtension,
        ProviderProfile,
    },
    lists::{ListPage, ProductOffer, PurchasePeriod, SoldPurchase},
    text::ProviderId,
};
use crate::rate::Rate;

/// The limits of a call to a provider.
#[derive(Clone, Copy, Debug)]
pub struct CallLimits {
    /// The deadline of a whole call.
    pub timeout: Duration,
    /// The largest response, in bytes. A larger one is not read: its outcome is unknown.
    pub response_max: usize,
}

/// The bounds of the calls to a provider, and their pace.
#[derive(Clone)]
pub struct PacedCalls {
    pub limits: CallLimits,
    /// Gives each call of this process to this provider its turn under `PROVIDER_RATE`.
    pub rate: Arc<Rate>,
}

impl PacedCalls {
    /// For tests, and for tools that make only a few calls.
    pub fn without_rate(limits: CallLimits) -> Self {
        Self {
            limits,
            rate: Arc::new(Rate::new(0, String::new())),
        }
    }
}

/// A configured provider.
pub struct ProviderConnection {
    pub provider: Arc<dyn Provider>,
    /// The token in the URL of callbacks; `None` if the provider does not call back.
    pub callback_token: Option<CallbackToken>,
}

/// What a provider can do. The adapter declares it, and nothing is assumed of a provider that it
/// has not declared. docs/providers.md shows the capabilities of all providers in one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each one is a separate capability, and a provider may have any of them"
)]
pub struct Capabilities {
    /// The provider sells a purchase only once, however often it gets our id. That is its word
    /// only, so nothing relies on it for an account for which `esimctl provider prove` has not seen
    /// it. Where that is proved, an attempt that nothing else can settle is sent again.
    pub purchase_key: bool,
    pub look_up: LookUp,
    /// The provider calls us, when a profile is ready or when something becomes of an eSIM.
    pub callbacks: bool,
    /// A unit that has no profile yet can be cancelled.
    pub cancel: bool,
    /// A delivered eSIM can be given back, and this is how; `None` if the provider takes none back.
    pub give_back: Option<GiveBackWay>,
    /// A delivered eSIM can be suspended and resumed, and the provider shows whether it is.
    pub suspend: bool,
    /// The provider shows the state of an eSIM: how much of its data is used, and, if it takes
    /// eSIMs back, whether this one is installed or given back.
    pub usage: bool,
    /// Data or days can be added to a delivered eSIM, and this is how it is found out whether that
    /// was done; `None` if the provider adds nothing.
    pub extend: Option<FindExtension>,
    /// The provider shows how much money is left in our account.
    pub balance: bool,
    /// The provider lists what it sells, with prices.
    pub catalogue: bool,
    /// The provider lists what we have bought.
    pub purchases: bool,
}

/// How a provider takes delivered eSIMs back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveBackWay {
    /// By itself, if nobody has installed the eSIM.
    Uninstalled,
    /// By a claim that people decide, also for one that is installed. No look shows a claim, only
    /// that its money has come.
    Claim,
}

/// How a provider finds a purchase by our id, and so what it means if it finds none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookUp {
    /// The provider knows purchases by our id. If it says that there is none, there is none.
    Exact,
    /// The provider knows purchases by our id, but nobody knows how it says that it has none. So
    /// nothing is ever bought again because of what it says.
    ById,
    /// The adapter searches a list of purchases and checks each hit again. A purchase that is found
    /// is certain. One that is not found may still exist, for example on a page that moved while it
    /// was read, so nothing is ever bought again on the strength of such a search.
    Search,
}

/// A purchase: all units of one placement.
#[derive(Clone, Debug)]
pub struct Purchase {
    /// Our id of the purchase at the provider, the same in every attempt.
    pub placement_id: PlacementId,
    /// The provider's option ids, each with the number of units.
    pub items: Vec<(String, usize)>,
    /// The time until which it may be sent. An adapter that needs other calls before it, for
    /// example for a token, checks the time again after them.
    pub send_by: Moment,
}

impl Purchase {
    /// Whether it may still be sent, for an adapter that has made other calls before it.
    pub(super) fn is_in_time(&self) -> Result<(), Trouble> {
        if self.send_by.has_passed() {
            let late = "its time was over before it could be sent";
            return Err(Trouble::NotSent(late.to_owned()));
        }
        Ok(())
    }
}

/// A purchase that the provider is asked about, by a look-up or a collect.
#[derive(Clone, Debug)]
pub struct LookUpRequest {
    /// Our id of the purchase at the provider.
    pub placement_id: PlacementId,
    /// The provider's own id of the purchase, if it has named one before.
    pub reference: Option<ProviderId>,
    /// The options that were ordered, for an adapter whose provider names a product as we order it.
    /// Empty if nothing was ordered, because only the look-up is tried.
    pub options: Vec<String>,
    /// How long ago the last attempt was recorded. The purchase is not older, apart from the
    /// difference between our clock and that of the provider.
    pub attempt_age: Duration,
    /// How long after the record of an attempt its purchase may still arrive at the provider
    /// (`SETTLE`).
    pub arrives_within: Duration,
}

/// What the provider has sold us in one purchase.
#[derive(Clone, Debug, Default)]
pub struct BoughtUnits {
    /// The provider's own id of the purchase. It is stored with the placement, and later look-ups
    /// and collects get it. `None` if the provider has none, or did not name it this time.
    pub reference: Option<ProviderId>,
    /// The units. The list may be incomplete; a collect brings the rest.
    pub units: Vec<ProviderUnit>,
}

impl BoughtUnits {
    /// Whether nothing is left to collect of a purchase of this many units.
    pub fn is_complete(&self, units: usize) -> bool {
        self.units.len() >= units
            && self
                .units
                .iter()
                .all(|unit| matches!(unit.state, ProviderUnitState::Ready(_)))
    }
}

impl From<Vec<ProviderUnit>> for BoughtUnits {
    /// A purchase that the provider knows by our id only.
    fn from(units: Vec<ProviderUnit>) -> Self {
        Self {
            reference: None,
            units,
        }
    }
}

/// A definite response to a purchase. Anything that is not definite is a [`Trouble`].
#[derive(Clone, Debug)]
pub enum PurchaseResponse {
    /// The provider has the purchase, perhaps from an earlier attempt.
    Bought(BoughtUnits),
    /// The provider refuses for good, for example because the product does not exist, is out of
    /// stock, or the balance is used up. It also means that no earlier attempt of this placement
    /// has bought anything. So the response "this id was already used" is not a rejection but
    /// `Bought`, with an empty list.
    Rejected {
        status: String,
        /// The provider's message: one short line without control and format characters.
        message: String,
    },
}

/// A definite response to a look-up by our id.
#[derive(Clone, Debug)]
pub enum LookUpResponse {
    /// The provider has the purchase.
    Found(BoughtUnits),
    /// The provider states that there is no such purchase, in a form that no proxy could have sent.
    /// If this is wrong, something may be bought twice. So a 404 without the body that the protocol
    /// defines is [`Trouble::Unknown`]. Without [`LookUp::Exact`] it only means that nothing was
    /// found.
    NotFound,
}

/// One unit of a purchase, as the provider lists it.
#[derive(Clone, Debug)]
pub struct ProviderUnit {
    pub unit_id: ProviderId,
    /// The product, as [`Provider::product`] names it for an option; `None` if the response omits
    /// it.
    pub product_id: Option<ProviderId>,
    /// Another name by which the option can be ordered, if the provider has one and the response
    /// says it.
    pub product_alias: Option<ProviderId>,
    pub state: ProviderUnitState,
}

/// The state of a provider's unit.
#[derive(Clone, Debug)]
pub enum ProviderUnitState {
    /// No usable profile yet.
    Pending,
    Ready(ProviderProfile),
    /// The provider has sent a profile that cannot be delivered.
    Unreadable(ProfileFault),
    /// The unit will never have a profile, with the reason.
    Failed(String),
}

/// Why a profile that has arrived cannot be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileFault {
    /// This field cannot be read.
    Field(&'static str),
    /// Nobody can install the eSIM without a confirmation code, for which the webhook has no field.
    ConfirmationCode,
}

impl ProfileFault {
    /// The fault of an activation code in this field.
    pub(super) fn of_code(error: &InvalidProfile, field: &'static str) -> Self {
        match error {
            InvalidProfile::ConfirmationCode => Self::ConfirmationCode,
            InvalidProfile::Smdp
            | InvalidProfile::MatchingId
            | InvalidProfile::Shape
            | InvalidProfile::Iccid => Self::Field(field),
        }
    }
}

impl From<&'static str> for ProfileFault {
    fn from(field: &'static str) -> Self {
        Self::Field(field)
    }
}

impl From<ProfileFault> for Reason {
    fn from(fault: ProfileFault) -> Self {
        match fault {
            ProfileFault::Field(field) => Self::with(ReasonCode::ProfileUnreadable, field),
            ProfileFault::ConfirmationCode => ReasonCode::ConfirmationCodeNeeded.into(),
        }
    }
}

/// What a protocol calls a unit and its ids, for the text of a response that cannot be read.
pub(super) struct UnitFields {
    pub(super) unit: &'static str,
    pub(super) unit_id: &'static str,
    pub(super) product_id: &'static str,
}

impl UnitFields {
    /// Reads the unit at this index of a list. One bad id makes the whole response unreadable.
    pub(super) fn read(
        &self,
        index: usize,
        unit_id: String,
        product_id: Option<String>,
        state: Result<ProviderUnitState, ProfileFault>,
    ) -> Result<ProviderUnit, Trouble> {
        let field = |name: &str| format!("{name} of {} {}", self.unit, index + 1);
        let unit_id = id_in(&field(self.unit_id), unit_id)?;
        let product_id = product_id
            .filter(|id| !id.is_empty())
            .map(|id| id_in(&field(self.product_id), id))
            .transpose()?;
        let state = ProviderUnitState::read(&unit_id, state);
        Ok(ProviderUnit {
            unit_id,
            product_id,
            product_alias: None,
            state,
        })
    }
}

/// Reads the id in a field of a response.
pub(super) fn id_in(field: &str, id: String) -> Result<ProviderId, Trouble> {
    ProviderId::parse(id).map_err(|error| Trouble::unreadable(format_args!("{field} {error}")))
}

impl ProviderUnitState {
    /// The state of a unit whose profile has arrived. A fault is logged, because it needs the
    /// provider or an operator.
    pub(super) fn read(unit_id: &ProviderId, state: Result<Self, ProfileFault>) -> Self {
        state.unwrap_or_else(|fault| {
            tracing::error!(
                provider.unit.id = unit_id.as_str(),
                fault = Reason::from(fault).told(),
                "a profile cannot be delivered; the unit is asked for again, and its placement is \
                 parked if that lasts"
            );
            Self::Unreadable(fault)
        })
    }
}

/// The text of a field; `None` if the field is missing or blank, which means that the provider has
/// not filled it yet.
pub(super) fn filled(field: Option<&String>) -> Option<&str> {
    field
        .map(|text| text.trim())
        .filter(|text| !text.is_empty())
}

/// What is left in our account.
#[derive(Clone, Debug, PartialEq)]
pub struct Balance {
    pub amount: f64,
    /// Its code, such as `USD`.
    pub currency: String,
}

/// What the provider says about a delivered eSIM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EsimStatus {
    pub reading: Reading,
    pub custody: Custody,
    /// Whether it is suspended; `None` if the provider does not say so, or can neither suspend nor
    /// resume it in its state.
    pub suspended: Option<bool>,
}

/// Whether an eSIM can be given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Custody {
    /// The provider would take it back now.
    Returnable,
    /// The provider has it back.
    Returned,
    /// The provider does not take it back, with its word for the state of the eSIM: one short line.
    Kept(String),
    /// No look shows it. The provider says it when it is told to take the eSIM back, and says that
    /// it has it if it is told again.
    Unshown,
    /// The provider has a claim for it that is not decided, with its word for the state: one short
    /// line.
    Claimed(String),
    /// The provider does not have it back. No look shows whether there is a claim for it. With its
    /// word for the state of the order: one short line.
    ClaimUnshown(String),
}

/// A definite response to a give-back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GiveBackResponse {
    /// The provider has the eSIM back.
    Returned,
    /// The provider refuses it, and the eSIM stays as it is. The message is one short line. A
    /// response "it was given back before" is no refusal but `Returned`, or [`Trouble::Unknown`],
    /// and a look at the eSIM settles it.
    Refused(String),
    /// People at the provider decide later whether it takes the eSIM back.
    Claimed {
        /// The provider's own id of the claim, if it has one.
        reference: Option<ProviderId>,
        /// The provider's word for the state of the claim, if it says one: one short line.
        said: Option<String>,
    },
}

/// A definite response to the request to suspend or to resume an eSIM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SuspendResponse {
    /// The eSIM is as we want it.
    Done,
    /// The provider refuses it, and the eSIM stays as it is. The message is one short line.
    Refused(String),
}

/// A request to the URL of callbacks.
#[derive(Clone, Copy, Debug)]
pub struct CallbackRequest<'a> {
    /// Behind the `?` of the URL.
    pub query: Option<&'a str>,
    pub headers: &'a HeaderMap,
    pub body: &'a [u8],
}

/// Why nothing is done about a callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadCallback {
    Unreadable,
    /// The provider signs its callbacks, and this one has no signature of it.
    Forged,
}

/// What a callback tells us to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hint {
    /// Collect the purchase that has this unit.
    Unit(ProviderId),
    /// Collect this purchase, which the callback names by our id.
    Purchase(PlacementId),
    /// Keep this report about a delivered eSIM or our account, and confirm it by a call.
    Report(ProviderReport),
    /// Nothing, for example because the provider only tries whether we answer.
    Nothing,
}

/// What a provider reports after the sale. It is kept, and confirmed by a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderReport {
    pub about: ReportSubject,
    /// By which the report is recognised if it comes again. It may be long.
    pub key: String,
    /// What it says, for operators: one short line without anything personal or secret.
    pub words: String,
}

/// What a report is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReportSubject {
    /// A delivered eSIM by the provider's id of the unit.
    Unit(ProviderId),
    Iccid(Iccid),
    /// Our account. What is left in it is read every few minutes anyway.
    Account,
}

impl ReportSubject {
    /// What it is about, in one word that tells it from everything else at its provider.
    pub fn name(&self) -> &str {
        match self {
            Self::Unit(unit_id) => unit_id.as_str(),
            Self::Iccid(iccid) => iccid.as_str(),
            Self::Account => "account",
        }
    }
}

/// A product that a provider documents to be refused, with the code of the refusal.
#[derive(Clone, Copy, Debug)]
pub struct RefusedProduct {
    pub product: &'static str,
    pub code: &'static str,
}

/// A question about a provider that no program can answer, with how a person does.
#[derive(Clone, Copy, Debug)]
pub struct OpenQuestion {
    pub question: &'static str,
    pub how: &'static str,
}

/// What a live account has answered to a question that the documents leave open.
#[derive(Clone, Debug)]
pub struct LiveAnswer {
    pub question: &'static str,
    pub asked: String,
    /// One short line.
    pub came: String,
    /// Whether that is what the provider documents; `None` if no document says what should come.
    pub is_documented: Option<bool>,
}

impl LiveAnswer {
    /// What came, of which no document says what it should be.
    pub(super) fn seen(question: &'static str, asked: String, came: String) -> Self {
        Self {
            question,
            asked,
            came,
            is_documented: None,
        }
    }

    /// The answer to a call with a wrong key, to which the provider documents to deny access.
    pub(super) fn to_wrong_key(asked: &str, response: Result<String, Trouble>) -> Self {
        let (came, is_documented) = match response {
            Ok(came) => (came, Some(false)),
            Err(Trouble::Denied(reason)) => (reason, Some(true)),
            Err(trouble) => (trouble.reason().to_owned(), None),
        };
        Self {
            question: "a call with a wrong key",
            asked: asked.to_owned(),
            came,
            is_documented,
        }
    }
}

/// What an adapter knows without a call.
pub trait ProviderFacts: Send + Sync + 'static {
    /// What the provider can do.
    fn capabilities(&self) -> Capabilities;
    /// Whether the adapter itself takes the turns of its look-ups, because one call may answer
    /// several of them.
    fn paces_look_ups(&self) -> bool {
        false
    }
    /// How long the response to a purchase may take. By default that is the timeout of every call
    /// (`PROVIDER_TIMEOUT`). It must not be more with [`LookUp::Exact`], because a purchase has to
    /// end before a look-up may say that there is none, and `SETTLE` is compared with that setting.
    fn purchase_timeout(&self, of_each_call: Duration) -> Duration {
        of_each_call
    }
    /// Products that the provider refuses, for `esimctl provider prove` to try how.
    fn refused_products(&self) -> &'static [RefusedProduct] {
        &[]
    }
    /// What only a person can find out, for the plan of `esimctl provider prove`.
    fn open_questions(&self) -> &'static [OpenQuestion] {
        &[]
    }
    /// How far the clock of the provider was ahead of ours at its last response, in seconds, by the
    /// header `Date`; negative if it was behind. `None` before any response, or without the header.
    fn clock_ahead(&self) -> Option<i64>;
    /// The product that an option of our catalogue stands for, as the provider's units name it. By
    /// default the option names the product and nothing else.
    fn product<'a>(&self, provider_option_id: &'a str) -> &'a str {
        provider_option_id
    }
    /// What a callback tells us. Nothing else of it is used, because most providers do not sign
    /// their callbacks. By default a provider does not call back.
    fn read_callback(&self, _callback: CallbackRequest<'_>) -> Result<Hint, BadCallback> {
        Err(BadCallback::Unreadable)
    }
}

/// The adapter of one provider: it translates between our calls and the provider's protocol. Its
/// callers hold it as a [`Provider`].
pub(crate) trait Adapter: ProviderFacts {
    /// Buys. Called once for each recorded attempt, and only by the process that recorded it. Only
    /// where it is proved that an identical request is the same purchase is it called again, with
    /// the same purchase, which must lead to the same request.
    fn purchase(
        &self,
        purchase: &Purchase,
    ) -> impl Future<Output = Result<PurchaseResponse, Trouble>> + Send;
    /// Looks a purchase up by our id, or asks for the profiles of one that the provider has. Buys
    /// nothing.
    fn look_up(
        &self,
        look_up: &LookUpRequest,
    ) -> impl Future<Output = Result<LookUpResponse, Trouble>> + Send;
    /// What is left in our account. Called only if [`Capabilities::balance`] is declared.
    fn balance(&self) -> impl Future<Output = Result<Balance, Trouble>> + Send {
        undeclared("this provider does not show the balance")
    }
    /// A page of the products that the provider sells; the first page is 1. Called only if
    /// [`Capabilities::catalogue`] is declared.
    fn products(
        &self,
        _page: u32,
    ) -> impl Future<Output = Result<ListPage<ProductOffer>, Trouble>> + Send {
        undeclared("this provider does not list its products")
    }
    /// A page of what we have bought within a time; the first page is 1. Called only if
    /// [`Capabilities::purchases`] is declared.
    fn purchases(
        &self,
        _span: PurchasePeriod,
        _page: u32,
    ) -> impl Future<Output = Result<ListPage<SoldPurchase>, Trouble>> + Send {
        undeclared("this provider does not list our purchases")
    }
    /// The state of a delivered eSIM. Called only if [`Capabilities::usage`] is declared. An eSIM
    /// that the provider does not know is [`Trouble::Unknown`].
    fn status(
        &self,
        _esim: &DeliveredEsim,
    ) -> impl Future<Output = Result<EsimStatus, Trouble>> + Send {
        undeclared("this provider does not show the state of an eSIM")
    }
    /// Gives a delivered eSIM back, or claims that. Called once for each recorded attempt, by the
    /// process that recorded it, and only if [`Capabilities::give_back`] and
    /// [`Capabilities::usage`] are declared, because an outcome that is unknown is settled by looks
    /// at the eSIM. If those do not show it ([`Custody::Unshown`]), it is called again for the same
    /// attempt.
    fn give_back(
        &self,
        _esim: &DeliveredEsim,
        _cause: GiveBackCause,
    ) -> impl Future<Output = Result<GiveBackResponse, Trouble>> + Send {
        undeclared("this provider takes no eSIM back")
    }
    /// Looks whether a delivered eSIM for which a claim may have been sent is given back. Called
    /// only with [`GiveBackWay::Claim`], and then what [`Self::status`] says of that does not
    /// count.
    fn find_claim(
        &self,
        _esim: &DeliveredEsim,
    ) -> impl Future<Output = Result<Custody, Trouble>> + Send {
        undeclared("this provider takes no claims")
    }
    /// Suspends a delivered eSIM, or resumes it with `false`. Called once for each recorded
    /// attempt, by the process that recorded it, of an eSIM that is not so yet, and only if
    /// [`Capabilities::suspend`] and [`Capabilities::usage`] are declared, because an outcome that
    /// is unknown is settled by looks at the eSIM.
    fn suspend(
        &self,
        _esim: &DeliveredEsim,
        _suspend: bool,
    ) -> impl Future<Output = Result<SuspendResponse, Trouble>> + Send {
        undeclared("this provider suspends no eSIM")
    }
    /// What can be added to a delivered eSIM now; `None` if the provider has no such list, so that
    /// only our catalogue says it. Like the next three, it is called only if
    /// [`Capabilities::extend`] is declared.
    fn offers(
        &self,
        _esim: &DeliveredEsim,
    ) -> impl Future<Output = Result<Option<Vec<ExtensionOffer>>, Trouble>> + Send {
        undeclared(NOTHING_ADDED)
    }
    /// Reads the baseline of an extension just before its attempt is recorded. Buys nothing.
    fn before_extension(
        &self,
        _extension: &Extension,
    ) -> impl Future<Output = Result<BeforeExtension, Trouble>> + Send {
        undeclared(NOTHING_ADDED)
    }
    /// Buys an extension. Called once for each recorded attempt, and only by the process that
    /// recorded it.
    fn extend(
        &self,
        _extension: &Extension,
    ) -> impl Future<Output = Result<ExtendResponse, Trouble>> + Send {
        undeclared(NOTHING_ADDED)
    }
    /// Looks for an extension of which an attempt was recorded with this baseline. Buys nothing.
    fn find_extension(
        &self,
        _extension: &Extension,
        _baseline: &Baseline,
    ) -> impl Future<Output = Result<ExtensionSeen, Trouble>> + Send {
        undeclared(NOTHING_ADDED)
    }
    /// Asks what only a live account can answer about this protocol alone, for `esimctl provider
    /// prove`. Buys nothing.
    fn ask_live(&self) -> impl Future<Output = Vec<LiveAnswer>> + Send {
        ready(Vec::new())
    }
    /// Asks the same about a new eSIM of such a proof. Changes nothing.
    fn ask_about(&self, _esim: &DeliveredEsim) -> impl Future<Output = Vec<LiveAnswer>> + Send {
        ready(Vec::new())
    }
    /// Asks the same about a purchase of such a proof, by the provider's own id. Changes nothing.
    fn ask_about_purchase(
        &self,
        _reference: &ProviderId,
    ) -> impl Future<Output = Vec<LiveAnswer>> + Send {
        ready(Vec::new())
    }
}

const NOTHING_ADDED: &str = "this provider adds nothing to a delivered eSIM";

/// The response to a call that the provider is not declared to have.
fn undeclared<T>(reason: &str) -> Ready<Result<T, Trouble>> {
    ready(Err(Trouble::NotSent(reason.to_owned())))
}

/// The response of a provider to a call, when it comes.
pub type Calling<'a, T> = BoxFuture<'a, Result<T, Trouble>>;

/// An [`Adapter`] as its callers hold it, who do not know which one it is. An `async fn` cannot be
/// called through `dyn`, so the calls of all adapters are boxed here.
pub trait Provider: ProviderFacts {
    fn purchase<'a>(&'a self, purchase: &'a Purchase) -> Calling<'a, PurchaseResponse>;
    fn look_up<'a>(&'a self, look_up: &'a LookUpRequest) -> Calling<'a, LookUpResponse>;
    fn balance(&self) -> Calling<'_, Balance>;
    fn products(&self, page: u32) -> Calling<'_, ListPage<ProductOffer>>;
    fn purchases(&self, span: PurchasePeriod, page: u32) -> Calling<'_, ListPage<SoldPurchase>>;
    fn status<'a>(&'a self, esim: &'a DeliveredEsim) -> Calling<'a, EsimStatus>;
    fn give_back<'a>(
        &'a self,
        esim: &'a DeliveredEsim,
        cause: GiveBackCause,
    ) -> Calling<'a, GiveBackResponse>;
    fn find_claim<'a>(&'a self, esim: &'a DeliveredEsim) -> Calling<'a, Custody>;
    fn suspend<'a>(
        &'a self,
        esim: &'a DeliveredEsim,
        suspend: bool,
    ) -> Calling<'a, SuspendResponse>;
    fn offers<'a>(&'a self, esim: &'a DeliveredEsim) -> Calling<'a, Option<Vec<ExtensionOffer>>>;
    fn before_extension<'a>(&'a self, extension: &'a Extension) -> Calling<'a, BeforeExtension>;
    fn extend<'a>(&'a self, extension: &'a Extension) -> Calling<'a, ExtendResponse>;
    fn find_extension<'a>(
        &'a self,
        extension: &'a Extension,
        baseline: &'a Baseline,
    ) -> Calling<'a, ExtensionSeen>;
    fn ask_live(&self) -> BoxFuture<'_, Vec<LiveAnswer>>;
    fn ask_about<'a>(&'a self, esim: &'a DeliveredEsim) -> BoxFuture<'a, Vec<LiveAnswer>>;
    fn ask_about_purchase<'a>(
        &'a self,
        reference: &'a ProviderId,
    ) -> BoxFuture<'a, Vec<LiveAnswer>>;
}

impl<A: Adapter> Provider for A {
    fn purchase<'a>(&'a self, purchase: &'a Purchase) -> Calling<'a, PurchaseResponse> {
        Adapter::purchase(self, purchase).boxed()
    }
    fn look_up<'a>(&'a self, look_up: &'a LookUpRequest) -> Calling<'a, LookUpResponse> {
        Adapter::look_up(self, look_up).boxed()
    }
    fn balance(&self) -> Calling<'_, Balance> {
        Adapter::balance(self).boxed()
    }
    fn products(&self, page: u32) -> Calling<'_, ListPage<ProductOffer>> {
        Adapter::products(self, page).boxed()
    }
    fn purchases(&self, span: PurchasePeriod, page: u32) -> Calling<'_, ListPage<SoldPurchase>> {
        Adapter::purchases(self, span, page).boxed()
    }
    fn status<'a>(&'a self, esim: &'a DeliveredEsim) -> Calling<'a, EsimStatus> {
        Adapter::status(self, esim).boxed()
    }
    fn give_back<'a>(
        &'a self,
        esim: &'a DeliveredEsim,
        cause: GiveBackCause,
    ) -> Calling<'a, GiveBackResponse> {
        Adapter::give_back(self, esim, cause).boxed()
    }
    fn find_claim<'a>(&'a self, esim: &'a DeliveredEsim) -> Calling<'a, Custody> {
        Adapter::find_claim(self, esim).boxed()
    }
    fn suspend<'a>(
        &'a self,
        esim: &'a DeliveredEsim,
        suspend: bool,
    ) -> Calling<'a, SuspendResponse> {
        Adapter::suspend(self, esim, suspend).boxed()
    }
    fn offers<'a>(&'a self, esim: &'a DeliveredEsim) -> Calling<'a, Option<Vec<ExtensionOffer>>> {
        Adapter::offers(self, esim).boxed()
    }
    fn before_extension<'a>(&'a self, extension: &'a Extension) -> Calling<'a, BeforeExtension> {
        Adapter::before_extension(self, extension).boxed()
    }
    fn extend<'a>(&'a self, extension: &'a Extension) -> Calling<'a, ExtendResponse> {
        Adapter::extend(self, extension).boxed()
    }
    fn find_extension<'a>(
        &'a self,
        extension: &'a Extension,
        baseline: &'a Baseline,
    ) -> Calling<'a, ExtensionSeen> {
        Adapter::find_extension(self, extension, baseline).boxed()
    }
    fn ask_live(&self) -> BoxFuture<'_, Vec<LiveAnswer>> {
        Adapter::ask_live(self).boxed()
    }
    fn ask_about<'a>(&'a self, esim: &'a DeliveredEsim) -> BoxFuture<'a, Vec<LiveAnswer>> {
        Adapter::ask_about(self, esim).boxed()
    }
    fn ask_about_purchase<'a>(
        &'a self,
        reference: &'a ProviderId,
    ) -> BoxFuture<'a, Vec<LiveAnswer>> {
        Adapter::ask_about_purchase(self, reference).boxed()
    }
}
