//! `esimctl partner`: creates and changes partner accounts, with their keys, webhook URLs, limits
//! and events.
//!
//! A change takes effect within a second and without a restart, because the services read these
//! settings from the database again and again. Secrets are generated here, stored encrypted under
//! the master key, and shown once. A command that stores a secret first checks that its master key
//! opens the secrets that are stored already; otherwise the services could not read the new one,
//! and every request of the partner would fail.

use accounts::partners::{self, Limit, NewLimits, NewPartner, Partner};
use anyhow::Context;
use clap::{
    ArgGroup, Args, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
};
use desk::self_service::{self, InstallPages, NoticeChannel};
use domain::{Environment, PartnerId, Stored, event::EventKind, standing::EndpointState};
use pg::{
    Transaction,
    actions::{self, ActionChange},
    config::MasterKeyConfig,
};
use serde_json::json;
use signing::generate;
use time::OffsetDateTime;
use webhooks::{config::HttpConfig, mail, url::WebhookUrl};

use crate::{
    confirm::ReasonArgs,
    console::Console,
    erase::{self, ErasePartner},
    key,
    leaked::{self, LeakedArgs},
    lookup::{PartnerArgs, candidates, find, with_name},
    output::{TableRow, cells, or_dash, properties, utc},
    partner_apply::{self, PartnerApplyArgs},
    partner_change::{change, host, set_webhook},
    partner_file::CoverageRule,
    refused,
    rotate::{self, Rotate},
    terms::{MOST_LIMIT, check_scheme, check_vault, describe, name, state, vault},
    webhook_url::WebhookUrlParser,
};

const CREATE_EXAMPLES: &str = "Examples:
  esimctl partner create --name 'Acme Travel' --environment sandbox
  esimctl partner create --name 'Acme Travel' --environment live --webhook-url https://acme.example/webhooks --json
  esimctl partner create --name 'Acme load test' --environment sandbox --orders-per-second default --units-per-second default

The secrets are stored encrypted and are shown only once: hand them to the partner over a safe channel. Without a webhook
URL, the partner's webhooks wait until `esimctl partner set --webhook-url` or the partner itself sets one.

A sandbox account begins with 5 orders and 5 units per second, and with at most 50 units in one order, because each unit
becomes a webhook to a host that the partner chooses. Give it other limits here, or later with `esimctl partner set`.";

const LIST_EXAMPLES: &str = "Examples:
  esimctl partner list
  esimctl partner list --json";

const SHOW_EXAMPLES: &str = "Examples:
  esimctl partner show ak_0123456789abcdef01234567
  esimctl partner show 0199aabb-ccdd-7eee-8fff-001122334455 --json
  esimctl partner show ak_0123456789abcdef01234567 --refused
  esimctl partner show ak_0123456789abcdef01234567 --refused --limit 200 --json

--refused shows the partner's requests that ingress answered with a 4xx or 503, for \"we sent it, and you do not have it\".
Ingress keeps those whose access key is known: the newest 1,000 of each kind (orders, other requests, and
requests without a valid signature), and no longer than the term `refusals` of `esimctl retention`. A request with an
unknown access key, and one that a proxy refused, is not among them. `unrecorded` counts the requests of the same kind
before this one that were not kept, because more than 60 came in a minute, or because they could not be
stored.";

const SET_EXAMPLES: &str = "Examples:
  esimctl partner set ak_0123456789abcdef01234567 --disabled
  esimctl partner set ak_0123456789abcdef01234567 --enabled
  esimctl partner set ak_0123456789abcdef01234567 --webhook-url https://acme.example/webhooks
  esimctl partner set ak_0123456789abcdef01234567 --no-webhook-url
  esimctl partner set ak_0123456789abcdef01234567 --events topup.failed,key.expiring
  esimctl partner set ak_0123456789abcdef01234567 --orders-per-second 20 --units-per-second 200
  esimctl partner set ak_0123456789abcdef01234567 --orders-per-second default
  esimctl partner set ak_0123456789abcdef01234567 --signed-body required

