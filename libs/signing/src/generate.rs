//! Makes new keys and webhook secrets for partners. The bytes come from the operating system's
//! random source.

use rand::{TryRng, rngs::SysRng};

use crate::{SecretKey, webhook};

/// The operating system gave no random bytes, so no key was made.
#[derive(Debug, thiserror::Error)]
#[error("cannot read random bytes from the operating system: {0}")]
pub struct NotGenerated(<SysRng as TryRng>::Error);

/// Makes an access key, which is public, and a secret key of 32 bytes.
pub fn keys() -> Result<(String, SecretKey), NotGenerated> {
    let access_key = format!("ak_{}", hex::encode(random::<12>()?));
    Ok((access_key, SecretKey(random::<32>()?.to_vec().into())))
}

/// Makes a webhook secret of 32 bytes.
pub fn webhook_secret() -> Result<webhook::Secret, NotGenerated> {
    Ok(webhook::Secret(SecretKey(random::<32>()?.to_vec().into())))
}

pub(crate) fn random<const N: usize>() -> Result<[u8; N], NotGenerated> {
    let mut bytes = [0; N];
    SysRng.try_fill_bytes(&mut bytes).map_err(NotGenerated)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bytes_differ() {
        assert_ne!(random::<32>().unwrap(), random::<32>().unwrap());
    }
}
