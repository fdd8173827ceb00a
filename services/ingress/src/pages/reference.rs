//! The reference for partners, made from the `OpenAPI` document, so that what it says stands once:
//! beside the code that answers the request. The explanations of the error codes come from
//! [`super::errors`].
//!
//! It is Markdown, which people and programs read alike. A part of the document that has a type
//! links the section of the type, so that a type stands once, too.

use std::{collections::BTreeSet, fmt::Write};

use serde_json::{Map, Value};

const INTRODUCTION: &str = "For developers who look something up: what each request does, takes and answers, which events come to you, and what each error code means. This page is made from [openapi.json](openapi.json). Begin with the [guide](partner-guide.md), which explains how to [sign](partner-guide.md#sign), to [order](partner-guide.md#order) and to [verify webhooks](partner-guide.md#webhooks). `{base_url}/reference` can send the requests. Paths are below `{base_url}/api/v1/api_partner`, or `{base_url}/v1/api_partner`.";
const SIGNING: &str =
    "Each request has these headers. The guide has a [test vector](partner-guide.md#sign).";
const HEADERS: &str = "Answers have these headers, where they apply:";
const ANSWERS: &str = "Every request can get these answers, beside those that its own section lists; 408, 413 and 415 only if it has a body:";
const EVENTS: &str = "These are the webhooks that we send. Each is signed and retried as the section [Webhook](#webhook) says. One that brings no eSIM is an event: it has a header `webhook-type`, which the webhook of an eSIM never has, and a `webhook-id` that begins with `evt_`. Acknowledge types that you do not know, and ignore them. Ask for events with `PUT /webhook` and for example `{\"events\": [\"topup.failed\", \"key.expiring\"]}`. We keep events for 30 days.";
const CODES: &str = "What each code in `X-Service-Error` means, and what to do. `Bought` stands at the codes that an order can get: `no` means that this request buys nothing, now or later, which says nothing about an earlier request with the same `external_order_id`; `maybe` means that the order may be stored and bought.";
/// Where a page says from which addresses webhooks come, which [`super::router`] knows.
pub(super) const SOURCES: &str = "<!-- source addresses -->";
/// The answers that every request can have, or every one with a body.
const EVERYWHERE: [&str; 10] = [
    "400", "401", "405", "408", "413", "415", "422", "429", "500", "503",
];

/// The page as Markdown. `document` is the `OpenAPI` document.
pub(crate) fn markdown(document: &str) -> String {
    let document: Value = serde_json::from_str(document).unwrap_or_default();
    let parts = [
        format!("# Partner API reference\n\n{INTRODUCTION}\n"),
        whole(&document["info"]).to_owned(),
        signing(&document),
        answers(&document),
        groups(&document),
        events(&document),
        types(&document),
        format!("## Error codes\n\n{CODES}\n\n{}", super::errors::list()),
    ];
    parts.map(|part| part.trim().to_owned() + "\n").join("\n")
}

fn signing(document: &Value) -> String {
    let schemes = &document["components"]["securitySchemes"];
    let headers = members(schemes).map(|(_, scheme)| {
        let name = scheme["name"].as_str().unwrap_or_default();
        format!("- `{name}`: {}\n", words(scheme))
    });
    let headers: String = headers.collect();
    format!("## Signing\n\n{SIGNING}\n\n{headers}")
}

/// The headers of answers, and the answers that many requests share.
fn answers(document: &Value) -> String {
    let headers = members(&document["components"]["headers"])
        .map(|(name, header)| format!("- `{name}`: {}\n", words(header)));
    let headers: String = headers.collect();
    let responses = requests(document).flat_map(|one| members(&one.about["responses"]));
    let shared: BTreeSet<(&str, &str)> = responses
        .filter(|(status, _)| EVERYWHERE.contains(&status.as_str()))
        .filter_map(|(status, response)| Some((status.as_str(), response["$ref"].as_str()?)))
        .collect();
    let mut text = format!("## Answers\n\n{HEADERS}\n\n{headers}\n{ANSWERS}\n\n");
    for (status, reference) in shared {
        let response = pointed(document, reference);
        answer(&mut text, status, response);
        for (name, header) in members(&response["headers"]) {
            let about = words(header);
            if !about.is_empty() {
                let _ = writeln!(text, "  - `{name}`: {about}");
            }
        }
    }
    text
}

/// A request of the document.
struct Request<'a> {
    method: String,
    path: &'a str,
    about: &'a Value,
}

