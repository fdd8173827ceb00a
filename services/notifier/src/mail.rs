//! Notices by e-mail: one message to the operator's relay, and what its response means.
//! [`crate::deliver`] makes the message and calls [`Mailer::send`].
//!
//! Guarantee: a conversation with the relay ends within `WEBHOOK_TIMEOUT`, and uses TLS with a
//! checked certificate unless the operator has switched it off in `SMTP_URL`. No error text
//! contains the address, because it is personal data, nor what the relay wrote.
//!
//! The guard of webhooks plays no part here: every mail goes to the one relay that the operator has
//! named, whatever the address is, and the relay decides where to send it.

use std::{
    error::Error,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use clap::Args;
use domain::WebhookId;
use lettre::{
    Address, AsyncSmtpTransport, AsyncTransport, Message, Tokio1Executor,
    message::{
        Mailbox,
        header::{ContentType, HeaderName, HeaderValue},
    },
    transport::smtp::{
        self,
        authentication::Credentials,
        client::{Certificate, Tls, TlsParameters},
        extension::ClientId,
    },
};
use percent_encoding::percent_decode_str;
use runtime::{config::BadSetting, files};
use secrecy::{ExposeSecret, SecretString};
use time::OffsetDateTime;
use url::Url;
use webhooks::{config::MailConfig, mail::EmailAddress};

use crate::{
    schedule::EndpointResponse,
    webhook::{NoResponse, TlsFault},
};

/// The ports of submission: with TLS from the first byte on, and with STARTTLS.
const SMTPS_PORT: u16 = 465;
const STARTTLS_PORT: u16 = 587;

/// How notices are mailed.
#[derive(Args, Clone, Debug, Default)]
pub struct RelayConfig {
    #[command(flatten)]
    pub mail: MailConfig,
    /// The relay that takes the mails, such as `smtps://user:password@relay.example.com` [default:
    /// no mails]
    ///
    /// `smtps://` speaks TLS from the beginning, by default at port 465. `smtp://` begins without
    /// it and demands STARTTLS, by default at port 587. `smtp://…?tls=none` uses no TLS and no
    /// password, for a relay on the same machine. Percent-encode user and password. Needs
    /// `MAIL_FROM`.
    #[arg(long, env = "SMTP_URL", hide_env_values = true)]
    pub smtp_url: Option<SecretString>,
    /// File with certificates (PEM) of an authority of your own that signs the relay's certificate
    ///
    /// They count beside those of the system.
    #[arg(long, env = "CA_FILE")]
    pub ca_file: Option<PathBuf>,
}

/// One message.
pub struct Mail<'a> {
    /// The `webhook-id`, from which the `Message-ID` is made. A repeat has the same, so that mail
    /// programs can recognise it.
    pub id: &'a WebhookId,
    pub to: &'a EmailAddress,
    pub subject: &'a str,
    /// ASCII text whose lines end with `\n`.
    pub text: &'a str,
    pub at: OffsetDateTime,
}

/// Sends mails through the relay. Each mail has a connection of its own, because notices are rare.
pub struct Mailer {
    relay: AsyncSmtpTransport<Tokio1Executor>,
    from: Mailbox,
    timeout: Duration,
}

impl RelayConfig {
    /// Makes the mailer; `None` if no relay is configured. A conversation may take `timeout`.
    pub fn mailer(&self, timeout: Duration) -> anyhow::Result<Option<Mailer>> {
        let url = self
            .smtp_url
            .as_ref()
            .filter(|url| !url.expose_secret().is_empty());
        let (url, from) = match (url, self.mail.sender()) {
            (None, None) => return Ok(None),
            (Some(url), Some(from)) => (url, from),
            _ => {
                return Err(BadSetting::error(
                    "SMTP_URL and MAIL_FROM: set both to send notices by e-mail, or neither",
                ));
            }
        };
        let from: Mailbox = from
            .parse()
            .map_err(|_| BadSetting::error("MAIL_FROM: it is not an address"))?;
        let relay = relay(url.expose_secret(), &from, self.ca_file.as_deref(), timeout)
            .map_err(|error| BadSetting::error(format!("SMTP_URL: {error}")))?;
        Ok(Some(Mailer {
            relay,
            from,
            timeout,
        }))
    }
}

