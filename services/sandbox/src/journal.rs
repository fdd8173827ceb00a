//! An append-only file of JSON lines, in which the ledger keeps its records.
//!
//! A record is appended by one `write(2)`. When [`Journal::append`] returns, the record is in the
//! page cache of the kernel, so a crash or a `kill -9` of this process does not lose it. The file
//! is not synced, so a power cut may lose the last seconds; no real money depends on it
//! (docs/decisions/0009-sandbox-ledger.md). A lock keeps a second process from writing into the
//! same file.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, BufRead, BufReader, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use anyhow::{Context, bail, ensure};
use serde::{Serialize, de::DeserializeOwned};

/// The open file, which is locked against a second process.
pub struct Journal {
    file: File,
    /// The length of all whole lines, in bytes.
    len: u64,
    /// Whether a write failed half-way. The next append then first removes what that write left
    /// after `len`.
    torn: bool,
}

impl Journal {
    /// Opens or creates the file, and hands each record to `replay`, oldest first.
    ///
    /// An incomplete last line is logged and cut off: the process was killed while it wrote, so the
    /// request got no answer and nobody relies on the record. Any other line that cannot be read,
    /// or that `replay` refuses, is an error that names the file and the line, because records that
    /// somebody relies on may be missing.
    pub fn open<R: DeserializeOwned>(
        path: &Path,
        mut replay: impl FnMut(R) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let name = path.display();
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)
            .with_context(|| format!("cannot open the ledger {name}"))?;
        ensure!(
            file.metadata()?.is_file(),
            "the ledger {name} is not a regular file: name a file in SANDBOX_LEDGER"
        );
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                bail!(
                    "the ledger {name} is in use by another process: stop that sandbox, or name another file in SANDBOX_LEDGER"
                )
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock the ledger {name}"));
            }
        }

        let mut len = 0;
        let mut reader = BufReader::new(&file);
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let read = reader
                .read_until(b'\n', &mut line)
                .with_context(|| format!("cannot read the ledger {name}"))?;
            if line.last() != Some(&b'\n') {
                if read > 0 {
                    tracing::warn!(
                        ledger = %name,
                        line = number,
                        bytes = read,
                        "the last line of the ledger is incomplete and is cut off; its request got no answer, so nothing need be done"
                    );
                    file.set_len(len).with_context(|| {
                        format!("cannot cut the incomplete last line off the ledger {name}")
                    })?;
                }
                break;
            }
            serde_json::from_slice(&line)
                .map_err(anyhow::Error::from)
                .and_then(&mut replay)
                .with_context(|| format!("the ledger {name} is corrupt in line {number}"))?;
            len += read as u64;
        }
        Ok(Self {
            file,
            len,
            torn: false,
        })
    }

    /// Appends one record. If it fails, the record counts as not written: whatever the write left
    /// is removed, at the latest when the next record is appended.
    pub fn append(&mut self, record: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        if self.torn {
            self.file.set_len(self.len)?;
            self.torn = false;
        }
        let written = self.file.write(&line);
        if let Ok(written) = written
            && written == line.len()
        {
            self.len += line.len() as u64;
            return Ok(());
        }
        self.torn = true;
        written.and(Err(io::ErrorKind::WriteZero.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &Path) -> anyhow::Result<Vec<u32>> {
        let mut records = Vec::new();
        Journal::open(path, |record: u32| {
            records.push(record);
            Ok(())
        })?;
        Ok(records)
    }

    #[test]
    fn what_a_failed_write_left_is_removed_before_the_next_record() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let mut journal = Journal::open(&path, |_: u32| Ok(())).unwrap();
        journal.append(&1).unwrap();
        journal.file.write_all(b"{\"half").unwrap();
        journal.torn = true;
        journal.append(&2).unwrap();
        drop(journal);
        assert_eq!(read(&path).unwrap(), [1, 2]);
    }

    #[test]
    fn a_file_has_one_process_and_is_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let _open = Journal::open(&path, |_: u32| Ok(())).unwrap();
        let error = |path: &Path| read(path).unwrap_err().to_string();
        assert!(error(&path).contains("in use by another process"));
        assert!(error(Path::new("/dev/null")).contains("not a regular file"));
    }
}
