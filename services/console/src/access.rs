//! Who may do what, as types.
//!
//! A handler of a page takes a [`Visit`], and a handler of an action an [`Act`]. Both name the role
//! that is needed, and exist only for a request with a live session of an account that has this
//! role or a higher one. An [`Act`] exists only if the form also has the token of this session. So
//! a handler cannot forget a check, because without it there is nothing to call it with.
//!
//! The token of a form is made from the secret of the cookie, so nothing has to be stored for it,
//! and a page of another site can neither read nor guess it. Forms before sign-in are bound in the
//! same way to a cookie of their own ([`SessionlessForm`]), so that nobody can be signed in to an
//! account of somebody else.

use std::{marker::PhantomData, net::SocketAddr, sync::Arc};

use axum::{
    body::{Body, to_bytes},
    extract::{ConnectInfo, FromRequest, FromRequestParts, Request},
    http::{HeaderMap, Method, request::Parts},
    response::Response,
};
use axum_htmx::HX_REQUEST;
pub use desk::operator::accounts::OperatorRole;
use desk::operator::sessions::{self, SessionPolicy};
use pg::actions::{Action, Actor};
use runtime::{forwarded, listener::ConnectionPlace};
use secrecy::SecretString;
use subtle::ConstantTimeEq;
use url::form_urlencoded;

pub(crate) use crate::cookies::{cookie, secret, set_cookie};
pub use crate::session::ConsoleSession;
pub(crate) use crate::session::form_token;
use crate::{
    App, openid::OpenIdProvider, problem::Problem, said, session::FORM_TIMEOUT, times::Times,
    view::local_path,
};

/// The largest form. Reasons and filters are short.
const MOST_FORM: usize = 64 * 1024;
/// The name of the field with the token.
pub(crate) const TOKEN: &str = "token";

/// A role that a handler demands.
trait Rank: Send + Sync + 'static {
    const ROLE: OperatorRole;
}

/// Sees everything but credentials, and changes nothing.
pub struct Viewer;
/// May also send webhooks again, and see activation codes if the console shows them.
pub struct Support;
/// May do everything that the console offers.
pub struct Operator;

impl Rank for Viewer {
    const ROLE: OperatorRole = OperatorRole::Viewer;
}

impl Rank for Support {
    const ROLE: OperatorRole = OperatorRole::Support;
}

impl Rank for Operator {
    const ROLE: OperatorRole = OperatorRole::Operator;
}

/// A request for a page by somebody whose role may see it.
pub struct Visit<R> {
    pub(crate) session: ConsoleSession,
    pub(crate) query: FormFields,
    role: PhantomData<R>,
}

/// An action by somebody whose role may do it, in a form of this session.
pub struct Act<R> {
    pub(crate) session: ConsoleSession,
    pub(crate) fields: FormFields,
    role: PhantomData<R>,
    /// Whatever the handler does and responds, the next page is read anew, because the action is
    /// over when this is dropped with it.
    _end: End,
}

/// The end of an action.
struct End(App);

impl Drop for End {
    fn drop(&mut self) {
        self.0.figures().acted();
    }
}

impl<R> Act<R> {
    /// The record of this action, under the name of the command of `esimctl` that does the same.
    pub(crate) fn action<'a>(
        &'a self,
        command: domain::Command,
        target: &'a str,
        reason: &'a str,
    ) -> Action<'a> {
        Action {
            actor: Actor::console(self.session.name(), self.session.from()),
            command,
            target,
            reason,
        }
    }
}

impl<R> Act<R> {
    /// An action that cannot be done, with a title that says why.
    pub(crate) fn not_done(&self, title: impl Into<String>, text: impl Into<String>) -> Problem {
        Problem::NotDone {
            title: title.into(),
            text: text.into(),
            back: local_path(self.fields.get("back")),
        }
    }

    /// An action on something that has changed since its page was shown.
    pub(crate) fn changed(&self, text: &str) -> Problem {
        self.not_done(
            "It has changed meanwhile",
            format!(
                "Nothing was done now: {text}. Look at it again before you repeat it. If you have sent the form twice, \
                 the first one was carried out, and the record of actions has it."
            ),
        )
    }

