//! Sign-in by OpenID Connect: the authorization code flow with PKCE, state and nonce.
//!
//! The library `openidconnect` makes the requests and verifies the ID token: signature, issuer,
//! audience, nonce and expiry. This module decides what the token is good for, and keeps the
//! provider's metadata and keys for a while.
//!
//! Guarantees:
//!
//! - A response of the provider counts only in the browser that has begun the sign-in, and once:
//!   state, nonce and PKCE verifier are made from the secret of a cookie, which ends with the
//!   response.
//! - Only signatures by a key that the provider publishes are accepted. Keys that it replaces are
//!   fetched anew.
//! - No token is stored, logged or shown. What remains of a sign-in is the person's name and role.
//! - The console needs the provider for a sign-in only, so it starts and serves sessions without
//!   it.

mod examine;
mod settings;

use std::{pin::Pin, time::Duration};

use anyhow::Context;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use desk::operator::{
    accounts::{OF_PROVIDER, OperatorRole, is_readable},
    sessions::Person,
};
use openidconnect::{
    AsyncHttpClient, AuthType, AuthorizationCode, ClaimsVerificationError, ClientId, ClientSecret,
    CsrfToken, DiscoveryError, HttpRequest, HttpResponse, IssuerUrl, Nonce, PkceCodeChallenge,
    PkceCodeVerifier, RedirectUrl, RequestTokenError, Scope, TokenResponse,
    core::{
        CoreAuthenticationFlow, CoreClient, CoreClientAuthMethod, CoreIdToken,
        CoreJwsSigningAlgorithm, CoreProviderMetadata,
    },
};
use runtime::{client, clock, config::BadSetting};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::{sync::Mutex, time::Instant};
use url::Url;

use crate::transport::trusting;

pub use self::{
    examine::{OpenIdExamination, Roles, examine},
    settings::OpenIdConfig,
};

/// The path to which the provider sends browsers back.
pub(crate) const CALLBACK: &str = "/sign-in/openid/callback";
/// The longest wait for a response of the provider.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest response that is read.
const LONGEST: usize = 1024 * 1024;
/// How long the provider's metadata and keys are used before they are fetched anew.
const FRESH: Duration = Duration::from_mins(10);
/// How soon metadata may be fetched again because a signature has no known key, or after a failure.
const AGAIN: Duration = Duration::from_secs(5);
/// The maximum number of characters of a person's name or subject. `OpenID` Connect allows as many
/// for a subject.
const LONGEST_NAME: usize = 255;
/// How far the provider's clock may be ahead of ours.
const AHEAD: i64 = 60;
/// The signatures that are accepted: those by a key that only the provider has. Signatures by the
/// client's secret are not among them, because whoever reads this console's settings could make
/// one.
const SIGNATURES: [CoreJwsSigningAlgorithm; 9] = [
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha256,
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha384,
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha512,
    CoreJwsSigningAlgorithm::RsaSsaPssSha256,
    CoreJwsSigningAlgorithm::RsaSsaPssSha384,
    CoreJwsSigningAlgorithm::RsaSsaPssSha512,
    CoreJwsSigningAlgorithm::EcdsaP256Sha256,
    CoreJwsSigningAlgorithm::EcdsaP384Sha384,
    CoreJwsSigningAlgorithm::EdDsa,
];

/// What is said about an ID token with claims that the library cannot read.
const UNREADABLE: &str = "the ID token of the provider cannot be read: it needs `sub`, `exp` and `iat` as OpenID Connect says, and \
                          if it has `email` and `email_verified`, the first is a text and the second is true or false";

/// Why somebody is not signed in by the provider.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotNamed {
    /// The provider does not respond, or responds with what is no OpenID Connect.
    #[error("{0}")]
    Unavailable(String),
    /// The provider, or what it sent, does not name anybody.
    #[error("{0}")]
    Refused(String),
    /// The person may not use the console.
    #[error("{name} has none of the roles")]
    NoRole { name: String },
}

/// A failed exchange with the provider.
#[derive(Debug, thiserror::Error)]
enum Exchange {
    #[error(transparent)]
    Http(#[from] reqwest::Error),
    #[error("its response is longer than {LONGEST} bytes")]
    TooLong,
}

/// What belongs to one sign-in in one browser. Everything is made from the secret of its cookie, so
/// that nothing has to be stored, and the values say nothing about each other.
pub(crate) struct OpenIdAttempt(pub(crate) SecretString);

impl OpenIdAttempt {
    fn derived(&self, what: &str) -> String {
        let digest = Sha256::new()
            .chain_update(b"sign-in by OpenID Connect\0")
            .chain_update(what.as_bytes())
            .chain_update(b"\0")
            .chain_update(self.0.expose_secret().as_bytes())
            .finalize();
        hex::encode(digest)
    }

