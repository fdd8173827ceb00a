//! The adapter of USIMSA. The sandbox speaks the same protocol, so it shares this adapter.
//!
//! The body of each response has a code, and a code means something else in each call. In a
//! purchase `0000` means ok, `9001` invalid product, `9003` order id already processed, `9998`
//! malformed request, and `9999` server error. USIMSA uses `9002` and `9005` in a cancellation, for
//! what is cancelled already and for a failure, and nobody knows what they mean elsewhere. Nor is
//! it known how it answers if it has no order with an id, so its look-ups never prove an absence.
//! In a cancellation `0000` and `9002` (cancelled already) mean that it has the eSIM back, and
//! `9003` (not refundable), `9004` (installed) and `9006` (its state) that it does not take it.
//! The sandbox has codes of its own: `9000` (malformed), `9002` (no such order) and `9005` (out of
//! stock).
//!
//! With any other code the outcome is unknown. The purchase is then looked up, and parked if
//! look-ups do not settle it. So a code that we do not know never leads to a second purchase.
//! docs/reliability.md lists all responses, and docs/decisions/0007-usimsa.md where each is known
//! from.

mod extend;

use std::sync::Arc;

use domain::{ActivationCode, Iccid, PlacementId, extension::Baseline};
use reqwest::{
    Method, StatusCode,
    header::{HeaderMap, HeaderName, HeaderValue},
};
use serde::Deserialize;
use serde_json::{Value, json};
use signing::{SecretKey, usimsa};
use store::esim_requests::Reading;

use self::extend::WholeReply;
use super::{
    account::{AccountSetting, KnownProvider, ProviderAccount},
    extension::{
        BeforeExtension, ExtendResponse, Extension, ExtensionOffer, ExtensionSeen, FindExtension,
        ProviderProfile,
    },
    http::{Call, CallBody, Http, header_of, parse, parse_part, path_of},
    provider::{
        Adapter, BadCallback, BoughtUnits, CallbackRequest, Capabilities, Custody, DeliveredEsim,
        EsimStatus, GiveBackResponse, Heard, Hint, LiveAnswer, LookUp, LookUpRequest,
        LookUpResponse, OpenQuestion, PacedCalls, ProfileFault, ProviderConnection, ProviderFacts,
        ProviderUnit, ProviderUnitState, Purchase, PurchaseResponse, RefusedProduct, Trouble,
        UnitFields, filled,
    },
    text::{ProviderId, day, moment, one_line},
};

const ORDER: &str = "/api/v2/order";
const FETCH: &str = "/api/v2/order/{orderId}";
/// The sandbox shows the state of an eSIM in one call: its data, and whether it is given back.
const USAGE: &str = "/api/v2/usage/{topupId}";
/// USIMSA shows the data by the day, and the device.
const DAILY: &str = "/api/v2/topup/{topupId}/usage/daily";
const DEVICE: &str = "/api/v2/iccid/{iccid}/device";
const EXTEND: &str = "/api/v2/extend";
const CANCEL: &str = "/api/v2/cancel/{topupId}";
/// Clients differ in how they ask for one eSIM: with its id in the path, or in a body that is not
/// signed. Only a proof asks.
const TOPUP_PATH: &str = "/api/v2/topup/{topupId}";
const TOPUP: &str = "/api/v2/topup";
const TIMESTAMP: HeaderName = HeaderName::from_static("x-gat-timestamp");
const ACCESS_KEY: HeaderName = HeaderName::from_static("x-gat-access-key");
const SIGNATURE: HeaderName = HeaderName::from_static("x-gat-signature");

