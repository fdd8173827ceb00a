//! Further keys of partners: sealed for their row and partner, read by ingress like any change of
//! the partner, and counted in the transaction that stores an order.

use std::time::Duration;

use accounts::partners::{
    self,
    keys::{self, EndedKey, KeyUpdate, NewKey},
};
use desk::{
    master_key,
    operator::search,
    self_service::{self, KeyChanged},
};
use domain::{KeyId, KeyTerms, PartnerId, Right, partner_key::NotGiven};
use pg::Transaction;
use signing::SecretKey;
use store::orders::{self, Inserted, LimitedKey, NewOrder};

use crate::bench::{Bench, NEW_KEY, OLD_KEY, Told, VAULT, committed, execute, order, vault};

fn secret() -> SecretKey {
    SecretKey::from_bytes(vec![7; 32]).unwrap()
}

/// Makes a key with this access key that may order.
async fn make(bench: &Bench, partner_id: PartnerId, access_key: &str) -> KeyId {
    let terms = KeyTerms {
        rights: [Right::Order].into_iter().collect(),
        networks: vec!["10.1.0.0/16".parse().unwrap()],
        units_per_day: Some(3),
    };
    let secret_key = secret();
    let new = NewKey {
        key_id: KeyId::new(),
        partner_id,
        name: "a program",
        access_key,
        secret_key: &secret_key,
        terms: &terms,
    };
    let mut connection = bench.connection().await;
    let create =
        async |transaction: &mut Transaction<'_>| keys::create(transaction, &VAULT, &new).await;
    assert!(committed(&mut connection, create).await.unwrap());
    new.key_id
}

#[tokio::test]
async fn a_key_is_found_by_its_access_key_and_read_as_a_change_of_its_partner() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let mut connection = bench.connection().await;
    let before = partners::changed_since(&mut connection, 0).await.unwrap();
    let version = before.iter().map(|one| one.row_version).max().unwrap();
    let key_id = make(&bench, partner, "ak_further").await;
    let changed = partners::changed_since(&mut connection, version)
        .await
        .unwrap();
    let found = partners::by_access_key(&mut connection, "ak_further").await;
    for partner_read in [changed, vec![found.unwrap().unwrap()]] {
        assert_eq!(partner_read.len(), 1);
        assert_eq!(partner_read[0].partner_id, partner);
        let key = &partner_read[0].further_keys[0];
        assert_eq!((key.key_id, &*key.access_key), (key_id, "ak_further"));
        assert_eq!(key.terms.as_ref().unwrap().units_per_day, Some(3));
        assert_eq!(key.open(&VAULT, partner).unwrap().expose(), [7; 32]);
        // A row that is given to another partner leads nobody to that one.
        assert!(key.open(&VAULT, PartnerId::new()).is_err());
    }
    let version = partners::changed_since(&mut connection, 0).await.unwrap();
    let version = version.iter().map(|one| one.row_version).max().unwrap();
    let end = async |transaction: &mut Transaction<'_>| {
        keys::end(transaction, partner, Some("ak_further")).await
    };
    assert_eq!(
        committed(&mut connection, end).await.unwrap(),
        ["ak_further"]
    );
    let changed = partners::changed_since(&mut connection, version)
        .await
        .unwrap();
    assert!(changed[0].further_keys.is_empty(), "{changed:?}");
}

/// An access key names one key, whichever table it stands in.
#[tokio::test]
async fn an_access_key_is_given_once() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    make(&bench, partner, "ak_further").await;
    let mut connection = bench.connection().await;
    for statement in [
        format!("UPDATE partners SET access_key = 'ak_further' WHERE partner_id = '{partner}'"),
        format!("UPDATE partner_keys SET access_key = '{partner}' WHERE access_key = 'ak_further'"),
    ] {
        let refused = sqlx::raw_sql(sqlx::AssertSqlSafe(statement.clone()))
            .execute(&mut *connection)
            .await;
        let error = refused.expect_err(&statement);
        let code = error
            .as_database_error()
            .and_then(|error| error.code().map(Into::into));
        assert_eq!(code, Some("23505".to_owned()), "{statement}: {error}");
    }
}

#[tokio::test]
async fn keys_are_sealed_anew_with_a_new_master_key() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    make(&bench, partner, "ak_further").await;
    let both = vault(&format!("{NEW_KEY},{OLD_KEY}"));
    let new = vault(NEW_KEY);
    let mut connection = bench.connection().await;
    // A service without the old key does not start as long as a further key needs it.
    let sealed_first =
        format!("UPDATE partners SET secret_key = NULL WHERE partner_id = '{partner}'");
    execute(&mut connection, &sealed_first).await;
    assert!(
        partners::check_master_key(&mut connection, &new)
            .await
            .is_err()
    );
    let pass = master_key::reencrypt(&mut connection, &both, |_| {})
        .await
        .unwrap();
    assert!(pass.failed.is_empty(), "{pass:?}");
    partners::check_master_key(&mut connection, &new)
        .await
        .unwrap();
    let found = partners::by_access_key(&mut connection, "ak_further").await;
    let key = found.unwrap().unwrap().further_keys.pop().unwrap();
    assert_eq!(key.open(&new, partner).unwrap().expose(), [7; 32]);
}

