//! Extensions, which Airalo calls top-ups: orders of the type `topup`, without eSIMs.
//!
//! As with an order, nothing stops a second top-up, and our id is the description. Its list of
//! orders is searched by that. One example of its documents (January 2025) answers a top-up with a
//! description of its own, `Topup (ICCID)`, so ours may not be kept. So there is a second witness:
//! the packages of the eSIM. A single new one since the baseline, of the package that was ordered,
//! is the extension. Those are shown once in some time only (10 times a minute, once in 15 minutes
//! by an older page), so a look that does not get them relies on the description alone.

use std::{collections::BTreeSet, time::Duration};

use domain::{ExtensionId, extension::Baseline};
use serde::Deserialize;
use serde_json::{Number, Value};

use super::{
    calls::{AiraloCalls, AiraloReply, Outcome, TOP_UPS, outcome, trouble},
    packages::AiraloTopUps,
    wire::{self, AiraloOrder, AiraloRefusal},
};
use crate::providers::{
    extension::{
        AddedExtension, BeforeExtension, ExtendResponse, Extension, ExtensionOffer, ExtensionSeen,
    },
    http::{Call, CallBody, Size, parse},
    price,
    provider::{DeliveredEsim, Trouble, id_in},
};

const SIM_PACKAGES: &str = "/v2/sims/{iccid}/packages";
const TOP_UP: &str = "/v2/orders/topups";

/// A package that an eSIM has or had.
#[derive(Deserialize)]
struct AiraloSimPackage {
    id: Number,
    #[serde(default)]
    package: Value,
}

impl AiraloSimPackage {
    fn is_of(&self, package: &str) -> bool {
        self.package.get("id").and_then(Value::as_str) == Some(package)
    }
}

#[derive(Deserialize)]
struct AiraloSimPackages {
    data: Vec<AiraloSimPackage>,
}

/// The failure table of a top-up: that of an order, and two refusals that are final (its page on
/// errors, September 2026).
fn of_top_up(refusal: &AiraloRefusal) -> Outcome {
    match refusal {
        // The operator has disabled the top-up; the eSIM is recycled.
        AiraloRefusal::Code { code: 23 | 73, .. } => Outcome::Rejected,
        other => outcome(other),
    }
}

impl AiraloCalls {
    /// What can be added to an eSIM now, or why nothing can.
    async fn top_ups(&self, esim: &DeliveredEsim) -> Result<Result<AiraloTopUps, String>, Trouble> {
        let path = TOP_UPS.replace("{iccid}", esim.iccid.as_str());
        match self.call(Call::get(&path, TOP_UPS)).await? {
            AiraloReply::Done(body) => Ok(Ok(parse(&body)?)),
            AiraloReply::Refused(
                refusal
                @ (AiraloRefusal::Absent { .. } | AiraloRefusal::Code { code: 23 | 73, .. }),
            ) => Ok(Err(refusal.text().1)),
            AiraloReply::Refused(refusal) => Err(trouble(&refusal)),
        }
    }

    pub(super) async fn offered(
        &self,
        esim: &DeliveredEsim,
    ) -> Result<Vec<ExtensionOffer>, Trouble> {
        let listed = self.top_ups(esim).await?;
        Ok(listed.map(|listed| listed.offers()).unwrap_or_default())
    }

    pub(super) async fn baseline(&self, extension: &Extension) -> Result<BeforeExtension, Trouble> {
        let priced = match price::priced_product(&extension.provider_option_id) {
            Ok(priced) => priced,
            Err(trouble) => return BeforeExtension::refused_here(trouble),
        };
        let listed = match self.top_ups(&extension.esim).await? {
            Ok(listed) => listed,
            Err(reason) => return Ok(BeforeExtension::Refused(reason)),
        };
        let mut offers = listed.offers().into_iter();
        let is_it = |offer: &ExtensionOffer| offer.provider_option_id.as_str() == priced.product;
        let Some(offer) = offers.find(is_it) else {
            let unlisted = "the provider does not add this to this eSIM now".to_owned();
            return Ok(BeforeExtension::Refused(unlisted));
        };
        let price = offer.cost.map(|cost| cost.price);
        if let Some(most) = priced.most
            && let Err(trouble) = price::compare(price, most, "the provider names no price")
        {
            return BeforeExtension::refused_here(trouble);
        }
        let packages = self.sim_packages(&extension.esim).await.unwrap_or_default();
        Ok(BeforeExtension::Possible(Baseline {
            packages: packages.iter().map(|one| one.id.to_string()).collect(),
            adds_data: offer.data,
            adds_days: offer.days,
            ..Baseline::default()
        }))
    }

