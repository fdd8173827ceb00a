//! Why a request is not answered with its page. Each problem is a page with a sentence that says
//! what to do. The cause of a fault of ours is logged and not shown.

use axum::{
    http::{HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Redirect, Response},
};
use axum_htmx::HxRedirect;

use crate::{format::address, session::FORM_TIMEOUT};

#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// There is no session, or it has ended. After signing in, this page is shown.
    #[error("sign in to see {back}")]
    SignIn {
        back: String,
        /// Whether an action was sent, which was not carried out.
        lost: bool,
        /// Whether htmx has asked, which would put the sign-in into the middle of the page.
        by_htmx: bool,
    },
    /// The role may not do this.
    #[error("this needs the role {needs}; your account has the role {has}")]
    Forbidden {
        needs: &'static str,
        has: &'static str,
    },
    /// The form has no token of this session, so another site may have sent it.
    #[error(
        "the form does not belong to your session, perhaps because you signed in again meanwhile: open the page again and \
         repeat what you did"
    )]
    ForeignForm,
    /// The form did not arrive in time.
    #[error(
        "the form did not arrive within {} seconds, so nothing was done: open the page again and repeat what you did",
        FORM_TIMEOUT.as_secs()
    )]
    Slow,
    /// The address takes forms only.
    #[error(
        "this address takes the forms of the console's pages and shows nothing by itself, so nothing was done: go to the page \
         that the action is on, and use its form"
    )]
    OnlyForms,
    /// The address shows a page only, or the method is one that no address takes.
    #[error(
        "this address takes no form, and no other request of the method {0}, so nothing was done: open it as a page, and use \
         the forms there"
    )]
    OnlyPages(Method),
    #[error("{0}")]
    NotFound(String),
    /// An action that cannot be done, or not any more. Nothing was changed.
    #[error("{text}")]
    NotDone {
        title: String,
        text: String,
        /// The page that the form was on.
        back: String,
    },
    /// A form that settles several things, each by itself, ended in the middle because of the
    /// database.
    #[error("{text}")]
    BrokenOff {
        text: String,
        /// The page that the form was on.
        back: String,
        #[source]
        cause: pg::Error,
    },
    /// The form's values make no sense.
    #[error("{0}")]
    Invalid(String),
    #[error(transparent)]
    Store(#[from] pg::Error),
    /// A fault of this program.
    #[error("the page could not be made")]
    Broken(anyhow::Error),
}

/// What the page of a problem says. It is an extension of the response until
/// [`crate::view::framed`] makes the page.
#[derive(Clone)]
pub(crate) struct ProblemText {
    pub(crate) title: String,
    pub(crate) text: String,
    pub(crate) back: Option<String>,
    /// Whether the database did not answer, so that asking again helps.
    pub(crate) again: bool,
}

impl Problem {
    /// A form must say what its page showed, because otherwise it could act on something else.
    pub fn nothing_seen() -> Self {
        Self::Invalid("the form does not say what it showed".into())
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::SignIn { .. } => StatusCode::SEE_OTHER,
            Self::Forbidden { .. } | Self::ForeignForm => StatusCode::FORBIDDEN,
            Self::Slow => StatusCode::REQUEST_TIMEOUT,
            Self::OnlyForms | Self::OnlyPages(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::NotDone { .. } => StatusCode::CONFLICT,
            Self::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Store(error) | Self::BrokenOff { cause: error, .. } if error.is_transient() => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Store(_) | Self::BrokenOff { .. } | Self::Broken(_) => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        }
    }

    fn title(&self) -> &str {
        match self {
            Self::SignIn { .. } => "Sign in",
            Self::Forbidden { .. } => "Your role may not do this",
            Self::ForeignForm => "The form has expired",
            Self::Slow => "The form did not arrive",
            Self::OnlyForms => "There is no page here",
            Self::OnlyPages(_) => "There is no action here",
            Self::NotFound(_) => "Not found",
            Self::NotDone { title, .. } => title,
            Self::BrokenOff { .. } => "Not all of it was recorded",
            Self::Invalid(_) => "That does not work",
            Self::Store(error) if error.is_transient() => "The console cannot read its database",
            Self::Store(_) | Self::Broken(_) => "The console cannot answer now",
        }
    }

    /// What the page says. Causes from the database are for the log, because everybody who signs in
    /// may see the page.
    fn text(&self) -> String {
        match self {
            Self::Store(error) if error.is_transient() => {
                "The database did not answer. Try it again in a moment; if that lasts, look at the console's log, or at what \
                 esimctl doctor says."
                    .to_owned()
            }
            Self::Store(_) => "The database refused what this page asked, and trying it again will not help. The console's log \
                               says why; report it."
                .to_owned(),
            other => other.to_string(),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        if let Self::SignIn {
            back,
            lost,
            by_htmx,
        } = &self
        {
            let lost = if *lost { "1" } else { "" };
            let sign_in = address("/sign-in", [("back", back.as_str()), ("lost", lost)]);
            return if *by_htmx {
                (HxRedirect(sign_in), ()).into_response()
            } else {
                Redirect::to(&sign_in).into_response()
            };
        }
        match &self {
            Self::Store(error) => {
                tracing::error!(%error, "the database did not answer a page of the console, or refused what it asked; its reader was told which");
            }
            Self::BrokenOff { text, cause, .. } => {
                tracing::error!(
                    error = %cause,
                    told = text,
                    "a form that settles several things ended in the middle, because the database failed; its operator was told \
                     how far it came, and each thing that was settled is in the record of actions"
                );
            }
            Self::Broken(error) => {
                tracing::error!(
                    error = format!("{error:#}"),
                    "a page of the console could not be made, and its reader was told so; this is a fault of the program, so report it"
                );
            }
            _ => {}
        }
        let mut response = self.status().into_response();
        if self.status() == StatusCode::SERVICE_UNAVAILABLE {
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if matches!(self, Self::Slow) {
            // What may still come of the form is not read, so the connection serves no more
            // requests.
            let headers = response.headers_mut();
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        let told = ProblemText {
            title: self.title().to_owned(),
            text: sentence(&self.text()),
            again: self.status() == StatusCode::SERVICE_UNAVAILABLE,
            back: match self {
                Self::NotDone { back, .. } | Self::BrokenOff { back, .. } => Some(back),
                _ => None,
            },
        };
        response.extensions_mut().insert(told);
        response
    }
}

/// An error as a sentence of a page.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    let end = if text.ends_with(['.', '?', '!']) {
        ""
    } else {
        "."
    };
    format!("{}{}{end}", first.unwrap_or_default(), letters.as_str())
}
