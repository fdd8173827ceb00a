//! The folder of one archive: a file for each table, and the manifest.
//!
//! Each file is CSV as PostgreSQL's COPY writes it, compressed with gzip. The first column,
//! `of_order`, is the id of the order that a row belongs to, and the rows are in the order of these
//! ids. A header line names the columns. It is repeated where a run was continued, because the
//! schema may have changed in between.
//!
//! Guarantee: [`Writer::append`] returns only when the rows are on disk. What was appended and not
//! committed in the database is cut off again, by [`Writer::rollback`] or when the next run opens
//! the folder.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{BufReader, Read, Seek, SeekFrom, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};
use flate2::{Compression, write::GzEncoder};
use sha2::{Digest, Sha256};
use tools::archive::{Archive, FileState, Part, TABLES};

use super::{
    manifest::{Manifest, ManifestFile, file_name},
    records::Records,
};

pub const MANIFEST: &str = "manifest.json";
/// The version of the layout that this program writes and reads.
const FORMAT: u32 = 1;
/// A low level, because a higher one costs twice the processor time and saves a tenth of the space.
const LEVEL: u32 = 3;

/// What is in a file.
pub struct Inspected {
    pub rows: u64,
    pub bytes: u64,
    pub sha256: String,
    pub first_order: Option<String>,
    pub last_order: Option<String>,
}

/// Reads a whole file: its sum, its number of rows, and its first and last order.
pub fn inspect(path: &Path) -> anyhow::Result<Inspected> {
    let shown = path.display();
    let mut file = File::open(path).with_context(|| format!("cannot open {shown}"))?;
    let mut sum = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    let mut bytes = 0;
    loop {
        let read = file
            .read(&mut buffer)
            .with_context(|| format!("cannot read {shown}"))?;
        if read == 0 {
            break;
        }
        sum.update(&buffer[..read]);
        bytes += read as u64;
    }
    let mut records = Records::open(path)?;
    let mut inspected = Inspected {
        rows: 0,
        bytes,
        sha256: hex::encode(sum.finalize()),
        first_order: None,
        last_order: None,
    };
    let unreadable = || format!("cannot read {shown}: it was changed or is cut off");
    while let Some(record) = records.next().with_context(unreadable)? {
        inspected.rows += 1;
        let order = record.order.to_owned();
        if let Some(last) = &inspected.last_order {
            ensure!(
                *last <= order,
                "{shown}: the rows of order {order} stand behind those of order {last}, so the file was changed"
            );
        }
        inspected.first_order.get_or_insert_with(|| order.clone());
        inspected.last_order = Some(order);
    }
    Ok(inspected)
}

/// Reads the manifest of a folder. Returns it with its own SHA-256.
pub fn manifest(folder: &Path) -> anyhow::Result<(Manifest, String)> {
    let path = folder.join(MANIFEST);
    let shown = path.display();
    let text = fs::read(&path).with_context(|| {
        format!(
            "cannot read {shown}; an archive has no manifest before its run is complete, so run `esimctl archive run` again"
        )
    })?;
    let manifest: Manifest =
        serde_json::from_slice(&text).with_context(|| format!("{shown} is not a manifest"))?;
    ensure!(
        manifest.format == FORMAT,
        "{shown} has format {}, and this version of esimctl reads format {FORMAT}; use the version that wrote it ({})",
        manifest.format,
        manifest.version,
    );
    Ok((manifest, hex::encode(Sha256::digest(&text))))
}

/// One file that rows are appended to.
struct Appended {
    name: String,
    path: PathBuf,
    file: File,
    /// The header that the last rows have. `None` after the folder was opened.
    header: Option<Vec<u8>>,
    committed: FileState,
    written: FileState,
}

/// The files of an archive that a run writes.
pub struct Writer {
    folder: PathBuf,
    files: Vec<Appended>,
}

