//! Secret files: complete or absent, readable by their owner only, never overwritten by accident.

use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use anyhow::Context;

/// Creates a file. `false`: it exists already and stays.
pub fn make(path: &Path, content: &str) -> anyhow::Result<bool> {
    put(path, content, |unfinished| fs::hard_link(unfinished, path))
}

/// Replaces a file.
pub fn replace(path: &Path, content: &str) -> anyhow::Result<()> {
    put(path, content, |unfinished| fs::rename(unfinished, path)).map(|_| ())
}

fn put(
    path: &Path,
    content: &str,
    finish: impl FnOnce(&Path) -> std::io::Result<()>,
) -> anyhow::Result<bool> {
    let (folder, name) = (path.parent(), path.file_name());
    let (Some(folder), Some(name)) = (folder, name) else {
        anyhow::bail!("{} is not the name of a file", path.display());
    };
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    let unfinished = folder.join(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    let made = write(&unfinished, content)
        .and_then(|()| finish(&unfinished))
        .and_then(|()| File::open(folder)?.sync_all());
    let _ = fs::remove_file(&unfinished);
    match made {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot write {}", path.display())),
    }
}

fn write(path: &Path, content: &str) -> std::io::Result<()> {
    // A crash may have left an unfinished file under this name.
    let _ = fs::remove_file(path);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_is_there_stays_as_it_is_and_is_its_owners() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        assert!(make(&path, "first\n").unwrap());
        assert!(!make(&path, "second\n").unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "first\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        replace(&path, "third\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "third\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(make(&folder.path().join("none/key"), "").is_err());
    }
}