/// Reads `SMTP_URL`. The error does not repeat it, because it holds a password.
fn relay(
    url: &str,
    from: &Mailbox,
    ca_file: Option<&Path>,
    timeout: Duration,
) -> Result<AsyncSmtpTransport<Tokio1Executor>, String> {
    const FORM: &str = "write it like smtps://user:password@relay.example.com:465";
    let url: Url = url.parse().map_err(|error| format!("{error}; {FORM}"))?;
    let host = url.host_str().filter(|host| !host.is_empty());
    let host = host.ok_or_else(|| format!("it names no host; {FORM}"))?;
    let host = host.trim_matches(['[', ']']);
    let (tls, default_port) = match (url.scheme(), url.query()) {
        ("smtps", None) => (Tls::Wrapper(trusted(host, ca_file)?), SMTPS_PORT),
        ("smtp", None) => (Tls::Required(trusted(host, ca_file)?), STARTTLS_PORT),
        ("smtp", Some("tls=none")) => (Tls::None, STARTTLS_PORT),
        ("smtp" | "smtps", _) => {
            return Err("only ?tls=none may follow, and only after smtp://".into());
        }
        _ => {
            return Err(format!(
                "it begins with neither smtps:// nor smtp://; {FORM}"
            ));
        }
    };
    if !matches!(url.path(), "" | "/") || url.fragment().is_some() {
        return Err(format!("nothing may follow the host and the port; {FORM}"));
    }
    let plain = matches!(tls, Tls::None);
    let mut relay = AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(host)
        .port(url.port().unwrap_or(default_port))
        .tls(tls)
        .timeout(Some(timeout))
        .hello_name(ClientId::Domain(from.email.domain().to_owned()));
    if !url.username().is_empty() {
        if plain {
            return Err("with ?tls=none everybody on the way could read the password; remove user and password, or use TLS".into());
        }
        let decoded = |text: &str| {
            let decoded = percent_decode_str(text).decode_utf8();
            decoded
                .map(String::from)
                .map_err(|_| "user and password must be UTF-8".to_owned())
        };
        let password = url.password().unwrap_or_default();
        relay = relay.credentials(Credentials::new(
            decoded(url.username())?,
            decoded(password)?,
        ));
    }
    Ok(relay.build())
}

/// The certificates that the relay is checked with: those of the system, and those of a file.
fn trusted(host: &str, ca_file: Option<&Path>) -> Result<TlsParameters, String> {
    let mut parameters = TlsParameters::builder(host.to_owned());
    if let Some(path) = ca_file {
        let pem = files::read(path).map_err(|error| format!("CA_FILE: {error:#}"))?;
        let certificate = Certificate::from_pem(pem.as_bytes())
            .map_err(|_| format!("CA_FILE={}: it holds no PEM certificate", path.display()))?;
        parameters = parameters.add_root_certificate(certificate);
    }
    parameters
        .build_rustls()
        .map_err(|_| "the certificates of this system or of CA_FILE cannot be used".into())
}

impl Mailer {
    /// Sends one mail. The status of the response is the relay's reply code; an
    /// [`EndpointResponse`] with it leads to the same decisions as the status of an endpoint,
    /// except for [`refused_for_good`].
    pub async fn send(&self, mail: &Mail<'_>) -> Result<EndpointResponse, NoResponse> {
        let message = self.message(mail).ok_or(NoResponse::BadUrl)?;
        let sending = pipeline::perform(pipeline::Effect::Webhook, self.relay.send(message));
        let sent = tokio::time::timeout(self.timeout, sending).await;
        let code = match sent.map_err(|_| NoResponse::Timeout)? {
            Ok(reply) => reply.code(),
            Err(error) => error.status().ok_or_else(|| classify(&error))?,
        };
        Ok(EndpointResponse {
            status: code.into(),
            ..EndpointResponse::default()
        })
    }

