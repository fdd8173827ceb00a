//! One health: what `esimctl attention`, `status`, `doctor` and the console's first page say of a
//! stage that dies with accepted work waiting, of orders that all fail, and of what lives again.

use crate::shop::{SOON, ids};
use anyhow::{Context, Result, ensure};
use reqwest::{Client, RequestBuilder, header};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use testkit::{
    bin_dir, http, ports,
    process::{Process, Program},
    receiver::Answer,
    shop::{PATH, Shop, fresh, verdicts_come},
    stack::{Stack, Stage},
    wait,
};

/// The promise: who looks later than this after the death of a stage is told of it. Its silence
/// takes ten seconds of them, and a page may be two seconds old.
const PROMISED: Duration = Duration::from_secs(15);
/// How long a test waits for what the views show. It is longer than the promise, because three
/// programs answer in each round, on a machine that may be busy with other tests.
const NAMED: Duration = Duration::from_mins(2);
/// Orders that wait for the dead stage.
const WAITING: u64 = 3;
const PASSWORD: &str = "correct horse battery staple";

/// A console, and somebody who has signed in there.
pub(crate) struct Console {
    _process: Process,
    base: String,
    client: Client,
    cookies: BTreeMap<String, String>,
}

impl Console {
    pub(crate) async fn start(stack: &Stack, folder: &std::path::Path) -> Result<Self> {
        let listen = format!("127.0.0.1:{}", ports::free()?);
        let admin = format!("127.0.0.1:{}", ports::free()?);
        let base = format!("http://{listen}");
        let env = [
            ("LISTEN", listen),
            ("ADMIN_LISTEN", admin.clone()),
            ("DATABASE_URL", stack.database.url_of("console")?),
        ];
        let mut process = Process::new(Program {
            name: "console".into(),
            binary: bin_dir().join("console"),
            args: Vec::new(),
            env: env
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
            ready_url: format!("http://{admin}/readyz"),
            log: folder.join("console.log"),
        });
        process.start().await?;
        let mut console = Self {
            _process: process,
            base: base.clone(),
            client: http::client()?,
            cookies: BTreeMap::new(),
        };
        let made: Value = stack
            .esimctl
            .run(&[
                "operator",
                "create",
                "ana",
                "--role",
                "operator",
                "--console-url",
                &base,
            ])
            .await?;
        let link = made["link"].as_str().context("a link")?;
        let (_, link) = link.split_once('#').context("a token in the link")?;
        let page = console.get("/set-up").await?;
        let (_, rest) = page
            .split_once("name=\"token\" value=\"")
            .context("a form")?;
        let token = rest.split('"').next().unwrap_or_default().to_owned();
        let fields = [
            ("token", token.as_str()),
            ("link", link),
            ("password", PASSWORD),
            ("again", PASSWORD),
        ];
        let body: String = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(fields)
            .finish();
        let request = console
            .client
            .post(format!("{base}/set-up"))
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(body);
        console.send(request).await?;
        Ok(console)
    }

    async fn get(&mut self, path: &str) -> Result<String> {
        let request = self.client.get(format!("{}{path}", self.base));
        self.send(request).await
    }

    async fn send(&mut self, request: RequestBuilder) -> Result<String> {
        let cookies: Vec<String> = self
            .cookies
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let answer = request
            .header(header::COOKIE, cookies.join("; "))
            .send()
            .await?;
        for cookie in answer.headers().get_all(header::SET_COOKIE) {
            let pair = cookie.to_str()?.split(';').next().unwrap_or_default();
            let (name, value) = pair.split_once('=').context("a cookie")?;
            self.cookies.insert(name.to_owned(), value.to_owned());
        }
        Ok(answer.text().await?)
    }
}

/// The findings of a view that are about this stage.
fn of_stage(view: &Value, stage: Stage) -> Vec<&Value> {
    let all = view["needs_person"].as_array().expect("findings").iter();
    all.filter(|one| one["finding"]["stage"] == stage.name())
        .collect()
}

