//! What is changed of a partner without a shell: its webhook URL and its limits; and that it was
//! told what its endpoints lack. They are the changes of `esimctl partner`, each with its record in
//! the transaction of the change. Its keys have a module of their own ([`super::rotation`]).
//!
//! A form says when its page was read. If the same thing of the partner was changed since, it does
//! nothing, so a form that is sent twice acts once.

use accounts::partners::{self, Limit, NewLimits, Partner};
use axum::{extract::State, response::Response};
use desk::operator::{
    endpoints::{seen_at, set_url as set_url_of},
    partner_day,
    words::noun,
};
use domain::{Command, Environment, PartnerId};
use pg::{
    PgConnection, Transaction,
    actions::{self, ActionChange},
};
use serde_json::json;
use store::deliveries::endpoints;
use webhooks::{guard, url::WebhookUrl};

use crate::{
    App,
    access::{Act, ConsoleSession, FormFields, Operator, OperatorRole, Support, Visit},
    format::counted,
    pages::{
        act::{ActPage, Field},
        forms::ReasonForm,
    },
    problem::Problem,
    view::{PathArgument, Shell},
};

/// What changes the webhook URL and the limits: an operator's commands and the partner's own.
const OF_URL: &[Command] = &[Command::PartnerSetWebhook, Command::WebhookSet];
const OF_LIMITS: &[Command] = &[Command::PartnerSetLimits];
/// The largest limit.
const MOST_LIMIT: u32 = 1_000_000;

/// A partner as a page has read it.
pub(super) struct PartnerReading {
    pub(super) partner: Partner,
    /// When it was read, as forms carry it along.
    pub(super) seen: String,
    /// How many webhooks wait for its first endpoint.
    pub(super) waiting: i64,
}

pub(super) async fn read(app: &App, given: &PathArgument) -> Result<PartnerReading, Problem> {
    let id: PartnerId = given.id("a partner")?;
    let read = async |connection: &mut PgConnection| {
        let endpoints = endpoints::list(&mut *connection, Some(id)).await?;
        let partner = partners::show(connection, &id.to_string()).await?;
        Ok::<_, pg::Error>(partner.zip(endpoints.into_iter().next()))
    };
    let found = app.database().run(read).await?;
    let (partner, first) = found.ok_or_else(|| given.missing("partner"))?;
    Ok(PartnerReading {
        partner,
        seen: seen_at(&first),
        waiting: first.pending,
    })
}

/// The page of an act on a partner; `what` names it, and `path` is the last part of its address.
pub(super) fn act_page(
    app: &App,
    session: &ConsoleSession,
    read: &PartnerReading,
    what: &str,
    path: &str,
) -> ActPage {
    let id = read.partner.partner_id;
    let name = &read.partner.name;
    let title = format!("{what} of {name}?");
    let back = format!("/partners/{id}/access");
    let shell = Shell::new(app, session, "/partners", title);
    ActPage {
        crumbs: vec![
            ("/partners".to_owned(), "Partners".to_owned()),
            (format!("/partners/{id}"), name.clone()),
        ],
        what: what.to_owned(),
        path: format!("/partners/{id}/{path}"),
        seen: read.seen.clone(),
        ..ActPage::new(shell, session, back)
    }
}

pub(crate) async fn url(
    State(app): State<App>,
    given: PathArgument,
    visit: Visit<Operator>,
) -> Result<Response, Problem> {
    let read = read(&app, &given).await?;
    url_page(&app, &visit.session, &read, (String::new(), None)).show()
}

