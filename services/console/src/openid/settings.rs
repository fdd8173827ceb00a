//! The settings of sign-in by OpenID Connect.

use std::path::PathBuf;

use clap::Args;
use desk::operator::accounts::OperatorRole;
use secrecy::SecretString;
use url::Url;

use crate::transport::is_private_transport;

/// Sign-in by OpenID Connect.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Sign-in by OpenID Connect")]
pub struct OpenIdConfig {
    /// Issuer of the OpenID provider, such as `https://id.example/realms/staff` [default: none]
    ///
    /// It must be exactly the issuer that the provider names in its metadata, which are read from
    /// `/.well-known/openid-configuration` below it. Register the console there as a client with
    /// the authorization code flow, and with the redirect URL
    /// `CONSOLE_URL/sign-in/openid/callback`.
    #[arg(long, env = "OIDC_ISSUER", value_parser = issuer)]
    pub oidc_issuer: Option<String>,
    /// The id of the console at the OpenID provider
    #[arg(long, env = "OIDC_CLIENT_ID")]
    pub oidc_client_id: Option<String>,
    /// The secret of the console at the OpenID provider [default: none, a public client]
    #[arg(long, env = "OIDC_CLIENT_SECRET", hide_env_values = true)]
    pub oidc_client_secret: Option<SecretString>,
    /// File with certificates (PEM) of an authority of your own that signs the provider's
    /// certificate
    ///
    /// They count beside those of the system. The file is read at the start.
    #[arg(long, env = "CA_FILE")]
    pub ca_file: Option<PathBuf>,
    /// Scopes that the console asks for beside `openid`, separated by blanks
    ///
    /// Some providers put groups into the ID token only if a scope such as `groups` asks for them.
    #[arg(long, env = "OIDC_SCOPES", default_value = "profile email")]
    pub oidc_scopes: String,
    /// Claim of the ID token whose value recorded actions name, after `oidc:`
    ///
    /// It must be one that people cannot choose themselves. An `email` that the provider marks as
    /// not verified is not used. Without a usable value the subject (`sub`) stands there.
    #[arg(long, env = "OIDC_NAME_CLAIM", default_value = "email")]
    pub oidc_name_claim: String,
    /// Claim of the ID token that decides the role: a text or a list of texts
    ///
    /// A value that begins with `/` is a JSON pointer, such as `/realm_access/roles`.
    #[arg(long, env = "OIDC_ROLE_CLAIM", default_value = "groups")]
    pub oidc_role_claim: String,
    /// Value of the role claim that makes somebody a viewer [default: none]
    ///
    /// Of several roles the highest one counts. Whoever has none of them is refused.
    #[arg(long, env = "OIDC_VIEWER")]
    pub oidc_viewer: Option<String>,
    /// Value of the role claim that makes somebody support [default: none]
    #[arg(long, env = "OIDC_SUPPORT")]
    pub oidc_support: Option<String>,
    /// Value of the role claim that makes somebody an operator [default: none]
    #[arg(long, env = "OIDC_OPERATOR")]
    pub oidc_operator: Option<String>,
}

impl OpenIdConfig {
    /// The roles that a value of the claim gives, the highest one first.
    pub(super) fn roles(&self) -> Vec<(OperatorRole, String)> {
        let given = [
            (OperatorRole::Operator, &self.oidc_operator),
            (OperatorRole::Support, &self.oidc_support),
            (OperatorRole::Viewer, &self.oidc_viewer),
        ];
        given
            .into_iter()
            // An empty value names no group: a claim that is empty must not make somebody an
            // operator.
            .filter_map(|(role, value)| Some((role, value.clone().filter(|one| !one.is_empty())?)))
            .collect()
    }
}

/// Parses `OIDC_ISSUER`. The text is kept as it is, because the provider compares it so.
fn issuer(text: &str) -> Result<String, String> {
    let url: Url = text
        .parse()
        .map_err(|error| format!("{error}; write it like https://id.example"))?;
    if !is_private_transport(&url) {
        return Err(
            "it must begin with https://, because anybody on the way could forge who signs in otherwise; http:// is \
             accepted for a loopback address"
                .into(),
        );
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("an issuer has no query and no fragment".into());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_issuer_is_reached_by_tls() {
        assert!(issuer("http://127.0.0.1:9000/realm").is_ok());
        assert!(issuer("https://id.example/").is_ok());
        assert!(issuer("http://id.example").is_err());
        assert!(issuer("https://id.example?a=b").is_err());
    }
}