    pub(crate) fn state(&self) -> String {
        self.derived("state")
    }

    fn nonce(&self) -> Nonce {
        Nonce::new(self.derived("nonce"))
    }

    fn verifier(&self) -> PkceCodeVerifier {
        PkceCodeVerifier::new(self.derived("verifier"))
    }
}

/// The provider's metadata and keys, or that they could not be had.
struct Fetched {
    at: Instant,
    metadata: Result<CoreProviderMetadata, String>,
}

/// The OpenID provider.
pub(crate) struct OpenIdProvider {
    issuer: IssuerUrl,
    client_id: ClientId,
    client_secret: Option<SecretString>,
    redirect: RedirectUrl,
    scopes: Vec<Scope>,
    name_claim: String,
    role_claim: String,
    roles: Vec<(OperatorRole, String)>,
    http: reqwest::Client,
    fetched: Mutex<Option<Fetched>>,
}

impl OpenIdProvider {
    /// The provider of the settings, if there is one.
    pub(crate) fn open(config: &OpenIdConfig, console: &Url) -> anyhow::Result<Option<Self>> {
        let roles = config.roles();
        let Some(issuer) = &config.oidc_issuer else {
            if config.oidc_client_id.is_some() || !roles.is_empty() {
                return Err(BadSetting::error(
                    "OIDC_ISSUER is missing, so the other settings of OpenID Connect have no effect: set it, or remove them",
                ));
            }
            return Ok(None);
        };
        let Some(client_id) = config.oidc_client_id.clone() else {
            return Err(BadSetting::error(
                "OIDC_CLIENT_ID is missing: it is the id under which the console is registered at OIDC_ISSUER",
            ));
        };
        if roles.is_empty() {
            return Err(BadSetting::error(
                "nobody could sign in by OpenID Connect, because no role has a group: set OIDC_VIEWER, OIDC_SUPPORT or \
                 OIDC_OPERATOR",
            ));
        }
        let ca_file = config.ca_file.as_deref();
        let http = trusting(client::direct(PATIENCE), ca_file)?;
        let redirect = console.join(CALLBACK).context("CONSOLE_URL")?;
        Ok(Some(Self {
            issuer: IssuerUrl::new(issuer.clone()).context("OIDC_ISSUER")?,
            client_id: ClientId::new(client_id),
            client_secret: config.oidc_client_secret.clone(),
            redirect: RedirectUrl::from_url(redirect),
            scopes: config
                .oidc_scopes
                .split_whitespace()
                .map(|scope| Scope::new(scope.to_owned()))
                .collect(),
            name_claim: config.oidc_name_claim.clone(),
            role_claim: config.oidc_role_claim.clone(),
            roles,
            http: http.build().context("the client of OIDC_ISSUER")?,
            fetched: Mutex::new(None),
        }))
    }

    pub(crate) fn issuer(&self) -> &str {
        self.issuer.as_str()
    }

    /// The host of the provider, which its button names.
    pub(crate) fn host(&self) -> &str {
        self.issuer.url().host_str().unwrap_or_default()
    }

    /// Logs whether the provider can be used, so that a mistake in the settings is found at the
    /// start and not by the first person who signs in.
    pub(crate) async fn look(&self) {
        match self.metadata(FRESH).await {
            Ok(_) => tracing::info!(
                issuer = self.issuer(),
                "people can sign in by the OpenID provider"
            ),
            Err(error) => tracing::warn!(
                issuer = self.issuer(),
                %error,
                "nobody can sign in by the OpenID provider now; each sign-in tries it again. Sessions go on, and accounts of \
                 `esimctl operator` can sign in unless CONSOLE_PASSWORDS is off"
            ),
        }
    }

