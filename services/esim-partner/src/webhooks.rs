//! `esim-partner webhooks`: which webhooks the account has missed, and sending them again.
//!
//! `redeliver` begins a redelivery at the service and then only watches it, so it may be
//! interrupted at any time: the redelivery goes on. Repeating the command while it runs watches the
//! running one instead of failing.

use std::time::Duration;

use anyhow::ensure;
use clap::{Args, Subcommand, ValueEnum};
use runtime::{
    past::past,
    terminal::{print, printable, say},
};
use serde::Deserialize;
use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::account::{ApiClient, PAGE, encoded};

/// How often the progress of a redelivery is asked for.
const LOOK: Duration = Duration::from_secs(1);
/// The number of failed requests in a row after which the command stops watching.
const MOST_FAILURES: u32 = 30;
/// The number of empty pages in a row after which a list ends with an error.
const MOST_EMPTY: u32 = 1000;

pub(crate) const EXAMPLES: &str = "Examples:
  esim-partner webhooks list --state exhausted
  esim-partner webhooks redeliver --since 2h";

const LIST_EXAMPLES: &str = "Examples:
  esim-partner webhooks list --state exhausted
  esim-partner webhooks list --since 2h
  esim-partner webhooks list --state pending --json";

const REDELIVER_EXAMPLES: &str = "Examples:
  esim-partner webhooks redeliver --since 2h
  esim-partner webhooks redeliver --since 2d --state exhausted
  esim-partner webhooks redeliver --since 2026-11-22T10:00:00Z --until 2026-11-22T12:00:00Z --state delivered

Each webhook keeps its `webhook-id`, so that your endpoint can recognise a repeat. The webhooks are sent at the pace of
your endpoint. The command shows the progress until all were sent again; it may be interrupted, because the redelivery
goes on without it.";

#[derive(Subcommand, Clone, Debug)]
pub(crate) enum WebhooksCommand {
    /// List webhooks with their last attempts, those of topups and events alike
    ///
    /// The newest come first, or with `--state pending` those whose next attempt is due first.
    #[command(after_help = LIST_EXAMPLES)]
    List(WebhookListArgs),
    /// Send again all webhooks that your endpoint missed
    #[command(after_help = REDELIVER_EXAMPLES)]
    Redeliver(Redeliver),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum State {
    /// It is sent, or waits for its next attempt
    Pending,
    /// Its retries have ended
    Exhausted,
    /// It waits until a webhook URL is set
    NoEndpoint,
    /// Your endpoint acknowledged it
    Delivered,
}

impl State {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Exhausted => "exhausted",
            Self::NoEndpoint => "no_endpoint",
            Self::Delivered => "delivered",
        }
    }
}

#[derive(Args, Clone, Debug)]
pub(crate) struct WebhookListArgs {
    /// List only webhooks in this state
    #[arg(long)]
    state: Option<State>,
    /// List only webhooks whose last attempt is not older than this
    ///
    /// It is an age such as `2h`, or a time such as `2026-11-22T10:00:00Z`.
    #[arg(long, value_name = "TIME", value_parser = past)]
    since: Option<OffsetDateTime>,
    /// List only webhooks whose last attempt was before this time, in the form of `--since`
    #[arg(long, value_name = "TIME", value_parser = past)]
    until: Option<OffsetDateTime>,
    /// The maximum number of webhooks to list
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Print the webhooks as JSON, one on each line
    ///
    /// The answers of your endpoint are left out, because it may have answered with the activation
    /// code.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Redeliver {
    /// Send only webhooks again whose last attempt is not older than this
    ///
    /// It is an age such as `2h`, or a time such as `2026-11-22T10:00:00Z`.
    #[arg(long, value_name = "TIME", value_parser = past)]
    since: OffsetDateTime,
    /// Send only webhooks again whose last attempt was before this time, in the form of `--since`
    #[arg(long, value_name = "TIME", value_parser = past)]
    until: Option<OffsetDateTime>,
    /// Send only webhooks in this state again: `exhausted`, `pending` or `delivered`
    ///
    /// Without it, all that your endpoint did not acknowledge: `exhausted` and `pending` ones.
    #[arg(long)]
    state: Option<State>,
}

#[derive(Deserialize)]
struct Page {
    webhooks: Vec<Value>,
    next_cursor: Option<String>,
}

/// A webhook as a line: when it was created, what it is about, its state and its last attempt.
fn line(webhook: &Value) -> String {
    let text = |name: &str| webhook[name].as_str().unwrap_or_default();
    let last = &webhook["last_attempt"];
    let outcome = last["outcome"].as_str().unwrap_or("-");
    let status = last["status"].as_i64();
    let status = status.map(|status| format!(" status {status}"));
    let id = text("webhook_id");
    let state = text("state");
    let attempts = &webhook["attempts"];
    let mut line = format!(
        "{} {id:<36} {:<13} {state:<11} attempts {attempts:<3} last {outcome}{}",
        text("created_at"),
        text("type"),
        status.unwrap_or_default()
    );
    if let Some(next) = webhook["next_attempt_at"].as_str() {
        line.push_str(" next ");
        line.push_str(next);
    }
    line
}

/// A webhook without what its receiver answered, because that may be the webhook that it got, and
/// logs may keep the output.
fn without_answer(mut webhook: Value) -> Value {
    if let Some(attempt) = webhook["last_attempt"].as_object_mut() {
        attempt.remove("answer");
    }
    webhook
}

impl WebhooksCommand {
    pub(crate) async fn run(&self, account: &ApiClient) -> anyhow::Result<bool> {
        match self {
            Self::List(list) => list.run(account).await.map(|()| true),
            Self::Redeliver(redeliver) => redeliver.run(account).await,
        }
    }
}

