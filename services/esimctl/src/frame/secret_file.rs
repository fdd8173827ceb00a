//! Files that hold secrets.
//!
//! Guarantees: a file is either complete or absent, even after a crash or a power cut, and from the
//! start only its owner can read it (mode 0600). [`make`] never overwrites a file, so a key that is
//! in use cannot be lost by running a command twice. Both functions write a temporary file beside
//! the target, sync it, move it into place in one step, and sync the folder.

use std::{
    fs::File,
    io::{self, ErrorKind, Write},
    path::Path,
};

use anyhow::Context;
use tempfile::{NamedTempFile, PersistError};

/// Creates the file and returns `true`. If it exists already, it stays as it is, and the result is
/// `false`.
pub fn make(path: &Path, content: &str) -> anyhow::Result<bool> {
    match put(path, content, |unfinished| {
        unfinished.persist_noclobber(path)
    }) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        made => made
            .map(|()| true)
            .with_context(|| format!("cannot write {}", path.display())),
    }
}

/// Creates the file, or replaces its content.
pub fn replace(path: &Path, content: &str) -> anyhow::Result<()> {
    put(path, content, |unfinished| unfinished.persist(path))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn put(
    path: &Path,
    content: &str,
    finish: impl FnOnce(NamedTempFile) -> Result<File, PersistError>,
) -> io::Result<()> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let mut unfinished = NamedTempFile::new_in(folder)?;
    unfinished.write_all(content.as_bytes())?;
    unfinished.as_file().sync_all()?;
    finish(unfinished)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn what_is_there_stays_as_it_is_and_is_its_owners() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        assert!(make(&path, "first\n").unwrap());
        assert!(!make(&path, "second\n").unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "first\n");
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        replace(&path, "third\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "third\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(make(&folder.path().join("none/key"), "").is_err());
    }
}
