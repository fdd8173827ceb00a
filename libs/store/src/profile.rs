//! The part of an eSIM profile that is a credential, as it is stored: sealed.

use domain::{ActivationCode, TopupId};
use serde::{Deserialize, Serialize};

use crate::{
    Error,
    vault::{Purpose, Vault, VaultError},
};

/// What the webhook tells beside the ICCID.
#[derive(Clone, PartialEq, Eq)]
pub struct Profile {
    /// What installs the eSIM.
    pub code: ActivationCode,
    /// When it expires, `YYYY-MM-DD`.
    pub expired_date: String,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    smdp: String,
    activate_code: String,
    expired_date: String,
}

impl Profile {
    /// Seals it for a topup.
    pub fn seal(&self, vault: &Vault, topup_id: &TopupId) -> Result<Vec<u8>, Error> {
        let stored = Stored {
            smdp: self.code.smdp().to_owned(),
            activate_code: self.code.matching_id().to_owned(),
            expired_date: self.expired_date.clone(),
        };
        let bytes = serde_json::to_vec(&stored).map_err(|_| VaultError::Damaged)?;
        Ok(vault.seal(Purpose::Profile(topup_id), &bytes)?)
    }

    /// Opens what was sealed for this topup.
    pub fn open(vault: &Vault, topup_id: &TopupId, sealed: &[u8]) -> Result<Self, Error> {
        let bytes = vault.open(Purpose::Profile(topup_id), sealed)?;
        let stored: Stored = serde_json::from_slice(&bytes).map_err(|_| VaultError::Damaged)?;
        let code =
            ActivationCode::new(&stored.smdp, &stored.activate_code).map_err(|_| VaultError::Damaged)?;
        Ok(Self {
            code,
            expired_date: stored.expired_date,
        })
    }
}
