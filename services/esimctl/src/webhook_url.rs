//! The webhook URL as an argument.

use std::ffi::OsStr;

use clap::{
    Arg, Command, Error,
    builder::{StringValueParser, TypedValueParser},
    error::ErrorKind,
};
use webhooks::url::WebhookUrl;

/// Reads a [`WebhookUrl`]; its errors don't repeat the value, as clap's own would.
#[derive(Clone)]
pub struct WebhookUrlParser;

impl TypedValueParser for WebhookUrlParser {
    type Value = WebhookUrl;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<WebhookUrl, Error> {
        let text = StringValueParser::new().parse_ref(command, arg, value)?;
        text.parse().map_err(|error| {
            let flag = arg.and_then(Arg::get_long).unwrap_or("url");
            Error::raw(ErrorKind::ValueValidation, format!("invalid value for '--{flag}': {error}\n"))
        })
    }
}
