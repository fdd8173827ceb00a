//! `esimctl catalogue pull`: compares what a provider sells with our options of it, and takes new
//! products, changed prices and changed fields over.
//!
//! What belongs to the operator stays: the name and the details of an option, and whether it is on
//! sale. An option whose product is gone is only named, unless the command is told to take such
//! options out of sale. The price of each product is taken over as the most that we pay
//! (`PRODUCT@PRICE`), so that a later rise is not paid silently. That holds for an option whose
//! further provider sells the product, too; its standard fields and facts are those of its first
//! provider and stay. A value of a fact that is not understood makes the fact unknown and is named.
//! Products that could not be delivered are refused, each with its reason.

use std::collections::BTreeMap;

use accounts::options::{self, ProductOption};
use anyhow::ensure;
use clap::{Args, Subcommand};
use desk::operator::catalogue::{
    self, CatalogueCounts, CatalogueUpdate, ListedProduct, PairPosition, Update,
};
use desk::operator::words::counted;
use domain::{
    Environment, OptionId,
    cut::OptionAtProvider,
    option_of,
    product::{Country, Standard},
};
use pg::actions::Mode;
use provisioner::providers::{ProductOffer, UnknownValue, UnsuitableProduct};
use serde::Serialize;
use serde_json::json;

use crate::{
    confirm::{Confirm, ConfirmedChange},
    console::Console,
    output::{TableRow, cells, or_dash, table},
    provider_lists::ProviderListArgs,
};

/// With this begin the ids of packages of eSIM Access that only extend an eSIM. Its list of
/// products does not have them.
const ONLY_EXTENDS: &str = "TOPUP_";

const EXAMPLES: &str = "Examples:
  esimctl catalogue pull airalo --dry-run
  esimctl catalogue pull airalo --only-known --reason 'new prices of November'
  esimctl catalogue pull esim-access --country JP --country KR --new-disabled --reason 'start with two countries' --yes
  esimctl catalogue pull airalo --only-known --disable-gone --reason 'products that ended' --yes --json

It reads the account from the settings of the provisioner, so run it where these are set, for example with the file that
the provisioner gets: set -a; . ./providers.env. It shows what is new, gone, or priced otherwise than our options say,
asks, and imports: new products become live options, and known ones get the new price as the most that we pay (PRODUCT@PRICE)
and the standard fields (countries, data, days, cost) and facts (networks, activation, …) that the provider tells. Names,
details, facts that a file sets, and whether an option is on sale stay as they are. Values that are not understood are listed.
Products that our webhook could not deliver, for example because they need a confirmation code, are refused with a reason.

