//! Whether a partner may order. Who has heard at night that a key of a partner has leaked disables the
//! account here, without a shell.

use accounts::partners::{self, Partner};
use axum::{extract::State, response::Response};
use domain::{Command, PartnerId};
use pg::{
    PgConnection,
    actions::{self, Changed},
};
use serde_json::json;

use crate::{
    App,
    access::{Act, Operator, Role, Session},
    pages::forms::ReasonForm,
    problem::Problem,
    view::Given,
};

/// What a form has seen.
fn seen(is_disabled: bool) -> &'static str {
    if is_disabled { "disabled" } else { "enabled" }
}

/// The act that the account of a partner offers to this session.
pub(crate) fn form(partner: &Partner, session: &Session) -> Option<ReasonForm> {
    // A partner that has moved is disabled or enabled in its new cell.
    if !session.may(Role::Operator) || partner.moved_to.is_some() || !partner.has_secret_key {
        return None;
    }
    let id = partner.partner_id;
    let is_disabled = partner.disabled_at.is_some();
    let form = if is_disabled {
        ReasonForm {
            consequence: "Its requests are taken again, with the keys that it has. If a key has leaked, change the keys \
                          first."
                .to_owned(),
            ..ReasonForm::new(
                session,
                "Enable this partner",
                format!("/partners/{id}/enable"),
            )
        }
    } else {
        ReasonForm {
            consequence: "From now on each request of this partner is refused with a 401, whichever key it has. Orders that \
                          were answered go on, and their webhooks are still sent."
                .to_owned(),
            grave: true,
            ..ReasonForm::new(
                session,
                "Disable this partner",
                format!("/partners/{id}/disable"),
            )
        }
    };
    Some(ReasonForm {
        seen: seen(is_disabled).to_owned(),
        back: format!("/partners/{id}"),
        ..form
    })
}

pub(crate) async fn disable(
    State(app): State<App>,
    given: Given,
    act: Act<Operator>,
) -> Result<Response, Problem> {
    set(&app, &given, &act, true).await?;
    Ok(act.done(
        &app,
        "The partner is disabled: its requests are refused with a 401.",
    ))
}

pub(crate) async fn enable(
    State(app): State<App>,
    given: Given,
    act: Act<Operator>,
) -> Result<Response, Problem> {
    set(&app, &given, &act, false).await?;
    Ok(act.done(&app, "The partner is enabled: it may order again."))
}

async fn set(app: &App, given: &Given, act: &Act<Operator>, disabled: bool) -> Result<(), Problem> {
    let id: PartnerId = given.id("a partner")?;
    let target = format!("partner {id}");
    let command = if disabled {
        Command::PartnerDisable
    } else {
        Command::PartnerEnable
    };
    let action = act.action(command, &target, act.fields.reason()?);
    let stale = act.fields.get("seen") != Some(seen(!disabled));
    let change = async |connection: &mut PgConnection| {
        let Some(before) = partners::show(&mut *connection, &id.to_string()).await? else {
            return Ok(None);
        };
        if stale || before.disabled_at.is_some() == disabled {
            return Ok(Some(false));
        }
        let set = async |transaction: &mut PgConnection| {
            partners::set_disabled(transaction, id, disabled).await?;
            let changed = Changed::between(
                json!({ "disabled": !disabled }),
                json!({ "disabled": disabled }),
            );
            Ok(Some(((), changed)))
        };
        let done = actions::recorded(connection, action, set).await?;
        Ok::<_, pg::Error>(Some(done.is_some()))
    };
    match app.database().run(change).await? {
        None => Err(given.missing("partner")),
        Some(false) => Err(act.changed(&format!("the partner is {} now", seen(disabled)))),
        Some(true) => Ok(()),
    }
}
