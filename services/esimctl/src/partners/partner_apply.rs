//! `esimctl partner apply`: brings partner accounts, their limits and their endpoints to what a
//! file says.
//!
//! Everything is compared and written in one transaction, so a file is applied as a whole or not at
//! all, and the same file again changes nothing. Each change is recorded as the act that it is,
//! such as `partner set-limits`. Nothing is removed because the file does not mention it: an
//! account is disabled by `disabled: true` and erased by `partner erase`, and an endpoint is
//! deleted by its partner. Two commands at the same time do not create an account twice: the row of
//! versions, which each creation locks, lets one wait for the other, which it sees before it
//! commits.

use std::{io::IsTerminal, path::PathBuf};

use accounts::partners::{
    self, NewPartner, Partner, PartnerLimits,
    endpoints::{self, Block, EndpointUpdate, Headers, NewEndpoint},
};
use anyhow::{Context, bail, ensure};
use clap::Args;
use desk::operator::endpoints::set_url;
use domain::{EndpointId, EndpointKey, PartnerId, event::EventKind};
use pg::{
    PgConnection, Transaction, TransactionEnd,
    actions::{self, ActionChange},
    config::MasterKeyConfig,
    transaction,
};
use serde_json::{Value, json};
use signing::generate;
use vault::Vault;
use webhooks::{config::HttpConfig, url::WebhookUrl};

use crate::{
    confirm::ReasonArgs,
    console::Console,
    manifest::ManifestArgs,
    output::properties,
    partner_change::{host, recorded},
    partner_file::{self, CheckedPartner, CoverageRule, WantedEndpoint},
    partner_plan::{Steps, compare, names},
    plan::Plan,
    secret_file,
    terms::{check_vault, vault},
};

pub const EXAMPLES: &str = "Examples:
  esimctl partner apply -f partners.yaml --dry-run
  esimctl partner apply -f partners.yaml --secrets new-secrets.json --reason 'ticket 4711'
  esimctl partner apply -f - --json < partners.yaml

The file is YAML or JSON:
  partners:
    - name: Acme Travel
      environment: live
      webhook_url: https://acme.example/webhooks
      events: [topup.failed]
      limits: {orders_per_second: 20, units_per_second: default}
      signed_body: required
      endpoints:
        - url: https://crm.acme.example/esims
          events: [topup.ready, topup.failed]