pub(super) const KNOWN: KnownProvider = KnownProvider {
    name: "usimsa",
    heading: "Provider `usimsa`",
    settings: &[
        AccountSetting {
            variable: "USIMSA_URL",
            option: "usimsa-url",
            help: "Base URL of USIMSA: scheme and host, without `/api`",
        },
        AccountSetting {
            variable: "USIMSA_ACCESS_KEY",
            option: "usimsa-access-key",
            help: "Access key of our account at USIMSA",
        },
        AccountSetting {
            variable: "USIMSA_SECRET_KEY",
            option: "usimsa-secret-key",
            help: "Secret key of our account at USIMSA, Base64",
        },
        AccountSetting::callback_token("USIMSA_CALLBACK_TOKEN", "usimsa-callback-token"),
    ],
    connect: |account, paced| adapter(account, paced, Dialect::Usimsa),
};

/// Who speaks the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Usimsa,
    /// The sandbox proves that it has no such purchase, and shows whether it has an eSIM back.
    Sandbox,
}

/// Creates the adapter of an account at any provider that speaks this protocol.
pub(super) fn adapter(
    account: &ProviderAccount,
    paced: PacedCalls,
    dialect: Dialect,
) -> anyhow::Result<ProviderConnection> {
    let provider = Usimsa {
        http: Http::new(&account.url()?, paced, is_defined)?,
        access_key: account.text("ACCESS_KEY")?.to_owned(),
        access_key_header: account.header("ACCESS_KEY")?,
        secret_key: account.base64_key()?,
        dialect,
    };
    Ok(ProviderConnection {
        provider: Arc::new(provider),
        callback_token: account.callback_token()?,
    })
}

/// The statuses whose bodies are read. It is not documented with which one an error comes, so that
/// of a request that is refused is read, too, unless it means the same for every protocol.
fn is_defined(status: StatusCode) -> bool {
    const COMMON: [StatusCode; 3] = [
        StatusCode::UNAUTHORIZED,
        StatusCode::FORBIDDEN,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    status.is_success() || (status.is_client_error() && !COMMON.contains(&status))
}

/// An account at a provider of this protocol.
struct Usimsa {
    http: Http,
    access_key: String,
    access_key_header: HeaderValue,
    secret_key: SecretKey,
    dialect: Dialect,
}

/// What a code means for the call that got it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    /// The order id was used before, so an earlier attempt has bought.
    BoughtBefore,
    /// The request is refused for good; it had no effect.
    Rejected,
    /// There is no order with this id.
    NoSuchOrder,
    /// A response to a look-up that proves neither a purchase nor its absence.
    Undecided,
    /// Anything else: the code means that the outcome is unknown, or we do not know the code.
    Unknown,
}

/// The failure table of a purchase.
fn of_purchase(dialect: Dialect, code: &str) -> Outcome {
    match (dialect, code) {
        (_, "0000") => Outcome::Done,
        (_, "9003") => Outcome::BoughtBefore,
        (_, "9001") | (Dialect::Usimsa, "9998") | (Dialect::Sandbox, "9000" | "9005") => {
            Outcome::Rejected
        }
        _ => Outcome::Unknown,
    }
}

/// The failure table of a look-up.
fn of_look_up(dialect: Dialect, code: &str) -> Outcome {
    match (dialect, code) {
        (_, "0000") => Outcome::Done,
        (Dialect::Sandbox, "9002") => Outcome::NoSuchOrder,
        // Nobody says what it means here. It may be the response to each look-up of a purchase that
        // never arrived, so it must not count as a failure: where only such purchases are left, the
        // breaker would never close, and none of them would ever be put on hold.
        (Dialect::Usimsa, "9002") => Outcome::Undecided,
        _ => Outcome::Unknown,
    }
}

#[derive(Deserialize)]
struct Reply {
    /// If this is no success, neither `0000` nor an absence is believed; all other codes mean the
    /// same.
    #[serde(skip)]
    status: StatusCode,
    code: String,
    message: Option<String>,
    products: Option<Vec<Product>>,
    usage: Option<Value>,
    device: Option<Value>,
    #[serde(rename = "installCount")]
    install_count: Option<Value>,
}

