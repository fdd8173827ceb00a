//! Room in a map that remembers what a process has seen.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash},
};

/// Makes room for one more entry: a full map forgets what `keep` denies before it would grow. It is
/// searched again only after as many inserts as it has entries then, so an insert takes constant
/// time on average, even if there is little to forget.
pub fn make_room<K: Eq + Hash, V, S: BuildHasher>(
    map: &mut HashMap<K, V, S>,
    keep: impl FnMut(&K, &mut V) -> bool,
) {
    if map.len() < map.capacity() {
        return;
    }
    map.retain(keep);
    map.reserve(map.len() + 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_with_little_to_forget_is_searched_rarely() {
        let mut map: HashMap<usize, usize> = HashMap::with_capacity(1_000);
        // Exactly as many are remembered as it has room for.
        let remembered = map.capacity();
        let inserts = 20 * remembered;
        let mut searched = 0;
        for entry in 0..inserts {
            make_room(&mut map, |_, known| {
                searched += 1;
                *known + remembered > entry
            });
            map.insert(entry, entry);
            assert!(map.len() <= 4 * remembered);
        }
        assert!(searched <= 4 * inserts, "{searched}");
    }
}
