//! Reads the parameters of a query: limit, cursor and filters.
//!
//! Guarantee: all faults of a query are reported in one response, like those of an order. Among
//! them are parameters that the request does not have: ignoring `created_before`, for example,
//! would answer with orders that the partner did not ask for. The handlers of lists read each
//! parameter and then call [`Query::check`]; a request without parameters is checked by
//! [`no_parameters`]. A cursor is not signed, so it is checked like anything else that a client
//! sends; a forged one can only select another page of what the partner may see anyway.

use std::{borrow::Cow, str::FromStr};

use axum::http::Uri;
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use desk::self_service::ChangePosition;
use domain::{EndpointId, KnownIccid, TopupId};
use serde_json::{Map, Value};
use time::{OffsetDateTime, UtcOffset, format_description::well_known::Rfc3339};
use uuid::Uuid;

use crate::http::{
    codes::ErrorCode,
    error::{ApiError, RequestFault},
    faults::{MAX_KEY, external_id, repeated, repeated_key},
};

/// The number of entries of a page if the request has no `limit`.
const DEFAULT_LIMIT: u16 = 20;
/// The maximum number of entries of a page.
const MAX_LIMIT: u16 = 100;

/// The maximum number of unknown parameters that one response names.
const MAX_UNKNOWN: usize = 10;

/// The parameters of a request's query, and the faults that were found in them.
pub(super) struct Query<'a> {
    parameters: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    /// The names of the parameters that the request can have.
    known: Vec<&'static str>,
    faults: Vec<RequestFault>,
}

impl<'a> Query<'a> {
    pub(super) fn of(uri: &'a Uri) -> Self {
        let query = uri.query().unwrap_or_default();
        Self {
            parameters: url::form_urlencoded::parse(query.as_bytes()).collect(),
            known: Vec::new(),
            faults: Vec::new(),
        }
    }

    /// Whether the query has this parameter, which may be read or not.
    pub(super) fn has(&self, name: &str) -> bool {
        self.parameters.iter().any(|(given, _)| given == name)
    }

    /// Reads a parameter. If it is there and cannot be read, the fault is noted and the result is
    /// `None`.
    pub(super) fn read<T>(
        &mut self,
        name: &'static str,
        fault: RequestFault,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        self.known.push(name);
        let (_, text) = self.parameters.iter().find(|(given, _)| given == name)?;
        let value = read(text);
        if value.is_none() {
            self.faults.push(fault.of_parameter(name));
        }
        value
    }

    /// `limit`: the number of entries of the page.
    pub(super) fn limit(&mut self) -> u16 {
        let read = |text: &str| number(text).filter(|limit| (1..=MAX_LIMIT).contains(limit));
        self.read(
            "limit",
            RequestFault::with(ErrorCode::LimitInvalid, MAX_LIMIT),
            read,
        )
        .unwrap_or(DEFAULT_LIMIT)
    }

    /// `cursor`: the last entry of the previous page.
    pub(super) fn cursor(&mut self) -> Option<Uuid> {
        self.read(
            "cursor",
            RequestFault::new(ErrorCode::CursorInvalid),
            parse_cursor,
        )
    }

    /// `cursor` of a list that is sorted by time: the last entry of the previous page, with its
    /// time.
    pub(super) fn timed_cursor(&mut self) -> Option<(OffsetDateTime, Uuid)> {
        self.read(
            "cursor",
            RequestFault::new(ErrorCode::CursorInvalid),
            parse_timed_cursor,
        )
    }

    /// `cursor` of a walk of changes.
    pub(super) fn change_cursor(&mut self) -> Option<ChangePosition> {
        self.read(
            "cursor",
            RequestFault::new(ErrorCode::CursorInvalid),
            parse_change_cursor,
        )
    }

    /// `since`, `until` or the like: a time such as `2026-11-22T00:00:00Z`.
    pub(super) fn time(&mut self, name: &'static str) -> Option<OffsetDateTime> {
        self.read(name, time_fault(name), moment)
    }

    /// `created_after`: a time such as `2026-11-22T00:00:00Z`.
    pub(super) fn created_after(&mut self) -> Option<OffsetDateTime> {
        self.read(
            "created_after",
            RequestFault::new(ErrorCode::CreatedAfterInvalid),
            moment,
        )
    }

    /// `iccid`: the number of an eSIM, or its last six digits.
    pub(super) fn iccid(&mut self) -> Option<KnownIccid> {
        self.read(
            "iccid",
            RequestFault::new(ErrorCode::IccidInvalid),
            KnownIccid::parse,
        )
    }

    /// `endpoint_id`: one of the partner's endpoints.
    pub(super) fn endpoint(&mut self) -> Option<EndpointId> {
        self.read(
            "endpoint_id",
            RequestFault::new(ErrorCode::EndpointIdInvalid),
            |text| text.parse().ok(),
        )
    }

