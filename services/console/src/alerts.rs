//! Tells whoever has no Prometheus what goes wrong, changes and is mended: a webhook for each.
//!
//! Guarantees:
//!
//! - Of several consoles one tells each event, at least once, because rows of the history decide
//!   it ([`desk::operator::health::alerts`]). A repeat has the same `webhook-id`.
//! - An outage of PostgreSQL cannot be noted while it lasts, so then each console tells it itself.
//!   Once it is over it is told like everything else: that it began, and that it is mended.
//! - A webhook says what the pages say, which hold no key and no activation code. No log line holds
//!   the URL, because it may hold a token.
//! - A receiver that does not respond keeps nothing but its webhooks waiting, and no event is tried
//!   for longer than an hour. An outage of PostgreSQL is tried for as long as it lasts.
//! - Ids of partners' orders and texts of providers are no markup in a chat.

use std::{
    collections::HashMap,
    path::Path,
    time::{Duration, Instant},
};

use clap::Args;
use desk::operator::health::{
    Finding, HealthReport, alerts,
    finding::Severity,
    life::{self, FindingChange, FindingEvent},
};
use pg::{Database, PgConnection};
use runtime::{Shutdown, client, clock, config::BadSetting};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use signing::webhook::Secret;
use time::OffsetDateTime;
use tokio::sync::watch;
use url::Url;

use crate::{metrics::AlertMetrics, transport};

/// A try must end well within the time for which it reserves its event.
const PATIENCE: Duration = Duration::from_secs(10);
/// The time until an outage of PostgreSQL is told again that could not be told.
const AGAIN: Duration = Duration::from_secs(30);
/// An outage of PostgreSQL is told once it has lasted for so long. That is a look longer than one
/// has to last to be noted, so what was told as begun is told as mended, too.
const OUTAGE_TOLD_AFTER: Duration = life::OUTAGE.saturating_add(life::LOOK);

/// Whom the console tells what goes wrong.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Alerts")]
pub struct AlertConfig {
    /// URL that gets a webhook for each thing that goes wrong, changes and is mended
    ///
    /// It is for whoever has no Prometheus. The body is JSON, whose `text` chat programs show.
    /// Several consoles tell each thing once.
    #[arg(long, env = "ALERT_URL", hide_env_values = true)]
    pub alert_url: Option<SecretString>,
    /// Secret that signs the webhooks to `ALERT_URL`, such as `whsec_` and 32 bytes in Base64
    /// [default: they are not signed]
    ///
    /// They are signed as Standard Webhooks defines it, like those to partners.
    #[arg(long, env = "ALERT_SECRET", hide_env_values = true)]
    pub alert_secret: Option<SecretString>,
}

/// What the newest look knows that no row of the history says.
#[derive(Debug, Default)]
pub(crate) struct NewestLook {
    /// What to do about what is wrong now, by the names of the findings.
    remedies: HashMap<String, String>,
    /// The outage of PostgreSQL that lasts.
    outage: Option<Finding>,
}

impl NewestLook {
    pub(crate) fn found(report: &HealthReport) -> Self {
        let findings = report.findings.iter();
        let remedies = findings.map(|one| (one.kind.key(), one.told().remedy.into_owned()));
        Self {
            remedies: remedies.collect(),
            outage: None,
        }
    }

    pub(crate) fn outage(finding: Finding) -> Self {
        Self {
            remedies: HashMap::new(),
            outage: Some(finding),
        }
    }
}

/// What one webhook tells.
struct Alert {
    /// The `webhook-id`, which is the same in each try.
    id: String,
    key: String,
    change: FindingChange,
    severity: Severity,
    what: String,
    since: OffsetDateTime,
    until: Option<OffsetDateTime>,
    remedy: Option<String>,
}

