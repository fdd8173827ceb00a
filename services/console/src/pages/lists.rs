//! What the lists of orders and of webhooks share: the filter by partner and by time, and CSV.

use accounts::partners;
use axum::{
    http::header,
    response::{IntoResponse, Response},
};
use domain::PartnerId;
use pg::PgConnection;
use time::{Duration, OffsetDateTime};

use crate::{access::Fields, times::Times};

/// The rows of a page.
pub(crate) const PAGE: usize = 25;
/// The most rows of a CSV.
pub(crate) const CSV: usize = 10_000;
/// The times that a list offers by a link, and their names.
pub(crate) const SINCE: [(&str, &str); 4] = [
    ("15min", "15 min"),
    ("1h", "1 h"),
    ("24h", "24 h"),
    ("7days", "7 d"),
];

/// The time that a list is about.
pub(crate) struct Window {
    pub(crate) since: Option<OffsetDateTime>,
    pub(crate) until: Option<OffsetDateTime>,
}

impl Window {
    /// Of the fields `from` and `until` in the reader's zone, or the last part of time that a link names.
    pub(crate) fn of(query: &Fields, times: &Times) -> Self {
        let last = query.get("since").filter(|asked| {
            let mut known = SINCE.iter();
            known.any(|(since, _)| since == asked)
        });
        let last = last.and_then(|since| runtime::config::duration(since).ok());
        let from = query.get("from").and_then(|from| times.parse(from));
        Self {
            since: from.or(last.map(|last| times.now - last)),
            until: query.get("until").and_then(|until| times.parse(until)),
        }
    }
}

/// The partner that a filter names.
pub(crate) enum Named {
    All,
    One(PartnerId),
    /// Nobody, or several.
    Nobody(String),
}

impl Named {
    /// By an id, an access key, a whole name in any case, or a part that only one name has.
    pub(crate) async fn find(
        connection: &mut PgConnection,
        given: Option<&str>,
    ) -> Result<Self, pg::Error> {
        let Some(given) = given.map(str::trim).filter(|given| !given.is_empty()) else {
            return Ok(Self::All);
        };
        if let Some(partner) = partners::show(&mut *connection, given).await? {
            return Ok(Self::One(partner.partner_id.into()));
        }
        let wanted = given.to_lowercase();
        let all = partners::list(connection).await?;
        let whole: Vec<_> = all
            .iter()
            .filter(|one| one.name.to_lowercase() == wanted)
            .collect();
        let part: Vec<_> = all
            .iter()
            .filter(|one| one.name.to_lowercase().contains(&wanted))
            .collect();
        Ok(match (&whole[..], &part[..]) {
            ([one], _) | ([], [one]) => Self::One(one.partner_id.into()),
            ([], []) => Self::Nobody(format!("No partner has “{given}” in its name.")),
            (several, more) => {
                let several = if several.is_empty() { more } else { several };
                let names: Vec<&str> = several
                    .iter()
                    .take(5)
                    .map(|one| one.name.as_str())
                    .collect();
                Self::Nobody(format!(
                    "{} partners fit “{given}”: {}. Write more of the name, or the partner’s id.",
                    several.len(),
                    names.join(", ")
                ))
            }
        })
    }

    pub(crate) fn id(&self) -> Option<PartnerId> {
        match self {
            Self::One(id) => Some(*id),
            Self::All | Self::Nobody(_) => None,
        }
    }
}

/// The query of this page with some fields set to other values; an empty value takes a field away.
pub(crate) fn with(path: &str, query: &Fields, changes: &[(&str, &str)]) -> String {
    const KEPT: [&str; 8] = [
        "by", "partner", "state", "provider", "since", "from", "until", "before",
    ];
    let mut pairs = url::form_urlencoded::Serializer::new(String::new());
    for name in KEPT {
        let changed = changes.iter().find(|(of, _)| *of == name);
        let value = changed.map_or_else(|| query.get(name), |(_, value)| Some(*value));
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            pairs.append_pair(name, value);
        }
    }
    match pairs.finish() {
        none if none.is_empty() => path.to_owned(),
        query => format!("{path}?{query}"),
    }
}

/// A line of CSV. A field that a spreadsheet would take for a formula gets a quote before it, because
/// others have chosen some of them.
pub(crate) fn line(text: &mut String, fields: &[&str]) {
    for (index, field) in fields.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        text.push('"');
        if field.starts_with(['=', '+', '-', '@', '\t', '\r']) {
            text.push('\'');
        }
        text.push_str(&field.replace('"', "\"\""));
        text.push('"');
    }
    text.push_str("\r\n");
}

/// A CSV as a file.
pub(crate) fn csv(name: &str, text: String) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/csv; charset=utf-8".to_owned()),
        (
            header::CONTENT_DISPOSITION,
            format!("attachment; filename=\"{name}.csv\""),
        ),
    ];
    (headers, text).into_response()
}

/// The span of time of rows, for the foot of a list.
pub(crate) fn span(times: &Times, newest: OffsetDateTime, oldest: OffsetDateTime) -> String {
    if newest - oldest < Duration::SECOND {
        times.clock(newest).to_string()
    } else {
        format!("{} to {}", times.clock(oldest), times.clock(newest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_a_csv_is_one_field_and_no_formula() {
        let mut text = String::new();
        line(&mut text, &["a \"b\", c", "=1+1", "-5", "8981"]);
        assert_eq!(text, "\"a \"\"b\"\", c\",\"'=1+1\",\"'-5\",\"8981\"\r\n");
    }

    #[test]
    fn a_link_keeps_the_filters_and_changes_one() {
        let query = Fields::parse(b"partner=A%26B&state=ready&evil=1&before=x");
        let link = with("/orders", &query, &[("state", "failed"), ("before", "")]);
        assert_eq!(link, "/orders?partner=A%26B&state=failed");
        assert_eq!(with("/orders", &Fields::default(), &[]), "/orders");
    }
}