/// The data that an eSIM of USIMSA has used.
#[derive(Deserialize)]
struct Daily {
    history: Vec<Day>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Day {
    usage_mb: Value,
}

/// The state of an eSIM of the sandbox.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Usage {
    #[serde(rename = "topupId")]
    unit_id: String,
    installed: bool,
    canceled: bool,
    used_bytes: u64,
    total_bytes: u64,
    ends_at: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Product {
    /// The provider's id of the unit. Its protocol calls it `topupId`; it is not one of our topup
    /// ids.
    #[serde(rename = "topupId")]
    unit_id: String,
    option_id: Option<String>,
    iccid: Option<String>,
    smdp: Option<String>,
    activate_code: Option<String>,
    expired_date: Option<String>,
    status: Option<String>,
}

/// A callback. It holds a whole profile, but it is not authenticated, so only the unit is read.
#[derive(Deserialize)]
struct Callback {
    /// As in [`Product`].
    #[serde(rename = "topupId")]
    unit_id: String,
}

impl Usimsa {
    async fn call(
        &self,
        method: Method,
        path: &str,
        route: &'static str,
        json: Option<&Value>,
    ) -> Result<Reply, Trouble> {
        let headers = self.signed(&method, path)?;
        self.send(method, path, route, json, headers).await
    }

    /// The headers of a call to this path, with its signature.
    fn signed(&self, method: &Method, path: &str) -> Result<HeaderMap, Trouble> {
        let now = runtime::clock::unix_milliseconds().to_string();
        let signature = usimsa::sign(
            &self.secret_key,
            method.as_str(),
            path,
            &now,
            &self.access_key,
        );
        Ok(HeaderMap::from_iter([
            (TIMESTAMP, header_of(now)?),
            (ACCESS_KEY, self.access_key_header.clone()),
            (SIGNATURE, header_of(signature)?),
        ]))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        route: &'static str,
        json: Option<&Value>,
        headers: HeaderMap,
    ) -> Result<Reply, Trouble> {
        let (status, body) = self.exchange(method, path, route, json, headers).await?;
        Reply::read(status, &body)
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        route: &'static str,
        json: Option<&Value>,
        headers: HeaderMap,
    ) -> Result<(StatusCode, Vec<u8>), Trouble> {
        self.http
            .call(Call {
                method,
                headers,
                body: json.map(CallBody::json).transpose()?,
                ..Call::get(path, route)
            })
            .await
    }
}

impl Usimsa {
    /// Asks for an order with these headers.
    async fn get_with(
        &self,
        path: &str,
        headers: Result<HeaderMap, Trouble>,
    ) -> Result<Reply, Trouble> {
        self.send(Method::GET, path, FETCH, None, headers?).await
    }

    /// What USIMSA shows of an eSIM: the data that it has used, and whether it is installed. It
    /// does not show whether it would take the eSIM back. No source says how old the figures are.
    async fn shown(&self, esim: &DeliveredEsim) -> Result<EsimStatus, Trouble> {
        let path = of_unit(DAILY, esim)?;
        let daily = self.call(Method::GET, &path, DAILY, None).await?;
        let data_used = match (daily.code.as_str(), &daily.usage) {
            ("0000", Some(usage)) if daily.is_success() => {
                Some(parse_part::<Daily>(usage)?.bytes()?)
            }
            // The eSIM is not in use yet.
            ("1002", _) => Some(0),
            // It is cancelled, or its data is not counted.
            ("1003" | "1004", _) => None,
            _ => return Err(unknown_code(&daily)),
        };
        // This call comes in addition to the one that has its turn.
        self.http.turn().await;
        let path = DEVICE.replace("{iccid}", esim.iccid.as_str());
        let device = self.call(Method::GET, &path, DEVICE, None).await?;
        let installed = match device.code.as_str() {
            "0000" if device.is_success() => device.is_installed(),
            _ => None,
        };
        Ok(EsimStatus {
            reading: Reading {
                installed,
                data_used,
                ..Reading::default()
            },
            custody: Custody::Unshown,
        })
    }
}

/// An answer of which no document says what it should be.
fn told(question: &'static str, asked: String, reply: Result<Reply, Trouble>) -> LiveAnswer {
    let came = match reply {
        Ok(reply) => {
            let status = reply.status.as_u16();
            format!("code {} with HTTP {status}", one_line(&reply.code))
        }
        Err(trouble) => trouble.reason().to_owned(),
    };
    LiveAnswer::seen(question, asked, came)
}

/// The form of an id: its length and which characters it has.
fn form(id: &str) -> String {
    let has = |is: fn(&u8) -> bool| id.bytes().any(|byte| is(&byte));
    let kinds = [
        ("digits", has(u8::is_ascii_digit)),
        ("small letters", has(u8::is_ascii_lowercase)),
        ("large letters", has(u8::is_ascii_uppercase)),
        ("others", has(|byte| !byte.is_ascii_alphanumeric())),
    ];
    let kinds = kinds.iter().filter(|(_, has)| *has);
    let kinds: Vec<&str> = kinds.map(|(name, _)| *name).collect();
    format!("{} characters: {}", id.len(), kinds.join(", "))
}

impl Reply {
    fn read(status: StatusCode, body: &[u8]) -> Result<Self, Trouble> {
        match parse::<Self>(body) {
            Ok(reply) => Ok(Self { status, ..reply }),
            Err(trouble) if status.is_success() => Err(trouble),
            Err(_) => Err(Trouble::not_understood(format!("HTTP {}", status.as_u16()))),
        }
    }

