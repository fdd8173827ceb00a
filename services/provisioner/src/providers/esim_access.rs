//! The adapter of eSIM Access. [`wire`] has the shapes of its messages and reads them.
//!
//! Every call is a `POST`, and every response has status 200; an error is a code in the body. A
//! purchase is answered with the provider's own order number, and its profiles are asked for by
//! that number. If the response to a purchase is lost, there is no number, and the protocol has no
//! look-up by our id. Then [`search`] looks for our id among the eSIMs that were made around the
//! time of the attempt. A search proves no absence ([`LookUp::Search`]), so such a purchase is sent
//! again only if `esimctl provider prove` has seen at our account that an identical request is the
//! same purchase, as the reference says.
//!
//! The failure table is [`outcome`]. A code that it does not name leaves the outcome unknown.
//! docs/decisions/0029-three-upstreams.md says where each part of the protocol is known from, and
//! what is a guess.

mod client;
mod events;
mod search;
mod top_up;
mod wire;

use std::sync::Arc;

use domain::{PlacementId, esim_change::GiveBackCause, extension::Baseline};
use serde_json::{Value, json};
use store::esim_requests::Reading;
use time::OffsetDateTime;

use self::{
    client::{Client, EsimAccessOutcome, PACKAGES, outcome, within},
    search::Slots,
    wire::{EsimAccessEsim, Reply, order_number, units},
};
use super::{
    account::{AccountSetting, KnownProvider, ProviderAccount},
    extension::{
        BeforeExtension, ExtendResponse, Extension, ExtensionOffer, ExtensionSeen, FindExtension,
    },
    http::{CallBody, Http, Size, parse_part},
    lists::{ListPage, ProductOffer, PurchasePeriod, SoldPurchase},
    price,
    provider::{
        Adapter, BadCallback, Balance, BoughtUnits, CallbackRequest, Capabilities, DeliveredEsim,
        EsimStatus, GiveBackResponse, GiveBackWay, Hint, LiveAnswer, LookUp, LookUpRequest,
        LookUpResponse, OpenQuestion, PacedCalls, ProviderConnection, ProviderFacts, Purchase,
        PurchaseResponse, RefusedProduct, SuspendResponse, Trouble,
    },
    text::{ProviderId, one_line},
};

const ORDER: &str = "/api/v1/open/esim/order";
const CANCEL: &str = "/api/v1/open/esim/cancel";
const BALANCE: &str = "/api/v1/open/balance/query";
const SUSPEND: &str = "/api/v1/open/esim/suspend";
const RESUME: &str = "/api/v1/open/esim/unsuspend";
const USAGE: &str = "/api/v1/open/esim/usage/query";

pub(super) const KNOWN: KnownProvider = KnownProvider {
    name: "esim-access",
    heading: "Provider `esim-access`",
    settings: &[
        AccountSetting {
            variable: "ESIM_ACCESS_URL",
            option: "esim-access-url",
            help: "Base URL of eSIM Access: scheme and host, without `/api`",
        },
        AccountSetting {
            variable: "ESIM_ACCESS_ACCESS_KEY",
            option: "esim-access-access-key",
            help: "`AccessCode` of our account at eSIM Access",
        },
        AccountSetting {
            variable: "ESIM_ACCESS_SECRET_KEY",
            option: "esim-access-secret-key",
            help: "`SecretKey` of our account at eSIM Access, with which each call is signed",
        },
        AccountSetting::callback_token("ESIM_ACCESS_CALLBACK_TOKEN", "esim-access-callback-token"),
    ],
    connect,
};

fn connect(account: &ProviderAccount, paced: PacedCalls) -> anyhow::Result<ProviderConnection> {
    let provider = EsimAccess {
        client: Client {
            http: Http::new(&account.url()?, paced, |status| status.is_success())?,
            access_code: account.text("ACCESS_KEY")?.to_owned(),
            access_code_header: account.header("ACCESS_KEY")?,
            secret_key: account.text_key()?,
        },
        slots: Slots::default(),
    };
    Ok(ProviderConnection {
        provider: Arc::new(provider),
        callback_token: account.callback_token()?,
    })
}

/// An account at eSIM Access.
struct EsimAccess {
    client: Client,
    /// What searches have read a moment ago.
    slots: Slots,
}

