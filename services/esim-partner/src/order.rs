//! Places orders, and triggers outcomes in the sandbox.
//!
//! An order without a definite answer (a 5xx, a broken connection, or the answer of a proxy) may be
//! stored or not. [`place`] finds out by sending the same body with the same external order id
//! again, which never buys twice: such a repeat asks for the answer of the first request. If the
//! order was stored before this command, the answer is `external_order_id_taken`, and then the
//! order is looked up. This is what every partner's program should do, so the messages say what
//! happens.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use domain::TopupId;
use futures_util::{FutureExt, future::BoxFuture};
use runtime::terminal::{one_line, print, printable, say};
use serde_json::{Value, json};

use crate::{
    account::{ApiClient, ApiResponse, PAGE, UNEXPECTED, encoded},
    tail::ApiOrderState,
};

/// The waits before a request without a definite answer is sent again, in seconds.
const RETRIES: [u64; 4] = [1, 2, 4, 8];
/// The longest wait that is granted if the service asks for one.
const LONGEST_WAIT: Duration = Duration::from_mins(2);
/// How long a request without an answer may still be on its way, for example in a proxy.
const ON_ITS_WAY: Duration = Duration::from_mins(1);
/// The maximum number of pages of options that are read.
const MOST_PAGES: usize = 100;
/// The outcome that makes an event and orders nothing.
const EVENT: &str = "key.expiring";

/// A name and a text of metadata.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    let (name, text) = text
        .split_once('=')
        .ok_or("write it as NAME=TEXT, such as ticket=T-77")?;
    Ok((name.to_owned(), text.to_owned()))
}

/// Sends an order until an answer says whether it is stored. Without a definite answer the same
/// body is sent again. If the id is taken by an order of the same units, an earlier request has
/// stored this order, and the stored order is the result unless nothing was bought for it: what
/// counts is the state that is looked up, never that the id is taken. If it is taken by another
/// order, the result is the refusal. A refusal after a request without an answer decides nothing,
/// because that request may still arrive.
pub(crate) async fn place(
    account: &ApiClient,
    id: &str,
    option_id: &str,
    qty: u32,
    metadata: &[(String, String)],
) -> anyhow::Result<ApiResponse> {
    let mut body =
        json!({"external_order_id": id, "products": [{"option_id": option_id, "qty": qty}]});
    if !metadata.is_empty() {
        let pairs = metadata.iter().cloned();
        let pairs: serde_json::Map<String, Value> =
            pairs.map(|(name, text)| (name, text.into())).collect();
        body["metadata"] = pairs.into();
    }
    let was_sent = AtomicBool::new(false);
    let send = || {
        let is_repeat = was_sent.swap(true, Ordering::Relaxed);
        account.send_order(&body, is_repeat).boxed()
    };
    let is_created = |answer: &Value| units(answer, "products") == Some(qty);
    let in_doubt = "it is unknown whether the order is stored: repeat the same command, which does not buy twice";
    let Definite { answer, is_first } = definite("repeating the order", send, is_created)
        .await
        .context(in_doubt)?;
    let is_taken = ["external_order_id_taken", "order_differs"]
        .iter()
        .any(|code| answer.codes.contains(code));
    if !is_taken {
        ensure!(
            answer.is_success() || is_first,
            "{in_doubt}, {ON_ITS_WAY:?} from now: the order was refused ({}), but an earlier request got no answer and \
             may still be on its way",
            answer.summary()
        );
        if answer.status == 200 {
            say("esim-partner: an earlier request stored this order; it is not bought again");
        }
        return Ok(answer);
    }
    let look_up = || account.order(id).boxed();
    let failed = "an order with this id is stored, but it cannot be shown; try `esim-partner orders show` later";
    let is_order = |answer: &Value| Stored::of(answer).is_some();
    let stored = definite("looking it up again", look_up, is_order)
        .await
        .context(failed)?
        .answer;
    ensure!(stored.is_success(), "{failed}: {}", stored.summary());
    match Stored::of(&stored.json).filter(|_| is_same(&stored.json, option_id, qty)) {
        Some(Stored::Placed) => {
            say("esim-partner: an earlier request stored this order; it is not bought again");
            Ok(stored)
        }
        Some(Stored::NothingBought) => {
            say(
                "esim-partner: nothing was bought: the stored order was refused or cancelled, as `esim-partner orders show` \
                 shows; repeat the command to order again",
            );
            Ok(answer)
        }
        None => {
            say(
                "esim-partner: nothing was ordered: the id is taken by a stored order of other units, which `esim-partner \
                 orders show` shows; give this order another id",
            );
            Ok(answer)
        }
    }
}

