//! `products`: faults, limits, options that don't exist.

use super::Expected::{Created, Unprocessable};
use super::world::{NO_OPTION, World};
use super::{Expected, ONE, Row};
use serde_json::{Value, json};
use testkit::rows;

const BLANK: Expected = Unprocessable(&["Products can't be blank"]);
const NO_ARRAY: Expected = Unprocessable(&["Products must be an array"]);
const NO_OPTION_ID: Expected = Unprocessable(&["Products[0] option_id can't be blank"]);
const NO_QTY: Expected = Unprocessable(&["Products[0] qty must be a positive integer"]);
const NO_METADATA: Expected = Unprocessable(&[
    "Products[0] metadata must be an object of at most 10 texts, with at most 1024 bytes",
]);
const NOT_FOUND: Expected = Unprocessable(&["Product with option_id not found"]);
const TOO_MANY_UNITS: Expected =
    Unprocessable(&["Products can't have more than 1000 units in total"]);

pub const ROWS: &[Row] = &rows! {
    "products is required", |w| {
        let mut body = w.body();
        body.as_object_mut().and_then(|body| body.remove("products"));
        w.post(body.to_string())
    } => BLANK;
    "products: null", |w| w.products(Value::Null) => BLANK;
    "products must not be empty", |w| w.products(json!([])) => BLANK;
    "products: an object", |w| w.products(json!({"option_id": w.ready(), "qty": 1})) => NO_ARRAY;
    "products: a text", |w| w.products("[]") => NO_ARRAY;
    "an item is an object", |w| w.products(json!([w.ready()])) => Unprocessable(&["Products[0] must be an object"]);
    "an item: null", |w| w.products(json!([null])) => Unprocessable(&["Products[0] must be an object"]);
    // metadata
    "metadata: a text", |w| w.products(json!([{"option_id": w.ready(), "qty": 1, "metadata": "T-1"}])) => NO_METADATA;
    "metadata: an array", |w| w.products(json!([{"option_id": w.ready(), "qty": 1, "metadata": []}])) => NO_METADATA;
    "metadata: a number", |w| w.products(json!([{"option_id": w.ready(), "qty": 1, "metadata": {"a": 1}}])) => NO_METADATA;
    "metadata: nested", |w| w.products(json!([{"option_id": w.ready(), "qty": 1, "metadata": {"a": {}}}])) => NO_METADATA;
    "metadata: null in it", |w| w.products(json!([{"option_id": w.ready(), "qty": 1, "metadata": {"a": null}}]))
        => NO_METADATA;
    "metadata: an empty name", |w| w.products(json!([{"option_id": w.ready(), "qty": 1, "metadata": {"": "a"}}]))
        => NO_METADATA;
    "metadata: a NUL", |w| w.products(json!([{"option_id": w.ready(), "qty": 1, "metadata": {"a": "\0"}}]))
        => NO_METADATA;
    "metadata: too long", |w| w.products(json!([{"option_id": w.ready(), "qty": 1, "metadata": {"a": "é".repeat(512)}}]))
        => NO_METADATA;
    "metadata: eleven texts", |w| {
        let texts: serde_json::Map<String, Value> = (0..11).map(|n| (n.to_string(), json!(""))).collect();
        w.products(json!([{"option_id": w.ready(), "qty": 1, "metadata": texts}]))
    } => NO_METADATA;
    "metadata: null", |w| w.products(json!([{"option_id": w.ready(), "qty": 1, "metadata": null}])) => ONE;
    "metadata: as long as possible",
        |w| w.products(json!([{"option_id": w.ready(), "qty": 1, "metadata": {"ab": "é".repeat(511)}}])) => ONE;
    "metadata of the order, beside other errors", |w| {
        let mut body = w.body();
        body["metadata"] = json!({"a": 1});
        body["products"] = json!([]);
        w.post(body.to_string())
    } => Unprocessable(&["metadata must be an object of at most 10 texts, with at most 1024 bytes",
        "Products can't be blank"]);
    "a repeated name of metadata", |w| w.qty("1,\"metadata\":{\"a\":\"1\",\"a\":\"1\"}")
        => Unprocessable(&["Parameter a is given more than once; send it once"]);
    // option_id
    "option_id is required", |w| w.products(json!([{"qty": 1}])) => NO_OPTION_ID;
    "option_id: null", |w| w.products(json!([{"option_id": null, "qty": 1}])) => NO_OPTION_ID;
    "option_id: empty", |w| w.products(json!([{"option_id": "", "qty": 1}])) => NO_OPTION_ID;
    "option_id: blank", |w| w.products(json!([{"option_id": "  ", "qty": 1}])) => NO_OPTION_ID;
    "option_id must exist", |w| w.products(json!([{"option_id": NO_OPTION, "qty": 1}])) => NOT_FOUND;
    "option_id: what isn't UUID-shaped doesn't exist",
        |w| w.products(json!([{"option_id": "ready", "qty": 1}])) => NOT_FOUND;
    "option_id: a NUL doesn't exist", |w| w.products(json!([{"option_id": "a\0", "qty": 1}])) => NOT_FOUND;
    "option_id: a number doesn't exist", |w| w.products(json!([{"option_id": 17, "qty": 1}])) => NOT_FOUND;
    "option_id: an array doesn't exist", |w| w.products(json!([{"option_id": [w.ready()], "qty": 1}])) => NOT_FOUND;
    "options that don't exist are said once", |w| {
        let one = |id: &str| json!({"option_id": id, "qty": 1});
        w.products(json!([one(NO_OPTION), one(w.ready()), one("x")]))
    } => NOT_FOUND;
    // qty
    "qty is required", |w| w.products(json!([{"option_id": w.ready()}])) => NO_QTY;
    "qty: null", |w| w.qty("null") => NO_QTY;
    "qty: 0", |w| w.qty("0") => NO_QTY;
    "qty: -1", |w| w.qty("-1") => NO_QTY;
    "qty: -0", |w| w.qty("-0") => NO_QTY;
    "qty: 1.5", |w| w.qty("1.5") => NO_QTY;
    "qty: 2.0 is no integer", |w| w.qty("2.0") => NO_QTY;
    "qty: 1e2 is no integer", |w| w.qty("1e2") => NO_QTY;
    "qty: 1e400 is JSON, and no integer", |w| w.qty("1e400") => NO_QTY;
    "qty: a text", |w| w.qty("\"2\"") => NO_QTY;
    "qty: a boolean", |w| w.qty("true") => NO_QTY;
    "qty: an array", |w| w.qty("[2]") => NO_QTY;
    "qty: a huge negative number", |w| w.qty("-99999999999999999999999999") => NO_QTY;
    "qty: 64 bits", |w| w.qty("18446744073709551615") => TOO_MANY_UNITS;
    "qty: more than 64 bits", |w| w.qty("99999999999999999999999999") => TOO_MANY_UNITS;
    "qty: 400 digits are JSON", |w| w.qty(&"9".repeat(400)) => TOO_MANY_UNITS;
    // Everything at once
    "all faults of a request at once, in order", |w| {
        let products = json!([
            {},
            {"option_id": "", "qty": 0},
            {"option_id": w.ready(), "qty": -1},
            7,
            {"option_id": w.ready(), "qty": 1},
            {"option_id": NO_OPTION, "qty": "1"},
            {"option_id": null, "qty": 1},
        ]);
        w.post(json!({"external_order_id": "", "products": products}).to_string())
    } => Unprocessable(&["External order id can't be blank", "Products[0] option_id can't be blank",
        "Products[0] qty must be a positive integer", "Products[1] option_id can't be blank",
        "Products[1] qty must be a positive integer", "Products[2] qty must be a positive integer",
        "Products[3] must be an object", "Products[5] qty must be a positive integer",
        "Products[6] option_id can't be blank", "Product with option_id not found"]);
    "too many units and an option that doesn't exist",
        |w| w.products(json!([{"option_id": w.ready(), "qty": 1000}, {"option_id": NO_OPTION, "qty": 1}]))
        => Unprocessable(&["Products can't have more than 1000 units in total",
            "Product with option_id not found"]);
    // Limits
    "100 items", |w| w.items(&[("ready", 1); 100]) => Created(&[("ready", 100)]);
    "101 items", |w| w.items(&[("ready", 1); 101]) => Unprocessable(&["Products can't have more than 100 items"]);
    "1000 units", |w| w.items(&[("ready", 1000)]) => Created(&[("ready", 1000)]);
    "1001 units", |w| w.items(&[("ready", 1001)]) => TOO_MANY_UNITS;
    "1001 units in several items", |w| w.items(&[("ready", 500), ("delayed", 501)]) => TOO_MANY_UNITS;
    // Environments
    "for a live partner sandbox options don't exist", |w| live(w, w.ready()) => NOT_FOUND;
    "for a live partner options of unconfigured providers don't exist", |w| live(w, w.option("live")) => NOT_FOUND;
    // Options of several providers.
    "for a live partner an option whose first provider isn't configured doesn't exist, although the second one is",
        |w| live(w, w.option("sold-elsewhere")) => NOT_FOUND;
    "a provider that isn't configured is left out: the refusal of the first one is the answer",
        |w| live(w, w.option("sold-out-here"))
        => Unprocessable(&["eSIM Request failed - Status: 9005, Message: Out of stock"]);
    "an order of a sandbox partner goes to no further provider", |w| w.items(&[("sold-out-here", 1)])
        => Unprocessable(&["eSIM Request failed - Status: 9005, Message: Out of stock"]);
    "a sandbox partner may order it, as any option", |w| w.items(&[("sold-elsewhere", 1)])
        => Created(&[("sold-elsewhere", 1)]);
    "a sandbox partner may order any option", |w| w.items(&[("live", 1)]) => Created(&[("live", 1)]);
    "and the sandbox provider sells it",
        |w| w.items(&[("live", 1), ("ready", 1)]) => Created(&[("live", 1), ("ready", 1)]);
    "after all that a good order is a good order", World::order => ONE;
};

fn live(world: &World, option_id: &str) -> testkit::client::Request {
    let client = world
        .stack
        .client(&world.live)
        .expect("esimctl prints Base64");
    let mut body = world.body();
    body["products"][0]["option_id"] = option_id.into();
    client.post(body.to_string())
}
