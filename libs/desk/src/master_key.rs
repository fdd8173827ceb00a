//! Counts the stored values of each master key, and seals them again under the first one. `esimctl
//! master-key` calls it to rotate a key.
//!
//! [`SEALED`] lists the columns, and one walk goes through all of them. It runs while the services
//! run, and can be interrupted and repeated at any time. Tables are read in pages by their primary
//! key. Each batch is written by one statement, which changes a value only if it is still the one
//! that was read, so a change by another session is never overwritten. Such values are left for the
//! next pass. Once [`left`] is 0, the old keys can be removed.
//!
//! It relies on a vault that holds all three kinds of keys, the old ones included. The statements
//! are made from the list, whose names are constants.

use std::collections::BTreeMap;

use accounts::{partners::endpoints::purpose, profile::Profile};
use domain::{EndpointKey, TopupId};
use pg::{Result, signed};
use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;
use vault::{Keyring, Purpose, Vault, VaultError};

/// The number of rows of a page, and so the maximum number of rows that one statement writes.
const PAGE: usize = 500;

/// A column with sealed values.
struct Sealed {
    table: &'static str,
    column: &'static str,
    /// What its values are called in [`ResealFailure`].
    what: &'static str,
    /// The primary key of the table, with the types.
    key: &'static [(&'static str, &'static str)],
    /// A further column that names the purpose of a value, after the key.
    also: Option<&'static str>,
    form: Form,
    ring: Keyring,
    /// Counts a value.
    count: fn(&mut KeyUsage),
    reseal: Reseal,
}

/// What one cell of a column holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    One,
    /// A list of values.
    List,
    /// A profile, beside which stands a digest of its code under the same key.
    Profile,
}

/// The key of a row as texts, and what [`Sealed::also`] says.
type Ids = [String];

/// Seals the value of the row with this key again.
type Reseal = fn(&Vault, &Ids, &[u8]) -> Result<Vec<u8>, VaultError>;

const SECRET_KEY: Sealed = Sealed {
    table: "partners",
    column: "secret_key",
    what: "secret_key",
    key: &[("partner_id", "uuid")],
    also: None,
    form: Form::One,
    ring: Keyring::Partners,
    count: |usage| usage.partner_secrets += 1,
    reseal: |vault, ids, sealed| vault.reseal(Purpose::SecretKey(id(ids, 0)?.into()), sealed),
};

/// All columns with sealed values. A test compares the list with the schema.
const SEALED: [Sealed; 7] = [
    SECRET_KEY,
    Sealed {
        column: "old_secret_key",
        what: "old_secret_key",
        ..SECRET_KEY
    },
    Sealed {
        table: "partner_keys",
        what: "further_key",
        key: &[("key_id", "uuid")],
        also: Some("partner_id"),
        reseal: |vault, ids, sealed| {
            let purpose = Purpose::FurtherKey(id(ids, 1)?.into(), id(ids, 0)?.into());
            vault.reseal(purpose, sealed)
        },
        ..SECRET_KEY
    },
    Sealed {
        table: "partner_endpoints",
        column: "headers",
        what: "endpoint_headers",
        key: &[("endpoint_id", "uuid")],
        also: None,
        form: Form::One,
        ring: Keyring::Webhooks,
        count: KeyUsage::count_webhook_secret,
        reseal: |vault, ids, sealed| {
            vault.reseal(Purpose::EndpointHeaders(id(ids, 0)?.into()), sealed)
        },
    },
    Sealed {
        table: "partner_endpoints",
        column: "secrets",
        what: "webhook_secret",
        key: &[("endpoint_id", "uuid")],
        also: Some("partner_id"),
        form: Form::List,
        ring: Keyring::Webhooks,
        count: KeyUsage::count_webhook_secret,
        reseal: |vault, ids, sealed| {
            let endpoint = EndpointKey {
                id: id(ids, 0)?.into(),
                partner_id: id(ids, 1)?.into(),
            };
            vault.reseal(purpose(endpoint), sealed)
        },
    },
    Sealed {
        table: "esims",
        column: "profile",
        what: "profile",
        key: &[("topup_id", "text")],
        also: None,
        form: Form::Profile,
        ring: Keyring::Profiles,
        count: |usage| usage.profiles += 1,
        reseal: |vault, ids, sealed| vault.reseal(Purpose::Profile(&topup(ids)?), sealed),
    },
    Sealed {
        table: "delivery_attempts",
        column: "response_start",
        what: "response",
        key: &[
            ("delivery_id", "uuid"),
            ("attempt", "integer"),
            ("at", "timestamptz"),
        ],
        also: None,
        form: Form::One,
        ring: Keyring::Profiles,
        count: |usage| usage.answers += 1,
        reseal: |vault, ids, sealed| {
            let attempt = ids.get(1).and_then(|attempt| attempt.parse().ok());
            let attempt = attempt.ok_or(VaultError::Damaged)?;
            vault.reseal(Purpose::Response(id(ids, 0)?.into(), attempt), sealed)
        },
    },
];

