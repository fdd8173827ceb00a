//! `esimctl option`: the catalogue.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read},
};

use anyhow::{Context, ensure};
use clap::Subcommand;
use domain::OptionId;
use serde_json::{Map, Value, json};
use sqlx::Connection;
use store::options::{self, ProductOption};

use crate::{
    console::Console,
    output::{Row, cells},
};

const LIST_EXAMPLES: &str = "Examples:
  esimctl option list
  esimctl option list --json";

const IMPORT_EXAMPLES: &str = "Examples:
  esimctl option import options.json
  sandbox catalogue | esimctl option import - --json

The file:
  {\"options\": [{\"option_id\": \"d4c6c0a4-7f65-4f0b-9d0e-1f6f5a6f3c11\", \"name\": \"Japan 7 days 1 GB\",
                \"provider\": \"usimsa\", \"provider_option_id\": \"JP-7D-1G\", \"environment\": \"live\",
                \"details\": {\"country\": \"JP\", \"days\": 7}}]}

environment is sandbox or live. Partners see name and details, a JSON object of at most 4 KiB; without it there are
none. An option with \"enabled\": false can't be ordered. Options that are not in the file stay as they are. A file with
any fault imports nothing.";

/// The largest file, in bytes.
const LARGEST: u64 = 64 << 20;
/// The most faults in one error.
const MOST_FAULTS: usize = 10;
const LONGEST_TEXT: usize = 255;
/// The longest details as JSON, in bytes.
const LONGEST_DETAILS: usize = 4 << 10;
const FIELDS: [&str; 7] = ["option_id", "name", "provider", "provider_option_id", "environment", "enabled", "details"];

#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// List the catalogue
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Add options and update existing ones; a repetition changes nothing
    #[command(after_help = IMPORT_EXAMPLES)]
    Import {
        /// A JSON file, or - for standard input
        file: String,
    },
}

pub async fn run(command: &Command, console: &Console) -> anyhow::Result<()> {
    match command {
        Command::List => {
            let catalogue = options::all(&mut console.connect().await?).await?;
            console.print_list(&catalogue, "The catalogue is empty; see `esimctl option import --help`.", row)
        }
        Command::Import { file } => import(file, console).await,
    }
}

async fn import(file: &str, console: &Console) -> anyhow::Result<()> {
    // Read first: the process that writes to our standard input must not see a broken pipe.
    let text = read(file)?;
    let catalogue = parse(&text).with_context(|| format!("nothing was imported from {file}"))?;
    let mut connection = console.connect().await?;
    let mut transaction = connection.begin().await?;
    let mut imported = 0;
    for option in &catalogue {
        imported += usize::from(options::import(&mut transaction, option).await?);
    }
    transaction.commit().await?;
    let unchanged = catalogue.len() - imported;
    console.print(&json!({ "imported": imported, "unchanged": unchanged }), || {
        format!("{imported} imported, {unchanged} unchanged")
    })
}

fn read(file: &str) -> anyhow::Result<String> {
    let mut text = String::new();
    let source: &mut dyn Read = if file == "-" {
        &mut io::stdin().lock()
    } else {
        &mut File::open(file).with_context(|| format!("cannot open {file}"))?
    };
    let length = source.take(LARGEST + 1).read_to_string(&mut text).with_context(|| format!("cannot read {file}"))?;
    ensure!(length as u64 <= LARGEST, "{file} is larger than {} MiB; split it", LARGEST >> 20);
    Ok(text)
}

