//! All routes in one list, with the role that each one needs. The router is made from the list, and
//! the tests try every route of it in every role, so a new route cannot be forgotten there.
//!
//! The list says what a route needs, and the type of its handler enforces it ([`crate::access`]).
//! The tests fail if the two differ.

use std::any::Any;

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderValue, Method, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get, post},
};
use domain::esim_change::EsimChangeKind::{Extension, GiveBack};
use tower_http::catch_panic::CatchPanicLayer;
use tracing::Instrument;

use crate::{
    App,
    access::{self, OperatorRole, is_by_htmx},
    openid::CALLBACK,
    pages::{self, esim_changes},
    problem::Problem,
    said, sign_in, view,
};

/// What the pages may load and send: everything from and to this console only, no script or style
/// in the page itself, and no frame around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// A route of the console.
pub struct ConsoleRoute {
    pub method: Method,
    /// As axum writes it, such as `/orders/{id}`.
    pub path: &'static str,
    /// The lowest role that may use it; `None` needs no session.
    pub needs: Option<OperatorRole>,
    handler: MethodRouter<App>,
}

fn page(
    path: &'static str,
    needs: Option<OperatorRole>,
    handler: MethodRouter<App>,
) -> ConsoleRoute {
    ConsoleRoute {
        method: Method::GET,
        path,
        needs,
        handler,
    }
}

fn action(
    path: &'static str,
    needs: Option<OperatorRole>,
    handler: MethodRouter<App>,
) -> ConsoleRoute {
    ConsoleRoute {
        method: Method::POST,
        path,
        needs,
        handler,
    }
}

/// All routes.
pub fn routes() -> Vec<ConsoleRoute> {
    let all = of_all().into_iter();
    let all = all
        .chain(of_partners())
        .chain(of_money())
        .chain(of_providers());
    all.chain(of_esim_changes()).collect()
}

/// The routes of the pages of a partner and its endpoints.
fn of_partners() -> Vec<ConsoleRoute> {
    let viewer = Some(OperatorRole::Viewer);
    let support = Some(OperatorRole::Support);
    let operator = Some(OperatorRole::Operator);
    vec![
        page("/partners", viewer, get(pages::partners::show)),
        page("/partners.csv", viewer, get(pages::partners::csv)),
        page("/partners/{id}", viewer, get(pages::partner::show)),
        action(
            "/partners/{id}/disable",
            operator,
            post(pages::account::disable),
        ),
        action(
            "/partners/{id}/enable",
            operator,
            post(pages::account::enable),
        ),
        page("/partners/{id}/access", viewer, get(pages::keys::show)),
        page("/partners/{id}/refused", viewer, get(pages::refusals::show)),
        page(
            "/partners/{id}/webhook-url",
            operator,
            get(pages::partner_acts::url),
        ),
        action(
            "/partners/{id}/webhook-url",
            operator,
            post(pages::partner_acts::set_url),
        ),
        page("/partners/{id}/leaked", support, get(pages::leaked::show)),
        action("/partners/{id}/leaked", support, post(pages::leaked::end)),
        action("/partners/{id}/end-key", support, post(pages::keys::end)),
        page("/partners/{id}/keys", operator, get(pages::rotation::keys)),
        action(
            "/partners/{id}/keys",
            operator,
            post(pages::rotation::rotate_keys),
        ),
        page(
            "/partners/{id}/webhook-secret",
            operator,
            get(pages::rotation::secret),
        ),
        action(
            "/partners/{id}/webhook-secret",
            operator,
            post(pages::rotation::rotate_secret),
        ),
        page(
            "/partners/{id}/limits",
            operator,
            get(pages::partner_acts::limits),
        ),
        action(
            "/partners/{id}/limits",
            operator,
            post(pages::partner_acts::set_limits),
        ),
        action(
            "/partners/{id}/told",
            support,
            post(pages::partner_acts::told),
        ),
        action(
            "/endpoints/{id}/test",
            support,
            post(pages::endpoints::test),
        ),
        action(
            "/endpoints/{id}/show-url",
            operator,
            post(pages::endpoints::show_url),
        ),
        action(
            "/endpoints/{id}/pause",
            support,
            post(pages::endpoints::pause),
        ),
        action(
            "/endpoints/{id}/resume",
            support,
            post(pages::endpoints::resume),
        ),
    ]
}

