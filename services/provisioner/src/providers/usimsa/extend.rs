//! Extensions. `POST /api/v2/extend` names an eSIM and an option, and nothing in it is an id of
//! ours. One client, the only source (two of its functions, read in November 2026), takes `0000`
//! for done and any other code for a failure. It expects that the provider may sell another eSIM
//! instead, whose profile is in the response then. No source says what a code other than `0000`
//! means here, or whether a repeat extends twice. So only a malformed request is a refusal, and a
//! lost answer is found only by the end of the plan, which must have moved by exactly the days of
//! the option.
//!
//! The sandbox has more: its request has our id, by which it shows the extension, and it lists what
//! can be added.

use domain::{Iccid, extension::Baseline};
use reqwest::Method;
use runtime::clock;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    calls::{Dialect, TOPUP, TOPUP_PATH, USAGE, Usimsa, UsimsaOutcome, of_unit},
    wire::{UsimsaProduct, UsimsaReply, UsimsaUsage, state, unknown_code},
};
use crate::providers::{
    extension::{
        AddedExtension, BeforeExtension, Extension, ExtensionOffer, ExtensionSeen, Seen,
        is_extended, under_way,
    },
    http::{parse, parse_part},
    provider::{DeliveredEsim, ProviderUnitState, Trouble},
    text::{ProviderId, moment, one_line},
};

const EXTENSION: &str = "/api/v2/extend/{extensionId}";
const EXTENSIONS: &str = "/api/v2/topup/{topupId}/extensions";

/// The failure table of an extension.
pub(super) fn of_extension(dialect: Dialect, code: &str) -> UsimsaOutcome {
    match (dialect, code) {
        (_, "0000") => UsimsaOutcome::Done,
        // The request is malformed; it is not documented which other code refuses an extension.
        (Dialect::Usimsa, "9998")
        // No such option or eSIM; out of stock; the state of the eSIM does not allow it.
        | (Dialect::Sandbox, "9000" | "9001" | "9005" | "9006") => UsimsaOutcome::Rejected,
        _ => UsimsaOutcome::Unknown,
    }
}

/// What the provider says of an eSIM; the fields are those that two clients read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Topup {
    /// A text, or a number.
    #[serde(rename = "topupId", default)]
    unit_id: Value,
    expire_time: Option<String>,
}

impl Topup {
    fn is(&self, esim: &DeliveredEsim) -> bool {
        let named = match &self.unit_id {
            Value::Null => return true,
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        named == esim.unit_id.as_str()
    }
}

/// An extension of the sandbox.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SandboxExtension {
    extension_id: String,
    #[serde(rename = "topupId")]
    unit_id: String,
    status: String,
}

/// Something that can be added at the sandbox.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SandboxOffer {
    option_id: String,
    name: String,
    bytes: u64,
    days: u32,
}

/// A response with all of its fields. Those of purchases are read only as far as they are needed,
/// so that nothing in another field makes a purchase unreadable.
pub(super) struct WholeReply {
    pub(super) reply: UsimsaReply,
    pub(super) all: Map<String, Value>,
}

/// What a look at an eSIM shows.
enum Look {
    Shown(Seen),
    /// The provider does not show it, because nobody uses the eSIM yet, or for another reason.
    Hidden,
    /// There is no such eSIM, or it is cancelled: one short line.
    Gone(String),
}

impl Usimsa {
    pub(super) async fn call_whole(
        &self,
        method: Method,
        path: &str,
        route: &'static str,
        json: Option<&Value>,
    ) -> Result<WholeReply, Trouble> {
        let headers = self.signed(&method, path)?;
        let (status, body) = self.exchange(method, path, route, json, headers).await?;
        Ok(WholeReply {
            reply: UsimsaReply::read(status, &body)?,
            all: parse(&body)?,
        })
    }

