//! What programs write for people: lines on standard output and standard error, and text of others
//! within them, such as a provider's message.
//!
//! All programs print through [`print`] and [`say`], and `tests/run shell` refuses any other way.
//! This gives three guarantees. No control or format character of anybody's text reaches a
//! terminal, where it could hide text, turn its direction round or move the cursor. No password of
//! a URL reaches standard error or a log line. And a reader that is gone ends a program quietly,
//! while any other failed write is an error with a non-zero exit status, because whoever reads the
//! file later would take half a result for a whole one.

use std::{
    borrow::Cow,
    fmt::{Display, Write as _},
    io::{self, ErrorKind, IsTerminal, Write},
};

use anyhow::Context;

/// Prints a line, or a text of several lines, to standard output. The error says that standard
/// output could not be written; [`is_closed`] tells whether only its reader is gone.
pub fn print(text: impl Display) -> anyhow::Result<()> {
    let text = text.to_string();
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{}", escaped(&text))
        .and_then(|()| stdout.flush())
        .context("cannot write to standard output")
}

/// Writes a line to standard error. Nobody could be told that this failed, so a failure is ignored:
/// unlike `eprintln!`, it does not end the program.
pub fn say(text: impl Display) {
    let text = text.to_string();
    let _ = writeln!(io::stderr(), "{}", escaped(&without_passwords(&text)));
}

/// Writes a question to standard error, without a line end. It fails if standard error does,
/// because the program would otherwise wait for the answer to a question that nobody has seen.
pub fn ask(question: impl Display) -> anyhow::Result<()> {
    let question = question.to_string();
    let mut stderr = io::stderr().lock();
    write!(stderr, "{}", escaped(&question))
        .and_then(|()| stderr.flush())
        .context("cannot ask on standard error")
}

/// Shows how far something is, in the current line of the terminal, so that the next line or
/// progress replaces it. Returns whether standard error is a terminal; otherwise nothing is shown.
pub fn progress(text: impl Display) -> bool {
    let mut stderr = io::stderr();
    let is_terminal = stderr.is_terminal();
    if is_terminal {
        let _ = write!(stderr, "{}\x1b[K\r", printable(&text.to_string()));
    }
    is_terminal
}

/// Whether the error means that the reader of standard output, such as `head`, has closed it. The
/// program then ends quietly and successfully, because the reader has all that it wanted.
pub fn is_closed(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let cause = cause.downcast_ref::<io::Error>();
        cause.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
    })
}

/// Whether a character cannot be seen, or changes how the text around it is shown: a control
/// character, a line or paragraph separator, one of Unicode's category Cf (format), for example a
/// zero-width space or a mark that turns the direction of writing round, or a letter without a
/// shape, such as a Hangul filler.
pub fn is_hidden(character: char) -> bool {
    character.is_control()
        || is_format(character)
        || matches!(
            character,
            '\u{2028}'
                | '\u{2029}'
                | '\u{34f}'
                | '\u{115f}'
                | '\u{1160}'
                | '\u{17b4}'
                | '\u{17b5}'
                | '\u{3164}'
                | '\u{ffa0}'
        )
}

/// Whether a character is of Unicode's category Cf (format).
pub fn is_format(character: char) -> bool {
    matches!(
        character,
        '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}'
            | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2064}'
            | '\u{2066}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}'
            | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0001}'
            | '\u{e0020}'..='\u{e007f}'
    )
}

/// Escapes the hidden characters of a text, line ends included, so that it stays on its line.
/// Otherwise a provider or partner could start a line that looks like one of ours, or move the
/// cursor of an operator's terminal and overwrite what it shows.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if is_hidden(character) {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// Joins the lines of a text by blanks and escapes hidden characters, so that an error is one line.
pub fn one_line(text: &str) -> String {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(printable)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Escapes all hidden characters but line ends and tabs, which our own layout needs. The escapes
/// are those of JSON, so that a JSON text keeps its value.
pub(crate) fn escaped(text: &str) -> Cow<'_, str> {
    let is_kept = |character: char| matches!(character, '\n' | '\t') || !is_hidden(character);
    if text.chars().all(is_kept) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if is_kept(character) {
            shown.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            // Writing into a string cannot fail.
            let _ = write!(shown, "\\u{unit:04x}");
        }
    }
    Cow::Owned(shown)
}

/// Replaces the user name and password of each URL in a text. The words `user:password` stay,
/// because with them our errors say how a URL is written: `nats://user:password@host`.
pub fn without_passwords(text: &str) -> Cow<'_, str> {
    const BEGINS: &str = "://";
    const ENDS: [char; 8] = ['/', '?', '#', '"', '\'', '`', '\\', '>'];
    let mut shown = String::new();
    let mut rest = text;
    while let Some(begin) = rest.find(BEGINS) {
        let (before, authority) = rest.split_at(begin + BEGINS.len());
        let ends = |character: char| character.is_whitespace() || ENDS.contains(&character);
        let end = authority.find(ends).unwrap_or(authority.len());
        shown.push_str(before);
        let mut secret = authority[..end].rfind('@').unwrap_or_default();
        if &authority[..secret] == "user:password" {
            secret = 0;
        }
        if secret > 0 {
            shown.push_str("[redacted]");
        }
        rest = &authority[secret..];
    }
    if shown.is_empty() {
        return Cow::Borrowed(text);
    }
    shown.push_str(rest);
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_escaped_and_json_keeps_its_value() {
        let hostile = "a\u{1b}[2J\u{202e}b\u{200b}\u{9b}c\u{2028}\u{e0041}\r\u{feff}é…ü";
        let shown = printable(hostile);
        assert!(!shown.chars().any(is_hidden), "{shown}");
        assert!(shown.starts_with(r"a\u{1b}[2J\u{202e}b\u{200b}"), "{shown}");
        assert!(shown.ends_with("é…ü"), "{shown}");
        let json = serde_json::json!({ "id": hostile }).to_string();
        let shown = escaped(&json);
        assert!(!shown.chars().any(is_hidden), "{shown}");
        let read: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(read["id"], hostile);
        assert_eq!(escaped("two\n\tlines"), "two\n\tlines");
    }

    #[test]
    fn passwords_of_urls_are_not_shown() {
        for (text, shown) in [
            (
                "http://me:secret@localhost:3000/hook",
                "http://[redacted]@localhost:3000/hook",
            ),
            (
                "nats://token@a:1,nats://u:p@w@b:2 failed",
                "nats://[redacted]@a:1,nats://[redacted]@b:2 failed",
            ),
            (
                "\"url\":\"http://me:se@cret@h\"}",
                "\"url\":\"http://[redacted]@h\"}",
            ),
            (
                "http://host/a@b and https://host?to=a@b",
                "http://host/a@b and https://host?to=a@b",
            ),
            ("http://@host", "http://@host"),
            (
                "not of the form nats://user:password@host:port",
                "not of the form nats://user:password@host:port",
            ),
            ("nats://user:password1@host", "nats://[redacted]@host"),
            ("ops@example.com", "ops@example.com"),
        ] {
            assert_eq!(without_passwords(text), shown);
        }
    }

    #[test]
    fn only_a_closed_pipe_ends_quietly() {
        let of = |kind: ErrorKind| {
            anyhow::Error::new(io::Error::from(kind)).context("cannot write to standard output")
        };
        assert!(is_closed(&of(ErrorKind::BrokenPipe)));
        assert!(!is_closed(&of(ErrorKind::StorageFull)));
    }
}
