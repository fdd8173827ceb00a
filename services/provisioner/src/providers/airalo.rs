//! The adapter of the Airalo Partner API. [`wire`] has the shapes of its messages and reads them,
//! and [`token`] gets the token that each call carries.
//!
//! A purchase buys one package, and its response brings the profiles. Airalo has no key that would
//! stop a second purchase: whoever repeats an order pays twice. Our id is the order's description.
//! If the response to a purchase is lost, the adapter lists the orders whose description contains
//! our id, and compares each description with it. Such a search proves no absence, so an order that
//! is not found is parked in the end and never sent again ([`LookUp::Search`]).
//!
//! The failure table is [`outcome`]. What it does not name leaves the outcome unknown.
//! docs/decisions/0029-three-upstreams.md says where each part of the protocol is known from, and
//! what is a guess.

mod calls;
mod events;
mod live;
mod packages;
mod prices;
mod token;
mod top_up;
mod wire;

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use domain::{PlacementId, esim_change::GiveBackCause, extension::Baseline};
use reqwest::{
    StatusCode,
    header::{self, HeaderMap, HeaderValue},
};
use runtime::clock::Moment;
use serde::de::DeserializeOwned;
use serde_json::json;
use signing::SecretKey;
use time::UtcOffset;
use tokio::time::timeout_at;
use url::form_urlencoded;

use self::{
    calls::{
        AiraloCalls, AiraloReply, ORDERS, Outcome, PAGE, USAGE, outcome, refuses_claim, trouble,
    },
    packages::{AiraloPackages, Listed, Place, PricedPlace},
    token::Tokens,
    wire::{AiraloOrder, AiraloRefusal},
};
use super::{
    account::{AccountSetting, KnownProvider, ProviderAccount},
    extension::{
        BeforeExtension, ExtendResponse, Extension, ExtensionOffer, ExtensionSeen, FindExtension,
    },
    http::{Call, CallBody, Http, Size, parse},
    lists::{ListPage, ProductOffer, PurchasePeriod, SoldPurchase},
    price::{self, Price, PricedProduct},
    provider::{
        Adapter, BadCallback, Balance, BoughtUnits, CallbackRequest, Capabilities, Custody,
        DeliveredEsim, EsimStatus, GiveBackResponse, GiveBackWay, Hint, LiveAnswer, LookUp,
        LookUpRequest, LookUpResponse, OpenQuestion, PacedCalls, ProviderConnection, ProviderFacts,
        Purchase, PurchaseResponse, RefusedProduct, Trouble,
    },
    text::{DAY, ProviderId},
};

const ORDER: &str = "/v2/orders/{order_id}";
const BALANCE: &str = "/v2/balance";
const PACKAGES: &str = "/v2/packages";
const REFUND: &str = "/v2/refund";

/// The maximum number of pages of the catalogue when its prices are read. Without a limit it is one
/// page, with about 3,200 packages; a longer list than this is not believed.
const LIST_PAGES: u32 = 20;
/// An order is carried out before its response, with up to 50 eSIMs, so it may take six times as
/// long as another call: a minute, by default. Airalo names no time. Others give such orders 60 s:
/// `kanvas-ecosystem-api`, and the guide of Roamify (read in November 2026). A response that is
/// given up too early costs most here, because Airalo has no key by which it could be asked again.
const PURCHASE_TIMEOUTS: u32 = 6;

pub(super) const KNOWN: KnownProvider = KnownProvider {
    name: "airalo",
    heading: "Provider `airalo`",
    settings: &[
        AccountSetting {
            variable: "AIRALO_URL",
            option: "airalo-url",
            help: "Base URL of the Airalo Partner API: scheme and host, without `/v2`",
        },
        AccountSetting {
            variable: "AIRALO_ACCESS_KEY",
            option: "airalo-access-key",
            help: "`client_id` of our account at Airalo",
        },
        AccountSetting {
            variable: "AIRALO_SECRET_KEY",
            option: "airalo-secret-key",
            help: "`client_secret` of our account at Airalo, with which it signs its webhooks, too",
        },
        AccountSetting::callback_token("AIRALO_CALLBACK_TOKEN", "airalo-callback-token"),
    ],
    connect,
};