    fn is_success(&self) -> bool {
        self.status.is_success()
    }

    /// Whether a device has installed the eSIM, if the response says it.
    fn is_installed(&self) -> Option<bool> {
        let device = self.device.as_ref();
        let at = device.and_then(|device| device.get("installTime")?.as_str());
        let is_timed = at.is_some_and(|at| !at.trim().is_empty());
        let count = self.install_count.as_ref().and_then(Value::as_u64);
        match (is_timed, count) {
            (true, _) => Some(true),
            (false, count) => count.map(|count| count > 0),
        }
    }
}

/// The bytes of a MB. No source says how USIMSA counts; a text such as `1.5GB` is taken for 1024 of
/// them.
const MEGABYTE: f64 = 1_048_576.0;

impl Daily {
    /// The data of all days.
    fn bytes(&self) -> Result<u64, Trouble> {
        let days = self.history.iter().map(|day| megabytes(&day.usage_mb));
        let sum: Option<f64> = days.sum();
        let bytes = sum.map(|sum| sum * MEGABYTE);
        let bytes = bytes
            .filter(|bytes| *bytes < 1e18)
            .ok_or_else(|| Trouble::unreadable("usageMb is no amount of data"))?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the amount is not negative and far from the largest number"
        )]
        let bytes = bytes.round() as u64;
        Ok(bytes)
    }
}

/// An amount of data in MB: a number, or a text that may name the unit, such as `1.5GB`.
fn megabytes(amount: &Value) -> Option<f64> {
    let amount: f64 = match amount {
        Value::Number(number) => number.as_f64()?,
        Value::String(text) => {
            let text = text.trim().to_ascii_uppercase();
            match (text.strip_suffix("GB"), text.strip_suffix("MB")) {
                (Some(gigabytes), _) => gigabytes.trim().parse::<f64>().ok()? * 1024.0,
                (None, Some(megabytes)) => megabytes.trim().parse().ok()?,
                (None, None) => text.parse().ok()?,
            }
        }
        _ => return None,
    };
    (0.0..1e12).contains(&amount).then_some(amount)
}

impl ProviderFacts for Usimsa {
    fn capabilities(&self) -> Capabilities {
        let is_sandbox = self.dialect == Dialect::Sandbox;
        Capabilities {
            purchase_key: true,
            look_up: if is_sandbox {
                LookUp::Exact
            } else {
                LookUp::ById
            },
            callbacks: true,
            cancel: true,
            give_back: true,
            usage: true,
            extend: Some(if is_sandbox {
                FindExtension::Exact
            } else {
                FindExtension::ByDifference
            }),
            balance: false,
            catalogue: false,
            purchases: false,
        }
    }

