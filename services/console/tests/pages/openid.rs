//! Sign-in by OpenID Connect, with a provider that does what a test says: also what no real one
//! should do. The walk of `tests/console` signs in by a real one.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use bytes::Bytes;
use http_body_util::Full;
use reqwest::header;
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use runtime::clock;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::{net::TcpListener, task::JoinHandle};
use url::{Url, form_urlencoded};

use crate::support::{Bench, Browser};

const SECRET: &str = "secret-of-the-console";
const CALLBACK: &str = "/sign-in/openid/callback";

/// A key of the provider, and its name.
struct Key {
    name: String,
    pair: EcdsaKeyPair,
}

impl Key {
    fn new(name: &str) -> Self {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        Self {
            name: name.to_owned(),
            pair: EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).unwrap(),
        }
    }

    fn public(&self) -> Value {
        let point = self.pair.public_key().as_ref();
        json!({
            "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": self.name,
            "x": BASE64.encode(&point[1..33]), "y": BASE64.encode(&point[33..]),
        })
    }

    fn sign(&self, header: &Value, claims: &Value) -> String {
        let text = [header, claims].map(|part| BASE64.encode(part.to_string()));
        let text = text.join(".");
        let signature = self
            .pair
            .sign(&SystemRandom::new(), text.as_bytes())
            .unwrap();
        format!("{text}.{}", BASE64.encode(signature.as_ref()))
    }
}

/// What the provider knows, and how it lies.
struct Known {
    issuer: String,
    /// The key that it publishes.
    published: Key,
    /// The key that it signs with, if that is another one.
    signs: Option<Key>,
    /// Codes that were not used yet: the nonce and the challenge of their sign-in.
    codes: BTreeMap<String, (String, String)>,
    /// Claims of the next tokens in the place of the true ones; null removes one.
    claims: Value,
    /// Fields of the token's header in the place of the true ones.
    header: Value,
}

struct Provider {
    known: Arc<Mutex<Known>>,
    issuer: String,
    serving: JoinHandle<()>,
}

impl Provider {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let issuer = format!("http://{}", listener.local_addr().unwrap());
        let known = Arc::new(Mutex::new(Known {
            issuer: issuer.clone(),
            published: Key::new("first"),
            signs: None,
            codes: BTreeMap::new(),
            claims: json!({}),
            header: json!({}),
        }));
        let serving = testkit::http::serve(listener, {
            let known = Arc::clone(&known);
            move |request| {
                let answer = known.lock().unwrap().answer(&request);
                async move { Ok(answer) }
            }
        });
        Self {
            known,
            issuer,
            serving,
        }
    }

    /// The settings of a console that trusts it.
    fn settings(&self) -> Vec<(&str, &str)> {
        vec![
            ("OIDC_ISSUER", &self.issuer),
            ("OIDC_CLIENT_ID", "console"),
            ("OIDC_CLIENT_SECRET", SECRET),
            ("OIDC_VIEWER", "all"),
            ("OIDC_OPERATOR", "on-call"),
        ]
    }

    fn lie(&self, claims: Value) {
        self.known.lock().unwrap().claims = claims;
    }

    /// What the provider does when somebody has signed in there: the path that it sends the browser
    /// to.
    fn approve(&self, url: &Url) -> String {
        let query: BTreeMap<String, String> = url.query_pairs().into_owned().collect();
        let field = |name: &str| query.get(name).cloned().unwrap_or_default();
        assert_eq!(url.path(), "/authorize");
        assert_eq!(field("response_type"), "code");
        assert_eq!(field("client_id"), "console");
        assert_eq!(field("code_challenge_method"), "S256");
        assert!(field("redirect_uri").ends_with(CALLBACK), "{url}");
        assert!(field("scope").contains("openid"), "{url}");
        let mut known = self.known.lock().unwrap();
        let code = format!("code-{}", known.codes.len());
        known
            .codes
            .insert(code.clone(), (field("nonce"), field("code_challenge")));
        format!("{CALLBACK}?code={code}&state={}", field("state"))
    }
}

