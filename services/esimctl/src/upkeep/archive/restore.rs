//! `esimctl archive restore` and `esimctl archive show`.
//!
//! Both read orders from the files and put them into the database. `show` rolls this back after it
//! has read the order, so an archived order is shown by the same code as any other.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};
use clap::{Args, builder::NonEmptyStringValueParser};
use desk::operator::orders;
use pg::actions::{self, Action, Changed};
use serde_json::json;
use sqlx::{Connection, PgConnection};
use tools::archive::{self, Archive, NotRestored, Source};
use uuid::Uuid;

use super::{
    bucket::{Files, Place},
    folder,
    manifest::Manifest,
    place::where_it_is,
    records::{self, Chunk, Orders},
};
use crate::{
    confirm::Confirm,
    console::Console,
    order,
    output::{cells, or_dash, properties, utc},
};

pub const SHOW_EXAMPLES: &str = "Examples:
  esimctl archive show 7                                                  an archive
  esimctl archive show acme-1001                                          where an archived order is
  esimctl archive show acme-1001 --from /srv/archives                     the order itself, from the files
  esimctl archive show 8981000000000000001 --from /srv/archives/archive-7   by any id, in one archive
  esimctl archive show acme-1001 --from s3://acme-archives/esim           from a bucket

The command never shows activation codes.

A bucket is `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX` or `az://CONTAINER/PREFIX`, or a folder, `file:///PATH`. Its keys come from the environment, under the
names that the tools of these clouds have: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, and AWS_ENDPOINT for another
service that speaks S3 (with AWS_ALLOW_HTTP=true if it has no TLS), GOOGLE_SERVICE_ACCOUNT, AZURE_STORAGE_ACCOUNT_NAME and
AZURE_STORAGE_ACCOUNT_KEY; or from the machine's own identity there. Files from a bucket are first copied into TMPDIR, which
must have room for them.";

pub const RESTORE_EXAMPLES: &str = "Examples:
  esimctl archive restore acme-1001 --from /srv/archives --dry-run
  esimctl archive restore acme-1001 --from /srv/archives --reason 'complaint 4711'
  esimctl archive restore 7 --from /srv/archives --yes --reason 'the term was wrong'

A restored order is in the database as if it had never been archived, so the next `archive run` archives it again if the
term still applies. Orders that are in the database already are skipped, so an interrupted restore can be repeated.
Orders of partners that were erased since are not restored.

Files can be forged, so the command restores only what the database has written itself, and only finished orders. After the
database was restored from a backup, it does not know later archives: name them with --unrecorded.";

/// The number of orders that one transaction restores.
const BATCH: usize = 500;

/// An archive or an order of it, and where its files are.
#[derive(Args, Clone, Debug)]
struct Named {
    /// The number of an archive, or an id of an order
    ///
    /// The id is our order id or the partner's external order id. With `--from` it may also be a
    /// placement id, a topup id or an ICCID; then the files are searched, which takes about a minute
    /// for 10 GB.
    #[arg(value_name = "ARCHIVE|ORDER", value_parser = NonEmptyStringValueParser::new())]
    name: String,
}

#[derive(Args, Clone, Debug)]
pub struct Show {
    #[command(flatten)]
    named: Named,
    /// The folder or bucket of the archive, or the one that holds it
    #[arg(long, value_name = "DIR|BUCKET", value_parser = Place::parse)]
    from: Option<Place>,
    /// Show it although the database has no record of these files
    #[arg(long, requires = "from")]
    unrecorded: bool,
}

#[derive(Args, Clone, Debug)]
pub struct Restore {
    #[command(flatten)]
    named: Named,
    /// The folder or bucket of the archive, or the one that holds it
    #[arg(long, value_name = "DIR|BUCKET", value_parser = Place::parse)]
    from: Place,
    /// Restore although the database has no record of these files
    ///
    /// The database does not know archives that are newer than the backup from which it was restored. Then nothing but you
    /// says that the files are genuine, so know where they come from. Orders that are not finished are refused all the same.
    #[arg(long)]
    unrecorded: bool,
    #[command(flatten)]
    confirm: Confirm,
}

