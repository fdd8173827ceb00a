//! The demo: a new sandbox partner orders three eSIMs and gets three webhooks. It also proves that
//! an installation works.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use fast_qr::QRBuilder;
use std::collections::HashSet;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use testkit::client::{Client, ORDERS, Product};
use testkit::esimctl::{Esimctl, OrderTimes};
use testkit::progress::Progress;
use testkit::receiver::{Received, Receiver};
use testkit::wait;
use time::OffsetDateTime;
use uuid::Uuid;

const PATH: &str = "/webhooks";
/// The sandbox options that are ordered, and the number of eSIMs of each.
const ORDER: [(&str, u32); 2] = [("ready", 2), ("delayed", 1)];
/// The fields of a webhook, in the order of the specification.
const FIELDS: &str = "topup_id option_id iccid smdp activate_code download_link qrcode_img_url expired_date external_order_id";

/// Order three eSIMs of the sandbox and print the webhooks that arrive
///
/// A new sandbox partner is created for this. Nothing is bought, because sandbox eSIMs are made up.
/// The exit status is 0 only if every webhook arrived with a valid signature.
#[derive(Parser)]
#[command(
    after_help = "deploy/local/demo starts the whole system and runs this with the settings of .local/env."
)]
struct Settings {
    /// Base URL of ingress, for example `http://127.0.0.1:18080`
    #[arg(long, env = "BASE_URL")]
    base_url: String,
    /// Provider to buy from: `sandbox`, or one whose account is at the sandbox
    ///
    /// `deploy/local/demo --provider NAME` connects `airalo`, `esim-access`, `usimsa` or `zendit`
    /// to the sandbox, which speaks the protocols of all of them.
    #[arg(long, default_value = "sandbox")]
    provider: String,
    /// Number of seconds to wait for the webhooks
    #[arg(long, default_value_t = 60)]
    timeout: u64,
}

#[tokio::main]
async fn main() -> ExitCode {
    match show(&Settings::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let logs = testkit::local_dir().join("log");
            eprintln!(
                "\ndemo: {error:#}\nThe services' logs are in {}.",
                logs.display()
            );
            ExitCode::FAILURE
        }
    }
}

struct Order {
    external_order_id: String,
    products: Vec<Product>,
    sent: Instant,
    answer_took: Duration,
}

async fn show(settings: &Settings) -> Result<()> {
    println!(
        "Sandbox test data: the eSIMs below are made up, nothing is bought, so they may be printed.\n"
    );
    let endpoint = Receiver::start().await?;
    let esimctl = Esimctl::new([]).acting_as("demo");
    let name = format!("demo {}", Uuid::now_v7());
    let partner = esimctl
        .create_partner(&name, environment(settings), Some(&endpoint.url(PATH)))
        .await?;
    endpoint.verify(PATH, &partner.webhook_secret)?;
    println!(
        "Partner     {} with access key {}",
        partner.partner_id, partner.access_key
    );
    println!("Webhooks    {}", endpoint.url(PATH));

    let order = place(
        settings,
        &esimctl,
        &Client::of(&settings.base_url, &partner)?,
    )
    .await?;
    let webhooks = follow(&endpoint, &order, Duration::from_secs(settings.timeout)).await;

    let expected = order.products.len();
    if let Some(link) = webhooks
        .first()
        .and_then(|webhook| webhook.json["download_link"].as_str())
    {
        println!("\nThe first eSIM, for a phone's camera:\n\n{}", draw(link)?);
    }
    println!("{} of {expected} webhooks arrived", webhooks.len());
    report(&order, &webhooks);
    ensure!(
        webhooks.len() == expected,
        "webhooks that are missing: {}",
        expected - webhooks.len()
    );
    let invalid = webhooks
        .iter()
        .filter(|webhook| !webhook.is_valid())
        .count();
    ensure!(invalid == 0, "{invalid} webhooks carry no valid signature");
    // All webhooks have arrived, so a failure here is not a failure of the demo.
    if let Err(error) = report_stages(&esimctl, &order).await {
        eprintln!("cannot show the stored times: {error:#}");
    }
    Ok(())
}

/// The environment of the demo's partner. Partners of the sandbox environment buy from the sandbox
/// only.
fn environment(settings: &Settings) -> &'static str {
    if settings.provider == "sandbox" {
        "sandbox"
    } else {
        "live"
    }
}

async fn place(settings: &Settings, esimctl: &Esimctl, client: &Client) -> Result<Order> {
    let mut items = Vec::new();
    for (name, qty) in ORDER {
        let option = esimctl.option_of(&settings.provider, name).await?;
        items.push((option.option_id, qty));
    }
    let items: Vec<(&str, u32)> = items
        .iter()
        .map(|(option_id, qty)| (option_id.as_str(), *qty))
        .collect();
    let external_order_id = format!("demo-{}", Uuid::now_v7());
    println!(
        "\nPOST {}{ORDERS}\n{}",
        settings.base_url,
        testkit::client::order(&external_order_id, &items)
    );

    let sent = Instant::now();
    let answer = client
        .order(&external_order_id, &items)
        .await
        .context("the order got no answer")?;
    println!("\n{} after {}", answer.status, millis(answer.took));
    let products = answer.products()?;
    for product in &products {
        println!(
            "  topup {} of option {}",
            product.topup_id, product.option_id
        );
    }
    let expected: usize = ORDER.iter().map(|(_, qty)| *qty as usize).sum();
    ensure!(
        products.len() == expected,
        "the answer has {} topups instead of {expected}",
        products.len()
    );
    Ok(Order {
        external_order_id,
        products,
        sent,
        answer_took: answer.took,
    })
}

