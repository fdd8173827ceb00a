//! The pages from which travellers install: how they look, and the address of each.

use clap::{Args, Subcommand};
use domain::TopupId;
use serde_json::json;

use crate::account::{ApiClient, ApiResponse};

pub(crate) const EXAMPLES: &str = "Examples:
  esim-partner install-page set --name 'Norvada Travel' --brand '#14506b' --brand-ink '#ffffff' --help-email help@norvada.example
  esim-partner install-page open 20250129123456123456789012
  esim-partner install-page end 20250129123456123456789012";

#[derive(Subcommand, Clone, Debug)]
pub(crate) enum InstallPageCommand {
    /// Show how your pages look
    #[command(after_help = "Examples:\n  esim-partner install-page show")]
    Show,
    /// Set how your pages look
    ///
    /// This sets all of it: what you leave out is not kept.
    #[command(after_help = EXAMPLES)]
    Set(InstallPagesArgs),
    /// Print the address of the page of an eSIM, for the customer
    ///
    /// Whoever has the address can install the eSIM.
    #[command(
        after_help = "Examples:\n  esim-partner install-page open 20250129123456123456789012"
    )]
    Open {
        /// The topup id of 26 digits
        topup_id: TopupId,
    },
    /// End the page of an eSIM, so that its address leads nowhere
    #[command(after_help = "Examples:\n  esim-partner install-page end 20250129123456123456789012")]
    End {
        /// The topup id of 26 digits
        topup_id: TopupId,
    },
}

#[derive(Args, Clone, Debug)]
pub(crate) struct InstallPagesArgs {
    /// The name of your shop, as travellers know it
    #[arg(long)]
    name: String,
    /// The colour of the bar and of the button, such as #14506b
    #[arg(long, value_name = "COLOUR")]
    brand: String,
    /// The colour of the text on it
    #[arg(long, value_name = "COLOUR")]
    brand_ink: String,
    /// The e-mail address where travellers get help
    #[arg(long, required_unless_present = "help_url")]
    help_email: Option<String>,
    /// The https URL where travellers get help
    #[arg(long)]
    help_url: Option<String>,
    /// The languages that travellers can choose from, the first one by default [default: all]
    #[arg(long, value_delimiter = ',', value_name = "TAG,…")]
    languages: Option<Vec<String>>,
    /// Show the addresses in look-ups of topups
    #[arg(long)]
    in_look_ups: bool,
}

impl InstallPageCommand {
    /// Sends the request of the command.
    pub(crate) async fn run(&self, account: &ApiClient) -> anyhow::Result<ApiResponse> {
        let settings = "/account/install-pages";
        match self {
            Self::Show => account.send("GET", settings, "", None).await,
            Self::Set(InstallPagesArgs {
                name,
                brand,
                brand_ink,
                help_email,
                help_url,
                languages,
                in_look_ups,
            }) => {
                let body = json!({
                    "name": name, "brand": brand, "brand_ink": brand_ink, "help_email": help_email,
                    "help_url": help_url, "languages": languages, "install_urls": in_look_ups,
                });
                account.send("PUT", settings, "", Some(&body)).await
            }
            Self::Open { topup_id } => {
                let path = format!("/topups/{topup_id}/install-page");
                account.send("POST", &path, "", None).await
            }
            Self::End { topup_id } => {
                let path = format!("/topups/{topup_id}/install-page");
                account.send("DELETE", &path, "", None).await
            }
        }
    }
}
