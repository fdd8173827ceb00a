//! What the lists of orders, of webhooks and of actions share: the filters by partner, product and
//! time, the links that keep the filters, the pages that go on where the one before ended, and CSV.

use accounts::partners;
use axum::{
    http::header,
    response::{IntoResponse, Response},
};
use desk::operator::options;
use domain::{OptionId, PartnerId};
use pg::PgConnection;
use runtime::csv::table;
use time::{Duration, OffsetDateTime};

use crate::{
    access::FormFields,
    format::{address, counted, number, utc},
    times::{TimeElement, Times},
};

/// The rows of a page.
pub(crate) const PAGE: usize = 25;
/// The maximum number of rows of a CSV.
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
    /// Of the fields `from` and `until` in the reader's zone, or the last part of time that a link
    /// names.
    pub(crate) fn of(query: &FormFields, times: &Times) -> Self {
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

/// The maximum number of names of partners that are listed if a filter does not say which one it
/// means.
const NAMES: i64 = 5;
/// The maximum number of names of products that a filter offers while somebody types.
pub(crate) const CHOICES: i64 = 300;

/// What a filter names: one of all partners or products, or of which kind there is not exactly one.
pub(crate) enum FilterChoice<Id = PartnerId> {
    All,
    One(Id),
    /// None, or several.
    Nobody(String),
}

impl<Id: Copy> FilterChoice<Id> {
    pub(crate) fn id(&self) -> Option<Id> {
        match self {
            Self::One(id) => Some(*id),
            Self::All | Self::Nobody(_) => None,
        }
    }

    /// Why nothing is listed.
    pub(crate) fn nobody(&self) -> Option<&str> {
        match self {
            Self::Nobody(why) => Some(why),
            Self::All | Self::One(_) => None,
        }
    }
}

impl FilterChoice<OptionId> {
    /// A product by its id, its whole name in any case, or its name at the provider.
    pub(crate) async fn product(
        connection: &mut PgConnection,
        given: Option<&str>,
    ) -> Result<Self, pg::Error> {
        let Some(given) = given.map(str::trim).filter(|given| !given.is_empty()) else {
            return Ok(Self::All);
        };
        let found = options::named(connection, given).await?;
        Ok(match &found[..] {
            [] => Self::Nobody(format!(
                "No product has the name or id “{given}”. A product is named whole."
            )),
            [one] => Self::One(one.option_id),
            several => {
                let ids: Vec<String> = several
                    .iter()
                    .take(5)
                    .map(|one| {
                        let environment = &one.environment;
                        format!("{} ({environment}, {})", one.option_id, one.provider)
                    })
                    .collect();
                Self::Nobody(format!(
                    "{} products have the name “{given}”. Write the id of one: {}.",
                    several.len(),
                    ids.join(", ")
                ))
            }
        })
    }
}

/// The partner that a list is about.
pub(crate) struct OfPartner {
    pub(crate) id: String,
    pub(crate) name: String,
    /// What the field of the filter holds: the name, or the id if others have that name, too.
    field: String,
}

impl OfPartner {
    pub(crate) fn into_field(self) -> String {
        self.field
    }
}

impl FilterChoice {
    /// The partner that a filter names, as people know it, however the address names it.
    pub(crate) async fn shown(
        &self,
        connection: &mut PgConnection,
    ) -> Result<Option<OfPartner>, pg::Error> {
        let Some(id) = self.id() else {
            return Ok(None);
        };
        let names = partners::names(&mut *connection, &[id.uuid()]).await?;
        let Some(name) = names.into_values().next() else {
            return Ok(None);
        };
        let namesakes = partners::named(connection, &name, 1).await?;
        let is_unique = namesakes.whole == 1;
        Ok(Some(OfPartner {
            id: id.to_string(),
            field: if is_unique {
                name.clone()
            } else {
                id.to_string()
            },
            name,
        }))
    }

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
        let found = partners::named(connection, given, NAMES).await?;
        let several = match (found.whole, found.part) {
            (1, _) | (0, 1) => None,
            (0, part) => Some(part),
            (whole, _) => Some(whole),
        };
        Ok(match (several, found.some.first()) {
            (_, None) => Self::Nobody(format!("No partner has “{given}” in its name.")),
            (None, Some((id, _))) => Self::One(*id),
            (Some(several), Some(_)) => {
                let names = found.some.iter().map(|(_, name)| name.as_str());
                let names: Vec<&str> = names.collect();
                Self::Nobody(format!(
                    "{} partners fit “{given}”: {}. Write more of the name, or the partner’s id.",
                    number(several),
                    names.join(", ")
                ))
            }
        })
    }
}

/// A link of which one is the current one.
pub(crate) struct Tab {
    pub(crate) name: &'static str,
    pub(crate) path: String,
    pub(crate) current: bool,
    /// How many there are, where that is known from few rows; `100+` if there are more.
    pub(crate) count: Option<String>,
}

