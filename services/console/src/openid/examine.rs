//! A look at the provider from outside of a console, for `esimctl doctor`: whether a console with
//! these settings could sign people in. It asks what the console asks, by the same functions, and
//! signs nobody in.

use std::sync::{Arc, Mutex};

use openidconnect::{
    JsonWebKey, JsonWebKeyAlgorithm, JsonWebKeyUse, JwsSigningAlgorithm,
    core::{CoreJsonWebKey, CoreProviderMetadata},
};
use reqwest::header::DATE;
use runtime::{clock, lock};
use time::{Duration, OffsetDateTime, format_description::well_known::Rfc2822};
use url::Url;

use super::{OpenIdConfig, OpenIdProvider, SIGNATURES, discover, exchange};

/// What a look at the provider has found.
#[derive(Debug)]
pub struct OpenIdExamination {
    pub issuer: String,
    /// The roles with a value, the highest one first, and those without.
    pub roles: Roles,
    /// How many of its keys can sign, or why nobody can sign in.
    pub keys: Result<usize, String>,
    /// How far its clock is ahead of ours, by the header `Date`, which counts whole seconds.
    pub ahead: Option<Duration>,
}

#[derive(Debug, Default)]
pub struct Roles {
    pub given: Vec<&'static str>,
    pub missing: Vec<&'static str>,
    /// Two roles with the same value. The lower one is never given.
    pub twice: Option<(&'static str, &'static str)>,
}

/// Looks at the provider of these settings. It is `None` without one. The error is that of a
/// console that does not start.
pub async fn examine(config: &OpenIdConfig) -> anyhow::Result<Option<OpenIdExamination>> {
    // The address to which browsers are sent back plays no part here.
    let console = Url::parse("http://127.0.0.1")?;
    let Some(provider) = OpenIdProvider::open(config, &console)? else {
        return Ok(None);
    };
    let ahead = Arc::new(Mutex::new(None));
    let http = |request| {
        let client = provider.http.clone();
        let ahead = Arc::clone(&ahead);
        async move {
            let before = clock::now();
            let answer = exchange(&client, request).await?;
            let date = answer.headers().get(DATE);
            if let Some(there) = date.and_then(|date| there(date.to_str().ok()?)) {
                let here = before + (clock::now() - before) / 2;
                *lock(&ahead) = Some(there - here);
            }
            Ok(answer)
        }
    };
    let metadata = discover(provider.issuer.clone(), &http).await;
    Ok(Some(OpenIdExamination {
        issuer: provider.issuer().to_owned(),
        roles: roles(config),
        keys: metadata.and_then(|metadata| usable_keys(&metadata)),
        ahead: *lock(&ahead),
    }))
}

/// The time of a header `Date`. It has no fraction, so on average it is half a second too early.
fn there(date: &str) -> Option<OffsetDateTime> {
    let parsed = OffsetDateTime::parse(date, &Rfc2822).ok()?;
    Some(parsed + Duration::milliseconds(500))
}

fn roles(config: &OpenIdConfig) -> Roles {
    let given = config.roles();
    let mut roles = Roles::default();
    for name in ["operator", "support", "viewer"] {
        if given.iter().any(|(role, _)| role.as_str() == name) {
            roles.given.push(name);
        } else {
            roles.missing.push(name);
        }
    }
    for (index, (role, value)) in given.iter().enumerate() {
        if let Some((higher, _)) = given[..index].iter().find(|(_, one)| one == value) {
            roles.twice = Some((higher.as_str(), role.as_str()));
        }
    }
    roles
}

/// The number of published keys with which an ID token can be signed so that the console accepts
/// it.
fn usable_keys(metadata: &CoreProviderMetadata) -> Result<usize, String> {
    if metadata.token_endpoint().is_none() {
        return Err("its metadata name no token endpoint".into());
    }
    let offered = metadata.id_token_signing_alg_values_supported();
    if !offered.iter().any(|one| SIGNATURES.contains(one)) {
        return Err(
            "it signs ID tokens in none of the ways that the console accepts, which are by keys that it publishes".into(),
        );
    }
    let keys = metadata.jwks().keys().iter();
    match keys.filter(|key| can_sign(key)).count() {
        0 => Err("it publishes no key with which it could sign ID tokens".into()),
        usable => Ok(usable),
    }
}

fn can_sign(key: &CoreJsonWebKey) -> bool {
    let is_for_signatures = key.key_use().is_none_or(JsonWebKeyUse::allows_signature);
    let accepted = match key.signing_alg() {
        JsonWebKeyAlgorithm::Algorithm(algorithm) => SIGNATURES.contains(algorithm),
        JsonWebKeyAlgorithm::Unspecified => {
            let mut types = SIGNATURES.iter().map(JwsSigningAlgorithm::key_type);
            types.any(|needed| needed.as_ref() == Some(key.key_type()))
        }
        JsonWebKeyAlgorithm::Unsupported => false,
    };
    is_for_signatures && accepted
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn a_date_is_read_as_the_middle_of_its_second() {
        let read = there("Tue, 24 Nov 2026 17:31:30 GMT");
        assert_eq!(read, Some(datetime!(2026-11-24 17:31:30.5 UTC)));
        assert_eq!(there("yesterday"), None);
    }

    #[test]
    fn roles_with_the_same_value_are_named() {
        let config = OpenIdConfig {
            oidc_operator: Some("staff".into()),
            oidc_viewer: Some("staff".into()),
            oidc_support: Some(String::new()),
            ..OpenIdConfig::default()
        };
        let roles = roles(&config);
        assert_eq!(roles.given, ["operator", "viewer"]);
        assert_eq!(roles.missing, ["support"]);
        assert_eq!(roles.twice, Some(("operator", "viewer")));
    }
}
