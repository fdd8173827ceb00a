//! `esimctl partner`: accounts, keys and webhook URLs.

use anyhow::Context;
use clap::{
    Args, Subcommand, ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};
use domain::{Environment, PartnerId};
use serde::Serialize;
use serde_json::json;
use signing::generate;
use store::{
    config::{DatabaseConfig, MasterKeyConfig},
    events::Kind,
    partners::{self, Limit, NewLimits, NewPartner, Partner},
    vault::Keyring,
};
use webhooks::{config::HttpConfig, guard, url::WebhookUrl};

use crate::{
    database::connect,
    erase::{self, ErasePartner},
    lookup::{Which, find, unknown},
    output::{Output, moment, properties, table},
    rotate::{self, Rotate},
    webhook_url::WebhookUrlParser,
};

pub const EXAMPLES: &str = "Examples:
  esimctl partner create --name 'Acme Travel' --environment sandbox
  esimctl partner list
  esimctl partner set-webhook ak_0123456789abcdef01234567 --url https://acme.example/webhooks
  esimctl partner rotate-keys ak_0123456789abcdef01234567 --overlap 24h
  esimctl partner rotate-webhook-secret ak_0123456789abcdef01234567 --overlap 24h
  esimctl partner erase ak_0123456789abcdef01234567 --dry-run";

const CREATE_EXAMPLES: &str = "Examples:
  esimctl partner create --name 'Acme Travel' --environment sandbox
  esimctl partner create --name 'Acme Travel' --environment live --webhook-url https://acme.example/webhooks --json

The secrets are shown only once and stored encrypted: hand them to the partner over a safe channel. Without a webhook
URL, webhooks wait until `esimctl partner set-webhook` sets one.";

const LIST_EXAMPLES: &str = "Examples:
  esimctl partner list
  esimctl partner list --json";

const SHOW_EXAMPLES: &str = "Examples:
  esimctl partner show ak_0123456789abcdef01234567
  esimctl partner show 0199aabb-ccdd-7eee-8fff-001122334455 --json";

const SET_WEBHOOK_EXAMPLES: &str = "Examples:
  esimctl partner set-webhook ak_0123456789abcdef01234567 --url https://acme.example/webhooks
  esimctl partner set-webhook ak_0123456789abcdef01234567 --remove

A new URL makes waiting webhooks due.";

const SET_EVENTS_EXAMPLES: &str = "Examples:
  esimctl partner set-events ak_0123456789abcdef01234567 --events topup.failed,key.expiring
  esimctl partner set-events ak_0123456789abcdef01234567 --none

The webhook of a ready topup is always sent. Partners can set the events themselves.";

const DISABLE_EXAMPLES: &str = "Examples:
  esimctl partner disable ak_0123456789abcdef01234567

Its requests are denied within a second. Accepted orders and their webhooks go on.";

const ENABLE_EXAMPLES: &str = "Examples:
  esimctl partner enable ak_0123456789abcdef01234567";

const SET_LIMITS_EXAMPLES: &str = "Examples:
  esimctl partner set-limits ak_0123456789abcdef01234567 --orders-per-second 20 --units-per-second 200
  esimctl partner set-limits ak_0123456789abcdef01234567 --orders-per-second default

Each ingress applies the limits within a second. A request above a limit gets 429. `default` restores the setting of
ingress: MAX_IN_FLIGHT, PARTNER_REQUESTS_PER_SECOND, PARTNER_ORDERS_PER_SECOND, PARTNER_UNITS_PER_SECOND.";

const SET_SIGNING_EXAMPLES: &str = "Examples:
  esimctl partner set-signing ak_0123456789abcdef01234567 --body required
  esimctl partner set-signing ak_0123456789abcdef01234567 --body optional

With `required`, each ingress denies within a second every request whose signature does not cover the query and the body:
one without the header X-Service-Content-SHA256. Ask the partner to send it on every request first. With the header the
body is always checked.";

