//! `esimctl option`: lists and imports the catalogue, which is the set of options that partners may
//! order, and takes an option out of sale.
//!
//! An import reads and checks the whole file before it changes anything, and writes in one
//! transaction: a file with any fault imports nothing, so the catalogue is never half of an old and
//! half of a new one. Its error names up to [`MOST_FAULTS`] faults at once, each with the entry and
//! the field, so that a long file need not be corrected one fault at a time. Options that the file
//! does not mention stay as they are. The output of `list --json` is such a file, too.

use std::{
    collections::{BTreeSet, HashMap},
    fs::File,
    io,
};

use accounts::options::{self, ProductOption};
use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand, builder::NonEmptyStringValueParser};
use desk::operator::{self, options::Named};
use domain::{Environment, OptionId, cut::Pair, distinct::Distinct};
use pg::{PgConnection, actions::Mode};
use runtime::files::{self, line_of};
use serde::{Deserialize, de::DeserializeSeed};
use serde_json::{Value, json, value::RawValue};
use sqlx::Connection;
use store::providers;

use crate::{
    catalogue,
    confirm::{self, Confirm},
    console::Console,
    output::{Row, cells, or_dash},
};

const LIST_EXAMPLES: &str = "Examples:
  esimctl option list
  esimctl option list --json
  esimctl option list --json > options.json && esimctl option import options.json

`esimctl option import` takes what --json prints, so that a catalogue can be kept in a file, edited, and copied to
another system.";

const SET_EXAMPLES: &str = "Examples:
  esimctl option set JP-7D-1G --disabled --reason 'sold out at the provider, ticket 4711'
  esimctl option set d4c6c0a4-7f65-4f0b-9d0e-1f6f5a6f3c11 --disabled --reason 'sold out' --yes
  esimctl option set 'Japan 7 days 1 GB' --disabled --dry-run
  esimctl option set JP-7D-1G --enabled --reason 'in stock again'

New orders of a disabled option are refused as soon as each ingress has read the change, which takes a few seconds. Orders
that were accepted before are still bought and delivered. To stop these too, open the breaker of the provider with
`esimctl provider open`, which stops all options of that provider.

A later import of a file that does not say \"enabled\": false for the option puts it back on sale.";

const IMPORT_EXAMPLES: &str = "Examples:
  esimctl option import options.json
  sandbox catalogue | esimctl option import - --json

