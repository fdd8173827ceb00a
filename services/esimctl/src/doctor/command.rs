//! What the doctor is told: where to look, and what to leave out.

use std::path::PathBuf;

use clap::Args;
use console_pages::openid::OpenIdConfig;
use pg::config::MasterKeyConfig;
use pipeline::NatsAccess;
use secrecy::SecretString;
use webhooks::dns::NameServers;

use crate::doctor::line::Area;

#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {
    /// Print only warnings and faults, and nothing if there are none
    #[arg(long)]
    pub(super) quiet: bool,
    /// Leave out the checks of these areas, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "AREA")]
    pub(super) without: Vec<Area>,
    /// Address of NATS, for example `nats://host:4222` or `tls://host:4222`
    ///
    /// User and password may stand in it. Otherwise the user is `operator`, with `NATS_PASSWORD`.
    #[arg(long, env = "NATS_URL", hide_env_values = true)]
    pub(super) nats_url: Option<SecretString>,
    #[command(flatten)]
    pub(super) access: NatsAccess,
    /// Prefix of the names of streams and subjects, as the services have it
    #[arg(long, env = "STREAM_PREFIX", default_value = "")]
    pub(super) stream_prefix: String,
    /// Number of servers that should keep a copy of each stream, as the services have it
    #[arg(long, env = "STREAM_REPLICAS", default_value_t = 1)]
    pub(super) stream_replicas: u64,
    #[command(flatten)]
    pub(super) master_key: MasterKeyConfig,
    /// The name servers for webhooks, as notifier and ingress have them
    #[arg(long, env = "WEBHOOK_RESOLVERS", value_parser = NameServers::parse, default_value = "")]
    pub(super) webhook_resolvers: NameServers,
    /// Whether commits must wait for a standby, as the services have it
    #[arg(
        long,
        env = "REQUIRE_SYNCHRONOUS",
        default_value_t = false,
        default_missing_value = "true",
        num_args = 0..=1,
        action = clap::ArgAction::Set
    )]
    pub(super) require_synchronous: bool,
    /// A file of metrics in Prometheus' format, with those of backups, drills and disks
    ///
    /// `deploy/backup` and `deploy/drill` write such files for `node_exporter`.
    #[arg(long, value_name = "FILE")]
    pub(super) metrics: Vec<PathBuf>,
    /// The folder that `esimctl secrets create` has made
    ///
    /// With it, the doctor logs in to PostgreSQL and NATS as each stage.
    #[arg(long, value_name = "FOLDER")]
    pub(super) secrets: Option<PathBuf>,
    // The last one, because its heading would hold for all settings that follow.
    #[command(flatten)]
    pub(super) openid: OpenIdConfig,
}

impl DoctorArgs {
    pub(super) fn wants(&self, area: Area) -> bool {
        !self.without.contains(&area)
    }
}
