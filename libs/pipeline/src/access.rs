//! The credentials of a program at NATS, and the certificates that it trusts.

use std::path::PathBuf;

use async_nats::{ConnectOptions, ServerAddr};
use clap::Args;
use percent_encoding::percent_decode_str;
use runtime::config::BadSetting;
use secrecy::{ExposeSecret, SecretString};

/// How many messages of a subscription wait in memory; the client drops further ones.
const WAITING: usize = 1024;

/// The user, its secret and the server's certificate.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "NATS")]
pub struct NatsAccess {
    /// The password of `NATS_USER`
    #[arg(long, env = "NATS_PASSWORD", hide_env_values = true)]
    pub nats_password: Option<SecretString>,

    /// The user that `NATS_PASSWORD` belongs to [default: the name of the service]
    #[arg(long, env = "NATS_USER", requires = "nats_password")]
    pub nats_user: Option<String>,

    /// The content of a credentials file (`.creds`: a JWT and its NKEY seed), instead of a password
    #[arg(long, env = "NATS_CREDENTIALS", hide_env_values = true, conflicts_with = "nats_password")]
    pub nats_credentials: Option<SecretString>,

    /// A PEM file with the certificates of the CAs that NATS' certificate must chain to; TLS is then required
    #[arg(long, env = "NATS_CA_FILE")]
    pub nats_ca_file: Option<PathBuf>,
}

impl NatsAccess {
    /// The options of a connection to `servers`. If no setting holds credentials, user and password come from the first
    /// URL; the client ignores them there.
    pub(crate) fn options_for(&self, name: &str, servers: &[ServerAddr]) -> anyhow::Result<ConnectOptions> {
        let options = self.options(name)?;
        let own = self.nats_password.is_some() || self.nats_credentials.is_some();
        let in_url = servers.first().and_then(|one| one.username().zip(one.password()));
        let Some((user, password)) = in_url.filter(|_| !own) else {
            return Ok(options);
        };
        let [user, password] = [user, password].map(|part| percent_decode_str(part).decode_utf8_lossy().into_owned());
        Ok(options.user_and_password(user, password))
    }

    /// The options of a connection of the service `name`. Its replies have a prefix that only it may read.
    pub fn options(&self, name: &str) -> anyhow::Result<ConnectOptions> {
        let mut options = ConnectOptions::new()
            .name(name)
            .subscription_capacity(WAITING)
            .custom_inbox_prefix(format!("_INBOX_{}", name.replace(' ', "_")));
        if let Some(password) = &self.nats_password {
            let user = self.nats_user.clone().unwrap_or_else(|| name.to_owned());
            options = options.user_and_password(user, password.expose_secret().to_owned());
        }
        if let Some(credentials) = &self.nats_credentials {
            options = options.credentials(credentials.expose_secret()).map_err(|_| {
                BadSetting::error("NATS_CREDENTIALS: the value is not the content of a credentials file")
            })?;
        }
        if let Some(path) = &self.nats_ca_file {
            // Read here, because the client would try again for ever.
            std::fs::read(path)
                .map_err(|error| BadSetting::error(format!("NATS_CA_FILE={}: {error}", path.display())))?;
            options = options.add_root_certificates(path.clone()).require_tls(true);
        }
        Ok(options)
    }
}
