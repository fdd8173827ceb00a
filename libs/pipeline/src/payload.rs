//! The messages between the stages. They contain ids, names of lanes and providers, verdicts and
//! times, with the trace context, and never credentials or activation codes, so that NATS carries
//! no secrets.
//!
//! Each message carries its type and version as a tag, so that a reader refuses what it does not
//! know instead of guessing. In tags, subjects and streams `topup` names this system, and not a
//! unit as everywhere else. Programs of two versions run side by side during an upgrade, and the
//! new one must still read what the old one sends. So when a message changes after `v0.1.0`, its
//! new form becomes a further variant of its type, and the old variant stays until no stream can
//! hold it any more.

use domain::{DeliveryId, OrderId, PartnerId, PlacementId};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The stream of jobs. Each stream is named with the prefix of the system in front.
pub const JOBS: &str = "TOPUP_JOBS";
/// The stream of readiness events.
pub const READY: &str = "TOPUP_READY";
/// The stream of messages that could not be read.
pub const DEAD: &str = "TOPUP_DEAD";

/// The maximum number of rows in one message. Small messages spread a burst of orders over the
/// replicas. A process pulls a message only while it has room for this many tickets. Even so it may
/// defer some of them, for example if they are all of one lane and partner, because one queue gets
/// only half of the room.
pub const ROWS_PER_MESSAGE: usize = 32;

/// A job: placements wait to be bought. It is sent by ingress to the provisioners over JetStream,
/// with the subject `topup.job.<provider>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum JobMessage {
    /// At most [`ROWS_PER_MESSAGE`] placements of one provider.
    #[serde(rename = "topup.job.v1")]
    V1 { placements: Vec<JobPlacement> },
}

/// One placement of a job, with what its ticket needs to find its queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobPlacement {
    pub placement_id: PlacementId,
    pub partner_id: PartnerId,
    pub lane: String,
}

/// A readiness event: units have their profiles, so their webhooks can be sent. It goes to the
/// notifiers over JetStream, with the subject `topup.ready.batch`.
///
/// It is published only when the answer of the order has left or never will, because a webhook must
/// not precede the 201 of its order. While an order is still being answered, its ingress process
/// publishes the event. Otherwise the provisioner does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum ReadyMessage {
    /// At most [`ROWS_PER_MESSAGE`] deliveries.
    #[serde(rename = "topup.ready.v1")]
    V1 { deliveries: Vec<ReadyDelivery> },
}

/// One delivery of a readiness event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyDelivery {
    pub delivery_id: DeliveryId,
    pub partner_id: PartnerId,
}

/// What happened to orders that one ingress process is still answering. Any provisioner sends it to
/// that process over core NATS, with the subject `topup.answer.<ingress>`.
///
/// Ingress believes one thing of it: *placed* says that the order is on disk, because the claim
/// that a purchase rests on was flushed behind it in the log. So a verdict *placed* may be sent
/// only after that flush (docs/security.md says what a forged one could do). Everything else costs
/// time at worst if it is lost or forged: a 422 rests on a transaction of its own, and a readiness
/// event only makes the notifier read the delivery in PostgreSQL. For example, a forged readiness
/// event can take the place of a real one, and the webhook of that unit then waits for the sweep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum Reports {
    /// At most [`ROWS_PER_MESSAGE`] verdicts and deliveries together.
    #[serde(rename = "topup.answer.v1")]
    V1 {
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        verdicts: Vec<VerdictReport>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        ready: Vec<ReadyReport>,
    },
}

/// The verdict on one placement of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerdictReport {
    pub order_id: OrderId,
    pub placement_id: PlacementId,
    pub verdict: Verdict,
    /// How much of the time until this verdict the provider took, in milliseconds. That is the time
    /// until it responded and, if its responses are slow, the time until it had room for the
    /// purchase. Ingress admits fewer orders when the rest of the time, which is ours, becomes too
    /// long.
    #[serde(default)]
    pub provider_ms: u32,
}

