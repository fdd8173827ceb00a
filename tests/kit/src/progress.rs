//! A progress line on standard error. On a terminal it is redrawn in place; elsewhere each change
//! is a line of its own.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// A progress line. It disappears from the terminal when this is dropped.
pub struct Progress {
    bar: ProgressBar,
    last: String,
}

impl Progress {
    /// Starts a spinner without text.
    pub fn start() -> Self {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        Self {
            bar,
            last: String::new(),
        }
    }

    /// Shows `text`. Without a terminal, the text is printed if it has changed.
    pub fn show(&mut self, text: String) {
        if self.bar.is_hidden() {
            if text != self.last {
                eprintln!("{text}");
            }
            self.last = text;
        } else {
            self.bar.set_message(text);
        }
    }

    /// Prints a line to standard output, above the progress line.
    pub fn print(&self, text: &str) {
        self.bar.suspend(|| println!("{text}"));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
