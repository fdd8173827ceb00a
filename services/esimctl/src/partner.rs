//! `esimctl partner`: creates and changes partner accounts, with their keys, webhook URLs, limits
//! and events.
//!
//! A change takes effect within a second and without a restart, because the services read these
//! settings from the database again and again. Secrets are generated here, stored encrypted under
//! the master key, and shown once. A command that stores a secret first checks that its master key
//! opens the secrets that are stored already; otherwise the services could not read the new one,
//! and every request of the partner would fail.

use anyhow::Context;
use clap::{
    Args, Subcommand, ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};
use domain::{Environment, PartnerId};
use serde_json::json;
use signing::generate;
use store::{
    PgConnection,
    config::MasterKeyConfig,
    deliveries::events::Kind,
    operator::actions::{self, Changed},
    partners::{self, Limit, NewLimits, NewPartner, Partner},
    self_service::{self, Channel},
    vault::Keyring,
};
use time::OffsetDateTime;
use webhooks::{config::HttpConfig, guard, mail, url::WebhookUrl};

use crate::{
    confirm::Why,
    console::Console,
    erase::{self, ErasePartner},
    lookup::{Which, find},
    output::{Row, cells, or_dash, properties, utc},
    partner_change::{change, host, set_webhook},
    partner_move::{self, MovePartner},
    refused,
    rotate::{self, Rotate},
    webhook_url::WebhookUrlParser,
};

const CREATE_EXAMPLES: &str = "Examples:
  esimctl partner create --name 'Acme Travel' --environment sandbox
  esimctl partner create --name 'Acme Travel' --environment live --webhook-url https://acme.example/webhooks --json

The secrets are stored encrypted and are shown only once: hand them to the partner over a safe channel. Without a webhook
URL, the partner's webhooks wait until `esimctl partner set-webhook` or the partner itself sets one.";

const LIST_EXAMPLES: &str = "Examples:
  esimctl partner list
  esimctl partner list --json";

const SHOW_EXAMPLES: &str = "Examples:
  esimctl partner show ak_0123456789abcdef01234567
  esimctl partner show 0199aabb-ccdd-7eee-8fff-001122334455 --json";

const SET_WEBHOOK_EXAMPLES: &str = "Examples:
  esimctl partner set-webhook ak_0123456789abcdef01234567 --url https://acme.example/webhooks
  esimctl partner set-webhook ak_0123456789abcdef01234567 --remove

A new URL makes the partner's waiting webhooks due at once, and ends a block of the endpoint. A pause stays.";

const SET_EVENTS_EXAMPLES: &str = "Examples:
  esimctl partner set-events ak_0123456789abcdef01234567 --events topup.failed,key.expiring
  esimctl partner set-events ak_0123456789abcdef01234567 --none

The webhook of a ready topup is always sent and needs no setting. Partners can also set the events themselves.";

const DISABLE_EXAMPLES: &str = "Examples:
  esimctl partner disable ak_0123456789abcdef01234567

The partner's requests are denied within a second. Orders that were accepted before are still bought, and their webhooks
are still sent.";

const ENABLE_EXAMPLES: &str = "Examples:
  esimctl partner enable ak_0123456789abcdef01234567

The partner's requests are accepted again within a second.";

const SET_LIMITS_EXAMPLES: &str = "Examples:
  esimctl partner set-limits ak_0123456789abcdef01234567 --orders-per-second 20 --units-per-second 200
  esimctl partner set-limits ak_0123456789abcdef01234567 --orders-per-second default

Each ingress applies the limits within a second, and counts for itself: with two replicas a partner can reach twice the
limit. A request above a limit gets 429. A limit that is not given stays as it is. `default` restores the setting of
ingress, which is MAX_IN_FLIGHT, PARTNER_REQUESTS_PER_SECOND, PARTNER_ORDERS_PER_SECOND or PARTNER_UNITS_PER_SECOND.";

