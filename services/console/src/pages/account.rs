//! Whether a partner may order. Who has heard at night that a key of a partner has leaked disables
//! the account here, without a shell.

use accounts::partners::{self, Partner};
use axum::{extract::State, response::Response};
use domain::{Command, PartnerId};
use pg::{PgConnection, Transaction, actions::ActionChange};
use serde_json::json;

use crate::{
    App,
    access::{Act, ConsoleSession, Operator, OperatorRole},
    pages::{forms::ReasonForm, partner_acts::changed},
    problem::Problem,
    view::PathArgument,
};

/// The act that the account of a partner offers to this session. `seen` is when it was read, and
/// `lately` says what it has ordered until then.
pub(crate) fn form(
    partner: &Partner,
    (seen, lately): (&str, &str),
    session: &ConsoleSession,
) -> Option<ReasonForm> {
    if !session.may(OperatorRole::Operator) || !partner.has_secret_key {
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
            consequence: format!(
                "From now on each request of this partner is refused with a 401, whichever key it has. Orders that were answered \
                 go on, and their webhooks are still sent. {lately}"
            ),
            grave: true,
            ..ReasonForm::new(
                session,
                "Disable this partner",
                format!("/partners/{id}/disable"),
            )
        }
    };
    Some(ReasonForm {
        seen: seen.to_owned(),
        back: format!("/partners/{id}"),
        ..form
    })
}

pub(crate) async fn disable(
    State(app): State<App>,
    given: PathArgument,
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
    given: PathArgument,
    act: Act<Operator>,
) -> Result<Response, Problem> {
    set(&app, &given, &act, false).await?;
    Ok(act.done(&app, "The partner is enabled: it may order again."))
}

/// An account that was disabled or enabled since the form was made stays as it is, even if it is in
/// the same state again.
async fn set(
    app: &App,
    given: &PathArgument,
    act: &Act<Operator>,
    disabled: bool,
) -> Result<(), Problem> {
    let id: PartnerId = given.id("a partner")?;
    let command = if disabled {
        Command::PartnerDisable
    } else {
        Command::PartnerEnable
    };
    let set = async |transaction: &mut Transaction<'_>| {
        let before = partners::show(&mut *transaction, &id.to_string()).await?;
        if before.is_none_or(|before| before.disabled_at.is_some() == disabled) {
            return Ok(None);
        }
        partners::set_disabled(transaction, id, disabled).await?;
        let difference = ActionChange::between(
            json!({ "disabled": !disabled }),
            json!({ "disabled": disabled }),
        );
        Ok(Some(((), difference)))
    };
    let of = (
        command,
        &[Command::PartnerDisable, Command::PartnerEnable][..],
    );
    if changed(app, act, id, of, set).await?.is_some() {
        return Ok(());
    }
    let show =
        async |connection: &mut PgConnection| partners::show(connection, &id.to_string()).await;
    let now = app.database().run(show).await?;
    let now = now.ok_or_else(|| given.missing("partner"))?;
    let is = if now.disabled_at.is_some() {
        "disabled"
    } else {
        "enabled"
    };
    Err(act.changed(&format!("the partner is {is} now")))
}
