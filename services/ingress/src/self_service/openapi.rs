//! The `OpenAPI` document, generated from the handlers and their types, so that it cannot describe
//! a path or a field that does not exist. It is served at `/openapi.json` and stored in
//! `docs/openapi.json`, which a test compares.
//!
//! [`crate::run`] makes the document once, with the brand of this installation. What utoipa cannot
//! derive from the handlers is added here: the signing headers, the webhooks that we send, and the
//! responses that every operation can have. What is true of more than one request is in [`groups`].

use domain::{
    Right,
    event::{self, EventKind, NoticeKind},
};
use serde_json::{Map, Value, json};
use strum::VariantArray;
use utoipa::{
    Modify, OpenApi,
    openapi::security::{ApiKey, ApiKeyValue, SecurityRequirement, SecurityScheme},
};

use super::{
    account, balance, delivery_list, endpoints, esims, events, extensions, groups, install_pages,
    keys, listen, notices, options, orders, redeliveries, sandbox, suspensions, topups, webhook,
};
use crate::http::described::{
    Archived, BadRequest, BodyTimeout, BodyTooLarge, ContentEncodingUnsupported, DeniedResponse,
    Internal, InvalidJson, Message, Messages, MethodNotAllowed, NotAllowed, NotFound, Overloaded,
    Repeat, TooManyRequests, Unauthorized, Unprocessable,
};
use crate::{http::codes::ErrorCode, orders::create};

/// The prefix of all header names in the document, which is replaced by that of the brand.
const PREFIX: &str = "X-Service-";

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Partner eSIM ordering",
        version = "1",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    servers(
        (url = "/api/v1/api_partner", description = "The path is part of a client's base URL: set it to the base URL that we gave you, followed by `/api/v1/api_partner`"),
        (url = "/v1/api_partner", description = "The same service without the leading `/api`")
    ),
    paths(
        create::create_order, orders::list, orders::show, orders::cancel, topups::list, topups::show,
        topups::deliveries, topups::redeliver, esims::usage, esims::give_back,
        esims::give_back_state, suspensions::suspend, suspensions::resume, suspensions::show, install_pages::open, install_pages::end, install_pages::show, install_pages::set, extensions::list, extensions::order, options::list, options::show, balance::show, balance::warn, balance::list, balance::statement, account::show, account::rotate, keys::list, keys::create, keys::change, keys::end, webhook::show, webhook::set,
        webhook::rotate_secret, listen::listen, events::test, events::list, events::show,
        events::redeliver, delivery_list::list, redeliveries::list, redeliveries::begin, redeliveries::show,
        redeliveries::cancel, endpoints::list, endpoints::create, endpoints::show, endpoints::change,
        endpoints::delete, endpoints::secret, endpoints::pause, endpoints::resume, endpoints::test,
        notices::show, notices::set, notices::remove, notices::verify,
        sandbox::make_event, sandbox::set_balance
    ),
    components(
        schemas(webhooks::body::WebhookBody, Message, Messages, DeniedResponse, Repeat),
        responses(InvalidJson, BadRequest, NotFound, MethodNotAllowed, BodyTimeout, Archived, BodyTooLarge,
            ContentEncodingUnsupported, Unprocessable, Internal, Unauthorized, NotAllowed, TooManyRequests, Overloaded)
    ),
    modifiers(&Signed)
)]
struct Document;

/// Adds the headers that sign a request as two alternatives: all four, or the three of the
/// specification, whose signature covers neither query nor body.
struct Signed;