const SET_SIGNING_EXAMPLES: &str = "Examples:
  esimctl partner set-signing ak_0123456789abcdef01234567 --body required
  esimctl partner set-signing ak_0123456789abcdef01234567 --body optional

With `required`, each ingress denies requests without the header X-Service-Content-SHA256 within a second, because their
signature does not cover the query and the body. Ask the partner to send the header with every request first. Whenever
the header is sent, the body is checked, also with `optional`.";

const LONGEST_NAME: usize = 255;
const MOST_LIMIT: u32 = 1_000_000;

#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Create a partner, and print its secrets, which are shown only once
    #[command(after_help = CREATE_EXAMPLES)]
    Create(Create),
    /// List the partners, oldest first
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Show a partner, without its secrets
    #[command(after_help = SHOW_EXAMPLES)]
    Show(Which),
    /// List the newest refused requests of a partner
    #[command(after_help = refused::EXAMPLES)]
    Refused(refused::Command),
    /// Set or remove a partner's webhook URL, and send the waiting webhooks
    #[command(after_help = SET_WEBHOOK_EXAMPLES)]
    SetWebhook {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        endpoint: Endpoint,
        #[command(flatten)]
        http: HttpConfig,
        #[command(flatten)]
        why: Why,
    },
    /// Set which events a partner gets beside the webhooks of ready topups
    #[command(after_help = SET_EVENTS_EXAMPLES)]
    SetEvents {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        events: Events,
        #[command(flatten)]
        why: Why,
    },
    /// Deny a partner's requests; accepted orders go on
    #[command(after_help = DISABLE_EXAMPLES)]
    Disable {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        why: Why,
    },
    /// Accept the requests of a disabled partner again
    #[command(after_help = ENABLE_EXAMPLES)]
    Enable {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        why: Why,
    },
    /// Set limits for one partner, instead of the settings of ingress
    #[command(after_help = SET_LIMITS_EXAMPLES)]
    SetLimits {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        limits: Limits,
        #[command(flatten)]
        why: Why,
    },
    /// Set whether a partner's requests must sign their query and body
    #[command(after_help = SET_SIGNING_EXAMPLES)]
    SetSigning {
        #[command(flatten)]
        which: Which,
        /// Whether the signature must cover the query and the body
        #[arg(long)]
        body: Covered,
        #[command(flatten)]
        why: Why,
    },
    /// Replace a partner's keys, and print the new ones once
    ///
    /// The old keys stay valid for a while, so that the partner can change over without an
    /// interruption.
    #[command(after_help = rotate::KEYS_EXAMPLES)]
    RotateKeys(Rotate),
    /// Replace a partner's webhook secret, and print the new one once
    ///
    /// For a while webhooks are signed with both secrets, so that the partner can change over
    /// without an interruption.
    #[command(after_help = rotate::WEBHOOK_SECRET_EXAMPLES)]
    RotateWebhookSecret(Rotate),
    /// Erase a disabled partner and the profiles of all its orders for good
    #[command(after_help = erase::PARTNER_EXAMPLES)]
    Erase(ErasePartner),
    /// Move a partner with all of its orders to another cell
    ///
    /// While it moves, its requests get 503 with `Retry-After`. The services keep running.
    #[command(after_help = partner_move::EXAMPLES)]
    Move(MovePartner),
}

#[derive(Args, Clone, Debug)]
pub struct Create {
    /// The name that lists show, of at most 255 characters
    #[arg(long, value_parser = name)]
    name: String,
    /// The environment of the account
    ///
    /// A live partner buys real eSIMs. The orders of a sandbox partner go to the sandbox provider,
    /// which sells nothing real. The environment cannot be changed later.
    #[arg(long, value_parser = PossibleValuesParser::new(["sandbox", "live"]).try_map(|name| name.parse::<Environment>()))]
    environment: Environment,
    /// The URL that gets the partner's webhooks
    ///
    /// Without it the webhooks wait until a URL is set.
    #[arg(long, value_name = "URL", value_parser = WebhookUrlParser)]
    webhook_url: Option<WebhookUrl>,
    #[command(flatten)]
    http: HttpConfig,
    #[command(flatten)]
    why: Why,
    #[command(flatten)]
    master_key: MasterKeyConfig,
}

