//! A profile that an operator enters by hand (`esimctl placement enter`), because the provider has
//! sent it in a form that no program can read, or by another way.
//!
//! The profile is sealed and its webhook created in the transaction that records who entered it.
//! The same unique indexes guard it as a profile that a provider has sent, so an eSIM that another
//! partner has cannot be entered.
//!
//! A look at the provider that is under way meanwhile may park the placement once more, because it
//! has read the units before. Its units are ready all the same, and
//! `esimctl placement resolve --bought` ends that.

use accounts::profile::Profile;
use domain::{
    DeliveryId, Iccid, OrderId, PlacementId, PlacementState, Stored, TopupId,
    placement::{Placement, PlacementEvent, Resolution},
};
use pg::{
    Error, Result, Transaction,
    actions::{ActionChange, Mode},
    transaction, unsigned,
};
use serde::Serialize;
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;
use vault::Vault;

use super::placements::lock;

/// A profile to enter.
pub struct ProfileEntry<'a> {
    pub topup_id: &'a TopupId,
    pub iccid: &'a Iccid,
    pub profile: &'a Profile,
    /// The provider's id of the unit, if the provider has not named it yet.
    pub unit: Option<&'a str>,
}

/// A unit after [`enter`].
#[derive(Clone, Debug, Serialize)]
pub struct EnteredUnit {
    pub topup_id: String,
    pub placement_id: PlacementId,
    pub order_id: OrderId,
    /// The state of the placement.
    pub state: PlacementState,
    /// The number of its units that still have no profile.
    pub pending: i64,
}

/// Why a profile was not entered.
#[derive(Debug, thiserror::Error)]
pub enum NotEntered {
    #[error("there is no such topup")]
    Unknown,
    #[error(
        "it is not certain that it is bought; settle its placement first, with `esimctl placement resolve --bought`"
    )]
    NotBought,
    #[error("its order was answered with 422 or cancelled, so nothing may be delivered for it")]
    Refused,
    #[error("it is ready already, or has failed")]
    NotPending,
    #[error("the provider has not named its unit yet; give the provider's id of it with --unit")]
    NoUnit,
    #[error("the provider's id of a unit has 1 to 128 visible ASCII characters and no blanks")]
    BadUnit,
    #[error("another topup has this {0} already, so one eSIM would be given to two partners")]
    Taken(&'static str),
    #[error(transparent)]
    Store(#[from] Error),
}

pg::store_error!(NotEntered);

/// What is stored about a unit and its placement.
struct Row {
    placement_id: Uuid,
    order_id: Uuid,
    partner_id: Uuid,
    provider: String,
    state: Stored<PlacementState>,
    attempt: i32,
    is_bought: bool,
    is_refused: bool,
    is_pending: bool,
    unit: Option<String>,
}

async fn read(
    connection: &mut PgConnection,
    topup_id: &TopupId,
) -> Result<Option<Row>, sqlx::Error> {
    let query = sqlx::query_as!(
        Row,
        r#"SELECT p.placement_id, p.order_id, p.partner_id, p.provider, p.state, p.attempt,
                  p.placed_at IS NOT NULL AS "is_bought!",
                  o.refused_at IS NOT NULL OR o.cancelled_at IS NOT NULL AS "is_refused!",
                  t.state = 'pending' AND e.ready_at IS NULL AS "is_pending!", e.provider_unit_id AS "unit?"
           FROM topups t
           JOIN placements p ON p.placement_id = t.placement_id
           JOIN orders o ON o.order_id = p.order_id
           LEFT JOIN esims e ON e.topup_id = t.topup_id
           WHERE t.topup_id = $1"#,
        topup_id.as_str(),
    );
    query.fetch_optional(connection).await
}

/// Makes a bought unit ready with this profile, and creates its webhook. If it was the last one
/// that its placement waited for, the placement is no longer parked.
pub async fn enter(
    connection: &mut PgConnection,
    vault: &Vault,
    entered: &ProfileEntry<'_>,
    mode: Mode<'_>,
) -> Result<EnteredUnit, NotEntered> {
    transaction!(connection, "entered::enter", |transaction| {
        let query = sqlx::query_scalar!(
            "SELECT placement_id FROM topups WHERE topup_id = $1",
            entered.topup_id.as_str(),
        );
        let placement = query.fetch_optional(&mut **transaction).await?;
        let placement = placement.ok_or(NotEntered::Unknown)?;
        // The account comes first, as whenever something of a unit is booked.
        let accounts = sqlx::query!("SELECT lock_accounts(ARRAY[$1::uuid])", placement);
        accounts.execute(&mut **transaction).await?;
        lock(transaction, placement.into()).await?;
        let row = read(transaction, entered.topup_id).await?;
        let row = row.ok_or(NotEntered::Unknown)?;
        if row.is_refused {
            return Err(NotEntered::Refused);
        }
        if !row.is_bought {
            return Err(NotEntered::NotBought);
        }
        if !row.is_pending {
            return Err(NotEntered::NotPending);
        }
        let unit = row.unit.as_deref().or(entered.unit);
        let unit = unit.ok_or(NotEntered::NoUnit)?;
        if !(1..=128).contains(&unit.len()) || !unit.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(NotEntered::BadUnit);
        }
        store_profile(transaction, vault, entered, &row, unit).await?;
        let booked = sqlx::query_scalar!("SELECT account_for(ARRAY[$1::uuid])", placement);
        booked.fetch_one(&mut **transaction).await?;
        let pending = pending(transaction, row.placement_id).await?;
        let before = Placement {
            state: row.state.readable().map_err(Error::from)?,
            attempt: unsigned(row.attempt),
            ..Placement::NEW
        };
        let mut state = before.state;
        if pending == 0 {
            if let Ok(settled) = before.after(PlacementEvent::Resolve(Resolution::Bought)) {
                state = settled.state;
            }
            finish(transaction, row.placement_id, state).await?;
        }
        // Without the profile and its ids, which an erasure removes and a record keeps.
        let changed = ActionChange::between(
            json!({ "unit": "pending", "placement": before.state }),
            json!({ "unit": "ready", "placement": state, "units_pending": pending }),
        );
        mode.record(transaction, 1, changed).await?;
        Ok(mode.end(EnteredUnit {
            topup_id: entered.topup_id.to_string(),
            placement_id: row.placement_id.into(),
            order_id: row.order_id.into(),
            state,
            pending,
        }))
    })
}

