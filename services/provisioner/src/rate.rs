//! The rate limit of the calls to a provider, for all replicas together.
//!
//! Once a second each replica renews its equal share of the limit in PostgreSQL
//! ([`watch`](crate::watch)), and [`Calls`](crate::calls::Calls) spaces its own calls evenly within
//! that share. The sum of all shares never exceeds the limit. For that reason a replica that joins
//! gets only what the others have given up, and is at full speed after two seconds. The share of a
//! replica that does not renew it is free after three seconds.
//!
//! Such a replica has died, is stopping, or does not reach PostgreSQL. Then it claims nothing new,
//! but the calls that it has begun to wait for go on within its old share, so that a stop need not
//! give them up. For as long as these take, all replicas together may exceed the limit.
//!
//! Within a replica the calls of orders come first. Requests about delivered eSIMs wait behind
//! them, one at a time, so a partner that polls the data use of its eSIMs delays a purchase by one
//! call at most.

use std::time::Duration;

use pg::PgConnection;
use store::providers;
use tokio::{
    sync::{Mutex, watch},
    time::{Instant, sleep_until, timeout},
};

/// How much lost time later calls may make up for. With more, calls that were delayed would follow
/// in a burst above the limit of the provider.
const CATCH_UP_MOST: Duration = Duration::from_millis(10);

/// The longest time that a call waits behind the calls of orders. After it the call queues like
/// them, so that a long backlog of orders slows requests about delivered eSIMs down and does not
/// stop them.
const BEHIND_MOST: Duration = Duration::from_secs(5);

/// The calls of one replica to one provider.
pub struct Rate {
    /// Calls per second of all replicas together; 0 means no limit.
    limit: u32,
    instance: String,
    /// Calls per second of this replica; 0 until the first share is renewed.
    share: watch::Sender<f64>,
    /// The turn of the last call.
    last: Mutex<Instant>,
    /// How many calls of orders wait for their turn.
    orders: watch::Sender<usize>,
    /// Held by the one call that waits behind them.
    behind: Mutex<()>,
}

/// A call of an order that waits for its turn. It is counted until this is dropped, also if its
/// task panics or is cancelled.
struct Waiting<'a>(&'a watch::Sender<usize>);

impl<'a> Waiting<'a> {
    fn new(orders: &'a watch::Sender<usize>) -> Self {
        orders.send_modify(|waiting| *waiting += 1);
        Self(orders)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|waiting| *waiting -= 1);
    }
}

impl Rate {
    /// Creates the rate limit of the replica `instance`. No call has its turn before the share has
    /// been renewed for the first time.
    pub fn new(limit: u32, instance: String) -> Self {
        Self {
            limit,
            instance,
            share: watch::Sender::new(0.0),
            last: Mutex::new(Instant::now()),
            orders: watch::Sender::new(0),
            behind: Mutex::new(()),
        }
    }

    /// Waits for the turn of one call of an order. Such calls get their turns in the order in which
    /// they asked. A wait that is given up takes no turn.
    pub async fn turn(&self) {
        if self.limit == 0 {
            return;
        }
        let _waiting = Waiting::new(&self.orders);
        self.next().await;
    }

    /// Waits for the turn of one call that concerns no order in progress: until no call of an order
    /// waits, but for [`BEHIND_MOST`] at most.
    pub async fn turn_behind(&self) {
        if self.limit == 0 {
            return;
        }
        let _one_at_a_time = self.behind.lock().await;
        let mut orders = self.orders.subscribe();
        let _ = timeout(BEHIND_MOST, orders.wait_for(|waiting| *waiting == 0)).await;
        self.next().await;
    }

    async fn next(&self) {
        let mut last = self.last.lock().await;
        let mut share = self.share.subscribe();
        loop {
            let now = *share.borrow_and_update();
            // Without a share the turn is a year away, so the call waits until the share is
            // renewed.
            let turn = *last + Duration::from_secs_f64((1.0 / now).min(3e7));
            tokio::select! {
                () = sleep_until(turn) => {
                    *last = turn.max(Instant::now() - CATCH_UP_MOST);
                    break;
                }
                _ = share.changed() => {}
            }
        }
    }

