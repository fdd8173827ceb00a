//! The provisioner's side of the answer handshake: it tells the waiting ingress process the verdict
//! on a purchase, and announces units that became ready.
//!
//! Guarantee: a readiness event is published directly only if the answer of its order has left or
//! never will, because a webhook must not precede its 201. While ingress may still answer the
//! order, the event goes to that ingress process, which publishes it once the answer has left.
//!
//! The claim of a placement says which case it is ([`ClaimedPlacement::report_to`]). So this
//! process remembers nothing, and it does not matter which provisioner collects a profile:
//!
//! - `report_to` names a process: ingress waits for verdicts of this order, and `answer_by` had not
//!   passed at the claim. If that process has died, the report is lost, and the sweep finds the
//!   delivery after its first lease. If it has answered meanwhile, it publishes the event at once.
//! - `report_to` is null because `answer_by` has passed: ingress closes the connection instead of
//!   answering.
//! - `report_to` is null because the answer waits for no verdict: ingress published the job after
//!   the 201. Without its job a placement is found after its first lease, which is longer than the
//!   time until `answer_by` ([`pipeline::timing`] checks that).

use std::time::Duration;

use domain::DeliveryId;
use pipeline::{
    Batcher, Nats,
    payload::{ReadyDelivery, ReadyReport, Verdict, VerdictReport},
    publish::AnnouncedRow,
    reports::{Report, ReportContent},
    trace,
};
use runtime::Shutdown;
use store::placements::{ClaimedPlacement, DeferredPlacement};
use tracing::Span;
use uuid::Uuid;

/// Sends the verdicts and readiness events of this process. All providers share it.
pub struct Reporter {
    nats: Nats,
    reports: Batcher<Report>,
    readiness_events: Batcher<AnnouncedRow<ReadyDelivery>>,
}

impl Reporter {
    /// Starts the senders.
    pub fn start(nats: &Nats, shutdown: &Shutdown) -> Self {
        Self {
            nats: nats.clone(),
            reports: nats.reports(shutdown),
            readiness_events: nats.readiness_events(shutdown),
        }
    }

    /// Whether NATS is up, so that readiness events would reach the notifiers now. If it is not,
    /// they would be dropped, and the deliveries need due work instead.
    pub fn can_announce(&self) -> bool {
        self.nats.is_up()
    }

    /// Sends a verdict to the ingress process that is answering the order, if there is one.
    ///
    /// [`Verdict::Rejected`] and [`Verdict::NotSent`] may be sent only after their outcome is
    /// committed, because ingress answers 422 on the strength of what is stored. `provider_time` is
    /// how long the placement waited for its provider.
    pub fn verdict(&self, claimed: &ClaimedPlacement, verdict: Verdict, provider_time: Duration) {
        if let Some(ingress) = claimed.report_to {
            let report = VerdictReport {
                order_id: claimed.order_id,
                placement_id: claimed.placement_id,
                verdict,
                provider_ms: u32::try_from(provider_time.as_millis()).unwrap_or(u32::MAX),
            };
            self.send_verdict(ingress, report);
        }
    }

    /// Gives the tasks that send the verdict a chance to run before this one goes on, if an ingress
    /// process waits for it. This only saves time, because the partner waits for the verdict and
    /// nobody for what this task does next. Nothing relies on the order in which the two leave.
    ///
    /// The first pause is for the batcher, which pauses, too, so that further reports can join. The
    /// second one is for the rest of its work, and for the connection.
    pub async fn let_verdict_leave(&self, claimed: &ClaimedPlacement) {
        if claimed.report_to.is_some() {
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
        }
    }

    /// Tells ingress that deferred placements are bought later, so that it answers 201 at once
    /// instead of waiting.
    pub fn deferred(&self, deferred: &[DeferredPlacement]) {
        for DeferredPlacement {
            placement_id,
            order_id,
            report_to,
        } in deferred
        {
            if let Some(ingress) = report_to {
                let report = VerdictReport {
                    order_id: *order_id,
                    placement_id: *placement_id,
                    verdict: Verdict::UnderWay,
                    provider_ms: 0,
                };
                self.send_verdict(*ingress, report);
            }
        }
    }

    /// Announces units that became ready: to the ingress process that is still answering the order,
    /// if there is one, and otherwise to the notifiers. Called only after their profiles are
    /// committed, because the notifier reads them from PostgreSQL at once.
    pub fn ready(&self, claimed: &ClaimedPlacement, deliveries: Vec<DeliveryId>) {
        let traceparent =
            trace::context_of(&Span::current()).or_else(|| claimed.traceparent.clone());
        for delivery_id in deliveries {
            let delivery = ReadyDelivery {
                delivery_id,
                partner_id: claimed.partner_id,
            };
            let traceparent = traceparent.clone();
            match claimed.report_to {
                Some(ingress) => {
                    let ready = ReadyReport {
                        order_id: claimed.order_id,
                        delivery,
                        traceparent,
                    };
                    self.reports.push(Report {
                        ingress,
                        content: ReportContent::Ready(ready),
                    });
                }
                None => self.readiness_events.push(AnnouncedRow {
                    row: delivery,
                    traceparent,
                }),
            }
        }
    }

    fn send_verdict(&self, ingress: Uuid, report: VerdictReport) {
        let content = ReportContent::Verdict(report);
        self.reports.push(Report { ingress, content });
    }
}
