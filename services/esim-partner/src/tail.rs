//! `esim-partner logs tail`: prints the account's orders and webhook attempts as they happen.
//!
//! The API has no stream of changes, so a [`Follower`] asks for them in rounds: it lists new
//! orders, looks each followed order up, and prints what differs from what it printed before. The
//! number of requests in a round is bounded ([`WATCHED`], [`MOST_DELIVERIES`]), so that a busy
//! account does not use up its own rate limit. Consequently an old order is no longer followed, and
//! an attempt may be printed some rounds late.
//!
//! A line begins with the time of what it tells. Where the API does not say the time, it is the
//! time at which the change was seen, and if that was the first look, the line says that it
//! happened before.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::Duration,
};

use clap::{Args, Subcommand};
use domain::{
    Stored, TopupId,
    standing::{DeliveryState, ShownState},
};
use runtime::terminal::{print, printable, say};
use serde::Deserialize;
use time::{OffsetDateTime, format_description::well_known::Rfc3339, serde::rfc3339};

use crate::account::{ApiClient, PAGE, encoded};

/// The pause between two rounds.
const PAUSE: Duration = Duration::from_secs(2);
/// How far each list of new orders reaches back before the newest known one. An order gets its time
/// before its transaction commits, so an order with an earlier time may become visible later.
const OVERLAP: Duration = Duration::from_secs(10);
/// The maximum number of pages of new orders that are read in one round.
const MOST_PAGES: usize = 10;
/// The number of newest orders that are followed, that is, looked up in each round.
const WATCHED: usize = 20;
/// The maximum number of deliveries that are looked up in one round.
const MOST_DELIVERIES: usize = 20;
/// The number of failed rounds in a row after which the command gives up.
const MOST_FAILURES: u32 = 30;

pub(crate) const EXAMPLES: &str = "Examples:
  esim-partner logs tail
  esim-partner logs tail --lines 20 --once";

#[derive(Subcommand, Clone, Debug)]
pub(crate) enum Logs {
    /// Print the newest orders with the attempts of their webhooks, and follow them
    ///
    /// The newest 20 orders are followed; an older one is no longer looked at. The command runs
    /// until you end it with Ctrl-C.
    #[command(after_help = EXAMPLES)]
    Tail(Tail),
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Tail {
    /// The number of orders to begin with, at most 20
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u8).range(1..=20))]
    lines: u8,
    /// Print what there is now, and end
    #[arg(long)]
    once: bool,
}

#[derive(Deserialize)]
struct Page {
    orders: Vec<Order>,
    next_cursor: Option<String>,
}

/// The state of an order on the wire. A newer service may know more of them.
#[derive(Clone, Copy, Debug, PartialEq, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum ApiOrderState {
    Processing,
    Ready,
    PartlyFailed,
    Failed,
    Refused,
    Cancelled,
}

#[derive(Clone, Deserialize)]
#[expect(clippy::struct_field_names, reason = "the names on the wire")]
struct Order {
    order_id: String,
    external_order_id: String,
    state: Stored<ApiOrderState>,
    #[serde(with = "rfc3339")]
    created_at: OffsetDateTime,
    #[serde(default, with = "rfc3339::option")]
    cancelled_at: Option<OffsetDateTime>,
    #[serde(default)]
    topups: Vec<Topup>,
}

#[derive(Clone, Deserialize)]
#[expect(clippy::struct_field_names, reason = "the names on the wire")]
struct Topup {
    topup_id: TopupId,
    state: Stored<ShownState>,
    error: Option<String>,
    delivery: Option<Stored<DeliveryState>>,
    #[serde(default, with = "rfc3339::option")]
    ready_at: Option<OffsetDateTime>,
    #[serde(default, with = "rfc3339::option")]
    delivered_at: Option<OffsetDateTime>,
    #[serde(default, with = "rfc3339::option")]
    returned_at: Option<OffsetDateTime>,
    esim: Option<Esim>,
}

#[derive(Clone, Deserialize)]
struct Esim {
    #[serde(default)]
    activate_code: String,
}

impl Order {
    /// When the order got its state, if the API says so.
    fn since(&self) -> Option<OffsetDateTime> {
        match self.state.known()? {
            ApiOrderState::Cancelled => self.cancelled_at,
            ApiOrderState::Ready => self.topups.iter().filter_map(|topup| topup.ready_at).max(),
            _ => None,
        }
    }
}

