//! A mail relay on loopback. It speaks SMTP over real connections, records every mail, and replies
//! as the test says.

use crate::record::Record;
use anyhow::{Context, Result, bail};
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

/// A mail that the relay has taken.
#[derive(Clone, Debug)]
pub struct Mail {
    /// The time when the whole mail had arrived.
    pub at: Instant,
    /// The addresses of the envelope.
    pub from: String,
    pub to: String,
    /// The header lines and the text, with `\n` as line ends.
    pub head: String,
    pub text: String,
    /// Whether it came over TLS, and the text of `AUTH PLAIN`, in Base64, if there was one.
    pub encrypted: bool,
    pub credentials: Option<String>,
}

impl Mail {
    /// The value of a header; empty if there is none.
    pub fn header(&self, name: &str) -> &str {
        let mut lines = self.head.lines();
        let value = lines.find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        });
        value.unwrap_or_default()
    }
}

/// The relay. It serves on 127.0.0.1 until it is dropped.
pub struct MailRelay {
    address: SocketAddr,
    shared: Arc<Record<Book>>,
    server: JoinHandle<()>,
}

#[derive(Default)]
struct Book {
    mails: Vec<Mail>,
    /// The replies to the recipients that are not accepted.
    refused: HashMap<String, String>,
}

impl MailRelay {
    /// Starts a relay without TLS on a free port.
    pub async fn start() -> Result<Self> {
        Self::start_with(None).await
    }

    /// Starts a relay that offers STARTTLS, with a certificate and a key in PEM files. It takes no
    /// mail without TLS.
    pub async fn start_tls(certificate: &Path, key: &Path) -> Result<Self> {
        let certificates = CertificateDer::pem_file_iter(certificate)?;
        let key = PrivateKeyDer::from_pem_file(key)?;
        let config = ServerConfig::builder_with_provider(Arc::new(
            tokio_rustls::rustls::crypto::ring::default_provider(),
        ))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(certificates.collect::<Result<_, _>>()?, key)?;
        Self::start_with(Some(TlsAcceptor::from(Arc::new(config)))).await
    }

    async fn start_with(tls: Option<TlsAcceptor>) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("cannot listen for mails")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Record::default());
        let book = Arc::clone(&shared);
        let server = tokio::spawn(async move {
            // The connections are dropped and thereby closed together with this task.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                let book = Arc::clone(&book);
                let tls = tls.clone();
                // Clients may disconnect at any time, so the results are ignored.
                connections.spawn(async move {
                    let _ = receive(&book, stream, tls).await;
                });
            }
        });
        Ok(Self {
            address,
            shared,
            server,
        })
    }

    /// The value of `SMTP_URL` for this relay, without the scheme.
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// Replies with this line, such as `550 5.1.1 no such user`, to this recipient from now on;
    /// `None` accepts it again.
    pub fn refuse(&self, recipient: &str, reply: Option<&str>) {
        let mut book = self.shared.book();
        match reply {
            Some(reply) => book.refused.insert(recipient.to_owned(), reply.to_owned()),
            None => book.refused.remove(recipient),
        };
    }

    /// Every mail so far, in order.
    pub fn mails(&self) -> Vec<Mail> {
        self.shared.book().mails.clone()
    }

    /// Waits until the mails satisfy `condition`, and returns all of them. The error names `what`.
    pub async fn wait_until(
        &self,
        timeout: Duration,
        what: &str,
        condition: impl Fn(&[Mail]) -> bool,
    ) -> Result<Vec<Mail>> {
        let look = |book: &Book| condition(&book.mails).then(|| book.mails.clone());
        let so_far = |book: &Book| format!("{} mails", book.mails.len());
        self.shared.wait_until(timeout, what, look, so_far).await
    }
}

