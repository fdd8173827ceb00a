//! The options that a partner may order, for a catalogue in its shop.
//!
//! An answer has an `ETag`, because catalogues rarely change and partners read them often.

use accounts::facts::{FactText, PlanKind};
use axum::{
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use desk::self_service::{self, OfferedOption, OptionFilter, OptionPage};
use domain::{OptionId, product::Country};
use serde::Serialize;
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use super::{
    query::{Query, cursor, cut, number},
    session::{PathId, Search, Session},
};
use crate::http::{
    codes::ErrorCode,
    error::{ApiError, RequestFault},
};

/// A page of options, sorted by `option_id`.
#[derive(Serialize, ToSchema)]
#[schema(as = Options)]
struct OptionsResponse {
    options: Vec<OfferedOption>,
    /// The cursor of the next page; null after the last one.
    next_cursor: Option<String>,
}

/// List the options that may be ordered
///
/// Each page has an `ETag`. If you send it as `If-None-Match` and the page has not changed, the
/// answer is a 304 without a body. Filters can be combined; an option must then match all of them.
/// An option of which we do not say what a filter asks for does not match it. If we have agreed
/// prices with you, the list has what you can order, with its `price`.
///
/// To keep a copy, send the time of your last walk as `updated_since`. What is no longer on offer
/// is not listed, so walk the whole list now and then.
#[utoipa::path(get, path = "/options", operation_id = "list_options", tag = "Options",
    params(
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page; leave it out for the first page"),
        ("limit" = Option<u16>, Query, minimum = 1, maximum = 100, description = "Number of options of the page, from 1 to 100; the default is 20"),
        ("country" = Option<String>, Query, pattern = "^[A-Z]{2}$", description = "Only options that can be used in this country, a code of ISO 3166-1 alpha-2 such as `JP`"),
        ("network" = Option<String>, Query, description = "Only options that can use the network of this name, in any case, such as `NTT Docomo`; with `country`, in that country"),
        ("kind" = Option<String>, Query, pattern = "^(data|data_voice_text)$", description = "Only options of this kind: `data`, or `data_voice_text` with calls and text messages"),
        ("min_data_mb" = Option<i32>, Query, minimum = 1, description = "Only options with at least so much data, in MB; unlimited data is always enough"),
        ("max_data_mb" = Option<i32>, Query, minimum = 1, description = "Only options with at most so much data, in MB, and none with unlimited data"),
        ("unlimited" = Option<bool>, Query, description = "`true`: only options with unlimited data; `false`: only the others"),
        ("min_days" = Option<i32>, Query, minimum = 1, description = "Only options whose data can be used for at least so many days"),
        ("max_days" = Option<i32>, Query, minimum = 1, description = "Only options whose data can be used for at most so many days"),
        ("updated_since" = Option<String>, Query, format = DateTime, description = "Only options that changed since this time, such as `2026-11-22T00:00:00Z`, or whose price did; some of the minute before may be among them"),
        ("If-None-Match" = Option<String>, Header, description = "The `ETag` of the page that you already have")),
    responses(
        (status = 200, description = "A page of options", body = OptionsResponse,
            headers(("ETag" = String, description = "Names this content of the page"))),
        (status = 304, description = "The page has not changed", headers(("ETag" = String, description = "The one that you have sent"))),
        (status = 422, response = crate::http::described::Unprocessable)))]
pub(super) async fn list(
    Search(session, uri): Search,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let mut query = Query::of(&uri);
    let limit = query.limit();
    let after = query.cursor().map(OptionId::from);
    let network = query.read(
        "network",
        RequestFault::new(ErrorCode::NetworkInvalid),
        network,
    );
    let filter = filter(&mut query, network.as_deref());
    query.check()?;
    let environment = session.environment();
    let providers = &session.service().providers;
    let price_list = session.partner.price_list.as_deref();
    let listing = session.run(async |connection, _| {
        // One more row than the page holds is read. If there is one, another page follows.
        let page = OptionPage {
            environment,
            providers,
            price_list,
            filter,
            after,
            limit: i64::from(limit) + 1,
        };
        self_service::options(connection, page).await
    });
    let mut found = listing.await?;
    let page = OptionsResponse {
        next_cursor: cut(&mut found, limit, |last| {
            Some(cursor(last.option_id.uuid()))
        }),
        options: found,
    };
    answer(&page, &headers)
}

