//! In place of `pipeline::worker::messages`: pulls from a channel instead of JetStream, with the
//! same order of steps. There is room before a pull, what is refused is deferred, and a stop comes
//! first.

use std::sync::Arc;

use super::{Handler, QueuedTicket, Worker};
use crate::streams::MessageSource;

impl<H: Handler> Worker<H> {
    pub(super) async fn messages(self: Arc<Self>, mut source: MessageSource) -> anyhow::Result<()> {
        let _pulled = self.pulled.clone().drop_guard();
        let stop = self.shutdown.soft();
        while stop
            .run_until_cancelled(self.queues.room_for(1))
            .await
            .is_some()
        {
            let Some(Some(message)) = stop.run_until_cancelled(source.messages.recv()).await else {
                break;
            };
            let tickets = self.handler.tickets_of(serde_json::from_str(&message)?);
            let refused = self.queues.offer_fresh(tickets.into_iter().map(|ticket| {
                let queued = QueuedTicket {
                    id: ticket.id.clone(),
                    traceparent: None,
                };
                (ticket.key(), queued)
            }));
            if !refused.is_empty() {
                let rows: Vec<H::Id> = refused.into_iter().map(|ticket| ticket.id).collect();
                self.handler.defer(&rows).await?;
            }
        }
        stop.cancelled().await;
        Ok(())
    }
}