impl Alert {
    fn of_event(event: &FindingEvent, look: &NewestLook) -> Self {
        let is_open = event.change != FindingChange::Mended;
        Self {
            id: event.id.to_string(),
            key: event.key.clone(),
            change: event.change,
            severity: event.span.severity,
            what: event.what.clone(),
            since: event.span.since,
            until: event.span.until,
            remedy: look.remedies.get(&event.key).filter(|_| is_open).cloned(),
        }
    }

    fn of_outage(outage: &Finding, since: OffsetDateTime) -> Self {
        let told = outage.told();
        let key = outage.kind.key();
        Self {
            id: format!("{key}-{}", since.unix_timestamp()),
            key,
            change: FindingChange::Opened,
            severity: told.severity,
            what: told.what,
            since,
            until: None,
            remedy: Some(told.remedy.into_owned()),
        }
    }

    /// The body. Chat programs show its `text`, in which what partners and providers wrote is text
    /// and not markup, mentions nobody and has one line.
    fn body(&self, link: &Url) -> Value {
        let since = pg::rfc3339(self.since);
        let until = self.until.map(pg::rfc3339);
        let how_bad = match self.severity {
            Severity::Mends => "Nobody is needed any more",
            Severity::Warning => "Warning",
            Severity::Fault => "Fault",
        };
        let text = match (self.change, &until) {
            (FindingChange::Mended, Some(until)) => {
                format!("Mended: {} (from {since} to {until})", self.what)
            }
            _ => format!("{how_bad}: {} (since {since})", self.what),
        };
        let to_do = self.remedy.as_ref();
        let to_do = to_do.map(|remedy| format!(" – {remedy}"));
        let text = without_markup(&format!("{text}{}", to_do.unwrap_or_default()));
        let text = format!("{text} – {link}");
        json!({
            "finding": self.key, "change": self.change, "severity": self.severity, "what": self.what,
            "since": since, "until": until, "remedy": self.remedy, "link": link.as_str(), "text": text,
        })
    }
}

/// Escapes what chat programs read as links and mentions.
fn without_markup(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => plain.push_str("&amp;"),
            '<' => plain.push_str("&lt;"),
            '>' => plain.push_str("&gt;"),
            // With a space of no width behind it, it mentions nobody.
            '@' => plain.push_str("@\u{200b}"),
            _ if character.is_control() => plain.push(' '),
            _ => plain.push(character),
        }
    }
    plain
}

/// Sends the webhooks.
pub(crate) struct AlertSender {
    url: Url,
    secret: Option<Secret>,
    /// The page that shows what is wrong.
    link: Url,
    http: reqwest::Client,
    metrics: AlertMetrics,
}

impl AlertSender {
    /// The sender of the settings, if somebody is to be told. The metrics exist in any case.
    pub(crate) fn open(
        config: &AlertConfig,
        console: &Url,
        ca_file: Option<&Path>,
        metrics: AlertMetrics,
    ) -> anyhow::Result<Option<Self>> {
        let wrong = |what: &str| BadSetting::error(what);
        let given = |value: &Option<SecretString>| {
            let value = value.as_ref().map(|value| value.expose_secret().trim());
            value.filter(|value| !value.is_empty()).map(str::to_owned)
        };
        let AlertConfig {
            alert_url,
            alert_secret,
        } = config;
        let secret = given(alert_secret);
        let Some(url) = given(alert_url) else {
            return match secret {
                None => Ok(None),
                Some(_) => Err(wrong(
                    "ALERT_SECRET signs nothing, because ALERT_URL is missing",
                )),
            };
        };
        // The error does not repeat the URL, because it may hold a token.
        let form = "ALERT_URL: it must be a URL such as https://alerts.example/hook";
        let url: Url = url.parse().map_err(|_| wrong(form))?;
        if !matches!(url.scheme(), "https" | "http") {
            return Err(wrong(form));
        }
        let secret = secret.map(|secret| Secret::parse(&secret)).transpose();
        let secret = secret.map_err(|error| BadSetting::error(format!("ALERT_SECRET: {error}")))?;
        let http = transport::trusting(client::direct(PATIENCE), ca_file)?;
        let http = http
            .build()
            .map_err(|error| BadSetting::error(format!("ALERT_URL: {error}")))?;
        let link = console.join("/needs");
        Ok(Some(Self {
            url,
            secret,
            link: link.map_err(|error| BadSetting::error(format!("CONSOLE_URL: {error}")))?,
            http,
            metrics,
        }))
    }

