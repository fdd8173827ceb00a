//! Where the files of archives are stored: a folder, or a bucket.
//!
//! Guarantee: [`ArchiveStore::store`] returns only when the file is stored under its name, whole,
//! and was read back with the SHA-256 of what was given. Whatever had this name before is replaced.

use std::{
    fmt,
    fs::{self, File},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use sha2::{Digest, Sha256};

use super::bucket::{Bucket, BucketUrl};

/// A place as it is named on the command line.
#[derive(Clone, Debug)]
pub enum ArchiveLocation {
    Folder(PathBuf),
    Bucket(BucketUrl),
}

impl ArchiveLocation {
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.contains("://") {
            text.parse().map(Self::Bucket)
        } else {
            Ok(Self::Folder(text.into()))
        }
    }

    /// Prepares the place. Nothing is written yet.
    pub fn open(&self) -> anyhow::Result<ArchiveStore> {
        match self {
            Self::Folder(folder) => {
                let found = fs::canonicalize(folder).with_context(|| {
                    format!(
                        "cannot use the folder {}; make it first, with mode 0700",
                        folder.display()
                    )
                })?;
                Ok(ArchiveStore::Folder(found))
            }
            Self::Bucket(url) => Ok(ArchiveStore::Bucket(Box::new(Bucket::open(url)?))),
        }
    }
}

/// A place that files can be stored in.
pub enum ArchiveStore {
    Folder(PathBuf),
    Bucket(Box<Bucket>),
}

impl ArchiveStore {
    /// Stores a file and reads it back. Returns its SHA-256.
    pub async fn store(&self, name: &str, bytes: &[u8]) -> anyhow::Result<String> {
        let sha256 = hex::encode(Sha256::digest(bytes));
        let found = match self {
            Self::Folder(folder) => {
                let path = folder.join(name);
                write(folder, &path, bytes)
                    .with_context(|| format!("cannot write {}", path.display()))?;
                fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?
            }
            Self::Bucket(bucket) => {
                bucket.put(name, bytes, &sha256).await?;
                bucket.get(name).await?
            }
        };
        ensure!(
            hex::encode(Sha256::digest(&found)) == sha256,
            "{} is not what was written: it has {} bytes instead of {}",
            self.of(name),
            found.len(),
            bytes.len()
        );
        Ok(sha256)
    }

    /// Removes a file, if there is one of this name.
    pub async fn remove(&self, name: &str) -> anyhow::Result<()> {
        match self {
            Self::Folder(folder) => match fs::remove_file(folder.join(name)) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
                _ => Ok(()),
            },
            Self::Bucket(bucket) => bucket.remove(name).await,
        }
    }

    /// The path or the URL of a file.
    pub fn of(&self, name: &str) -> String {
        match self {
            Self::Folder(folder) => folder.join(name).display().to_string(),
            Self::Bucket(bucket) => bucket.of(name),
        }
    }
}

impl fmt::Display for ArchiveStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => folder.display().fmt(f),
            Self::Bucket(bucket) => bucket.fmt(f),
        }
    }
}

/// Writes a file to disk, so that it has its name only when it is whole. Only its owner reads it.
fn write(folder: &Path, path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    File::open(folder)?.sync_all()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_is_replaced_whole_and_readable_by_its_owner_only() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().unwrap();
        let named = ArchiveLocation::parse(folder.path().to_str().unwrap()).unwrap();
        let place = named.open().unwrap();
        for text in ["longer than the other", "short"] {
            let sha256 = place.store("f", text.as_bytes()).await.unwrap();
            assert_eq!(sha256, hex::encode(Sha256::digest(text)));
            assert_eq!(fs::read_to_string(place.of("f")).unwrap(), text);
        }
        let mode = fs::metadata(place.of("f")).unwrap().mode();
        assert_eq!(mode & 0o077, 0);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        for _ in 0..2 {
            place.remove("f").await.unwrap();
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        }
        assert!(
            ArchiveLocation::parse("/nowhere/at/all")
                .unwrap()
                .open()
                .is_err()
        );
    }
}