const LONGEST_NAME: usize = 255;
const MOST_LIMIT: u32 = 1_000_000;

#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Create a partner and print its secrets once
    #[command(after_help = CREATE_EXAMPLES)]
    Create(Create),
    /// List the partners, oldest first
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Show a partner, without its secrets
    #[command(after_help = SHOW_EXAMPLES)]
    Show(Which),
    /// Set or remove a partner's webhook URL
    #[command(after_help = SET_WEBHOOK_EXAMPLES)]
    SetWebhook {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        endpoint: Endpoint,
        #[command(flatten)]
        http: HttpConfig,
    },
    /// Set the further events that a partner's webhook endpoint gets
    #[command(after_help = SET_EVENTS_EXAMPLES)]
    SetEvents {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        events: Events,
    },
    /// Deny a partner's requests
    #[command(after_help = DISABLE_EXAMPLES)]
    Disable(Which),
    /// Allow the requests of a disabled partner
    #[command(after_help = ENABLE_EXAMPLES)]
    Enable(Which),
    /// Set a partner's own limits
    #[command(after_help = SET_LIMITS_EXAMPLES)]
    SetLimits {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        limits: Limits,
    },
    /// Set whether a partner's requests must sign their query and body
    #[command(after_help = SET_SIGNING_EXAMPLES)]
    SetSigning {
        #[command(flatten)]
        which: Which,
        /// Whether the signature must cover the query and the body
        #[arg(long)]
        body: Covered,
    },
    /// Replace a partner's keys and print the new ones once; the old ones stay valid for a while
    #[command(after_help = rotate::KEYS_EXAMPLES)]
    RotateKeys(Rotate),
    /// Replace a partner's webhook secret and print the new one once; the old one also signs for a while
    #[command(after_help = rotate::WEBHOOK_SECRET_EXAMPLES)]
    RotateWebhookSecret(Rotate),
    /// Erase a disabled partner and the profiles of all its orders
    #[command(after_help = erase::PARTNER_EXAMPLES)]
    Erase(ErasePartner),
}

#[derive(Args, Clone, Debug)]
pub struct Create {
    /// The display name
    #[arg(long, value_parser = name)]
    name: String,
    /// The environment; a sandbox partner buys nothing real
    #[arg(long, value_parser = PossibleValuesParser::new(["sandbox", "live"]).try_map(|name| name.parse::<Environment>()))]
    environment: Environment,
    /// The webhook URL
    #[arg(long, value_name = "URL", value_parser = WebhookUrlParser)]
    webhook_url: Option<WebhookUrl>,
    #[command(flatten)]
    http: HttpConfig,
    #[command(flatten)]
    master_key: MasterKeyConfig,
}

/// Refuses an `http` URL for a live partner, unless the operator allows it.
fn check_scheme(url: Option<&WebhookUrl>, environment: Environment, http: HttpConfig) -> anyhow::Result<()> {
    let parsed = url.and_then(WebhookUrl::parsed);
    let judged = parsed.map(|url| guard::check_scheme(&url, environment, http.webhook_http_live));
    judged.unwrap_or(Ok(())).context(
        "the partner is live, and http:// shows its eSIMs to the network: give an https:// URL, or allow it with \
         --webhook-http-live",
    )
}

#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct Endpoint {
    /// The new webhook URL
    #[arg(long, value_parser = WebhookUrlParser)]
    url: Option<WebhookUrl>,
    /// Remove the URL; webhooks wait until one is set
    #[arg(long)]
    remove: bool,
}

#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct Events {
    /// The events, separated by commas: `topup.failed`, `key.expiring`
    #[arg(long, value_delimiter = ',')]
    events: Vec<Kind>,
    /// No further events
    #[arg(long)]
    none: bool,
}

