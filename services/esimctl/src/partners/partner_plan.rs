//! What `esimctl partner apply` has to do for an entry of its file: the difference between the
//! entry and the stored account, as steps and as the words of a plan, which hold no secret and of a
//! URL only its host.

use accounts::partners::{Partner, PartnerLimits, endpoints::MOST};
use anyhow::ensure;
use desk::self_service;
use domain::{EndpointId, event::EventKind};
use pg::{PgConnection, unsigned};
use webhooks::url::WebhookUrl;

use crate::{
    manifest::ManifestField,
    partner_change::host,
    partner_file::{CheckedPartner, CoverageRule},
    plan::{PlannedEffect, PlannedEntry},
};

/// What has to be done for one entry.
#[derive(Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "one for each kind of change that is recorded"
)]
pub struct Steps {
    pub create: bool,
    pub webhook_url: bool,
    pub events: bool,
    pub limits: bool,
    pub signed_body: bool,
    pub disabled: bool,
    pub new_endpoints: Vec<usize>,
    /// The endpoint, and the entry with its new events.
    pub changed_endpoints: Vec<(EndpointId, usize)>,
}

impl Steps {
    pub fn make_secrets(&self) -> bool {
        self.create || !self.new_endpoints.is_empty()
    }
}

/// Compares an entry with what is stored.
pub async fn compare(
    transaction: &mut PgConnection,
    wanted: &CheckedPartner,
    partner: Option<&Partner>,
) -> anyhow::Result<(PlannedEntry, Steps)> {
    let mut changes = Vec::new();
    let mut steps = Steps {
        create: partner.is_none(),
        ..Steps::default()
    };
    let before = partner.map_or_else(|| Before::new(wanted), Before::of);
    let url = wanted.webhook_url.value();
    let is_as_before = match (url, &before.webhook_url) {
        (Some(url), Some(before)) => url.is(before),
        (url, before) => url.is_none() && before.is_none(),
    };
    if wanted.webhook_url.is_given() && !is_as_before {
        steps.webhook_url = true;
        let was = before.webhook_url.as_ref();
        let was = was.and_then(|url| host(&url.parse().ok()?));
        changes.push(change("webhook host", was, url.and_then(host)));
    }
    if let Some(events) = &wanted.events {
        let becomes = names(events);
        steps.events = sorted(&becomes) != sorted(&before.events);
        if steps.events {
            changes.push(change("events", listed(&before.events), listed(&becomes)));
        }
    }
    compare_limits(&before.limits, wanted, &mut steps, &mut changes);
    if let Some(covered) = wanted.signed_body {
        let becomes = covered == CoverageRule::Required;
        steps.signed_body = becomes != before.signed_body_required;
        if steps.signed_body {
            let word = |required| Some(if required { "required" } else { "optional" }.to_owned());
            changes.push(change(
                "signed_body",
                word(before.signed_body_required),
                word(becomes),
            ));
        }
    }
    if let Some(becomes) = wanted.disabled {
        steps.disabled = becomes != before.disabled;
        if steps.disabled {
            changes.push(change(
                "disabled",
                Some(before.disabled.to_string()),
                Some(becomes.to_string()),
            ));
        }
    }
    let first = match &wanted.webhook_url {
        ManifestField::LeftOut => before.webhook_url.as_deref(),
        given => given.value().map(WebhookUrl::as_str),
    };
    further(
        transaction,
        wanted,
        (partner, first),
        &mut steps,
        &mut changes,
    )
    .await?;
    let effect = match partner {
        None => PlannedEffect::Create,
        Some(_) if changes.is_empty() => PlannedEffect::Unchanged,
        Some(_) => PlannedEffect::Change,
    };
    let planned = PlannedEntry {
        effect,
        id: partner.map(|partner| partner.partner_id.to_string()),
        name: format!("{} ({})", wanted.name, wanted.environment),
        changes,
    };
    Ok((planned, steps))
}

/// Compares the limits.
fn compare_limits(
    before: &PartnerLimits,
    wanted: &CheckedPartner,
    steps: &mut Steps,
    changes: &mut Vec<String>,
) {
    let limits = before.with(&wanted.limits);
    let pairs = [
        ("max_in_flight", before.max_in_flight, limits.max_in_flight),
        (
            "requests_per_second",
            before.requests_per_second,
            limits.requests_per_second,
        ),
        (
            "orders_per_second",
            before.orders_per_second,
            limits.orders_per_second,
        ),
        (
            "units_per_second",
            before.units_per_second,
            limits.units_per_second,
        ),
    ];
    for (name, was, becomes) in pairs {
        if was != becomes {
            steps.limits = true;
            let word = |limit: Option<u32>| {
                Some(limit.map_or("default".to_owned(), |most| most.to_string()))
            };
            changes.push(change(name, word(was), word(becomes)));
        }
    }
}

