//! New keys and a new webhook secret of a partner, with an overlap in which the old ones work, too:
//! what `esimctl partner rotate` does. The new ones are shown once. They have to be sealed, so this
//! needs the master keys `MASTER_KEY_PARTNERS` and `MASTER_KEY_WEBHOOKS`; without them the page
//! names the command.

use std::time::Duration;

use accounts::partners::{self, Partner};
use axum::{extract::State, response::Response};
use domain::{Command, EndpointKey, PartnerId, rotation::Overlap};
use pg::{Transaction, actions::ActionChange};
use serde_json::json;
use signing::generate;
use time::OffsetDateTime;
use vault::Vault;

use crate::{
    App,
    access::{Act, Operator, Visit},
    format::utc,
    pages::{
        act::{ActPage, Field, Pick},
        partner_acts::{act_page, changed, lately, read},
    },
    problem::Problem,
    view::{NamedValue, PathArgument, Shell, ShownOnce, page},
};

/// What changes the keys and the secret: an operator's commands and the partner's own.
pub(super) const OF_KEYS: &[Command] = &[
    Command::PartnerRotateKeys,
    Command::KeysRotate,
    Command::PartnerLeaked,
];
const OF_SECRET: &[Command] = &[
    Command::PartnerRotateWebhookSecret,
    Command::WebhookSecretRotate,
];

/// What a rotation replaces.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Replaced {
    Keys,
    Secret,
}

impl Replaced {
    /// In a sentence, and as `esimctl partner rotate` names it.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Keys => ("keys", "keys"),
            Self::Secret => ("webhook secret", "webhook-secret"),
        }
    }

    /// What the button says, and what pressing it does.
    fn made(self) -> (&'static str, &'static str) {
        match self {
            Self::Keys => (
                "Make new keys",
                "A new access key and a new secret are made. You see them once, on the next page: hand them to the partner over \
                 a safe channel.",
            ),
            Self::Secret => (
                "Make a new secret",
                "A new webhook secret is made. You see it once, on the next page: hand it to the partner over a safe channel.",
            ),
        }
    }

    /// When the old ones of the last rotation end.
    fn old_until(self, partner: &Partner) -> Option<OffsetDateTime> {
        match self {
            Self::Keys => partner.old_keys_until,
            Self::Secret => partner.old_webhook_secret_until,
        }
    }

    /// What to do first if the old ones are in wrong hands.
    fn if_leaked(self) -> &'static str {
        match self {
            Self::Keys => {
                " If one is in wrong hands, end it first, which this console does: A key is in wrong hands, on Keys and limits."
            }
            Self::Secret => {
                " If the old one is in wrong hands, add --overlap 0 to it, so that it ends at once."
            }
        }
    }

    /// What becomes of the partner's requests or webhooks if the old ones end at once. `lately`
    /// says what it has ordered until now.
    fn at_once(self, lately: &str) -> String {
        match self {
            Self::Keys => {
                format!(
                    "At once every request with the old keys gets a 401: its orders stop until it has the new ones. {lately}"
                )
            }
            Self::Secret => {
                "At once only the new secret signs: a partner that does not have it yet refuses its webhooks, which are \
                 then tried again."
                    .to_owned()
            }
        }
    }
}

pub(crate) async fn keys(
    State(app): State<App>,
    given: PathArgument,
    visit: Visit<Operator>,
) -> Result<Response, Problem> {
    rotation(&app, &given, &visit, Replaced::Keys).await
}

pub(crate) async fn secret(
    State(app): State<App>,
    given: PathArgument,
    visit: Visit<Operator>,
) -> Result<Response, Problem> {
    rotation(&app, &given, &visit, Replaced::Secret).await
}

async fn rotation(
    app: &App,
    given: &PathArgument,
    visit: &Visit<Operator>,
    what: Replaced,
) -> Result<Response, Problem> {
    let read = read(app, given).await?;
    let (words, command) = what.words();
    let path = command;
    let base = act_page(
        app,
        &visit.session,
        &read,
        &format!("Change the {words}"),
        path,
    );
    if app.partner_vault().is_none() {
        return ActPage {
            says: vec![format!(
                "New {words} have to be sealed with master keys that this console does not have (MASTER_KEY_PARTNERS and MASTER_KEY_WEBHOOKS). \
                 Somebody with a shell makes them by this command, and the old ones stay valid for 24 hours.{} The command:",
                what.if_leaked()
            )],
            command: Some(format!(
                "esimctl partner rotate {} {command}",
                if read.partner.keys_ended {
                    read.partner.partner_id.to_string()
                } else {
                    read.partner.access_key.clone()
                }
            )),
            path: String::new(),
            ..base
        }
        .show();
    }
    let old = what.old_until(&read.partner);
    let times = &visit.session.times;
    let until = |lasts: time::Duration| format!("Until {}.", times.written(times.now + lasts));
    let lately = lately(app, read.partner.partner_id.into()).await?;
    let usual =
        "The usual way: the partner takes the new ones over, and nothing is refused meanwhile.";
    let pick = |value: &str, label: &str, hint: String, grave, checked| Pick {
        value: value.to_owned(),
        label: label.to_owned(),
        hint,
        grave,
        checked,
    };
    let at_once = pick("0", "Not at all", what.at_once(&lately), true, false);
    let is_ended = matches!(what, Replaced::Keys) && read.partner.keys_ended;
    let picks = match old {
        None if is_ended => {
            let ended = "They have ended, and stay so: only the new ones work.";
            vec![pick("0", "Not at all", ended.to_owned(), false, true)]
        }
        None => vec![
            pick("24h", "24 hours", format!("{usual} {}", until(time::Duration::DAY)), false, true),
            pick("7d", "7 days", until(time::Duration::DAY * 7), false, false),
            at_once,
        ],
        Some(_) => vec![
            pick(
                "keep",
                "24 hours, and the newest ones end",
                "The partner never got the new ones of the last change: they are replaced, and the old ones that it still uses \
                 stay valid."
                    .to_owned(),
                false,
                false,
            ),
            at_once,
        ],
    };
    let (button, effect) = what.made();
    let mut says = vec![effect.to_owned()];
    says.extend(old.map(|old| {
        format!(
            "The {words} were changed not long ago: the old ones are valid until {}, beside the new ones.",
            times.written(old)
        )
    }));
    ActPage {
        says,
        fields: vec![Field::Picks {
            legend: "The old ones work for",
            name: "overlap",
            picks,
        }],
        button,
        ..base
    }
    .show()
}

