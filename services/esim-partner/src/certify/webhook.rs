//! The webhooks that the checks send, and what an endpoint answers.

use std::time::{Duration, Instant};

use reqwest::Body;
use signing::webhook::Secret;

#[derive(Clone)]
pub(super) struct TestWebhook {
    pub(super) id: String,
    pub(super) body: String,
    pub(super) headers: Vec<(&'static str, String)>,
}

#[derive(Clone, Debug)]
pub(super) enum EndpointAnswer {
    Status(u16, Duration),
    /// Connected, but there was no answer in time, or the connection broke off.
    None(&'static str),
    /// No connection; the text says why.
    NotReached(String),
}

impl EndpointAnswer {
    pub(super) fn is_acknowledged(&self) -> bool {
        matches!(self, Self::Status(200..300, _))
    }

    pub(super) fn summary(&self) -> String {
        match self {
            Self::Status(status, took) => format!("{status} after {} ms", took.as_millis()),
            Self::None(why) => (*why).to_owned(),
            Self::NotReached(why) => why.clone(),
        }
    }
}

impl From<reqwest::Error> for EndpointAnswer {
    fn from(error: reqwest::Error) -> Self {
        if !error.is_connect() {
            return Self::None(if error.is_timeout() {
                "no answer in time"
            } else {
                "the connection was closed without an answer"
            });
        }
        if error.is_timeout() {
            return Self::NotReached("no connection in time".to_owned());
        }
        let mut cause: &dyn std::error::Error = &error;
        while let Some(source) = cause.source() {
            cause = source;
        }
        let refused = cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused);
        Self::NotReached(if refused {
            "nobody listens at this address: the connection was refused".to_owned()
        } else {
            format!("no connection: {cause}")
        })
    }
}

impl TestWebhook {
    /// The webhook of a made-up topup. `number` tells the webhooks of one run apart, and the time
    /// those of several runs: the endpoint must not take a new run for a repetition.
    pub(super) fn new(number: u8) -> Self {
        let id = format!("20000101{:016}{number:02}", runtime::clock::unix_seconds());
        let body = format!(
            "{{\"topup_id\":\"{id}\",\"option_id\":\"424b7b26-96e7-5c95-8df9-6654a3998070\",\
             \"iccid\":\"8982000000000000000\",\"smdp\":\"smdp.example.com\",\"activate_code\":\"CERTIFY\",\
             \"download_link\":\"LPA:1$smdp.example.com$CERTIFY\",\
             \"qrcode_img_url\":\"https://esim.example.com/qr/LPA%3A1%24smdp.example.com%24CERTIFY/300\",\
             \"expired_date\":\"2099-12-31\",\"external_order_id\":\"certify-{number}\"}}"
        );
        Self {
            id,
            body,
            headers: Vec::new(),
        }
    }

    /// A further event, whose type the header `webhook-type` names.
    pub(super) fn event(number: u8, kind: &'static str, data: &str) -> Self {
        let seconds = runtime::clock::unix_seconds();
        Self {
            id: format!("evt_20000101{seconds:022}{number:02}"),
            body: format!(
                "{{\"type\":\"{kind}\",\"timestamp\":\"2000-01-01T00:00:00Z\",\"data\":{data}}}"
            ),
            headers: vec![("webhook-type", kind.to_owned())],
        }
    }

    /// The same webhook with another text in its body.
    pub(super) fn replaced(mut self, text: &str, with: &str) -> Self {
        self.body = self.body.replace(text, with);
        self
    }

    /// Signs with each of the secrets, with a timestamp this many seconds from now.
    pub(super) fn signed(mut self, secrets: &[&Secret], from_now: i64) -> Self {
        let timestamp = runtime::clock::unix_seconds() + from_now;
        let sign = |secret: &&Secret| secret.sign(&self.id, timestamp, self.body.as_bytes());
        let signatures: Vec<String> = secrets.iter().map(sign).collect();
        self.headers.splice(
            0..0,
            [
                ("webhook-id", self.id.clone()),
                ("webhook-timestamp", timestamp.to_string()),
                ("webhook-signature", signatures.join(" ")),
            ],
        );
        self
    }

    /// Appends what has the form of a signature by a public key, which an endpoint that knows only
    /// its secret has to leave aside.
    pub(super) fn also_signed_by_key(mut self) -> Self {
        for (name, value) in &mut self.headers {
            if *name == "webhook-signature" {
                value.push_str(" v1a,");
                value.push_str(&"A".repeat(86));
                value.push_str("==");
            }
        }
        self
    }
}

/// Sends webhooks to the endpoint.
#[derive(Clone)]
pub(super) struct TestWebhookSender {
    pub(super) url: String,
    pub(super) http: reqwest::Client,
}

impl TestWebhookSender {
    pub(super) async fn send(&self, webhook: &TestWebhook) -> EndpointAnswer {
        self.send_body(webhook, webhook.body.clone().into()).await
    }

    pub(super) async fn send_body(&self, webhook: &TestWebhook, body: Body) -> EndpointAnswer {
        let mut request = self
            .http
            .post(&self.url)
            .header("content-type", "application/json")
            .header("content-length", webhook.body.len())
            .header("user-agent", "topup-notifier/certify")
            .body(body);
        for (name, value) in &webhook.headers {
            request = request.header(*name, value);
        }
        let began = Instant::now();
        let answered = request.send().await;
        match answered {
            Ok(answer) => EndpointAnswer::Status(answer.status().as_u16(), began.elapsed()),
            Err(error) => error.into(),
        }
    }
}
