//! Parts of the sentences about findings.

use store::deliveries::endpoints::ListedEndpoint;

use crate::operator::words::{counted, noun};

pub(super) fn times(number: u64, one: &str, several: &str) -> String {
    counted(i64::try_from(number).unwrap_or(i64::MAX), one, several)
}

/// At most three names, and how many more there are.
pub(super) fn named(names: &[String]) -> String {
    const NAMED: usize = 3;
    let shown = names[..names.len().min(NAMED)].join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// An endpoint with its partner. Of its URL only the host is shown. Its id is in the command and in
/// the detail.
pub(super) fn whose(endpoint: &ListedEndpoint) -> String {
    format!("the endpoint of {} at {}", endpoint.name, endpoint.host())
}

pub(super) fn wait(endpoint: &ListedEndpoint) -> String {
    format!(
        "{} {}",
        counted(endpoint.pending, "webhook", "webhooks"),
        noun(endpoint.pending, "waits", "wait")
    )
}
