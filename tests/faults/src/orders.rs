//! Plans the orders: their options, their partner, and how the client behaves. The seed and the
//! number of an order decide everything, so that a run can be repeated.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::time::Duration;

/// The options of the sandbox, and the weight with which each is chosen.
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
/// The option whose profiles never arrive, so its placements must be parked.
pub const NEVER_READY: &str = "never-ready";
/// The options of `--items` that the sandbox has sold out and the provider of the run sells, with
/// the option of that provider. They are not among [`OPTIONS`].
pub const ROUTED: [(&str, &str); 2] = [("routed", "ready"), ("routed-slow", "slow")];
/// The share of clients that hang up before they read a response.
const HANG_UP: f64 = 0.1;
/// The share of orders over two options.
const TWO_OPTIONS: f64 = 0.15;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    Fast,
    /// Responds after 2 s.
    Slow,
    /// Responds 500 to two of five requests.
    Failing,
    /// Does not respond in time.
    Hanging,
    /// Ends two of three connections after reading the request.
    Closing,
    /// The partner has set no URL.
    Absent,
}

/// The partners: how the endpoint of each behaves, and its weight among the orders.
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
    /// After this many thousandths of the request were sent.
    Sending(u32),
    /// This long after the whole request was sent.
    Sent(Duration),
    /// When the answer arrives, without reading it.
    Answered,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderPlan {
    /// Index into [`PARTNERS`].
    pub partner: usize,
    /// The names of the options with their quantities. Each name occurs once.
    pub items: Vec<(&'static str, u32)>,
    /// How the client hangs up, if it does. Only the first request is concerned; later ones wait
    /// for their answer.
    pub hang_up: Option<HangUp>,
    /// The ingress that gets the first request. Later requests go to the others in turn.
    pub ingress: usize,
}

/// Whether it is one of [`ROUTED`].
pub fn is_routed(option: &str) -> bool {
    ROUTED.iter().any(|(name, _)| *name == option)
}

/// Plans the order with this number, counted from 0.
pub fn plan(seed: u64, number: u64) -> OrderPlan {
    let mut rng =
        StdRng::seed_from_u64(seed.rotate_left(32) ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let partner = weighted(&PARTNERS.map(|(_, weight)| weight), &mut rng);
    let mut items = vec![item(&mut rng)];
    if rng.random_bool(TWO_OPTIONS) {
        let second = item(&mut rng);
        if second.0 != items[0].0 {
            items.push(second);
        }
    }
    let hang_up = rng
        .random_bool(HANG_UP)
        .then(|| match rng.random_range(0..10) {
            0..3 => HangUp::Sending(rng.random_range(0..1000)),
            3..6 => HangUp::Sent(Duration::from_micros(rng.random_range(0..20_000))),
            6..8 => HangUp::Sent(Duration::from_millis(rng.random_range(20..4_000))),
            _ => HangUp::Answered,
        });
    OrderPlan {
        partner,
        items,
        hang_up,
        ingress: rng.random_range(0..crate::fault::REPLICAS),
    }
}

fn item(rng: &mut StdRng) -> (&'static str, u32) {
    let option = weighted(&OPTIONS.map(|(_, weight)| weight), rng);
    (OPTIONS[option].0, rng.random_range(1..=4))
}

/// Chooses an index at random, in proportion to its weight.
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
