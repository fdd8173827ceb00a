//! Why a request is not answered with its page. Each problem is a page with a sentence that says
//! what to do. The cause of a fault of ours is logged and not shown.

use askama::Template;
use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Redirect, Response},
};
use axum_htmx::HxRedirect;
use url::form_urlencoded::byte_serialize;

use crate::view::{Shell, with_status};

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
    /// The address takes forms only.
    #[error(
        "this address takes the forms of the console's pages and shows nothing by itself, so nothing was done: go to the page \
         that the action is on, and use its form"
    )]
    OnlyForms,
    #[error("{0}")]
    NotFound(String),
    /// What the form was about has changed since the page was shown.
    #[error("{0}")]
    Conflict(String),
    /// The form's values make no sense.
    #[error("{0}")]
    Invalid(String),
    #[error(transparent)]
    Store(#[from] store::Error),
    /// A fault of this program.
    #[error("the page could not be made")]
    Broken(anyhow::Error),
}

#[derive(Template)]
#[template(path = "problem.html")]
struct Page {
    shell: Shell,
    text: String,
}

impl Problem {
    fn status(&self) -> StatusCode {
        match self {
            Self::SignIn { .. } => StatusCode::SEE_OTHER,
            Self::Forbidden { .. } | Self::ForeignForm => StatusCode::FORBIDDEN,
            Self::OnlyForms => StatusCode::METHOD_NOT_ALLOWED,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Conflict(_) => StatusCode::CONFLICT,
            Self::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Store(error) if error.is_transient() => StatusCode::SERVICE_UNAVAILABLE,
            Self::Store(_) | Self::Broken(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn title(&self) -> &'static str {
        match self {
            Self::SignIn { .. } => "Sign in",
            Self::Forbidden { .. } => "Your role may not do this",
            Self::ForeignForm => "The form has expired",
            Self::OnlyForms => "There is no page here",
            Self::NotFound(_) => "Not found",
            Self::Conflict(_) => "It has changed meanwhile",
            Self::Invalid(_) => "That does not work",
            Self::Store(_) | Self::Broken(_) => "The console cannot answer now",
        }
    }

    /// What the page says. Causes from the database are for the log, because everybody who signs in
    /// may see the page.
    fn text(&self) -> String {
        match self {
            Self::Store(_) => "The database did not answer this page. Try it again in a moment; if that lasts, look at the \
                               console's log and at `esimctl doctor`."
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
            let back: String = byte_serialize(back.as_bytes()).collect();
            let lost = if *lost { "&lost=1" } else { "" };
            let sign_in = format!("/sign-in?back={back}{lost}");
            return if *by_htmx {
                (HxRedirect(sign_in), ()).into_response()
            } else {
                Redirect::to(&sign_in).into_response()
            };
        }
        match &self {
            Self::Store(error) => {
                tracing::error!(%error, "the database did not answer a page of the console; its operator was asked to try it again");
            }
            Self::Broken(error) => {
                tracing::error!(
                    error = format!("{error:#}"),
                    "a page of the console could not be made, and its reader was told so; this is a fault of the program, so report it"
                );
            }
            _ => {}
        }
        let page = Page {
            shell: Shell::outside(self.title()),
            text: self.text(),
        };
        let mut response =
            with_status(self.status(), &page).unwrap_or_else(|_| self.status().into_response());
        if self.status() == StatusCode::SERVICE_UNAVAILABLE {
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
