//! The bodies of events, which are the webhooks other than the specified one. They have the form
//! that Standard Webhooks recommends: a type, a time, and the data of this type. For example:
//!
//! ```json
//! {"type":"webhook.test","timestamp":"2026-01-31T12:00:00Z","data":{"challenge":"7KQM-2XWB-9TRA"}}
//! ```

use domain::{OptionId, event::Kind};
use serde::Serialize;
use store::deliveries::{
    events::{Event, Subject},
    notices::Notice,
};
use time::{OffsetDateTime, serde::rfc3339};

/// The header with the kind of the event. The specified webhook does not have this header.
pub const TYPE: &str = "webhook-type";

/// The text that tells a partner about a provider's rejection.
pub fn rejection(status: &str, message: &str) -> String {
    format!("eSIM Request failed - Status: {status}, Message: {message}")
}

/// The text that tells a partner why a topup has failed. It is the provider's rejection if there
/// was one.
pub fn failure(refusal: Option<&(String, String)>) -> String {
    refusal.map_or_else(
        || "The eSIM will not be delivered".to_owned(),
        |(status, message)| rejection(status, message),
    )
}

/// What a notice advises the partner to do. It is part of its body and of its mail.
pub fn advice(kind: Kind) -> &'static str {
    match kind {
        Kind::NoticeVerify => {
            "Give this code to POST /notices/verify, or run esim-partner notices verify CODE, \
             within half an hour. Until then nothing else is sent here. If you did not expect this, \
             ignore it."
        }
        Kind::NoticeEndpointFailing => {
            "If the endpoint goes on failing, we block it. Look at its log, and at the attempts of \
             its webhooks, which show what it answered. It must acknowledge webhooks with a 2xx \
             within 15 seconds."
        }
        Kind::NoticeEndpointBlocked => {
            "Its webhooks wait and use up no retries. From time to time, at least every few \
             minutes, one of them is sent as a test. As soon as the endpoint acknowledges one, or a \
             test that you ask for, the others follow. If the endpoint has moved, set its new URL."
        }
        Kind::NoticeEndpointRecovered => {
            "The webhooks that waited are being sent. Those whose retries had ended are not: list \
             the exhausted ones and have them redelivered."
        }
        Kind::NoticeWebhookExhausted => {
            "We do not send this webhook again on our own, but nothing is lost: have it redelivered, \
             or look the eSIM up. You are not told of further ones until the endpoint has recovered \
             or a day has passed, so list the exhausted webhooks."
        }
        Kind::NoticeKeysExpire => {
            "These are the old ones. Put the new ones into all of your programs before the old ones \
             end; afterwards requests that are signed with old keys get a 401."
        }
        Kind::NoticeSourceAddresses => {
            "Webhooks come from these addresses from now on. If your firewall admits only known \
             addresses, let these through. Go on verifying the signature of each webhook."
        }
        Kind::TopupReady | Kind::TopupFailed | Kind::KeyExpiring | Kind::WebhookTest => "",
    }
}

#[derive(Serialize)]
pub struct EventBody<'a> {
    r#type: &'static str,
    /// The time when the event happened.
    #[serde(with = "rfc3339")]
    timestamp: OffsetDateTime,
    data: Data<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Data<'a> {
    TopupFailed {
        topup_id: &'a str,
        option_id: OptionId,
        external_order_id: &'a str,
        error: String,
    },
    KeyExpiring {
        credential: &'a str,
        #[serde(with = "rfc3339")]
        ends_at: OffsetDateTime,
    },
    WebhookTest {
        challenge: Option<&'a str>,
    },
    Notice {
        #[serde(flatten)]
        notice: &'a Notice,
        advice: &'static str,
    },
}

impl<'a> EventBody<'a> {
    pub fn new(event: &'a Event) -> Self {
        let data = match &event.subject {
            Subject::TopupFailed {
                topup_id,
                external_order_id,
                option_id,
                refusal,
            } => Data::TopupFailed {
                topup_id,
                option_id: *option_id,
                external_order_id,
                error: failure(refusal.as_ref()),
            },
            Subject::KeyExpiring {
                credential,
                ends_at,
            } => Data::KeyExpiring {
                credential,
                ends_at: *ends_at,
            },
            Subject::WebhookTest { challenge } => Data::WebhookTest {
                challenge: challenge.as_deref(),
            },
            Subject::Notice { kind, notice } => Data::Notice {
                notice,
                advice: advice(*kind),
            },
        };
        Self {
            r#type: event.subject.kind().as_str(),
            timestamp: event.created_at,
            data,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_notice_says_what_to_do() {
        for kind in Kind::NOTICES {
            let advice = advice(kind);
            assert!(advice.len() > 40 && advice.is_ascii(), "{kind:?}");
        }
    }

    #[test]
    fn each_kind_has_its_fields() {
        let body = |subject| {
            let event = Event {
                created_at: OffsetDateTime::UNIX_EPOCH,
                subject,
            };
            serde_json::to_string(&EventBody::new(&event)).unwrap()
        };
        let failed = |refusal| Subject::TopupFailed {
            topup_id: "20250129123456123456789012".into(),
            external_order_id: "A-1".into(),
            option_id: "0197b0a0-0000-7000-8000-000000000001".parse().unwrap(),
            refusal,
        };
        let head = r#""timestamp":"1970-01-01T00:00:00Z","data":"#;
        let topup = concat!(
            r#"{"topup_id":"20250129123456123456789012","#,
            r#""option_id":"0197b0a0-0000-7000-8000-000000000001","external_order_id":"A-1","#
        );
        assert_eq!(
            body(failed(None)),
            format!(
                r#"{{"type":"topup.failed",{head}{topup}"error":"The eSIM will not be delivered"}}}}"#
            )
        );
        assert_eq!(
            body(failed(Some(("9001".into(), "No stock".into())))),
            format!(
                r#"{{"type":"topup.failed",{head}{topup}"error":"eSIM Request failed - Status: 9001, Message: No stock"}}}}"#
            )
        );
        let expiring = Subject::KeyExpiring {
            credential: "keys".into(),
            ends_at: OffsetDateTime::UNIX_EPOCH,
        };
        assert_eq!(
            body(expiring),
            format!(
                r#"{{"type":"key.expiring",{head}{{"credential":"keys","ends_at":"1970-01-01T00:00:00Z"}}}}"#
            )
        );
        assert_eq!(
            body(Subject::WebhookTest {
                challenge: Some("7KQM-2XWB-9TRA".into())
            }),
            format!(r#"{{"type":"webhook.test",{head}{{"challenge":"7KQM-2XWB-9TRA"}}}}"#)
        );
        let notice = Notice {
            host: Some("shop.example.com".into()),
            status: Some(503),
            ..Notice::default()
        };
        let blocked = body(Subject::Notice {
            kind: Kind::NoticeEndpointBlocked,
            notice,
        });
        let start = format!(
            r#"{{"type":"notice.endpoint_blocked",{head}{{"host":"shop.example.com","status":503,"advice":"Its webhooks wait"#
        );
        assert!(blocked.starts_with(&start), "{blocked}");
    }
}