fn id(ids: &Ids, nth: usize) -> Result<Uuid, VaultError> {
    let id = ids.get(nth).and_then(|id| id.parse().ok());
    id.ok_or(VaultError::Damaged)
}

fn topup(ids: &Ids) -> Result<TopupId, VaultError> {
    let id = ids.first().and_then(|id| id.parse().ok());
    id.ok_or(VaultError::Damaged)
}

/// The tables and columns with sealed values.
pub fn columns() -> impl Iterator<Item = (&'static str, &'static str)> {
    SEALED.iter().map(|sealed| (sealed.table, sealed.column))
}

/// The number of stored values under a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct KeyUsage {
    /// Partners' secret keys, and the secrets and headers of their endpoints; old ones are among
    /// them.
    pub partner_secrets: u64,
    /// What belongs to endpoints among them.
    pub webhook_secrets: u64,
    /// Profiles of topups.
    pub profiles: u64,
    /// Recorded responses of endpoints.
    pub answers: u64,
}

impl KeyUsage {
    fn count_webhook_secret(&mut self) {
        self.partner_secrets += 1;
        self.webhook_secrets += 1;
    }

    /// The number of values for a purpose.
    fn of(self, ring: Keyring) -> u64 {
        match ring {
            Keyring::Partners => self.partner_secrets - self.webhook_secrets,
            Keyring::Webhooks => self.webhook_secrets,
            Keyring::Profiles => self.profiles + self.answers,
        }
    }
}

/// The usage of each key id; `None` stands for values whose key id cannot be read.
pub type Usages = BTreeMap<Option<String>, KeyUsage>;

/// The number of values that are not yet sealed under the first key of their purpose.
pub fn left(usages: &Usages, vault: &Vault) -> u64 {
    let of = |ring| {
        let first = vault.key_ids(ring).next();
        let others = usages
            .iter()
            .filter(move |(key, _)| key.as_deref() != first);
        others.map(move |(_, usage)| usage.of(ring)).sum::<u64>()
    };
    Keyring::ALL.into_iter().map(of).sum()
}

/// A value that could not be sealed again.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ResealFailure {
    /// The column of the value.
    pub what: &'static str,
    /// The partner id or the topup id. For a response it is the delivery id and the number of the
    /// attempt.
    pub id: String,
    pub reason: String,
}

/// The result of one pass over all tables.
#[derive(Clone, Debug, Default)]
pub struct ResealPass {
    pub reencrypted: u64,
    pub failed: Vec<ResealFailure>,
    usages: Usages,
}

/// Counts the values of each key. A value that changes in the meantime may be missed.
pub async fn usages(connection: &mut PgConnection) -> Result<Usages> {
    Ok(walk(connection, None, |_| {}).await?.usages)
}

/// Makes one pass: seals all values that are not under the first key of their purpose again under
/// it. Calls `progress` after each page. Values that other sessions change or lock in the meantime
/// are left for another pass.
pub async fn reencrypt(
    connection: &mut PgConnection,
    vault: &Vault,
    progress: impl FnMut(&ResealPass),
) -> Result<ResealPass> {
    walk(connection, Some(vault), progress).await
}