fn connect(account: &ProviderAccount, paced: PacedCalls) -> anyhow::Result<ProviderConnection> {
    let client_id = account.text("ACCESS_KEY")?.to_owned();
    let client_secret = account.text("SECRET_KEY")?.trim();
    let provider = Airalo {
        calls: Arc::new(AiraloCalls {
            http: Http::new(&account.url()?, paced, is_defined)?,
            tokens: Tokens::new(client_id, client_secret.into()),
            prices: Arc::default(),
        }),
        secret_key: account.text_key()?,
    };
    Ok(ProviderConnection {
        provider: Arc::new(provider),
        callback_token: account.callback_token()?,
    })
}

/// The statuses whose bodies the protocol defines: success, 422 for what cannot be carried out, 403
/// for an address that is not on the list of our account, and 404 for an ICCID that it does not
/// know.
fn is_defined(status: StatusCode) -> bool {
    const REFUSALS: [StatusCode; 3] = [
        StatusCode::UNPROCESSABLE_ENTITY,
        StatusCode::FORBIDDEN,
        StatusCode::NOT_FOUND,
    ];
    status.is_success() || REFUSALS.contains(&status)
}

/// An account at Airalo.
struct Airalo {
    calls: Arc<AiraloCalls>,
    /// The key of the signatures of webhooks.
    secret_key: SecretKey,
}

impl AiraloCalls {
    /// Looks for the order whose description is our id.
    async fn by_description(&self, look_up: &LookUpRequest) -> Result<LookUpResponse, Trouble> {
        let mut found = self.described(&look_up.placement_id.to_string()).await?;
        found.retain(|order| !order.is_top_up());
        self.found(look_up, found)
    }

    /// Reads one page of the catalogue.
    async fn packages(&self, page: u32) -> Result<ListPage<ProductOffer>, Trouble> {
        let list: AiraloPackages<Place> = self.package_list(page).await?;
        list.listed(page)
    }

    /// The provider advises to read the list without a limit, which is one page with all packages
    /// (its page on packages, September 2026). A limit counts places, each with all of its
    /// packages.
    async fn package_list<P: DeserializeOwned>(
        &self,
        page: u32,
    ) -> Result<AiraloPackages<P>, Trouble> {
        let further = format!("page={page}");
        let query = (page > 1).then_some(further.as_str());
        self.done(Call {
            query,
            size: Size::List,
            ..Call::get(PACKAGES, PACKAGES)
        })
        .await
    }

    /// Reads one page of the orders of some days. It does not ask for their eSIMs, so that no
    /// activation code is on the way without need.
    async fn orders_within(
        &self,
        span: PurchasePeriod,
        page: u32,
    ) -> Result<ListPage<SoldPurchase>, Trouble> {
        let day = |at: time::OffsetDateTime| {
            at.to_offset(UtcOffset::UTC)
                .format(DAY)
                .map_err(|_| Trouble::NotSent("the day of the list cannot be written".into()))
        };
        let days = format!("{} - {}", day(span.since)?, day(span.until)?);
        let query = form_urlencoded::Serializer::new(String::new())
            .append_pair("filter[created_at]", &days)
            .append_pair("limit", &PAGE.to_string())
            .append_pair("page", &page.to_string())
            .finish();
        let listed = self.orders(&query).await?;
        let is_last = listed.data.len() < PAGE;
        let esims = listed.data.iter().filter(|order| !order.is_top_up());
        let sold: Result<Vec<SoldPurchase>, Trouble> = esims.map(AiraloOrder::sold).collect();
        Ok(ListPage {
            entries: sold?,
            next: (!is_last).then(|| page.saturating_add(1)),
        })
    }

    /// Asks for an order by Airalo's own id.
    async fn by_id(
        &self,
        look_up: &LookUpRequest,
        order_id: &ProviderId,
    ) -> Result<LookUpResponse, Trouble> {
        // The id is a number, as `wire` has made it; anything else must not get into the path.
        if !order_id.as_str().bytes().all(|byte| byte.is_ascii_digit()) {
            return self.by_description(look_up).await;
        }
        let path = format!("{ORDERS}/{}", order_id.as_str());
        let call = Call {
            query: Some("include=sims%2Cstatus"),
            ..Call::get(&path, ORDER)
        };
        let wire::Single { data: order } = self.done(call).await?;
        if order.number() != order_id.as_str() || order.is_for_another(look_up.placement_id) {
            return Err(Trouble::not_understood("the response is another order"));
        }
        self.found(look_up, vec![order])
    }