/// Refuses an `http` URL for a live partner, unless the operator allows it.
pub fn check_scheme(
    url: Option<&WebhookUrl>,
    environment: Environment,
    http: HttpConfig,
) -> anyhow::Result<()> {
    let parsed = url.and_then(WebhookUrl::parsed);
    let judged = parsed.map(|url| guard::check_scheme(&url, environment, http.webhook_http_live));
    judged.unwrap_or(Ok(())).context(
        "nothing was changed: the partner is live, and an http:// URL would show its eSIMs to the network. Give an \
         https:// URL, or allow this one with --webhook-http-live",
    )
}

#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct Endpoint {
    /// The new URL that gets the partner's webhooks
    #[arg(long, value_parser = WebhookUrlParser)]
    pub url: Option<WebhookUrl>,
    /// Remove the URL; the partner's webhooks then wait until one is set
    #[arg(long)]
    remove: bool,
}

#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct Events {
    /// The events that the partner gets, separated by commas, such as `topup.failed`
    ///
    /// They replace the events that were set before. The error for an unknown event lists all known
    /// ones.
    #[arg(long, value_delimiter = ',')]
    events: Vec<Kind>,
    /// Send the partner no events
    #[arg(long)]
    none: bool,
}

#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = true)]
pub struct Limits {
    /// The maximum number of the partner's orders that each ingress has in flight at once
    #[arg(long, value_name = "N|default", value_parser = limit)]
    max_in_flight: Option<Limit>,
    /// The maximum number of requests per second at each ingress
    #[arg(long, value_name = "N|default", value_parser = limit)]
    requests_per_second: Option<Limit>,
    /// The maximum number of orders per second at each ingress
    #[arg(long, value_name = "N|default", value_parser = limit)]
    orders_per_second: Option<Limit>,
    /// The maximum number of ordered units per second at each ingress
    #[arg(long, value_name = "N|default", value_parser = limit)]
    units_per_second: Option<Limit>,
}

/// Whether the signature of a request must cover the query and the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Covered {
    /// Requests whose signature does not cover the query and the body are denied
    Required,
    /// Each request chooses whether its signature covers them
    Optional,
}

fn limit(text: &str) -> Result<Limit, String> {
    if text == "default" {
        return Ok(Limit::Default);
    }
    match text.parse() {
        Ok(most @ 1..=MOST_LIMIT) => Ok(Limit::Own(most)),
        _ => Err(format!(
            "it is neither `default` nor a number from 1 to {MOST_LIMIT}"
        )),
    }
}

