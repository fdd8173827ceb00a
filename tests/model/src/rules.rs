//! The protocol with the safeguards and assumptions that a check leaves in force.
//! [`crate::actions`] says which steps are possible under them, and [`crate::steps`] what each step
//! does.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

use domain::placement::{Placement, PlacementEvent};

use crate::{Assumption, Safeguard, Settings};

/// The protocol under [`Settings`].
pub struct Protocol {
    pub(crate) settings: Settings,
    visited: Arc<Mutex<HashSet<(Placement, PlacementEvent)>>>,
}

impl Protocol {
    /// The protocol; `visited` collects every pair of placement and event that occurs.
    pub fn new(
        settings: Settings,
        visited: Arc<Mutex<HashSet<(Placement, PlacementEvent)>>>,
    ) -> Self {
        Self { settings, visited }
    }

    pub(crate) fn has(&self, safeguard: Safeguard) -> bool {
        !self.settings.without.contains(&safeguard)
    }

    pub(crate) fn holds(&self, assumption: Assumption) -> bool {
        !self.settings.broken.contains(&assumption)
    }

    /// The placement after an event; `None` if that changes nothing.
    pub(crate) fn after(&self, placement: Placement, event: PlacementEvent) -> Option<Placement> {
        self.visited
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert((placement, event));
        placement.after(event).ok()
    }
}
