//! After real traffic with failures and at the most verbose log level: no telemetry, log or message
//! between the services holds a secret. The search uses the real values.

use crate::secrets::Secrets;
use crate::sink::Sink;
use anyhow::{Context, Result};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use http_body_util::Full;
use hyper::{Request, Response};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde_json::Value;
use signing::SecretKey;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::mailbox::{Mail, MailRelay};
use testkit::nats::NatsServer;
use testkit::shop::Shop;
use testkit::stack::{CALLBACK_TOKEN, Stack, Stage};
use testkit::{http, wait};
use tokio::net::TcpListener;

const COLLECTOR_KEY: &str = "what-the-collector-lets-us-in-for";
const NATS_PASSWORD: &str = "what-nats-lets-us-in-for";
/// The channel for notices of the partner whose endpoint fails.
const EMAIL: &str = "leaky.recipient@shop.example";
/// The value of a header that a partner has set for a further endpoint.
const GATEWAY_KEY: &str = "what-the-gateway-of-a-partner-asks-for";

/// Creates a further endpoint with a header, and returns its secret.
async fn further_endpoint(shop: &Shop) -> Result<String> {
    let body = serde_json::json!({
        "url": shop.receiver.url("/further"), "headers": {"x-api-key": GATEWAY_KEY},
    });
    let request = shop.client.post(body.to_string());
    let created = request.path("/api/v1/api_partner/endpoints").send().await?;
    let secret = created.json()?["webhook_secret"]
        .as_str()
        .context("no secret")?
        .to_owned();
    shop.receiver.verify("/further", &secret)?;
    Ok(secret)
}

/// Opens the page from which a traveller installs an eSIM, also after its end, and returns the
/// tokens of both pages.
async fn install_pages(shop: &Shop) -> Result<[String; 2]> {
    let api = "/api/v1/api_partner";
    let set = serde_json::json!({
        "name": "Norvada", "brand": "#000000", "brand_ink": "#ffffff", "help_email": "help@norvada.example",
        "install_urls": true,
    });
    let set = shop.client.post(set.to_string()).method("PUT");
    let set = set.path(&format!("{api}/account/install-pages")).send();
    anyhow::ensure!(set.await?.status == 200);
    let order = shop.client.get(&format!("{api}/orders/arrives")).send();
    let order = order.await?.json()?;
    let topup = order["topups"][0]["topup_id"]
        .as_str()
        .context("no topup")?;
    let path = format!("{api}/topups/{topup}/install-page");
    let mut tokens = [String::new(), String::new()];
    for token in &mut tokens {
        let opened = shop.client.post("").path(&path).send().await?.json()?;
        let url = opened["install_url"].as_str().context("no address")?;
        url.rsplit('/').next().unwrap_or_default().clone_into(token);
        let http = http::client()?;
        let page = http.get(format!("{url}?lang=de")).send().await?;
        let code = order["topups"][0]["esim"]["activate_code"].as_str();
        anyhow::ensure!(page.text().await?.contains(code.context("no code")?));
        anyhow::ensure!(http.get(format!("{url}x")).send().await?.status() == 404);
        let ended = shop.client.post("").method("DELETE").path(&path);
        anyhow::ensure!(ended.send().await?.status == 200);
        anyhow::ensure!(http.get(url).send().await?.status() == 404);
    }
    Ok(tokens)
}

/// An endpoint that echoes the request, as careless ones do: in the body, in headers, as an error.
struct Echo {
    url: String,
    heard: Arc<Mutex<Vec<Heard>>>,
}

#[derive(Clone, Debug)]
struct Heard {
    body: Value,
    signature: String,
}

impl Echo {
    async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!(
            "http://{}/echo?key=endpoint-key-in-the-url",
            listener.local_addr()?
        );
        let heard = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&heard);
        drop(http::serve(listener, move |request| {
            let answer = echo(&shared, request);
            async { answer }
        }));
        Ok(Self { url, heard })
    }

    fn heard(&self) -> Vec<Heard> {
        self.heard.lock().unwrap().clone()
    }
}

