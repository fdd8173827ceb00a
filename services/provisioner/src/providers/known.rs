//! All providers that can be named in `PROVIDERS`, and our accounts at them. This module makes the
//! options of the command line and the environment variables from their lists of settings, so a new
//! provider needs no struct of its own.

use std::collections::BTreeMap;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use runtime::config::BadSetting;
use secrecy::SecretString;

use super::{
    account::{KnownProvider, ProviderAccount, variable},
    airalo, esim_access,
    provider::{PacedCalls, ProviderConnection},
    sandbox, usimsa, zendit,
};

/// All providers that can be configured.
const KNOWN: [KnownProvider; 5] = [
    airalo::KNOWN,
    esim_access::KNOWN,
    sandbox::KNOWN,
    usimsa::KNOWN,
    zendit::KNOWN,
];

/// The length of the digest of an account.
const DIGEST: usize = 16;

/// Our accounts at all known providers.
#[derive(Clone, Debug)]
pub struct Accounts(BTreeMap<&'static str, ProviderAccount>);

impl Default for Accounts {
    /// No account has any setting.
    fn default() -> Self {
        let account = |known: &KnownProvider| (known.name, ProviderAccount::new(known.name));
        Self(KNOWN.iter().map(account).collect())
    }
}

impl Accounts {
    /// Accounts with one setting changed. Changes nothing if the provider has no such setting.
    #[must_use]
    pub fn with(mut self, provider: &str, setting: &str, value: &str) -> Self {
        self.set(provider, setting, value.into());
        self
    }

    fn set(&mut self, provider: &str, setting: &str, value: SecretString) {
        let known = KNOWN.iter().find(|known| known.name == provider);
        let setting = known.and_then(|known| {
            let variable = variable(known.name, setting);
            known.settings.iter().find(|one| one.variable == variable)
        });
        if let (Some(account), Some(setting)) = (self.0.get_mut(provider), setting) {
            account.values.insert(setting.variable, value);
        }
    }

    /// The value of a setting of a provider.
    pub fn get(&self, provider: &str, setting: &str) -> Option<&str> {
        self.0.get(provider)?.get(setting)
    }

    /// A digest that names the account: its address and access key. With another key it is another
    /// account, of which nothing is proved.
    pub fn digest(&self, name: &str) -> String {
        let part = |setting| self.get(name, setting).unwrap_or_default().trim();
        let url = part("URL").trim_end_matches('/');
        let text = format!("{name}\n{url}\n{}", part("ACCESS_KEY"));
        let mut digest = signing::request::digest(text.as_bytes());
        digest.truncate(DIGEST);
        digest
    }

    /// Creates the adapter of the provider with this name. Errors name the setting.
    pub fn connect(&self, name: &str, paced: PacedCalls) -> anyhow::Result<ProviderConnection> {
        let known = KNOWN.iter().find(|known| known.name == name);
        let (Some(known), Some(account)) = (known, self.0.get(name)) else {
            let names = KNOWN.map(|known| known.name).join(", ");
            return Err(BadSetting::error(format!(
                "{name:?} is not a provider that PROVIDERS can name; known are {names}"
            )));
        };
        (known.connect)(account, paced)
    }
}

impl Args for Accounts {
    fn augment_args(command: Command) -> Command {
        let settings = KNOWN.into_iter().flat_map(|known| {
            let settings = known.settings.iter();
            settings.map(move |setting| (known.heading, *setting))
        });
        command.args(settings.map(|(heading, setting)| {
            Arg::new(setting.variable)
                .long(setting.option)
                .env(setting.variable)
                .help(setting.help)
                .help_heading(heading)
                .hide_env_values(setting.is_secret())
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Accounts {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut accounts = Self::default();
        accounts.update_from_arg_matches(matches)?;
        Ok(accounts)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for known in KNOWN {
            for setting in known.settings {
                let value = matches.get_one::<String>(setting.variable);
                if let (Some(account), Some(value)) = (self.0.get_mut(known.name), value) {
                    let value = value.as_str().into();
                    account.values.insert(setting.variable, value);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{fmt::Write, sync::Arc, time::Duration};

    use domain::cut::{Cut, cut};

    use super::*;
    use crate::providers::{
        CallLimits, Capabilities, FindExtension, GiveBackWay, LookUp, Provider,
    };

    const BEGIN: &str = "<!-- Made from the adapters: UPDATE_DOCS=1 tests/run test -- -p provisioner the_table -->\n";
    const END: &str = "<!-- end -->\n";

    fn provider(known: &KnownProvider) -> Arc<dyn Provider> {
        testkit::http::client().unwrap(); // This installs the TLS provider.
        let accounts = Accounts::default()
            .with(known.name, "URL", "http://127.0.0.1:9")
            .with(known.name, "ACCESS_KEY", "key")
            .with(known.name, "SECRET_KEY", "c2VjcmV0LWtleQ==");
        let paced = PacedCalls::without_rate(CallLimits {
            timeout: Duration::from_secs(1),
            response_max: 1,
        });
        accounts.connect(known.name, paced).unwrap().provider
    }

    fn capabilities(known: &KnownProvider) -> Capabilities {
        provider(known).capabilities()
    }

    #[test]
    fn a_purchase_takes_longer_than_a_call_only_where_no_absence_is_believed() {
        let each = Duration::from_secs(10);
        for known in KNOWN {
            let timeout = provider(&known).purchase_timeout(each);
            let is_exact = capabilities(&known).look_up == LookUp::Exact;
            assert!(
                timeout >= each && (timeout == each || !is_exact),
                "{}",
                known.name
            );
        }
    }

    fn bought_at_once(cut: Cut) -> String {
        let options = if cut.one_option {
            "one option"
        } else {
            "any options"
        };
        match cut.units.map(std::num::NonZeroUsize::get) {
            None => options.to_owned(),
            Some(1) => "one eSIM".to_owned(),
            Some(most) => format!("{options}, at most {most} eSIMs"),
        }
    }

    /// A row for each capability, and a column for each provider.
    fn table() -> String {
        let yes_or_no = |is: bool| if is { "yes" } else { "no" }.to_owned();
        let columns = KNOWN.map(|known| {
            // Without `..`, so that a new capability gets a row.
            let Capabilities {
                purchase_key,
                look_up,
                callbacks,
                cancel,
                give_back,
                suspend,
                usage,
                extend,
                balance,
                catalogue,
                purchases,
            } = capabilities(&known);
            let look_up = match look_up {
                LookUp::Exact => "exact",
                LookUp::ById | LookUp::Search => "proves no absence",
            };
            let give_back = match give_back {
                None => "no",
                Some(GiveBackWay::Uninstalled) => "yes",
                Some(GiveBackWay::Claim) => "people decide",
            };
            let extend = match extend {
                None => "no",
                Some(FindExtension::Exact) => "exact",
                Some(FindExtension::ById | FindExtension::ByDifference) => "proves no absence",
            };
            [
                ("", known.name.to_owned()),
                ("---", "---".to_owned()),
                ("one purchase buys", bought_at_once(cut(known.name))),
                ("look-up of a purchase by our id", look_up.to_owned()),
                (
                    "a repeated purchase is sold once, by its word",
                    yes_or_no(purchase_key),
                ),
                ("callbacks", yes_or_no(callbacks)),
                ("cancel a unit without a profile", yes_or_no(cancel)),
                ("give back a delivered eSIM", give_back.to_owned()),
                ("suspend and resume a delivered eSIM", yes_or_no(suspend)),
                ("data use of an eSIM", yes_or_no(usage)),
                ("extend a delivered eSIM", extend.to_owned()),
                ("balance", yes_or_no(balance)),
                ("catalogue with prices", yes_or_no(catalogue)),
                ("list of purchases", yes_or_no(purchases)),
            ]
        });
        let mut text = String::new();
        for (row, (name, _)) in columns[0].iter().enumerate() {
            let cells = columns.each_ref().map(|column| column[row].1.as_str());
            let _ = writeln!(text, "|{name}|{}|", cells.join("|"));
        }
        text
    }

    /// `UPDATE_DOCS=1` writes it.
    #[test]
    fn the_table_of_providers_shows_what_they_declare() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/providers.md");
        let page = std::fs::read_to_string(path).unwrap();
        let (before, rest) = page.split_once(BEGIN).unwrap();
        let (_, after) = rest.split_once(END).unwrap();
        let made = format!("{before}{BEGIN}\n{}\n{END}{after}", table());
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, &made).unwrap();
        }
        assert!(
            page == made || std::env::var_os("UPDATE_DOCS").is_some(),
            "docs/providers.md is old: run this test with UPDATE_DOCS=1"
        );
    }
}