    /// Renews this replica's share.
    pub async fn renew(
        &self,
        connection: &mut PgConnection,
        provider: &str,
    ) -> Result<(), pg::Error> {
        if self.limit == 0 {
            return Ok(());
        }
        let limit = f64::from(self.limit);
        let share = providers::share_of_rate(connection, provider, &self.instance, limit).await?;
        self.share.send_replace(share);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use domain::PlacementId;
    use futures_util::future::join_all;
    use serde_json::json;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;
    use crate::providers::{Accounts, CallLimits, LookUpRequest, PacedCalls, Provider, Purchase};

    async fn turns(rate: &Rate, most: usize) -> Duration {
        let began = Instant::now();
        for _ in 0..most {
            rate.turn().await;
        }
        began.elapsed()
    }

    #[tokio::test]
    async fn calls_are_spaced_evenly_within_the_share() {
        let rate = Rate::new(100, "a".into());
        rate.share.send_replace(100.0);
        let took = turns(&rate, 20).await;
        assert!(
            (Duration::from_millis(185)..Duration::from_millis(400)).contains(&took),
            "{took:?}"
        );
    }

    #[tokio::test]
    async fn calls_of_orders_come_before_those_about_delivered_esims() {
        let rate = Rate::new(100, "a".into());
        rate.share.send_replace(100.0);
        let turns = Mutex::new(String::new());
        let take = async |kind: char| {
            match kind {
                'o' => rate.turn().await,
                _ => rate.turn_behind().await,
            }
            turns.lock().await.push(kind);
        };
        // The others ask first, and one of them may have its turn before the orders have asked.
        join_all("eeeeeeoooooo".chars().map(take)).await;
        let turns = turns.into_inner();
        let orders_end = turns.rfind('o').unwrap();
        assert!(orders_end <= 6 && turns.len() == 12, "{turns}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_backlog_of_orders_does_not_stop_the_calls_behind_it() {
        let rate = Rate::new(10, "a".into());
        rate.share.send_replace(10.0);
        let orders = join_all((0..200).map(|_| rate.turn()));
        let began = Instant::now();
        tokio::join!(orders, async {
            rate.turn_behind().await;
            let waited = began.elapsed();
            assert!(waited < Duration::from_secs(30), "{waited:?}");
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_is_given_up_is_not_counted_for_ever() {
        let rate = Rate::new(10, "a".into());
        assert!(timeout(Duration::from_secs(1), rate.turn()).await.is_err());
        assert_eq!(*rate.orders.borrow(), 0);
        rate.share.send_replace(10.0);
        let began = Instant::now();
        rate.turn_behind().await;
        assert!(began.elapsed() < BEHIND_MOST, "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn a_call_that_waits_for_a_small_share_has_its_turn_as_soon_as_the_share_grows() {
        let rate = Rate::new(100, "a".into());
        let (took, ()) = tokio::join!(turns(&rate, 3), async {
            tokio::task::yield_now().await;
            rate.share.send_replace(0.01);
            tokio::task::yield_now().await;
            rate.share.send_replace(100.0);
        });
        assert!(took < Duration::from_secs(5), "{took:?}");
    }

    /// Lets a provider answer each call of an operation with this text. Returns the number of
    /// calls, and the time from the turn of the first one, which [`crate::calls`] waits for, to the
    /// last one.
    async fn paced(
        name: &str,
        body: String,
        operation: impl AsyncFnOnce(Arc<dyn Provider>),
    ) -> (u32, Duration) {
        testkit::http::client().unwrap(); // This installs the TLS provider.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                // A request fits into one packet here.
                let mut request = [0; 8192];
                let read = connection.read(&mut request).await.unwrap_or_default();
                seen.lock().await.push(Instant::now());
                let token = r#"{"data":{"access_token":"token","expires_in":86400}}"#;
                let is_token = request[..read].starts_with(b"POST /v2/token");
                let body = if is_token { token } else { &body };
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
                );
                let _ = connection.write_all((head + body).as_bytes()).await;
            }
        });
        let rate = Arc::new(Rate::new(100, "a".into()));
        rate.share.send_replace(SHARE);
        let limits = CallLimits {
            timeout: Duration::from_secs(5),
            response_max: 1 << 20,
        };
        let paced = PacedCalls {
            limits,
            rate: Arc::clone(&rate),
        };
        let accounts = Accounts::default()
            .with(name, "URL", &url)
            .with(name, "ACCESS_KEY", "key")
            .with(name, "SECRET_KEY", "secret");
        let provider = accounts.connect(name, paced).unwrap().provider;
        if !provider.paces_look_ups() {
            rate.turn().await;
        }
        let began = Instant::now();
        operation(provider).await;
        let requests = requests.lock().await;
        let calls = u32::try_from(requests.len()).unwrap();
        (calls, requests[requests.len() - 1] - began)
    }

    /// Calls per second.
    const SHARE: f64 = 20.0;

    #[tokio::test]
    async fn further_pages_and_calls_for_a_token_have_turns_of_their_own() {
        let placement_id = PlacementId::new();
        let look_up = &LookUpRequest {
            placement_id,
            reference: None,
            attempt_age: Duration::ZERO,
            options: Vec::new(),
            arrives_within: Duration::from_mins(1),
        };
        let purchase = &Purchase {
            placement_id,
            items: vec![("P".into(), 1)],
            send_by: runtime::clock::Moment::now() + Duration::from_mins(1),
        };
        let find = async |provider: Arc<dyn Provider>| {
            // A list whose pages are always full has many of them.
            let _ = timeout(Duration::from_secs(1), provider.look_up(look_up)).await;
        };
        let buy = async |provider: Arc<dyn Provider>| drop(provider.purchase(purchase).await);

        let list = vec![json!({ "esimTranNo": "1" }); 500];
        let esims = json!({
            "success": true,
            "errorCode": "0",
            "obj": { "esimList": list, "pager": { "total": 12_000 } },
        });
        let esim_access = paced("esim-access", esims.to_string(), find).await;
        let order = json!({ "id": 1, "package_id": "P", "description": "another", "sims": [] });
        let orders = json!({ "data": vec![order; 50] });
        let airalo = paced("airalo", orders.to_string(), find).await;
        let bought = paced("airalo", "{}".to_owned(), buy).await;
        // Airalo is asked for a token first, and then for five pages, or for the purchase.
        assert_eq!((airalo.0, bought.0), (6, 2));
        for (calls, took) in [esim_access, airalo, bought] {
            let further = Duration::from_secs_f64(f64::from(calls - 1) / SHARE);
            let at_most_early = CATCH_UP_MOST + Duration::from_millis(5);
            assert!(
                calls > 1 && took + at_most_early >= further,
                "{calls} calls in {took:?}"
            );
        }
    }
}
