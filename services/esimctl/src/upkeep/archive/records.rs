//! Reads the files of an archive, record by record.
//!
//! A record is one row in CSV. It may span lines, because a text in quotes may hold line feeds. This
//! module only finds where records end and which order they belong to; what the fields mean is left
//! to PostgreSQL, which has written them and reads them again.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, bail, ensure};
use flate2::bufread::MultiGzDecoder;
use tools::archive::{Part, TABLES};
use uuid::Uuid;

use super::manifest::{Manifest, ManifestFile, file_name};

/// The first column of each file: the order of the row.
const PREFIX: &str = "of_order,";
/// The length of an order id with the comma that follows it.
const ORDER: usize = 37;

/// The records of one file.
pub struct Records<R> {
    lines: R,
    /// The last header, without the column of the order.
    header: Arc<str>,
    record: Vec<u8>,
    /// The record was read ahead and not used yet.
    is_ahead: bool,
    /// The file is empty: it is that of an archive in which no order was finished in the end.
    is_empty: bool,
}

/// One row.
pub struct Record<'a> {
    /// The id of its order.
    pub order: &'a str,
    /// Its fields without the one of the order, with the line feed at the end.
    pub row: &'a [u8],
}

impl Records<BufReader<MultiGzDecoder<BufReader<File>>>> {
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let is_empty = file.metadata()?.len() == 0;
        let lines = BufReader::new(MultiGzDecoder::new(BufReader::new(file)));
        Ok(Self {
            is_empty,
            ..Self::of(lines)
        })
    }
}

impl<R: BufRead> Records<R> {
    pub fn of(lines: R) -> Self {
        Self {
            lines,
            header: "".into(),
            record: Vec::new(),
            is_ahead: false,
            is_empty: false,
        }
    }

    /// The columns of the record that was read last, separated by commas.
    pub fn header(&self) -> Arc<str> {
        Arc::clone(&self.header)
    }

    /// Makes the next call of [`Records::next`] return the same record again.
    pub fn put_back(&mut self) {
        self.is_ahead = true;
    }

    pub fn next(&mut self) -> anyhow::Result<Option<Record<'_>>> {
        if self.is_empty || (!std::mem::take(&mut self.is_ahead) && !self.read()?) {
            return Ok(None);
        }
        let order = self
            .record
            .get(..ORDER - 1)
            .and_then(|id| str::from_utf8(id).ok());
        match order {
            Some(order) if order.parse::<Uuid>().is_ok() && self.record[ORDER - 1] == b',' => {
                Ok(Some(Record {
                    order,
                    row: &self.record[ORDER..],
                }))
            }
            _ => bail!(
                "a row does not begin with the id of its order: {:?}",
                String::from_utf8_lossy(&self.record[..self.record.len().min(60)])
            ),
        }
    }

    /// Reads the next row, and every header before it.
    fn read(&mut self) -> anyhow::Result<bool> {
        loop {
            self.record.clear();
            let mut quotes = 0;
            let mut from = 0;
            // A record ends at the first line feed that is not in quotes. A quote in a text is
            // written twice, so the number of quotes is even outside of texts.
            while from == 0 || quotes % 2 == 1 {
                let read = self.lines.read_until(b'\n', &mut self.record)?;
                if read == 0 {
                    ensure!(from == 0, "the last row has no end, so the file is cut off");
                    return Ok(false);
                }
                let read = &self.record[from..];
                quotes += read.split(|byte| *byte == b'"').count() - 1;
                from = self.record.len();
            }
            let Some(header) = self.record.strip_prefix(PREFIX.as_bytes()) else {
                return Ok(true);
            };
            self.header = String::from_utf8_lossy(header).trim_end().into();
        }
    }
}

/// The records of one table.
struct TableRecords {
    table: &'static str,
    records: Records<BufReader<MultiGzDecoder<BufReader<File>>>>,
}

/// The orders of an archive, read from all its files at once.
pub struct Orders(Vec<TableRecords>);

/// A row of an order.
#[derive(Clone, Debug)]
struct Row {
    table: &'static str,
    header: Arc<str>,
    order: Uuid,
    fields: Vec<u8>,
}

/// Some orders with all their rows.
#[derive(Debug, Default)]
pub struct Chunk {
    pub orders: Vec<Uuid>,
    rows: Vec<Row>,
}

impl Chunk {
    /// Adds the orders of another chunk.
    pub fn extend(&mut self, other: Self) {
        self.orders.extend(other.orders);
        self.rows.extend(other.rows);
    }

    /// Leaves these orders out.
    pub fn without(&mut self, orders: &[Uuid]) {
        self.orders.retain(|id| !orders.contains(id));
        self.rows.retain(|row| !orders.contains(&row.order));
    }

    /// The rows as they are restored: together for each table and header.
    pub fn parts(&self) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        let mut last: Option<&Row> = None;
        for row in &self.rows {
            let continues =
                last.is_some_and(|last| last.table == row.table && last.header == row.header);
            match parts.last_mut() {
                Some(part) if continues => part.csv.extend_from_slice(&row.fields),
                _ => parts.push(Part {
                    table: row.table,
                    csv: [row.header.as_bytes(), b"\n", &row.fields].concat(),
                }),
            }
            last = Some(row);
        }
        parts
    }
}

