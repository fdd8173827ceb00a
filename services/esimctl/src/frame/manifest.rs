//! Files that say how something is to be, which `partner apply` and `option apply` read: YAML, or JSON, with
//! one list of entries.
//!
//! A file is read and checked as a whole before anything is changed. Each entry is read by itself, so that
//! one error names the faults of several entries, each with its line and field. A key that stands twice in
//! one object is a fault, because a parser would take one of the two silently. Words such as `no` and `on`
//! are text, so that the country `NO` stays one.

use std::{collections::BTreeMap, fs::File, io};

use anyhow::{Context, bail, ensure};
use domain::distinct::Distinct;
use runtime::files::{self, line_of};
use serde::de::{DeserializeOwned, DeserializeSeed};
use serde_json::{Value, value::RawValue};
use serde_saphyr::Spanned;

/// The largest file that is read, in bytes.
const LARGEST: u64 = 64 << 20;
/// The maximum number of faults that one error names.
const MOST_FAULTS: usize = 10;

/// Where a command finds its file.
#[derive(clap::Args, Clone, Debug)]
pub struct Source {
    /// The file, in YAML or JSON, or `-` for standard input
    #[arg(short = 'f', long, value_name = "FILE")]
    file: String,
}

impl Source {
    /// The name of the file; `-` is standard input.
    pub fn name(&self) -> &str {
        &self.file
    }

    pub fn read(&self) -> anyhow::Result<String> {
        let name = self.name();
        if name == "-" {
            return files::read_from(io::stdin().lock(), "standard input", LARGEST);
        }
        let opened = File::open(name).with_context(|| format!("cannot open {name}"))?;
        files::read_from(opened, name, LARGEST)
    }
}

/// An entry of the list.
pub struct Entry {
    /// Where it stands, such as `line 3: partners[0]`.
    pub at: String,
    value: Value,
}

impl Entry {
    /// Reads the entry; the error names the field.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, String> {
        serde_path_to_error::deserialize(self.value.clone()).map_err(|error| {
            let field = match error.path().to_string() {
                whole if whole == "." => String::new(),
                field => format!(".{field}"),
            };
            format!("{}{field}: {}", self.at, error.inner())
        })
    }
}

/// The entries of the list that the file holds under this name. JSON may be the list alone.
pub fn entries(text: &str, list: &str) -> anyhow::Result<Vec<Entry>> {
    let start = text.trim_start();
    let entries = if start.starts_with('{') || start.starts_with('[') {
        of_json(text, list)?
    } else {
        of_yaml(text, list)?
    };
    let numbered = entries.into_iter().enumerate();
    let placed = |(index, (line, value))| Entry {
        at: format!("line {line}: {list}[{index}]"),
        value,
    };
    Ok(numbered.map(placed).collect())
}

fn of_json(text: &str, list: &str) -> anyhow::Result<Vec<(u64, Value)>> {
    let shape = || format!("the file is not of the form {{\"{list}\": […]}} or […]");
    check_keys(text)?;
    let entries: Vec<&RawValue> = if text.trim_start().starts_with('[') {
        serde_json::from_str(text).with_context(shape)?
    } else {
        let lists: BTreeMap<String, &RawValue> = serde_json::from_str(text).with_context(shape)?;
        let [(name, entries)] = Vec::from_iter(lists).try_into().ok().with_context(shape)?;
        ensure!(name == list, shape());
        serde_json::from_str(entries.get()).with_context(shape)?
    };
    let value = |entry: &RawValue| {
        let line = u64::try_from(line_of(text, entry.get()))?;
        Ok((line, serde_json::from_str(entry.get())?))
    };
    entries.into_iter().map(value).collect()
}

/// Refuses a key that stands twice in one object, because the parser would take the last one silently.
fn check_keys(text: &str) -> anyhow::Result<()> {
    let mut repeated = None;
    let distinct = Distinct {
        repeated: &mut repeated,
    };
    let read = distinct.deserialize(&mut serde_json::Deserializer::from_str(text));
    // A text that is no JSON has another error, which follows.
    match (repeated, read) {
        (Some(_), Err(error)) => bail!("{error}: remove one of the two"),
        _ => Ok(()),
    }
}

fn of_yaml(text: &str, list: &str) -> anyhow::Result<Vec<(u64, Value)>> {
    let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    let shape = || format!("the file is not of the form `{list}:` with a list of entries");
    let lists: BTreeMap<String, Vec<Spanned<Value>>> =
        serde_saphyr::from_str_with_options(text, options)
            .map_err(|error| anyhow::anyhow!("{error}"))
            .with_context(shape)?;
    let [(name, entries)] = Vec::from_iter(lists).try_into().ok().with_context(shape)?;
    ensure!(name == list, shape());
    let entry = |entry: Spanned<Value>| (entry.referenced.line(), entry.value);
    Ok(entries.into_iter().map(entry).collect())
}

/// One error of all faults of a file; the first ones are named.
pub fn without_faults(mut faults: Vec<String>) -> anyhow::Result<()> {
    if faults.len() > MOST_FAULTS {
        let more = faults.len() - MOST_FAULTS;
        faults.truncate(MOST_FAULTS);
        faults.push(format!("and {more} more"));
    }
    ensure!(faults.is_empty(), "{}", faults.join("; "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> anyhow::Result<Vec<String>> {
        let entries = entries(text, "partners")?;
        let shown = entries
            .iter()
            .map(|entry| format!("{} {}", entry.at, entry.value));
        Ok(shown.collect())
    }

    #[test]
    fn entries_are_read_with_their_lines_and_words_stay_words() {
        let yaml = "# A comment.\npartners:\n  - name: Acme\n    country: NO\n\n  - name: 'on'\n    limit: 5\n";
        let expected = [
            r#"line 3: partners[0] {"country":"NO","name":"Acme"}"#,
            r#"line 6: partners[1] {"limit":5,"name":"on"}"#,
        ];
        assert_eq!(read(yaml).unwrap(), expected);
        let json = "{\"partners\": [\n{\"country\": \"NO\", \"name\": \"Acme\"},\n\n\n{\"limit\": 5, \"name\": \"on\"}]}";
        assert_eq!(
            read(json).unwrap(),
            expected.map(|text| text.replace("line 3", "line 2").replace("line 6", "line 5"))
        );
        assert!(read("partners: []").unwrap().is_empty());
    }

    #[test]
    fn a_file_of_another_shape_is_refused_with_its_line() {
        for (text, part) in testkit::rows! {
            "" => "is not of the form `partners:`";
            "partners:\n" => "is not of the form `partners:`";
            "options: []\n" => "is not of the form `partners:`";
            "partners: []\nmore: []\n" => "is not of the form `partners:`";
            "partners:\n  - name: a\n    name: b\n" => "duplicate mapping key: name";
            "partners:\n\t- name: a\n" => "tabs disallowed within this context (block indentation) at line 2";
            "---\npartners: []\n---\npartners: []\n" => "multiple YAML documents";
            "{\"partners\": [], \"more\": 1}" => "is not of the form {\"partners\": […]} or […]";
            "[{\"a\": 1, \"a\": 2}]" => "the key \"a\" stands twice in one object at line 1";
            "[" => "is not of the form";
        } {
            let error = format!("{:#}", read(text).unwrap_err());
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }

    #[test]
    fn many_faults_are_counted() {
        assert!(without_faults(Vec::new()).is_ok());
        let many = without_faults(vec!["one".to_owned(); 12]).unwrap_err();
        assert!(many.to_string().ends_with("one; and 2 more"), "{many}");
    }
}
