//! Numbers with their nouns, in the sentences of operators.

use std::fmt::Display;

/// The noun that belongs to a number: `one` of one, `several` of any other.
pub fn noun<'a>(number: impl TryInto<i128>, one: &'a str, several: &'a str) -> &'a str {
    if number.try_into().is_ok_and(|number: i128| number == 1) {
        one
    } else {
        several
    }
}

/// A number with its noun: `1 unit`, `2 units`.
pub fn counted(number: impl TryInto<i128> + Display + Copy, one: &str, several: &str) -> String {
    format!("{number} {}", noun(number, one, several))
}