/// An order of this many units that was signed with a key which may order three a day.
fn limited(partner: PartnerId, key_id: KeyId, id: &str, units: usize) -> NewOrder {
    NewOrder {
        external_order_id: id.to_owned(),
        limited_key: Some(LimitedKey {
            key_id,
            units_per_day: 3,
        }),
        ..order(partner, units)
    }
}

#[tokio::test]
async fn units_are_counted_with_the_orders_that_are_stored() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let key_id = make(&bench, partner, "ak_further").await;
    let mut connection = bench.connection().await;
    let first = limited(partner, key_id, "a", 1);
    let stored = orders::insert_limited(&mut connection, &[first])
        .await
        .unwrap();
    assert_eq!(stored, [Inserted::Stored]);
    // One that is taken counts nothing, and leaves its units to another one of the same batch.
    let batch = [
        limited(partner, key_id, "a", 2),
        limited(partner, key_id, "b", 2),
        limited(partner, key_id, "c", 1),
        order(partner, 9),
    ];
    let stored = orders::insert_limited(&mut connection, &batch)
        .await
        .unwrap();
    let over = Inserted::OverLimit { left: 0 };
    assert_eq!(
        stored,
        [Inserted::Taken, Inserted::Stored, over, Inserted::Stored]
    );
    // A repeat of a stored order is never called beyond the limit.
    let again = [
        limited(partner, key_id, "b", 2),
        limited(partner, key_id, "c", 1),
    ];
    let stored = orders::insert_limited(&mut connection, &again)
        .await
        .unwrap();
    assert_eq!(stored, [Inserted::Taken, over]);
    let yesterday = "UPDATE partner_key_uses SET day = day - interval '1 day'";
    execute(&mut connection, yesterday).await;
    let next = [limited(partner, key_id, "c", 3)];
    let stored = orders::insert_limited(&mut connection, &next)
        .await
        .unwrap();
    assert_eq!(stored, [Inserted::Stored]);
    let listed = keys::list(&mut connection, partner, None).await.unwrap();
    assert_eq!(listed[0].units_today, 3);
}

/// Ten processes that order at once get exactly what the key may order.
#[tokio::test]
async fn the_limit_is_exact_over_several_processes() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let key_id = make(&bench, partner, "ak_further").await;
    let at_once = (0..10).map(|nth| {
        let bench = &bench;
        async move {
            let order = limited(partner, key_id, &format!("order {nth}"), 1);
            let mut connection = bench.connection().await;
            let stored = orders::insert_limited(&mut connection, &[order]).await;
            stored.unwrap()[0]
        }
    });
    let results = futures_util::future::join_all(at_once).await;
    let stored = results.iter().filter(|one| **one == Inserted::Stored);
    assert_eq!(stored.count(), 3, "{results:?}");
}

#[tokio::test]
async fn the_last_use_is_written_once_a_minute() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let key_id = make(&bench, partner, "ak_further").await;
    let mut connection = bench.connection().await;
    // A partner that has changed is read anew, so a key of it may be noted twice.
    let both = [key_id.uuid(), partner.uuid(), key_id.uuid()];
    keys::used(&mut connection, &both).await.unwrap();
    let first = keys::first_used_at(&mut connection, partner)
        .await
        .unwrap()
        .unwrap();
    keys::used(&mut connection, &both).await.unwrap();
    let second = keys::first_used_at(&mut connection, partner).await.unwrap();
    assert_eq!(second, Some(first));
    let earlier = "UPDATE partner_key_uses SET last_used_at = last_used_at - interval '61 s'";
    execute(&mut connection, earlier).await;
    keys::used(&mut connection, &both).await.unwrap();
    let third = keys::first_used_at(&mut connection, partner)
        .await
        .unwrap()
        .unwrap();
    assert!(third > first && third - first < Duration::from_mins(10));
    let listed = keys::list(&mut connection, partner, None).await.unwrap();
    assert_eq!(listed[0].last_used_at, Some(third));
}

