//! Finds the partner that a command names.

use anyhow::Context;
use clap::Args;
use domain::PartnerId;
use store::{
    PgConnection,
    partners::{self, Partner},
};

#[derive(Args, Clone, Debug)]
pub struct Which {
    /// The partner's id or access key
    #[arg(value_name = "ID|ACCESS_KEY")]
    pub partner: String,
}

/// Reads the partner with this id or access key.
pub async fn find(connection: &mut PgConnection, which: &Which) -> anyhow::Result<Partner> {
    partners::show(connection, &which.partner)
        .await?
        .with_context(|| unknown(which))
}

/// The id of the partner with this id or access key.
pub async fn find_id(connection: &mut PgConnection, partner: &str) -> anyhow::Result<PartnerId> {
    let which = Which {
        partner: partner.to_owned(),
    };
    Ok(find(connection, &which).await?.partner_id.into())
}

/// The error for an unknown partner.
pub fn unknown(which: &Which) -> String {
    format!(
        "there is no partner with the id or access key {:?}; see `esimctl partner list`",
        which.partner
    )
}
