//! The rotation of keys and secrets, and encryption under another master key while other sessions
//! change the same rows.

use std::time::Duration;

use accounts::{
    partners::{self, Overlap, Partner, PartnerCredentials, RotationResult},
    profile::Profile,
};
use desk::{
    master_key::{self, KeyUsage, ResealPass},
    operator,
};
use domain::{ActivationCode, EndpointKey, PartnerId, TopupId};
use pg::Transaction;
use signing::{SecretKey, webhook::Secret};
use store::deliveries::{self, ClaimedDelivery, DeliveryClaim};
use vault::{Purpose, Vault};

use crate::bench::{
    Bench, NEW_KEY, OLD_KEY, VAULT, committed, delivery_id, esim, execute, ids, look, vault,
};

const DAY: Duration = Duration::from_hours(24);

/// The vault during a replacement of the master key.
fn both() -> Vault {
    vault(&format!("{NEW_KEY},{OLD_KEY}"))
}

const KEEP_OLD: Overlap = Overlap {
    lasts: DAY,
    keep_old: true,
};
const ANEW: Overlap = Overlap {
    lasts: DAY,
    keep_old: false,
};
const AT_ONCE: Overlap = Overlap {
    lasts: Duration::ZERO,
    keep_old: false,
};

fn short(rotated: Result<RotationResult, pg::Error>) -> &'static str {
    match rotated.unwrap() {
        RotationResult::Until(Some(_)) => "overlap",
        RotationResult::Until(None) => "at once",
        RotationResult::Refused => "refused",
    }
}

async fn rotate(
    bench: &Bench,
    partner: PartnerId,
    access_key: &str,
    overlap: Overlap,
) -> &'static str {
    let key = SecretKey::from_bytes(access_key.as_bytes().repeat(8)).unwrap();
    let mut connection = bench.connection().await;
    let rotate = async |transaction: &mut Transaction<'_>| {
        partners::rotate_keys(transaction, &VAULT, partner, access_key, &key, overlap).await
    };
    short(committed(&mut connection, rotate).await)
}

async fn rotate_secret(
    bench: &Bench,
    partner: PartnerId,
    byte: u8,
    overlap: Overlap,
) -> &'static str {
    let secret = Secret::from_bytes(vec![byte; 32]).unwrap();
    let mut connection = bench.connection().await;
    let first = EndpointKey::first(partner);
    let rotate = async |transaction: &mut Transaction<'_>| {
        partners::rotate_secret(transaction, &VAULT, first, &secret, overlap).await
    };
    short(committed(&mut connection, rotate).await)
}

/// The access keys that are valid beside this one.
async fn pairs(bench: &Bench, access_key: &str) -> Vec<String> {
    by_access_key(bench, access_key)
        .await
        .iter()
        .flat_map(valid)
        .map(str::to_owned)
        .collect()
}

async fn by_access_key(bench: &Bench, access_key: &str) -> Option<PartnerCredentials> {
    partners::by_access_key(&mut *bench.connection().await, access_key)
        .await
        .unwrap()
}

async fn show(bench: &Bench, access_key: &str) -> Partner {
    partners::show(&mut *bench.connection().await, access_key)
        .await
        .unwrap()
        .unwrap()
}

/// The valid access keys, each with its own secret key.
fn valid(credentials: &PartnerCredentials) -> Vec<&str> {
    let keys = || credentials.keys.iter();
    let sealed = keys().map(|keys| keys.secret_key.as_deref().unwrap());
    let open = |sealed| partners::open_secret_key(&VAULT, credentials.partner_id, sealed).unwrap();
    let secrets: Vec<_> = sealed
        .map(|sealed| open(sealed).expose().to_vec())
        .collect();
    assert!(secrets.windows(2).all(|pair| pair[0] != pair[1]));
    keys().map(|keys| keys.access_key.as_str()).collect()
}