impl Modify for Signed {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let headers = [
            ("access_key", "Access-Key", "Your access key."),
            (
                "timestamp",
                "Timestamp",
                "The current Unix time in seconds. It may differ from our clock by at most 300 s.",
            ),
            (
                "signature",
                "Signature",
                "The HMAC-SHA256 of a text, in lowercase hexadecimal. The key is the secret key, decoded from Base64. The text consists of five lines, joined by line feeds without a final one: the method, the path with the query as it is sent, the timestamp, the access key, and the content SHA-256. If the request has no `content_sha256`, the text consists of the first four lines, and the path is without the query.",
            ),
            (
                "content_sha256",
                "Content-SHA256",
                "The SHA-256 of the body as it is sent, in lowercase hexadecimal. A request without a body has the SHA-256 of no bytes. With this header the signature also covers the query and the body. It is optional unless your account or the request requires it, but we advise against leaving it out, because whoever has such headers can send another body. Once all your requests have it, ask us to refuse those without it.",
            ),
        ];
        let components = document.components.get_or_insert_default();
        for (name, header, description) in headers {
            let value =
                ApiKeyValue::with_description(format!("{PREFIX}{header}"), description.to_owned());
            components.add_security_scheme(name, SecurityScheme::ApiKey(ApiKey::Header(value)));
        }
        let all = |headers: &[(&str, &str, &str)]| {
            headers
                .iter()
                .fold(SecurityRequirement::default(), |all, (name, ..)| {
                    all.add::<_, [String; 0], String>(*name, [])
                })
        };
        document.security = Some(vec![all(&headers), all(&headers[..3])]);
    }
}

/// Makes the document as JSON text, with the header names of a brand.
pub(crate) fn document(brand: &str) -> serde_json::Result<String> {
    let mut document = serde_json::to_value(Document::openapi())?;
    document["info"]["description"] = json!(groups::INTRODUCTION);
    document["tags"] = groups::tags();
    document["webhooks"] = webhooks(&mut document["components"]["schemas"])?;
    let schemas = document["components"]["schemas"].take();
    share(&mut document["components"]["responses"], &schemas);
    document["components"]["schemas"] = schemas;
    add_enums(&mut document);
    name_values(&mut document["components"]["schemas"]);
    let common = [
        ("400", "BadRequest"),
        ("401", "Unauthorized"),
        ("403", "NotAllowed"),
        ("405", "MethodNotAllowed"),
        ("422", "Unprocessable"),
        ("429", "TooManyRequests"),
        ("503", "Overloaded"),
        ("500", "Internal"),
    ];
    let of_bodies = [
        ("408", "BodyTimeout"),
        ("413", "BodyTooLarge"),
        ("415", "ContentEncodingUnsupported"),
    ];
    for (name, description, kind) in HEADERS {
        document["components"]["headers"][name] =
            json!({"description": description, "schema": kind.schema()});
    }
    let responses = document["components"]["responses"].as_object_mut();
    for (name, response) in responses.into_iter().flatten() {
        add_headers(response, true, !BEFORE_LIMITS.contains(&name.as_str()));
    }
    for operation in members(&mut document["paths"]).flat_map(members) {
        let of_body = operation.get("requestBody").map(|_| of_bodies);
        for (status, name) in common.into_iter().chain(of_body.into_iter().flatten()) {
            let responses = &mut operation["responses"];
            if responses.get(status).is_none() {
                responses[status] = json!({"$ref": format!("#/components/responses/{name}")});
            }
        }
        let parameters = operation
            .get_mut("parameters")
            .and_then(Value::as_array_mut);
        for parameter in parameters.into_iter().flatten() {
            // A header that is not sent is left out, because it cannot be null.
            let either = parameter["schema"].get("oneOf").cloned();
            if let (Some(either), true) = (either, parameter["in"] == "header") {
                parameter["schema"] = either[0].clone();
            }
        }
        let responses = operation["responses"].as_object_mut().into_iter().flatten();
        for (status, response) in responses {
            if response.get("$ref").is_none() {
                add_headers(response, status.starts_with(['4', '5']), true);
            }
        }
    }
    name_rights(&mut document["paths"]);
    let text = serde_json::to_string_pretty(&document)? + "\n";
    Ok(text.replace(PREFIX, &format!("X-{brand}-")))
}

/// Says of each operation which right the key of its request needs.
fn name_rights(paths: &mut Value) {
    let create_order = ("/orders", "post", Right::Order);
    for (path, method, right) in super::rights().chain([create_order]) {
        let operation = &mut paths[path][method];
        let text = operation["description"].as_str().unwrap_or_default();
        let needs = format!("Needs a key with the right `{}`.", right.as_str());
        let description = if text.is_empty() {
            needs
        } else {
            format!("{text}\n\n{needs}")
        };
        operation["description"] = description.into();
    }
}

/// What the value of a header is.
#[derive(Clone, Copy)]
enum HeaderKind {
    Text,
    Number,
}

impl HeaderKind {
    fn schema(self) -> Value {
        match self {
            Self::Text => json!({"type": "string"}),
            Self::Number => json!({"type": "integer", "format": "int32", "minimum": 0}),
        }
    }
}

