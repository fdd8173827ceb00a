//! The text forms of an eSIM profile: the activation code and the ICCID.
//!
//! The provider adapters parse what the provider sent into these types, and ingress parses the path
//! of a QR picture. A value of these types can be put into a webhook, a URL or a QR code without
//! breaking out of its place.

use std::fmt;

/// The longest SM-DP+ host name. DNS allows no longer one.
const MAX_HOST: usize = 253;
/// The longest accepted matching id. GSMA SGP.22 sets no limit, but a QR code holds a limited text.
const MAX_MATCHING_ID: usize = 255;

/// A text is not a valid part of an eSIM profile. The messages never repeat the text, because it
/// may be an activation code.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidProfile {
    #[error(
        "the SM-DP+ address is not a host name of 1 to {MAX_HOST} letters, digits, dots and hyphens"
    )]
    Smdp,
    #[error(
        "the activation code does not consist of 1 to {MAX_MATCHING_ID} letters, digits and hyphens"
    )]
    MatchingId,
    #[error("the text does not have the shape LPA:1$<smdp>$<code>")]
    Shape,
    #[error("the ICCID is not 18 to 20 digits")]
    Iccid,
}

/// The activation code, which installs an eSIM. It is a **bearer credential**: anyone who has it
/// can use the line. Therefore `Debug` prints `[REDACTED]` instead.
#[derive(Clone, PartialEq, Eq)]
pub struct ActivationCode {
    smdp: String,
    matching_id: String,
}

impl ActivationCode {
    /// Checks the SM-DP+ host name and the matching id. GSMA allows letters, digits and hyphens in
    /// a matching id.
    pub fn new(smdp: &str, matching_id: &str) -> Result<Self, InvalidProfile> {
        let is_made_of = |text: &str, longest: usize, others: &[u8]| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || others.contains(&byte);
            (1..=longest).contains(&text.len()) && text.bytes().all(plain)
        };
        if !is_made_of(smdp, MAX_HOST, b".-") {
            return Err(InvalidProfile::Smdp);
        }
        if !is_made_of(matching_id, MAX_MATCHING_ID, b"-") {
            return Err(InvalidProfile::MatchingId);
        }
        Ok(Self {
            smdp: smdp.to_owned(),
            matching_id: matching_id.to_owned(),
        })
    }

    /// Parses `LPA:1$<smdp>$<code>`. A text with more parts, such as a confirmation code, is
    /// refused, because the webhook has no field for it.
    pub fn parse(download_link: &str) -> Result<Self, InvalidProfile> {
        let rest = download_link
            .strip_prefix("LPA:1$")
            .ok_or(InvalidProfile::Shape)?;
        let (smdp, matching_id) = rest.split_once('$').ok_or(InvalidProfile::Shape)?;
        Self::new(smdp, matching_id)
    }

    /// The host name of the server (SM-DP+) from which the phone downloads the profile.
    pub fn smdp(&self) -> &str {
        &self.smdp
    }

    /// The matching id, which the webhook calls `activate_code`.
    pub fn matching_id(&self) -> &str {
        &self.matching_id
    }

    /// The whole text that a phone reads from the QR code: `LPA:1$<smdp>$<code>`.
    pub fn download_link(&self) -> String {
        format!("LPA:1${}${}", self.smdp, self.matching_id)
    }
}

impl fmt::Debug for ActivationCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ActivationCode([REDACTED])")
    }
}

/// The number of an eSIM, 18 to 20 digits. The last one should be a Luhn check digit, but it is not
/// checked, because published ICCIDs do not always pass that check.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Iccid(String);

impl Iccid {
    /// Parses the digits. A provider may pad the number with `F` at its end; this padding is
    /// dropped.
    pub fn parse(text: &str) -> Result<Self, InvalidProfile> {
        let digits = text.trim_end_matches(['F', 'f']);
        let valid =
            (18..=20).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
        if valid {
            Ok(Self(digits.to_owned()))
        } else {
            Err(InvalidProfile::Iccid)
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_matching_id_need_not_be_hexadecimal() {
        let code = ActivationCode::new("smdp.example.com", "QR-G-5C-1LS-1W1Z9P7").unwrap();
        assert_eq!(
            code.download_link(),
            "LPA:1$smdp.example.com$QR-G-5C-1LS-1W1Z9P7"
        );
        assert_eq!(ActivationCode::parse(&code.download_link()), Ok(code));
    }

    #[test]
    fn what_could_break_out_of_the_shape_is_refused() {
        assert_eq!(ActivationCode::new("", "A"), Err(InvalidProfile::Smdp));
        assert_eq!(ActivationCode::new("a/b", "A"), Err(InvalidProfile::Smdp));
        assert_eq!(
            ActivationCode::new("a.b", ""),
            Err(InvalidProfile::MatchingId)
        );
        // A second `$` would announce a confirmation code, which our webhook can't carry.
        assert_eq!(
            ActivationCode::parse("LPA:1$a.b$C$$1"),
            Err(InvalidProfile::MatchingId)
        );
        assert_eq!(
            ActivationCode::parse("LPA:2$a.b$C"),
            Err(InvalidProfile::Shape)
        );
        assert_eq!(
            ActivationCode::parse("https://a.b"),
            Err(InvalidProfile::Shape)
        );
    }

    #[test]
    fn codes_are_not_printed() {
        let code = ActivationCode::new("smdp.example.com", "SECRET").unwrap();
        assert!(!format!("{code:?}").contains("SECRET"));
    }

    #[test]
    fn iccids_are_18_to_20_digits_without_padding() {
        assert_eq!(
            Iccid::parse("8982123456789012345F").unwrap().as_str(),
            "8982123456789012345"
        );
        for bad in [
            "",
            "89821234567890123",
            "898212345678901234567",
            "8982123456789O12345",
        ] {
            assert_eq!(Iccid::parse(bad), Err(InvalidProfile::Iccid), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn every_text_parses_or_is_refused(text in "\\PC*") {
            if let Ok(code) = ActivationCode::parse(&text) {
                prop_assert_eq!(code.download_link(), text);
            }
        }
    }
}