/// Parses and checks the whole file; the error names each wrong entry and field.
fn parse(text: &str) -> anyhow::Result<Vec<ProductOption>> {
    let file: Value = serde_json::from_str(text).context("it is not JSON")?;
    let mut file = match file {
        Value::Object(file) => file,
        _ => Map::new(),
    };
    let entries = match file.remove("options") {
        Some(Value::Array(entries)) if file.is_empty() => entries,
        _ => anyhow::bail!("it is not of the form {{\"options\": […]}}; see `esimctl option import --help`"),
    };
    let mut faults = Vec::new();
    let mut catalogue = Vec::with_capacity(entries.len());
    let mut first_with: HashMap<OptionId, usize> = HashMap::with_capacity(entries.len());
    for (index, entry) in entries.into_iter().enumerate() {
        let Value::Object(values) = entry else {
            faults.push(format!("options[{index}] is not an object"));
            continue;
        };
        let mut fields = Fields { faults: &mut faults, index, values };
        let Some(option) = fields.read() else { continue };
        if let Some(first) = first_with.insert(option.option_id, index) {
            fields.fault("option_id", &format!("is the same as in options[{first}]"));
        }
        catalogue.push(option);
    }
    if faults.len() > MOST_FAULTS {
        let more = faults.len() - MOST_FAULTS;
        faults.truncate(MOST_FAULTS);
        faults.push(format!("and {more} more"));
    }
    ensure!(faults.is_empty(), "{}", faults.join("; "));
    Ok(catalogue)
}

/// Reads the fields of one entry and collects its faults.
struct Fields<'a> {
    faults: &'a mut Vec<String>,
    index: usize,
    /// The fields that are not read yet.
    values: Map<String, Value>,
}

impl Fields<'_> {
    fn fault(&mut self, field: &str, what: &str) {
        self.faults.push(format!("options[{}] {field} {what}", self.index));
    }

    /// `None` means that a fault was recorded.
    fn read(&mut self) -> Option<ProductOption> {
        let known = self.faults.len();
        let no_id = ", which is not a UUID with hyphens";
        let option_id = self.parsed("option_id", |text| text.parse().ok(), no_id);
        let name = self.text("name");
        // The provider name is part of the subjects of its jobs.
        let is_plain = |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
        let provider = self.parsed(
            "provider",
            |text| text.bytes().all(is_plain).then(|| text.to_owned()),
            "; use lower case letters, digits, - and _ as in sandbox or usimsa",
        );
        let provider_option_id = self.text("provider_option_id");
        let no_environment = "; it must be sandbox or live";
        let environment = self.parsed("environment", |text| text.parse().ok(), no_environment);
        let enabled = match self.values.remove("enabled") {
            None => Some(true),
            Some(Value::Bool(enabled)) => Some(enabled),
            Some(_) => {
                self.fault("enabled", "must be true or false");
                None
            }
        };
        let details = self.details();
        for field in std::mem::take(&mut self.values).keys() {
            let what = format!("is not a field; the fields are {}", FIELDS.join(", "));
            self.fault(&format!("{field:?}"), &what);
        }
        if self.faults.len() > known {
            return None;
        }
        Some(ProductOption {
            option_id: option_id?,
            name: name?,
            provider: provider?,
            provider_option_id: provider_option_id?,
            environment: environment?,
            enabled: enabled?,
            details: details?,
        })
    }

    fn text(&mut self, field: &str) -> Option<String> {
        let fault = match self.values.remove(field) {
            None => "is missing".to_owned(),
            Some(Value::String(text)) if text.trim().is_empty() => "is blank".to_owned(),
            Some(Value::String(text)) if text.chars().any(char::is_control) => "has a control character".to_owned(),
            Some(Value::String(text)) if text.chars().count() > LONGEST_TEXT => {
                format!("is longer than {LONGEST_TEXT} characters")
            }
            Some(Value::String(text)) => return Some(text),
            Some(_) => "is not a string".to_owned(),
        };
        self.fault(field, &fault);
        None
    }

    /// Parses a text. The fault of a refused text quotes it, followed by `hint`.
    fn parsed<T>(&mut self, field: &str, parse: impl FnOnce(&str) -> Option<T>, hint: &str) -> Option<T> {
        let text = self.text(field)?;
        let parsed = parse(&text);
        if parsed.is_none() {
            self.fault(field, &format!("is {text:?}{hint}"));
        }
        parsed
    }

    fn details(&mut self) -> Option<Map<String, Value>> {
        let fault = match self.values.remove("details") {
            None => return Some(Map::new()),
            Some(Value::Object(details)) => {
                let text = Value::from(details.clone()).to_string();
                // PostgreSQL stores no NUL.
                if text.replace("\\\\", "").contains("\\u0000") {
                    "must hold no NUL"
                } else if text.len() > LONGEST_DETAILS {
                    "must be at most 4096 bytes of JSON"
                } else {
                    return Some(details);
                }
            }
            Some(_) => "must be a JSON object",
        };
        self.fault("details", fault);
        None
    }
}