An account is known by name and environment; partner_id says which one is meant if several have both. An account that
does not exist is created, and so is a further endpoint, which is known by its URL. A field that is left out stays as it
is. Nothing is removed because the file does not mention it: `disabled: true` denies an account's requests, `webhook_url:
null` removes the URL, and `esimctl partner erase` erases. docs/partners.schema.json describes the file for editors and
checks.

Secrets never stand in the file. Those of what is created are printed once on a terminal, or written to the new file of
--secrets, which only its owner can read, before anything is committed. Without a terminal --secrets is required, so that
no log of a job gets them. Everything is changed in one transaction, and each change is
recorded as if `partner create` and `partner set` had made it. After a new webhook URL the notifiers send what waits.

--dry-run needs no master key. It prints what would be created and changed, and ends with status 0 if that is nothing and
3 otherwise.";

#[derive(Args, Clone, Debug)]
pub struct PartnerApplyArgs {
    #[command(flatten)]
    source: ManifestArgs,
    // This field stands before `dry_run`: clap reads the fields in this order and removes each
    // value from the arguments, and `By` needs to see whether `--dry-run` was given.
    #[command(flatten)]
    why: ReasonArgs,
    /// Show what would be created and changed, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Write the new secrets to this new file instead of standard output
    ///
    /// It is required where standard output is no terminal: the log of a job keeps what it is
    /// given, and many can read it.
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    secrets: Option<PathBuf>,
    #[command(flatten)]
    http: HttpConfig,
    #[command(flatten)]
    master_key: MasterKeyConfig,
}

pub async fn run(asked: &PartnerApplyArgs, console: &Console) -> anyhow::Result<()> {
    let text = asked.source.read()?;
    let name = asked.source.name();
    let nothing = || format!("nothing was changed by {name}");
    let wanted = partner_file::parse(&text, asked.http).with_context(nothing)?;
    let mut connection = console.connect().await?;
    let applied = transaction!(
        &mut connection,
        "partner apply",
        |transaction| -> anyhow::Result<Applied> {
            let applied = apply(asked, transaction, &wanted, &nothing).await?;
            Ok(if asked.dry_run {
                TransactionEnd::Rollback(applied)
            } else {
                TransactionEnd::Commit(applied)
            })
        }
    )?;
    if asked.dry_run {
        return applied.plan.print_dry_run(console, |_| ());
    }
    applied.print(console).context(
        "the file is applied, but the new secrets could not be shown: make others with `esimctl partner rotate`",
    )
}

/// What was planned, and without `--dry-run` also done.
#[derive(Default)]
struct Applied {
    plan: Plan,
    secrets: Vec<Value>,
    kept: Option<Kept>,
}

/// Applies the file, unless this is a dry run.
async fn apply(
    asked: &PartnerApplyArgs,
    transaction: &mut Transaction<'_>,
    wanted: &[CheckedPartner],
    nothing: &impl Fn() -> String,
) -> anyhow::Result<Applied> {
    let mut plan = Plan::default();
    let mut steps = Vec::new();
    let stored = locked(transaction, wanted).await.with_context(nothing)?;
    for (wanted, partner) in wanted.iter().zip(&stored) {
        let (planned, todo) = compare(transaction, wanted, partner.as_ref())
            .await
            .with_context(nothing)?;
        plan.0.push(planned);
        steps.push(todo);
    }
    if asked.dry_run {
        return Ok(Applied {
            plan,
            ..Applied::default()
        });
    }
    let makes_secrets = steps.iter().any(Steps::make_secrets);
    ensure!(
        !makes_secrets || asked.secrets.is_some() || std::io::stdout().is_terminal(),
        "{}: it makes new secrets, and standard output is no terminal, perhaps the log of a job that many can read: name a \
         new file for them with --secrets FILE",
        nothing()
    );
    let vault = if makes_secrets {
        let vault = vault(&asked.master_key)?;
        check_vault(&vault, transaction, "nothing was changed").await?;
        Some(vault)
    } else {
        None
    };
    let mut secrets = Vec::new();
    let all = plan
        .0
        .iter_mut()
        .zip(wanted.iter().zip(&stored))
        .zip(&steps);
    for ((planned, (wanted, partner)), steps) in all {
        let mut act = Act {
            transaction,
            vault: vault.as_ref(),
            why: &asked.why,
            secrets: &mut secrets,
        };
        let id = act.carry_out(wanted, partner.as_ref(), steps).await?;
        planned.id = Some(id.to_string());
    }
    alone(transaction, wanted, &steps)
        .await
        .with_context(nothing)?;
    let kept = keep(asked, &secrets)?;
    Ok(Applied {
        plan,
        secrets,
        kept,
    })
}

/// The file of `--secrets`. It is removed with this, unless what is in it has become valid.
struct Kept(Option<PathBuf>);

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            std::fs::remove_file(path).ok();
        }
    }
}

/// Writes the secrets to the file of `--secrets`, before they become valid.
fn keep(asked: &PartnerApplyArgs, secrets: &[Value]) -> anyhow::Result<Option<Kept>> {
    let Some(path) = asked.secrets.as_ref().filter(|_| !secrets.is_empty()) else {
        return Ok(None);
    };
    let text = format!("{}\n", serde_json::to_string_pretty(secrets)?);
    ensure!(
        secret_file::make(path, &text)?,
        "nothing was changed, because {} exists already and may hold secrets: name a new file",
        path.display()
    );
    Ok(Some(Kept(Some(path.clone()))))
}

impl Applied {
    /// Shows what is valid now.
    fn print(self, console: &Console) -> anyhow::Result<()> {
        let Self {
            plan,
            secrets,
            kept,
        } = self;
        let kept = kept.and_then(|mut kept| kept.0.take());
        let mut shown = plan.json(false);
        if kept.is_none() {
            shown["secrets"] = json!(secrets);
        }
        console.print(&shown, || {
            let mut parts = vec![plan.text(false)];
            match &kept {
                _ if secrets.is_empty() => {}
                Some(path) => parts.push(format!("The new secrets are in {}.", path.display())),
                None => {
                    parts.extend(secrets.iter().map(secret_text));
                    parts.push("The secrets are shown only now: keep them safe.".to_owned());
                }
            }
            parts.join("\n\n")
        })
    }
}

fn secret_text(secret: &Value) -> String {
    let fields = secret.as_object().into_iter().flatten();
    let fields = fields.map(|(name, value)| {
        let value = value.as_str().unwrap_or_default();
        (name.as_str(), value.to_owned())
    });
    properties(&fields.collect::<Vec<_>>())
}

/// The stored account of each entry, if there is one, locked until the transaction ends.
async fn locked(
    transaction: &mut Transaction<'_>,
    wanted: &[CheckedPartner],
) -> anyhow::Result<Vec<Option<Partner>>> {
    let all = partners::list(transaction).await?;
    let mut found: Vec<Option<PartnerId>> = Vec::new();
    for wanted in wanted {
        let Some(id) = id_of(wanted, &all)? else {
            found.push(None);
            continue;
        };
        // By its name in one entry and by its id in another, it would become what the later one
        // says, and the other way round with the next run of the same file.
        if let Some(first) = found.iter().position(|one| *one == Some(id)) {
            bail!(
                "{}: it is partner {id}, the same account as entry {first} of the file; remove one of the two",
                wanted.at
            );
        }
        ensure!(
            partners::lock(transaction, id).await?,
            "{}: there is no partner {id} any more",
            wanted.at
        );
        found.push(Some(id));
    }
    // What they are now that nobody else changes them.
    let all = partners::list(transaction).await?;
    let of = |id: PartnerId| all.iter().find(|one| one.partner_id == id.uuid()).cloned();
    Ok(found.into_iter().map(|id| id.and_then(of)).collect())
}

/// The account that an entry means; `None` if it is to be created. Erased accounts have no name.
fn id_of(wanted: &CheckedPartner, all: &[Partner]) -> anyhow::Result<Option<PartnerId>> {
    let at = &wanted.at;
    let is_named = |one: &&Partner| one.has_secret_key && wanted.is(&one.name, &one.environment);
    if let Some(id) = wanted.partner_id {
        let one = all.iter().find(|one| one.partner_id == id.uuid());
        let one = one.with_context(|| {
            format!("{at}.partner_id: there is no partner {id}; leave it out to create one")
        })?;
        ensure!(
            is_named(&one),
            "{at}.partner_id: partner {id} has another name or environment, or is erased; see `esimctl partner show {id}`"
        );
        return Ok(Some(id));
    }
    let named: Vec<&Partner> = all.iter().filter(is_named).collect();
    match named[..] {
        [] => Ok(None),
        [one] => Ok(Some(one.partner_id.into())),
        _ => {
            let ids: Vec<String> = named.iter().map(|one| one.partner_id.to_string()).collect();
            bail!(
                "{at}.name: {} accounts have this name and environment; say which one with partner_id: {}",
                ids.len(),
                ids.join(", ")
            )
        }
    }
}

/// Refuses an account that somebody else has created under the same name meanwhile.
async fn alone(
    transaction: &mut PgConnection,
    wanted: &[CheckedPartner],
    steps: &[Steps],
) -> anyhow::Result<()> {
    if !steps.iter().any(|steps| steps.create) {
        return Ok(());
    }
    let all = partners::list(transaction).await?;
    for (wanted, _) in wanted.iter().zip(steps).filter(|(_, steps)| steps.create) {
        id_of(wanted, &all)
            .context("somebody else created it at the same time; run the command again")?;
    }
    Ok(())
}

/// Carries the steps of one entry out and records each.
struct Act<'a, 't> {
    transaction: &'a mut Transaction<'t>,
    vault: Option<&'a Vault>,
    why: &'a ReasonArgs,
    secrets: &'a mut Vec<Value>,
}

impl<'a> Act<'a, '_> {
    async fn carry_out(
        &mut self,
        wanted: &CheckedPartner,
        partner: Option<&Partner>,
        steps: &Steps,
    ) -> anyhow::Result<PartnerId> {
        let id = match partner {
            Some(partner) => partner.partner_id.into(),
            None => self.create(wanted).await?,
        };
        // The creation has set the URL and the limits.
        if let (true, Some(partner)) = (steps.webhook_url, partner) {
            self.set_url(wanted, partner).await?;
        }
        if steps.limits && partner.is_some() {
            let limits = &wanted.limits;
            let set = async |connection: &mut Transaction<'_>| {
                partners::set_limits(connection, id, limits).await
            };
            self.set(id, domain::Command::PartnerSetLimits, set).await?;
        }
        if let (true, Some(events)) = (steps.events, &wanted.events) {
            let set = async |connection: &mut Transaction<'_>| {
                partners::set_events(connection, id, events).await
            };
            self.set(id, domain::Command::PartnerSetEvents, set).await?;
        }
        if let (true, Some(covered)) = (steps.signed_body, wanted.signed_body) {
            let required = covered == CoverageRule::Required;
            let set = async |connection: &mut Transaction<'_>| {
                partners::set_signed_body_required(connection, id, required).await
            };
            self.set(id, domain::Command::PartnerSetSigning, set)
                .await?;
        }
        if let (true, Some(disabled)) = (steps.disabled, wanted.disabled) {
            let command = if disabled {
                domain::Command::PartnerDisable
            } else {
                domain::Command::PartnerEnable
            };
            let set = async |connection: &mut Transaction<'_>| {
                partners::set_disabled(connection, id, disabled).await
            };
            self.set(id, command, set).await?;
        }
        for index in &steps.new_endpoints {
            self.new_endpoint(wanted, id, &wanted.endpoints[*index])
                .await?;
        }
        for (endpoint_id, index) in &steps.changed_endpoints {
            self.change_endpoint(id, *endpoint_id, &wanted.endpoints[*index])
                .await?;
        }
        Ok(id)
    }

    fn vault(&self) -> anyhow::Result<&'a Vault> {
        self.vault.context("the master key was not read")
    }

    async fn record(
        &mut self,
        command: domain::Command,
        target: &str,
        changed: ActionChange,
    ) -> anyhow::Result<()> {
        let action = self.why.action(command, target);
        Ok(actions::record(self.transaction, action, 1, changed).await?)
    }

    async fn create(&mut self, wanted: &CheckedPartner) -> anyhow::Result<PartnerId> {
        let partner_id = PartnerId::new();
        let (access_key, secret_key) = generate::keys()?;
        let webhook_secret = generate::webhook_secret()?;
        let url = wanted.webhook_url.value();
        let new = NewPartner {
            partner_id,
            name: &wanted.name,
            environment: wanted.environment,
            access_key: &access_key,
            secret_key: &secret_key,
            webhook_url: url.map(WebhookUrl::as_str),
            webhook_secret: &webhook_secret,
            limits: PartnerLimits::at_first(wanted.environment).with(&wanted.limits),
        };
        let vault = self.vault()?;
        partners::create(self.transaction, vault, &new).await?;
        let changed = ActionChange::created(json!({
            "environment": wanted.environment, "access_key": access_key, "webhook_host": url.and_then(host),
        }));
        let target = format!("partner {partner_id}");
        self.record(domain::Command::PartnerCreate, &target, changed)
            .await?;
        self.secrets.push(json!({
            "name": wanted.name, "environment": wanted.environment, "partner_id": partner_id, "access_key": access_key,
            "secret_key": secret_key.to_base64(), "webhook_secret": webhook_secret.to_text(),
        }));
        Ok(partner_id)
    }

    async fn set_url(&mut self, wanted: &CheckedPartner, partner: &Partner) -> anyhow::Result<()> {
        let url = wanted.webhook_url.value();
        let old = partner
            .webhook_url
            .as_ref()
            .and_then(|url| host(&url.parse().ok()?));
        let id = partner.partner_id.into();
        set_url(self.transaction, id, url.map(WebhookUrl::as_str)).await?;
        let changed = ActionChange::between(
            json!({ "webhook_host": old }),
            json!({ "webhook_host": url.and_then(host) }),
        );
        let target = format!("partner {id}");
        self.record(domain::Command::PartnerSetWebhook, &target, changed)
            .await
    }

    /// Makes a change of the account, with what it was before and after it.
    async fn set(
        &mut self,
        id: PartnerId,
        command: domain::Command,
        set: impl AsyncFnOnce(&mut Transaction<'_>) -> Result<bool, pg::Error>,
    ) -> anyhow::Result<()> {
        let before = self.shown(id).await?;
        set(self.transaction).await?;
        let after = self.shown(id).await?;
        let target = format!("partner {id}");
        self.record(command, &target, ActionChange::between(before, after))
            .await
    }

    async fn shown(&mut self, id: PartnerId) -> anyhow::Result<Value> {
        let partner = partners::show(self.transaction, &id.to_string()).await?;
        Ok(recorded(&partner.context("the partner no longer exists")?))
    }

    async fn new_endpoint(
        &mut self,
        wanted: &CheckedPartner,
        partner_id: PartnerId,
        endpoint: &WantedEndpoint,
    ) -> anyhow::Result<()> {
        let secret = generate::webhook_secret()?;
        let key = EndpointKey {
            partner_id,
            id: EndpointId::new(),
        };
        let new = NewEndpoint {
            key,
            url: endpoint.url.as_str(),
            secret: &secret,
            events: endpoint
                .events
                .as_deref()
                .unwrap_or(&[EventKind::TopupReady]),
            headers: &Headers::new(),
        };
        let vault = self.vault()?;
        let created = endpoints::create(self.transaction, vault, &new).await?;
        ensure!(
            created,
            "nothing was changed: {} has the maximum number of endpoints",
            wanted.name
        );
        let changed = ActionChange::created(json!({
            "webhook_host": host(&endpoint.url), "events": names(new.events),
        }));
        let target = format!("endpoint {} of partner {partner_id}", key.id);
        self.record(domain::Command::EndpointCreate, &target, changed)
            .await?;
        self.secrets.push(json!({
            "name": wanted.name, "environment": wanted.environment, "partner_id": partner_id, "endpoint_id": key.id,
            "endpoint_url": endpoint.url.as_str(), "webhook_secret": secret.to_text(),
        }));
        Ok(())
    }

    async fn change_endpoint(
        &mut self,
        partner_id: PartnerId,
        id: EndpointId,
        endpoint: &WantedEndpoint,
    ) -> anyhow::Result<()> {
        let new = EndpointUpdate {
            events: endpoint.events.as_deref(),
            ..EndpointUpdate::default()
        };
        let key = EndpointKey { partner_id, id };
        endpoints::change(self.transaction, key, &new, Block::ProbeNow).await?;
        let events = endpoint.events.as_deref().map(names);
        let changed = ActionChange::created(json!({ "events": events }));
        let target = format!("endpoint {id} of partner {partner_id}");
        self.record(domain::Command::EndpointSet, &target, changed)
            .await
    }
}
