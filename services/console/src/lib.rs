//! The operator's console: the questions and actions of `esimctl` in a browser.
//!
//! It answers "where is this order" for people who have no shell, and shows what waits for a
//! person. Pages are rendered here from templates, pictures are SVG made here, and each control is
//! a link or a form. So everything works without JavaScript; htmx only refreshes figures in place.
//! Nothing is loaded from another host.
//!
//! Guarantees:
//!
//! - Every page but sign-in and set-up needs a session, and every action a session whose role may
//!   do it and the token of its form. The types of [`access`] say so: a handler of an action takes
//!   a value that exists only for such a request. [`routes`] lists all of them, and the tests try
//!   each one in every role.
//! - No credential is ever shown. An activation code is shown only if `CONSOLE_ACTIVATION_CODES` is
//!   on, to a role that may see it, and each time is recorded.
//! - It has no SQL of its own: `desk::operator` answers it and `esimctl` alike.
//! - What is wrong is noted while it runs, and told to `ALERT_URL`, whether or not somebody looks
//!   at a page.
//!
//! The console is not a stage: nothing waits for it, and it may be stopped at any time. It holds no
//! state but what is in PostgreSQL, so replicas can run side by side.

pub mod access;
mod alerts;
mod app;
mod config;
mod cookies;
mod format;
mod looks;
mod metrics;
pub mod openid;
mod pages;
mod pictures;
mod problem;
pub mod routes;
mod said;
mod server;
mod session;
mod sign_in;
mod times;
mod transport;
mod view;

use desk::operator::health::{
    Finding, FindingKind,
    life::{self, FindingWatch},
};
use pg::{
    Database,
    schema::{self, SchemaError},
};
use runtime::{
    Shutdown,
    health::{self, Readiness},
};
use serde_json::json;
use tokio::sync::watch;

use self::{
    alerts::{AlertSender, NewestLook},
    metrics::AlertMetrics,
};

pub use self::{app::App, config::Config};

/// Serves the pages until the soft stop.
pub async fn run(config: Config, shutdown: Shutdown) -> anyhow::Result<()> {
    let app = App::open(&config)?;
    runtime::metrics::connections({
        let database = app.database().clone();
        move || database.connections()
    });
    let listener = runtime::listener::bind("LISTEN", config.listen).await?;
    let readiness = Readiness::new(&shutdown, &["database"]);
    health::serve(config.admin_listen, readiness.clone()).await?;
    let (newest, look) = watch::channel(NewestLook::default());
    shutdown.spawn(
        "findings",
        watch_findings(app.database().clone(), readiness, newest, shutdown.clone()),
    );
    if let Some(alerts) = AlertSender::open(
        &config.alerts,
        &config.console_url,
        config.openid.ca_file.as_deref(),
        AlertMetrics::default(),
    )? {
        let alerts = alerts.run(app.database().clone(), look, shutdown.clone());
        shutdown.spawn("alerts", alerts);
    }
    if app.provider().is_some() {
        let app = app.clone();
        let look = async move {
            if let Some(provider) = app.provider() {
                provider.look().await;
            }
        };
        // A stop does not wait for a provider that does not respond.
        let looking = shutdown.soft().run_until_cancelled_owned(look);
        shutdown.tracker().spawn(looking);
    }
    tracing::info!(
        listen = %listener.local_addr()?,
        admin = %config.admin_listen,
        url = %config.console_url,
        "the console is listening"
    );
    server::serve(
        listener,
        routes::router(app),
        config.max_connections.into(),
        shutdown.clone(),
    )
    .await?;
    shutdown.finished().await
}

/// The outage of PostgreSQL that lasts, since the first look that failed.
fn outage(findings: &mut FindingWatch, why: String) -> Finding {
    let since = findings.outage(runtime::clock::now(), &why);
    Finding::new(FindingKind::DatabaseDown { why }, Some(since))
}

/// Keeps the readiness and the record of what was wrong, so that both tell one beginning of one
/// outage. Beside other consoles each thing is noted once. A schema that does not serve this
/// version ends the process, as it does for the other programs.
async fn watch_findings(
    database: Database,
    readiness: Readiness,
    newest: watch::Sender<NewestLook>,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let mut findings = FindingWatch::default();
    let mut ticks = shutdown.ticks(life::LOOK);
    while ticks.next().await {
        let checked = database.run(async |connection| schema::check(connection).await);
        match checked.await {
            Ok(_) => readiness.set_ready("database"),
            Err(SchemaError::Store(error)) => {
                let finding = outage(&mut findings, error.to_string());
                readiness.set_not_ready("database", error.to_string(), json!(finding.told()));
                newest.send_replace(NewestLook::outage(finding));
                continue;
            }
            Err(error) => return Err(error.into()),
        }
        let update = database.run(async |connection| findings.update(connection).await);
        match update.await {
            Ok(update) => {
                newest.send_replace(NewestLook::found(&update.report));
            }
            Err(error) => {
                // Whoever cannot examine what is wrong must not look as if there were nothing.
                let finding = outage(&mut findings, error.to_string());
                newest.send_replace(NewestLook::outage(finding));
                tracing::warn!(
                    %error,
                    "cannot examine what is wrong, so nothing is noted in the history; trying again in some seconds"
                );
            }
        }
    }
    Ok(())
}
