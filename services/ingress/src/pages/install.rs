//! The page from which a traveller installs an eSIM: `GET /i/<token>`.
//!
//! Its [token](crate::access::install_token) is good until the page is ended
//! ([`desk::self_service::end_install_page`]).
//!
//! Guarantees: the activation code is in the page and in its one-tap links alone, and only while
//! the eSIM may have to be installed. Neither token nor code gets into a log, a span or a metric,
//! which name the route, nor into the address of anything that the page loads, nor into a
//! `Referer`. Opening the page changes nothing and asks no provider. A token that was never valid
//! and one that was ended take the same way to the same answer. Reading a page takes its turn, so
//! that a flood of tokens uses one database connection.
//!
//! [`crate::routes`] merges the [`router`].

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    extract::{Path, State, rejection::PathRejection},
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::get,
};
use desk::self_service::{self, InstallPage};
use domain::{PageLanguage, shop::Colour};
use pg::{Database, PgConnection};
use strum::VariantArray;
use vault::Vault;

use super::turns::{self, TurnLimits, Turns};
use crate::{
    access::install_token::GivenToken,
    http::{codes::ErrorCode, connection::Connection, error::ApiError},
};

mod texts;
mod view;

use self::view::EsimProgress;

/// The path of a page. It holds the token, so it must never be logged.
pub(crate) const PAGE: &str = "/i/{token}";

/// The pages load their own style sheets and script and nothing else, send nothing, and cannot be
/// framed.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'none'";
/// A page takes a look into the database and a millisecond of one processor, and anyone can ask for
/// one: one at a time, and as many as take a tenth of one processor.
const READING: TurnLimits = TurnLimits {
    name: "install_page",
    at_once: 1,
    per_source: 8,
    per_second: NonZeroU32::new(100).unwrap(),
    wait: Duration::from_secs(1),
};
/// What the pages need.
pub(crate) struct TravellerPages {
    database: Database,
    vault: Vault,
    turns: Arc<Turns>,
}

impl TravellerPages {
    pub(crate) fn new(database: Database, vault: Vault) -> Arc<Self> {
        let turns = Turns::new(READING);
        Arc::new(Self {
            database,
            vault,
            turns,
        })
    }

    /// Reads the page of a token; `None` if the token is wrong or was ended.
    async fn read(&self, given: &GivenToken) -> anyhow::Result<Option<InstallPage>> {
        let read = async |connection: &mut PgConnection| {
            let read = self_service::install_page(connection, &given.topup_id).await?;
            read.after_flush(connection).await
        };
        let page = self.database.run(read).await?;
        // The digest of a token is computed whether there is such a topup or not.
        let number = page.as_ref().map_or(0, |page| page.number);
        let is_valid = given.is_of(&self.vault, number)?;
        Ok(page.filter(|_| is_valid))
    }
}

/// Makes the routes of the page and of what it loads.
pub(crate) fn router(pages: Arc<TravellerPages>) -> Router {
    let style = (
        "text/css; charset=utf-8",
        include_str!("install/install.css"),
    );
    let script = (
        "text/javascript; charset=utf-8",
        include_str!("install/install.js"),
    );
    let file = |(kind, text): (&'static str, &'static str)| {
        get(move || std::future::ready(answer(StatusCode::OK, kind, text.to_owned())))
    };
    Router::new()
        .route(PAGE, get(show))
        .with_state(pages)
        .route("/i/page.css", file(style))
        .route("/i/page.js", file(script))
        .route("/i/colours/{pair}", get(colours))
}

fn answer(status: StatusCode, kind: &'static str, text: String) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (
            header::HeaderName::from_static("x-robots-tag"),
            "noindex, nofollow",
        ),
    ];
    (status, headers, text).into_response()
}

/// `GET /i/colours/<brand>-<ink>`: the colours of a shop as a style sheet, because the policy of
/// the page allows no style in the page itself. It needs no token.
async fn colours(Path(pair): Path<String>) -> Result<Response, ApiError> {
    let colours = pair.split_once('-').and_then(|(brand, ink)| {
        let colours = (Colour::of_hex(brand)?, Colour::of_hex(ink)?);
        Some(colours)
    });
    let (brand, ink) = colours.ok_or(ErrorCode::NotFound)?;
    let [brand, ink] = [brand.hex(), ink.hex()];
    let text = format!(":root {{ --brand: #{brand}; --brand-ink: #{ink}; }}\n");
    Ok(answer(StatusCode::OK, "text/css; charset=utf-8", text))
}

/// `GET /i/<token>[?lang=<language>]`: the page.
async fn show(
    State(pages): State<Arc<TravellerPages>>,
    connection: Option<Extension<Arc<Connection>>>,
    // A path that is no UTF-8 is the address of no page, and is answered like any other one.
    path: Result<Path<String>, PathRejection>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let accepted = text(header::ACCEPT_LANGUAGE);
    let mut parameters = uri.query().unwrap_or_default().split('&');
    let named = parameters.find_map(|parameter| parameter.strip_prefix("lang="));
    let language = |offered: &[PageLanguage]| texts::choose(offered, named, accepted);
    let device = view::device(text(header::USER_AGENT).unwrap_or_default());
    let shown = async {
        let _turn = pages.turns.turn(turns::source(connection)).await?;
        let path = path.ok();
        let given = path.and_then(|Path(text)| GivenToken::parse(&text));
        let given = given.ok_or(ErrorCode::NotFound)?;
        let found = pages.read(&given).await.map_err(ApiError::Internal)?;
        let page = found.ok_or(ErrorCode::NotFound)?;
        let progress = EsimProgress::of(&page, runtime::clock::now()).ok_or(ErrorCode::NotFound)?;
        let written = || {
            let profile = view::profile(&pages.vault, &given.topup_id, &page, progress)?;
            let language = language(&page.shop.languages);
            view::written(&page, profile.as_ref(), progress, language, device)
        };
        let written = written().map_err(ApiError::Internal)?;
        Ok::<_, ApiError>(answer(StatusCode::OK, super::HTML, written))
    };
    let refused = |error: ApiError| notice(error, language(PageLanguage::VARIANTS));
    let mut response = shown.await.unwrap_or_else(refused);
    let vary = HeaderValue::from_static("accept-language, user-agent");
    response.headers_mut().insert(header::VARY, vary);
    response
}

/// An error as a page. Its record for the log and the metrics stays.
fn notice(error: ApiError, language: PageLanguage) -> Response {
    let plain = error.into_response();
    let status = plain.status();
    let is_busy = status != StatusCode::NOT_FOUND;
    let Ok(text) = view::notice(language, is_busy) else {
        return plain;
    };
    let mut response = answer(status, super::HTML, text);
    let (parts, _) = plain.into_parts();
    *response.extensions_mut() = parts.extensions;
    if let Some(wait) = parts.headers.get(header::RETRY_AFTER) {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, wait.clone());
    }
    response
}
