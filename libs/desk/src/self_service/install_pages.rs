//! The page from which a traveller installs an eSIM: what it shows of the partner's shop, which
//! page of an eSIM is open, and what the page tells.
//!
//! Guarantee: nothing is written for a page before it is ended, and what a page shows of the use of
//! an eSIM is what is stored, so that no traveller makes us ask a provider.

use std::time::Duration;

use accounts::options;
use domain::{Command, PartnerId, Reading, Shop, TopupId, standing::Rows};
use pg::{
    Result, Transaction, TransactionEnd,
    actions::{self, Action, ActionChange},
    age, transaction,
};
use serde::Serialize;
use serde_json::{Map, Value, json};
use sqlx::PgConnection;
use store::Unflushed;
use time::OffsetDateTime;

use super::{PartnerUnitState, record_change};

/// The pages of a partner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InstallPages {
    pub shop: Shop,
    /// Whether look-ups show the addresses of the pages.
    pub install_urls: bool,
}

/// How the partner's pages look; `None` if it has none.
pub async fn install_pages(
    connection: &mut PgConnection,
    partner_id: PartnerId,
) -> Result<Option<InstallPages>> {
    let query = sqlx::query!(
        "SELECT shop, install_urls FROM partners WHERE partner_id = $1",
        partner_id.uuid(),
    );
    let Some(row) = query.fetch_optional(connection).await? else {
        return Ok(None);
    };
    let shop = row.shop.as_deref().map(Shop::read).transpose()?;
    Ok(shop.map(|shop| InstallPages {
        shop,
        install_urls: row.install_urls,
    }))
}

/// What is recorded: the record outlives an erasure, so it holds no name and no address.
fn shown(pages: Option<&InstallPages>) -> Value {
    pages.map_or(Value::Null, |pages| {
        let tags = pages.shop.languages.iter().map(|language| language.tag());
        json!({
            "brand": pages.shop.brand, "brand_ink": pages.shop.brand_ink,
            "languages": tags.collect::<Vec<_>>(), "install_urls": pages.install_urls,
        })
    })
}

/// Sets how the partner's pages look.
pub async fn set_install_pages(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    pages: &InstallPages,
) -> Result<()> {
    transaction!(connection, "install_pages::set", |transaction| {
        let before = install_pages(transaction, partner_id).await?;
        if before.as_ref() == Some(pages) {
            return Ok(TransactionEnd::Rollback(()));
        }
        let statement = sqlx::query!(
            "UPDATE partners SET shop = $2, install_urls = $3 WHERE partner_id = $1",
            partner_id.uuid(),
            pages.shop.stored(),
            pages.install_urls,
        );
        statement.execute(&mut **transaction).await?;
        let changed = ActionChange::between(shown(before.as_ref()), shown(Some(pages)));
        record_change(transaction, Command::InstallPageSet, partner_id, changed).await?;
        Ok(TransactionEnd::Commit(()))
    })
}

/// Opens the page of one of the partner's eSIMs, and returns its number. A page that is open stays
/// as it is. `None` if the partner has no such eSIM, or it is erased.
pub async fn open_install_page(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    topup_id: &TopupId,
) -> Result<Option<i32>> {
    let next = |number: i32| if number < 0 { 1 - number } else { number };
    move_page(
        connection,
        partner_id,
        topup_id,
        Command::InstallPageOpen,
        next,
    )
    .await
}

/// Ends the page of one of the partner's eSIMs. Returns whether the partner has such an eSIM.
pub async fn end_install_page(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    topup_id: &TopupId,
) -> Result<bool> {
    let ended = |number: i32| -number.abs();
    let moved = move_page(
        connection,
        partner_id,
        topup_id,
        Command::InstallPageEnd,
        ended,
    );
    Ok(moved.await?.is_some())
}

/// Changes the number of the page of an eSIM, with its record.
async fn move_page(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    topup_id: &TopupId,
    command: Command,
    next: impl Fn(i32) -> i32,
) -> Result<Option<i32>> {
    transaction!(connection, "install_pages::move", |transaction| {
        let Some(before) = locked_page(transaction, partner_id, topup_id).await? else {
            return Ok(TransactionEnd::Rollback(None));
        };
        let after = next(before);
        if after == before {
            return Ok(TransactionEnd::Rollback(Some(before)));
        }
        let statement = sqlx::query!(
            "UPDATE esims SET install_page = $2 WHERE topup_id = $1",
            topup_id.as_str(),
            after,
        );
        statement.execute(&mut **transaction).await?;
        let target = format!("topup {topup_id}");
        let action = Action::of_partner(command, &target);
        let changed = ActionChange::between(json!({ "page": before }), json!({ "page": after }));
        actions::record(transaction, action, 1, changed).await?;
        Ok(TransactionEnd::Commit(Some(after)))
    })
}

