//! One eSIM: what it is at, its ids, its webhook, and what one may do about it.

use accounts::partners;
use askama::Template;
use axum::{extract::State, response::Response};
use desk::operator::orders::{self, OrderView};
use domain::TopupId;
use pg::PgConnection;

use crate::{
    App,
    access::{Viewer, Visit},
    pages::order::{UnitRow, unit_row},
    problem::Problem,
    times::When,
    view::{Given, Shell, page},
};

#[derive(Template)]
#[template(path = "esim.html")]
struct Page {
    shell: Shell,
    token: String,
    /// The path of this page, to which its forms lead back.
    back: String,
    order: OrderView,
    partner: String,
    unit: UnitRow,
    provider: String,
    purchase: String,
    /// Empty before it has its profile.
    ready: When,
}

pub(crate) async fn show(
    State(app): State<App>,
    given: Given,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let id: TopupId = given.id("an eSIM")?;
    let read = async |connection: &mut PgConnection| {
        let found = orders::find(&mut *connection, id.as_str()).await?;
        let is_its = |order: &OrderView| order.topups.iter().any(|one| one.topup_id == id.as_str());
        let Some(order) = found.into_iter().find(is_its) else {
            return Ok(None);
        };
        let partner = partners::show(connection, &order.partner_id.to_string()).await?;
        Ok::<_, pg::Error>(Some((order, partner)))
    };
    let found = app.database().run(read).await?;
    let (order, partner) = found.ok_or_else(|| given.missing("eSIM"))?;
    let unit = order.topups.iter().find(|one| one.topup_id == id.as_str());
    let unit = unit.ok_or_else(|| given.missing("eSIM"))?;
    let session = &visit.session;
    let placement = order
        .placements
        .iter()
        .find(|one| one.placement_id == unit.placement_id);
    page(&Page {
        shell: Shell::new(&app, session, "/orders", "An eSIM"),
        token: session.form_token(),
        back: format!("/esims/{id}"),
        partner: partner.map_or_else(|| "erased".to_owned(), |partner| partner.name),
        provider: placement.map_or_else(String::new, |one| one.provider.clone()),
        purchase: unit.placement_id.to_string(),
        ready: unit
            .ready_at
            .map(|at| session.times.both(at))
            .unwrap_or_default(),
        unit: unit_row(&app, &order, unit, session),
        order,
    })
}
