//! Settings that the services share.

use clap::Args;
use url::Url;

use crate::guard::{self, Guard, Networks, Ports};

/// Where webhooks may go.
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
}

impl GuardConfig {
    /// The guard with these settings.
    pub fn guard(self) -> Guard {
        Guard::new(self.webhook_allow, self.webhook_deny, self.webhook_ports)
    }
}

/// Parses the public base URL of ingress and removes its final slash.
pub fn public_url(text: &str) -> Result<String, String> {
    let url: Url = text
        .parse()
        .map_err(|error| format!("{error}; write it like `https://esim.example.com`"))?;
    let plain = url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
    if plain && matches!(url.scheme(), "http" | "https") {
        Ok(url.as_str().trim_end_matches('/').to_owned())
    } else {
        Err("write it like `https://esim.example.com`".into())
    }
}
