//! docs/metrics.md and what the services show at `/metrics` are the same.

use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use testkit::shop::{Shop, verdicts_come};
use testkit::stack::{Stack, Stage};
use testkit::wait;

const TOKEN: &str = "token-of-the-metrics-test";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Metric {
    kind: String,
    labels: BTreeSet<String>,
}

type Metrics = BTreeMap<(String, String), Metric>;

/// By service and name.
fn documented() -> Result<Metrics> {
    let text = std::fs::read_to_string(testkit::workspace().join("docs/metrics.md"))?;
    let mut metrics = Metrics::new();
    for row in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        // No cell has a bar in it.
        let [name, kind, unit, labels, meaning, services] = cells[..] else {
            anyhow::bail!("not six cells: {row}");
        };
        let name = name.trim_matches('`');
        anyhow::ensure!(!meaning.is_empty(), "{name} means nothing");
        anyhow::ensure!(
            (unit == "s") == name.contains("_seconds"),
            "{name} in {unit:?}"
        );
        let labels = labels
            .split(", ")
            .map(|label| label.trim_matches('`').to_owned());
        let metric = Metric {
            kind: kind.to_owned(),
            labels: labels.filter(|label| !label.is_empty()).collect(),
        };
        // The console is not part of this stack; tests/compose reads its metrics.
        for service in services.split(", ").filter(|name| *name != "console") {
            metrics.insert((service.to_owned(), name.to_owned()), metric.clone());
        }
    }
    Ok(metrics)
}

/// The exposition format: `# TYPE name kind`, then lines `name{label="value"} number`.
fn read(service: &str, text: &str, metrics: &mut Metrics) -> Result<()> {
    let mut kind_of = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.split_once(' '))
        {
            kind_of.insert(name, kind);
            continue;
        }
        if line.starts_with('#') {
            continue;
        }
        let (series, _) = line.rsplit_once(' ').context("no value")?;
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let suffixes = ["_bucket", "_sum", "_count"].into_iter();
        let mut bases = suffixes.filter_map(|suffix| name.strip_suffix(suffix));
        let base = bases
            .find(|base| kind_of.get(base) == Some(&"histogram"))
            .unwrap_or(name);
        let kind = kind_of
            .get(base)
            .with_context(|| format!("no type: {line}"))?;
        let metric = metrics
            .entry((service.to_owned(), base.to_owned()))
            .or_default();
        (*kind).clone_into(&mut metric.kind);
        // No value here has a quotation mark, a comma or an equals sign in it.
        let labels = labels.trim_end_matches('}').split(',');
        let names = labels.filter_map(|label| Some(label.split_once('=')?.0.to_owned()));
        metric.labels.extend(names.filter(|label| label != "le"));
    }
    Ok(())
}

async fn shown(stack: &mut Stack) -> Result<Metrics> {
    let mut metrics = Metrics::new();
    for stage in Stage::ALL {
        read(
            stage.name(),
            &stack.process(stage)?.metrics().await?,
            &mut metrics,
        )?;
    }
    Ok(metrics)
}

