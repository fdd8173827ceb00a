//! The adapter of Zendit. [`wire`] has the shapes of its messages and reads them, and [`offers`]
//! its catalogue.
//!
//! A purchase buys one eSIM, and its `transactionId` is our id. Zendit asks for it in each purchase
//! and shows the purchase by it, so a lost answer costs one look-up, and one that finds nothing
//! proves that there is nothing ([`LookUp::Exact`]). What a second purchase with the same id does
//! is not documented, so nothing relies on it.
//!
//! Purchases are carried out after they are accepted. One that fails later has used up its id and
//! no money, and its unit fails. Only two answers to a purchase are a rejection: that it has failed
//! already, and that there is no such offer. A 400 is none, because it is not documented how Zendit
//! says that an id was used before.
//!
//! docs/decisions/0038-zendit.md says where each part of the protocol is known from, and what is a
//! guess.

mod offers;
mod wire;

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use domain::{esim_change::GiveBackCause, extension::Baseline};
use reqwest::{
    StatusCode,
    header::{self, HeaderMap, HeaderValue},
};
use serde_json::{Value, json};

use self::wire::{PAGE, Purchased, ZenditRefusal, ZenditState};
use super::{
    account::{AccountSetting, KnownProvider, ProviderAccount},
    extension::{
        BeforeExtension, ExtendResponse, Extension, ExtensionOffer, ExtensionSeen, FindExtension,
        under_way,
    },
    http::{Call, CallBody, Http, Size, parse, path_of},
    lists::{ListPage, ProductOffer, PurchasePeriod, SoldPurchase},
    price::{self, PricedProduct},
    provider::{
        Adapter, BadCallback, Balance, BoughtUnits, CallbackRequest, Capabilities, DeliveredEsim,
        EsimStatus, GiveBackResponse, GiveBackWay, Hint, LiveAnswer, LookUp, LookUpRequest,
        LookUpResponse, OpenQuestion, PacedCalls, ProviderConnection, ProviderFacts, Purchase,
        PurchaseResponse, RefusedProduct, Trouble, filled,
    },
    text::one_line,
};

/// How long a purchase waits if the price of its offer was answered and cannot be read.
const LATER: Duration = Duration::from_secs(10);
/// What it means that an offer has no price that an option could be compared with.
const UNPRICED: &str = "the provider does not sell the offer at a price that we know";
const PURCHASES: &str = "/v1/esim/purchases";
const PURCHASE: &str = "/v1/esim/purchases/{transactionId}";
const REFUND: &str = "/v1/esim/purchases/{transactionId}/refund";
const PLANS: &str = "/v1/esim/{iccid}/plans";
const OFFERS: &str = "/v1/esim/offers";
const OFFER: &str = "/v1/esim/offers/{offerId}";
const BALANCE: &str = "/v1/balance";

pub(super) const KNOWN: KnownProvider = KnownProvider {
    name: "zendit",
    heading: "Provider `zendit`",
    settings: &[
        AccountSetting {
            variable: "ZENDIT_URL",
            option: "zendit-url",
            help: "Base URL of Zendit: scheme and host, without `/v1`",
        },
        AccountSetting {
            variable: "ZENDIT_ACCESS_KEY",
            option: "zendit-access-key",
            help: "API key of our account at Zendit. There is one for its test mode and one for \
                   real purchases",
        },
        AccountSetting::callback_token("ZENDIT_CALLBACK_TOKEN", "zendit-callback-token"),
    ],
    connect,
};

fn connect(account: &ProviderAccount, paced: PacedCalls) -> anyhow::Result<ProviderConnection> {
    // This names the setting if the key cannot be sent in a header.
    let key = account.header("ACCESS_KEY")?;
    let mut bearer = HeaderValue::from_bytes(&[b"Bearer ", key.as_bytes()].concat())
        .context("ZENDIT_ACCESS_KEY cannot be sent in a header")?;
    bearer.set_sensitive(true);
    let provider = Zendit {
        http: Http::new(&account.url()?, paced, is_defined)?,
        bearer,
    };
    Ok(ProviderConnection {
        provider: Arc::new(provider),
        callback_token: account.callback_token()?,
    })
}

/// The statuses whose bodies the protocol defines, apart from those that mean the same for every
/// protocol. A 500 has a body, too, but it says nothing certain.
fn is_defined(status: StatusCode) -> bool {
    const REFUSALS: [StatusCode; 2] = [StatusCode::BAD_REQUEST, StatusCode::NOT_FOUND];
    status.is_success() || REFUSALS.contains(&status)
}

