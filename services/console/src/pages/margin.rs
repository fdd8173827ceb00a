//! What we earn, by month, partner, provider and product: the lines of `esimctl account margin`
//! ([`desk::operator::margin`]), as a page and as CSV.

use askama::Template;
use axum::{extract::State, response::Response};
use desk::operator::margin::{self, CalendarMonth, MarginBy, MarginFilter, MarginLine};
use pg::PgConnection;

use crate::{
    App,
    access::{FormFields, Viewer, Visit},
    format::{address, counted},
    pages::lists::{self, FilterChoice},
    problem::Problem,
    view::{Shell, page},
};

const PATH: &str = "/margin";
/// The lines of a page. CSV has all.
const LINES: usize = 200;
/// What the page offers to add up by: as the address names it, and its name.
const BY: [(&str, &str); 5] = [
    ("", "all of them"),
    ("month", "month"),
    ("partner", "partner"),
    ("provider", "provider"),
    ("option", "product"),
];

#[derive(Template)]
#[template(path = "margin.html")]
struct Page {
    shell: Shell,
    from: String,
    to: String,
    partner: String,
    provider: String,
    product: String,
    by: String,
    choices: [(&'static str, &'static str); 5],
    csv: String,
    nobody: Option<String>,
    rows: Vec<Row>,
    foot: String,
}

struct Row {
    of: String,
    sold: i64,
    returned: i64,
    price: String,
    cost: String,
    margin: String,
    percent: String,
}

impl Row {
    fn new(line: &MarginLine) -> Self {
        let parts = [&line.month, &line.partner, &line.provider, &line.option];
        let parts: Vec<&str> = parts.into_iter().flatten().map(String::as_str).collect();
        let currency = line.currency;
        let cost = line.cost.as_ref().zip(line.cost_currency.as_ref());
        let margin = line.margin.as_ref();
        Self {
            of: if parts.is_empty() {
                "not known".to_owned()
            } else {
                parts.join(" · ")
            },
            sold: line.sold,
            returned: line.returned,
            price: format!("{} {currency}", line.price),
            cost: cost.map_or_else(|| "–".to_owned(), |(cost, code)| format!("{cost} {code}")),
            margin: margin.map_or_else(
                || line.why_none().unwrap_or_default(),
                |margin| format!("{margin} {currency}"),
            ),
            percent: line
                .percent
                .as_ref()
                .map_or_else(|| "–".to_owned(), |percent| format!("{percent} %")),
        }
    }
}

struct Found {
    from: CalendarMonth,
    to: CalendarMonth,
    nobody: Option<String>,
    lines: Vec<MarginLine>,
}

async fn looked_up(app: &App, query: &FormFields) -> Result<Found, Problem> {
    let now = CalendarMonth::of(runtime::clock::now());
    let month = |name: &str, otherwise: CalendarMonth| {
        query.get(name).map_or(Ok(otherwise), |text| {
            let read: Result<CalendarMonth, _> = text.parse();
            read.map_err(|error| Problem::Invalid(format!("{text:?}: {error}")))
        })
    };
    let to = month("last_month", now)?;
    let from = month("first_month", to.before())?;
    let by = match query.get("by") {
        None => MarginBy::ALL.to_vec(),
        Some(by) => {
            let read: Result<MarginBy, _> = by.parse();
            vec![read.map_err(|_| Problem::Invalid(format!("{by:?} is nothing to add up by")))?]
        }
    };
    let read = async |connection: &mut PgConnection| {
        let partner = FilterChoice::find(&mut *connection, query.get("partner")).await?;
        let product = FilterChoice::product(&mut *connection, query.get("product")).await?;
        if let Some(why) = partner.nobody().or(product.nobody()) {
            return Ok((Some(why.to_owned()), Vec::new()));
        }
        let filter = MarginFilter {
            from,
            to,
            partner: partner.id(),
            provider: query.get("provider"),
            option: product.id(),
        };
        let lines = margin::margin(connection, filter, &by).await?;
        Ok::<_, pg::Error>((None, lines))
    };
    let (nobody, lines) = app.database().run(read).await?;
    Ok(Found {
        from,
        to,
        nobody,
        lines,
    })
}

pub(crate) async fn show(
    State(app): State<App>,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let query = &visit.query;
    let found = looked_up(&app, query).await?;
    let field = |name: &str| query.get(name).unwrap_or_default().to_owned();
    let (from, to) = (found.from.to_string(), found.to.to_string());
    let fields = ["partner", "provider", "product", "by"].map(|name| (name, field(name)));
    let months = [("first_month", from.as_str()), ("last_month", to.as_str())];
    let kept = fields.iter().map(|(name, value)| (*name, value.as_str()));
    let csv = address("/margin.csv", months.into_iter().chain(kept));
    let in_all = found.lines.len();
    page(&Page {
        shell: Shell::new(&app, &visit.session, "/partners", "Margin"),
        csv,
        from,
        to,
        partner: field("partner"),
        provider: field("provider"),
        product: field("product"),
        by: field("by"),
        choices: BY,
        nobody: found.nobody,
        foot: match in_all {
            0 => "Nothing was charged in these months.".to_owned(),
            shown @ 1..=LINES => format!("{}.", counted(shown, "line", "lines")),
            more => format!("The first {LINES} of {more} lines; CSV has all."),
        },
        rows: found.lines.iter().take(LINES).map(Row::new).collect(),
    })
}

pub(crate) async fn csv(State(app): State<App>, visit: Visit<Viewer>) -> Result<Response, Problem> {
    let found = looked_up(&app, &visit.query).await?;
    let rows = found.lines.iter().map(MarginLine::cells);
    Ok(lists::csv(
        PATH.trim_start_matches('/'),
        &MarginLine::COLUMNS,
        rows,
    ))
}