/// The headers of many responses.
const HEADERS: [(&str, &str, HeaderKind); 8] = [
    (
        "X-Request-Id",
        "The id of the request, in letters and digits; quote it when you ask us about the request. Only a 503 that refuses a connection has none",
        HeaderKind::Text,
    ),
    (
        "Cache-Control",
        "Always `no-store`, because an answer may hold secrets",
        HeaderKind::Text,
    ),
    (
        "X-Service-Error",
        "The stable codes of the errors, those of `ErrorCode`. If an item of an order or a parameter is wrong, its index, counted from 0, or its name follows: `option_not_found; item=1, qty_invalid; item=2` or `limit_invalid; parameter=limit`",
        HeaderKind::Text,
    ),
    (
        "Link",
        "Links to the explanation of each code (`rel=\"help\"`)",
        HeaderKind::Text,
    ),
    (
        "Retry-After",
        "The number of seconds after which to send the request again",
        HeaderKind::Number,
    ),
    (
        "RateLimit-Limit",
        "The limit per second: of orders in the answer to an order, in a 429 the one that you have reached, otherwise of requests. Each of our processes limits for itself, so in total you can send more",
        HeaderKind::Number,
    ),
    (
        "RateLimit-Remaining",
        "How many more are possible at once",
        HeaderKind::Number,
    ),
    (
        "RateLimit-Reset",
        "The number of seconds until the whole limit is free again",
        HeaderKind::Number,
    ),
];

/// The shared responses that are made before it is known whose rate a request uses.
const BEFORE_LIMITS: [&str; 5] = [
    "BadRequest",
    "NotAllowed",
    "MethodNotAllowed",
    "Overloaded",
    "Unauthorized",
];

/// Adds the headers of a response, which are said once for all of them.
fn add_headers(response: &mut Value, is_error: bool, shows_rate: bool) {
    let text = response["description"].as_str().unwrap_or_default();
    let is_timed = text.contains("Retry-After");
    for (name, ..) in HEADERS {
        let has = match name {
            "X-Service-Error" | "Link" => is_error,
            "Retry-After" => is_timed,
            _ if name.starts_with("RateLimit-") => shows_rate,
            _ => true,
        };
        if has && response["headers"].get(name).is_none() {
            let reference = format!("#/components/headers/{name}");
            response["headers"][name] = json!({"$ref": reference});
        }
    }
}