/// Reads all columns and counts their values. If there is a vault, also seals them again.
async fn walk(
    connection: &mut PgConnection,
    vault: Option<&Vault>,
    mut progress: impl FnMut(&ResealPass),
) -> Result<ResealPass> {
    // Makes the planner find rows by an index, whatever the statistics say. `esimctl` connects
    // without the session settings of the services.
    sqlx::query("SET enable_seqscan = off")
        .execute(&mut *connection)
        .await?;
    let mut pass = ResealPass::default();
    for sealed in &SEALED {
        let prefix = vault.map(|vault| vault.first_prefix(sealed.ring));
        let prefix = prefix.transpose()?;
        let mut after = None;
        loop {
            let values = sealed.page(connection, after, prefix.as_deref()).await?;
            for head in values.iter().filter_map(|value| value.head.as_deref()) {
                let key = vault::key_id(head).map(str::to_owned);
                (sealed.count)(pass.usages.entry(key).or_default());
            }
            if let Some(vault) = vault {
                let anew = sealed.reseal_all(vault, &values, &mut pass);
                // A row is written once by a statement, so the values of a list are written one by
                // one.
                let at_once = if sealed.form == Form::List { 1 } else { PAGE };
                for batch in anew.chunks(at_once) {
                    pass.reencrypted += sealed.write(connection, batch).await?;
                }
            }
            progress(&pass);
            match values.into_iter().next_back() {
                Some(last) if last.nth >= i64::from(signed(PAGE)) => after = Some(last.ids),
                _ => break,
            }
        }
    }
    Ok(pass)
}

/// A stored value. A cell without one has a row, too, so that a page shows where it ends.
#[derive(sqlx::FromRow)]
struct Value {
    ids: Vec<String>,
    /// The number of its row in the page, from 1.
    nth: i64,
    /// Its first bytes, which show its key.
    head: Option<Vec<u8>>,
    /// The whole value, unless it begins with the prefix of the first key.
    sealed: Option<Vec<u8>>,
}

/// A value that is sealed again.
struct Anew {
    ids: Vec<String>,
    was: Vec<u8>,
    sealed: Vec<u8>,
    digest: Option<Vec<u8>>,
}

impl Sealed {
    /// Each column of the key, as `shape` shows it.
    fn keys(&self, shape: impl Fn(usize, &str, &str) -> String, between: &str) -> String {
        let keys = self.key.iter().enumerate();
        let keys = keys.map(|(nth, (name, kind))| shape(nth + 1, name, kind));
        keys.collect::<Vec<_>>().join(between)
    }

    /// The values of the next rows after the key `after`.
    async fn page(
        &self,
        connection: &mut PgConnection,
        after: Option<Vec<String>>,
        prefix: Option<&[u8]>,
    ) -> Result<Vec<Value>> {
        let table = self.table;
        let key = self.keys(|_, name, _| name.to_owned(), ", ");
        let texts = self.keys(|_, name, _| format!("{name}::text"), ", ");
        let also = self.also.map(|also| format!(", {also}::text"));
        let also = also.unwrap_or_default();
        // Without the condition the first page has no second parameter.
        let bounds = self.keys(|nth, _, kind| format!("($2::text[])[{nth}]::{kind}"), ", ");
        let later = match after {
            Some(_) => format!("WHERE ({key}) > ({bounds})"),
            None => String::new(),
        };
        let values = match self.form {
            Form::List => self.column.to_owned(),
            Form::One | Form::Profile => format!("ARRAY[{}]", self.column),
        };
        let page = format!(
            "SELECT t.ids, t.nth, v.head, v.sealed
             FROM (SELECT ARRAY[{texts}{also}] AS ids, {values} AS stored, row_number() OVER (ORDER BY {key}) AS nth
                   FROM {table} {later} ORDER BY {key} LIMIT {PAGE}) t
             LEFT JOIN LATERAL (
                 SELECT substring(value FROM 1 FOR {head}) AS head,
                        CASE WHEN substring(value FROM 1 FOR octet_length($1::bytea)) <> $1 THEN value END AS sealed
                 FROM unnest(t.stored) AS value
             ) v ON true
             ORDER BY t.nth",
            head = vault::HEAD,
        );
        let mut page = sqlx::query_as(AssertSqlSafe(page)).bind(prefix);
        if let Some(after) = after {
            page = page.bind(after);
        }
        Ok(page.fetch_all(connection).await?)
    }

