//! In place of `pipeline::metrics`: counts nothing.

use crate::worker::TicketClass;

pub(crate) struct RowMetrics;

pub(crate) struct InFlight;

impl RowMetrics {
    pub(crate) fn new(_stage: &'static str, _provider: Option<String>) -> Self {
        Self
    }

    pub(crate) fn claimed(&self, _rows: usize, _class: TicketClass) {}

    pub(crate) fn deferred(&self, _rows: usize) {}

    pub(crate) fn count_in_flight(&self, _class: TicketClass) -> InFlight {
        InFlight
    }
}
