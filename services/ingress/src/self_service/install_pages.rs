//! The pages from which travellers install: how they look, and the address of each.
//!
//! Guarantee: the address is as good as the activation code, so only the answer has it; the page
//! itself is [`crate::pages::install`].

use axum::{extract::Request, http::StatusCode, response::Response};
use desk::{
    archived::is_topup_archived,
    self_service::{self, InstallPages},
};
use domain::{
    PageLanguage, Shop, TopupId,
    shop::{Colour, LEAST_CONTRAST, LONGEST_NAME, is_plain},
};
use serde::Serialize;
use serde_json::Value;
use strum::VariantArray;
use utoipa::ToSchema;
use webhooks::mail::EmailAddress;

use super::{
    esims,
    fields::BodyFields,
    session::{PathId, Session, json, or_archived},
};
use crate::http::{
    body,
    codes::ErrorCode,
    error::{ApiError, RequestFault},
};

/// The longest URL of help, in bytes.
const LONGEST_URL: usize = 2048;

/// How your pages to install from look.
#[derive(Serialize, ToSchema)]
struct InstallPageSettings {
    /// The name of your shop, as travellers know it, with at most 60 characters.
    #[schema(example = "Norvada Travel")]
    name: String,
    /// The colour of the bar at the top and of the button.
    #[schema(example = "#14506b")]
    brand: String,
    /// The colour of the text on it. The contrast of the two is at least 4.5 : 1.
    #[schema(example = "#ffffff")]
    brand_ink: String,
    /// Where travellers get help: this address or `help_url`, or both.
    #[schema(example = "help@norvada.example")]
    help_email: Option<String>,
    /// A page with your help, an https URL.
    #[schema(example = "https://norvada.example/help")]
    help_url: Option<String>,
    /// The languages that travellers can choose from: `en`, `de`, `es`, `fr`, `it`, `pt`, `ar`,
    /// `ja`, `ko` and `zh-Hans`. The first one is shown to those who read none of them. All, if it
    /// is left out.
    #[schema(example = json!(["en", "ja"]))]
    languages: Option<Vec<String>>,
    /// Whether your look-ups of topups show the address of each page as `install_url`; false if it
    /// is left out.
    install_urls: Option<bool>,
}

impl InstallPageSettings {
    fn of(pages: &InstallPages) -> Self {
        let InstallPages { shop, install_urls } = pages;
        let tags = shop.languages.iter().map(|language| language.tag().into());
        Self {
            name: shop.name.clone(),
            brand: shop.brand.into(),
            brand_ink: shop.brand_ink.into(),
            help_email: shop.help_email.clone(),
            help_url: shop.help_url.clone(),
            languages: Some(tags.collect()),
            install_urls: Some(*install_urls),
        }
    }

