use clap::Parser;
use provisioner::providers::{ProviderId, ToldFacts};

use super::*;

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    asked: CataloguePullArgs,
}

fn standard(country: &str, price: &str) -> Standard {
    serde_json::from_value(json!({
        "countries": [country], "data_mb": 1024, "days": 7, "cost": { "price": price, "currency": "USD" },
    }))
    .unwrap()
}

fn offer(product: &str, country: &str, price: &str) -> ProductOffer {
    ProductOffer {
        product: ProviderId::parse(product.to_owned()).ok(),
        name: String::new(),
        standard: Ok(standard(country, price)),
        told: ToldFacts::default(),
    }
}

fn ours(product: &str, price: &str) -> ProductOption {
    let sold = pair("airalo", &format!("{product}@{price}"));
    let option = ProductOption::new(
        option_of("airalo", product),
        product,
        sold,
        Environment::Live,
    );
    ProductOption {
        standard: Some(standard("JP", price)),
        ..option
    }
}

fn pair(provider: &str, provider_option_id: &str) -> OptionAtProvider {
    OptionAtProvider {
        provider: provider.to_owned(),
        provider_option_id: provider_option_id.to_owned(),
    }
}

fn product_of(provider_option_id: &str) -> &str {
    provider_option_id.split('@').next().unwrap()
}

fn found(arguments: &[&str], offers: Vec<ProductOffer>, ours: &[ProductOption]) -> Found {
    let arguments = [&["pull", "airalo", "--dry-run"][..], arguments].concat();
    let Program { asked } = Program::parse_from(arguments);
    compare(&asked, product_of, offers, ours)
}

#[test]
fn what_is_gone_is_certain_only_if_every_product_has_an_id() {
    let known = [ours("a", "1.00"), ours("b", "1.00")];
    let one = || offer("a", "JP", "1.00");
    let whole = found(&["--disable-gone"], vec![one()], &known);
    assert!(whole.is_certain);
    assert_eq!(whole.pull.disable, [known[1].option_id]);
    assert!(found(&[], vec![one()], &known).pull.disable.is_empty());
    assert!(
        !found(
            &["--disable-gone"],
            vec![one(), offer("", "JP", "1.00")],
            &known
        )
        .is_certain
    );
    assert!(!found(&["--disable-gone"], vec![], &known).is_certain);
    // One that is refused is not gone.
    let mut refused = offer("b", "JP", "1.00");
    refused.standard = Err(UnsuitableProduct::ConfirmationCode);
    let whole = found(&["--disable-gone"], vec![one(), refused], &known);
    assert!(whole.report.gone.is_empty());
    assert_eq!(whole.report.refused[0].on_sale, [known[1].option_id]);
}

#[test]
fn an_alternative_gets_the_price_and_no_second_option() {
    let mut option = ours("sandbox-a", "3.00");
    option.provider = "sandbox".into();
    option.alternatives = vec![pair("usimsa", "a@1.00"), pair("airalo", "a@1.00")];
    let known = [option];
    let raised = found(&[], vec![offer("a", "KR", "2.00")], &known);
    assert!(raised.pull.new.is_empty(), "{:?}", raised.report);
    let [update] = raised.pull.updates.as_slice() else {
        panic!("{:?}", raised.report);
    };
    assert_eq!(
        (&*update.was, &*update.provider_option_id),
        ("a@1.00", "a@2.00")
    );
    assert!(matches!(&update.place, PairPosition::Alternative(name) if name == "airalo"));
    assert!(raised.report.priced[0].is_alternative);
    // The standard fields are those of the first provider, so they are not compared.
    let same = found(&[], vec![offer("a", "KR", "1.00")], &known);
    assert!(same.pull.is_empty() && same.report.unchanged == 1);
    let gone = found(&["--disable-gone"], vec![offer("b", "JP", "1.00")], &known);
    assert!(gone.report.gone[0].is_alternative && gone.pull.disable.is_empty());
}

#[test]
fn a_product_that_is_listed_twice_counts_once_or_not_at_all() {
    let same = vec![offer("a", "JP", "1.00"), offer("a", "JP", "1.00")];
    assert_eq!(found(&[], same, &[]).pull.new.len(), 1);
    let differ = vec![offer("a", "JP", "1.00"), offer("a", "JP", "2.00")];
    let differ = found(&[], differ, &[]);
    assert!(differ.pull.is_empty());
    assert_eq!(differ.report.refused[0].reason, "ambiguous");
}

#[test]
fn what_a_provider_tells_is_taken_over_and_what_is_not_understood_is_counted() {
    let told = |facts: serde_json::Value| {
        let mut offer = offer("a", "JP", "1.00");
        offer.told.facts = serde_json::from_value(facts).unwrap();
        offer
    };
    let mut known = ours("a", "1.00");
    known.told = told(json!({ "top_up": "no", "hotspot": true })).told.facts;
    known.facts = told(json!({ "hotspot": false })).told.facts;
    let known = [known];
    let same = vec![told(json!({ "top_up": "no", "hotspot": true }))];
    assert_eq!(found(&[], same, &known).report.unchanged, 1);
    let both = told(json!({ "top_up": "yes", "hotspot": true }));
    let other = vec![both.clone()];
    let other = found(&[], other, &known);
    assert_eq!(other.report.changed[0].facts, ["top_up"]);
    assert!(
        matches!(&other.pull.updates[0].place, PairPosition::First(product) if product.told == both.told.facts)
    );
    // A package of several places has what all of them tell.
    let places = vec![
        told(json!({ "top_up": "yes", "hotspot": true })),
        told(json!({ "top_up": "yes", "hotspot": false })),
    ];
    let new = found(&[], places, &[]);
    assert_eq!(
        new.pull.new[0].told,
        told(json!({ "top_up": "yes" })).told.facts
    );
    let odd = |product: &str| {
        let mut offer = offer(product, "JP", "1.00");
        let value = "\"teleport\"".to_owned();
        offer.told.unknown.push(UnknownValue {
            field: "activation_policy",
            value,
        });
        offer
    };
    let odd = found(&[], vec![odd("a"), odd("b"), offer("c", "JP", "1.00")], &[]);
    let [one] = odd.report.not_understood.as_slice() else {
        panic!("{:?}", odd.report);
    };
    assert_eq!((one.field, one.products), ("activation_policy", 2));
    assert_eq!(odd.pull.new.len(), 3, "the products are sold all the same");
}

#[test]
fn new_products_are_chosen_by_country_and_named() {
    let offers = || vec![offer("a", "JP", "1.00"), offer("b", "KR", "1.00")];
    let korea = found(&["--country", "KR", "--new-disabled"], offers(), &[]);
    let [option] = korea.pull.new.as_slice() else {
        panic!("{:?}", korea.report);
    };
    assert_eq!(
        (&option.name[..], &option.provider_option_id[..]),
        ("b", "b@1.00")
    );
    assert!(!option.enabled && korea.report.left_out == 1);
    let known = found(&["--only-known"], offers(), &[ours("a", "3.00")]);
    assert!(known.pull.new.is_empty() && known.report.priced.len() == 1);
    assert_eq!(known.pull.updates[0].provider_option_id, "a@1.00");
}