pub async fn show(asked: &Show, console: &Console) -> anyhow::Result<()> {
    let name = &asked.named.name;
    let mut connection = console.connect().await?;
    if let Ok(number) = name.parse::<i32>()
        && let Some(found) = archive::get(&mut connection, number).await?
    {
        return console.print(&json!({ "archive": found }), || describe(&found));
    }
    let Some(from) = &asked.from else {
        let found = desk::archived::find(&mut connection, name).await?;
        if found.is_empty() {
            bail!("{}", unknown(name));
        }
        return console.print(&json!({ "archived": found }), || where_it_is(&found));
    };
    let files = files(&mut connection, name, from, asked.unrecorded).await?;
    let shown = show_order(&mut connection, asked, &files.folder, console).await;
    shown.map_err(|error| files.error(error))
}

/// Shows an order of the archives in a folder.
async fn show_order(
    connection: &mut PgConnection,
    asked: &Show,
    from: &Path,
    console: &Console,
) -> anyhow::Result<()> {
    let located = locate(connection, &asked.named.name, from, asked.unrecorded).await?;
    let mut transaction = connection.begin().await?;
    for one in &located {
        let chunk = read(one)?;
        let parts = chunk.parts();
        let restored = archive::restore(&mut transaction, one.source(), &chunk.orders, &parts);
        restored.await.map_err(explained)?;
    }
    let mut found = Vec::new();
    for id in located.iter().flat_map(|one| &one.orders) {
        found.extend(orders::find(&mut transaction, &id.to_string()).await?);
    }
    transaction.rollback().await?;
    order::print(console, &found, &[], &[], &[])
}

fn describe(archive: &Archive) -> String {
    let bytes: u64 = archive.files.values().map(|file| file.bytes).sum();
    let completed = archive
        .completed_at
        .map_or_else(|| "not complete".to_owned(), utc);
    properties(&cells!(archive:
        archive, folder, began = utc(archive.began_at), completed = completed,
        ordered_before = utc(archive.ordered_before), orders, restored,
        oldest = or_dash(archive.first_at.map(utc)), newest = or_dash(archive.last_at.map(utc)),
        bytes = bytes.to_string(), master_keys = archive.keys.join(", "),
        manifest_sha256 = or_dash(archive.manifest_sha256.as_ref()),
    ))
}

fn unknown(name: &str) -> String {
    format!(
        "there is no archive and no archived order {name:?}; see `esimctl archive list`, or search the files by any id with \
         --from DIR"
    )
}

/// The files in which an archive or an order is looked for. From a bucket only those of the archives
/// that the database knows it to be in are fetched, and all if it knows of none.
async fn files(
    connection: &mut PgConnection,
    name: &str,
    from: &Place,
    unrecorded: bool,
) -> anyhow::Result<Files> {
    let known = desk::archived::find(connection, name).await?;
    let mut archives: Vec<i32> = known.iter().map(|one| one.archive).collect();
    if let Ok(number) = name.parse::<i32>()
        && archive::get(connection, number).await?.is_some()
    {
        archives.push(number);
    }
    let has_all = archives.is_empty() || unrecorded;
    from.files((!has_all).then_some(&archives)).await
}

/// Orders in one archive.
struct Located {
    folder: PathBuf,
    manifest: Manifest,
    manifest_sha256: String,
    unrecorded: bool,
    /// Empty for all orders of the archive.
    orders: BTreeSet<Uuid>,
}

impl Located {
    fn source(&self) -> Source<'_> {
        Source {
            archive: self.manifest.archive,
            manifest_sha256: &self.manifest_sha256,
            unrecorded: self.unrecorded,
        }
    }
}

/// Finds an order in the archives of a folder: by what the database remembers, or else by a search
/// in the files.
async fn locate(
    connection: &mut PgConnection,
    name: &str,
    from: &Path,
    unrecorded: bool,
) -> anyhow::Result<Vec<Located>> {
    let known = desk::archived::find(connection, name).await?;
    let mut located = Vec::new();
    for path in folder::folders(from)? {
        let Ok((manifest, manifest_sha256)) = folder::manifest(&path) else {
            // An archive that is being written. Its orders are found once it is complete.
            continue;
        };
        let mut orders: BTreeSet<Uuid> = known
            .iter()
            .filter(|one| one.archive == manifest.archive)
            .map(|one| one.order_id)
            .collect();
        if known.is_empty() {
            orders = records::search(&path, &manifest, name)?;
        }
        if !orders.is_empty() {
            let one = Located {
                folder: path,
                manifest,
                manifest_sha256,
                unrecorded,
                orders,
            };
            check(connection, &one).await?;
            located.push(one);
        }
    }
    if let (true, Some(one)) = (located.is_empty(), known.first()) {
        bail!(
            "order {name:?} is in archive {}, which is not complete or not in {}; its folder was {}",
            one.archive,
            from.display(),
            one.folder
        );
    }
    ensure!(!located.is_empty(), "{}", unknown(name));
    Ok(located)
}

