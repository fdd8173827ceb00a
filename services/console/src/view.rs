//! What all pages share: their frame, and how a template becomes a response.

use std::{convert::Infallible, fmt, str::FromStr, sync::Arc};

use askama::{
    Template,
    filters::{Escaper, Html},
};
use axum::{
    extract::{FromRequestParts, Path},
    http::{HeaderValue, StatusCode, header, request::Parts},
    response::{self, IntoResponse, Response},
};
use domain::ids::NotAnId;
use percent_encoding::percent_decode_str;
use runtime::terminal::printable;

use crate::{
    App,
    app::SystemLabel,
    format::number,
    problem::{Problem, ProblemText},
    session::ConsoleSession,
    times::TimeElement,
};

/// The pages of the navigation: their names, their paths, and whether there is a gap before them.
const LINKS: [(&str, &str, bool); 8] = [
    ("Overview", "/", false),
    (NEEDS, "/needs", false),
    ("Orders", "/orders", true),
    ("Webhooks", "/webhooks", false),
    ("Partners", "/partners", false),
    ("Providers", "/providers", false),
    ("Send again", "/resends", true),
    ("Record of actions", "/actions", false),
];
const NEEDS: &str = "Needs a person";

/// The frame of a page.
pub(crate) struct Shell {
    pub(crate) title: String,
    pub(crate) product: Arc<SystemLabel>,
    /// Who is signed in; `None` on the pages before that.
    pub(crate) who: Option<SignedInOperator>,
    /// The path of this page in the navigation.
    here: &'static str,
    /// How many things need a person, if it is known and there are any.
    pub(crate) needs: Option<String>,
    /// What was searched for.
    pub(crate) query: String,
    /// What the last action led to.
    pub(crate) said: Option<String>,
    /// When the page was made, which those say that refresh themselves.
    pub(crate) read: TimeElement,
}

pub(crate) struct SignedInOperator {
    pub(crate) name: String,
    pub(crate) role: &'static str,
    /// The token of the forms of this session.
    pub(crate) token: String,
    /// The zone of the times.
    pub(crate) zone: String,
}

pub(crate) struct NavigationLink {
    pub(crate) name: &'static str,
    pub(crate) path: &'static str,
    pub(crate) gap: bool,
    pub(crate) current: bool,
    /// How many things wait there.
    pub(crate) count: Option<String>,
}

impl Shell {
    pub(crate) fn new(
        app: &App,
        session: &ConsoleSession,
        here: &'static str,
        title: impl Into<String>,
    ) -> Self {
        Self {
            who: Some(SignedInOperator {
                name: session.name().to_owned(),
                role: session.role().as_str(),
                token: session.form_token(),
                zone: session.times.label(),
            }),
            here,
            needs: app.figures().needs().map(number),
            said: session.said().map(str::to_owned),
            read: session.times.clock(session.times.now),
            ..Self::outside(app, title)
        }
    }

    /// The frame of the page of a problem, for whoever may be signed in. What an action led to is
    /// left for the page after it.
    pub(crate) fn of_problem(app: &App, session: Option<&ConsoleSession>, title: &str) -> Self {
        let signed_in = session.map(|session| Self::new(app, session, "", title));
        Self {
            said: None,
            ..signed_in.unwrap_or_else(|| Self::outside(app, title))
        }
    }

    /// The frame of a page that needs no session.
    pub(crate) fn outside(app: &App, title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            product: Arc::clone(app.product()),
            who: None,
            here: "",
            needs: None,
            query: String::new(),
            said: None,
            read: TimeElement::default(),
        }
    }

    pub(crate) fn links(&self) -> impl Iterator<Item = NavigationLink> {
        LINKS.into_iter().map(|(name, path, gap)| NavigationLink {
            name,
            path,
            gap,
            current: path == self.here,
            count: self.needs.clone().filter(|_| name == NEEDS),
        })
    }
}

/// How the pages write what others have chosen, such as an id or a name: without markup, and with
/// its control characters visible. `askama.toml` names it for all templates.
#[derive(Clone, Copy)]
pub(crate) struct Visible;

impl Escaper for Visible {
    fn write_escaped_str<W: fmt::Write>(&self, mut page: W, text: &str) -> fmt::Result {
        for (index, line) in text.split('\n').enumerate() {
            if index > 0 {
                page.write_char('\n')?;
            }
            Html.write_escaped_str(&mut page, &printable(line))?;
        }
        Ok(())
    }
}

