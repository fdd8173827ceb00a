//! The secret part of an eSIM profile, sealed for storage.
//!
//! The provisioner seals a profile before it is stored. The notifier opens it to send it in a
//! webhook, and ingress to show it to its partner. The sealed text is bound to its topup and to the
//! partner that has ordered it, so it cannot be opened for another one: a row of a delivery that
//! names somebody else's topup shows nothing of it. The ICCID is not part of it: it is stored in
//! plain text, because people search for it, and it installs nothing.

use domain::{ActivationCode, PartnerId, TopupId};
use pg::Result;
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use vault::{Keyring, Purpose, Vault, VaultError};

/// A profile without its ICCID.
#[derive(Clone, PartialEq, Eq)]
pub struct Profile {
    /// The SM-DP+ address and the activation code.
    pub code: ActivationCode,
    /// The expiry date, `YYYY-MM-DD`.
    pub expired_date: String,
}

/// A profile as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedProfile {
    pub sealed: Vec<u8>,
    /// A keyed digest of the SM-DP+ address and the activation code. An index keeps it unique over
    /// all providers, so that no provider's mistake gives one eSIM to two partners. It stays when
    /// the profile is erased, and tells nothing to whom the master key is unknown. `None` for a
    /// code that a provider gives to all eSIMs of its test mode.
    pub code_digest: Option<Vec<u8>>,
}

impl SealedProfile {
    /// The same for a code that other eSIMs may have, too.
    #[must_use]
    pub fn with_shared_code(self) -> Self {
        Self {
            code_digest: None,
            ..self
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Stored {
    partner_id: PartnerId,
    smdp: String,
    activate_code: String,
    expired_date: String,
}

impl Profile {
    /// Seals the profile of a topup for the partner that has ordered it.
    pub fn seal(
        &self,
        vault: &Vault,
        partner_id: PartnerId,
        topup_id: &TopupId,
    ) -> Result<SealedProfile> {
        let stored = Stored {
            partner_id,
            smdp: self.code.smdp().to_owned(),
            activate_code: self.code.matching_id().to_owned(),
            expired_date: self.expired_date.clone(),
        };
        let bytes = serde_json::to_vec(&stored).map_err(|_| VaultError::Damaged)?;
        Ok(SealedProfile {
            sealed: vault.seal(Purpose::Profile(topup_id), &bytes)?,
            code_digest: Some(self.code_digest(vault)?),
        })
    }

    /// The digest under the present master key, see [`SealedProfile`].
    pub fn code_digest(&self, vault: &Vault) -> Result<Vec<u8>, VaultError> {
        vault.digest(Keyring::Profiles, self.code.identity().as_bytes())
    }

    /// Opens the profile of a topup for its partner. For any other partner it counts as damaged.
    pub fn open(
        vault: &Vault,
        partner_id: PartnerId,
        topup_id: &TopupId,
        sealed: &[u8],
    ) -> Result<Self> {
        let (profile, owner) = Self::unseal(vault, topup_id, sealed)?;
        if owner != partner_id {
            return Err(VaultError::Damaged.into());
        }
        Ok(profile)
    }

    /// Opens the profile of a topup of any partner, for operators and for a new master key.
    pub fn open_of_anybody(vault: &Vault, topup_id: &TopupId, sealed: &[u8]) -> Result<Self> {
        Ok(Self::unseal(vault, topup_id, sealed)?.0)
    }

    /// The profile, and the partner that it was sealed for.
    fn unseal(vault: &Vault, topup_id: &TopupId, sealed: &[u8]) -> Result<(Self, PartnerId)> {
        let bytes = vault.open(Purpose::Profile(topup_id), sealed)?;
        let stored: Stored = serde_json::from_slice(&bytes).map_err(|_| VaultError::Damaged)?;
        let code = ActivationCode::new(&stored.smdp, &stored.activate_code)
            .map_err(|_| VaultError::Damaged)?;
        let profile = Self {
            code,
            expired_date: stored.expired_date,
        };
        Ok((profile, stored.partner_id))
    }
}

/// Checks that the vault opens at least one of the ten newest profiles whose keys it has. A missing
/// key is not an error here, because a program must be able to start without the keys of old
/// profiles. Deliveries that need such a key fail one by one.
pub async fn check_keys(connection: &mut PgConnection, vault: &Vault) -> Result<()> {
    // The newest profiles are among the newest eSIMs, which have the largest topup ids. Only 1,000
    // of them are read, because profiles may be missing or erased and the statement runs at each
    // start. What sorts behind the digits is no topup id, and one such row must not keep every
    // stage from starting.
    let query = sqlx::query!(
        r#"SELECT topup_id, profile AS "profile!"
           FROM (SELECT topup_id, profile FROM esims WHERE topup_id < ':' ORDER BY topup_id DESC LIMIT 1000) newest
           WHERE profile IS NOT NULL ORDER BY topup_id DESC LIMIT 10"#
    );
    let mut failure = Ok(());
    for row in query.fetch_all(connection).await? {
        let Ok(topup_id) = row.topup_id.parse::<TopupId>() else {
            tracing::error!(
                topup.id = row.topup_id,
                "an eSIM is left out, because its id is not a topup id"
            );
            continue;
        };
        match vault.open(Purpose::Profile(&topup_id), &row.profile) {
            Ok(_) => return Ok(()),
            Err(VaultError::MissingKey(_)) => {}
            Err(error) => failure = Err(error.into()),
        }
    }
    failure
}