    /// Where the browser goes to sign in.
    pub(crate) async fn begin(&self, attempt: &OpenIdAttempt) -> Result<Url, NotNamed> {
        let metadata = self.metadata(FRESH).await?;
        let client = CoreClient::from_provider_metadata(metadata, self.client_id.clone(), None)
            .set_redirect_uri(self.redirect.clone());
        let challenge = PkceCodeChallenge::from_code_verifier_sha256(&attempt.verifier());
        let state = CsrfToken::new(attempt.state());
        let nonce = attempt.nonce();
        let (url, _, _) = client
            .authorize_url(
                CoreAuthenticationFlow::AuthorizationCode,
                move || state,
                move || nonce,
            )
            .add_scopes(self.scopes.iter().cloned())
            .set_pkce_challenge(challenge)
            .url();
        Ok(url)
    }

    /// Who has signed in, by the code that the provider has given to the browser.
    pub(crate) async fn finish(
        &self,
        attempt: &OpenIdAttempt,
        code: &str,
    ) -> Result<Person, NotNamed> {
        let metadata = self.metadata(FRESH).await?;
        let secret = self.client_secret.as_ref();
        let secret = secret.map(|secret| ClientSecret::new(secret.expose_secret().to_owned()));
        let methods = metadata.token_endpoint_auth_methods_supported();
        let in_body = methods.is_some_and(|methods| {
            methods.contains(&CoreClientAuthMethod::ClientSecretPost)
                && !methods.contains(&CoreClientAuthMethod::ClientSecretBasic)
        });
        let client =
            CoreClient::from_provider_metadata(metadata.clone(), self.client_id.clone(), secret)
                .set_redirect_uri(self.redirect.clone())
                .set_auth_type(if in_body {
                    AuthType::RequestBody
                } else {
                    AuthType::BasicAuth
                });
        let request = client
            .exchange_code(AuthorizationCode::new(code.to_owned()))
            .map_err(|_| NotNamed::Unavailable("its metadata name no token endpoint".into()))?
            .set_pkce_verifier(attempt.verifier());
        let tokens = request
            .request_async(&self.http())
            .await
            .map_err(|error| match error {
                RequestTokenError::Request(error) => NotNamed::Unavailable(described(&error)),
                RequestTokenError::ServerResponse(answer) => NotNamed::Refused(format!(
                    "the provider did not accept the code of this sign-in ({})",
                    answer.error()
                )),
                // What it sent may hold tokens, so it is not repeated.
                RequestTokenError::Parse(_, body) if has_id_token(&body) => {
                    NotNamed::Refused(UNREADABLE.into())
                }
                _ => NotNamed::Unavailable("it did not answer with tokens".into()),
            })?;
        let token = tokens.id_token().ok_or_else(|| {
            NotNamed::Refused("the provider sent no ID token; its client must allow OpenID".into())
        })?;
        let claims = match self.verified(&metadata, token, attempt) {
            Err(ClaimsVerificationError::SignatureVerification(_)) => {
                // The provider may have replaced its keys since they were fetched.
                let metadata = self.metadata(AGAIN).await?;
                self.verified(&metadata, token, attempt)
            }
            verified => verified,
        };
        let claims = claims.map_err(|error| {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
            let cause = cause.unwrap_or_default();
            NotNamed::Refused(format!("the ID token is not valid ({error}{cause})"))
        })?;
        self.person(&claims)
    }

    /// The claims of a token for this attempt, if all of it is right. They are read as JSON,
    /// because settings name some of them.
    fn verified(
        &self,
        metadata: &CoreProviderMetadata,
        token: &CoreIdToken,
        attempt: &OpenIdAttempt,
    ) -> Result<Value, ClaimsVerificationError> {
        let client =
            CoreClient::from_provider_metadata(metadata.clone(), self.client_id.clone(), None);
        let verifier = client.id_token_verifier().set_allowed_algs(SIGNATURES);
        token.claims(&verifier, &attempt.nonce())?;
        let token = token.to_string();
        let payload = token.split('.').nth(1).unwrap_or_default();
        let payload = URL_SAFE_NO_PAD.decode(payload).ok();
        let claims: Value = payload
            .and_then(|payload| serde_json::from_slice(&payload).ok())
            .ok_or_else(|| ClaimsVerificationError::Other("its claims are no JSON".into()))?;
        // The library does not look at these two.
        let party = claims.get("azp").filter(|party| !party.is_null());
        if party.is_some_and(|party| party.as_str() != Some(self.client_id.as_str())) {
            let other = "it was made for another client than OIDC_CLIENT_ID (`azp`)";
            return Err(ClaimsVerificationError::Other(other.into()));
        }
        let from = claims.get("nbf").filter(|from| !from.is_null());
        let latest = clock::now().unix_timestamp() + AHEAD;
        #[expect(clippy::cast_precision_loss, reason = "seconds of our time are exact")]
        let begun = |from: &Value| from.as_f64().is_some_and(|from| from <= latest as f64);
        if !from.is_none_or(begun) {
            let early = "it is not valid yet (`nbf`), so a clock may be wrong";
            return Err(ClaimsVerificationError::Other(early.into()));
        }
        Ok(claims)
    }