    /// The answer to a look-up that found these orders.
    fn found(
        &self,
        look_up: &LookUpRequest,
        orders: Vec<AiraloOrder>,
    ) -> Result<LookUpResponse, Trouble> {
        if orders.is_empty() {
            return Ok(LookUpResponse::NotFound);
        }
        if !orders
            .iter()
            .all(|order| price::may_be_of(look_up, &order.package_id))
        {
            return Err(Trouble::not_understood("the order is of another package"));
        }
        self.bought(look_up.placement_id, orders)
            .map(LookUpResponse::Found)
    }

    fn bought(
        &self,
        placement_id: PlacementId,
        orders: Vec<AiraloOrder>,
    ) -> Result<BoughtUnits, Trouble> {
        wire::bought(placement_id, orders, |package| {
            self.prices.install_window(package)
        })
    }

    /// Calls with a token that nobody was given, and asks for lists whose shape the documents leave
    /// open.
    async fn ask_live(&self) -> Vec<LiveAnswer> {
        self.http.turn().await;
        let wrong = HeaderValue::from_static("Bearer no-such-token");
        let call = Call {
            headers: HeaderMap::from_iter([
                (header::AUTHORIZATION, wrong),
                (header::ACCEPT, HeaderValue::from_static("application/json")),
            ]),
            ..Call::get(BALANCE, BALANCE)
        };
        let response = self.http.call(call).await.and_then(|(status, _)| {
            let said = format!("HTTP {}", status.as_u16());
            if status.is_success() {
                Ok(said)
            } else {
                Err(Trouble::not_understood(said))
            }
        });
        let asked = format!("GET {BALANCE}");
        let mut answers = vec![LiveAnswer::to_wrong_key(&asked, response)];
        for (question, path, query) in [
            ("the whole list of packages", PACKAGES, None),
            (
                "the second page of the list of packages",
                PACKAGES,
                Some("limit=1&page=2"),
            ),
            ("the largest page of orders", ORDERS, Some("limit=1000")),
        ] {
            self.http.turn().await;
            let began = Instant::now();
            let call = Call {
                query,
                size: Size::List,
                ..Call::get(path, path)
            };
            let shape = match self.call(call).await {
                Ok(AiraloReply::Done(body)) => live::shape(&body),
                Ok(AiraloReply::Refused(refusal)) => Err(trouble(&refusal)),
                Err(trouble) => Err(trouble),
            };
            let seconds = began.elapsed().as_secs();
            let asked = format!("GET {path}?{}", query.unwrap_or_default());
            let came = match shape {
                Ok(shape) => format!("{shape}, after {seconds} s"),
                Err(trouble) => trouble.reason().to_owned(),
            };
            answers.push(LiveAnswer::seen(question, asked, came));
        }
        answers
    }

    /// What an order says of its price. The balance shows of how many units that is.
    async fn ask_price(&self, reference: &ProviderId) -> LiveAnswer {
        self.http.turn().await;
        let path = format!("{ORDERS}/{}", reference.as_str());
        let said = match self.call(Call::get(&path, ORDER)).await {
            Ok(AiraloReply::Done(body)) => live::price(&body),
            Ok(AiraloReply::Refused(refusal)) => Err(trouble(&refusal)),
            Err(trouble) => Err(trouble),
        };
        let came = said.unwrap_or_else(|trouble| trouble.reason().to_owned());
        LiveAnswer::seen(
            "the price that an order names",
            format!("GET {ORDER}"),
            came,
        )
    }

    /// The packages of one page with their prices.
    async fn priced(&self, page: u32) -> Result<ListPage<(String, Listed)>, Trouble> {
        let list: AiraloPackages<PricedPlace> = self.package_list(page).await?;
        list.priced(page)
    }

    /// What each package costs now.
    async fn all_prices(&self) -> Result<HashMap<String, Listed>, Trouble> {
        let mut prices: HashMap<String, Listed> = HashMap::new();
        let mut next = Some(1);
        while let Some(page) = next {
            if page > LIST_PAGES {
                return Err(Trouble::not_understood(format!(
                    "the list of packages has more than {LIST_PAGES} pages"
                )));
            }
            // This call comes in addition to the one that needs the price.
            self.http.turn().await;
            let listed = self.priced(page).await?;
            next = listed.next;
            for (package, one) in listed.entries {
                // Of a package that is listed twice, the entry that is worse for us counts.
                let worst = prices.entry(package).or_insert(one);
                *worst = worst.or_worse(one);
            }
        }
        Ok(prices)
    }
}