    fn refused_products(&self) -> &'static [RefusedProduct] {
        // "9001: product not valid" (quoted from its Postman page by a client).
        &[RefusedProduct {
            product: "no-such-product",
            code: "9001",
        }]
    }

    fn open_questions(&self) -> &'static [OpenQuestion] {
        &[
            OpenQuestion {
                question: "the code of a cancellation of an installed eSIM",
                how: "keep an eSIM (--keep), install it, and run the command again",
            },
            OpenQuestion {
                question: "how often a callback comes again",
                how: "let the callback lead to a receiver of your own that answers 500",
            },
            OpenQuestion {
                question: "whether an extension brings a new ICCID",
                how: "send POST /v2/extend by hand for an eSIM that is kept (--keep)",
            },
        ]
    }

    fn clock_ahead(&self) -> Option<i64> {
        self.http.clock_ahead()
    }

    fn read_callback(&self, callback: CallbackRequest<'_>) -> Result<Hint, BadCallback> {
        // Nobody knows whether the provider tries the URL, and how.
        if callback.body.is_empty() {
            return Ok(Hint::Nothing);
        }
        let callback: Callback =
            serde_json::from_slice(callback.body).map_err(|_| BadCallback::Unreadable)?;
        let unit_id = ProviderId::parse(callback.unit_id).map_err(|_| BadCallback::Unreadable)?;
        Ok(Hint::Unit(unit_id))
    }
}

impl Adapter for Usimsa {
    /// Asks for an order that does not exist, also with a wrong signature and without one, and
    /// sends an order of nothing: which code comes, and with which kind of HTTP status, is not
    /// documented, or only by other clients.
    async fn ask_live(&self) -> Vec<LiveAnswer> {
        let id = PlacementId::new();
        let path = format!("{ORDER}/{id}");
        let wrong = self.signed(&Method::GET, ORDER);
        let mut unsigned = self.signed(&Method::GET, &path);
        if let Ok(headers) = &mut unsigned {
            headers.remove(SIGNATURE);
        }
        let wrong = self.get_with(&path, wrong).await;
        self.http.turn().await;
        let unsigned = self.get_with(&path, unsigned).await;
        self.http.turn().await;
        let absent = self.call(Method::GET, &path, FETCH, None).await;
        self.http.turn().await;
        let nothing = json!({ "orderId": id, "products": [] });
        let malformed = self.call(Method::POST, ORDER, ORDER, Some(&nothing)).await;
        vec![
            told(
                "a call with a wrong signature",
                format!("GET {ORDER}/ID"),
                wrong,
            ),
            told(
                "a call without a signature",
                format!("GET {ORDER}/ID"),
                unsigned,
            ),
            told(
                "the code of an order that does not exist",
                format!("GET {ORDER}/ID"),
                absent,
            ),
            // One client has seen `9998`; no document names a code.
            told(
                "the code of a malformed order",
                format!("POST {ORDER} without products"),
                malformed,
            ),
        ]
    }

    /// Asks for an eSIM by both paths that clients use, and for its data and device.
    async fn ask_about(&self, esim: &DeliveredEsim) -> Vec<LiveAnswer> {
        let mut answers = vec![LiveAnswer::seen(
            "the form of a topupId",
            "the purchase".to_owned(),
            form(esim.unit_id.as_str()),
        )];
        let by_body = json!({ "topupId": esim.unit_id.as_str() });
        let iccid = Ok(DEVICE.replace("{iccid}", esim.iccid.as_str()));
        for (question, route, path, body) in [
            (
                "an eSIM by a topupId in the path",
                TOPUP_PATH,
                of_unit(TOPUP_PATH, esim),
                None,
            ),
            (
                "an eSIM by a topupId in the body",
                TOPUP,
                Ok(TOPUP.to_owned()),
                Some(&by_body),
            ),
            ("the data of a new eSIM", DAILY, of_unit(DAILY, esim), None),
            ("the device of a new eSIM", DEVICE, iccid, None),
        ] {
            self.http.turn().await;
            let reply = async { self.call(Method::GET, &path?, route, body).await };
            answers.push(told(question, format!("GET {route}"), reply.await));
        }
        answers
    }

