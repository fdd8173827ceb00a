//! The way to the OpenID provider and back.

use axum::{
    extract::{FromRequestParts, State},
    http::{StatusCode, header, request::Parts},
    response::{IntoResponse, Redirect, Response},
};
use desk::operator::sessions::{self, NotSignedIn};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use subtle::ConstantTimeEq;

use super::{Guest, SignIn, opened_cookie, refused, signed_in};
use crate::{
    App,
    access::{FormFields, SignInBrowser, cookie, set_cookie},
    openid::{NotNamed, OpenIdAttempt, OpenIdProvider},
    problem::Problem,
    view::local_path,
};

/// The maximum number of bytes of the cookie of an attempt, which holds a secret and a path.
const LONGEST: usize = 2_000;
/// How long a sign-in may take at the provider, in seconds.
const LASTS: u32 = 15 * 60;

/// A sign-in that the provider has sent back.
pub(crate) struct ReturnedSignIn {
    query: FormFields,
    /// What this browser has begun; `None` if another one has, or it was too long ago.
    attempt: Option<OpenIdAttempt>,
    /// The page that was asked for before.
    back: String,
    sender: SignInBrowser,
}

impl FromRequestParts<App> for ReturnedSignIn {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let found = cookie(&parts.headers, app.attempt_cookie(), LONGEST).unwrap_or_default();
        let (secret, back) = found.split_once('.').unwrap_or_default();
        let back = percent_decode_str(back).decode_utf8_lossy();
        Ok(Self {
            query: FormFields::parse(parts.uri.query().unwrap_or_default().as_bytes()),
            attempt: (!secret.is_empty()).then(|| OpenIdAttempt(secret.into())),
            back: local_path(Some(&back)),
            sender: SignInBrowser::of(parts, app),
        })
    }
}

/// Why somebody comes back without being signed in: a sentence, and what kind of failure it is.
struct Failed {
    status: StatusCode,
    /// How it is counted, if it was not counted already.
    outcome: Option<&'static str>,
    sentence: String,
}

impl Failed {
    fn refused(sentence: impl Into<String>) -> Self {
        Self {
            status: StatusCode::FORBIDDEN,
            outcome: Some("refused"),
            sentence: sentence.into(),
        }
    }
}

fn provider(app: &App) -> Result<&OpenIdProvider, Problem> {
    app.provider().ok_or_else(|| {
        Problem::NotFound("This console has no OpenID provider (OIDC_ISSUER).".into())
    })
}

/// Sends the browser to the provider.
pub(crate) async fn begin(State(app): State<App>, guest: Guest) -> Result<Response, Problem> {
    let provider = provider(&app)?;
    let back = local_path(guest.query.get("back"));
    let secret = super::secret_of_browser();
    let mut path = utf8_percent_encode(&back, NON_ALPHANUMERIC).to_string();
    if path.len() + 100 > LONGEST {
        path.clear();
    }
    let value = format!("{secret}.{path}");
    match provider.begin(&OpenIdAttempt(secret.into())).await {
        Ok(url) => {
            let mut response = Redirect::to(url.as_str()).into_response();
            // Lax, because the browser comes back from another site.
            let how = format!("Lax; Max-Age={LASTS}");
            let attempt = set_cookie(&app, app.attempt_cookie(), &value, &how);
            response.headers_mut().append(header::SET_COOKIE, attempt);
            Ok(response)
        }
        Err(problem) => again(&app, &guest, back, &failed(provider, problem)),
    }
}

/// Signs in whom the provider names. Whatever comes of it, the attempt is over.
pub(crate) async fn finish(
    State(app): State<App>,
    guest: Guest,
    returned: ReturnedSignIn,
) -> Result<Response, Problem> {
    let provider = provider(&app)?;
    let mut response = match named(&app, provider, &returned).await? {
        Ok(response) => response,
        Err(failed) => again(&app, &guest, returned.back, &failed)?,
    };
    let over = set_cookie(&app, app.attempt_cookie(), "", "Lax; Max-Age=0");
    response.headers_mut().append(header::SET_COOKIE, over);
    Ok(response)
}

