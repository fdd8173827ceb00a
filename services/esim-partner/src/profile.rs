//! The account's keys in files, and `esim-partner login`, which asks for them and stores them.
//!
//! Stored keys are readable by the user alone: the file has mode 0600 from the start and is
//! replaced in one step, so it is never half written. `login` stores keys only after a signed
//! request has shown that the service accepts them. A terminal does not show a secret while it is
//! typed. A file of `NAME=value` lines can also be read by a shell, and the JSON that `esimctl
//! partner create` prints is accepted too.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder},
    io::{self, BufRead, IsTerminal, Read, Write},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};
use clap::Args;
use runtime::{
    files,
    terminal::{self, print, printable, say},
};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use serde_json::{Map, Value};

use crate::account::{self, Account, AccountConfig};

/// The names of an account's settings. Other names in a file are ignored.
pub(crate) const NAMES: [&str; 5] = [
    "BASE_URL",
    "ACCESS_KEY",
    "SECRET_KEY",
    "WEBHOOK_SECRET",
    "BRAND",
];

/// How much of a keys file is read, in bytes.
const LARGEST: u64 = 64 * 1024;

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

/// Parses the name of a profile. The name becomes part of a file name, so it must not lead to
/// another folder.
pub(crate) fn name(text: &str) -> Result<String, String> {
    let plain = text
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if plain && !text.is_empty() {
        Ok(text.to_owned())
    } else {
        Err("it must consist of letters, digits, `-` and `_`".into())
    }
}

/// The file of a profile, which is `~/.config/esim-partner/default.env` if none is named.
pub(crate) fn file(profile: Option<&str>) -> anyhow::Result<PathBuf> {
    let folder = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let config = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")));
    let config = config.context(
        "HOME is not set, so there is no place for stored keys: set HOME, or name a file of keys with --keys",
    )?;
    Ok(config
        .join("esim-partner")
        .join(format!("{}.env", profile.unwrap_or("default"))))
}

/// Reads the settings of a file, and warns if other users can read it.
pub(crate) fn read(file: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let shown = file.display();
    let failed = || format!("cannot read the keys file {shown}");
    let opened = fs::File::open(file).with_context(failed)?;
    if exposed(opened.metadata().with_context(failed)?.permissions().mode()) {
        say(format_args!(
            "esim-partner: other users can use {shown}, which holds your keys; to prevent it: chmod 600 {shown}"
        ));
    }
    parse_from(opened, &shown.to_string())
}

fn parse_from(source: impl Read, name: &str) -> anyhow::Result<BTreeMap<String, String>> {
    parse(&files::read_from(source, name, LARGEST)?, name)
}

/// Whether others than the owner can use a file of this mode. Kubernetes mounts a secret with mode 0440: it belongs to root, and
/// the pod's group reads it. Nobody in the pod could change that, so there is nothing to warn of.
fn exposed(mode: u32) -> bool {
    mode & 0o077 != 0 && mode & 0o777 != 0o440
}

/// Reads the settings of a text, and checks them. `file` is what errors call it.
fn parse(text: &str, file: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let mut settings = BTreeMap::new();
    if text.trim_start().starts_with('{') {
        let json: Map<String, Value> = serde_json::from_str(text)
            .with_context(|| format!("{file} begins like JSON, but is not a JSON object"))?;
        for (name, value) in &json {
            let name = name.to_ascii_uppercase();
            if let Some(value) = value.as_str().filter(|_| NAMES.contains(&name.as_str())) {
                account::check(&name, value).with_context(|| file.to_owned())?;
                settings.insert(name, value.to_owned());
            }
        }
        return Ok(settings);
    }
    let mut lines: BTreeMap<String, usize> = BTreeMap::new();
    for one in files::assignments(text, file)? {
        let line = one.line;
        if !NAMES.contains(&one.name.as_str()) {
            continue;
        }
        account::check(&one.name, &one.value).with_context(|| format!("{file}, line {line}"))?;
        if let Some(first) = lines.insert(one.name.clone(), line) {
            bail!(
                "{file}, line {line}: {} stands in line {first}, too: remove one of the two",
                one.name
            );
        }
        settings.insert(one.name, one.value);
    }
    Ok(settings)
}

