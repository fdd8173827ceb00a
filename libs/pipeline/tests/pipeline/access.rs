//! What each service's user may do on the NATS server of `deploy/nats/nats.conf`, and TLS.

use std::{path::Path, process::Command, time::Duration};

use async_nats::{Client, Event, ServerError, jetstream};
use futures_util::StreamExt;
use pipeline::{Nats, NatsAccess, NatsConfig};
use secrecy::SecretString;
use testkit::nats::NatsServer;
use tokio::sync::mpsc;

use crate::bench::until;

const PATIENCE: Duration = Duration::from_secs(20);
const USERS: [&str; 4] = ["ingress", "provisioner", "notifier", "operator"];

/// The server with the permissions that deployments have.
async fn server(folder: &Path) -> NatsServer {
    let conf = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/nats/nats.conf");
    std::fs::copy(conf, folder.join("nats.conf")).unwrap();
    std::fs::create_dir(folder.join("secrets")).unwrap();
    let passwords =
        USERS.map(|user| format!("{}_PASSWORD: \"{user}-secret\"\n", user.to_uppercase()));
    std::fs::write(folder.join("secrets/passwords.conf"), passwords.concat()).unwrap();
    NatsServer::start_with(folder, Some(&folder.join("nats.conf")))
        .await
        .unwrap()
}

fn access(user: &str) -> NatsAccess {
    NatsAccess {
        nats_password: Some(format!("{user}-secret").into()),
        ..NatsAccess::default()
    }
}

/// A service's connection, and the refusals of the server.
async fn connect(server: &NatsServer, user: &str) -> (Client, mpsc::UnboundedReceiver<String>) {
    let (told, refusals) = mpsc::unbounded_channel();
    let options = access(user)
        .options(user)
        .unwrap()
        .event_callback(move |event| {
            if let Event::ServerError(ServerError::Other(refusal)) = event {
                let _ = told.send(refusal);
            }
            std::future::ready(())
        });
    (options.connect(server.url()).await.unwrap(), refusals)
}

/// The server has taken all that the client sent before.
async fn settled(client: &Client) {
    let mut echo = client.subscribe("settled").await.unwrap();
    client.publish("settled", "".into()).await.unwrap();
    echo.next().await.unwrap();
}

#[tokio::test]
async fn a_stage_has_what_it_needs() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path()).await;
    let operator = connect(&server, "operator").await.0;
    for (user, subjects) in [
        (
            "ingress",
            &["topup.job.sandbox", "topup.ready.batch", "topup.left.all"][..],
        ),
        (
            "provisioner",
            &[
                "topup.ready.batch",
                "topup.answer.i1",
                "topup.heartbeat.sandbox",
            ],
        ),
        ("notifier", &["topup.dead.ready"]),
    ] {
        let config = NatsConfig {
            nats_url: SecretString::from(server.url()),
            access: access(user),
            stream_prefix: String::new(),
            stream_replicas: 1,
        };
        let nats = Nats::connect(&config, user).await.unwrap();
        tokio::time::timeout(PATIENCE, nats.until_up())
            .await
            .unwrap();
        nats.ensure_streams()
            .await
            .unwrap_or_else(|error| panic!("{user}: {error:#}"));
        for subject in subjects {
            let mut seen = operator.subscribe(*subject).await.unwrap();
            settled(&operator).await;
            nats.client().publish(*subject, user.into()).await.unwrap();
            let arrived = tokio::time::timeout(PATIENCE, seen.next()).await;
            let message = arrived.unwrap_or_else(|_| panic!("{subject} did not arrive"));
            assert_eq!(message.unwrap().payload, user, "{subject}");
        }
    }
    let streams = jetstream::new(operator);
    assert_eq!(
        streams
            .get_stream("TOPUP_JOBS")
            .await
            .unwrap()
            .cached_info()
            .state
            .messages,
        1
    );
}