/// Extends an eSIM, and repeats the request with the same id until it has an answer.
pub(crate) async fn extend(
    account: &ApiClient,
    topup_id: &TopupId,
    id: &str,
    option_id: &str,
) -> anyhow::Result<ApiResponse> {
    let path = format!("/topups/{topup_id}/extensions");
    let body = json!({"external_id": id, "option_id": option_id});
    let send = || account.send("POST", &path, "", Some(&body)).boxed();
    let is_extension = |answer: &Value| answer["state"].is_string();
    let in_doubt = "it is unknown whether the extension is ordered: repeat the same command, which does not buy twice";
    let Definite { answer, is_first } = definite("repeating the request", send, is_extension)
        .await
        .context(in_doubt)?;
    // These say how an extension has ended, whichever request ordered it.
    let has_ended = ["extension_refused", "extension_failed"]
        .iter()
        .any(|code| answer.codes.contains(code));
    ensure!(
        answer.is_success() || is_first || has_ended,
        "{in_doubt}, {ON_ITS_WAY:?} from now: the extension was refused ({}), but an earlier request got no answer and may \
         still be on its way",
        answer.summary()
    );
    Ok(answer)
}

/// The outcome of a stored order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stored {
    /// Its units are bought, or are being bought, or buying them has failed after it was accepted.
    Placed,
    NothingBought,
}

impl Stored {
    /// Reads it from an answer. `None` if the answer is not an order as it is documented.
    fn of(order: &Value) -> Option<Self> {
        units(order, "topups")?;
        let state: ApiOrderState = order["state"].as_str()?.parse().ok()?;
        Some(match state {
            ApiOrderState::Processing
            | ApiOrderState::Ready
            | ApiOrderState::PartlyFailed
            | ApiOrderState::Failed => Self::Placed,
            ApiOrderState::Refused | ApiOrderState::Cancelled => Self::NothingBought,
        })
    }
}

/// The number of units that an answer lists in a field. `None` if it does not list them as it is
/// documented, for example because it comes from another server, or was cut.
fn units(answer: &Value, field: &str) -> Option<u32> {
    let units = answer[field].as_array()?;
    let is_unit = |unit: &Value| {
        let topup_id = unit["topup_id"].as_str();
        topup_id.is_some_and(|id| id.parse::<TopupId>().is_ok())
    };
    units.iter().all(is_unit).then_some(())?;
    u32::try_from(units.len()).ok()
}

/// A definite answer.
struct Definite {
    answer: ApiResponse,
    /// Whether every request had an answer of the service, so that none is still on its way.
    is_first: bool,
}

/// Sends a request until its answer is definite, that is, neither temporary nor missing. A success
/// is definite only if `is_documented` says that its body is one. `again` names the next try in the
/// message before each wait, which is at least as long as the service asks for. When the retries
/// have ended, it is an error.
///
/// The futures are boxed, because `esim-partner mcp` needs to know that they may go to another
/// thread.
async fn definite<'a>(
    again: &str,
    send: impl Fn() -> BoxFuture<'a, anyhow::Result<ApiResponse>>,
    is_documented: impl Fn(&Value) -> bool,
) -> anyhow::Result<Definite> {
    let judged = |answer: ApiResponse| {
        ensure!(
            !answer.is_success() || answer.is_temporary() || is_documented(&answer.json),
            UNEXPECTED
        );
        Ok(answer)
    };
    let mut is_first = true;
    let mut waits = RETRIES.map(Duration::from_secs).into_iter();
    loop {
        let (why, asked) = match send().await.and_then(judged) {
            Ok(answer) if !answer.is_temporary() => return Ok(Definite { answer, is_first }),
            Ok(answer) => (answer.summary(), answer.retry_after),
            Err(error) => {
                is_first = false;
                (one_line(&format!("{error:#}")), None)
            }
        };
        let wait = waits.next().map(|wait| wait.max(asked.unwrap_or_default()));
        let Some(wait) = wait.filter(|wait| *wait <= LONGEST_WAIT) else {
            let later = asked.map(|asked| format!("; it asks to wait {asked:?}"));
            bail!("{why}{}", later.unwrap_or_default());
        };
        say(format_args!("esim-partner: {why}; {again} in {wait:?}"));
        tokio::time::sleep(wait).await;
    }
}

