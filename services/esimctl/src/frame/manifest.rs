//! Files that say how something is to be, which `partner apply` and `option apply` read: YAML, or
//! JSON, with one list of entries.
//!
//! A file is read and checked as a whole before anything is changed. Each entry is read by itself,
//! so that one error names the faults of several entries, each with its line and field. A key that
//! stands twice in one object is a fault, because a parser would take one of the two silently.
//! Words such as `no` and `on` are text, so that the country `NO` stays one. A number that does not
//! print as it was written is a fault, too: `007` and `72044e0` are names of products to whoever
//! writes them, and would become 7 and 72044.

use std::{collections::BTreeMap, fmt, fs::File, io};

use anyhow::{Context, bail, ensure};
use domain::distinct::Distinct;
use runtime::files::{self, line_of};
use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeOwned, DeserializeSeed, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Number, Value, value::RawValue};
use serde_saphyr::{Location, Spanned};

/// The largest file that is read, in bytes.
const LARGEST: u64 = 64 << 20;
/// The maximum number of faults that one error names.
const MOST_FAULTS: usize = 10;

/// Where a command finds its file.
#[derive(clap::Args, Clone, Debug)]
pub struct ManifestArgs {
    /// The file, in YAML or JSON, or `-` for standard input
    #[arg(short = 'f', long, value_name = "FILE")]
    file: String,
}

impl ManifestArgs {
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
pub struct ManifestEntry {
    /// Where it stands, such as `line 3: partners[0]`.
    pub at: String,
    value: Value,
}

impl ManifestEntry {
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

/// A field that may be left out, `null` or a value.
#[derive(Clone, Default)]
pub enum ManifestField<T> {
    #[default]
    LeftOut,
    Null,
    Value(T),
}

impl<T> ManifestField<T> {
    pub fn is_given(&self) -> bool {
        !matches!(self, Self::LeftOut)
    }

    /// The value that the field has then, if it was this before.
    pub fn or_as_it_was(self, was: Option<&T>) -> Option<T>
    where
        T: Clone,
    {
        match self {
            Self::LeftOut => was.cloned(),
            Self::Null => None,
            Self::Value(value) => Some(value),
        }
    }

    pub fn value(&self) -> Option<&T> {
        match self {
            Self::LeftOut | Self::Null => None,
            Self::Value(value) => Some(value),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for ManifestField<T> {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        let value = Option::deserialize(value)?;
        Ok(value.map_or(Self::Null, Self::Value))
    }
}

/// The entries of the list that the file holds under this name. JSON may be the list alone.
pub fn entries(text: &str, list: &str) -> anyhow::Result<Vec<ManifestEntry>> {
    let start = text.trim_start();
    let entries = if start.starts_with('{') || start.starts_with('[') {
        of_json(text, list)?
    } else {
        of_yaml(text, list)?
    };
    let numbered = entries.into_iter().enumerate();
    let placed = |(index, (line, value))| ManifestEntry {
        at: format!("line {line}: {list}[{index}]"),
        value,
    };
    Ok(numbered.map(placed).collect())
}

/// Refuses a number that is read as another text than it was written with.
fn check_number(written: &str, read: &Value, line: u64) -> anyhow::Result<()> {
    let read = read.to_string();
    ensure!(
        read == written,
        "line {line}: {written} is read as the number {read}: put it in quotes if it is a text, or write the number {read}"
    );
    Ok(())
}

/// Checks the numbers of a JSON text: what stands outside of strings and begins with a digit or
/// `-`.
fn check_numbers(text: &str) -> anyhow::Result<()> {
    let mut line = 1;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => string_length(rest),
            '-' | '0'..='9' => {
                let goes_on = |one: char| one.is_ascii_alphanumeric() || "+-.".contains(one);
                rest.find(|one| !goes_on(one)).unwrap_or(rest.len())
            }
            other => other.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        if first == '-' || first.is_ascii_digit() {
            // What is no number has an error of its own, which follows.
            if let Ok(read) = serde_json::from_str(token) {
                check_number(token, &read, line)?;
            }
        }
        line += u64::from(first == '\n');
        rest = after;
    }
    Ok(())
}

/// The length of the JSON string with which a text begins, its quotes included.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    let end = text.char_indices().skip(1).find(|(_, one)| {
        let is_end = *one == '"' && !escaped;
        escaped = *one == '\\' && !escaped;
        is_end
    });
    end.map_or(text.len(), |(at, _)| at + 1)
}

fn of_json(text: &str, list: &str) -> anyhow::Result<Vec<(u64, Value)>> {
    let shape = || format!("the file is not of the form {{\"{list}\": […]}} or […]");
    check_keys(text)?;
    check_numbers(text)?;
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

/// Refuses a key that stands twice in one object, because the parser would take the last one
/// silently.
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
    let lists: BTreeMap<String, Vec<Spanned<Node>>> =
        serde_saphyr::from_str_with_options(text, options)
            .map_err(|error| anyhow::anyhow!("{error}"))
            .with_context(shape)?;
    let [(name, entries)] = Vec::from_iter(lists).try_into().ok().with_context(shape)?;
    ensure!(name == list, shape());
    let lines: Vec<&str> = text.lines().collect();
    let entry = |entry: Spanned<Node>| {
        let line = entry.referenced.line();
        Ok((line, entry.value.read(&lines, entry.defined)?))
    };
    entries.into_iter().map(entry).collect()
}

