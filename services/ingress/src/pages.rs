//! What needs no key: the documentation for partners (the `OpenAPI` document and the reference that
//! is made from it, the page of errors, the guide with its examples, the public keys of webhooks),
//! the [QR codes](qr), and the [pages from which travellers install](install).
//!
//! Guarantees: the pages load nothing from other hosts. The page of the document signs requests in
//! the browser with the partner's keys, so its content security policy lets it load from and send
//! to this service only. Anyone can ask for these paths, so they use no database connection;
//! the pages of travellers use a single one.
//!
//! [`crate::routes`] merges the router.

use axum::{Router, http::header, routing::get};
use bytes::Bytes;
use signing::ed25519::PublicKey;

mod errors;
pub(crate) mod install;
pub(crate) mod qr;
mod reference;
pub(crate) mod turns;

use self::reference::SOURCES;

/// The path of the page that explains each error code.
pub(crate) const ERRORS: &str = "/errors";
/// The path of the public keys with which partners verify webhooks. It needs no key, because who
/// verifies a webhook may be a program that holds none of the partner's secrets.
const WEBHOOK_KEYS: &str = "/.well-known/webhook-keys.json";
/// The content security policy of all pages. They load from and send to this service only, cannot
/// be framed, and never submit forms. A page on which partners enter their secret key must not be
/// able to send it elsewhere.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'none'";
const HTML: &str = "text/html; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
const MARKDOWN: &str = "text/markdown; charset=utf-8";
/// What the page of errors begins with.
const HEAD: &str = "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
    <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Errors</title>\n\
    <link rel=\"stylesheet\" href=\"pages.css\">\n<main>\n";

/// An example of the guide as a page.
macro_rules! example {
    ($name:literal) => {
        (
            concat!("/examples/", $name),
            TEXT,
            include_str!(concat!("../../../docs/examples/", $name)),
        )
    };
}

/// Each page: its path, its type and its text. Header names have the neutral brand, which
/// [`router`] replaces.
fn pages(document: &str, keys: &str) -> [(&'static str, &'static str, String); 15] {
    let errors = format!("{HEAD}{}</main>\n</html>\n", errors::html());
    // In the repository the guide links files: the source of the reference, and the errors as
    // Markdown.
    let guide = include_str!("../../../docs/partner-guide.md")
        .replace("](openapi.json", "](partner-reference.md")
        .replace("](errors.md", "](errors");
    let reference = reference::markdown(document);
    let summary = include_str!("pages/llms.txt");
    // All texts in one, for programs that read one file only.
    let everything = [summary, &guide, &reference].join("\n\n");
    [
        ("/openapi.json", "application/json", document),
        (WEBHOOK_KEYS, "application/json", keys),
        ("/reference", HTML, include_str!("pages/reference.html")),
        (
            "/reference.js",
            "text/javascript; charset=utf-8",
            include_str!("pages/reference.js"),
        ),
        (
            "/pages.css",
            "text/css; charset=utf-8",
            include_str!("pages/pages.css"),
        ),
        (ERRORS, HTML, &errors),
        ("/llms.txt", TEXT, summary),
        ("/llms-full.txt", TEXT, &everything),
        ("/partner-guide.md", MARKDOWN, &guide),
        ("/partner-reference.md", MARKDOWN, &reference),
        example!("esim.sh"),
        example!("esim.py"),
        example!("esim.mjs"),
        example!("esim.go"),
        example!("esim.php"),
    ]
    .map(|(path, kind, text)| (path, kind, text.to_owned()))
}

/// The public keys of webhooks as JSON.
fn keys_json(keys: &[PublicKey]) -> String {
    let keys: Vec<String> = keys.iter().map(PublicKey::to_text).collect();
    serde_json::json!({ "keys": keys }).to_string()
}

/// What the pages say about the addresses from which webhooks come.
fn source_sentence(sources: &[String]) -> String {
    if sources.is_empty() {
        "Ask us for the addresses from which our webhooks come.".into()
    } else {
        format!("Our webhooks come from {}.", sources.join(", "))
    }
}

