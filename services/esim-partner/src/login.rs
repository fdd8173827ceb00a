//! `esim-partner login`, which asks for the account's keys and stores them.
//!
//! It stores keys only after a signed request has shown that the service accepts them. A terminal
//! does not show a secret while it is typed.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, IsTerminal, Read},
    path::PathBuf,
};

use anyhow::{Context, bail, ensure};
use clap::Args;
use runtime::terminal::{self, print, printable, say};
use serde_json::Value;

use crate::{
    account::{self, AccountConfig, ApiClient},
    private::Hidden,
    profile::{LARGEST, parse_from, read, write},
};

#[derive(Args, Clone, Debug)]
pub(crate) struct Login {
    /// Read the keys from this file instead of asking for them
    ///
    /// It has lines such as `ACCESS_KEY=…`, or is a JSON object such as `{"access_key": …}`. `-` is
    /// standard input.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// The base URL of the API
    ///
    /// It replaces the `BASE_URL` of the file.
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,
}

impl Login {
    /// Checks the keys with a signed request, and stores them if it succeeds.
    pub(crate) async fn run(&self, config: &AccountConfig) -> anyhow::Result<()> {
        let mut settings = match &self.from {
            Some(file) if file.as_os_str() == "-" => {
                parse_from(io::stdin().lock(), "standard input")?
            }
            Some(file) => read(file)?,
            None => ask(self.base_url.is_some())?,
        };
        if let Some(base_url) = &self.base_url {
            settings.insert("BASE_URL".into(), base_url.clone());
        }
        let account = ApiClient::with(settings, account::TIMEOUT)?;
        if !account.has("WEBHOOK_SECRET") {
            say(
                "esim-partner: no WEBHOOK_SECRET was given; everything works without it except `certify` and `redeliver --forward-to`",
            );
        }
        let known = account.send("GET", "/account", "", None).await?;
        let why = if known.status == 401 {
            format!(
                " (server time: {}; if your clock is more than five minutes off, the service refuses every signature)",
                known.date
            )
        } else {
            String::new()
        };
        let known: Value = known.success().with_context(|| {
            format!("the request with these keys failed, so they are not stored{why}")
        })?;
        let file = config.file()?;
        write(&file, &account.settings)?;
        let text = |name: &str| known[name].as_str().unwrap_or_default().to_owned();
        let environment = text("environment");
        let name = text("name");
        let file = file.display();
        print(format!(
            "Logged in to the {} account {name:?}; the keys are stored in {file}",
            printable(&environment)
        ))
    }
}

/// Asks for the settings on the terminal. Secrets are not shown while they are typed.
fn ask(has_base_url: bool) -> anyhow::Result<BTreeMap<String, String>> {
    ensure!(
        io::stdin().is_terminal(),
        "standard input is not a terminal, so the keys cannot be asked for: name a file with --from, or use `--from -` for \
         standard input"
    );
    let mut settings = BTreeMap::new();
    for (name, question, secret) in [
        ("BASE_URL", "Base URL of the API", false),
        ("ACCESS_KEY", "Access key", false),
        ("SECRET_KEY", "Secret key (not shown)", true),
        (
            "WEBHOOK_SECRET",
            "Webhook secret, whsec_… (not shown; may be empty)",
            true,
        ),
    ] {
        if has_base_url && name == "BASE_URL" {
            continue;
        }
        // Before the question, because somebody may answer it, or paste the answer, at once.
        let hidden = secret.then(Hidden::begin).transpose()?;
        terminal::ask(format_args!("{question}: "))?;
        let value = line(hidden)?;
        if !value.is_empty() {
            settings.insert(name.to_owned(), value);
        }
    }
    Ok(settings)
}

/// Reads a line from the terminal, which shows it unless it is hidden.
fn line(hidden: Option<Hidden>) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = io::stdin().lock().take(LARGEST).read_line(&mut text);
    if hidden.is_some() {
        say("");
    }
    drop(hidden);
    if read.context("cannot read standard input")? == 0 {
        bail!("the input ended before all questions were answered; nothing is stored");
    }
    Ok(text.trim().to_owned())
}
