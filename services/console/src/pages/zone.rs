//! The zone of the times, which each reader chooses once. It is kept in a cookie of this browser.

use askama::Template;
use axum::{
    extract::State,
    http::header,
    response::{IntoResponse, Redirect, Response},
};

use crate::{
    App,
    access::{Act, Viewer, Visit},
    cookies::set_cookie,
    problem::Problem,
    times::{self, TimeElement},
    view::{Shell, local_path, page},
};

#[derive(Template)]
#[template(path = "zone.html")]
struct Page {
    shell: Shell,
    token: String,
    back: String,
    zones: Vec<String>,
    chosen: String,
    now: TimeElement,
}

pub(crate) async fn show(
    State(app): State<App>,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let session = &visit.session;
    page(&Page {
        shell: Shell::new(&app, session, "", "Times"),
        token: session.form_token(),
        back: local_path(visit.query.get("back")),
        zones: times::zones(),
        chosen: session.times.name.clone(),
        now: session.times.clock(session.times.now),
    })
}

pub(crate) async fn choose(State(app): State<App>, act: Act<Viewer>) -> Result<Response, Problem> {
    let name = act.fields.get("zone").unwrap_or_default();
    if name.len() > times::LONGEST || times::zone(name).is_none() {
        return Err(Problem::Invalid(
            "there is no such zone: choose one of the list".into(),
        ));
    }
    let mut response = Redirect::to(&local_path(act.fields.get("back"))).into_response();
    let cookie = set_cookie(&app, times::COOKIE, name, "Lax; Max-Age=31536000");
    response.headers_mut().append(header::SET_COOKIE, cookie);
    Ok(response)
}
