//! The products of a provider, with the providers that sell each in the order in which they are
//! asked; what is known of one; and the act that puts another provider first, for when the first
//! one fails or denies us.

use accounts::facts::{Facts, ShownFact};
use askama::Template;
use axum::{extract::State, response::Response};
use desk::operator::{
    health::HealthReport,
    options::{self, NotRouted, RoutedCounts, RoutedOption},
};
use domain::{Environment, OptionId};
use pg::{PgConnection, actions::Mode};
use store::providers::BreakerState;
use url::form_urlencoded::byte_serialize;

use crate::{
    App,
    access::{Act, ConsoleSession, Operator, OperatorRole, Viewer, Visit},
    format::{counted, number},
    pages::{
        act::{ActPage, Field, Pick},
        lists::with,
        overview::breaker_state,
    },
    problem::Problem,
    view::{PathArgument, Shell, page},
};

/// The number of products of the page.
const PAGE: i64 = 100;
const PATH: &str = "/products";

#[derive(Template)]
#[template(path = "products.html")]
struct Page {
    shell: Shell,
    /// The provider whose products they are; nothing if all are listed.
    provider: String,
    sentence: String,
    rows: Vec<Row>,
    foot: String,
    older: Option<String>,
    newest: Option<String>,
}

struct Row {
    id: OptionId,
    name: String,
    is_sandbox: bool,
    on_sale: bool,
    /// Its providers in their order, each with its state.
    routes: Vec<(String, &'static str)>,
    /// Where another provider is put first, if there is one and this session may.
    reroute: Option<String>,
}

/// The state of a provider in words.
fn state(report: &HealthReport, provider: &str) -> &'static str {
    let mut breakers = report.breakers.iter();
    let breaker = breakers.find(|one| one.name == provider);
    breaker_state(breaker.map(|one| one.state))
}

/// Whether anything is bought there.
fn buys(report: &HealthReport, provider: &str) -> bool {
    let mut breakers = report.breakers.iter();
    breakers.any(|one| one.name == provider && one.state == BreakerState::Closed)
}

fn list_of(provider: &str) -> String {
    let provider: String = byte_serialize(provider.as_bytes()).collect();
    format!("/products?provider={provider}")
}

/// What can be done for the products of a provider.
fn sentence(provider: &str, all: RoutedCounts, report: &HealthReport) -> String {
    if provider.is_empty() {
        return format!(
            "{}, with the providers that sell each, in the order in which they are asked.",
            counted(all.all, "product", "products")
        );
    }
    let bought = counted(all.first, "product is", "products are");
    match all.elsewhere {
        0 if buys(report, provider) => format!("{bought} bought at {provider} first, which buys."),
        0 => format!(
            "{bought} bought at {provider} first, and no other provider that buys now sells any of them: new orders of \
             them wait or are refused until it buys again, or until they are taken out of sale."
        ),
        some if buys(report, provider) => format!(
            "{bought} bought at {provider} first, which buys. {} of them can be bought elsewhere, too.",
            number(some)
        ),
        some => format!(
            "{bought} bought at {provider} first. {} of them can be bought elsewhere now: put the other provider first.",
            number(some)
        ),
    }
}

pub(crate) async fn show(
    State(app): State<App>,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let query = &visit.query;
    let provider = query.get("provider").unwrap_or_default().to_owned();
    let of = (!provider.is_empty()).then_some(provider.as_str());
    let from: u32 = query
        .get("before")
        .and_then(|from| from.parse().ok())
        .unwrap_or_default();
    let from = i64::from(from);
    let (look, _) = app.figures().look(app.database()).await?;
    let report = &look.report;
    let names = report.breakers.iter().map(|one| &one.name);
    let buying: Vec<String> = names.filter(|name| buys(report, name)).cloned().collect();
    let read = async |connection: &mut PgConnection| {
        let counts = options::routed_counts(&mut *connection, of, &buying).await?;
        let found = options::routed(connection, of, (from, PAGE)).await?;
        Ok::<_, pg::Error>((counts, found))
    };
    let (counts, found) = app.database().run(read).await?;
    let next = from + i64::try_from(found.len()).unwrap_or_default();
    let may = visit.session.may(OperatorRole::Operator);
    let row = |one: &RoutedOption| Row {
        id: one.option_id,
        name: one.name.clone(),
        is_sandbox: one.environment == "sandbox",
        on_sale: one.enabled,
        routes: one
            .routes
            .iter()
            .map(|of| (of.provider.clone(), state(report, &of.provider)))
            .collect(),
        reroute: (may && one.routes.len() > 1)
            .then(|| format!("/products/{}/route", one.option_id)),
    };
    page(&Page {
        shell: Shell::new(&app, &visit.session, "/providers", "Products"),
        sentence: sentence(&provider, counts, report),
        rows: found.iter().map(row).collect(),
        foot: format!(
            "{} to {} of {}",
            number(from + 1),
            number(next),
            counted(counts.all, "product", "products")
        ),
        older: (next < counts.all).then(|| with(PATH, query, &[("before", &next.to_string())])),
        newest: (from > 0).then(|| with(PATH, query, &[("before", "")])),
        provider,
    })
}