    /// Looks at an eSIM. Clients differ in where they write its id: in the path, or in a body that
    /// is not signed. If the first is not understood, the second is tried.
    async fn look_at(&self, esim: &DeliveredEsim) -> Result<Look, Trouble> {
        let path = of_unit(TOPUP_PATH, esim)?;
        let whole = self
            .call_whole(Method::GET, &path, TOPUP_PATH, None)
            .await?;
        let WholeReply { reply, all } = if whole.reply.code == "9998" {
            // This call comes in addition to the one that has its turn.
            self.http.turn().await;
            let body = json!({ "topupId": esim.unit_id.as_str() });
            self.call_whole(Method::GET, TOPUP, TOPUP, Some(&body))
                .await?
        } else {
            whole
        };
        let gone = || one_line(reply.message.as_deref().unwrap_or_default());
        match reply.code.as_str() {
            "0000" if reply.is_success() => {
                let topup = part(&all, "topup");
                let topup = topup.ok_or_else(|| Trouble::unreadable("it has no topup"))?;
                let topup: Topup = parse_part(topup)?;
                if !topup.is(esim) {
                    return Err(Trouble::not_understood("the response is another eSIM"));
                }
                Ok(Look::Shown(Seen {
                    ends_at: topup.expire_time.as_deref().and_then(moment),
                    ..Seen::default()
                }))
            }
            "1001" => Ok(Look::Gone(format!(
                "the provider has no such eSIM: {}",
                gone()
            ))),
            "1003" => Ok(Look::Gone(format!("the eSIM is cancelled: {}", gone()))),
            "1002" | "1004" => Ok(Look::Hidden),
            _ => Err(unknown_code(&reply)),
        }
    }

    pub(super) async fn baseline(&self, esim: &DeliveredEsim) -> Result<BeforeExtension, Trouble> {
        Ok(match self.look_at(esim).await? {
            Look::Shown(seen) => BeforeExtension::Possible(Baseline {
                ends_at: seen.ends_at,
                ..Baseline::default()
            }),
            Look::Hidden => BeforeExtension::Possible(Baseline::default()),
            Look::Gone(reason) => BeforeExtension::Refused(one_line(&reason)),
        })
    }

    pub(super) async fn differs(
        &self,
        esim: &DeliveredEsim,
        baseline: &Baseline,
    ) -> Result<ExtensionSeen, Trouble> {
        Ok(match self.look_at(esim).await? {
            Look::Shown(seen) if is_extended(baseline, seen) => {
                ExtensionSeen::Added(AddedExtension::default())
            }
            Look::Shown(_) | Look::Hidden | Look::Gone(_) => ExtensionSeen::NotAdded,
        })
    }

    pub(super) async fn sandbox_baseline(
        &self,
        esim: &DeliveredEsim,
    ) -> Result<BeforeExtension, Trouble> {
        let path = of_unit(USAGE, esim)?;
        let reply = self.call(Method::GET, &path, USAGE, None).await?;
        let usage = match (reply.code.as_str(), &reply.usage) {
            ("0000", Some(usage)) if reply.is_success() => parse_part::<UsimsaUsage>(usage)?,
            ("9001", _) => {
                let reason = "the provider has no such eSIM".to_owned();
                return Ok(BeforeExtension::Refused(reason));
            }
            _ => return Err(unknown_code(&reply)),
        };
        if usage.unit_id != esim.unit_id.as_str() {
            return Err(Trouble::not_understood("the response is another eSIM"));
        }
        let ends_at = moment(&usage.ends_at);
        let refusal = if usage.canceled {
            Some("the eSIM is given back")
        } else if ends_at.is_some_and(|ends_at| ends_at <= clock::now()) {
            Some("the eSIM has expired")
        } else {
            None
        };
        Ok(match refusal {
            Some(reason) => BeforeExtension::Refused(reason.to_owned()),
            None => BeforeExtension::Possible(Baseline {
                data_total: Some(usage.total_bytes),
                ends_at,
                ..Baseline::default()
            }),
        })
    }