    /// The answer to an action that was carried out: the page that the form was on, with a
    /// sentence.
    pub(crate) fn done(&self, app: &App, text: &str) -> Response {
        said::after(app, &local_path(self.fields.get("back")), text)
    }
}

/// A form that needs no session.
pub struct SessionlessForm {
    pub(crate) fields: FormFields,
    /// The secret of the cookie.
    pub(crate) secret: SecretString,
    pub(crate) sender: SignInBrowser,
}

/// The browser that signs in.
pub(crate) struct SignInBrowser {
    pub(crate) from: String,
    /// The secret of the session that it has until then.
    before: Option<SecretString>,
}

impl SignInBrowser {
    pub(crate) fn of(parts: &Parts, app: &App) -> Self {
        Self {
            from: source(parts, app),
            before: secret(&parts.headers, app.session_cookie()),
        }
    }

    pub(crate) fn browser(&self) -> sessions::Browser<'_> {
        sessions::Browser {
            source: &self.from,
            before: self.before.as_ref(),
        }
    }
}

impl<R: Rank> FromRequestParts<App> for Visit<R> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let Some(session) = session(parts, app).await? else {
            // After a form without a session, its answer could not be shown.
            let is_page = matches!(parts.method, Method::GET | Method::HEAD);
            let path = parts.uri.path_and_query();
            let back = path.filter(|_| is_page).map_or("/", |path| path.as_str());
            return Err(Problem::SignIn {
                back: back.into(),
                lost: false,
                by_htmx: is_by_htmx(&parts.headers),
            });
        };
        if !session.may(R::ROLE) {
            return Err(Problem::Forbidden {
                needs: R::ROLE.as_str(),
                has: session.role.as_str(),
            });
        }
        if !is_by_htmx(&parts.headers) {
            app.figures().note_needs(app.database()).await;
        }
        Ok(Self {
            session,
            query: FormFields::parse(parts.uri.query().unwrap_or_default().as_bytes()),
            role: PhantomData,
        })
    }
}

impl<R: Rank> FromRequest<App> for Act<R> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let visit = Visit::<R>::from_request_parts(&mut parts, app).await;
        if let Err(Problem::SignIn { by_htmx, .. }) = visit {
            // The form names its page, to which its sender comes back after signing in.
            let fields = form(&parts, body).await?;
            return Err(Problem::SignIn {
                back: local_path(fields.get("back")),
                lost: fields.get("reason").is_some(),
                by_htmx,
            });
        }
        let visit = visit?;
        let fields = form(&parts, body).await?;
        check(&fields, &visit.session.secret)?;
        Ok(Self {
            session: visit.session,
            fields,
            role: PhantomData,
            _end: End(app.clone()),
        })
    }
}

impl FromRequest<App> for SessionlessForm {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let secret = secret(&parts.headers, app.guest_cookie()).ok_or(Problem::ForeignForm)?;
        let fields = form(&parts, body).await?;
        check(&fields, &secret)?;
        Ok(Self {
            fields,
            secret,
            sender: SignInBrowser::of(&parts, app),
        })
    }
}

/// The live session of the request's cookie.
pub(crate) async fn session(parts: &Parts, app: &App) -> Result<Option<ConsoleSession>, Problem> {
    let Some(secret) = secret(&parts.headers, app.session_cookie()) else {
        return Ok(None);
    };
    let accepted = SessionPolicy {
        idle: app.settings().lifetime.idle,
        local: app.settings().passwords,
        issuer: app.provider().map(OpenIdProvider::issuer),
        // htmx only refreshes what is on the screen.
        by_person: !is_by_htmx(&parts.headers),
    };
    let found = app
        .database()
        .run(async |connection| sessions::find(connection, &secret, accepted).await)
        .await?;
    if let Some(found) = &found
        && let Some(place) = parts.extensions.get::<Arc<ConnectionPlace>>()
    {
        place.authenticated(&found.name);
    }
    Ok(found.map(|found| ConsoleSession {
        operator: found.name,
        role: found.role,
        secret,
        from: source(parts, app),
        said: said::of(&parts.headers, app),
        times: Times::of(&parts.headers),
    }))
}

