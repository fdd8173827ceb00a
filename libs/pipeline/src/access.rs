//! The credentials of a program at NATS, and the certificates that it trusts. All programs that
//! connect to NATS share these settings. In production each one has a user of its own, so that a
//! stolen password opens only the subjects of one program.

use std::path::PathBuf;

use async_nats::{ConnectOptions, ServerAddr};
use clap::Args;
use percent_encoding::percent_decode_str;
use runtime::config::BadSetting;
use secrecy::{ExposeSecret, SecretString};

/// How many messages of a subscription may wait in memory. The client drops further ones.
const WAITING: usize = 1024;

/// The settings of the user, its secret, and the certificates that the server must present.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "NATS")]
pub struct NatsAccess {
    /// The password of `NATS_USER`
    #[arg(long, env = "NATS_PASSWORD", hide_env_values = true)]
    pub nats_password: Option<SecretString>,

    /// The user that `NATS_PASSWORD` belongs to [default: the name of the service]
    #[arg(long, env = "NATS_USER", requires = "nats_password")]
    pub nats_user: Option<String>,

    /// The content of a credentials file (`.creds`), instead of a password
    ///
    /// Such a file holds a JWT and its NKEY seed.
    #[arg(
        long,
        env = "NATS_CREDENTIALS",
        hide_env_values = true,
        conflicts_with = "nats_password"
    )]
    pub nats_credentials: Option<SecretString>,

    /// A PEM file with the certificates of the CAs that may sign the certificate of NATS
    ///
    /// If it is set, connections without TLS are refused. The file is read at the start.
    #[arg(long, env = "NATS_CA_FILE")]
    pub nats_ca_file: Option<PathBuf>,
}

impl NatsAccess {
    /// The options of a connection to `servers`. If no setting holds credentials, user and password
    /// are taken from the first URL, because the client itself ignores them there.
    pub fn options_for(
        &self,
        name: &str,
        servers: &[ServerAddr],
    ) -> anyhow::Result<ConnectOptions> {
        let options = self.options(name)?;
        let own = self.nats_password.is_some() || self.nats_credentials.is_some();
        let in_url = servers
            .first()
            .and_then(|one| one.username().zip(one.password()));
        let Some((user, password)) = in_url.filter(|_| !own) else {
            return Ok(options);
        };
        let [user, password] =
            [user, password].map(|part| percent_decode_str(part).decode_utf8_lossy().into_owned());
        Ok(options.user_and_password(user, password))
    }

    /// The options of a connection of the service `name`. Replies to it have a prefix that only
    /// this service may read.
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
            options = options
                .credentials(credentials.expose_secret())
                .map_err(|_| {
                    BadSetting::error(
                        "NATS_CREDENTIALS: the value is not the content of a credentials file; \
                         give the text of the file, not its path",
                    )
                })?;
        }
        if let Some(path) = &self.nats_ca_file {
            // The file is read here to find a mistake at the start, because the client would only
            // try again for ever.
            std::fs::read(path).map_err(|error| {
                BadSetting::error(format!("NATS_CA_FILE={}: {error}", path.display()))
            })?;
            options = options
                .add_root_certificates(path.clone())
                .require_tls(true);
        }
        Ok(options)
    }
}