/// The routes of what partners have and pay.
fn of_money() -> Vec<ConsoleRoute> {
    let viewer = Some(OperatorRole::Viewer);
    let operator = Some(OperatorRole::Operator);
    vec![
        page("/margin", viewer, get(pages::margin::show)),
        page("/margin.csv", viewer, get(pages::margin::csv)),
        page("/partners/{id}/entries", viewer, get(pages::entries::show)),
        page(
            "/partners/{id}/entries.csv",
            viewer,
            get(pages::entries::csv),
        ),
        page(
            "/partners/{id}/deposit",
            operator,
            get(pages::booking::deposit),
        ),
        action(
            "/partners/{id}/deposit",
            operator,
            post(pages::booking::book_deposit),
        ),
        page(
            "/partners/{id}/adjust",
            operator,
            get(pages::booking::adjust),
        ),
        action(
            "/partners/{id}/adjust",
            operator,
            post(pages::booking::book_adjustment),
        ),
        page(
            "/partners/{id}/credit",
            operator,
            get(pages::booking::credit),
        ),
        action(
            "/partners/{id}/credit",
            operator,
            post(pages::booking::set_credit),
        ),
    ]
}

/// The routes of the pages of providers and their products.
fn of_providers() -> Vec<ConsoleRoute> {
    let viewer = Some(OperatorRole::Viewer);
    let operator = Some(OperatorRole::Operator);
    vec![
        page("/providers", viewer, get(pages::providers::show)),
        action(
            "/providers/{name}/open",
            operator,
            post(pages::providers::open),
        ),
        action(
            "/providers/{name}/close",
            operator,
            post(pages::providers::close),
        ),
        page("/products", viewer, get(pages::products::show)),
        page("/products/{id}", viewer, get(pages::products::product)),
        page(
            "/products/{id}/route",
            operator,
            get(pages::products::route),
        ),
        action(
            "/products/{id}/route",
            operator,
            post(pages::products::put_first),
        ),
    ]
}

/// The routes of what partners have asked for delivered eSIMs, and nobody knows what became of.
fn of_esim_changes() -> Vec<ConsoleRoute> {
    let operator = Some(OperatorRole::Operator);
    vec![
        page(
            "/give-backs/settle",
            operator,
            get(async |app, visit| esim_changes::show(GiveBack, app, visit).await),
        ),
        action(
            "/give-backs/settle",
            operator,
            post(async |app, act| esim_changes::settle(GiveBack, app, act).await),
        ),
        action(
            "/give-backs/{id}/resolve",
            operator,
            post(async |app, given, act| esim_changes::resolve(GiveBack, app, given, act).await),
        ),
        page(
            "/extensions/settle",
            operator,
            get(async |app, visit| esim_changes::show(Extension, app, visit).await),
        ),
        action(
            "/extensions/settle",
            operator,
            post(async |app, act| esim_changes::settle(Extension, app, act).await),
        ),
        action(
            "/extensions/{id}/resolve",
            operator,
            post(async |app, given, act| esim_changes::resolve(Extension, app, given, act).await),
        ),
    ]
}

/// All other routes.
fn of_all() -> Vec<ConsoleRoute> {
    let viewer = Some(OperatorRole::Viewer);
    let support = Some(OperatorRole::Support);
    let operator = Some(OperatorRole::Operator);
    vec![
        page("/assets/{file}", None, get(pages::assets::show)),
        page("/sign-in", None, get(sign_in::form)),
        action("/sign-in", None, post(sign_in::sign_in)),
        page("/sign-in/openid", None, get(sign_in::openid::begin)),
        page(CALLBACK, None, get(sign_in::openid::finish)),
        page("/set-up", None, get(sign_in::set_up_form)),
        action("/set-up", None, post(sign_in::set_up)),
        action("/sign-out", viewer, post(sign_in::sign_out)),
        page("/", viewer, get(pages::overview::show)),
        page("/figures.csv", viewer, get(pages::figures::csv)),
        page("/hints", viewer, get(pages::find::hints)),
        page("/find", viewer, get(pages::find::show)),
        page("/zone", viewer, get(pages::zone::show)),
        action("/zone", viewer, post(pages::zone::choose)),
        page("/orders", viewer, get(pages::orders::show)),
        page("/orders.csv", viewer, get(pages::orders::csv)),
        page("/failed-esims.csv", viewer, get(pages::orders::failed_csv)),
        page("/orders/{id}", viewer, get(pages::order::show)),
        page(
            "/orders/{id}/sentence.txt",
            viewer,
            get(pages::order::sentence),
        ),
        action(
            "/orders/{id}/resend",
            support,
            post(pages::order::resend_all),
        ),
        page("/purchases/settle", operator, get(pages::settle::show)),
        action("/purchases/settle", operator, post(pages::settle::settle)),
        action("/purchases/ask", operator, post(pages::settle::ask)),
        action("/purchases/compare", operator, post(pages::settle::compare)),
        action(
            "/placements/{id}/resolve",
            operator,
            post(pages::order::resolve),
        ),
        action(
            "/deliveries/{id}/resend",
            support,
            post(pages::order::resend),
        ),
        page("/esims/{id}", viewer, get(pages::esim::show)),
        action("/topups/{id}/code", support, post(pages::code::show)),
        action("/esims/{id}/usage", support, post(pages::esim::ask_usage)),
        action(
            "/esims/{id}/give-back",
            operator,
            post(pages::esim::give_back),
        ),
        action(
            "/esims/{id}/suspend",
            support,
            post(async |app, given, act| pages::esim::suspend(true, app, given, act).await),
        ),
        action(
            "/esims/{id}/resume",
            support,
            post(async |app, given, act| pages::esim::suspend(false, app, given, act).await),
        ),
        page("/webhooks/{id}", viewer, get(pages::webhook::show)),
        page("/webhooks", viewer, get(pages::webhooks::show)),
        page("/webhooks.csv", viewer, get(pages::webhooks::csv)),
        page("/needs", viewer, get(pages::needs::show)),
        action("/needs/{name}/take", support, post(pages::needs::take)),
        page("/resends", viewer, get(pages::resends::list)),
        page("/resends/preview", operator, get(pages::resends::preview)),
        action("/resends", operator, post(pages::resends::start)),
        page("/resends/{id}", viewer, get(pages::resends::show)),
        action(
            "/resends/{id}/cancel",
            operator,
            post(pages::resends::cancel),
        ),
        page("/actions", viewer, get(pages::actions::show)),
        page("/actions.csv", viewer, get(pages::actions::csv)),
    ]
}

