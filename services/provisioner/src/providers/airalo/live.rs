//! What only a live account at Airalo can answer: `esimctl provider prove` asks it, and buys
//! nothing by it.

use serde_json::Value;

use crate::providers::{
    http::parse,
    provider::{OpenQuestion, RefusedProduct, Trouble},
    text::one_line,
};

/// The packages with which its sandbox mode shows refusals (its page on the sandbox mode, September
/// 2026), with the codes of its page on errors. A live account has no such packages, so it refuses
/// them by another code.
pub(super) const REFUSED: &[RefusedProduct] = &[
    RefusedProduct {
        product: "test-insufficient-balance-7days-1gb",
        code: "11",
    },
    RefusedProduct {
        product: "test-maintenance-mode-7days-1gb",
        code: "13",
    },
    RefusedProduct {
        product: "test-disabled-top-up-7days-1gb",
        code: "23",
    },
    RefusedProduct {
        product: "test-not-enough-7days-1gb",
        code: "33",
    },
    RefusedProduct {
        product: "test-out-of-stock-7days-1gb",
        code: "34",
    },
];

/// What needs an address that the provider reaches, or changes the account.
pub(super) const OPEN: &[OpenQuestion] = &[
    OpenQuestion {
        question: "whether a signature is of the raw body or of one that is written anew",
        how: "let its simulator (POST /v2/simulator/webhook) call the provisioner, which tells what is forged",
    },
    OpenQuestion {
        question: "the longest description of an order",
        how: "order a test package by hand; ours has 36 characters, and a step above finds it again",
    },
];

/// The shape and the size of a list.
pub(super) fn shape(body: &[u8]) -> Result<String, Trouble> {
    let list: Value = parse(body)?;
    let entries = match &list["data"] {
        Value::Array(entries) => format!("an array of {} entries", entries.len()),
        Value::Object(entries) => format!("an object of {} entries", entries.len()),
        _ => "neither an array nor an object".to_owned(),
    };
    let meta = &list["meta"];
    // Of packages, it says whether we pay `net_price`, or `price` less a discount.
    let pricing = match list["pricing"]["model"].as_str() {
        Some(model) => {
            let percentage = &list["pricing"]["discount_percentage"];
            format!(", pricing {} of {percentage} %", one_line(model))
        }
        None => String::new(),
    };
    Ok(format!(
        "{entries} in {} bytes, per_page {}, last_page {}{pricing}",
        body.len(),
        meta["per_page"],
        meta["last_page"]
    ))
}

/// What an order says of its price.
pub(super) fn price(body: &[u8]) -> Result<String, Trouble> {
    let order: Value = parse(body)?;
    let fields = [
        "quantity",
        "price",
        "net_price",
        "currency",
        "pricing_model",
    ];
    let said =
        fields.map(|field| format!("{field} {}", one_line(&order["data"][field].to_string())));
    Ok(said.join(", "))
}
