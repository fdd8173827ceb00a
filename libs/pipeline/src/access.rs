//! The credentials of a program at NATS, and the certificates that it trusts.

use std::path::PathBuf;

use async_nats::{ConnectOptions, ServerAddr};
use clap::Args;
use percent_encoding::percent_decode_str;
use runtime::config::BadSetting;

/// How many messages of a subscription wait in memory; the client drops further ones.
const WAITING: usize = 1024;

/// The user, its secret and the server's certificate.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "NATS")]
pub struct NatsAccess {
    /// A file with the password of `NATS_USER`
    #[arg(long, env = "NATS_PASSWORD_FILE")]
    pub nats_password_file: Option<PathBuf>,
    /// The user that `NATS_PASSWORD_FILE` belongs to [default: the name of the service]
    #[arg(long, env = "NATS_USER", requires = "nats_password_file")]
    pub nats_user: Option<String>,
    /// A credentials file (`.creds`: a JWT and its NKEY seed), instead of a password
    #[arg(long, env = "NATS_CREDENTIALS_FILE", conflicts_with = "nats_password_file")]
    pub nats_credentials_file: Option<PathBuf>,
    /// A PEM file with the certificates of the CAs that NATS' certificate must chain to; TLS is then required
    #[arg(long, env = "NATS_CA_FILE")]
    pub nats_ca_file: Option<PathBuf>,
}

impl NatsAccess {
    /// The options of a connection to `servers`. If no setting holds credentials, user and password come from the first
    /// URL; the client ignores them there.
    pub(crate) fn options_for(&self, name: &str, servers: &[ServerAddr]) -> anyhow::Result<ConnectOptions> {
        let options = self.options(name)?;
        let own = self.nats_password_file.is_some() || self.nats_credentials_file.is_some();
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
        if let Some(path) = &self.nats_password_file {
            let password = read("NATS_PASSWORD_FILE", path)?;
            let user = self.nats_user.clone().unwrap_or_else(|| name.to_owned());
            options = options.user_and_password(user, password.trim_end_matches('\n').to_owned());
        }
        if let Some(path) = &self.nats_credentials_file {
            let credentials = read("NATS_CREDENTIALS_FILE", path)?;
            options = options
                .credentials(&credentials)
                .map_err(|_| BadSetting::error("NATS_CREDENTIALS_FILE holds no credentials"))?;
        }
        if let Some(path) = &self.nats_ca_file {
            // Read here, because the client would try again for ever.
            read("NATS_CA_FILE", path)?;
            options = options.add_root_certificates(path.clone()).require_tls(true);
        }
        Ok(options)
    }
}

fn read(setting: &str, path: &PathBuf) -> anyhow::Result<String> {
    std::fs::read_to_string(path).map_err(|error| BadSetting::error(format!("{setting}={}: {error}", path.display())))
}