    /// Reads how the pages shall look.
    fn read(body: &[u8]) -> Result<InstallPages, ApiError> {
        let mut fields = BodyFields::of(body)?;
        let wrong = |why: &str| RequestFault::with(ErrorCode::InstallPageInvalid, why);
        let name = fields.required("name", wrong("name is missing"), |value| {
            let name = value.as_str().map(str::trim);
            let name = name.filter(|name| is_plain(name) && name.chars().count() <= LONGEST_NAME);
            let why = "name must be one line of 1 to 60 characters";
            name.map(str::to_owned).ok_or_else(|| wrong(why))
        });
        let brand = colour(&mut fields, "brand");
        let brand_ink = colour(&mut fields, "brand_ink");
        if let (Some(brand), Some(ink)) = (brand, brand_ink) {
            let contrast = brand.contrast(ink);
            if contrast < LEAST_CONTRAST {
                // Rounded down, so that no pair is refused with the ratio that it needs.
                let ratio = (contrast * 100.0).floor() / 100.0;
                let fault = RequestFault::with(ErrorCode::ContrastTooLow, ratio);
                fields.fault(fault.of_parameter("brand_ink"));
            }
        }
        let help_email = fields.read("help_email", |value| {
            let address: Option<EmailAddress> =
                value.as_str().and_then(|address| address.parse().ok());
            let why = "help_email must be an e-mail address";
            let target = address.as_ref().map(EmailAddress::to_target);
            let plain = target.and_then(|target| Some(target.strip_prefix("mailto:")?.to_owned()));
            plain.ok_or_else(|| wrong(why))
        });
        let help_url = fields.read("help_url", |value| {
            let url = value.as_str().filter(|url| url.len() <= LONGEST_URL);
            let url = url.and_then(|url| url::Url::parse(url).ok());
            let is_plain = |url: &url::Url| {
                url.scheme() == "https" && url.username().is_empty() && url.password().is_none()
            };
            let why = "help_url must be an https URL of at most 2048 bytes without a password";
            let url = url.filter(is_plain).map(String::from);
            url.ok_or_else(|| wrong(why))
        });
        if !fields.has("help_email") && !fields.has("help_url") {
            fields.fault(wrong("help_email or help_url is needed"));
        }
        let languages = fields.read("languages", languages);
        let install_urls = fields.read("install_urls", |value| {
            let why = "install_urls must be true or false";
            value.as_bool().ok_or_else(|| wrong(why))
        });
        let shop = || {
            Some(Shop {
                name: name?,
                brand: brand?,
                brand_ink: brand_ink?,
                help_email,
                help_url,
                languages: languages.unwrap_or_else(|| PageLanguage::VARIANTS.to_vec()),
            })
        };
        fields.check(shop().map(|shop| InstallPages {
            shop,
            install_urls: install_urls.unwrap_or_default(),
        }))
    }
}

fn colour(fields: &mut BodyFields, name: &'static str) -> Option<Colour> {
    let why = format!("{name} must be a colour such as #14506b");
    let wrong = || RequestFault::with(ErrorCode::InstallPageInvalid, &why);
    fields.required(name, wrong(), |value| {
        let colour = value.as_str().and_then(|text| Colour::parse(text).ok());
        colour.ok_or_else(wrong)
    })
}

/// A list of tags, each once.
fn languages(value: &Value) -> Result<Vec<PageLanguage>, RequestFault> {
    let tags = PageLanguage::VARIANTS.iter().map(|language| language.tag());
    let tags: Vec<&str> = tags.collect();
    let why = format!(
        "languages must be a list of some of {}, each once",
        tags.join(", ")
    );
    let wrong = || RequestFault::with(ErrorCode::InstallPageInvalid, &why);
    let list = value.as_array().ok_or_else(wrong)?;
    let mut read: Vec<PageLanguage> = Vec::new();
    for tag in list {
        let language = tag.as_str().and_then(|tag| tag.parse().ok());
        let language = language.filter(|language| !read.contains(language));
        read.push(language.ok_or_else(wrong)?);
    }
    (!read.is_empty()).then_some(read).ok_or_else(wrong)
}

/// Show how your pages to install from look
#[utoipa::path(get, path = "/account/install-pages", operation_id = "show_install_pages", tag = "Account",
    responses(
        (status = 200, description = "How they look", body = InstallPageSettings),
        (status = 409, description = "You have not set it yet (`install_pages_not_set`)", body = crate::http::described::Message)))]
pub(super) async fn show(session: Session) -> Result<Response, ApiError> {
    let pages = session.run(self_service::install_pages).await?;
    let pages = pages.ok_or(ErrorCode::InstallPagesNotSet)?;
    Ok(json(StatusCode::OK, &InstallPageSettings::of(&pages)))
}

/// Set how your pages to install from look
///
/// A page to install from is a web page for your customer: with a QR code, a button for one tap,
/// the codes to type, the steps for each phone and the state of the eSIM, in your name and your
/// colours and in the customer's language. It names nobody but you. This sets all of it; what you
/// leave out is not kept.
#[utoipa::path(put, path = "/account/install-pages", operation_id = "set_install_pages", tag = "Account", request_body = InstallPageSettings,
    responses(
        (status = 200, description = "How they look now", body = InstallPageSettings),
        (status = 400, response = crate::http::described::InvalidJson),
        (status = 422, response = crate::http::described::Unprocessable)))]
