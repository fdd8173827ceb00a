//! The go-live checklist: what must hold, beside a correct endpoint, before real customers order.
//!
//! `certify` prints it after its checks. Some items are looked up in the account through the API,
//! some follow from the URL, and the rest is known only to the partner's developers ([`BY_HAND`]).
//! An item that could not be looked up, for example without an access key, is shown as not checked
//! instead of failing the command.

use std::net::IpAddr;

use reqwest::Url;
use runtime::{
    client::is_this_machine,
    terminal::{print, printable},
};
use serde::Serialize;
use serde_json::Value;
use time::{OffsetDateTime, format_description::well_known::Rfc2822};
use url::Host;

use crate::account::{ApiClient, ApiResponse};

/// The largest clock skew that passes, in seconds. The service accepts 300 s, but a clock that is
/// off by more than a minute is probably not synchronised and will drift further.
const SKEW: i64 = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ItemState {
    Yes,
    No,
    /// The item could not be looked up; `found` says why.
    Unknown,
    /// Only people can check it.
    ByHand,
}

#[derive(Debug, Serialize)]
pub(crate) struct ChecklistItem {
    /// The stable name of the item, for scripts.
    pub(crate) name: &'static str,
    pub(crate) done: ItemState,
    pub(crate) text: &'static str,
    pub(crate) found: String,
}

/// The items that only people can check.
const BY_HAND: [(&str, &str); 5] = [
    (
        "repeats_orders",
        "after a 5xx or without an answer your system repeats the order with the same external_order_id, and treats `external_order_id_taken` as success",
    ),
    (
        "misses_webhooks",
        "your system looks an order up if its webhook has not arrived within some minutes",
    ),
    (
        "acknowledges_late",
        "your endpoint stores the eSIM before it answers 200",
    ),
    (
        "hides_codes",
        "your logs hold no activate_code, download_link or qrcode_img_url: whoever reads one can install the eSIM",
    ),
    (
        "rotates",
        "you know how to replace your keys and your webhook secret (POST /keys, POST /webhook/secret)",
    ),
];

/// The checklist of an endpoint, whose checks have `passed` or not. Without the account's keys, the
/// items of the account are unknown.
pub(crate) async fn checklist(account: &ApiClient, url: &Url, passed: bool) -> Vec<ChecklistItem> {
    let https = url.scheme() == "https";
    let host = url.host_str().unwrap_or_default();
    let of_url = [
        ("endpoint", "the endpoint passes all checks", passed, ""),
        ("https", "the webhook URL is https", https, url.scheme()),
        (
            "public",
            "the webhook URL's host is not a private address",
            !is_private(url),
            host,
        ),
    ];
    let mut items: Vec<ChecklistItem> = of_url
        .map(|(name, text, done, found)| item(name, text, yes(done), found.to_owned()))
        .into();
    items.extend(of_account(account, url).await);
    items.extend(of_balance(account).await);
    items.extend(BY_HAND.map(|(name, text)| item(name, text, ItemState::ByHand, String::new())));
    items
}

/// The items that are looked up in the account.
async fn of_account(account: &ApiClient, url: &Url) -> Vec<ChecklistItem> {
    let (shown, webhook) = if account.has("ACCESS_KEY") {
        (
            account.send("GET", "/account", "", None).await,
            account.get("/webhook", "").await,
        )
    } else {
        let missing = || anyhow::anyhow!("no ACCESS_KEY is set");
        (Err(missing()), Err(missing()))
    };
    let date = shown
        .as_ref()
        .map_or(String::new(), |answer| answer.date.clone());
    let known = shown.and_then(ApiResponse::success);
    let from = |known: &anyhow::Result<Value>, check: &dyn Fn(&Value) -> (bool, String)| match known
    {
        Ok(known) => {
            let (done, found) = check(known);
            (yes(done), found)
        }
        Err(error) => (ItemState::Unknown, format!("{error:#}")),
    };
    let live = from(&known, &|known| {
        (
            known["environment"] == "live",
            known["environment"].to_string(),
        )
    });
    let configured = from(&webhook, &|webhook| {
        let set = webhook["url"]
            .as_str()
            .and_then(|set| set.parse::<Url>().ok());
        let same = set.is_some_and(|set| set == *url);
        (
            same,
            if same { "" } else { "PUT /webhook changes it" }.to_owned(),
        )
    });
    let open = from(&webhook, &|webhook| {
        (webhook["state"] == "open", webhook["state"].to_string())
    });
    let exhausted = from(&webhook, &|webhook| {
        let count = webhook["exhausted"].as_u64().unwrap_or_default();
        (
            count == 0,
            format!("{count} exhausted; POST /topups/{{topup_id}}/redeliver sends one again"),
        )
    });
    let clock = match OffsetDateTime::parse(&date, &Rfc2822) {
        Ok(theirs) => {
            let off = theirs.unix_timestamp() - runtime::clock::unix_seconds();
            (
                yes(off.abs() <= SKEW),
                format!("{} s from the service's clock", off.abs()),
            )
        }
        Err(_) => (
            ItemState::Unknown,
            "there is no answer with a Date header to compare it with".to_owned(),
        ),
    };
    [
        ("live_keys", "these are the keys of the live account", live),
        (
            "configured",
            "the account's webhook URL is this endpoint",
            configured,
        ),
        (
            "open",
            "the account's endpoint is open, neither blocked nor paused",
            open,
        ),
        ("exhausted", "no webhook has used up its retries", exhausted),
        ("clock", "this machine's clock is right", clock),
    ]
    .map(|(name, text, (done, found))| item(name, text, done, found))
    .into()
}

