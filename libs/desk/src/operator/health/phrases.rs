//! Parts of the sentences about findings.

use accounts::partners::keys::EndedKey;
use store::deliveries::endpoints::ListedEndpoint;

use super::finding::{FailingPartner, LeadingCode};
use crate::operator::{
    minute::minute,
    words::{counted, noun},
};

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

/// The part of a sentence that names at most two keys which are used after their end; empty if
/// there is none. `whose` are the partners, if it is not clear whose they are.
pub(super) fn still_used(keys: &[EndedKey], whose: Option<&Vec<FailingPartner>>) -> String {
    const NAMED: usize = 2;
    let named = keys.iter().take(NAMED).map(|key| {
        let mut partners = whose.into_iter().flatten();
        let partner = partners.find(|one| one.partner_id == key.partner_id);
        let owner = partner.map_or("its".to_owned(), |one| format!("{}'s", one.name));
        format!(
            "; {owner} {}, which ended at {}, is still used, since {}",
            key_named(key),
            minute(key.ended_at),
            minute(key.used_since)
        )
    });
    let named: String = named.collect();
    match keys.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named}; so are {more} more"),
    }
}

/// The code that most refused requests have, with its count.
pub(super) fn leads(code: Option<&LeadingCode>) -> String {
    code.map_or_else(String::new, |one| {
        format!(
            "; {} of the {} that are kept got {}",
            one.count, one.of, one.code
        )
    })
}

/// A key by its name, if it has one, and its access key.
pub(super) fn key_named(key: &EndedKey) -> String {
    match &key.name {
        Some(name) => format!("key “{name}” ({})", key.access_key),
        None => format!("first key ({})", key.access_key),
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
