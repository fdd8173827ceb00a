//! Shows text of others, such as a provider's message, on a terminal or in a log line.

/// Escapes the control characters of a text, and those that turn the direction of writing round, with
/// which an id could show the text behind it in another order. Otherwise a provider or partner could start a line
/// that looks like one of ours, or move the cursor of an operator's terminal and overwrite what it
/// shows.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        let turns = matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if character.is_control() || turns {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}