fn echo(heard: &Mutex<Vec<Heard>>, request: Request<Bytes>) -> Result<Response<Full<Bytes>>> {
    let signature = request.headers()["webhook-signature"].clone();
    let body = request.into_body();
    heard.lock().unwrap().push(Heard {
        body: serde_json::from_slice(&body).unwrap_or_default(),
        signature: signature.to_str()?.to_owned(),
    });
    let text = String::from_utf8_lossy(&body).into_owned();
    let response = Response::builder()
        .status(500)
        .header("x-echo-signature", signature)
        .header(
            "location",
            format!("/{}", utf8_percent_encode(&text, NON_ALPHANUMERIC)),
        );
    Ok(response.body(Full::new(body))?)
}

/// Collects every NATS message from now on.
async fn tap(url: &str) -> Result<Arc<Mutex<Vec<Bytes>>>> {
    let client = testkit::nats::connect(url).await?;
    let mut all = client.subscribe(">").await?;
    client.flush().await?;
    let heard = Arc::new(Mutex::new(Vec::new()));
    let shared = Arc::clone(&heard);
    tokio::spawn(async move {
        while let Some(message) = all.next().await {
            let headers = message.headers.map(|headers| format!("{headers:?}"));
            let mut heard = shared.lock().unwrap();
            heard.extend(headers.map(Bytes::from));
            heard.push(Bytes::from(message.subject.to_string()));
            heard.push(message.payload);
        }
        drop(client);
    });
    Ok(heard)
}

/// Every message that a stream still has.
async fn stored(url: &str) -> Result<(Vec<String>, Vec<Bytes>)> {
    let jetstream = async_nats::jetstream::new(testkit::nats::connect(url).await?);
    let mut streams = jetstream.streams();
    let mut names = Vec::new();
    let mut messages = Vec::new();
    while let Some(info) = streams.try_next().await? {
        let stream = jetstream.get_stream(&info.config.name).await?;
        for number in info.state.first_sequence..=info.state.last_sequence {
            // Acknowledged messages are deleted.
            if let Ok(message) = stream.get_raw_message(number).await {
                messages.push(Bytes::from(format!("{:?}", message.headers)));
                messages.push(message.payload);
                names.push(info.config.name.clone());
            }
        }
    }
    Ok((names, messages))
}

async fn rows(stack: &Stack) -> Result<Vec<String>> {
    let mut database = stack.database.connect().await?;
    let tables =
        "SELECT relname::text FROM pg_stat_user_tables WHERE n_live_tup > 0 OR n_tup_ins > 0";
    let tables: Vec<String> = sqlx::query_scalar(tables).fetch_all(&mut database).await?;
    anyhow::ensure!(tables.len() > 5, "{tables:?}");
    let mut rows = Vec::new();
    for table in tables {
        // A profile is sealed, and text in bytes is searched for as well.
        let all = format!("SELECT one::text FROM {table} one");
        let all: Vec<String> = sqlx::query_scalar(sqlx::AssertSqlSafe(all))
            .fetch_all(&mut database)
            .await?;
        rows.extend(all);
    }
    Ok(rows)
}

/// A NATS server that demands a password, which stands in its URL as after a local start.
async fn nats(folder: &Path) -> Result<(NatsServer, String)> {
    let conf = folder.join("nats.conf");
    let user = format!("{{ user: leaky, password: \"{NATS_PASSWORD}\" }}");
    std::fs::write(&conf, format!("authorization {{ users = [{user}] }}\n"))?;
    let server = NatsServer::start_with(folder, Some(&conf)).await?;
    let login = format!("nats://leaky:{NATS_PASSWORD}@");
    let url = server.url().replace("nats://", &login);
    Ok((server, url))
}