impl WebhookListArgs {
    async fn run(&self, account: &ApiClient) -> anyhow::Result<()> {
        let moment = |name: &str, at: Option<OffsetDateTime>| {
            let at = at?.format(&Rfc3339).ok()?;
            Some(format!("{name}={}", encoded(&at)))
        };
        let filter: Vec<String> = [
            Some(format!("limit={PAGE}")),
            self.state.map(|state| format!("state={}", state.as_str())),
            moment("since", self.since),
            moment("until", self.until),
        ]
        .into_iter()
        .flatten()
        .collect();
        let filter = filter.join("&");
        let mut left = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let all = left;
        let mut query = filter.clone();
        let mut empty = 0;
        loop {
            let page: Page = account.get("/webhooks", &query).await?;
            let count = page.webhooks.len();
            for webhook in page.webhooks.into_iter().take(left) {
                if self.json {
                    print(without_answer(webhook))?;
                } else {
                    print(printable(&line(&webhook)))?;
                }
            }
            left = left.saturating_sub(count);
            // With a filter, pages may be empty although more follow. Only another server than ours
            // would go on like this for ever.
            empty = if count == 0 { empty + 1 } else { 0 };
            ensure!(
                empty < MOST_EMPTY,
                "{MOST_EMPTY} pages in a row had no webhook: check BASE_URL"
            );
            let Some(next) = page.next_cursor.filter(|_| left > 0) else {
                if left == all && all > 0 {
                    say("No webhooks.");
                }
                return Ok(());
            };
            query = format!("{filter}&cursor={}", encoded(&next));
        }
    }
}

impl Redeliver {
    /// Begins the redelivery and shows its progress until it has ended. Returns whether it has.
    async fn run(&self, account: &ApiClient) -> anyhow::Result<bool> {
        let body = json!({
            "since": self.since.format(&Rfc3339)?,
            "until": self.until.map(|until| until.format(&Rfc3339)).transpose()?,
            "state": self.state.map(State::as_str),
        });
        let answer = account
            .send("POST", "/webhooks/redeliver", "", Some(&body))
            .await?;
        let begun = if answer.codes.contains("redelivery_running") {
            say(
                "esim-partner: another redelivery is running, so none was begun; this is its progress",
            );
            running(account).await?
        } else if answer.is_success() {
            answer.json
        } else {
            print(serde_json::to_string_pretty(&answer.json)?)?;
            say(format_args!("esim-partner: {}", answer.summary()));
            return Ok(false);
        };
        let ended = watch(account, begun).await?;
        print(serde_json::to_string_pretty(&ended)?)?;
        Ok(ended["status"] == "ended")
    }
}

/// The redelivery that runs, or else the newest one.
async fn running(account: &ApiClient) -> anyhow::Result<Value> {
    let found: Value = account.get("/webhooks/redeliver", "limit=1").await?;
    Ok(found["redeliveries"][0].clone())
}

/// Shows the progress of a redelivery until it has ended. A request that fails is repeated, because
/// watching changes nothing.
async fn watch(account: &ApiClient, begun: Value) -> anyhow::Result<Value> {
    let id = begun["redelivery_id"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let path = format!("/webhooks/redeliver/{}", encoded(&id));
    let mut seen = begun;
    let mut shown = Value::Null;
    let mut failures = 0;
    loop {
        if seen["redelivered"] != shown {
            shown = seen["redelivered"].clone();
            let of = match &seen["matching"] {
                Value::Null => "more than 10000".to_owned(),
                matching => matching.to_string(),
            };
            say(printable(&format!(
                "Redelivery {id}: {shown} of {of} webhooks"
            )));
        }
        if seen["status"] != "running" {
            return Ok(seen);
        }
        tokio::time::sleep(LOOK).await;
        match account.get(&path, "").await {
            Ok(next) => {
                failures = 0;
                seen = next;
            }
            Err(error) if failures >= MOST_FAILURES => {
                return Err(error.context("the redelivery goes on, but it cannot be watched"));
            }
            Err(error) => {
                failures += 1;
                let error = printable(&format!("{error:#}"));
                say(format_args!(
                    "esim-partner: {error}; asking again in {LOOK:?}"
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_is_one_line_with_its_last_attempt() {
        let webhook = json!({"webhook_id": "evt_1", "type": "topup.failed", "state": "pending",
            "created_at": "2026-01-01T00:00:00Z", "attempts": 2, "next_attempt_at": "2026-01-02T00:00:00Z",
            "last_attempt": {"outcome": "status_5xx", "status": 500}});
        let line = line(&webhook);
        assert!(
            line.ends_with("last status_5xx status 500 next 2026-01-02T00:00:00Z"),
            "{line}"
        );
    }

    /// It is a slip, and without an error the list would be empty, as if nothing had been sent.
    #[test]
    fn a_time_in_the_future_is_refused() {
        use clap::Parser;

        #[derive(Parser)]
        struct Listing {
            #[command(flatten)]
            list: WebhookListArgs,
        }
        #[derive(Parser)]
        struct Redelivering {
            #[command(flatten)]
            redeliver: Redeliver,
        }
        let future = "2999-11-22T10:00:00Z";
        let listing = Listing::try_parse_from(["", "--since", future]).map(|args| args.list.json);
        let error = listing.unwrap_err().to_string();
        assert!(error.contains("it is in the future"), "{error}");
        let again = Redelivering::try_parse_from(["", "--since", "2h", "--until", future]);
        let error = again
            .map(|args| args.redeliver.since)
            .unwrap_err()
            .to_string();
        assert!(error.contains("it is in the future"), "{error}");
        let listing = Listing::try_parse_from(["", "--since", "2h"]);
        assert!(listing.is_ok_and(|args| args.list.since.is_some()));
    }
}