/// An account at Zendit.
struct Zendit {
    http: Http,
    bearer: HeaderValue,
}

/// What a purchase was answered with.
enum Accepted {
    /// It is carried out, or will be.
    Bought,
    Refused {
        status: String,
        message: String,
    },
}

/// A response whose body the protocol defines.
enum Reply {
    Done(Vec<u8>),
    Refused(ZenditRefusal),
}

impl Zendit {
    async fn call(&self, call: Call<'_>) -> Result<Reply, Trouble> {
        self.call_with(self.bearer.clone(), call).await
    }

    async fn call_with(&self, bearer: HeaderValue, call: Call<'_>) -> Result<Reply, Trouble> {
        let headers = HeaderMap::from_iter([
            (header::AUTHORIZATION, bearer),
            (header::ACCEPT, HeaderValue::from_static("application/json")),
        ]);
        let (status, body) = self.http.call(Call { headers, ..call }).await?;
        if status.is_success() {
            return Ok(Reply::Done(body));
        }
        // What a proxy sends is no refusal of the protocol, whatever its status.
        ZenditRefusal::read(status, &body).map(Reply::Refused)
    }

    /// Calls with a key that nobody was given.
    async fn ask(&self) -> Vec<LiveAnswer> {
        self.http.turn().await;
        let wrong = HeaderValue::from_static("Bearer no-such-key");
        let response = self.call_with(wrong, Call::get(BALANCE, BALANCE)).await;
        let response = response.map(|reply| match reply {
            Reply::Done(_) => "it was answered".to_owned(),
            Reply::Refused(refusal) => refusal.trouble().reason().to_owned(),
        });
        let asked = format!("GET {BALANCE}");
        vec![LiveAnswer::to_wrong_key(&asked, response)]
    }

    /// The body of a response that is not refused.
    async fn done(&self, call: Call<'_>) -> Result<Vec<u8>, Trouble> {
        match self.call(call).await? {
            Reply::Done(body) => Ok(body),
            Reply::Refused(refusal) => Err(refusal.trouble()),
        }
    }

    /// One page of a list.
    async fn page(&self, path: &'static str, number: u32) -> Result<Vec<u8>, Trouble> {
        let offset = u64::from(number.saturating_sub(1)) * u64::from(PAGE);
        let query = format!("_limit={PAGE}&_offset={offset}");
        let call = Call {
            query: Some(&query),
            size: Size::List,
            ..Call::get(path, path)
        };
        self.done(call).await
    }

    /// Refuses a purchase whose option allows less than the offer costs now. Whatever becomes of
    /// this call, the purchase was not sent.
    async fn compare_price(&self, priced: &PricedProduct<'_>) -> Result<(), Trouble> {
        let Some(most) = priced.most else {
            return Ok(());
        };
        let unread = |trouble| price::unread(trouble, LATER);
        let path = path_of(OFFER, "{offerId}", priced.product)?;
        // This call comes in addition to the purchase.
        self.http.turn().await;
        let price = match self.call(Call::get(&path, OFFER)).await.map_err(unread)? {
            Reply::Done(body) => offers::price_of(&body, priced.product).map_err(unread)?,
            Reply::Refused(refusal) if refusal.is_absence() => None,
            Reply::Refused(refusal) => return Err(unread(refusal.trouble())),
        };
        price::compare(price, most, UNPRICED)
    }

    /// Buys an eSIM, or a plan for one.
    async fn buy(&self, ours: &str, request: &Value) -> Result<Accepted, Trouble> {
        let call = Call {
            body: Some(CallBody::json(request)?),
            ..Call::post(PURCHASES, PURCHASES)
        };
        let accepted: wire::Accepted = match self.call(call).await? {
            Reply::Done(body) => parse(&body)?,
            Reply::Refused(refusal) if refusal.is_absence() => {
                return Ok(Accepted::Refused {
                    status: refusal.code,
                    message: refusal.message,
                });
            }
            Reply::Refused(refusal) => return Err(refusal.trouble()),
        };
        if accepted.transaction_id != ours {
            return Err(Trouble::not_understood("the response is another purchase"));
        }
        match ZenditState::of(&accepted.status) {
            ZenditState::Open | ZenditState::Done => Ok(Accepted::Bought),
            ZenditState::Failed => Ok(Accepted::Refused {
                status: "FAILED".into(),
                message: "the purchase has failed".into(),
            }),
            ZenditState::Unknown => Err(Trouble::not_understood(format!(
                "the purchase is in the state {}, which is not documented",
                one_line(&accepted.status)
            ))),
        }
    }