impl Airalo {
    /// Compares the price of a purchase with what the option allows, if the response names what we
    /// pay; not all examples of it do. It does not say whether that is the price of a unit or of
    /// the order, so only a price above both is certainly too high. The purchase is paid and is
    /// delivered; the list of prices is read again, because it decides what is bought next.
    fn note_price(
        &self,
        option: &str,
        priced: &PricedProduct<'_>,
        quantity: usize,
        order: &AiraloOrder,
    ) {
        let Some(most) = priced.most else { return };
        let Some(paid) = order.paid() else { return };
        let units = u64::try_from(quantity).unwrap_or(u64::MAX);
        if paid <= Price(most.0.saturating_mul(units)) {
            return;
        }
        tracing::error!(
            provider.option = option,
            price.paid = %paid,
            price.allowed = %most,
            "a purchase was dearer than its option allows, although the provider's list named no \
             higher price; it is paid and is delivered. Compare the provider's invoice, and take \
             the option out of sale if that happens again"
        );
        self.calls.prices.doubt();
    }

    /// Refuses a purchase whose option allows less than the provider asks for a unit now.
    async fn compare_price(
        &self,
        priced: &PricedProduct<'_>,
        send_by: Moment,
    ) -> Result<(), Trouble> {
        let Some(most) = priced.most else {
            return Ok(());
        };
        let calls = Arc::clone(&self.calls);
        let price =
            self.calls.prices.of(
                priced.product,
                move || async move { calls.all_prices().await },
            );
        let price = timeout_at(send_by.monotonic.into(), price).await;
        let price = price.map_err(|_| {
            Trouble::NotSent("the provider's prices were not read in time".to_owned())
        })??;
        let unlisted = "the provider does not list the product, so its price is unknown";
        price::compare(price, most, unlisted)
    }
}

impl ProviderFacts for Airalo {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            purchase_key: false,
            look_up: LookUp::Search,
            // They never say that a profile is ready, because the purchase brings it.
            callbacks: true,
            cancel: false,
            give_back: Some(GiveBackWay::Claim),
            suspend: false,
            usage: true,
            extend: Some(FindExtension::ById),
            balance: true,
            catalogue: true,
            purchases: true,
        }
    }

    fn purchase_timeout(&self, of_each_call: Duration) -> Duration {
        of_each_call * PURCHASE_TIMEOUTS
    }

    fn refused_products(&self) -> &'static [RefusedProduct] {
        live::REFUSED
    }

    fn open_questions(&self) -> &'static [OpenQuestion] {
        live::OPEN
    }

    fn clock_ahead(&self) -> Option<i64> {
        self.calls.http.clock_ahead()
    }

    fn product<'a>(&self, provider_option_id: &'a str) -> &'a str {
        price::product(provider_option_id)
    }

    fn read_callback(&self, callback: CallbackRequest<'_>) -> Result<Hint, BadCallback> {
        events::read(&self.secret_key, &callback)
    }
}

impl Adapter for Airalo {
    async fn ask_live(&self) -> Vec<LiveAnswer> {
        self.calls.ask_live().await
    }

    async fn ask_about_purchase(&self, reference: &ProviderId) -> Vec<LiveAnswer> {
        vec![self.calls.ask_price(reference).await]
    }

    async fn purchase(&self, purchase: &Purchase) -> Result<PurchaseResponse, Trouble> {
        let [(option, quantity)] = purchase.items.as_slice() else {
            return Err(Trouble::RefusedHere(
                "Airalo sells one option in a purchase".into(),
            ));
        };
        let priced = price::priced_product(option)?;
        self.compare_price(&priced, purchase.send_by).await?;
        // The time is checked after the token was got, because that may take a call of its own.
        let token = self.calls.tokens.get(&self.calls.http).await?;
        purchase.is_in_time()?;
        let form = CallBody::multipart(&[
            ("package_id", priced.product),
            ("quantity", &quantity.to_string()),
            ("type", "sim"),
            ("description", &purchase.placement_id.to_string()),
        ]);
        let timeout = self.purchase_timeout(self.calls.http.timeout());
        let call = Call {
            body: Some(form),
            size: Size::Purchase(timeout),
            ..Call::post(ORDERS, ORDERS)
        };
        let order = match self.calls.call_with(&token, call).await? {
            AiraloReply::Done(body) => parse::<wire::Single>(&body)?.data,
            AiraloReply::Refused(refusal) if outcome(&refusal) == Outcome::Rejected => {
                let (status, message) = refusal.text();
                return Ok(PurchaseResponse::Rejected { status, message });
            }
            AiraloReply::Refused(refusal) => return Err(trouble(&refusal)),
        };
        if order.is_for_another(purchase.placement_id) || order.package_id != priced.product {
            return Err(Trouble::not_understood("the response is another order"));
        }
        self.note_price(option, &priced, *quantity, &order);
        let bought = self.calls.bought(purchase.placement_id, vec![order])?;
        Ok(PurchaseResponse::Bought(bought))
    }

