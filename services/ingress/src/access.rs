//! Who may send a request, and how much of it.
//!
//! [`authentication`] finds the partner in the [`directory`] and checks the signature.
//! [`admission`] and [`rates`] then apply the [`limits`](crate::limits) of the partner and of this
//! process, so that no request takes resources before it is known whose it is.
//! [`install_token`] lets travellers open a page.

pub(crate) mod admission;
pub(crate) mod authentication;
pub(crate) mod directory;
pub(crate) mod gate;
pub(crate) mod in_flight;
pub(crate) mod install_token;
mod overload;
pub(crate) mod rates;
