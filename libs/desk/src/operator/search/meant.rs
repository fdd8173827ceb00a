//! What somebody may have meant whose id is not stored: ids that differ from it in one character.
//!
//! No index finds what is similar. So all texts that differ in one character are made, some
//! hundreds of them, and [`super::find`] looks them up in the indexes of the ids.

/// The lengths of the texts for which something is suggested. In a shorter one, one character is
/// too much of it, and a longer one has too many neighbours.
const LENGTHS: std::ops::RangeInclusive<usize> = 5..=64;
/// The maximum number of neighbours that are looked up.
const NEIGHBOURS: usize = 2_500;

/// The texts that differ from this one in one character: one is another, is missing or is too much,
/// or two beside each other are swapped. The characters are those that such an id may have.
pub(super) fn neighbours(text: &str) -> Vec<String> {
    let own: Vec<char> = text.chars().collect();
    if !LENGTHS.contains(&own.len()) || !text.is_ascii() {
        return Vec::new();
    }
    let without = |at: usize| own[..at].iter().chain(&own[at + 1..]).collect();
    let mut all: Vec<String> = (0..own.len()).map(without).collect();
    for at in 1..own.len() {
        let mut swapped = own.clone();
        swapped.swap(at - 1, at);
        all.push(swapped.into_iter().collect());
    }
    let alphabet = alphabet(&own);
    for at in 0..own.len() {
        let others = alphabet.iter().filter(|one| **one != own[at]);
        all.extend(others.map(|one| {
            let mut other = own.clone();
            other[at] = *one;
            other.into_iter().collect::<String>()
        }));
    }
    if all.len() + (own.len() + 1) * alphabet.len() <= NEIGHBOURS {
        for at in 0..=own.len() {
            all.extend(alphabet.iter().map(|one| {
                let longer = own[..at].iter().chain([one]).chain(&own[at..]);
                longer.collect::<String>()
            }));
        }
    }
    all.retain(|one| one != text);
    all.truncate(NEIGHBOURS);
    all
}

/// How a text looks, whichever of the characters that look alike it has.
pub(super) fn looks(text: &str) -> String {
    let look = |one| match one {
        'O' | 'o' | 'Q' => '0',
        'I' | 'l' | 'i' => '1',
        'S' => '5',
        'B' => '8',
        'Z' => '2',
        other => other,
    };
    text.chars().map(look).collect()
}

/// Digits, and the letters and signs of the kinds that a text has.
fn alphabet(text: &[char]) -> Vec<char> {
    let letters = |is_kind: fn(&char) -> bool, all: std::ops::RangeInclusive<char>, hex: char| {
        let own: Vec<char> = text.iter().copied().filter(is_kind).collect();
        let last = match own.iter().max() {
            None => return Vec::new(),
            Some(last) if *last <= hex => hex,
            Some(_) => *all.end(),
        };
        (*all.start()..=last).collect()
    };
    let lower = letters(char::is_ascii_lowercase, 'a'..='z', 'f');
    let upper = letters(char::is_ascii_uppercase, 'A'..='Z', 'F');
    let signs = ['-', '_', '/', '.'];
    let signs = signs.into_iter().filter(|one| text.contains(one));
    ('0'..='9').chain(lower).chain(upper).chain(signs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_differ_in_one_character() {
        let found = neighbours("NV-10306");
        for near in [
            "NV-1036",
            "NV-10360",
            "NV-10308",
            "NW-10306",
            "NV-110306",
            "NV10306",
            "NV-103O6",
        ] {
            assert!(found.iter().any(|one| one == near), "{near}");
        }
        for other in ["NV-10306", "NV-10388", "nv-10306"] {
            assert!(found.iter().all(|one| one != other), "{other}");
        }
        assert_eq!(looks("NV-1O3O6"), looks("NV-10306"));
        assert!(neighbours("NV-1").is_empty() && neighbours(&"1".repeat(65)).is_empty());
        // Every substitution of an id that is a word and a UUID is among them.
        let long = "demo-01a2292f-c796-73d1-9ff1-37d1316da01a";
        let found = neighbours(long);
        assert!(found.len() <= NEIGHBOURS);
        let last = format!("{}9", &long[..long.len() - 1]);
        assert!(found.contains(&last));
    }
}
