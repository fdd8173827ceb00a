//! An activation code, which is shown once and recorded with its reason.

use axum::{extract::State, response::Response};
use desk::operator::activation;
use domain::TopupId;
use pg::actions::Mode;

use crate::{
    App,
    access::{Act, Support},
    problem::Problem,
    view::{NamedValue, PathArgument, Shell, ShownOnce, local_path, page},
};

/// Shows an activation code, and records that.
pub(crate) async fn show(
    State(app): State<App>,
    given: PathArgument,
    act: Act<Support>,
) -> Result<Response, Problem> {
    let unknown =
        || Problem::NotFound("There is no ready eSIM with this number, or it was erased.".into());
    let Some(vault) = app.vault() else {
        return Err(Problem::NotFound(
            "This console shows no activation codes (CONSOLE_ACTIVATION_CODES).".into(),
        ));
    };
    let topup: TopupId = given.id("a topup")?;
    let reason = act.fields.reason()?;
    let target = format!("topup {topup}");
    let mode = Mode::Apply(act.action(domain::Command::ShowCode, &target, reason));
    let profile = app
        .database()
        .run(async |connection| activation::code(connection, vault, &topup, mode).await)
        .await?
        .ok_or_else(unknown)?;
    let secrets = vec![
        NamedValue {
            name: "SM-DP+ address",
            value: profile.code.smdp().to_owned(),
        },
        NamedValue {
            name: "Activation code",
            value: profile.code.matching_id().to_owned(),
        },
        NamedValue {
            name: "Valid until",
            value: profile.expired_date.clone(),
        },
    ];
    let text = format!("The eSIM {topup}. Give it to nobody but its owner.");
    page(&ShownOnce {
        shell: Shell::new(&app, &act.session, "", "Activation code"),
        text,
        secrets,
        back: local_path(act.fields.get("back")),
    })
}