The file:
  {\"options\": [{\"option_id\": \"d4c6c0a4-7f65-4f0b-9d0e-1f6f5a6f3c11\", \"name\": \"Japan 7 days 1 GB\",
                \"provider\": \"usimsa\", \"provider_option_id\": \"JP-7D-1G\", \"environment\": \"live\",
                \"details\": {\"country\": \"JP\", \"days\": 7}}]}

provider_option_id is the provider's name of the product. environment is sandbox or live. Partners see name and details;
details is an optional JSON object of at most 4 KiB. standard is optional, too, and lets partners filter:
{\"countries\": [\"JP\"], \"data_mb\": 5120, \"days\": 30, \"cost\": {\"price\": \"4.50\", \"currency\": \"USD\"}}; data_mb may be
\"unlimited\", and cost, which partners do not see, may be left out. `esimctl catalogue pull` fills it in. An option that
several providers sell has the others as \"alternatives\": [{\"provider\": \"airalo\", \"provider_option_id\":
\"jp-7d-1gb@4.50\"}], in order of preference: if a provider refuses a purchase, the next one is asked. The file may also
be the list [{…}] alone, as `esimctl option list --json` prints it. An option with \"enabled\": false cannot be ordered.
Options that are not in the file stay as they are. A file with any fault imports nothing; a key that stands twice in one object is a fault.
A provider that no provisioner has ever served gets a warning, and `esimctl doctor` repeats it.";

/// The largest file that is read, in bytes.
const LARGEST: u64 = 64 << 20;
/// The maximum number of faults that one error names.
const MOST_FAULTS: usize = 10;
const LONGEST_TEXT: usize = 255;
/// The maximum number of alternatives of an option.
const MOST_ALTERNATIVES: usize = 4;
/// The longest details as JSON, in bytes.
const LONGEST_DETAILS: usize = 4 << 10;

#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// List the catalogue
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Add options and update existing ones
    ///
    /// The same file again changes nothing, so a script may import it at every deployment.
    #[command(after_help = IMPORT_EXAMPLES)]
    Import {
        /// The JSON file with the options, or `-` for standard input
        file: String,
    },
    /// Take an option out of sale, or put it back
    #[command(after_help = SET_EXAMPLES)]
    Set(Change),
}

#[derive(Args, Clone, Debug)]
pub struct Change {
    /// The option's id, its name, or its name at the provider
    ///
    /// If several options have this name, the command changes nothing and lists their ids.
    #[arg(value_name = "NAME|ID", value_parser = NonEmptyStringValueParser::new())]
    option: String,
    #[command(flatten)]
    sale: Sale,
    #[command(flatten)]
    confirm: Confirm,
}

#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
struct Sale {
    /// Take it out of sale: new orders of it are refused, accepted ones are still bought
    #[arg(long)]
    disabled: bool,
    /// Put it back on sale
    #[arg(long)]
    enabled: bool,
}

pub async fn run(command: &Command, console: &Console) -> anyhow::Result<()> {
    match command {
        Command::List => {
            let (catalogue, unreadable) =
                options::readable(options::all(&mut console.connect().await?).await?);
            console.print_list(
                &catalogue,
                "The catalogue is empty; see `esimctl option import --help`.",
                row,
            )?;
            ensure!(
                unreadable.is_empty(),
                "not listed, because their rows cannot be read, so nobody can order them; import them again: {}",
                unreadable.join("; ")
            );
            Ok(())
        }
        Command::Import { file } => import(file, console).await,
        Command::Set(change) => set_enabled(change, console).await,
    }
}

async fn set_enabled(asked: &Change, console: &Console) -> anyhow::Result<()> {
    let enabled = asked.sale.enabled && !asked.sale.disabled;
    let mut connection = console.connect().await?;
    let option = one(
        operator::options::named(&mut connection, &asked.option).await?,
        &asked.option,
    )?;
    let id = option.option_id;
    let run = async |mode: Mode<'_>| {
        let changed = operator::options::set_enabled(&mut connection, id, enabled, mode);
        Ok(changed.await?)
    };
    let print = |changed: &bool, dry_run| {
        let mut shown = json!(option);
        shown["enabled"] = json!(enabled);
        shown["changed"] = json!(changed);
        shown["dry_run"] = json!(dry_run);
        console.print(&shown, || effect(&option, enabled, *changed, dry_run))
    };
    let command = if enabled {
        domain::Command::OptionEnable
    } else {
        domain::Command::OptionDisable
    };
    asked
        .confirm
        .carry_out(
            command,
            &format!("option {id} ({})", option.name),
            confirm::Change {
                run,
                describe: |changed: &bool| effect(&option, enabled, *changed, true),
                print,
            },
        )
        .await
}

/// The only option that was found by what the operator has typed.
pub fn one(found: Vec<Named>, typed: &str) -> anyhow::Result<Named> {
    match <[Named; 1]>::try_from(found) {
        Ok([option]) => Ok(option),
        Err(none) if none.is_empty() => {
            bail!("there is no option with the id or name {typed:?}; see `esimctl option list`")
        }
        Err(several) => {
            let ids: Vec<String> = several
                .iter()
                .map(|option| {
                    let Named {
                        option_id,
                        name,
                        provider,
                        environment,
                        ..
                    } = option;
                    format!("{option_id} ({name}, {environment}, {provider})")
                })
                .collect();
            bail!(
                "{} options have the name {typed:?}; name one of them by its id: {}",
                several.len(),
                ids.join("; ")
            )
        }
    }
}

