//! The reference of the requests for partners, made from the `OpenAPI` document, so that what it says stands once:
//! beside the code that answers the request.

use std::{collections::BTreeMap, fmt::Write};

use serde_json::Value;

const INTRODUCTION: &str = "For developers who look up one request: what it does, what it takes and what it answers. The [guide](partner-guide.md) explains how to [sign](partner-guide.md#sign), how to [order](partner-guide.md#order) and how [errors](partner-guide.md#errors) look; [each code](errors) has a section of its own. `{base_url}/reference` shows the fields of every answer, too, and can send the requests. Paths are below `{base_url}/api/v1/api_partner`. Statuses that every request can have are left out.";
/// The statuses that every request can have, or every one with a body.
const EVERYWHERE: [&str; 11] = [
    "400", "401", "404", "405", "408", "413", "415", "422", "429", "500", "503",
];

/// The page as Markdown. `document` is the `OpenAPI` document.
pub(crate) fn markdown(document: &str) -> String {
    let document: Value = serde_json::from_str(document).unwrap_or_default();
    let mut groups: BTreeMap<&str, String> = BTreeMap::new();
    for (path, methods) in document["paths"].as_object().into_iter().flatten() {
        for (method, operation) in methods.as_object().into_iter().flatten() {
            // Parameters that all methods of a path share stand beside them.
            let Some(group) = operation["tags"][0].as_str() else {
                continue;
            };
            let text = request(&document, &method.to_uppercase(), path, operation);
            groups.entry(group).or_default().push_str(&text);
        }
    }
    let mut page = format!("# Partner API reference\n\n{INTRODUCTION}\n");
    for (group, requests) in groups {
        let _ = write!(page, "\n## {group}\n{requests}");
    }
    page
}

/// A request: what it does, its parameters, the fields of its body, and its answers.
fn request(document: &Value, method: &str, path: &str, operation: &Value) -> String {
    let summary = operation["summary"].as_str().unwrap_or_default();
    let about = [format!("{summary}."), words(operation)].join(" ");
    let mut text = format!("\n### {method} {path}\n\n{}\n\n", about.trim());
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        let name = parameter["name"].as_str().unwrap_or_default();
        let _ = writeln!(text, "- `{name}`: {}", words(parameter));
    }
    let schema = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].as_str();
    let schema = schema.and_then(|schema| document.pointer(schema.trim_start_matches('#')));
    let fields = schema.and_then(|schema| schema["properties"].as_object());
    for (name, field) in fields.into_iter().flatten() {
        let about = words(field);
        let about = if about.is_empty() {
            about
        } else {
            format!(": {about}")
        };
        let _ = writeln!(text, "- `{name}` in the body{about}");
    }
    for (status, answer) in operation["responses"].as_object().into_iter().flatten() {
        let about = words(answer);
        let is_everywhere = EVERYWHERE.contains(&status.as_str()) && answer["$ref"].is_string();
        if !about.is_empty() && !is_everywhere {
            let _ = writeln!(text, "- {status}: {about}");
        }
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// The description of a part of the document in one line.
fn words(part: &Value) -> String {
    let text = part["description"].as_str().unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_page_has_every_request_with_what_it_takes() {
    let document = crate::self_service::openapi::document("Service").unwrap();
    let page = markdown(&document);
    let document: Value = serde_json::from_str(&document).unwrap();
    let requests = document["paths"].as_object().unwrap().values();
    let requests = requests.map(|methods| methods.as_object().unwrap().len());
    assert_eq!(page.matches("\n### ").count(), requests.sum::<usize>());
    for part in [
        "\n## Orders\n",
        "\n### POST /orders\n\nCreate an order. ",
        "\n- `since` in the body: ",
        "\n- 409: ",
        "\n- `limit`: ",
    ] {
        assert!(page.contains(part), "{part}");
    }
}
