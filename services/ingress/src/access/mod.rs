//! Who may send a request, and how much of it. [`authentication`] finds the partner in the [`directory`] and checks the
//! signature; [`admission`] and [`rates`] apply the [`limits`] of the partner and of this process.

pub(crate) mod admission;
pub(crate) mod authentication;
pub(crate) mod directory;
pub(crate) mod limits;
pub(crate) mod rates;
