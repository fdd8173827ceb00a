//! The sandbox: it speaks the protocol of USIMSA.

use super::{Connected, Limits, account::account, usimsa};

account!("sandbox", "SANDBOX", "the sandbox", "Base URL of the sandbox, e.g. `http://sandbox:8090`");

pub fn connect(account: &Account, limits: Limits) -> anyhow::Result<Connected> {
    usimsa::adapter(account.credentials()?, limits)
}
