//! Repeats that ask for the answer: a create-order request with `X-<Brand>-Repeat: answer`.
//!
//! The specification has a repeat refused with "already been taken", after which a partner has to
//! look its order up. With this header it gets the answer of the first request instead, as a 200
//! with the same topup ids in the same order.
//!
//! Guarantees: a repeat never buys anything that an order which stands has bought already. It is
//! answered only when that order can no longer be refused, and after it is on disk. It is compared
//! with the units that are stored, so it is answered only if it asks for the same units in the same
//! order, with the same metadata unless that is erased; this holds for orders of every age. Without
//! the header a request is read, stored and answered as if this module did not exist.
//!
//! [`super::create`] reads the header and writes the response. [`super::accept`] finds out what
//! became of the earlier order.

use axum::{
    Json,
    body::Bytes,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use domain::{Metadata, OptionId};
use store::orders::{NewTopup, OrderedUnits};

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

/// What a repeat asks for.
pub(super) struct WantedOrder {
    units: Vec<WantedUnit>,
    metadata: Option<Metadata>,
}

#[derive(Clone)]
struct WantedUnit {
    /// `None` is what cannot be an option.
    option_id: Option<OptionId>,
    metadata: Option<Metadata>,
}

impl WantedOrder {
    pub(super) fn of_draft(draft: &Draft) -> Self {
        let of_item = |item: &super::request::RequestedItem| {
            let quantity = usize::try_from(item.quantity).unwrap_or(usize::MAX);
            let unit = WantedUnit {
                option_id: item.option_id,
                metadata: item.metadata.clone(),
            };
            std::iter::repeat_n(unit, quantity)
        };
        Self {
            units: draft.items.iter().flat_map(of_item).collect(),
            metadata: draft.metadata.clone(),
        }
    }

    /// `topups` are in the order of the answer.
    pub(super) fn of_order<'a>(
        topups: impl Iterator<Item = &'a NewTopup>,
        metadata: Option<&Metadata>,
    ) -> Self {
        let unit = |topup: &NewTopup| WantedUnit {
            option_id: Some(topup.agreed.option_id),
            metadata: topup.metadata.clone(),
        };
        Self {
            units: topups.map(unit).collect(),
            metadata: metadata.cloned(),
        }
    }

    /// Whether it is what this order asked for. Other metadata makes another order, because whoever
    /// sends it would otherwise take it for stored. What was erased is not compared.
    fn is(&self, ordered: &OrderedUnits) -> bool {
        let options = ordered.units.iter().map(|unit| Some(unit.option_id));
        let metadata = ordered.units.iter().map(|unit| &unit.metadata);
        options.eq(self.units.iter().map(|unit| unit.option_id))
            && (ordered.is_erased
                || ordered.metadata == self.metadata
                    && metadata.eq(self.units.iter().map(|unit| &unit.metadata)))
    }
}

/// The answer to a repeat, given what the order that stands asked for. An order whose units are
/// gone was archived.
pub(super) fn answer(
    ordered: &OrderedUnits,
    wanted: &WantedOrder,
) -> Result<RepeatAnswer, ApiError> {
    if ordered.units.is_empty() {
        return Err(ErrorCode::OrderArchived.into());
    }
    if !wanted.is(ordered) {
        return Err(ErrorCode::OrderDiffers.into());
    }
    let shown = ordered
        .units
        .iter()
        .map(|unit| (&unit.topup_id, unit.option_id));
    let body = created_body(shown).map_err(ApiError::internal)?;
    Ok(RepeatAnswer::Same(body))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderMap;
    use store::orders::OrderedUnit;

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
        let units = [first, first, second]
            .iter()
            .enumerate()
            .map(|(nth, option_id)| OrderedUnit {
                topup_id: format!("2025012912345612345678901{nth}").parse().unwrap(),
                option_id: *option_id,
                metadata: None,
            })
            .collect();
        let mut ordered = OrderedUnits {
            units,
            ..OrderedUnits::default()
        };
        let wanted = |options: &[Option<OptionId>], kept: [Option<&Metadata>; 2]| WantedOrder {
            units: options
                .iter()
                .map(|option_id| WantedUnit {
                    option_id: *option_id,
                    metadata: kept[1].cloned(),
                })
                .collect(),
            metadata: kept[0].cloned(),
        };
        let differs = |ordered: &OrderedUnits, wanted: &WantedOrder| match answer(ordered, wanted) {
            Ok(_) => None,
            Err(ApiError::Plain { code, .. }) => Some(code),
            Err(other) => panic!("{other:?}"),
        };
        let code = |options: &[Option<OptionId>]| differs(&ordered, &wanted(options, [None, None]));
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
        let gone = answer(&OrderedUnits::default(), &wanted(&[first], [None, None]));
        let archived = ErrorCode::OrderArchived;
        assert!(matches!(gone, Err(ApiError::Plain { code, .. }) if code == archived));

        let kept = Metadata::read(r#"{"ticket":"T-1"}"#).unwrap();
        let units = [first, first, second];
        let other = Some(ErrorCode::OrderDiffers);
        for kept in [[Some(&kept), None], [None, Some(&kept)]] {
            let wanted = wanted(&units, kept);
            assert_eq!(differs(&ordered, &wanted), other, "{kept:?}");
            ordered.metadata = wanted.metadata.clone();
            for unit in &mut ordered.units {
                unit.metadata = kept[1].cloned();
            }
            assert_eq!(differs(&ordered, &wanted), None, "{kept:?}");
        }
        let without = wanted(&units, [None, None]);
        assert_eq!(differs(&ordered, &without), other);
        ordered.is_erased = true;
        assert_eq!(differs(&ordered, &without), None, "nothing of it is left");
    }
}