/// Writes the file in one step. It has mode 0600 from the start, and a new folder has mode 0700.
fn write(file: &Path, settings: &BTreeMap<String, String>) -> anyhow::Result<()> {
    let folder = file.parent().context("the keys file has no folder")?;
    let failed = || format!("cannot write {}", file.display());
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .with_context(failed)?;
    let mut new = tempfile::NamedTempFile::new_in(folder).with_context(failed)?;
    for (name, value) in settings {
        // A shell may read the file too, so a value must not hold a character that has a meaning
        // there.
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_./:@%+,=-[]".contains(&byte);
        ensure!(
            value.bytes().all(plain),
            "{name} holds a character that is not allowed, such as a blank or a quotation mark: check its value; nothing is stored"
        );
        writeln!(new, "{name}={value}").with_context(failed)?;
    }
    new.as_file().sync_all().with_context(failed)?;
    new.persist(file).with_context(failed)?;
    Ok(())
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
        let account = Account::with(settings, account::TIMEOUT)?;
        if !account.has("WEBHOOK_SECRET") {
            say(
                "esim-partner: no WEBHOOK_SECRET was given; everything works without it except `certify` and `redeliver --forward-to`",
            );
        }
        let known = account.send("GET", "/account", "", None).await?;
        let date = known.date.clone();
        let known: Value = known.success().with_context(|| {
            format!(
                "the request with these keys failed, so they are not stored (server time: {date}; if your clock is more than five \
                 minutes off, the service refuses every signature)"
            )
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
        terminal::ask(format_args!("{question}: "))?;
        let value = line(secret)?;
        if !value.is_empty() {
            settings.insert(name.to_owned(), value);
        }
    }
    Ok(settings)
}

/// Reads a line from the terminal, which does not show it if it is secret.
fn line(secret: bool) -> anyhow::Result<String> {
    let hidden = if secret { Some(Hidden::begin()?) } else { None };
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

/// While this exists, the terminal does not show what is typed. Dropping it restores the terminal,
/// also after an error.
struct Hidden(Termios);

impl Hidden {
    fn begin() -> anyhow::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        tcsetattr(io::stdin(), OptionalActions::Flush, &silent)?;
        Ok(Self(before))
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_json_are_read_and_unknown_names_are_dropped() {
        let expected = BTreeMap::from([
            ("ACCESS_KEY".to_owned(), "ak".to_owned()),
            ("SECRET_KEY".to_owned(), "c2VjcmV0LWtleQ==".to_owned()),
        ]);
        let lines = "# keys\nexport ACCESS_KEY=ak\nSECRET_KEY = c2VjcmV0LWtleQ==\r\nPATH=/bin\n";
        let json = r#"{"access_key": "ak", "secret_key": "c2VjcmV0LWtleQ==", "name": "Acme", "webhook_url": null}"#;
        assert_eq!(parse(lines, "keys").unwrap(), expected);
        assert_eq!(parse(json, "keys").unwrap(), expected);
    }

    #[test]
    fn files_are_read_as_editors_and_shells_write_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys.env");
        let said = |text: &str| {
            fs::write(&file, text).unwrap();
            read(&file).map_err(|error| format!("{error:#}"))
        };
        for text in [
            "\u{feff}ACCESS_KEY=ak\r\nBASE_URL=\"http://localhost:1\"\r\n",
            "export ACCESS_KEY='ak' # mine\nBASE_URL='http://localhost:1'",
            "\u{feff}{\"access_key\": \"ak\",\r\n \"base_url\": \"http://localhost:1\"}\r\n",
        ] {
            let settings = said(text).unwrap();
            assert_eq!(settings["ACCESS_KEY"], "ak", "{text:?}");
            assert_eq!(settings["BASE_URL"], "http://localhost:1", "{text:?}");
        }
        for (text, part) in [
            (
                "ACCESS_KEY=ak\nhush\n",
                "keys.env, line 2: it has no equals sign",
            ),
            (
                "ACCESS_KEY=ak\nBASE_URL=localhost\n",
                "keys.env, line 2: BASE_URL is not a URL",
            ),
            (
                "ACCESS_KEY=ak\nACCESS_KEY=hush\n",
                "keys.env, line 2: ACCESS_KEY stands in line 1, too",
            ),
            ("{\"access_key\": \"hush\",\n}", "line 2"),
        ] {
            let error = said(text).unwrap_err();
            assert!(error.contains(part) && !error.contains("hush"), "{error}");
        }
    }

    #[test]
    fn stored_keys_are_the_users_alone_and_replaced_in_one_step() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("new/acme.env");
        for key in ["one", "two"] {
            let settings = BTreeMap::from([("ACCESS_KEY".to_owned(), key.to_owned())]);
            write(&file, &settings).unwrap();
            assert_eq!(read(&file).unwrap(), settings);
        }
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
        let bad = BTreeMap::from([("ACCESS_KEY".to_owned(), "a\nBASE_URL=b".to_owned())]);
        assert!(write(&file, &bad).is_err());
        assert_eq!(read(&file).unwrap()["ACCESS_KEY"], "two");
    }

    #[test]
    fn a_mounted_secret_is_not_exposed() {
        let private = [0o100_600, 0o100_400, 0o100_440];
        let open = [0o100_640, 0o100_644, 0o100_444];
        assert_eq!(private.map(exposed), [false; 3]);
        assert_eq!(open.map(exposed), [true; 3]);
    }

    #[test]
    fn a_profile_name_is_no_path() {
        assert_eq!(name("acme-2").as_deref(), Ok("acme-2"));
        for bad in ["", "../x", "a/b", "a.b"] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }
}