/// A field whose values are known: its schema, its name and the name of their enum.
type Field = (&'static str, &'static str, &'static str);

/// The fields whose values are known. Their types in the code are texts, because they come from the
/// database as such. The `outcome` of an attempt is not among them, because further ones may be
/// added.
const ENUM_FIELDS: [Field; 10] = [
    ("Account", "environment", "Environment"),
    ("Deliveries", "state", "DeliveryState"),
    ("DeniedError", "code", "DeniedCode"),
    ("Endpoint", "state", "EndpointState"),
    ("Event", "state", "DeliveryState"),
    ("Event", "type", "EventType"),
    ("EventRedelivery", "state", "DeliveryState"),
    ("KeyExpiringData", "credential", "Credential"),
    ("Redelivery", "delivery", "DeliveryState"),
    ("Topup", "delivery", "DeliveryState"),
];

/// Adds the enums, and refers to them in the fields that have their values.
fn add_enums(document: &mut Value) {
    let codes: Vec<&str> = ErrorCode::VARIANTS.iter().map(|code| code.name()).collect();
    let choices = event::names(&EventKind::of_further_endpoints());
    let events = EventKind::ALL
        .iter()
        .filter(|kind| **kind != EventKind::TopupReady);
    let mut types: Vec<&str> = events.map(|kind| kind.as_str()).collect();
    types.extend(NoticeKind::ALL.iter().map(|kind| kind.as_str()));
    let schemas = &mut document["components"]["schemas"];
    for (name, description, values) in [
        (
            "ErrorCode",
            "A stable code of an error, as `X-Service-Error` names it, where it may be followed by `; item=` or `; parameter=`. Treat a code that you do not know like its status, because we may add some.",
            &*codes,
        ),
        (
            "DeniedCode",
            "It is the same for every failed authentication; `X-Service-Error` says which check failed.",
            &["unauthorized"],
        ),
        (
            "DeliveryState",
            "The state of a webhook: `pending` (it is or will be sent), `delivered`, `exhausted` (the retries have ended), or `no_endpoint` (it waits until a webhook URL is set).",
            &["pending", "delivered", "exhausted", "no_endpoint"],
        ),
        (
            "EndpointState",
            "The state of the webhook endpoint: `open`, `blocked` (after failures), `probing` (one webhook tests it), `paused` (by us) or `no_url`.",
            &["open", "blocked", "probing", "paused", "no_url"],
        ),
        (
            "Environment",
            "A `live` account orders real eSIMs. All orders of a `sandbox` account go to a test provider.",
            &["live", "sandbox"],
        ),
        (
            "EventChoice",
            "What an endpoint can receive: the webhooks of ready eSIMs (`topup.ready`), which the first endpoint always receives, and further events.",
            &choices,
        ),
        (
            "Credential",
            "What ends: the old `keys` or the old `webhook_secret`.",
            &["keys", "webhook_secret"],
        ),
    ] {
        schemas[name] = json!({"type": "string", "description": description, "enum": values});
    }
    // We may add types, and a program that knows only today's must go on reading the list.
    schemas["EventType"] = json!({
        "type": "string",
        "description": "The type of a further event or a notice, which is also in its header `webhook-type`. Ignore one that you do not know, because we may add some.",
        "examples": types,
    });
    for (schema, field, name) in ENUM_FIELDS {
        let field = &mut schemas[schema]["properties"][field];
        refer(field, name);
    }
    for (schema, name) in [
        ("Endpoint", "EventType"),
        ("WebhookEndpointChange", "EventChoice"),
    ] {
        refer(&mut schemas[schema]["properties"]["events"]["items"], name);
    }
}

/// Gives each value of an enum a name that begins with that of the enum, because in Go the names of
/// all values share one namespace.
fn name_values(schemas: &mut Value) {
    for (name, schema) in schemas.as_object_mut().into_iter().flatten() {
        let Some(values) = schema["enum"].as_array() else {
            continue;
        };
        let values = values.iter().filter_map(Value::as_str);
        let names: Vec<String> = values
            .map(|value| name.clone() + &words(value).concat())
            .collect();
        schema["x-enum-varnames"] = json!(names);
    }
}

/// Makes a text field one of the values of an enum, or null if it could be null before.
fn refer(field: &mut Value, name: &str) {
    let reference = json!({"$ref": format!("#/components/schemas/{name}")});
    let is_nullable = field["type"].is_array();
    if let Some(field) = field.as_object_mut() {
        field.remove("type");
        if is_nullable {
            field.insert("oneOf".into(), json!([{"type": "null"}, reference]));
        } else {
            field.insert("$ref".into(), reference["$ref"].clone());
        }
    }
}

/// Replaces each copy of a schema by a reference to it. utoipa writes the schema of a shared
/// response in full, and generators would make a type of every copy.
fn share(value: &mut Value, schemas: &Value) {
    let named = schemas.as_object().into_iter().flatten();
    for (name, schema) in named {
        if value == schema {
            *value = json!({"$ref": format!("#/components/schemas/{name}")});
            return;
        }
    }
    members(value).for_each(|member| share(member, schemas));
}

/// The values of an object.
fn members(object: &mut Value) -> impl Iterator<Item = &mut Value> {
    object.as_object_mut().into_iter().flat_map(Map::values_mut)
}

/// The webhooks that we send, and adds the schemas of their bodies.
fn webhooks(schemas: &mut Value) -> serde_json::Result<Value> {
    let mut webhooks = json!({
        "esim_ready": webhook(None, "Esim", "An eSIM is ready",
            "One webhook is sent for each topup to each endpoint that wants it, never before the answer of create-order. Verify the signature before you trust the body. The same webhook can arrive twice; it then has the same `webhook-id`."),
        "notice": webhook(Some("notice.endpoint_blocked"), "NoticeEvent", "A notice",
            "Sent to the `url` that you set with `PUT /notices`, not to the webhook endpoint. The header `webhook-type` has the type of the notice. The first one is `notice.verify` with the code that activates the channel."),
    });
    schemas["NoticeData"] = serde_json::to_value(webhooks::event::notice_data())?;
    schemas["NoticeEvent"] = body(
        "notice.endpoint_blocked",
        "NoticeData",
        "A notice. Its type says what has happened, and its data has the fields that this type needs.",
    );
    for kind in EventKind::ALL {
        let Some(described) = webhooks::event::described(*kind) else {
            continue;
        };
        let name = kind.as_str();
        let schema = words(name).concat();
        let (data, of_data) = described.data;
        let meaning = format!("`{name}`: {}", described.meaning);
        webhooks[name.replace('.', "_")] =
            webhook(Some(name), &schema, described.summary, &described.sent);
        schemas[&schema] = body(name, &data, &meaning);
        schemas[&*data] = serde_json::to_value(of_data)?;
    }
    Ok(webhooks)
}

/// Describes the body of an event. `data` is the schema of its data.
fn body(kind: &str, data: &str, description: &str) -> Value {
    json!({
        "description": description,
        "type": "object",
        "required": ["type", "timestamp", "data"],
        "properties": {
            "type": {"$ref": "#/components/schemas/EventType", "example": kind},
            "timestamp": {"type": "string", "format": "date-time"},
            "data": {"$ref": format!("#/components/schemas/{data}")},
        },
    })
}

/// The words of a name, each with a capital.
fn words(name: &str) -> Vec<String> {
    let words = name.split(['.', '_']).map(|word| {
        let (first, rest) = word.split_at(word.len().min(1));
        first.to_uppercase() + rest
    });
    words.collect()
}

/// Describes a webhook. `kind` is the value of its type header; the specified webhook has none.
fn webhook(kind: Option<&str>, schema: &str, summary: &str, description: &str) -> Value {
    let header = |name: &str, description: &str, example: &str| {
        json!({"name": name, "in": "header", "required": true, "description": description,
               "schema": {"type": "string"}, "example": example})
    };
    let (id, example) = match kind {
        None => ("topup_id", "20250129123456123456789012"),
        Some(_) => ("event_id", "evt_019a0000000070008000000000000001"),
    };
    let same = format!("The `{id}`, the same in every attempt");
    let at = "The Unix time of this attempt in seconds; each attempt has its own";
    let mut parameters = vec![
        header("webhook-id", &same, example),
        header("webhook-timestamp", at, "1700000000"),
        header(
            "webhook-signature",
            "As in Standard Webhooks: `v1,` and the Base64 of the HMAC-SHA256 of `{webhook-id}.{webhook-timestamp}.{body}`. During a change of secrets there are two signatures, separated by a space; accept the webhook if one of them is valid",
            "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=",
        ),
    ];
    let of_type = "The type of the event; the webhook of a ready topup does not have this header";
    parameters.extend(kind.map(|kind| header(webhooks::event::TYPE, of_type, kind)));
    json!({"post": {
        "summary": summary,
        "description": description,
        "security": [],
        "parameters": parameters,
        "requestBody": {"required": true, "content": {"application/json": {
            "schema": {"$ref": format!("#/components/schemas/{schema}")}}}},
        "responses": {
            "2XX": {"description": "You have stored the webhook; it is not sent again"},
            "410": {"description": "The retries end; the webhook is kept as `exhausted`"},
            "default": {"description": "The webhook is sent again later, until the retries end"},
        },
    }})
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `UPDATE_OPENAPI=1` writes the file.
    #[test]
    fn the_stored_document_is_the_generated_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
        let generated = document("Service").unwrap();
        if std::env::var_os("UPDATE_OPENAPI").is_some() {
            std::fs::write(path, &generated).unwrap();
        }
        let stored = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            stored == generated,
            "docs/openapi.json is old: run this test with UPDATE_OPENAPI=1"
        );
    }

    #[test]
    fn every_signed_route_is_described() {
        let document: Value = serde_json::from_str(&document("Acme").unwrap()).unwrap();
        let mut routes: Vec<_> = super::super::routes()
            .into_iter()
            .map(|(path, _)| path)
            .collect();
        routes.sort_unstable();
        let described: Vec<&String> = document["paths"].as_object().unwrap().keys().collect();
        assert_eq!(described, routes);
        assert_eq!(
            document["components"]["securitySchemes"]["signature"]["name"],
            "X-Acme-Signature"
        );
        assert_eq!(document["openapi"], "3.1.0");
    }

    #[test]
    fn errors_share_their_schemas_and_known_values_are_enums() {
        let document: Value = serde_json::from_str(&document("Service").unwrap()).unwrap();
        let components = &document["components"];
        for response in components["responses"].as_object().unwrap().values() {
            let schema = &response["content"]["application/json"]["schema"];
            assert!(schema["$ref"].is_string(), "{response}");
        }
        for (schema, field, name) in ENUM_FIELDS {
            let field = &components["schemas"][schema]["properties"][field];
            assert!(field.to_string().contains(&format!("/{name}\"")), "{field}");
            assert!(field.get("type").is_none(), "{field}");
        }
        let codes = components["schemas"]["ErrorCode"]["enum"]
            .as_array()
            .unwrap();
        assert_eq!(codes.len(), ErrorCode::VARIANTS.len());
    }

    /// A Go client has a constructor `NewOrder` for a type `Order`, and all values of enums beside
    /// each other.
    #[test]
    fn no_name_stands_twice_in_a_generated_client() {
        let document: Value = serde_json::from_str(&document("Service").unwrap()).unwrap();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let mut names: Vec<String> = Vec::new();
        for (name, schema) in schemas {
            names.push(name.clone());
            let values = schema["x-enum-varnames"].as_array();
            match values {
                Some(values) => names.extend(values.iter().map(|one| one.as_str().unwrap().into())),
                None => names.push(format!("New{name}")),
            }
            assert_eq!(values.is_some(), schema.get("enum").is_some(), "{name}");
        }
        let distinct: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "{names:?}");
        assert!(
            schemas["EventType"].get("enum").is_none(),
            "we may add events"
        );
    }

    #[test]
    fn each_response_names_its_headers() {
        let document: Value = serde_json::from_str(&document("Acme").unwrap()).unwrap();
        let shared = document["components"]["responses"].as_object().unwrap();
        let paths = document["paths"].as_object().unwrap().values();
        let operations = paths.flat_map(|path| path.as_object().unwrap().values());
        let own = operations.flat_map(|one| one["responses"].as_object().unwrap().values());
        let own = own.filter(|response| response.get("$ref").is_none());
        for response in shared.values().chain(own) {
            let headers = response["headers"].as_object().unwrap();
            assert!(headers.contains_key("X-Request-Id"), "{response}");
            assert!(headers.contains_key("Cache-Control"), "{response}");
            let text = response["description"].as_str().unwrap();
            let is_timed = text.contains("Retry-After");
            assert_eq!(headers.contains_key("Retry-After"), is_timed, "{response}");
        }
        for path in ["/options", "/options/{option_id}"] {
            for status in ["200", "304"] {
                let page = &document["paths"][path]["get"]["responses"][status];
                assert!(page["headers"]["ETag"].is_object(), "{page}");
            }
        }
        for name in ["NotFound", "Unprocessable", "Archived", "TooManyRequests"] {
            let headers = &shared[name]["headers"];
            assert!(headers["RateLimit-Reset"].is_object(), "{name}");
            assert!(headers["X-Acme-Error"].is_object(), "{name}");
        }
    }

    #[test]
    fn every_operation_has_an_id_of_its_own() {
        let document: Value = serde_json::from_str(&document("Service").unwrap()).unwrap();
        let paths = document["paths"].as_object().unwrap().values();
        let operations = paths.flat_map(|path| path.as_object().unwrap().values());
        let ids: Vec<&str> = operations
            .map(|operation| operation["operationId"].as_str().unwrap())
            .collect();
        let distinct: std::collections::BTreeSet<&&str> = ids.iter().collect();
        assert_eq!(distinct.len(), ids.len(), "{ids:?}");
    }

    #[test]
    fn every_reference_leads_somewhere() {
        fn walk<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
            match value {
                Value::Object(fields) => {
                    found.extend(fields.get("$ref").and_then(Value::as_str));
                    fields.values().for_each(|field| walk(field, found));
                }
                Value::Array(items) => items.iter().for_each(|item| walk(item, found)),
                _ => {}
            }
        }
        let document: Value = serde_json::from_str(&document("Service").unwrap()).unwrap();
        let mut references = Vec::new();
        walk(&document, &mut references);
        assert!(!references.is_empty());
        for reference in references {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
    }
}