/// Checks the files before anything is restored from them.
async fn check(connection: &mut PgConnection, located: &Located) -> anyhow::Result<()> {
    let manifest = &located.manifest;
    let faults = folder::faults(&located.folder, manifest);
    ensure!(
        faults.is_empty(),
        "nothing was changed, because {} is not what was written: {}; take the files from a copy",
        located.folder.display(),
        faults.join("; ")
    );
    let known = archive::get(connection, manifest.archive).await?;
    let recorded = known.and_then(|known| known.manifest_sha256);
    let sum = &located.manifest_sha256;
    ensure!(
        recorded.as_ref() == Some(sum) || located.unrecorded,
        "nothing was changed, because the database has no record of {}: its manifest has the SHA-256 {sum}, and {} for archive \
         {}. If the database was restored from a backup that is older than the archive, and you know where these files come \
         from, repeat the command with --unrecorded; otherwise take the files from a copy",
        located.folder.display(),
        recorded.map_or_else(
            || "the database has recorded none".to_owned(),
            |recorded| format!("the database has recorded {recorded}")
        ),
        manifest.archive
    );
    Ok(())
}

/// Reads the rows of located orders.
fn read(located: &Located) -> anyhow::Result<Chunk> {
    let mut all = Orders::open(&located.folder, &located.manifest)?;
    let mut found = Chunk::default();
    while let Some(chunk) = all.next(BATCH, Some(&located.orders))? {
        found.extend(chunk);
        if found.orders.len() == located.orders.len() {
            break;
        }
    }
    Ok(found)
}

/// The error of a restore, with its reason if an id is taken.
fn explained(error: NotRestored) -> anyhow::Error {
    let taken = match &error {
        NotRestored::Store(error) => error.constraint().map(str::to_owned),
        _ => None,
    };
    let error = anyhow::Error::new(error);
    match taken.as_deref() {
        Some("orders_external_order_id_key") => error.context(
            "the partner has used the external id for another order since the term of archived orders ended",
        ),
        Some("esims_iccid" | "esims_code_key" | "esims_provider_unit_key") => error.context(
            "the provider has sold the ICCID or the unit again since, and another order has it",
        ),
        Some("orders_pkey") => error.context("the order is in the database already"),
        _ => error,
    }
}

/// What a restore has done.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
struct Restored {
    orders: u64,
    /// Orders that are in the database already.
    present: u64,
    /// Orders of partners that were erased.
    erased: u64,
}

pub async fn restore(asked: &Restore, console: &Console) -> anyhow::Result<()> {
    let name = &asked.named.name;
    let mut connection = console.connect().await?;
    let files = files(&mut connection, name, &asked.from, asked.unrecorded).await?;
    let restored = restore_from(&mut connection, asked, &files.folder, console).await;
    restored.map_err(|error| files.error(error))
}

