//! Reads files that people edit: settings, keys, lists and catalogues.
//!
//! All programs read such files here, so that they accept what editors and shells produce: the byte
//! order mark with which editors on Windows begin a file of UTF-8, the line ends of Windows, an
//! empty line at the end, and quotes around a value, as a shell needs them. An error names the
//! file, and the line where there is one. It never repeats a value, which may be a secret.

use std::{fs::File, io::Read, path::Path};

use anyhow::{Context, bail, ensure};

/// The default for the maximum length of a file, in bytes. Files of settings are much shorter.
pub const LARGEST: u64 = 1 << 20;

/// Reads a file as text, without a byte order mark and with `\n` as its line ends.
pub fn read(path: &Path) -> anyhow::Result<String> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("cannot read {shown}"))?;
    read_from(file, &shown.to_string(), LARGEST)
}

/// Reads a source as text, like [`read`]. `name` is what errors call it, and `largest` its maximum
/// length in bytes.
pub fn read_from(source: impl Read, name: &str, largest: u64) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    source
        .take(largest + 1)
        .read_to_end(&mut bytes)
        .with_context(|| format!("cannot read {name}"))?;
    ensure!(
        bytes.len() as u64 <= largest,
        "{name} is longer than {largest} bytes"
    );
    text(bytes, name)
}

fn text(bytes: Vec<u8>, name: &str) -> anyhow::Result<String> {
    // PowerShell's `>` and the "Unicode" of Windows editors write such files.
    ensure!(
        !bytes.starts_with(&[0xff, 0xfe]) && !bytes.starts_with(&[0xfe, 0xff]),
        "{name} is not UTF-8 but UTF-16: save it as UTF-8"
    );
    let text = String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = 1 + lines(&error.as_bytes()[..valid]);
        anyhow::anyhow!("{name}, line {line}: it is not UTF-8: save the file as UTF-8")
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    Ok(text.replace("\r\n", "\n"))
}

/// Reads the single value that a file holds, such as a password: its text without the line ends at
/// its end, and without a pair of quotes around the whole.
pub fn value(path: &Path) -> anyhow::Result<String> {
    let text = read(path)?;
    let value = text.trim_end_matches(['\r', '\n']);
    Ok(unquoted(value).unwrap_or(value).to_owned())
}

/// The text within a pair of quotes around the whole value.
fn unquoted(value: &str) -> Option<&str> {
    ['"', '\'']
        .into_iter()
        .find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote))
}

/// A line such as `NAME=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    pub line: usize,
    pub name: String,
    pub value: String,
}

/// Reads lines such as `NAME=value`, also in the forms that a shell reads: `export NAME=value`, and
/// quotes around the value. Empty lines and comments (`#`) are left out. `file` is what errors call
/// the text.
pub fn assignments(text: &str, file: &str) -> anyhow::Result<Vec<Assignment>> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((name, value)) = line.split_once('=') else {
            bail!("{file}, line {number}: it has no equals sign; write it like NAME=value");
        };
        let name = name.strip_prefix("export ").unwrap_or(name).trim();
        let value = value.trim();
        let value = match value.chars().next() {
            Some(quote @ ('"' | '\'')) => {
                let (value, after) = value[1..].split_once(quote).with_context(|| {
                    format!(
                        "{file}, line {number}: the quote before the value of {name} is not closed"
                    )
                })?;
                let after = after.trim();
                ensure!(
                    after.is_empty() || after.starts_with('#'),
                    "{file}, line {number}: text follows the closing quote of {name}"
                );
                value
            }
            _ => value.split(" #").next().unwrap_or_default().trim(),
        };
        found.push(Assignment {
            line: number,
            name: name.to_owned(),
            value: value.to_owned(),
        });
    }
    Ok(found)
}

/// The number of the line in which a part of the text begins. `part` must be a slice of `text`.
pub fn line_of(text: &str, part: &str) -> usize {
    let offset = (part.as_ptr() as usize).wrapping_sub(text.as_ptr() as usize);
    let before = text.as_bytes().get(..offset).unwrap_or_default();
    1 + lines(before)
}

