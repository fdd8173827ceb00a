//! Repeats that ask for the answer: a create-order request with `X-<Brand>-Repeat: answer`.
//!
//! The specification has a repeat refused with "already been taken", after which a partner has to
//! look its order up. With this header it gets the answer of the first request instead, as a 200
//! with the same topup ids in the same order.
//!
//! Guarantees: a repeat never buys anything that an order which stands has bought already. It is
//! answered only when that order can no longer be refused, and after it is on disk. It is compared
//! with the units that are stored, so it is answered only if it asks for the same units in the same
//! order; this holds for orders of every age. Without the header a request is read, stored and
//! answered as if this module did not exist.
//!
//! [`super::create`] reads the header and writes the response. [`super::accept`] finds out what
//! became of the earlier order.

use axum::{
    Json,
    body::Bytes,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use domain::OptionId;
use store::orders::OrderedUnit;

use super::{answer::created_body, request::Draft};
use crate::http::{codes::ErrorCode, described::UndecidedOrder, error::ApiError};

/// The value of the header in a request.
const ANSWER: &str = "answer";
/// Its values in a response.
const ANSWERED: HeaderValue = HeaderValue::from_static("answered");
const UNDECIDED: HeaderValue = HeaderValue::from_static("undecided");

/// What a request gets if an earlier order has its external id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfTaken {
    /// The specified 422.
    Refuse,
    /// The answer of that order.
    Answer,
}

/// The answer to a repeat.
pub(crate) enum RepeatAnswer {
    /// The body of the 201 of the earlier order.
    Same(Bytes),
    /// The earlier order may still be refused.
    Undecided,
}

/// The name of the header: `x-<brand>-repeat`.
pub(crate) struct RepeatHeader(HeaderName);

impl RepeatHeader {
    pub(crate) fn of(brand: &str) -> Self {
        let named = HeaderName::try_from(format!("x-{brand}-repeat").to_ascii_lowercase());
        Self(named.unwrap_or(HeaderName::from_static("x-service-repeat")))
    }

    /// Reads what a request asks for. Another value than the known one is an error, because
    /// whoever misspells it would otherwise take the 422 of a repeat for a refusal.
    pub(crate) fn read(&self, headers: &HeaderMap) -> Result<IfTaken, ApiError> {
        let mut asked = IfTaken::Refuse;
        for value in headers.get_all(&self.0) {
            if value.as_bytes() != ANSWER.as_bytes() {
                return Err(ApiError::with(ErrorCode::RepeatInvalid, &self.0));
            }
            asked = IfTaken::Answer;
        }
        Ok(asked)
    }

    pub(crate) fn response(&self, answer: RepeatAnswer) -> Response {
        let (mut response, said) = match answer {
            RepeatAnswer::Same(body) => {
                let json = HeaderValue::from_static("application/json");
                let headers = [(header::CONTENT_TYPE, json)];
                ((StatusCode::OK, headers, body).into_response(), ANSWERED)
            }
            RepeatAnswer::Undecided => {
                let headers = [(header::RETRY_AFTER, HeaderValue::from_static("1"))];
                let body = Json(UndecidedOrder::new());
                let response = (StatusCode::ACCEPTED, headers, body).into_response();
                (response, UNDECIDED)
            }
        };
        response.headers_mut().insert(self.0.clone(), said);
        response
    }
}

/// The options that a body asks for, one for each unit. `None` is what cannot be an option.
pub(super) fn wanted(draft: &Draft) -> Vec<Option<OptionId>> {
    let of_item = |item: &super::request::RequestedItem| {
        let quantity = usize::try_from(item.quantity).unwrap_or(usize::MAX);
        std::iter::repeat_n(item.option_id, quantity)
    };
    draft.items.iter().flat_map(of_item).collect()
}

/// The answer to a repeat that asks for these options, given the units of the order that stands.
/// An order whose units are gone was archived.
pub(super) fn answer(
    units: &[OrderedUnit],
    wanted: impl Iterator<Item = Option<OptionId>>,
) -> Result<RepeatAnswer, ApiError> {
    if units.is_empty() {
        return Err(ErrorCode::OrderArchived.into());
    }
    if !units.iter().map(|unit| Some(unit.option_id)).eq(wanted) {
        return Err(ErrorCode::OrderDiffers.into());
    }
    let shown = units.iter().map(|unit| (&unit.topup_id, unit.option_id));
    let body = created_body(shown).map_err(ApiError::internal)?;
    Ok(RepeatAnswer::Same(body))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderMap;

    use super::*;

    #[test]
    fn only_the_known_value_asks_for_the_answer() {
        let header = RepeatHeader::of("Acme");
        let read = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append("x-acme-repeat", HeaderValue::from_static(value));
            }
            header.read(&headers).ok()
        };
        assert_eq!(read(&[]), Some(IfTaken::Refuse));
        assert_eq!(read(&["answer"]), Some(IfTaken::Answer));
        assert_eq!(read(&["answer", "answer"]), Some(IfTaken::Answer));
        for wrong in ["", "Answer", "answer, answer", "refuse", "true"] {
            assert_eq!(read(&[wrong]), None, "{wrong}");
            assert_eq!(read(&["answer", wrong]), None, "{wrong}");
        }
    }

    #[test]
    fn a_repeat_is_answered_if_it_asks_for_the_same_units_in_the_same_order() {
        let [first, second] = [(); 2].map(|()| OptionId::new());
        let units: Vec<OrderedUnit> = [first, first, second]
            .iter()
            .enumerate()
            .map(|(nth, option_id)| OrderedUnit {
                topup_id: format!("2025012912345612345678901{nth}").parse().unwrap(),
                option_id: *option_id,
            })
            .collect();
        let code = |wanted: &[Option<OptionId>]| match answer(&units, wanted.iter().copied()) {
            Ok(_) => None,
            Err(ApiError::Plain { code, .. }) => Some(code),
            Err(other) => panic!("{other:?}"),
        };
        let [first, second] = [first, second].map(Some);
        assert_eq!(code(&[first, first, second]), None);
        for other in [
            &[first, second][..],
            &[first, first, second, second],
            &[first, second, first],
            &[first, first, None],
            &[first, first, Some(OptionId::new())],
            &[],
        ] {
            assert_eq!(code(other), Some(ErrorCode::OrderDiffers), "{other:?}");
        }
        let gone = answer(&[], [first].into_iter());
        let archived = ErrorCode::OrderArchived;
        assert!(matches!(gone, Err(ApiError::Plain { code, .. }) if code == archived));
    }
}
