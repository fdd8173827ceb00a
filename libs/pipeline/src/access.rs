//! The credentials of a program at NATS, and the certificates that it trusts. All programs that
//! connect to NATS share these settings. In production each one has a user of its own, so that a
//! stolen password opens only the subjects of one program.

use std::path::PathBuf;

use async_nats::{ConnectOptions, ServerAddr};
use clap::Args;
use percent_encoding::percent_decode_str;
use runtime::{config::BadSetting, files};
use secrecy::{ExposeSecret, SecretString};

/// Stands in every credentials file, and in no password.
const CREDENTIALS: &str = "BEGIN NATS USER JWT";

/// How many messages of a subscription may wait in memory. The client drops further ones.
const WAITING: usize = 1024;

/// The settings of the user, its secret, and the certificates that the server must present.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "NATS")]
pub struct NatsAccess {
    /// The password of the user with the name of the service, or the content of a credentials file
    ///
    /// A user with another name stands with its password in `NATS_URL`. A credentials file
    /// (`.creds`) holds a JWT and its NKEY seed.
    #[arg(long, env = "NATS_PASSWORD", hide_env_values = true)]
    pub nats_password: Option<SecretString>,

    /// A PEM file with the certificates of the CAs that may sign the certificate of NATS
    ///
    /// If it is set, connections without TLS are refused. The file is read at the start.
    #[arg(long, env = "NATS_CA_FILE")]
    pub nats_ca_file: Option<PathBuf>,
}

impl NatsAccess {
    /// The options of a connection to `servers`. If no setting holds credentials, user and password
    /// are taken from the first URL, because the client itself ignores them there.
    ///
    /// They are taken out of all URLs, because the client logs each URL that it connects to.
    pub fn options_for(
        &self,
        name: &str,
        servers: &mut [ServerAddr],
    ) -> anyhow::Result<ConnectOptions> {
        let options = self.options(name)?;
        let own = self.nats_password.is_some();
        let decoded = |part: &str| percent_decode_str(part).decode_utf8_lossy().into_owned();
        let in_url = servers.first().and_then(|one| {
            let user = one.username()?;
            Some([decoded(user), decoded(one.password()?)])
        });
        for server in servers {
            let mut url = server.clone().into_inner();
            // These fail only for URLs without a host, and such a URL is no address of a server.
            let removed = url.set_username("").and(url.set_password(None));
            if removed.is_err() {
                return Err(BadSetting::error("NATS_URL: an address has no host"));
            }
            *server = ServerAddr::from_url(url)?;
        }
        Ok(match in_url.filter(|_| !own) {
            Some([user, password]) => options.user_and_password(user, password),
            None => options,
        })
    }

    /// The options of a connection of the service `name`. Replies to it have a prefix that only
    /// this service may read.
    pub fn options(&self, name: &str) -> anyhow::Result<ConnectOptions> {
        let mut options = ConnectOptions::new()
            .name(name)
            .subscription_capacity(WAITING)
            .custom_inbox_prefix(format!("_INBOX_{}", name.replace(' ', "_")));
        if let Some(secret) = &self.nats_password {
            let text = secret.expose_secret();
            options = if text.contains(CREDENTIALS) {
                options.credentials(text).map_err(|_| {
                    BadSetting::error(
                        "NATS_PASSWORD: the value begins like a credentials file, but is not the whole content of one",
                    )
                })?
            } else {
                options.user_and_password(name.to_owned(), text.to_owned())
            };
        }
        if let Some(path) = &self.nats_ca_file {
            // The file is read here to find a mistake at the start, because the client would only
            // try again for ever.
            files::check_plain(path).map_err(|error| {
                BadSetting::error(format!("NATS_CA_FILE={}: {error}", path.display()))
            })?;
            options = options
                .add_root_certificates(path.clone())
                .require_tls(true);
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_is_given_no_url_with_a_password() {
        for url in [
            "nats://ingress:p%40ss-word@127.0.0.1:4222",
            "ingress:password@nats",
            "tls://token@nats:4222",
            "nats://nats",
        ] {
            let mut servers: [ServerAddr; 1] = [url.parse().unwrap()];
            let host = servers[0].host().to_owned();
            let port = servers[0].port();
            let access = NatsAccess::default();
            access.options_for("ingress", &mut servers).unwrap();
            let left = servers[0].as_url_str();
            assert!(
                !left.contains('@') && !left.contains("pass"),
                "{url}: {left}"
            );
            assert_eq!(
                (servers[0].host(), servers[0].port()),
                (host.as_str(), port)
            );
        }
    }
}