pub(super) async fn set(session: Session, request: Request) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let body = body::read(session.gate().max_body, &parts.headers, body).await?;
    let pages = InstallPageSettings::read(&body)?;
    let setting = session.change(async |connection, partner| {
        self_service::set_install_pages(connection, partner, &pages).await
    });
    setting.await?;
    tracing::info!(partner.id = %session.id(), "a partner set how its pages to install from look");
    Ok(json(StatusCode::OK, &InstallPageSettings::of(&pages)))
}

/// The page of a topup.
#[derive(Serialize, ToSchema)]
#[schema(as = InstallPage)]
struct InstallPageResponse<'a> {
    #[schema(value_type = String, example = "20250129123456123456789012")]
    topup_id: &'a TopupId,
    /// The address of the page, which is as good as the activation code; null if it was ended.
    #[schema(example = "https://esim.example.com/i/EMAs6JVpXs4UNFSj2jwBb8b1Zk9XnTgGqyXh")]
    install_url: Option<String>,
}

/// Get the address of a page to install from
///
/// Give it to the customer who will use the eSIM, and to nobody else. A repeat gets the same
/// address, unless you have ended the page: then there is a new one, and the old one stays ended.
/// The page shows the activation code until the eSIM is installed, and what is left of its data
/// from your last look-up or ours, with its time. It ends when the fields of the eSIM are erased.
#[utoipa::path(post, path = "/topups/{topup_id}/install-page", operation_id = "open_install_page", tag = "Topups",
    params(("topup_id" = String, Path, description = "The id of the topup, 26 digits")),
    responses(
        (status = 200, description = "The page is open", body = InstallPageResponse),
        (status = 404, response = crate::http::described::NotFound),
        (status = 410, response = crate::http::described::Archived),
        (status = 409, description = "You have not set how your pages look (`install_pages_not_set`), or the eSIM is not ready (`topup_not_ready`), given back (`topup_returned`), or its fields were erased (`topup_erased`)", body = crate::http::described::Message)))]
pub(super) async fn open(
    session: Session,
    PathId(id): PathId<TopupId>,
) -> Result<Response, ApiError> {
    esims::delivered(&esims::read(&session, &id).await?)?;
    if session.run(self_service::install_pages).await?.is_none() {
        return Err(ErrorCode::InstallPagesNotSet.into());
    }
    let opening = session.change(async |connection, partner| {
        self_service::open_install_page(connection, partner, &id).await
    });
    // Its fields were erased after the first look.
    let number = opening.await?.ok_or(ErrorCode::TopupErased)?;
    let opened = InstallPageResponse {
        topup_id: &id,
        install_url: Some(session.service().install_url(&id, number)?),
    };
    Ok(json(StatusCode::OK, &opened))
}

/// End a page to install from
///
/// Its address leads nowhere from now on, for example because it reached somebody else. The eSIM
/// stays as it is: an activation code that somebody has seen still installs it.
#[utoipa::path(delete, path = "/topups/{topup_id}/install-page", operation_id = "end_install_page", tag = "Topups",
    params(("topup_id" = String, Path, description = "The id of the topup, 26 digits")),
    responses(
        (status = 200, description = "The page is ended", body = InstallPageResponse),
        (status = 404, response = crate::http::described::NotFound),
        (status = 410, response = crate::http::described::Archived)))]
pub(super) async fn end(
    session: Session,
    PathId(id): PathId<TopupId>,
) -> Result<Response, ApiError> {
    let reading = session.read(async |connection, partner| {
        let found = self_service::unit(connection, partner, &id).await?;
        or_archived(found, is_topup_archived(connection, partner, &id)).await
    });
    reading.await??;
    // An eSIM without fields has no page, so there is nothing to end.
    let ending = session.change(async |connection, partner| {
        self_service::end_install_page(connection, partner, &id).await
    });
    ending.await?;
    let ended = InstallPageResponse {
        topup_id: &id,
        install_url: None,
    };
    Ok(json(StatusCode::OK, &ended))
}