/// Prints the first webhook of each topup when it arrives. Returns when all have arrived, or after
/// `timeout`.
async fn follow(receiver: &Receiver, order: &Order, timeout: Duration) -> Vec<Received> {
    let topups: HashSet<&str> = order
        .products
        .iter()
        .map(|product| product.topup_id.as_str())
        .collect();
    let mut first: Vec<Received> = Vec::new();
    let mut progress = Progress::start();
    println!();
    while first.len() < topups.len() {
        let arrived = first.len();
        let all = topups.len();
        progress.show(format!(
            "{arrived} of {all} webhooks arrived, waiting for the others"
        ));
        let is_new = |webhook: &Received| {
            let seen = first.iter().any(|one| one.topup_id() == webhook.topup_id());
            topups.contains(webhook.topup_id()) && !seen
        };
        let left = timeout.saturating_sub(order.sent.elapsed());
        let waiting = receiver.wait_until(left, "the next webhook", |all| all.iter().any(is_new));
        let Ok(received) = waiting.await else { break };
        let Some(webhook) = received.into_iter().find(is_new) else {
            break;
        };
        progress.print(&describe(
            &webhook,
            arrived + 1,
            all,
            webhook.at - order.sent,
        ));
        first.push(webhook);
    }
    first
}

fn describe(webhook: &Received, number: usize, of: usize, after: Duration) -> String {
    let verdict = if webhook.is_valid() {
        "signature valid"
    } else {
        "SIGNATURE INVALID"
    };
    let fields: Vec<String> = FIELDS
        .split(' ')
        .map(|field| {
            format!(
                "  {field:<18}{}\n",
                webhook.json[field].as_str().unwrap_or("(missing)")
            )
        })
        .collect();
    let fields = fields.concat();
    format!(
        "Webhook {number} of {of}, {} after the order, {verdict}\n{fields}",
        millis(after)
    )
}

/// Draws a QR code in half blocks. The light modules are drawn, so that cameras can read it on a
/// dark terminal.
fn draw(text: &str) -> Result<String> {
    let code = QRBuilder::new(text).build();
    Ok(code
        .context("the download link doesn't fit a QR code")?
        .to_str())
}

/// Prints the latencies that the partner sees.
fn report(order: &Order, received: &[Received]) {
    let after: Vec<Duration> = received
        .iter()
        .map(|webhook| webhook.at - order.sent)
        .collect();
    println!(
        "  answer         {:>8} after the order was sent",
        millis(order.answer_took)
    );
    if let (Some(first), Some(last)) = (after.iter().min(), after.iter().max()) {
        println!("  first webhook  {:>8}", millis(*first));
        println!(
            "  last webhook   {:>8}   (option `delayed` takes the provider about 2 s)",
            millis(*last)
        );
    }
}

/// Prints how long each stage took, according to the times that are stored with the order.
async fn report_stages(esimctl: &Esimctl, order: &Order) -> Result<()> {
    // The notifier records the acknowledgement a moment after the endpoint has sent it.
    let stored = wait::until(
        Duration::from_secs(5),
        "the deliveries to be stored",
        async || {
            let orders = esimctl.order_times(&order.external_order_id).await?;
            let delivered =
                |one: &OrderTimes| one.topups.iter().all(|topup| topup.delivered_at.is_some());
            Ok(orders.into_iter().find(delivered))
        },
    );
    let stored = stored.await?;
    println!(
        "\nBy the times stored with the order, in ms:\n  {:<28}bought   ready  delivered",
        "topup"
    );
    for topup in &stored.topups {
        let placement = stored
            .placements
            .iter()
            .find(|one| one.placement_id == topup.placement_id);
        let placed_at = placement.and_then(|one| one.placed_at);
        println!(
            "  {:<26}{:>8}{:>8}{:>11}",
            topup.topup_id,
            between(Some(stored.created_at), placed_at),
            between(placed_at, topup.ready_at),
            between(topup.ready_at, topup.delivered_at)
        );
    }
    Ok(())
}

fn between(from: Option<OffsetDateTime>, until: Option<OffsetDateTime>) -> String {
    let took = from
        .zip(until)
        .map(|(from, until)| (until - from).whole_milliseconds());
    took.map_or("?".to_owned(), |millis| millis.to_string())
}

fn millis(duration: Duration) -> String {
    format!("{} ms", duration.as_millis())
}