fn row(option: &ProductOption) -> Row<6> {
    let enabled = if option.enabled { "yes" } else { "no" }.to_owned();
    cells!(option: option_id, name, provider, provider_option_id, environment, enabled = enabled)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "d4c6c0a4-7f65-4f0b-9d0e-1f6f5a6f3c11";

    fn entry() -> Value {
        json!({
            "option_id": ID, "name": "Japan", "provider": "usimsa", "provider_option_id": "JP", "environment": "live",
        })
    }

    /// The entry with one field set, or removed if the value is null.
    fn with(field: &str, value: Value) -> Value {
        let mut entry = entry();
        let fields = entry.as_object_mut().unwrap();
        if value.is_null() {
            fields.remove(field)
        } else {
            fields.insert(field.to_owned(), value)
        };
        entry
    }

    fn fault(entries: &Value) -> String {
        parse(&json!({ "options": entries }).to_string()).unwrap_err().to_string()
    }

    #[test]
    fn a_good_file_is_read() {
        let read = |entries: Value| parse(&json!({ "options": entries }).to_string()).unwrap();
        let options = read(json!([entry(), with("option_id", json!(ID.replace("d4", "d5")))]));
        assert_eq!(options.len(), 2);
        assert_eq!(options[0].option_id.to_string(), ID);
        assert!(options[0].enabled && options[0].details.is_empty());
        assert_eq!(read(json!([with("details", json!({"days": 7}))]))[0].details["days"], 7);
        assert!(!read(json!([with("enabled", json!(false))]))[0].enabled);
        assert!(read(json!([])).is_empty());
    }

    #[test]
    fn each_fault_names_its_entry_and_field() {
        for (field, value, fault_is) in testkit::rows! {
            "name", Value::Null => "name is missing";
            "name", json!(" ") => "name is blank";
            "name", json!(5) => "name is not a string";
            "name", json!("a\u{0}") => "name has a control character";
            "provider_option_id", json!("x".repeat(256))
                => "provider_option_id is longer than 255 characters";
            "option_id", json!("1") => r#"option_id is "1", which is not a UUID with hyphens"#;
            "provider", json!("e.*")
                => r#"provider is "e.*"; use lower case letters, digits, - and _ as in sandbox or usimsa"#;
            "environment", json!("test") => r#"environment is "test"; it must be sandbox or live"#;
            "enabled", json!("yes") => "enabled must be true or false";
            "details", json!("JP") => "details must be a JSON object";
            "details", json!({"text": "x".repeat(4096)}) => "details must be at most 4096 bytes of JSON";
            "details", json!({"text": "\u{0}"}) => "details must hold no NUL";
            "price", json!(1)
                => r#""price" is not a field; the fields are option_id, name, provider, provider_option_id, environment, enabled, details"#;
        } {
            assert_eq!(fault(&json!([with(field, value)])), format!("options[0] {fault_is}"));
        }
    }

    #[test]
    fn all_faults_come_at_once_and_many_are_counted() {
        let entries = json!([entry(), entry(), "x", with("name", Value::Null)]);
        assert_eq!(
            fault(&entries),
            "options[1] option_id is the same as in options[0]; options[2] is not an object; options[3] name is missing"
        );
        let many = fault(&Value::Array(vec![json!({}); 3]));
        assert!(many.ends_with("options[1] environment is missing; and 5 more"), "{many}");
    }

    #[test]
    fn a_file_of_another_shape_is_refused() {
        for bad in ["", "[]", "{}", "null", r#"{"options": {}}"#, r#"{"options": [], "more": 1}"#, "{\"options\": ["] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