#[derive(Template)]
#[template(path = "product.html")]
struct ProductPage {
    shell: Shell,
    back: String,
    provider: String,
    id: OptionId,
    name: String,
    is_sandbox: bool,
    on_sale: bool,
    sentence: String,
    /// The standard fields, each with its name.
    standard: Vec<(&'static str, String)>,
    facts: Vec<ShownFact>,
}

/// What is known of a product.
pub(crate) async fn product(
    State(app): State<App>,
    given: PathArgument,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let id: OptionId = given.id("a product")?;
    let read = async |connection: &mut PgConnection| accounts::options::one(connection, id).await;
    let found = app.database().run(read).await?;
    let option = found.ok_or_else(|| given.missing("product"))?;
    let standard = option.standard.as_ref().map(|standard| {
        let countries: Vec<String> = standard.countries.iter().map(ToString::to_string).collect();
        let mut fields = vec![
            ("Countries", countries.join(", ")),
            ("Data", standard.data.to_string()),
            ("Days", standard.days.to_string()),
        ];
        fields.extend(standard.cost.map(|cost| ("Costs us", cost.to_string())));
        fields
    });
    page(&ProductPage {
        shell: Shell::new(&app, &visit.session, "/providers", option.name.clone()),
        back: list_of(&option.provider),
        sentence: format!(
            "It is bought at {} first, as {}.",
            option.provider, option.provider_option_id
        ),
        id,
        is_sandbox: option.environment == Environment::Sandbox,
        on_sale: option.enabled,
        standard: standard.unwrap_or_default(),
        facts: Facts::shown(&option.told, &option.facts),
        provider: option.provider,
        name: option.name,
    })
}

async fn read(app: &App, given: &PathArgument) -> Result<RoutedOption, Problem> {
    let id: OptionId = given.id("a product")?;
    let read = async |connection: &mut PgConnection| options::route(connection, id).await;
    let found = app.database().run(read).await?;
    found.ok_or_else(|| given.missing("product"))
}

/// The page that puts another provider first: what that does, before somebody does it.
pub(crate) async fn route(
    State(app): State<App>,
    given: PathArgument,
    visit: Visit<Operator>,
) -> Result<Response, Problem> {
    let product = read(&app, &given).await?;
    let (look, _) = app.figures().look(app.database()).await?;
    route_page(&app, &visit.session, &product, &look.report).show()
}

fn route_page(
    app: &App,
    session: &ConsoleSession,
    product: &RoutedOption,
    report: &HealthReport,
) -> ActPage {
    let first = product
        .routes
        .first()
        .map_or("", |one| one.provider.as_str());
    let further = product.routes.get(1..).unwrap_or_default();
    let back = list_of(first);
    let title = format!("Buy {} elsewhere first", product.name);
    let shell = Shell::new(app, session, "/providers", title);
    let base = ActPage {
        crumbs: vec![
            ("/providers".to_owned(), "Providers".to_owned()),
            (back.clone(), format!("Products of {first}")),
        ],
        what: product.name.clone(),
        ..ActPage::new(shell, session, back)
    };
    let now = format!("It is bought at {first} now ({}).", state(report, first));
    if further.is_empty() {
        return ActPage {
            says: vec![
                now,
                "No other provider of it is in the catalogue. Its orders wait or are refused until this one buys again. Take it \
                 out of sale if that lasts, or add another provider to it in the file of the catalogue:"
                    .to_owned(),
            ],
            command: Some(format!("esimctl option set {} --disabled", product.option_id)),
            ..base
        };
    }
    let pick = |one: &domain::cut::OptionAtProvider| Pick {
        value: one.provider.clone(),
        label: one.provider.clone(),
        hint: format!(
            "{}; there it is {}",
            state(report, &one.provider),
            one.provider_option_id
        ),
        grave: false,
        checked: further.len() == 1,
    };
    ActPage {
        says: vec![
            format!("{now} If a provider refuses a purchase, the next one is asked: {}.", product.order()),
            "New orders are bought at the provider that you choose as soon as each ingress has read that, which takes some \
             seconds; the others follow in their order. Orders that were accepted before stay where they are. The price may be \
             another one."
                .to_owned(),
        ],
        path: format!("/products/{}/route", product.option_id),
        seen: product.order(),
        fields: vec![Field::Picks {
            legend: "Buy it first at",
            name: "first",
            picks: further.iter().map(pick).collect(),
        }],
        button: "Buy it there first",
        ..base
    }
}

pub(crate) async fn put_first(
    State(app): State<App>,
    given: PathArgument,
    act: Act<Operator>,
) -> Result<Response, Problem> {
    let product = read(&app, &given).await?;
    let seen = act.fields.get("seen").unwrap_or_default();
    let first = act.fields.get("first").unwrap_or_default();
    let target = format!("option {} ({})", product.option_id, product.name);
    let reason = act.fields.reason()?;
    let mode = Mode::Apply(act.action(domain::Command::OptionRoute, &target, reason));
    let routed = app
        .database()
        .run(async |connection| {
            options::put_first(connection, product.option_id, (first, Some(seen)), mode).await
        })
        .await;
    let routed = routed.map_err(|error| match error {
        NotRouted::NoSuchOption => given.missing("product"),
        NotRouted::NotSoldThere(_) => {
            Problem::Invalid("choose one of the providers of the product".into())
        }
        NotRouted::Changed(now) => act.changed(&format!(
            "the order of its providers has changed since the page was shown; now it is: {now}"
        )),
        NotRouted::Store(error) => error.into(),
    })?;
    let text = format!(
        "New orders of {} are bought at {first} within seconds. The providers are asked in this order: {}.",
        routed.option.name,
        routed.option.order()
    );
    Ok(act.done(&app, &text))
}