impl Topup {
    /// When the topup got its state, if the API says so.
    fn since(&self, order: &Order) -> Option<OffsetDateTime> {
        match self.state.known()? {
            ShownState::Processing => Some(order.created_at),
            ShownState::Ready => self.ready_at,
            ShownState::Returned => self.returned_at,
            _ => None,
        }
    }

    /// When its webhook got its state, if the API says so. The retries end with the last attempt.
    fn delivery_since(&self, last: Option<OffsetDateTime>) -> Option<OffsetDateTime> {
        match self.delivery.as_ref()?.known()? {
            DeliveryState::Delivered => self.delivered_at,
            DeliveryState::Exhausted => last,
            DeliveryState::Pending | DeliveryState::NoEndpoint => self.ready_at,
        }
    }
}

#[derive(Deserialize)]
struct Deliveries {
    attempts: Vec<Attempt>,
}

#[derive(Deserialize)]
#[expect(clippy::struct_field_names, reason = "the names on the wire")]
struct Attempt {
    attempt: i32,
    #[serde(with = "rfc3339")]
    at: OffsetDateTime,
    duration_ms: i32,
    status: Option<i32>,
    outcome: String,
    answer: Option<String>,
}

/// What was last printed about a topup.
#[derive(Default)]
struct Seen {
    state: Option<Stored<ShownState>>,
    delivery: Option<Stored<DeliveryState>>,
    /// The number of the last attempt that was printed.
    attempt: i32,
}

struct Followed {
    order: Order,
    topups: HashMap<TopupId, Seen>,
}

/// The lines to print, in the order of their times. The number keeps lines with the same time
/// apart.
type Lines = BTreeMap<(OffsetDateTime, usize), String>;

struct Follower<'a> {
    account: &'a ApiClient,
    followed: VecDeque<Followed>,
    /// The orders that may be listed again because of [`OVERLAP`], with their times.
    listed: HashMap<String, OffsetDateTime>,
    newest: Option<OffsetDateTime>,
}