pub async fn run(command: &Command, console: &Console) -> anyhow::Result<()> {
    match command {
        Command::Create(new) => create(new, console).await,
        Command::List => {
            let partners = partners::list(&mut console.connect().await?).await?;
            let none = "There are no partners yet; see `esimctl partner create --help`.";
            console.print_list(&partners, none, row)
        }
        Command::Show(which) => {
            let mut connection = console.connect().await?;
            let partner = find(&mut connection, &which.partner).await?;
            let channel = self_service::channel(&mut connection, partner.partner_id.into()).await?;
            let shown = Shown {
                partner,
                notices: channel.as_ref().map(Notices::of),
            };
            console.print(&shown, || shown.describe())
        }
        Command::Refused(asked) => refused::run(asked, console).await,
        Command::SetWebhook {
            which,
            endpoint,
            http,
            why,
        } => set_webhook(which, endpoint, *http, why, console).await,
        Command::SetEvents { which, events, why } => {
            let set = async |connection: &mut PgConnection, id| {
                partners::set_events(connection, id, &events.events).await
            };
            change(which, ("partner set-events", why), console, set).await
        }
        Command::Disable { which, why } | Command::Enable { which, why } => {
            let disabled = matches!(command, Command::Disable { .. });
            let name = if disabled {
                "partner disable"
            } else {
                "partner enable"
            };
            let set = async |connection: &mut PgConnection, id| {
                partners::set_disabled(connection, id, disabled).await
            };
            change(which, (name, why), console, set).await
        }
        Command::SetLimits { which, limits, why } => {
            let limits = NewLimits {
                max_in_flight: limits.max_in_flight.unwrap_or_default(),
                requests_per_second: limits.requests_per_second.unwrap_or_default(),
                orders_per_second: limits.orders_per_second.unwrap_or_default(),
                units_per_second: limits.units_per_second.unwrap_or_default(),
            };
            let set = async |connection: &mut PgConnection, id| {
                partners::set_limits(connection, id, &limits).await
            };
            change(which, ("partner set-limits", why), console, set).await
        }
        Command::SetSigning { which, body, why } => {
            let required = *body == Covered::Required;
            let set = async |connection: &mut PgConnection, id| {
                partners::set_signed_body_required(connection, id, required).await
            };
            change(which, ("partner set-signing", why), console, set).await
        }
        Command::RotateKeys(rotate) => rotate::keys(rotate, console).await,
        Command::RotateWebhookSecret(rotate) => rotate::webhook_secret(rotate, console).await,
        Command::Erase(asked) => erase::partner(asked, console).await,
        Command::Move(asked) => partner_move::run(asked, console).await,
    }
}

async fn create(new: &Create, console: &Console) -> anyhow::Result<()> {
    check_scheme(new.webhook_url.as_ref(), new.environment, new.http)?;
    let vault = new
        .master_key
        .vault(&[Keyring::Partners, Keyring::Webhooks])?;
    let mut connection = console.connect().await?;
    partners::check_master_key(&mut connection, &vault)
        .await
        .context(
            "nothing was created, because this is not the master key of the services: use the same master keys as they do",
        )?;
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
    let target = format!("partner {partner_id}");
    let action = new.why.action("partner create", &target);
    let host = new.webhook_url.as_ref().and_then(host);
    let create = async |transaction: &mut PgConnection| {
        partners::create(transaction, &vault, &partner).await?;
        let changed = Changed::created(json!({
            "environment": new.environment, "access_key": access_key, "webhook_host": host,
        }));
        Ok(Some(((), changed)))
    };
    actions::recorded(&mut connection, action, create).await?;
    let created = json!({
        "partner_id": partner_id, "name": new.name, "environment": new.environment, "access_key": access_key,
        "secret_key": secret_key.to_base64(), "webhook_url": webhook_url, "webhook_secret": webhook_secret.to_text(),
    });
    let text = || {
        let properties = properties(&cells!(new:
            partner_id = partner_id.to_string(), name, environment, access_key = access_key.clone(),
            secret_key = secret_key.to_base64(), webhook_url = or_dash(webhook_url),
            webhook_secret = webhook_secret.to_text(),
        ));
        format!("{properties}\n\nsecret_key and webhook_secret are shown only now: keep them safe.")
    };
    console.print(&created, text).with_context(|| {
        format!(
            "partner {partner_id} is created, but its secrets could not be shown: disable it with `esimctl partner disable`, and \
             create another one"
        )
    })
}

fn row(partner: &Partner) -> Row<6> {
    let mut state = state(partner);
    // During a rotation: old keys or an old webhook secret that are still valid.
    for (what, until) in [
        ("keys", partner.old_keys_until),
        ("webhook secret", partner.old_webhook_secret_until),
    ] {
        if let Some(until) = until {
            state = format!("{state}, old {what} until {}", utc(until));
        }
    }
    let webhook_url = or_dash(partner.webhook_url.as_ref());
    cells!(partner: partner_id, name, environment, access_key, state = state, webhook_url = webhook_url)
}