/// Makes the router of all routes.
pub fn router(app: App) -> Router {
    let mut router = Router::new();
    for route in routes() {
        router = router.route(route.path, route.handler);
    }
    router
        .fallback(|| async { Problem::NotFound("The console has no such page.".into()) })
        .method_not_allowed_fallback(|method: Method| async {
            match method {
                Method::GET | Method::HEAD => Problem::OnlyForms,
                other => Problem::OnlyPages(other),
            }
        })
        .with_state(app.clone())
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::from_fn_with_state(app, observe))
}

#[expect(clippy::needless_pass_by_value, reason = "the layer's signature")]
fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text
        .or(panic.downcast_ref::<&str>().copied())
        .unwrap_or("unknown panic");
    Problem::Broken(anyhow::anyhow!("a handler panicked: {text}")).into_response()
}

/// Measures each request, and gives each response the headers that keep browsers from doing more
/// than it is for. A request with two `Host` headers, or none, is refused.
async fn observe(State(app): State<App>, request: Request, next: Next) -> Response {
    let requests = &app.metrics().requests;
    let underway = requests.begin(&request);
    // The page that follows an action shows its sentence, and a reload does not.
    let says = request.method() == Method::GET
        && !request.uri().path().starts_with("/assets/")
        && !is_by_htmx(request.headers())
        && said::of(request.headers(), &app).is_some();
    let one_host = request.headers().get_all(header::HOST).iter().count() == 1;
    let mut response = if one_host {
        let (parts, body) = request.into_parts();
        let asked = parts.clone();
        let asked_as = view::PageRequest {
            path: parts
                .uri
                .path_and_query()
                .map_or_else(String::new, ToString::to_string),
            is_page: matches!(parts.method, Method::GET | Method::HEAD),
            by_htmx: is_by_htmx(&parts.headers),
        };
        let request = Request::from_parts(parts, body);
        let response = next.run(request).instrument(underway.span.clone()).await;
        // If the database does not answer, the page goes without its navigation.
        let session = async { access::session(&asked, &app).await.ok().flatten() };
        view::framed(&app, response, asked_as, session).await
    } else {
        StatusCode::BAD_REQUEST.into_response()
    };
    let shown = response.status() == StatusCode::OK;
    let headers = response.headers_mut();
    if says && shown {
        said::forget(&app, headers);
    }
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // A browser must not show an answer again after its session has ended, and htmx gets another
    // one than a person for the same path. The files of pages say themselves how long they are good
    // for.
    if !headers.contains_key(header::CACHE_CONTROL) {
        let never = HeaderValue::from_static("no-store");
        headers.insert(header::CACHE_CONTROL, never);
        let varies = HeaderValue::from_static("hx-request");
        headers.insert(header::VARY, varies);
    }
    if app.settings().tls {
        let year = HeaderValue::from_static("max-age=31536000");
        headers.insert(header::STRICT_TRANSPORT_SECURITY, year);
    }
    requests.end(&underway, Some(response.status()));
    response
}
