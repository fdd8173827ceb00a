//! What has to be certain before an order is answered as the verdicts on its placements say.

use std::collections::HashMap;

use domain::{OrderId, PlacementId};
use pg::{Database, PgConnection};
use pipeline::{Effect, payload::Verdict, perform};
use store::orders::{NewOrder, PlacementRefusal, flush_order, refuse};

use crate::http::{
    codes::ErrorCode,
    error::{ApiError, RequestFault},
};

/// Returns why the order is refused, or `None` if it is certain that it stands and is on disk, so
/// that it may get its 201. Usually the verdict is *placed*, and then neither step asks PostgreSQL.
pub(super) async fn refuse_or_flush(
    database: &Database,
    order: &NewOrder,
    verdicts: &HashMap<PlacementId, Verdict>,
) -> Result<Option<Vec<PlacementRefusal>>, ApiError> {
    let refused = refuse_unless_carried_out(database, order, verdicts).await;
    if let Some(refusals) = refused.map_err(ApiError::internal)? {
        return Ok(Some(refusals));
    }
    flush_unless_placed(database, order, verdicts).await?;
    Ok(None)
}

/// Refuses the order if no verdict says that it is carried out, and PostgreSQL confirms that no
/// placement is bought or may be. Returns why, or `None` if the order stands.
///
/// The verdicts alone decide nothing here: they only make this process ask PostgreSQL, which
/// refuses all placements or none. Without any verdict, nothing suggests that the provider refused.
async fn refuse_unless_carried_out(
    database: &Database,
    order: &NewOrder,
    verdicts: &HashMap<PlacementId, Verdict>,
) -> Result<Option<Vec<PlacementRefusal>>, pg::Error> {
    if verdicts.is_empty() || verdicts.values().any(|verdict| verdict.means_carried_out()) {
        return Ok(None);
    }
    let id = order.order_id;
    let is_priced = order.price().is_some();
    let refuse = async |connection: &mut PgConnection| refuse(connection, id, is_priced).await;
    perform(Effect::CommitRefusal, database.run(refuse)).await
}

/// Makes sure before a 201 that the order is on disk. *Placed* says that it is, because the claim
/// before the purchase was flushed and is behind the order in the log. No other verdict says so,
/// and the order may be gone, if PostgreSQL has crashed since it was stored.
async fn flush_unless_placed(
    database: &Database,
    order: &NewOrder,
    verdicts: &HashMap<PlacementId, Verdict>,
) -> Result<(), ApiError> {
    if verdicts.values().any(|verdict| *verdict == Verdict::Placed) {
        return Ok(());
    }
    let id = order.order_id;
    let flush = async |connection: &mut PgConnection| flush_order(connection, id).await;
    if database.run(flush).await.map_err(ApiError::internal)? {
        return Ok(());
    }
    Err(ApiError::internal(anyhow::anyhow!(
        "PostgreSQL crashed before the order was on disk, so nothing of it is stored or bought"
    )))
}

/// The errors of a 422. Several placements can be refused for the same reason, which is then named
/// once.
pub(super) fn refusal_errors(
    order_id: OrderId,
    refusals: &[PlacementRefusal],
) -> Vec<RequestFault> {
    let mut errors: Vec<RequestFault> = Vec::new();
    for refusal in refusals {
        let error = match refusal {
            PlacementRefusal::Rejected { status, message } => RequestFault::with(
                ErrorCode::ProviderRejected,
                webhooks::event::rejection(status, message),
            ),
            PlacementRefusal::NotSent => {
                RequestFault::with(ErrorCode::ProviderUnreachable, order_id)
            }
            PlacementRefusal::NotCarriedOut => {
                RequestFault::with(ErrorCode::ProviderUnavailable, order_id)
            }
        };
        if !errors.contains(&error) {
            errors.push(error);
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_422_says_which_of_them_is_true_and_each_once() {
        let order_id = OrderId::new();
        let rejected = PlacementRefusal::Rejected {
            status: "9001".to_owned(),
            message: "sold out".to_owned(),
        };
        let refusals = [
            rejected.clone(),
            PlacementRefusal::NotCarriedOut,
            PlacementRefusal::NotSent,
            rejected,
            PlacementRefusal::NotCarriedOut,
        ];
        let errors = refusal_errors(order_id, &refusals);
        let told: Vec<(ErrorCode, &str)> = errors
            .iter()
            .map(|error| (error.code, error.message.as_str()))
            .collect();
        let unavailable =
            format!("The provider carries nothing out at the moment (Order ID: {order_id})");
        let unreachable = format!("API connection error (Order ID: {order_id})");
        let expected = [
            (
                ErrorCode::ProviderRejected,
                webhooks::event::rejection("9001", "sold out"),
            ),
            (ErrorCode::ProviderUnavailable, unavailable),
            (ErrorCode::ProviderUnreachable, unreachable),
        ];
        let expected: Vec<(ErrorCode, &str)> = expected
            .iter()
            .map(|(code, message)| (*code, message.as_str()))
            .collect();
        assert_eq!(told, expected);
    }
}