/// Restores from the archives in a folder.
async fn restore_from(
    connection: &mut PgConnection,
    asked: &Restore,
    from: &Path,
    console: &Console,
) -> anyhow::Result<()> {
    let name = &asked.named.name;
    let number: Option<i32> = name.parse().ok();
    let whole = match number {
        Some(number) => archive::get(connection, number).await?,
        None => None,
    };
    let located = match (&whole, number) {
        (None, Some(number)) if asked.unrecorded => {
            folder_of(connection, number, from, asked).await?
        }
        (Some(whole), _) => {
            ensure!(
                whole.completed_at.is_some() || asked.unrecorded,
                "archive {} is not complete; run `esimctl archive run` again with --to and the folder that holds {}, and \
                 then restore",
                whole.archive,
                whole.folder
            );
            let found = folder_of(connection, whole.archive, from, asked).await?;
            ensure!(
                !found.is_empty(),
                "archive {} is not in {}; its folder was {}",
                whole.archive,
                asked.from,
                whole.folder
            );
            found
        }
        (None, _) => Vec::new(),
    };
    // A number may also be the external id of an order.
    let is_whole = !located.is_empty();
    let located = if is_whole {
        located
    } else {
        locate(connection, name, from, asked.unrecorded).await?
    };
    let ids = located.iter().flat_map(|one| &one.orders);
    let ids: Vec<String> = ids.map(Uuid::to_string).collect();
    let target = match &ids[..] {
        _ if is_whole => format!("archive {name}"),
        [id] => format!("order {id}"),
        _ => bail!(
            "nothing was changed: {name:?} names several orders; repeat the command with one of their order ids: {}",
            ids.join(", ")
        ),
    };
    let count: u64 = located
        .iter()
        .map(|one| match one.orders.len() {
            0 => one.manifest.orders,
            some => some as u64,
        })
        .sum();
    let preview = format!("{count} orders of {target} are put back into the database.");
    if asked.confirm.dry_run {
        let json = json!({ "target": target, "orders": count, "dry_run": true });
        return console.print(&json, || {
            format!("{count} orders of {target} would be restored.")
        });
    }
    asked.confirm.ask(&preview)?;
    let mut done = Restored::default();
    let action = asked
        .confirm
        .action(domain::Command::ArchiveRestore, &target);
    for one in &located {
        let mut all = Orders::open(&one.folder, &one.manifest)?;
        let wanted = (!one.orders.is_empty()).then_some(&one.orders);
        while let Some(chunk) = all.next(BATCH, wanted)? {
            let restored = restore_chunk(connection, one, chunk, action, &mut done).await;
            restored.with_context(|| {
                format!(
                    "the restore stopped after {} orders; repeat it when the cause is gone",
                    done.orders
                )
            })?;
        }
    }
    if !is_whole && done.present > 0 {
        bail!("nothing was changed: {target} is in the database already");
    }
    if !is_whole && done.erased > 0 {
        bail!(
            "nothing was changed: the partner of {target} was erased, and a restore would bring its data back"
        );
    }
    let shown = json!({ "target": target, "restored": done, "dry_run": false });
    console.print(&shown, || {
        format!(
            "{} orders of {target} are restored; {} were in the database already; {} belong to erased partners and were left \
             out.",
            done.orders, done.present, done.erased
        )
    })
}

/// The folder of an archive that is restored as a whole. Empty if it is not there.
async fn folder_of(
    connection: &mut PgConnection,
    number: i32,
    from: &Path,
    asked: &Restore,
) -> anyhow::Result<Vec<Located>> {
    for path in folder::folders(from)? {
        let Ok((manifest, manifest_sha256)) = folder::manifest(&path) else {
            continue;
        };
        if manifest.archive == number {
            let one = Located {
                folder: path,
                manifest,
                manifest_sha256,
                unrecorded: asked.unrecorded,
                orders: BTreeSet::new(),
            };
            check(connection, &one).await?;
            return Ok(vec![one]);
        }
    }
    Ok(Vec::new())
}

/// Restores one chunk in one transaction, without the orders that are there and those of erased
/// partners. Each chunk commits with a record of the action.
async fn restore_chunk(
    connection: &mut PgConnection,
    located: &Located,
    mut chunk: Chunk,
    action: Action<'_>,
    done: &mut Restored,
) -> anyhow::Result<()> {
    let present = archive::present(connection, &chunk.orders).await?;
    done.present += present.len() as u64;
    chunk.without(&present);
    while !chunk.orders.is_empty() {
        let mut transaction = connection.begin().await?;
        let parts = chunk.parts();
        let restored =
            archive::restore(&mut transaction, located.source(), &chunk.orders, &parts).await;
        match restored {
            Err(NotRestored::PartnerErased(erased)) => {
                transaction.rollback().await?;
                done.erased += erased.len() as u64;
                chunk.without(&erased);
            }
            Err(error) => {
                transaction.rollback().await?;
                return Err(explained(error));
            }
            Ok(()) => {
                let count = i64::try_from(chunk.orders.len())?;
                let changed = Changed::created(json!({ "orders": count }));
                actions::record(&mut transaction, action, count, changed).await?;
                transaction.commit().await?;
                done.orders += chunk.orders.len() as u64;
                return Ok(());
            }
        }
    }
    Ok(())
}
