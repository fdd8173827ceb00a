//! The sentence that a page shows once: what an action has led to.
//!
//! After an action the browser is sent to a page by a 303, so that reloading it repeats nothing.
//! What came of the action goes along in a cookie of this console, which the next page shows and
//! removes. A part of the URL would do without a cookie, but then anybody could write a link to a
//! page of this console that says something untrue.

use axum::{
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Redirect, Response},
};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::{App, cookies};

/// The maximum number of bytes of the cookie. A longer sentence is cut.
const LONGEST: usize = 1_500;

impl App {
    fn said_cookie(&self) -> &'static str {
        if self.settings().tls {
            "__Host-console-said"
        } else {
            "console-said"
        }
    }
}

/// The answer to an action that was carried out: the browser asks for a page, which shows the
/// sentence and what the action has changed.
pub(crate) fn after(app: &App, path: &str, text: &str) -> Response {
    let mut response = Redirect::to(path).into_response();
    let text = format!("{text} It is in the record of actions.");
    let headers = response.headers_mut();
    headers.append(header::SET_COOKIE, cookie(app, &text));
    response
}

/// The cookie with a sentence for the next page.
fn cookie(app: &App, text: &str) -> HeaderValue {
    let mut value = String::new();
    for one in text.chars() {
        let more = utf8_percent_encode(one.encode_utf8(&mut [0; 4]), NON_ALPHANUMERIC).to_string();
        if value.len() + more.len() > LONGEST {
            break;
        }
        value.push_str(&more);
    }
    cookies::set_cookie(app, app.said_cookie(), &value, "Lax; Max-Age=60")
}

/// The sentence that came with a request.
pub(crate) fn of(headers: &HeaderMap, app: &App) -> Option<String> {
    let value = cookies::cookie(headers, app.said_cookie(), LONGEST)?;
    let text = percent_decode_str(&value).decode_utf8_lossy();
    Some(text.into_owned())
}

/// Removes the sentence from the browser, after a page has shown it.
pub(crate) fn forget(app: &App, headers: &mut HeaderMap) {
    let gone = cookies::set_cookie(app, app.said_cookie(), "", "Lax; Max-Age=0");
    headers.append(header::SET_COOKIE, gone);
}
