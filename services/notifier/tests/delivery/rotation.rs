//! Rotation of webhook secrets.

use std::time::Duration;

use accounts::partners::{self, Overlap, RotationResult};
use domain::{EndpointKey, PartnerId};
use pg::{TransactionEnd, transaction};
use secrecy::{ExposeSecret, SecretString};
use signing::{ed25519::PublicKey, webhook::Secret};
use testkit::receiver::{Received, Signature};
use vault::Keyring;

use crate::support::Bench;

impl Bench {
    /// Gives a partner a new webhook secret; the old one stays valid for a day.
    async fn rotate(&self, partner: PartnerId) -> Secret {
        let secret = Secret::from_bytes(vec![9; 32]).unwrap();
        let vault = self.config.master_key.vault(&Keyring::ALL).unwrap();
        let mut connection = self.pool.acquire().await.unwrap();
        let overlap = Overlap {
            lasts: Duration::from_hours(24),
            keep_old: false,
        };
        let first = EndpointKey::first(partner);
        let rotated = transaction!(&mut connection, "a test", |transaction| -> Result<
            RotationResult,
            pg::Error,
        > {
            let rotated =
                partners::rotate_secret(transaction, &vault, first, &secret, overlap).await?;
            Ok(TransactionEnd::Commit(rotated))
        });
        assert!(
            matches!(rotated, Ok(RotationResult::Until(_))),
            "{rotated:?}"
        );
        secret
    }

    async fn next_webhook(&self, partner: PartnerId) -> Received {
        let topup = self.ready_and_announced(partner).await;
        self.delivered(&topup).await;
        let mut received = self.receiver.received();
        received.retain(|one| one.topup_id() == topup.as_str());
        received.remove(0)
    }
}

/// For each signature of a webhook, whether this secret made it.
fn signatures(webhook: &Received, secret: &Secret) -> Vec<bool> {
    let header = |name: &str| webhook.headers[name].to_str().unwrap();
    let timestamp = header("webhook-timestamp").parse().unwrap();
    header("webhook-signature")
        .split(' ')
        .map(|signature| secret.verify(header("webhook-id"), timestamp, &webhook.body, signature))
        .collect()
}

#[tokio::test]
async fn webhooks_are_signed_with_both_secrets_until_the_overlap_ends() {
    let mut bench = Bench::start().await;
    let (partner, old) = bench.partner(Some(&bench.receiver.url("/hook"))).await;
    assert_eq!(signatures(&bench.next_webhook(partner).await, &old), [true]);

    let new = bench.rotate(partner).await;
    let webhook = bench.next_webhook(partner).await;
    assert_eq!(signatures(&webhook, &new), [true, false]);
    assert_eq!(signatures(&webhook, &old), [false, true]);
    // A partner's library accepts it with either secret.
    for secret in [&new, &old] {
        bench.receiver.verify("/hook", &secret.to_text()).unwrap();
        assert_eq!(
            bench.next_webhook(partner).await.signature,
            Signature::Valid
        );
    }

    bench
        .sql("UPDATE partner_endpoints SET secret_ends[2] = now()")
        .await;
    let webhook = bench.next_webhook(partner).await;
    assert_eq!(signatures(&webhook, &new), [true]);
    assert_eq!(
        webhook.signature,
        Signature::Invalid,
        "the receiver has the old one"
    );
    bench.stop().await;
}

/// Both keys of a change sign, so a partner that knows only one of them verifies each webhook.
#[tokio::test]
async fn with_keys_of_our_own_a_webhook_can_be_verified_by_a_public_key() {
    const OLD: (&str, &str) = (
        "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==",
        "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=",
    );
    let new =
        signing::ed25519::SigningKey::parse(&format!("whsk_{}", "ab".repeat(21) + "c=")).unwrap();
    let mut bench = Bench::start_with(|config| {
        let keys = config.master_key.master_key_webhooks.as_ref();
        let keys = keys.or(config.master_key.master_key.as_ref()).unwrap();
        let keys = format!(
            "{}\nwhsk_{}\n{}",
            keys.expose_secret(),
            "ab".repeat(21) + "c=",
            OLD.0
        );
        config.master_key.master_key_webhooks = Some(SecretString::from(keys));
    })
    .await;
    let (partner, secret) = bench.partner(Some(&bench.receiver.url("/hook"))).await;
    bench.receiver.verify("/hook", &secret.to_text()).unwrap();
    let webhook = bench.next_webhook(partner).await;
    assert_eq!(signatures(&webhook, &secret), [true, false, false]);
    assert_eq!(webhook.signature, Signature::Valid);
    let header = |name: &str| webhook.headers[name].to_str().unwrap();
    let timestamp = header("webhook-timestamp").parse().unwrap();
    for public in [new.public(), PublicKey::parse(OLD.1).unwrap()] {
        let signature = header("webhook-signature");
        assert!(public.verify(header("webhook-id"), timestamp, &webhook.body, signature));
        assert!(!public.verify(header("webhook-id"), timestamp, b"{}", signature));
    }
    bench.stop().await;
}