#[tokio::test]
async fn a_stage_may_not_do_the_work_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path()).await;
    let operator = connect(&server, "operator").await.0;
    let mut all = operator.subscribe(">").await.unwrap();
    settled(&operator).await;
    let denied: [(&str, &[&str]); 3] = testkit::rows! {
        "ingress" => &[
            "topup.answer.i2", "topup.heartbeat.invented", "topup.dead.job",
            "$JS.API.CONSUMER.CREATE.TOPUP_JOBS.mine", "$JS.API.STREAM.MSG.GET.TOPUP_READY",
            "$JS.API.STREAM.DELETE.TOPUP_JOBS", "$JS.API.STREAM.PURGE.TOPUP_JOBS",
            "$JS.API.STREAM.UPDATE.TOPUP_READY", "$JS.API.STREAM.CREATE.MINE",
        ];
        "provisioner" => &[
            "topup.job.sandbox", "topup.left.i1", "$JS.API.CONSUMER.CREATE.TOPUP_READY.mine",
            "$JS.API.STREAM.DELETE.TOPUP_READY",
        ];
        "notifier" => &[
            "topup.job.sandbox", "topup.answer.i1", "topup.heartbeat.sandbox", "topup.left.i1",
            "topup.ready.batch", "$JS.API.CONSUMER.CREATE.TOPUP_JOBS.mine",
            "$JS.API.CONSUMER.MSG.NEXT.TOPUP_JOBS.provisioner-sandbox", "$JS.API.STREAM.UPDATE.TOPUP_JOBS",
        ];
    };
    for (user, subjects) in denied {
        let (client, mut refusals) = connect(&server, user).await;
        for subject in subjects {
            client.publish(*subject, "forged".into()).await.unwrap();
            let refusal = tokio::time::timeout(PATIENCE, refusals.recv())
                .await
                .unwrap()
                .unwrap();
            assert!(
                refusal.contains("Permissions Violation for Publish"),
                "{user} {subject}: {refusal}"
            );
            assert!(refusal.contains(subject), "{user} {subject}: {refusal}");
        }
    }
    for (user, subject) in [
        ("ingress", "topup.job.*"),
        ("ingress", "_INBOX_provisioner.>"),
        ("provisioner", "topup.answer.*"),
        ("notifier", "topup.answer.*"),
        ("notifier", ">"),
    ] {
        let (client, mut refusals) = connect(&server, user).await;
        let _subscription = client.subscribe(subject).await.unwrap();
        let refusal = refusals.recv().await.unwrap();
        assert!(
            refusal.contains("Permissions Violation for Subscription"),
            "{user} {subject}: {refusal}"
        );
    }
    // A message of the operator's arrives after all forged ones would have.
    operator.publish("the.end", "".into()).await.unwrap();
    while let Some(message) = all.next().await {
        assert_ne!(message.payload, "forged", "{}", message.subject);
        if message.subject.as_str() == "the.end" {
            break;
        }
    }
}

/// A refused message is lost without an error, so operators are told what is refused.
#[tokio::test]
async fn what_the_server_refuses_to_a_stage_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path()).await;
    let config = NatsConfig {
        nats_url: SecretString::from(server.url()),
        access: access("notifier"),
        stream_prefix: String::new(),
        stream_replicas: 1,
    };
    let nats = Nats::connect(&config, "notifier").await.unwrap();
    tokio::time::timeout(PATIENCE, nats.until_up())
        .await
        .unwrap();
    nats.ensure_streams().await.unwrap();
    assert_eq!(nats.refused(), None);
    let subject = nats.ready_batch_subject();
    nats.client().publish(subject, "".into()).await.unwrap();
    until("the refused message", async || {
        nats.refused().as_deref() == Some("publish TOPUP_READY")
    })
    .await;
    let listening = nats.clone();
    let subject = nats.left_subject(None);
    tokio::spawn(async move { listening.listen(subject, |_: serde_json::Value| {}).await });
    until("the refused subscription", async || {
        nats.refused()
            .is_some_and(|refused| refused.contains("subscribe DEPARTURES"))
    })
    .await;
}

/// A stage may create consumers, because NATS may lose them at any time. Their number is bounded,
/// so that stolen credentials do not fill the memory of the server.
#[tokio::test]
async fn a_stage_creates_a_bounded_number_of_consumers() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path()).await;
    for (user, stream) in [("provisioner", "TOPUP_JOBS"), ("notifier", "TOPUP_READY")] {
        let config = NatsConfig {
            nats_url: SecretString::from(server.url()),
            access: access(user),
            stream_prefix: String::new(),
            stream_replicas: 1,
        };
        let nats = Nats::connect(&config, user).await.unwrap();
        tokio::time::timeout(PATIENCE, nats.until_up())
            .await
            .unwrap();
        nats.ensure_streams().await.unwrap();
        let streams = jetstream::new(nats.client().clone());
        let mut created = 0;
        let refused = loop {
            let config = jetstream::consumer::pull::Config {
                durable_name: Some(format!("mine-{created}")),
                ..Default::default()
            };
            match streams.create_consumer_on_stream(config, stream).await {
                Ok(_) => created += 1,
                Err(error) => break error,
            }
            assert!(created < 1_000, "{user}: {created} consumers");
        };
        assert!(
            refused.to_string().contains("maximum consumers"),
            "{refused}"
        );
        assert_eq!(created, 64, "{user}");
    }
}

