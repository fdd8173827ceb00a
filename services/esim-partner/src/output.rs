//! Prints to standard output without a panic if the reader has closed it, as `head` does after its
//! last line.

use std::{
    fmt::Display,
    io::{self, ErrorKind, Write},
};

/// Prints a line. Unlike `println!`, it returns an error if that fails.
pub(crate) fn print(line: impl Display) -> anyhow::Result<()> {
    Ok(writeln!(io::stdout(), "{line}")?)
}

/// Whether the error means that the reader has closed standard output. The program then ends
/// silently and successfully.
pub(crate) fn is_closed(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}