/// The files of the tables that the manifest lists. What else lies in the folder was not checked
/// against a sum, so it is not read. Older versions did not write the optional ones.
fn files(
    folder: &Path,
    manifest: &Manifest,
) -> impl Iterator<Item = (&'static tools::archive::Table, PathBuf)> {
    let is_listed = |table: &&tools::archive::Table| {
        let listed = |file: &ManifestFile| file.table == table.name;
        !table.optional || manifest.files.iter().any(listed)
    };
    let files = TABLES.iter().filter(is_listed);
    files.map(|table| (table, folder.join(file_name(table.name))))
}

impl Orders {
    pub fn open(folder: &Path, manifest: &Manifest) -> anyhow::Result<Self> {
        let open = |(table, path): (&tools::archive::Table, PathBuf)| {
            Ok(TableRecords {
                table: table.name,
                records: Records::open(&path)?,
            })
        };
        let files = files(folder, manifest).map(open);
        Ok(Self(files.collect::<anyhow::Result<_>>()?))
    }

    /// The next `limit` orders with their rows; with `wanted`, only those of them that are wanted.
    /// Returns `None` at the end.
    pub fn next(
        &mut self,
        limit: usize,
        wanted: Option<&BTreeSet<Uuid>>,
    ) -> anyhow::Result<Option<Chunk>> {
        let mut chunk = Chunk::default();
        let mut seen = 0;
        let mut last = None;
        for TableRecords { table, records } in &mut self.0 {
            // The first file decides which orders belong to the chunk, and the others follow it,
            // because all files are in the order of the orders' ids.
            let decides = *table == "orders";
            while let Some(record) = records.next()? {
                let order: Uuid = record.order.parse()?;
                let is_beyond = if decides {
                    seen == limit
                } else {
                    last.is_none_or(|last| order > last)
                };
                if is_beyond {
                    records.put_back();
                    break;
                }
                let is_wanted = wanted.is_none_or(|wanted| wanted.contains(&order));
                if is_wanted {
                    let fields = record.row.to_vec();
                    chunk.rows.push(Row {
                        table,
                        header: records.header(),
                        order,
                        fields,
                    });
                }
                if decides {
                    seen += 1;
                    last = Some(order);
                    chunk.orders.extend(is_wanted.then_some(order));
                }
            }
        }
        Ok(last.map(|_| chunk))
    }
}

/// The orders in a folder one of whose rows has this text as a field: an id of the order, a
/// placement, a topup or an ICCID, or the external id.
pub fn search(folder: &Path, manifest: &Manifest, text: &str) -> anyhow::Result<BTreeSet<Uuid>> {
    let mut found = BTreeSet::new();
    let field = text.replace('"', "\"\"");
    for (_, path) in files(folder, manifest) {
        let mut records = Records::open(&path)?;
        while let Some(record) = records.next()? {
            let row = String::from_utf8_lossy(record.row);
            let is_field = |(at, _): (usize, &str)| {
                let before = row[..at].chars().next_back();
                let after = row[at + field.len()..].chars().next();
                [None, Some(','), Some('"')].contains(&before)
                    && [None, Some(','), Some('"'), Some('\n')].contains(&after)
            };
            if row.match_indices(&field).any(is_field) {
                found.insert(record.order.parse()?);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_end_outside_of_quotes_and_headers_are_skipped() {
        let order = "0199aabb-ccdd-7eee-8fff-001122334455";
        let text = format!(
            "of_order,a,b\n{order},1,\"two\nlines, \"\"quoted\"\"\"\nof_order,a,b,c\n{order},,\"\",3\n"
        );
        let mut records = Records::of(text.as_bytes());
        let first = records.next().unwrap().unwrap();
        assert_eq!(first.order, order);
        assert_eq!(first.row, b"1,\"two\nlines, \"\"quoted\"\"\"\n");
        assert_eq!(&*records.header(), "a,b");
        records.put_back();
        assert!(records.next().unwrap().unwrap().row.starts_with(b"1,"));
        assert_eq!(records.next().unwrap().unwrap().row, b",\"\",3\n");
        assert_eq!(&*records.header(), "a,b,c");
        assert!(records.next().unwrap().is_none());
    }

    #[test]
    fn an_empty_file_has_no_records() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(
            Records::open(file.path())
                .unwrap()
                .next()
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn a_file_that_is_cut_off_is_an_error() {
        let text = "of_order,a\n0199aabb-ccdd-7eee-8fff-001122334455,\"begun\n";
        let mut records = Records::of(text.as_bytes());
        let error = records.next().err().unwrap();
        assert!(error.to_string().contains("cut off"), "{error}");
        let mut records = Records::of(&b"of_order,a\nnonsense,1\n"[..]);
        assert!(records.next().is_err());
    }
}
