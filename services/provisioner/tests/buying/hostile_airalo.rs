//! The responses of Airalo: its failure table row by row, and responses that it should not send.
//! Nothing but a documented refusal is taken for a rejection, and nothing at all for an absence
//! that would allow another purchase.

use std::{sync::Arc, time::Duration};

use domain::PlacementId;
use provisioner::providers::{LookUp, Provider, Trouble};

use crate::hostile::{OURS, Responses, answering, asked, bought, found};

/// By Airalo's id, and by a search.
const AIRALO: Responses = Responses {
    provider: "airalo",
    look_ups: &[Some("7"), None],
};

async fn provider(status: &str, body: &str) -> Arc<dyn Provider> {
    answering("airalo", status, body).await
}

#[tokio::test]
async fn each_row_of_the_failure_table_has_its_effect() {
    let refused = |code: u32| format!(r#"{{"code":{code},"reason":"why"}}"#);
    let unknown = ["unknown"; 3];
    let invalid =
        r#"{"data":{"quantity":"too many"},"meta":{"message":"the parameter is invalid"}}"#;
    let other = r#"{"data":{"quantity":"too many"},"meta":{"message":"something else"}}"#;
    let mut rows = vec![
        ("422 X", refused(11), ["rejected 11", "unknown", "unknown"]),
        ("422 X", refused(33), ["rejected 33", "unknown", "unknown"]),
        ("422 X", refused(34), ["rejected 34", "unknown", "unknown"]),
        (
            "422 X",
            invalid.to_owned(),
            ["rejected 422", "unknown", "unknown"],
        ),
        ("422 X", other.to_owned(), unknown),
        ("429 X", refused(33), ["busy"; 3]),
    ];
    // Some calls answer with an empty list of fields, which says nothing about the purchase.
    let listed = r#"{"data":[],"meta":{"message":"the parameter is invalid"}}"#;
    rows.push(("422 X", listed.to_owned(), unknown));
    // None of these says for certain that nothing was carried out.
    for code in [13, 14, 23, 43, 53, 73, 89, 0, 1] {
        rows.push(("422 X", refused(code), unknown));
    }
    // A code counts only with the status that the documentation gives it.
    for status in [
        "200 X", "400 X", "404 X", "409 X", "500 X", "502 X", "503 X",
    ] {
        rows.push((status, refused(33), unknown));
    }
    for odd in [
        r#"{"code":"33","reason":"why"}"#,
        r#"{"code":33}"#,
        r#"{"reason":"why"}"#,
        r#"{"code":-33,"reason":"why"}"#,
        "<html></html>",
        "",
    ] {
        rows.push(("422 X", odd.to_owned(), unknown));
    }
    AIRALO.check(&rows).await;
}

/// The first denial says that the new token is not good; a later one, that the kept token has
/// ended.
#[tokio::test]
async fn a_denied_token_is_replaced_once() {
    let ours: PlacementId = OURS.parse().unwrap();
    let (purchase, look_up) = asked(ours, None);
    let denying = provider("401 X", "{}").await;
    assert_eq!(bought(&denying.purchase(&purchase).await), "denied");
    // The next token may be asked for after a pause only, and until then nothing is sent. Three a
    // minute are allowed (its page on rates, September 2026).
    let Err(Trouble::Waiting { after, .. }) = denying.purchase(&purchase).await else {
        panic!("it asks for a token at once")
    };
    assert!(after <= Duration::from_secs(21), "{after:?}");
    assert!(after > Duration::from_secs(10), "{after:?}");
    assert_eq!(found(&denying.look_up(&look_up).await), "waiting");
}

/// A foreign address gets 403 with code 89. The token stays good, so a new one would only use up
/// the three that are allowed in a minute.
#[tokio::test]
async fn an_address_that_is_not_on_the_list_is_said_and_keeps_the_token() {
    let ours: PlacementId = OURS.parse().unwrap();
    let (purchase, _) = asked(ours, None);
    let refused = r#"{"code":89,"reason":"The IP address is not allowed"}"#;
    let provider = provider("403 X", refused).await;
    for _ in 0..2 {
        let answer = provider.purchase(&purchase).await;
        let Err(Trouble::Denied(reason)) = &answer else {
            panic!("{answer:?}")
        };
        assert!(reason.contains("code 89"), "{reason}");
    }
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one table of responses")]
async fn an_order_is_read_whole_or_not_at_all() {
    let order = |from: &str, to: &str| {
        let whole = format!(
            r#"{{"id":7,"package_id":"P","quantity":2,"description":"{OURS}","validity":30,"price":4.5,"created_at":"2026-12-31 10:00:00","sims":[{{"id":71,"iccid":"891000000000009125","lpa":"lpa.example.com","matching_id":"AB-12","confirmation_code":null}},{{"id":72,"iccid":null,"lpa":null,"matching_id":null}}]}}"#
        );
        whole.replace(from, to)
    };
    let single = |from: &str, to: &str| format!(r#"{{"data":{}}}"#, order(from, to));
    let list = |from: &str, to: &str| format!(r#"{{"data":[{}]}}"#, order(from, to));
    let one = |class| [class, class, "unknown"];
    let unknown = ["unknown"; 3];
    let rows = [
        (single("", ""), one("7 Rp")),
        (list("", ""), ["unknown", "unknown", "7 Rp"]),
        (
            r#"{"data":[]}"#.to_owned(),
            ["unknown", "unknown", "not found"],
        ),
        // The filter of the list also finds orders that only contain our id.
        (
            list(OURS, &format!("x{OURS}")),
            ["unknown", "unknown", "not found"],
        ),
        (
            list(r#""description""#, r#""other""#),
            ["unknown", "unknown", "not found"],
        ),
        // Top-ups are in the same list, and are no purchases of eSIMs.
        (
            list(r#""price""#, r#""type":"topup","price""#),
            ["unknown", "unknown", "not found"],
        ),
        (
            list(r#""price""#, r#""type":"sim","price""#),
            ["unknown", "unknown", "7 Rp"],
        ),
        (single(OURS, "another"), unknown),
        (single(r#""description""#, r#""other""#), one("7 Rp")),
        (
            single(r#""id":7,"#, r#""id":8,"#),
            ["8 Rp", "unknown", "unknown"],
        ),
        (single(r#""id":7,"#, r#""id":"7","#), unknown),
        (single(r#""id":7,"#, r#""id":-7,"#), unknown),
        (single(r#""id":7,"#, ""), unknown),
        (single(r#""P""#, r#""Q""#), unknown),
        (list(r#""P""#, r#""Q""#), unknown),
        (single(r#""P""#, r#""""#), unknown),
        (
            single(
                r#""lpa":null,"matching_id":null"#,
                r#""lpa":null,"matching_id":"x""#,
            ),
            one("7 Rp"),
        ),
        (single("lpa.example.com", "lpa.example.com/x"), one("7 up")),
        (single("AB-12", "AB$12"), one("7 up")),
        (single("AB-12", ""), one("7 pp")),
        (
            single("AB-12", "LPA:1$lpa.example.com$AB-12$$1"),
            one("7 up"),
        ),
        (
            single("AB-12", " lpa:1$LPA.example.com$AB-12$$ "),
            one("7 Rp"),
        ),
        (single("891000000000009125", "8910"), one("7 up")),
        (
            single(
                r#""confirmation_code":null"#,
                r#""confirmation_code":"1234""#,
            ),
            one("7 up"),
        ),
        (single("2026-12-31", "2026-02-31"), one("7 Rp")),
        // Its validity begins with its first use, so no date of the profile follows from it.
        (single("30,", "\"a month\","), one("7 Rp")),
        (
            single(r#""price""#, r#""status":{"slug":"refunded"},"price""#),
            one("7 ff"),
        ),
        (
            single(r#""price""#, r#""status":{"slug":"completed"},"price""#),
            one("7 Rp"),
        ),
        (
            single(
                r#""price""#,
                r#""status":{"slug":"partially_refunded"},"price""#,
            ),
            one("7 up"),
        ),
        (
            single(r#""price""#, r#""status":{"slug":"under_review"},"price""#),
            one("7 up"),
        ),
        (single("71", "\"71\""), unknown),
        ("{}".to_owned(), unknown),
        (r#"{"data":null}"#.to_owned(), unknown),
        (
            r#"{"data":{"request_id":"x"},"meta":{"message":"success"}}"#.to_owned(),
            unknown,
        ),
    ];
    AIRALO
        .check(&rows.map(|(body, expected)| ("200 X", body, expected)))
        .await;
}

#[tokio::test]
async fn several_options_are_never_sent_as_one_order() {
    let ours: PlacementId = OURS.parse().unwrap();
    let provider = provider("500 X", "").await;
    assert_eq!(provider.capabilities().look_up, LookUp::Search);
    let (mut purchase, _) = asked(ours, None);
    purchase.items.push(("Q".into(), 1));
    assert_eq!(bought(&provider.purchase(&purchase).await), "refused_here");
    purchase.items = vec![("P@cheap".into(), 1)];
    assert_eq!(bought(&provider.purchase(&purchase).await), "refused_here");
}