/// The id or name in the path of a page. Every path has one, even if its bytes are no text: what
/// cannot be read is then replaced, so that nothing has this id. If it were refused here instead,
/// the answer would come before the session was looked at.
pub(crate) struct PathArgument(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for PathArgument {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Infallible> {
        let path = Path::<String>::from_request_parts(parts, state).await;
        let given = path.map_or_else(
            |_| {
                let second = parts.uri.path().split('/').nth(2).unwrap_or_default();
                percent_decode_str(second).decode_utf8_lossy().into_owned()
            },
            |Path(path)| path,
        );
        Ok(Self(given))
    }
}

/// What whoever has an id should do with it.
const SEARCH: &str = "Put the id that you have into the box above: it takes ids of every kind.";

impl PathArgument {
    /// The id, if it has the form of one. `what` is what it should be the id of, such as
    /// `an order`.
    pub(crate) fn id<Id: FromStr<Err = NotAnId>>(&self, what: &str) -> Result<Id, Problem> {
        self.0.parse().map_err(|error| {
            let given = shortened(&self.0);
            Problem::NotFound(format!(
                "“{given}” is not the id of {what}: {error}. {SEARCH}"
            ))
        })
    }

    /// What to say if nothing has the id. `what` is what it should be the id of, such as `order`.
    pub(crate) fn missing(&self, what: &str) -> Problem {
        let given = shortened(&self.0);
        Problem::NotFound(format!(
            "No {what} has the id “{given}”. {SEARCH} It also says whether an order was archived."
        ))
    }
}

/// A text that somebody has typed, short enough for a title or a sentence.
pub(crate) fn shortened(text: &str) -> String {
    const MOST: usize = 100;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
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
    Ok((status, response::Html(text)).into_response())
}

#[derive(Template)]
#[template(path = "problem.html")]
struct ProblemPage {
    shell: Shell,
    /// What was asked for.
    path: String,
    told: ProblemText,
}

/// A problem in the place of the figures that htmx has asked for.
#[derive(Template)]
#[template(path = "problem_part.html")]
struct ProblemPart {
    /// What was asked for, and is asked for again.
    path: String,
    told: ProblemText,
}

/// How a page was asked for.
pub(crate) struct PageRequest {
    pub(crate) path: String,
    /// As a page, and not by a form.
    pub(crate) is_page: bool,
    pub(crate) by_htmx: bool,
}

/// Makes the page of a problem. It has the frame of all pages if its reader is signed in, who then
/// can search or go elsewhere from there. A problem itself does not know its session, because it
/// may be found before one is looked for. Any other response stays as it is.
pub(crate) async fn framed(
    app: &App,
    mut response: Response,
    asked: PageRequest,
    session: impl Future<Output = Option<ConsoleSession>>,
) -> Response {
    let Some(mut told) = response.extensions_mut().remove::<ProblemText>() else {
        return response;
    };
    // A form is not sent again by itself.
    told.again &= asked.is_page;
    let again = told.again;
    let status = response.status();
    let page = if asked.by_htmx {
        with_status(
            status,
            &ProblemPart {
                path: asked.path,
                told,
            },
        )
    } else {
        let session = session.await;
        let shell = Shell::of_problem(app, session.as_ref(), &told.title);
        with_status(
            status,
            &ProblemPage {
                shell,
                path: asked.path,
                told,
            },
        )
    };
    let (mut parts, empty) = response.into_parts();
    if again && !asked.by_htmx {
        let every = HeaderValue::from_static("10");
        parts.headers.insert(header::REFRESH, every);
    }
    match page {
        Ok(page) => {
            let (made, body) = page.into_parts();
            parts.headers.extend(made.headers);
            Response::from_parts(parts, body)
        }
        Err(_) => Response::from_parts(parts, empty),
    }
}

/// The longest id of a partner that is never wrapped, which is that of an eSIM's number. An order
/// id may have 255 characters.
const WHOLE: usize = 26;

/// The class of an order id, which keeps it on one line if it is of a usual length.
pub(crate) fn whole(id: &str) -> &'static str {
    if id.chars().count() <= WHOLE {
        "nowrap"
    } else {
        ""
    }
}

/// What an action shows once, and not again after a reload, such as an activation code.
#[derive(Template)]
#[template(path = "once.html")]
pub(crate) struct ShownOnce {
    pub(crate) shell: Shell,
    pub(crate) text: String,
    pub(crate) secrets: Vec<NamedValue>,
    /// The path of the page that the action was on.
    pub(crate) back: String,
}

pub(crate) struct NamedValue {
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
    fn control_characters_of_others_are_shown_and_do_nothing() {
        let shown = askama::filters::escape("a\u{202e}<b>\n\u{7}e\u{301} 👩\u{200d}🚀", Visible);
        assert_eq!(
            shown.unwrap().to_string(),
            "a\\u{202e}&#60;b&#62;\n\\u{7}e\u{301} 👩\\u{200d}🚀"
        );
    }

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