    /// The values of a page under the first key of their purpose, and notes those that fail.
    fn reseal_all(&self, vault: &Vault, values: &[Value], pass: &mut ResealPass) -> Vec<Anew> {
        let mut all: Vec<Anew> = Vec::new();
        for value in values {
            let Some(was) = &value.sealed else { continue };
            match (self.reseal)(vault, &value.ids, was) {
                Ok(sealed) => {
                    // Two rows of one page must not get one digest, because the statement would
                    // fail.
                    let digest = self.digest(vault, &value.ids, &sealed).filter(|digest| {
                        !all.iter().any(|one| one.digest.as_ref() == Some(digest))
                    });
                    all.push(Anew {
                        ids: value.ids.clone(),
                        was: was.clone(),
                        sealed,
                        digest,
                    });
                }
                Err(error) => pass.failed.push(ResealFailure {
                    what: self.what,
                    id: shown(&value.ids),
                    reason: error.to_string(),
                }),
            }
        }
        all
    }

    /// The digest of the code in a profile, under the new key.
    fn digest(&self, vault: &Vault, ids: &Ids, sealed: &[u8]) -> Option<Vec<u8>> {
        if self.form != Form::Profile {
            return None;
        }
        let profile = Profile::open_of_anybody(vault, &topup(ids).ok()?, sealed).ok()?;
        profile.code_digest(vault).ok()
    }

    /// Writes values, and returns how many rows have changed.
    ///
    /// `free` locks the rows that still hold the value that was read. It skips rows that another
    /// session has locked, because outcomes are recorded in batches that lock rows in another
    /// order, and waiting could end in a deadlock. The digest of a code stays as it was if another
    /// eSIM has the new one, which only happens if a provider has sent one code twice while two
    /// keys were in use, and a code that may be shared has none.
    async fn write(&self, connection: &mut PgConnection, batch: &[Anew]) -> Result<u64> {
        let table = self.table;
        let column = self.column;
        let of_key = self.key.len();
        let arrays = self.keys(|nth, _, _| format!("${nth}::text[]"), ", ");
        let names = self.keys(|_, name, _| name.to_owned(), ", ");
        let same = self.keys(
            |_, name, kind| format!("t.{name} = new.{name}::{kind}"),
            " AND ",
        );
        let (first, kind) = self.key[0];
        let holds = match self.form {
            Form::List => format!("new.was = ANY (t.{column})"),
            Form::One | Form::Profile => format!("t.{column} = new.was"),
        };
        let set = match self.form {
            Form::One => format!("{column} = free.sealed"),
            Form::List => format!("{column} = array_replace(t.{column}, free.was, free.sealed)"),
            Form::Profile => format!(
                "{column} = free.sealed,
                 code_digest = CASE WHEN t.code_digest IS NULL
                                      OR EXISTS (SELECT FROM {table} other WHERE other.code_digest = free.digest)
                                    THEN t.code_digest ELSE coalesce(free.digest, t.code_digest) END"
            ),
        };
        let statement = format!(
            "WITH free AS MATERIALIZED (
                 SELECT t.ctid, new.was, new.sealed, new.digest
                 FROM unnest({arrays}, ${was}::bytea[], ${sealed}::bytea[], ${digest}::bytea[])
                     AS new ({names}, was, sealed, digest)
                 JOIN {table} t ON {same} AND {holds}
                 WHERE t.{first} = ANY ($1::text[]::{kind}[]) FOR NO KEY UPDATE OF t SKIP LOCKED
             )
             UPDATE {table} t SET {set} FROM free WHERE t.ctid = free.ctid",
            was = of_key + 1,
            sealed = of_key + 2,
            digest = of_key + 3,
        );
        let mut statement = sqlx::query(AssertSqlSafe(statement));
        for nth in 0..of_key {
            let key: Vec<String> = batch.iter().map(|one| one.ids[nth].clone()).collect();
            statement = statement.bind(key);
        }
        let was: Vec<Vec<u8>> = batch.iter().map(|one| one.was.clone()).collect();
        let sealed: Vec<Vec<u8>> = batch.iter().map(|one| one.sealed.clone()).collect();
        let digests: Vec<Option<Vec<u8>>> = batch.iter().map(|one| one.digest.clone()).collect();
        let statement = statement.bind(was).bind(sealed).bind(digests);
        Ok(statement.execute(connection).await?.rows_affected())
    }
}

/// A row in the words of an operator: attempts are numbered from 1.
fn shown(ids: &Ids) -> String {
    match ids {
        [delivery, attempt, _] => {
            let number = attempt.parse::<i64>().map_or(0, |attempt| attempt + 1);
            format!("{delivery} attempt {number}")
        }
        _ => ids.first().cloned().unwrap_or_default(),
    }
}
