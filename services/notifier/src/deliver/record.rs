//! The group commits of the stage: one records ended attempts, and one holds deliveries that have
//! no endpoint. [`until_recorded`] is the only way to use them; the head of the parent module says
//! what it guarantees.

use std::sync::Arc;

use domain::{DeliveryId, endpoint::BlockPolicy};
use pg::{Database, PgConnection};
use pipeline::{
    Effect, GroupCommit,
    group_commit::{BatchWriter, WriterPanicked},
    perform,
};
use runtime::{Shutdown, outage};
use store::deliveries::{self, EndedAttempt};
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// The maximum number of items that one commit records, which bounds how long its transaction holds
/// locks. Larger ones cost as much for each item.
const BATCH: usize = 512;

/// Records an item by group commit, and retries while the database is away. After the soft stop
/// it is tried at most once more. If it is not recorded then, the delivery is claimed again when
/// its lease, or its first lease, ends.
///
/// Returns the error if the database refuses the record for another reason, for example because the
/// row of the delivery is damaged. It would refuse it again, so the caller puts the delivery off.
/// The other items of the batch are not affected, because the group commit then writes each by
/// itself.
pub(super) async fn until_recorded<W>(
    commit: &GroupCommit<W>,
    item: W::Item,
    stop: &CancellationToken,
) -> Option<pg::Error>
where
    W: BatchWriter<Error = pg::Error>,
    W::Item: Clone,
{
    let again = |error: &pg::Error| {
        let again = error.is_transient();
        // Of the failures of one outage, one is logged each second.
        if again && let Some(others) = outage::DATABASE.failed() {
            tracing::error!(
                %error,
                others,
                "cannot record the outcome of a delivery; it is kept in memory and tried again"
            );
        }
        again
    };
    match commit.write_while(&item, stop, again).await {
        Ok(Ok(_)) => None,
        Ok(Err(error)) if error.is_transient() => {
            tracing::error!(
                %error,
                "cannot record the outcome of a delivery, and the process stops; it is claimed \
                 again when its lease, or its first lease, ends"
            );
            None
        }
        Ok(Err(error)) => Some(error),
        Err(WriterPanicked) => {
            tracing::error!(
                "cannot record the outcome of a delivery, because the writer has failed and the \
                 process stops; it is claimed again when its lease, or its first lease, ends"
            );
            None
        }
    }
}

/// The group commit that records ended attempts.
pub(super) struct AttemptRecorder {
    database: Database,
    block_policy: BlockPolicy,
    notices_per_day: u32,
    metrics: Arc<Metrics>,
}

impl AttemptRecorder {
    pub(super) fn start(
        database: Database,
        block_policy: BlockPolicy,
        notices_per_day: u32,
        metrics: Arc<Metrics>,
        shutdown: &Shutdown,
    ) -> GroupCommit<Self> {
        let attempts = Self {
            database,
            block_policy,
            notices_per_day,
            metrics,
        };
        GroupCommit::start(attempts, BATCH, shutdown)
    }
}

impl BatchWriter for AttemptRecorder {
    const NAME: &'static str = "commit-attempts";
    const STATEMENT: (&'static str, &'static str) = ("UPDATE", "deliveries");
    type Item = EndedAttempt;
    type Output = ();
    type Error = pg::Error;

    async fn write(&self, items: &[EndedAttempt]) -> Result<Vec<()>, pg::Error> {
        let record = async |connection: &mut PgConnection| {
            let policy = &self.block_policy;
            deliveries::record(connection, items, policy, self.notices_per_day).await
        };
        let made = perform(Effect::CommitAttempts, self.database.run(record)).await?;
        for (kind, left_out) in made.notices {
            self.metrics.notices(kind, 1, left_out);
        }
        Ok(vec![(); items.len()])
    }

    /// An acknowledged first attempt holds nothing up: the webhook has arrived and its permit is
    /// free, so its record may wait to share a commit. If this process dies first, the webhook is
    /// repeated with the same id, as after any crash between a webhook and its record.
    fn can_wait(attempted: &EndedAttempt) -> bool {
        attempted.is_plain()
    }

    fn one_is_at_fault(error: &pg::Error) -> bool {
        error.may_concern_one_item()
    }
}

/// The group commit that marks deliveries of partners without a webhook URL. They are held until a
/// URL is set.
pub(super) struct WithoutUrl(Database);

impl WithoutUrl {
    pub(super) fn start(database: Database, shutdown: &Shutdown) -> GroupCommit<Self> {
        GroupCommit::start(Self(database), BATCH, shutdown)
    }
}

impl BatchWriter for WithoutUrl {
    const NAME: &'static str = "commit-no-endpoint";
    const STATEMENT: (&'static str, &'static str) = ("UPDATE", "deliveries");
    type Item = DeliveryId;
    type Output = ();
    type Error = pg::Error;

    async fn write(&self, items: &[DeliveryId]) -> Result<Vec<()>, pg::Error> {
        let set = async |connection: &mut PgConnection| {
            deliveries::set_no_endpoint(connection, items).await
        };
        perform(Effect::CommitNoEndpoint, self.0.run(set)).await?;
        Ok(vec![(); items.len()])
    }

    fn one_is_at_fault(error: &pg::Error) -> bool {
        error.may_concern_one_item()
    }
}
