//! Somebody has captured a partner's request and changes it: nothing is accepted. And requests that
//! are sent again.

mod rows;

use self::rows::{ANY, BODY, Row, UNCOVERED, WHOLE};
use crate::partner::API;
use crate::shop::{SOON, fresh};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use signing::{SecretKey, request};
use testkit::client::{ACCESS_KEY, DIGEST, ORDERS, SIGNATURE, TIMESTAMP, order};
use testkit::stack::Stack;
use testkit::{esimctl::Partner, raw, wait};

/// The least number of tampered requests.
const LEAST: usize = 150;

/// A request as it goes over the wire.
#[derive(Clone)]
struct Sent {
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

/// What an attacker knows.
struct Known {
    option: String,
    victim: Partner,
    /// Another account, the attacker's own.
    own: Partner,
    /// A topup of the victim.
    topup: String,
}

impl Known {
    /// A good request of the victim. With `whole`, its signature covers query and body.
    fn request(&self, whole: bool) -> Sent {
        let body = order(&fresh("captured"), &[(&self.option, 1)]).to_string();
        let mut sent = Sent {
            method: "POST".into(),
            target: ORDERS.into(),
            headers: Vec::new(),
            body: body.into_bytes(),
        };
        sent.set(ACCESS_KEY, &self.victim.access_key);
        sent.set(TIMESTAMP, &runtime::clock::unix_seconds().to_string());
        sent.set(SIGNATURE, "");
        if whole {
            sent.set(DIGEST, &request::digest(&sent.body));
        }
        sent.sign(&self.secret());
        sent
    }

    fn secret(&self) -> SecretKey {
        SecretKey::from_base64(&self.victim.secret_key).expect("esimctl prints Base64")
    }
}

impl Sent {
    fn get(&self, name: &str) -> String {
        self.headers
            .iter()
            .find(|(one, _)| one == name)
            .map(|(_, value)| value.clone())
            .unwrap_or_default()
    }

    fn set(&mut self, name: &str, value: &str) {
        self.remove(name);
        self.add(name, value);
    }

    fn add(&mut self, name: &str, value: &str) {
        self.headers.push((name.into(), value.into()));
    }

    fn remove(&mut self, name: &str) {
        self.headers.retain(|(one, _)| one != name);
    }

    fn to(&mut self, method: &str, target: &str) {
        self.method = method.into();
        self.target = target.into();
    }

    /// Changes a header's value.
    fn change(&mut self, name: &str, change: impl FnOnce(String) -> String) {
        self.set(name, &change(self.get(name)));
    }

    /// Signs what is there.
    fn sign(&mut self, secret: &SecretKey) {
        self.sign_lines(secret, "");
    }

    /// Signs with `end` at the end of each line but the last.
    fn sign_lines(&mut self, secret: &SecretKey, end: &str) {
        let line = |text: &str| format!("{text}{end}");
        let method = line(&self.method);
        let target = line(&self.target);
        let timestamp = line(&self.get(TIMESTAMP));
        let key = self.get(ACCESS_KEY);
        let digest = self.get(DIGEST);
        let signature = if digest.is_empty() {
            request::sign(secret, &method, &target, &timestamp, &key)
        } else {
            request::sign_whole(secret, &method, &target, &timestamp, &line(&key), &digest)
        };
        self.set(SIGNATURE, &signature);
    }

    fn bytes(&self) -> Vec<u8> {
        let headers = self
            .headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"));
        let head = format!(
            "{} {} HTTP/1.1\r\nhost: partner-api\r\n{}content-length: {}\r\n\r\n",
            self.method,
            self.target,
            headers.collect::<Vec<_>>().concat(),
            self.body.len()
        );
        [head.as_bytes(), &self.body].concat()
    }