--json prints {\"provider\":…,\"products\":…,\"new\":[…],\"priced\":[…],\"changed\":[…],\"gone\":[…],\"refused\":[…],\"not_understood\":[…],\"unchanged\":…,
\"created\":…,\"updated\":…,\"disabled\":…,\"dry_run\":…}.";

/// The maximum number of rows of each kind that the text lists.
const NAMED: usize = 50;
/// What to do about a provider without a catalogue.
const REMEDY: &str = "export it from the portal, and import it with `esimctl option apply -f FILE`";

#[derive(Subcommand, Clone, Debug)]
pub enum CatalogueCommand {
    /// Compare the products of a provider with our options, and import new products and prices
    #[command(after_help = EXAMPLES)]
    Pull(Box<CataloguePullArgs>),
}

#[derive(Args, Clone, Debug)]
pub struct CataloguePullArgs {
    #[command(flatten)]
    source: ProviderListArgs,
    /// Import no new products, only prices and fields of products that we have
    #[arg(long, conflicts_with_all = ["country", "new_disabled"])]
    only_known: bool,
    /// Import new products only if they can be used in this country, such as `JP`; may be repeated
    #[arg(long, value_name = "CODE")]
    country: Vec<Country>,
    /// Import new products out of sale, so that you can add details before partners see them
    #[arg(long)]
    new_disabled: bool,
    /// Take options out of sale whose product the provider no longer lists
    #[arg(long)]
    disable_gone: bool,
    #[command(flatten)]
    confirm: Confirm,
}

pub async fn run(command: &CatalogueCommand, console: &Console) -> anyhow::Result<()> {
    let CatalogueCommand::Pull(asked) = command;
    let source = &asked.source;
    let reader = source.connect(|can| can.catalogue, "products", REMEDY)?;
    let mut connection = console.connect().await?;
    let mut offers = Vec::new();
    reader
        .read(
            &mut connection,
            "products",
            async |provider, page| provider.products(page).await,
            |offer| offers.push(offer),
        )
        .await?;
    let (ours, unreadable) = options::readable(options::all(&mut connection).await?);
    ensure!(
        unreadable.is_empty(),
        "nothing was changed, because rows of the catalogue cannot be read, and their products would be added a second time; \
         import these options again: {}",
        unreadable.join("; ")
    );
    let found = compare(asked, |id| reader.provider.product(id), offers, &ours);
    if asked.disable_gone && !found.report.gone.is_empty() {
        ensure!(
            found.is_certain,
            "nothing was changed: the list of {} has no product, or products whose id is unreadable, so it is not certain \
             which options are gone; look at them without --disable-gone",
            source.name
        );
    }
    if found.pull.is_empty() && !asked.confirm.dry_run {
        return print(console, &found.report, CatalogueCounts::default(), false);
    }
    let run =
        async |mode: Mode<'_>| Ok(catalogue::apply(&mut connection, &found.pull, mode).await?);
    let command = if asked.disable_gone {
        domain::Command::CataloguePullDisableGone
    } else {
        domain::Command::CataloguePull
    };
    let change = ConfirmedChange {
        run,
        describe: |pulled: &CatalogueCounts| found.report.text(*pulled, true),
        print: |pulled: &CatalogueCounts, dry_run| print(console, &found.report, *pulled, dry_run),
    };
    let target = format!("catalogue of {}", source.name);
    asked.confirm.carry_out(command, &target, change).await
}

fn print(
    console: &Console,
    report: &Report,
    pulled: CatalogueCounts,
    dry_run: bool,
) -> anyhow::Result<()> {
    let mut shown = json!(report);
    shown["created"] = json!(pulled.created);
    shown["updated"] = json!(pulled.updated);
    shown["disabled"] = json!(pulled.disabled);
    shown["dry_run"] = json!(dry_run);
    console.print(&shown, || report.text(pulled, dry_run))
}

/// What the two catalogues have in common, and what not.
#[derive(Debug, Default, Serialize)]
struct Report {
    provider: String,
    /// The number of products that the provider lists.
    products: usize,
    /// Products that become options.
    new: Vec<New>,
    /// Products that are not imported, because other countries or only known products were asked
    /// for.
    left_out: usize,
    /// Options whose product costs something else than they say.
    priced: Vec<Changed>,
    /// Options with the same price, whose other fields have changed.
    changed: Vec<Changed>,
    /// Options on sale whose product is no longer listed.
    gone: Vec<Gone>,
    refused: Vec<Refused>,
    /// Values of the provider that were not understood, so that a fact is not known.
    not_understood: Vec<NotUnderstood>,
    /// Options that agree with their product.
    unchanged: usize,
}

#[derive(Debug, Serialize)]
struct New {
    option_id: OptionId,
    product: String,
    name: String,
    standard: Standard,
}

#[derive(Debug, Serialize)]
struct Changed {
    option_id: OptionId,
    name: String,
    /// Whether the provider is one of the option's alternatives, and not its first one.
    is_alternative: bool,
    /// The product with the price, as the option has it now.
    was: String,
    /// The same with the price of the provider.
    becomes: String,
    standard: Standard,
    /// The names of the facts that the provider tells in another way than before. One that a file
    /// sets stays as it is there.
    facts: Vec<String>,
}

#[derive(Debug, Serialize)]
struct NotUnderstood {
    field: &'static str,
    value: String,
    /// In how many products it stands.
    products: usize,
}

#[derive(Debug, Serialize)]
struct Gone {
    option_id: OptionId,
    name: String,
    product: String,
    /// Whether the provider is one of the option's alternatives, so that the option still sells at
    /// another one.
    is_alternative: bool,
}

/// What one of our options buys at the provider.
#[derive(Clone, Copy)]
struct OurPair<'a> {
    option: &'a ProductOption,
    provider_option_id: &'a str,
    is_alternative: bool,
}

