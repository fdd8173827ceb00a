//! Places orders, and triggers outcomes in the sandbox.
//!
//! An order without a definite answer (a 5xx, a 429 or a broken connection) may be stored or not.
//! [`place`] finds out by sending the same body with the same external order id again, which never
//! buys twice: if the order is stored, the answer is `external_order_id_taken`, and then the order
//! is looked up. This is what every partner's program should do, so the messages say what happens.

use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::{
    account::{Account, Answer, PAGE, encoded},
    output::print,
};

/// The waits before a request without a definite answer is sent again, in seconds. After the last
/// repetition its result stands.
const RETRIES: [u64; 4] = [1, 2, 4, 8];
/// The maximum number of pages of options that are read.
const MOST_PAGES: usize = 100;
/// The outcome that makes an event and orders nothing.
const EVENT: &str = "key.expiring";

/// Sends an order until an answer says whether it is stored. Without a definite answer the same
/// body is sent again. If the id is taken by an order of the same units, an earlier request has
/// stored this order, and the stored order is the result. If it is taken by another order, the
/// result is the refusal.
pub(crate) async fn place(
    account: &Account,
    id: &str,
    option_id: &str,
    qty: u32,
) -> anyhow::Result<Answer> {
    let body = json!({"external_order_id": id, "products": [{"option_id": option_id, "qty": qty}]});
    let send = async || account.send("POST", "/orders", "", Some(&body)).await;
    let answer = definite("repeating the order", send)
        .await
        .context(
            "it is unknown whether the order is stored: repeat the same command, which does not buy twice",
        )?;
    if !answer.codes.contains("external_order_id_taken") {
        return Ok(answer);
    }
    let path = format!("/orders/{}", encoded(id));
    let look_up = async || account.send("GET", &path, "", None).await;
    let failed = "an order with this id is stored, but it cannot be shown; try `esim-partner orders show` later";
    let stored = definite("looking it up again", look_up)
        .await
        .context(failed)?;
    ensure!(stored.is_success(), "{failed}: {}", stored.summary());
    if is_same(&stored.json, option_id, qty) {
        eprintln!("esim-partner: an earlier request stored this order; it is not bought again");
        return Ok(stored);
    }
    eprintln!(
        "esim-partner: nothing was ordered: the id is taken by a stored order of other units, which `esim-partner orders show` \
         shows; give this order another id"
    );
    Ok(answer)
}

/// Sends a request until its answer is definite, or until the retries have ended. `again` names the
/// next try in the message before each wait.
async fn definite(
    again: &str,
    send: impl AsyncFn() -> anyhow::Result<Answer>,
) -> anyhow::Result<Answer> {
    for wait in RETRIES.map(Duration::from_secs) {
        let why = match send().await {
            Ok(answer) if !answer.is_temporary() => return Ok(answer),
            Ok(answer) => answer.summary(),
            Err(error) => format!("{error:#}"),
        };
        eprintln!("esim-partner: {why}; {again} in {wait:?}");
        tokio::time::sleep(wait).await;
    }
    send().await
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
    account: &Account,
    outcome: Option<&str>,
    qty: u32,
) -> anyhow::Result<bool> {
    let known: Value = account.get("/account", "").await?;
    let environment = known["environment"].as_str().unwrap_or_default();
    ensure!(
        environment == "sandbox",
        "nothing was ordered: these are the keys of a {environment} account, which buys for real, and `trigger` needs a sandbox account"
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
            print(format!("{name:<20} {option_id}  {follows}"))?;
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
    let answer = place(account, &id, option_id, qty).await?;
    print(serde_json::to_string_pretty(&answer.json)?)?;
    let refused = answer.codes.contains("provider_rejected");
    let expected = answer.is_success() || (refused && follows.starts_with("422"));
    if !expected {
        eprintln!("esim-partner: {}", answer.summary());
        return Ok(false);
    }
    eprintln!("What follows order {id} of {name}: {follows}");
    eprintln!("To look the order up: esim-partner orders show {id}");
    Ok(true)
}

/// Makes a `key.expiring` in the sandbox.
async fn make_event(account: &Account) -> anyhow::Result<bool> {
    let body = json!({ "type": EVENT });
    let answer = account
        .send("POST", "/sandbox/events", "", Some(&body))
        .await?;
    print(serde_json::to_string_pretty(&answer.json)?)?;
    if !answer.is_success() {
        eprintln!("esim-partner: {}", answer.summary());
        return Ok(false);
    }
    eprintln!(
        "The event is sent to the webhook URL, and `esim-partner listen` forwards it. No key ends."
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
async fn options(account: &Account) -> anyhow::Result<Vec<Choice>> {
    let mut all = Vec::new();
    let mut query = format!("limit={PAGE}");
    for _ in 0..MOST_PAGES {
        let page: Value = account.get("/options", &query).await?;
        for option in page["options"].as_array().into_iter().flatten() {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            all.push(Choice {
                name: text(&option["name"]),
                option_id: text(&option["option_id"]),
                follows: text(&option["details"]["outcome"]),
            });
        }
        let Some(next) = page["next_cursor"].as_str() else {
            break;
        };
        query = format!("limit={PAGE}&cursor={}", encoded(next));
    }
    all.sort();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_the_same_if_its_units_are() {
        let order = json!({"topups": [{"option_id": "aa-1"}, {"option_id": "aa-1"}]});
        assert!(is_same(&order, "AA-1", 2));
        assert!(!is_same(&order, "aa-1", 1));
        assert!(!is_same(&order, "aa-2", 2));
        assert!(!is_same(&Value::Null, "aa-1", 1));
    }
}
