//! Keys in wrong hands: they end at once. It is an act of its own beside the change of keys
//! ([`super::rotation`]), in which the old ones go on for a time. Support may do it, because it
//! only stops things and nobody should wait for an operator meanwhile; new keys are made by an
//! operator. It is `esimctl partner leaked`.

use accounts::partners::{self, EndedKeys, Partner, keys::FurtherKey};
use askama::Template;
use axum::{extract::State, response::Response};
use domain::{Command, PartnerId};
use pg::{PgConnection, Transaction, actions::ActionChange};
use serde_json::json;

use crate::{
    App,
    access::{Act, ConsoleSession, OperatorRole, Support, Visit},
    format::{counted, utc},
    pages::{
        partner_acts::{changed, lately, read},
        rotation::OF_KEYS,
    },
    problem::Problem,
    view::{PathArgument, Shell, page},
};

#[derive(Template)]
#[template(path = "leaked.html")]
struct Page {
    shell: Shell,
    token: String,
    seen: String,
    id: String,
    name: String,
    /// What it has ordered until now, and what of it goes on.
    lately: String,
    waiting: String,
    keys: Vec<Key>,
    /// Whether this session may make the new keys.
    may: bool,
}

/// A key that may be in wrong hands.
struct Key {
    value: String,
    hint: String,
    /// Whether it is chosen already: the one that the address names, or the only one. Otherwise
    /// somebody in a hurry would end the key by which the shop sells.
    chosen: bool,
}

#[derive(Template)]
#[template(path = "ended.html")]
struct Done {
    shell: Shell,
    id: String,
    name: String,
    sentence: String,
    /// Whether no key is left.
    all: bool,
    may: bool,
}

/// The valid keys of a partner, and what is known of each.
fn keys(partner: &Partner, further: Vec<FurtherKey>, session: &ConsoleSession) -> Vec<Key> {
    let is_changed = partner.old_access_key.is_some();
    let current = (!partner.keys_ended).then(|| Key {
        chosen: false,
        value: partner.access_key.clone(),
        hint: if is_changed {
            "The one of the last change of keys.".to_owned()
        } else if further.is_empty() {
            "Its only one: all its orders stop until it has new ones.".to_owned()
        } else {
            "Its first one: what it orders with it stops until it has a new one.".to_owned()
        },
    });
    let until = partner.old_access_key.clone().zip(partner.old_keys_until);
    let old = until.map(|(access_key, until)| Key {
        chosen: false,
        value: access_key,
        hint: format!(
            "The one before it, which would end {} by itself.",
            session.times.written(until)
        ),
    });
    let further = further.into_iter().map(|key| {
        let used = match key.last_used_at {
            Some(at) => format!("last used {}", session.times.written(at)),
            None => "never used".to_owned(),
        };
        Key {
            chosen: false,
            hint: format!(
                "A further key, “{}”, with the rights {}. Made {}, {used}. The others go on.",
                key.name,
                key.rights.join(", "),
                session.times.written(key.created_at)
            ),
            value: key.access_key,
        }
    });
    current.into_iter().chain(old).chain(further).collect()
}

fn title(partner: &Partner) -> String {
    format!("A key of {} is in wrong hands", partner.name)
}

pub(crate) async fn show(
    State(app): State<App>,
    given: PathArgument,
    visit: Visit<Support>,
) -> Result<Response, Problem> {
    let read = read(&app, &given).await?;
    let partner = &read.partner;
    let session = &visit.session;
    let id = partner.partner_id.into();
    let further =
        async |connection: &mut PgConnection| partners::keys::list(connection, id, None).await;
    let mut keys = keys(partner, app.database().run(further).await?, session);
    let named = visit.query.get("key");
    let is_only = keys.len() == 1;
    for key in &mut keys {
        key.chosen = is_only || named == Some(&key.value);
    }
    if keys.is_empty() {
        return Err(Problem::NotFound(
            "The partner has no valid key. See Keys and limits.".to_owned(),
        ));
    }
    page(&Page {
        shell: Shell::new(&app, session, "/partners", title(partner)),
        token: session.form_token(),
        seen: read.seen.clone(),
        id: partner.partner_id.to_string(),
        name: partner.name.clone(),
        lately: lately(&app, partner.partner_id.into()).await?,
        waiting: match read.waiting {
            0 => "No webhook waits for it.".to_owned(),
            waiting => format!(
                "{} for its first endpoint.",
                counted(waiting, "webhook waits", "webhooks wait")
            ),
        },
        keys,
        may: session.may(OperatorRole::Operator),
    })
}