/// Whether htmx sends the request, and not a person who has followed a link or sent a form.
pub(crate) fn is_by_htmx(headers: &HeaderMap) -> bool {
    headers.contains_key(HX_REQUEST)
}

/// The address of the client.
pub(crate) fn source(parts: &Parts, app: &App) -> String {
    let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>();
    peer.map_or_else(String::new, |peer| {
        forwarded::client(peer.0.ip(), &parts.headers, app.settings().forwarded).to_string()
    })
}

/// Reads a form. While it arrives, a connection without a session can lose its place to another
/// one.
async fn form(parts: &Parts, body: Body) -> Result<FormFields, Problem> {
    let place = parts.extensions.get::<Arc<ConnectionPlace>>();
    if let Some(place) = place {
        place.wait_for_client();
    }
    let read = tokio::time::timeout(FORM_TIMEOUT, to_bytes(body, MOST_FORM)).await;
    if let Some(place) = place {
        place.go_on().await;
    }
    let bytes = read
        .map_err(|_| Problem::Slow)?
        .map_err(|_| Problem::Invalid(format!("a form may have at most {MOST_FORM} bytes")))?;
    Ok(FormFields::parse(&bytes))
}

fn check(fields: &FormFields, secret: &SecretString) -> Result<(), Problem> {
    let given = fields.get(TOKEN).unwrap_or_default();
    let expected = form_token(secret);
    if bool::from(given.as_bytes().ct_eq(expected.as_bytes())) {
        Ok(())
    } else {
        Err(Problem::ForeignForm)
    }
}

/// The fields of a form or of a query. Of a field that is repeated, the first value counts.
#[derive(Clone, Debug, Default)]
pub struct FormFields(Vec<(String, String)>);

impl FormFields {
    pub(crate) fn parse(text: &[u8]) -> Self {
        // PostgreSQL stores no NUL, so the database would refuse the whole statement.
        let without_nul = |text: String| text.replace('\0', "\u{fffd}");
        let pairs = form_urlencoded::parse(text).into_owned();
        Self(
            pairs
                .map(|(name, value)| (name, without_nul(value)))
                .collect(),
        )
    }

    /// The value of a field without blanks around it, if it has one.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let (_, value) = self.0.iter().find(|(known, _)| known == name)?;
        let value = value.trim();
        (!value.is_empty()).then_some(value)
    }

    /// The value as it was typed, with its blanks. Passwords may have some.
    pub(crate) fn exact(&self, name: &str) -> &str {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value)
    }

    /// The reason of an action, which each form asks for.
    pub(crate) fn reason(&self) -> Result<&str, Problem> {
        match self.get("reason") {
            Some(reason) if reason.chars().count() <= 500 => Ok(reason),
            Some(_) => Err(Problem::Invalid(
                "a reason may have at most 500 characters".into(),
            )),
            None => Err(Problem::Invalid(
                "say why: the reason is recorded together with the action".into(),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_of_a_form_belongs_to_one_secret() {
        let mine: SecretString = "mine".into();
        let fields = FormFields::parse(format!("a=b&token={}", form_token(&mine)).as_bytes());
        assert!(check(&fields, &mine).is_ok());
        assert!(check(&fields, &"other".into()).is_err());
        assert!(check(&FormFields::parse(b"a=b"), &mine).is_err());
    }

    #[test]
    fn fields_with_reserved_characters_are_read_as_typed() {
        let fields = FormFields::parse(b"q=a%2Fb%3Fc%23d%26e+%25&password=+x+");
        assert_eq!(fields.get("q"), Some("a/b?c#d&e %"));
        assert_eq!(fields.exact("password"), " x ");
        assert!(fields.reason().is_err());
    }
}