impl OurPair<'_> {
    /// How it differs from the product as the provider lists it.
    fn changed(self, becomes: &str, product: &ListedProduct) -> Changed {
        Changed {
            option_id: self.option.option_id,
            name: self.option.name.clone(),
            is_alternative: self.is_alternative,
            was: self.provider_option_id.to_owned(),
            becomes: becomes.to_owned(),
            standard: product.standard.clone(),
            facts: if self.is_alternative {
                Vec::new()
            } else {
                self.option.told.differences(&product.told)
            },
        }
    }
}

/// What our options buy at this provider, which is the first one of an option or a further one.
fn pairs_at<'a>(provider: &str, ours: &'a [ProductOption]) -> Vec<OurPair<'a>> {
    let mut pairs = Vec::new();
    for option in ours {
        if option.provider == provider {
            pairs.push(OurPair {
                option,
                provider_option_id: &option.provider_option_id,
                is_alternative: false,
            });
        }
        let further = option.alternatives.iter();
        for pair in further.filter(|pair| pair.provider == provider) {
            pairs.push(OurPair {
                option,
                provider_option_id: &pair.provider_option_id,
                is_alternative: true,
            });
        }
    }
    pairs
}

#[derive(Debug, Serialize)]
struct Refused {
    /// The product's id; blank if it is unreadable.
    product: String,
    name: String,
    reason: &'static str,
    why: String,
    /// The options on sale that sell this product although it is refused.
    on_sale: Vec<OptionId>,
}

struct Found {
    report: Report,
    pull: CatalogueUpdate,
    /// Whether what is not listed is certainly gone.
    is_certain: bool,
}