    /// The status and the codes of the errors.
    async fn send(&self, stack: &Stack) -> Result<(u16, String)> {
        let (answer, bytes) = raw::exchange(&stack.base_url, &self.bytes()).await?;
        let head = String::from_utf8_lossy(&bytes[..answer.body.start]).to_ascii_lowercase();
        let code = head
            .lines()
            .find_map(|line| line.strip_prefix("x-service-error: "))
            .unwrap_or_default();
        Ok((answer.status, code.to_owned()))
    }
}

fn later(timestamp: &str, seconds: i64) -> String {
    (signing::parse_unix_time(timestamp).unwrap_or_default() + seconds).to_string()
}

fn flipped(text: &str, at: usize) -> String {
    let digit = if &text[at..=at] == "0" { "1" } else { "0" };
    format!("{}{digit}{}", &text[..at], &text[at + 1..])
}

fn key(bytes: &[u8]) -> SecretKey {
    SecretKey::from_bytes(bytes.to_vec()).expect("it is not empty")
}

fn text(sent: &Sent) -> String {
    String::from_utf8_lossy(&sent.body).into_owned()
}

fn uncovered(sent: &mut Sent, known: &Known, method: &str, path: &str) {
    sent.to(method, &format!("{API}{path}"));
    sent.sign(&known.secret());
}

/// What an accepted attack would have changed.
async fn stored(stack: &Stack, known: &Known) -> Result<Value> {
    let partner: Value = stack
        .esimctl
        .run(&["partner", "show", &known.victim.partner_id])
        .await?;
    let mut database = stack.database.connect().await?;
    let orders: i64 = sqlx::query_scalar("SELECT count(*) FROM orders")
        .fetch_one(&mut database)
        .await?;
    let sent: String = sqlx::query_scalar(
        "SELECT string_agg(state || attempt || schedule_start, ' ') FROM deliveries",
    )
    .fetch_one(&mut database)
    .await?;
    Ok(
        json!({"partner": partner, "orders": orders, "sent": sent, "bought": stack.ledger().await?.units}),
    )
}

/// A partner with a delivered order, and an attacker.
async fn known(stack: &Stack) -> Result<Known> {
    let shop = crate::shop::Shop::open(stack).await?;
    let option = stack.option("ready")?.to_owned();
    let bought = shop.buy("first", &option, 1).await?;
    let topup = bought.first().context("one unit")?.topup_id.clone();
    let mut database = stack.database.connect().await?;
    let delivered = async || {
        let state: Option<String> = sqlx::query_scalar("SELECT state FROM deliveries")
            .fetch_optional(&mut database)
            .await?;
        Ok((state.as_deref() == Some("delivered")).then_some(()))
    };
    wait::until(SOON, "the record of the delivery", delivered).await?;
    Ok(Known {
        option,
        victim: shop.partner,
        own: stack.create_partner("sandbox", None).await?,
        topup,
    })
}

async fn require_signed_bodies(stack: &Stack, known: &Known, body: &str) -> Result<()> {
    let set = [
        "partner",
        "set",
        &known.victim.partner_id,
        "--signed-body",
        body,
    ];
    let _: Value = stack.esimctl.run(&set).await?;
    let mut probe = known.request(false);
    uncovered(&mut probe, known, "GET", "/account");
    let wanted = if body == "required" { 401 } else { 200 };
    let known_there = async || Ok((probe.send(stack).await?.0 == wanted).then_some(()));
    wait::until(SOON, &format!("signed bodies to be {body}"), known_there).await
}

#[tokio::test]
async fn no_tampered_request_is_accepted() {
    let stack = Stack::start().await.unwrap();
    let known = known(&stack).await.unwrap();
    let untouched = stored(&stack, &known).await.unwrap();
    let mut sent = 0;
    let mut accepted = Vec::new();
    let mut attack = async |rows: &[Row], whole: bool| {
        for (name, tamper, code) in rows {
            let mut request = known.request(whole);
            tamper(&mut request, &known);
            let (status, found) = request.send(&stack).await.unwrap();
            if !(400..500).contains(&status) || found != *code {
                accepted.push(format!(
                    "{name} (whole: {whole}): {status} {found}, not {code}"
                ));
            }
            sent += 1;
        }
    };
    attack(ANY, false).await;
    attack(ANY, true).await;
    attack(WHOLE, true).await;
    assert_eq!(stored(&stack, &known).await.unwrap(), untouched);
    require_signed_bodies(&stack, &known, "required")
        .await
        .unwrap();
    attack(UNCOVERED, false).await;
    attack(ANY, true).await;
    attack(WHOLE, true).await;
    assert!(accepted.is_empty(), "{accepted:#?}");
    println!("{sent} tampered requests");
    assert!(sent >= LEAST, "{sent}");

    // Nothing was bought, sent again or changed; what is not tampered with is accepted.
    let mut after = stored(&stack, &known).await.unwrap();
    assert_eq!(after["partner"]["signed_body_required"], true);
    after["partner"]["signed_body_required"] = json!(false);
    assert_eq!(after, untouched);
    assert_eq!(known.request(true).send(&stack).await.unwrap().0, 201);
    require_signed_bodies(&stack, &known, "optional")
        .await
        .unwrap();
}

#[tokio::test]
async fn a_signed_query_and_body_work_on_every_kind_of_request() {
    let stack = Stack::start().await.unwrap();
    let known = known(&stack).await.unwrap();
    require_signed_bodies(&stack, &known, "required")
        .await
        .unwrap();
    let send = async |method: &str, target: &str, body: &str| {
        let mut request = known.request(true);
        request.to(method, &format!("{API}{target}"));
        request.body = body.as_bytes().to_vec();
        request.set(DIGEST, &request::digest(&request.body));
        request.sign(&known.secret());
        request.send(&stack).await.unwrap()
    };
    assert_eq!(send("GET", "/orders?limit=1&state=ready", "").await.0, 200);
    assert_eq!(send("GET", "/account?", "").await.0, 200);
    // A body that the endpoint has no use for is checked, too.
    assert_eq!(send("GET", "/account", "{}").await.0, 200);
    assert_eq!(send("PUT", "/webhook", r#"{"url": null}"#).await.0, 200);
    assert_eq!(
        send("POST", "/orders", "{").await,
        (400, "invalid_json".to_owned())
    );
    let large = " ".repeat(70_000);
    assert_eq!(
        send("GET", "/account", &large).await,
        (413, "body_too_large".to_owned())
    );
}

/// Within the five minutes of its timestamp a captured request may arrive again. What protects an
/// order is its external id, on every replica.
#[tokio::test]
async fn an_order_that_is_sent_again_buys_nothing() {
    let stack = Stack::start().await.unwrap();
    let known = known(&stack).await.unwrap();
    let order = known.request(true);
    // A wrong body does not change what the signed one does.
    let mut wrong = order.clone();
    wrong.body.push(b' ');
    assert_eq!(wrong.send(&stack).await.unwrap(), (401, BODY.to_owned()));
    assert_eq!(order.send(&stack).await.unwrap().0, 201);
    let taken = (422, "external_order_id_taken".to_owned());
    for _ in 0..3 {
        assert_eq!(order.send(&stack).await.unwrap(), taken);
    }
    let mut again = order.clone();
    again.change(TIMESTAMP, |text| later(&text, 1));
    again.sign(&known.secret());
    assert_eq!(again.send(&stack).await.unwrap(), taken);
}
