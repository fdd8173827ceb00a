//! Notices by e-mail, against a relay on a real connection, with and without TLS.

use std::{path::Path, process::Command, time::Duration};

use clap::Parser;
use domain::{DeliveryId, WebhookId};
use notifier::mail::{Mail, Mailer, RelayConfig, refused_for_good};
use notifier::webhook::{NoResponse, TlsFault};
use runtime::clock;
use testkit::mailbox::MailRelay;
use webhooks::mail::EmailAddress;

use crate::support::PATIENCE;

const FROM: &str = "eSIM service <noreply@esim.example>";

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    relay: RelayConfig,
}

/// The mailer of these settings.
fn mailer(url: &str, ca_file: Option<&Path>) -> Mailer {
    let mut arguments = vec![
        "test".to_owned(),
        format!("--smtp-url={url}"),
        format!("--mail-from={FROM}"),
    ];
    arguments.extend(ca_file.map(|path| format!("--ca-file={}", path.display())));
    let Program { relay } = Program::parse_from(arguments);
    relay.mailer(Duration::from_secs(5)).unwrap().unwrap()
}

async fn send(mailer: &Mailer, to: &str) -> Result<u16, NoResponse> {
    let to: EmailAddress = to.parse().unwrap();
    let id = WebhookId::Event(DeliveryId::new());
    let mail = Mail {
        id: &id,
        to: &to,
        subject: "Your webhook endpoint is blocked",
        text: "Your webhook endpoint is blocked.\n.\n\nIts webhooks wait.\n",
        at: clock::now(),
    };
    Ok(mailer.send(&mail).await?.status)
}

#[tokio::test]
async fn a_mail_is_taken_or_refused_by_the_relay() {
    let relay = MailRelay::start().await.unwrap();
    let mailer = mailer(&format!("smtp://{}?tls=none", relay.host()), None);
    assert_eq!(send(&mailer, "ops@shop.example").await, Ok(250));
    let mail = relay
        .wait_until(PATIENCE, "the mail", |mails| !mails.is_empty())
        .await
        .unwrap()
        .remove(0);
    assert_eq!(
        (mail.from.as_str(), mail.to.as_str()),
        ("noreply@esim.example", "ops@shop.example")
    );
    assert_eq!(mail.header("Subject"), "Your webhook endpoint is blocked");
    assert!(
        mail.header("Message-ID").starts_with("<evt_"),
        "{}",
        mail.head
    );
    assert!(!mail.header("Date").is_empty() && mail.header("To") == "ops@shop.example");
    assert_eq!(
        mail.text.trim_end(),
        "Your webhook endpoint is blocked.\n.\n\nIts webhooks wait."
    );
    assert!(!mail.encrypted && mail.credentials.is_none());

    for (reply, status) in [("550 5.1.1 no such user", 550), ("451 4.3.0 later", 451)] {
        relay.refuse("ops@shop.example", Some(reply));
        assert_eq!(send(&mailer, "ops@shop.example").await, Ok(status));
        assert_eq!(refused_for_good(status), status == 550);
    }
    relay.refuse("ops@shop.example", None);
    assert_eq!(send(&mailer, "ops@shop.example").await, Ok(250));

    // Nobody listens there any more.
    let gone = relay.host();
    drop(relay);
    let mailer = crate::mails::mailer(&format!("smtp://{gone}?tls=none"), None);
    assert_eq!(
        send(&mailer, "ops@shop.example").await,
        Err(NoResponse::Connect)
    );
}

/// `server.pem` and `server.key` for a server on 127.0.0.1, signed by themselves.
fn certificate(folder: &Path) {
    let options = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test \
                   -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE";
    let made = Command::new("openssl")
        .args(options.split(' '))
        .arg("-keyout")
        .arg(folder.join("server.key"))
        .arg("-out")
        .arg(folder.join("server.pem"))
        .output()
        .unwrap();
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
}

#[tokio::test]
async fn a_password_goes_to_a_relay_with_a_known_certificate_only() {
    let folder = tempfile::tempdir().unwrap();
    certificate(folder.path());
    let certificate = folder.path().join("server.pem");
    let relay = MailRelay::start_tls(&certificate, &folder.path().join("server.key"))
        .await
        .unwrap();
    let url = format!("smtp://notifier:p%40ss@{}", relay.host());

    let unknown = mailer(&url, None);
    assert_eq!(
        send(&unknown, "ops@shop.example").await,
        Err(NoResponse::Tls(TlsFault::UnknownIssuer))
    );
    // A relay that offers no TLS gets nothing either.
    let plain = MailRelay::start().await.unwrap();
    let downgraded = mailer(
        &format!("smtp://notifier:p%40ss@{}", plain.host()),
        Some(&certificate),
    );
    assert!(send(&downgraded, "ops@shop.example").await.is_err());
    assert!(relay.mails().is_empty() && plain.mails().is_empty());

    let known = mailer(&url, Some(&certificate));
    assert_eq!(send(&known, "ops@shop.example").await, Ok(250));
    let mail = relay.mails().remove(0);
    // The Base64 of `\0notifier\0p@ss`.
    assert!(mail.encrypted);
    assert_eq!(mail.credentials.as_deref(), Some("AG5vdGlmaWVyAHBAc3M="));
}
