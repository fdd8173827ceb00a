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

mod calls;
mod extend;
mod wire;

use std::sync::Arc;

use domain::{PlacementId, esim_change::GiveBackCause, extension::Baseline};
use reqwest::{Method, StatusCode, header::HeaderMap};
use serde::Deserialize;
use serde_json::{Value, json};
use store::esim_requests::Reading;

pub(super) use self::calls::Dialect;
use self::{
    calls::{SIGNATURE, TOPUP, TOPUP_PATH, USAGE, Usimsa, UsimsaOutcome, of_unit},
    extend::WholeReply,
    wire::{Daily, UsimsaReply, UsimsaUsage, code_said, units, unknown_code},
};
use super::{
    account::{AccountSetting, KnownProvider, ProviderAccount},
    extension::{
        BeforeExtension, ExtendResponse, Extension, ExtensionOffer, ExtensionSeen, FindExtension,
    },
    http::{Http, parse_part},
    provider::{
        Adapter, BadCallback, BoughtUnits, CallbackRequest, Capabilities, Custody, DeliveredEsim,
        EsimStatus, GiveBackResponse, GiveBackWay, Heard, Hint, LiveAnswer, LookUp, LookUpRequest,
        LookUpResponse, OpenQuestion, PacedCalls, ProviderConnection, ProviderFacts, Purchase,
        PurchaseResponse, RefusedProduct, SuspendResponse, Trouble,
    },
    text::{ProviderId, one_line},
};

const ORDER: &str = "/api/v2/order";
const FETCH: &str = "/api/v2/order/{orderId}";
/// USIMSA shows the data by the day, and the device.
const DAILY: &str = "/api/v2/topup/{topupId}/usage/daily";
const DEVICE: &str = "/api/v2/iccid/{iccid}/device";
const EXTEND: &str = "/api/v2/extend";
/// USIMSA suspends no eSIM.
const SUSPEND: &str = "/api/v2/suspend/{topupId}";
const RESUME: &str = "/api/v2/resume/{topupId}";
const CANCEL: &str = "/api/v2/cancel/{topupId}";

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

/// The failure table of a purchase.
fn of_purchase(dialect: Dialect, code: &str) -> UsimsaOutcome {
    match (dialect, code) {
        (_, "0000") => UsimsaOutcome::Done,
        (_, "9003") => UsimsaOutcome::BoughtBefore,
        (_, "9001") | (Dialect::Usimsa, "9998") | (Dialect::Sandbox, "9000" | "9005") => {
            UsimsaOutcome::Rejected
        }
        _ => UsimsaOutcome::Unknown,
    }
}

/// The failure table of a look-up.
fn of_look_up(dialect: Dialect, code: &str) -> UsimsaOutcome {
    match (dialect, code) {
        (_, "0000") => UsimsaOutcome::Done,
        (Dialect::Sandbox, "9002") => UsimsaOutcome::NoSuchOrder,
        // Nobody says what it means here. It may be the response to each look-up of a purchase that
        // never arrived, so it must not count as a failure: where only such purchases are left, the
        // breaker would never close, and none of them would ever be put on hold.
        (Dialect::Usimsa, "9002") => UsimsaOutcome::Undecided,
        _ => UsimsaOutcome::Unknown,
    }
}

/// A callback. It holds a whole profile, but it is not authenticated, so only the unit is read.
#[derive(Deserialize)]
struct Callback {
    /// As in [`wire::UsimsaProduct`].
    #[serde(rename = "topupId")]
    unit_id: String,
}

impl Usimsa {
    /// Asks for an order with these headers.
    async fn get_with(
        &self,
        path: &str,
        headers: Result<HeaderMap, Trouble>,
    ) -> Result<UsimsaReply, Trouble> {
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
            suspended: None,
        })
    }
}

/// An answer of which no document says what it should be.
fn told(question: &'static str, asked: String, reply: Result<UsimsaReply, Trouble>) -> LiveAnswer {
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
            give_back: Some(GiveBackWay::Uninstalled),
            suspend: is_sandbox,
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
            UsimsaOutcome::Done if reply.is_success() => {
                Ok(PurchaseResponse::Bought(units(reply.products)?.into()))
            }
            // The units are collected.
            UsimsaOutcome::BoughtBefore => Ok(PurchaseResponse::Bought(BoughtUnits::default())),
            UsimsaOutcome::Rejected => Ok(PurchaseResponse::Rejected {
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
            UsimsaOutcome::Done if reply.is_success() => {
                Ok(LookUpResponse::Found(units(reply.products)?.into()))
            }
            UsimsaOutcome::NoSuchOrder if reply.is_success() => Ok(LookUpResponse::NotFound),
            UsimsaOutcome::Undecided => Err(Trouble::Unknown {
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
            ("0000", Some(usage)) if reply.is_success() => {
                parse_part::<UsimsaUsage>(usage)?.status(esim)
            }
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
            UsimsaOutcome::Done if reply.is_success() => {
                extend::added(&extension.esim, &all).map(ExtendResponse::Added)
            }
            UsimsaOutcome::Rejected => Ok(ExtendResponse::Refused {
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

    async fn suspend(
        &self,
        esim: &DeliveredEsim,
        suspend: bool,
    ) -> Result<SuspendResponse, Trouble> {
        let route = if suspend { SUSPEND } else { RESUME };
        let path = of_unit(route, esim)?;
        let reply = self.call(Method::POST, &path, route, None).await?;
        match reply.code.as_str() {
            "0000" if reply.is_success() => Ok(SuspendResponse::Done),
            "9006" => Ok(SuspendResponse::Refused(one_line(
                &reply.message.unwrap_or_default(),
            ))),
            _ => Err(unknown_code(&reply)),
        }
    }

    async fn give_back(
        &self,
        esim: &DeliveredEsim,
        _: GiveBackCause,
    ) -> Result<GiveBackResponse, Trouble> {
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
