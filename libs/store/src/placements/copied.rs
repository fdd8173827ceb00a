//! The copy of an order and its units that the first claim of a placement needs. The statement that
//! stores orders writes it onto the placement's row, so that the claim opens no other table. The
//! tables `orders` and `topups` hold the same, and are read where it is missing.

use std::{iter, mem, time::Duration};

use domain::{OptionId, StoredAgreed, TopupId};
use pg::signed;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The maximum number of units of a placement that has it. With more, the row would become too
/// long; such placements are rare.
const MOST_UNITS: usize = 8;
/// The maximum length of its text, in bytes, for the same reason: what is agreed about a unit may
/// be long.
const MOST_BYTES: usize = 4096;

#[derive(Serialize, Deserialize)]
pub(crate) struct CopiedOrder {
    #[serde(rename = "order")]
    pub external_order_id: String,
    #[serde(rename = "trace", default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// The ingress process that waits for verdicts, and for how many milliseconds after the order
    /// was stored it may answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answering: Option<Uuid>,
    #[serde(rename = "ms")]
    answer_within: i32,
    /// In the order of the response: the topup, its option, and the provider's name of the product.
    units: Vec<(TopupId, OptionId, String)>,
    /// The terms of these units, in the same order; left out if none of them has any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    terms: Vec<Option<String>>,
}

impl CopiedOrder {
    /// Of a new order, for a placement with these units: the topup, what is agreed about it, and
    /// the provider's name of the product.
    pub fn new(
        external_order_id: &str,
        traceparent: Option<&str>,
        answering: Option<Uuid>,
        answer_within: Duration,
        units: Vec<(TopupId, StoredAgreed, String)>,
    ) -> Self {
        let mut terms = Vec::new();
        if units.iter().any(|(_, agreed, _)| agreed.terms.is_some()) {
            terms.extend(units.iter().map(|(_, agreed, _)| agreed.terms.clone()));
        }
        let unit = |(topup, agreed, product): (TopupId, StoredAgreed, String)| {
            (topup, agreed.option_id, product)
        };
        Self {
            external_order_id: external_order_id.to_owned(),
            traceparent: traceparent.map(str::to_owned),
            answering,
            answer_within: signed(answer_within.as_millis()),
            units: units.into_iter().map(unit).collect(),
            terms,
        }
    }

    /// As it is stored; `None` if it has too many units or would be too long.
    pub fn text(&self) -> Option<String> {
        (self.units.len() <= MOST_UNITS)
            .then(|| serde_json::to_string(self).ok())
            .flatten()
            .filter(|text| text.len() <= MOST_BYTES)
    }

    /// Reads it; `None` if it is damaged, or was written by a newer version.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Its units, as they were passed to [`Self::new`]. It no longer has them afterwards.
    pub fn take_units(&mut self) -> impl Iterator<Item = (TopupId, StoredAgreed, String)> + use<> {
        let terms = mem::take(&mut self.terms).into_iter();
        let terms = terms.chain(iter::repeat(None));
        let units = mem::take(&mut self.units).into_iter().zip(terms);
        units.map(|((topup_id, option_id, product), terms)| {
            (topup_id, StoredAgreed { option_id, terms }, product)
        })
    }

    /// See [`report_to`]; `age` is that of the order, in seconds.
    pub fn report_to(&self, age: f64) -> Option<Uuid> {
        report_to(self.answering, f64::from(self.answer_within) / 1000.0 - age)
    }
}

/// The ingress process to which verdicts and readiness events of an order go, because it may still
/// answer it: the one that the order names (`orders.answering`), until `answer_by`. `rest` is the
/// time until then in seconds, by the clock of PostgreSQL. Every `report_to` comes from here. That
/// nothing else of the order leaves before `answer_by` is kept where it is stored: by the due times
/// of work without a message.
pub(super) fn report_to(answering: Option<Uuid>, rest: f64) -> Option<Uuid> {
    answering.filter(|_| rest > 0.0)
}

#[cfg(test)]
mod tests {
    use domain::TopupIds;

    use super::*;

    #[test]
    fn terms_come_back_with_their_unit_and_take_no_room_where_there_are_none() {
        let topups = TopupIds::new([0; 32]);
        let unit = |terms: Option<&str>| {
            let topup = topups.next(time::OffsetDateTime::UNIX_EPOCH);
            let agreed = StoredAgreed {
                option_id: OptionId::new(),
                terms: terms.map(str::to_owned),
            };
            (topup, agreed, "product".to_owned())
        };
        for (units, has_terms) in [
            (vec![unit(None), unit(None)], false),
            (vec![unit(None), unit(Some(r#"{"made_up":1}"#))], true),
        ] {
            let first = CopiedOrder::new("order", None, None, Duration::ZERO, units.clone());
            let text = first.text().unwrap();
            assert_eq!(text.contains("terms"), has_terms, "{text}");
            let read: Vec<_> = CopiedOrder::parse(&text).unwrap().take_units().collect();
            assert_eq!(read, units);
        }
        // The claim reads the tables instead.
        let long = unit(Some(&"x".repeat(MOST_BYTES)));
        let first = CopiedOrder::new("order", None, None, Duration::ZERO, vec![long]);
        assert_eq!(first.text(), None);
    }
}
