//! Prints every point at which the walk over all crash points lets a process die: one line for each
//! effect, with the stage that has it and the points on both sides.

use pipeline::effect::{Effect, Point, Side};

fn main() {
    for &effect in Effect::ALL {
        let [before, after] = [Side::Before, Side::After].map(|side| Point { effect, side }.to_string());
        println!("{:<12} {before:<28} {after}", effect.stage());
    }
}