/// A key whose networks this version cannot read is of a newer one. A change that leaves them would
/// let it be used from anywhere.
#[tokio::test]
async fn a_key_whose_networks_cannot_be_read_keeps_them() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let key_id = make(&bench, partner, "ak_further").await;
    let mut connection = bench.connection().await;
    execute(
        &mut connection,
        "UPDATE partner_keys SET networks = '{of a newer version}'",
    )
    .await;
    let first: String = bench
        .value(
            "SELECT access_key FROM partners WHERE partner_id::text = $1",
            partner,
        )
        .await;
    let networks = "SELECT networks::text FROM partner_keys WHERE partner_id::text = $1";
    let mut update = KeyUpdate {
        rights: Some([Right::Read].into_iter().collect()),
        ..KeyUpdate::default()
    };
    let changed = self_service::change_key(&mut connection, partner, &first, key_id, &update).await;
    assert_eq!(changed.unwrap(), KeyChanged::NotGiven(NotGiven::Networks));
    assert_eq!(
        bench.value::<String>(networks, partner).await,
        r#"{"of a newer version"}"#
    );
    update.networks = Some(vec!["10.1.0.0/16".parse().unwrap()]);
    let changed = self_service::change_key(&mut connection, partner, &first, key_id, &update).await;
    assert_eq!(changed.unwrap(), KeyChanged::Done);
    assert_eq!(
        bench.value::<String>(networks, partner).await,
        "{10.1.0.0/16}"
    );
}

/// The ended keys that are kept, and those that were used since.
async fn ended(bench: &Bench, partner: PartnerId) -> (Vec<String>, Vec<EndedKey>) {
    let mut connection = bench.as_role("ingress").await;
    let read = partners::changed_since(&mut connection, 0).await.unwrap();
    let of = read.into_iter().find(|one| one.partner_id == partner);
    let mut kept = of.unwrap().ended_keys;
    kept.sort_unstable();
    let mut console = bench.as_role("console").await;
    let epoch = time::OffsetDateTime::UNIX_EPOCH;
    let used = keys::ended_in_use(&mut console, &[partner.uuid()], epoch).await;
    (kept, used.unwrap())
}

/// Whichever way a key ends, it is known whose it was, and that it is used all the same.
#[tokio::test]
async fn a_key_that_has_ended_stays_known_as_its_partners() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    make(&bench, partner, "ak_further").await;
    let mut connection = bench.connection().await;
    let end = async |transaction: &mut Transaction<'_>| {
        keys::end(transaction, partner, Some("ak_further")).await
    };
    committed(&mut connection, end).await.unwrap();
    // A rotation with an overlap, which is over; then one that ends both at once.
    let first: String = bench
        .value(
            "SELECT access_key FROM partners WHERE partner_id::text = $1",
            partner,
        )
        .await;
    let over = "UPDATE partners SET access_key = 'ak_2', old_access_key = access_key, \
                old_keys_until = now() - interval '1 hour'";
    execute(&mut connection, over).await;
    let kept = vec![first.clone(), "ak_further".to_owned()];
    assert_eq!(ended(&bench, partner).await, (sorted(kept), Vec::new()));

    let named = [
        first.clone(),
        "ak_further".to_owned(),
        "invented".to_owned(),
        "ak_2".to_owned(),
    ];
    let mut ingress = bench.as_role("ingress").await;
    keys::ended_used(&mut ingress, &named).await.unwrap();
    let (_, used) = ended(&bench, partner).await;
    let told: Vec<_> = used
        .iter()
        .map(|key| (key.name.as_deref(), &*key.access_key))
        .collect();
    assert_eq!(
        told,
        [(None, &*first), (Some("a program"), "ak_further")],
        "{used:?}"
    );
    assert!(
        used[0].used_at - used[0].ended_at > time::Duration::minutes(59),
        "{used:?}"
    );
    // Within a minute nothing is written; after it the first use stays.
    keys::ended_used(&mut ingress, &named).await.unwrap();
    assert_eq!(ended(&bench, partner).await.1, used);
    execute(
        &mut connection,
        "UPDATE ended_keys SET used_at = used_at - interval '61 s', used_since = used_since - interval '61 s'",
    )
    .await;
    keys::ended_used(&mut ingress, &named).await.unwrap();
    let (_, later) = ended(&bench, partner).await;
    assert!(
        later.iter().all(|key| key.used_at > key.used_since),
        "{later:?}"
    );

    execute(
        &mut connection,
        "UPDATE partners SET access_key = 'ak_3', old_access_key = NULL, old_keys_until = NULL",
    )
    .await;
    let kept = sorted(vec![
        first.clone(),
        "ak_2".to_owned(),
        "ak_further".to_owned(),
    ]);
    let (all, used) = ended(&bench, partner).await;
    assert_eq!(
        (all, used),
        (kept, later),
        "the end of the overlap changes nothing"
    );
    // A key that is given again has not ended.
    execute(&mut connection, "UPDATE partners SET access_key = 'ak_2'").await;
    let kept = sorted(vec![first, "ak_3".to_owned(), "ak_further".to_owned()]);
    assert_eq!(ended(&bench, partner).await.0, kept);
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort_unstable();
    names
}

