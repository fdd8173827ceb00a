//! Sends orders in waves while processes die at one crash point after the other.

use anyhow::{Context, Result, bail, ensure};
use async_nats::jetstream;
use pipeline::effect::{Effect, Point};
use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::sync::Mutex;
use std::time::Duration;
use testkit::client::Client;
use testkit::esimctl::Partner;
use testkit::process::Process;
use testkit::receiver::{Answer, Receiver};
use testkit::stack::{Stack, Stage};
use testkit::wait;

const REACH: Duration = Duration::from_secs(30);
/// The options that the partner with a webhook URL orders in each wave.
const WAVE: [&str; 4] = ["ready", "delayed", "refused", "bought-then-error"];
/// How long a wave may work before the next one follows.
const NEXT_WAVE: Duration = Duration::from_millis(500);
/// The paths of the partners' further endpoints. Each gets every topup, too, wherever a process
/// dies and whatever becomes of the first endpoint.
const FURTHER: [&str; 2] = ["/more-a", "/more-b"];
/// The number of SIGKILL.
const KILLED: i32 = 9;

/// An order as its partner knows it.
pub struct Asked {
    /// Index into [`Walk::partners`].
    pub partner: usize,
    pub external_order_id: String,
    pub option: &'static str,
    /// The definite answer. It is `None` if the connection broke, or if every answer was a 5xx.
    pub answer: Option<Said>,
}

/// A definite answer.
pub enum Said {
    /// 201, with these topups.
    Created(BTreeSet<String>),
    /// 422 for a reason other than the external id.
    Refused(String),
    /// 422 because the external order id is taken: an earlier request stored the order.
    Taken,
}

pub struct Walk {
    /// The provider's look-ups prove no absence, so an attempt that a crash left without an answer
    /// is parked unless it is found.
    pub searches: bool,
    pub stack: Stack,
    pub receiver: Receiver,
    /// The partners. The first one has a webhook URL, and the second one gets one at the end. Both
    /// have a [further endpoint](FURTHER) from the beginning.
    pub partners: [Partner; 2],
    clients: [Client; 2],
    pub asked: Vec<Asked>,
    /// The topups that the first partner has asked to give back.
    pub given_back: BTreeSet<String>,
    /// The topups whose eSIMs were extended. The topup id is the external id of the extension, too.
    pub extended: BTreeSet<String>,
    /// The topups that the first partner has asked to suspend.
    pub suspended: BTreeSet<String>,
    /// Whether the provider suspends eSIMs.
    suspends: bool,
    /// Airalo takes no eSIM back and tells nobody when profiles are ready. It hands out three
    /// tokens a minute, and each process needs one.
    is_airalo: bool,
    jetstream: jetstream::Context,
}

impl Walk {
    /// Starts the system. The provider does not detect duplicates, so only the pipeline's own
    /// safeguards prevent a second purchase.
    pub async fn begin(provider: &str) -> Result<Self> {
        let stack = Stack::builder()
            .provider(provider)
            .env(Stage::Provisioner, "PARK_AFTER", "20s")
            .env(Stage::Sandbox, "SANDBOX_DETECT_DUPLICATES", "false")
            .env(Stage::Provisioner, "PROVIDER_TIMEOUT", "1s")
            .env(Stage::Provisioner, "SETTLE", "3s")
            .env(Stage::Provisioner, "--breaker-open-most", "3s")
            .callbacks()
            .env(Stage::Notifier, "WEBHOOK_TIMEOUT", "2s")
            .env(Stage::Ingress, "REDELIVER_INTERVAL", "100ms")
            .start()
            .await?;
        let receiver = Receiver::start().await?;
        let with_url = stack
            .create_partner(stack.environment, Some(&receiver.url("/a")))
            .await?;
        let without = stack.create_partner(stack.environment, None).await?;
        receiver.verify("/a", &with_url.webhook_secret)?;
        receiver.verify("/b", &without.webhook_secret)?;
        // The first webhook of about every fifth topup fails, so that there are always retries
        // somewhere.
        let seen = Mutex::new(BTreeSet::new());
        receiver.answer("/a", move |received| {
            let fifth = received.topup_id().bytes().map(u32::from).sum::<u32>() % 5 == 0;
            let first = seen.lock().unwrap().insert(received.topup_id().to_owned());
            Answer::status(if fifth && first { 503 } else { 200 })
        });
        let nats = testkit::nats::connect(&std::env::var("TEST_NATS_URL")?).await?;
        let clients = [stack.client(&with_url)?, stack.client(&without)?];
        for (client, path) in clients.iter().zip(FURTHER) {
            let body = serde_json::json!({"url": receiver.url(path)}).to_string();
            let created = client
                .post(body)
                .path("/api/v1/api_partner/endpoints")
                .send()
                .await?;
            ensure!(created.status == 201, "no endpoint: {}", created.status);
            let secret = created.json()?["webhook_secret"].clone();
            receiver.verify(path, secret.as_str().unwrap_or_default())?;
        }
        Ok(Self {
            searches: matches!(provider, "airalo" | "esim-access" | "usimsa"),
            stack,
            receiver,
            partners: [with_url, without],
            clients,
            asked: Vec::new(),
            given_back: BTreeSet::new(),
            extended: BTreeSet::new(),
            suspended: BTreeSet::new(),
            suspends: matches!(provider, "sandbox" | "esim-access"),
            is_airalo: provider == "airalo",
            jetstream: jetstream::new(nats),
        })
    }

