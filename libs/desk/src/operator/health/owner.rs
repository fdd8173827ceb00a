//! Who has a finding: a recorded act, which ends with the finding.

use std::collections::BTreeMap;

use domain::Command;
use pg::Result;
use sqlx::PgConnection;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::{
    finding::{Finding, FindingOwner},
    record::FindingChange,
};

/// Notes who has which finding.
pub(super) async fn find_owners(
    connection: &mut PgConnection,
    findings: &mut [Finding],
    now: OffsetDateTime,
) -> Result<()> {
    if findings.is_empty() {
        return Ok(());
    }
    let keys: Vec<String> = findings.iter().map(|one| one.kind.key()).collect();
    // What came back after it was mended is another matter, which nobody has.
    let query = sqlx::query!(
        r#"SELECT key AS "key!", operator AS "operator!", at AS "at!", until, reason AS "reason!"
           FROM (SELECT DISTINCT ON (left(split_part(target, ' ', 2), 100))
                        left(split_part(target, ' ', 2), 100) AS key, operator, at, after ->> 'until' AS until, reason
                 FROM operator_actions
                 WHERE left(split_part(target, ' ', 2), 100) = ANY ($1) AND command = $2
                 ORDER BY left(split_part(target, ' ', 2), 100), at DESC) AS taken
           WHERE (SELECT true FROM history
                  WHERE provider = '' AND order_id IS NULL AND history.at > taken.at AND kind = $3 AND history.reason = key
                  LIMIT 1) IS NULL"#,
        &keys,
        Command::FindingTake.as_str(),
        FindingChange::Mended.as_str(),
    );
    let mut owners = BTreeMap::new();
    for row in query.fetch_all(&mut *connection).await? {
        let until = row.until.as_deref().unwrap_or_default();
        let owner = FindingOwner {
            by: row.operator,
            at: row.at,
            until: OffsetDateTime::parse(until, &Rfc3339).unwrap_or(row.at),
            note: row.reason,
        };
        if owner.until > now {
            owners.insert(row.key, owner);
        }
    }
    for (one, key) in findings.iter_mut().zip(&keys) {
        one.taken = owners.get(key).cloned();
    }
    Ok(())
}
