//! The webhook URL as an argument. A URL may hold a password or a token, so an error must not
//! repeat it on the terminal or in the log of a script, as clap's own errors would.

use std::ffi::OsStr;

use clap::{
    Arg, Command, Error,
    builder::{StringValueParser, TypedValueParser},
    error::ErrorKind,
};
use webhooks::url::WebhookUrl;

/// Reads a [`WebhookUrl`]. Its errors name the option and what is wrong, but not the value.
#[derive(Clone)]
pub struct WebhookUrlParser;

impl TypedValueParser for WebhookUrlParser {
    type Value = WebhookUrl;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<WebhookUrl, Error> {
        let text = StringValueParser::new().parse_ref(command, arg, value)?;
        text.parse().map_err(|error| {
            let flag = arg.and_then(Arg::get_long).unwrap_or("url");
            Error::raw(
                ErrorKind::ValueValidation,
                format!("invalid value for '--{flag}': {error}\n"),
            )
        })
    }
}
