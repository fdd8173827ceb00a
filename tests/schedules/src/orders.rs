//! The handshake of ingress, and what it needs to know of an order.

pub mod handshake;
mod heartbeats;

use domain::{OrderId, PlacementId};

/// What the handshake reads of `store::orders::NewOrder`.
pub struct NewOrder {
    pub order_id: OrderId,
    pub placements: Vec<NewPlacement>,
}

/// What the handshake reads of `store::orders::NewPlacement`.
pub struct NewPlacement {
    pub placement_id: PlacementId,
    pub provider: String,
    /// One for each unit.
    pub topups: Vec<()>,
}