    /// The person of verified claims.
    fn person(&self, claims: &Value) -> Result<Person, NotNamed> {
        let subject = claims.get("sub").and_then(Value::as_str);
        let subject = subject
            .filter(|subject| is_readable(subject, LONGEST_NAME))
            .ok_or_else(|| {
                NotNamed::Refused(
                    "the subject of the ID token is empty or too long, or has other characters than visible ASCII"
                        .into(),
                )
            })?;
        let unverified = self.name_claim == "email"
            && claims.get("email_verified").is_some_and(|verified| {
                matches!(verified, Value::Bool(false)) || verified == "false"
            });
        let name = claim(claims, &self.name_claim)
            .and_then(Value::as_str)
            .filter(|name| !unverified && is_readable(name, LONGEST_NAME))
            .unwrap_or(subject);
        let name = format!("{OF_PROVIDER}{name}");
        let given = match claim(claims, &self.role_claim) {
            Some(Value::String(one)) => vec![one.as_str()],
            Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let role = self
            .roles
            .iter()
            .find(|(_, value)| given.contains(&value.as_str()));
        let Some((role, _)) = role else {
            return Err(NotNamed::NoRole { name });
        };
        Ok(Person {
            issuer: self.issuer().to_owned(),
            subject: subject.to_owned(),
            name,
            role: *role,
        })
    }

    /// The provider's metadata and keys, at most so old. Those who wait for the same ones get the
    /// same ones, and a failure holds for some seconds, so that a flood of sign-ins is no flood of
    /// requests to the provider.
    async fn metadata(&self, age: Duration) -> Result<CoreProviderMetadata, NotNamed> {
        let mut fetched = self.fetched.lock().await;
        let known = fetched.as_ref().filter(|known| {
            let most = if known.metadata.is_ok() { age } else { AGAIN };
            known.at.elapsed() < most
        });
        if let Some(known) = known {
            return known.metadata.clone().map_err(NotNamed::Unavailable);
        }
        let metadata = discover(self.issuer.clone(), &self.http()).await;
        *fetched = Some(Fetched {
            at: Instant::now(),
            metadata: metadata.clone(),
        });
        metadata.map_err(NotNamed::Unavailable)
    }

    /// How the library sends its requests.
    fn http(&self) -> impl Fn(HttpRequest) -> Answer {
        let client = self.http.clone();
        move |request| {
            let client = client.clone();
            Box::pin(async move { exchange(&client, request).await })
        }
    }
}

/// Fetches the metadata and the keys of a provider, and compares its issuer with ours.
async fn discover<'c, C: AsyncHttpClient<'c, Error = Exchange>>(
    issuer: IssuerUrl,
    http: &'c C,
) -> Result<CoreProviderMetadata, String> {
    let discovered = CoreProviderMetadata::discover_async(issuer, http).await;
    discovered.map_err(|error| match error {
        DiscoveryError::Request(error) => described(&error),
        DiscoveryError::Response(status, ..) => {
            format!("it answered with status {status} where its metadata should be")
        }
        other => other.to_string(),
    })
}

type Answer = Pin<Box<dyn Future<Output = Result<HttpResponse, Exchange>> + Send>>;

async fn exchange(
    client: &reqwest::Client,
    request: HttpRequest,
) -> Result<HttpResponse, Exchange> {
    let mut answer = client.execute(request.try_into()?).await?;
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        body.extend_from_slice(&chunk);
        if body.len() > LONGEST {
            return Err(Exchange::TooLong);
        }
    }
    let mut response = HttpResponse::new(body);
    *response.status_mut() = answer.status();
    *response.headers_mut() = std::mem::take(answer.headers_mut());
    Ok(response)
}

/// The causes of a failed exchange. URLs are left out, because they may hold a code.
fn described(error: &Exchange) -> String {
    match error {
        Exchange::Http(error) => {
            let mut text = if error.is_timeout() {
                format!("it did not answer within {PATIENCE:?}")
            } else {
                "the connection failed".to_owned()
            };
            let mut cause = std::error::Error::source(error);
            while let Some(one) = cause {
                text = format!("{text}: {one}");
                cause = one.source();
            }
            text
        }
        Exchange::TooLong => error.to_string(),
    }
}

/// A claim by its name, or by a JSON pointer.
fn claim<'a>(claims: &'a Value, name: &str) -> Option<&'a Value> {
    if name.starts_with('/') {
        claims.pointer(name)
    } else {
        claims.get(name)
    }
}