async fn start(sink: &Sink, relay: &MailRelay, nats_url: &str) -> Result<Stack> {
    let headers = format!("authorization={COLLECTOR_KEY}");
    let smtp_url = format!("smtp://{}?tls=none", relay.host());
    let mut builder = sink
        .hears(Stack::builder())
        .nats(nats_url)
        .callbacks()
        .env(Stage::Ingress, "MAIL_FROM", "noreply@esim.example")
        .env(Stage::Notifier, "MAIL_FROM", "noreply@esim.example")
        .env(Stage::Notifier, "SMTP_URL", &smtp_url)
        .env(Stage::Notifier, "ENDPOINT_FAILURES", "3")
        .env(Stage::Provisioner, "PARK_AFTER", "1s")
        .env(Stage::Notifier, "RETRY_SCHEDULE", "200ms,200ms");
    for stage in Stage::ALL {
        builder = builder
            .env(stage, "LOG", "trace")
            .env(stage, "LOG_FORMAT", "json")
            .env(stage, "OTEL_EXPORTER_OTLP_HEADERS", &headers);
    }
    builder.start().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_is_in_logs_metrics_traces_or_messages() {
    let sink = Sink::start().await.unwrap();
    let relay = MailRelay::start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (_server, nats_url) = nats(folder.path()).await.unwrap();
    let mut stack = start(&sink, &relay, &nats_url).await.unwrap();
    let tapped = tap(&nats_url).await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let echo = Echo::start().await.unwrap();
    let careless = stack
        .create_partner("sandbox", Some(&echo.url))
        .await
        .unwrap();
    let code = channel(&stack, &careless, &relay).await.unwrap();
    let further = further_endpoint(&shop).await.unwrap();
    let signatures = traffic(&stack, &nats_url, &shop, &careless, &echo)
        .await
        .unwrap();

    let [first_page, second_page] = install_pages(&shop).await.unwrap();

    let told = told(&relay).await.unwrap();
    let mut secrets = real_values(&mut stack, &shop, &careless, &echo, &signatures);
    for mail in told {
        secrets.search("a mail", mail.text.as_bytes());
    }
    secrets.add("the address for notices", EMAIL);
    secrets.add("the code for notices", &code);
    secrets.add("a header of a further endpoint", GATEWAY_KEY);
    secrets.add("the token of a page to install from", &first_page);
    secrets.add("the token of the next page", &second_page);
    secrets.add_base64(
        "the secret of a further endpoint",
        further.trim_start_matches("whsec_"),
    );

    // Everything that was exported, logged, stored or published.
    let heard = sink.wait_until("logs of everybody", |book| {
        let logs = |service: &str| book.logs.iter().any(|log| log.service == service);
        Stage::ALL.iter().map(|stage| stage.name()).all(logs)
            && book
                .spans
                .iter()
                .any(|span| span.name == "GET /qr/{text}/{size}")
            && book.spans.iter().any(|span| span.name == "GET /i/{token}")
            && book.spans.iter().any(|span| span.service == "sandbox")
            && book
                .spans
                .iter()
                .any(|span| span.failed && span.name == "POST webhook")
    });
    heard.await.unwrap();
    for stage in Stage::ALL {
        let metrics = stack.process(stage).unwrap().metrics().await.unwrap();
        secrets.search("the metrics", metrics.as_bytes());
    }
    let (streams, messages) = stored(&nats_url).await.unwrap();
    let dead = streams.iter().any(|name| name.ends_with("TOPUP_DEAD"));
    assert!(dead, "{streams:?}");
    for message in messages {
        secrets.search("a stored NATS message", &message);
    }
    for row in rows(&stack).await.unwrap() {
        // A webhook URL is stored as it is, and so is an address.
        let row = row
            .replace("endpoint-key-in-the-url", "")
            .replace(EMAIL, "");
        secrets.search("the database", row.as_bytes());
    }
    for stage in Stage::ALL {
        // Output during the stop counts too.
        let process = stack.process(stage).unwrap();
        process.terminate(Duration::from_secs(20)).await.unwrap();
        let log = process.log().unwrap();
        assert!(
            log.contains("\"level\":\"TRACE\""),
            "{stage:?} logs all it can"
        );
        for line in log.lines() {
            secrets.search("a log line", line.as_bytes());
        }
    }
    let messages = tapped.lock().unwrap().clone();
    assert!(
        messages
            .iter()
            .any(|message| message.starts_with(b"{\"type\":\"topup.job.v1\""))
    );
    for message in messages {
        secrets.search("a NATS message", &message);
    }
    let book = sink.book();
    assert_eq!(
        book.authorization.iter().collect::<Vec<_>>(),
        [COLLECTOR_KEY]
    );
    for message in &book.raw {
        secrets.search("an OTLP message", message);
    }
    let folder = stack.process(Stage::Ingress).unwrap().program().log.clone();
    for file in std::fs::read_dir(folder.parent().unwrap()).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "log") {
            secrets.search(&path.display().to_string(), &std::fs::read(&path).unwrap());
        }
    }
    secrets.found_nothing();
}