/// Stores the sealed profile, the delivery of its webhook, and the work that sends it.
async fn store_profile(
    transaction: &mut Transaction<'_>,
    vault: &Vault,
    entered: &ProfileEntry<'_>,
    row: &Row,
    unit: &str,
) -> Result<(), NotEntered> {
    let partner = row.partner_id.into();
    let sealed = entered.profile.seal(vault, partner, entered.topup_id)?;
    let statement = sqlx::query!(
        "WITH stored AS (
             INSERT INTO esims AS e (topup_id, provider, provider_unit_id, iccid, profile, ready_at, delivery_id, code_digest)
             VALUES ($1, $2, $3, $4, $5, now(), $6, $7)
             ON CONFLICT (topup_id) DO UPDATE
             SET iccid = excluded.iccid, profile = excluded.profile, ready_at = excluded.ready_at,
                 delivery_id = excluded.delivery_id, code_digest = excluded.code_digest
         ), created AS (
             INSERT INTO deliveries (delivery_id, partner_id, kind, topup_id, order_id)
             VALUES ($6, $8, 'topup.ready', $1, $9)
         )
         -- No readiness event names it, so it is due as soon as the order is certainly answered.
         INSERT INTO work (id, kind, provider, lane, partner_id, at)
         SELECT $6, 'deliver', '', '', $8, greatest(answer_by, now()) FROM orders WHERE order_id = $9",
        entered.topup_id.as_str(),
        row.provider,
        unit,
        entered.iccid.as_str(),
        &sealed.sealed,
        DeliveryId::new().uuid(),
        sealed.code_digest.as_deref(),
        row.partner_id,
        row.order_id,
    );
    let stored = statement
        .execute(&mut **transaction)
        .await
        .map_err(Error::from);
    match stored {
        Ok(_) => Ok(()),
        Err(error) => Err(match error.constraint() {
            Some("esims_code_key") => NotEntered::Taken("activation code"),
            Some("esims_provider_unit_key") => NotEntered::Taken("id of a unit"),
            _ => error.into(),
        }),
    }
}

async fn pending(connection: &mut PgConnection, placement_id: Uuid) -> Result<i64, sqlx::Error> {
    let query = sqlx::query_scalar!(
        r#"SELECT count(*) AS "pending!" FROM topups t LEFT JOIN esims e ON e.topup_id = t.topup_id
           WHERE t.placement_id = $1 AND t.state = 'pending' AND e.ready_at IS NULL"#,
        placement_id,
    );
    query.fetch_one(connection).await
}

/// Ends the wait of a placement of which no profile is missing any more.
async fn finish(
    transaction: &mut Transaction<'_>,
    placement_id: Uuid,
    state: PlacementState,
) -> Result<(), sqlx::Error> {
    let statement = sqlx::query!(
        "WITH settled AS (
             UPDATE placements SET state = $2, reason = NULL, disputed = false, unknowns = 0
             WHERE placement_id = $1 RETURNING placement_id
         ), done AS (
             DELETE FROM work WHERE id = ANY (ARRAY (SELECT placement_id FROM settled))
         )
         DELETE FROM held WHERE id = ANY (ARRAY (SELECT placement_id FROM settled))",
        placement_id,
        state.as_str(),
    );
    statement.execute(&mut **transaction).await?;
    Ok(())
}