/// Ends the key that the form names, or all of them.
pub(crate) async fn end(
    State(app): State<App>,
    given: PathArgument,
    act: Act<Support>,
) -> Result<Response, Problem> {
    let which = act.fields.get("key").filter(|key| !key.is_empty());
    let which = which.ok_or_else(|| Problem::Invalid("say which key is in wrong hands".into()))?;
    let leaked = (which != "all").then_some(which);
    let read = read(&app, &given).await?;
    let id: PartnerId = read.partner.partner_id.into();
    let end = async |transaction: &mut Transaction<'_>| {
        let ended = partners::end_keys(transaction, id, leaked).await?;
        Ok(ended.map(|ended| {
            let changed = ActionChange::between(
                json!({ "ended": ended.ended }),
                json!({ "goes_on": ended.goes_on }),
            );
            (ended, changed)
        }))
    };
    let of = (Command::PartnerLeaked, OF_KEYS);
    let ended = changed(&app, &act, id, of, end).await?;
    let ended = ended.ok_or_else(|| {
        act.changed(
            "the keys were changed since the page was shown, or this one had ended by itself",
        )
    })?;
    page(&Done {
        shell: Shell::new(&app, &act.session, "/partners", "The key has ended"),
        id: id.to_string(),
        name: read.partner.name,
        all: ended.goes_on.is_none(),
        sentence: sentence(&ended, &utc(act.session.times.now)),
        may: act.session.may(OperatorRole::Operator),
    })
}

/// What the partner is told.
fn sentence(ended: &EndedKeys, now: &str) -> String {
    let keys = ended.ended.join(" and ");
    let (your, was, it) = match ended.ended.len() {
        1 => ("access key", "was", "it"),
        _ => ("access keys", "were", "them"),
    };
    let next = match (&ended.goes_on, ended.further.is_empty()) {
        (Some(key), _) => format!("Your other key {key} still works, so use that one"),
        (None, false) => {
            "You have no key now that may order; we make new ones and give them to you".to_owned()
        }
        (None, true) => {
            "You have no valid key now; we make new ones and give them to you".to_owned()
        }
    };
    let further = if ended.further.is_empty() {
        String::new()
    } else {
        let names = ended.further.iter().map(|name| format!("“{name}”"));
        format!(
            " Your further keys work on: {}. End each one that you have not made yourselves, because whoever had the ended \
             key may have made one.",
            names.collect::<Vec<_>>().join(", ")
        )
    };
    format!(
        "Your {your} {keys} {was} seen by others. We ended {it} on {now} UTC: since then requests with {it} get 401. {next}.{further} \
         Then send the refused orders again with the same external_order_id; none is bought twice."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_partner_is_told_which_key_ended_and_what_goes_on() {
        let ended = |goes_on: Option<&str>, ended: &[&str]| EndedKeys {
            ended: ended.iter().map(|key| (*key).to_owned()).collect(),
            goes_on: goes_on.map(str::to_owned),
            further: Vec::new(),
        };
        let one = sentence(&ended(Some("ak_2"), &["ak_1"]), "2026-11-28 17:05:00.000");
        for part in [
            "access key ak_1 was",
            "We ended it on",
            "Your other key ak_2 still works",
        ] {
            assert!(one.contains(part), "{one}");
        }
        let all = sentence(&ended(None, &["ak_1", "ak_2"]), "now");
        assert!(
            all.contains("access keys ak_1 and ak_2 were") && all.contains("no valid key"),
            "{all}"
        );
        // A further key that may not order is none to go on with, and each may be a stranger's.
        let further = EndedKeys {
            further: vec!["backup".to_owned()],
            ..ended(None, &["ak_1"])
        };
        let further = sentence(&further, "now");
        assert!(
            further.contains("no key now that may order")
                && further.contains("work on: “backup”. End each one"),
            "{further}"
        );
    }
}
