//! Shows text of others, such as a provider's message, on a terminal or in a log line.

/// Escapes the control characters of a text. Otherwise a provider or partner could start a line
/// that looks like one of ours, or move the cursor of an operator's terminal and overwrite what it
/// shows.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}
