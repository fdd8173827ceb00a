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
    /// The webhook has no field for a confirmation code, and nobody can install the eSIM without
    /// it.
    #[error("the eSIM cannot be installed without a confirmation code, which no webhook carries")]
    ConfirmationCode,
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

    /// Reads an activation code in every form that GSMA SGP.22, section 4.1, allows:
    /// `1$<smdp>$<matching id>[$<OID>[$<confirmation code flag>[$…]]]`, with or without the prefix
    /// `LPA:` in any letter case, and with blanks around it and around its fields.
    ///
    /// The OID of the SM-DP+ and the fields behind the flag are dropped, because a phone installs
    /// the eSIM without them. A matching id is needed, although SGP.22 lets it be empty: such a
    /// code installs whatever the SM-DP+ holds for the phone, so it does not name the eSIM that was
    /// bought.
    pub fn parse(text: &str) -> Result<Self, InvalidProfile> {
        let mut fields = without_prefix(text).split('$').map(trim);
        if fields.next() != Some("1") {
            return Err(InvalidProfile::Shape);
        }
        let smdp = fields.next().ok_or(InvalidProfile::Shape)?;
        let matching_id = fields.next().ok_or(InvalidProfile::Shape)?;
        match fields.next().unwrap_or_default() {
            oid if oid.is_empty() || is_oid(oid) => {}
            // A flag that stands one field too early.
            "1" => return Err(InvalidProfile::ConfirmationCode),
            _ => return Err(InvalidProfile::Shape),
        }
        // Only an empty flag and 0 say that no confirmation code is needed.
        if !matches!(fields.next(), None | Some("" | "0")) {
            return Err(InvalidProfile::ConfirmationCode);
        }
        Self::new(smdp, matching_id)
    }

    /// Reads an activation code as a provider sends it: its SM-DP+ address and its matching id in
    /// two fields, or the whole text in `code`, as for [`Self::parse`]. If there is an address
    /// beside a whole text, both must name the same server.
    pub fn read(smdp: Option<&str>, code: &str) -> Result<Self, InvalidProfile> {
        let smdp = smdp.map(without_prefix).filter(|smdp| !smdp.is_empty());
        if !code.contains('$') {
            let smdp = smdp.ok_or(InvalidProfile::Shape)?;
            return Self::new(smdp.strip_prefix("1$").unwrap_or(smdp), trim(code));
        }
        let read = Self::parse(code)?;
        match smdp {
            Some(smdp) if !smdp.eq_ignore_ascii_case(&read.smdp) => Err(InvalidProfile::Smdp),
            _ => Ok(read),
        }
    }

    /// What two activation codes of the same eSIM have in common, however they are written: a host
    /// name has no letter case and may end with a dot, and GSMA writes matching ids in capitals.
    pub fn identity(&self) -> String {
        let smdp = self.smdp.strip_suffix('.').unwrap_or(&self.smdp);
        format!(
            "{}${}",
            smdp.to_ascii_lowercase(),
            self.matching_id.to_ascii_uppercase()
        )
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

/// The text without blanks at its ends. Some of them are visible to nobody who copies a code from a
/// page.
fn trim(text: &str) -> &str {
    text.trim_matches(|of: char| of.is_whitespace() || matches!(of, '\u{feff}' | '\u{200b}'))
}

/// The text without blanks around it and without the prefix `LPA:`, which only QR codes need.
fn without_prefix(text: &str) -> &str {
    let text = trim(text);
    match text.split_at_checked(4) {
        Some((prefix, rest)) if prefix.eq_ignore_ascii_case("LPA:") => trim(rest),
        _ => text,
    }
}

/// Whether the text is an object identifier, such as `1.3.6.1.4.1.31746`.
fn is_oid(text: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    text.contains('.') && text.split('.').all(is_number)
}

/// The number of an eSIM, 18 to 20 digits. The last one should be a Luhn check digit, but it is not
/// checked, because published ICCIDs do not always pass that check.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Iccid(String);

impl Iccid {
    /// Parses the digits. A provider may pad the number with `F` at its end; this padding is
    /// dropped, and so are blanks around it.
    pub fn parse(text: &str) -> Result<Self, InvalidProfile> {
        let digits = trim(text).trim_end_matches(['F', 'f']);
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

/// Whether people and documents put it between the parts of an id so that it is easier to read. For
/// example, the ICCID `8981 0000-0000 0000 001` is pasted from a PDF.
pub fn is_separator(one: char) -> bool {
    one.is_whitespace() || matches!(one, '-' | '_' | '\u{2010}'..='\u{2014}' | '\u{2212}')
}

/// What somebody knows of the number of an eSIM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KnownIccid {
    /// The forms in which the number may be stored: as it is, and with or without its check digit,
    /// because one of the two sides may have left it out.
    Whole(Vec<String>),
    /// The last six digits, which customers read to a support.
    End(String),
}

impl KnownIccid {
    /// Reads the digits, which may have separators between them. `None` if they are neither a whole
    /// number nor the last six digits of one.
    pub fn parse(text: &str) -> Option<Self> {
        let digits: String = text.chars().filter(|one| !is_separator(*one)).collect();
        if digits.len() == 6 && digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return Some(Self::End(digits));
        }
        let Iccid(whole) = Iccid::parse(&digits).ok()?;
        let mut forms = Vec::with_capacity(3);
        if whole.len() < 20 {
            forms.push(format!("{whole}{}", check_digit(&whole)));
        }
        let (without, last) = whole.split_at(whole.len() - 1);
        if whole.len() > 18 && last == check_digit(without).to_string() {
            forms.push(without.to_owned());
        }
        forms.insert(0, whole);
        Some(Self::Whole(forms))
    }
}

/// The check digit that belongs behind these digits, by the algorithm of Luhn.
fn check_digit(digits: &str) -> u32 {
    let doubled = |(nth, digit): (usize, u8)| {
        let digit = u32::from(digit - b'0');
        match (nth % 2 == 0, digit * 2) {
            (true, twice) if twice > 9 => twice - 9,
            (true, twice) => twice,
            (false, _) => digit,
        }
    };
    let sum: u32 = digits.bytes().rev().enumerate().map(doubled).sum();
    (10 - sum % 10) % 10
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
    fn a_number_is_known_with_and_without_its_check_digit() {
        let whole = |text: &str| match KnownIccid::parse(text) {
            Some(KnownIccid::Whole(forms)) => forms,
            other => panic!("{text}: {other:?}"),
        };
        // Of 20 digits, the last one is the check digit of the others.
        let [with, without] = ["89014103211118510738", "8901410321111851073"];
        assert_eq!(whole(with), [with, without]);
        assert_eq!(whole(without), [without, with]);
        assert_eq!(whole(" 8901 4103-2111\u{2013}1851 0738"), [with, without]);
        assert_eq!(whole("8901410321111851073F"), [without, with]);
        // A last digit that is no check digit is a part of the number.
        assert_eq!(whole("89014103211118510731"), ["89014103211118510731"]);
        let short = "891004234814455936";
        assert_eq!(whole(short), [short.to_owned(), format!("{short}1")]);
        assert!(whole("8910042348144559361").contains(&short.to_owned()));
        let end = KnownIccid::End("510720".to_owned());
        assert_eq!(KnownIccid::parse("510 720"), Some(end));
        for neither in [
            "",
            "51072",
            "5107200",
            "51072x",
            "89014103211118510",
            "890141032111185107201",
        ] {
            assert_eq!(KnownIccid::parse(neither), None, "{neither}");
        }
    }

    #[test]
    fn what_could_break_out_of_the_shape_is_refused() {
        assert_eq!(ActivationCode::new("", "A"), Err(InvalidProfile::Smdp));
        assert_eq!(ActivationCode::new("a/b", "A"), Err(InvalidProfile::Smdp));
        assert_eq!(
            ActivationCode::new("a.b", ""),
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
    fn each_form_of_sgp_22_is_read() {
        for text in [
            "LPA:1$smdp.example.com$04386-AGYFT",
            "1$smdp.example.com$04386-AGYFT",
            "lpa:1$smdp.example.com$04386-AGYFT",
            "Lpa: 1$smdp.example.com$04386-AGYFT",
            " \t\u{feff}LPA:1$smdp.example.com$04386-AGYFT\u{a0}\r\n",
            "LPA:1$ smdp.example.com $ 04386-AGYFT ",
            "LPA:1$smdp.example.com$04386-AGYFT$",
            "LPA:1$smdp.example.com$04386-AGYFT$$",
            "LPA:1$smdp.example.com$04386-AGYFT$$0",
            "LPA:1$smdp.example.com$04386-AGYFT$1.3.6.1.4.1.31746",
            "1$smdp.example.com$04386-AGYFT$1.3.6.1.4.1.31746$",
            "1$smdp.example.com$04386-AGYFT$1.3.6.1.4.1.31746$0$$",
            "1$smdp.example.com$04386-AGYFT$$$F54172BDF98A95D65CBEB88A38A1C11D800A85C3$1",
        ] {
            let code = ActivationCode::parse(text).unwrap();
            assert_eq!(
                code.download_link(),
                "LPA:1$smdp.example.com$04386-AGYFT",
                "{text}"
            );
            assert_eq!(ActivationCode::read(None, text), Ok(code.clone()), "{text}");
            let smdp = Some(" SMDP.example.com");
            assert_eq!(ActivationCode::read(smdp, text), Ok(code), "{text}");
        }
        let capitals = ActivationCode::parse("LPA:1$SMDP.EXAMPLE.COM.$04386-agyft").unwrap();
        assert_eq!(capitals.smdp(), "SMDP.EXAMPLE.COM.");
        assert_eq!(capitals.identity(), "smdp.example.com$04386-AGYFT");
    }

    #[test]
    fn what_no_webhook_could_deliver_is_refused() {
        for (text, why) in [
            ("LPA:1$a.b$C$$1", InvalidProfile::ConfirmationCode),
            ("1$a.b$C$1.3.6.1$1$X", InvalidProfile::ConfirmationCode),
            ("LPA:1$a.b$C$$1234", InvalidProfile::ConfirmationCode),
            ("LPA:1$a.b$C$1", InvalidProfile::ConfirmationCode),
            ("LPA:1$a.b$$1.3.6.1", InvalidProfile::MatchingId),
            ("LPA:1$a.b$", InvalidProfile::MatchingId),
            ("LPA:1$$C", InvalidProfile::Smdp),
            ("LPA:1$a.b", InvalidProfile::Shape),
            ("LPA:$a.b$C", InvalidProfile::Shape),
            ("LPA:1$a.b$C$what", InvalidProfile::Shape),
            ("C", InvalidProfile::Shape),
            ("", InvalidProfile::Shape),
        ] {
            assert_eq!(ActivationCode::read(None, text), Err(why), "{text}");
        }
        let other = ActivationCode::read(Some("other.example"), "LPA:1$a.b$C");
        assert_eq!(other, Err(InvalidProfile::Smdp));
    }

    #[test]
    fn an_address_and_a_matching_id_may_come_apart() {
        for smdp in ["a.b", " a.b\n", "LPA:1$a.b", "lpa:a.b", "1$a.b"] {
            let code = ActivationCode::read(Some(smdp), " C-1 ").unwrap();
            assert_eq!(code.download_link(), "LPA:1$a.b$C-1", "{smdp}");
        }
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
        fn every_text_parses_or_is_refused(text in "(LPA:|lpa:)?[ 1]{0,2}\\PC{0,40}") {
            if let Ok(code) = ActivationCode::parse(&text) {
                prop_assert_eq!(ActivationCode::parse(&code.download_link()), Ok(code.clone()));
                prop_assert!(text.contains(code.smdp()) && text.contains(code.matching_id()));
            }
        }

        /// Every combination of the parts of a code is read as the same code.
        #[test]
        fn no_optional_part_changes_what_is_read(
            prefix in "(LPA:|lpa:|Lpa:)?", blanks in "[ \t]{0,2}", oid in "(1\\.3\\.6)?",
            flag in "0?", more in "(\\$[A-F0-9]{0,4}){0,2}", fields in 3..6_usize,
        ) {
            let tail = match fields {
                3 => String::new(),
                4 => format!("${oid}"),
                _ => format!("${oid}${flag}{more}"),
            };
            let text = format!("{blanks}{prefix}{blanks}1$a.b{blanks}$C-1{tail}{blanks}");
            let code = ActivationCode::parse(&text).unwrap();
            prop_assert_eq!(code.download_link(), "LPA:1$a.b$C-1");
        }
    }
}
