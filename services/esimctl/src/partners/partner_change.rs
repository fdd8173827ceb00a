//! The changes of a partner by `esimctl partner`. Each is recorded in its own transaction, so that
//! `esimctl action list` shows who made it. A record holds no secret and of a URL only its host.

use accounts::partners::{self, Partner};
use anyhow::Context;
use desk::operator::endpoints;
use domain::PartnerId;
use pg::{
    Transaction,
    actions::{self, ActionChange},
};
use serde_json::{Value, json};
use webhooks::{config::HttpConfig, url::WebhookUrl};

use crate::{
    confirm::ReasonArgs,
    console::Console,
    lookup::{PartnerArgs, find},
    output::printable,
    terms::{check_scheme, describe},
};

pub async fn set_webhook(
    which: &PartnerArgs,
    url: Option<&WebhookUrl>,
    http: HttpConfig,
    why: &ReasonArgs,
    console: &Console,
) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let partner = find(&mut connection, &which.partner).await?;
    let partner_id = partner.partner_id;
    check_scheme(url, partner.environment.parse()?, http)?;
    let target = format!("partner {partner_id}");
    let action = why.action(domain::Command::PartnerSetWebhook, &target);
    // A path or a query may hold a token, so only the hosts are recorded.
    let old = partner
        .webhook_url
        .as_ref()
        .and_then(|url| host(&url.parse().ok()?));
    let changed = ActionChange::between(
        json!({ "webhook_host": old }),
        json!({ "webhook_host": url.and_then(host) }),
    );
    let url = url.map(WebhookUrl::as_str);
    let set = async |transaction: &mut Transaction<'_>| {
        let exists = endpoints::set_url(transaction, partner_id.into(), url).await?;
        Ok(exists.map(|()| ((), changed)))
    };
    actions::recorded(&mut connection, action, set)
        .await?
        .with_context(|| format!("partner {partner_id} no longer exists; nothing was changed"))?;
    let result = json!({ "partner_id": partner_id, "webhook_url": url });
    console.print(&result, || {
        let name = printable(&partner.name);
        match url {
            None => format!("webhooks of {name} wait until a URL is set"),
            Some(url) => {
                format!("webhooks of {name} go to {url}; those that wait are sent within seconds")
            }
        }
    })
}

/// The host of a URL, for the record of a change.
pub fn host(url: &WebhookUrl) -> Option<String> {
    Some(url.parsed()?.host_str()?.to_owned())
}

/// What the record of a change shows of a partner before and after it.
pub fn recorded(partner: &Partner) -> Value {
    json!({
        "disabled": partner.disabled_at.is_some(), "webhook_events": partner.webhook_events,
        "max_in_flight": partner.max_in_flight, "requests_per_second": partner.requests_per_second,
        "orders_per_second": partner.orders_per_second, "units_per_second": partner.units_per_second,
        "signed_body_required": partner.signed_body_required,
    })
}

/// Makes a change with its record, and shows the partner as it is then.
pub async fn change(
    which: &PartnerArgs,
    (command, why): (domain::Command, &ReasonArgs),
    console: &Console,
    change: impl AsyncFnOnce(&mut Transaction<'_>, PartnerId) -> Result<bool, pg::Error>,
) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let partner = find(&mut connection, &which.partner).await?;
    let target = format!("partner {}", partner.partner_id);
    let action = why.action(command, &target);
    let before = recorded(&partner);
    let change = async |transaction: &mut Transaction<'_>| {
        if !change(transaction, partner.partner_id.into()).await? {
            return Ok(None);
        }
        let after = partners::show(transaction, &partner.partner_id.to_string()).await?;
        Ok(after.map(|after| ((), ActionChange::between(before, recorded(&after)))))
    };
    actions::recorded(&mut connection, action, change).await?;
    let partner = find(&mut connection, &which.partner).await?;
    console.print(&partner, || describe(&partner))
}
