//! Real secrets, in every form in which they could leak.

use base64::{Engine, engine::general_purpose::STANDARD, engine::general_purpose::URL_SAFE_NO_PAD};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The forms to search for, and the findings.
#[derive(Default)]
pub struct Secrets {
    forms: BTreeMap<String, String>,
    found: BTreeSet<String>,
    searched: usize,
}

impl Secrets {
    pub fn add(&mut self, what: &str, text: &str) {
        assert!(text.len() >= 8, "{what} is too short to be searched for");
        self.form(what, text);
        self.form(
            what,
            &utf8_percent_encode(text, NON_ALPHANUMERIC).to_string(),
        );
        // What begins a JSON string or another text is the same at every place; the last letters
        // may differ.
        self.form(what, STANDARD.encode(text).trim_end_matches('='));
        self.form(what, &URL_SAFE_NO_PAD.encode(text));
        self.form(what, &hex::encode(text));
        self.form(
            what,
            format!("{:?}", text.as_bytes()).trim_matches(['[', ']']),
        );
    }

    /// A secret of bytes, as its owner writes it.
    pub fn add_base64(&mut self, what: &str, text: &str) {
        self.add(what, text);
        let bytes = STANDARD.decode(text).expect("Base64");
        self.form(what, &hex::encode(&bytes));
        self.form(what, format!("{bytes:?}").trim_matches(['[', ']']));
        if let Ok(text) = String::from_utf8(bytes)
            && text.len() >= 8
            && text.bytes().all(|byte| byte.is_ascii_graphic())
        {
            self.add(what, &text);
        }
    }

    /// What a webhook's body and its signature hold.
    pub fn add_webhook(&mut self, body: &Value, signature: &str) {
        for (what, field) in [
            ("an activation code", "activate_code"),
            ("a download link", "download_link"),
        ] {
            self.add(what, body[field].as_str().expect(field));
        }
        for one in signature.split(' ') {
            self.add(
                "a webhook's signature",
                one.strip_prefix("v1,").expect("version 1"),
            );
        }
    }

    fn form(&mut self, what: &str, form: &str) {
        self.forms.insert(form.to_owned(), what.to_owned());
    }

    pub fn search(&mut self, place: &str, told: &[u8]) {
        self.searched += told.len();
        // Every form is ASCII.
        let told = String::from_utf8_lossy(told);
        for (form, what) in &self.forms {
            if told.contains(form.as_str()) {
                let told: String = told.chars().take(2_000).collect();
                self.found.insert(format!("{what} is in {place}: {told}"));
            }
        }
    }

    pub fn found_nothing(&self) {
        assert!(
            self.searched > 100_000,
            "only {} bytes were told",
            self.searched
        );
        let found: Vec<&str> = self.found.iter().map(String::as_str).collect();
        assert!(
            found.is_empty(),
            "{} leaks:\n{}",
            found.len(),
            found.join("\n")
        );
    }
}

#[test]
fn a_secret_is_found_in_every_form() {
    let mut secrets = Secrets::default();
    secrets.add("a link", "LPA:1$smdp.example$AB-12");
    secrets.add_base64("a key", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    for (place, told) in [
        ("plain", "x LPA:1$smdp.example$AB-12 y"),
        ("percent", "GET /qr/LPA%3A1%24smdp%2Eexample%24AB%2D12/300"),
        ("base64", "TFBBOjEkc21kcC5leGFtcGxlJEFCLTEy"),
        ("hex", "4c50413a3124736d64702e6578616d706c652441422d3132"),
        (
            "debug",
            "[76, 80, 65, 58, 49, 36, 115, 109, 100, 112, 46, 101, 120, 97, 109, 112, 108, 101, 36, 65, 66, 45, 49, 50]",
        ),
        ("key", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
        (
            "key in hex",
            "31f290f6bf06298aab4f08d43c3f082cf648a362da2da4b0",
        ),
    ] {
        secrets.search(place, told.as_bytes());
    }
    assert_eq!(secrets.found.len(), 7, "{:#?}", secrets.found);
    secrets.found.clear();
    secrets.search("else", b"nothing of it");
    assert!(secrets.found.is_empty());
}