impl Writer {
    /// Opens the folder of an archive, or makes it, and cuts off what was not committed.
    pub fn open(folder: &Path, archive: &Archive) -> anyhow::Result<Self> {
        let shown = folder.display();
        if !folder.exists() {
            ensure!(
                archive.files.is_empty(),
                "the folder {shown} of archive {} is gone, although {} orders are in it; put it back, for example from a copy",
                archive.archive,
                archive.orders,
            );
            fs::DirBuilder::new()
                .mode(0o700)
                .create(folder)
                .with_context(|| format!("cannot make the folder {shown}"))?;
            sync_folder(folder.parent().unwrap_or(folder))?;
        }
        let mut files = Vec::new();
        for table in TABLES {
            let name = file_name(table.name);
            let path = folder.join(&name);
            let committed = archive.files.get(&name).copied().unwrap_or_default();
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path)
                .with_context(|| format!("cannot open {}", path.display()))?;
            let length = file.metadata()?.len();
            ensure!(
                length >= committed.bytes,
                "{} has {length} bytes, but {} bytes of it are committed as archived; put the whole file back, for example \
                 from a copy, because the missing orders are nowhere else",
                path.display(),
                committed.bytes,
            );
            file.set_len(committed.bytes)?;
            file.seek(SeekFrom::End(0))?;
            files.push(Appended {
                name,
                path,
                file,
                header: None,
                committed,
                written: committed,
            });
        }
        sync_folder(folder)?;
        Ok(Self {
            folder: folder.to_owned(),
            files,
        })
    }

    /// Appends the rows of a batch to their files and waits until they are on disk. Returns the
    /// number of rows of each part.
    pub fn append(&mut self, parts: &[Part]) -> anyhow::Result<Vec<u64>> {
        let mut counts = Vec::with_capacity(parts.len());
        for (appended, part) in self.files.iter_mut().zip(parts) {
            let rows = appended
                .append(&part.csv)
                .with_context(|| format!("cannot write {}", appended.path.display()))?;
            counts.push(rows);
        }
        Ok(counts)
    }

    /// How long each file is with what was appended.
    pub fn written(&self) -> Vec<(String, FileState)> {
        let state = |one: &Appended| (one.name.clone(), one.written);
        self.files.iter().map(state).collect()
    }

    /// The database has committed what was appended.
    pub fn committed(&mut self) {
        for one in &mut self.files {
            one.committed = one.written;
        }
    }

    /// The database has rolled back what was appended, so it is cut off.
    pub fn rollback(&mut self) -> anyhow::Result<()> {
        for one in &mut self.files {
            one.file.set_len(one.committed.bytes)?;
            one.file.seek(SeekFrom::End(0))?;
            one.written = one.committed;
            one.header = None;
        }
        Ok(())
    }

    /// Reads all files again, compares them with what is committed, and writes the manifest.
    /// Returns its SHA-256.
    pub fn complete(self, archive: &Archive, schema: i64) -> anyhow::Result<String> {
        let mut manifest = Manifest {
            format: FORMAT,
            archive: archive.archive,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            schema,
            began_at: archive.began_at,
            ordered_before: archive.ordered_before,
            orders: u64::try_from(archive.orders).unwrap_or_default(),
            first_at: archive.first_at,
            last_at: archive.last_at,
            first_order: None,
            last_order: None,
            keys: archive.keys.clone(),
            files: Vec::new(),
        };
        for (table, appended) in TABLES.iter().zip(&self.files) {
            let found = inspect(&appended.path)?;
            let on_disk = FileState {
                bytes: found.bytes,
                rows: found.rows,
            };
            ensure!(
                on_disk == appended.committed,
                "{} has {} rows in {} bytes, but {} rows in {} bytes are committed; the file was changed while it was written",
                appended.path.display(),
                on_disk.rows,
                on_disk.bytes,
                appended.committed.rows,
                appended.committed.bytes,
            );
            if table.name == "orders" {
                manifest.first_order = found.first_order;
                manifest.last_order = found.last_order;
            }
            manifest.files.push(ManifestFile {
                name: appended.name.clone(),
                table: table.name.to_owned(),
                rows: found.rows,
                bytes: found.bytes,
                sha256: found.sha256,
            });
        }
        let mut text = serde_json::to_vec_pretty(&manifest)?;
        text.push(b'\n');
        // The manifest appears whole or not at all.
        let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
        file.write_all(&text)?;
        file.as_file().sync_all()?;
        file.persist(self.folder.join(MANIFEST))?;
        sync_folder(&self.folder)?;
        Ok(hex::encode(Sha256::digest(&text)))
    }
}