impl EsimAccess {
    /// Asks for the data that an eSIM has used. The eSIM itself shows that, too, but not when it
    /// was counted, which may be three hours ago (reference of April 2026). If this call tells
    /// nothing, what the eSIM shows stays, without a time.
    async fn count(&self, esim: &DeliveredEsim, reading: &mut Reading) {
        // This call comes in addition to the one that has its turn.
        self.client.http.turn().await;
        let request = json!({ "esimTranNoList": [esim.unit_id.as_str()] });
        if let Ok(Reply::Done(counted)) = self.client.call(USAGE, &request).await
            && let Some(counted) = wire::counted(&counted, &esim.unit_id)
        {
            reading.data_used = Some(counted.data_usage);
            reading.data_total = Some(counted.total_data);
            reading.as_of = counted.at();
        }
    }

    /// Asks for the eSIMs of a purchase by the provider's order number.
    async fn by_number(
        &self,
        placement_id: PlacementId,
        number: &ProviderId,
    ) -> Result<LookUpResponse, Trouble> {
        let filter = json!({ "orderNo": number.as_str() });
        let allocated = match self.client.query(&filter).await? {
            Ok(allocated) => allocated,
            Err(failure) => {
                return match outcome(&failure.code) {
                    EsimAccessOutcome::NotReady => Ok(LookUpResponse::Found(BoughtUnits {
                        reference: Some(number.clone()),
                        units: Vec::new(),
                    })),
                    EsimAccessOutcome::NoSuchOrder => Ok(LookUpResponse::NotFound),
                    _ => Err(failure.trouble()),
                };
            }
        };
        // If one eSIM belongs to another purchase, the response answers another question, and
        // nothing of it is used.
        let is_ours = |one: &EsimAccessEsim| {
            one.order_no
                .as_deref()
                .is_none_or(|order| order == number.as_str())
                && one.belongs_to(placement_id) != Some(false)
        };
        if !allocated.iter().all(is_ours) {
            return Err(Trouble::not_understood(
                "the response lists eSIMs of another purchase",
            ));
        }
        Ok(LookUpResponse::Found(BoughtUnits {
            reference: Some(number.clone()),
            units: units(allocated)?,
        }))
    }
}

impl EsimAccess {
    /// How a call with a wrong signature is refused, and whether one without is.
    async fn ask_unsigned(&self) -> Vec<LiveAnswer> {
        const WRONG_SIGNATURE: &str = "101003";
        let wrong = self.client.signed(b"another body");
        let mut answers = Vec::new();
        for (question, headers, documented) in [
            (
                "a call with a wrong signature",
                wrong,
                Some(WRONG_SIGNATURE),
            ),
            (
                "a call without a signature",
                Ok(self.client.unsigned()),
                None,
            ),
        ] {
            self.client.http.turn().await;
            let called = async {
                let body = CallBody::json(&json!({}))?;
                let headers = headers?;
                self.client
                    .send(Size::Ordinary, BALANCE, body, headers)
                    .await
            };
            let (came, code) = match called.await {
                Ok(Reply::Done(_)) => ("it was answered".to_owned(), Some(String::new())),
                Ok(Reply::Failed(failure)) => {
                    let came = format!("code {}: {}", one_line(&failure.code), failure.message);
                    (came, Some(failure.code))
                }
                Err(trouble) => (trouble.reason().to_owned(), None),
            };
            let is_documented = documented.zip(code).and_then(|(documented, code)| {
                // Another refusal is one, too, though not that of the reference.
                (code.is_empty() || code == documented).then_some(code == documented)
            });
            answers.push(LiveAnswer {
                question,
                asked: format!("POST {BALANCE}"),
                came,
                is_documented,
            });
        }
        answers
    }
}

/// The request of a purchase. The price of a package is sent if the option names one, so that the
/// provider refuses a purchase at another price. The sum is sent only if it is known.
fn order(purchase: &Purchase) -> Result<Value, Trouble> {
    let mut packages = Vec::with_capacity(purchase.items.len());
    let mut sum = Some(0_u64);
    for (option, count) in &purchase.items {
        let priced = price::priced_product(option)?;
        let mut package = json!({ "packageCode": priced.product, "count": count });
        let units = u64::try_from(*count).unwrap_or(u64::MAX);
        sum = match priced.most {
            Some(most) => {
                package["price"] = most.0.into();
                sum.map(|sum| sum.saturating_add(most.0.saturating_mul(units)))
            }
            None => None,
        };
        packages.push(package);
    }
    let mut request = json!({
        "transactionId": purchase.placement_id,
        "packageInfoList": packages,
    });
    if let Some(sum) = sum {
        request["amount"] = sum.into();
    }
    Ok(request)
}

