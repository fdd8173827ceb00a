//! Signing in and out, and the page of a set-up link, which sets the first password.

pub(crate) mod openid;

use std::time::Duration;

use askama::Template;
use axum::{
    extract::{FromRequestParts, State},
    http::{HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Redirect, Response},
};
use desk::operator::{
    accounts::{self, NotSet},
    sessions::{self, NewSession, NotSignedIn},
};
use rand::Rng;
use secrecy::{ExposeSecret, SecretString};
use signing::password;

use crate::{
    App,
    access::{
        Act, FormFields, SessionlessForm, SignInBrowser, Viewer, form_token, secret, set_cookie,
    },
    problem::Problem,
    view::{Shell, local_path, with_status},
};

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignIn {
    shell: Shell,
    problem: Option<String>,
    token: String,
    back: String,
    /// The name that was typed, if the form was sent before.
    name: String,
    /// Whether accounts sign in with their passwords.
    passwords: bool,
    /// The host of the OpenID provider, if there is one.
    provider: Option<String>,
}

impl SignIn {
    fn new(app: &App, secret: &SecretString, back: String, problem: Option<String>) -> Self {
        Self {
            shell: Shell::outside(app, "Sign in"),
            problem,
            token: form_token(secret),
            back,
            name: String::new(),
            passwords: app.settings().passwords,
            provider: app.provider().map(|provider| provider.host().to_owned()),
        }
    }
}

#[derive(Template)]
#[template(path = "set_up.html")]
struct SetUp {
    shell: Shell,
    problem: Option<String>,
    token: String,
    /// The token of the link, if the form was sent before.
    link: String,
    least: usize,
}

/// The secret that forms before sign-in are bound to: the one of the cookie, or a new one.
pub(crate) struct Guest {
    secret: SecretString,
    query: FormFields,
}

impl FromRequestParts<App> for Guest {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let secret = secret(&parts.headers, app.guest_cookie())
            .unwrap_or_else(|| secret_of_browser().into());
        Ok(Self {
            secret,
            query: FormFields::parse(parts.uri.query().unwrap_or_default().as_bytes()),
        })
    }
}

/// A new secret that only one browser gets.
fn secret_of_browser() -> String {
    let mut secret = [0; 32];
    rand::rng().fill_bytes(&mut secret);
    hex::encode(secret)
}

impl Guest {
    /// Sends a page with a form that is bound to this secret.
    fn answer(
        &self,
        app: &App,
        status: StatusCode,
        template: &impl Template,
    ) -> Result<Response, Problem> {
        let mut response = with_status(status, template)?;
        let secret = self.secret.expose_secret();
        let cookie = set_cookie(app, app.guest_cookie(), secret, "Strict");
        response.headers_mut().append(header::SET_COOKIE, cookie);
        Ok(response)
    }
}

pub(crate) async fn form(State(app): State<App>, guest: Guest) -> Result<Response, Problem> {
    let back = local_path(guest.query.get("back"));
    let lost = guest.query.get("lost").map(|_| {
        "Your session had ended, so what you sent was not carried out. After you have signed in, its page opens again: look \
         whether it still applies, and repeat it."
            .to_owned()
    });
    let page = SignIn::new(&app, &guest.secret, back, lost);
    guest.answer(&app, StatusCode::OK, &page)
}

/// Passwords may be switched off.
fn with_passwords(app: &App) -> Result<(), Problem> {
    if app.settings().passwords {
        Ok(())
    } else {
        Err(Problem::NotFound(
            "Nobody signs in here with a password (CONSOLE_PASSWORDS): sign in by the OpenID provider.".into(),
        ))
    }
}

/// Checks a name and a password, and shows the page that was asked for before.
pub(crate) async fn sign_in(
    State(app): State<App>,
    outside: SessionlessForm,
) -> Result<Response, Problem> {
    with_passwords(&app)?;
    let fields = &outside.fields;
    let back = local_path(fields.get("back"));
    let password = fields.exact("password").into();
    let name = fields.get("name").unwrap_or_default();
    match open(&app, name, password, &outside.sender).await {
        Ok(cookie) => Ok(signed_in(cookie, &back)),
        Err(problem) => {
            let refused = refused(&app, problem)?;
            let page = SignIn {
                name: name.to_owned(),
                ..SignIn::new(&app, &outside.secret, back, Some(refused.sentence))
            };
            let mut response = with_status(refused.status, &page)?;
            if let Some(wait) = refused.wait {
                let wait = HeaderValue::from(wait.as_secs().max(1));
                response.headers_mut().insert(header::RETRY_AFTER, wait);
            }
            Ok(response)
        }
    }
}