    /// Whether what happens at a point depends on the provider's protocol.
    pub fn concerns_provider(point: &Point) -> bool {
        point.stage == Stage::Provisioner.name()
            && !matches!(
                point.effect,
                Effect::Publish | Effect::Send | Effect::Sweep | Effect::ClaimDue | Effect::Bury
            )
    }

    /// Whether it is reached only by giving an eSIM back, extending or suspending one.
    pub fn changes_esim(point: &Point) -> bool {
        matches!(
            point.effect,
            Effect::CommitEsimAttempt
                | Effect::GiveBack
                | Effect::Extend
                | Effect::Suspend
                | Effect::CommitEsimOutcome
        )
    }

    /// Whether the provider of this walk never makes the pipeline reach a point.
    pub fn never_reaches(&self, point: Point) -> bool {
        match point.effect {
            // Of the last two: a call without a token says nothing of the provider's health, so too
            // few calls fail.
            Effect::GiveBack | Effect::CommitHint | Effect::CommitHealth | Effect::CommitProbe => {
                self.is_airalo
            }
            Effect::Suspend => !self.suspends,
            _ => false,
        }
    }

    /// Lets the process of `point` die there while orders arrive, and starts it again. Returns the
    /// number of waves of orders that this took.
    pub async fn die_at(&mut self, point: Point) -> Result<usize> {
        let stage = Stage::OURS
            .into_iter()
            .find(|stage| stage.name() == point.stage);
        let stage = stage.with_context(|| format!("no stage is named {}", point.stage))?;
        // These two points are only reached if the breaker opens and a probe follows. The breaker
        // opens if the provider cannot be reached at all.
        let unreachable = matches!(point.effect, Effect::CommitHealth | Effect::CommitProbe);
        if unreachable {
            self.stack.process(Stage::Sandbox)?.kill().await?;
        }
        let process = self.stack.process(stage)?;
        process.kill().await?;
        let settings = &mut process.program_mut().env;
        settings.insert("FAILPOINT".into(), point.name());
        process.spawn()?;
        let reached = self.waves_until_death(stage, point).await;

        if unreachable {
            self.stack.process(Stage::Sandbox)?.start().await?;
        }
        let process = self.stack.process(stage)?;
        process.program_mut().env.remove("FAILPOINT");
        process.kill().await?;
        process.start().await?;
        reached
    }

    async fn waves_until_death(&mut self, stage: Stage, point: Point) -> Result<usize> {
        let process = self.stack.process(stage)?;
        if let Err(error) = process.ready().await {
            return if process.exited()?.is_some() {
                Ok(0)
            } else {
                Err(error)
            };
        }
        let mut waves = 0;
        let walking = async {
            loop {
                waves += 1;
                self.wave(point, waves).await?;
                let next = tokio::time::timeout(NEXT_WAVE, ended(self.stack.process(stage)?));
                if let Ok(status) = next.await {
                    return status;
                }
            }
        };
        let signal = tokio::time::timeout(REACH, walking)
            .await
            .context("never reached")??;
        ensure!(
            signal == Some(KILLED),
            "it ended otherwise: signal {signal:?}"
        );
        Ok(waves)
    }

