//! The file of `esimctl partner apply`: its form, and what is checked before the database is asked.
//!
//! A field that is left out leaves the account as it is. Secrets never stand in the file: they are
//! made when an account or an endpoint is created. `docs/partners.schema.json` is generated from
//! the types here.

use accounts::partners::{Limit, NewLimits};
use clap::ValueEnum;
use domain::{
    Environment, PartnerId,
    event::{self, EventKind},
};
use serde::Deserialize;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        RefOr, Schema,
        schema::{ObjectBuilder, OneOfBuilder, Type},
    },
};
use webhooks::{config::HttpConfig, guard, url::WebhookUrl};

use crate::{
    manifest::{self, ManifestField},
    terms::{self, MOST_LIMIT},
};

/// One partner account of the file.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct PartnerEntry {
    /// The name that lists show. With `environment` it says which account is meant.
    pub name: String,
    /// `sandbox` or `live`. It cannot be changed later.
    #[schema(value_type = String, pattern = "^(sandbox|live)$")]
    pub environment: Environment,
    /// The account's id, if several accounts of this environment have the name. Without it an account with a
    /// new name is created.
    #[schema(value_type = Option<uuid::Uuid>)]
    #[serde(default)]
    pub partner_id: Option<PartnerId>,
    /// Where the account's webhooks go; `null` removes the URL, so that they wait.
    #[schema(value_type = Option<String>)]
    #[serde(default)]
    webhook_url: ManifestField<String>,
    /// The further events that the first endpoint gets, such as `topup.failed`. The fault for another name lists all.
    #[serde(default)]
    events: Option<Vec<String>>,
    #[schema(inline)]
    #[serde(default)]
    limits: LimitsEntry,
    /// Whether the signature of a request must cover the query and the body.
    #[schema(inline)]
    #[serde(default)]
    pub signed_body: Option<CoverageRule>,
    /// Whether the account's requests are denied.
    #[serde(default)]
    pub disabled: Option<bool>,
    /// Further endpoints, each known by its URL. Those that are not listed stay.
    #[schema(inline)]
    #[serde(default)]
    endpoints: Vec<EndpointEntry>,
}

/// The limits at each ingress: a number from 1 to 1,000,000, or `default`.
#[derive(Deserialize, Default, ToSchema)]
#[serde(deny_unknown_fields)]
struct LimitsEntry {
    /// The maximum number of orders in flight at once.
    #[schema(inline)]
    max_in_flight: Option<LimitEntry>,
    #[schema(inline)]
    requests_per_second: Option<LimitEntry>,
    #[schema(inline)]
    orders_per_second: Option<LimitEntry>,
    #[schema(inline)]
    units_per_second: Option<LimitEntry>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(
    untagged,
    expecting = "a number from 1 to 1000000, or the word default"
)]
enum LimitEntry {
    Own(u32),
    Default(DefaultWord),
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum DefaultWord {
    Default,
}

impl PartialSchema for LimitEntry {
    fn schema() -> RefOr<Schema> {
        let number = ObjectBuilder::new().schema_type(Type::Integer);
        let number = number.minimum(Some(1)).maximum(Some(MOST_LIMIT));
        let word = ObjectBuilder::new().schema_type(Type::String);
        let word = word.enum_values(Some(["default"]));
        OneOfBuilder::new().item(number).item(word).into()
    }
}

impl ToSchema for LimitEntry {}

/// Whether the signature of a request must cover the query and the body.
#[derive(Deserialize, Clone, Copy, Debug, PartialEq, Eq, ToSchema, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum CoverageRule {
    /// Requests whose signature does not cover the query and the body are denied
    Required,
    /// Each request chooses whether its signature covers them
    Optional,
}

/// A further endpoint of an account.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct EndpointEntry {
    /// The URL, by which the endpoint is known.
    url: String,
    /// What it gets, such as `topup.ready`, which a new endpoint gets alone if this is left out.
    #[serde(default)]
    events: Option<Vec<String>>,
}

/// An entry whose fields are checked.
pub struct CheckedPartner {
    /// Where it stands in the file.
    pub at: String,
    pub name: String,
    pub environment: Environment,
    pub partner_id: Option<PartnerId>,
    /// `null` removes the URL.
    pub webhook_url: ManifestField<WebhookUrl>,
    pub events: Option<Vec<EventKind>>,
    pub limits: NewLimits,
    pub signed_body: Option<CoverageRule>,
    pub disabled: Option<bool>,
    pub endpoints: Vec<WantedEndpoint>,
}

pub struct WantedEndpoint {
    pub url: WebhookUrl,
    pub events: Option<Vec<EventKind>>,
}

impl CheckedPartner {
    /// By what an account is known: names are compared as `partner show` compares them.
    pub fn is(&self, name: &str, environment: &str) -> bool {
        same(&self.name, name) && self.environment.as_str() == environment
    }
}

fn same(one: &str, other: &str) -> bool {
    one.trim().to_lowercase() == other.trim().to_lowercase()
}