    async fn purchase(&self, purchase: &Purchase) -> Result<PurchaseResponse, Trouble> {
        let product = |(option, qty): &(String, usize)| json!({ "optionId": option, "qty": qty });
        let products: Vec<Value> = purchase.items.iter().map(product).collect();
        let request = json!({ "orderId": purchase.placement_id, "products": products });
        let reply = self
            .call(Method::POST, ORDER, ORDER, Some(&request))
            .await?;
        match of_purchase(self.dialect, &reply.code) {
            Outcome::Done if reply.is_success() => {
                Ok(PurchaseResponse::Bought(units(reply.products)?.into()))
            }
            // The units are collected.
            Outcome::BoughtBefore => Ok(PurchaseResponse::Bought(BoughtUnits::default())),
            Outcome::Rejected => Ok(PurchaseResponse::Rejected {
                message: one_line(&reply.message.unwrap_or_default()),
                status: reply.code,
            }),
            _ => Err(unknown_code(&reply)),
        }
    }

    async fn look_up(&self, look_up: &LookUpRequest) -> Result<LookUpResponse, Trouble> {
        let path = format!("{ORDER}/{}", look_up.placement_id);
        let reply = self.call(Method::GET, &path, FETCH, None).await?;
        match of_look_up(self.dialect, &reply.code) {
            Outcome::Done if reply.is_success() => {
                Ok(LookUpResponse::Found(units(reply.products)?.into()))
            }
            Outcome::NoSuchOrder if reply.is_success() => Ok(LookUpResponse::NotFound),
            Outcome::Undecided => Err(Trouble::Unknown {
                heard: Heard::ProvesNothing,
                reason: code_said(&reply),
            }),
            _ => Err(unknown_code(&reply)),
        }
    }

    async fn status(&self, esim: &DeliveredEsim) -> Result<EsimStatus, Trouble> {
        if self.dialect == Dialect::Usimsa {
            return self.shown(esim).await;
        }
        let path = of_unit(USAGE, esim)?;
        let reply = self.call(Method::GET, &path, USAGE, None).await?;
        match (reply.code.as_str(), &reply.usage) {
            ("0000", Some(usage)) if reply.is_success() => parse_part::<Usage>(usage)?.status(esim),
            _ => Err(unknown_code(&reply)),
        }
    }

    async fn offers(&self, esim: &DeliveredEsim) -> Result<Option<Vec<ExtensionOffer>>, Trouble> {
        match self.dialect {
            // Its products are a spreadsheet, and no source lists what can be added.
            Dialect::Usimsa => Ok(None),
            Dialect::Sandbox => self.listed_extensions(esim).await.map(Some),
        }
    }

    async fn before_extension(&self, extension: &Extension) -> Result<BeforeExtension, Trouble> {
        match self.dialect {
            Dialect::Usimsa => self.baseline(&extension.esim).await,
            Dialect::Sandbox => self.sandbox_baseline(&extension.esim).await,
        }
    }

    async fn extend(&self, extension: &Extension) -> Result<ExtendResponse, Trouble> {
        let mut request = json!({
            "topupId": extension.esim.unit_id.as_str(),
            "optionId": extension.provider_option_id,
        });
        if self.dialect == Dialect::Sandbox {
            request["extensionId"] = json!(extension.id);
        }
        let WholeReply { reply, all } = self
            .call_whole(Method::POST, EXTEND, EXTEND, Some(&request))
            .await?;
        match extend::of_extension(self.dialect, &reply.code) {
            Outcome::Done if reply.is_success() => {
                extend::added(&extension.esim, &all).map(ExtendResponse::Added)
            }
            Outcome::Rejected => Ok(ExtendResponse::Refused {
                message: one_line(&reply.message.unwrap_or_default()),
                status: reply.code,
            }),
            _ => Err(unknown_code(&reply)),
        }
    }

