//! `esimctl partner rotate`: replaces a partner's keys or its
//! webhook secret.
//!
//! The old values stay valid during an overlap, so that the partner can change over without an
//! interruption. A partner has at most one old pair of keys and one old secret. So a second
//! rotation during an overlap is refused, unless the operator says which values to drop
//! (`--keep-old` or `--overlap 0`): otherwise it would silently end the keys that the partner still
//! uses.
//!
//! The new values are printed once, after the commit. If printing fails, or if the response of the
//! statement never arrives, the error says what the operator can do, because the rotation may have
//! taken effect.

use std::time::Duration;

use accounts::partners::{self, Overlap, Partner};
use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use domain::EndpointKey;
use pg::{
    PgConnection, Transaction,
    actions::{self, ActionChange},
    config::MasterKeyConfig,
};
use serde_json::json;
use signing::generate;
use time::OffsetDateTime;
use vault::Vault;

use crate::{
    confirm::ReasonArgs,
    console::Console,
    lookup::{PartnerArgs, find},
    output::{cells, printable, properties, utc},
    terms::{check_vault, vault},
};

pub const EXAMPLES: &str = "Examples:
  esimctl partner rotate ak_0123456789abcdef01234567 keys
  esimctl partner rotate ak_0123456789abcdef01234567 keys --overlap 7d --json
  esimctl partner rotate ak_0123456789abcdef01234567 webhook-secret
  esimctl partner rotate ak_0123456789abcdef01234567 webhook-secret --overlap 0    the old secret has leaked

If a key is in wrong hands, end it first: `esimctl partner leaked` does that at once.

The partner keeps its id and its orders. Until the overlap ends, both pairs of keys are valid, and webhook-signature holds
two signatures, the new secret's first. With --overlap 0 the old pair ends within a second, and only the new secret signs
from now on: a partner that does not have it yet refuses its webhooks, which are then retried. A partner has at most one
old pair and one old secret, so a second rotation during an overlap is refused, except with
  --keep-old     the partner never got the new ones: they are replaced, and the old ones stay valid
  --overlap 0    all others end at once
After an interruption, `esimctl partner show` says whether the rotation took effect.";

/// The error for a statement that failed, perhaps only because its response never arrived: then the
/// server may have executed it.
const UNKNOWN: &str = "it is unknown whether the rotation took effect: `esimctl partner show` says so. If it did, nobody has \
                       the new values: rotate again, with `--keep-old` during an overlap";
/// The error for a rotation that took effect, but whose new values could not be printed.
const UNSEEN: &str = "the rotation took effect, but the new values could not be shown: rotate again, with `--keep-old` \
                      during an overlap";

#[derive(Args, Clone, Debug)]
pub struct Rotate {
    #[command(flatten)]
    which: PartnerArgs,
    /// What is replaced
    what: What,
    /// How long the old keys or the old secret stay valid beside the new ones
    ///
    /// 0 ends the old ones at once, which is right if they have leaked.
    #[arg(long, value_name = "DURATION", default_value = "24h", allow_hyphen_values = true, value_parser = runtime::config::duration)]
    overlap: Duration,
    /// Replace the new keys or the new secret of the last rotation, and keep the old ones
    ///
    /// Use it if the partner never got the new ones. The overlap starts again.
    #[arg(long)]
    keep_old: bool,
    #[command(flatten)]
    why: ReasonArgs,
    #[command(flatten)]
    master_key: MasterKeyConfig,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// The access key and the secret key, which sign requests
    Keys,
    /// The secret that signs webhooks
    WebhookSecret,
}

pub async fn run(rotate: &Rotate, console: &Console) -> anyhow::Result<()> {
    match rotate.what {
        What::Keys => keys(rotate, console).await,
        What::WebhookSecret => webhook_secret(rotate, console).await,
    }
}

impl Rotate {
    fn overlap(&self) -> Overlap {
        Overlap {
            lasts: self.overlap,
            keep_old: self.keep_old,
        }
    }
}

