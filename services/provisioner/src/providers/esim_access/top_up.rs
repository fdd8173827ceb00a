//! Extensions, which eSIM Access calls top-ups. Its reference (April 2026) says that they add data
//! and days to an eSIM that is new, in use or used up, never to one that has expired; one client
//! has printed an answer in which both had grown by exactly the package (December 2025).
//!
//! The request has our id, but it is not documented whether a repeat adds again, so nothing relies
//! on it. Nor does the reference show our id in the list of an eSIM's packages; the types of one
//! client have it there. Where it is, the extension is certain. Otherwise it is found by the data
//! and days of the eSIM, which must have grown by exactly those of the package.
//!
//! The documents name a field for the price. One client writes it as a text, another one got
//! `000104` for it, so it is not sent: the price is compared with the list just before.

use domain::{
    ExtensionId,
    extension::Baseline,
    product::{Cost, Price},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    client::{Client, EsimAccessOutcome, PACKAGES, outcome},
    wire::{self, Reply},
};
use crate::providers::{
    extension::{
        AddedExtension, BeforeExtension, ExtendResponse, Extension, ExtensionOffer, ExtensionSeen,
        is_extended,
    },
    http::{Size, parse_part},
    lists::{name, number, product, text},
    price,
    provider::{DeliveredEsim, Trouble},
    text::{ProviderId, one_line},
};

const TOP_UP: &str = "/api/v1/open/esim/topup";
/// "The top up data plan code doesn't exist", as one client has seen it for a package of another
/// region. The reference does not list it; those on both sides of it refuse an unknown package.
const NO_TOP_UP: &str = "310242";
/// The states in which an eSIM can never be topped up again, or not now.
const OVER: [&str; 6] = [
    "USED_EXPIRED",
    "UNUSED_EXPIRED",
    "CANCEL",
    "REVOKE",
    "REVOKED",
    "SUSPENDED",
];
/// Those in which it can: new, in use, used up.
const OPEN: [&str; 3] = ["GOT_RESOURCE", "IN_USE", "USED_UP"];

/// A package that can be added.
struct TopUpPackage<'a> {
    code: ProviderId,
    slug: Option<&'a str>,
    name: String,
    /// In bytes.
    data: Option<u64>,
    days: Option<u32>,
    price: Option<Price>,
    cost: Option<Cost>,
}

impl<'a> TopUpPackage<'a> {
    /// `None` if the entry cannot be ordered: it has no code, or its data counts by the day, so
    /// that an order needs a number of days.
    fn read(entry: &'a Value) -> Option<Self> {
        if number(entry, "dataType") != Some(1) {
            return None;
        }
        let is_by_day =
            text(entry, "durationUnit").is_some_and(|unit| unit.eq_ignore_ascii_case("day"));
        let days = number(entry, "duration").filter(|_| is_by_day);
        let price = number(entry, "price").map(Price);
        let currency = text(entry, "currencyCode").and_then(|code| code.parse().ok());
        Some(Self {
            code: product(entry, "packageCode")?,
            slug: text(entry, "slug"),
            name: name(entry, "name"),
            data: number(entry, "volume"),
            days: days.and_then(|days| days.try_into().ok()),
            price,
            cost: price
                .zip(currency)
                .map(|(price, currency)| Cost { price, currency }),
        })
    }

    /// A package can be ordered by its code or by its slug.
    fn is(&self, ordered: &str) -> bool {
        self.code.as_str() == ordered || self.slug == Some(ordered)
    }
}

/// The answer to a top-up.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToppedUp {
    transaction_id: String,
    iccid: Option<String>,
    #[serde(default)]
    top_up_esim_tran_no: Value,
}

impl Client {
    /// What can be added to an eSIM now.
    async fn top_ups(&self, esim: &DeliveredEsim) -> Result<Vec<Value>, Trouble> {
        let request = json!({ "type": "TOPUP", "iccid": esim.iccid.as_str() });
        let reply = self.call_for(Size::List, PACKAGES, &request);
        let listed: wire::EsimAccessPackages = match reply.await? {
            Reply::Done(result) => parse_part(&result)?,
            Reply::Failed(failure) => return Err(failure.trouble()),
        };
        Ok(listed.package_list)
    }

