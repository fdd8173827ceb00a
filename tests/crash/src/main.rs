//! Prints every point of the walk over all crash points: one line for each effect, with its stage and the
//! points before and after it.

use pipeline::effect::{Effect, Point, Side};

fn main() {
    for &effect in Effect::ALL {
        let [before, after] = [Side::Before, Side::After].map(|side| Point { effect, side }.to_string());
        println!("{:<12} {before:<28} {after}", effect.stage());
    }
}
