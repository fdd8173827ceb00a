//! The HTTP client of the tests.

use anyhow::Result;
use std::time::Duration;

/// A client without proxy and redirects, with 30 s for a whole exchange.
pub fn client() -> Result<reqwest::Client> {
    // Fails only if a provider is already installed, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(Duration::from_secs(30))
        .build()?;
    Ok(client)
}