impl Known {
    fn answer(&mut self, request: &hyper::Request<Bytes>) -> hyper::Response<Full<Bytes>> {
        let (status, body) = match request.uri().path() {
            "/.well-known/openid-configuration" => (200, self.metadata()),
            "/keys" => (200, json!({ "keys": [self.published.public()] })),
            "/token" => self.token(request),
            other => panic!("{other} was asked for"),
        };
        hyper::Response::builder()
            .status(status)
            .header("content-type", "application/json")
            .body(Full::from(body.to_string()))
            .unwrap()
    }

    fn metadata(&self) -> Value {
        let at = |path: &str| format!("{}{path}", self.issuer);
        json!({
            "issuer": self.issuer, "authorization_endpoint": at("/authorize"), "token_endpoint": at("/token"),
            "jwks_uri": at("/keys"), "response_types_supported": ["code"], "subject_types_supported": ["public"],
            // It offers more than the console accepts.
            "id_token_signing_alg_values_supported": ["ES256", "HS256", "none"],
        })
    }

    fn token(&mut self, request: &hyper::Request<Bytes>) -> (u16, Value) {
        let fields: BTreeMap<String, String> = form_urlencoded::parse(request.body())
            .into_owned()
            .collect();
        let basic = base64::engine::general_purpose::STANDARD.encode(format!("console:{SECRET}"));
        assert_eq!(request.headers()["authorization"], format!("Basic {basic}"));
        let Some((nonce, challenge)) = self.codes.remove(&fields["code"]) else {
            return (400, json!({ "error": "invalid_grant" }));
        };
        let verifier = BASE64.encode(Sha256::digest(&fields["code_verifier"]));
        if verifier != challenge {
            return (400, json!({ "error": "invalid_grant" }));
        }
        let now = clock::now().unix_timestamp();
        let claims = json!({
            "iss": self.issuer, "sub": "7", "aud": "console", "exp": now + 60, "iat": now, "nonce": nonce,
            "email": "ana@example.com", "email_verified": true, "groups": ["all", "on-call"],
        });
        let key = self.signs.as_ref().unwrap_or(&self.published);
        let header = json!({ "alg": "ES256", "kid": key.name });
        let token = key.sign(
            &changed(header, &self.header),
            &changed(claims, &self.claims),
        );
        let answer = json!({ "access_token": "access", "token_type": "Bearer", "id_token": token });
        (200, answer)
    }
}

fn changed(mut value: Value, with: &Value) -> Value {
    let fields = value.as_object_mut().unwrap();
    for (name, value) in with.as_object().unwrap() {
        if value.is_null() {
            fields.remove(name);
        } else {
            fields.insert(name.clone(), value.clone());
        }
    }
    value
}

fn to(answer: &reqwest::Response) -> String {
    let to = answer.headers().get(header::LOCATION);
    to.map_or_else(String::new, |to| to.to_str().unwrap().to_owned())
}

/// Begins a sign-in, and returns where the browser is sent.
async fn begin(browser: &mut Browser, back: &str) -> Url {
    let path = format!("/sign-in/openid?back={back}");
    let answer = browser.get(&path).await;
    assert_eq!(answer.status(), 303);
    to(&answer).parse().unwrap()
}

/// The status of a sign-in, where it leads, and what its page says.
async fn finish(browser: &mut Browser, path: &str) -> (u16, String, String) {
    let answer = browser.get(path).await;
    let status = answer.status().as_u16();
    let to = to(&answer);
    (status, to, answer.text().await.unwrap())
}

