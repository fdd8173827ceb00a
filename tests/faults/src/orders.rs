//! The orders: options, partner and client behaviour. Pure: seed and number decide everything.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::time::Duration;

/// The sandbox's options and how often each is ordered.
pub const OPTIONS: [(&str, u32); 12] = [
    ("ready", 40),
    ("delayed", 10),
    ("refused", 6),
    ("out-of-stock", 4),
    ("bought-then-error", 7),
    ("bought-then-silent", 5),
    (NEVER_READY, 2),
    ("partly", 5),
    ("duplicate-callback", 5),
    ("slow", 5),
    ("flapping", 6),
    ("rate-limited", 5),
];
/// The option whose profiles never arrive: its placements must be parked.
pub const NEVER_READY: &str = "never-ready";
/// The share of clients that hang up before they read a response.
const HANG_UP: f64 = 0.1;
/// The share of orders over two options.
const TWO_OPTIONS: f64 = 0.15;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    Fast,
    /// 2 s.
    Slow,
    /// 500 for two of five requests.
    Failing,
    /// Never responds.
    Hanging,
    /// Ends two of three connections after reading the request.
    Closing,
    /// The partner has set no URL.
    Absent,
}

/// One partner per row, with its share of orders.
pub const PARTNERS: [(Behaviour, u32); 6] = [
    (Behaviour::Fast, 40),
    (Behaviour::Slow, 15),
    (Behaviour::Failing, 15),
    (Behaviour::Hanging, 10),
    (Behaviour::Closing, 10),
    (Behaviour::Absent, 10),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HangUp {
    /// After this many thousandths of the request.
    Sending(u32),
    /// This long after the whole request was sent.
    Sent(Duration),
    /// When the response arrives, without reading it.
    Answered,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderPlan {
    /// Index into [`PARTNERS`].
    pub partner: usize,
    /// Option names with quantities; each name once.
    pub items: Vec<(&'static str, u32)>,
    /// Only for the first request; every later one waits for its response.
    pub hang_up: Option<HangUp>,
    /// The ingress of the first request; later requests take turns.
    pub ingress: usize,
}

/// The order with this number, from 0.
pub fn plan(seed: u64, number: u64) -> OrderPlan {
    let mut rng = StdRng::seed_from_u64(seed.rotate_left(32) ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let partner = weighted(&PARTNERS.map(|(_, weight)| weight), &mut rng);
    let mut items = vec![item(&mut rng)];
    if rng.random_bool(TWO_OPTIONS) {
        let second = item(&mut rng);
        if second.0 != items[0].0 {
            items.push(second);
        }
    }
    let hang_up = rng.random_bool(HANG_UP).then(|| match rng.random_range(0..10) {
        0..3 => HangUp::Sending(rng.random_range(0..1000)),
        3..6 => HangUp::Sent(Duration::from_micros(rng.random_range(0..20_000))),
        6..8 => HangUp::Sent(Duration::from_millis(rng.random_range(20..4_000))),
        _ => HangUp::Answered,
    });
    OrderPlan { partner, items, hang_up, ingress: rng.random_range(0..crate::schedule::REPLICAS) }
}

fn item(rng: &mut StdRng) -> (&'static str, u32) {
    let option = weighted(&OPTIONS.map(|(_, weight)| weight), rng);
    (OPTIONS[option].0, rng.random_range(1..=4))
}

/// An index, chosen in proportion to its weight.
fn weighted(weights: &[u32], rng: &mut StdRng) -> usize {
    let mut left = rng.random_range(0..weights.iter().sum());
    weights
        .iter()
        .position(|weight| {
            let here = left < *weight;
            left = left.saturating_sub(*weight);
            here
        })
        .unwrap_or_default()
}