    /// `external_order_id`: the partner's own id of an order. It has the same faults as in an
    /// order.
    pub(super) fn external_order_id(&mut self) -> Option<String> {
        let name = "external_order_id";
        self.known.push(name);
        let (_, text) = self.parameters.iter().find(|(given, _)| given == name)?;
        let read = external_id(text);
        read.map_err(|fault| self.faults.push(fault.of_parameter(name)))
            .ok()
    }

    /// Returns a 422 with all faults, if there are any. Every parameter that was not read by now is
    /// one of them, and each one that appears twice, because we could only guess which one is
    /// meant.
    pub(super) fn check(mut self) -> Result<(), ApiError> {
        let given = self.parameters.iter().map(|(name, _)| &**name);
        let unknown = unknown(given, &self.known);
        self.faults.extend(unknown);
        let times = |name: &&&str| {
            let given = self.parameters.iter();
            given.filter(|(given, _)| given == **name).count()
        };
        let repeated = self.known.iter().filter(|name| times(name) > 1);
        let fault = |name: &&'static str| {
            RequestFault::with(ErrorCode::ParameterRepeated, name).of_parameter(name)
        };
        self.faults.extend(repeated.map(fault));
        if self.faults.is_empty() {
            Ok(())
        } else {
            Err(ApiError::Unprocessable(self.faults))
        }
    }
}

/// A fault for each of the first names that are not known, so that a spelling mistake does not
/// change what a request means. It looks no further once it has [`MAX_UNKNOWN`] of them, so that a
/// name is compared with few others, however many the request has.
pub(super) fn unknown<'a>(
    given: impl Iterator<Item = &'a str>,
    known: &[&str],
) -> Vec<RequestFault> {
    let mut unknown: Vec<&str> = Vec::new();
    for name in given {
        if unknown.len() == MAX_UNKNOWN {
            break;
        }
        if !known.contains(&name) && !unknown.contains(&name) {
            unknown.push(name);
        }
    }
    let fault = |name: &str| {
        let name: String = name.chars().take(MAX_KEY).collect();
        RequestFault::with(ErrorCode::ParameterUnknown, name)
    };
    unknown.into_iter().map(fault).collect()
}

/// Reads a JSON object. Returns a 400 if the body is no JSON, and a 422 if it is no object or if an
/// object in it has a key twice.
pub(super) fn json_object(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    let value: Value =
        serde_json::from_slice(body).map_err(|_| ApiError::from(ErrorCode::InvalidJson))?;
    let json = str::from_utf8(body).map_err(|_| ApiError::from(ErrorCode::InvalidJson))?;
    let fault = match (repeated_key(json)?, value) {
        (Some(key), _) => repeated(&key),
        (None, Value::Object(object)) => return Ok(object),
        (None, _) => RequestFault::new(ErrorCode::BodyNotObject),
    };
    Err(ApiError::Unprocessable(vec![fault]))
}

/// Returns a 422 if a request that has no parameters has a query all the same.
pub(super) fn no_parameters(uri: &Uri) -> Result<(), ApiError> {
    Query::of(uri).check()
}

/// Reads an RFC 3339 time of the years 1 to 9999 in UTC. Others cannot be written in this format,
/// because UTC may shift a time out of the years that it has, and the year 0 is stored as 1 BC. An
/// answer that repeats such a time could not be made.
pub(super) fn moment(text: &str) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(text, &Rfc3339)
        .ok()?
        .checked_to_offset(UtcOffset::UTC)
        .filter(|at| (1..=9999).contains(&at.year()))
}

/// Reads a number that consists of digits only.
pub(super) fn number<T: FromStr>(text: &str) -> Option<T> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok())?
}

/// The fault of a time that cannot be read. The message begins with its name.
pub(super) fn time_fault(name: &'static str) -> RequestFault {
    let shown = match name {
        "since" => "Since",
        "until" => "Until",
        "updated_since" => "Updated since",
        _ => "Updated until",
    };
    RequestFault::with(ErrorCode::TimeInvalid, shown).of_parameter(name)
}

/// Cuts `found` to `limit` entries, and returns the cursor of the next page if there were more.
/// `after` makes the cursor after an entry.
pub(super) fn cut<T>(
    found: &mut Vec<T>,
    limit: u16,
    after: impl Fn(&T) -> Option<String>,
) -> Option<String> {
    let more = found.len() > limit.into();
    found.truncate(limit.into());
    found.last().filter(|_| more).and_then(after)
}

/// The cursor after an entry.
pub(super) fn cursor(last: Uuid) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(last.as_bytes())
}