#[tokio::test]
async fn a_person_signs_in_by_the_provider_and_acts_under_its_name() {
    let provider = Provider::start().await;
    let bench = Bench::start_with(&provider.settings()).await;
    let mut browser = bench.browser();
    // Providers often say both, and their clocks are some seconds ahead of ours.
    let soon = clock::now().unix_timestamp() + 10;
    provider.lie(json!({ "azp": "console", "nbf": soon }));
    let page = browser.get("/sign-in?back=%2Fneeds%3Fa%3Db").await;
    let page = page.text().await.unwrap();
    assert!(page.contains("Sign in with 127.0.0.1"), "{page}");
    assert!(page.contains("name=\"password\""), "{page}");

    let url = begin(&mut browser, "%2Fneeds%3Fa%3Db").await;
    let callback = provider.approve(&url);
    let (status, to, _) = finish(&mut browser, &callback).await;
    assert_eq!((status, to.as_str()), (303, "/needs?a=b"));
    let page = browser.get("/needs").await.text().await.unwrap();
    assert!(
        page.contains("<b>oidc:ana@example.com</b><span>role: operator</span>"),
        "{page}"
    );

    let token = crate::support::token_of(&page);
    let partner = format!("/partners/{}", bench.partner);
    let pause = format!("/endpoints/{}/pause", bench.partner);
    let seen = crate::again::seen(&mut browser, &partner, &pause).await;
    let form = [
        ("token", token.as_str()),
        ("reason", "a test"),
        ("seen", &seen),
    ];
    assert_eq!(browser.post(&pause, &form).await.status(), 303);
    assert_eq!(
        bench.recorded().await,
        ["oidc:ana@example.com endpoint pause"]
    );

    // The same response of the provider is good once, and in this browser only.
    let (status, _, page) = finish(&mut browser, &callback).await;
    assert_eq!(status, 403);
    assert!(page.contains("was used already"), "{page}");
    let mut other = bench.browser();
    begin(&mut other, "%2F").await;
    let url = begin(&mut browser, "https%3A%2F%2Fevil.example").await;
    let callback = provider.approve(&url);
    assert_eq!(finish(&mut other, &callback).await.0, 403);
    assert_eq!(finish(&mut bench.browser(), &callback).await.0, 403);
    let (status, to, _) = finish(&mut browser, &callback).await;
    assert_eq!((status, to.as_str()), (303, "/"), "the way back is local");
    bench.stop().await;
}

#[tokio::test]
async fn a_token_that_is_not_right_in_everything_signs_nobody_in() {
    let provider = Provider::start().await;
    let bench = Bench::start_with(&provider.settings()).await;
    let now = clock::now().unix_timestamp();
    let attempt = async |says: &str| {
        let mut browser = bench.browser();
        let url = begin(&mut browser, "%2F").await;
        let callback = provider.approve(&url);
        let (status, _, page) = finish(&mut browser, &callback).await;
        assert_eq!(status, 403, "{says}: {page}");
        assert!(page.contains(says), "{says}: {page}");
        let secret = ["eyJ", "access", SECRET];
        assert!(!secret.iter().any(|secret| page.contains(secret)), "{page}");
        assert_eq!(browser.get("/").await.status(), 303, "{says}");
    };
    for (claims, says) in [
        (json!({ "nonce": "another" }), "nonce mismatch"),
        (json!({ "nonce": null }), "missing nonce"),
        (json!({ "aud": "another" }), "Invalid audiences"),
        (
            json!({ "aud": ["console", "another"] }),
            "not a trusted audience",
        ),
        (json!({ "iss": "https://evil.example" }), "Invalid issuer"),
        (json!({ "exp": now - 1 }), "expired"),
        (json!({ "nbf": now + 3600 }), "not valid yet"),
        (json!({ "nbf": "soon" }), "not valid yet"),
        (json!({ "azp": "another" }), "another client"),
        (json!({ "azp": 7 }), "cannot be read"),
        (json!({ "sub": null }), "cannot be read"),
        (json!({ "exp": null }), "cannot be read"),
        (json!({ "iat": null }), "cannot be read"),
        (json!({ "email": 7 }), "cannot be read"),
        (json!({ "email_verified": "perhaps" }), "cannot be read"),
        (json!({ "sub": "" }), "the subject of the ID token"),
        (json!({ "groups": ["others"] }), "in none of the groups"),
        (json!({ "groups": null }), "in none of the groups"),
    ] {
        provider.lie(claims);
        attempt(says).await;
    }
    provider.lie(json!({}));
    for alg in ["none", "HS256", "RS256"] {
        provider.known.lock().unwrap().header = json!({ "alg": alg });
        attempt("is not valid").await;
    }
    provider.known.lock().unwrap().header = json!({});
    // A key of somebody else, under the name of the provider's key and under another one.
    for name in ["first", "unknown"] {
        provider.known.lock().unwrap().signs = Some(Key::new(name));
        attempt("Signature verification failed").await;
    }
    bench.stop().await;
}

