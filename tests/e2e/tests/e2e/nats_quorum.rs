//! A cluster of three NATS servers loses two of them. The third one still accepts connections, but
//! nothing can be stored, so for the stages NATS is as much down as if all three were dead.

use crate::shop::{Shop, bought_once, fresh, ids, verdicts_come};
use anyhow::Result;
use serde_json::json;
use std::time::{Duration, Instant};
use testkit::nats::NatsCluster;
use testkit::stack::{Stack, Stage};
use testkit::wait;

/// What a stage logs when it notices the loss, and when that ends.
const BEGIN: &str = "JetStream stores no messages";
const END: &str = "JetStream stores messages again";

/// A stack on a cluster, whose streams have a copy on each of its servers.
async fn start(cluster: &NatsCluster) -> Result<Stack> {
    let url = cluster.url();
    Stage::OURS
        .into_iter()
        .fold(Stack::builder(), |builder, stage| {
            builder
                .env(stage, "NATS_URL", &url)
                .env(stage, "STREAM_REPLICAS", "3")
        })
        .start()
        .await
}

/// Makes this server the leader of both streams of work.
async fn lead(stack: &Stack, cluster: &NatsCluster, server: usize) {
    let name = format!("nats-{server}");
    let url = cluster.servers[server].url();
    let client = async_nats::connect(url).await.unwrap();
    let jetstream = async_nats::jetstream::new(client.clone());
    for stream in ["TOPUP_JOBS", "TOPUP_READY"] {
        let stream = format!("{}{stream}", stack.prefix);
        wait::soon(&format!("{name} to lead {stream}"), async || {
            // Nobody responds during an election.
            let Ok(found) = jetstream.get_stream(&stream).await else {
                return Ok(None);
            };
            let cluster = found.cached_info().cluster.as_ref();
            if cluster.and_then(|cluster| cluster.leader.as_ref()) == Some(&name) {
                return Ok(Some(()));
            }
            let preferred = json!({ "placement": { "preferred": name } });
            let call = format!("$JS.API.STREAM.LEADER.STEPDOWN.{stream}");
            let _ = client.request(call, preferred.to_string().into()).await;
            Ok(None)
        })
        .await;
    }
}

/// Waits until every stage shows this value of `esim_nats_up`.
async fn all_show(stack: &mut Stack, up: u8) {
    let line = format!("esim_nats_up {up}");
    for stage in Stage::OURS {
        let process = &*stack.process(stage).unwrap();
        let what = format!("{}: {line}", stage.name());
        wait::soon(&what, async || {
            let metrics = process.metrics().await?;
            Ok(metrics.lines().any(|shown| shown == line).then_some(()))
        })
        .await;
    }
}

/// How often each stage has logged a line with this text.
fn logged(stack: &mut Stack, text: &str) -> Vec<usize> {
    let lines = |stage| {
        let log = stack.process(stage).unwrap().log().unwrap();
        log.lines().filter(|line| line.contains(text)).count()
    };
    Stage::OURS.into_iter().map(lines).collect()
}

/// Which server survives makes a difference: a leader goes on answering questions about its stream
/// for some 20 s, and calls the dead servers up to date. Without the leader nobody answers them.
#[tokio::test]
async fn two_dead_servers_of_three_delay_an_order_no_more_than_three() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = NatsCluster::start(folder.path()).await.unwrap();
    let mut stack = start(&cluster).await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let ready = stack.option("ready").unwrap().to_owned();
    verdicts_come(&stack, &shop.client).await.unwrap();

    let rounds = [("the leader", 0, 0), ("a follower", 1, 2)];
    for (survives, leader, survivor) in rounds {
        lead(&stack, &cluster, leader).await;
        // An election may count as an outage, and it is over before the real one begins.
        all_show(&mut stack, 1).await;
        let before = logged(&mut stack, BEGIN);
        let killed = [(survivor + 1) % 3, (survivor + 2) % 3];
        for number in killed {
            cluster.servers[number].process.kill().await.unwrap();
        }
        let began = Instant::now();
        all_show(&mut stack, 0).await;
        let noticed = began.elapsed();
        // It takes one to three seconds. The leader itself takes 20 s.
        assert!(
            noticed < Duration::from_secs(10),
            "{survives} survives: noticed after {noticed:?}"
        );

        let began = Instant::now();
        let answer = shop.client.order(&fresh("away"), &[(&ready, 1)]).await;
        let answer = answer.unwrap();
        let topup_ids = ids(&answer.products().unwrap());
        shop.delivered(&topup_ids, Duration::from_mins(1))
            .await
            .unwrap();
        let delivered = began.elapsed();
        println!(
            "{survives} survives: noticed after {noticed:?}, answered after {:?}, delivered after \
             {delivered:?}",
            answer.took
        );
        assert!(
            answer.took < Duration::from_secs(1),
            "{survives} survives: the answer waited for a verdict: {:?}",
            answer.took
        );
        // The sweep finds the placement after 10 s; the delivery must not wait for another one.
        assert!(
            delivered < Duration::from_secs(20),
            "{survives} survives: delivered after {delivered:?}"
        );

        for number in killed {
            cluster.servers[number].process.spawn().unwrap();
        }
        for number in killed {
            cluster.servers[number].process.ready().await.unwrap();
        }
        all_show(&mut stack, 1).await;
        // Messages carry jobs and verdicts again, so a refusal reaches the answer.
        verdicts_come(&stack, &shop.client).await.unwrap();
        let began: Vec<usize> = before.iter().map(|lines| lines + 1).collect();
        assert_eq!(logged(&mut stack, BEGIN), began, "{survives} survives");
        assert_eq!(logged(&mut stack, END), began, "{survives} survives");
    }
    bought_once(&stack.ledger().await.unwrap()).unwrap();
}
