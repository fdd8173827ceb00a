//! What the partner has, and the statements of what changed it.
//!
//! A partner that we have agreed no prices with has no accounts, so its lists are empty.

use axum::{extract::Request, http::StatusCode, response::Response};
use desk::self_service::{self, PartnerBalance, StatementEntry, StatementHead, StatementRange};
use domain::product::Currency;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    fields::BodyFields,
    query::{Query, number},
    session::{PathId, Search, Session, json},
};
use crate::http::{
    body,
    codes::ErrorCode,
    error::{ApiError, RequestFault},
};

/// What you have.
#[derive(Serialize, ToSchema)]
struct Balances {
    /// One for each currency; empty if we have agreed no prices with you.
    balances: Vec<PartnerBalance>,
}

/// Show the balance
///
/// An order that costs more than `available` is refused with `balance_insufficient`. Prices are held
/// when an order is stored and charged when a topup is ready; a topup that fails costs nothing.
#[utoipa::path(get, path = "/balance", operation_id = "show_balance", tag = "Money",
    responses((status = 200, description = "The balance in each currency", body = Balances)))]
pub(super) async fn show(session: Session) -> Result<Response, ApiError> {
    let balances = session.look(self_service::balances).await?;
    Ok(json(StatusCode::OK, &Balances { balances }))
}

/// The threshold of an account.
#[derive(ToSchema)]
struct BalanceWarning {
    /// You are told when less than this is `available`, in minor units; null: never.
    #[schema(value_type = Option<i64>, minimum = 0, maximum = 1_000_000_000_000_i64, example = 5000)]
    #[schema(required)]
    warn_below: Option<i64>,
}

/// The largest amount that a partner can name, in minor units.
const MOST: i64 = 1_000_000_000_000;

/// Reads a field that is an amount.
pub(super) fn amount(value: &Value, name: &str) -> Result<i64, RequestFault> {
    let amount = value.as_i64().filter(|amount| (0..=MOST).contains(amount));
    amount.ok_or_else(|| RequestFault::with(ErrorCode::AmountInvalid, name))
}

impl BalanceWarning {
    fn read(body: &[u8]) -> Result<Self, ApiError> {
        const NAME: &str = "warn_below";
        let mut fields = BodyFields::of(body)?;
        let warn_below = fields.nullable(NAME, |value| amount(value, NAME));
        if warn_below.is_none() && fields.is_faultless() {
            let missing = RequestFault::with(ErrorCode::AmountInvalid, NAME);
            fields.fault(missing.of_parameter(NAME));
        }
        fields.check(warn_below.map(|warn_below| Self { warn_below }))
    }
}

/// The balance in one currency.
pub(super) async fn of_currency(
    session: &Session,
    currency: Currency,
) -> Result<PartnerBalance, ApiError> {
    let balances = session.look(self_service::balances).await?;
    let code = currency.as_str();
    let account = balances.into_iter().find(|one| one.currency == code);
    account.ok_or(ErrorCode::NotFound.into())
}

/// Set the threshold of a balance
///
/// Whoever asked for the event `balance.low` is told when what is `available` falls below it, and at
/// once if it is below it now. An account without a limit has always enough.
#[utoipa::path(put, path = "/balance/{currency}", operation_id = "set_balance_warning", tag = "Money", request_body = BalanceWarning,
    params(("currency" = String, Path, description = "The currency of the account", example = "USD")),
    responses((status = 200, description = "The account", body = PartnerBalance),
        (status = 400, response = crate::http::described::InvalidJson),
        (status = 404, response = crate::http::described::NotFound),
        (status = 422, response = crate::http::described::Unprocessable)))]
pub(super) async fn warn(
    session: Session,
    PathId(currency): PathId<Currency>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let body = body::read(session.gate().max_body, &parts.headers, body).await?;
    let BalanceWarning { warn_below } = BalanceWarning::read(&body)?;
    let code = currency.as_str();
    let set = session.change(async |connection, partner| {
        self_service::warn_below(connection, partner, code, warn_below).await
    });
    if !set.await? {
        return Err(ErrorCode::NotFound.into());
    }
    let account = of_currency(&session, currency).await?;
    Ok(json(StatusCode::OK, &account))
}

/// The months in which a balance changed, the newest first.
#[derive(Serialize, ToSchema)]
struct Statements {
    statements: Vec<StatementHead>,
}

