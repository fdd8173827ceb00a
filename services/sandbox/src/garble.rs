//! Garbled answers: answers that no provider should give, and that the pipeline must survive.
//!
//! They show that a provisioner bounds what it reads, escapes what it logs and stores, and treats
//! an answer that it does not understand as an unknown outcome. The order itself is carried out as
//! usual.

use std::convert::Infallible;

use axum::{
    Json,
    body::{Body, Bytes},
    response::{IntoResponse, Response},
};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::protocol::ProductList;

/// The size of a huge answer, in bytes.
const HUGE: usize = 300_000_000;
/// The size of one piece of a huge answer, in bytes.
const PIECE: usize = 64 * 1024;
/// The length of a long unit id, in characters.
const LONG: usize = 6_000;
/// A message with a NUL, an escape sequence of terminals, a line break, a right-to-left override
/// and a zero-width space.
const ODD_MESSAGE: &str = "sold\0 out \u{1b}[31m\r\nX-Injected: 1 \u{202e}gnp.exe\u{200b}";

/// What is wrong with a garbled answer.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Garble {
    /// A message of 300 MB.
    Huge,
    /// A page of HTML instead of JSON, as a proxy sends it.
    NoJson,
    /// Unit ids of 6,000 characters.
    LongUnitId,
    EmptyUnitId,
    /// Unit ids that contain NUL.
    NulUnitId,
    /// The expiry date 9999-99-99.
    BadDate,
    /// A message with control and format characters; in refusals too.
    OddMessage,
}

/// Where an answer has what is garbled.
pub struct AnswerShape {
    /// The list of units, as a JSON pointer.
    pub units: &'static str,
    /// The field with the id of a unit.
    pub id: &'static str,
    /// The field with the expiry date.
    pub date: &'static str,
    /// The message, as a JSON pointer.
    pub message: &'static str,
}

const USIMSA: AnswerShape = AnswerShape {
    units: "/products",
    id: "topupId",
    date: "expiredDate",
    message: "/message",
};

/// The answer to a request about an order, garbled if a fault demands it.
pub fn answer<T: Serialize>(garble: Option<Garble>, products: ProductList<T>) -> Response {
    if garble.is_none() {
        return Json(products).into_response();
    }
    let answer = serde_json::to_value(products).unwrap_or_default();
    garbled(garble, &USIMSA, answer)
}

/// An answer of this shape, garbled if a fault demands it. What the answer has no place for, stays
/// as it is.
pub fn garbled(garble: Option<Garble>, shape: &AnswerShape, mut answer: Value) -> Response {
    match garble {
        None => {}
        Some(Garble::Huge) => return huge(),
        Some(Garble::NoJson) => return "<html>Bad Gateway</html>".into_response(),
        Some(Garble::OddMessage) => {
            if let Some(message) = answer.pointer_mut(shape.message) {
                *message = ODD_MESSAGE.into();
            }
        }
        Some(Garble::LongUnitId) => {
            change(&mut answer, shape, shape.id, |id| format!("{id:x<LONG$}"));
        }
        Some(Garble::EmptyUnitId) => change(&mut answer, shape, shape.id, |_| String::new()),
        Some(Garble::NulUnitId) => change(&mut answer, shape, shape.id, |id| format!("{id}\0")),
        Some(Garble::BadDate) => {
            change(&mut answer, shape, shape.date, |_| "9999-99-99".to_owned());
        }
    }
    Json(answer).into_response()
}

/// Changes one field of each unit that has it.
fn change(answer: &mut Value, shape: &AnswerShape, field: &str, change: fn(&str) -> String) {
    let listed = answer
        .pointer_mut(shape.units)
        .and_then(Value::as_array_mut);
    for unit in listed.into_iter().flatten() {
        if let Some(value) = unit.get_mut(field) {
            *value = change(value.as_str().unwrap_or_default()).into();
        }
    }
}

/// A huge answer, sent in pieces so that the sandbox itself needs little memory for it.
fn huge() -> Response {
    let begin = Bytes::from_static(br#"{"products":[],"code":"0000","message":""#);
    let filler = Bytes::from(vec![b'x'; PIECE]);
    let pieces = std::iter::once(begin).chain(std::iter::repeat_n(filler, HUGE / PIECE));
    Body::from_stream(stream::iter(pieces.map(Ok::<_, Infallible>))).into_response()
}
