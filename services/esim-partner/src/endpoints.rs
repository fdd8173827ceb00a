//! `esim-partner endpoints`: the account's endpoints, each with a secret, events and headers of its
//! own.
//!
//! Secrets and the values of headers pass through files that only the user can read, because other
//! users of the machine can see arguments, and logs may keep the output.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use runtime::{files, terminal::say};
use serde_json::{Map, Value, json};

use crate::{
    account::{ApiClient, ApiResponse, encoded},
    private,
};

const ADD_EXAMPLES: &str = "Examples:
  esim-partner endpoints add https://crm.example.com/esims --secret-file crm.secret
  esim-partner endpoints add https://ops.example.com/esims --secret-file ops.secret --event topup.failed --event key.expiring
  esim-partner endpoints add https://crm.example.com/esims --secret-file crm.secret --headers-file crm.headers

The secret is shown only once, so it goes to a new file that only you can read. The file of headers has lines such as
  x-api-key: s3cret";

/// Examples of a command that needs the id of an endpoint.
macro_rules! with_id {
    ($($example:literal),+) => {
        concat!("Examples:", $("\n  esim-partner endpoints ", $example,)+ "\n\nThe id is in `esim-partner endpoints list`.")
    };
}

pub(crate) const EXAMPLES: &str = "Examples:
  esim-partner endpoints list
  esim-partner endpoints add https://crm.example.com/esims --secret-file crm.secret
  esim-partner endpoints test 01994b7c-7d3e-7c3e-9c1d-0f6a5b4c3d2e
  esim-partner endpoints pause 01994b7c-7d3e-7c3e-9c1d-0f6a5b4c3d2e";

const LIST_EXAMPLES: &str = "Examples:
  esim-partner endpoints list
  esim-partner endpoints list --json";

#[derive(Subcommand, Clone, Debug)]
pub(crate) enum EndpointsCommand {
    /// List the endpoints with their states
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Show one endpoint
    #[command(after_help = with_id!("show 01994b7c-7d3e-7c3e-9c1d-0f6a5b4c3d2e"))]
    Show(EndpointArgs),
    /// Add an endpoint beside the account's webhook URL
    #[command(after_help = ADD_EXAMPLES)]
    Add {
        /// The URL that receives the webhooks
        url: String,
        /// A new file for the secret that signs its webhooks
        #[arg(long, value_name = "FILE")]
        secret_file: PathBuf,
        #[command(flatten)]
        change: EndpointSetArgs,
    },
    /// Change the URL, the events or the headers of an endpoint
    #[command(after_help = with_id!("set 01994b7c-7d3e-7c3e-9c1d-0f6a5b4c3d2e --url https://crm.example.com/v2/esims", "set 01994b7c-7d3e-7c3e-9c1d-0f6a5b4c3d2e --event topup.ready --event topup.failed", "set 01994b7c-7d3e-7c3e-9c1d-0f6a5b4c3d2e --headers-file crm.headers"))]
    Set {
        #[command(flatten)]
        which: EndpointArgs,
        /// The new URL
        #[arg(long)]
        url: Option<String>,
        #[command(flatten)]
        change: EndpointSetArgs,
    },
    /// Delete an endpoint; what waits for it is no longer sent
    #[command(after_help = with_id!("remove 01994b7c-7d3e-7c3e-9c1d-0f6a5b4c3d2e"))]
    Remove(EndpointArgs),
    /// Replace the secret of an endpoint; for 24 hours the old one also signs
    #[command(after_help = with_id!("secret 01994b7c-7d3e-7c3e-9c1d-0f6a5b4c3d2e --secret-file crm-new.secret"))]
    Secret {
        #[command(flatten)]
        which: EndpointArgs,
        /// A new file for the new secret
        #[arg(long, value_name = "FILE")]
        secret_file: PathBuf,
    },
    /// Let the webhooks to an endpoint wait
    #[command(after_help = with_id!("pause 01994b7c-7d3e-7c3e-9c1d-0f6a5b4c3d2e"))]
    Pause(EndpointArgs),
    /// Send the webhooks that wait since a pause
    #[command(after_help = with_id!("resume 01994b7c-7d3e-7c3e-9c1d-0f6a5b4c3d2e"))]
    Resume(EndpointArgs),
    /// Send a test to an endpoint, and show the outcome
    #[command(after_help = with_id!("test 01994b7c-7d3e-7c3e-9c1d-0f6a5b4c3d2e"))]
    Test(EndpointArgs),
}