    /// Makes the message; `None` if the address cannot be used.
    fn message(&self, mail: &Mail<'_>) -> Option<Message> {
        let to = Address::new(mail.to.local(), mail.to.domain()).ok()?;
        let auto = HeaderName::new_from_ascii_str("Auto-Submitted");
        Message::builder()
            .from(self.from.clone())
            .to(Mailbox::new(None, to))
            .subject(mail.subject)
            .date(SystemTime::from(mail.at))
            .message_id(Some(format!("<{}@{}>", mail.id, self.from.email.domain())))
            // Keeps out-of-office programs from answering.
            .raw_header(HeaderValue::new(auto, "auto-generated".into()))
            .header(ContentType::TEXT_PLAIN)
            .body(mail.text.replace('\n', "\r\n"))
            .ok()
    }
}

/// Whether the reply of the relay says that this mail will never be taken, so that no retry helps.
/// Other replies of the 500s concern the conversation, such as a wrong password, which the operator
/// can correct.
pub fn refused_for_good(status: u16) -> bool {
    (550..560).contains(&status)
}

/// What there is instead of a reply. Only the class is kept, as for webhooks.
fn classify(error: &smtp::Error) -> NoResponse {
    if error.is_timeout() {
        return NoResponse::Timeout;
    }
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(current) = cause {
        let io = current.downcast_ref::<std::io::Error>();
        let wrapped = io.and_then(std::io::Error::get_ref);
        let wrapped = wrapped.and_then(|wrapped| wrapped.downcast_ref::<rustls::Error>());
        if let Some(error) = wrapped.or(current.downcast_ref()) {
            return NoResponse::Tls(error.into());
        }
        cause = current.source();
    }
    if error.is_tls() {
        return NoResponse::Tls(TlsFault::Other);
    }
    if error.is_response() || error.is_client() {
        NoResponse::Nothing
    } else {
        NoResponse::Connect
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str, from: Option<&str>) -> RelayConfig {
        RelayConfig {
            mail: MailConfig {
                mail_from: from.map(str::to_owned),
            },
            smtp_url: Some(url.into()),
            ca_file: None,
        }
    }

    fn refusal(config: &RelayConfig) -> String {
        match config.mailer(Duration::from_secs(1)) {
            Ok(_) => panic!("accepted: {config:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn the_relay_is_a_url_with_tls_unless_it_is_switched_off() {
        let from = Some("eSIM service <noreply@example.com>");
        for url in [
            "smtps://user:p%40ss@relay.example.com",
            "smtps://relay.example.com:1465/",
            "smtp://user:pass@relay.example.com",
            "smtp://[::1]:2525?tls=none",
        ] {
            assert!(
                config(url, from)
                    .mailer(Duration::from_secs(1))
                    .unwrap()
                    .is_some(),
                "{url}"
            );
        }
        for (url, part) in [
            ("relay.example.com", "smtps://user:password@"),
            ("https://relay.example.com", "neither smtps:// nor smtp://"),
            ("smtps://", "host"),
            ("smtps://relay.example.com?tls=none", "only after smtp://"),
            ("smtp://relay.example.com?tls=opportunistic", "tls=none"),
            ("smtp://relay.example.com/path", "nothing may follow"),
            ("smtp://user:s3cret@relay.example.com?tls=none", "password"),
        ] {
            let error = refusal(&config(url, from));
            assert!(
                error.contains(part) && !error.contains("s3cret"),
                "{url}: {error}"
            );
        }
        assert!(refusal(&config("smtps://relay.example.com", None)).contains("MAIL_FROM"));
        let mut neither = config("", None);
        assert!(neither.mailer(Duration::from_secs(1)).unwrap().is_none());
        neither.mail.mail_from = from.map(str::to_owned);
        assert!(refusal(&neither).contains("SMTP_URL"));
    }

    #[test]
    fn only_what_concerns_the_mail_ends_its_retries() {
        for status in [550, 552, 553, 554] {
            assert!(refused_for_good(status), "{status}");
        }
        for status in [250, 421, 450, 451, 500, 503, 530, 535] {
            assert!(!refused_for_good(status), "{status}");
        }
    }
}
