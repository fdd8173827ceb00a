//! Finds the partner that an argument names, by its id or by its access key.
//!
//! The access key from before the last rotation finds the partner too, because it may be the only
//! name that a partner or a log line gives. A rotation with `--overlap 0` forgets the old key.

use clap::Args;
use domain::PartnerId;
use store::{
    PgConnection,
    partners::{self, Partner},
};

use crate::console::NotFound;

#[derive(Args, Clone, Debug)]
pub struct Which {
    /// The partner's id or access key
    #[arg(value_name = "ID|ACCESS_KEY")]
    pub partner: String,
}

/// Reads the partner with this id or access key.
pub async fn find(connection: &mut PgConnection, partner: &str) -> anyhow::Result<Partner> {
    let found = partners::show(connection, partner).await?;
    Ok(found.ok_or_else(|| {
        NotFound(format!(
            "there is no partner with the id or access key {partner:?}; see `esimctl partner list`"
        ))
    })?)
}

/// The id of the partner with this id or access key, if one is named.
pub async fn find_id(
    connection: &mut PgConnection,
    partner: Option<&String>,
) -> anyhow::Result<Option<PartnerId>> {
    match partner {
        Some(partner) => Ok(Some(find(connection, partner).await?.partner_id.into())),
        None => Ok(None),
    }
}