#[tokio::test]
async fn old_keys_are_valid_until_the_overlap_ends() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let first = partner.to_string();
    let other = bench.partner(None).await;
    assert_eq!(rotate(&bench, partner, "ak_2", ANEW).await, "overlap");
    for access_key in [first.as_str(), "ak_2"] {
        let found = by_access_key(&bench, access_key).await.unwrap();
        assert_eq!(found.partner_id, partner);
        assert_eq!(valid(&found), ["ak_2", first.as_str()]);
        assert_eq!(found.keys[0].ends_in, None);
        let left = found.keys[1].ends_in.unwrap();
        assert!(left <= DAY && left > DAY * 9 / 10, "{left:?}");
    }
    let changed = partners::changed_since(&mut *bench.connection().await, 0).await;
    let mut keys: Vec<usize> = changed.unwrap().iter().map(|one| one.keys.len()).collect();
    keys.sort_unstable();
    assert_eq!(keys, [1, 2]);
    let shown = show(&bench, &first).await;
    assert_eq!(shown.old_access_key.as_deref(), Some(first.as_str()));
    assert!(shown.old_keys_until.is_some() && shown.old_webhook_secret_until.is_none());

    // During the overlap, a third pair can only replace the second. After it, it can be added.
    assert_eq!(rotate(&bench, partner, "ak_3", ANEW).await, "refused");
    assert!(pairs(&bench, "ak_3").await.is_empty());
    assert_eq!(rotate(&bench, partner, "ak_2b", KEEP_OLD).await, "overlap");
    assert!(pairs(&bench, "ak_2").await.is_empty());
    assert_eq!(pairs(&bench, &first).await, ["ak_2b", first.as_str()]);
    rotate(&bench, partner, "ak_2", KEEP_OLD).await;
    bench
        .set(
            "UPDATE partners SET old_keys_until = now() WHERE partner_id::text = $1",
            partner,
        )
        .await;
    assert!(pairs(&bench, &first).await.is_empty());
    assert_eq!(rotate(&bench, partner, "ak_3", KEEP_OLD).await, "refused");
    assert_eq!(pairs(&bench, "ak_2").await, ["ak_2"]);
    let shown = show(&bench, "ak_2").await;
    assert_eq!((shown.old_access_key, shown.old_keys_until), (None, None));
    assert_eq!(rotate(&bench, partner, "ak_3", ANEW).await, "overlap");
    assert_eq!(pairs(&bench, "ak_3").await, ["ak_3", "ak_2"]);

    // Without an overlap, all old keys end at once, even during one.
    assert_eq!(rotate(&bench, partner, "ak_4", AT_ONCE).await, "at once");
    assert_eq!(pairs(&bench, "ak_4").await, ["ak_4"]);
    for gone in ["ak_2", "ak_3"] {
        assert!(by_access_key(&bench, gone).await.is_none(), "{gone}");
    }
    assert_eq!(pairs(&bench, &other.to_string()).await.len(), 1);
}

async fn young(bench: &Bench, topups: &[TopupId]) -> Vec<ClaimedDelivery> {
    let young = DeliveryClaim::Fresh {
        younger_than: Duration::from_mins(1),
    };
    deliveries::claim(&mut *bench.connection().await, &ids(topups), young)
        .await
        .unwrap()
        .deliveries
}

async fn taken(bench: &Bench, topups: &[TopupId]) -> ClaimedDelivery {
    young(bench, topups).await.remove(0)
}