A change takes effect within a second. Each call makes one kind of change, because each is recorded for itself; limits may
be changed together.

The requests of a disabled partner are denied. Orders that were accepted before are still bought, and their webhooks are
still sent. A new URL makes the partner's waiting webhooks due at once, and ends a block of the endpoint; a pause stays.
The webhook of a ready topup is always sent and is no event; partners can set their events themselves.

Each ingress applies the limits and counts for itself: with two replicas a partner can reach twice the limit. A request
above a limit gets 429. `default` restores the setting of ingress, which is MAX_IN_FLIGHT, or PARTNER_ORDERS_PER_SECOND
for orders, as many requests, and five times as many units. An order
of a sandbox partner with --units-per-second N has at most 10 * N units.

With a signed body `required`, each ingress denies requests without the header X-Service-Content-SHA256, because their
signature does not cover the query and the body. Ask the partner to send the header with every request first. Whenever
the header is sent, the body is checked, also with `optional`.";

#[derive(Subcommand, Clone, Debug)]
pub enum PartnerCommand {
    /// Make accounts, limits and endpoints match a file
    ///
    /// The same file again changes nothing, so a pipeline may apply it at every deployment.
    #[command(after_help = partner_apply::EXAMPLES)]
    Apply(Box<PartnerApplyArgs>),
    /// Create a partner, and print its secrets, which are shown only once
    #[command(after_help = CREATE_EXAMPLES)]
    Create(PartnerCreateArgs),
    /// List the partners, oldest first
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Show a partner, without its secrets
    #[command(after_help = SHOW_EXAMPLES)]
    Show(Show),
    /// Disable or enable a partner, or change its webhook URL, events, limits or signing
    #[command(after_help = SET_EXAMPLES)]
    Set(Box<PartnerSetArgs>),
    /// Replace a partner's keys or its webhook secret, and print the new ones once
    ///
    /// The old ones stay valid for a while, so that the partner can change over without an
    /// interruption: requests may be signed with both keys, and webhooks are signed with both
    /// secrets.
    #[command(after_help = rotate::EXAMPLES)]
    Rotate(Rotate),
    /// End keys that are in wrong hands, at once
    #[command(after_help = leaked::EXAMPLES)]
    Leaked(LeakedArgs),
    /// List, make, change and end the further keys of a partner's people and programs
    #[command(subcommand, after_help = key::EXAMPLES)]
    Key(Box<key::KeyCommand>),
    /// Erase a disabled partner and the profiles of all its orders for good
    #[command(after_help = erase::PARTNER_EXAMPLES)]
    Erase(ErasePartner),
}

#[derive(Args, Clone, Debug)]
pub struct PartnerCreateArgs {
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
    limits: LimitArgs,
    #[command(flatten)]
    http: HttpConfig,
    #[command(flatten)]
    why: ReasonArgs,
    #[command(flatten)]
    master_key: MasterKeyConfig,
}

#[derive(Args, Clone, Debug)]
pub struct Show {
    #[command(flatten)]
    which: PartnerArgs,
    /// Show the partner's newest refused requests instead
    #[arg(long)]
    refused: bool,
    /// The most refused requests of each kind that are shown
    #[arg(long, requires = "refused", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
}