    pub(super) async fn offered(
        &self,
        esim: &DeliveredEsim,
    ) -> Result<Vec<ExtensionOffer>, Trouble> {
        let listed = self.top_ups(esim).await?;
        let packages = listed.iter().filter_map(TopUpPackage::read);
        let offers = packages.map(|package| ExtensionOffer {
            provider_option_id: package.code,
            name: package.name,
            data: package.data,
            days: package.days,
            cost: package.cost,
        });
        Ok(offers.collect())
    }

    pub(super) async fn baseline(&self, extension: &Extension) -> Result<BeforeExtension, Trouble> {
        let priced = match price::priced_product(&extension.provider_option_id) {
            Ok(priced) => priced,
            Err(trouble) => return BeforeExtension::refused_here(trouble),
        };
        let esim = self.one(&extension.esim).await?;
        let state = esim.esim_status().unwrap_or_default();
        if OVER.contains(&state) {
            return Ok(BeforeExtension::Refused(one_line(&format!(
                "the provider says {state}"
            ))));
        }
        if !OPEN.contains(&state) {
            return Err(Trouble::unreadable("the state of the eSIM"));
        }
        // This call comes in addition to the one that has its turn.
        self.http.turn().await;
        let listed = self.top_ups(&extension.esim).await?;
        let mut packages = listed.iter().filter_map(TopUpPackage::read);
        let Some(package) = packages.find(|package| package.is(priced.product)) else {
            let unlisted = "the provider does not add this to this eSIM now".to_owned();
            return Ok(BeforeExtension::Refused(unlisted));
        };
        if let Some(most) = priced.most
            && let Err(trouble) = price::compare(package.price, most, "the provider names no price")
        {
            return BeforeExtension::refused_here(trouble);
        }
        Ok(BeforeExtension::Possible(Baseline {
            adds_data: package.data,
            adds_days: package.days,
            ..esim.baseline()
        }))
    }

    pub(super) async fn top_up(&self, extension: &Extension) -> Result<ExtendResponse, Trouble> {
        let priced = price::priced_product(&extension.provider_option_id)?;
        let request = json!({
            "esimTranNo": extension.esim.unit_id.as_str(),
            "packageCode": priced.product,
            "transactionId": extension.id,
        });
        match self.call(TOP_UP, &request).await? {
            Reply::Done(result) => added(extension, &result).map(ExtendResponse::Added),
            Reply::Failed(failure) => {
                let outcome = outcome(&failure.code);
                if outcome == EsimAccessOutcome::Malformed {
                    tracing::error!(
                        code = failure.code,
                        message = failure.message,
                        "the provider does not understand our request. It has added nothing, and \
                         the extension is refused; the adapter must be corrected"
                    );
                }
                let is_refusal = failure.code == NO_TOP_UP
                    || matches!(
                        outcome,
                        EsimAccessOutcome::Rejected | EsimAccessOutcome::Malformed
                    );
                if is_refusal {
                    return Ok(ExtendResponse::Refused {
                        status: failure.code,
                        message: failure.message,
                    });
                }
                Err(failure.trouble_of_change())
            }
        }
    }

    pub(super) async fn find_top_up(
        &self,
        extension: &Extension,
        baseline: &Baseline,
    ) -> Result<ExtensionSeen, Trouble> {
        let esim = self.one(&extension.esim).await?;
        // The end means something else before the first use, so it is not compared.
        let compared = Baseline {
            ends_at: None,
            ..baseline.clone()
        };
        if esim.has_package_of(extension.id) || is_extended(&compared, esim.seen()) {
            return Ok(ExtensionSeen::Added(AddedExtension::default()));
        }
        Ok(ExtensionSeen::NotAdded)
    }
}

/// What a successful response says. It must name our id, and no other eSIM.
fn added(extension: &Extension, result: &Value) -> Result<AddedExtension, Trouble> {
    let answer: ToppedUp = parse_part(result)?;
    let is_ours = answer.transaction_id.parse() == Ok::<ExtensionId, _>(extension.id);
    let named = answer.iccid.filter(|iccid| !iccid.is_empty());
    let is_it = |iccid: &String| {
        domain::Iccid::parse(iccid).is_ok_and(|iccid| iccid == extension.esim.iccid)
    };
    if !is_ours || !named.as_ref().is_none_or(is_it) {
        return Err(Trouble::not_understood("the response is another extension"));
    }
    let reference = answer.top_up_esim_tran_no.as_str();
    Ok(AddedExtension {
        reference: reference.and_then(|id| ProviderId::parse(id.to_owned()).ok()),
        profile: None,
    })
}