    async fn look_up(&self, look_up: &LookUpRequest) -> Result<LookUpResponse, Trouble> {
        match &look_up.reference {
            Some(order_id) => self.calls.by_id(look_up, order_id).await,
            None => self.calls.by_description(look_up).await,
        }
    }

    async fn balance(&self) -> Result<Balance, Trouble> {
        let account: wire::AiraloAccount = self.calls.done(Call::get(BALANCE, BALANCE)).await?;
        Ok(account.balance())
    }

    async fn products(&self, page: u32) -> Result<ListPage<ProductOffer>, Trouble> {
        self.calls.packages(page).await
    }

    async fn purchases(
        &self,
        span: PurchasePeriod,
        page: u32,
    ) -> Result<ListPage<SoldPurchase>, Trouble> {
        self.calls.orders_within(span, page).await
    }

    async fn status(&self, esim: &DeliveredEsim) -> Result<EsimStatus, Trouble> {
        let path = USAGE.replace("{iccid}", esim.iccid.as_str());
        match self.calls.call(Call::get(&path, USAGE)).await? {
            AiraloReply::Done(body) => parse::<wire::AiraloUsage>(&body)?.status(),
            AiraloReply::Refused(AiraloRefusal::Absent { .. }) => Ok(wire::not_known()),
            AiraloReply::Refused(refusal) => Err(trouble(&refusal)),
        }
    }

    /// A claim, which people decide. A refusal because of the ICCID is an empty list of faults, and
    /// a claim that is refused does not exist. One call may name five eSIMs, but the verdict is on
    /// each; an account may make one call in five minutes.
    async fn give_back(
        &self,
        esim: &DeliveredEsim,
        cause: GiveBackCause,
    ) -> Result<GiveBackResponse, Trouble> {
        let request = json!({
            "iccids": [esim.iccid.as_str()],
            "reason": wire::cause(cause),
            // Needed with OTHERS.
            "notes": "Our customer asks for the refund.",
        });
        let call = Call {
            body: Some(CallBody::json(&request)?),
            ..Call::post(REFUND, REFUND)
        };
        match self.calls.call(call).await? {
            AiraloReply::Done(body) => Ok(GiveBackResponse::Claimed {
                reference: Some(parse::<wire::AiraloClaim>(&body)?.id()?),
                said: None,
            }),
            AiraloReply::Refused(refusal) if refuses_claim(&refusal) => {
                Ok(GiveBackResponse::Refused(refusal.text().1))
            }
            AiraloReply::Refused(refusal) => Err(trouble(&refusal)),
        }
    }

    async fn find_claim(&self, esim: &DeliveredEsim) -> Result<Custody, Trouble> {
        let query = form_urlencoded::Serializer::new(String::new())
            .append_pair("include", "sims,status")
            .append_pair("filter[iccid]", esim.iccid.as_str())
            .append_pair("limit", &PAGE.to_string())
            .finish();
        let listed = self.calls.orders(&query).await?;
        Ok(wire::custody(&listed.data, &esim.iccid))
    }

    async fn offers(&self, esim: &DeliveredEsim) -> Result<Option<Vec<ExtensionOffer>>, Trouble> {
        self.calls.offered(esim).await.map(Some)
    }

    async fn before_extension(&self, extension: &Extension) -> Result<BeforeExtension, Trouble> {
        self.calls.baseline(extension).await
    }

    async fn extend(&self, extension: &Extension) -> Result<ExtendResponse, Trouble> {
        let timeout = self.purchase_timeout(self.calls.http.timeout());
        self.calls.top_up(extension, timeout).await
    }

    async fn find_extension(
        &self,
        extension: &Extension,
        baseline: &Baseline,
    ) -> Result<ExtensionSeen, Trouble> {
        self.calls.find_top_up(extension, baseline).await
    }
}