async fn named(
    app: &App,
    provider: &OpenIdProvider,
    returned: &ReturnedSignIn,
) -> Result<Result<Response, Failed>, Problem> {
    let query = &returned.query;
    let state = query.get("state").unwrap_or_default();
    let attempt = returned
        .attempt
        .as_ref()
        .filter(|attempt| bool::from(attempt.state().as_bytes().ct_eq(state.as_bytes())));
    let Some(attempt) = attempt else {
        return Ok(Err(Failed::refused(
            "This sign-in was begun in another browser, was used already, or is too old. Sign in again.",
        )));
    };
    if query
        .get("iss")
        .is_some_and(|issuer| issuer != provider.issuer())
    {
        return Ok(Err(Failed::refused(
            "Another issuer than OIDC_ISSUER has sent this browser back, so nobody was signed in.",
        )));
    }
    let Some(code) = query.get("code") else {
        let error = query.get("error").unwrap_or("no code and no error");
        // The text is foreign, so only what looks like a code of an error is repeated.
        let error: String = error
            .chars()
            .filter(|one| one.is_ascii_lowercase() || matches!(one, '_' | ' '))
            .take(60)
            .collect();
        return Ok(Err(Failed::refused(format!(
            "{} did not sign you in: {error}.",
            provider.host()
        ))));
    };
    let from = &returned.sender.from;
    let browser = returned.sender.browser();
    let counted = app
        .database()
        .run(async |connection| sessions::attempt(connection, from).await);
    if let Err(problem) = counted.await {
        return limited(app, problem);
    }
    let person = match provider.finish(attempt, code).await {
        Ok(person) => person,
        Err(problem) => return Ok(Err(failed(provider, problem))),
    };
    let lifetime = app.settings().lifetime;
    let opened = app
        .database()
        .run(async |connection| sessions::open(connection, &person, browser, lifetime).await);
    match opened.await {
        Ok(opened) => {
            let cookie = opened_cookie(app, &opened, from);
            Ok(Ok(signed_in(cookie, &returned.back)))
        }
        Err(problem) => limited(app, problem),
    }
}

fn limited(app: &App, problem: NotSignedIn) -> Result<Result<Response, Failed>, Problem> {
    let refused = refused(app, problem)?;
    Ok(Err(Failed {
        status: refused.status,
        outcome: None,
        sentence: refused.sentence,
    }))
}

fn failed(provider: &OpenIdProvider, problem: NotNamed) -> Failed {
    let host = provider.host();
    match problem {
        NotNamed::Unavailable(cause) => {
            tracing::warn!(
                issuer = provider.issuer(),
                error = cause,
                "the OpenID provider does not respond as it should, so somebody could not sign in to the console and was \
                 asked to try it again; accounts of `esimctl operator` do not need it"
            );
            Failed {
                status: StatusCode::SERVICE_UNAVAILABLE,
                outcome: Some("unavailable"),
                sentence: format!(
                    "{host} does not respond as it should, so nobody can be signed in by it now: {cause}. Try it again in a \
                     moment. Whoever is on call and has a shell can sign in with an account: `esimctl operator create`."
                ),
            }
        }
        NotNamed::Refused(cause) => {
            tracing::warn!(
                issuer = provider.issuer(),
                error = cause,
                "somebody was not signed in to the console, because what the OpenID provider sent does not fit"
            );
            Failed::refused(format!("You were not signed in: {cause}. Sign in again."))
        }
        NotNamed::NoRole { name } => {
            tracing::info!(
                operator = name,
                "somebody whom the OpenID provider knows was refused, because the console has no role for them \
                 (OIDC_VIEWER, OIDC_SUPPORT, OIDC_OPERATOR)"
            );
            Failed::refused(format!(
                "{host} knows you ({name}), but you are in none of the groups that may use this console. Ask whoever manages \
                 them to add you, then sign in again."
            ))
        }
    }
}

/// Shows the sign-in again, with the reason.
fn again(app: &App, guest: &Guest, back: String, failed: &Failed) -> Result<Response, Problem> {
    if let Some(outcome) = failed.outcome {
        app.metrics().sign_in(outcome);
    }
    let sentence = Some(failed.sentence.clone());
    let page = SignIn::new(app, &guest.secret, back, sentence);
    guest.answer(app, failed.status, &page)
}