    pub(super) async fn sandbox_extension(
        &self,
        extension: &Extension,
    ) -> Result<ExtensionSeen, Trouble> {
        let path = EXTENSION.replace("{extensionId}", &extension.id.to_string());
        let WholeReply { reply, all } =
            self.call_whole(Method::GET, &path, EXTENSION, None).await?;
        match reply.code.as_str() {
            "0000" if reply.is_success() => {
                let shown: SandboxExtension = parse_part(&Value::Object(all.clone()))?;
                if shown.extension_id != extension.id.to_string()
                    || shown.unit_id != extension.esim.unit_id.as_str()
                {
                    return Err(Trouble::not_understood("the response is another extension"));
                }
                match shown.status.as_str() {
                    "READY" => added(&extension.esim, &all).map(ExtensionSeen::Added),
                    "PENDING" => Err(under_way("PENDING")),
                    _ => Err(Trouble::unreadable("the status of the extension")),
                }
            }
            "9002" if reply.is_success() => Ok(ExtensionSeen::NotAdded),
            _ => Err(unknown_code(&reply)),
        }
    }

    pub(super) async fn listed_extensions(
        &self,
        esim: &DeliveredEsim,
    ) -> Result<Vec<ExtensionOffer>, Trouble> {
        let path = of_unit(EXTENSIONS, esim)?;
        let WholeReply { reply, all } = self
            .call_whole(Method::GET, &path, EXTENSIONS, None)
            .await?;
        let listed = match (reply.code.as_str(), all.get("extensions")) {
            ("0000", Some(listed)) if reply.is_success() => listed,
            _ => return Err(unknown_code(&reply)),
        };
        let listed: Vec<SandboxOffer> = parse_part(listed)?;
        let read = |offer: SandboxOffer| {
            Some(ExtensionOffer {
                provider_option_id: ProviderId::parse(offer.option_id).ok()?,
                name: one_line(&offer.name),
                data: Some(offer.bytes),
                days: Some(offer.days),
                cost: None,
            })
        };
        Ok(listed.into_iter().filter_map(read).collect())
    }
}

/// A part of a response. The client that is the source also looks for it in `data`.
fn part<'a>(reply: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    let is_there = |value: &&Value| !value.is_null();
    let nested = || reply.get("data")?.get(name);
    reply.get(name).filter(is_there).or_else(nested)
}

/// What a successful response says. If it names another ICCID, the provider has sold another eSIM,
/// whose profile must be whole, because nobody could look it up.
pub(super) fn added(
    esim: &DeliveredEsim,
    reply: &Map<String, Value>,
) -> Result<AddedExtension, Trouble> {
    let named = match part(reply, "iccid") {
        None => None,
        Some(Value::String(text)) if text.trim().is_empty() => None,
        Some(Value::String(text)) => Some(text),
        Some(_) => return Err(Trouble::unreadable("iccid")),
    };
    let Some(named) = named else {
        return if part(reply, "activateCode").is_some() {
            Err(Trouble::unreadable("it has a profile without an ICCID"))
        } else {
            Ok(AddedExtension::default())
        };
    };
    let iccid = Iccid::parse(named).map_err(|_| Trouble::unreadable("iccid"))?;
    if iccid == esim.iccid {
        return Ok(AddedExtension::default());
    }
    let text = |name: &str| part(reply, name).and_then(Value::as_str).map(str::to_owned);
    let unit_id = text("topupId");
    let product = UsimsaProduct {
        unit_id: String::new(),
        option_id: None,
        iccid: Some(named.to_owned()),
        // The client reads the second name, and callbacks have the first one.
        smdp: text("smdp").or_else(|| text("smdpAddress")),
        activate_code: text("activateCode"),
        expired_date: text("expiredDate"),
        status: None,
    };
    let Ok(ProviderUnitState::Ready(profile)) = state(&product) else {
        return Err(Trouble::unreadable("the profile of another eSIM"));
    };
    let reference = unit_id.and_then(|id| ProviderId::parse(id).ok());
    Ok(AddedExtension {
        reference: reference.filter(|id| *id != esim.unit_id),
        profile: Some(profile),
    })
}
