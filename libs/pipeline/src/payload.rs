//! Messages in JetStream and between stages: ids and trace context, never credentials. They are tagged and
//! versioned; an old variant stays until no stream can hold it.

use domain::{OrderId, PlacementId, TopupId};
use serde::{Deserialize, Serialize};

/// A placement waits to be bought. Subject `topup.job.<provider>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum TopupJob {
    /// The first version.
    #[serde(rename = "topup.job.v1")]
    V1 {
        /// The placement to buy.
        placement_id: PlacementId,
        /// The reply address for the verdict; `None` if the order is already answered.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        verdict: Option<VerdictTo>,
    },
}

/// The address of an ingress that waits for a verdict, and its time limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerdictTo {
    /// The subject to send a [`Verdict`] to, as a request.
    pub subject: String,
    /// Ingress replies within this many milliseconds, or never.
    pub within_ms: u64,
}

/// A topup has its profile. Subject `topup.ready.<partner>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum TopupReady {
    /// The first version.
    #[serde(rename = "topup.ready.v1")]
    V1 {
        /// The ready topup.
        topup_id: TopupId,
    },
}

/// The verdict on a placement's attempt: a core-NATS request to the waiting ingress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum Verdict {
    /// The first version.
    #[serde(rename = "verdict.v1")]
    V1 {
        /// The order whose partner waits.
        order_id: OrderId,
        placement_id: PlacementId,
        /// The number of the attempt.
        attempt: u32,
        /// The content of the verdict.
        said: Said,
        /// Whether the provider certainly has the purchase.
        #[serde(default)]
        placed: bool,
    },
}

/// The content of a verdict, as far as the partner's response depends on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// The provider has the purchase or may have it, or another attempt follows.
    UnderWay,
    /// The provider rejected the purchase.
    Refused {
        /// The provider's code.
        status: String,
        /// The provider's message.
        message: String,
    },
    /// The request certainly never reached the provider.
    NotSent,
}

/// Ingress's reply to a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The order is answered with 201, or the partner hung up: webhooks may go out.
    Answered,
    /// The order is refused as a whole; the partner gets a 422.
    Refused,
}

/// A provisioner's estimate for a provider, broadcast each second. Subject `topup.heartbeat.<provider>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum Heartbeat {
    /// The first version.
    #[serde(rename = "heartbeat.v1")]
    V1 {
        /// The provider.
        provider: String,
        /// The expected time from a job's publication to its verdict, in milliseconds.
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