/// The secrets of this run: what must be found nowhere.
fn real_values(
    stack: &mut Stack,
    shop: &Shop,
    careless: &testkit::esimctl::Partner,
    echo: &Echo,
    signatures: &[String],
) -> Secrets {
    let mut secrets = Secrets::default();
    secrets.add("the callback token", CALLBACK_TOKEN);
    secrets.add("the collector's key", COLLECTOR_KEY);
    secrets.add("the key in a webhook URL", "endpoint-key-in-the-url");
    for partner in [&shop.partner, careless] {
        secrets.add_base64("a secret key", &partner.secret_key);
        secrets.add_base64(
            "a webhook secret",
            partner.webhook_secret.trim_start_matches("whsec_"),
        );
    }
    let settings = stack
        .process(Stage::Provisioner)
        .unwrap()
        .program()
        .env
        .clone();
    let (_, master_key) = settings["MASTER_KEY"].split_once(':').unwrap();
    secrets.add_base64("the master key", master_key);
    secrets.add_base64("the provider's secret", &settings["SANDBOX_SECRET_KEY"]);
    secrets.add("the password of NATS", NATS_PASSWORD);
    for stage in [Stage::Ingress, Stage::Provisioner, Stage::Notifier] {
        let settings = stack.process(stage).unwrap().program().env.clone();
        let login = settings["DATABASE_URL"].split(['/', '@']).nth(2).unwrap();
        let (_, password) = login.split_once(':').expect("a password");
        let password = percent_decode_str(password).decode_utf8().unwrap();
        secrets.add("a password of the database", &password);
    }
    for signature in signatures {
        secrets.add("a request's signature", signature);
    }
    let received = shop.receiver.received();
    let webhooks = received.len() + echo.heard().len();
    for webhook in received {
        secrets.add_webhook(
            &webhook.json,
            webhook.headers["webhook-signature"].to_str().unwrap(),
        );
    }
    for webhook in echo.heard() {
        secrets.add_webhook(&webhook.body, &webhook.signature);
    }
    assert!(webhooks >= 5, "{webhooks}");
    secrets
}

/// The mails so far, once one of them tells of the blocked endpoint.
async fn told(relay: &MailRelay) -> Result<Vec<Mail>> {
    let is_told = |mail: &Mail| mail.header("Subject").contains("blocked");
    let told = relay.wait_until(
        Duration::from_secs(20),
        "the mail about the block",
        |mails| mails.iter().any(is_told),
    );
    told.await
}

/// Sets and verifies an e-mail address for the notices of a partner. Returns the code.
async fn channel(
    stack: &Stack,
    partner: &testkit::esimctl::Partner,
    relay: &MailRelay,
) -> Result<String> {
    let client = stack.client(partner)?;
    let body = serde_json::json!({"email": EMAIL}).to_string();
    let set = client
        .post(body)
        .method("PUT")
        .path("/api/v1/api_partner/notices");
    anyhow::ensure!(set.send().await?.status == 200);
    let mails = relay.wait_until(Duration::from_secs(20), "the code", |mails| {
        !mails.is_empty()
    });
    let mails = mails.await?;
    let mut lines = mails[0].text.lines();
    let code = lines.find_map(|line| line.trim().strip_prefix("code: "));
    let code = code.context("no code")?.to_owned();
    let body = serde_json::json!({"code": code}).to_string();
    let verify = client.post(body).path("/api/v1/api_partner/notices/verify");
    anyhow::ensure!(verify.send().await?.status == 200);
    Ok(code)
}