    /// Sends one order of each kind, all at once.
    async fn wave(&mut self, point: Point, wave: usize) -> Result<()> {
        if point.effect == Effect::Bury {
            let prefix = &self.stack.prefix;
            for subject in ["topup.job.sandbox", "topup.ready.nobody"] {
                self.jetstream
                    .publish(format!("{prefix}{subject}"), "unreadable".into())
                    .await?
                    .await?;
            }
        }
        if Self::changes_esim(&point) {
            let esims = self.delivered_esims().await?;
            let mut esims = esims.into_iter();
            let (returned, extended) = (esims.next(), esims.next());
            let suspended = esims.next().filter(|_| self.suspends);
            self.given_back.extend(returned.clone());
            self.extended.extend(extended.clone());
            self.suspended.extend(suspended.clone());
            tokio::try_join!(
                self.give_back(returned),
                self.extend(extended),
                self.suspend(suspended)
            )?;
        }
        if point.effect == Effect::CommitResend {
            self.redeliver().await?;
        }
        let orders = WAVE
            .map(|option| (0, option))
            .into_iter()
            .chain([(1, "ready")]);
        let sent = orders.map(|(partner, option)| {
            let stack = &self.stack;
            let client = &self.clients[partner];
            async move {
                let external_order_id = format!("{point} {wave} {option}");
                let answer = ask(stack, client, &external_order_id, option).await?;
                Ok(Asked {
                    partner,
                    external_order_id,
                    option,
                    answer,
                })
            }
        });
        let asked: Result<Vec<Asked>> = futures_util::future::try_join_all(sent).await;
        self.asked.extend(asked?);
        Ok(())
    }

    /// Three eSIMs of the first partner that have reached all its endpoints and are unchanged.
    async fn delivered_esims(&self) -> Result<Vec<String>> {
        let further = self.webhooks(true)?;
        let mut found = Vec::new();
        for (topup_id, _) in self.webhooks(false)?.intersection(&further) {
            let changed = [&self.given_back, &self.extended, &self.suspended];
            if changed.iter().any(|all| all.contains(topup_id)) {
                continue;
            }
            let path = format!("/api/v1/api_partner/topups/{topup_id}");
            let shown = self.clients[0]
                .post(String::new())
                .method("GET")
                .path(&path);
            let shown = shown.send().await?;
            if shown.status != 200 || shown.json()?["delivery"] != "delivered" {
                continue;
            }
            found.push(topup_id.clone());
            if found.len() == 3 {
                break;
            }
        }
        Ok(found)
    }

    /// Gives this eSIM back.
    async fn give_back(&self, topup_id: Option<String>) -> Result<()> {
        let Some(topup_id) = topup_id else {
            return Ok(());
        };
        let path = format!("/api/v1/api_partner/topups/{topup_id}/give-back");
        let answer = self.clients[0].post(String::new()).path(&path);
        let answer = answer.send().await?;
        ensure!(
            matches!(answer.status, 200 | 202 | 409),
            "a give-back was answered with {}",
            answer.status
        );
        Ok(())
    }

    /// Extends this eSIM.
    async fn extend(&self, topup_id: Option<String>) -> Result<()> {
        let Some(topup_id) = topup_id else {
            return Ok(());
        };
        let option_id = self.stack.option("extension")?;
        let body = serde_json::json!({"external_id": topup_id, "option_id": option_id});
        let path = format!("/api/v1/api_partner/topups/{topup_id}/extensions");
        let answer = self.clients[0].post(body.to_string()).path(&path);
        let answer = answer.send().await?;
        ensure!(
            matches!(answer.status, 201 | 202),
            "an extension was answered with {}: {}",
            answer.status,
            String::from_utf8_lossy(&answer.body)
        );
        Ok(())
    }

