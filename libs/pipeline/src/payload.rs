//! Messages in JetStream and between stages: ids and trace context, never credentials. They are tagged and
//! versioned; an old variant stays until no stream can hold it.

use domain::{OrderId, PartnerId, PlacementId, TopupId};
use serde::{Deserialize, Serialize};

/// The most rows in one message: one replica can run at least this many at once.
pub const MOST: usize = 32;

/// Placements wait to be bought. Subject `topup.job.<provider>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum TopupJob {
    /// The first version: one placement. Still read, never sent.
    #[serde(rename = "topup.job.v1")]
    V1 { placement_id: PlacementId },
    /// At most [`MOST`] placements of one provider.
    #[serde(rename = "topup.job.v2")]
    V2 {
        placements: Vec<JobPlacement>,
        /// The subject on which an ingress waits for [`Verdicts`]; `None` if the orders are already answered.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        verdict_to: Option<String>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobPlacement {
    pub placement_id: PlacementId,
    pub partner_id: PartnerId,
    pub lane: String,
}

/// Topups have their profile. Subject `topup.ready.<partner>` (v1), `topup.ready.batch` (v2).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum TopupReady {
    /// The first version: one topup. Still read, never sent.
    #[serde(rename = "topup.ready.v1")]
    V1 { topup_id: TopupId },
    /// At most [`MOST`] topups.
    #[serde(rename = "topup.ready.v2")]
    V2 { topups: Vec<ReadyTopup> },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyTopup {
    pub topup_id: TopupId,
    pub partner_id: PartnerId,
}

/// Verdicts for an ingress that waits: core NATS, subject `topup.verdict.<ingress>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum Verdicts {
    /// The verdicts of one batch of outcomes for one ingress.
    #[serde(rename = "verdicts.v2")]
    V2 {
        /// The subject on which the provisioner waits for [`Releases`].
        release_to: String,
        verdicts: Vec<Verdict>,
    },
}

/// The verdict on a placement. A hint: the answer rests on PostgreSQL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The order whose partner waits.
    pub order_id: OrderId,
    pub placement_id: PlacementId,
    pub said: Said,
}

/// The content of a verdict, as far as the partner's response depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// The provider has the purchase.
    Placed,
    /// The provider may have the purchase, or another attempt follows.
    UnderWay,
    /// The provider rejected the purchase.
    Refused,
    /// The request certainly never reached the provider.
    NotSent,
}

/// Releases for a provisioner: core NATS, subject `topup.release.<provisioner>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum Releases {
    /// The webhooks of these placements may go out.
    #[serde(rename = "releases.v2")]
    V2 {
        /// The placements whose orders are answered, or never will be.
        placements: Vec<PlacementId>,
    },
}

/// A provisioner's estimate for a provider, broadcast each second. Subject `topup.heartbeat.<provider>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum Heartbeat {
    /// The first version.
    #[serde(rename = "heartbeat.v1")]
    V1 {
        provider: String,
        /// The provisioner that sends it; empty before version 2 of jobs.
        #[serde(default)]
        instance: String,
        /// The expected time from a job's publication to its verdict, in milliseconds.
        verdict_ms: u64,
        /// The lanes in which it takes longer.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        lanes: Vec<LanePromise>,
    },
}

/// A provisioner's estimate for one lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LanePromise {
    pub lane: String,
    /// The expected time from a job's publication to its verdict, in milliseconds.
    pub verdict_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_of_the_first_version_is_still_read() {
        let placement_id = PlacementId::new();
        let text = format!(
            r#"{{"type":"topup.job.v1","placement_id":"{placement_id}","verdict":{{"subject":"x","within_ms":1}}}}"#
        );
        assert_eq!(serde_json::from_str::<TopupJob>(&text).unwrap(), TopupJob::V1 { placement_id });
    }

    #[test]
    fn a_job_is_small_and_tagged() {
        let (placement_id, partner_id) = (PlacementId::new(), PartnerId::new());
        let job = TopupJob::V2 {
            placements: vec![JobPlacement { placement_id, partner_id, lane: "a".into() }],
            verdict_to: None,
        };
        let text = serde_json::to_string(&job).unwrap();
        assert_eq!(
            text,
            format!(
                r#"{{"type":"topup.job.v2","placements":[{{"placement_id":"{placement_id}","partner_id":"{partner_id}","lane":"a"}}]}}"#
            )
        );
        assert_eq!(serde_json::from_str::<TopupJob>(&text).unwrap(), job);
    }
}