fn overlap(act: &Act<Operator>) -> Result<Overlap, Problem> {
    const DAY: Duration = Duration::from_hours(24);
    let (lasts, keep_old) = match act.fields.get("overlap") {
        Some("24h") => (DAY, false),
        Some("7d") => (DAY * 7, false),
        Some("keep") => (DAY, true),
        Some("0") => (Duration::ZERO, false),
        _ => {
            return Err(Problem::Invalid(
                "say for how long the old ones work".into(),
            ));
        }
    };
    Ok(Overlap { lasts, keep_old })
}

fn vault<'a>(app: &'a App, act: &Act<Operator>) -> Result<&'a Vault, Problem> {
    app.partner_vault().ok_or_else(|| {
        act.not_done(
            "This console makes no keys",
            "It has no master keys for them (MASTER_KEY_PARTNERS and MASTER_KEY_WEBHOOKS). Somebody with a shell does it: esimctl partner rotate.",
        )
    })
}

/// The page that shows new secrets once.
fn once(
    app: &App,
    act: &Act<Operator>,
    partner: &Partner,
    (words, until): (&str, Option<OffsetDateTime>),
    secrets: Vec<NamedValue>,
) -> Result<Response, Problem> {
    let old = match until {
        Some(until) => format!(
            "The old ones stay valid until {}, which is {} UTC.",
            act.session.times.written(until),
            utc(until)
        ),
        None => "The old ones are not valid any more.".to_owned(),
    };
    page(&ShownOnce {
        shell: Shell::new(
            app,
            &act.session,
            "/partners",
            format!("New {words} of {}", partner.name),
        ),
        text: format!(
            "They are shown only now: hand them to the partner over a safe channel. {old}"
        ),
        secrets,
        back: format!("/partners/{}/access", partner.partner_id),
    })
}

fn not_rotated(act: &Act<Operator>, words: &str) -> Problem {
    act.changed(&format!(
        "the {words} were changed since the page was shown, or the overlap of the last change has begun or ended"
    ))
}

pub(crate) async fn rotate_keys(
    State(app): State<App>,
    given: PathArgument,
    act: Act<Operator>,
) -> Result<Response, Problem> {
    let overlap = overlap(&act)?;
    let vault = vault(&app, &act)?;
    let read = read(&app, &given).await?;
    let partner = &read.partner;
    let id: PartnerId = partner.partner_id.into();
    let (access_key, secret_key) =
        generate::keys().map_err(|error| Problem::Broken(error.into()))?;
    let rotate = async |transaction: &mut Transaction<'_>| {
        partners::check_master_key(&mut *transaction, vault).await?;
        let rotated =
            partners::rotate_keys(transaction, vault, id, &access_key, &secret_key, overlap);
        Ok(rotated.await?.done(|until| {
            let changed = ActionChange::between(
                json!({ "access_key": partner.access_key }),
                json!({ "access_key": access_key, "old_keys_until": until.map(utc) }),
            );
            (until, changed)
        }))
    };
    let of = (Command::PartnerRotateKeys, OF_KEYS);
    let until = changed(&app, &act, id, of, rotate).await?;
    let until = until.ok_or_else(|| not_rotated(&act, "keys"))?;
    let secrets = vec![
        NamedValue {
            name: "Access key",
            value: access_key,
        },
        NamedValue {
            name: "Secret key",
            value: secret_key.to_base64(),
        },
    ];
    once(&app, &act, partner, ("keys", until), secrets)
}

pub(crate) async fn rotate_secret(
    State(app): State<App>,
    given: PathArgument,
    act: Act<Operator>,
) -> Result<Response, Problem> {
    let overlap = overlap(&act)?;
    let vault = vault(&app, &act)?;
    let read = read(&app, &given).await?;
    let id: PartnerId = read.partner.partner_id.into();
    let secret = generate::webhook_secret().map_err(|error| Problem::Broken(error.into()))?;
    let rotate = async |transaction: &mut Transaction<'_>| {
        partners::check_master_key(&mut *transaction, vault).await?;
        let first = EndpointKey::first(id);
        let rotated = partners::rotate_secret(transaction, vault, first, &secret, overlap);
        Ok(rotated.await?.done(|until| {
            let until_utc = until.map(utc);
            (
                until,
                ActionChange::created(json!({ "old_webhook_secret_until": until_utc })),
            )
        }))
    };
    let of = (Command::PartnerRotateWebhookSecret, OF_SECRET);
    let until = changed(&app, &act, id, of, rotate).await?;
    let until = until.ok_or_else(|| not_rotated(&act, "webhook secret"))?;
    let secrets = vec![NamedValue {
        name: "Webhook secret",
        value: secret.to_text(),
    }];
    once(
        &app,
        &act,
        &read.partner,
        ("webhook secret", until),
        secrets,
    )
}
