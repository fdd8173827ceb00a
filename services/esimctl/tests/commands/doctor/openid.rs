//! What the doctor says about the OpenID provider of the console, with a provider that has one
//! fault after the other.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, Response};
use serde_json::{Value, json};
use time::{Duration, format_description::well_known::Rfc2822};
use tokio::net::TcpListener;

use super::system::System;

/// How the provider differs from a good one.
#[derive(Default)]
struct Fault {
    /// Fields of the metadata in the place of the true ones.
    metadata: Value,
    without_keys: bool,
    clock_ahead: Duration,
}

fn answer(request: &Request<Bytes>, issuer: &str, fault: &Fault) -> Response<Full<Bytes>> {
    let body = match request.uri().path() {
        "/.well-known/openid-configuration" => {
            let mut metadata = json!({
                "issuer": issuer, "authorization_endpoint": format!("{issuer}/authorize"),
                "token_endpoint": format!("{issuer}/token"), "jwks_uri": format!("{issuer}/keys"),
                "response_types_supported": ["code"], "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["ES256"],
            });
            if let Some(fields) = fault.metadata.as_object() {
                metadata.as_object_mut().unwrap().extend(fields.clone());
            }
            metadata
        }
        // The key is the example of RFC 7517.
        "/keys" if !fault.without_keys => json!({ "keys": [{
            "kty": "EC", "crv": "P-256", "use": "sig", "kid": "1",
            "x": "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
            "y": "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM",
        }]}),
        _ => json!({ "keys": [] }),
    };
    let now = runtime::clock::now() + fault.clock_ahead;
    Response::builder()
        .header("content-type", "application/json")
        .header(
            "date",
            now.format(&Rfc2822).unwrap().replace("+0000", "GMT"),
        )
        .body(Full::from(body.to_string()))
        .unwrap()
}

pub async fn faults(system: &System) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let issuer = format!("http://{}", listener.local_addr().unwrap());
    let fault = Arc::new(Mutex::new(Fault::default()));
    let serving = testkit::http::serve(listener, {
        let fault = Arc::clone(&fault);
        let issuer = issuer.clone();
        move |request| {
            let answer = answer(&request, &issuer, &fault.lock().unwrap());
            async move { Ok(answer) }
        }
    });
    let good = [
        ("OIDC_ISSUER", issuer.as_str()),
        ("OIDC_CLIENT_ID", "console"),
        ("OIDC_VIEWER", "all"),
        ("OIDC_OPERATOR", "on-call"),
    ];
    let ended = system.doctor(&[], &good).await;
    ended
        .says("publishes its keys (1)")
        .says("it gives operator, viewer; nobody becomes support by it")
        .says("the clock of the OpenID provider agrees with ours");

    for (planted, state, check, part) in [
        (
            Fault {
                metadata: json!({ "issuer": format!("{issuer}/other") }),
                ..Fault::default()
            },
            "warning",
            "openid",
            "/other",
        ),
        (
            Fault {
                metadata: json!({ "id_token_signing_alg_values_supported": ["HS256"] }),
                ..Fault::default()
            },
            "warning",
            "openid",
            "none of the ways that the console accepts",
        ),
        (
            Fault {
                without_keys: true,
                ..Fault::default()
            },
            "warning",
            "openid",
            "it publishes no key",
        ),
        (
            Fault {
                clock_ahead: Duration::MINUTE * 10,
                ..Fault::default()
            },
            "fault",
            "openid clock",
            "the clock of the OpenID provider is 600 s ahead",
        ),
    ] {
        *fault.lock().unwrap() = planted;
        system.finds(&good, state, check, part).await;
    }
    *fault.lock().unwrap() = Fault::default();

    let with = |name: &'static str, value: &'static str| {
        let mut settings = good.to_vec();
        settings.push((name, value));
        settings
    };
    for (settings, check, part) in [
        (
            with("OIDC_ISSUER", "http://127.0.0.1:1"),
            "openid",
            "the connection failed",
        ),
        (good[..2].to_vec(), "openid", "set OIDC_VIEWER"),
        (
            with("OIDC_VIEWER", "on-call"),
            "openid roles",
            "operator and viewer have the same value",
        ),
    ] {
        system.finds(&settings, "warning", check, part).await;
    }
    serving.abort();
}