/// Makes the router. `document` is the `OpenAPI` document. `brand` replaces the neutral brand in
/// the header names of all pages. `sources` are the addresses from which webhooks come, for the
/// reference, and `keys` the public keys of webhooks.
pub(crate) fn router(
    brand: &str,
    document: &str,
    sources: &[String],
    keys: &[PublicKey],
) -> Router {
    let mut router = Router::new();
    let sources = source_sentence(sources);
    for (path, kind, text) in pages(document, &keys_json(keys)) {
        let text = text.replace("X-Service-", &format!("X-{brand}-"));
        let text = Bytes::from(text.replace(SOURCES, &sources));
        let headers = [
            (header::CONTENT_TYPE, kind),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
        ];
        router = router.route(
            path,
            get(move || std::future::ready((headers.clone(), text.clone()))),
        );
    }
    router
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The targets of links in a text, by the characters around them.
    fn targets<'a>(text: &'a str, before: &str, after: char) -> Vec<&'a str> {
        text.split(before)
            .skip(1)
            .filter_map(|part| part.split(after).next())
            .collect()
    }

    /// Where links into a page can lead: its headings in Markdown, its ids in HTML.
    fn anchors(kind: &str, text: &str) -> Vec<String> {
        if kind == HTML {
            let ids = targets(text, " id=\"", '"');
            return ids.into_iter().map(str::to_owned).collect();
        }
        let lines = text.lines().filter(|line| line.starts_with('#'));
        let names = lines.map(|line| line.trim_start_matches('#').trim().to_lowercase());
        let kept = |letter: &char| letter.is_alphanumeric() || " -_".contains(*letter);
        let anchor = |name: String| {
            name.chars()
                .filter(kept)
                .collect::<String>()
                .replace(' ', "-")
        };
        names.map(anchor).collect()
    }

    #[test]
    fn every_link_leads_to_a_served_page() {
        let document = crate::self_service::openapi::document("Service").unwrap();
        let pages = pages(&document, "{}");
        for (route, kind, text) in &pages {
            let mut links = match *kind {
                HTML => [targets(text, "href=\"", '"'), targets(text, "src=\"", '"')].concat(),
                MARKDOWN | TEXT if !route.starts_with("/examples") => targets(text, "](", ')'),
                _ => continue,
            };
            links.retain(|link| !link.starts_with("https://"));
            for link in links {
                let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
                let path = match path {
                    "" => (*route).to_owned(),
                    path => format!("/{}", path.trim_start_matches('/')),
                };
                let page = pages.iter().find(|(route, ..)| *route == path);
                let leads = page.is_some_and(|(_, kind, text)| {
                    anchor.is_empty() || anchors(kind, text).iter().any(|one| one == anchor)
                });
                assert!(leads, "{route} links {link}");
            }
        }
    }

    #[test]
    fn the_public_keys_are_a_list() {
        let key = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=";
        let keys = [PublicKey::parse(key).unwrap()];
        assert_eq!(keys_json(&keys), format!(r#"{{"keys":["{key}"]}}"#));
        assert_eq!(keys_json(&[]), r#"{"keys":[]}"#);
    }

    /// Whether the Ingress objects of Kubernetes forward this path to ingress.
    fn kubernetes_forwards(path: &str) -> bool {
        let manifest = include_str!("../../../deploy/kubernetes/base/http.yaml");
        let field = |rule: &str, name: &str| {
            let line = rule.lines().find_map(|line| line.trim().strip_prefix(name));
            line.unwrap_or_else(|| panic!("no {name} in {rule}"))
                .trim()
                .to_owned()
        };
        manifest.split("- path:").skip(1).any(|rule| {
            let allowed = rule.lines().next().unwrap_or_default().trim();
            let matches = match field(rule, "pathType:").as_str() {
                "Exact" => path == allowed,
                "Prefix" => {
                    let rest = path.strip_prefix(allowed.trim_end_matches('/'));
                    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                }
                other => panic!("this test does not know the pathType {other}"),
            };
            matches && field(rule, "name:") == "ingress"
        })
    }

    /// Whether `HAProxy` forwards this path to ingress. It forwards what no rule of its public
    /// frontend refuses, answers or sends elsewhere. Several backends lead to ingress.
    fn proxy_forwards(path: &str) -> bool {
        let configuration = include_str!("../../../deploy/proxy/haproxy.cfg");
        let (_, public) = configuration.split_once("frontend public\n").unwrap();
        let (public, _) = public.split_once("\nbackend ").unwrap();
        let mut rules = public.lines().map(str::trim).filter(|line| {
            // A client that exceeds a limit is refused whatever it asks for.
            let harmless = [
                "set-var(",
                "disable-l7-retry",
                "track-sc1 ",
                "deny deny_status 503 ",
            ];
            line.strip_prefix("use_backend ")
                .is_some_and(|backend| !backend.starts_with("ingress"))
                || line
                    .strip_prefix("http-request ")
                    .is_some_and(|action| !harmless.iter().any(|one| action.starts_with(one)))
        });
        assert!(public.contains("default_backend ingress"));
        rules.all(|rule| {
            let condition = rule.split_once(" if { path_beg ");
            let prefix = condition.and_then(|(_, rest)| rest.strip_suffix(" }"));
            let prefix =
                prefix.unwrap_or_else(|| panic!("this test does not know the rule {rule}"));
            !path.starts_with(prefix)
        })
    }

    #[test]
    fn the_reference_says_where_webhooks_come_from() {
        let document = crate::self_service::openapi::document("Service").unwrap();
        for (route, _, text) in pages(&document, "{}") {
            let places = usize::from(matches!(
                route,
                "/reference" | "/partner-reference.md" | "/llms-full.txt"
            ));
            assert_eq!(text.matches(SOURCES).count(), places, "{route}");
        }
        assert!(source_sentence(&[]).contains("Ask us"));
        let two = ["192.0.2.1".to_owned(), "2001:db8::/48".to_owned()];
        assert!(source_sentence(&two).contains("192.0.2.1, 2001:db8::/48"));
    }

    /// A page that a proxy in front of ingress does not forward works in all other tests, and
    /// nowhere else.
    #[test]
    fn each_page_is_forwarded_by_the_proxies() {
        for (path, ..) in pages("{}", "{}") {
            assert!(
                kubernetes_forwards(path),
                "{path} is missing in deploy/kubernetes/base/http.yaml"
            );
            assert!(
                proxy_forwards(path),
                "deploy/proxy/haproxy.cfg does not forward {path}"
            );
        }
        // The page of a traveller, and what it loads.
        for path in ["/i/EMAs6JVpXs4UNFSj2jwBb8b1Zk9XnTgGqyXh", "/i/page.css"] {
            assert!(kubernetes_forwards(path) && proxy_forwards(path), "{path}");
        }
        for path in [
            "/nowhere",
            "/references",
            "/errors/more",
            "/callbacks/sandbox",
        ] {
            assert!(!kubernetes_forwards(path), "{path}");
        }
        assert!(!proxy_forwards("/callbacks/sandbox"));
    }

    #[test]
    fn the_pages_load_nothing_from_elsewhere_and_hold_no_script() {
        let pages = pages("{}", "{}");
        let (markup, _): (Vec<_>, Vec<_>) = pages.iter().partition(|(_, kind, _)| *kind == HTML);
        assert_eq!(markup.len(), 2);
        for (route, _, text) in markup {
            assert!(
                !text.contains("http://") && !text.contains("https://"),
                "{route}"
            );
            assert_eq!(
                text.matches("<script").count(),
                text.matches("<script type=\"module\" src=\"reference.js\">")
                    .count()
            );
            assert!(
                !text.contains(" style=") && !text.contains(" onclick="),
                "{route}"
            );
        }
        let script = include_str!("pages/reference.js");
        for risky in [
            "innerHTML",
            "localStorage",
            "sessionStorage",
            "eval(",
            "cookie",
        ] {
            assert!(!script.contains(risky), "{risky}");
        }
    }
}
