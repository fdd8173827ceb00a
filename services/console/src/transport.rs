//! Which URLs may carry secrets, and whose certificates are trusted.

use std::{fmt::Display, path::Path};

use reqwest::{Certificate, ClientBuilder};
use runtime::{config::BadSetting, files};
use url::{Host, Url};

/// Whether nobody on the way can read what is sent to this URL: by TLS, or on this machine only.
pub(crate) fn is_private_transport(url: &Url) -> bool {
    let loopback = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    url.scheme() == "https" || (url.scheme() == "http" && loopback)
}

/// A client that trusts the authority of `CA_FILE`, too.
pub(crate) fn trusting(
    client: ClientBuilder,
    ca_file: Option<&Path>,
) -> anyhow::Result<ClientBuilder> {
    let Some(path) = ca_file else {
        return Ok(client);
    };
    let wrong =
        |error: &dyn Display| BadSetting::error(format!("CA_FILE={}: {error}", path.display()));
    let pem = files::read(path).map_err(|error| wrong(&format!("{error:#}")))?;
    let certificates =
        Certificate::from_pem_bundle(pem.as_bytes()).map_err(|error| wrong(&error))?;
    if certificates.is_empty() {
        return Err(wrong(&"it holds no PEM certificate"));
    }
    Ok(client.tls_certs_merge(certificates))
}
