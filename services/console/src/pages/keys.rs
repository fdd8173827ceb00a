//! The keys, the account and the limits of a partner, and the acts on them
//! ([`super::partner_acts`], [`super::rotation`] and [`super::account`]).

use askama::Template;
use axum::{extract::State, response::Response};
use domain::{Environment, PartnerId};
use time::OffsetDateTime;

use crate::{
    App,
    access::{OperatorRole, Viewer, Visit},
    format::number,
    pages::{
        account,
        forms::ReasonForm,
        partner::PartnerHead,
        partner_acts::{lately, limits_of, read},
    },
    problem::Problem,
    times::TimeElement,
    view::{PathArgument, Shell, page},
};

#[derive(Template)]
#[template(path = "access.html")]
struct Page {
    shell: Shell,
    head: PartnerHead,
    access_key: String,
    made: TimeElement,
    old_keys: String,
    old_secret: String,
    /// What its signatures have to cover.
    signed: &'static str,
    kind: &'static str,
    limits: Vec<(&'static str, String)>,
    events: String,
    may: bool,
    account: Option<ReasonForm>,
}

/// The keys and limits of a partner, and the acts on them.
pub(crate) async fn show(
    State(app): State<App>,
    given: PathArgument,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let read = read(&app, &given).await?;
    let partner = &read.partner;
    let times = &visit.session.times;
    let ends = |until: Option<OffsetDateTime>| match until {
        Some(until) if until > times.now => format!("valid until {}", times.both(until)),
        Some(until) => format!("ended {}", times.both(until)),
        None => "none".to_owned(),
    };
    let id: PartnerId = partner.partner_id.into();
    let day = lately(&app, id).await?;
    page(&Page {
        shell: Shell::new(&app, &visit.session, "/partners", &partner.name),
        head: PartnerHead::new(partner, "access", &visit.session),
        access_key: if partner.keys_ended {
            "none: the last one was ended".to_owned()
        } else {
            partner.access_key.clone()
        },
        made: times.both(partner.created_at),
        signed: if partner.signed_body_required {
            "path, query, time and body"
        } else {
            "path and time; query and body if the partner signs them, too"
        },
        kind: if partner.environment == Environment::Live.as_str() {
            "live: orders cost money"
        } else {
            "sandbox: nothing is bought"
        },
        old_keys: ends(partner.old_keys_until),
        old_secret: ends(partner.old_webhook_secret_until),
        limits: limits_of(partner)
            .map(|(_, label, set)| (label, set.map_or_else(|| "as for all".to_owned(), number)))
            .into(),
        events: if partner.webhook_events.is_empty() {
            "none".to_owned()
        } else {
            partner.webhook_events.join(", ")
        },
        may: visit.session.may(OperatorRole::Operator) && partner.has_secret_key,
        account: account::form(partner, (&read.seen, &day), &visit.session),
    })
}