async fn keys(rotate: &Rotate, console: &Console) -> anyhow::Result<()> {
    let (mut connection, vault, partner) = prepare(rotate, console).await?;
    let (access_key, secret_key) = generate::keys()?;
    let id = partner.partner_id.into();
    let overlap = rotate.overlap();
    let target = format!("partner {id}");
    let action = rotate
        .why
        .action(domain::Command::PartnerRotateKeys, &target);
    let change = async |transaction: &mut Transaction<'_>| {
        let rotated =
            partners::rotate_keys(transaction, &vault, id, &access_key, &secret_key, overlap);
        Ok(rotated.await?.done(|until| {
            let changed = ActionChange::between(
                json!({ "access_key": partner.access_key }),
                json!({ "access_key": access_key, "old_keys_until": until.map(utc) }),
            );
            (until, changed)
        }))
    };
    let rotated = actions::recorded(&mut connection, action, change);
    let Some(until) = rotated.await.context(UNKNOWN)? else {
        let partner = find(&mut connection, &rotate.which.partner).await?;
        return refused(&partner, ("keys", "are"), partner.old_keys_until);
    };
    let old = if rotate.keep_old {
        partner.old_access_key
    } else {
        Some(partner.access_key)
    };
    let old_access_key = until.and(old);
    let old_stays = match (&old_access_key, until) {
        (Some(old), Some(until)) => format!("{old} and its key stay valid until {}", utc(until)),
        _ => "The old keys end within a second".to_owned(),
    };
    let shown = json!({
        "partner_id": partner.partner_id, "name": partner.name, "access_key": access_key,
        "secret_key": secret_key.to_base64(), "old_access_key": old_access_key, "old_keys_until": rfc3339(until)?,
    });
    let text = || {
        let properties = properties(&cells!(partner:
            partner_id, name, access_key = access_key.clone(), secret_key = secret_key.to_base64(),
        ));
        format!("{properties}\n\nsecret_key is shown only now: keep it safe. {old_stays}.")
    };
    console.print(&shown, text).context(UNSEEN)
}

async fn webhook_secret(rotate: &Rotate, console: &Console) -> anyhow::Result<()> {
    let (mut connection, vault, partner) = prepare(rotate, console).await?;
    let secret = generate::webhook_secret()?;
    let id = partner.partner_id.into();
    let overlap = rotate.overlap();
    let target = format!("partner {id}");
    let action = rotate
        .why
        .action(domain::Command::PartnerRotateWebhookSecret, &target);
    let change = async |transaction: &mut Transaction<'_>| {
        let rotated = partners::rotate_secret(
            transaction,
            &vault,
            EndpointKey::first(id),
            &secret,
            overlap,
        )
        .await?;
        Ok(rotated.done(|until| {
            let until_utc = until.map(utc);
            (
                until,
                ActionChange::created(json!({ "old_webhook_secret_until": until_utc })),
            )
        }))
    };
    let rotated = actions::recorded(&mut connection, action, change);
    let Some(until) = rotated.await.context(UNKNOWN)? else {
        let partner = find(&mut connection, &rotate.which.partner).await?;
        return refused(
            &partner,
            ("webhook secret", "is"),
            partner.old_webhook_secret_until,
        );
    };
    let old_signs = match until {
        Some(until) => format!("The old secret also signs webhooks until {}", utc(until)),
        None => "The old secret no longer signs webhooks".to_owned(),
    };
    let shown = json!({
        "partner_id": partner.partner_id, "name": partner.name, "webhook_secret": secret.to_text(),
        "old_webhook_secret_until": rfc3339(until)?,
    });
    let text = || {
        let properties =
            properties(&cells!(partner: partner_id, name, webhook_secret = secret.to_text()));
        format!("{properties}\n\nwebhook_secret is shown only now: keep it safe. {old_signs}.")
    };
    console.print(&shown, text).context(UNSEEN)
}

async fn prepare(
    rotate: &Rotate,
    console: &Console,
) -> anyhow::Result<(PgConnection, Vault, Partner)> {
    if rotate.keep_old && rotate.overlap.is_zero() {
        bail!(
            "nothing was changed: `--keep-old` keeps the old values and `--overlap 0` ends them at once; choose one"
        );
    }
    let vault = vault(&rotate.master_key)?;
    let mut connection = console.connect().await?;
    check_vault(&vault, &mut connection, "nothing was changed").await?;
    let partner = find(&mut connection, &rotate.which.partner).await?;
    Ok((connection, vault, partner))
}

fn refused(
    partner: &Partner,
    (what, is): (&str, &str),
    until: Option<OffsetDateTime>,
) -> anyhow::Result<()> {
    let name = printable(&partner.name);
    let Some(until) = until else {
        bail!(
            "nothing was changed: there is no overlap, so no old {what} of {name} {is} valid that `--keep-old` could keep; rotate without it"
        );
    };
    bail!(
        "nothing was changed: the old {what} of {name} {is} valid until {}; rotate again after that, or with \
         `--keep-old` if the partner never got the new ones, or with `--overlap 0`, which ends all old ones at once",
        utc(until),
    )
}

fn rfc3339(at: Option<OffsetDateTime>) -> anyhow::Result<Option<String>> {
    Ok(at
        .map(|at| at.format(&time::format_description::well_known::Rfc3339))
        .transpose()?)
}
