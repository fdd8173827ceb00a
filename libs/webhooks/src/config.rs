//! Settings about webhooks that several programs have. Each program flattens the groups that it
//! needs, so that a setting has the same name, default and help everywhere.

use clap::{ArgAction, Args};
use secrecy::{ExposeSecret, SecretString};
use signing::qr::QrKeys;
use url::Url;

use crate::{
    dns::NameServers,
    guard::{self, Guard, Networks, Ports},
    mail::EmailAddress,
};

/// The addresses and ports that webhooks may go to. Ingress checks new URLs with these settings,
/// and the notifier checks every connection, so both need the same values.
#[derive(Args, Clone, Debug, Default)]
pub struct GuardConfig {
    /// Private networks that webhooks may go to, separated by commas
    ///
    /// By default webhooks only go to public addresses, because partners choose their URLs and must
    /// not reach the operator's own network with them. List a network such as `10.1.0.0/16`, or a
    /// single address, only if every partner may reach it.
    #[arg(long, env = "WEBHOOK_ALLOW", default_value = "", hide_default_value = true, value_parser = Networks::parse)]
    pub webhook_allow: Networks,
    /// Networks that webhooks never go to, separated by commas
    ///
    /// List the operator's own public networks here, so that partners cannot reach services there
    /// that trust their neighbours. This setting wins over `WEBHOOK_ALLOW`.
    #[arg(long, env = "WEBHOOK_DENY", default_value = "", hide_default_value = true, value_parser = Networks::parse)]
    pub webhook_deny: Networks,
    /// Ports that webhooks may go to: ports and ranges of ports, separated by commas
    ///
    /// The default leaves out the ports below 1024 except those of HTTP and HTTPS, because other
    /// services such as SSH or SMTP listen there.
    #[arg(long, env = "WEBHOOK_PORTS", default_value = guard::PORTS, value_parser = Ports::parse)]
    pub webhook_ports: Ports,
    /// Name servers for the host names of endpoints, separated by commas
    ///
    /// An address may have a port, as in `10.0.0.53:5353`; otherwise it is 53. By default the
    /// servers in `/etc/resolv.conf` are asked. Set this if your internal names are secret, because
    /// a partner that sets a URL learns whether its name has an address, and whether that address
    /// is private.
    #[arg(long, env = "WEBHOOK_RESOLVERS", default_value = "", hide_default_value = true, value_parser = NameServers::parse)]
    pub webhook_resolvers: NameServers,
}

impl GuardConfig {
    pub fn guard(self) -> Guard {
        Guard::new(self.webhook_allow, self.webhook_deny, self.webhook_ports)
    }
}

/// Whether live partners may have webhook URLs without TLS.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct HttpConfig {
    /// Allow live partners to set webhook URLs that begin with `http://`
    ///
    /// Their eSIMs are then visible to everybody on the network path, and whoever sees an
    /// activation code can use it. Therefore the default is false. URLs that are already stored go
    /// on working either way.
    #[arg(long, env = "WEBHOOK_HTTP_LIVE", action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub webhook_http_live: bool,
}

/// The keys for the MAC in the URLs of QR pictures. The notifier makes it and ingress checks it.
#[derive(Args, Clone, Debug, Default)]
pub struct QrConfig {
    /// Keys for the MAC in `qrcode_img_url`, separated by blanks or commas [default: no MAC]
    ///
    /// Each key is the Base64 of at least 32 bytes. The first one makes the MAC, and a MAC by any
    /// of them is accepted, so that a key can be replaced while URLs by the old one are still in
    /// use. With keys, ingress draws only pictures whose URLs this system has sent. Without keys,
    /// anybody can have a picture of any activation code drawn.
    #[arg(long, env = "QR_KEYS", hide_env_values = true)]
    pub qr_keys: Option<SecretString>,
}

impl QrConfig {
    /// Parses the keys. There are none if the setting is missing or empty. The error names the
    /// setting and does not repeat its value.
    pub fn keys(&self) -> Result<QrKeys, String> {
        let given = self
            .qr_keys
            .as_ref()
            .filter(|keys| !keys.expose_secret().is_empty());
        given
            .map_or_else(|| Ok(QrKeys::default()), QrKeys::parse)
            .map_err(|error| format!("QR_KEYS: {error}"))
    }
}