/// The page that sets the URL, with the value of its field and what is wrong with it.
fn url_page(
    app: &App,
    session: &ConsoleSession,
    read: &PartnerReading,
    (value, wrong): (String, Option<String>),
) -> ActPage {
    let now = match &read.partner.webhook_url {
        None => "It has none.".to_owned(),
        Some(url) => format!("It is {} now.", masked(url)),
    };
    let waiting = match read.waiting {
        0 => "No webhook waits for it.".to_owned(),
        waiting => format!(
            "{} for it, and {} sent to the new URL at once, the oldest first.",
            counted(waiting, "webhook waits", "webhooks wait"),
            noun(waiting, "is", "are"),
        ),
    };
    let effect = format!("{waiting} A block of the endpoint ends; a pause stays.");
    let base = act_page(app, session, read, "Set the webhook URL", "webhook-url");
    ActPage {
        says: vec![now, effect],
        fields: vec![Field::Text {
            label: "URL",
            name: "url",
            kind: "url",
            value,
            hint: "Empty: it gets none, and its webhooks wait until one is set.".to_owned(),
            wrong,
        }],
        button: "Set the URL",
        ..base
    }
}

/// A URL of which only the scheme, the host and the port are shown, because partners put secrets
/// into the rest.
pub(crate) fn masked(url: &str) -> String {
    let Ok(url) = url.parse::<url::Url>() else {
        return "a URL that cannot be read".to_owned();
    };
    let port = url
        .port()
        .map_or_else(String::new, |port| format!(":{port}"));
    let host = url.host_str().unwrap_or_default();
    let is_bare = url.path() == "/" && url.query().is_none();
    let rest = if is_bare { "" } else { "•••" };
    format!("{}://{host}{port}/{rest}", url.scheme())
}

pub(crate) async fn set_url(
    State(app): State<App>,
    given: PathArgument,
    act: Act<Operator>,
) -> Result<Response, Problem> {
    let read = read(&app, &given).await?;
    let typed = act.fields.get("url");
    let url = match checked(&read.partner, typed) {
        Ok(url) => url,
        Err(wrong) => {
            let typed = typed.unwrap_or_default().to_owned();
            let page = url_page(&app, &act.session, &read, (typed, Some(wrong)));
            return sent_before(page, &act).again();
        }
    };
    let parsed = url.as_ref().and_then(WebhookUrl::parsed);
    let id: PartnerId = read.partner.partner_id.into();
    let host = |url: Option<&url::Url>| url.and_then(|url| Some(url.host_str()?.to_owned()));
    let old = read.partner.webhook_url.as_ref();
    let old: Option<url::Url> = old.and_then(|url| url.parse().ok());
    // A path or a query may hold a token, so only the hosts are recorded.
    let difference = ActionChange::between(
        json!({ "webhook_host": host(old.as_ref()) }),
        json!({ "webhook_host": host(parsed.as_ref()) }),
    );
    let set = async |transaction: &mut Transaction<'_>| {
        let url = url.as_ref().map(WebhookUrl::as_str);
        let exists = set_url_of(transaction, id, url).await?;
        Ok(exists.map(|()| ((), difference)))
    };
    let of = (Command::PartnerSetWebhook, OF_URL);
    changed(&app, &act, id, of, set)
        .await?
        .ok_or_else(|| act.changed("the webhook URL of the partner was set meanwhile"))?;
    let text = match &url {
        Some(_) => "The URL is set. Webhooks that waited for it are sent within seconds.",
        None => "The partner has no URL any more: its webhooks wait until one is set.",
    };
    Ok(act.done(&app, text))
}

/// The URL that was typed, or what is wrong with it.
fn checked(partner: &Partner, typed: Option<&str>) -> Result<Option<WebhookUrl>, String> {
    let Some(typed) = typed else {
        return Ok(None);
    };
    let url = typed
        .parse::<WebhookUrl>()
        .map_err(|error| format!("The URL cannot be set: {error}."))?;
    let environment: Option<Environment> = partner.environment.parse().ok();
    match (url.parsed(), environment) {
        (Some(parsed), Some(environment))
            if guard::check_scheme(&parsed, environment, false).is_err() =>
        {
            Err("It has to begin with https://, because the webhooks of a live partner carry activation codes.".to_owned())
        }
        _ => Ok(Some(url)),
    }
}