    /// Suspends this eSIM.
    async fn suspend(&self, topup_id: Option<String>) -> Result<()> {
        let Some(topup_id) = topup_id else {
            return Ok(());
        };
        let path = format!("/api/v1/api_partner/topups/{topup_id}/suspend");
        let answer = self.clients[0].post(String::new()).path(&path);
        let answer = answer.send().await?;
        ensure!(
            matches!(answer.status, 200 | 202),
            "a suspension was answered with {}",
            answer.status
        );
        Ok(())
    }

    /// What the first partner sees of a `give-back` or a `suspension`.
    pub async fn change_state(&self, topup_id: &str, change: &str) -> Result<String> {
        let path = format!("/api/v1/api_partner/topups/{topup_id}/{change}");
        let request = self.clients[0]
            .post(String::new())
            .method("GET")
            .path(&path);
        let state = request.send().await?.json()?["state"].clone();
        Ok(state.as_str().unwrap_or_default().to_owned())
    }

    /// Asks for all webhooks of the first partner again, unless that is under way already.
    async fn redeliver(&self) -> Result<()> {
        let since = "2020-01-01T00:00:00Z";
        let body = serde_json::json!({"since": since, "state": "delivered"}).to_string();
        let request = self.clients[0].post(body).whole();
        let path = "/api/v1/api_partner/webhooks/redeliver";
        let answer = request.path(path).send().await?;
        ensure!(
            matches!(answer.status, 202 | 409 | 429),
            "a redelivery was answered with {}",
            answer.status
        );
        Ok(())
    }

    /// Repeats each unanswered order with the same external id until it gets a definite answer, as
    /// a partner would.
    pub async fn settle_unanswered(&mut self) -> Result<()> {
        for asked in self.asked.iter_mut().filter(|asked| asked.answer.is_none()) {
            let stack = &self.stack;
            let client = &self.clients[asked.partner];
            let again = async || ask(stack, client, &asked.external_order_id, asked.option).await;
            let what = format!("an answer to {}", asked.external_order_id);
            asked.answer = Some(wait::until(REACH, &what, again).await?);
        }
        Ok(())
    }

    /// Sets the second partner's webhook URL.
    pub async fn give_urls(&self) -> Result<()> {
        let key = &self.partners[1].access_key;
        let url = self.receiver.url("/b");
        let args = ["partner", "set", key, "--webhook-url", &url];
        let _: serde_json::Value = self.stack.esimctl.run(&args).await?;
        Ok(())
    }

    /// The topups and external order ids of all webhooks to first endpoints, or to further ones. It
    /// is an error if one of them is not validly signed.
    pub fn webhooks(&self, further: bool) -> Result<BTreeSet<(String, String)>> {
        self.receiver
            .received()
            .iter()
            .filter(|webhook| FURTHER.contains(&webhook.path.as_str()) == further)
            .map(|webhook| {
                ensure!(webhook.is_valid(), "wrongly signed: {webhook:?}");
                let order = webhook.json["external_order_id"]
                    .as_str()
                    .unwrap_or_default();
                Ok((webhook.topup_id().to_owned(), order.to_owned()))
            })
            .collect()
    }
}

/// Sends an order once. Returns `None` if there is no definite answer.
async fn ask(stack: &Stack, client: &Client, id: &str, option: &str) -> Result<Option<Said>> {
    let option_id = stack.option(option)?;
    let Ok(answer) = client.order(id, &[(option_id, 1)]).await else {
        return Ok(None);
    };
    match answer.status {
        201 => Ok(Some(Said::Created(
            answer
                .products()?
                .into_iter()
                .map(|product| product.topup_id)
                .collect(),
        ))),
        422 => {
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            Ok(Some(if text.contains("already been taken") {
                Said::Taken
            } else {
                Said::Refused(text)
            }))
        }
        500..600 => Ok(None),
        other => bail!("{id} was answered with {other}"),
    }
}

/// Waits for the end of a process, and returns the signal that ended it.
async fn ended(process: &mut Process) -> Result<Option<i32>> {
    let exited = async || Ok(process.exited()?.map(|status| status.signal()));
    wait::until(REACH, "it to die", exited).await
}
