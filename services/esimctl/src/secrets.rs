//! Creates keys and secrets for partners from the operating system's random source.

use anyhow::Context;
use rand::{TryRng, rngs::SysRng};
use signing::{SecretKey, webhook};

/// Creates an access key and a secret key.
pub fn new_keys() -> anyhow::Result<(String, SecretKey)> {
    let access_key = format!("ak_{}", hex::encode(random::<12>()?));
    Ok((access_key, SecretKey::from_bytes(random::<32>()?.into())?))
}

/// Creates a webhook secret of 32 bytes.
pub fn new_webhook_secret() -> anyhow::Result<webhook::Secret> {
    Ok(webhook::Secret::from_bytes(random::<32>()?.into())?)
}

fn random<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut bytes = [0; N];
    SysRng
        .try_fill_bytes(&mut bytes)
        .context("cannot read random bytes from the operating system")?;
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