/// Compares what the provider sells with our options of it. `product_of` is the product for which
/// an option stands.
fn compare<'a>(
    asked: &CataloguePullArgs,
    product_of: impl Fn(&'a str) -> &'a str,
    offers: Vec<ProductOffer>,
    ours: &'a [ProductOption],
) -> Found {
    let mut report = Report {
        provider: asked.source.name.clone(),
        products: offers.len(),
        ..Report::default()
    };
    let mut pull = CatalogueUpdate::default();
    let mut by_product: BTreeMap<&str, Vec<OurPair<'_>>> = BTreeMap::new();
    for pair in pairs_at(&asked.source.name, ours) {
        let product = product_of(pair.provider_option_id);
        by_product.entry(product).or_default().push(pair);
    }
    let (listed, nameless) = merged(offers);
    let is_certain = nameless.is_empty() && !listed.is_empty();
    report.refused = nameless;
    report.not_understood = not_understood(&listed);
    for (product, offer) in &listed {
        let pairs = by_product.remove(product.as_str()).unwrap_or_default();
        let standard = match &offer.standard {
            Ok(standard) => standard,
            Err(unsuitable) => {
                report
                    .refused
                    .push(refused(product, offer, *unsuitable, &pairs));
                continue;
            }
        };
        let becomes = match standard.cost {
            Some(cost) => format!("{product}@{}", cost.price),
            None => product.clone(),
        };
        if pairs.is_empty() {
            let wanted = asked.country.is_empty()
                || asked
                    .country
                    .iter()
                    .any(|country| standard.countries.contains(country));
            if asked.only_known || !wanted {
                report.left_out += 1;
                continue;
            }
            let option = new_option(asked, product, offer, standard, &becomes);
            report.new.push(New {
                option_id: option.option_id,
                product: product.clone(),
                name: option.name.clone(),
                standard: standard.clone(),
            });
            pull.new.push(option);
        }
        for pair in pairs {
            let option = pair.option;
            let same_price = pair.provider_option_id == becomes;
            let product = ListedProduct {
                standard: standard.clone(),
                told: offer.told.facts.clone(),
            };
            let is_same =
                option.standard.as_ref() == Some(&product.standard) && option.told == product.told;
            if same_price && (pair.is_alternative || is_same) {
                report.unchanged += 1;
                continue;
            }
            let changed = pair.changed(&becomes, &product);
            pull.updates.push(Update {
                option_id: option.option_id,
                was: pair.provider_option_id.to_owned(),
                provider_option_id: becomes.clone(),
                place: if pair.is_alternative {
                    PairPosition::Alternative(asked.source.name.clone())
                } else {
                    PairPosition::First(Box::new(product))
                },
            });
            if same_price {
                report.changed.push(changed);
            } else {
                report.priced.push(changed);
            }
        }
    }
    // What is left has no product in the list. What only extends an eSIM never has.
    by_product.retain(|product, _| !product.starts_with(ONLY_EXTENDS));
    for (product, pairs) in by_product {
        for pair in pairs.into_iter().filter(|pair| pair.option.enabled) {
            let option = pair.option;
            report.gone.push(Gone {
                option_id: option.option_id,
                name: option.name.clone(),
                product: product.to_owned(),
                is_alternative: pair.is_alternative,
            });
            // Its first provider still sells it.
            if asked.disable_gone && !pair.is_alternative {
                pull.disable.push(option.option_id);
            }
        }
    }
    Found {
        report,
        pull,
        is_certain,
    }
}

/// The products by their ids, each once, and those without a readable id.
fn merged(offers: Vec<ProductOffer>) -> (BTreeMap<String, ProductOffer>, Vec<Refused>) {
    let mut listed: BTreeMap<String, ProductOffer> = BTreeMap::new();
    let mut nameless = Vec::new();
    for offer in offers {
        let Some(product) = offer.product.clone().map(String::from) else {
            let reason = offer.standard.as_ref().err().copied();
            let reason = reason.unwrap_or(UnsuitableProduct::Unreadable("id"));
            nameless.push(refused("", &offer, reason, &[]));
            continue;
        };
        match listed.get_mut(&product) {
            Some(known) if known.standard != offer.standard => {
                known.standard = Err(UnsuitableProduct::Ambiguous);
            }
            // One package may stand in several places, which may tell different facts.
            Some(known) => known.told.facts = known.told.facts.agreed(&offer.told.facts),
            None => drop(listed.insert(product, offer)),
        }
    }
    (listed, nameless)
}

/// What was not understood of the products that can be sold, each value once.
fn not_understood(listed: &BTreeMap<String, ProductOffer>) -> Vec<NotUnderstood> {
    let sold = listed.values().filter(|offer| offer.standard.is_ok());
    let mut products: BTreeMap<&UnknownValue, usize> = BTreeMap::new();
    for unknown in sold.flat_map(|offer| &offer.told.unknown) {
        *products.entry(unknown).or_default() += 1;
    }
    let values = products
        .into_iter()
        .map(|(unknown, products)| NotUnderstood {
            field: unknown.field,
            value: unknown.value.clone(),
            products,
        });
    values.collect()
}

