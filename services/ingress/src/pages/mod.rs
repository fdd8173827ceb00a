//! What needs no key: the partners' documentation (the `OpenAPI` document and its page, the page of errors, the guide
//! with its examples), and the [QR codes](qr).
//!
//! Nothing here comes from another host. The page of the document signs requests in the browser; its policy lets it load
//! and reach this service only. [`crate::http::routes`] merges the router.

use axum::{Router, http::header, routing::get};
use bytes::Bytes;

mod errors;
pub(crate) mod qr;

/// The page that explains each error code.
pub(crate) const ERRORS: &str = "/errors";
/// Only this service is loaded from and sent to; the pages can't be framed, and forms are never submitted.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'none'";
const HTML: &str = "text/html; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
const MARKDOWN: &str = "text/markdown; charset=utf-8";
/// The head of the page of errors.
const HEAD: &str = "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
    <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Errors</title>\n\
    <link rel=\"stylesheet\" href=\"pages.css\">\n<main>\n";

/// The page of an example of the guide.
macro_rules! example {
    ($name:literal) => {
        (concat!("/examples/", $name), TEXT, include_str!(concat!("../../../../docs/examples/", $name)))
    };
}

/// Each page: its path, its type and its text, with the neutral brand in header names.
fn pages(document: &str) -> [(&'static str, &'static str, String); 12] {
    let errors = format!("{HEAD}{}</main>\n</html>\n", errors::html());
    let guide = include_str!("../../../../docs/partner-guide.md").replace("](errors.md", "](errors");
    [
        ("/openapi.json", "application/json", document),
        ("/reference", HTML, include_str!("reference.html")),
        ("/reference.js", "text/javascript; charset=utf-8", include_str!("reference.js")),
        ("/pages.css", "text/css; charset=utf-8", include_str!("pages.css")),
        (ERRORS, HTML, &errors),
        ("/llms.txt", TEXT, include_str!("llms.txt")),
        ("/partner-guide.md", MARKDOWN, &guide),
        example!("esim.sh"),
        example!("esim.py"),
        example!("esim.mjs"),
        example!("esim.go"),
        example!("esim.php"),
    ]
    .map(|(path, kind, text)| (path, kind, text.to_owned()))
}

/// The router. `document` is the `OpenAPI` document; `brand` is part of all header names.
pub(crate) fn router(brand: &str, document: &str) -> Router {
    let mut router = Router::new();
    for (path, kind, text) in pages(document) {
        let text = Bytes::from(text.replace("X-Service-", &format!("X-{brand}-")));
        let headers = [
            (header::CONTENT_TYPE, kind),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
        ];
        router = router.route(path, get(move || std::future::ready((headers.clone(), text.clone()))));
    }
    router
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The targets of links in a text, by the characters around them.
    fn targets<'a>(text: &'a str, before: &str, after: char) -> Vec<&'a str> {
        text.split(before).skip(1).filter_map(|part| part.split(after).next()).collect()
    }

    #[test]
    fn every_link_leads_to_a_served_page() {
        let pages = pages("{}");
        for (route, kind, text) in &pages {
            let mut links = match *kind {
                HTML => [targets(text, "href=\"", '"'), targets(text, "src=\"", '"')].concat(),
                MARKDOWN | TEXT if !route.starts_with("/examples") => targets(text, "](", ')'),
                _ => continue,
            };
            links.retain(|link| !link.starts_with("https://") && !link.starts_with('#'));
            for link in links {
                let path = link.split('#').next().unwrap_or_default();
                let path = format!("/{}", path.trim_start_matches('/'));
                assert!(pages.iter().any(|(route, ..)| *route == path), "{route} links {link}");
            }
        }
    }

    #[test]
    fn the_pages_load_nothing_from_elsewhere_and_hold_no_script() {
        let pages = pages("{}");
        let (markup, _): (Vec<_>, Vec<_>) = pages.iter().partition(|(_, kind, _)| *kind == HTML);
        assert_eq!(markup.len(), 2);
        for (route, _, text) in markup {
            assert!(!text.contains("http://") && !text.contains("https://"), "{route}");
            assert_eq!(
                text.matches("<script").count(),
                text.matches("<script type=\"module\" src=\"reference.js\">").count()
            );
            assert!(!text.contains(" style=") && !text.contains(" onclick="), "{route}");
        }
        let script = include_str!("reference.js");
        for risky in ["innerHTML", "localStorage", "sessionStorage", "eval(", "cookie"] {
            assert!(!script.contains(risky), "{risky}");
        }
    }
}
