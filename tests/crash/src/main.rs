//! Prints every point of the walk over all crash points.

fn main() {
    pipeline::effect::Point::all().for_each(|point| println!("{point}"));
}
