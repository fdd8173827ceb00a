//! A connection pooler that drops the session settings is refused at the start. Without these
//! settings statements would have no time limit, and `recover` could not see that provisioners are
//! connected.

use std::net::SocketAddr;

use pg::{
    config::DatabaseConfig,
    schema::{self, SchemaError},
};
use secrecy::SecretString;
use sqlx::ConnectOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use url::Url;

use crate::bench::{Bench, VAULT, config};

/// How a pooler handles the startup parameter `options`. `PgBouncer` rejects it, or drops it if it
/// is in `ignore_startup_parameters`.
#[derive(Clone, Copy)]
enum Options {
    Dropped,
    Refused,
}

/// Relays connections to `server` as a pooler does.
async fn pooler(server: String, options: Options) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(relay(client, server.clone(), options));
        }
    });
    address
}

async fn relay(mut client: TcpStream, server: String, options: Options) {
    const SSL_REQUEST: u32 = 80_877_103;
    let (version, parameters) = loop {
        let length = usize::try_from(client.read_u32().await.unwrap()).unwrap();
        let version = client.read_u32().await.unwrap();
        let mut rest = vec![0; length - 8];
        client.read_exact(&mut rest).await.unwrap();
        if version != SSL_REQUEST {
            break (version, rest);
        }
        client.write_all(b"N").await.unwrap();
    };
    if matches!(options, Options::Refused) {
        let fields = b"SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: options\0\0";
        client.write_all(b"E").await.unwrap();
        client
            .write_u32(u32::try_from(fields.len() + 4).unwrap())
            .await
            .unwrap();
        client.write_all(fields).await.unwrap();
        return;
    }
    let words: Vec<&[u8]> = parameters.split(|byte| *byte == 0).collect();
    let mut kept = Vec::new();
    for pair in words
        .chunks_exact(2)
        .filter(|pair| !pair[0].is_empty() && pair[0] != b"options")
    {
        kept.extend([pair[0], b"\0", pair[1], b"\0"].concat());
    }
    kept.push(0);
    let mut server = TcpStream::connect(server).await.unwrap();
    server
        .write_u32(u32::try_from(kept.len() + 8).unwrap())
        .await
        .unwrap();
    server.write_u32(version).await.unwrap();
    server.write_all(&kept).await.unwrap();
    let _ = copy_bidirectional(&mut client, &mut server).await;
}

async fn through(bench: &Bench, options: Options) -> String {
    let mut url: Url = bench.database.url().parse().unwrap();
    let server = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(5432));
    let pooler = pooler(server, options).await;
    url.set_ip_host(pooler.ip()).unwrap();
    url.set_port(Some(pooler.port())).unwrap();
    url.into()
}

#[tokio::test]
async fn a_service_does_not_start_through_a_pooler_that_drops_or_refuses_its_settings() {
    let bench = Bench::new().await;
    accounts::start::wait(&bench.store, &VAULT).await.unwrap();
    for options in [Options::Dropped, Options::Refused] {
        let url = through(&bench, options).await;
        let database = config(&url).open("store tests").unwrap();
        let error = accounts::start::wait(&database, &VAULT).await.unwrap_err();
        assert!(matches!(error, SchemaError::Pooler), "{error}");
        let remedy = "DATABASE_URL must name PostgreSQL itself";
        assert!(error.to_string().contains(remedy), "{error}");
    }
}

#[tokio::test]
async fn esimctl_is_refused_too() {
    let bench = Bench::new().await;
    let url = through(&bench, Options::Dropped).await;
    let database = DatabaseConfig {
        database_url: SecretString::from(url),
    };
    let mut connection = database
        .options("store tests")
        .unwrap()
        .connect()
        .await
        .unwrap();
    let error = schema::check(&mut connection).await.unwrap_err();
    assert!(matches!(error, SchemaError::Pooler), "{error}");
}
