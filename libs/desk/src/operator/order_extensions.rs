//! The extensions of the eSIMs of an order, as operators see them.

use domain::{EsimChangeState, Stored};
use pg::Result;
use serde::{Serialize, Serializer};
use sqlx::PgConnection;
use store::extensions::{state_name, state_named};
use time::OffsetDateTime;
use uuid::Uuid;

/// An extension of a unit.
#[derive(Clone, Debug, Serialize)]
pub struct ExtensionView {
    pub extension_id: Uuid,
    pub topup_id: String,
    /// The partner's id of it.
    pub external_id: String,
    pub option_id: Uuid,
    pub provider_option_id: String,
    #[serde(serialize_with = "by_name")]
    pub state: Stored<EsimChangeState>,
    #[serde(with = "time::serde::rfc3339")]
    pub asked_at: OffsetDateTime,
    /// The last attempt.
    pub attempt: i32,
    #[serde(with = "time::serde::rfc3339::option")]
    pub attempted_at: Option<OffsetDateTime>,
    /// Why it was refused or parked: a code, and what the provider said.
    pub reason: Option<String>,
    pub message: Option<String>,
    /// Whether the provider has sold another eSIM instead, whose profile the topup has got.
    pub has_new_profile: bool,
    #[serde(with = "time::serde::rfc3339::option")]
    pub ended_at: Option<OffsetDateTime>,
}

/// The extensions of the units of an order, the oldest first.
pub(super) async fn of_order(
    connection: &mut PgConnection,
    order_id: Uuid,
) -> Result<Vec<ExtensionView>> {
    let query = sqlx::query!(
        "SELECT x.extension_id, x.topup_id, x.external_id, x.option_id, x.provider_option_id, x.state, x.asked_at, x.attempt,
                x.attempted_at, x.reason, x.message, x.has_new_profile, x.ended_at
         FROM placements p
         JOIN topups t ON t.placement_id = p.placement_id
         JOIN extensions x ON x.topup_id = t.topup_id
         WHERE p.order_id = $1 ORDER BY x.asked_at, x.extension_id",
        order_id,
    );
    let rows = query.fetch_all(connection).await?.into_iter();
    let extensions = rows.map(|row| ExtensionView {
        extension_id: row.extension_id,
        topup_id: row.topup_id,
        external_id: row.external_id,
        option_id: row.option_id,
        provider_option_id: row.provider_option_id,
        state: match state_named(&row.state) {
            Ok(state) => Stored::Known(state),
            Err(_) => Stored::Unknown(row.state),
        },
        asked_at: row.asked_at,
        attempt: row.attempt,
        attempted_at: row.attempted_at,
        reason: row.reason,
        message: row.message,
        has_new_profile: row.has_new_profile,
        ended_at: row.ended_at,
    });
    Ok(extensions.collect())
}

/// The name of a state in the table.
fn by_name<S: Serializer>(
    state: &Stored<EsimChangeState>,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    match state {
        Stored::Known(state) => serializer.serialize_str(state_name(*state)),
        Stored::Unknown(name) => serializer.serialize_str(name),
    }
}
