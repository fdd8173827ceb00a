//! The profiles of units.
//!
//! They are not stored, but derived from the unit's number and the ledger's seed, so they are the
//! same at every look-up and after every restart. Without the seed nobody can compute an activation
//! code from a unit's number.

use rand::{Rng, SeedableRng, rngs::ChaCha20Rng};
use time::{Duration, OffsetDateTime};

use crate::protocol::ProfileAnswer;

/// The number of a unit, of 15 digits, which is also its topup id in the protocol. Each ledger
/// counts from a random start, so the units of two ledgers rarely share a number.
pub type UnitNumber = u64;

/// The secret from which the activation codes of a ledger derive.
pub type Seed = [u8; 32];

/// The numbers from which a ledger may start to count.
pub const FIRST_UNITS: std::ops::Range<UnitNumber> = 100_000_000_000_000..900_000_000_000_000;

const SMDP: &str = "smdp.sandbox.example";
const VALID_FOR: Duration = Duration::days(30);

/// The profile of a unit, which expires 30 days after the purchase.
pub fn profile(seed: Seed, unit: UnitNumber, bought_at: OffsetDateTime) -> ProfileAnswer {
    let activate_code = activate_code(seed, unit);
    ProfileAnswer {
        iccid: iccid(unit),
        smdp: SMDP,
        download_link: format!("LPA:1${SMDP}${activate_code}"),
        activate_code,
        expired_date: bought_at.saturating_add(VALID_FOR).date().to_string(),
    }
}

/// The ICCID of a unit: `8982`, the unit's 15 digits, and the check digit.
fn iccid(unit: UnitNumber) -> String {
    let digits = format!("8982{unit:015}");
    let check = (10 - luhn_sum(&digits, 1) % 10) % 10;
    format!("{digits}{check}")
}

/// The unit that has this ICCID, whether it was ever bought or not.
pub fn unit(iccid: &str) -> Option<UnitNumber> {
    let unit = iccid.strip_prefix("8982")?.get(..15)?.parse().ok()?;
    (self::iccid(unit) == iccid).then_some(unit)
}

/// The Luhn sum. Digit `p` from the right, counted from 0, is doubled if `p + shift` is odd. With
/// `shift` 1 it is the sum for digits whose check digit is still missing.
fn luhn_sum(digits: &str, shift: usize) -> u32 {
    let weighted = digits.bytes().rev().enumerate().map(|(place, digit)| {
        let digit = u32::from(digit - b'0');
        if (place + shift).is_multiple_of(2) {
            digit
        } else {
            digit * 2 / 10 + digit * 2 % 10
        }
    });
    weighted.sum()
}

/// The activation code of a unit: 128 bits of the `ChaCha20` stream that the unit's number selects.
/// Each unit has a stream of its own, so one code says nothing about another one.
fn activate_code(seed: Seed, unit: UnitNumber) -> String {
    let mut stream = ChaCha20Rng::from_seed(seed);
    stream.set_stream(unit);
    let mut code = [0; 16];
    stream.fill_bytes(&mut code);
    hex::encode_upper(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iccids_have_twenty_digits_and_a_valid_check_digit() {
        for unit in (FIRST_UNITS.start..FIRST_UNITS.start + 1000).chain([FIRST_UNITS.end]) {
            let iccid = iccid(unit);
            assert_eq!(iccid.len(), 20);
            assert!(iccid.starts_with("8982"));
            assert_eq!(super::unit(&iccid), Some(unit));
            assert_eq!(luhn_sum(&iccid, 0) % 10, 0, "{iccid}");
        }
        // A published example of the algorithm.
        assert_eq!(luhn_sum("79927398713", 0) % 10, 0);
        assert_ne!(luhn_sum("79927398710", 0) % 10, 0);
    }

    /// A ledger outlives builds of the sandbox: the generator must not change under it.
    #[test]
    fn codes_do_not_change_between_builds() {
        assert_eq!(
            activate_code([0; 32], 0),
            "76B8E0ADA0F13D90405D6AE55386BD28"
        );
    }
}