/// Whether the response of the token endpoint has an ID token, even if that cannot be read.
fn has_id_token(body: &[u8]) -> bool {
    let read: Option<Value> = serde_json::from_slice(body).ok();
    read.is_some_and(|read| read.get("id_token").is_some_and(Value::is_string))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn provider(config: &OpenIdConfig) -> anyhow::Result<Option<OpenIdProvider>> {
        let _ = testkit::http::client();
        let console = "https://console.example".parse().unwrap();
        OpenIdProvider::open(config, &console)
    }

    fn config() -> OpenIdConfig {
        OpenIdConfig {
            oidc_issuer: Some("https://id.example".into()),
            oidc_client_id: Some("console".into()),
            oidc_name_claim: "email".into(),
            oidc_role_claim: "groups".into(),
            oidc_viewer: Some("all".into()),
            oidc_operator: Some("cn=on-call,ou=ops".into()),
            ..OpenIdConfig::default()
        }
    }

    #[test]
    fn settings_that_contradict_each_other_stop_the_start() {
        let without = |change: fn(&mut OpenIdConfig)| {
            let mut config = config();
            change(&mut config);
            provider(&config).map(|provider| provider.is_some())
        };
        assert!(without(|_| {}).unwrap());
        assert!(provider(&OpenIdConfig::default()).unwrap().is_none());
        for (named, config) in [
            ("OIDC_ISSUER", without(|config| config.oidc_issuer = None)),
            (
                "OIDC_CLIENT_ID",
                without(|config| config.oidc_client_id = None),
            ),
            (
                "OIDC_OPERATOR",
                without(|config| {
                    config.oidc_viewer = None;
                    config.oidc_operator = None;
                }),
            ),
            (
                "CA_FILE",
                without(|config| config.ca_file = Some("/nowhere/ca.pem".into())),
            ),
        ] {
            let error = config.unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn claims_name_a_person_and_the_highest_role() {
        let provider = provider(&config()).unwrap().unwrap();
        let person = |claims: Value| provider.person(&claims);
        let both = json!({ "sub": "7", "email": "ana@example.com", "groups": ["all", "cn=on-call,ou=ops", 1] });
        let both = person(both).unwrap();
        assert_eq!(
            (both.name.as_str(), both.role),
            ("oidc:ana@example.com", OperatorRole::Operator)
        );
        let one = json!({ "sub": "7", "email": "a@example.com", "email_verified": false, "groups": "all" });
        let one = person(one).unwrap();
        assert_eq!(
            (one.name.as_str(), one.role),
            ("oidc:7", OperatorRole::Viewer)
        );
        let strange = json!({ "sub": "7", "email": "a b\u{202e}\n", "groups": "all" });
        assert_eq!(person(strange).unwrap().name, "oidc:7");
        for unseen in ["\u{ad}", "\u{61c}", "\u{34f}", "\u{3164}", "\u{e0041}"] {
            let email = format!("ana{unseen}@example.com");
            let claims = json!({ "sub": "7", "email": email, "groups": "all" });
            assert_eq!(person(claims).unwrap().name, "oidc:7", "{unseen:?}");
        }
        for none in [
            json!({ "sub": "7" }),
            json!({ "sub": "7", "groups": ["ALL", ["all"]] }),
        ] {
            assert!(matches!(person(none), Err(NotNamed::NoRole { .. })));
        }
        let nobody = json!({ "sub": "", "groups": "all" });
        assert!(matches!(person(nobody), Err(NotNamed::Refused(_))));
    }

    #[test]
    fn a_claim_may_be_inside_of_another_one() {
        let claims = json!({ "realm_access": { "roles": ["x"] }, "https://a.example/roles": "y" });
        assert_eq!(claim(&claims, "/realm_access/roles"), Some(&json!(["x"])));
        assert_eq!(claim(&claims, "https://a.example/roles"), Some(&json!("y")));
    }
}
