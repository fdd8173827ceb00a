//! Settings that the services share.

use clap::{ArgAction, Args};
use secrecy::{ExposeSecret, SecretString};
use signing::qr::Keys;
use url::Url;

use crate::{
    dns::NameServers,
    guard::{self, Guard, Networks, Ports},
};

/// The addresses and ports that webhooks may go to.
#[derive(Args, Clone, Debug, Default)]
pub struct GuardConfig {
    /// Private networks that webhooks may go to, such as `10.1.0.0/16`, separated by commas
    #[arg(long, env = "WEBHOOK_ALLOW", default_value = "", hide_default_value = true, value_parser = Networks::parse)]
    pub webhook_allow: Networks,
    /// Networks that webhooks never go to, such as the operator's own public ones, separated by commas
    #[arg(long, env = "WEBHOOK_DENY", default_value = "", hide_default_value = true, value_parser = Networks::parse)]
    pub webhook_deny: Networks,
    /// Ports and ranges of ports that webhooks may go to, separated by commas
    #[arg(long, env = "WEBHOOK_PORTS", default_value = guard::PORTS, value_parser = Ports::parse)]
    pub webhook_ports: Ports,
    /// Name servers for endpoints instead of those in `/etc/resolv.conf`: addresses, with a port if it is
    /// not 53, separated by commas
    #[arg(long, env = "WEBHOOK_RESOLVERS", default_value = "", hide_default_value = true, value_parser = NameServers::parse)]
    pub webhook_resolvers: NameServers,
}

impl GuardConfig {
    pub fn guard(self) -> Guard {
        Guard::new(self.webhook_allow, self.webhook_deny, self.webhook_ports)
    }
}

/// The schemes of live partners' webhook URLs.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct HttpConfig {
    /// Live partners may set `http://` webhook URLs, which show their eSIMs to the network
    #[arg(long, env = "WEBHOOK_HTTP_LIVE", action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub webhook_http_live: bool,
}

/// The MAC in the URLs of QR pictures.
#[derive(Args, Clone, Debug, Default)]
pub struct QrConfig {
    /// Keys for a MAC in `qrcode_img_url`, Base64 of at least 32 bytes each, separated by blanks or commas; the first one
    /// makes it, all of them check it [default: no MAC]
    #[arg(long, env = "QR_KEYS", hide_env_values = true)]
    pub qr_keys: Option<SecretString>,
}

impl QrConfig {
    /// The keys; none if the setting is missing or empty. The error names the setting.
    pub fn keys(&self) -> Result<Keys, String> {
        let given = self.qr_keys.as_ref().filter(|keys| !keys.expose_secret().is_empty());
        given.map_or_else(|| Ok(Keys::default()), Keys::parse).map_err(|error| format!("QR_KEYS: {error}"))
    }
}

/// Parses the public base URL of ingress and removes its final slash.
pub fn public_url(text: &str) -> Result<String, String> {
    let url: Url = text.parse().map_err(|error| format!("{error}; write it like `https://esim.example.com`"))?;
    let plain = url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
    if plain && matches!(url.scheme(), "http" | "https") {
        Ok(url.as_str().trim_end_matches('/').to_owned())
    } else {
        Err("write it like `https://esim.example.com`".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_public_url_is_a_plain_base() {
        for (text, base) in [
            ("https://esim.example.com/", "https://esim.example.com"),
            ("http://127.0.0.1:18080", "http://127.0.0.1:18080"),
            ("https://example.com/esim/", "https://example.com/esim"),
        ] {
            assert_eq!(public_url(text).as_deref(), Ok(base));
        }
        for bad in ["", "a.b", "ftp://a.b", "https://a.b/?q", "https://a.b/#f", "https://u@a.b"] {
            assert!(public_url(bad).is_err(), "{bad}");
        }
    }
}
