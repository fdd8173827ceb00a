//! The account's keys in files.
//!
//! Stored keys are readable by the user alone: the file has mode 0600 from the start and is
//! replaced in one step, so it is never half written. A file of `NAME=value` lines can also be read
//! by a shell, and the JSON that `esimctl partner create` prints is accepted too.
//!
//! [`crate::account`] reads them, and [`crate::login`] stores them.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};
use reqwest::Url;
use runtime::{files, terminal::say};
use serde_json::{Map, Value};
use signing::{SecretKey, webhook::Secret};

use crate::private;

/// The names of an account's settings. Other names in a file are ignored.
pub(crate) const NAMES: [&str; 5] = [
    "BASE_URL",
    "ACCESS_KEY",
    "SECRET_KEY",
    "WEBHOOK_SECRET",
    "BRAND",
];

/// How much of a keys file is read, in bytes.
pub(crate) const LARGEST: u64 = 64 * 1024;

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
    if private::is_exposed(&opened.metadata().with_context(failed)?) {
        say(format_args!(
            "esim-partner: other users can use {shown}, which holds your keys; to prevent it: chmod 600 {shown}"
        ));
    }
    parse_from(opened, &shown.to_string())
}

pub(crate) fn parse_from(
    source: impl Read,
    name: &str,
) -> anyhow::Result<BTreeMap<String, String>> {
    parse(&files::read_from(source, name, LARGEST)?, name)
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
                check(&name, value).with_context(|| file.to_owned())?;
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
        check(&one.name, &one.value).with_context(|| format!("{file}, line {line}"))?;
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
pub(crate) fn write(file: &Path, settings: &BTreeMap<String, String>) -> anyhow::Result<()> {
    let folder = file.parent().context("the keys file has no folder")?;
    let failed = || format!("cannot write {}", file.display());
    private::make_folder(folder).with_context(failed)?;
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

/// Checks the value of a setting. The error names the setting and does not show the value, because
/// it may be a secret. An empty value is as good as none.
pub(crate) fn check(name: &str, value: &str) -> anyhow::Result<()> {
    match name {
        _ if value.is_empty() => {}
        "BASE_URL" => drop(base_url(value)?),
        "ACCESS_KEY" => ensure!(
            value.bytes().all(|byte| byte.is_ascii_graphic()),
            "ACCESS_KEY holds a character that no access key has, such as a blank, a line break or an umlaut: copy it again"
        ),
        "SECRET_KEY" => {
            SecretKey::from_base64(value).context("SECRET_KEY is not a secret key in Base64")?;
        }
        "WEBHOOK_SECRET" => {
            Secret::parse(value)
                .context("WEBHOOK_SECRET is not a webhook secret, which begins with whsec_")?;
        }
        "BRAND" => ensure!(
            value
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'),
            "BRAND is part of the names of headers, so it must consist of letters, digits and hyphens"
        ),
        _ => {}
    }
    Ok(())
}

pub(crate) fn base_url(value: &str) -> anyhow::Result<Url> {
    const LIKE: &str = "write it like https://esim.example.com";
    let url: Url = value
        .parse()
        .map_err(|error| anyhow::anyhow!("BASE_URL is not a URL ({error}); {LIKE}"))?;
    ensure!(
        matches!(url.scheme(), "http" | "https") && url.has_host(),
        "BASE_URL is not an http:// or https:// URL; {LIKE}"
    );
    ensure!(
        url.username().is_empty() && url.password().is_none(),
        "BASE_URL must not hold a user name or a password, because requests are signed with the keys instead; {LIKE}"
    );
    ensure!(
        url.query().is_none() && url.fragment().is_none(),
        "BASE_URL must have no query and no fragment, because the paths of the API follow it; {LIKE}"
    );
    Ok(url)
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

    #[cfg(unix)]
    #[test]
    fn stored_keys_are_the_users_alone_and_replaced_in_one_step() {
        use std::os::unix::fs::PermissionsExt;
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
    fn a_profile_name_is_no_path() {
        assert_eq!(name("acme-2").as_deref(), Ok("acme-2"));
        for bad in ["", "../x", "a/b", "a.b"] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }
}