/// What is changed of a partner. One kind of change is given, and the limits are one kind.
#[derive(Args, Clone, Debug)]
#[command(
    group(ArgGroup::new("change").required(true).multiple(true).args([
        "disabled", "enabled", "webhook_url", "no_webhook_url", "events", "no_events", "signed_body",
        "max_in_flight", "requests_per_second", "orders_per_second", "units_per_second",
    ])),
    group(ArgGroup::new("one").conflicts_with("limits").args([
        "disabled", "enabled", "webhook_url", "no_webhook_url", "events", "no_events", "signed_body",
    ])),
)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "one for each flag of the command line"
)]
pub struct PartnerSetArgs {
    #[command(flatten)]
    which: PartnerArgs,
    /// Deny the partner's requests; accepted orders go on
    #[arg(long)]
    disabled: bool,
    /// Accept the requests of a disabled partner again
    #[arg(long)]
    enabled: bool,
    /// The new URL that gets the partner's webhooks; the waiting ones are sent
    #[arg(long, value_name = "URL", value_parser = WebhookUrlParser)]
    webhook_url: Option<WebhookUrl>,
    /// Remove the URL; the partner's webhooks then wait until one is set
    #[arg(long)]
    no_webhook_url: bool,
    /// The events that the partner gets, separated by commas, such as `topup.failed`
    ///
    /// They replace the events that were set before. The error for an unknown event lists all known
    /// ones.
    #[arg(long, value_delimiter = ',')]
    events: Vec<EventKind>,
    /// Send the partner no events
    #[arg(long)]
    no_events: bool,
    #[command(flatten)]
    limits: LimitArgs,
    /// Whether the signature of a request must cover the query and the body
    #[arg(long)]
    signed_body: Option<CoverageRule>,
    #[command(flatten)]
    http: HttpConfig,
    #[command(flatten)]
    why: ReasonArgs,
}

#[derive(Args, Clone, Debug)]
#[group(id = "limits", multiple = true)]
struct LimitArgs {
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

impl LimitArgs {
    fn changes(&self) -> NewLimits {
        NewLimits {
            max_in_flight: self.max_in_flight.unwrap_or_default(),
            requests_per_second: self.requests_per_second.unwrap_or_default(),
            orders_per_second: self.orders_per_second.unwrap_or_default(),
            units_per_second: self.units_per_second.unwrap_or_default(),
        }
    }
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

pub async fn run(command: &PartnerCommand, console: &Console) -> anyhow::Result<()> {
    match command {
        PartnerCommand::Apply(asked) => partner_apply::run(asked, console).await,
        PartnerCommand::Create(new) => create(new, console).await,
        PartnerCommand::List => {
            let partners = partners::list(&mut console.connect().await?).await?;
            let none = "There are no partners yet; see `esimctl partner create --help`.";
            console.print_list(&partners, none, row)
        }
        PartnerCommand::Show(Show {
            which,
            refused: true,
            limit,
        }) => refused::run(which, *limit, console).await,
        PartnerCommand::Show(Show { which, .. }) => {
            let mut connection = console.connect().await?;
            let partner = find(&mut connection, &which.partner).await?;
            let id = partner.partner_id.into();
            let channel = self_service::channel(&mut connection, id).await?;
            let install_pages = self_service::install_pages(&mut connection, id).await?;
            let shown = Shown {
                partner,
                notices: channel.as_ref().map(Notices::of),
                install_pages,
            };
            console.print(&shown, || shown.describe())
        }
        PartnerCommand::Set(asked) => set(asked, console).await,
        PartnerCommand::Rotate(rotate) => rotate::run(rotate, console).await,
        PartnerCommand::Leaked(asked) => leaked::run(asked, console).await,
        PartnerCommand::Key(command) => key::run(command, console).await,
        PartnerCommand::Erase(asked) => erase::partner(asked, console).await,
    }
}

/// Makes the change that is asked for. Each kind of change has its own name in the record.
async fn set(asked: &PartnerSetArgs, console: &Console) -> anyhow::Result<()> {
    let which = &asked.which;
    let why = &asked.why;
    if asked.webhook_url.is_some() || asked.no_webhook_url {
        let url = asked.webhook_url.as_ref();
        return set_webhook(which, url, asked.http, why, console).await;
    }
    if asked.disabled || asked.enabled {
        let disabled = asked.disabled;
        let name = if disabled {
            domain::Command::PartnerDisable
        } else {
            domain::Command::PartnerEnable
        };
        let set = async |connection: &mut Transaction<'_>, id| {
            partners::set_disabled(connection, id, disabled).await
        };
        return change(which, (name, why), console, set).await;
    }
    if let Some(covered) = asked.signed_body {
        let required = covered == CoverageRule::Required;
        let set = async |connection: &mut Transaction<'_>, id| {
            partners::set_signed_body_required(connection, id, required).await
        };
        return change(
            which,
            (domain::Command::PartnerSetSigning, why),
            console,
            set,
        )
        .await;
    }
    if asked.no_events || !asked.events.is_empty() {
        let set = async |connection: &mut Transaction<'_>, id| {
            partners::set_events(connection, id, &asked.events).await
        };
        return change(
            which,
            (domain::Command::PartnerSetEvents, why),
            console,
            set,
        )
        .await;
    }
    let limits = asked.limits.changes();
    let set = async |connection: &mut Transaction<'_>, id| {
        partners::set_limits(connection, id, &limits).await
    };
    change(
        which,
        (domain::Command::PartnerSetLimits, why),
        console,
        set,
    )
    .await
}