    async fn find_extension(
        &self,
        extension: &Extension,
        baseline: &Baseline,
    ) -> Result<ExtensionSeen, Trouble> {
        match self.dialect {
            Dialect::Usimsa => self.differs(&extension.esim, baseline).await,
            Dialect::Sandbox => self.sandbox_extension(extension).await,
        }
    }

    async fn give_back(&self, esim: &DeliveredEsim) -> Result<GiveBackResponse, Trouble> {
        let path = of_unit(CANCEL, esim)?;
        let reply = self.call(Method::POST, &path, CANCEL, None).await?;
        match reply.code.as_str() {
            "0000" if reply.is_success() => Ok(GiveBackResponse::Returned),
            "9002" => Ok(GiveBackResponse::Returned),
            "9003" | "9004" | "9006" => Ok(GiveBackResponse::Refused(one_line(
                &reply.message.unwrap_or_default(),
            ))),
            _ => Err(unknown_code(&reply)),
        }
    }
}

/// The path of a call about an eSIM.
fn of_unit(route: &str, esim: &DeliveredEsim) -> Result<String, Trouble> {
    path_of(route, "{topupId}", esim.unit_id.as_str())
}

impl Usage {
    fn status(&self, esim: &DeliveredEsim) -> Result<EsimStatus, Trouble> {
        if self.unit_id != esim.unit_id.as_str() {
            return Err(Trouble::not_understood("the response is another eSIM"));
        }
        let custody = if self.canceled {
            Custody::Returned
        } else if self.installed {
            Custody::Kept("the eSIM is installed".to_owned())
        } else {
            Custody::Returnable
        };
        Ok(EsimStatus {
            reading: Reading {
                installed: Some(self.installed),
                data_used: Some(self.used_bytes),
                data_total: Some(self.total_bytes),
                ends_at: self.installed.then(|| moment(&self.ends_at)).flatten(),
                as_of: None,
                only_downloaded: false,
            },
            custody,
        })
    }
}

/// The trouble for a code that is not in the table of its call.
fn unknown_code(reply: &Reply) -> Trouble {
    Trouble::not_understood(code_said(reply))
}

fn code_said(reply: &Reply) -> String {
    let message = reply.message.as_deref().unwrap_or_default();
    format!("code {}: {}", one_line(&reply.code), one_line(message))
}

/// Reads the units of a response. One bad id makes the whole response unreadable, and no unit of it
/// is used, because a damaged response cannot be trusted in part.
fn units(products: Option<Vec<Product>>) -> Result<Vec<ProviderUnit>, Trouble> {
    const FIELDS: UnitFields = UnitFields {
        unit: "unit",
        unit_id: "topupId",
        product_id: "optionId",
    };
    let products = products.unwrap_or_default();
    let read = |(index, product): (usize, Product)| {
        let state = state(&product);
        FIELDS.read(index, product.unit_id, product.option_id, state)
    };
    products.into_iter().enumerate().map(read).collect()
}