impl Drop for MailRelay {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Serves one connection, and goes on with TLS after STARTTLS.
async fn receive(
    shared: &Record<Book>,
    mut stream: tokio::net::TcpStream,
    tls: Option<TlsAcceptor>,
) -> Result<()> {
    stream.write_all(b"220 mailbox.example ESMTP\r\n").await?;
    match tls {
        None => converse(shared, stream, false).await.map(drop),
        Some(tls) => match converse_until_tls(stream).await? {
            Some(stream) => converse(shared, tls.accept(stream).await?, true)
                .await
                .map(drop),
            None => Ok(()),
        },
    }
}

/// Speaks without TLS until the client asks for it; `None` if it went away before.
async fn converse_until_tls(
    stream: tokio::net::TcpStream,
) -> Result<Option<tokio::net::TcpStream>> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        let reply = match verb(&line).as_str() {
            "EHLO" => "250-mailbox.example\r\n250 STARTTLS\r\n",
            "STARTTLS" => {
                stream.write_all(b"220 go ahead\r\n").await?;
                return Ok(Some(stream.into_inner()));
            }
            "QUIT" => return Ok(None),
            _ => "530 5.7.0 STARTTLS comes first\r\n",
        };
        stream.write_all(reply.as_bytes()).await?;
    }
}

fn verb(line: &str) -> String {
    let word = line.split_whitespace().next().unwrap_or_default();
    word.to_ascii_uppercase()
}

/// The address in `MAIL FROM:<a@b>` or `RCPT TO:<a@b>`.
fn address(line: &str) -> String {
    let address = line
        .split_once('<')
        .and_then(|(_, rest)| rest.split_once('>'));
    address
        .map(|(address, _)| address.to_owned())
        .unwrap_or_default()
}

/// Takes mails until the client goes away.
async fn converse(
    shared: &Record<Book>,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    encrypted: bool,
) -> Result<()> {
    let mut stream = BufReader::new(stream);
    let mut credentials = None;
    let mut from = String::new();
    let mut to = String::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let reply = match verb(&line).as_str() {
            "EHLO" => "250-mailbox.example\r\n250 AUTH PLAIN".to_owned(),
            "AUTH" => {
                credentials = line.split_whitespace().nth(2).map(str::to_owned);
                "235 2.7.0 welcome".to_owned()
            }
            "MAIL" => {
                from = address(&line);
                "250 2.1.0 ok".to_owned()
            }
            "RCPT" => {
                to = address(&line);
                let refused = shared.book().refused.get(&to).cloned();
                refused.unwrap_or_else(|| "250 2.1.5 ok".to_owned())
            }
            "DATA" => {
                stream.write_all(b"354 go ahead\r\n").await?;
                let (head, text) = data(&mut stream).await?;
                let mail = Mail {
                    at: Instant::now(),
                    from: std::mem::take(&mut from),
                    to: std::mem::take(&mut to),
                    head,
                    text,
                    encrypted,
                    credentials: credentials.clone(),
                };
                shared.arrived(|book| book.mails.push(mail));
                "250 2.0.0 taken".to_owned()
            }
            "QUIT" => {
                stream.write_all(b"221 bye\r\n").await?;
                return Ok(());
            }
            "RSET" | "NOOP" => "250 2.0.0 ok".to_owned(),
            _ => "502 5.5.1 unknown command".to_owned(),
        };
        stream.write_all(format!("{reply}\r\n").as_bytes()).await?;
    }
}

/// Reads a mail up to the line with a single dot, and splits it into head and text.
async fn data(
    stream: &mut BufReader<impl AsyncRead + AsyncWrite + Unpin>,
) -> Result<(String, String)> {
    let mut mail = String::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            bail!("the connection ended within a mail");
        }
        let line = line.trim_end_matches(['\r', '\n']);
        if line == "." {
            break;
        }
        mail.push_str(line.strip_prefix('.').unwrap_or(line));
        mail.push('\n');
    }
    let (head, text) = mail.split_once("\n\n").unwrap_or((&mail, ""));
    Ok((head.to_owned(), text.to_owned()))
}
