//! Shows what `esimctl migrate` waits for while it builds an index.
//!
//! The connection that migrates is busy during a build, so a second connection looks once a second.
//! It is opened only if the migration takes longer than that, because most of them do not. The
//! lines go to standard error: one whenever something changes, and otherwise one every ten seconds.

use std::{
    convert::Infallible,
    future::pending,
    time::{Duration, Instant},
};

use pg::{
    PgConnection,
    schema::{self, IndexBuild},
};
use runtime::terminal::say;
use sqlx::{ConnectOptions, postgres::PgConnectOptions};
use tokio::time::sleep;

const LOOK: Duration = Duration::from_secs(1);
/// How often a line is repeated although nothing has changed but numbers.
const REPEAT: Duration = Duration::from_secs(10);

/// Shows the builds of the session `pid`, until the caller drops the future. If the second
/// connection fails, a line says so, and the migration goes on without progress.
pub async fn show(options: &PgConnectOptions, pid: i32) -> Infallible {
    sleep(LOOK).await;
    let failed: anyhow::Error = match options.connect().await {
        Ok(mut observer) => look(&mut observer, pid).await,
        Err(error) => error.into(),
    };
    say(format_args!(
        "esimctl: the progress cannot be shown, but the migration goes on: {failed}"
    ));
    pending().await
}

/// Looks again and again. Returns the error that ended it.
async fn look(observer: &mut PgConnection, pid: i32) -> anyhow::Error {
    let mut last: Option<Shown> = None;
    loop {
        match schema::index_build(observer, pid).await {
            Ok(Some(build)) => {
                let due = last.as_ref().is_none_or(|last| last.is_outdated_by(&build));
                if due {
                    say(format_args!("esimctl: {}", line(&build)));
                    last = Some(Shown {
                        build,
                        at: Instant::now(),
                    });
                }
            }
            Ok(None) => last = None,
            Err(error) => return error.into(),
        }
        sleep(LOOK).await;
    }
}

/// The build as it was last shown.
struct Shown {
    build: IndexBuild,
    at: Instant,
}

impl Shown {
    fn is_outdated_by(&self, now: &IndexBuild) -> bool {
        let holder = |build: &IndexBuild| build.waits_for.as_ref().map(|session| session.pid);
        self.at.elapsed() >= REPEAT
            || self.build.index != now.index
            || self.build.phase != now.phase
            || holder(&self.build) != holder(now)
    }
}

fn line(build: &IndexBuild) -> String {
    match &build.waits_for {
        Some(session) => format!(
            "{build}. Orders continue meanwhile. The build goes on when that transaction ends; to end it now, stop that \
             program or run SELECT pg_terminate_backend({})",
            session.pid
        ),
        None => build.to_string(),
    }
}