#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = true)]
pub struct Limits {
    /// The most orders in flight at each ingress
    #[arg(long, value_name = "N|default", value_parser = limit)]
    max_in_flight: Option<Limit>,
    /// The most requests per second at each ingress
    #[arg(long, value_name = "N|default", value_parser = limit)]
    requests_per_second: Option<Limit>,
    /// The most orders per second at each ingress
    #[arg(long, value_name = "N|default", value_parser = limit)]
    orders_per_second: Option<Limit>,
    /// The most units per second at each ingress
    #[arg(long, value_name = "N|default", value_parser = limit)]
    units_per_second: Option<Limit>,
}

/// Whether a signature covers the query and the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Covered {
    /// Requests without it are denied
    Required,
    /// As the request says
    Optional,
}

fn limit(text: &str) -> Result<Limit, String> {
    if text == "default" {
        return Ok(Limit::Default);
    }
    match text.parse() {
        Ok(most @ 1..=MOST_LIMIT) => Ok(Limit::Own(most)),
        _ => Err(format!("neither `default` nor a number from 1 to {MOST_LIMIT}")),
    }
}

pub async fn run(command: &Command, database: &DatabaseConfig, output: &Output) -> anyhow::Result<()> {
    match command {
        Command::Create(new) => create(new, database, output).await,
        Command::List => {
            let partners = partners::list(&mut connect(database).await?).await?;
            output.print(&partners, || list(&partners))
        }
        Command::Show(which) => {
            let partner = find(&mut connect(database).await?, which).await?;
            output.print(&partner, || describe(&partner))
        }
        Command::SetWebhook {
            which,
            endpoint,
            http,
        } => set_webhook(which, endpoint, *http, database, output).await,
        Command::SetEvents { which, events } => set_events(which, events, database, output).await,
        Command::Disable(which) => set_disabled(which, true, database, output).await,
        Command::Enable(which) => set_disabled(which, false, database, output).await,
        Command::SetLimits { which, limits } => set_limits(which, limits, database, output).await,
        Command::SetSigning { which, body } => set_signing(which, *body, database, output).await,
        Command::RotateKeys(rotate) => rotate::keys(rotate, database, output).await,
        Command::RotateWebhookSecret(rotate) => rotate::webhook_secret(rotate, database, output).await,
        Command::Erase(asked) => erase::partner(asked, database, output).await,
    }
}

/// A new partner with its secrets.
#[derive(Serialize)]
struct Created<'a> {
    partner_id: PartnerId,
    name: &'a str,
    environment: Environment,
    access_key: &'a str,
    /// Base64.
    secret_key: String,
    webhook_url: Option<&'a str>,
    /// `whsec_` and Base64.
    webhook_secret: String,
}

async fn create(new: &Create, database: &DatabaseConfig, output: &Output) -> anyhow::Result<()> {
    check_scheme(new.webhook_url.as_ref(), new.environment, new.http)?;
    let vault = new.master_key.vault(&[Keyring::Partners, Keyring::Webhooks])?;
    let mut connection = connect(database).await?;
    partners::check_master_key(&mut connection, &vault)
        .await
        .context("this is not the master key of the services; nothing was created")?;
    let partner_id = PartnerId::new();
    let (access_key, secret_key) = generate::keys()?;
    let webhook_secret = generate::webhook_secret()?;
    let webhook_url = new.webhook_url.as_ref().map(WebhookUrl::as_str);
    let partner = NewPartner {
        partner_id,
        name: &new.name,
        environment: new.environment,
        access_key: &access_key,
        secret_key: &secret_key,
        webhook_url,
        webhook_secret: &webhook_secret,
    };
    partners::create(&mut connection, &vault, &partner).await?;
    let created = Created {
        partner_id,
        name: &new.name,
        environment: new.environment,
        access_key: &access_key,
        secret_key: secret_key.to_base64(),
        webhook_url,
        webhook_secret: webhook_secret.to_text(),
    };
    output
        .print(&created, || describe_created(&created))
        .with_context(|| {
            format!(
                "the secrets of the new partner {partner_id} were not shown; disable it and create another"
            )
        })
}

