//! The check of the table `orders` that refuses new orders of partners that have moved.
//!
//! It exists only in a cell from which a partner has moved, or is moving, so no other cell pays for
//! it. A check is better than waiting until each ingress has noticed that the partner is frozen,
//! because a process that was stalled for minutes would not have noticed.

use std::time::Duration;

use pg::{
    Result,
    actions::{self, Action, Changed},
};
use sqlx::PgConnection;
use store::orders::FENCE;
use uuid::Uuid;

use super::{copy, parts::array, refusal::NotMoved};

/// How long each try to lock the table of orders may hold up orders.
const LOCK_TIMEOUT: &str = "200ms";
/// How often locking the table of orders is tried, with a pause after each.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(300);

/// Adds the check that refuses orders of the partners that have moved, in the transaction of the
/// caller. Rows that are refused or erased pass, because the answers and erasures of older orders
/// go on. `NOT VALID` leaves the rows that are there unread.
async fn fence(connection: &mut PgConnection) -> Result<()> {
    let partners: Vec<Uuid> = sqlx::query_scalar(
        "SELECT partner_id FROM partners WHERE moved_to IS NOT NULL ORDER BY partner_id",
    )
    .fetch_all(&mut *connection)
    .await?;
    let add = if partners.is_empty() {
        String::new()
    } else {
        format!(
            ", ADD CONSTRAINT {FENCE} CHECK (partner_id <> ALL ({}) OR refused_at IS NOT NULL OR erased_at IS NOT NULL) NOT VALID",
            array(&partners, "uuid")
        )
    };
    let alter = format!("ALTER TABLE orders DROP CONSTRAINT IF EXISTS {FENCE}{add}");
    copy::run(connection, &alter).await
}

/// Runs a statement and then [`fence`] in one transaction. The table of orders is locked for some
/// milliseconds, and each try lets the orders that wait pass after a short time.
pub(super) async fn fenced(
    connection: &mut PgConnection,
    statement: &str,
    action: Option<Action<'_>>,
) -> Result<(), NotMoved> {
    let mut tries = 0;
    loop {
        let once = async {
            copy::run(
                connection,
                &format!("BEGIN; SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'; {statement}"),
            )
            .await?;
            fence(connection).await?;
            if let Some(action) = action {
                actions::record(connection, action, 1, Changed::nothing()).await?;
            }
            copy::run(connection, "COMMIT").await
        };
        let Err(error) = once.await else {
            return Ok(());
        };
        copy::run(connection, "ROLLBACK").await?;
        tries += 1;
        // 55P03: a lock was not free in time.
        if !error.is_of(&["55P03", "40"]) {
            return Err(error.into());
        }
        if tries >= LOCK_TRIES {
            return Err(NotMoved::Busy(tries, error));
        }
        tokio::time::sleep(LOCK_PAUSE).await;
    }
}
