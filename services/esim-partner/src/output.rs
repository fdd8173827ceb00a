//! Standard output, which a reader such as `head` may close.

use std::{
    fmt::Display,
    io::{self, Write},
};

/// The reader has closed standard output: the program ends without a word.
#[derive(Debug)]
pub(crate) struct Closed;

impl Display for Closed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("standard output is closed")
    }
}

impl std::error::Error for Closed {}

/// Prints a line.
pub(crate) fn print(line: impl Display) -> anyhow::Result<()> {
    match writeln!(io::stdout(), "{line}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Closed.into()),
        printed => Ok(printed?),
    }
}
