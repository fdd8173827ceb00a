//! Sets `TCP_NODELAY` on the connections of sqlx, because sqlx 0.9.0 does not set it
//! (transact-rs/sqlx#4335). The pool ([`crate::database`]) calls this module.
//!
//! Without the option the kernel delays a short segment until the segments before it are
//! acknowledged, and the server may delay that acknowledgement by 40 ms (Nagle's algorithm). A
//! statement is usually one write, which is never delayed. Over TLS, however, each record is a
//! write of its own, which has two effects:
//!
//! - Opening a connection waits twice, together for some 90 ms.
//! - A statement of more than 16 KiB consists of several records. Each execution waits 44 ms where
//!   a record fits into a segment (loopback), and now and then with jumbo frames (up to one in
//!   ten).
//!
//! sqlx gives no access to its sockets, so this module finds them among the open files of the
//! process. Without TLS it does nothing. Decision 35 says why nothing better is possible yet. Once
//! a release of sqlx sets the option (transact-rs/sqlx#4336), a test of `tests/store/nodelay.rs`
//! fails and says so; then this module and the crate nix can go.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tokio::time::sleep;

/// The first pause before this module looks for a connection that is being opened.
const PAUSE: Duration = Duration::from_millis(2);

/// Awaits `opening`, which opens a connection with these options. If it may use TLS, the option is
/// set while the connection is being opened, too, because the kernel then sends at once what it has
/// held back.
pub(crate) async fn opened<T>(options: &PgConnectOptions, opening: impl Future<Output = T>) -> T {
    let plain = matches!(
        options.get_ssl_mode(),
        PgSslMode::Disable | PgSslMode::Allow
    );
    if plain || options.get_socket().is_some() {
        return opening.await;
    }
    over_tls(options.get_port(), opening).await
}

/// Searches until one search has found a connection without the option, and once more at the end,
/// because that one may have been another connection that is being opened at the same time. The
/// pauses between the searches double, so even a server that does not respond costs only about ten
/// searches.
async fn over_tls<T>(port: u16, opening: impl Future<Output = T>) -> T {
    let search = async {
        let mut pause = PAUSE;
        loop {
            sleep(pause).await;
            if disable_nagle(port) {
                std::future::pending::<()>().await;
            }
            pause *= 2;
        }
    };
    let opened = tokio::select! {
        biased;
        opened = opening => opened,
        () = search => unreachable!("the search has no end"),
    };
    disable_nagle(port);
    opened
}

/// Sets the option on all connections of this process to this port, and returns whether one of them
/// did not have it. They may lead to another host with the same port, but the option harms no
/// connection. An error is only logged, because nothing but the speed depends on it.
#[cfg(target_os = "linux")]
fn disable_nagle(port: u16) -> bool {
    linux::disable_nagle(port).unwrap_or_else(|error| {
        tracing::debug!(%error, "TCP_NODELAY could not be set on the connections to the database");
        false
    })
}

#[cfg(not(target_os = "linux"))]
fn disable_nagle(_port: u16) -> bool {
    false
}

#[cfg(target_os = "linux")]
mod linux {
    use std::{
        io::{self, IoSlice, IoSliceMut},
        mem::MaybeUninit,
        os::{
            fd::{AsRawFd, OwnedFd, RawFd},
            unix::net::UnixStream,
        },
    };

    use nix::sys::socket::{
        ControlMessage, MsgFlags, SockaddrIn, SockaddrIn6, SockaddrStorage, UnixAddr, getpeername,
        sendmsg,
    };
    use rustix::net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg,
        sockopt::{set_tcp_nodelay, tcp_nodelay},
    };

    pub(super) fn disable_nagle(port: u16) -> io::Result<bool> {
        let through = UnixStream::pair()?;
        let mut found = false;
        for file in std::fs::read_dir("/proc/self/fd")? {
            let Some(number) = file?
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            else {
                continue;
            };
            if peer_port(number) != Some(port) {
                continue;
            }
            // Another thread may have closed the connection in the meantime.
            let Ok(Some(socket)) = duplicate(number, &through) else {
                continue;
            };
            if !tcp_nodelay(&socket)? {
                set_tcp_nodelay(&socket, true)?;
                found = true;
            }
        }
        Ok(found)
    }

    fn peer_port(number: RawFd) -> Option<u16> {
        let peer: SockaddrStorage = getpeername(number).ok()?;
        let port = peer.as_sockaddr_in().map(SockaddrIn::port);
        port.or_else(|| peer.as_sockaddr_in6().map(SockaddrIn6::port))
    }

    /// Opens a file of this process a second time by its number. The file is sent to ourselves
    /// through a pair of Unix sockets. Safe Rust cannot borrow a file by its number, and
    /// `pidfd_getfd` is forbidden by the seccomp profiles of containers (Docker and containerd,
    /// without `CAP_SYS_PTRACE`).
    fn duplicate(
        number: RawFd,
        (here, there): &(UnixStream, UnixStream),
    ) -> io::Result<Option<OwnedFd>> {
        let numbers = [number];
        let message = [ControlMessage::ScmRights(&numbers)];
        sendmsg::<UnixAddr>(
            here.as_raw_fd(),
            &[IoSlice::new(b"-")],
            &message,
            MsgFlags::empty(),
            None,
        )?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut received = RecvAncillaryBuffer::new(&mut space);
        recvmsg(
            there,
            &mut [IoSliceMut::new(&mut [0])],
            &mut received,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        Ok(received.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        }))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]
    async fn listener(address: &str) -> (TcpListener, u16) {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, port)
    }

    #[tokio::test]
    async fn all_connections_to_the_port_and_no_others_get_the_option() {
        let ((_one, port), (_two, other_port)) =
            (listener("127.0.0.1").await, listener("127.0.0.1").await);
        let mut connections = Vec::new();
        for port in [port, port, other_port] {
            connections.push(TcpStream::connect(("127.0.0.1", port)).await.unwrap());
        }
        let options = || {
            connections
                .iter()
                .map(|connection| connection.nodelay().unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(options(), [false, false, false]);
        for found in [true, false] {
            assert_eq!(linux::disable_nagle(port).unwrap(), found);
            assert_eq!(options(), [true, true, false]);
        }
    }

    #[tokio::test]
    async fn ipv6_too() {
        // Some containers have no IPv6.
        if TcpListener::bind("[::1]:0").await.is_err() {
            return;
        }
        let (_listener, port) = listener("::1").await;
        let connection = TcpStream::connect(("::1", port)).await.unwrap();
        assert!(linux::disable_nagle(port).unwrap());
        assert!(connection.nodelay().unwrap());
    }

    #[tokio::test]
    async fn a_connection_gets_the_option_while_it_is_opened() {
        let (_listener, port) = listener("127.0.0.1").await;
        let opening = async {
            let connection = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            while !connection.nodelay().unwrap() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        over_tls(port, opening).await;
    }

    #[tokio::test]
    async fn without_tls_nothing_is_searched() {
        let (_listener, port) = listener("127.0.0.1").await;
        for (mode, expected) in [
            (PgSslMode::Disable, false),
            (PgSslMode::Prefer, true),
            (PgSslMode::Require, true),
        ] {
            let options = PgConnectOptions::new().port(port).ssl_mode(mode);
            let opening = TcpStream::connect(("127.0.0.1", port));
            let connection = opened(&options, opening).await.unwrap();
            assert_eq!(connection.nodelay().unwrap(), expected, "{mode:?}");
        }
    }
}