/// The number of the page of one of the partner's eSIMs, whose row stays locked.
async fn locked_page(
    transaction: &mut Transaction<'_>,
    partner_id: PartnerId,
    topup_id: &TopupId,
) -> Result<Option<i32>> {
    let query = sqlx::query_scalar!(
        r#"SELECT coalesce(e.install_page, 1) AS "page!"
           FROM esims e
           JOIN topups t ON t.topup_id = e.topup_id
           JOIN placements p ON p.placement_id = t.placement_id
           WHERE e.topup_id = $2 AND p.partner_id = $1 AND e.ready_at IS NOT NULL AND e.erased_at IS NULL
           FOR NO KEY UPDATE OF e"#,
        partner_id.uuid(),
        topup_id.as_str(),
    );
    Ok(query.fetch_optional(&mut **transaction).await?)
}

/// What the page of an eSIM shows.
#[derive(Clone, Debug)]
pub struct InstallPage {
    pub partner_id: PartnerId,
    /// Its number; negative if it was ended.
    pub number: i32,
    pub shop: Shop,
    pub external_order_id: String,
    pub state: PartnerUnitState,
    /// The sealed profile; none once it was erased.
    pub profile: Option<Vec<u8>>,
    pub returned_at: Option<OffsetDateTime>,
    /// What was sold; the option may have changed since.
    pub option_name: String,
    pub countries: Option<Vec<String>>,
    pub data_mb: Option<i32>,
    pub days: Option<i32>,
    pub details: Map<String, Value>,
    /// The last answer of the provider about its use, when it came, and its age.
    pub reading: Option<(Reading, OffsetDateTime, Duration)>,
}

/// Reads what the page of an eSIM shows, for whoever knows the address of the page: the caller
/// checks that. `None` if there is no such eSIM, or its partner has no pages.
pub async fn install_page(
    connection: &mut PgConnection,
    topup_id: &TopupId,
) -> Result<Unflushed<Option<InstallPage>>> {
    let query = sqlx::query!(
        r#"SELECT u.partner_id AS "partner_id!", u.external_order_id AS "external_order_id!", u.profile,
                  u.ready_at IS NOT NULL AS "is_ready!", u.has_failed AS "has_failed!", u.is_parked AS "is_parked!",
                  u.returned_at, coalesce(e.install_page, 1) AS "number!", s.shop AS "shop!",
                  o.name AS option_name, o.countries, o.data_mb, o.days, o.details::text AS "details!",
                  r.installed, r.data_used, r.data_total, r.ends_at, r.as_of,
                  coalesce(r.downloaded_at IS NOT NULL, false) AS "only_downloaded!",
                  r.read_at AS "read_at?", extract(epoch FROM now() - r.read_at)::float8 AS read_age
           FROM partner_units u
           JOIN esims e ON e.topup_id = u.topup_id
           JOIN partners s ON s.partner_id = u.partner_id
           JOIN options o ON o.option_id = u.option_id
           LEFT JOIN esim_requests r ON r.topup_id = u.topup_id
           WHERE u.topup_id = $1 AND s.shop IS NOT NULL"#,
        topup_id.as_str(),
    );
    let Some(row) = query.fetch_optional(connection).await? else {
        return Ok(Unflushed::of(None));
    };
    let bytes = |bytes: Option<i64>| bytes.and_then(|bytes| u64::try_from(bytes).ok());
    let reading = row.read_at.map(|read_at| {
        let reading = Reading {
            installed: row.installed,
            data_used: bytes(row.data_used),
            data_total: bytes(row.data_total),
            ends_at: row.ends_at,
            as_of: row.as_of,
            only_downloaded: row.only_downloaded,
        };
        (reading, read_at, age(row.read_age.unwrap_or_default()))
    });
    Ok(Unflushed::of(Some(InstallPage {
        partner_id: row.partner_id.into(),
        number: row.number,
        shop: Shop::read(&row.shop)?,
        external_order_id: row.external_order_id,
        state: PartnerUnitState::of(Rows {
            is_ready: row.is_ready,
            is_returned: row.returned_at.is_some(),
            has_failed: row.has_failed,
            is_parked: row.is_parked,
        }),
        profile: row.profile,
        returned_at: row.returned_at,
        option_name: row.option_name,
        countries: row.countries,
        data_mb: row.data_mb,
        days: row.days,
        details: options::details(&row.details).unwrap_or_default(),
        reading,
    })))
}