/// List the statements
///
/// A statement is a month of an account, in UTC: `opening` and the amounts of its entries are
/// `closing`, which is the `opening` of the next one. A month that is over never changes: what is
/// booked later, such as the refund of an eSIM, stands in the month in which it is booked.
#[utoipa::path(get, path = "/statements", operation_id = "list_statements", tag = "Money",
    params(("currency" = Option<String>, Query, pattern = "^[A-Z]{3}$", description = "Only statements in this currency, such as `USD`")),
    responses((status = 200, description = "The statements", body = Statements),
        (status = 422, response = crate::http::described::Unprocessable)))]
pub(super) async fn list(Search(session, uri): Search) -> Result<Response, ApiError> {
    let mut query = Query::of(&uri);
    let fault = RequestFault::new(ErrorCode::CurrencyInvalid);
    let currency = query.read("currency", fault, |text| text.parse::<Currency>().ok());
    query.check()?;
    let range = StatementRange {
        month: None,
        currency: currency.as_ref().map(Currency::as_str),
    };
    let found = session.look(async |connection, partner| {
        self_service::statements(connection, partner, range).await
    });
    let statements = found.await?;
    Ok(json(StatusCode::OK, &Statements { statements }))
}

/// A statement with a page of its entries.
#[derive(Serialize, ToSchema)]
struct StatementPage {
    #[serde(flatten)]
    statement: StatementHead,
    /// By number, without gaps.
    entries: Vec<StatementEntry>,
    /// The `after` of the next page; null after the last one.
    next_after: Option<i64>,
}

/// The name of a statement in a path, such as `2026-11-USD`.
pub(super) struct StatementName {
    month: String,
    currency: Currency,
}

impl std::str::FromStr for StatementName {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (month, currency) = text.rsplit_once('-').ok_or(())?;
        let is_month = |(index, byte): (usize, u8)| match index {
            4 => byte == b'-',
            _ => byte.is_ascii_digit(),
        };
        if month.len() != 7 || !month.bytes().enumerate().all(is_month) {
            return Err(());
        }
        Ok(Self {
            month: month.to_owned(),
            currency: currency.parse().map_err(|_| ())?,
        })
    }
}

/// Show a statement with its entries
#[utoipa::path(get, path = "/statements/{statement}", operation_id = "show_statement", tag = "Money",
    params(
        ("statement" = String, Path, description = "Month and currency, such as `2026-11-USD`", example = "2026-11-USD"),
        ("after" = Option<i64>, Query, minimum = 0, description = "`next_after` of the previous page; leave it out for the first page"),
        ("limit" = Option<u16>, Query, minimum = 1, maximum = 100, description = "Number of entries of the page, from 1 to 100; the default is 20")),
    responses(
        (status = 200, description = "The statement", body = StatementPage),
        (status = 404, response = crate::http::described::NotFound),
        (status = 422, response = crate::http::described::Unprocessable)))]
pub(super) async fn statement(
    PathId(name): PathId<StatementName>,
    Search(session, uri): Search,
) -> Result<Response, ApiError> {
    let mut query = Query::of(&uri);
    let limit = query.limit();
    let fault = RequestFault::new(ErrorCode::AfterInvalid);
    let after = query.read("after", fault, |text| {
        number(text).filter(|after: &i64| *after >= 0)
    });
    query.check()?;
    let StatementName { month, currency } = name;
    let range = StatementRange {
        month: Some(&month),
        currency: Some(currency.as_str()),
    };
    let reading = session.look(async |connection, partner| {
        let heads = self_service::statements(&mut *connection, partner, range).await?;
        heads
            .then(async |mut heads| {
                let Some(head) = heads.pop() else {
                    return Ok(store::Unflushed::of(None));
                };
                let from = head
                    .first_entry
                    .max(after.unwrap_or_default().saturating_add(1));
                let numbers = (from, head.last_entry);
                let code = currency.as_str();
                let entries =
                    self_service::entries(connection, partner, code, numbers, i64::from(limit));
                Ok(entries.await?.map(|entries| Some((head, entries))))
            })
            .await
    });
    let (statement, entries) = reading.await?.ok_or(ErrorCode::NotFound)?;
    let last = entries.last().map(|entry| entry.number);
    let next_after = last.filter(|number| *number < statement.last_entry);
    let page = StatementPage {
        statement,
        entries,
        next_after,
    };
    Ok(json(StatusCode::OK, &page))
}