    /// Asks for a purchase by our id. `None` if Zendit says that it has none.
    async fn purchased(&self, id: &str) -> Result<Option<Purchased>, Trouble> {
        let path = of_purchase(PURCHASE, id)?;
        let purchased: Purchased = match self.call(Call::get(&path, PURCHASE)).await? {
            Reply::Done(body) => parse(&body)?,
            Reply::Refused(refusal) if refusal.is_absence() => return Ok(None),
            Reply::Refused(refusal) => return Err(refusal.trouble()),
        };
        if purchased.transaction_id != id {
            return Err(Trouble::not_understood("the response is another purchase"));
        }
        Ok(Some(purchased))
    }
}

/// The path of a call about a purchase.
fn of_purchase(route: &str, id: &str) -> Result<String, Trouble> {
    path_of(route, "{transactionId}", id)
}

impl ProviderFacts for Zendit {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            purchase_key: false,
            look_up: LookUp::Exact,
            callbacks: true,
            cancel: false,
            give_back: Some(GiveBackWay::Uninstalled),
            suspend: false,
            usage: true,
            // The same purchase, with the ICCID of the eSIM.
            extend: Some(FindExtension::Exact),
            balance: true,
            catalogue: true,
            purchases: true,
        }
    }

    fn refused_products(&self) -> &'static [RefusedProduct] {
        &[RefusedProduct {
            product: "no-such-product",
            code: "NOT_FOUND",
        }]
    }

    fn open_questions(&self) -> &'static [OpenQuestion] {
        &[
            OpenQuestion {
                question: "a purchase that is sent twice",
                how: "send it by hand; it may be sold twice, and our id can have only one refunded",
            },
            OpenQuestion {
                question: "how often a callback comes again",
                how: "let the callback lead to a receiver of your own that answers 500",
            },
        ]
    }

    fn clock_ahead(&self) -> Option<i64> {
        self.http.clock_ahead()
    }

    fn product<'a>(&self, provider_option_id: &'a str) -> &'a str {
        price::product(provider_option_id)
    }

    fn read_callback(&self, callback: CallbackRequest<'_>) -> Result<Hint, BadCallback> {
        wire::callback(callback.body)
    }
}

impl Adapter for Zendit {
    async fn ask_live(&self) -> Vec<LiveAnswer> {
        self.ask().await
    }

    async fn purchase(&self, purchase: &Purchase) -> Result<PurchaseResponse, Trouble> {
        let [(option, 1)] = purchase.items.as_slice() else {
            return Err(Trouble::RefusedHere(
                "Zendit sells one eSIM in a purchase".into(),
            ));
        };
        let priced = price::priced_product(option)?;
        self.compare_price(&priced).await?;
        // The time is checked after the price was read.
        purchase.is_in_time()?;
        let ours = purchase.placement_id.to_string();
        let request = json!({ "offerId": priced.product, "transactionId": ours });
        match self.buy(&ours, &request).await? {
            Accepted::Bought => Ok(PurchaseResponse::Bought(BoughtUnits::default())),
            Accepted::Refused { status, message } => {
                Ok(PurchaseResponse::Rejected { status, message })
            }
        }
    }

    async fn look_up(&self, look_up: &LookUpRequest) -> Result<LookUpResponse, Trouble> {
        let Some(purchased) = self.purchased(&look_up.placement_id.to_string()).await? else {
            return Ok(LookUpResponse::NotFound);
        };
        let named = filled(purchased.offer_id.as_ref());
        if named.is_some_and(|offer| !price::may_be_of(look_up, offer)) {
            return Err(Trouble::not_understood("the purchase is of another offer"));
        }
        Ok(LookUpResponse::Found(vec![purchased.unit()?].into()))
    }

    async fn balance(&self) -> Result<Balance, Trouble> {
        let body = self.done(Call::get(BALANCE, BALANCE)).await?;
        parse::<wire::ZenditAccount>(&body)?.balance()
    }

    async fn products(&self, page: u32) -> Result<ListPage<ProductOffer>, Trouble> {
        offers::listed(&self.page(OFFERS, page).await?, page)
    }

