//! Numbers as reports show them.

#[expect(
    clippy::cast_precision_loss,
    reason = "counts of one run are far below 2^52"
)]
pub fn approximate(count: u64) -> f64 {
    count as f64
}

/// One decimal, which is the precision of the measurement.
pub fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
