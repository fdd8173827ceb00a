//! What somebody may have meant whose id is not stored: ids that are only written in another way,
//! and ids that differ from it in one character.
//!
//! No index finds what is similar. So these texts are made, some hundreds of them, and
//! [`super::find`] looks them up in the indexes of the ids.

use domain::is_separator;

/// The lengths of the texts for which something is suggested. In a shorter one, one character is
/// too much of it, and a longer one has too many neighbours.
const LENGTHS: std::ops::RangeInclusive<usize> = 5..=64;
/// The maximum number of neighbours that are looked up.
const NEIGHBOURS: usize = 2_500;

/// The texts that differ from this one in one character: one is another, is missing or is too much,
/// or two beside each other are swapped. The characters are those that such an id may have.
pub(super) fn neighbours(text: &str) -> Vec<String> {
    let own: Vec<char> = text.chars().collect();
    if !LENGTHS.contains(&own.len()) {
        return Vec::new();
    }
    let without = |at: usize| own[..at].iter().chain(&own[at + 1..]).collect();
    let mut all: Vec<String> = (0..own.len()).map(without).collect();
    for at in 1..own.len() {
        let mut swapped = own.clone();
        swapped.swap(at - 1, at);
        all.push(swapped.into_iter().collect());
    }
    // Somebody who types an id that was read or printed does not see in which script a letter is.
    for script in SCRIPTS {
        let letter = |one: char| {
            let is_other = one.is_alphabetic() && !script.contains(&one);
            let mut others = alike(one).filter(|_| is_other);
            let is_its =
                |other: &char| script.contains(other) && other.is_lowercase() == one.is_lowercase();
            others.find(is_its).unwrap_or(one)
        };
        all.push(own.iter().copied().map(letter).collect());
    }
    let with = |at: usize, one: char| {
        let mut other = own.clone();
        other[at] = one;
        other.into_iter().collect::<String>()
    };
    for (at, one) in own.iter().enumerate() {
        all.extend(alike(*one).map(|other| with(at, other)));
    }
    let alphabet = alphabet(&own);
    for (at, one) in own.iter().enumerate() {
        let others = alphabet.iter().filter(|other| *other != one);
        all.extend(others.map(|other| with(at, *other)));
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

/// The maximum number of spellings of which each gap has its own separator.
const SPELLINGS: usize = 256;
/// What may stand between the words and the numbers of an id.
const SEPARATORS: [&str; 4] = ["-", "", " ", "_"];

/// The words and the numbers of a text, which begin at separators and where letters and digits
/// meet; or, if `is_separated`, at separators only.
fn parts(text: &str, is_separated: bool) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    let mut last: Option<char> = None;
    for one in text.chars() {
        if is_separator(one) {
            last = None;
            continue;
        }
        let meets = last.is_some_and(|last| {
            is_separated
                || !(last.is_alphabetic() && one.is_numeric()
                    || last.is_numeric() && one.is_alphabetic())
        });
        match parts.last_mut().filter(|_| meets) {
            Some(part) => part.push(one),
            None => parts.push(one.to_string()),
        }
        last = Some(one);
    }
    parts
}

/// The texts that differ from this one only in upper and lower case and in what stands between
/// their words and numbers: `WL-501` is one of `wl 501`.
pub(super) fn spellings(text: &str) -> Vec<String> {
    if text.chars().count() > *LENGTHS.end() {
        return Vec::new();
    }
    let mut all = vec![text.to_owned()];
    let own = parts(text, false);
    let gaps = u32::try_from(own.len().saturating_sub(1)).unwrap_or(u32::MAX);
    let is_few = (SEPARATORS.len().checked_pow(gaps)).is_some_and(|count| count <= SPELLINGS);
    if is_few {
        let mut begun = vec![String::new()];
        for (nth, part) in own.iter().enumerate() {
            let separators = if nth == 0 { &[""][..] } else { &SEPARATORS };
            begun = begun
                .iter()
                .flat_map(|one| {
                    separators
                        .iter()
                        .map(move |sign| format!("{one}{sign}{part}"))
                })
                .collect();
        }
        all.extend(begun);
    } else {
        // An id of many parts is written with one separator, as a UUID is.
        let separated = parts(text, true);
        for parts in [own, separated] {
            all.extend(SEPARATORS.map(|sign| parts.join(sign)));
        }
    }
    let capital = |one: &String| {
        let mut rest = one.chars();
        let first = rest.next().map(|first| first.to_uppercase().to_string());
        first.unwrap_or_default() + &rest.as_str().to_lowercase()
    };
    let lower: Vec<String> = all.iter().map(|one| one.to_lowercase()).collect();
    let upper: Vec<String> = all.iter().map(|one| one.to_uppercase()).collect();
    let capital: Vec<String> = all.iter().map(capital).collect();
    all.extend(lower.into_iter().chain(upper).chain(capital));
    all.retain(|one| one != text);
    all.sort();
    all.dedup();
    all
}

/// Characters that look alike, or that differ in an accent: of our digits and letters, and of
/// Cyrillic and Greek ones.
const ALIKE: [&str; 38] = [
    "0OoQ\u{41e}\u{43e}\u{39f}\u{3bf}ÓÖØóöø",
    "1Iil\u{406}\u{456}\u{399}Íí",
    "2Z\u{396}Ž",
    "3\u{417}\u{437}",
    "4\u{427}",
    "5S\u{405}Š",
    "6\u{431}",
    "8B\u{412}\u{392}",
    "A\u{410}\u{391}ÁÀÂÄÅ",
    "C\u{421}ÇČ",
    "E\u{415}\u{395}ÉÈÊË\u{401}",
    "G\u{50c}Ğ",
    "H\u{41d}\u{397}",
    "J\u{408}",
    "K\u{41a}\u{39a}",
    "M\u{41c}\u{39c}",
    "N\u{39d}Ñ",
    "P\u{420}\u{3a1}",
    "T\u{422}\u{3a4}",
    "UÚÜ",
    "X\u{425}\u{3a7}",
    "Y\u{423}\u{3a5}Ý",
    "a\u{430}\u{3b1}áàâäå",
    "c\u{441}çč",
    "e\u{435}éèêë\u{451}",
    "gğ",
    "j\u{458}",
    "k\u{43a}\u{3ba}",
    "m\u{43c}",
    "nñ",
    "p\u{440}\u{3c1}",
    "sš\u{455}",
    "t\u{442}",
    "uúü",
    "v\u{3bd}",
    "x\u{445}\u{3c7}",
    "y\u{443}\u{3b3}ý",
    "zž",
];
/// The scripts in which a whole id may be meant.
const SCRIPTS: [std::ops::RangeInclusive<char>; 3] =
    ['A'..='z', '\u{400}'..='\u{4ff}', '\u{370}'..='\u{3ff}'];

/// The characters that look like this one.
fn alike(one: char) -> impl Iterator<Item = char> {
    let mut groups = ALIKE.iter();
    let group = groups.find(|group| group.contains(one));
    let others = group.map_or("", |group| *group).chars();
    others.filter(move |other| *other != one)
}

/// How a text looks, whichever of the characters that look alike it has.
pub(super) fn looks(text: &str) -> String {
    let look = |one: char| {
        let mut groups = ALIKE.iter();
        let group = groups.find(|group| group.contains(one));
        group.and_then(|group| group.chars().next()).unwrap_or(one)
    };
    text.chars().map(look).collect()
}

/// The letters of other scripts, of which an id has one case or both.
const OTHER_LETTERS: [std::ops::RangeInclusive<char>; 4] = [
    '\u{410}'..='\u{42f}',
    '\u{430}'..='\u{44f}',
    '\u{391}'..='\u{3a9}',
    '\u{3b1}'..='\u{3c9}',
];

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
    let other_letters = OTHER_LETTERS.into_iter();
    let other_letters = other_letters.filter(|all| text.iter().any(|one| all.contains(one)));
    ('0'..='9')
        .chain(lower)
        .chain(upper)
        .chain(other_letters.flatten())
        .chain(signs)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_differ_in_case_and_separators() {
        for (typed, meant) in [
            ("wl 501", "WL-501"),
            ("SP881", "SP-881"),
            ("Sp_881", "sp881"),
            ("order 2026-15", "Order-2026-15"),
            ("wl–501", "WL-501"),
            (
                "DEMO 01A2292F C796 73D1 9FF1 37D1316DA01A",
                "demo-01a2292f-c796-73d1-9ff1-37d1316da01a",
            ),
        ] {
            assert!(spellings(typed).iter().any(|one| one == meant), "{typed}");
        }
        let found = spellings("wl-501-a1");
        assert!(found.len() <= 4 * SPELLINGS && !found.contains(&"wl-501-a1".to_owned()));
        assert!(found.iter().all(|one| !one.contains('2')));
        assert!(spellings(&"1".repeat(65)).is_empty());
    }

    /// A Cyrillic letter that somebody reads is typed as the Latin one that looks like it.
    #[test]
    fn neighbours_are_found_in_every_script() {
        for (typed, meant) in [
            ("VT 2026 11 30 / 216", "V\u{422} 2026 11 30 / 216"),
            (
                "3\u{410}\u{41a}\u{410}\u{417} 1235",
                "\u{417}\u{410}\u{41a}\u{410}\u{417} 1235",
            ),
            (
                "\u{417}\u{410}\u{41a}\u{410}\u{417} 1236",
                "\u{417}\u{410}\u{41a}\u{410}\u{417} 1235",
            ),
            (
                "\u{417}\u{410}\u{41a}\u{410}\u{420} 1235",
                "\u{417}\u{410}\u{41a}\u{410}\u{417} 1235",
            ),
            ("BO 1235", "\u{412}\u{41e} 1235"),
            ("\u{412}\u{41e} 1235", "BO 1235"),
            ("Cafe 17", "Café 17"),
            ("Café 17", "Cafe 17"),
        ] {
            let found = neighbours(typed);
            assert!(found.len() <= NEIGHBOURS, "{typed}: {}", found.len());
            assert!(found.iter().any(|one| one == meant), "{typed}");
        }
        assert_eq!(looks("V\u{422}-1"), looks("VT-1"));
        let groups: Vec<char> = ALIKE.iter().flat_map(|one| one.chars()).collect();
        let mut once = groups.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(groups.len(), once.len(), "each is in one group");
    }

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