fn parse_cursor(text: &str) -> Option<Uuid> {
    Uuid::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(text).ok()?).ok()
}

/// The cursor after an entry of a list that is sorted by time. It holds the time itself, because
/// the entry may be gone when the cursor is used.
pub(super) fn timed_cursor(at: OffsetDateTime, last: Uuid) -> String {
    let microseconds = i64::try_from(at.unix_timestamp_nanos() / 1_000).unwrap_or(i64::MAX);
    let mut bytes = microseconds.to_be_bytes().to_vec();
    bytes.extend(last.as_bytes());
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

fn parse_timed_cursor(text: &str) -> Option<(OffsetDateTime, Uuid)> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
    let (microseconds, last) = bytes.split_first_chunk()?;
    // The cursor is not signed, so anything may be in it. Only times that PostgreSQL can represent
    // are accepted; others would make the query fail.
    let microseconds = i64::from_be_bytes(*microseconds);
    let at = (microseconds >= 0).then_some(i128::from(microseconds) * 1_000)?;
    let at = OffsetDateTime::from_unix_timestamp_nanos(at).ok()?;
    Some((at, Uuid::from_slice(last).ok()?))
}

/// The cursor after a change of a topup.
pub(super) fn change_cursor(after: &ChangePosition) -> String {
    let microseconds = i64::try_from(after.at.unix_timestamp_nanos() / 1_000).unwrap_or(i64::MAX);
    let mut bytes = microseconds.to_be_bytes().to_vec();
    bytes.extend(after.topup_id.as_bytes());
    bytes.push(b' ');
    bytes.extend(after.change.as_bytes());
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// As with every cursor, anything may be in it. What is accepted is a time that PostgreSQL can
/// represent, the digits of a topup id and a word.
fn parse_change_cursor(text: &str) -> Option<ChangePosition> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
    let (microseconds, rest) = bytes.split_first_chunk()?;
    let microseconds = i64::from_be_bytes(*microseconds);
    let at = (microseconds >= 0).then_some(i128::from(microseconds) * 1_000)?;
    let at = OffsetDateTime::from_unix_timestamp_nanos(at).ok()?;
    let (topup_id, change) = std::str::from_utf8(rest).ok()?.split_once(' ')?;
    let is_id = topup_id.parse::<TopupId>().is_ok();
    let is_word = change.bytes().all(|byte| byte.is_ascii_lowercase());
    (is_id && is_word).then(|| ChangePosition {
        at,
        topup_id: topup_id.to_owned(),
        change: change.to_owned(),
    })
}

