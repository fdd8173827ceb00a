//! The explanation of each error code for partners: `/errors` as HTML, a list in the reference, and
//! `docs/errors.md`, which a test compares with the generated text.
//!
//! All are generated from [`crate::http::codes`] and [`crate::http::explanations`], so that a code
//! and its explanation cannot differ.

use std::fmt::Write;

use strum::VariantArray;

use crate::http::{codes::ErrorCode, explanations::explanation};

const TITLE: &str = "Errors";
const INTRODUCTION: &str = "For developers whose request got an error: what each code in `X-Service-Error` means, and what to do. Let your program decide by the code, because a code never changes its meaning, while texts may change. `Bought` is shown for the codes that an order can get. `no` means that this request buys nothing, now or later; it says nothing about an earlier request with the same `external_order_id`. `maybe` means that the order may be stored and bought.";

/// The page as Markdown.
#[cfg(test)]
fn markdown() -> String {
    let mut page = format!(
        "<!-- Made from services/ingress/src/http/codes.rs: UPDATE_DOCS=1 cargo test -p ingress --lib errors -->\n# {TITLE}\n\n{INTRODUCTION}\n"
    );
    for code in ErrorCode::VARIANTS {
        let name = code.name();
        let facts = facts(*code);
        let text = explanation(*code);
        let _ = write!(page, "\n## {name}\n\n{facts}\n\n{text}\n");
    }
    page
}

/// The page as HTML, without the head that names the style.
pub(crate) fn html() -> String {
    let mut page = format!("<h1>{TITLE}</h1>\n<p>{}</p>\n", inline(INTRODUCTION));
    for code in ErrorCode::VARIANTS {
        let name = code.name();
        let facts = inline(&facts(*code));
        let text = inline(explanation(*code));
        let _ = write!(
            page,
            "<h2 id=\"{name}\"><a href=\"#{name}\">{name}</a></h2>\n<p>{facts}</p>\n<p>{text}</p>\n"
        );
    }
    page
}

/// The codes as a list in Markdown, for the reference.
pub(super) fn list() -> String {
    let lines = ErrorCode::VARIANTS.iter().map(|code| {
        let name = code.name();
        let facts = facts(*code);
        let text = explanation(*code);
        format!("- [`{name}`](errors#{name}): {facts} {text}\n")
    });
    lines.collect()
}

/// The status of an error, and whether something was bought.
fn facts(code: ErrorCode) -> String {
    let bought = code
        .bought()
        .map_or(String::new(), |bought| format!(" Bought: {bought}."));
    format!("Status {}.{bought}", code.status().as_u16())
}

/// Turns the Markdown of an explanation into HTML. Explanations have spans of code and bold text
/// only, so nothing else is translated.
fn inline(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let spans = |text: &str, mark: &str, tag: &str| {
        let parts = text
            .split(mark)
            .enumerate()
            .map(|(index, part)| match index % 2 {
                0 => part.to_owned(),
                _ => format!("<{tag}>{part}</{tag}>"),
            });
        parts.collect::<String>()
    };
    spans(&spans(&text, "`", "code"), "**", "strong")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `UPDATE_DOCS=1` writes the file.
    #[test]
    fn the_stored_page_is_the_generated_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, markdown()).unwrap();
        }
        let stored = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            stored == markdown(),
            "docs/errors.md is old: run this test with UPDATE_DOCS=1"
        );
    }
}
