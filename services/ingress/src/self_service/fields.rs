//! Reads the fields of a JSON body, as [`super::query`] reads the parameters of a query.
//!
//! Guarantee: all faults of a body are reported in one response, among them fields that the request
//! does not have. Each request with a body has a type of its own beside its handler, which is made
//! from the fields and describes itself in the `OpenAPI` document, so the compiler notices if one
//! of the two has a field that the other one lacks.

use serde_json::{Map, Value};

use super::query::{json_object, unknown};
use crate::http::error::{ApiError, RequestFault};

/// The fields of a body, and the faults that were found in them.
pub(super) struct BodyFields {
    object: Map<String, Value>,
    /// The names of the fields that the request can have.
    known: Vec<&'static str>,
    faults: Vec<RequestFault>,
}

impl BodyFields {
    /// Returns a 400 if the body is no JSON, and a 422 if it is no object or has a key twice.
    pub(super) fn of(body: &[u8]) -> Result<Self, ApiError> {
        Ok(Self {
            object: json_object(body)?,
            known: Vec::new(),
            faults: Vec::new(),
        })
    }

    /// Whether a field is there and not null.
    pub(super) fn has(&self, name: &str) -> bool {
        self.object.get(name).is_some_and(|value| !value.is_null())
    }

    /// Reads a field. `None` if it is missing or null, or if it cannot be read, which is noted.
    pub(super) fn read<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&Value) -> Result<T, RequestFault>,
    ) -> Option<T> {
        self.known.push(name);
        let value = self.object.get(name).filter(|value| !value.is_null())?;
        match read(value) {
            Ok(value) => Some(value),
            Err(fault) => {
                self.faults.push(fault.of_parameter(name));
                None
            }
        }
    }

    /// Reads a field whose null has a meaning: `None` if it is missing or cannot be read,
    /// `Some(None)` if it is null.
    #[expect(clippy::option_option, reason = "null is a value here")]
    pub(super) fn nullable<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&Value) -> Result<T, RequestFault>,
    ) -> Option<Option<T>> {
        let is_null = self.object.get(name).is_some_and(Value::is_null);
        let read = self.read(name, read);
        if is_null { Some(None) } else { read.map(Some) }
    }

    /// Whether nothing is wrong so far.
    pub(super) fn is_faultless(&self) -> bool {
        self.faults.is_empty()
    }

    /// Reads a field that must be there; `missing` is the fault if it is not.
    pub(super) fn required<T>(
        &mut self,
        name: &'static str,
        missing: RequestFault,
        read: impl FnOnce(&Value) -> Result<T, RequestFault>,
    ) -> Option<T> {
        if !self.has(name) {
            self.fault(missing.of_parameter(name));
        }
        self.read(name, read)
    }

    /// Notes a fault that is not about one field alone.
    pub(super) fn fault(&mut self, fault: RequestFault) {
        self.faults.push(fault);
    }

    /// Returns a 422 with all faults, if there are any. Every field that was not read by now is one
    /// of them. Otherwise `made` is what was made of the fields.
    pub(super) fn check<T>(mut self, made: Option<T>) -> Result<T, ApiError> {
        let given = self.object.keys().map(String::as_str);
        self.faults.extend(unknown(given, &self.known));
        match made {
            Some(made) if self.faults.is_empty() => Ok(made),
            _ => Err(ApiError::Unprocessable(self.faults)),
        }
    }
}

/// Reads a body as a request with one field does. Only a JSON object without other fields may pass.
#[cfg(debug_assertions)]
pub(crate) fn for_fuzzing(body: &[u8]) {
    let Ok(mut fields) = BodyFields::of(body) else {
        return;
    };
    let others = fields.object.keys().any(|name| name != "url");
    let url = fields.read("url", |value| Ok(value.clone()));
    assert!(
        fields.check(Some(url)).is_ok() != others,
        "an unknown field"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::codes::ErrorCode;

    #[test]
    fn all_faults_of_a_body_are_named_at_once() {
        let number = |value: &Value| {
            value
                .as_i64()
                .ok_or(RequestFault::new(ErrorCode::LimitInvalid))
        };
        let missing = || RequestFault::new(ErrorCode::UrlMissing);
        let body = br#"{"a": 1, "b": null, "c": "x", "other": 1}"#;
        let mut fields = BodyFields::of(body).unwrap();
        assert_eq!(fields.read("a", number), Some(1));
        assert_eq!(fields.read("b", number), None);
        assert_eq!(fields.required("c", missing(), number), None);
        assert_eq!(fields.required("d", missing(), number), None);
        let Err(ApiError::Unprocessable(faults)) = fields.check(Some(())) else {
            panic!("it passed");
        };
        let named: Vec<_> = faults
            .iter()
            .map(|fault| (fault.code, fault.parameter))
            .collect();
        assert_eq!(
            named,
            [
                (ErrorCode::LimitInvalid, Some("c")),
                (ErrorCode::UrlMissing, Some("d")),
                (ErrorCode::ParameterUnknown, None)
            ]
        );
        for (body, code) in [
            ("[]", ErrorCode::BodyNotObject),
            (r#"{"a":1,"a":1}"#, ErrorCode::ParameterRepeated),
        ] {
            let Err(ApiError::Unprocessable(faults)) = BodyFields::of(body.as_bytes()).map(|_| ())
            else {
                panic!("{body} passed");
            };
            assert_eq!(faults[0].code, code);
        }
    }
}
