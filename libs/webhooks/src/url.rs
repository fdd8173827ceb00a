//! The URL of a partner's webhook endpoint, as ingress and esimctl accept and store it.

use std::{fmt, str::FromStr};

use url::Url;

/// The maximum length of a URL in bytes.
const LONGEST: usize = 2048;

/// An `http` or `https` URL, exactly as it was given. It has no user or password and no fragment.
/// Whether its host may be reached is not decided here: see [`crate::guard`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookUrl(String);

impl WebhookUrl {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The parsed URL. It is never `None`, because the text was parsed before.
    pub fn parsed(&self) -> Option<Url> {
        self.0.parse().ok()
    }
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
            assert_eq!(parse(bad), Err(reason), "{bad:?}");
        }
    }

    #[test]
    fn the_length_is_bounded() {
        let url = |length: usize| format!("https://example.com/{}", "a".repeat(length - 20));
        assert!(parse(&url(2048)).is_ok());
        assert_eq!(parse(&url(2049)), Err(BadWebhookUrl::TooLong(2049)));
    }
}
