//! Signing in and out, and the page of a set-up link, which sets the first password.

use askama::Template;
use axum::{
    extract::{FromRequestParts, State},
    http::{HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Redirect, Response},
};
use rand::Rng;
use secrecy::{ExposeSecret, SecretString};
use signing::password;
use store::operator::{
    accounts::{self, NotSet},
    sessions::{self, NotSignedIn},
};

use crate::{
    App,
    access::{Act, Fields, Outside, Viewer, cookie, form_token},
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
}

#[derive(Template)]
#[template(path = "set_up.html")]
struct SetUp {
    shell: Shell,
    problem: Option<String>,
    token: String,
    link: String,
    least: usize,
}

/// The secret that forms before sign-in are bound to: the one of the cookie, or a new one.
pub(crate) struct Guest {
    secret: SecretString,
    query: Fields,
}

impl FromRequestParts<App> for Guest {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let secret = cookie(parts, app.guest_cookie()).unwrap_or_else(|| {
            let mut secret = [0; 32];
            rand::rng().fill_bytes(&mut secret);
            hex::encode(secret).into()
        });
        Ok(Self {
            secret,
            query: Fields::parse(parts.uri.query().unwrap_or_default().as_bytes()),
        })
    }
}

/// A cookie that scripts cannot read and that other sites cannot send along with a form.
fn set_cookie(app: &App, name: &str, value: &str, same_site: &str) -> HeaderValue {
    let secure = if app.settings().tls { "; Secure" } else { "" };
    let text = format!("{name}={value}; Path=/; HttpOnly; SameSite={same_site}{secure}");
    HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static("console="))
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
    let page = SignIn {
        shell: Shell::outside("Sign in"),
        problem: None,
        token: form_token(&guest.secret),
        back: local_path(guest.query.get("back")),
    };
    guest.answer(&app, StatusCode::OK, &page)
}

/// Checks a name and a password, and shows the page that was asked for before.
pub(crate) async fn sign_in(State(app): State<App>, outside: Outside) -> Result<Response, Problem> {
    let fields = &outside.fields;
    let back = local_path(fields.get("back"));
    let password = fields.exact("password").into();
    let name = fields.get("name").unwrap_or_default();
    match open(&app, name, password, &outside.from).await {
        Ok(cookie) => Ok(signed_in(cookie, &back)),
        Err(problem) => {
            let (status, problem) = refused(&app, problem)?;
            let page = SignIn {
                shell: Shell::outside("Sign in"),
                problem: Some(problem),
                token: form_token(&outside.secret),
                back,
            };
            with_status(status, &page)
        }
    }
}

/// Opens a session, and returns its cookie. The cookie has no end of its own, so that the browser
/// forgets it when it is closed; the session's end is in the database.
async fn open(
    app: &App,
    name: &str,
    password: SecretString,
    from: &str,
) -> Result<HeaderValue, NotSignedIn> {
    let lifetime = app.settings().lifetime;
    let opened = app
        .database()
        .run(async |connection| sessions::sign_in(connection, name, password, from, lifetime).await)
        .await?;
    app.metrics().sign_in("signed_in");
    tracing::info!(
        operator = opened.session.name,
        from,
        "an operator has signed in to the console"
    );
    let token = opened.token.expose_secret();
    // Lax, because a link to an order in a ticket or a chat should open the order and not the
    // sign-in. Such a link is a GET, which changes nothing.
    Ok(set_cookie(app, app.session_cookie(), token, "Lax"))
}

/// The status and the sentence for somebody who was not signed in.
fn refused(app: &App, problem: NotSignedIn) -> Result<(StatusCode, String), Problem> {
    let sentence = problem.to_string();
    match problem {
        NotSignedIn::Wrong => {
            app.metrics().sign_in("refused");
            Ok((StatusCode::UNPROCESSABLE_ENTITY, sentence))
        }
        NotSignedIn::TooMany => {
            app.metrics().sign_in("limited");
            Ok((StatusCode::TOO_MANY_REQUESTS, sentence))
        }
        NotSignedIn::Store(error) => Err(error.into()),
        error @ NotSignedIn::NotGenerated(_) => Err(Problem::Broken(error.into())),
    }
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
    let text = format!(
        "{}=; Path=/; HttpOnly; Max-Age=0; SameSite=Lax",
        app.session_cookie()
    );
    let secure = if app.settings().tls { "; Secure" } else { "" };
    let mut response = Redirect::to("/sign-in").into_response();
    if let Ok(gone) = HeaderValue::from_str(&format!("{text}{secure}")) {
        response.headers_mut().append(header::SET_COOKIE, gone);
    }
    Ok(response)
}

/// The page of a set-up link.
pub(crate) async fn set_up_form(State(app): State<App>, guest: Guest) -> Result<Response, Problem> {
    let link = guest.query.get("token").unwrap_or_default().to_owned();
    let token = SecretString::from(link.as_str());
    let known = app
        .database()
        .run(async |connection| accounts::of_link(connection, &token).await)
        .await?;
    if known.is_none() {
        return Err(Problem::NotFound(NotSet::Invalid.to_string()));
    }
    guest.answer(
        &app,
        StatusCode::OK,
        &set_up_page(&guest.secret, link, None),
    )
}

fn set_up_page(secret: &SecretString, link: String, problem: Option<String>) -> SetUp {
    SetUp {
        shell: Shell::outside("Set your password"),
        problem,
        token: form_token(secret),
        link,
        least: password::SHORTEST,
    }
}

/// Sets the password by the link, which is used up by that, and signs in.
pub(crate) async fn set_up(State(app): State<App>, outside: Outside) -> Result<Response, Problem> {
    let fields = &outside.fields;
    let link = fields.get("link").unwrap_or_default().to_owned();
    let again = |problem: String| {
        let page = set_up_page(&outside.secret, link.clone(), Some(problem));
        with_status(StatusCode::UNPROCESSABLE_ENTITY, &page)
    };
    if fields.exact("password") != fields.exact("again") {
        return again("The two passwords differ.".into());
    }
    let password = SecretString::from(fields.exact("password"));
    let token = SecretString::from(link.as_str());
    let set = app
        .database()
        .run(async |connection| accounts::set_up(connection, &token, password.clone()).await);
    let name = match set.await {
        Ok(name) => name,
        Err(NotSet::Store(error)) => return Err(error.into()),
        Err(problem) => return again(format!("It was not set: {problem}.")),
    };
    match open(&app, &name, password.clone(), &outside.from).await {
        Ok(cookie) => Ok(signed_in(cookie, "/")),
        Err(NotSignedIn::Store(error)) => Err(error.into()),
        // The password is set, so the operator can sign in by hand.
        Err(_) => Ok(Redirect::to("/sign-in").into_response()),
    }
}
