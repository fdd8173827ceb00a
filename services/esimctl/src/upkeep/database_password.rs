//! The password of the database's owner, which `esimctl secrets create` makes for the first start
//! of a system.
//!
//! The server reads it when it creates the database, and from then on keeps it itself. So the file
//! is written once and never changed: another password in the file would only lock its users out.

use std::path::Path;

use anyhow::bail;
use runtime::files;
use secrecy::{ExposeSecret, SecretString};

use crate::secret_file;

/// The content of a file for `PGPASSFILE` that gives this password to every server and role.
/// Backslashes and colons are escaped, because a colon separates the fields of the file.
pub fn pgpass(password: &str) -> String {
    let escaped = password.replace('\\', "\\\\").replace(':', "\\:");
    format!("*:*:*:*:{escaped}\n")
}

/// Writes two files into the folder if they are missing: `password` for the server
/// (`POSTGRES_PASSWORD_FILE`), and `pgpass` for its clients (`PGPASSFILE`). Without a given
/// password it makes a random one. It fails if a password is given and the file holds another one.
pub fn ensure(folder: &Path, password: Option<&SecretString>) -> anyhow::Result<()> {
    let given = password
        .map(ExposeSecret::expose_secret)
        .filter(|password| !password.is_empty());
    if given.is_some_and(|password| password.contains(['\n', '\r', '\0'])) {
        bail!(
            "POSTGRES_PASSWORD has a line break or a NUL, which a password file cannot hold: choose another password"
        );
    }
    let new = given.map_or_else(|| hex::encode(rand::random::<[u8; 24]>()), str::to_owned);
    let file = folder.join("password");
    secret_file::make(&file, &format!("{new}\n"))?;
    let path = file.display();
    // PostgreSQL reads the file, too, so a quote in it is a part of the password.
    let stored = files::read(&file)?;
    let stored = stored.trim_end_matches('\n');
    if given.is_some_and(|given| given != stored) {
        bail!(
            "{path} holds another password, and so does the database that was created with it: change it there \
             (ALTER ROLE) and in both files, or restore the old POSTGRES_PASSWORD"
        );
    }
    // Written in any case: after a crash between the two files, the next call writes the second
    // one.
    secret_file::make(&folder.join("pgpass"), &pgpass(stored)).map(drop)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_password_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        let ensure = |password: Option<&str>| {
            super::ensure(folder.path(), password.map(Into::into).as_ref())
        };
        ensure(Some(r"a:b\c")).unwrap();
        assert_eq!(
            (read("password").as_str(), read("pgpass").as_str()),
            ("a:b\\c\n", "*:*:*:*:a\\:b\\\\c\n")
        );
        ensure(None).unwrap();
        let other = ensure(Some("other")).unwrap_err().to_string();
        assert!(other.contains("another password"), "{other}");
        assert_eq!(read("password"), "a:b\\c\n");
    }
}