#[tokio::test]
async fn a_delivery_has_the_old_secret_until_the_overlap_ends() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("http://127.0.0.1:1/")).await;
    let topups = bench.deliveries(partner, 1, true).await;
    let open = |delivery: &ClaimedDelivery| {
        let open = |sealed: &Vec<u8>| {
            let first = EndpointKey::first(partner);
            let secret = partners::endpoints::open_secret(&VAULT, first, sealed);
            secret.unwrap().expose()[0]
        };
        delivery
            .target
            .secrets
            .iter()
            .map(open)
            .collect::<Vec<u8>>()
    };
    assert_eq!(open(&taken(&bench, &topups).await), [7]);
    assert_eq!(rotate_secret(&bench, partner, 8, ANEW).await, "overlap");
    assert_eq!(open(&taken(&bench, &topups).await), [8, 7]);
    bench.deliver_in(&topups, 0.0).await;
    let due = bench.claim_due_deliveries(&look(8, 8)).await;
    assert_eq!(open(&due[0]), [8, 7]);

    assert_eq!(rotate_secret(&bench, partner, 9, ANEW).await, "refused");
    assert_eq!(open(&taken(&bench, &topups).await), [8, 7]);
    rotate_secret(&bench, partner, 11, KEEP_OLD).await;
    assert_eq!(open(&taken(&bench, &topups).await), [11, 7]);
    let sql = "UPDATE partner_endpoints SET secret_ends[2] = now() WHERE endpoint_id::text = $1";
    bench.set(sql, partner).await;
    assert_eq!(open(&taken(&bench, &topups).await), [11]);
    assert_eq!(rotate_secret(&bench, partner, 9, KEEP_OLD).await, "refused");
    assert_eq!(rotate_secret(&bench, partner, 9, ANEW).await, "overlap");
    assert_eq!(rotate_secret(&bench, partner, 10, AT_ONCE).await, "at once");
    assert_eq!(open(&taken(&bench, &topups).await), [10]);
}

/// A rotation seals one secret of a partner under the newest key and leaves the others.
#[tokio::test]
async fn every_secret_that_is_valid_needs_its_key() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let both = both();
    let new = vault(NEW_KEY);
    let mut connection = bench.connection().await;
    let secret = Secret::from_bytes(vec![9; 32]).unwrap();
    let first = EndpointKey::first(partner);
    let rotate = async |transaction: &mut Transaction<'_>| {
        partners::rotate_secret(transaction, &both, first, &secret, AT_ONCE).await
    };
    let rotated = committed(&mut connection, rotate).await;
    assert_eq!(short(rotated), "at once");
    let error = accounts::start::wait(&bench.store, &new).await.unwrap_err();
    assert!(error.to_string().contains("\"test\""), "{error}");
    let key = SecretKey::from_bytes(vec![9; 32]).unwrap();
    let rotate = async |transaction: &mut Transaction<'_>| {
        partners::rotate_keys(transaction, &both, partner, "ak_2", &key, ANEW).await
    };
    let rotated = committed(&mut connection, rotate).await;
    assert_eq!(short(rotated), "overlap");
    let error = accounts::start::wait(&bench.store, &new).await.unwrap_err();
    assert!(error.to_string().contains("\"test\""), "{error}");
    bench
        .set(
            "UPDATE partners SET old_keys_until = now() WHERE partner_id::text = $1",
            partner,
        )
        .await;
    let ended = accounts::start::wait(&bench.store, &new).await;
    ended.expect("what has ended needs no key");
}

/// Ready units, with profiles that open.
async fn ready_units(bench: &Bench, partner: PartnerId, count: usize) -> Vec<TopupId> {
    let topups = bench.deliveries(partner, count, true).await;
    let profile = Profile {
        code: ActivationCode::new("smdp.example.com", "A1-B2").unwrap(),
        expired_date: "2026-12-31".into(),
    };
    let seal = |topup| profile.seal(&VAULT, partner, topup).unwrap().sealed;
    sqlx::query(
        "UPDATE esims t SET profile = new.profile
         FROM unnest($1::text[], $2::bytea[]) AS new(topup_id, profile) WHERE t.topup_id = new.topup_id",
    )
    .bind(topups.iter().map(ToString::to_string).collect::<Vec<_>>())
    .bind(topups.iter().map(seal).collect::<Vec<_>>())
    .execute(&bench.pool)
    .await
    .unwrap();
    topups
}

async fn answer(bench: &Bench, vault: &Vault, topup: &TopupId, attempt: u32) {
    let sealed = vault.seal(Purpose::Response(delivery_id(topup), attempt), b"no");
    sqlx::query(
        "INSERT INTO delivery_attempts (delivery_id, attempt, at, duration_ms, class, response_start)
         VALUES ($1, $2, now(), 1, 'status_5xx', $3)",
    )
    .bind(delivery_id(topup).uuid())
    .bind(i32::try_from(attempt).unwrap())
    .bind(sealed.unwrap())
    .execute(&bench.pool)
    .await
    .unwrap();
}