/// A reply goes wherever its request says, and NATS does not check whether the requester might
/// publish there. So a stage can make the server publish what NATS itself says on a subject of
/// another stage. `docs/security.md` names this, and it does no harm: it is no message of ours.
#[tokio::test]
async fn a_reply_of_the_server_on_another_stages_subject_is_no_message() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path()).await;
    let config = NatsConfig {
        nats_url: SecretString::from(server.url()),
        access: access("ingress"),
        stream_prefix: String::new(),
        stream_replicas: 1,
    };
    let nats = Nats::connect(&config, "ingress").await.unwrap();
    tokio::time::timeout(PATIENCE, nats.until_up())
        .await
        .unwrap();
    nats.ensure_streams().await.unwrap();
    let operator = connect(&server, "operator").await.0;
    let mut reports = operator.subscribe("topup.answer.*").await.unwrap();
    settled(&operator).await;
    let notifier = connect(&server, "notifier").await.0;
    notifier
        .publish_with_reply(
            "$JS.API.STREAM.INFO.TOPUP_JOBS",
            "topup.answer.i1",
            "".into(),
        )
        .await
        .unwrap();
    let arrived = tokio::time::timeout(PATIENCE, reports.next()).await;
    let message = arrived.unwrap().unwrap();
    let said: serde_json::Value = serde_json::from_slice(&message.payload).unwrap();
    assert_eq!(
        said["type"],
        "io.nats.jetstream.api.v1.stream_info_response"
    );
}

#[tokio::test]
async fn only_a_known_user_connects() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path()).await;
    assert!(async_nats::connect(server.url()).await.is_err());
    let guessed = NatsAccess {
        nats_password: Some("guessed".into()),
        ..NatsAccess::default()
    };
    let guessed = guessed.options("ingress").unwrap();
    assert!(guessed.connect(server.url()).await.is_err());
}

/// `name.pem` and `name.key` for a server on 127.0.0.1, signed by themselves.
fn certificate(folder: &Path, name: &str) {
    let options = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test \
                   -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE";
    let made = Command::new("openssl")
        .args(options.split(' '))
        .arg("-keyout")
        .arg(folder.join(format!("{name}.key")))
        .arg("-out")
        .arg(folder.join(format!("{name}.pem")))
        .output()
        .expect("openssl must be installed; tests/run does that");
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
}

#[tokio::test]
async fn the_certificate_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    certificate(path, "server");
    certificate(path, "other");
    let conf = "tls { cert_file: \"server.pem\", key_file: \"server.key\" }"
        .replace("server.", &format!("{}/server.", path.display()));
    std::fs::write(path.join("tls.conf"), conf).unwrap();
    let server = NatsServer::start_with(path, Some(&path.join("tls.conf")))
        .await
        .unwrap();
    let trusting = |name: &str| NatsAccess {
        nats_ca_file: Some(path.join(name)),
        ..NatsAccess::default()
    };
    trusting("server.pem")
        .options("ingress")
        .unwrap()
        .connect(server.url())
        .await
        .unwrap();
    assert!(
        trusting("other.pem")
            .options("ingress")
            .unwrap()
            .connect(server.url())
            .await
            .is_err()
    );

    // Without TLS on the server there is no connection.
    let plain_folder = tempfile::tempdir().unwrap();
    let plain = NatsServer::start(plain_folder.path()).await.unwrap();
    assert!(
        trusting("server.pem")
            .options("ingress")
            .unwrap()
            .connect(plain.url())
            .await
            .is_err()
    );
    let missing = trusting("missing.pem").options("ingress").unwrap_err();
    assert!(missing.to_string().contains("NATS_CA_FILE"), "{missing}");
}
