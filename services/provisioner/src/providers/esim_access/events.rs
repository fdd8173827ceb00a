//! The events of eSIM Access, as its reference describes them (April 2026). They are not signed, so
//! only what they are about is used.
//!
//! Its help shows events as a query string, too (`content[orderNo]=…`), its tests come in that form
//! or without anything, and the spelling of names varies. So an event is read leniently, and what
//! is none is acknowledged: a URL that refuses a test cannot be set.

use domain::{Iccid, PlacementId};
use serde_json::{Map, Value};
use url::form_urlencoded;

use crate::providers::{
    provider::{CallbackRequest, Hint, ProviderReport, ReportSubject},
    text::{ProviderId, one_line},
};

/// What an event tells us. Without an id of ours it leads to nothing, and what it would have told
/// comes on schedule, or when somebody asks.
pub(super) fn read(callback: &CallbackRequest<'_>) -> Hint {
    let Some(event) = Event::read(callback) else {
        return Hint::Nothing;
    };
    let kind = event.text("notifytype").unwrap_or_default();
    match kind.to_ascii_uppercase().as_str() {
        // The profiles of a purchase are made.
        "ORDER_STATUS" => {
            let id: Option<PlacementId> =
                event.text("transactionid").and_then(|id| id.parse().ok());
            id.map_or(Hint::Nothing, Hint::Purchase)
        }
        kind @ ("ESIM_STATUS" | "SMDP_EVENT" | "DATA_USAGE" | "VALIDITY_USAGE") => {
            event.report(kind).map_or(Hint::Nothing, Hint::Report)
        }
        // CHECK_HEALTH tries the URL. Others are not known yet.
        _ => Hint::Nothing,
    }
}

/// The fields of an event and of its content, by their names in lower case and without `_`.
struct Event(Map<String, Value>);

/// Names that differ only in their spelling are one.
fn plain(name: &str) -> String {
    name.replace(['_', '-'], "").to_ascii_lowercase()
}

impl Event {
    /// `None` if the request holds no field at all.
    fn read(callback: &CallbackRequest<'_>) -> Option<Self> {
        let mut fields = Map::new();
        if let Ok(Value::Object(event)) = serde_json::from_slice(callback.body) {
            for (name, value) in event {
                match value {
                    Value::Object(content) if plain(&name) == "content" => {
                        fields.extend(content.into_iter().map(|(name, one)| (plain(&name), one)));
                    }
                    value => drop(fields.insert(plain(&name), value)),
                }
            }
        } else {
            let query = callback.query.unwrap_or_default().as_bytes();
            for form in [query, callback.body] {
                let pairs = form_urlencoded::parse(form);
                fields.extend(pairs.map(|(name, value)| {
                    let inner = name.strip_prefix("content[");
                    let inner = inner.and_then(|name| name.strip_suffix(']'));
                    (plain(inner.unwrap_or(&name)), Value::String(value.into()))
                }));
            }
        }
        (!fields.is_empty()).then_some(Self(fields))
    }

    /// The text of a field; `None` if there is none, or if it is blank.
    fn text(&self, name: &str) -> Option<&str> {
        let text = self.0.get(name)?.as_str()?.trim();
        (!text.is_empty()).then_some(text)
    }

    /// The same, or a number as a text.
    fn written(&self, name: &str) -> Option<String> {
        match self.0.get(name)? {
            Value::Number(number) => Some(number.to_string()),
            _ => self.text(name).map(str::to_owned),
        }
    }

    /// What the event reports of an eSIM; `None` if it names none.
    fn report(&self, kind: &str) -> Option<ProviderReport> {
        let unit_id = self.text("esimtranno").map(str::to_owned);
        let unit_id = unit_id.and_then(|id| ProviderId::parse(id).ok());
        let iccid = self.text("iccid").and_then(|id| Iccid::parse(id).ok());
        let about = match (unit_id, iccid) {
            (Some(unit_id), _) => ReportSubject::Unit(unit_id),
            (None, Some(iccid)) => ReportSubject::Iccid(iccid),
            (None, None) => return None,
        };
        // The identity of the device (`eid`) is personal, so it is no part of the words.
        let mut words = kind.to_owned();
        let told = ["esimstatus", "smdpstatus", "remain", "remainthreshold"];
        for name in told {
            if let Some(value) = self.written(name) {
                words.push(' ');
                words.push_str(&value);
            }
        }
        // An event without an id is known by what it says, and when.
        let id = self.text("notifyid").unwrap_or_else(|| {
            let at = self.text("eventgeneratetime");
            at.or_else(|| self.text("timestamp")).unwrap_or_default()
        });
        let key = format!("{id} {} {words}", about.name());
        let words = one_line(&words);
        Some(ProviderReport { about, key, words })
    }
}
