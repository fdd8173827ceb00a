//! The webhook URL as an argument.

use std::ffi::OsStr;

use clap::{
    Arg, Command,
    builder::{StringValueParser, TypedValueParser},
    error::ErrorKind,
};
use webhooks::url::WebhookUrl;

/// Reads a [`WebhookUrl`]; its errors don't repeat the value, as clap's own would.
#[derive(Clone)]
pub struct WebhookUrlParser;

impl TypedValueParser for WebhookUrlParser {
    type Value = WebhookUrl;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<WebhookUrl, clap::Error> {
        let text = StringValueParser::new().parse_ref(command, argument, value)?;
        text.parse().map_err(|error| {
            let flag = argument.and_then(Arg::get_long).unwrap_or("url");
            clap::Error::raw(ErrorKind::ValueValidation, format!("invalid value for '--{flag}': {error}\n"))
        })
    }
}
