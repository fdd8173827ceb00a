//! The channel for notices: where the service tells the partner that an endpoint fails.

use clap::{Args, Subcommand};
use serde_json::json;

use crate::account::{ApiClient, ApiResponse};

pub(crate) const EXAMPLES: &str = "Examples:
  esim-partner notices show
  esim-partner notices set --email ops@example.com
  esim-partner notices set --url https://status.example.com/notices
  esim-partner notices verify 7KQM-2XWB-9TRA
  esim-partner notices remove";

#[derive(Subcommand, Clone, Debug)]
pub(crate) enum NoticesCommand {
    /// Show the channel and its state
    #[command(after_help = "Examples:\n  esim-partner notices show")]
    Show,
    /// Set a URL or an e-mail address, and have a code sent there
    ///
    /// The channel gets notices once you have given the code back with `verify`. For a new URL, the
    /// output has the secret that signs its notices, which is shown only once.
    #[command(
        after_help = "Examples:\n  esim-partner notices set --email ops@example.com\n  esim-partner notices set --url https://status.example.com/notices"
    )]
    Set(NoticeChannelArgs),
    /// Give back the code that was sent to the channel
    #[command(after_help = "Examples:\n  esim-partner notices verify 7KQM-2XWB-9TRA")]
    Verify {
        /// The code, as it was sent
        code: String,
    },
    /// Remove the channel, so that no further notices are sent
    #[command(after_help = "Examples:\n  esim-partner notices remove")]
    Remove,
}

#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct NoticeChannelArgs {
    /// A URL on another server than your webhook endpoint
    #[arg(long)]
    url: Option<String>,
    /// An e-mail address; `show` says whether the service sends mails
    #[arg(long)]
    email: Option<String>,
}

impl NoticesCommand {
    /// Sends the request of the command.
    pub(crate) async fn run(&self, account: &ApiClient) -> anyhow::Result<ApiResponse> {
        match self {
            Self::Show => account.send("GET", "/notices", "", None).await,
            Self::Set(NoticeChannelArgs { url, email }) => {
                let body = match (url, email) {
                    (Some(url), _) => json!({ "url": url }),
                    (None, email) => json!({ "email": email }),
                };
                account.send("PUT", "/notices", "", Some(&body)).await
            }
            Self::Verify { code } => {
                let body = json!({ "code": code });
                account
                    .send("POST", "/notices/verify", "", Some(&body))
                    .await
            }
            Self::Remove => account.send("DELETE", "/notices", "", None).await,
        }
    }
}
