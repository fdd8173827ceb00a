//! Names of lanes. A lane is what fails together at a provider, which is usually one option. The
//! provisioner limits each lane separately, so that an option that hangs does not slow down the
//! others.

/// The longest name of a lane that is stored as it is, in bytes. Longer ones are hashed.
const SPELLED_OUT: usize = 64;

/// Returns the lane of a purchase, given the provider's ids of the options that it buys. Ingress
/// calls it when it stores an order.
///
/// A purchase of one option belongs to the lane of this option. A purchase of several options can
/// fail because of any of them, so it has a lane of its own: the sorted distinct ids, joined by
/// `+`. A name of more than 64 bytes is replaced by its hash.
pub fn lane<'a>(options: impl IntoIterator<Item = &'a str>) -> String {
    let mut options: Vec<&str> = options.into_iter().collect();
    options.sort_unstable();
    options.dedup();
    let lane = options.join("+");
    if lane.len() <= SPELLED_OUT {
        return lane;
    }
    // The name is stored with the placement, and all replicas compare it. So the hash must be the
    // same in every version of every program, unlike that of Rust's standard hasher. It is FNV-1a.
    let hash = lane.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("#{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_options_are_the_same_lane() {
        assert_eq!(lane(["b"]), "b");
        assert_eq!(lane(["b", "a", "b"]), "a+b");
        assert_eq!(lane(["a", "b"]), lane(["b", "a"]));
        assert_ne!(lane(["a", "b"]), lane(["a", "c"]));
    }

    #[test]
    fn a_long_name_is_hashed() {
        let options = [
            "0e4736-00f067aa0ba902b7-a3ce929d0",
            "4bf92f3577b34da6a3ce929d0e0e4736",
        ];
        assert_eq!(lane(options), "#1ebd98692b67706e");
        assert_ne!(
            lane(options),
            lane([options[0], "4bf92f3577b34da6a3ce929d0e0e4737"])
        );
        let longest = "x".repeat(SPELLED_OUT);
        assert_eq!(lane([longest.as_str()]), longest);
    }
}
