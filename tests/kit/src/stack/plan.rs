//! Which program of a stack gets which settings.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;

use super::stage::{
    CALLBACK_TOKEN, SANDBOX, SANDBOX_ACCESS_KEY, SANDBOX_SECRET_KEY, Stage, seller,
};
use crate::process::Program;
use crate::{bin_dir, ports};

/// The programs of a stack, with the settings by which they find each other.
pub(super) struct Plan<'a> {
    pub(super) dir: &'a Path,
    pub(super) common: &'a BTreeMap<String, String>,
    pub(super) sandbox_port: u16,
    /// The port of the first ingress.
    pub(super) ingress_port: u16,
    /// The port of the first provisioner, if the sandbox calls it back.
    pub(super) callback_port: Option<u16>,
    /// The address to which the sandbox posts its callbacks instead.
    pub(super) callback_relay: Option<&'a str>,
    /// The provider that the sandbox plays, see [`super::Builder::provider`].
    pub(super) provider: Option<&'a str>,
}

impl Plan<'_> {
    pub(super) fn sandbox_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.sandbox_port)
    }

    pub(super) fn base_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ingress_port)
    }

    /// The settings of the account at the provider that the sandbox plays.
    pub(super) fn account(&self) -> Vec<(String, String)> {
        let Some(provider) = self.provider else {
            return Vec::new();
        };
        let account = provider.to_uppercase().replace('-', "_");
        let mut settings = vec![
            (format!("{account}_URL"), self.sandbox_url()),
            (
                format!("{account}_ACCESS_KEY"),
                SANDBOX_ACCESS_KEY.to_owned(),
            ),
            (
                format!("{account}_SECRET_KEY"),
                SANDBOX_SECRET_KEY.to_owned(),
            ),
        ];
        if self.callback_port.is_some() {
            settings.push((
                format!("{account}_CALLBACK_TOKEN"),
                CALLBACK_TOKEN.to_owned(),
            ));
        }
        settings
    }

    /// The file name of a stage's program. A protocol that the sandbox does not speak needs the
    /// program for tests.
    fn binary(&self, stage: Stage) -> &'static str {
        match stage {
            Stage::Sandbox => seller(self.provider.unwrap_or(SANDBOX)),
            _ => stage.name(),
        }
    }

    pub(super) fn program(&self, stage: Stage, replica: usize) -> Result<Program> {
        let name = format!("{}-{replica}", stage.name());
        let fixed = match (stage, replica) {
            (Stage::Sandbox, _) => Some(self.sandbox_port),
            (Stage::Ingress, 0) => Some(self.ingress_port),
            (Stage::Provisioner, 0) => self.callback_port,
            _ => None,
        };
        let listen = fixed.map_or_else(ports::free, Ok)?;
        let admin = ports::free()?;
        let mut env = self.common.clone();
        let mut set = |name: &str, value: String| env.insert(name.to_owned(), value);
        set("LISTEN", format!("127.0.0.1:{listen}"));
        set("ADMIN_LISTEN", format!("127.0.0.1:{admin}"));
        if matches!(stage, Stage::Sandbox | Stage::Provisioner) {
            set("SANDBOX_ACCESS_KEY", SANDBOX_ACCESS_KEY.to_owned());
            set("SANDBOX_SECRET_KEY", SANDBOX_SECRET_KEY.to_owned());
        }
        match stage {
            Stage::Sandbox => {
                set(
                    "SANDBOX_LEDGER",
                    self.dir.join("ledger").display().to_string(),
                );
                if let Some(port) = self.callback_port {
                    let own = format!("http://127.0.0.1:{port}");
                    let to = self.callback_relay.unwrap_or(&own);
                    let of = |provider: &str| format!("{to}/callbacks/{provider}/{CALLBACK_TOKEN}");
                    // The sandbox and USIMSA have one protocol.
                    let usimsa = self.provider.filter(|name| *name == "usimsa");
                    set("SANDBOX_ESIM_ACCESS_CALLBACK_URL", of("esim-access"));
                    set("SANDBOX_ZENDIT_CALLBACK_URL", of("zendit"));
                    set("SANDBOX_CALLBACK_URL", of(usimsa.unwrap_or(SANDBOX)));
                }
            }
            Stage::Provisioner => {
                set("SANDBOX_URL", self.sandbox_url());
                if self.callback_port.is_some() {
                    set("SANDBOX_CALLBACK_TOKEN", CALLBACK_TOKEN.to_owned());
                }
                for (name, value) in self.account() {
                    set(&name, value);
                }
            }
            Stage::Ingress | Stage::Notifier => {
                set("PUBLIC_URL", self.base_url());
                set("WEBHOOK_ALLOW", "127.0.0.0/8".to_owned());
            }
        }
        Ok(Program {
            log: self.dir.join(format!("{name}.log")),
            name,
            binary: bin_dir().join(self.binary(stage)),
            args: Vec::new(),
            env,
            ready_url: format!("http://127.0.0.1:{admin}/readyz"),
        })
    }
}