#[tokio::test]
async fn a_replaced_key_is_fetched_and_a_code_is_used_once() {
    let provider = Provider::start().await;
    let bench = Bench::start_with(&provider.settings()).await;
    let mut browser = bench.browser();
    let sign_in = async |browser: &mut Browser| {
        let url = begin(browser, "%2F").await;
        let callback = provider.approve(&url);
        finish(browser, &callback).await
    };
    assert_eq!(sign_in(&mut browser).await.0, 303);
    // Metadata that are some seconds old are fetched again for a signature that does not fit them.
    provider.known.lock().unwrap().published = Key::new("second");
    let patience = std::time::Duration::from_secs(30);
    let rotated = testkit::wait::until(patience, "a sign-in with the new key", async || {
        let mut browser = bench.browser();
        Ok((sign_in(&mut browser).await.0 == 303).then_some(()))
    });
    rotated.await.unwrap();

    // Somebody who has got hold of the code of another one begins a sign-in and puts that code in.
    let theirs = provider.approve(&begin(&mut browser, "%2F").await);
    let mut thief = bench.browser();
    let mine = provider.approve(&begin(&mut thief, "%2F").await);
    let code = |path: &str| {
        let (_, rest) = path.split_once("code=").unwrap();
        rest.split('&').next().unwrap().to_owned()
    };
    let forged = mine.replace(&code(&mine), &code(&theirs));
    let (status, _, page) = finish(&mut thief, &forged).await;
    assert_eq!(status, 403);
    assert!(page.contains("did not accept the code"), "{page}");
    bench.stop().await;
}

#[tokio::test]
async fn without_the_provider_accounts_sign_in_and_sessions_go_on() {
    let provider = Provider::start().await;
    let bench = Bench::start_with(&provider.settings()).await;
    let mut ana = bench.browser();
    let callback = provider.approve(&begin(&mut ana, "%2F").await);
    assert_eq!(finish(&mut ana, &callback).await.0, 303);
    let mut late = bench.browser();
    let pending = provider.approve(&begin(&mut late, "%2F").await);
    provider.serving.abort();
    let (status, _, page) = finish(&mut late, &pending).await;
    assert_eq!(status, 503, "{page}");
    assert!(page.contains("does not respond as it should"), "{page}");
    assert_eq!(ana.get("/").await.status(), 200);
    bench
        .sign_in("break-glass", console::access::OperatorRole::Operator)
        .await;
    bench.stop().await;
}

#[tokio::test]
async fn without_passwords_only_the_provider_signs_in() {
    let provider = Provider::start().await;
    let mut settings = provider.settings();
    settings.push(("CONSOLE_PASSWORDS", "false"));
    let bench = Bench::start_with(&settings).await;
    let mut browser = bench.browser();
    let page = browser.get("/sign-in").await.text().await.unwrap();
    assert!(!page.contains("name=\"password\""), "{page}");
    assert_eq!(browser.get("/set-up").await.status(), 404);
    let callback = provider.approve(&begin(&mut browser, "%2F").await);
    assert_eq!(finish(&mut browser, &callback).await.0, 303);
    bench.stop().await;
}
