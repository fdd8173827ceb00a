//! The cookies of the console.

use axum::http::{HeaderMap, HeaderValue, header};
use secrecy::SecretString;

use crate::App;

/// The value of a cookie. One that is too long to be ours is not looked at.
pub(crate) fn cookie(headers: &HeaderMap, name: &str, longest: usize) -> Option<String> {
    let lines = headers.get_all(header::COOKIE).into_iter();
    let mut pairs = lines
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().split_once('='));
    let (_, value) = pairs.find(|(known, _)| *known == name)?;
    (!value.is_empty() && value.len() <= longest).then(|| value.to_owned())
}

/// The secret in a cookie.
pub(crate) fn secret(headers: &HeaderMap, name: &str) -> Option<SecretString> {
    Some(cookie(headers, name, 200)?.into())
}

/// A cookie that scripts cannot read. `how` begins with the value of `SameSite`.
pub(crate) fn set_cookie(app: &App, name: &str, value: &str, how: &str) -> HeaderValue {
    let secure = if app.settings().tls { "; Secure" } else { "" };
    let text = format!("{name}={value}; Path=/; HttpOnly; SameSite={how}{secure}");
    HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static("console="))
}

impl App {
    /// The name of the session's cookie. Browsers accept the prefix only from this host by TLS, so
    /// that a neighbouring host cannot set one.
    pub(crate) fn session_cookie(&self) -> &'static str {
        if self.settings().tls {
            "__Host-console"
        } else {
            "console"
        }
    }

    /// The name of the cookie of a sign-in by the OpenID provider that is under way.
    pub(crate) fn attempt_cookie(&self) -> &'static str {
        if self.settings().tls {
            "__Host-console-openid"
        } else {
            "console-openid"
        }
    }

    /// The name of the cookie that forms before sign-in are bound to.
    pub(crate) fn guest_cookie(&self) -> &'static str {
        if self.settings().tls {
            "__Host-console-guest"
        } else {
            "console-guest"
        }
    }
}
