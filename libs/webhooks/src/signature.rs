//! The value of `webhook-signature`.

use signing::webhook::Secret;

/// One Standard Webhooks signature by each of the `secrets`, separated by spaces. `timestamp` is the Unix time of the
/// attempt in seconds.
pub fn signatures(secrets: &[Secret], id: &str, timestamp: i64, body: &[u8]) -> String {
    let signatures: Vec<String> = secrets.iter().map(|secret| secret.sign(id, timestamp, body)).collect();
    signatures.join(" ")
}