/// A part of a YAML text, with the places of what is in it.
enum Node {
    Scalar(Value),
    List(Vec<Spanned<Node>>),
    Object(Vec<(String, Spanned<Node>)>),
}

impl Node {
    /// The value, whose numbers are compared with what is written at their places.
    fn read(self, lines: &[&str], at: Location) -> anyhow::Result<Value> {
        let inside = |node: Spanned<Self>| node.value.read(lines, node.defined);
        Ok(match self {
            Self::Scalar(value) => {
                if value.is_number() {
                    check_number(written(lines, at), &value, at.line())?;
                }
                value
            }
            Self::List(nodes) => {
                let values: anyhow::Result<_> = nodes.into_iter().map(inside).collect();
                Value::Array(values?)
            }
            Self::Object(fields) => {
                let fields = fields.into_iter();
                let fields: anyhow::Result<_> = fields
                    .map(|(name, node)| Ok((name, inside(node)?)))
                    .collect();
                Value::Object(fields?)
            }
        })
    }
}

/// What is written at a place of a YAML text, up to the end of a plain scalar.
fn written<'a>(lines: &[&'a str], at: Location) -> &'a str {
    let index = |number: u64| {
        usize::try_from(number)
            .unwrap_or(usize::MAX)
            .saturating_sub(1)
    };
    let line = lines.get(index(at.line())).copied().unwrap_or_default();
    let start = line.char_indices().nth(index(at.column()));
    let rest = start.map_or("", |(start, _)| &line[start..]);
    let end = rest.find([' ', '\t', ',', ']', '}', '#', ':']);
    &rest[..end.unwrap_or(rest.len())]
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(node: D) -> Result<Self, D::Error> {
        node.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value that JSON has, too")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Node, E> {
        let number = Number::from_f64(value);
        let number = number.ok_or_else(|| E::custom(format!("{value} is no number of JSON")))?;
        Ok(Node::Scalar(number.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, node: D) -> Result<Node, D::Error> {
        Node::deserialize(node)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = list.next_element()? {
            nodes.push(node);
        }
        Ok(Node::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Node, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = object.next_entry()? {
            fields.push(field);
        }
        Ok(Node::Object(fields))
    }
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
    fn a_number_that_does_not_print_as_it_was_written_is_a_fault_with_its_line() {
        for number in [
            "007",
            "0012345678905",
            "72044e0",
            "1e3",
            "4.50",
            "1_000",
            "0x10",
            "0o17",
            "0b11",
            "+5",
            "1.",
            "123456789012345678901234567890",
        ] {
            for yaml in [
                format!("partners:\n- name: a\n  sku: {number} # a comment\n"),
                format!("partners:\n- name: a\n  details: {{a: ['x', {number}]}}\n"),
                format!("partners:\n- name: a\n  é: {{\"b\": {number}}}\n"),
            ] {
                match read(&yaml) {
                    Err(error) => {
                        let error = error.to_string();
                        let starts = format!("line 3: {number} is read as the number ");
                        assert!(error.starts_with(&starts), "{yaml}: {error}");
                    }
                    // What YAML takes for a text is stored as it was written.
                    Ok(read) => assert!(read[0].contains(&format!("\"{number}\"")), "{read:?}"),
                }
            }
        }
        for json in [
            r#"[{"a": "\"007\\",
            "b": [1, 72044e0]}]"#,
            "[{\"a\":\n4.50}]",
        ] {
            let error = read(json).unwrap_err().to_string();
            assert!(error.starts_with("line 2: "), "{json}: {error}");
        }
        let fine = r#"{"a":[0,7,-7,1.5,-0.5,18446744073709551615,"007","1e3","2024-01-02"],"b":null,"c":true}"#;
        let expected = [format!("line 1: partners[0] {fine}")];
        assert_eq!(read(&format!("[{fine}]")).unwrap(), expected);
        let yaml = "partners:\n- {a: [0, 7, -7, 1.5, -0.5, 18446744073709551615, '007', \"1e3\", 2024-01-02], b: , c: true}\n";
        let expected = [format!("line 2: partners[0] {fine}")];
        assert_eq!(read(yaml).unwrap(), expected);
        // A number of an anchor stands where it is defined.
        let anchored = "partners:\n- {a: &n 7, b: *n}\n- {a: *n}\n";
        assert_eq!(read(anchored).unwrap()[1], r#"line 3: partners[1] {"a":7}"#);
    }

    #[test]
    fn many_faults_are_counted() {
        assert!(without_faults(Vec::new()).is_ok());
        let many = without_faults(vec!["one".to_owned(); 12]).unwrap_err();
        assert!(many.to_string().ends_with("one; and 2 more"), "{many}");
    }
}
