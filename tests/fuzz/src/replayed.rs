//! A server that sends given bytes, whatever it is asked; only a request for a token of Airalo gets
//! a good one, because nothing else is sent without it.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    runtime::{Builder, Runtime},
};

const TOKEN: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 64\r\nconnection: close\r\n\r\n\
    {\"data\":{\"access_token\":\"token\",\"expires_in\":86400},\"meta\":{}}  ";

/// The server, and the runtime that it needs.
pub struct Replayed {
    pub tokio: Runtime,
    pub url: String,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Replayed {
    pub fn start() -> Self {
        let tokio = Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let listener = tokio
            .block_on(TcpListener::bind("127.0.0.1:0"))
            .expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        let bytes = Arc::<Mutex<Vec<u8>>>::default();
        let sent = Arc::clone(&bytes);
        tokio.spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                let bytes = sent.lock().unwrap_or_else(PoisonError::into_inner).clone();
                tokio::spawn(async move {
                    let mut request = [0; 8192];
                    let read = connection.read(&mut request).await.unwrap_or_default();
                    let is_token = request[..read].starts_with(b"POST /v2/token");
                    let sent = if is_token { TOKEN } else { &bytes };
                    let _ = connection.write_all(sent).await;
                    let _ = connection.shutdown().await;
                });
            }
        });
        Self { tokio, url, bytes }
    }

    /// Sends these bytes from now on; a body alone gets the head of a 200.
    pub fn send(&self, data: &[u8]) {
        let bytes = if data.starts_with(b"HTTP/") {
            data.to_vec()
        } else {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", data.len());
            [head.as_bytes(), data].concat()
        };
        *self.bytes.lock().unwrap_or_else(PoisonError::into_inner) = bytes;
    }
}