    /// The packages of an eSIM, the first one and those that were added.
    async fn sim_packages(&self, esim: &DeliveredEsim) -> Result<Vec<AiraloSimPackage>, Trouble> {
        // This call comes in addition to the one that has its turn.
        self.http.turn().await;
        let path = SIM_PACKAGES.replace("{iccid}", esim.iccid.as_str());
        let listed: AiraloSimPackages = self.done(Call::get(&path, SIM_PACKAGES)).await?;
        Ok(listed.data)
    }

    pub(super) async fn top_up(
        &self,
        extension: &Extension,
        timeout: Duration,
    ) -> Result<ExtendResponse, Trouble> {
        let priced = price::priced_product(&extension.provider_option_id)?;
        // The time is checked after the token was got, because that may take a call of its own.
        let token = self.tokens.get(&self.http).await?;
        extension.is_in_time()?;
        let form = CallBody::multipart(&[
            ("package_id", priced.product),
            ("iccid", extension.esim.iccid.as_str()),
            ("description", &extension.id.to_string()),
        ]);
        let call = Call {
            body: Some(form),
            size: Size::Purchase(timeout),
            ..Call::post(TOP_UP, TOP_UP)
        };
        let order = match self.call_with(&token, call).await? {
            AiraloReply::Done(body) => parse::<wire::Single>(&body)?.data,
            AiraloReply::Refused(refusal) if of_top_up(&refusal) == Outcome::Rejected => {
                let (status, message) = refusal.text();
                return Ok(ExtendResponse::Refused { status, message });
            }
            AiraloReply::Refused(refusal) => return Err(trouble(&refusal)),
        };
        let described: Option<ExtensionId> = order
            .description
            .as_ref()
            .and_then(|text| text.parse().ok());
        let is_for_another = described.is_some_and(|id| id != extension.id);
        if is_for_another || !order.is_top_up() || order.package_id != priced.product {
            return Err(Trouble::not_understood("the response is another order"));
        }
        if let Some(status) = order.failure() {
            return Ok(ExtendResponse::Refused {
                status: status.to_owned(),
                message: "the order has failed".to_owned(),
            });
        }
        added(&order).map(ExtendResponse::Added)
    }

    pub(super) async fn find_top_up(
        &self,
        extension: &Extension,
        baseline: &Baseline,
    ) -> Result<ExtensionSeen, Trouble> {
        let product = price::product(&extension.provider_option_id);
        let mut described = self.described(&extension.id.to_string()).await?;
        described.retain(AiraloOrder::is_top_up);
        if described.iter().any(|order| order.package_id != product) {
            return Err(Trouble::not_understood("the order is of another package"));
        }
        if described.len() > 1 {
            tracing::error!(
                extension.id = %extension.id,
                orders = described.len(),
                "an extension was bought more than once; compare the provider's invoice"
            );
        }
        let failure = |order: &AiraloOrder| order.failure().map(str::to_owned);
        if let Some(order) = described.iter().find(|order| order.failure().is_none()) {
            return added(order).map(ExtensionSeen::Added);
        }
        if let Some(status) = described.first().and_then(failure) {
            let message = format!("the provider says {status}");
            return Ok(ExtensionSeen::Refused { status, message });
        }
        if baseline.packages.is_empty() {
            return Ok(ExtensionSeen::NotAdded);
        }
        let Ok(packages) = self.sim_packages(&extension.esim).await else {
            return Ok(ExtensionSeen::NotAdded);
        };
        let before: BTreeSet<&str> = baseline.packages.iter().map(String::as_str).collect();
        let is_new = |one: &&AiraloSimPackage| !before.contains(one.id.to_string().as_str());
        let new: Vec<&AiraloSimPackage> = packages.iter().filter(is_new).collect();
        Ok(match new.as_slice() {
            [one] if one.is_of(product) => ExtensionSeen::Added(AddedExtension::default()),
            _ => ExtensionSeen::NotAdded,
        })
    }
}

fn added(order: &AiraloOrder) -> Result<AddedExtension, Trouble> {
    Ok(AddedExtension {
        reference: Some(id_in("id", order.number())?),
        profile: None,
    })
}