/// Show an option
///
/// It answers as the list does, with an `ETag`. An option that you may not order, or may order no
/// longer, is not found.
#[utoipa::path(get, path = "/options/{option_id}", operation_id = "show_option", tag = "Options",
    params(
        ("option_id" = Uuid, Path, description = "The id of the option"),
        ("If-None-Match" = Option<String>, Header, description = "The `ETag` of the answer that you already have")),
    responses(
        (status = 200, description = "The option", body = OfferedOption,
            headers(("ETag" = String, description = "Names this content of the option"))),
        (status = 304, description = "The option has not changed", headers(("ETag" = String, description = "The one that you have sent"))),
        (status = 404, response = crate::http::described::NotFound)))]
pub(super) async fn show(
    session: Session,
    PathId(option): PathId<OptionId>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let environment = session.environment();
    let providers = &session.service().providers;
    let price_list = session.partner.price_list.as_deref();
    let reading = session.run(async |connection, _| {
        let page = OptionPage {
            environment,
            providers,
            price_list,
            filter: OptionFilter {
                option: Some(option),
                ..OptionFilter::default()
            },
            after: None,
            limit: 1,
        };
        self_service::options(connection, page).await
    });
    let option = reading.await?.pop().ok_or(ErrorCode::NotFound)?;
    answer(&option, &headers)
}

/// The answer with its `ETag`, or a 304 if the client has it already.
fn answer(told: &impl Serialize, headers: &HeaderMap) -> Result<Response, ApiError> {
    let body = serde_json::to_vec(told).map_err(ApiError::internal)?;
    let etag = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(&body));
    let etag = HeaderValue::try_from(format!("\"{etag}\"")).map_err(ApiError::internal)?;
    if is_known(headers, &etag) {
        return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, etag)]).into_response());
    }
    let json = HeaderValue::from_static("application/json");
    let headers = [(header::CONTENT_TYPE, json), (header::ETAG, etag)];
    Ok((headers, body).into_response())
}

/// The name of a network.
fn network(text: &str) -> Option<String> {
    FactText::try_from(text.to_owned()).ok()?;
    Some(text.to_owned())
}

/// Reads the other filters.
fn filter<'a>(query: &mut Query<'_>, network: Option<&'a str>) -> OptionFilter<'a> {
    let mut positive = |name: &'static str| {
        let fault = RequestFault::with(ErrorCode::OptionNumberInvalid, name);
        query.read(name, fault, |text| {
            number(text).filter(|number: &i32| *number > 0)
        })
    };
    let min_data_mb = positive("min_data_mb");
    let max_data_mb = positive("max_data_mb");
    let min_days = positive("min_days");
    let max_days = positive("max_days");
    let country = RequestFault::new(ErrorCode::CountryInvalid);
    let unlimited = RequestFault::new(ErrorCode::UnlimitedInvalid);
    let kind = RequestFault::new(ErrorCode::KindInvalid);
    OptionFilter {
        option: None,
        network,
        kind: query.read("kind", kind, |text| text.parse::<PlanKind>().ok()),
        updated_since: query.time("updated_since"),
        country: query.read("country", country, |text| text.parse::<Country>().ok()),
        min_data_mb,
        max_data_mb,
        unlimited: query.read("unlimited", unlimited, |text| text.parse().ok()),
        min_days,
        max_days,
    }
}

/// Whether `If-None-Match` names the answer, so that the client has it already.
fn is_known(headers: &HeaderMap, etag: &HeaderValue) -> bool {
    let known = headers
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let mut tags = known
        .flat_map(|value| value.split(','))
        .map(|tag| tag.trim().trim_start_matches("W/"));
    tags.any(|tag| tag == "*" || tag.as_bytes() == etag.as_bytes())
}
