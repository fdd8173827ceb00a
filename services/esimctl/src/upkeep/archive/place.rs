//! Where an archived order is.

use desk::archived::ArchivedOrder;

use crate::output::{printable, utc};

/// Where archived orders are, and how to see them.
pub fn where_it_is(found: &[ArchivedOrder]) -> String {
    let line = |one: &ArchivedOrder| {
        printable(&format!(
            "Order {} ({}) was archived {} and is in archive {}, whose folder was {}. Show it with `esimctl archive show {} \
             --from DIR`.",
            one.order_id,
            one.external_order_id,
            utc(one.archived_at),
            one.archive,
            one.folder,
            one.order_id
        ))
    };
    found.iter().map(line).collect::<Vec<_>>().join("\n")
}
