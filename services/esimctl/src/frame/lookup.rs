//! Finds the partner that an argument names, by its id, by its access key, or by its name, which is
//! what lists and pages show. Names need not be unique; one that several partners have finds none
//! of them.
//!
//! The access key from before the last rotation finds the partner too, because it may be the only
//! name that a partner or a log line gives. A rotation with `--overlap 0` forgets the old key.

use accounts::partners::{self, Partner};
use anyhow::{anyhow, bail};
use clap::Args;
use domain::PartnerId;
use pg::PgConnection;

#[derive(Args, Clone, Debug)]
pub struct PartnerArgs {
    /// The partner's id, access key or unique name
    #[arg(value_name = "ID|ACCESS_KEY|NAME")]
    pub partner: String,
}

/// Reads the partner with this id or access key, or the only one with this name.
pub async fn find(connection: &mut PgConnection, partner: &str) -> anyhow::Result<Partner> {
    if let Some(found) = partners::show(connection, partner).await? {
        return Ok(found);
    }
    let mut named = with_name(connection, partner).await?;
    match (named.pop(), named.is_empty()) {
        (Some(found), true) => Ok(found),
        (None, _) => Err(anyhow!(
            "there is no partner with the id, access key or name {partner:?}; see `esimctl partner list`"
        )),
        (Some(last), false) => {
            named.push(last);
            bail!(
                "{} partners have the name {partner:?}, so nothing was done; name one by its id: {}",
                named.len(),
                candidates(&named)
            )
        }
    }
}

/// The partners with this name, in any case and without the spaces around it.
pub async fn with_name(connection: &mut PgConnection, name: &str) -> anyhow::Result<Vec<Partner>> {
    let all = partners::list(connection).await?;
    let asked = name.trim().to_lowercase();
    let is_named = |one: &Partner| one.name.trim().to_lowercase() == asked;
    Ok(all.into_iter().filter(is_named).collect())
}

/// The maximum number of partners of one name that an error lists.
const CANDIDATES: usize = 10;

/// Partners of one name, as an error or a warning lists them.
pub fn candidates(named: &[Partner]) -> String {
    let some: Vec<String> = named.iter().take(CANDIDATES).map(candidate).collect();
    let more = named.len().saturating_sub(CANDIDATES);
    let more = (more > 0).then(|| format!(", and {more} more"));
    format!("{}{}", some.join(", "), more.unwrap_or_default())
}

/// A partner as it is listed beside others of its name.
fn candidate(partner: &Partner) -> String {
    let state = if partner.disabled_at.is_some() {
        ", disabled"
    } else {
        ""
    };
    format!("{} ({}{state})", partner.partner_id, partner.environment)
}

/// The id of the partner that is named, if one is.
pub async fn find_id(
    connection: &mut PgConnection,
    partner: Option<&String>,
) -> anyhow::Result<Option<PartnerId>> {
    match partner {
        Some(partner) => Ok(Some(find(connection, partner).await?.partner_id.into())),
        None => Ok(None),
    }
}