/// What the partner of an order is told: that our service is what it waits for.
async fn partner_is_told(stack: &Stack, order: Option<&str>) -> Result<bool> {
    let Some(order) = order else {
        return Ok(true);
    };
    let shown: Value = stack.esimctl.run(&["order", "show", order]).await?;
    let sentence = shown["stories"][0]["sentence"].as_str();
    let sentence = sentence.context("a sentence")?;
    Ok(sentence.contains("our service that") && sentence.contains("does not work"))
}

/// The three views: `attention` with its exit status, `status`, and the console's first page.
async fn views(stack: &Stack, console: &mut Console) -> Result<((i32, Value), Value, String)> {
    Ok((
        stack.esimctl.run_allowing(&["attention"], &[3]).await?,
        stack.esimctl.run(&["status", "--over", "0s"]).await?,
        console.get("/").await?,
    ))
}

/// Whether this view names the stage as dead, with the work that waits and since when, and before
/// everything but other dead stages.
fn names(view: &Value, stage: Stage, waiting: u64) -> bool {
    let all = view["needs_person"].as_array().expect("findings").iter();
    let dead = all.take_while(|one| one["finding"]["kind"] == "stage_dead");
    let mut mine = dead.filter(|one| one["finding"]["stage"] == stage.name());
    mine.next()
        .is_some_and(|one| one["finding"]["waiting"] == waiting && one["told"]["since"].is_string())
}

/// Waits until all three views name the stage as dead, first of all, with the work that waits. The
/// commands, which read anew each time, name it whenever they begin after what is promised.
async fn named(
    stack: &Stack,
    console: &mut Console,
    stage: Stage,
    died: Instant,
    (waiting, order): (u64, Option<&str>),
) -> Result<()> {
    let what = format!(
        "{} to be named as dead, with {waiting} waiting",
        stage.name()
    );
    let name = stage.name();
    let mut last = None;
    let named = wait::until(NAMED, &what, async || {
        let is_promised = died.elapsed() >= PROMISED;
        let ((exit, attention), status, page) = views(stack, console).await?;
        let told = exit == 3
            && names(&attention, stage, waiting)
            && names(&status, stage, waiting)
            && partner_is_told(stack, order).await?;
        ensure!(
            told || !is_promised,
            "not named by a look that began {PROMISED:?} after the death: exit status {exit}, \
             attention {attention}, status {status}"
        );
        let said = format!("{name}: no process has committed for ten seconds");
        let counted = waiting == 0
            || page.contains(&format!("{waiting} purchases and look-ups wait"))
            || page.contains(&format!("{waiting} webhooks wait"));
        let verdict = page.find("<h1").zip(page.find(&said));
        let shown = counted && verdict.is_some_and(|(verdict, said)| verdict < said);
        last = Some((attention, page));
        Ok((told && shown).then_some(()))
    });
    named.await.with_context(|| format!("{last:?}"))?;
    println!("{name}: named {:?} after its death", died.elapsed());
    Ok(())
}

