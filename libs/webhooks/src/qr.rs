//! The URL of a QR picture. It contains the activation code, so that ingress can draw the picture
//! without looking anything up: `<base>/qr/<percent-encoded LPA text>/<size>`.
//!
//! If the operator has set keys, a MAC of the text follows as the query `?mac=…`, and ingress draws
//! only pictures of codes that this system has sent. Otherwise anybody could have any picture drawn
//! under the operator's domain. The notifier makes the URLs ([`QrUrls`]), and ingress checks them
//! ([`QrGate`]).

use domain::ActivationCode;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use signing::qr::QrKeys;

/// The size of the picture in pixels, which is the last segment of its URL.
const SIZE: u16 = 300;
/// The beginning of the query parameter with the MAC.
const MAC: &str = "mac=";

/// The characters that are percent-encoded: all except those that RFC 3986 calls unreserved.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Percent-encodes a text, so that it can be one segment of a path.
pub fn path_segment(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// The links that begin the installation of an eSIM when they are opened on the phone.
pub struct OneTapLinks {
    pub ios: String,
    pub android: String,
}

impl OneTapLinks {
    pub fn new(code: &ActivationCode) -> Self {
        let text = code.download_link();
        // An activation code consists of characters that a query may contain as they are. Apple
        // documents the link in this form, and Android in the percent-encoded one.
        let ios = format!("https://esimsetup.apple.com/esim_qrcode_provisioning?carddata={text}");
        let text = path_segment(&text);
        let android =
            format!("https://esimsetup.android.com/esim_qrcode_provisioning?carddata={text}");
        Self { ios, android }
    }
}

/// Makes the URLs of pictures.
#[derive(Clone, Debug)]
pub struct QrUrls {
    base: String,
    keys: QrKeys,
}

impl QrUrls {
    /// `base` is the public base URL of ingress, without a final slash.
    pub fn new(base: String, keys: QrKeys) -> Self {
        Self { base, keys }
    }

    /// The URL of the picture of an activation code. It contains the code, so never log it.
    pub fn url(&self, code: &ActivationCode) -> String {
        let text = code.download_link();
        let url = format!("{}/qr/{}/{SIZE}", self.base, path_segment(&text));
        match self.keys.mac(&text) {
            Some(mac) => format!("{url}?{MAC}{mac}"),
            None => url,
        }
    }
}

/// Decides which pictures ingress draws.
#[derive(Clone, Debug, Default)]
pub struct QrGate {
    keys: QrKeys,
    bare_until: Option<i64>,
}

impl QrGate {
    /// Until the Unix time `bare_until`, URLs without a MAC are accepted, too, because webhooks
    /// contained such URLs before the operator set keys.
    pub fn new(keys: QrKeys, bare_until: Option<i64>) -> Self {
        Self { keys, bare_until }
    }

    /// Whether the picture of this code is drawn at the Unix time `now`. With keys, a wrong MAC is
    /// always refused, and other query parameters are ignored. Without keys, every code is drawn.
    pub fn lets(&self, code: &ActivationCode, query: Option<&str>, now: i64) -> bool {
        if self.keys.is_empty() {
            return true;
        }
        let mut parameters = query.unwrap_or_default().split('&');
        match parameters.find_map(|parameter| parameter.strip_prefix(MAC)) {
            Some(mac) => self.keys.verify(&code.download_link(), mac),
            None => self.bare_until.is_some_and(|until| now < until),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    fn code() -> ActivationCode {
        ActivationCode::new("smdp.example.com", "A1-B2").unwrap()
    }

    fn keys() -> QrKeys {
        QrKeys::parse(&KEY.into()).unwrap()
    }

    #[test]
    fn the_mac_follows_the_specified_shape() {
        let base = "https://esim.example.com";
        let bare = format!("{base}/qr/LPA%3A1%24smdp.example.com%24A1-B2/300");
        assert_eq!(
            QrUrls::new(base.into(), QrKeys::default()).url(&code()),
            bare
        );
        let url = QrUrls::new(base.into(), keys()).url(&code());
        let mac = url.strip_prefix(&format!("{bare}?mac=")).unwrap();
        assert!(
            mac.len() == 32 && QrGate::new(keys(), None).lets(&code(), url.split('?').nth(1), 0)
        );
    }

    #[test]
    fn only_what_was_sent_is_drawn() {
        let gate = QrGate::new(keys(), None);
        let mac = keys().mac(&code().download_link()).unwrap();
        let good = format!("mac={mac}");
        for query in [
            &good,
            &format!("utm_source=x&{good}"),
            &format!("{good}&mac=0"),
        ] {
            assert!(gate.lets(&code(), Some(query), 0), "{query}");
        }
        let other = ActivationCode::new("smdp.example.com", "A1-B3").unwrap();
        assert!(!gate.lets(&other, Some(&good), 0));
        let upper = format!("mac={}", mac.to_uppercase());
        let short = &good[..good.len() - 1];
        for query in [
            "",
            "mac",
            "mac=",
            "MAC=1",
            "mac=0&mac=1",
            short,
            &upper,
            &format!("x{good}"),
        ] {
            assert!(!gate.lets(&code(), Some(query), 0), "{query}");
        }
        assert!(!gate.lets(&code(), None, 0));
        assert!(QrGate::default().lets(&other, Some("mac=wrong"), 0));
    }

    #[test]
    fn urls_from_before_are_good_for_a_while() {
        let gate = QrGate::new(keys(), Some(100));
        assert!(gate.lets(&code(), None, 99) && gate.lets(&code(), Some("utm_source=x"), 99));
        assert!(!gate.lets(&code(), Some("mac=wrong"), 99));
        assert!(!gate.lets(&code(), None, 100));
    }
}
