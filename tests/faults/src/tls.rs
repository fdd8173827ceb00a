//! TLS in front of the endpoint of one partner, whose certificate may expire and be renewed.

use anyhow::{Context, Result, ensure};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use testkit::process;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

/// The configuration of the authority, which signs each certificate for `HOST`.
const AUTHORITY: &str = "[ca]\ndefault_ca = own\n[own]\nnew_certs_dir = .\ndatabase = index\ndefault_md = sha256\n\
    policy = any\nrand_serial = yes\nunique_subject = no\nx509_extensions = leaf\n[any]\ncommonName = supplied\n\
    [root]\nbasicConstraints = critical,CA:TRUE\n[req]\ndistinguished_name = name\n[name]\n[leaf]\n\
    subjectAltName = DNS:HOST\n";
/// The arguments of `openssl`: an authority, a key, a certificate that is valid and one that was.
const STEPS: [&str; 4] = [
    "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout root.key -out root.pem -days 2 \
     -subj /CN=root -config ca.cnf -extensions root",
    "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout leaf.key -out leaf.csr -subj /CN=leaf \
     -config ca.cnf",
    "ca -batch -notext -config ca.cnf -cert root.pem -keyfile root.key -in leaf.csr -out valid.pem -days 2",
    "ca -batch -notext -config ca.cnf -cert root.pem -keyfile root.key -in leaf.csr -out expired.pem \
     -startdate 20200101000000Z -enddate 20200102000000Z",
];

/// A folder with these files.
pub struct Certificates(PathBuf);

impl Certificates {
    /// Makes them for a host, in a folder below this one.
    pub async fn make(folder: &Path, host: &str) -> Result<Self> {
        let folder = folder.join("certificates");
        std::fs::create_dir(&folder)?;
        std::fs::write(folder.join("ca.cnf"), AUTHORITY.replace("HOST", host))?;
        std::fs::write(folder.join("index"), "")?;
        for step in STEPS {
            let mut openssl = Command::new("openssl");
            openssl.current_dir(&folder).args(step.split_whitespace());
            let made = process::output(&mut openssl, Duration::from_secs(20)).await?;
            let said = String::from_utf8_lossy(&made.stderr);
            ensure!(made.status.success(), "openssl {step}: {}", said.trim());
        }
        Ok(Self(folder))
    }

    /// The certificate of the authority, whom clients have to trust.
    pub fn root(&self) -> Result<String> {
        let root = self.0.join("root.pem");
        Ok(root.to_str().context("the folder is no text")?.to_owned())
    }

    fn acceptor(&self, certificate: &str) -> Result<TlsAcceptor> {
        let chain = CertificateDer::pem_file_iter(self.0.join(certificate))?;
        let key = PrivateKeyDer::from_pem_file(self.0.join("leaf.key"))?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain.collect::<Result<_, _>>()?, key)?;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

/// Forwards what comes over TLS, until it is dropped.
pub struct Tls {
    port: u16,
    has_expired: watch::Sender<bool>,
    refused: Arc<AtomicU64>,
    accepting: JoinHandle<()>,
}

impl Tls {
    pub async fn start(certificates: &Certificates, server: SocketAddr) -> Result<Self> {
        let valid = certificates.acceptor("valid.pem")?;
        let expired = certificates.acceptor("expired.pem")?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let has_expired = watch::Sender::new(false);
        let state = has_expired.subscribe();
        let refused = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&refused);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let acceptor = if *state.borrow() { &expired } else { &valid };
                let acceptor = acceptor.clone();
                let mut state = state.clone();
                state.mark_unchanged();
                let counted = Arc::clone(&counted);
                tokio::spawn(async move {
                    let forwarding = forward(acceptor, client, server, &counted);
                    // A server that gets another certificate ends its connections.
                    tokio::select! {
                        () = forwarding => {}
                        _ = state.changed() => {}
                    }
                });
            }
        });
        Ok(Self {
            port,
            has_expired,
            refused,
            accepting,
        })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Lets the certificate be expired from now on, or valid again.
    pub fn expire(&self, has_expired: bool) {
        self.has_expired.send_replace(has_expired);
    }

    /// How many connections ended before a client took the certificate.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

impl Drop for Tls {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn forward(
    acceptor: TlsAcceptor,
    client: TcpStream,
    server: SocketAddr,
    refused: &AtomicU64,
) {
    let Ok(mut client) = acceptor.accept(client).await else {
        refused.fetch_add(1, Ordering::Relaxed);
        return;
    };
    if let Ok(mut server) = TcpStream::connect(server).await {
        let _ = copy_bidirectional(&mut client, &mut server).await;
    }
}
