//! What travels in JetStream and between stages: ids and trace context, never credentials. Tagged
//! and versioned; an old variant stays until no stream can hold it any more.

use domain::{OrderId, PartnerId, PlacementId, TopupId};
use serde::{Deserialize, Serialize};

/// The most rows that one message names: one replica can run at least this many at once.
pub const MOST: usize = 32;

/// Placements wait to be bought. Subject `topup.job.<provider>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum TopupJob {
    /// One placement. Still read, never sent.
    #[serde(rename = "topup.job.v1")]
    V1 {
        /// The placement to buy.
        placement_id: PlacementId,
    },
    /// The placements of one commit, at most [`MOST`].
    #[serde(rename = "topup.job.v2")]
    V2 {
        /// The placements to buy.
        placements: Vec<JobPlacement>,
        /// The subject on which an ingress waits for [`Verdicts`]; absent once the orders are answered.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        verdict_to: Option<String>,
    },
}

/// One placement of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobPlacement {
    /// The placement to buy.
    pub placement_id: PlacementId,
    /// The partner that ordered it.
    pub partner_id: PartnerId,
    /// The lane it is bought in.
    pub lane: String,
}

/// Topups have their profile. Subject `topup.ready.<partner>` (v1), `topup.ready.batch` (v2).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum TopupReady {
    /// One topup. Still read, never sent.
    #[serde(rename = "topup.ready.v1")]
    V1 {
        /// The topup.
        topup_id: TopupId,
    },
    /// At most [`MOST`] topups.
    #[serde(rename = "topup.ready.v2")]
    V2 {
        /// The topups.
        topups: Vec<ReadyTopup>,
    },
}

/// One topup of a readiness event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyTopup {
    /// The topup.
    pub topup_id: TopupId,
    /// The partner that ordered it.
    pub partner_id: PartnerId,
}

/// Hints to an ingress that orders may be answered: core NATS, subject `topup.verdict.<ingress>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum Verdicts {
    /// The verdicts of one settlement batch for one ingress.
    #[serde(rename = "verdicts.v2")]
    V2 {
        /// The subject on which the provisioner waits for [`Releases`].
        release_to: String,
        /// One verdict for each placement.
        verdicts: Vec<Verdict>,
    },
}

/// What the provider said of a placement. A hint: the answer rests on what PostgreSQL holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The order that waits.
    pub order_id: OrderId,
    /// The placement.
    pub placement_id: PlacementId,
    /// What the provider said.
    pub said: Said,
}

/// What a provider said, as far as the answer to the partner depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// It has the purchase.
    Placed,
    /// It may have the purchase, or is asked again later.
    UnderWay,
    /// It refused the purchase.
    Refused,
    /// It certainly never got the request.
    NotSent,
}

/// Tells a provisioner that answers have left: core NATS, subject `topup.release.<provisioner>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum Releases {
    /// Webhooks of these placements may go out.
    #[serde(rename = "releases.v2")]
    V2 {
        /// The placements whose orders are answered, or never will be.
        placements: Vec<PlacementId>,
    },
}

/// What a provisioner can promise for a provider, broadcast each second.
/// Subject `topup.heartbeat.<provider>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum Heartbeat {
    /// The first version.
    #[serde(rename = "heartbeat.v1")]
    V1 {
        /// The provider.
        provider: String,
        /// The provisioner that sends it; absent before version 2 of jobs.
        #[serde(default)]
        instance: String,
        /// How long a job published now will take until its verdict, in milliseconds.
        verdict_ms: u64,
        /// Lanes in which it takes longer.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        lanes: Vec<LanePromise>,
    },
}

/// How long a job of one lane takes until its verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LanePromise {
    /// The lane.
    pub lane: String,
    /// In milliseconds.
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
        assert_eq!(
            serde_json::from_str::<TopupJob>(&text).unwrap(),
            TopupJob::V1 { placement_id }
        );
    }

    #[test]
    fn a_job_is_small_and_tagged() {
        let (placement_id, partner_id) = (PlacementId::new(), PartnerId::new());
        let job = TopupJob::V2 {
            placements: vec![JobPlacement {
                placement_id,
                partner_id,
                lane: "a".into(),
            }],
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

    #[test]
    fn an_unknown_version_is_an_error_that_names_it() {
        let error = serde_json::from_str::<TopupReady>(r#"{"type":"topup.ready.v9"}"#).unwrap_err();
        assert!(error.to_string().contains("topup.ready.v9"), "{error}");
    }
}