fn requests(document: &Value) -> impl Iterator<Item = Request<'_>> {
    members(&document["paths"]).flat_map(|(path, methods)| {
        members(methods).map(move |(method, about)| Request {
            method: method.to_uppercase(),
            path,
            about,
        })
    })
}

/// The requests by their groups, in the order in which the document names the groups.
fn groups(document: &Value) -> String {
    let mut text = String::new();
    for tag in document["tags"].as_array().into_iter().flatten() {
        let name = tag["name"].as_str().unwrap_or_default();
        let _ = write!(text, "## {name}\n\n{}\n", whole(tag));
        if name == "Webhook" {
            let _ = write!(text, "{SOURCES}\n\n");
        }
        for one in requests(document).filter(|one| one.about["tags"][0] == *name) {
            request(&mut text, document, &one);
        }
    }
    text
}

/// A request: what it does, its parameters, the fields of its body, and its answers.
fn request(text: &mut String, document: &Value, one: &Request<'_>) {
    let Request {
        method,
        path,
        about,
    } = one;
    let summary = about["summary"].as_str().unwrap_or_default();
    let description = format!("{summary}. {}", words(about));
    let _ = write!(text, "### {method} {path}\n\n{}\n\n", description.trim());
    for parameter in about["parameters"].as_array().into_iter().flatten() {
        let name = parameter["name"].as_str().unwrap_or_default();
        let _ = writeln!(text, "- `{name}`: {}", words(parameter));
    }
    fields(text, document, body(about), " in the body");
    for (status, response) in members(&about["responses"]) {
        let is_everywhere = EVERYWHERE.contains(&status.as_str());
        match response["$ref"].as_str() {
            Some(_) if is_everywhere => {}
            Some(reference) => answer(text, status, pointed(document, reference)),
            None => answer(text, status, response),
        }
    }
    text.push('\n');
}

/// The schema of a request's body.
fn body(request: &Value) -> &Value {
    &request["requestBody"]["content"]["application/json"]["schema"]
}

/// An answer in a line: its status, what it means, and what it holds.
fn answer(text: &mut String, status: &str, response: &Value) {
    let schema = &response["content"]["application/json"]["schema"];
    let holds = if schema.is_null() {
        String::new()
    } else {
        format!(" ({})", kind(schema))
    };
    let _ = writeln!(text, "- {status}: {}{holds}", words(response));
}

/// The webhooks that we send.
fn events(document: &Value) -> String {
    let mut text = format!("## Events\n\n{EVENTS}\n\n");
    for (_, methods) in members(&document["webhooks"]) {
        let event = &methods["post"];
        let summary = event["summary"].as_str().unwrap_or_default();
        let _ = write!(text, "### {summary}\n\n{}\n\n", words(event));
        for header in event["parameters"].as_array().into_iter().flatten() {
            let name = header["name"].as_str().unwrap_or_default();
            let example = header["example"].as_str().unwrap_or_default();
            let _ = writeln!(text, "- `{name}: {example}`: {}", words(header));
        }
        let _ = writeln!(text, "- body: {}\n", kind(body(event)));
    }
    text
}

/// The types that requests and answers hold, but those that are only the body of a request, which
/// stand there.
fn types(document: &Value) -> String {
    let bodies: Vec<&str> = requests(document)
        .filter_map(|one| body(one.about)["$ref"].as_str())
        .collect();
    let written = document.to_string();
    let mut text = "## Types\n\n".to_owned();
    for (name, schema) in members(&document["components"]["schemas"]) {
        let reference = format!("#/components/schemas/{name}");
        let in_bodies = bodies.iter().filter(|body| **body == reference).count();
        if in_bodies > 0 && written.matches(&format!("\"{reference}\"")).count() == in_bodies {
            continue;
        }
        let _ = write!(text, "### Type `{name}`\n\n{}\n\n", words(schema));
        let values = schema["enum"].as_array().or(schema["examples"].as_array());
        match values {
            // The codes have a section of their own.
            Some(_) if name == "ErrorCode" => {
                text.push_str("The [codes](#error-codes) are below.\n");
            }
            Some(values) => {
                let values = values.iter().filter_map(Value::as_str);
                let values: Vec<_> = values.map(|value| format!("`{value}`")).collect();
                let _ = writeln!(text, "Values: {}", values.join(", "));
            }
            None => fields(&mut text, document, schema, ""),
        }
        text.push('\n');
    }
    text
}