async fn reencrypt(bench: &Bench, vault: &Vault) -> ResealPass {
    master_key::reencrypt(&mut *bench.connection().await, vault, |_| {})
        .await
        .unwrap()
}

/// The usage of each key.
async fn usages(bench: &Bench) -> Vec<(Option<String>, KeyUsage)> {
    master_key::usages(&mut *bench.connection().await)
        .await
        .unwrap()
        .into_iter()
        .collect()
}

fn usage(partner_secrets: u64, webhook_secrets: u64, profiles: u64, answers: u64) -> KeyUsage {
    KeyUsage {
        partner_secrets,
        webhook_secrets,
        profiles,
        answers,
    }
}

/// More than two pages of each table, and every kind of value.
#[tokio::test]
async fn everything_is_sealed_anew_and_opens_with_the_new_key_alone() {
    const UNITS: usize = 1_001;
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let topups = ready_units(&bench, partner, UNITS).await;
    // A topup that isn't ready has no profile.
    bench.placing(1).await;
    for topup in &topups {
        answer(&bench, &VAULT, topup, 0).await;
    }
    answer(&bench, &VAULT, &topups[0], 1).await;
    rotate(&bench, partner, "ak_2", ANEW).await;
    rotate_secret(&bench, partner, 8, ANEW).await;
    let all = usage(4, 2, UNITS as u64, UNITS as u64 + 1);
    assert_eq!(usages(&bench).await, [(Some("test".into()), all)]);

    let both = both();
    let new = vault(NEW_KEY);
    let pass = reencrypt(&bench, &both).await;
    let values = 4 + 2 * UNITS as u64 + 1;
    assert_eq!((pass.reencrypted, pass.failed.len()), (values, 0));
    assert_eq!(usages(&bench).await, [(Some("second".into()), all)]);
    let again = reencrypt(&bench, &both).await;
    assert_eq!((again.reencrypted, again.failed.len()), (0, 0));

    accounts::start::wait(&bench.store, &new).await.unwrap();
    let credentials = by_access_key(&bench, "ak_2").await.unwrap();
    for keys in &credentials.keys {
        partners::open_secret_key(&new, partner, keys.secret_key.as_deref().unwrap()).unwrap();
    }
    let deliveries = young(&bench, &topups).await;
    assert_eq!(deliveries.len(), UNITS);
    for delivery in &deliveries {
        let esim = esim(delivery);
        Profile::open(&new, partner, &esim.topup_id, &esim.profile).unwrap();
    }
    let first = &deliveries[0];
    assert_eq!(first.target.secrets.len(), 2);
    for sealed in &first.target.secrets {
        partners::endpoints::open_secret(&new, EndpointKey::first(partner), sealed).unwrap();
    }
    let mut connection = bench.connection().await;
    let id = delivery_id(&topups[0]);
    let attempts = operator::deliveries::attempts(&mut connection, id, i64::MAX).await;
    for attempt in attempts.unwrap() {
        let number = u32::try_from(attempt.attempt).unwrap();
        assert_eq!(
            new.open(
                Purpose::Response(id, number),
                &attempt.response_start.unwrap()
            )
            .unwrap(),
            b"no"
        );
    }
}

