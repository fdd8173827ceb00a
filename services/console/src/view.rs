//! What all pages share: their frame, and how a template becomes a response.

use askama::Template;
use axum::{
    http::{StatusCode, header},
    response::{Html, IntoResponse, Response},
};

use crate::{access::Session, problem::Problem};

/// The pages of the navigation: their names and paths.
const LINKS: [(&str, &str); 5] = [
    ("Overview", "/"),
    ("Needs a person", "/needs"),
    ("Partners", "/partners"),
    ("Bulk operations", "/operations"),
    ("Actions", "/actions"),
];

/// The frame of a page.
#[derive(Default)]
pub(crate) struct Shell {
    pub(crate) title: String,
    /// Who is signed in; `None` on the pages before that.
    pub(crate) who: Option<Who>,
    /// The path of this page in the navigation.
    here: &'static str,
    /// What was searched for.
    pub(crate) query: String,
    /// What the last action led to.
    pub(crate) said: Option<String>,
}

pub(crate) struct Who {
    pub(crate) name: String,
    pub(crate) role: &'static str,
    /// The token of the forms of this session.
    pub(crate) token: String,
}

pub(crate) struct Link {
    pub(crate) name: &'static str,
    pub(crate) path: &'static str,
    pub(crate) current: bool,
}

impl Shell {
    pub(crate) fn new(session: &Session, here: &'static str, title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            who: Some(Who {
                name: session.name().to_owned(),
                role: session.role().as_str(),
                token: session.form_token(),
            }),
            here,
            query: String::new(),
            said: session.said().map(str::to_owned),
        }
    }

    /// The frame of a page that needs no session.
    pub(crate) fn outside(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            ..Self::default()
        }
    }

    pub(crate) fn links(&self) -> impl Iterator<Item = Link> {
        LINKS
            .map(|(name, path)| Link {
                name,
                path,
                current: path == self.here,
            })
            .into_iter()
    }
}

/// Renders a page.
pub(crate) fn page(template: &impl Template) -> Result<Response, Problem> {
    with_status(StatusCode::OK, template)
}

pub(crate) fn with_status(
    status: StatusCode,
    template: &impl Template,
) -> Result<Response, Problem> {
    let text = template
        .render()
        .map_err(|error| Problem::Broken(error.into()))?;
    // A page must not be shown from a cache after its operator has signed out.
    Ok((status, [(header::CACHE_CONTROL, "no-store")], Html(text)).into_response())
}

/// What an action shows once, and not again after a reload, such as an activation code.
#[derive(Template)]
#[template(path = "once.html")]
pub(crate) struct Once {
    pub(crate) shell: Shell,
    pub(crate) text: String,
    pub(crate) secrets: Vec<Named>,
    /// The path of the page that the action was on.
    pub(crate) back: String,
}

pub(crate) struct Named {
    pub(crate) name: &'static str,
    pub(crate) value: String,
}

/// A path of this console that a form names as the page to go back to. Anything else, such as the
/// address of another host, becomes the overview.
pub(crate) fn local_path(path: Option<&str>) -> String {
    let path = path.unwrap_or("/");
    let is_local = path.starts_with('/')
        && !path.starts_with("//")
        // Browsers leave control characters out, so that `/<tab>/host` would become `//host`.
        && !path.contains(|of: char| of == '\\' || of.is_control())
        && path.len() <= 2_000;
    if is_local { path } else { "/" }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_leads_back_to_this_console_only() {
        assert_eq!(local_path(Some("/orders/1?a=b")), "/orders/1?a=b");
        for foreign in [
            "//evil.example",
            "https://evil.example",
            "/\\evil.example",
            "/\t/evil.example",
            "",
            "javascript:alert(1)",
        ] {
            assert_eq!(local_path(Some(foreign)), "/", "{foreign}");
        }
    }
}