async fn create(new: &PartnerCreateArgs, console: &Console) -> anyhow::Result<()> {
    check_scheme(new.webhook_url.as_ref(), new.environment, new.http)?;
    let vault = vault(&new.master_key)?;
    let mut connection = console.connect().await?;
    check_vault(&vault, &mut connection, "nothing was created").await?;
    // Several accounts may have one name, but who runs the command twice rarely wants two.
    let mut same_name = with_name(&mut connection, &new.name).await?;
    same_name.retain(|one| one.environment == new.environment.as_str());
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
        limits: partners::PartnerLimits::at_first(new.environment).with(&new.limits.changes()),
    };
    let target = format!("partner {partner_id}");
    let action = new.why.action(domain::Command::PartnerCreate, &target);
    let host = new.webhook_url.as_ref().and_then(host);
    let create = async |transaction: &mut Transaction<'_>| {
        partners::create(transaction, &vault, &partner).await?;
        let changed = ActionChange::created(json!({
            "environment": new.environment, "access_key": access_key, "webhook_host": host,
        }));
        Ok(Some(((), changed)))
    };
    actions::recorded(&mut connection, action, create).await?;
    let created = json!({
        "partner_id": partner_id, "name": new.name, "environment": new.environment, "access_key": access_key,
        "secret_key": secret_key.to_base64(), "webhook_url": webhook_url, "webhook_secret": webhook_secret.to_text(),
        "same_name": same_name.iter().map(|one| one.partner_id).collect::<Vec<_>>(),
    });
    let text = || {
        let properties = properties(&cells!(new:
            partner_id = partner_id.to_string(), name, environment, access_key = access_key.clone(),
            secret_key = secret_key.to_base64(), webhook_url = or_dash(webhook_url),
            webhook_secret = webhook_secret.to_text(),
        ));
        let shown = format!(
            "{properties}\n\nsecret_key and webhook_secret are shown only now: keep them safe."
        );
        if same_name.is_empty() {
            return shown;
        }
        let others = candidates(&same_name);
        format!(
            "{shown}\nwarning: this name and environment were taken already, by {others}; nothing of that was changed. If you did not want a second \
             account, disable the new one with `esimctl partner set {partner_id} --disabled`."
        )
    };
    console.print(&created, text).with_context(|| {
        format!(
            "partner {partner_id} is created, but its secrets could not be shown: disable it with `esimctl partner set --disabled`, and \
             create another one"
        )
    })
}

fn row(partner: &Partner) -> TableRow<6> {
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
    /// What travellers see of the partner, if it has pages to install from.
    install_pages: Option<InstallPages>,
}

/// The channel for notices. Its URL or address is left out, because output ends up in tickets and
/// logs, and an address is personal data.
#[derive(serde::Serialize)]
struct Notices {
    /// `url` or `email`.
    channel: &'static str,
    state: Stored<EndpointState>,
    failures: i32,
    #[serde(with = "time::serde::rfc3339::option")]
    verified_at: Option<OffsetDateTime>,
}

impl Notices {
    fn of(channel: &NoticeChannel) -> Self {
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
        let pages = self.install_pages.as_ref();
        let pages = pages.map(|pages| pages.shop.to_string());
        format!(
            "{}\n{}",
            describe(&self.partner),
            properties(&[
                ("notices", or_dash(notices)),
                ("travellers see", or_dash(pages))
            ])
        )
    }
}