fn describe_created(created: &Created<'_>) -> String {
    let properties = properties(&[
        ("partner_id", &created.partner_id.to_string()),
        ("name", created.name),
        ("environment", created.environment.as_str()),
        ("access_key", created.access_key),
        ("secret_key", &created.secret_key),
        ("webhook_url", created.webhook_url.unwrap_or("-")),
        ("webhook_secret", &created.webhook_secret),
    ]);
    format!("{properties}\n\nsecret_key and webhook_secret are shown only now: keep them safe.")
}

async fn set_webhook(
    which: &Which,
    endpoint: &Endpoint,
    http: HttpConfig,
    database: &DatabaseConfig,
    output: &Output,
) -> anyhow::Result<()> {
    let mut connection = connect(database).await?;
    let Partner {
        partner_id,
        name,
        environment,
        ..
    } = find(&mut connection, which).await?;
    check_scheme(endpoint.url.as_ref(), environment.parse()?, http)?;
    let url = endpoint.url.as_ref().map(WebhookUrl::as_str);
    let due = partners::set_webhook(&mut connection, partner_id.into(), url)
        .await?
        .with_context(|| unknown(which))?;
    let result = json!({ "partner_id": partner_id, "webhook_url": url, "deliveries_due": due });
    output.print(&result, || {
        let name = crate::output::printable(&name);
        match (url, due) {
            (None, _) => format!("webhooks of {name} wait until a URL is set"),
            (Some(url), 0) => format!("webhooks of {name} go to {url}; none was waiting"),
            (Some(url), due) => {
                format!("webhooks of {name} go to {url}; waiting webhooks that are due now: {due}")
            }
        }
    })
}

async fn set_events(
    which: &Which,
    events: &Events,
    database: &DatabaseConfig,
    output: &Output,
) -> anyhow::Result<()> {
    let mut connection = connect(database).await?;
    let partner = find(&mut connection, which).await?;
    partners::set_events(&mut connection, partner.partner_id.into(), &events.events).await?;
    let partner = find(&mut connection, which).await?;
    output.print(&partner, || describe(&partner))
}

async fn set_disabled(
    which: &Which,
    disabled: bool,
    database: &DatabaseConfig,
    output: &Output,
) -> anyhow::Result<()> {
    let mut connection = connect(database).await?;
    let partner = find(&mut connection, which).await?;
    partners::set_disabled(&mut connection, partner.partner_id.into(), disabled).await?;
    let partner = find(&mut connection, which).await?;
    output.print(&partner, || describe(&partner))
}

async fn set_limits(
    which: &Which,
    limits: &Limits,
    database: &DatabaseConfig,
    output: &Output,
) -> anyhow::Result<()> {
    let mut connection = connect(database).await?;
    let partner = find(&mut connection, which).await?;
    let new = NewLimits {
        max_in_flight: limits.max_in_flight.unwrap_or_default(),
        requests_per_second: limits.requests_per_second.unwrap_or_default(),
        orders_per_second: limits.orders_per_second.unwrap_or_default(),
        units_per_second: limits.units_per_second.unwrap_or_default(),
    };
    partners::set_limits(&mut connection, partner.partner_id.into(), &new).await?;
    let partner = find(&mut connection, which).await?;
    output.print(&partner, || describe(&partner))
}

async fn set_signing(
    which: &Which,
    body: Covered,
    database: &DatabaseConfig,
    output: &Output,
) -> anyhow::Result<()> {
    let mut connection = connect(database).await?;
    let partner = find(&mut connection, which).await?;
    let required = body == Covered::Required;
    partners::set_signed_body_required(&mut connection, partner.partner_id.into(), required).await?;
    let partner = find(&mut connection, which).await?;
    output.print(&partner, || describe(&partner))
}