/// Orders that arrive, that are echoed back, that are parked and that fail; wrong signatures,
/// pictures, and an unreadable message. Returns the signatures of the requests.
async fn traffic(
    stack: &Stack,
    nats_url: &str,
    shop: &Shop,
    careless: &testkit::esimctl::Partner,
    echo: &Echo,
) -> Result<Vec<String>> {
    let mut signatures = Vec::new();
    let mut order = async |client: &testkit::client::Client,
                           id: &str,
                           option: &str,
                           units: u32|
           -> Result<u16> {
        let body = testkit::client::order(id, &[(stack.option(option)?, units)]).to_string();
        let request = client.post(body);
        signatures.push(request.signature());
        Ok(request.send().await?.status)
    };
    let to_echo = stack.client(careless)?;
    for (client, id, option, units) in [
        (&shop.client, "arrives", "ready", 2),
        (&shop.client, "arrives later", "delayed", 1),
        (&shop.client, "fails in part", "partly", 2),
        (&shop.client, "is parked", "never-ready", 1),
        (&to_echo, "is echoed", "ready", 1),
    ] {
        anyhow::ensure!(order(client, id, option, units).await? == 201, "{id}");
    }
    anyhow::ensure!(order(&shop.client, "is refused", "refused", 1).await? >= 201);
    // Signed with another partner's secret, and with an invented signature.
    let stranger = SecretKey::from_base64("c29tZWJvZHkgZWxzZSdzIGtleQ==")?;
    let wrong = shop.client.post("{}").secret(stranger);
    signatures.push(wrong.signature());
    anyhow::ensure!(wrong.send().await?.status == 401);
    let stale = shop.client.post("{}").timestamp_from_now(-1000);
    signatures.push(stale.signature());
    anyhow::ensure!(stale.send().await?.status == 401);
    let odd = shop.client.post("{\"external_order_id\":");
    signatures.push(odd.signature());
    anyhow::ensure!(odd.send().await?.status == 400);

    // A message that no handler can read.
    let jetstream = async_nats::jetstream::new(testkit::nats::connect(nats_url).await?);
    jetstream
        .publish(
            format!("{}topup.job.sandbox", stack.prefix),
            "unreadable".into(),
        )
        .await?
        .await?;

    let webhooks = shop.receiver.wait_for(4, Duration::from_secs(20)).await?;
    let echoed = async || Ok((echo.heard().len() >= 3).then_some(()));
    wait::until(
        Duration::from_secs(20),
        "three attempts to be echoed",
        echoed,
    )
    .await?;
    // The partner looks its order up, and what its endpoint answered.
    let order = shop
        .client
        .get("/api/v1/api_partner/orders/arrives")
        .send()
        .await?;
    anyhow::ensure!(order.json()?["topups"][0]["esim"]["activate_code"].is_string());
    let echoed = echo.heard()[0].body["topup_id"].clone();
    let path = format!(
        "/v1/api_partner/topups/{}/deliveries",
        echoed.as_str().context("no topup")?
    );
    anyhow::ensure!(stack.client(careless)?.get(&path).send().await?.status == 200);
    // Pictures: as the webhook says, and in ways that don't work.
    let http = http::client()?;
    for webhook in &webhooks {
        let picture = webhook.json["qrcode_img_url"]
            .as_str()
            .context("no picture")?;
        anyhow::ensure!(http.get(picture).send().await?.status() == 200);
        let (path, _) = picture.rsplit_once('/').context("no size")?;
        anyhow::ensure!(http.get(format!("{path}/3")).send().await?.status() == 404);
        anyhow::ensure!(http.post(picture).send().await?.status() == 405);
        let code = webhook.json["activate_code"].as_str().context("no code")?;
        anyhow::ensure!(
            http.get(format!("{}/{code}", stack.base_url))
                .send()
                .await?
                .status()
                == 404
        );
    }
    let mut database = stack.database.connect().await?;
    wait::until(Duration::from_secs(20), "a parked placement", async || {
        let parked: i64 =
            sqlx::query_scalar("SELECT count(*) FROM placements WHERE state = 'parked'")
                .fetch_one(&mut database)
                .await?;
        Ok((parked > 0).then_some(()))
    })
    .await?;
    Ok(signatures)
}