/// The number of line ends.
fn lines(bytes: &[u8]) -> usize {
    bytes.split(|byte| *byte == b'\n').count() - 1
}

/// What a program that reads a file by itself needs: the file begins as a text of UTF-8 does,
/// without a byte order mark. PEM files are such files, whose first certificate would silently be
/// left out otherwise.
pub fn check_plain(path: &Path) -> anyhow::Result<()> {
    let mut head = Vec::new();
    File::open(path)?.take(3).read_to_end(&mut head)?;
    ensure!(
        head != [0xef, 0xbb, 0xbf]
            && !head.starts_with(&[0xff, 0xfe])
            && !head.starts_with(&[0xfe, 0xff]),
        "it begins with a byte order mark: save it as UTF-8 without one"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(bytes: &[u8]) -> Result<String, String> {
        read_from(bytes, "keys.env", LARGEST).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn what_editors_and_shells_add_is_no_part_of_the_text() {
        assert_eq!(from(b"\xef\xbb\xbfA=b\r\nC=d\r\n").unwrap(), "A=b\nC=d\n");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("value");
        for (written, expected) in [
            ("hush\n", "hush"),
            ("hush\r\n\r\n", "hush"),
            ("\u{feff}hush", "hush"),
            ("\"hush\"\n", "hush"),
            ("'hu\"sh'", "hu\"sh"),
            ("\"hush", "\"hush"),
            ("\"", "\""),
            (" hush ", " hush "),
            ("first:a\r\nsecond:b\r\n", "first:a\nsecond:b"),
        ] {
            std::fs::write(&path, written).unwrap();
            assert_eq!(value(&path).unwrap(), expected, "{written:?}");
        }
    }

    #[test]
    fn assignments_are_read_as_a_shell_reads_them() {
        let text =
            "# keys\n\nexport A=one\nB = \"two words\" # why\nC='x=y'\nD=bare # why\nE=\nF=a#b\n";
        let read = assignments(text, "keys.env").unwrap();
        let read: Vec<(usize, &str, &str)> = read
            .iter()
            .map(|one| (one.line, one.name.as_str(), one.value.as_str()))
            .collect();
        assert_eq!(
            read,
            [
                (3, "A", "one"),
                (4, "B", "two words"),
                (5, "C", "x=y"),
                (6, "D", "bare"),
                (7, "E", ""),
                (8, "F", "a#b"),
            ]
        );
    }

    #[test]
    fn an_error_names_file_and_line_and_no_value() {
        for (bytes, expected) in [
            (
                &b"\xff\xfeA\0=\0"[..],
                "keys.env is not UTF-8 but UTF-16: save it as UTF-8",
            ),
            (
                b"A=b\nB=\xe4\n",
                "keys.env, line 2: it is not UTF-8: save the file as UTF-8",
            ),
        ] {
            assert_eq!(from(bytes).unwrap_err(), expected);
        }
        for (text, expected) in [
            (
                "A=b\ns3cret\n",
                "keys.env, line 2: it has no equals sign; write it like NAME=value",
            ),
            (
                "A=\"s3cret\n",
                "keys.env, line 1: the quote before the value of A is not closed",
            ),
            (
                "A='s3cret' s\n",
                "keys.env, line 1: text follows the closing quote of A",
            ),
        ] {
            assert_eq!(
                assignments(text, "keys.env").unwrap_err().to_string(),
                expected
            );
        }
        assert!(
            read_from(&b"12345"[..], "list", 4)
                .unwrap_err()
                .to_string()
                .contains("longer than 4")
        );
        let missing = read(Path::new("/nowhere/keys.env")).unwrap_err();
        assert!(format!("{missing:#}").starts_with("cannot read /nowhere/keys.env: "));
    }

    #[test]
    fn the_line_of_a_part_is_found() {
        let text = "one\ntwo\nthree";
        assert_eq!(line_of(text, &text[8..]), 3);
        assert_eq!(line_of(text, text), 1);
    }
}
