//! The page of an act that changes much: what it does, in numbers, before somebody does it. It
//! works without JavaScript, and its form leads back to the page that it belongs to.

use askama::Template;
use axum::{http::StatusCode, response::Response};

use crate::{
    access::ConsoleSession,
    problem::Problem,
    view::{Shell, page, with_status},
};

#[derive(Template)]
#[template(path = "act.html")]
pub(crate) struct ActPage {
    pub(crate) shell: Shell,
    /// The pages above this one: their paths and names.
    pub(crate) crumbs: Vec<(String, String)>,
    /// What this page does, as the last of these.
    pub(crate) what: String,
    pub(crate) title: String,
    /// What it does, a paragraph each.
    pub(crate) says: Vec<String>,
    /// The command of `esimctl` that does it, if this console cannot.
    pub(crate) command: Option<String>,
    /// Where the form goes; nothing if this console cannot do it.
    pub(crate) path: String,
    pub(crate) token: String,
    pub(crate) seen: String,
    pub(crate) back: String,
    pub(crate) fields: Vec<Field>,
    /// What the form carries along, by name.
    pub(crate) hidden: Vec<(&'static str, String)>,
    /// Whether it only asks what is to be done, and the page that answers does it.
    pub(crate) asks: bool,
    /// The reason, if the form was sent before and could not be carried out.
    pub(crate) reason: String,
    pub(crate) button: &'static str,
    pub(crate) grave: bool,
}

/// What a form asks for beside the reason.
pub(crate) enum Field {
    Text {
        label: &'static str,
        name: &'static str,
        kind: &'static str,
        value: String,
        hint: String,
        /// What is wrong with the value that was sent.
        wrong: Option<String>,
    },
    Picks {
        legend: &'static str,
        name: &'static str,
        picks: Vec<Pick>,
    },
}

/// One of several choices, with what comes of it.
pub(crate) struct Pick {
    pub(crate) value: String,
    pub(crate) label: String,
    pub(crate) hint: String,
    pub(crate) grave: bool,
    pub(crate) checked: bool,
}

impl ActPage {
    pub(crate) fn new(shell: Shell, session: &ConsoleSession, back: String) -> Self {
        Self {
            title: shell.title.clone(),
            shell,
            crumbs: Vec::new(),
            what: String::new(),
            says: Vec::new(),
            command: None,
            path: String::new(),
            token: session.form_token(),
            seen: String::new(),
            back,
            fields: Vec::new(),
            hidden: Vec::new(),
            asks: false,
            reason: String::new(),
            button: "",
            grave: false,
        }
    }

    pub(crate) fn show(&self) -> Result<Response, Problem> {
        page(self)
    }

    /// The page again, after a form with a value that makes no sense: with everything that was
    /// typed, and with what is wrong beside its field.
    pub(crate) fn again(&self) -> Result<Response, Problem> {
        with_status(StatusCode::UNPROCESSABLE_ENTITY, self)
    }
}
