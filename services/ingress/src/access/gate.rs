//! What every signed request passes, and what holds for all of them.

use super::{admission::Admission, authentication::Authenticator};
use crate::limits::{LimitsConfig, OrderSize};

pub(crate) struct RequestGate {
    pub(crate) authenticator: Authenticator,
    pub(crate) admission: Admission,
    pub(crate) limits: LimitsConfig,
    /// The maximum size of a body in bytes.
    pub(crate) max_body: usize,
    /// The maximum size of an order.
    pub(crate) max_order: OrderSize,
}
