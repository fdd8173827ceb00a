//! The refused requests of a partner by cause: what each code means, a text for the partner, and
//! the newest requests. They are those of [`accounts::refused`], as
//! `esimctl partner show --refused` lists them.

use std::collections::BTreeMap;

use accounts::{
    partners,
    refused::{self, RefusedRequestView},
};
use askama::Template;
use axum::{extract::State, response::Response};
use domain::PartnerId;
use pg::PgConnection;

use crate::{
    App,
    access::{Viewer, Visit},
    format::{address, counted, number, utc},
    pages::partner::PartnerHead,
    problem::Problem,
    times::{TimeElement, Times},
    view::{PathArgument, Shell, page},
};

/// How many requests of each kind are read.
const READ: u32 = 200;
/// How many requests of a cause are shown at first.
const NEWEST: usize = 3;
/// What each error code means, as partners read it.
const MEANINGS: &str = include_str!("../../../../docs/errors.md");

#[derive(Template)]
#[template(path = "refused.html")]
struct Page {
    shell: Shell,
    head: PartnerHead,
    access_key: String,
    causes: Vec<Cause>,
    most: u32,
    /// The code and the order id, request id or part of a path that the page is about, if it is
    /// about one.
    code: String,
    order: String,
    /// What is known of the requests that name it.
    answer: Option<String>,
}

/// A refused request.
pub(crate) struct RefusedRow {
    pub(crate) partner_id: String,
    /// The name of the partner.
    pub(crate) partner: String,
    pub(crate) at: TimeElement,
    pub(crate) status: i32,
    pub(crate) errors: String,
    /// The order id that the request has named, or why it is not known.
    pub(crate) external_order_id: String,
    /// The search for that id, which finds an order that came later.
    pub(crate) find: Option<String>,
    pub(crate) request: String,
    pub(crate) request_id: String,
    /// What is known of its sender, and how many like it are missing.
    pub(crate) note: String,
}

/// The requests that were refused with one code.
struct Cause {
    code: String,
    status: i32,
    number: String,
    first: TimeElement,
    last: TimeElement,
    meaning: String,
    /// The text for the partner.
    sentence: String,
    rows: Vec<RefusedRow>,
    /// The page with all of them, if not all are shown.
    all: Option<String>,
}

/// What the list of errors says of a code: its paragraphs, without marks.
fn meaning(code: &str) -> Option<String> {
    let (_, rest) = MEANINGS.split_once(&format!("\n## {code}\n"))?;
    let section = rest.split("\n## ").next()?;
    let paragraphs = section.split("\n\n").map(str::trim);
    let said: Vec<&str> = paragraphs
        .filter(|one| !one.is_empty() && !one.starts_with("Status "))
        .collect();
    Some(said.join(" ").replace('`', ""))
}

/// The first of the codes of a request.
fn code(one: &RefusedRequestView) -> &str {
    let code = one.errors.split([';', ',']).next().unwrap_or_default();
    code.trim()
}

/// Whether a request is about what somebody asks for: its order id or a part of that, its request
/// id, or a part of its path, which names the order or the eSIM of a request about one.
fn is_about(one: &RefusedRequestView, asked: &str) -> bool {
    let asked = asked.to_lowercase();
    let id = one.external_order_id.as_deref().unwrap_or_default();
    let request: Result<uuid::Uuid, _> = asked.parse();
    id.to_lowercase().contains(&asked)
        || request.is_ok_and(|request| request == one.request_id)
        || one.path.to_lowercase().contains(&asked)
}

/// How many of the requests are about an order, and which ones may be, too.
fn answer(all: &[RefusedRequestView], asked: &str) -> String {
    let about = all.iter().filter(|one| is_about(one, asked)).count();
    let unknown = all.iter().filter(|one| {
        one.external_order_id.is_none() && one.kind != refused::RefusedKind::Other.as_str()
    });
    let unknown = unknown.count();
    let found = match about {
        0 => format!("None of the requests that are kept names “{asked}”."),
        _ => format!(
            "{} “{asked}”.",
            counted(about, "request names", "requests name")
        ),
    };
    let more = match unknown {
        0 => "Each of the others names another order.".to_owned(),
        _ => format!(
            "Of {} nobody knows the order, because the signature was not valid or the body could not be read: compare the \
             times.",
            counted(unknown, "request", "requests")
        ),
    };
    format!("{found} {more}")
}

