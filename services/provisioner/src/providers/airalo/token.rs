//! The token that each call to Airalo carries. It lasts 24 hours by the text of its documents, and
//! Airalo hands out at most three tokens a minute (its page on rates, September 2026). So one token
//! is kept for all calls, one task at a time fetches a new one, and a failed fetch is repeated
//! after a while only.

use std::time::{Duration, Instant};

use reqwest::{
    StatusCode,
    header::{self, HeaderMap, HeaderValue},
};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use tokio::sync::Mutex;

use super::wire::is_foreign;
use crate::providers::{
    http::{Call, CallBody, Http, parse},
    provider::Trouble,
};

const TOKEN: &str = "/v2/token";
/// The longest time for which a token is used. It lasts 24 hours by the text of its page on tokens
/// (September 2026), although `expires_in` says a year in the examples.
const LONGEST: Duration = Duration::from_hours(23);
/// How long before its end a token is no longer used, so that no call arrives after it.
const SPARE: Duration = Duration::from_mins(1);
/// The shortest time between two requests for a token, of which three a minute are allowed (its
/// page on rates, September 2026; five in 2024).
const PAUSE: Duration = Duration::from_secs(21);

/// A token as a call uses it.
pub(super) struct AiraloToken {
    /// `Bearer …`
    pub(super) header: HeaderValue,
    /// The token was fetched for this call, so it has not been good before.
    pub(super) is_new: bool,
}

struct Kept {
    header: HeaderValue,
    until: Instant,
}

#[derive(Default)]
struct State {
    kept: Option<Kept>,
    /// When a token was asked for last.
    asked: Option<Instant>,
}

pub(super) struct Tokens {
    client_id: String,
    client_secret: SecretString,
    state: Mutex<State>,
}

#[derive(Deserialize)]
struct Reply {
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    access_token: String,
    expires_in: u64,
}

impl Tokens {
    pub(super) fn new(client_id: String, client_secret: SecretString) -> Self {
        Self {
            client_id,
            client_secret,
            state: Mutex::default(),
        }
    }

    /// The kept token, or a new one. If it fails, the call that needs it was certainly not sent.
    pub(super) async fn get(&self, http: &Http) -> Result<AiraloToken, Trouble> {
        let mut state = self.state.lock().await;
        let now = Instant::now();
        if let Some(kept) = state.kept.as_ref().filter(|kept| kept.until > now) {
            return Ok(AiraloToken {
                header: kept.header.clone(),
                is_new: false,
            });
        }
        let pause = state
            .asked
            .and_then(|asked| PAUSE.checked_sub(now.saturating_duration_since(asked)));
        if let Some(after) = pause {
            return Err(Trouble::Waiting {
                after,
                reason: "a token was asked for a moment ago; the provider allows few".into(),
            });
        }
        // This call comes in addition to the one that needs the token.
        http.turn().await;
        let now = Instant::now();
        state.asked = Some(now);
        let kept = self.fetch(http, now).await?;
        let header = kept.header.clone();
        state.kept = Some(kept);
        Ok(AiraloToken {
            header,
            is_new: true,
        })
    }

    /// Forgets a token that was denied, unless another call has replaced it already.
    pub(super) async fn forget(&self, token: &AiraloToken) {
        let mut state = self.state.lock().await;
        if state
            .kept
            .as_ref()
            .is_some_and(|kept| kept.header == token.header)
        {
            state.kept = None;
        }
    }

    async fn fetch(&self, http: &Http, now: Instant) -> Result<Kept, Trouble> {
        let form = CallBody::multipart(&[
            ("client_id", &self.client_id),
            ("client_secret", self.client_secret.expose_secret()),
            ("grant_type", "client_credentials"),
        ]);
        let accept = (header::ACCEPT, HeaderValue::from_static("application/json"));
        let call = Call {
            headers: HeaderMap::from_iter([accept]),
            body: Some(form),
            ..Call::post(TOKEN, TOKEN)
        };
        let body = match http.call(call).await {
            Ok((StatusCode::UNPROCESSABLE_ENTITY, _)) => {
                return Err(Trouble::Denied(
                    "the provider gives no token for our client_id and client_secret".into(),
                ));
            }
            Ok((StatusCode::FORBIDDEN, body)) => {
                let said = if is_foreign(&body) {
                    "HTTP 403, code 89: our address is not on the list of the account"
                } else {
                    "the provider denies access (HTTP 403)"
                };
                return Err(Trouble::Denied(said.into()));
            }
            Ok((StatusCode::NOT_FOUND, _)) => return Err(no_token("HTTP 404")),
            Ok((_, body)) => body,
            Err(trouble @ (Trouble::Denied(_) | Trouble::Busy { .. })) => return Err(trouble),
            // Whatever became of this request, the one that needs the token was not sent.
            Err(trouble) => return Err(no_token(trouble.reason())),
        };
        let Reply { data } = parse(&body).map_err(|trouble| no_token(trouble.reason()))?;
        let mut header = HeaderValue::try_from(format!("Bearer {}", data.access_token))
            .map_err(|_| no_token("the token cannot be sent in a header"))?;
        header.set_sensitive(true);
        let lasts = Duration::from_secs(data.expires_in)
            .min(LONGEST)
            .saturating_sub(SPARE);
        Ok(Kept {
            header,
            until: now + lasts,
        })
    }
}

fn no_token(reason: &str) -> Trouble {
    Trouble::NotSent(format!("there is no token: {reason}"))
}