/// Waits until none of the views says anything about the stage. A look that begins after what is
/// promised finds it mended.
async fn mended(
    stack: &Stack,
    console: &mut Console,
    stage: Stage,
    order: Option<&str>,
) -> Result<()> {
    let lives = Instant::now();
    let what = format!("{} to be named as mended", stage.name());
    let mut last = None;
    let mended = wait::until(NAMED, &what, async || {
        let is_promised = lives.elapsed() >= PROMISED;
        let ((_, attention), status, page) = views(stack, console).await?;
        let said = format!("{}: ", stage.name());
        let runs = status["stages"].as_array().context("stages")?.iter();
        let mut runs = runs.filter(|one| one["stage"] == stage.name() && one["running"] == 1);
        let done = of_stage(&attention, stage).is_empty()
            && of_stage(&status, stage).is_empty()
            && runs.next().is_some()
            && !page.contains(&said)
            && (order.is_none() || !partner_is_told(stack, order).await?);
        ensure!(
            done || !is_promised,
            "not named as mended by a look that began {PROMISED:?} after the start: \
             attention {attention}, status {status}"
        );
        last = Some(attention);
        Ok(done.then_some(()))
    });
    mended.await.with_context(|| format!("{last:?}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_that_dies_is_named_everywhere_with_what_waits_and_named_as_mended() {
    let mut stack = Stack::builder()
        .env(Stage::Ingress, "PLACEMENT_WAIT", "0s")
        .start()
        .await
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut console = Console::start(&stack, folder.path()).await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let option = stack.option("ready").unwrap().to_owned();
    let mut all = std::collections::BTreeSet::new();
    for stage in [Stage::Provisioner, Stage::Notifier, Stage::Ingress] {
        stack.process(stage).unwrap().kill().await.unwrap();
        let died = Instant::now();
        let mut waiting = 0;
        let mut order = None;
        if stage != Stage::Ingress {
            while waiting < WAITING {
                let id = fresh(stage.name());
                let bought = shop.buy(&id, &option, 1).await.unwrap();
                all.extend(ids(&bought));
                order = Some(id);
                waiting += 1;
            }
        }
        let waits = (waiting, order.as_deref());
        named(&stack, &mut console, stage, died, waits)
            .await
            .unwrap();
        // It still is after a while, and the work counts although no sweep of that stage runs.
        named(&stack, &mut console, stage, died, waits)
            .await
            .unwrap();
        opened(&stack, stage).await;
        stack.process(stage).unwrap().start().await.unwrap();
        mended(&stack, &mut console, stage, order.as_deref())
            .await
            .unwrap();
        shop.delivered(&all, SOON).await.unwrap();
        // That they were taken is recorded a moment later; until then they wait.
        let recorded = wait::until(SOON, "the deliveries to be recorded", async || {
            let wait = "SELECT count(*) FROM deliveries WHERE state <> 'delivered'";
            Ok((stack.count(wait).await? == 0).then_some(()))
        });
        recorded.await.unwrap();
    }
    // It is kept. A console waits for a minute whether something comes back.
    let kept = wait::until(NAMED, "what was wrong", async || {
        let page = console.get("/").await?;
        let was = [
            "nothing was bought",
            "no webhook was sent",
            "no order was taken",
        ];
        let told = was
            .iter()
            .all(|was| page.contains(&format!("<b>{was}, because no ")));
        Ok(told.then_some(()))
    });
    kept.await.unwrap();
}

/// Waits until the console has noted the death. It looks every five seconds, and what begins and
/// ends between two looks is not kept.
async fn opened(stack: &Stack, stage: Stage) {
    let mut database = stack.database.connect().await.unwrap();
    let noted = "SELECT EXISTS (SELECT FROM history WHERE kind = 'finding_opened' AND reason = $1)";
    wait::soon("the console to note the death", async || {
        let noted =
            sqlx::query_scalar::<_, bool>(noted).bind(format!("stage_dead:{}", stage.name()));
        Ok(noted.fetch_one(&mut database).await?.then_some(()))
    })
    .await;
}

/// A stage that ends in an orderly way is missed by nobody once another process has its work, and
/// one of two that dies is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_processes_that_dies_is_missed_and_one_that_is_stopped_is_not() {
    let mut stack = Stack::builder()
        .replicas(Stage::Notifier, 3)
        .start()
        .await
        .unwrap();
    // A process whose last pulse is older than the first one of another seems to be replaced by
    // that.
    let beating = wait::until(SOON, "a pulse of each after all have begun", async || {
        let after_all = "SELECT count(*) FROM pulses WHERE stage = 'notifier' \
                         AND at > (SELECT max(started_at) FROM pulses WHERE stage = 'notifier')";
        Ok((stack.count(after_all).await? == 3).then_some(()))
    });
    beating.await.unwrap();
    let replicas = stack.replicas(Stage::Notifier);
    replicas[1].terminate(SOON).await.unwrap();
    let noted = "SELECT count(*) FROM pulses WHERE stage = 'notifier' AND stopped";
    assert_eq!(stack.count(noted).await.unwrap(), 1);
    stack.replicas(Stage::Notifier)[2].kill().await.unwrap();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let mut last = None;
    let missed = wait::until(NAMED, "one of two", async || {
        let (_, attention): (_, Value) = stack.esimctl.run_allowing(&["attention"], &[3]).await?;
        let found = of_stage(&attention, Stage::Notifier);
        last = Some(attention.clone());
        let Some(found) = found.first() else {
            return Ok(None);
        };
        let told = found["told"]["what"].as_str().context("a sentence")?;
        ensure!(told.contains(" processes run"), "{told}");
        let expected = format!(
            "notifier: 1 of 2 processes run ({} does not answer)",
            host.trim()
        );
        Ok((told == expected).then_some(()))
    });
    missed.await.with_context(|| format!("{last:?}")).unwrap();
    stack.replicas(Stage::Notifier)[2].start().await.unwrap();
    let whole = wait::until(NAMED, "two of two", async || {
        let (_, attention): (_, Value) = stack.esimctl.run_allowing(&["attention"], &[3]).await?;
        Ok(of_stage(&attention, Stage::Notifier)
            .is_empty()
            .then_some(()))
    });
    whole.await.unwrap();
}

/// Orders take 5 s instead of 0.1 s, an endpoint fails, an order is refused: `status` and the first
/// page say so, by minutes, and call nothing by another name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn latencies_and_errors_are_read_from_postgresql_alone() {
    let stack = Stack::start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut console = Console::start(&stack, folder.path()).await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    verdicts_come(&stack, &shop.client).await.unwrap();
    shop.receiver.answer(PATH, |_| Answer::status(500));
    let slow = stack.option("slow").unwrap();
    let bought = shop.buy(&fresh("slow"), slow, 1).await.unwrap();
    assert_eq!(bought.len(), 1);
    let mut last = None;
    let found = wait::until(SOON * 2, "the figures of all of it", async || {
        let args = ["status", "--over", "0s", "--minutes", "60"];
        let status: Value = stack.esimctl.run(&args).await?;
        let now = status["now"].as_array().context("now")?;
        let of = |measure: &str| now.iter().find(|one| one["measure"] == measure);
        let took = |measure: &str| of(measure).and_then(|one| one["most_within_s"].as_f64());
        let sums = |measure: &str| -> u64 {
            let minutes = status["minutes"].as_array().expect("minutes").iter();
            minutes.filter_map(|one| one[measure]["n"].as_u64()).sum()
        };
        // The slow call took 5 s, and so did the purchase.
        let slow = took("call").is_some_and(|most| most > 2.5)
            && took("bought").is_some_and(|most| most > 2.5)
            && of("call").is_some_and(|one| one["subject"] == "sandbox");
        let failing = of("attempt").is_some_and(|one| {
            one["failed"] == one["n"] && one["subject"] == shop.partner.partner_id.as_str()
        });
        // An order that was refused is no failure, and one that failed before verdicts came is none
        // that was refused.
        let stored = stack.stored().await?;
        let count = |refused: bool| -> u64 {
            let all = stored
                .iter()
                .filter(|one| one.refused == refused && (refused || one.topup == "failed"));
            u64::try_from(all.count()).unwrap_or(u64::MAX)
        };
        let apart =
            sums("refused") == count(true) && sums("failed") == count(false) && sums("parked") == 0;
        let answered = of("answered").is_some_and(|one| one["failed"] == 0);
        last = Some(status.clone());
        Ok((slow && failing && apart && answered).then_some(()))
    });
    found.await.with_context(|| format!("{last:?}")).unwrap();
    let page = console.get("/").await.unwrap();
    for part in [
        "Order to purchase",
        "Order to webhook",
        "Not taken at once",
        "100.0 %",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

/// A finding as one of the four views has it: how bad it is, and the exit status.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    attention: (String, i32),
    status: String,
    doctor: (String, i32),
    page: String,
}

impl Seen {
    /// What each of them has to say of a finding of this severity, if it is the worst one.
    fn as_worst(severity: &str) -> Self {
        let (doctor, class) = match severity {
            "fault" => (2, "bad"),
            "warning" => (1, "warn"),
            _ => (0, ""),
        };
        let severity = severity.to_owned();
        let needed = if severity == "mends" { 0 } else { 3 };
        Self {
            attention: (severity.clone(), needed),
            status: severity.clone(),
            doctor: (severity, doctor),
            page: class.to_owned(),
        }
    }
}

/// What the doctor leaves out, because these tests have nothing of it.
const WITHOUT: &str = "keys,nats,names,openid,backup";

/// The finding with these words in all four views, once all of them have it. The doctor also judges
/// how the server was set up for tests, unless that is left out.
async fn seen(
    stack: &Stack,
    console: &mut Console,
    words: &str,
    of_database: bool,
) -> Result<Option<Seen>> {
    let of = |view: &Value| {
        let lists = ["needs_person", "ends_by_itself"];
        let mut all = lists
            .into_iter()
            .filter_map(|list| view[list].as_array())
            .flatten();
        let found = all.find(|one| {
            one["told"]["what"]
                .as_str()
                .is_some_and(|it| it.contains(words))
        });
        found.and_then(|one| Some(one["told"]["severity"].as_str()?.to_owned()))
    };
    let ((exit, attention), status, page) = views(stack, console).await?;
    let without = if of_database {
        WITHOUT.to_owned()
    } else {
        format!("{WITHOUT},database")
    };
    let doctor = ["doctor", "--without", &without];
    let (code, doctor): (i32, Value) = stack.esimctl.run_allowing(&doctor, &[1, 2]).await?;
    let lines = doctor["lines"].as_array().context("lines")?.iter();
    let mut lines = lines.filter(|one| one["found"].as_str().is_some_and(|it| it.contains(words)));
    let line = lines.next().and_then(|one| one["state"].as_str());
    // The words stand behind the beginning of their item.
    let shown = page.find(words).and_then(|at| {
        let (_, item) = page[..at].rsplit_once("<li class=\"finding ")?;
        item.split('"').next()
    });
    let (Some(attention), Some(status), Some(line), Some(shown)) =
        (of(&attention), of(&status), line, shown)
    else {
        return Ok(None);
    };
    Ok(Some(Seen {
        attention: (attention, exit),
        status,
        doctor: (line.to_owned(), code),
        page: shown.trim().to_owned(),
    }))
}

/// Waits until all four views name it, and compares how bad they call it.
async fn seen_alike(
    stack: &Stack,
    console: &mut Console,
    (words, severity): (&str, &str),
) -> Result<()> {
    seen_by_all(stack, console, (words, severity), false).await
}

/// Does the same, and can have the doctor look at the database itself.
pub(crate) async fn seen_by_all(
    stack: &Stack,
    console: &mut Console,
    (words, severity): (&str, &str),
    of_database: bool,
) -> Result<()> {
    let began = Instant::now();
    let seen = async || seen(stack, console, words, of_database).await;
    let seen = wait::until(NAMED, words, seen).await?;
    println!("{words}: seen after {:?}", began.elapsed());
    ensure!(seen == Seen::as_worst(severity), "{words}: {seen:?}");
    Ok(())
}

/// Waits until `attention` says nothing of it any more.
pub(crate) async fn mended_again(stack: &Stack, words: &str) -> Result<()> {
    wait::until(NAMED, &format!("{words} to end"), async || {
        let (_, attention): (_, Value) =
            stack.esimctl.run_allowing(&["attention"], &[0, 3]).await?;
        Ok((!attention.to_string().contains(words)).then_some(()))
    })
    .await
}

/// Requests are counted in ticks of ten seconds. One in which an order got through does not show
/// that all fail, and one in which an order failed does not show that they get through again.
async fn next_tick() -> Result<()> {
    let tick = || runtime::clock::unix_seconds() / 10;
    let first = tick();
    wait::until(NAMED, "the next tick", async || {
        Ok((tick() > first).then_some(()))
    })
    .await
}

/// Each stage lives, and no order gets through: that is what partners feel.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_and_requests_that_all_fail_are_named_alike_everywhere() {
    const REFUSED: &str = "are refused with a 422";
    const DENIED: &str = "are answered with a 401";
    let stack = Stack::start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut console = Console::start(&stack, folder.path()).await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    verdicts_come(&stack, &shop.client).await.unwrap();
    let refused = stack.option("refused").unwrap();
    for _ in 0..10 {
        let answer = shop.client.order(&fresh("refused"), &[(refused, 1)]).await;
        assert_eq!(answer.unwrap().status, 422);
    }
    // All of them are orders of a test partner.
    seen_alike(&stack, &mut console, (REFUSED, "warning"))
        .await
        .unwrap();
    let partner = console
        .get(&format!("/partners/{}", shop.partner.partner_id))
        .await
        .unwrap();
    assert!(partner.contains(REFUSED), "{partner}");

    next_tick().await.unwrap();
    let ready = stack.option("ready").unwrap().to_owned();
    let mut all = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let bought = shop.buy(&fresh("good"), &ready, 1).await.unwrap();
        all.extend(ids(&bought));
    }
    mended_again(&stack, REFUSED).await.unwrap();
    shop.delivered(&all, SOON).await.unwrap();
    let (exit, attention): (_, Value) = stack
        .esimctl
        .run_allowing(&["attention"], &[0, 3])
        .await
        .unwrap();
    assert_eq!(exit, 0, "{attention}");
    let verdict = attention["verdict"].as_str().unwrap();
    assert!(verdict.starts_with("Everything works: 2"), "{verdict}");

    // Another partner, none of whose requests has a valid signature.
    let other = Shop::open(&stack).await.unwrap();
    for _ in 0..10 {
        let wrong = signing::SecretKey::from_bytes(vec![9; 32]).unwrap();
        let request = other.client.post("{}").secret(wrong);
        assert_eq!(request.send().await.unwrap().status, 401);
    }
    seen_alike(&stack, &mut console, (DENIED, "warning"))
        .await
        .unwrap();
}