    /// Sends what is to be told, until the soft stop.
    pub(crate) async fn run(
        self,
        database: Database,
        look: watch::Receiver<NewestLook>,
        shutdown: Shutdown,
    ) -> anyhow::Result<()> {
        let mut ticks = shutdown.ticks(life::LOOK);
        let mut told: Option<OffsetDateTime> = None;
        let mut tried: Option<Instant> = None;
        while ticks.next().await {
            let outage = look.borrow().outage.clone();
            let Some(outage) = outage else {
                self.send_events(&database, &look).await;
                continue;
            };
            let Some(since) = outage.since.filter(|since| told != Some(*since)) else {
                continue;
            };
            let lasts = clock::now() - since >= OUTAGE_TOLD_AFTER;
            if lasts && tried.is_none_or(|tried| tried.elapsed() >= AGAIN) {
                tried = Some(Instant::now());
                if self.send(&Alert::of_outage(&outage, since)).await {
                    told = Some(since);
                    tried = None;
                }
            }
        }
        Ok(())
    }

    /// Tells events one after the other, until none is left or one does not arrive.
    async fn send_events(&self, database: &Database, look: &watch::Receiver<NewestLook>) {
        loop {
            let reserve = async |connection: &mut PgConnection| alerts::reserve(connection).await;
            let event = match database.run(reserve).await {
                Ok(Some(event)) => event,
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "cannot read what is to be told to ALERT_URL, so nobody is told by it; trying again in some seconds");
                    return;
                }
            };
            let alert = Alert::of_event(&event, &look.borrow());
            if !self.send(&alert).await {
                return;
            }
            let told = async |connection: &mut PgConnection| alerts::told(connection, &event).await;
            if let Err(error) = database.run(told).await {
                tracing::warn!(%error, id = alert.id, "cannot record that an alert was sent, so it is sent once more");
                return;
            }
        }
    }

    /// Sends one webhook, and returns whether it was taken.
    async fn send(&self, alert: &Alert) -> bool {
        let body = alert.body(&self.link).to_string();
        let timestamp = clock::now().unix_timestamp();
        let mut request = self
            .http
            .post(self.url.clone())
            .header("content-type", "application/json")
            .header("webhook-id", &alert.id)
            .header("webhook-timestamp", timestamp.to_string());
        if let Some(secret) = &self.secret {
            let signature = secret.sign(&alert.id, timestamp, body.as_bytes());
            request = request.header("webhook-signature", signature);
        }
        let sent = request.body(body).send().await;
        let sent = sent.and_then(reqwest::Response::error_for_status);
        let is_taken = match &sent {
            Ok(response) => response.status().is_success(),
            Err(_) => false,
        };
        if !is_taken {
            let why = match sent {
                Ok(response) => format!("it answered with {}", response.status()),
                Err(error) => error.without_url().to_string(),
            };
            tracing::warn!(
                id = alert.id,
                finding = alert.key,
                why,
                "ALERT_URL did not take a webhook, so nobody is told by it; it is sent again for up to an hour"
            );
        }
        self.metrics.alert(is_taken);
        is_taken
    }
}

#[cfg(test)]
mod tests {
    use super::without_markup;

    #[test]
    fn what_partners_write_is_no_link_and_mentions_nobody() {
        assert_eq!(
            without_markup("order <!channel>\n<https://evil|Open> @everyone & more"),
            "order &lt;!channel&gt; &lt;https://evil|Open&gt; @\u{200b}everyone &amp; more"
        );
    }
}