    /// The form of the filter by time is not public, so all purchases are read, and those of
    /// another time are left out here.
    async fn purchases(
        &self,
        span: PurchasePeriod,
        page: u32,
    ) -> Result<ListPage<SoldPurchase>, Trouble> {
        wire::sold(&self.page(PURCHASES, page).await?, span, page)
    }

    /// Two calls: the purchase shows a refund, and the plans show the data that is used.
    async fn status(&self, esim: &DeliveredEsim) -> Result<EsimStatus, Trouble> {
        let found = self.purchased(esim.unit_id.as_str()).await?;
        let purchased = found.ok_or_else(|| {
            Trouble::not_understood("the provider does not know the purchase of the eSIM")
        })?;
        self.http.turn().await;
        let path = PLANS.replace("{iccid}", esim.iccid.as_str());
        let body = self.done(Call::get(&path, PLANS)).await?;
        let plans: wire::Plans = parse(&body)?;
        plans.status(&purchased, &esim.iccid)
    }

    /// A refund is carried out later, too. Only one that is done is believed at once. A look at the
    /// eSIM settles all others, because the codes of a refusal are not documented, and shows one
    /// that is decided later.
    async fn give_back(
        &self,
        esim: &DeliveredEsim,
        _: GiveBackCause,
    ) -> Result<GiveBackResponse, Trouble> {
        let path = of_purchase(REFUND, esim.unit_id.as_str())?;
        let refund: wire::Refund = parse(&self.done(Call::post(&path, REFUND)).await?)?;
        match ZenditState::of(&refund.status) {
            ZenditState::Done => Ok(GiveBackResponse::Returned),
            _ => Err(Trouble::not_understood(refund.said())),
        }
    }

    /// Which offers an eSIM takes is not documented, so the offer itself is looked at.
    async fn offers(&self, _: &DeliveredEsim) -> Result<Option<Vec<ExtensionOffer>>, Trouble> {
        Ok(None)
    }

    async fn before_extension(&self, extension: &Extension) -> Result<BeforeExtension, Trouble> {
        let priced = match price::priced_product(&extension.provider_option_id) {
            Ok(priced) => priced,
            Err(trouble) => return BeforeExtension::refused_here(trouble),
        };
        let path = path_of(OFFER, "{offerId}", priced.product)?;
        let offer = match self.call(Call::get(&path, OFFER)).await? {
            Reply::Done(body) => offers::plan_of(&body, priced.product)?,
            Reply::Refused(refusal) if refusal.is_absence() => None,
            Reply::Refused(refusal) => return Err(refusal.trouble()),
        };
        let Some(plan) = offer else {
            let unsold = "the provider does not sell the offer".to_owned();
            return Ok(BeforeExtension::Refused(unsold));
        };
        if let Some(most) = priced.most
            && let Err(trouble) = price::compare(plan.price, most, UNPRICED)
        {
            return BeforeExtension::refused_here(trouble);
        }
        Ok(BeforeExtension::Possible(Baseline {
            adds_data: plan.data,
            adds_days: plan.days,
            ..Baseline::default()
        }))
    }

    /// As with an order, the response only says that the purchase is accepted; it may still fail,
    /// and only a look shows the ICCID. So none is believed at once, apart from a refusal.
    async fn extend(&self, extension: &Extension) -> Result<ExtendResponse, Trouble> {
        let priced = price::priced_product(&extension.provider_option_id)?;
        self.compare_price(&priced).await?;
        extension.is_in_time()?;
        let ours = extension.id.to_string();
        let request = json!({
            "offerId": priced.product,
            "transactionId": ours,
            "iccid": extension.esim.iccid.as_str(),
        });
        match self.buy(&ours, &request).await? {
            Accepted::Bought => Err(under_way("accepted")),
            Accepted::Refused { status, message } => {
                Ok(ExtendResponse::Refused { status, message })
            }
        }
    }

    async fn find_extension(
        &self,
        extension: &Extension,
        _: &Baseline,
    ) -> Result<ExtensionSeen, Trouble> {
        let Some(purchased) = self.purchased(&extension.id.to_string()).await? else {
            return Ok(ExtensionSeen::NotAdded);
        };
        let named = filled(purchased.offer_id.as_ref());
        if named.is_some_and(|offer| offer != price::product(&extension.provider_option_id)) {
            return Err(Trouble::not_understood("the purchase is of another offer"));
        }
        purchased.extension(&extension.esim.iccid)
    }
}
