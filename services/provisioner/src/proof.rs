//! What `esimctl provider prove` has proved of our account at a provider, as far as purchases
//! depend on it: for how long after a purchase an identical request is the same purchase.
//!
//! [`crate::watch`] reads it once a second, so a new proof counts without a restart. What was not
//! read lately counts as unproved, and so does an account whose address or key has changed.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use pg::PgConnection;
use runtime::lock;
use store::proofs::{self, ProvedAccount};

/// How long what was read counts.
const FRESH: Duration = Duration::from_secs(10);

/// What is proved of our account at one provider.
#[derive(Debug)]
pub struct Proof {
    /// The digest of the account.
    account: String,
    read: Mutex<Option<(Instant, Duration)>>,
}

impl Proof {
    pub fn new(account: String) -> Self {
        Self {
            account,
            read: Mutex::default(),
        }
    }

    pub async fn renew(
        &self,
        connection: &mut PgConnection,
        provider: &str,
    ) -> Result<(), pg::Error> {
        let of = ProvedAccount {
            provider,
            account: &self.account,
        };
        let same_for = proofs::same_for(connection, of).await?;
        *lock(&self.read) = Some((Instant::now(), same_for));
        Ok(())
    }

    /// For how long after a purchase an identical request is proved to be the same purchase; zero
    /// if nothing is proved.
    pub fn same_for(&self) -> Duration {
        match *lock(&self.read) {
            Some((at, same_for)) if at.elapsed() < FRESH => same_for,
            _ => Duration::ZERO,
        }
    }
}
