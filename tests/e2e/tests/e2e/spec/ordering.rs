//! The rules of section 4.1 on entries, and what the provider refuses.

use super::Expected::{Created, Unprocessable};
use super::{Expected, Row, world::World};
use serde_json::json;
use testkit::rows;

const NOT_ON_SALE: Expected =
    Unprocessable(&["eSIM Request failed - Status: 9001, Message: Option is not on sale"]);

pub const ROWS: &[Row] = &rows! {
    "an item with qty N has N entries", |w| w.items(&[("ready", 3)]) => Created(&[("ready", 3)]);
    "entries are in the order of the items",
        |w| w.items(&[("delayed", 2), ("ready", 1), ("live", 2), ("delayed", 1)])
        => Created(&[("delayed", 2), ("ready", 1), ("live", 2), ("delayed", 1)]);
    "an option that is named twice has entries for both items",
        |w| w.items(&[("ready", 1), ("ready", 2)]) => Created(&[("ready", 3)]);
    "the provider refuses: an option that isn't on sale", |w| w.items(&[("refused", 1)]) => NOT_ON_SALE;
    "the provider refuses: an option that is out of stock", |w| w.items(&[("out-of-stock", 2)])
        => Unprocessable(&["eSIM Request failed - Status: 9005, Message: Out of stock"]);
    "the provider refuses one option: the whole order is refused",
        |w| w.items(&[("ready", 1), ("refused", 1)]) => NOT_ON_SALE;
    "a refused order", |w| of(w, "refused") => NOT_ON_SALE;
    "a refused order left its id free", |w| of(w, "ready") => Created(&[("ready", 1)]);
    "and then it is taken", |w| of(w, "ready") => Unprocessable(&["External order id has already been taken"]);
};

/// An order under an id that the rows share.
fn of(world: &World, option: &str) -> testkit::client::Request {
    let products = json!([{"option_id": world.option(option), "qty": 1}]);
    let id = format!("{}-refused", world.reused);
    world.post(json!({"external_order_id": id, "products": products}).to_string())
}