/// Whether an order consists of `qty` units of one option.
fn is_same(order: &Value, option_id: &str, qty: u32) -> bool {
    let topups = order["topups"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let same = |topup: &Value| {
        topup["option_id"]
            .as_str()
            .is_some_and(|id| id.eq_ignore_ascii_case(option_id))
    };
    u32::try_from(topups.len()) == Ok(qty) && topups.iter().all(same)
}

/// Orders the sandbox option of an outcome, makes the event that it names, or lists the outcomes if
/// none is given. Returns whether the answer is the one that the outcome should have: for
/// `refused`, a 422 is a success.
pub(crate) async fn trigger(
    account: &ApiClient,
    outcome: Option<&str>,
    qty: u32,
) -> anyhow::Result<bool> {
    let known: Value = account.get("/account", "").await?;
    let environment = known["environment"].as_str().unwrap_or_default();
    ensure!(
        environment == "sandbox",
        "nothing was ordered: these are the keys of a {environment:?} account, which buys for real, and `trigger` needs a sandbox account"
    );
    if outcome == Some(EVENT) {
        return make_event(account).await;
    }
    let options = options(account).await?;
    let Some(outcome) = outcome else {
        for option in &options {
            let Choice {
                name,
                option_id,
                follows,
            } = option;
            print(printable(&format!("{name:<20} {option_id}  {follows}")))?;
        }
        print(format!(
            "{EVENT:<20} {:<36}  the event about old keys that end soon; nothing is ordered and no key ends",
            "(an event)"
        ))?;
        return Ok(true);
    };
    let chosen = options.iter().find(|option| option.name == outcome);
    let Choice {
        name,
        option_id,
        follows,
    } = chosen.with_context(|| {
        format!(
            "nothing was ordered: {outcome:?} is not an option of this account; `esim-partner trigger` lists the outcomes"
        )
    })?;
    let id = format!("trigger-{name}-{}", runtime::clock::unix_milliseconds());
    let answer = place(account, &id, option_id, qty, &[]).await?;
    print(serde_json::to_string_pretty(&answer.json)?)?;
    let refused = answer.codes.contains("provider_rejected");
    let expected = answer.is_success() || (refused && follows.starts_with("422"));
    if !expected {
        say(format_args!("esim-partner: {}", answer.summary()));
        return Ok(false);
    }
    say(printable(&format!(
        "What follows order {id} of {name}: {follows}"
    )));
    say(format_args!(
        "To look the order up: esim-partner orders show {id}"
    ));
    Ok(true)
}

/// Makes a `key.expiring` in the sandbox.
async fn make_event(account: &ApiClient) -> anyhow::Result<bool> {
    let body = json!({ "type": EVENT });
    let answer = account
        .send("POST", "/sandbox/events", "", Some(&body))
        .await?;
    print(serde_json::to_string_pretty(&answer.json)?)?;
    if !answer.is_success() {
        say(format_args!("esim-partner: {}", answer.summary()));
        return Ok(false);
    }
    say(
        "The event is sent to the webhook URL, and `esim-partner listen` forwards it. No key ends.",
    );
    Ok(true)
}

/// An option that the account may order.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Choice {
    name: String,
    option_id: String,
    /// What follows an order of it, as the catalogue of the sandbox says. Empty for other options.
    follows: String,
}

/// Each option that the account may order, sorted by name.
async fn options(account: &ApiClient) -> anyhow::Result<Vec<Choice>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let choice = |option: Value| Choice {
        name: text(&option["name"]),
        option_id: text(&option["option_id"]),
        follows: text(&option["details"]["outcome"]),
    };
    let mut all: Vec<Choice> = offered(account).await?.into_iter().map(choice).collect();
    all.sort();
    Ok(all)
}

/// Says the id of the option whose name was given in its place. It is a hint only, so a failure is
/// none.
pub(crate) async fn hint(account: &ApiClient, given: &str) {
    let options = options(account).await.unwrap_or_default();
    if let Some(found) = options.iter().find(|option| option.name == given) {
        let Choice { option_id, .. } = found;
        say(printable(&format!(
            "{given:?} is a name; the option's id is {option_id}"
        )));
    }
}

/// All options that the account may order, as they are answered.
pub(crate) async fn offered(account: &ApiClient) -> anyhow::Result<Vec<Value>> {
    let mut all = Vec::new();
    let mut query = format!("limit={PAGE}");
    for _ in 0..MOST_PAGES {
        let page: Value = account.get("/options", &query).await?;
        all.extend(page["options"].as_array().into_iter().flatten().cloned());
        let Some(next) = page["next_cursor"].as_str() else {
            break;
        };
        query = format!("limit={PAGE}&cursor={}", encoded(next));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_says_whether_something_was_bought() {
        let of = |state: &str| {
            let topup_id = "20250129123456123456789012";
            Stored::of(&json!({"state": state, "topups": [{"topup_id": topup_id}]}))
        };
        for state in ["processing", "ready", "partly_failed", "failed"] {
            assert_eq!(of(state), Some(Stored::Placed), "{state}");
        }
        for state in ["refused", "cancelled"] {
            assert_eq!(of(state), Some(Stored::NothingBought), "{state}");
        }
        assert_eq!(of("added_later"), None);
        for damaged in [
            Value::Null,
            json!({}),
            json!({"state": "ready"}),
            json!({"state": "ready", "topups": [{"topup_id": "../x"}]}),
        ] {
            assert_eq!(Stored::of(&damaged), None, "{damaged}");
        }
    }

    #[test]
    fn an_order_is_the_same_if_its_units_are() {
        let order = json!({"topups": [{"option_id": "aa-1"}, {"option_id": "aa-1"}]});
        assert!(is_same(&order, "AA-1", 2));
        assert!(!is_same(&order, "aa-1", 1));
        assert!(!is_same(&order, "aa-2", 2));
        assert!(!is_same(&Value::Null, "aa-1", 1));
    }
}