/// Reads and checks the whole file.
pub fn parse(text: &str, http: HttpConfig) -> anyhow::Result<Vec<CheckedPartner>> {
    let mut faults = Vec::new();
    let mut all: Vec<CheckedPartner> = Vec::new();
    for entry in manifest::entries(text, "partners")? {
        let read: PartnerEntry = match entry.read() {
            Ok(read) => read,
            Err(fault) => {
                faults.push(fault);
                continue;
            }
        };
        let mut check = Check {
            at: entry.at,
            faults: &mut faults,
        };
        let wanted = check.partner(read, http);
        let twin = all.iter().find(|one| {
            let is_same = one.is(&wanted.name, wanted.environment.as_str());
            is_same && one.partner_id == wanted.partner_id
        });
        if let Some(twin) = twin {
            let at = &twin.at;
            check.fault(
                "name",
                format!("the same account as in {at}; remove one of the two"),
            );
        }
        all.push(wanted);
    }
    manifest::without_faults(faults)?;
    Ok(all)
}

/// Collects the faults of one entry.
struct Check<'a> {
    at: String,
    faults: &'a mut Vec<String>,
}

impl Check<'_> {
    fn fault(&mut self, field: &str, why: impl std::fmt::Display) {
        self.faults.push(format!("{}.{field}: {why}", self.at));
    }

    fn partner(&mut self, read: PartnerEntry, http: HttpConfig) -> CheckedPartner {
        let environment = read.environment;
        let name = terms::name(&read.name).unwrap_or_else(|why| {
            self.fault("name", why);
            String::new()
        });
        let webhook_url = match &read.webhook_url {
            ManifestField::LeftOut => ManifestField::LeftOut,
            ManifestField::Null => ManifestField::Null,
            ManifestField::Value(url) => self
                .url("webhook_url", url, environment, http)
                .map_or(ManifestField::LeftOut, ManifestField::Value),
        };
        let events = read
            .events
            .map(|names| self.events("events", &names, &EventKind::choices()));
        let mut endpoints: Vec<WantedEndpoint> = Vec::new();
        for (index, endpoint) in read.endpoints.into_iter().enumerate() {
            let of = |field: &str| format!("endpoints[{index}].{field}");
            let events = endpoint.events.map(|names| {
                self.events(&of("events"), &names, &EventKind::of_further_endpoints())
            });
            if events.as_ref().is_some_and(Vec::is_empty) {
                self.fault(&of("events"), "name at least one, or leave the field out");
            }
            let Some(url) = self.url(&of("url"), &endpoint.url, environment, http) else {
                continue;
            };
            if endpoints.iter().any(|other| other.url == url) {
                self.fault(&of("url"), "the same URL as before; remove one of the two");
            }
            if webhook_url.value() == Some(&url) {
                self.fault(
                    &of("url"),
                    "the same URL as webhook_url, which would get each eSIM twice; remove one of the two",
                );
            }
            endpoints.push(WantedEndpoint { url, events });
        }
        CheckedPartner {
            at: self.at.clone(),
            name,
            environment,
            partner_id: read.partner_id,
            webhook_url,
            events,
            limits: self.limits(&read.limits),
            signed_body: read.signed_body,
            disabled: read.disabled,
            endpoints,
        }
    }

    /// A URL may hold a token, so no fault repeats it.
    fn url(
        &mut self,
        field: &str,
        text: &str,
        environment: Environment,
        http: HttpConfig,
    ) -> Option<WebhookUrl> {
        let url: WebhookUrl = match text.parse() {
            Ok(url) => url,
            Err(error) => {
                self.fault(field, error);
                return None;
            }
        };
        let parsed = url.parsed()?;
        if guard::check_scheme(&parsed, environment, http.webhook_http_live).is_err() {
            self.fault(
                field,
                "the partner is live, and an http:// URL would show its eSIMs to the network; give an https:// URL, or allow \
                 this one with --webhook-http-live",
            );
        }
        Some(url)
    }

    fn events(&mut self, field: &str, names: &[String], known: &[EventKind]) -> Vec<EventKind> {
        let mut kinds = Vec::new();
        for name in names {
            match known.iter().find(|kind| kind.as_str() == name) {
                Some(kind) if kinds.contains(kind) => {
                    self.fault(field, format!("{name} stands twice; remove one of the two"));
                }
                Some(kind) => kinds.push(*kind),
                None => {
                    let known = event::names(known).join(", ");
                    self.fault(
                        field,
                        format!("there is no event {name:?}; the events are {known}"),
                    );
                }
            }
        }
        kinds
    }

    fn limits(&mut self, read: &LimitsEntry) -> NewLimits {
        let mut of = |field: &str, limit: Option<LimitEntry>| match limit {
            None => Limit::Keep,
            Some(LimitEntry::Default(DefaultWord::Default)) => Limit::Default,
            Some(LimitEntry::Own(most @ 1..=MOST_LIMIT)) => Limit::Own(most),
            Some(LimitEntry::Own(_)) => {
                let rule = format!("it is not a number from 1 to {MOST_LIMIT}");
                self.fault(&format!("limits.{field}"), rule);
                Limit::Keep
            }
        };
        NewLimits {
            max_in_flight: of("max_in_flight", read.max_in_flight),
            requests_per_second: of("requests_per_second", read.requests_per_second),
            orders_per_second: of("orders_per_second", read.orders_per_second),
            units_per_second: of("units_per_second", read.units_per_second),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn fault(entry: &str) -> String {
        let text = format!("partners:\n  - {{name: Acme, environment: live{entry}}}\n");
        let error = parse(&text, HttpConfig::default()).err().unwrap();
        format!("{error:#}")
    }

    #[test]
    fn each_fault_names_its_line_its_field_and_what_to_do() {
        for (entry, is) in testkit::rows! {
            ", colour: red" => ".colour: unknown field `colour`, expected one of `name`";
            ", webhook_url: nowhere" => ".webhook_url: it is not a URL (relative URL without a base); write it like";
            ", webhook_url: 'https://u:geheim@a.example/'" => ".webhook_url: it holds a user name or password; remove it";
            ", webhook_url: 'http://a.example/'" => ".webhook_url: the partner is live, and an http:// URL";
            ", webhook_url: 5" => ".webhook_url: invalid type: integer `5`, expected a string";
            ", events: [topup.ready]" => ".events: there is no event \"topup.ready\"; the events are";
            ", events: [topup.failed, topup.failed]" => ".events: topup.failed stands twice";
            ", limits: {orders_per_second: 0}" => ".limits.orders_per_second: it is not a number from 1 to 1000000";
            ", limits: {orders_per_second: few}" => ".limits.orders_per_second: a number from 1 to 1000000, or the word default";
            ", limits: {orders: 5}" => ".limits.orders: unknown field `orders`";
            ", signed_body: maybe" => ".signed_body: unknown variant `maybe`, expected `required` or `optional`";
            ", endpoints: [{url: 'https://a.example/'}, {url: 'https://a.example/'}]" => ".endpoints[1].url: the same URL as before";
            ", endpoints: [{url: 'https://a.example/', events: []}]" => ".endpoints[0].events: name at least one";
            ", endpoints: [{events: [topup.ready]}]" => ".endpoints[0]: missing field `url`";
            ", partner_id: one" => ".partner_id: UUID parsing failed";
        } {
            let fault = fault(entry);
            assert!(
                fault.starts_with("line 2: partners[0]") && fault.contains(is),
                "{fault}"
            );
            assert!(!fault.contains("geheim"), "{fault}");
        }
    }

    #[test]
    fn an_account_that_stands_twice_is_a_fault_and_names_of_two_environments_are_not() {
        let text =
            |second: &str| format!("partners:\n- {{name: Acme, environment: live}}\n- {second}\n");
        let read = |second: &str| parse(&text(second), HttpConfig::default());
        let error = read("{name: ' acme', environment: live}").err().unwrap();
        let expected = "line 3: partners[1].name: the same account as in line 2: partners[0]; remove one of the two";
        assert_eq!(error.to_string(), expected);
        assert_eq!(read("{name: Acme, environment: sandbox}").unwrap().len(), 2);
        let id = PartnerId::new();
        assert_eq!(
            read(&format!(
                "{{name: Acme, environment: live, partner_id: {id}}}"
            ))
            .unwrap()
            .len(),
            2
        );
    }

    #[test]
    fn what_is_null_differs_from_what_is_left_out() {
        let text = "partners: [{name: a, environment: live, webhook_url: null}, {name: b, environment: live}]";
        let read = parse(text, HttpConfig::default()).unwrap();
        let given = [&read[0], &read[1]].map(|one| one.webhook_url.is_given());
        assert_eq!(given, [true, false]);
        assert!(read[0].events.is_none() && read[0].limits.max_in_flight == Limit::Keep);
    }

    /// The JSON schema of a file with one list of such entries.
    fn schema<T: PartialSchema + ToSchema>(list: &str, title: &str) -> String {
        let entry: Value = json!(T::schema());
        let schema = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, "type": "object",
            "required": [list], "additionalProperties": false,
            "properties": { list: { "type": "array", "items": entry } },
        });
        format!("{}\n", serde_json::to_string_pretty(&schema).unwrap())
    }

    /// `UPDATE_SCHEMAS=1` writes the files.
    #[test]
    fn the_stored_schemas_are_the_generated_ones() {
        let partners = schema::<PartnerEntry>("partners", "The file of `esimctl partner apply`");
        let options = schema::<crate::option_file::OptionEntry>(
            "options",
            "The file of `esimctl option apply`",
        );
        for (name, generated) in [("partners", partners), ("options", options)] {
            assert!(
                !generated.contains("$ref"),
                "a reference leads nowhere: {generated}"
            );
            let path = format!(
                "{}/../../docs/{name}.schema.json",
                env!("CARGO_MANIFEST_DIR")
            );
            if std::env::var_os("UPDATE_SCHEMAS").is_some() {
                std::fs::write(&path, &generated).unwrap();
            }
            let stored = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(
                stored == generated,
                "{path} is old: run this test with UPDATE_SCHEMAS=1"
            );
        }
    }
}