impl ProviderFacts for EsimAccess {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            // "The same transactionId is the same request" (all three prints of the reference).
            purchase_key: true,
            look_up: LookUp::Search,
            callbacks: true,
            cancel: true,
            give_back: Some(GiveBackWay::Uninstalled),
            suspend: true,
            usage: true,
            extend: Some(FindExtension::ByDifference),
            balance: true,
            catalogue: true,
            purchases: true,
        }
    }

    fn refused_products(&self) -> &'static [RefusedProduct] {
        &[RefusedProduct {
            product: "no-such-product",
            code: "310241",
        }]
    }

    fn open_questions(&self) -> &'static [OpenQuestion] {
        &[
            OpenQuestion {
                question: "the code of a cancellation after the download, and REVOKE or REVOKED",
                how: "keep an eSIM (--keep), install or revoke it in the portal, and run the command again",
            },
            OpenQuestion {
                question: "a top-up that is sent twice",
                how: "send esim/topup twice with one transactionId, and compare the balance",
            },
            OpenQuestion {
                question: "the order of events, and how often one comes again after a 500",
                how: "let the webhook lead to a receiver of your own that answers 500",
            },
        ]
    }

    fn clock_ahead(&self) -> Option<i64> {
        self.client.http.clock_ahead()
    }

    fn paces_look_ups(&self) -> bool {
        true
    }

    fn product<'a>(&self, provider_option_id: &'a str) -> &'a str {
        price::product(provider_option_id)
    }

    fn read_callback(&self, callback: CallbackRequest<'_>) -> Result<Hint, BadCallback> {
        Ok(events::read(&callback))
    }
}

impl Adapter for EsimAccess {
    /// Whether the list of eSIMs takes a time as the reference writes it, and as others do. By
    /// which time it selects shows the delay until a purchase is found.
    async fn ask_live(&self) -> Vec<LiveAnswer> {
        let until = runtime::clock::now();
        let since = until - std::time::Duration::from_mins(10);
        let written = within(since, until).unwrap_or_default();
        let other = |write: fn(OffsetDateTime) -> String| json!({ "startTime": write(since), "endTime": write(until) });
        let mut answers = self.ask_unsigned().await;
        for (question, filter, is_documented) in [
            ("a time as the reference writes it", written, true),
            (
                "a time with a blank and seconds",
                other(client::spaced),
                false,
            ),
            (
                "a time with seconds and the zone",
                other(client::to_the_second),
                false,
            ),
        ] {
            self.client.http.turn().await;
            let (came, is_listed) = match self.client.page(&filter, 1).await {
                Ok(Ok(page)) => (format!("{} eSIMs", page.esim_list.len()), Some(true)),
                Ok(Err(failure)) => (failure.trouble().reason().to_owned(), Some(false)),
                Err(trouble) => (trouble.reason().to_owned(), None),
            };
            answers.push(LiveAnswer {
                question,
                asked: format!("the eSIMs since {}", filter["startTime"]),
                came,
                is_documented: is_listed.filter(|_| is_documented),
            });
        }
        answers
    }

    /// Whether an eSIM names its purchase by our id, by which a search finds it, and its package by
    /// both names by which one can be ordered.
    async fn ask_about(&self, esim: &DeliveredEsim) -> Vec<LiveAnswer> {
        self.client.http.turn().await;
        let filter = json!({ "esimTranNo": esim.unit_id.as_str() });
        let response = match self.client.query(&filter).await {
            Ok(Ok(listed)) => listed.first().map(EsimAccessEsim::named),
            Ok(Err(failure)) => Some((failure.trouble().reason().to_owned(), None)),
            Err(trouble) => Some((trouble.reason().to_owned(), None)),
        };
        let (came, is_documented) = response.unwrap_or_else(|| ("no eSIM".to_owned(), None));
        vec![LiveAnswer {
            question: "what a new eSIM says of its purchase",
            asked: "the eSIM".to_owned(),
            came,
            is_documented,
        }]
    }

    async fn purchase(&self, purchase: &Purchase) -> Result<PurchaseResponse, Trouble> {
        match self.client.call(ORDER, &order(purchase)?).await? {
            Reply::Done(ordered) => {
                let ordered: wire::EsimAccessOrder = parse_part(&ordered)?;
                if ordered.is_for_another(purchase.placement_id) {
                    return Err(Trouble::not_understood(
                        "the response names another purchase",
                    ));
                }
                Ok(PurchaseResponse::Bought(BoughtUnits {
                    reference: Some(order_number(ordered.order_no)?),
                    units: Vec::new(),
                }))
            }
            Reply::Failed(failure) => {
                let outcome = outcome(&failure.code);
                if outcome == EsimAccessOutcome::Malformed {
                    tracing::error!(
                        code = failure.code,
                        message = failure.message,
                        "the provider does not understand our request. It has bought nothing, \
                         and the purchase is refused; the adapter must be corrected"
                    );
                }
                if matches!(
                    outcome,
                    EsimAccessOutcome::Rejected | EsimAccessOutcome::Malformed
                ) {
                    return Ok(PurchaseResponse::Rejected {
                        status: failure.code,
                        message: failure.message,
                    });
                }
                Err(failure.trouble_of_change())
            }
        }
    }