/// Whether notices can go to e-mail addresses.
#[derive(Args, Clone, Debug, Default)]
pub struct MailConfig {
    /// The address from which notices are mailed, such as `eSIM service <noreply@example.com>`
    /// [default: no mails]
    ///
    /// Ingress offers partners e-mail addresses for their notices only if this is set, and shows
    /// them the sender, so that they can let its mails pass. The notifier sends the mails through
    /// `SMTP_URL`, so set both there, and the same sender here.
    #[arg(long, env = "MAIL_FROM", value_parser = sender)]
    pub mail_from: Option<String>,
}

impl MailConfig {
    /// The sender; `None` if notices can only go to URLs.
    pub fn sender(&self) -> Option<&str> {
        self.mail_from.as_deref().filter(|from| !from.is_empty())
    }
}

/// Parses a sender. An empty one counts as none.
fn sender(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Ok(String::new());
    }
    let (name, address) = match text.trim().strip_suffix('>') {
        None => ("", text.trim()),
        Some(text) => text
            .split_once('<')
            .ok_or("write it like `eSIM service <noreply@example.com>`")?,
    };
    let name = name.trim();
    let allowed =
        |character: char| character.is_ascii_alphanumeric() || " .,'&()-".contains(character);
    if !name.chars().all(allowed) {
        return Err(
            "the name before the address may consist of ASCII letters, digits, blanks and .,'&()-"
                .into(),
        );
    }
    let address: EmailAddress = address
        .parse()
        .map_err(|error| format!("the address of the sender cannot be used: {error}"))?;
    Ok(if name.is_empty() {
        address.as_str().to_owned()
    } else {
        format!("{name} <{}>", address.as_str())
    })
}

/// The addresses from which webhooks come.
#[derive(Args, Clone, Debug, Default)]
pub struct SourceConfig {
    /// Public addresses and networks from which this system sends webhooks, separated by commas
    ///
    /// Partners see them in their account and in the guide, so that they can let them through their
    /// firewalls. When they change, the notifier tells each partner that has a verified channel for
    /// notices. Give ingress and the notifiers the same list. By default partners are told to ask.
    #[arg(long, env = "SOURCE_ADDRESSES", default_value = "", hide_default_value = true, value_parser = Networks::parse)]
    pub source_addresses: Networks,
}

/// Parses the public base URL of ingress and removes its final slash, so that paths can be appended
/// to it.
pub fn public_url(text: &str) -> Result<String, String> {
    let url: Url = text
        .parse()
        .map_err(|error| format!("{error}; write it like `https://esim.example.com`"))?;
    let plain = url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
    if plain && matches!(url.scheme(), "http" | "https") {
        Ok(url.as_str().trim_end_matches('/').to_owned())
    } else {
        Err(
            "it must be an http or https URL without user, query and fragment, \
             such as `https://esim.example.com`"
                .into(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sender_is_an_address_with_or_without_a_name() {
        for (text, kept) in [
            ("", ""),
            ("noreply@example.com", "noreply@example.com"),
            ("<noreply@example.com>", "noreply@example.com"),
            (
                " eSIM service  <noreply@Example.com>",
                "eSIM service <noreply@example.com>",
            ),
        ] {
            assert_eq!(sender(text).as_deref(), Ok(kept));
        }
        for bad in [
            "noreply",
            "a@b.example>",
            "\"x\" <a@b.example>",
            "é <a@b.example>",
        ] {
            assert!(sender(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_public_url_is_a_plain_base() {
        for (text, base) in [
            ("https://esim.example.com/", "https://esim.example.com"),
            ("http://127.0.0.1:18080", "http://127.0.0.1:18080"),
            ("https://example.com/esim/", "https://example.com/esim"),
        ] {
            assert_eq!(public_url(text).as_deref(), Ok(base));
        }
        for bad in [
            "",
            "a.b",
            "ftp://a.b",
            "https://a.b/?q",
            "https://a.b/#f",
            "https://u@a.b",
        ] {
            assert!(public_url(bad).is_err(), "{bad}");
        }
    }
}