/// A page of an act with what a form has carried along: what its own page had shown, and the
/// reason.
fn sent_before(page: ActPage, act: &Act<Operator>) -> ActPage {
    ActPage {
        seen: act.fields.get("seen").unwrap_or_default().to_owned(),
        reason: act.fields.get("reason").unwrap_or_default().to_owned(),
        ..page
    }
}

/// Makes a change of a partner with its record, if the partner is as the page has shown it. `None`
/// says that it is not.
pub(super) async fn changed<T, R>(
    app: &App,
    act: &Act<R>,
    id: PartnerId,
    (command, of): (Command, &[Command]),
    change: impl AsyncFnOnce(&mut Transaction<'_>) -> Result<Option<(T, ActionChange)>, pg::Error>,
) -> Result<Option<T>, Problem> {
    let target = format!("partner {id}");
    let action = act.action(command, &target, act.fields.reason()?);
    let seen = act.fields.get("seen").unwrap_or_default();
    let ids = [id.to_string()];
    let recorded = async |connection: &mut PgConnection| {
        let guarded = async |transaction: &mut Transaction<'_>| {
            let exists = partners::lock(transaction, id).await?;
            if !exists || !actions::is_as_seen(transaction, &ids, of, seen).await? {
                return Ok(None);
            }
            change(transaction).await
        };
        actions::recorded(connection, action, guarded).await
    };
    Ok(app.database().run(recorded).await?)
}

/// The limits of a partner: the field, its name, and what is set.
pub(super) fn limits_of(partner: &Partner) -> [(&'static str, &'static str, Option<i32>); 4] {
    [
        (
            "requests_per_second",
            "Requests per second",
            partner.requests_per_second,
        ),
        (
            "orders_per_second",
            "Orders per second",
            partner.orders_per_second,
        ),
        (
            "units_per_second",
            "eSIMs per second",
            partner.units_per_second,
        ),
        ("max_in_flight", "Orders at a time", partner.max_in_flight),
    ]
}

pub(crate) async fn limits(
    State(app): State<App>,
    given: PathArgument,
    visit: Visit<Operator>,
) -> Result<Response, Problem> {
    let read = read(&app, &given).await?;
    limits_page(&app, &visit.session, &read, None).show()
}

/// The page that sets the limits: as they are set, or as a form has sent them, of which one makes
/// no sense.
fn limits_page(
    app: &App,
    session: &ConsoleSession,
    read: &PartnerReading,
    sent: Option<&FormFields>,
) -> ActPage {
    let base = act_page(app, session, read, "Change the limits", "limits");
    let fields = limits_of(&read.partner).map(|(name, label, set)| {
        let set = set.map_or_else(String::new, |set| set.to_string());
        Field::Text {
            label,
            name,
            kind: "text",
            value: sent.map_or(set, |sent| sent.get(name).unwrap_or_default().to_owned()),
            hint: "Empty: as for all partners.".to_owned(),
            wrong: sent.and_then(|sent| limit(sent, name).err()),
        }
    });
    ActPage {
        says: vec![
            "Each ingress process counts for itself: with two of them the partner can reach twice the limit. A request above a \
             limit gets a 429. The limits are valid within a second."
                .to_owned(),
        ],
        fields: fields.into(),
        button: "Set the limits",
        ..base
    }
}

/// A limit that a form has sent, or what is wrong with it.
fn limit(sent: &FormFields, name: &str) -> Result<Limit, String> {
    match sent.get(name) {
        None => Ok(Limit::Default),
        Some(text) => match text.parse() {
            Ok(most @ 1..=MOST_LIMIT) => Ok(Limit::Own(most)),
            _ => Err(format!(
                "A limit is a whole number from 1 to {MOST_LIMIT}, or empty."
            )),
        },
    }
}