impl Appended {
    fn append(&mut self, csv: &[u8]) -> anyhow::Result<u64> {
        let mut records = Records::of(BufReader::new(csv));
        let mut rows = 0;
        while records.next()?.is_some() {
            rows += 1;
        }
        let header_end = csv.iter().position(|byte| *byte == b'\n');
        let Some(header_end) = header_end else {
            bail!("COPY returned no header")
        };
        let (header, body) = csv.split_at(header_end + 1);
        let is_known = self.header.as_deref() == Some(header);
        if is_known && rows == 0 {
            return Ok(0);
        }
        let mut packed = GzEncoder::new(Vec::new(), Compression::new(LEVEL));
        if !is_known {
            packed.write_all(header)?;
        }
        packed.write_all(body)?;
        let packed = packed.finish()?;
        self.file.write_all(&packed)?;
        self.file.sync_data()?;
        self.header = Some(header.to_vec());
        self.written.bytes += packed.len() as u64;
        self.written.rows += rows;
        Ok(rows)
    }
}

fn sync_folder(folder: &Path) -> anyhow::Result<()> {
    let opened = File::open(folder).and_then(|folder| folder.sync_all());
    opened.with_context(|| format!("cannot write the folder {} to disk", folder.display()))
}

/// What is wrong with the files of a folder, compared with its manifest. Nothing if all is well.
pub fn faults(folder: &Path, manifest: &Manifest) -> Vec<String> {
    let mut faults = Vec::new();
    let tables: BTreeMap<&str, &ManifestFile> = manifest
        .files
        .iter()
        .map(|file| (file.table.as_str(), file))
        .collect();
    for table in TABLES {
        let Some(expected) = tables.get(table.name) else {
            if !table.optional {
                faults.push(format!("the manifest names no file of {}", table.name));
            }
            continue;
        };
        // The name is ours and not the manifest's, which could name a file outside of the folder.
        let name = file_name(table.name);
        match inspect(&folder.join(&name)) {
            Err(error) => faults.push(format!("{error:#}")),
            Ok(found) => {
                if found.bytes != expected.bytes || found.sha256 != expected.sha256 {
                    faults.push(format!(
                        "{name} has {} bytes and the SHA-256 {}, but the manifest says {} bytes and {}",
                        found.bytes, found.sha256, expected.bytes, expected.sha256
                    ));
                }
                if found.rows != expected.rows {
                    faults.push(format!(
                        "{name} has {} rows, but the manifest says {}",
                        found.rows, expected.rows
                    ));
                }
                if table.name == "orders" && found.rows != manifest.orders {
                    faults.push(format!(
                        "{name} has {} orders, but the manifest says {}",
                        found.rows, manifest.orders
                    ));
                }
            }
        }
    }
    faults
}

/// The folders of archives at a path: the path itself if it is one, or else those in it.
pub fn folders(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let is_archive = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str());
        path.is_dir() && name.is_some_and(|name| name.starts_with("archive-"))
    };
    if path.join(MANIFEST).exists() || is_archive(path) {
        return Ok(vec![path.to_owned()]);
    }
    let entries =
        fs::read_dir(path).with_context(|| format!("cannot read the folder {}", path.display()))?;
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?.path();
        if is_archive(&entry) {
            found.push(entry);
        }
    }
    found.sort();
    Ok(found)
}