/// The causes, that with the newest request first. If one is `chosen`, only it, with all its
/// requests; and only requests about what somebody `asked` for.
fn causes(
    path: &str,
    all: Vec<RefusedRequestView>,
    (chosen, asked): (Option<&str>, Option<&str>),
    times: &Times,
) -> Vec<Cause> {
    let mut groups: BTreeMap<(String, i32), Vec<RefusedRequestView>> = BTreeMap::new();
    for one in all {
        if asked.is_some_and(|asked| !is_about(&one, asked)) {
            continue;
        }
        let key = (code(&one).to_owned(), one.status);
        if chosen.is_none_or(|chosen| key.0 == chosen) {
            groups.entry(key).or_default().push(one);
        }
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, rows)| std::cmp::Reverse(rows.first().map(|one| one.at)));
    let causes = groups.into_iter().filter_map(|((code, status), rows)| {
        let newest = rows.first()?;
        let oldest = rows.last()?;
        let unrecorded: i64 = rows.iter().map(|one| one.unrecorded).sum();
        let requests = rows.len() + usize::try_from(unrecorded).unwrap_or_default();
        let meaning = meaning(&code)
            .unwrap_or_else(|| "The list of error codes has no such code.".to_owned());
        let named = newest.external_order_id.as_ref().map_or_else(String::new, |id| {
            format!(" (of order {id})")
        });
        let sentence = format!(
            "{} of yours {} answered with status {status} and the code {code}, the last one at {} UTC{named}, with the \
             X-Request-Id {}. {meaning}",
            counted(requests, "request", "requests"),
            if requests == 1 { "was" } else { "were" },
            utc(newest.at),
            newest.request(),
        );
        let shown = if chosen.or(asked).is_some() {
            rows.len()
        } else {
            NEWEST
        };
        let is_more = rows.len() > shown;
        let first = times.clock(oldest.at);
        let last = times.clock(newest.at);
        let rows = rows.into_iter().take(shown);
        Some(Cause {
            number: number(requests),
            first,
            last,
            meaning,
            sentence,
            rows: rows.map(|one| refused_row(one, times)).collect(),
            all: is_more.then(|| format!("{path}?code={code}")),
            code,
            status,
        })
    });
    causes.collect()
}

pub(crate) async fn show(
    State(app): State<App>,
    given: PathArgument,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let id: PartnerId = given.id("a partner")?;
    let read = async |connection: &mut PgConnection| {
        let partner = partners::show(&mut *connection, &id.to_string()).await?;
        let refused = refused::list(connection, id, READ).await?;
        Ok::<_, pg::Error>(partner.map(|partner| (partner, refused)))
    };
    let found = app.database().run(read).await?;
    let (partner, refused) = found.ok_or_else(|| given.missing("partner"))?;
    let path = format!("/partners/{id}/refused");
    let chosen = visit.query.get("code");
    let asked = visit.query.get("order");
    page(&Page {
        code: chosen.unwrap_or_default().to_owned(),
        order: asked.unwrap_or_default().to_owned(),
        answer: asked.map(|asked| answer(&refused, asked)),
        shell: Shell::new(&app, &visit.session, "/partners", &partner.name),
        causes: causes(&path, refused, (chosen, asked), &visit.session.times),
        head: PartnerHead::new(&partner, "refused", &visit.session),
        access_key: partner.access_key,
        most: READ,
    })
}

pub(crate) fn refused_row(one: RefusedRequestView, times: &Times) -> RefusedRow {
    let unsigned = (one.kind == refused::RefusedKind::Unsigned.as_str())
        .then(|| unsigned(&one.reason).to_owned());
    let limit = (!one.errors.starts_with(&one.reason)).then(|| format!("limit: {}", one.reason));
    let unrecorded = (one.unrecorded > 0).then(|| {
        let number = number(one.unrecorded);
        format!("{number} more of this kind right before it were not kept")
    });
    let notes: Vec<String> = [unsigned, limit, unrecorded]
        .into_iter()
        .flatten()
        .collect();
    RefusedRow {
        partner: (one.partner.clone()).unwrap_or_else(|| one.partner_id.to_string()),
        partner_id: one.partner_id.to_string(),
        at: times.both(one.at),
        status: one.status,
        request: format!("{} {}", one.method, one.path),
        request_id: one.request(),
        note: notes.join("; "),
        errors: one.errors,
        find: (one.external_order_id.as_ref()).map(|id| address("/find", [("q", id.as_str())])),
        external_order_id: one.external_order_id.unwrap_or_else(|| {
            let is_other = one.kind == refused::RefusedKind::Other.as_str();
            if is_other { "–" } else { "not known" }.to_owned()
        }),
    }
}

/// What is known of a request that does not prove its sender, from the first error that it had. The
/// signature is looked at last, so most of them say nothing about it.
fn unsigned(reason: &str) -> &'static str {
    match reason {
        "signature_invalid" => "the signature was not valid, so anybody may have sent it",
        // The key is one that we know, because other requests are not kept.
        "access_key_unknown" => {
            "the key had ended or the account was disabled, so the signature was not looked at, and anybody may have sent it"
        }
        _ => "refused before the signature was looked at, so anybody may have sent it",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_a_meaning_without_marks() {
        for code in ["qty_invalid", "signature_invalid", "rate_limited"] {
            let meaning = meaning(code).unwrap();
            assert!(meaning.len() > 20 && !meaning.contains('`'), "{meaning}");
            assert!(!meaning.contains("Status"), "{meaning}");
        }
        assert_eq!(meaning("no_such_code"), None);
    }

    /// They are parts of texts for partners, in which nothing is left to be filled in.
    #[test]
    fn no_meaning_is_a_template() {
        let codes = MEANINGS.lines().filter_map(|line| line.strip_prefix("## "));
        let codes: Vec<&str> = codes.collect();
        assert!(codes.len() > 50, "{codes:?}");
        for code in codes {
            let meaning = meaning(code).unwrap();
            assert!(!meaning.contains(['<', '>']), "{code}: {meaning}");
        }
    }
}