/// A partner that makes and ends keys without end fills no table, and an erased one leaves none.
#[tokio::test]
async fn the_newest_ended_keys_of_a_partner_are_kept_and_none_of_an_erased_one() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let mut connection = bench.connection().await;
    for nth in 0..30 {
        let statement = format!("UPDATE partners SET access_key = 'ak_{nth:02}'");
        execute(&mut connection, &statement).await;
    }
    let expected: Vec<String> = (9..29).map(|nth| format!("ak_{nth:02}")).collect();
    assert_eq!(ended(&bench, partner).await.0, expected);
    make(&bench, partner, "ak_further").await;
    execute(
        &mut connection,
        "UPDATE partners SET access_key = 'erased', disabled_at = now(), erased_at = now()",
    )
    .await;
    execute(&mut connection, "DELETE FROM partner_keys").await;
    assert_eq!(ended(&bench, partner).await.0, [""; 0]);
}

/// Whoever reports a leak has the access key and nothing else.
#[tokio::test]
async fn a_partner_is_found_by_each_of_its_keys_and_told_which_one_goes_on() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    make(&bench, partner, "ak_further").await;
    let mut connection = bench.connection().await;
    let first: String = sqlx::query_scalar("SELECT access_key FROM partners WHERE partner_id = $1")
        .bind(partner.uuid())
        .fetch_one(&mut *connection)
        .await
        .unwrap();
    let described = async |key: &str| {
        let mut console = bench.as_role("console").await;
        let hits = search::find(&mut console, key).await;
        let hits = hits.told(&mut console).await;
        assert_eq!(hits.partners.len(), 1, "{key}: {hits:?}");
        assert_eq!(hits.partners[0].partner_id, partner.uuid());
        let key = hits.partners[0].key.as_ref();
        key.map(search::KeyHit::described)
    };
    assert_eq!(described(&first).await, None);
    let further = "its further key “a program”";
    assert_eq!(described("ak_further").await.as_deref(), Some(further));
    // The beginning of a key is enough.
    assert_eq!(described("ak_furt").await.as_deref(), Some(further));

    let end = async |key: &str| {
        let mut connection = bench.connection().await;
        let end = async |transaction: &mut Transaction<'_>| {
            partners::end_keys(transaction, partner, Some(key)).await
        };
        committed(&mut connection, end).await.unwrap().unwrap()
    };
    make(&bench, partner, "ak_second").await;
    execute(
        &mut connection,
        "UPDATE partner_keys SET rights = '{read}' WHERE access_key = 'ak_second'",
    )
    .await;
    let ended = end("ak_further").await;
    assert_eq!(ended.goes_on.as_deref(), Some(&*first));
    assert_eq!(ended.further, ["a program"]);
    let had = "its further key “a program”, which has ended";
    assert_eq!(described("ak_further").await.as_deref(), Some(had));
    // The key that is left may only read, so it is none that orders go on with.
    let ended = end(&first).await;
    assert_eq!(
        (ended.goes_on, ended.further),
        (None, vec!["a program".to_owned()])
    );
    let had = "an earlier key of its, which has ended";
    assert_eq!(described(&first).await.as_deref(), Some(had));
    let past = keys::ended_of(&mut connection, partner).await.unwrap();
    let past: Vec<&str> = past.iter().map(|key| &*key.access_key).collect();
    assert_eq!(past.len(), 2);
    assert!(
        past.contains(&"ak_further") && past.contains(&&*first),
        "{past:?}"
    );
}

/// After a leak the record says which key made another one.
#[tokio::test]
async fn a_change_of_keys_records_the_key_that_signed_it() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let key_id = make(&bench, partner, "ak_further").await;
    execute(
        &mut *bench.connection().await,
        "UPDATE partner_keys SET rights = '{order,keys}', units_per_day = NULL",
    )
    .await;
    let mut connection = bench.connection().await;
    let update = KeyUpdate {
        name: Some("renamed".to_owned()),
        ..KeyUpdate::default()
    };
    let changed =
        self_service::change_key(&mut connection, partner, "ak_further", key_id, &update).await;
    assert_eq!(changed.unwrap(), KeyChanged::Done);
    let ended = self_service::end_key(&mut connection, partner, "ak_further", key_id).await;
    assert_eq!(ended.unwrap(), KeyChanged::Done);
    let sources: Vec<Option<String>> =
        sqlx::query_scalar("SELECT source FROM operator_actions ORDER BY action_id")
            .fetch_all(&mut *connection)
            .await
            .unwrap();
    assert_eq!(
        sources,
        [Some("ak_further".to_owned()), Some("ak_further".to_owned())]
    );
}
