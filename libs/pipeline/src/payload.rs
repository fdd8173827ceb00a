//! What travels in JetStream and between stages: ids and trace context, never credentials. Tagged
//! and versioned; an old variant stays until no stream can hold it any more.

use domain::{OrderId, PlacementId, TopupId};
use serde::{Deserialize, Serialize};

/// A placement waits to be bought. Subject `topup.job.<provider>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum TopupJob {
    /// The first version.
    #[serde(rename = "topup.job.v1")]
    V1 {
        /// What to buy.
        placement_id: PlacementId,
        /// Where an ingress waits for the verdict; none when the order was answered already.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        verdict: Option<VerdictTo>,
    },
}

/// Where an ingress waits for a verdict, and how long it may take to reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerdictTo {
    /// The subject to send a [`Verdict`] to, as a request.
    pub subject: String,
    /// Within this many milliseconds the ingress replies, or never.
    pub within_ms: u64,
}

/// A topup has its profile. Subject `topup.ready.<partner>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum TopupReady {
    /// The first version.
    #[serde(rename = "topup.ready.v1")]
    V1 {
        /// Which.
        topup_id: TopupId,
    },
}

/// What the provider said of a placement's attempt: a core-NATS request to the ingress that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum Verdict {
    /// The first version.
    #[serde(rename = "verdict.v1")]
    V1 {
        /// The order that waits.
        order_id: OrderId,
        /// The placement that this is about.
        placement_id: PlacementId,
        /// The attempt that this is about.
        attempt: u32,
        /// What was said.
        said: Said,
        /// Whether the provider certainly has the purchase.
        #[serde(default)]
        placed: bool,
    },
}

/// What a provider said, as far as the answer to the partner depends on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// It has the purchase, or may have it, or will be asked again later.
    UnderWay,
    /// It refused.
    Refused {
        /// Its code.
        status: String,
        /// Its message.
        message: String,
    },
    /// It certainly never got the request.
    NotSent,
}

/// The ingress's reply to a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The partner has its 201, or hung up: the pipeline goes on, webhooks may go out.
    Answered,
    /// The order was refused as a whole and the partner gets a 422.
    Refused,
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
        /// How long a job published now will take until its verdict, in milliseconds.
        verdict_ms: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_small_and_tagged() {
        let placement_id = PlacementId::new();
        let job = TopupJob::V1 {
            placement_id,
            verdict: None,
        };
        let text = serde_json::to_string(&job).unwrap();
        assert_eq!(
            text,
            format!(r#"{{"type":"topup.job.v1","placement_id":"{placement_id}"}}"#)
        );
        assert_eq!(serde_json::from_str::<TopupJob>(&text).unwrap(), job);
    }

    #[test]
    fn an_unknown_version_is_an_error_that_names_it() {
        let error = serde_json::from_str::<TopupReady>(r#"{"type":"topup.ready.v9"}"#).unwrap_err();
        assert!(error.to_string().contains("topup.ready.v9"), "{error}");
    }
}
