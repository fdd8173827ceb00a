//! What has to be certain before an order is answered as the verdicts on its placements say.

use std::collections::HashMap;

use domain::PlacementId;
use pg::{Database, PgConnection};
use pipeline::{Effect, payload::Verdict, perform};
use store::orders::{NewOrder, Refusal, flush_order, refuse};

use crate::http::error::ApiError;

/// Refuses the order if no verdict says that it is carried out, and PostgreSQL confirms that no
/// placement is bought or may be. Returns why, or `None` if the order stands.
///
/// The verdicts alone decide nothing here: they only make this process ask PostgreSQL, which refuses
/// all placements or none. Without any verdict, nothing suggests that the provider refused.
pub(super) async fn refuse_unless_carried_out(
    database: &Database,
    order: &NewOrder,
    verdicts: &HashMap<PlacementId, Verdict>,
) -> Result<Option<Vec<Refusal>>, pg::Error> {
    if verdicts.is_empty() || verdicts.values().any(|verdict| verdict.means_carried_out()) {
        return Ok(None);
    }
    let id = order.order_id;
    let refuse = async |connection: &mut PgConnection| refuse(connection, id).await;
    perform(Effect::CommitRefusal, database.run(refuse)).await
}

/// Makes sure before a 201 that the order is on disk. *Placed* says that it is, because the claim
/// before the purchase was flushed and is behind the order in the log. No other verdict says so,
/// and the order may be gone, if PostgreSQL has crashed since it was stored.
pub(super) async fn flush_unless_placed(
    database: &Database,
    order: &NewOrder,
    verdicts: &HashMap<PlacementId, Verdict>,
) -> Result<Option<Vec<Refusal>>, ApiError> {
    if verdicts.values().any(|verdict| *verdict == Verdict::Placed) {
        return Ok(None);
    }
    let id = order.order_id;
    let flush = async |connection: &mut PgConnection| flush_order(connection, id).await;
    if database.run(flush).await.map_err(ApiError::internal)? {
        return Ok(None);
    }
    Err(ApiError::internal(anyhow::anyhow!(
        "PostgreSQL crashed before the order was on disk, so nothing of it is stored or bought"
    )))
}