impl Tail {
    /// Prints until it is interrupted, or once. A failed round is printed and tried again, up to
    /// [`MOST_FAILURES`] times in a row.
    pub(crate) async fn run(&self, account: &ApiClient) -> anyhow::Result<()> {
        let mut follower = Follower {
            account,
            followed: VecDeque::new(),
            listed: HashMap::new(),
            newest: None,
        };
        let mut failures = 0;
        loop {
            match follower.round(self.lines.into()).await {
                Ok(lines) => {
                    failures = 0;
                    for line in lines.values() {
                        print(line)?;
                    }
                    if self.once {
                        return Ok(());
                    }
                }
                Err(error) if self.once || failures >= MOST_FAILURES => return Err(error),
                Err(error) => {
                    failures += 1;
                    let error = printable(&format!("{error:#}"));
                    say(format_args!(
                        "esim-partner: {error}; trying again in {PAUSE:?}"
                    ));
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

impl Follower<'_> {
    /// Looks once at everything that is followed, and returns what is new.
    async fn round(&mut self, lines: usize) -> anyhow::Result<Lines> {
        let mut printed = Lines::new();
        for order in self.new_orders(lines).await? {
            let text = format!("order   {:?} {}", order.external_order_id, order.state);
            note(&mut printed, order.created_at, &text);
            self.newest = self.newest.max(Some(order.created_at));
            self.listed.insert(order.order_id.clone(), order.created_at);
            self.followed.push_back(Followed {
                order,
                topups: HashMap::new(),
            });
        }
        while self.followed.len() > WATCHED {
            self.followed.pop_front();
        }
        let oldest = self.newest.map(|newest| newest - OVERLAP);
        self.listed
            .retain(|_, created_at| Some(*created_at) >= oldest);
        let mut deliveries_left = MOST_DELIVERIES;
        for followed in &mut self.followed {
            look(self.account, followed, &mut deliveries_left, &mut printed).await?;
        }
        Ok(printed)
    }

    /// The orders that were not listed before, oldest first.
    async fn new_orders(&self, lines: usize) -> anyhow::Result<Vec<Order>> {
        let since = match self.newest {
            Some(newest) => {
                format!(
                    "limit={PAGE}&created_after={}",
                    encoded(&(newest - OVERLAP).format(&Rfc3339)?)
                )
            }
            None => format!("limit={lines}"),
        };
        let mut orders = Vec::new();
        let mut query = since.clone();
        for _ in 0..MOST_PAGES {
            let page: Page = self.account.get("/orders", &query).await?;
            orders.extend(page.orders);
            let Some(next) = page.next_cursor.filter(|_| self.newest.is_some()) else {
                break;
            };
            query = format!("{since}&cursor={}", encoded(&next));
        }
        orders.retain(|order| !self.listed.contains_key(&order.order_id));
        orders.reverse();
        Ok(orders)
    }
}

/// Looks an order up, and notes what has changed since it was last printed.
async fn look(
    account: &ApiClient,
    followed: &mut Followed,
    deliveries_left: &mut usize,
    printed: &mut Lines,
) -> anyhow::Result<()> {
    let answer = account.order(&followed.order.external_order_id).await?;
    if answer.status == 404 {
        return Ok(());
    }
    let order: Order = answer.success()?;
    // Another order has this external id now: after a refusal the partner may use the id again.
    if order.order_id != followed.order.order_id {
        return Ok(());
    }
    let now = runtime::clock::now();
    let id = order.external_order_id.clone();
    if order.state != followed.order.state {
        let since = order.since().unwrap_or(now);
        note(printed, since, &format!("order   {id:?} {}", order.state));
    }
    for topup in &order.topups {
        let is_first = !followed.topups.contains_key(&topup.topup_id);
        let seen = followed.topups.entry(topup.topup_id.clone()).or_default();
        let mut tell = |since: Option<OffsetDateTime>, text: String| {
            let before = if since.is_none() && is_first {
                " (before this time)"
            } else {
                ""
            };
            note(printed, since.unwrap_or(now), &format!("{text}{before}"));
        };
        let Topup {
            topup_id,
            state,
            error,
            delivery,
            ..
        } = topup;
        if seen.state.as_ref() != Some(state) {
            let error = error
                .as_ref()
                .map(|error| format!(" {error:?}"))
                .unwrap_or_default();
            let text = format!("topup   {topup_id} of {id:?} {state}{error}");
            tell(topup.since(&order), text);
            seen.state = Some(state.clone());
        }
        let changed = seen.delivery != *delivery;
        let is_pending = delivery.as_ref().and_then(Stored::known) == Some(DeliveryState::Pending);
        let attempts_may_be_new = changed || is_pending;
        if attempts_may_be_new && delivery.is_some() && *deliveries_left > 0 {
            *deliveries_left -= 1;
            let found: Deliveries = account
                .get(&format!("/topups/{topup_id}/deliveries"), "")
                .await?;
            let last = found.attempts.iter().map(|attempt| attempt.at).max();
            for attempt in found.attempts {
                if attempt.attempt > seen.attempt {
                    seen.attempt = attempt.attempt;
                    let code = topup.esim.as_ref().map(|esim| esim.activate_code.as_str());
                    tell(Some(attempt.at), line_of(topup_id, &attempt, code));
                }
            }
            if changed {
                let state = delivery.as_ref().map_or("", Stored::as_str);
                tell(
                    topup.delivery_since(last),
                    format!("webhook {topup_id} {state}"),
                );
                seen.delivery.clone_from(delivery);
            }
        }
    }
    followed.order = order;
    Ok(())
}

/// An attempt as a line. A receiver may answer with the webhook that it got, and the line may be
/// kept in a log, so an answer with the activation code of the eSIM is left out.
fn line_of(topup_id: &TopupId, attempt: &Attempt, code: Option<&str>) -> String {
    let number = attempt.attempt;
    let outcome = &attempt.outcome;
    let took = attempt.duration_ms;
    let status = attempt.status.map(|status| format!(" status {status}"));
    let holds_code = |answer: &str| {
        let code = code.filter(|code| !code.is_empty());
        code.is_some_and(|code| answer.contains(code)) || answer.contains("LPA:")
    };
    let answer = attempt.answer.as_ref().map(|answer| {
        if holds_code(answer) {
            " (an answer that holds the activation code)".to_owned()
        } else {
            format!(" {answer:?}")
        }
    });
    let status = status.unwrap_or_default();
    let answer = answer.unwrap_or_default();
    format!("webhook {topup_id} attempt {number}: {outcome}{status} after {took} ms{answer}")
}

fn note(printed: &mut Lines, at: OffsetDateTime, text: &str) {
    let shown = at
        .replace_nanosecond(0)
        .unwrap_or(at)
        .format(&Rfc3339)
        .unwrap_or_default();
    printed.insert((at, printed.len()), printable(&format!("{shown} {text}")));
}