/// A partner with the state of its channel for notices.
#[derive(serde::Serialize)]
struct Shown {
    #[serde(flatten)]
    partner: Partner,
    notices: Option<Notices>,
}

/// The channel for notices. Its URL or address is left out, because output ends up in tickets and
/// logs, and an address is personal data.
#[derive(serde::Serialize)]
struct Notices {
    /// `url` or `email`.
    channel: &'static str,
    state: String,
    failures: i32,
    #[serde(with = "time::serde::rfc3339::option")]
    verified_at: Option<OffsetDateTime>,
}

impl Notices {
    fn of(channel: &Channel) -> Self {
        Self {
            channel: if mail::is_mail(&channel.target) {
                "email"
            } else {
                "url"
            },
            state: channel.state.clone(),
            failures: channel.failures,
            verified_at: channel.verified_at,
        }
    }
}

impl Shown {
    fn describe(&self) -> String {
        let notices = self.notices.as_ref().map(|notices| {
            let verified = notices
                .verified_at
                .map(|at| format!(", verified {}", utc(at)));
            let Notices { channel, state, .. } = notices;
            format!("{state} ({channel}{})", verified.unwrap_or_default())
        });
        format!(
            "{}\n{}",
            describe(&self.partner),
            properties(&[("notices", or_dash(notices))])
        )
    }
}

pub fn describe(partner: &Partner) -> String {
    let old_keys = partner
        .old_access_key
        .as_deref()
        .zip(partner.old_keys_until);
    let old_secret = partner.old_webhook_secret_until;
    let events = Some(partner.webhook_events.join(", ")).filter(|events| !events.is_empty());
    let limit = |limit: Option<i32>| limit.map(|limit| limit.to_string());
    let rows = [
        ("partner_id", Some(partner.partner_id.to_string())),
        ("name", Some(partner.name.clone())),
        ("environment", Some(partner.environment.clone())),
        ("access_key", Some(partner.access_key.clone())),
        (
            "old access_key",
            old_keys.map(|(key, until)| format!("{key} until {}", utc(until))),
        ),
        ("state", Some(state(partner))),
        ("webhook_url", Some(or_dash(partner.webhook_url.as_ref()))),
        ("webhook events", events),
        (
            "old webhook_secret",
            old_secret.map(|until| format!("until {}", utc(until))),
        ),
        ("max_in_flight", limit(partner.max_in_flight)),
        ("requests_per_second", limit(partner.requests_per_second)),
        ("orders_per_second", limit(partner.orders_per_second)),
        ("units_per_second", limit(partner.units_per_second)),
        (
            "signed body",
            partner.signed_body_required.then(|| "required".to_owned()),
        ),
        ("created", Some(utc(partner.created_at))),
    ];
    properties(
        &rows
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect::<Vec<_>>(),
    )
}

fn state(partner: &Partner) -> String {
    if let Some(cell) = &partner.moved_to {
        return format!("moving or moved to cell {cell}");
    }
    match partner.disabled_at {
        Some(at) => format!("disabled since {}", utc(at)),
        None if partner.has_secret_key => "enabled".to_owned(),
        None => "enabled, but without a secret key".to_owned(),
    }
}

fn name(text: &str) -> Result<String, String> {
    let name = text.trim();
    if name.is_empty() {
        Err("it is blank".to_owned())
    } else if name.chars().any(char::is_control) {
        Err("it has a control character, such as a line break".to_owned())
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
        assert_eq!(
            name(&"ü".repeat(255)).map(|name| name.chars().count()),
            Ok(255)
        );
        for bad in ["", "  ", "a\u{1b}[2J", &"a".repeat(256)] {
            assert!(name(bad).is_err(), "{bad:?}");
        }
    }
}