/// Whether the account is told that its balance is low; nothing if it has no balance.
async fn of_balance(account: &ApiClient) -> Option<ChecklistItem> {
    if !account.has("ACCESS_KEY") {
        return None;
    }
    let shown: Value = account.get("/balance", "").await.ok()?;
    let balances = shown["balances"].as_array().filter(|all| !all.is_empty())?;
    let endpoints: Value = account.get("/endpoints", "").await.ok()?;
    let asks = |one: &Value| {
        one["events"]
            .as_array()
            .is_some_and(|all| all.iter().any(|kind| kind == "balance.low"))
    };
    let is_asked = endpoints["endpoints"]
        .as_array()
        .is_some_and(|all| all.iter().any(asks));
    let is_set = balances.iter().all(|one| one["warn_below"].is_number());
    Some(item(
        "balance",
        "you are told when your balance is low, before orders are refused with balance_insufficient",
        yes(is_set && is_asked),
        "ask for the event balance.low and set `esim-partner balance --warn-below`; `--set 0` rehearses it in the sandbox"
            .to_owned(),
    ))
}

fn yes(done: bool) -> ItemState {
    if done { ItemState::Yes } else { ItemState::No }
}

fn item(name: &'static str, text: &'static str, done: ItemState, found: String) -> ChecklistItem {
    ChecklistItem {
        name,
        done,
        text,
        found,
    }
}

/// Whether the host is this machine, or an address that only this network can reach. Other names
/// are not judged by their addresses, which may differ from those that the service sees.
fn is_private(url: &Url) -> bool {
    let v4 = |address: std::net::Ipv4Addr| address.is_private() || address.is_link_local();
    let is_local = match url.host() {
        Some(Host::Domain(_)) => false,
        Some(Host::Ipv4(address)) => v4(address),
        Some(Host::Ipv6(address)) => match address.to_canonical() {
            IpAddr::V4(address) => v4(address),
            IpAddr::V6(address) => address.is_unique_local() || address.is_unicast_link_local(),
        },
        None => true,
    };
    is_local || is_this_machine(url)
}

pub(crate) fn show(items: &[ChecklistItem]) -> anyhow::Result<()> {
    print("\nGo-live checklist:")?;
    for ChecklistItem {
        done, text, found, ..
    } in items
    {
        let mark = match done {
            ItemState::Yes => "[x]",
            ItemState::No => "[ ]",
            ItemState::Unknown => "[?]",
            ItemState::ByHand => "[·]",
        };
        let found = if found.is_empty() || *done == ItemState::Yes {
            String::new()
        } else {
            format!(" ({})", printable(found))
        };
        print(format!("{mark} {text}{found}"))?;
    }
    print("[x] done, [ ] to do, [?] not checked, [·] check it yourself")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_this_network_are_private() {
        for (url, private) in [
            ("http://localhost:3000/hook", true),
            ("http://127.0.0.1/", true),
            ("http://10.1.2.3/", true),
            ("http://[::1]/", true),
            ("http://[::ffff:192.168.1.1]/", true),
            ("http://[fd00::1]/", true),
            ("https://shop.example.com/hook", false),
            ("https://93.184.215.14/", false),
        ] {
            assert_eq!(is_private(&url.parse().unwrap()), private, "{url}");
        }
    }
}
