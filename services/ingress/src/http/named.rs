//! Errors as the headers of a response name them: the codes in `X-<Brand>-Error`, and links to
//! their explanations in `Link`.
//!
//! [`super::error`] collects the errors of a response, and [`crate::observe`] writes the headers.

use std::fmt::{self, Display, Formatter};

use axum::http::HeaderValue;
use domain::Amount;

use super::codes::ErrorCode;

/// A code with its item or parameter, as the error header names it: `qty_invalid; item=2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NamedCode {
    pub(crate) code: ErrorCode,
    /// The index of the item, from 0.
    pub(crate) item: Option<usize>,
    /// The query parameter or field of the body.
    pub(crate) parameter: Option<&'static str>,
    /// What an order costs, and what there is for it.
    pub(crate) shortfall: Option<Shortfall>,
}

/// An order costs more than its partner has. Both are in the same currency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shortfall {
    pub(crate) required: Amount,
    pub(crate) available: Amount,
}

impl From<ErrorCode> for NamedCode {
    fn from(code: ErrorCode) -> Self {
        Self {
            code,
            item: None,
            parameter: None,
            shortfall: None,
        }
    }
}

impl Display for NamedCode {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        to.write_str(self.code.name())?;
        if let Some(item) = self.item {
            write!(to, "; item={item}")?;
        }
        if let Some(parameter) = self.parameter {
            write!(to, "; parameter={parameter}")?;
        }
        if let Some(Shortfall {
            required,
            available,
        }) = self.shortfall
        {
            write!(
                to,
                "; required={}; available={}; currency={}",
                required.minor, available.minor, required.currency
            )?;
        }
        Ok(())
    }
}

/// The value of the error header.
pub(crate) fn header(errors: &[NamedCode]) -> HeaderValue {
    let codes: Vec<String> = errors.iter().map(NamedCode::to_string).collect();
    HeaderValue::from_str(&codes.join(", ")).unwrap_or(HeaderValue::from_static("invalid"))
}

/// The value of the `Link` header: the section of each code, each named once. `page` is the URL of
/// the page.
pub(crate) fn links(page: &str, errors: &[NamedCode]) -> Option<HeaderValue> {
    let mut links: Vec<String> = Vec::new();
    for error in errors {
        let link = format!("<{page}#{}>; rel=\"help\"", error.code.name());
        if !links.contains(&link) {
            links.push(link);
        }
    }
    HeaderValue::from_str(&links.join(", ")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_name_each_section_once() {
        let of_item = |item| NamedCode {
            item: Some(item),
            ..ErrorCode::QtyInvalid.into()
        };
        let errors = [of_item(1), of_item(2), ErrorCode::TooManyUnits.into()];
        assert_eq!(
            header(&errors),
            "qty_invalid; item=1, qty_invalid; item=2, too_many_units"
        );
        assert_eq!(
            links("https://a.example/errors", &errors).unwrap(),
            "<https://a.example/errors#qty_invalid>; rel=\"help\", <https://a.example/errors#too_many_units>; rel=\"help\""
        );
    }
}
