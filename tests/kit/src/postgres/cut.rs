//! What a crash would have left: a server whose log ends at a given position.

use super::{PostgresServer, START, User};
use crate::process::output;
use crate::{required, wait};
use anyhow::{Context, Result, ensure};
use sqlx::{Connection, PgConnection};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use url::Url;

/// An absolute path, because other programs are those of `PostgreSQL`.
const CP: &str = "/bin/cp";

/// A copy of a server's data, from which [`Base::cut`] replays the server's log.
#[derive(Debug)]
pub struct Base {
    folder: PathBuf,
}

impl PostgresServer {
    /// Copies this server into `folder/base` while it works. It keeps its whole log from now on, up
    /// to a gigabyte.
    pub async fn base(&self, folder: &Path) -> Result<Base> {
        self.sql("ALTER SYSTEM SET wal_keep_size = '1GB'").await?;
        self.sql("SELECT pg_reload_conf()").await?;
        let base = Base {
            folder: owned(&folder.join("base")).await?,
        };
        let mut copy = self.command("pg_basebackup");
        copy.arg(format!("--dbname={}", self.url))
            .arg(format!("--pgdata={}", base.folder.display()))
            .args(["--wal-method=none", "--checkpoint=fast"]);
        succeeds(copy).await?;
        Ok(base)
    }

    /// The position up to which the log is on the disk. Whoever was told of a commit may rely on it
    /// only if it lies before.
    pub async fn flushed(&self) -> Result<String> {
        let mut connection = PgConnection::connect(&self.url).await?;
        let position = "SELECT pg_current_wal_flush_lsn()::text";
        let position = sqlx::query_scalar(position)
            .fetch_one(&mut connection)
            .await;
        connection.close().await?;
        Ok(position?)
    }
}

impl Base {
    /// Starts what `server` would be if it had crashed with a log that ends at `position`. Its log
    /// must reach beyond it by now.
    pub async fn cut(
        &self,
        server: &PostgresServer,
        folder: &Path,
        position: &str,
    ) -> Result<PostgresServer> {
        let folder = owned(&folder.join(format!("cut-{}", position.replace('/', "-")))).await?;
        let port = crate::ports::free()?;
        let mut url: Url = server.url.parse()?;
        ensure!(url.set_port(Some(port)).is_ok(), "{url} takes no port");
        let mut cut = PostgresServer {
            programs: PathBuf::from(required("PG_BIN")?),
            folder,
            port,
            url: url.to_string(),
            user: User::unprivileged().await?,
            env: BTreeMap::new(),
            child: None,
        };
        // The owner of the data copies them, so that the server may read its copy.
        let mut copy = cut.command(CP);
        copy.arg("--archive").arg(&self.folder).arg(cut.data());
        succeeds(copy).await?;
        let settings = cut.data().join("postgresql.auto.conf");
        let log = server.data().join("pg_wal");
        let mut text = String::new();
        writeln!(text, "restore_command = 'cp {}/%f %p'", log.display())?;
        writeln!(text, "recovery_target_lsn = '{position}'")?;
        writeln!(text, "recovery_target_inclusive = off")?;
        writeln!(text, "recovery_target_action = promote")?;
        append(&settings, &text)?;
        let mut signal = cut.command(CP);
        signal.args([
            "/dev/null".as_ref(),
            cut.data().join("recovery.signal").as_os_str(),
        ]);
        succeeds(signal).await?;
        cut.start_again().await?;
        let mut connection = PgConnection::connect(&cut.url).await?;
        wait::until(START, "the end of the recovery", async || {
            let recovers = sqlx::query_scalar("SELECT pg_is_in_recovery()");
            let recovers: bool = recovers.fetch_one(&mut connection).await?;
            Ok((!recovers).then_some(()))
        })
        .await?;
        connection.close().await?;
        Ok(cut)
    }
}

/// Creates a folder that the servers' user owns.
async fn owned(folder: &Path) -> Result<PathBuf> {
    let created = std::fs::DirBuilder::new().mode(0o700).create(folder);
    created.with_context(|| format!("cannot create {}", folder.display()))?;
    if let Some(user) = User::unprivileged().await? {
        std::os::unix::fs::chown(folder, Some(user.uid), Some(user.gid))?;
    }
    Ok(folder.to_owned())
}

fn append(path: &Path, text: &str) -> Result<()> {
    let mut file: File = OpenOptions::new().append(true).open(path)?;
    Ok(std::io::Write::write_all(&mut file, text.as_bytes())?)
}

async fn succeeds(mut command: tokio::process::Command) -> Result<()> {
    let output = output(&mut command, START).await?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}", said.trim());
    Ok(())
}