/// Compares the further endpoints. `first` is the URL that the first endpoint has then.
async fn further(
    transaction: &mut PgConnection,
    wanted: &CheckedPartner,
    (partner, first): (Option<&Partner>, Option<&str>),
    steps: &mut Steps,
    changes: &mut Vec<String>,
) -> anyhow::Result<()> {
    if wanted.endpoints.is_empty() && !steps.webhook_url {
        return Ok(());
    }
    let stored = match partner {
        Some(partner) => {
            self_service::endpoints(transaction, partner.partner_id.into(), None).await?
        }
        None => Vec::new(),
    };
    // The first endpoint is the webhook URL.
    let stored: Vec<_> = stored.into_iter().skip(1).collect();
    if let Some(url) = wanted.webhook_url.value().filter(|_| steps.webhook_url) {
        ensure!(
            !stored
                .iter()
                .filter_map(|one| one.url.as_deref())
                .any(|stored| url.is(stored)),
            "{}.webhook_url: a further endpoint of the account has this URL, which would get each eSIM twice; give another one",
            wanted.at
        );
    }
    for (index, endpoint) in wanted.endpoints.iter().enumerate() {
        let shown = format!("endpoint at {}", host(&endpoint.url).unwrap_or_default());
        let is_this = |one: &&self_service::AnyEndpoint| {
            (one.url.as_ref()).is_some_and(|stored| endpoint.url.is(stored))
        };
        let Some(one) = stored.iter().find(is_this) else {
            ensure!(
                !first.is_some_and(|first| endpoint.url.is(first)),
                "{}.endpoints[{index}].url: the same URL as that of the first endpoint (webhook_url), which would get each \
                 eSIM twice; remove one of the two",
                wanted.at
            );
            steps.new_endpoints.push(index);
            changes.push(format!("{shown}: new"));
            continue;
        };
        let Some(events) = &endpoint.events else {
            continue;
        };
        let becomes = names(events);
        if sorted(&becomes) != sorted(&one.events) {
            steps.changed_endpoints.push((one.endpoint_id, index));
            let of = format!("{shown}: events");
            changes.push(change(&of, listed(&one.events), listed(&becomes)));
        }
    }
    let all = 1 + stored.len() + steps.new_endpoints.len();
    ensure!(
        u32::try_from(all).is_ok_and(|all| all <= MOST),
        "{}.endpoints: the partner would have {all} endpoints with the first one, and {MOST} are allowed: list fewer, or let the \
         partner delete some",
        wanted.at
    );
    Ok(())
}

fn change(of: &str, was: Option<String>, becomes: Option<String>) -> String {
    let word = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    format!("{of}: {} → {}", word(was), word(becomes))
}

pub fn names(kinds: &[EventKind]) -> Vec<String> {
    kinds.iter().map(|kind| kind.as_str().to_owned()).collect()
}

fn sorted(names: &[String]) -> Vec<&String> {
    let mut names: Vec<&String> = names.iter().collect();
    names.sort_unstable();
    names
}

fn listed(names: &[String]) -> Option<String> {
    Some(names.join(", ")).filter(|names| !names.is_empty())
}

/// What an account is before the change. A new one is what `partner create` makes of its
/// environment.
struct Before {
    webhook_url: Option<String>,
    events: Vec<String>,
    limits: PartnerLimits,
    signed_body_required: bool,
    disabled: bool,
}

impl Before {
    fn new(wanted: &CheckedPartner) -> Self {
        Self {
            webhook_url: None,
            events: Vec::new(),
            limits: PartnerLimits::at_first(wanted.environment),
            signed_body_required: false,
            disabled: false,
        }
    }

    fn of(partner: &Partner) -> Self {
        let limit = |stored: Option<i32>| stored.map(unsigned);
        Self {
            webhook_url: partner.webhook_url.clone(),
            events: partner.webhook_events.clone(),
            limits: PartnerLimits {
                max_in_flight: limit(partner.max_in_flight),
                requests_per_second: limit(partner.requests_per_second),
                orders_per_second: limit(partner.orders_per_second),
                units_per_second: limit(partner.units_per_second),
            },
            signed_body_required: partner.signed_body_required,
            disabled: partner.disabled_at.is_some(),
        }
    }
}
