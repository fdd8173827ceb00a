//! Standard output, which a reader such as `head` may close.

use std::{
    fmt::Display,
    io::{self, ErrorKind, Write},
};

pub(crate) fn print(line: impl Display) -> anyhow::Result<()> {
    Ok(writeln!(io::stdout(), "{line}")?)
}

/// Whether the reader has closed standard output; the program then ends silently.
pub(crate) fn is_closed(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}