/// A right of ingress is lost: it lives, reaches its database and has its pulse, and can store no
/// order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_right_is_named_by_the_orders_that_fail() {
    const FAIL: &str = "orders fail with a 5xx";
    let stack = Stack::start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut console = Console::start(&stack, folder.path()).await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let ready = stack.option("ready").unwrap().to_owned();
    shop.buy("before", &ready, 1).await.unwrap();
    let role = url::Url::parse(&stack.database.url_of("ingress").unwrap()).unwrap();
    let role = role.username().to_owned();
    let mut database = stack.database.connect().await.unwrap();
    let revoke = format!("REVOKE INSERT ON topups FROM {role}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(revoke))
        .execute(&mut database)
        .await
        .unwrap();
    next_tick().await.unwrap();
    for nth in 0..5 {
        let answer = shop
            .client
            .order(&format!("lost-{nth}"), &[(ready.as_str(), 1)])
            .await;
        assert_eq!(answer.unwrap().status, 500);
    }
    seen_alike(&stack, &mut console, (FAIL, "fault"))
        .await
        .unwrap();
    let grant = format!("GRANT INSERT ON topups TO {role}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(grant))
        .execute(&mut database)
        .await
        .unwrap();
    next_tick().await.unwrap();
    for nth in 0..5 {
        shop.buy(&format!("again-{nth}"), &ready, 1).await.unwrap();
    }
    mended_again(&stack, FAIL).await.unwrap();
}