/// What a list has beside its rows.
pub(crate) struct Frame {
    path: &'static str,
    query: FormFields,
    /// The partner that it is about, if it is about one.
    pub(crate) of: Option<OfPartner>,
    /// The links that choose the last part of time.
    pub(crate) chips: Vec<Tab>,
    /// The list of all times.
    pub(crate) any: String,
    pub(crate) csv: String,
    /// Why nothing is listed, if a filter names nobody.
    pub(crate) nobody: Option<String>,
    /// The first page, if this is another one.
    pub(crate) newest: Option<String>,
    /// The page behind this one.
    pub(crate) older: Option<String>,
    /// The time of the last row that was looked at, if fewer rows fit than a page has and there are
    /// more.
    pub(crate) reached: Option<TimeElement>,
}

impl Frame {
    /// The frame of the list at `path`. `older` is the place where it goes on, and `reached` the
    /// time of the last row that was looked at, if it has not looked through all.
    pub(crate) fn new(
        path: &'static str,
        query: &FormFields,
        times: &Times,
        nobody: Option<&str>,
        older: Option<impl ToString>,
        reached: Option<OffsetDateTime>,
    ) -> Self {
        let since = query.get("since").unwrap_or_default();
        let time = |since| {
            [
                ("since", since),
                ("from", ""),
                ("until", ""),
                ("before", ""),
            ]
        };
        let chip = |(key, name): &(&'static str, &'static str)| Tab {
            name,
            path: with(path, query, &time(key)),
            current: *key == since,
            count: None,
        };
        let first = with(path, query, &[("before", "")]);
        Self {
            chips: SINCE.iter().map(chip).collect(),
            any: with(path, query, &time("")),
            csv: with(&format!("{path}.csv"), query, &[("before", "")]),
            nobody: nobody.map(str::to_owned),
            newest: query.get("before").map(|_| first),
            older: older.map(|at| with(path, query, &[("before", &at.to_string())])),
            query: query.clone(),
            of: None,
            reached: reached.map(|at| times.clock(at)),
            path,
        }
    }

    /// The same, of one partner only if there is one.
    pub(crate) fn about(self, of: Option<OfPartner>) -> Self {
        Self { of, ..self }
    }

    /// The tabs of the states: all, and each of these, which are its value in the address and its
    /// name.
    pub(crate) fn tabs(&self, states: &[(&'static str, &'static str)]) -> Vec<Tab> {
        let now = self.field("state");
        let all = [("", "All")];
        let tab = |(key, name): &(&'static str, &'static str)| Tab {
            name,
            path: with(self.path, &self.query, &[("state", key), ("before", "")]),
            current: *key == now,
            count: None,
        };
        all.iter().chain(states).map(tab).collect()
    }

    /// What a filter is set to, as its field shows it.
    pub(crate) fn field(&self, name: &str) -> &str {
        match &self.of {
            Some(partner) if name == "partner" => &partner.field,
            _ => self.query.get(name).unwrap_or_default(),
        }
    }

    /// The foot of a page with this many rows: what they are, and how far the list has looked if it
    /// has not looked through all. `span` is the time of the rows, and `one` and `many` what they
    /// are called.
    pub(crate) fn foot(&self, rows: usize, span: &str, (one, many): (&str, &str)) -> String {
        match (rows, &self.reached) {
            (rows, Some(reached)) => format!(
                "Looked through the {many} back to {reached}; {}.",
                match rows {
                    0 => "none fits".to_owned(),
                    1 => "1 fits".to_owned(),
                    several => format!("{} fit", number(several)),
                }
            ),
            (0, None) => format!("No {one} fits."),
            (rows, None) if span.is_empty() => {
                format!("{}, newest first.", counted(rows, one, many))
            }
            (rows, None) => format!("{}, {span}, newest first.", counted(rows, one, many)),
        }
    }
}

/// The query of this page with some fields set to other values; an empty value takes a field away.
pub(crate) fn with(path: &str, query: &FormFields, changes: &[(&str, &str)]) -> String {
    const KEPT: [&str; 13] = [
        "by", "what", "via", "partner", "state", "product", "provider", "endpoint", "since",
        "from", "until", "sort", "before",
    ];
    let kept = KEPT.into_iter().filter_map(|name| {
        let changed = changes.iter().find(|(of, _)| *of == name);
        let value = changed.map_or_else(|| query.get(name), |(_, value)| Some(*value));
        Some((name, value?))
    });
    address(path, kept)
}

/// A time of a CSV: ISO 8601, in UTC. Empty if there is none.
pub(crate) fn instant(at: impl Into<Option<OffsetDateTime>>) -> String {
    let at = at.into();
    at.map(|at| format!("{}Z", utc(at).replace(' ', "T")))
        .unwrap_or_default()
}

/// A field of a CSV that may have no value.
pub(crate) fn or_empty(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// A table as a file. Times in it are those of [`instant`].
pub(crate) fn csv<Row: AsRef<[String]>>(
    name: &str,
    head: &[impl AsRef<str>],
    rows: impl IntoIterator<Item = Row>,
) -> Response {
    // Excel takes a file for one in the encoding of its country, unless this mark says UTF-8.
    let text = format!("\u{feff}{}", table(head, rows));
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
    fn a_link_keeps_the_filters_and_changes_one() {
        let query = FormFields::parse(b"partner=A%26B&state=ready&evil=1&before=x");
        let link = with("/orders", &query, &[("state", "failed"), ("before", "")]);
        assert_eq!(link, "/orders?partner=A%26B&state=failed");
        assert_eq!(with("/orders", &FormFields::default(), &[]), "/orders");
    }
}