fn differences(documented: &Metrics, shown: &Metrics) -> Vec<String> {
    let mut differences = Vec::new();
    for ((service, name), metric) in documented {
        match shown.get(&(service.clone(), name.clone())) {
            None => differences.push(format!("{service} does not show {name}")),
            // What it is built from is known only in some builds.
            Some(shown) if name == "target_info" => {
                let unknown: Vec<_> = shown.labels.difference(&metric.labels).collect();
                if !unknown.is_empty() || shown.labels.len() + 1 < metric.labels.len() {
                    differences.push(format!("{service}: {name} has other labels: {unknown:?}"));
                }
            }
            // A label may be one of another service's series.
            Some(shown) if shown.kind != metric.kind || !shown.labels.is_subset(&metric.labels) => {
                differences.push(format!(
                    "{service}: {name} is {shown:?}, documented is {metric:?}"
                ));
            }
            Some(_) => {}
        }
    }
    for (service, name) in shown.keys() {
        if !documented.contains_key(&(service.clone(), name.clone())) {
            differences.push(format!("{service} shows {name}, which is not documented"));
        }
    }
    for (_, name) in documented.keys().filter(|(_, name)| name != "target_info") {
        let of = |metrics: &Metrics| -> BTreeSet<String> {
            let of_name = metrics.iter().filter(|((_, other), _)| other == name);
            of_name
                .flat_map(|(_, metric)| metric.labels.clone())
                .collect()
        };
        if of(documented) != of(shown) {
            let shown = of(shown);
            let documented = of(documented);
            differences.push(format!(
                "{name} has the labels {shown:?}, not {documented:?}"
            ));
        }
    }
    differences
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_is_what_there_is() {
    let documented = documented().unwrap();
    assert!(documented.len() > 30, "{documented:?}");
    // Airalo shows a balance.
    let builder = Stack::builder()
        .provider("airalo")
        .env(Stage::Provisioner, "SANDBOX_CALLBACK_TOKEN", TOKEN)
        .env(Stage::Notifier, "ENDPOINT_FAILURES", "1");
    let mut stack = builder.start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    // Verdicts, refusals, deliveries, a wrong signature, a callback that is none.
    verdicts_come(&stack, &shop.client).await.unwrap();
    let ready = stack.option("ready").unwrap().to_owned();
    let bought = shop.client.order("one", &[(&ready, 1)]).await.unwrap();
    let bought = bought.products().unwrap();
    // `sandbox` rejects it, and `airalo` sells it. The sandbox knows its options by the same ids in
    // both protocols; at Airalo a price follows.
    let airalo = async |name| {
        let option = stack.esimctl.option_of("airalo", name).await.unwrap();
        option.provider_option_id
    };
    let sold_out = airalo("out-of-stock").await;
    let routed = "01990000-0000-7000-8000-000000000001";
    let options = serde_json::json!({"options": [{
        "option_id": routed, "name": "routed", "environment": "live", "provider": "sandbox",
        "provider_option_id": sold_out.split('@').next(),
        "alternatives": [{"provider": "airalo", "provider_option_id": airalo("ready").await}],
    }]});
    stack.esimctl.import(options.to_string()).await.unwrap();
    shop.buy("routed", routed, 1).await.unwrap();
    let unsigned = shop.client.post("{}").header("x-service-signature", "00");
    assert_eq!(unsigned.send().await.unwrap().status, 401);
    let listen = stack.process(Stage::Provisioner).unwrap().program().env["LISTEN"].clone();
    let http = testkit::http::client().unwrap();
    let callback = http.post(format!("http://{listen}/callbacks/sandbox/{TOKEN}"));
    assert_eq!(callback.body("{}").send().await.unwrap().status(), 400);
    shop.receiver
        .wait_for(2, Duration::from_secs(20))
        .await
        .unwrap();
    // People at Airalo decide, so the give-back is a claim.
    let path = format!(
        "/api/v1/api_partner/topups/{}/give-back",
        bought[0].topup_id
    );
    let give_back = shop.client.post(String::new()).path(&path);
    assert_eq!(give_back.send().await.unwrap().status, 202);
    // The provider has no such package, which ends the extension.
    let mut database = stack.database.connect().await.unwrap();
    let extension = "WITH x AS (
            INSERT INTO extensions (extension_id, partner_id, topup_id, provider, external_id, option_id, provider_option_id)
            SELECT gen_random_uuid(), p.partner_id, t.topup_id, p.provider, 'more-1', t.option_id, 'none'
            FROM topups t JOIN placements p USING (placement_id) WHERE t.topup_id = $1
            RETURNING topup_id, provider, partner_id)
        INSERT INTO work (id, kind, provider, lane, partner_id, at)
        SELECT derived_id('extend', topup_id), 'extend', provider, topup_id, partner_id, now() FROM x";
    let extending = sqlx::query(extension).bind(&bought[0].topup_id);
    extending.execute(&mut database).await.unwrap();
    // A block is told to a partner with a verified channel.
    let channel = "INSERT INTO partner_endpoints (endpoint_id, partner_id, nth, purpose, url, events, verified_at)
                   SELECT gen_random_uuid(), partner_id, 1, 'notices', url, '{}', now() FROM partner_endpoints";
    sqlx::query(channel).execute(&mut database).await.unwrap();
    shop.receiver.fail_first(testkit::shop::PATH, 500);
    shop.buy("two", &ready, 1).await.unwrap();
    // The provider hangs.
    for faults in [r#"{"down":true}"#, "{}"] {
        stack.set_faults(faults).await.unwrap();
        let order = http.post(format!("{}/api/v2/order", stack.sandbox_url));
        assert_eq!(order.body("{}").send().await.is_err(), faults != "{}");
    }

    let mut last = Vec::new();
    let same = wait::until(
        Duration::from_secs(20),
        "the table to be what there is",
        async || {
            last = differences(&documented, &shown(&mut stack).await?);
            Ok(last.is_empty().then_some(()))
        },
    );
    let same = same.await;
    same.unwrap_or_else(|error| panic!("{error:#}\n{}", last.join("\n")));
}
