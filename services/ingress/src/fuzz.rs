//! The entry points of the fuzz targets in `tests/fuzz`. They feed arbitrary bytes to the parts of
//! ingress that read what partners and devices send. Each one panics if a rule is broken, and the
//! fuzzer then reports the input.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{HeaderValue, Request, StatusCode, Uri},
    routing::get,
};
use domain::ActivationCode;
use domain::Right;
use pg::{
    config::{DatabaseConfig, PoolConfig},
    primary::DurabilityConfig,
};
use signing::{SecretKey, qr::QrKeys, request as signature};
use tokio::runtime::Runtime;
use tower::ServiceExt;
use vault::{Keyring, Vault};
use webhooks::qr::QrGate;

use crate::{
    access::{authentication::Authenticator, directory::Directory},
    limits::OrderSize,
    orders::request,
    pages::{
        qr::{self, QrRenderer},
        turns::TurnLimits,
    },
    routes::QR,
    self_service,
};

const ACCESS_KEY: &str = "ak_fuzz";
const MASTER_KEY: &str = "fuzz:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const QR_KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const LIMITS: OrderSize = OrderSize {
    items: 100,
    units: 1000,
};

/// The parts of ingress that read untrusted bytes, without a database.
pub struct Harness {
    tokio: Runtime,
    authenticators: [Authenticator; 2],
    secret: SecretKey,
    open: Router,
    closed: Router,
    gate: QrGate,
}

impl Default for Harness {
    fn default() -> Self {
        let tokio = Runtime::new().expect("threads");
        let entered = tokio.enter();
        let secret = SecretKey::from_bytes(vec![7; 32]).expect("not empty");
        let authenticators = [false, true].map(|required| {
            let database_url = "postgres://nobody@127.0.0.1:1/none".to_owned().into();
            let pool = PoolConfig {
                server: DatabaseConfig { database_url },
                database_connections: 1,
                database_timeout: Duration::from_secs(1),
                durability: DurabilityConfig::default(),
            };
            let database = pool.open("fuzz").expect("a URL");
            let vault =
                Vault::of(&[(Keyring::Partners, &MASTER_KEY.to_owned().into())]).expect("a key");
            let directory = Directory::new(database, vault);
            directory.learn_for_fuzzing(ACCESS_KEY, secret.clone(), required);
            Authenticator::new("Service", Arc::new(directory), false)
        });
        let gate = QrGate::new(
            QrKeys::parse(&QR_KEY.to_owned().into()).expect("a key"),
            None,
        );
        let [open, closed] = [QrGate::default(), gate.clone()].map(|gate| {
            let drawing = TurnLimits {
                at_once: 4,
                per_second: NonZeroU32::MAX,
                wait: Duration::from_secs(10),
                ..qr::DRAWING
            };
            let renderer = QrRenderer::new(gate, drawing);
            Router::new().route(QR, get(qr::show)).with_state(renderer)
        });
        drop(entered);
        Self {
            tokio,
            authenticators,
            secret,
            open,
            closed,
            gate,
        }
    }
}

impl Harness {
    /// Reads `data` as the body of create-order. A draft without errors must be an order within the
    /// limits.
    pub fn body(&self, data: &[u8]) {
        let Ok(draft) = request::read(data, LIMITS) else {
            return;
        };
        if draft.errors.is_empty() {
            let id = draft.external_order_id.as_deref().expect("an id");
            assert!(!id.trim().is_empty() && id.chars().count() <= 255 && !id.contains('\0'));
            assert!((1..=LIMITS.items).contains(&draft.items.len()));
            let units = draft.units().expect("units");
            assert!(u64::from(units.get()) <= LIMITS.units);
            assert!(draft.items.iter().all(|item| item.quantity > 0));
        }
    }

    /// Reads `data` as the body of a self-service request.
    pub fn fields(&self, data: &[u8]) {
        self_service::fields::for_fuzzing(data);
    }

    /// Reads `data` as the query of a self-service request.
    pub fn query(&self, data: &[u8]) {
        if let Ok(uri) = Uri::try_from([b"/?", data].concat()) {
            self_service::query::for_fuzzing(&uri);
        }
    }