fn list(partners: &[Partner]) -> String {
    if partners.is_empty() {
        return "There are no partners yet; see `esimctl partner create --help`.".to_owned();
    }
    let rows = partners.iter().map(|partner| {
        [
            partner.partner_id.to_string(),
            partner.name.clone(),
            partner.environment.clone(),
            partner.access_key.clone(),
            with_rotations(state(partner), partner),
            partner.webhook_url.clone().unwrap_or_else(|| "-".to_owned()),
        ]
    });
    table(
        [
            "partner_id",
            "name",
            "environment",
            "access_key",
            "state",
            "webhook_url",
        ],
        rows,
    )
}

fn describe(partner: &Partner) -> String {
    let partner_id = partner.partner_id.to_string();
    let (state, created) = (state(partner), format!("{} UTC", moment(partner.created_at)));
    let old_keys = partner.old_access_key.as_deref().zip(partner.old_keys_until);
    let old_keys = old_keys.map(|(key, until)| format!("{key} until {} UTC", moment(until)));
    let old_secret = partner
        .old_webhook_secret_until
        .map(|until| format!("until {} UTC", moment(until)));
    let mut rows = vec![
        ("partner_id", partner_id.as_str()),
        ("name", &partner.name),
        ("environment", &partner.environment),
        ("access_key", &partner.access_key),
    ];
    rows.extend(old_keys.as_deref().map(|old| ("old access_key", old)));
    rows.extend([
        ("state", state.as_str()),
        ("webhook_url", partner.webhook_url.as_deref().unwrap_or("-")),
    ]);
    let events = partner.webhook_events.join(", ");
    if !events.is_empty() {
        rows.push(("webhook events", &events));
    }
    rows.extend(old_secret.as_deref().map(|old| ("old webhook_secret", old)));
    let limits: Vec<(&str, String)> = [
        ("max_in_flight", partner.max_in_flight),
        ("requests_per_second", partner.requests_per_second),
        ("orders_per_second", partner.orders_per_second),
        ("units_per_second", partner.units_per_second),
    ]
    .into_iter()
    .filter_map(|(name, limit)| Some((name, limit?.to_string())))
    .collect();
    rows.extend(limits.iter().map(|(name, limit)| (*name, limit.as_str())));
    if partner.signed_body_required {
        rows.push(("signed body", "required"));
    }
    rows.push(("created", &created));
    properties(&rows)
}

fn state(partner: &Partner) -> String {
    match partner.disabled_at {
        Some(at) => format!("disabled since {} UTC", moment(at)),
        None if partner.has_secret_key => "enabled".to_owned(),
        None => "enabled, but without a secret key".to_owned(),
    }
}

/// The state, with old keys and secrets that are still valid.
fn with_rotations(mut state: String, partner: &Partner) -> String {
    for (what, until) in [
        ("keys", partner.old_keys_until),
        ("webhook secret", partner.old_webhook_secret_until),
    ] {
        if let Some(until) = until {
            state = format!("{state}, old {what} until {} UTC", moment(until));
        }
    }
    state
}

fn name(text: &str) -> Result<String, String> {
    let name = text.trim();
    if name.is_empty() {
        Err("it is blank".to_owned())
    } else if name.chars().any(char::is_control) {
        Err("it has a control character".to_owned())
    } else if name.chars().count() > LONGEST_NAME {
        Err(format!("it is longer than {LONGEST_NAME} characters"))
    } else {
        Ok(name.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_trimmed_and_printable() {
        assert_eq!(name("  Acme Travel ").as_deref(), Ok("Acme Travel"));
        assert_eq!(name(&"ü".repeat(255)).map(|name| name.chars().count()), Ok(255));
        for bad in ["", "  ", "a\u{1b}[2J", &"a".repeat(256)] {
            assert!(name(bad).is_err(), "{bad:?}");
        }
    }
}
