//! The body of a 201, which the repeat of an order gets again.

use axum::body::Bytes;
use domain::{OptionId, TopupId};
use serde::Serialize;
use utoipa::ToSchema;

/// The answer of create-order: one entry for each unit, in the order of the items.
#[derive(Serialize, ToSchema)]
pub(crate) struct CreatedOrder<'a> {
    products: Vec<CreatedProduct<'a>>,
}

/// One unit of the order.
#[derive(Serialize, ToSchema)]
struct CreatedProduct<'a> {
    #[schema(example = "20250129123456123456789012")]
    topup_id: &'a str,
    #[schema(value_type = Uuid)]
    option_id: OptionId,
}

/// The body of a 201, whose units are in this order.
pub(super) fn created_body<'a>(
    units: impl Iterator<Item = (&'a TopupId, OptionId)>,
) -> serde_json::Result<Bytes> {
    let products = units.map(|(topup_id, option_id)| CreatedProduct {
        topup_id: topup_id.as_str(),
        option_id,
    });
    let products = products.collect();
    serde_json::to_vec(&CreatedOrder { products }).map(Bytes::from)
}
