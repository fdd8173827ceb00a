//! The session of somebody who is signed in. [`crate::access`] decides who has one.

use std::time::Duration;

use desk::operator::accounts::OperatorRole;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};

use crate::times::Times;

/// The longest wait for the whole of a form.
pub(crate) const FORM_TIMEOUT: Duration = Duration::from_secs(10);

/// The session of a request.
#[derive(Clone, Debug)]
pub struct ConsoleSession {
    pub(crate) operator: String,
    pub(crate) role: OperatorRole,
    /// The secret in the cookie.
    pub(crate) secret: SecretString,
    /// Where the request came from.
    pub(crate) from: String,
    /// What the last action led to, for the next page to show.
    pub(crate) said: Option<String>,
    /// The zone of its pages.
    pub(crate) times: Times,
}

impl ConsoleSession {
    /// The name of the account.
    pub(crate) fn name(&self) -> &str {
        &self.operator
    }

    pub(crate) fn role(&self) -> OperatorRole {
        self.role
    }

    pub(crate) fn may(&self, role: OperatorRole) -> bool {
        self.role >= role
    }

    pub(crate) fn form_token(&self) -> String {
        form_token(&self.secret)
    }

    pub(crate) fn secret(&self) -> &SecretString {
        &self.secret
    }

    pub(crate) fn from(&self) -> &str {
        &self.from
    }

    pub(crate) fn said(&self) -> Option<&str> {
        self.said.as_deref()
    }
}

/// The token of the forms that a cookie with this secret may send.
pub(crate) fn form_token(secret: &SecretString) -> String {
    let digest = Sha256::new()
        .chain_update(b"form of the console\0")
        .chain_update(secret.expose_secret().as_bytes())
        .finalize();
    hex::encode(digest)
}
