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
    /// Further fields, which nobody sees.
    pub(crate) hidden: Vec<(&'static str, String)>,
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
            hidden: Vec::new(),
        }
    }
}