#[tokio::test]
async fn what_cannot_be_opened_is_named_and_the_others_are_done() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let topups = ready_units(&bench, partner, 3).await;
    let lost = vault("lost:CQECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=");
    answer(&bench, &lost, &topups[0], 0).await;
    answer(&bench, &VAULT, &topups[1], 0).await;
    bench
        .set(
            "UPDATE esims SET profile = '\\x' WHERE topup_id = $1",
            &topups[1],
        )
        .await;
    let sql = "UPDATE partners SET secret_key = set_byte(secret_key, 40, 255 - get_byte(secret_key, 40)) WHERE partner_id::text = $1";
    bench.set(sql, partner).await;

    let pass = reencrypt(&bench, &both()).await;
    assert_eq!(pass.reencrypted, 1 + 2 + 1, "{pass:?}");
    let failed: Vec<_> = pass
        .failed
        .iter()
        .map(|one| (one.what, one.id.clone()))
        .collect();
    let expected = [
        ("secret_key", partner.to_string()),
        ("profile", topups[1].to_string()),
        ("response", format!("{} attempt 1", delivery_id(&topups[0]))),
    ];
    assert_eq!(failed, expected);
    assert!(pass.failed[2].reason.contains("\"lost\""), "{pass:?}");
    assert_eq!(
        usages(&bench).await,
        [
            (None, usage(0, 0, 1, 0)),
            (Some("lost".into()), usage(0, 0, 0, 1)),
            (Some("second".into()), usage(1, 1, 2, 1)),
            (Some("test".into()), usage(1, 0, 0, 0)),
        ]
    );
}

#[tokio::test]
async fn what_others_hold_is_left_for_another_pass() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let topups = ready_units(&bench, partner, 2).await;
    let both = both();
    let mut holds = bench.pool.begin().await.unwrap();
    execute(
        &mut holds,
        &format!(
            "SELECT FROM esims WHERE topup_id = '{}' FOR UPDATE",
            topups[0]
        ),
    )
    .await;
    let pass = reencrypt(&bench, &both).await;
    assert_eq!((pass.reencrypted, pass.failed.len()), (3, 0));
    holds.rollback().await.unwrap();
    let pass = reencrypt(&bench, &both).await;
    assert_eq!((pass.reencrypted, pass.failed.len()), (1, 0));
}

/// A partner whose secrets are replaced repeatedly during re-encryption keeps the last ones.
#[tokio::test]
async fn what_others_change_is_not_overwritten() {
    const ROTATIONS: u8 = 100;
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let both = both();
    let rotating = async {
        for byte in 0..ROTATIONS {
            assert_eq!(
                rotate_secret(&bench, partner, byte, AT_ONCE).await,
                "at once"
            );
        }
    };
    let mut rotating = std::pin::pin!(rotating);
    loop {
        tokio::select! {
            () = &mut rotating => break,
            pass = reencrypt(&bench, &both) => assert!(pass.failed.is_empty(), "{pass:?}"),
        }
    }
    let topups = bench.deliveries(partner, 1, true).await;
    let sealed = taken(&bench, &topups).await.target.secrets[0].clone();
    assert_eq!(
        partners::endpoints::open_secret(&both, EndpointKey::first(partner), &sealed)
            .unwrap()
            .expose(),
        [ROTATIONS - 1; 32]
    );
}

/// Columns of bytes that no master key seals.
const NOT_SEALED: [(&str, &str); 4] = testkit::rows! {
    "esims.code_digest" => "It is made anew together with the profile.";
    "operator_sessions.token_digest" => "A hash of a random token.";
    "operators.setup_digest" => "A hash of a random token.";
    "partner_endpoints.code_digest" => "A hash of a code that is sent once.";
};

/// A column that is not in the list would be lost with the old key.
#[tokio::test]
async fn each_column_of_bytes_is_sealed_anew_or_needs_no_key() {
    let bench = Bench::new().await;
    let columns: Vec<(String, String)> = sqlx::query_as(
        "SELECT c.table_name::text, c.column_name::text FROM information_schema.columns c
         JOIN information_schema.tables t USING (table_schema, table_name)
         WHERE c.table_schema = 'public' AND t.table_type = 'BASE TABLE' AND c.udt_name IN ('bytea', '_bytea')
           AND c.table_name NOT LIKE '\\_%'
         ORDER BY 1, 2",
    )
    .fetch_all(&bench.pool)
    .await
    .unwrap();
    let unknown = columns.into_iter().filter(|(table, column)| {
        let name = format!("{table}.{column}");
        !master_key::columns().any(|one| one == (table, column))
            && !NOT_SEALED.iter().any(|(known, _)| *known == name)
    });
    assert_eq!(unknown.collect::<Vec<_>>(), []);
}
