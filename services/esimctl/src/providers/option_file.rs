//! `esimctl option apply`: brings the catalogue to what a file says.
//!
//! The whole file is read and checked before anything is changed, and everything is written in one
//! transaction with its record: a file with any fault changes nothing, so the catalogue is never
//! half of an old and half of a new one. Options that the file does not mention stay as they are,
//! and so does each field that it leaves out of an option. The output of `option list --json` is
//! such a file, too.

use std::collections::{BTreeSet, HashMap};

use accounts::{
    facts::{Facts, LARGEST},
    options::{self, ProductOption},
};
use anyhow::Context;
use clap::Args;
use domain::{Environment, OptionId, cut::OptionAtProvider, product::Standard};
use pg::{
    PgConnection, TransactionEnd,
    actions::{self, ActionChange},
    transaction,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use store::providers;
use utoipa::ToSchema;

use crate::{
    confirm::ReasonArgs,
    console::Console,
    manifest::{self, ManifestArgs, ManifestField},
    plan::{Plan, PlannedEffect, PlannedEntry},
};

pub const EXAMPLES: &str = "Examples:
  esimctl option apply -f options.yaml
  esimctl option apply -f options.yaml --dry-run --json
  sandbox catalogue | esimctl option apply -f -

The file is YAML or JSON:
  options:
    - option_id: d4c6c0a4-7f65-4f0b-9d0e-1f6f5a6f3c11
      name: Japan 7 days 1 GB
      provider: usimsa
      provider_option_id: JP-7D-1G
      environment: live
      details: {country: JP, days: 7}

provider_option_id is the provider's name of the product. environment is sandbox or live. Partners see name and details;
details is an optional object of at most 4 KiB of JSON. standard is optional, too, and lets partners filter:
{countries: [JP], data_mb: 5120, days: 30, cost: {price: \"4.50\", currency: USD}}; data_mb may be
unlimited, and cost, which partners do not see, may be left out. `esimctl catalogue pull` fills it in, and told, which is
what the provider tells: networks, activation, hotspot, APN and the like. Each of these that stands in facts counts instead,
for example facts: {hotspot: true, names: {de: Japan}}; facts: null leaves it to the provider again. An option that
several providers sell has the others as alternatives: [{provider: airalo, provider_option_id: jp-7d-1gb@4.50}],
in order of preference: if a provider refuses a purchase, the next one is asked. The file may also
be the list [{…}] alone, as `esimctl option list --json` prints it. An option with enabled: false cannot be ordered.
Options that are not in the file stay as they are, and so does what the file leaves out of an option: without enabled, one
that is sold out stays out of sale. alternatives: [], details: {} and standard: null take away what is stored. A new option
is on sale. A file with any fault changes nothing; a key that stands twice in one object is a fault.
docs/options.schema.json describes the file for editors and checks.
A provider that no provisioner has ever served gets a warning, and `esimctl doctor` repeats it.

--dry-run prints what would be created and changed, and ends with status 0 if that is nothing and 3 otherwise.";

const LONGEST_TEXT: usize = 255;
/// The maximum number of alternatives of an option.
const MOST_ALTERNATIVES: usize = 4;
/// The longest details as JSON, in bytes.
const LONGEST_DETAILS: usize = 4 << 10;
/// The maximum number of options that a record names.
const MOST_NAMED: usize = 100;

#[derive(Args, Clone, Debug)]
pub struct OptionApplyArgs {
    #[command(flatten)]
    pub source: ManifestArgs,
    // This field stands before `dry_run`: clap reads the fields in this order and removes each
    // value from the arguments, and `By` needs to see whether `--dry-run` was given.
    #[command(flatten)]
    why: ReasonArgs,
    /// Show what would be created and changed, and change nothing
    #[arg(long)]
    dry_run: bool,
}

pub async fn apply(asked: &OptionApplyArgs, console: &Console) -> anyhow::Result<()> {
    // Read everything before anything can fail: the program that writes to our standard input would
    // otherwise see a broken pipe and report that instead of our error.
    let text = asked.source.read()?;
    let name = asked.source.name();
    let nothing = || format!("nothing was changed by {name}");
    let entries = parse(&text).with_context(nothing)?;
    let mut connection = console.connect().await?;
    let (catalogue, plan, imported) = transaction!(
        &mut connection,
        "option apply",
        |transaction| -> anyhow::Result<(Vec<ProductOption>, Plan, usize)> {
            // What the file leaves out is taken from the stored option, so nobody may change that
            // meanwhile.
            options::lock(transaction).await?;
            let stored = options::all(transaction).await?;
            let stored: HashMap<OptionId, options::StoredOption> =
                stored.into_iter().map(|one| (one.option_id, one)).collect();
            let catalogue = onto(entries.clone(), &stored).with_context(nothing)?;
            let mut plan = Plan::default();
            for option in &catalogue {
                let was = stored.get(&option.option_id);
                let is_written = options::import(transaction, option).await?;
                plan.0.push(planned(option, was, is_written));
            }
            let imported = plan.count(PlannedEffect::Create) + plan.count(PlannedEffect::Change);
            if asked.dry_run {
                return Ok(TransactionEnd::Rollback((catalogue, plan, imported)));
            }
            if imported > 0 {
                let affected = i64::try_from(imported).unwrap_or(i64::MAX);
                let action = asked.why.action(domain::Command::OptionApply, "catalogue");
                actions::record(transaction, action, affected, changed(&plan)).await?;
            }
            Ok(TransactionEnd::Commit((catalogue, plan, imported)))
        }
    )?;
    let unserved = unserved(&mut connection, &catalogue).await?;
    if asked.dry_run {
        return plan.print_dry_run(console, |shown| shown["unserved"] = json!(unserved));
    }
    let mut report = plan.json(false);
    report["imported"] = json!(imported);
    report["unserved"] = json!(unserved);
    console.print(&report, || {
        let done = plan.text(false);
        if unserved.is_empty() {
            return done;
        }
        format!(
            "{done}\nwarning: no provisioner has ever served {}, so nothing is bought there; put what is missing into PROVIDERS of \
             ingress and provisioner, or apply the options without it",
            unserved.join(", "),
        )
    })
}

/// What becomes of an option. `is_written` is what PostgreSQL says, which compares all columns.
fn planned(
    option: &ProductOption,
    was: Option<&options::StoredOption>,
    is_written: bool,
) -> PlannedEntry {
    let (effect, changes) = match was.map(|was| &was.option) {
        _ if !is_written => (PlannedEffect::Unchanged, Vec::new()),
        None => (PlannedEffect::Create, Vec::new()),
        Some(Err(error)) => (
            PlannedEffect::Change,
            vec![format!("the stored row is replaced: {error}")],
        ),
        Some(Ok(was)) => (
            PlannedEffect::Change,
            differences(&json!(was), &json!(option)),
        ),
    };
    PlannedEntry {
        effect,
        id: Some(option.option_id.to_string()),
        name: option.name.clone(),
        changes,
    }
}

/// The fields that differ. Short values are shown as they were and as they become.
fn differences(was: &Value, becomes: &Value) -> Vec<String> {
    const SHORT: usize = 80;
    let fields = |value: &Value| value.as_object().cloned().unwrap_or_default();
    let was = fields(was);
    let becomes = fields(becomes);
    // Of what is known of the product, each fact is a field of its own.
    let facts = |name: &String| name == "facts" || name == "told";
    let names: BTreeSet<&String> = was.keys().chain(becomes.keys()).collect();
    let inner = names.iter().filter(|name| facts(name)).flat_map(|name| {
        let of = |side: &Map<String, Value>| side.get(*name).cloned().unwrap_or_default();
        let inner = differences(&of(&was), &of(&becomes)).into_iter();
        inner.map(move |change| format!("{name}.{change}"))
    });
    let inner: Vec<String> = inner.collect();
    let names = names.into_iter().filter(|name| !facts(name));
    let differs = names.filter_map(|name| {
        let was = was.get(name);
        let becomes = becomes.get(name);
        let text = |value: Option<&Value>| value.map_or_else(|| "-".to_owned(), Value::to_string);
        (was != becomes).then(|| {
            let change = format!("{name}: {} → {}", text(was), text(becomes));
            if change.chars().count() > SHORT {
                name.clone()
            } else {
                change
            }
        })
    });
    differs.chain(inner).collect()
}

/// What is recorded of a file: which options it created and changed.
fn changed(plan: &Plan) -> ActionChange {
    let ids = |effect| -> Vec<&str> {
        let of_effect = plan.0.iter().filter(|one| one.effect == effect);
        let ids = of_effect.filter_map(|one| one.id.as_deref());
        ids.take(MOST_NAMED).collect()
    };
    ActionChange::created(json!({
        "created": plan.count(PlannedEffect::Create), "changed": plan.count(PlannedEffect::Change),
        "created_options": ids(PlannedEffect::Create), "changed_options": ids(PlannedEffect::Change),
    }))
}

/// The providers that live options on sale in the file name and that no provisioner has ever
/// served. They are no fault of the file, because a catalogue may be imported before the
/// provisioner that serves it starts for the first time. `esimctl doctor` warns of them for as long
/// as that is so. Sandbox options do not count, because all orders of sandbox partners go to the
/// sandbox.
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

/// An option of the file. Of one that is stored, what it leaves out stays as it is.
#[derive(Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OptionEntry {
    /// The id by which partners order the option.
    #[schema(value_type = uuid::Uuid)]
    option_id: OptionId,
    name: String,
    provider: String,
    provider_option_id: String,
    /// The pairs that follow if this provider refuses a purchase, in order of preference. Each names
    /// another provider.
    #[serde(default)]
    #[schema(value_type = Option<Vec<Object>>)]
    alternatives: Option<Vec<OptionAtProvider>>,
    /// The environment whose partners may order the option: `sandbox` or `live`.
    #[schema(value_type = String, pattern = "^(sandbox|live)$")]
    environment: Environment,
    /// Only enabled options can be ordered. A new option is enabled if this is left out.
    #[serde(default)]
    enabled: Option<bool>,
    /// The operator's description for partners: any JSON object.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    details: Option<Map<String, Value>>,
    /// What is known of the product in the same form for all providers; `null` takes it away.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    standard: ManifestField<Standard>,
    /// What you say of the product by hand; it counts, whatever its provider tells. `null` takes it
    /// all away, and then what the provider tells counts again.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    facts: ManifestField<Facts>,
    /// What the provider tells. `esimctl catalogue pull` writes it, and `option list --json` prints
    /// it.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    told: ManifestField<Facts>,
}

impl OptionEntry {
    /// The option that the entry makes of the stored one, or of none. What it leaves out of an
    /// option that cannot be read is as in a new one, but whether that is on sale is known.
    fn onto(self, stored: Option<&options::StoredOption>) -> ProductOption {
        let sold = OptionAtProvider {
            provider: self.provider,
            provider_option_id: self.provider_option_id,
        };
        let new = ProductOption::new(self.option_id, self.name, sold, self.environment);
        let was = stored.and_then(|stored| stored.option.as_ref().ok());
        let was = was.unwrap_or(&new);
        // Another provider tells something else.
        let told = Some(&was.told).filter(|_| was.provider == new.provider);
        let is_on_sale = stored.is_none_or(|stored| stored.enabled);
        // Without `..new`, so that a new field cannot be forgotten: the file would change nothing
        // of it.
        ProductOption {
            option_id: new.option_id,
            name: new.name.clone(),
            provider: new.provider.clone(),
            provider_option_id: new.provider_option_id.clone(),
            environment: new.environment,
            alternatives: self
                .alternatives
                .unwrap_or_else(|| was.alternatives.clone()),
            enabled: self.enabled.unwrap_or(is_on_sale),
            details: self.details.unwrap_or_else(|| was.details.clone()),
            standard: self.standard.or_as_it_was(was.standard.as_ref()),
            facts: (self.facts.or_as_it_was(Some(&was.facts))).unwrap_or_default(),
            told: (self.told.or_as_it_was(told)).unwrap_or_default(),
        }
    }
}

/// An entry with the place where it stands.
type Placed<T> = (String, T);

/// Makes the options of the entries and what is stored, and checks them once more: what an entry
/// leaves out may not fit to what it changes.
fn onto(
    entries: Vec<Placed<OptionEntry>>,
    stored: &HashMap<OptionId, options::StoredOption>,
) -> anyhow::Result<Vec<ProductOption>> {
    let mut faults = Vec::new();
    let mut catalogue = Vec::with_capacity(entries.len());
    for (at, entry) in entries {
        let was = stored.get(&entry.option_id);
        let option = entry.onto(was);
        faults.extend(fault(&option).map(|fault| format!("{at}.{fault}")));
        catalogue.push(option);
    }
    manifest::without_faults(faults)?;
    Ok(catalogue)
}

/// Parses and checks the whole file, so that one error can name the faults of several entries.
fn parse(text: &str) -> anyhow::Result<Vec<Placed<OptionEntry>>> {
    let entries = manifest::entries(text, "options")?;
    let mut faults = Vec::new();
    let mut read = Vec::with_capacity(entries.len());
    let mut first_with: HashMap<OptionId, usize> = HashMap::with_capacity(entries.len());
    for (index, entry) in entries.into_iter().enumerate() {
        let option: OptionEntry = match entry.read() {
            Ok(option) => option,
            Err(fault) => {
                faults.push(fault);
                continue;
            }
        };
        let at = entry.at;
        if let Some(first) = first_with.insert(option.option_id, index) {
            faults.push(format!("{at}.option_id: the same as in options[{first}]"));
        }
        read.push((at, option));
    }
    manifest::without_faults(faults)?;
    Ok(read)
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
        let OptionAtProvider {
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
    if details.len() > LONGEST_DETAILS {
        return Some(format!(
            "details: must be at most {LONGEST_DETAILS} bytes of JSON"
        ));
    }
    let size = |facts: &Facts| facts.stored().map_or(0, |stored| stored.len());
    [("facts", &option.facts), ("told", &option.told)]
        .into_iter()
        .find(|(_, facts)| size(facts) > LARGEST)
        .map(|(field, _)| format!("{field}: must be at most {LARGEST} bytes of JSON"))
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

    /// Reads a file for an empty catalogue.
    fn read(text: &str) -> anyhow::Result<Vec<ProductOption>> {
        onto(parse(text)?, &HashMap::new())
    }

    fn fault(entries: &Value) -> String {
        let text = json!({ "options": entries }).to_string();
        read(&text).unwrap_err().to_string()
    }

    #[test]
    fn a_good_file_is_read() {
        let read = |entries: Value| read(&json!({ "options": entries }).to_string()).unwrap();
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
    fn what_an_entry_leaves_out_stays_as_it_is() {
        let stored = ProductOption {
            alternatives: vec![OptionAtProvider {
                provider: "airalo".into(),
                provider_option_id: "jp".into(),
            }],
            enabled: false,
            details: Map::from_iter([("days".to_owned(), json!(7))]),
            standard: serde_json::from_value(
                json!({ "countries": ["JP"], "data_mb": 1, "days": 1 }),
            )
            .unwrap(),
            facts: serde_json::from_value(json!({ "hotspot": true })).unwrap(),
            told: serde_json::from_value(json!({ "top_up": "no" })).unwrap(),
            ..read(&json!([entry()]).to_string()).unwrap().remove(0)
        };
        let changed = options::StoredOption {
            option_id: stored.option_id,
            row_version: 1,
            enabled: false,
            option: Ok(stored.clone()),
        };
        let stored_as = HashMap::from([(stored.option_id, changed)]);
        let apply = |entry: Value| {
            let applied = onto(parse(&json!([entry]).to_string())?, &stored_as)?;
            anyhow::Ok(json!(applied[0]))
        };
        assert_eq!(apply(entry()).unwrap(), json!(stored));
        for (field, value) in [
            ("enabled", json!(true)),
            ("details", json!({})),
            ("alternatives", json!([])),
            ("facts", json!({ "top_up": "yes" })),
            ("told", json!({ "hotspot": true })),
        ] {
            let value = match field {
                "facts" | "told" => json!(serde_json::from_value::<Facts>(value).unwrap()),
                _ => value,
            };
            let mut expected = json!(stored);
            expected[field] = value.clone();
            assert_eq!(apply(with(field, value)).unwrap(), expected);
        }
        let mut without = entry();
        without["standard"] = Value::Null;
        assert_eq!(apply(without).unwrap()["standard"], Value::Null);
        let mut without = entry();
        without["facts"] = Value::Null;
        let without = apply(without).unwrap();
        assert_eq!(without["facts"], json!(Facts::default()));
        assert_eq!(without["told"], json!(stored.told));
        // What the one provider tells is not what the other one does.
        let moved = apply(with("provider", json!("zendit"))).unwrap();
        assert_eq!(moved["told"], json!(Facts::default()));
        assert_eq!(moved["facts"], json!(stored.facts));
        // The stored alternative is the provider that the entry names.
        let error = apply(with("provider", json!("airalo"))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "line 1: options[0].alternatives[0].provider: airalo is named before; each provider may be named once"
        );
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
            "facts", json!({"picture": "x"}) => ".facts.picture: it must be an https:// URL without a password";
            "facts", json!({"coverage": vec![json!({"country": "JP", "networks": [{"name": "x".repeat(500)}]}); 130]})
                => ".facts: must be at most 65536 bytes of JSON";
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
        let unknown = fault(&json!([with("facts", json!({"hotspots": true}))]));
        assert!(
            unknown.starts_with(
                "line 1: options[0].facts.hotspots: unknown field `hotspots`, expected"
            ),
            "{unknown}"
        );
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
        let fault = read(&text).unwrap_err().to_string();
        assert!(fault.starts_with("line 4: options[1]"), "{fault}");
        // An editor may begin the file with a byte order mark.
        let marked = format!("\u{feff}{{\"options\": [{}]}}\r\n", entry());
        let text = runtime::files::read_from(marked.as_bytes(), "options.json", 1 << 20).unwrap();
        assert_eq!(read(&text).unwrap().len(), 1);
        let yaml = "options:\n  - option_id: x\n\n  - name: 5\n";
        let fault = read(yaml).unwrap_err().to_string();
        assert!(
            fault.starts_with("line 2: options[0]") && fault.contains("; line 4: options[1]"),
            "{fault}"
        );
    }

    #[test]
    fn a_file_of_another_shape_is_refused() {
        for bad in [
            "",
            "[",
            "[] []",
            "{}",
            "null",
            "partners: []",
            r#"{"options": {}}"#,
            r#"{"options": [], "more": 1}"#,
            "{\"options\": [",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
