//! Reads CSV (RFC 4180) record by record, for lists that operators export from a provider.
//! [`runtime::csv`] writes it.
//!
//! Fields are separated by commas, or by what [`Records::separated_by`] says. A field in double
//! quotes may contain commas, line breaks and doubled quotes. Only one record is in memory at a
//! time, and its length is bounded, so a file of any size can be read. Each error names the line at
//! which the faulty record begins.

use std::io::{BufRead, Read};

use anyhow::{Context, bail, ensure};

/// The longest record, in bytes. A longer one is usually a quote that was never closed.
const LONGEST: usize = 1 << 20;

/// A record with the number of its first line.
#[derive(Debug, PartialEq, Eq)]
pub struct Record {
    pub line: i64,
    pub fields: Vec<String>,
}

pub struct Records<R> {
    source: R,
    separator: char,
    /// The number of lines that were read.
    lines: i64,
}

impl<R: BufRead> Records<R> {
    pub fn new(source: R) -> Self {
        Self::separated_by(source, ',')
    }

    /// Spreadsheets separate fields by semicolons where numbers are written with a decimal comma.
    pub fn separated_by(source: R, separator: char) -> Self {
        Self {
            source,
            separator,
            lines: 0,
        }
    }

    /// The next record that is not an empty line, or `None` at the end of the file.
    pub fn next(&mut self) -> anyhow::Result<Option<Record>> {
        loop {
            let line = self.lines + 1;
            let Some(text) = self.text(line)? else {
                return Ok(None);
            };
            if text.trim().is_empty() {
                continue;
            }
            let fields = split(&text, self.separator).with_context(|| format!("line {line}"))?;
            return Ok(Some(Record { line, fields }));
        }
    }

    /// The text of the next record, which may have several lines.
    fn text(&mut self, line: i64) -> anyhow::Result<Option<String>> {
        let mut bytes = Vec::new();
        // Whether the text so far ends within quotes, so that the record goes on in the next line.
        let mut open = false;
        loop {
            let before = bytes.len();
            let room = LONGEST - bytes.len() + 1;
            let read = (&mut self.source)
                .take(room as u64)
                .read_until(b'\n', &mut bytes)
                .with_context(|| format!("line {line}: cannot read it"))?;
            ensure!(
                bytes.len() <= LONGEST,
                "line {line}: its record is longer than {} MiB; probably a quote is not closed",
                LONGEST >> 20
            );
            for byte in &bytes[before..] {
                open ^= *byte == b'"';
            }
            if read == 0 {
                ensure!(
                    !open,
                    "line {line}: a quote is not closed before the end of the file"
                );
                break;
            }
            self.lines += 1;
            if !open {
                break;
            }
        }
        if bytes.is_empty() {
            return Ok(None);
        }
        let text = String::from_utf8(bytes)
            .ok()
            .with_context(|| format!("line {line}: it is not UTF-8; save the file as UTF-8"))?;
        // Spreadsheet programs begin a file of UTF-8 with this mark.
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let text = text.strip_suffix('\n').unwrap_or(text);
        Ok(Some(text.strip_suffix('\r').unwrap_or(text).to_owned()))
    }
}

/// Splits a record into its fields.
fn split(text: &str, separator: char) -> anyhow::Result<Vec<String>> {
    let mut fields = Vec::new();
    let mut rest = text;
    loop {
        let (field, after) = if let Some(quoted) = rest.strip_prefix('"') {
            unquote(quoted)?
        } else {
            let end = rest.find(separator).unwrap_or(rest.len());
            let field = &rest[..end];
            ensure!(
                !field.contains('"'),
                "a quote stands in the middle of field {}: put the whole field in quotes, and double the quotes in it",
                fields.len() + 1
            );
            (field.to_owned(), &rest[end..])
        };
        fields.push(field);
        match after.strip_prefix(separator) {
            Some(next) => rest = next,
            None if after.is_empty() => return Ok(fields),
            None => bail!(
                "text follows the closing quote of field {}: put a comma between them, or double the quote",
                fields.len()
            ),
        }
    }
}

/// The field up to its closing quote, and what follows the quote.
fn unquote(quoted: &str) -> anyhow::Result<(String, &str)> {
    let mut field = String::new();
    let mut rest = quoted;
    loop {
        let end = rest.find('"').context("a quote is not closed")?;
        field.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(after) => {
                field.push('"');
                rest = after;
            }
            None => return Ok((field, rest)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> anyhow::Result<Vec<Record>> {
        let mut records = Records::new(text);
        let mut all = Vec::new();
        while let Some(record) = records.next()? {
            all.push(record);
        }
        Ok(all)
    }

    #[test]
    fn records_are_split_as_rfc_4180_says() {
        let text = "\u{feff}id,note\r\n1,\"a, \"\"b\"\"\nc\"\r\n\r\n2,\n\"3\",";
        let records = read(text.as_bytes()).unwrap();
        let found: Vec<_> = records
            .iter()
            .map(|record| (record.line, record.fields.join("|")))
            .collect();
        let expected = [(1, "id|note"), (2, "1|a, \"b\"\nc"), (5, "2|"), (6, "3|")];
        assert_eq!(found, expected.map(|(line, text)| (line, text.to_owned())));
        let mut records = Records::separated_by("a;\"b;c\";1,5".as_bytes(), ';');
        let fields = records.next().unwrap().unwrap().fields;
        assert_eq!(fields, ["a", "b;c", "1,5"]);
    }

    #[test]
    fn each_fault_names_its_line() {
        let long = [b"a\n\"".as_slice(), &vec![b'x'; LONGEST + 1]].concat();
        for (text, part) in testkit::rows! {
            b"a\nb\"c\"\n".as_slice() => "line 2: a quote stands in the middle of field 1";
            b"a\n\"b\"c,d\n\n\"".as_slice() => "line 2: text follows the closing quote of field 1";
            b"a\n\n\"b\n\n".as_slice() => "line 3: a quote is not closed";
            b"a\n\xff\n".as_slice() => "line 2: it is not UTF-8";
            long.as_slice() => "line 2: its record is longer than 1 MiB";
        } {
            let error = format!("{:#}", read(text).unwrap_err());
            assert!(error.contains(part), "{error}");
        }
    }
}
