//! The form of an action that asks for a reason, which several pages have. It is a part of a page
//! and works without JavaScript.

use crate::access::ConsoleSession;

/// An action that one row offers.
#[derive(Clone)]
pub(crate) struct ReasonForm {
    /// What the button says.
    pub(crate) label: &'static str,
    pub(crate) path: String,
    pub(crate) token: String,
    /// The state of the row that the page showed. The action is refused if it has changed.
    pub(crate) seen: String,
    pub(crate) back: String,
    /// What the action does, in one sentence.
    pub(crate) consequence: String,
    /// Whether the form asks for how long.
    pub(crate) duration: bool,
    /// Whether it stops or buys something, so that its button has another colour.
    pub(crate) grave: bool,
    /// What somebody chooses from: the name of the field and what it asks for, and each value with
    /// what it says. The first one is chosen.
    pub(crate) choice: Option<Choice>,
    /// Further fields, which nobody sees.
    pub(crate) hidden: Vec<(&'static str, String)>,
}

/// See [`ReasonForm::choice`].
#[derive(Clone)]
pub(crate) struct Choice {
    pub(crate) name: &'static str,
    pub(crate) asks: &'static str,
    pub(crate) of: Vec<(&'static str, &'static str)>,
}

impl ReasonForm {
    pub(crate) fn new(session: &ConsoleSession, label: &'static str, path: String) -> Self {
        Self {
            label,
            path,
            token: session.form_token(),
            seen: String::new(),
            back: "/".to_owned(),
            consequence: String::new(),
            duration: false,
            grave: false,
            choice: None,
            hidden: Vec::new(),
        }
    }
}
