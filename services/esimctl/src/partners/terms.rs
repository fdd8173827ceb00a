//! What commands about partners share: the text of a partner, and the rules for its name, limits
//! and webhook URL.

use accounts::partners::{self, Partner};
use anyhow::Context;
use domain::Environment;
use pg::{PgConnection, config::MasterKeyConfig};
use vault::{Keyring, Vault};
use webhooks::{config::HttpConfig, guard, url::WebhookUrl};

use crate::output::{or_dash, properties, utc};

const LONGEST_NAME: usize = 255;
/// The largest limit of a partner.
pub const MOST_LIMIT: u32 = 1_000_000;

/// A name without the blanks around it, or what is wrong with it.
pub fn name(text: &str) -> Result<String, String> {
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

/// What seals the keys and secrets of partners. A command reads it before it connects, so that a
/// wrong setting is told as such.
pub fn vault(master_key: &MasterKeyConfig) -> anyhow::Result<Vault> {
    Ok(master_key.vault(&[Keyring::Partners, Keyring::Webhooks])?)
}

/// Refuses master keys that are not those of the services. `nothing` begins the error, such as
/// "nothing was changed".
pub async fn check_vault(
    vault: &Vault,
    connection: &mut PgConnection,
    nothing: &str,
) -> anyhow::Result<()> {
    let checked = partners::check_master_key(connection, vault).await;
    checked.with_context(|| {
        format!("{nothing}, because this is not the master key of the services: use the same master keys as they do")
    })
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

pub fn state(partner: &Partner) -> String {
    match partner.disabled_at {
        Some(at) => format!("disabled since {}", utc(at)),
        None if partner.keys_ended => "enabled, but its keys were ended".to_owned(),
        None if partner.has_secret_key => "enabled".to_owned(),
        None => "enabled, but without a secret key".to_owned(),
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