/// What the command has done, or would do, as text.
fn effect(option: &Named, enabled: bool, changed: bool, dry_run: bool) -> String {
    let Named {
        option_id,
        name,
        provider,
        ..
    } = option;
    let state = match (changed, dry_run) {
        (false, _) => "already is",
        (true, true) => "would be",
        (true, false) => "is now",
    };
    let consequence = if enabled {
        "on sale: partners can order it"
    } else {
        "out of sale: new orders of it are refused, and orders that were accepted before are still bought"
    };
    format!("option {name} ({option_id}, provider {provider}) {state} {consequence}")
}

async fn import(file: &str, console: &Console) -> anyhow::Result<()> {
    // Read everything before anything can fail: the program that writes to our standard input would
    // otherwise see a broken pipe and report that instead of our error.
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
    let unserved = unserved(&mut connection, &catalogue).await?;
    let report = json!({ "imported": imported, "unchanged": unchanged, "unserved": unserved });
    console.print(&report, || {
        let done = format!("{imported} imported, {unchanged} unchanged");
        if unserved.is_empty() {
            return done;
        }
        format!(
            "{done}\nwarning: no provisioner has ever served {}, so nothing is bought there; put what is missing into PROVIDERS of \
             ingress and provisioner, or import the options without it",
            unserved.join(", "),
        )
    })
}

/// The providers that live options on sale in the file name and that no provisioner has ever served. They
/// are no fault of the file, because a catalogue may be imported before the provisioner that serves it
/// starts for the first time. `esimctl doctor` warns of them for as long as that is so. Sandbox options
/// do not count, because all orders of sandbox partners go to the sandbox.
async fn unserved(
    connection: &mut PgConnection,
    catalogue: &[ProductOption],
) -> anyhow::Result<Vec<String>> {
    let is_live = |option: &&ProductOption| option.environment == Environment::Live;
    let on_sale = catalogue
        .iter()
        .filter(|option| option.enabled)
        .filter(is_live);
    let mut named: BTreeSet<&str> = on_sale
        .flat_map(|option| {
            let others = option.alternatives.iter().map(|pair| &pair.provider);
            others.chain([&option.provider]).map(String::as_str)
        })
        .collect();
    for served in providers::list(connection).await? {
        named.remove(served.name.as_str());
    }
    Ok(named.into_iter().map(str::to_owned).collect())
}

fn read(file: &str) -> anyhow::Result<String> {
    if file == "-" {
        return files::read_from(io::stdin().lock(), "standard input", LARGEST);
    }
    let opened = File::open(file).with_context(|| format!("cannot open {file}"))?;
    files::read_from(opened, file, LARGEST)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Catalogue<'text> {
    // The texts of the entries, whose places in the file are known.
    #[serde(borrow)]
    options: Vec<&'text RawValue>,
}

