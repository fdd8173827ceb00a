//! The page that explains each error code, for partners: `/errors` as HTML, and `docs/errors.md`, which a test compares.
//!
//! Made from the table in [`crate::http::codes`]; nothing is written twice.

use std::fmt::Write;

use strum::VariantArray;

use crate::http::codes::Code;

const TITLE: &str = "Errors";
const INTRODUCTION: &str = "Each error answer names its codes in `X-Service-Error`, of an item with its index (`qty_invalid; item=2`), of a parameter with its name (`limit_invalid; parameter=limit`), and links their sections of this page in `Link`. A code never changes its meaning; texts may change. With several codes, `external_order_id_taken` counts: the stored order stands whatever else is wrong with the request.";

/// The page as Markdown.
#[cfg(test)]
fn markdown() -> String {
    let mut page = format!(
        "<!-- Made from services/ingress/src/http/codes.rs: UPDATE_DOCS=1 cargo test -p ingress --lib errors -->\n# {TITLE}\n\n{INTRODUCTION}\n"
    );
    for code in Code::VARIANTS {
        let (name, facts, text) = (code.name(), facts(*code), code.explanation());
        let _ = write!(page, "\n## {name}\n\n{facts}\n\n{text}\n");
    }
    page
}

/// The page as HTML, below a head that names the style.
pub(crate) fn html() -> String {
    let mut page = format!("<h1>{TITLE}</h1>\n<p>{}</p>\n", inline(INTRODUCTION));
    for code in Code::VARIANTS {
        let (name, facts, text) = (code.name(), inline(&facts(*code)), inline(&code.explanation()));
        let _ = write!(page, "<h2 id=\"{name}\"><a href=\"#{name}\">{name}</a></h2>\n<p>{facts}</p>\n<p>{text}</p>\n");
    }
    page
}

/// The status, and whether something was bought.
fn facts(code: Code) -> String {
    let bought = code.bought().map_or(String::new(), |bought| format!(" Bought: {bought}."));
    format!("Status {}.{bought}", code.status().as_u16())
}

/// The Markdown of this list as HTML: it has code and bold spans only.
fn inline(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let spans = |text: &str, mark: &str, tag: &str| {
        let parts = text.split(mark).enumerate().map(|(index, part)| match index % 2 {
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
        assert!(stored == markdown(), "docs/errors.md is old: run this test with UPDATE_DOCS=1");
    }
}
