//! In place of `pipeline::trace`: there are no spans.

use tracing::Span;

pub fn gather<'a>(_span: &Span, _traceparents: impl Iterator<Item = Option<&'a str>>) {}

pub fn statement(_operation: &'static str, _table: &'static str) -> Span {
    Span::none()
}

pub fn executed(_span: &Span, _rows: usize, _failed: bool) {}
