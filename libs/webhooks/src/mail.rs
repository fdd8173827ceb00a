//! The e-mail address that a partner names for notices, as ingress accepts and stores it and the
//! notifier sends to it.
//!
//! Guarantee: an [`EmailAddress`] is plain ASCII without blanks, quotes, control characters or a
//! literal IP address. So it can stand in a header and in a command of SMTP as it is, and it names
//! a mail domain and not a machine of our own network. Some exotic addresses that the standards
//! allow are refused, because nobody gives them to a machine for its notices.

use std::{fmt, str::FromStr};

/// The maximum length of an address, which SMTP sets.
const LONGEST: usize = 254;
/// The maximum length of the part before the `@`.
const LONGEST_LOCAL: usize = 64;
/// The maximum length of one label of a domain.
const LONGEST_LABEL: usize = 63;
/// The scheme under which the target of an endpoint is stored if it is an address.
const SCHEME: &str = "mailto:";

/// An e-mail address. Its domain is in lowercase. It is personal data of the partner's staff, so
/// neither logs nor errors show it.
#[derive(Clone, PartialEq, Eq)]
pub struct EmailAddress {
    text: String,
    /// The index of the `@`.
    at: usize,
}

/// Why a text is not accepted as an e-mail address. The message does not repeat the text.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadEmailAddress {
    #[error("it is longer than {LONGEST} characters")]
    TooLong,
    #[error("it must have the form name@example.com, without a display name")]
    Form,
    #[error(
        "the part before the @ may have up to {LONGEST_LOCAL} letters, digits and the characters !#$%&'*+-/=?^_`{{|}}~, and single dots between them"
    )]
    Local,
    #[error(
        "the part after the @ must be a domain name such as example.com; write an international one in its xn-- form"
    )]
    Domain,
}

impl EmailAddress {
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The part before the `@`.
    pub fn local(&self) -> &str {
        &self.text[..self.at]
    }

    /// The part after the `@`.
    pub fn domain(&self) -> &str {
        &self.text[self.at + 1..]
    }

    /// The address as the target of an endpoint is stored.
    pub fn to_target(&self) -> String {
        format!("{SCHEME}{}", self.text)
    }

    /// The address of a stored target; `None` if the target is a URL.
    pub fn of_target(target: &str) -> Option<Self> {
        target.strip_prefix(SCHEME)?.parse().ok()
    }
}

/// Whether a stored target is an e-mail address.
pub fn is_mail(target: &str) -> bool {
    target.starts_with(SCHEME)
}

impl fmt::Debug for EmailAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EmailAddress([REDACTED])")
    }
}

/// A character of a part between two dots, before the `@`.
fn is_local(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~".contains(&byte)
}

fn is_label(label: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=LONGEST_LABEL).contains(&label.len())
        && label.bytes().all(inner)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

impl FromStr for EmailAddress {
    type Err = BadEmailAddress;

    fn from_str(text: &str) -> Result<Self, BadEmailAddress> {
        if text.len() > LONGEST {
            return Err(BadEmailAddress::TooLong);
        }
        let (local, domain) = text.split_once('@').ok_or(BadEmailAddress::Form)?;
        let atoms = |part: &str| !part.is_empty() && part.bytes().all(is_local);
        if local.len() > LONGEST_LOCAL || !local.split('.').all(atoms) {
            return Err(BadEmailAddress::Local);
        }
        let labels: Vec<&str> = domain.split('.').collect();
        // A top-level domain has a letter. Without this, an IPv4 address would pass for a domain.
        let top = labels.last().copied().unwrap_or_default();
        let named = top.bytes().any(|byte| byte.is_ascii_alphabetic());
        if labels.len() < 2 || !named || !labels.iter().copied().all(is_label) {
            return Err(BadEmailAddress::Domain);
        }
        Ok(Self {
            text: format!("{local}@{}", domain.to_ascii_lowercase()),
            at: local.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_addresses_are_kept() {
        for (given, kept) in [
            ("ops@example.com", "ops@example.com"),
            (
                "First.Last+esim@Mail.Example.COM",
                "First.Last+esim@mail.example.com",
            ),
            ("a@xn--bcher-kva.example", "a@xn--bcher-kva.example"),
        ] {
            let address: EmailAddress = given.parse().unwrap();
            assert_eq!(address.as_str(), kept);
            assert_eq!(format!("{}@{}", address.local(), address.domain()), kept);
            let target = address.to_target();
            assert_eq!(EmailAddress::of_target(&target), Some(address.clone()));
            assert!(is_mail(&target) && !format!("{address:?}").contains('@'));
        }
        assert_eq!(
            EmailAddress::of_target("https://example.com/a@b.example"),
            None
        );
    }

    #[test]
    fn what_could_break_a_header_or_name_a_machine_is_refused() {
        use BadEmailAddress::{Domain, Form, Local, TooLong};
        let long_local = format!("{}@example.com", "a".repeat(65));
        let long_label = format!("a@{}.com", "a".repeat(64));
        let long = format!("a@{}com", "a.".repeat(126));
        for (given, reason) in [
            ("", Form),
            ("example.com", Form),
            ("@example.com", Local),
            (".a@example.com", Local),
            ("a..b@example.com", Local),
            ("a b@example.com", Local),
            ("a\r\nBcc: b@example.com", Local),
            ("\"a b\"@example.com", Local),
            ("Ops <ops@example.com>", Local),
            ("ä@example.com", Local),
            (&long_local, Local),
            ("a@", Domain),
            ("a@localhost", Domain),
            ("a@127.0.0.1", Domain),
            ("a@[127.0.0.1]", Domain),
            ("a@example.com ", Domain),
            ("a@example.com\r\n", Domain),
            ("a@b@example.com", Domain),
            ("a@-a.com", Domain),
            ("a@a-.com", Domain),
            ("a@example..com", Domain),
            ("a@example.com.", Domain),
            ("a@exämple.com", Domain),
            ("a@example.com,b@example.com", Domain),
            (&long_label, Domain),
            (&long, TooLong),
        ] {
            assert_eq!(given.parse::<EmailAddress>(), Err(reason), "{given:?}");
        }
    }
}
