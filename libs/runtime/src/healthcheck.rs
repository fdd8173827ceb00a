//! The subcommand `healthcheck`, which requests `/readyz` of the service in the same container. It
//! exists because the images contain neither a shell nor an HTTP client that a container health
//! check could use.
//!
//! What "ready" means is up to the service. For example, ingress is ready without NATS and, after
//! its start, without PostgreSQL, so that partners get the specified errors instead of no response.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use clap::Command;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime::Builder,
};

pub const NAME: &str = "healthcheck";

/// The deadline of the whole check. It is below the timeout of the images' health checks (5 s), so
/// that the reason is printed before the check is killed.
const DEADLINE: Duration = Duration::from_secs(3);
/// The maximum length of the response that is read, in bytes.
const LONGEST_ANSWER: u64 = 16 * 1024;

/// The id of the flag with the admin address, which every service has.
const PORT: &str = "admin_listen";

/// Adds the subcommand to the command line of a service. A program without an admin address, such
/// as esimctl, stays as it is.
pub fn offer(command: Command) -> Command {
    let Some(port) = command
        .get_arguments()
        .find(|argument| argument.get_id() == PORT)
        .cloned()
    else {
        return command;
    };
    command.subcommand_negates_reqs(true).subcommand(
        Command::new(NAME)
            .about("Ask the running service whether it is ready: exit status 0 if it is, otherwise 1 and the reason")
            .arg(port.help("The admin address of the service")),
    )
}

/// The admin address to ask, if the subcommand was given.
pub fn address(arguments: &clap::ArgMatches) -> Option<SocketAddr> {
    arguments
        .try_get_one::<SocketAddr>(PORT)
        .ok()
        .flatten()
        .copied()
}

/// Requests `/readyz`. `Err` is the reason why the service is not ready, on one line.
pub fn ask(address: SocketAddr) -> Result<String, String> {
    let address = reachable(address);
    let answer =
        exchange(address).map_err(|error| format!("{address} does not respond: {error}"))?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    match head.split_whitespace().nth(1) {
        Some("200") => Ok("ready".into()),
        Some("503") => Err(format!("not ready: {}", reasons(body))),
        Some(status) => Err(format!(
            "{address}/readyz responded {status} instead of 200 or 503"
        )),
        None => Err(format!(
            "{address} does not respond in HTTP; is it the admin address?"
        )),
    }
}

/// The address to connect to. It is the loopback address for a service that listens on all
/// addresses.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

fn exchange(address: SocketAddr) -> std::io::Result<Vec<u8>> {
    let asking = async {
        let mut stream = TcpStream::connect(address).await?;
        // The request is sent in one write. If a server responded and closed after the first of
        // two, the second would fail, and its response would be lost.
        let request =
            format!("GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(LONGEST_ANSWER).read_to_end(&mut answer).await?;
        Ok(answer)
    };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let answered = runtime.block_on(async { tokio::time::timeout(DEADLINE, asking).await });
    answered.unwrap_or_else(|_| {
        Err(std::io::Error::other(format!(
            "no response within {DEADLINE:?}"
        )))
    })
}

/// Turns `{"missing": {"database": "why"}}` into `database: why`.
fn reasons(body: &str) -> String {
    let parsed: Value = serde_json::from_str(body).unwrap_or_default();
    let Some(missing) = parsed["missing"].as_object() else {
        return body.split_whitespace().collect::<Vec<_>>().join(" ");
    };
    let part = |(part, reason): (&String, &Value)| {
        format!("{part}: {}", reason.as_str().unwrap_or_default())
    };
    missing.iter().map(part).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::{net::TcpListener, thread};

    use super::*;

    /// Serves one connection with these bytes.
    fn server(answer: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        });
        address
    }

    #[test]
    fn only_200_is_ready_and_a_503_says_why() {
        let ready = server("HTTP/1.1 200 OK\r\n\r\n{\"ready\":true,\"missing\":{}}");
        assert_eq!(ask(ready), Ok("ready".into()));
        let away = server(
            "HTTP/1.1 503 Service Unavailable\r\n\r\n{\"ready\":false,\"missing\":{\"database\":\"away\",\"nats\":\"not connected\"}}",
        );
        assert_eq!(
            ask(away),
            Err("not ready: database: away; nats: not connected".into())
        );
        assert!(
            ask(server("HTTP/1.1 404 Not Found\r\n\r\n"))
                .unwrap_err()
                .contains("404")
        );
        assert!(ask(server("nonsense")).unwrap_err().contains("HTTP"));
    }

    #[test]
    fn an_unreachable_server_is_one_line() {
        let address = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let reason = ask(address).unwrap_err();
        assert!(reason.contains("does not respond"), "{reason}");
        assert_eq!(reason.lines().count(), 1);
    }

    #[test]
    fn who_listens_everywhere_is_asked_on_loopback() {
        let asked = |address: &str| reachable(address.parse().unwrap()).to_string();
        assert_eq!(asked("0.0.0.0:9090"), "127.0.0.1:9090");
        assert_eq!(asked("[::]:9090"), "[::1]:9090");
        assert_eq!(asked("10.0.0.1:9090"), "10.0.0.1:9090");
    }
}