/// Reads a query as a list does.
#[cfg(debug_assertions)]
pub(crate) fn for_fuzzing(uri: &Uri) {
    let mut query = Query::of(uri);
    let limit = query.limit();
    query.cursor();
    query.timed_cursor();
    query.change_cursor();
    query.created_after();
    query.endpoint();
    query.external_order_id();
    query.iccid();
    assert!((1..=MAX_LIMIT).contains(&limit), "a page of {limit}");
    let _ = query.check();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cursor_of_a_walk_is_read_as_made_and_nothing_else_is() {
        let position = ChangePosition {
            at: OffsetDateTime::UNIX_EPOCH + time::Duration::microseconds(1_234_567),
            topup_id: "20250129123456123456789012".into(),
            change: "ready".into(),
        };
        let cursor = change_cursor(&position);
        assert_eq!(parse_change_cursor(&cursor), Some(position));
        let encoded = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        let id = "20250129123456123456789012";
        for bad in [
            String::new(),
            cursor[1..].to_owned(),
            encoded(
                format!("\u{7f}\u{7f}\u{7f}\u{7f}\u{7f}\u{7f}\u{7f}\u{7f}{id} ready").as_bytes(),
            ),
            encoded(format!("\0\0\0\0\0\0\0\0{id}").as_bytes()),
            encoded(format!("\0\0\0\0\0\0\0\0{id} \0").as_bytes()),
            encoded("\0\0\0\0\0\0\0\0~ ready".as_bytes()),
        ] {
            assert_eq!(parse_change_cursor(&bad), None, "{bad}");
        }
    }

    #[test]
    fn a_cursor_is_read_as_made_and_nothing_else_is() {
        let id = Uuid::now_v7();
        assert_eq!(parse_cursor(&cursor(id)), Some(id));
        for bad in [
            "",
            "a",
            &id.to_string(),
            &format!("{}=", cursor(id)),
            &cursor(id)[1..],
        ] {
            assert_eq!(parse_cursor(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_cursor_with_a_time_is_read_as_made_and_nothing_else_is() {
        let at = runtime::clock::now();
        let id = Uuid::now_v7();
        let (read, last) = parse_timed_cursor(&timed_cursor(at, id)).unwrap();
        assert_eq!(
            (read.unix_timestamp_nanos(), last),
            (at.unix_timestamp_nanos() / 1_000 * 1_000, id)
        );
        let before_1970 = OffsetDateTime::UNIX_EPOCH - time::Duration::SECOND;
        for bad in [
            String::new(),
            cursor(id),
            timed_cursor(at, id)[1..].to_owned(),
            timed_cursor(before_1970, id),
            BASE64_URL_SAFE_NO_PAD.encode([0x7f; 24]),
        ] {
            assert_eq!(parse_timed_cursor(&bad), None, "{bad}");
        }
    }

    #[test]
    fn all_faults_are_named() {
        let uri: Uri = "/?limit=0&cursor=x&created_after=now".parse().unwrap();
        let mut query = Query::of(&uri);
        assert_eq!((query.limit(), query.cursor()), (DEFAULT_LIMIT, None));
        assert_eq!(query.created_after(), None);
        let Err(ApiError::Unprocessable(faults)) = query.check() else {
            panic!("it passed");
        };
        let uri: Uri = "/?created_after=9999-12-31T23:59:59-23:59".parse().unwrap();
        assert_eq!(Query::of(&uri).created_after(), None);
        let codes: Vec<ErrorCode> = faults.iter().map(|fault| fault.code).collect();
        assert_eq!(
            codes,
            [
                ErrorCode::LimitInvalid,
                ErrorCode::CursorInvalid,
                ErrorCode::CreatedAfterInvalid
            ]
        );
    }

    #[test]
    fn only_what_can_be_printed_is_read() {
        for (text, is_read) in [
            ("0001-01-01T00:00:00Z", true),
            ("9999-12-31T23:59:59.999999999Z", true),
            ("0000-12-31T23:59:59-01:00", true),
            ("0000-12-31T23:59:59Z", false),
            ("0000-01-01T00:00:00+23:59", false),
            ("0001-01-01T00:00:00+00:01", false),
            ("9999-12-31T23:59:59-00:01", false),
            ("2026-11-22T00:00:00", false),
        ] {
            let read = moment(text);
            assert_eq!(read.is_some(), is_read, "{text}");
            assert!(read.is_none_or(|at| at.format(&Rfc3339).is_ok()), "{text}");
        }
        for (text, read) in [
            ("7", Some(7)),
            ("+7", None),
            ("-7", None),
            ("7.0", None),
            ("", None),
        ] {
            assert_eq!(number::<u16>(text), read, "{text}");
        }
    }

    #[test]
    fn what_is_given_twice_is_refused_once() {
        let uri: Uri = "/?limit=5&limit=5&limit=x".parse().unwrap();
        let mut query = Query::of(&uri);
        assert_eq!(query.limit(), 5);
        let Err(ApiError::Unprocessable(faults)) = query.check() else {
            panic!("it passed");
        };
        let found: Vec<_> = faults.iter().map(|one| (one.code, one.parameter)).collect();
        assert_eq!(found, [(ErrorCode::ParameterRepeated, Some("limit"))]);
        assert_eq!(
            faults[0].message,
            "Parameter limit is given more than once; send it once"
        );
        let body = br#"{"url": "https://a.example", "url": "https://b.example"}"#;
        let Err(ApiError::Unprocessable(faults)) = json_object(body) else {
            panic!("it passed");
        };
        assert_eq!(faults[0].code, ErrorCode::ParameterRepeated);
        assert!(json_object(b"{\"url\": null}").is_ok());
        assert!(matches!(json_object(b"{"), Err(ApiError::Plain { .. })));
    }

    #[test]
    fn a_parameter_that_the_request_does_not_have_is_named() {
        let uri: Uri = "/?limit=5&created_before=now&created_before=1&%C3%A9%0A=1"
            .parse()
            .unwrap();
        let mut query = Query::of(&uri);
        assert_eq!(query.limit(), 5);
        let Err(ApiError::Unprocessable(faults)) = query.check() else {
            panic!("it passed");
        };
        let messages: Vec<&str> = faults.iter().map(|fault| &*fault.message).collect();
        assert_eq!(
            messages,
            [
                "Parameter created_before is unknown; this request does not have it",
                "Parameter \u{e9}\n is unknown; this request does not have it"
            ]
        );
        assert!(no_parameters(&"/?a".parse().unwrap()).is_err());
        assert!(no_parameters(&"/?".parse().unwrap()).is_ok());
        let many: Vec<String> = (0..100).map(|number| format!("p{number}=1")).collect();
        let many: Uri = format!("/?{}", many.join("&")).parse().unwrap();
        let Err(ApiError::Unprocessable(faults)) = no_parameters(&many) else {
            panic!("it passed");
        };
        assert_eq!(faults.len(), MAX_UNKNOWN);
    }
}