/// Parses and checks the whole file. Each entry is parsed by itself, so that one error can name the
/// faults of several entries.
fn parse(text: &str) -> anyhow::Result<Vec<ProductOption>> {
    const SHAPE: &str =
        "the file is not of the form {\"options\": […]} or […]; see `esimctl option import --help`";
    check_keys(text)?;
    let file = if text.trim_start().starts_with('[') {
        serde_json::from_str(text).map(|options| Catalogue { options })
    } else {
        serde_json::from_str(text)
    };
    let file = file.context(SHAPE)?;
    let mut faults = Vec::new();
    let mut catalogue = Vec::with_capacity(file.options.len());
    let mut first_with: HashMap<OptionId, usize> = HashMap::with_capacity(file.options.len());
    for (index, entry) in file.options.into_iter().enumerate() {
        let at = format!("line {}: options[{index}]", line_of(text, entry.get()));
        let value: Value = serde_json::from_str(entry.get()).context(SHAPE)?;
        let option: ProductOption = match serde_path_to_error::deserialize(value) {
            Ok(option) => option,
            Err(error) if error.path().iter().next().is_none() => {
                faults.push(format!("{at}: {}", error.inner()));
                continue;
            }
            Err(error) => {
                faults.push(format!("{at}.{}: {}", error.path(), error.inner()));
                continue;
            }
        };
        faults.extend(fault(&option).map(|fault| format!("{at}.{fault}")));
        if let Some(first) = first_with.insert(option.option_id, index) {
            faults.push(format!("{at}.option_id: the same as in options[{first}]"));
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

/// Checks what the types of the fields cannot express. Returns the first fault, with its field.
fn fault(option: &ProductOption) -> Option<String> {
    if let Some(fault) = text_fault("name", &option.name) {
        return Some(fault);
    }
    if let Some(fault) = pair_fault(&option.provider, &option.provider_option_id) {
        return Some(fault);
    }
    if option.alternatives.len() > MOST_ALTERNATIVES {
        return Some(format!("alternatives: must be at most {MOST_ALTERNATIVES}"));
    }
    let mut providers = vec![&option.provider];
    for (index, pair) in option.alternatives.iter().enumerate() {
        let Pair {
            provider,
            provider_option_id,
        } = pair;
        if let Some(fault) = pair_fault(provider, provider_option_id) {
            return Some(format!("alternatives[{index}].{fault}"));
        }
        // A provider knows all attempts of a placement by one id. So it may take a second product
        // under this id for a repetition of the first one.
        if providers.contains(&provider) {
            return Some(format!(
                "alternatives[{index}].provider: {provider} is named before; each provider may be named once"
            ));
        }
        providers.push(provider);
    }
    let details = Value::from(option.details.clone()).to_string();
    // PostgreSQL cannot store a NUL, which JSON text contains as `\u0000`. If the backslash itself
    // is escaped, `u0000` is ordinary text.
    if details.replace("\\\\", "").contains("\\u0000") {
        return Some("details: must hold no NUL".into());
    }
    (details.len() > LONGEST_DETAILS)
        .then(|| format!("details: must be at most {LONGEST_DETAILS} bytes of JSON"))
}

/// The first fault of a provider and its name of an option.
fn pair_fault(provider: &str, provider_option_id: &str) -> Option<String> {
    let blank = text_fault("provider", provider)
        .or_else(|| text_fault("provider_option_id", provider_option_id));
    if blank.is_some() {
        return blank;
    }
    // The name of a provider is part of the NATS subjects of its jobs, where for example `.` and
    // `*` have a meaning.
    let is_plain = |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
    (!provider.bytes().all(is_plain)).then(|| {
        let rule = "use lower case letters, digits, - and _ as in sandbox or usimsa";
        format!("provider: {provider:?} is not a name; {rule}")
    })
}

fn text_fault(field: &str, text: &str) -> Option<String> {
    if text.trim().is_empty() {
        return Some(format!("{field}: must not be blank"));
    }
    if text.chars().any(char::is_control) {
        return Some(format!("{field}: must have no control character"));
    }
    (text.chars().count() > LONGEST_TEXT)
        .then(|| format!("{field}: must be at most {LONGEST_TEXT} characters long"))
}

fn row(option: &ProductOption) -> Row<8> {
    let enabled = if option.enabled { "yes" } else { "no" }.to_owned();
    let alternatives: Vec<String> = option
        .alternatives
        .iter()
        .map(|pair| format!("{} {}", pair.provider, pair.provider_option_id))
        .collect();
    let standard = or_dash(option.standard.as_ref().map(catalogue::of));
    cells!(option:
        option_id, name, provider, provider_option_id, environment, enabled = enabled,
        alternatives = alternatives.join(", "),
        standard = standard,
    )
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
        parse(&json!({ "options": entries }).to_string())
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn a_good_file_is_read() {
        let read = |entries: Value| parse(&json!({ "options": entries }).to_string()).unwrap();
        let options = read(json!([
            entry(),
            with("option_id", json!(ID.replace("d4", "d5")))
        ]));
        assert_eq!(options.len(), 2);
        assert_eq!(options[0].option_id.to_string(), ID);
        assert!(options[0].enabled && options[0].details.is_empty());
        assert_eq!(
            read(json!([with("details", json!({"days": 7}))]))[0].details["days"],
            7
        );
        assert!(!read(json!([with("enabled", json!(false))]))[0].enabled);
        assert!(read(json!([])).is_empty());
        assert_eq!(parse(&json!([entry()]).to_string()).unwrap().len(), 1);
    }

    #[test]
    fn each_fault_names_its_entry_and_field() {
        for (field, value, fault_is) in testkit::rows! {
            "name", Value::Null => ": missing field `name`";
            "name", json!(" ") => ".name: must not be blank";
            "name", json!(5) => ".name: invalid type: integer `5`, expected a string";
            "name", json!("a\u{0}") => ".name: must have no control character";
            "provider_option_id", json!("x".repeat(256))
                => ".provider_option_id: must be at most 255 characters long";
            "option_id", json!("1")
                => ".option_id: UUID parsing failed: invalid length: found 1";
            "provider", json!("e.*")
                => r#".provider: "e.*" is not a name; use lower case letters, digits, - and _ as in sandbox or usimsa"#;
            "environment", json!("test")
                => ".environment: unknown variant `test`, expected `sandbox` or `live`";
            "enabled", json!("yes") => r#".enabled: invalid type: string "yes", expected a boolean"#;
            "details", json!("JP") => r#".details: invalid type: string "JP", expected a map"#;
            "details", json!({"text": "x".repeat(4096)}) => ".details: must be at most 4096 bytes of JSON";
            "details", json!({"text": "\u{0}"}) => ".details: must hold no NUL";
            "price", json!(1)
                => ".price: unknown field `price`, expected one of `option_id`, `name`, `provider`, \
                    `provider_option_id`, `alternatives`, `environment`, `enabled`, `details`, `standard`";
            "alternatives", json!([{"provider": "airalo"}])
                => ".alternatives[0]: missing field `provider_option_id`";
            "alternatives", json!([{"provider": "airalo", "provider_option_id": "x"}, {"provider": "a b", "provider_option_id": "x"}])
                => r#".alternatives[1].provider: "a b" is not a name; use lower case letters, digits, - and _ as in sandbox or usimsa"#;
            "alternatives", json!([{"provider": "usimsa", "provider_option_id": "other"}])
                => ".alternatives[0].provider: usimsa is named before; each provider may be named once";
            "alternatives", json!([{"provider": "airalo", "provider_option_id": ""}])
                => ".alternatives[0].provider_option_id: must not be blank";
        } {
            assert_eq!(
                fault(&json!([with(field, value)])),
                format!("line 1: options[0]{fault_is}")
            );
        }
    }

    #[test]
    fn all_entries_with_a_fault_come_at_once_and_many_are_counted() {
        let entries = json!([entry(), entry(), "x", with("name", Value::Null)]);
        let faults = fault(&entries);
        for part in [
            "options[1].option_id: the same as in options[0]; ",
            "options[2]: invalid type: string \"x\"",
            "options[3]: missing field `name`",
        ] {
            assert!(faults.contains(part), "{faults}");
        }
        let many = fault(&Value::Array(vec![json!({}); 12]));
        assert!(
            many.ends_with("options[9]: missing field `option_id`; and 2 more"),
            "{many}"
        );
    }

    #[test]
    fn a_fault_names_its_line() {
        let text = format!("[\n  {},\n\n  {{\"name\": 5}}\n]", entry());
        let fault = parse(&text).unwrap_err().to_string();
        assert!(fault.starts_with("line 4: options[1]"), "{fault}");
        // An editor may begin the file with a byte order mark.
        let marked = format!("\u{feff}{{\"options\": [{}]}}\r\n", entry());
        let read = files::read_from(marked.as_bytes(), "options.json", LARGEST).unwrap();
        assert_eq!(parse(&read).unwrap().len(), 1);
    }

    #[test]
    fn a_file_of_another_shape_is_refused() {
        for bad in [
            "",
            "[",
            "[] []",
            "{}",
            "null",
            r#"{"options": {}}"#,
            r#"{"options": [], "more": 1}"#,
            "{\"options\": [",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
