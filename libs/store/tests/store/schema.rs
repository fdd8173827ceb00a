//! Migrations, and the check that every service makes at its start.

use domain::PartnerId;
use secrecy::SecretString;
use store::{
    schema::{self, SchemaError},
    vault::{Purpose, Vault},
};

use crate::bench::{Bench, VAULT};

#[tokio::test]
async fn a_schema_that_is_behind_names_the_command_that_helps() {
    let bench = Bench::empty().await;
    let error = schema::wait(&bench.store, &VAULT).await.unwrap_err();
    assert!(matches!(error, SchemaError::Behind { found: 0, needed } if needed == schema::latest()));
    assert!(error.to_string().contains("esimctl migrate"), "{error}");
}

#[tokio::test]
async fn several_may_migrate_at_once_and_again() {
    let bench = Bench::empty().await;
    let (mut first, mut second) = (bench.connection().await, bench.connection().await);
    let (one, other) = tokio::join!(schema::migrate(&mut first), schema::migrate(&mut second));
    one.unwrap();
    other.unwrap();
    schema::migrate(&mut first).await.unwrap();
    schema::wait(&bench.store, &VAULT).await.unwrap();
}

#[tokio::test]
async fn a_schema_of_a_future_version_is_refused() {
    let bench = Bench::new().await;
    let future = schema::latest() + 1;
    sqlx::query(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
         VALUES ($1, 'of the future', true, '', 0)",
    )
    .bind(future)
    .execute(&bench.pool)
    .await
    .unwrap();
    let error = schema::wait(&bench.store, &VAULT).await.unwrap_err();
    assert!(
        matches!(error, SchemaError::Ahead { found, known } if found == future && known == schema::latest()),
        "{error}"
    );
    assert!(schema::migrate(&mut *bench.connection().await).await.is_err());
}

#[tokio::test]
async fn another_master_key_stops_the_start() {
    let bench = Bench::new().await;
    let other = "test:AQECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    let other = Vault::parse(&SecretString::from(other)).unwrap();
    schema::wait(&bench.store, &other)
        .await
        .expect("nothing is stored yet");
    bench.partner(None).await;
    schema::wait(&bench.store, &VAULT).await.unwrap();
    let error = schema::wait(&bench.store, &other).await.unwrap_err();
    assert!(matches!(error, SchemaError::MasterKey(_)), "{error}");
}

/// In the middle of a rotation: what newer partners need isn't all.
#[tokio::test]
async fn a_key_that_any_partner_needs_may_not_be_missing() {
    let bench = Bench::new().await;
    bench.partner(None).await;
    let newer = "second:AQECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    let old = bench.partner(None).await;
    let newer = Vault::parse(&SecretString::from(newer)).unwrap();
    let id = PartnerId::new();
    let sealed = |purpose| newer.seal(purpose, &[7; 32]).unwrap();
    sqlx::query(
        "INSERT INTO partners (partner_id, name, environment, access_key, secret_key, webhook_secret)
         VALUES ($1, 'newer', 'sandbox', 'ak_newer', $2, $3)",
    )
    .bind(id.uuid())
    .bind(sealed(Purpose::SecretKey(id)))
    .bind(sealed(Purpose::WebhookSecret(id)))
    .execute(&bench.pool)
    .await
    .unwrap();
    let error = schema::wait(&bench.store, &newer).await.unwrap_err();
    assert!(error.to_string().contains("\"test\""), "{error}");
    let error = schema::wait(&bench.store, &VAULT).await.unwrap_err();
    assert!(error.to_string().contains("\"second\""), "{error}");
    bench
        .set(
            "UPDATE partners SET webhook_secret = '\\x', secret_key = '\\x' WHERE partner_id::text <> $1",
            old,
        )
        .await;
    schema::wait(&bench.store, &VAULT)
        .await
        .expect("damaged rows are theirs alone");
}
