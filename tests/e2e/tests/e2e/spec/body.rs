//! What isn't JSON, JSON that is no order, and `external_order_id`.

use super::Expected::{Error, Unprocessable};
use super::{Expected, ONE, Row};
use crate::shop::fresh;
use serde_json::{Value, json};
use testkit::rows;

const NOT_JSON: Expected = Error(400, "Invalid JSON format");
const NOTHING: Expected = Unprocessable(&[
    "External order id can't be blank",
    "Products can't be blank",
]);
const NO_OBJECT: Expected = Unprocessable(&["Body must be a JSON object"]);
const BLANK: Expected = Unprocessable(&["External order id can't be blank"]);
const NO_STRING: Expected = Unprocessable(&["External order id must be a string"]);
const TAKEN: Expected = Unprocessable(&["External order id has already been taken"]);

/// The answer to a body in which some object has this key twice.
macro_rules! repeated {
    ($key:literal) => {
        Unprocessable(&[concat!(
            "Parameter ",
            $key,
            " is given more than once; send it once"
        )])
    };
}

pub const ROWS: &[Row] = &rows! {
    // 400
    "an empty body", |w| w.post("") => NOT_JSON;
    "a blank body", |w| w.post(" \r\n") => NOT_JSON;
    "a word", |w| w.post("order") => NOT_JSON;
    "a form", |w| w.post("external_order_id=1&qty=1") => NOT_JSON;
    "a truncated body", |w| { let body = w.body().to_string(); w.post(body[..body.len() - 1].to_owned()) }
        => NOT_JSON;
    "something behind the JSON", |w| w.post(format!("{}}}", w.body())) => NOT_JSON;
    "a trailing comma", |w| w.post(r#"{"external_order_id": "x",}"#) => NOT_JSON;
    "single quotes", |w| w.post("{'external_order_id': 'x'}") => NOT_JSON;
    "a comment", |w| w.post(format!("{}// x", w.body())) => NOT_JSON;
    "NaN", |w| w.qty("NaN") => NOT_JSON;
    "a leading zero", |w| w.qty("01") => NOT_JSON;
    "a raw NUL", |w| w.post("\0") => NOT_JSON;
    "a byte order mark", |w| w.post(format!("\u{feff}{}", w.body())) => NOT_JSON;
    "bytes that aren't UTF-8", |w| w.post(b"{\"external_order_id\": \"\xff\", \"products\": []}".to_vec())
        => NOT_JSON;
    "UTF-16",
        |w| w.post(w.body().to_string().encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>()) => NOT_JSON;
    // A repeated key: nobody can know which of the two values is meant, so nothing is bought.
    "a repeated external_order_id", |w| {
        let id = format!(r#"{{"external_order_id":"{}","#, fresh("first"));
        w.post(w.body().to_string().replacen('{', &id, 1))
    } => repeated!("external_order_id");
    "repeated products", |w| w.post(w.body().to_string().replacen('{', r#"{"products":[],"#, 1))
        => repeated!("products");
    "a repeated qty", |w| w.qty("1,\"qty\":3") => repeated!("qty");
    "a repeated qty with the same value", |w| w.qty("1,\"qty\":1") => repeated!("qty");
    "a repeated qty of which one is escaped", |w| w.qty("1,\"\\u0071ty\":3") => repeated!("qty");
    "a repeated qty beside another error", |w| w.qty("0,\"qty\":0") => repeated!("qty");
    "a repeated option_id", |w| w.qty("1,\"option_id\":null") => repeated!("option_id");
    "a repeated key of a field that we do not know", |w| w.qty("1,\"note\":[{\"a\":1,\"a\":2}]") => repeated!("a");
    "a repeated key behind a number that fits no type", |w| w.qty("1e999,\"qty\":1") => repeated!("qty");
    "a repeated key of two items is none", |w| w.items(&[("ready", 1), ("ready", 1)])
        => Expected::Created(&[("ready", 1), ("ready", 1)]);
    "keys that differ in case are two", |w| w.qty("1,\"Qty\":3") => ONE;
    "what is nested deeper than we look", |w| w.qty(&format!("1,\"note\":{}{}", "[".repeat(200), "]".repeat(200)))
        => NOT_JSON;
    // JSON that is no object
    "an empty object", |w| w.post("{}") => NOTHING;
    "an array", |w| w.post("[]") => NO_OBJECT;
    "an array with an order in it", |w| w.post(json!([w.body()]).to_string()) => NO_OBJECT;
    "null", |w| w.post("null") => NO_OBJECT;
    "a number", |w| w.post("17") => NO_OBJECT;
    "a text", |w| w.post("\"order\"") => NO_OBJECT;
    "true, with blanks around", |w| w.post(" true\n") => NO_OBJECT;
    // external_order_id
    "external_order_id is required", |w| {
        let mut body = w.body();
        body.as_object_mut().and_then(|body| body.remove("external_order_id"));
        w.post(body.to_string())
    } => BLANK;
    "external_order_id: null is blank", |w| w.with_id(Value::Null) => BLANK;
    "external_order_id: empty is blank", |w| w.with_id("") => BLANK;
    "external_order_id: white space is blank", |w| w.with_id(" \t\n\u{a0}") => BLANK;
    "external_order_id: a number", |w| w.with_id(17) => NO_STRING;
    "external_order_id: a boolean", |w| w.with_id(false) => NO_STRING;
    "external_order_id: an array", |w| w.with_id(json!(["a"])) => NO_STRING;
    "external_order_id: an object", |w| w.with_id(json!({"id": "a"})) => NO_STRING;
    "external_order_id: a NUL",
        |w| w.with_id("a\0b") => Unprocessable(&["External order id can't contain a NUL character"]);
    "external_order_id: 256 characters", |w| w.with_id("x".repeat(256))
        => Unprocessable(&["External order id is too long (maximum is 255 characters)"]);
    "external_order_id: 255 characters", |w| w.with_id(format!("{:x<255}", fresh("long"))) => ONE;
    "external_order_id: 255 characters of 4 bytes", |w| w.with_id("\u{1f4f1}".repeat(255)) => ONE;
    "external_order_id: any text", |w| w.with_id(format!("{} '\"\\;--\u{7f}\u{202e}", fresh("any"))) => ONE;
    "external_order_id is taken", |w| w.with_id(w.taken.as_str()) => TAKEN;
    "external_order_id is compared as sent: case", |w| w.with_id(w.taken.to_uppercase()) => ONE;
    "external_order_id is compared as sent: blanks", |w| w.with_id(format!(" {} ", w.taken)) => ONE;
    "external_order_id is unique per partner: another may use it and learns nothing", |w| {
        let mut body = w.body();
        body["external_order_id"] = w.taken.as_str().into();
        w.other.post(body.to_string())
    } => ONE;
    "a taken external_order_id comes first of several errors", |w| {
        let products = json!([{"option_id": super::world::NO_OPTION, "qty": 0}]);
        w.post(json!({"external_order_id": w.taken, "products": products}).to_string())
    } => Unprocessable(&["External order id has already been taken",
        "Products[0] qty must be a positive integer", "Product with option_id not found"]);
    "a taken external_order_id and no products", |w| w.post(json!({"external_order_id": w.taken}).to_string())
        => Unprocessable(&["External order id has already been taken", "Products can't be blank"]);
    "another partner learns nothing from an order with errors either",
        |w| w.other.post(json!({"external_order_id": w.reused}).to_string())
        => Unprocessable(&["Products can't be blank"]);
    "an order with errors leaves its external_order_id free", |w| w.with_id(w.reused.as_str()) => ONE;
    "and then it is taken", |w| w.with_id(w.reused.as_str()) => TAKEN;
    "unknown fields are no errors", |w| {
        let mut body = w.body();
        body["note"] = json!({"a": [1, null]});
        body["products"][0]["note"] = json!("b");
        w.post(body.to_string())
    } => ONE;
};