/// Reads the state of a unit; the error is the name of the field that is unreadable. A unit counts
/// as ready when it has its whole profile, and not by its status, because the names of statuses
/// differ from account to account.
fn state(product: &Product) -> Result<ProviderUnitState, ProfileFault> {
    let profile = (
        filled(product.iccid.as_ref()),
        filled(product.smdp.as_ref()),
        filled(product.activate_code.as_ref()),
        filled(product.expired_date.as_ref()),
    );
    if let (Some(iccid), Some(smdp), Some(code), Some(date)) = profile {
        return Ok(ProviderUnitState::Ready(ProviderProfile {
            iccid: Iccid::parse(iccid).map_err(|_| "iccid")?,
            code: ActivationCode::read(Some(smdp), code)
                .map_err(|error| ProfileFault::of_code(&error, "smdp or activateCode"))?,
            is_code_shared: false,
            expired_date: day(date).ok_or("expiredDate")?,
        }));
    }
    Ok(match product.status.as_deref() {
        Some(status @ ("FAILED" | "CANCELED" | "CANCELLED")) => {
            ProviderUnitState::Failed(format!("the provider says {status}"))
        }
        _ => ProviderUnitState::Pending,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"{"topupId":"1","optionId":"o","iccid":"8982123456789012345F","smdp":"smdp.example",
                        "activateCode":"AB-12","expiredDate":"2026-12-31T00:00:00Z","status":"READY"}"#;

    fn product(text: &str) -> Result<ProviderUnitState, ProfileFault> {
        state(&serde_json::from_str(text).unwrap())
    }

    #[test]
    fn a_unit_is_ready_only_with_its_whole_profile() {
        let Ok(ProviderUnitState::Ready(ProviderProfile {
            iccid,
            code,
            expired_date,
            ..
        })) = product(WHOLE)
        else {
            panic!("not ready")
        };
        assert_eq!(iccid.as_str(), "8982123456789012345");
        assert_eq!(code.download_link(), "LPA:1$smdp.example$AB-12");
        assert_eq!(expired_date, "2026-12-31");
        for field in ["iccid", "smdp", "activateCode", "expiredDate"] {
            let part = WHOLE.replace(field, "other");
            assert!(
                matches!(product(&part), Ok(ProviderUnitState::Pending)),
                "{field}"
            );
        }
    }

    #[test]
    fn an_unreadable_profile_names_its_field() {
        let long = "A".repeat(256);
        for (from, to, field) in [
            ("AB-12", "AB$12", "smdp or activateCode"),
            ("AB-12", &long, "smdp or activateCode"),
            ("AB-12", r"AB\u0000", "smdp or activateCode"),
            ("smdp.example", "smdp/example", "smdp or activateCode"),
            (
                "smdp.example",
                r"smdp.\u202eexample",
                "smdp or activateCode",
            ),
            ("8982123456789012345F", "89821234567890123", "iccid"),
            ("8982123456789012345F", "898212345678901234\u{664}", "iccid"),
            ("2026-12-31T00:00:00Z", "9999-99-99", "expiredDate"),
            ("2026-12-31T00:00:00Z", "2026-02-29", "expiredDate"),
            ("2026-12-31T00:00:00Z", "2026-13-01", "expiredDate"),
            ("2026-12-31T00:00:00Z", "0000-00-00", "expiredDate"),
            ("2026-12-31T00:00:00Z", "0000-01-01", "expiredDate"),
            ("2026-12-31T00:00:00Z", "-026-12-31", "expiredDate"),
            ("2026-12-31T00:00:00Z", "2026-12-3", "expiredDate"),
            ("2026-12-31T00:00:00Z", "2026-12-311", "expiredDate"),
            ("2026-12-31T00:00:00Z", "31.12.2026", "expiredDate"),
            ("2026-12-31T00:00:00Z", "2026-12-3ä", "expiredDate"),
        ] {
            let odd = WHOLE.replace(from, to);
            assert_eq!(
                product(&odd).unwrap_err(),
                ProfileFault::Field(field),
                "{odd}"
            );
        }
        for date in [
            "2026-12-31",
            "2028-02-29 23:59:59",
            "9999-12-31T00:00:00.000+09:00",
        ] {
            let whole = WHOLE.replace("2026-12-31T00:00:00Z", date);
            let Ok(ProviderUnitState::Ready(profile)) = product(&whole) else {
                panic!("{date} is not accepted")
            };
            assert_eq!(profile.expired_date, &date[..10]);
        }
    }

    #[test]
    fn failed_units_are_failed() {
        let failed = product(r#"{"topupId":"1","optionId":"o","status":"FAILED"}"#);
        assert!(matches!(failed, Ok(ProviderUnitState::Failed(_))));
        let unknown = product(r#"{"topupId":"1","optionId":"o","status":"SOMETHING"}"#);
        assert!(matches!(unknown, Ok(ProviderUnitState::Pending)));
    }
}
