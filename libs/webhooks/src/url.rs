//! The URL of a partner's webhook endpoint, as ingress and esimctl accept and store it.

use std::{fmt, str::FromStr};

use url::Url;

/// The maximum length of a URL in bytes.
const LONGEST: usize = 2048;

/// An `http` or `https` URL, exactly as it was given. It has no user or password and no fragment.
/// Whether its host may be reached is not decided here: see [`crate::guard`].
///
/// Two of them are equal if requests to them are the same ones, in whatever spelling they were
/// given.
#[derive(Clone, Debug)]
pub struct WebhookUrl(String);

impl PartialEq for WebhookUrl {
    fn eq(&self, other: &Self) -> bool {
        self.is(&other.0)
    }
}

impl Eq for WebhookUrl {}

impl WebhookUrl {
    /// Whether a stored URL leads to the same place: the case of its scheme and host, a default
    /// port, an empty path, dots in the path and the spelling of escaped characters make no
    /// difference.
    pub fn is(&self, stored: &str) -> bool {
        self.0 == stored || normal(&self.0).is_some_and(|url| normal(stored) == Some(url))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The parsed URL. It is never `None`, because the text was parsed before.
    pub fn parsed(&self) -> Option<Url> {
        self.0.parse().ok()
    }
}

/// The spelling of a URL by which it is compared.
fn normal(url: &str) -> Option<String> {
    let mut url: Url = url.parse().ok()?;
    // A name with a dot at its end is the same name.
    let host = url.host_str()?;
    if let Some(host) = host.strip_suffix('.').map(str::to_owned) {
        url.set_host(Some(&host)).ok()?;
    }
    let mut plain = Vec::new();
    let mut rest = url.as_str().as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| *first == b'%');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match byte {
            // These mean the same with and without an escape (RFC 3986, 2.3).
            Some(byte) if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => {
                plain.push(byte);
            }
            Some(byte) => plain.extend(format!("%{byte:02X}").bytes()),
            None => plain.push(*first),
        }
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(plain).ok()
}

/// Why a text is not a webhook URL, and how to correct it. The message does not repeat the text,
/// because it may contain a password.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadWebhookUrl {
    #[error("it is {0} bytes long and {LONGEST} are allowed; use a shorter one")]
    TooLong(usize),
    #[error("it has a blank or control character; remove it or percent-encode it")]
    Blank,
    #[error("it is not a URL ({0}); write it like https://example.com/webhooks")]
    NoUrl(#[from] url::ParseError),
    #[error(
        "it does not start with http:// or https://; write it like https://example.com/webhooks"
    )]
    Scheme,
    #[error(
        "it holds a user name or password; remove it, the endpoint can check webhook-signature instead"
    )]
    Credentials,
    #[error("it has a fragment, which is never sent; remove the part from # on")]
    Fragment,
}

impl FromStr for WebhookUrl {
    type Err = BadWebhookUrl;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() > LONGEST {
            return Err(BadWebhookUrl::TooLong(text.len()));
        }
        // The parser would silently remove some of these characters, and we would store another URL
        // than the one that we checked.
        if text
            .chars()
            .any(|character| character.is_whitespace() || character.is_control())
        {
            return Err(BadWebhookUrl::Blank);
        }
        let url: Url = text.parse()?;
        // The text is checked and not only the parsed scheme, because the parser also accepts
        // `http:host` and `http:\\host`.
        let scheme = text
            .split_once("://")
            .map(|(scheme, _)| scheme.to_ascii_lowercase());
        if !matches!(scheme.as_deref(), Some("http" | "https")) {
            return Err(BadWebhookUrl::Scheme);
        }
        // The parser skips further slashes, so that `http:///hooks` would name the host `hooks`.
        if text
            .split_once("://")
            .is_some_and(|(_, rest)| rest.starts_with(['/', '\\']))
        {
            return Err(BadWebhookUrl::NoUrl(url::ParseError::EmptyHost));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(BadWebhookUrl::Credentials);
        }
        if url.fragment().is_some() {
            return Err(BadWebhookUrl::Fragment);
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for WebhookUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<WebhookUrl, BadWebhookUrl> {
        text.parse()
    }

    #[test]
    fn good_ones_are_kept_as_given() {
        for good in [
            "https://example.com",
            "https://example.com/hooks?a=1&b=%20",
            "HTTP://Example.com:8080/Hooks",
            "http://127.0.0.1:9000/webhooks",
            "http://[::1]:9000/",
            "https://example.com/@user",
        ] {
            assert_eq!(parse(good).unwrap().as_str(), good);
        }
    }

    #[test]
    fn two_spellings_of_one_place_are_equal() {
        let url = parse("https://example.com/a-b/%2F?q=%20").unwrap();
        for same in [
            "HTTPS://EXAMPLE.com/a-b/%2F?q=%20",
            "https://example.com:443/a-b/%2F?q=%20",
            "https://example.com./a-b/%2f?q=%20",
            "https://example.com/x/../a-b/%2F?q=%20",
            "https://example.com/%61%2Db/%2F?q=%20",
        ] {
            assert!(url.is(same), "{same}");
            assert_eq!(parse(same).unwrap(), url);
        }
        for other in [
            "http://example.com/a-b/%2F?q=%20",
            "https://example.com:8443/a-b/%2F?q=%20",
            "https://example.com/A-b/%2F?q=%20",
            "https://example.com/a-b//?q=%20",
            "https://example.com/a-b/%2F/?q=%20",
            "https://example.com/a-b/%2F",
            "nonsense",
        ] {
            assert!(!url.is(other), "{other}");
        }
        assert!(
            parse("https://example.com")
                .unwrap()
                .is("https://Example.com/")
        );
    }

    #[test]
    fn bad_ones_are_refused_with_a_reason() {
        use BadWebhookUrl::{Blank, Credentials, Fragment, NoUrl, Scheme};
        use url::ParseError::{EmptyHost, InvalidPort, RelativeUrlWithoutBase};
        for (bad, reason) in [
            ("", NoUrl(RelativeUrlWithoutBase)),
            ("example.com/hooks", NoUrl(RelativeUrlWithoutBase)),
            ("https://", NoUrl(EmptyHost)),
            ("https://?a", NoUrl(EmptyHost)),
            ("http:///x", NoUrl(EmptyHost)),
            ("https:////example.com/hooks", NoUrl(EmptyHost)),
            (r"https://\example.com", NoUrl(EmptyHost)),
            ("https://example.com:99999", NoUrl(InvalidPort)),
            ("ftp://example.com", Scheme),
            ("http:example.com", Scheme),
            (r"http:\\example.com", Scheme),
            ("file:///etc/passwd", Scheme),
            ("https://user@example.com", Credentials),
            ("https://:secret@example.com", Credentials),
            ("https://example.com/#part", Fragment),
            ("https://example.com/#", Fragment),
            (" https://example.com", Blank),
            ("https://exa\nmple.com", Blank),
        ] {
            assert_eq!(parse(bad).unwrap_err(), reason, "{bad:?}");
        }
    }

    #[test]
    fn the_length_is_bounded() {
        let url = |length: usize| format!("https://example.com/{}", "a".repeat(length - 20));
        assert!(parse(&url(2048)).is_ok());
        assert_eq!(parse(&url(2049)).unwrap_err(), BadWebhookUrl::TooLong(2049));
    }
}