    /// Reads `data` as a signed request: one byte of flags, then the lines method, target,
    /// timestamp, digest and signature, then the body. A request may be accepted only if it was
    /// signed as it arrives.
    pub fn signature(&self, data: &[u8]) {
        let Some((&flags, rest)) = data.split_first() else {
            return;
        };
        let flag = |bit: u8| flags & (1 << bit) != 0;
        let mut lines = rest.splitn(6, |byte| *byte == b'\n');
        let mut line = || lines.next().unwrap_or_default();
        let (method, target, timestamp, digest, given, body) =
            (line(), line(), line(), line(), line(), line());
        let now = runtime::clock::unix_seconds().to_string();
        let timestamp = if flag(0) { now.as_bytes() } else { timestamp };
        let computed = signature::digest(body);
        let digest = if flag(1) { computed.as_bytes() } else { digest };
        let covered = flag(2).then_some(digest);

        let Ok(uri) = Uri::try_from(target) else {
            return;
        };
        let mut request = Request::builder()
            .method(method)
            .uri(uri)
            .header("x-service-access-key", ACCESS_KEY);
        request = request.header("x-service-timestamp", timestamp);
        if let Some(digest) = covered {
            request = request.header("x-service-content-sha256", digest);
        }
        let Ok(request) = request.body(Body::empty()) else {
            return;
        };
        let (mut parts, _) = request.into_parts();
        let signed_target = match (covered, parts.uri.path_and_query()) {
            (Some(_), Some(whole)) => whole.as_str().to_owned(),
            _ => parts.uri.path().to_owned(),
        };
        // A timestamp that is not UTF-8 is never accepted, so any text may stand for it here.
        let timestamp = str::from_utf8(timestamp).unwrap_or_default();
        let secret = &self.secret;
        let method = parts.method.as_str();
        let target = &signed_target;
        let right = match covered.map(str::from_utf8) {
            None => Some(signature::sign(
                secret, method, target, timestamp, ACCESS_KEY,
            )),
            Some(Ok(digest)) => Some(signature::sign_whole(
                secret, method, target, timestamp, ACCESS_KEY, digest,
            )),
            Some(Err(_)) => None,
        };
        let sent = match (&right, flag(3)) {
            (Some(right), true) => right.as_bytes(),
            _ => given,
        };
        let Ok(sent) = HeaderValue::from_bytes(sent) else {
            return;
        };
        parts.headers.append("x-service-signature", sent.clone());
        if flag(4) {
            parts.headers.append("x-service-signature", sent.clone());
        }
        for (authenticator, required) in self.authenticators.iter().zip([false, true]) {
            let Ok(head) = self
                .tokio
                .block_on(authenticator.head(&parts, Right::Order))
            else {
                continue;
            };
            assert!(!flag(4), "a repeated header");
            assert_eq!(
                right.as_deref().map(str::as_bytes),
                Some(sent.as_bytes()),
                "a wrong signature"
            );
            assert!(covered.is_some() || !required, "an uncovered body");
            let accepted = authenticator.body(&head, body).is_ok();
            assert!(
                !accepted || covered.is_none_or(|digest| digest == computed.as_bytes()),
                "another body"
            );
        }
    }

    /// Reads `data` as the path and query of a picture, behind `/qr/`. With keys, a picture may be
    /// drawn only if its MAC is valid.
    pub fn qr(&self, data: &[u8]) {
        let Ok(uri) = Uri::try_from([b"/qr/", data].concat()) else {
            return;
        };
        let ask = |router: &Router| {
            let request = Request::builder()
                .uri(uri.clone())
                .body(Body::empty())
                .expect("a request");
            self.tokio.block_on(async {
                let Ok(response) = router.clone().oneshot(request).await;
                let status = response.status();
                let body = to_bytes(response.into_body(), 10_000_000)
                    .await
                    .expect("a body");
                (status, body)
            })
        };
        let (status, body) = ask(&self.open);
        match status {
            StatusCode::OK => assert!(body.starts_with(b"\x89PNG")),
            StatusCode::NOT_FOUND => {}
            other => panic!("{other}"),
        }
        let (with_mac, _) = ask(&self.closed);
        if with_mac == StatusCode::OK {
            let path = uri.path().trim_start_matches("/qr/");
            let (text, _) = path.rsplit_once('/').expect("a size");
            let text = percent_encoding::percent_decode_str(text)
                .decode_utf8()
                .expect("a text");
            let code = ActivationCode::parse(&text).expect("a code");
            assert!(status == StatusCode::OK && self.gate.lets(&code, uri.query(), 0));
        }
    }
}