/// Opens a session, and returns its cookie. The cookie has no end of its own, so that the browser
/// forgets it when it is closed; the session's end is in the database.
async fn open(
    app: &App,
    name: &str,
    password: SecretString,
    sender: &SignInBrowser,
) -> Result<HeaderValue, NotSignedIn> {
    let lifetime = app.settings().lifetime;
    let browser = sender.browser();
    let opened = app.database().run(async |connection| {
        sessions::sign_in(connection, name, password, browser, lifetime).await
    });
    Ok(opened_cookie(app, &opened.await?, &sender.from))
}

/// Counts and logs a new session, and makes its cookie. Neither holds a password or a token of
/// others.
fn opened_cookie(app: &App, opened: &NewSession, from: &str) -> HeaderValue {
    app.metrics().sign_in("signed_in");
    tracing::info!(
        operator = opened.session.name,
        role = opened.session.role.as_str(),
        from,
        "an operator has signed in to the console"
    );
    let token = opened.token.expose_secret();
    // Lax, because a link to an order in a ticket or a chat should open the order and not the
    // sign-in. Such a link is a GET, which changes nothing.
    set_cookie(app, app.session_cookie(), token, "Lax")
}

/// What somebody who was not signed in is told.
struct Refused {
    status: StatusCode,
    sentence: String,
    /// When another attempt may succeed.
    wait: Option<Duration>,
}

fn refused(app: &App, problem: NotSignedIn) -> Result<Refused, Problem> {
    let sentence = problem.to_string();
    let (outcome, status, wait) = match problem {
        NotSignedIn::Wrong => ("refused", StatusCode::UNPROCESSABLE_ENTITY, None),
        NotSignedIn::TooMany { wait } => ("limited", StatusCode::TOO_MANY_REQUESTS, Some(wait)),
        NotSignedIn::Store(error) => return Err(error.into()),
        error @ NotSignedIn::NotGenerated(_) => return Err(Problem::Broken(error.into())),
    };
    app.metrics().sign_in(outcome);
    Ok(Refused {
        status,
        sentence,
        wait,
    })
}

fn signed_in(cookie: HeaderValue, back: &str) -> Response {
    let mut response = Redirect::to(back).into_response();
    response.headers_mut().append(header::SET_COOKIE, cookie);
    response
}

/// Ends the session, here and in the database.
pub(crate) async fn sign_out(
    State(app): State<App>,
    act: Act<Viewer>,
) -> Result<Response, Problem> {
    let secret = act.session.secret();
    app.database()
        .run(async |connection| sessions::close(connection, secret).await)
        .await?;
    let mut response = Redirect::to("/sign-in").into_response();
    let gone = set_cookie(&app, app.session_cookie(), "", "Lax; Max-Age=0");
    response.headers_mut().append(header::SET_COOKIE, gone);
    Ok(response)
}

/// The page of a set-up link. The token of the link is behind its `#`, so the browser sends it with
/// the form only, and neither a proxy's log nor this program's has it.
pub(crate) async fn set_up_form(State(app): State<App>, guest: Guest) -> Result<Response, Problem> {
    with_passwords(&app)?;
    let page = set_up_page(&app, &guest.secret, String::new(), None);
    guest.answer(&app, StatusCode::OK, &page)
}

fn set_up_page(app: &App, secret: &SecretString, link: String, problem: Option<String>) -> SetUp {
    SetUp {
        shell: Shell::outside(app, "Set your password"),
        problem,
        token: form_token(secret),
        link,
        least: password::SHORTEST,
    }
}

/// Sets the password by the link, which is used up by that, and signs in.
pub(crate) async fn set_up(
    State(app): State<App>,
    outside: SessionlessForm,
) -> Result<Response, Problem> {
    with_passwords(&app)?;
    let fields = &outside.fields;
    // Without JavaScript the whole link is pasted.
    let link = fields.get("link").unwrap_or_default();
    let link = link.rsplit('#').next().unwrap_or_default().to_owned();
    let again = |problem: String| {
        let page = set_up_page(&app, &outside.secret, link.clone(), Some(problem));
        with_status(StatusCode::UNPROCESSABLE_ENTITY, &page)
    };
    if fields.exact("password") != fields.exact("again") {
        return again("The two passwords differ.".into());
    }
    let password = SecretString::from(fields.exact("password"));
    let token = SecretString::from(link.as_str());
    let from = &outside.sender.from;
    let set = app
        .database()
        .run(async |connection| accounts::set_up(connection, &token, password.clone(), from).await);
    let name = match set.await {
        Ok(name) => name,
        Err(NotSet::Store(error)) => return Err(error.into()),
        Err(problem) => return again(format!("It was not set: {problem}.")),
    };
    match open(&app, &name, password.clone(), &outside.sender).await {
        Ok(cookie) => Ok(signed_in(cookie, "/")),
        Err(NotSignedIn::Store(error)) => Err(error.into()),
        // The password is set, so the operator can sign in by hand.
        Err(_) => Ok(Redirect::to("/sign-in").into_response()),
    }
}