    async fn look_up(&self, look_up: &LookUpRequest) -> Result<LookUpResponse, Trouble> {
        match &look_up.reference {
            Some(number) => {
                self.client.http.turn().await;
                self.by_number(look_up.placement_id, number).await
            }
            None => self.slots.by_time(&self.client, look_up).await,
        }
    }

    async fn balance(&self) -> Result<Balance, Trouble> {
        match self.client.call(BALANCE, &json!({})).await? {
            Reply::Done(result) => Ok(parse_part::<wire::EsimAccessAccount>(&result)?.balance()),
            Reply::Failed(failure) => Err(failure.trouble()),
        }
    }

    /// The protocol lists all products in one response.
    async fn products(&self, _page: u32) -> Result<ListPage<ProductOffer>, Trouble> {
        let request = json!({ "type": "BASE" });
        let reply = self.client.call_for(Size::List, PACKAGES, &request);
        let packages: wire::EsimAccessPackages = match reply.await? {
            Reply::Done(result) => parse_part(&result)?,
            Reply::Failed(failure) => return Err(failure.trouble()),
        };
        Ok(ListPage {
            entries: packages.package_list.iter().map(wire::offer).collect(),
            next: None,
        })
    }

    async fn status(&self, esim: &DeliveredEsim) -> Result<EsimStatus, Trouble> {
        let mut status = self.client.one(esim).await?.status()?;
        // Nothing is used of an eSIM that nobody has installed.
        if status.reading.installed != Some(false) {
            self.count(esim, &mut status.reading).await;
        }
        Ok(status)
    }

    /// Reads one page of what was bought within a time.
    async fn purchases(
        &self,
        span: PurchasePeriod,
        number: u32,
    ) -> Result<ListPage<SoldPurchase>, Trouble> {
        let filter = within(span.since, span.until)?;
        let page = match self.client.page(&filter, number).await? {
            Ok(page) => page,
            Err(failure) => return Err(failure.trouble()),
        };
        let is_last = page.is_last(number);
        let sold: Result<Vec<SoldPurchase>, Trouble> = page
            .esim_list
            .into_iter()
            .map(EsimAccessEsim::sold)
            .collect();
        Ok(ListPage {
            entries: sold?,
            next: (!is_last).then(|| number.saturating_add(1)),
        })
    }

    /// The codes by which the provider refuses a cancellation are not documented, so none is taken
    /// for a refusal: the outcome of any failure is unknown, and a look at the eSIM settles it.
    async fn give_back(
        &self,
        esim: &DeliveredEsim,
        _: GiveBackCause,
    ) -> Result<GiveBackResponse, Trouble> {
        let request = json!({ "esimTranNo": esim.unit_id.as_str() });
        match self.client.call(CANCEL, &request).await? {
            Reply::Done(_) => Ok(GiveBackResponse::Returned),
            Reply::Failed(failure) => Err(failure.trouble_of_change()),
        }
    }

    /// Nothing says with which codes it refuses, so a look at the eSIM settles any failure, as it
    /// does that of a cancellation.
    async fn suspend(
        &self,
        esim: &DeliveredEsim,
        suspend: bool,
    ) -> Result<SuspendResponse, Trouble> {
        let path = if suspend { SUSPEND } else { RESUME };
        let request = json!({ "esimTranNo": esim.unit_id.as_str() });
        match self.client.call(path, &request).await? {
            Reply::Done(_) => Ok(SuspendResponse::Done),
            Reply::Failed(failure) => Err(failure.trouble_of_change()),
        }
    }

    async fn offers(&self, esim: &DeliveredEsim) -> Result<Option<Vec<ExtensionOffer>>, Trouble> {
        self.client.offered(esim).await.map(Some)
    }

    async fn before_extension(&self, extension: &Extension) -> Result<BeforeExtension, Trouble> {
        self.client.baseline(extension).await
    }

    async fn extend(&self, extension: &Extension) -> Result<ExtendResponse, Trouble> {
        self.client.top_up(extension).await
    }

    async fn find_extension(
        &self,
        extension: &Extension,
        baseline: &Baseline,
    ) -> Result<ExtensionSeen, Trouble> {
        self.client.find_top_up(extension, baseline).await
    }
}