/// The outcome of a purchase, reduced to what decides between a 201 and a 422.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The provider has the purchase. The provisioner may not have recorded it yet. It need not
    /// have, because a 201 promises only the stored order.
    Placed,
    /// The provider may have the purchase, or the purchase is sent later. In both cases the order
    /// is carried out.
    UnderWay,
    /// The provider rejected the purchase. The provisioner has recorded that, because a 422 rests
    /// on it.
    Rejected,
    /// The request certainly never reached the provider. The provisioner has recorded that, because
    /// a 422 rests on it.
    NotSent,
}

impl Verdict {
    /// Whether the verdict says that the order is carried out. One such verdict is enough for a
    /// 201, whatever happens to the other placements, because a 422 refuses all of them or none.
    pub fn means_carried_out(self) -> bool {
        matches!(self, Self::Placed | Self::UnderWay)
    }
}

/// A unit became ready while its order is still being answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyReport {
    pub order_id: OrderId,
    #[serde(flatten)]
    pub delivery: ReadyDelivery,
    /// W3C trace context of the work that made it ready, if that is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

/// A heartbeat: a provisioner can buy from this provider now. It is sent each second to every
/// ingress process over core NATS, with the subject `topup.heartbeat.<provider>`. Without
/// heartbeats a verdict would not come in time, so ingress answers without waiting for one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum Heartbeat {
    #[serde(rename = "topup.heartbeat.v1")]
    V1 { provider: String },
}

/// A question to all ingress processes: has the answer of this order left? It is asked over core
/// NATS, with the subject `topup.left.all`, when a partner cancels an order within its first
/// seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum LeftQuestion {
    #[serde(rename = "topup.left.v1")]
    V1 {
        order_id: OrderId,
        /// The process that asks.
        ingress: Uuid,
    },
}

/// The reply of the process that has answered the order, with the subject `topup.left.<ingress>`:
/// it no longer answers it. There is no other reply, because silence already means that nobody
/// knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum LeftReply {
    #[serde(rename = "topup.departed.v1")]
    V1 { order_id: OrderId },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_small_and_tagged() {
        let placement_id = PlacementId::new();
        let partner_id = PartnerId::new();
        let job = JobMessage::V1 {
            placements: vec![JobPlacement {
                placement_id,
                partner_id,
                lane: "a".into(),
            }],
        };
        let text = serde_json::to_string(&job).unwrap();
        assert_eq!(
            text,
            format!(
                r#"{{"type":"topup.job.v1","placements":[{{"placement_id":"{placement_id}","partner_id":"{partner_id}","lane":"a"}}]}}"#
            )
        );
        assert_eq!(serde_json::from_str::<JobMessage>(&text).unwrap(), job);
    }

    #[test]
    fn a_message_of_an_unknown_version_is_refused() {
        let text = r#"{"type":"topup.job.v2","placements":[]}"#;
        assert!(serde_json::from_str::<JobMessage>(text).is_err());
    }

    #[test]
    fn a_report_names_only_what_it_has() {
        let order_id = OrderId::new();
        let placement_id = PlacementId::new();
        let verdict = VerdictReport {
            order_id,
            placement_id,
            verdict: Verdict::UnderWay,
            provider_ms: 12,
        };
        let delivery = ReadyDelivery {
            delivery_id: DeliveryId::new(),
            partner_id: PartnerId::new(),
        };
        let ready = ReadyReport {
            order_id,
            delivery,
            traceparent: None,
        };
        for (verdicts, ready) in [(vec![verdict], vec![]), (vec![], vec![ready])] {
            let reports = Reports::V1 { verdicts, ready };
            let text = serde_json::to_string(&reports).unwrap();
            assert!(
                !text.contains("[]") && !text.contains("traceparent"),
                "{text}"
            );
            assert_eq!(serde_json::from_str::<Reports>(&text).unwrap(), reports);
        }
    }
}