fn refused(
    product: &str,
    offer: &ProductOffer,
    why: UnsuitableProduct,
    pairs: &[OurPair<'_>],
) -> Refused {
    let on_sale = pairs.iter().map(|pair| pair.option);
    let on_sale = on_sale.filter(|option| option.enabled);
    Refused {
        product: product.to_owned(),
        name: offer.name.clone(),
        reason: why.code(),
        why: why.to_string(),
        on_sale: on_sale.map(|option| option.option_id).collect(),
    }
}

fn new_option(
    asked: &CataloguePullArgs,
    product: &str,
    offer: &ProductOffer,
    standard: &Standard,
    provider_option_id: &str,
) -> ProductOption {
    let name = if offer.name.is_empty() {
        product
    } else {
        &offer.name
    };
    let option_id = option_of(&asked.source.name, product);
    let sold = OptionAtProvider {
        provider: asked.source.name.clone(),
        provider_option_id: provider_option_id.to_owned(),
    };
    ProductOption {
        enabled: !asked.new_disabled,
        standard: Some(standard.clone()),
        told: offer.told.facts.clone(),
        ..ProductOption::new(option_id, name, sold, Environment::Live)
    }
}

impl Report {
    fn text(&self, pulled: CatalogueCounts, dry_run: bool) -> String {
        let CatalogueCounts {
            created,
            updated,
            disabled,
        } = pulled;
        let are = if dry_run { "would be" } else { "were" };
        let mut lines = vec![format!(
            "{} lists {}. Options that {are} created: {created}, updated: {updated}, taken out of sale: {disabled}; that agree \
             already: {}. Products that are left out: {}",
            self.provider,
            counted(self.products, "product", "products"),
            self.unchanged,
            self.left_out
        )];
        section(
            &mut lines,
            "new",
            &self.new,
            |one| cells!(one: product, name, option_id, standard = of(&one.standard)),
        );
        section(
            &mut lines,
            "priced otherwise",
            &self.priced,
            |one| cells!(one: name, option_id, place = place(one.is_alternative), was, becomes),
        );
        section(
            &mut lines,
            "with other fields",
            &self.changed,
            |one| cells!(one: name, option_id, product = one.becomes.clone(), standard = of(&one.standard), facts = or_dash(named(&one.facts))),
        );
        section(
            &mut lines,
            "gone, and still on sale here",
            &self.gone,
            |one| {
                let remedy = if one.is_alternative {
                    "import it without this alternative"
                } else {
                    "esimctl option set --disabled"
                };
                cells!(one: name, option_id, product, remedy = remedy.to_owned())
            },
        );
        section(
            &mut lines,
            "refused",
            &self.refused,
            |one| cells!(one: product, name, why, "on sale here" = or_dash(one.on_sale.first())),
        );
        section(
            &mut lines,
            "values that are not understood, so that these facts are not known",
            &self.not_understood,
            |one| cells!(one: field, value, products),
        );
        lines.join("\n")
    }
}

/// Facts by their names.
fn named(facts: &[String]) -> Option<String> {
    (!facts.is_empty()).then(|| facts.join(", "))
}

/// Which of an option's pairs a row is about.
fn place(is_alternative: bool) -> String {
    if is_alternative {
        "alternative"
    } else {
        "first"
    }
    .to_owned()
}

fn section<T, const N: usize>(
    lines: &mut Vec<String>,
    title: &str,
    rows: &[T],
    row: impl Fn(&T) -> TableRow<N>,
) {
    if rows.is_empty() {
        return;
    }
    lines.push(format!("\n{} {title}:", rows.len()));
    lines.push(table(rows.iter().take(NAMED).map(row)));
    if rows.len() > NAMED {
        lines.push("… and more; --json lists all".to_owned());
    }
}

/// The standard fields in a few words.
pub fn of(standard: &Standard) -> String {
    let countries: Vec<&str> = standard
        .countries
        .iter()
        .map(Country::as_str)
        .take(3)
        .collect();
    let more = if standard.countries.len() > 3 {
        "…"
    } else {
        ""
    };
    let cost = standard
        .cost
        .map(|cost| format!(", {cost}"))
        .unwrap_or_default();
    format!(
        "{}{more}, {}, {}{cost}",
        countries.join(" "),
        standard.data,
        counted(standard.days, "day", "days")
    )
}

#[cfg(test)]
mod tests;