/// The limits that a form has sent, or what is wrong with one of them.
fn limits_sent(sent: &FormFields) -> Result<NewLimits, String> {
    Ok(NewLimits {
        max_in_flight: limit(sent, "max_in_flight")?,
        requests_per_second: limit(sent, "requests_per_second")?,
        orders_per_second: limit(sent, "orders_per_second")?,
        units_per_second: limit(sent, "units_per_second")?,
    })
}

pub(crate) async fn set_limits(
    State(app): State<App>,
    given: PathArgument,
    act: Act<Operator>,
) -> Result<Response, Problem> {
    let Ok(new) = limits_sent(&act.fields) else {
        let read = read(&app, &given).await?;
        let page = limits_page(&app, &act.session, &read, Some(&act.fields));
        return sent_before(page, &act).again();
    };
    let id: PartnerId = given.id("a partner")?;
    let shown = |partner: &Partner| {
        let limits = limits_of(partner).map(|(name, _, set)| (name.to_owned(), json!(set)));
        serde_json::Value::Object(limits.into_iter().collect())
    };
    let set = async |transaction: &mut Transaction<'_>| {
        let name = id.to_string();
        let before = partners::show(&mut *transaction, &name).await?;
        partners::set_limits(&mut *transaction, id, &new).await?;
        let after = partners::show(transaction, &name).await?;
        let both = before.zip(after);
        Ok(both.map(|(before, after)| ((), ActionChange::between(shown(&before), shown(&after)))))
    };
    let of = (Command::PartnerSetLimits, OF_LIMITS);
    changed(&app, &act, id, of, set)
        .await?
        .ok_or_else(|| act.changed("the limits of the partner were changed meanwhile"))?;
    Ok(act.done(&app, "The limits are set."))
}

/// The act that takes the matter of a partner off the list for a day.
pub(crate) fn told_form(
    id: PartnerId,
    session: &ConsoleSession,
    seen: String,
) -> Option<ReasonForm> {
    session.may(OperatorRole::Support).then(|| ReasonForm {
        consequence: "The matter is taken off the list for 24 hours, for everybody. If webhooks are given up anew after it was \
                      solved, they are a new matter."
            .to_owned(),
        seen,
        back: "/needs".to_owned(),
        ..ReasonForm::new(session, "I have told the partner", format!("/partners/{id}/told"))
    })
}

/// Records that somebody has told the partner.
pub(crate) async fn told(
    State(app): State<App>,
    given: PathArgument,
    act: Act<Support>,
) -> Result<Response, Problem> {
    let id: PartnerId = given.id("a partner")?;
    let of = (Command::PartnerTold, &[Command::PartnerTold][..]);
    let note = async |_: &mut Transaction<'_>| Ok(Some(((), ActionChange::nothing())));
    changed(&app, &act, id, of, note).await?.ok_or_else(|| {
        act.changed("somebody has told the partner meanwhile, or there is no such partner")
    })?;
    Ok(act.done(&app, "Nobody else has to tell the partner for 24 hours."))
}

/// How much a partner has ordered lately, which is what stops if its keys end.
pub(super) async fn lately(app: &App, id: PartnerId) -> Result<String, Problem> {
    let now = runtime::clock::now();
    let read = async |connection: &mut PgConnection| partner_day::read(connection, id, now).await;
    let day = app.database().run(read).await?;
    let least = if day.is_part() { "at least " } else { "" };
    Ok(match day.orders() {
        0 => "The partner has sent no order in the last 24 hours.".to_owned(),
        orders => format!(
            "The partner has sent {least}{} in the last 24 hours.",
            counted(orders, "order", "orders")
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_url_only_what_is_no_secret_is_shown() {
        for (url, shown) in [
            (
                "https://hooks.example/secret?token=x",
                "https://hooks.example/•••",
            ),
            ("https://hooks.example:8443/", "https://hooks.example:8443/"),
            ("http://hooks.example/?token=x", "http://hooks.example/•••"),
            ("nonsense", "a URL that cannot be read"),
        ] {
            assert_eq!(masked(url), shown);
        }
    }
}