/// The fields of a schema, each in a line. Those of its parts and of what it refers to are its own.
fn fields(text: &mut String, document: &Value, schema: &Value, place: &str) {
    if let Some(reference) = schema["$ref"].as_str() {
        return fields(text, document, pointed(document, reference), place);
    }
    for part in schema["allOf"].as_array().into_iter().flatten() {
        fields(text, document, part, place);
    }
    let required = schema["required"].as_array();
    for (name, field) in members(&schema["properties"]) {
        let is_optional =
            !place.is_empty() && !required.is_some_and(|names| names.iter().any(|one| one == name));
        let optional = if is_optional { ", optional" } else { "" };
        let about = words(field);
        let about = if about.is_empty() {
            about
        } else {
            format!(": {about}")
        };
        let kind = kind(field);
        let _ = writeln!(text, "- `{name}`{place} ({kind}{optional}){about}");
    }
}

/// What a schema is, in words; a type with a section of its own as a link to it.
fn kind(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap_or_default();
        return format!("[`{name}`](#type-{})", name.to_lowercase());
    }
    if let Some(alternatives) = schema["oneOf"].as_array() {
        let kinds: BTreeSet<_> = alternatives.iter().map(kind).collect();
        return kinds.into_iter().collect::<Vec<_>>().join(" or ");
    }
    let names: Vec<_> = match &schema["type"] {
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        name => name.as_str().into_iter().collect(),
    };
    let names = names.into_iter().map(|name| match name {
        "array" => format!("list of {}", kind(&schema["items"])),
        "string" => schema["format"].as_str().unwrap_or(name).to_owned(),
        name => name.to_owned(),
    });
    names.collect::<Vec<_>>().join(" or ")
}

/// What a reference points to.
fn pointed<'a>(document: &'a Value, reference: &str) -> &'a Value {
    let found = document.pointer(reference.trim_start_matches('#'));
    found.unwrap_or(&Value::Null)
}

/// The members of an object with their names.
fn members(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
    object.as_object().into_iter().flat_map(Map::iter)
}

/// The description of a part of the document in one line. That of an alternative to null counts.
fn words(part: &Value) -> String {
    let alternatives = part["oneOf"].as_array().into_iter().flatten();
    let mut described = std::iter::once(part).chain(alternatives);
    let text = described.find_map(|one| one["description"].as_str());
    let text = text.unwrap_or_default().split_whitespace();
    text.collect::<Vec<_>>().join(" ")
}

/// The description of a part of the document as it is.
fn whole(part: &Value) -> &str {
    part["description"].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use domain::{
        event::{EventKind, NoticeKind},
        sandbox, sandbox_option,
    };
    use strum::VariantArray;

    use super::*;
    use crate::http::codes::ErrorCode;

    fn document() -> String {
        crate::self_service::openapi::document("Service").unwrap()
    }

    /// Whatever a partner may look for is on the page, although nobody writes the page.
    #[test]
    fn the_page_has_each_request_event_type_error_code_and_sandbox_option() {
        let document = document();
        let page = markdown(&document);
        let document: Value = serde_json::from_str(&document).unwrap();
        let requests =
            requests(&document).map(|one| format!("\n### {} {}\n", one.method, one.path));
        let events = members(&document["webhooks"])
            .map(|(_, event)| format!("\n### {}\n", event["post"]["summary"].as_str().unwrap()));
        let kinds = EventKind::ALL.iter().map(|kind| kind.as_str());
        let kinds = kinds.chain(NoticeKind::ALL.iter().map(|kind| kind.as_str()));
        let kinds = kinds.map(|name| format!("`{name}`"));
        let codes = ErrorCode::VARIANTS
            .iter()
            .map(|code| format!("\n- [`{0}`](errors#{0}): Status ", code.name()));
        let options = sandbox::OPTIONS.iter().map(|(name, outcome)| {
            format!("\n| `{name}` | `{}` | {outcome} |\n", sandbox_option(name))
        });
        let parts = requests
            .chain(events)
            .chain(kinds)
            .chain(codes)
            .chain(options);
        let missing: Vec<String> = parts.filter(|part| !page.contains(part)).collect();
        assert!(missing.is_empty(), "{missing:#?}");
    }

    #[test]
    fn the_page_says_what_a_request_takes_and_answers() {
        let page = markdown(&document());
        for part in [
            "\n## Orders\n",
            "\n### POST /orders\n\nCreate an order. ",
            "\n- `since` in the body (date-time): ",
            "\n- `until` in the body (date-time or null, optional): ",
            "\n- 409: ",
            "\n- `limit`: ",
            "\n- 200: The order ([`Order`](#type-order))\n",
            "\n- `topups` (list of [`Topup`](#type-topup))\n",
            "\n- `X-Service-Signature`: ",
            "\n- 503: ",
        ] {
            assert!(page.contains(part), "{part}");
        }
    }
}