#[derive(Args, Clone, Debug)]
pub(crate) struct EndpointArgs {
    /// The id of the endpoint
    #[arg(value_name = "ENDPOINT_ID")]
    endpoint: String,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct EndpointSetArgs {
    /// An event that it receives, such as `topup.ready`; may be repeated, and the error for another
    /// name lists all
    #[arg(long = "event", value_name = "EVENT")]
    events: Option<Vec<String>>,
    /// A file with the headers that each request to it carries; an empty file removes them
    #[arg(long, value_name = "FILE")]
    headers_file: Option<PathBuf>,
}

impl EndpointSetArgs {
    /// The fields of the request's body.
    fn fields(&self, url: Option<&str>) -> anyhow::Result<Map<String, Value>> {
        let mut fields = Map::new();
        if let Some(url) = url {
            fields.insert("url".to_owned(), json!(url));
        }
        if let Some(events) = &self.events {
            fields.insert("events".to_owned(), json!(events));
        }
        if let Some(file) = &self.headers_file {
            let of = headers(&files::read(file)?).with_context(|| file.display().to_string())?;
            fields.insert("headers".to_owned(), Value::Object(of));
        }
        Ok(fields)
    }
}

/// Reads lines such as `x-api-key: s3cret`. An error names the line by its number only, because its
/// text may be a secret.
fn headers(text: &str) -> anyhow::Result<Map<String, Value>> {
    let mut headers = Map::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let (name, value) = line
            .split_once(':')
            .with_context(|| format!("line {}: it has no colon; write `name: value`", index + 1))?;
        headers.insert(name.trim().to_owned(), json!(value.trim()));
    }
    Ok(headers)
}

/// A new file for a secret. It is made before the request is sent, so that no secret is created
/// that could not be stored.
struct SecretFile<'a>(&'a Path, fs::File);

impl<'a> SecretFile<'a> {
    fn create(path: &'a Path) -> anyhow::Result<Self> {
        let file = private::new_file().open(path);
        let file = file.with_context(|| {
            format!(
                "cannot create {}: the file of a secret must be new",
                path.display()
            )
        })?;
        Ok(Self(path, file))
    }

    /// Moves the secret of an answer into the file. If the answer has none, the file is removed.
    fn store(self, answer: &mut ApiResponse) -> anyhow::Result<()> {
        let Self(path, mut file) = self;
        let secret = answer
            .json
            .as_object_mut()
            .and_then(|fields| fields.remove("webhook_secret"));
        let Some(Value::String(secret)) = secret else {
            return fs::remove_file(path)
                .with_context(|| format!("cannot remove {}", path.display()));
        };
        let written = writeln!(file, "{secret}").and_then(|()| file.sync_all());
        written.with_context(|| {
            format!(
                "cannot write {}; replace the secret with `esim-partner endpoints secret`",
                path.display()
            )
        })?;
        say(format_args!("The secret is in {}.", path.display()));
        Ok(())
    }
}

impl EndpointsCommand {
    /// Sends the request of the command. A secret in the answer is moved into the file.
    pub(crate) async fn send(&self, account: &ApiClient) -> anyhow::Result<ApiResponse> {
        let of = |which: &EndpointArgs, part: &str| {
            format!("/endpoints/{}{part}", encoded(&which.endpoint))
        };
        let (method, path, body, secret_file) = match self {
            Self::List => ("GET", "/endpoints".to_owned(), None, None),
            Self::Show(which) => ("GET", of(which, ""), None, None),
            Self::Add {
                url,
                secret_file,
                change,
            } => {
                let body = change.fields(Some(url))?;
                (
                    "POST",
                    "/endpoints".to_owned(),
                    Some(body),
                    Some(secret_file),
                )
            }
            Self::Set { which, url, change } => {
                let body = change.fields(url.as_deref())?;
                ensure!(
                    !body.is_empty(),
                    "nothing to change: give --url, --event or --headers-file"
                );
                ("PUT", of(which, ""), Some(body), None)
            }
            Self::Remove(which) => ("DELETE", of(which, ""), None, None),
            Self::Secret { which, secret_file } => {
                ("POST", of(which, "/secret"), None, Some(secret_file))
            }
            Self::Pause(which) => ("POST", of(which, "/pause"), None, None),
            Self::Resume(which) => ("POST", of(which, "/resume"), None, None),
            Self::Test(which) => ("POST", of(which, "/test"), None, None),
        };
        let file = secret_file
            .map(|path| SecretFile::create(path))
            .transpose()?;
        let body = body.map(Value::Object);
        let mut sent = account.send(method, &path, "", body.as_ref()).await;
        let is_first = |answer: &ApiResponse| answer.codes.contains("first_endpoint");
        let has_headers = body
            .as_ref()
            .is_some_and(|body| body.get("headers").is_some());
        let sets = matches!(self, Self::Set { .. }) && !has_headers;
        if sets && sent.as_ref().is_ok_and(is_first) {
            // What `endpoints list` shows first has an address of its own in the API, and no
            // headers.
            sent = account.send("PUT", "/webhook", "", body.as_ref()).await;
        }
        match (sent, file) {
            (Ok(mut answer), Some(file)) => {
                file.store(&mut answer)?;
                Ok(answer)
            }
            (Err(error), Some(file)) => {
                // Whether the service has made a secret is unknown, but it is lost in any case.
                let _ = fs::remove_file(file.0);
                Err(error)
            }
            (sent, None) => sent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_from_lines_and_errors_show_no_value() {
        let read = headers("X-Api-Key: a:b \n\nauthorization:Bearer x\n").unwrap();
        assert_eq!(read["X-Api-Key"], "a:b");
        assert_eq!(read["authorization"], "Bearer x");
        let error = headers("x: 1\ns3cret\n").unwrap_err().to_string();
        assert!(
            error.contains("line 2") && !error.contains("s3cret"),
            "{error}"
        );
    }
}
