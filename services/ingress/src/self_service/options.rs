//! The options that a partner may order, for a catalogue in its shop.
//!
//! A page has an `ETag`, because catalogues rarely change and partners read them often.

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
    session::Search,
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
/// answer is a 304 without a body. Filters can be combined; an option must then match all of them. An
/// option of which we do not say `countries`, `data_mb` and `days` matches no filter. If we have agreed
/// prices with you, the list has what you can order, with its `price`.
#[utoipa::path(get, path = "/options", operation_id = "list_options", tag = "Options",
    params(
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page; leave it out for the first page"),
        ("limit" = Option<u16>, Query, minimum = 1, maximum = 100, description = "Number of options of the page, from 1 to 100; the default is 20"),
        ("country" = Option<String>, Query, pattern = "^[A-Z]{2}$", description = "Only options that can be used in this country, a code of ISO 3166-1 alpha-2 such as `JP`"),
        ("min_data_mb" = Option<i32>, Query, minimum = 1, description = "Only options with at least so much data, in MB; unlimited data is always enough"),
        ("unlimited" = Option<bool>, Query, description = "`true`: only options with unlimited data; `false`: only the others"),
        ("min_days" = Option<i32>, Query, minimum = 1, description = "Only options whose data can be used for at least so many days"),
        ("max_days" = Option<i32>, Query, minimum = 1, description = "Only options whose data can be used for at most so many days"),
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
    let filter = filter(&mut query);
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
    let body = serde_json::to_vec(&page).map_err(ApiError::internal)?;
    let etag = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(&body));
    let etag = HeaderValue::try_from(format!("\"{etag}\"")).map_err(ApiError::internal)?;
    if is_known(&headers, &etag) {
        return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, etag)]).into_response());
    }
    let json = HeaderValue::from_static("application/json");
    let headers = [(header::CONTENT_TYPE, json), (header::ETAG, etag)];
    Ok((headers, body).into_response())
}

/// Reads the filters.
fn filter(query: &mut Query<'_>) -> OptionFilter {
    let mut positive = |name: &'static str| {
        let fault = RequestFault::with(ErrorCode::OptionNumberInvalid, name);
        query.read(name, fault, |text| {
            number(text).filter(|number: &i32| *number > 0)
        })
    };
    let min_data_mb = positive("min_data_mb");
    let min_days = positive("min_days");
    let max_days = positive("max_days");
    let country = RequestFault::new(ErrorCode::CountryInvalid);
    let unlimited = RequestFault::new(ErrorCode::UnlimitedInvalid);
    OptionFilter {
        country: query.read("country", country, |text| text.parse::<Country>().ok()),
        min_data_mb,
        unlimited: query.read("unlimited", unlimited, |text| text.parse().ok()),
        min_days,
        max_days,
    }
}

/// Whether `If-None-Match` names the page, so that the client has it already.
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
