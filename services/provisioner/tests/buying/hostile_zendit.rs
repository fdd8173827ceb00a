//! The responses of Zendit: its failure table row by row, and responses that it should not send.
//! Nothing but a documented answer is taken for a rejection, or for an absence, which here allows
//! another purchase.

use std::sync::Arc;

use domain::{Iccid, PlacementId, esim_change::GiveBackCause};
use provisioner::providers::{
    Custody, DeliveredEsim, EsimStatus, GiveBackResponse, Hint, LookUp, Provider, ProviderId,
    Trouble,
};

use crate::hostile::{OURS, Responses, answering, asked, bought, called_back};

const ZENDIT: Responses = Responses {
    provider: "zendit",
    look_ups: &[None],
};

async fn provider(status: &str, body: &str) -> Arc<dyn Provider> {
    answering("zendit", status, body).await
}

#[tokio::test]
async fn each_row_of_the_failure_table_has_its_effect() {
    let refused = |code: &str| format!(r#"{{"errorCode":"{code}","message":"why","fields":{{}}}}"#);
    let unknown = ["unknown"; 2];
    let mut rows = vec![
        (
            "404 X",
            refused("NOT_FOUND"),
            ["rejected NOT_FOUND", "not found"],
        ),
        ("401 X", refused("NOT_AUTHORIZED"), ["denied"; 2]),
        ("403 X", refused("FORBIDDEN"), ["denied"; 2]),
        ("429 X", refused("NOT_FOUND"), ["busy"; 2]),
        // How it says that an id was used before is not documented; it could be this one.
        ("400 X", refused("INVALID_REQUEST"), unknown),
        ("404 X", refused("INVALID_REQUEST"), unknown),
        ("404 X", refused("not_found"), unknown),
        ("404 X", refused(""), unknown),
    ];
    // A code counts only with the status that the documentation gives it.
    for status in ["200 X", "400 X", "410 X", "422 X", "500 X", "503 X"] {
        rows.push((status, refused("NOT_FOUND"), unknown));
    }
    // What gateways say about a path that they do not know.
    for odd in [
        r#"{"message":"Not Found"}"#,
        r#"{"errorCode":"NOT_FOUND"}"#,
        r#"{"errorCode":404,"message":"why"}"#,
        r#"{"error":{"errorCode":"NOT_FOUND","message":"why"}}"#,
        r#"["NOT_FOUND"]"#,
        r#"["NOT_FOUND","why"]"#,
        "NOT_FOUND",
        "<html></html>",
        "",
    ] {
        rows.push(("404 X", odd.to_owned(), unknown));
    }
    ZENDIT.check(&rows).await;
}

#[tokio::test]
async fn the_answer_to_a_purchase_is_about_ours_and_in_a_known_state() {
    let accepted =
        |id: &str, status: &str| format!(r#"{{"status":"{status}","transactionId":"{id}"}}"#);
    let mut rows = vec![
        (accepted(OURS, "FAILED"), "rejected FAILED", "- f"),
        (accepted(OURS, "CANCELLED"), "unknown", "- u"),
        (accepted("another", "ACCEPTED"), "unknown", "unknown"),
        (accepted("another", "FAILED"), "unknown", "unknown"),
    ];
    for state in ["ACCEPTED", "PENDING", "AUTHORIZED", "IN_PROGRESS", "DONE"] {
        rows.push((accepted(OURS, state), "-", "- p"));
    }
    for (body, purchase, look_up) in rows {
        let seen = ZENDIT.classes("200 X", &body).await;
        let seen: Vec<&str> = seen.iter().map(|class| class.trim_end()).collect();
        assert_eq!(seen, [purchase, look_up], "{body}");
    }
}

#[tokio::test]
async fn an_esim_is_read_whole_or_not_at_all() {
    let whole = |from: &str, to: &str| {
        let whole = format!(
            r#"{{"transactionId":"{OURS}","status":"DONE","offerId":"P","createdAt":"2026-12-01T10:00:00.123Z","confirmation":{{"iccid":"891000000000009125","smdpAddress":"smdp.example.com","activationCode":"AB-12"}},"cost":325,"costCurrencyDivisor":100}}"#
        );
        assert!(whole.contains(from), "{from}");
        whole.replacen(from, to, 1)
    };
    let refund = |status: &str| {
        let field = format!(r#""refund":{{"status":"{status}"}},"offerId""#);
        whole(r#""offerId""#, &field)
    };
    let rows = [
        (whole("", ""), "- R"),
        (whole(OURS, "another"), "unknown"),
        (whole("DONE", "IN_PROGRESS"), "- p"),
        // A failed purchase is failed, even if it has a profile.
        (whole("DONE", "FAILED"), "- f"),
        // States have been added before. One that nobody knows is held.
        (whole("DONE", "REFUNDED"), "- u"),
        (whole("DONE", ""), "- u"),
        (refund("DONE"), "- f"),
        (refund("FAILED"), "- R"),
        (refund("ACCEPTED"), "- u"),
        (refund("APPROVED"), "- u"),
        (whole(r#""confirmation""#, r#""other""#), "- p"),
        (whole("AB-12", ""), "- p"),
        (whole("AB-12", "AB$12"), "- u"),
        (whole("AB-12", "LPA:1$smdp.example.com$AB-12"), "- R"),
        (whole("AB-12", "LPA:1$other.example.com$AB-12"), "- u"),
        (whole("AB-12", "LPA:1$smdp.example.com$AB-12$$1"), "- u"),
        (whole("891000000000009125", "8910"), "- u"),
        // Its time is only the base of an estimate.
        (whole("2026-12-01T10:00:00.123Z", "soon"), "- R"),
        (whole(r#""createdAt""#, r#""other""#), "- R"),
        (whole(r#""2026-12-01T10:00:00.123Z""#, "1764583200"), "- R"),
        (whole(r#""offerId":"P","#, ""), "- R"),
        (whole(r#""offerId":"P""#, r#""offerId":"Q""#), "unknown"),
        (whole(r#""offerId":"P""#, r#""offerId":"a b""#), "unknown"),
        ("{}".to_owned(), "unknown"),
        ("null".to_owned(), "unknown"),
    ];
    for (body, expected) in rows {
        let seen = ZENDIT.classes("200 X", &body).await;
        assert_eq!(seen[1], expected, "{body}");
    }
}

#[tokio::test]
async fn several_esims_or_options_are_never_sent_as_one_purchase() {
    let provider = provider("500 X", "").await;
    assert_eq!(provider.capabilities().look_up, LookUp::Exact);
    for items in [&[("P", 2)][..], &[("P", 1), ("Q", 1)], &[("P@cheap", 1)]] {
        let (mut purchase, _) = asked(PlacementId::new(), None);
        let items = items
            .iter()
            .map(|(name, count)| ((*name).to_owned(), *count));
        purchase.items = items.collect();
        let seen = bought(&provider.purchase(&purchase).await);
        assert_eq!(seen, "refused_here");
    }
}

/// The response serves both calls: the offer, and its purchase.
#[tokio::test]
async fn only_an_offer_at_a_known_price_is_bought() {
    let whole = |from: &str, to: &str| {
        let whole = format!(
            r#"{{"offerId":"P","enabled":true,"priceType":"FIXED","cost":{{"currencyDivisor":100,"fixed":300,"fee":25}},"transactionId":"{OURS}","status":"ACCEPTED"}}"#
        );
        assert!(whole.contains(from), "{from}");
        whole.replacen(from, to, 1)
    };
    let refused = |code: &str| format!(r#"{{"errorCode":"{code}","message":"why"}}"#);
    for (status, body, expected) in [
        ("200 X", whole("", ""), "-"),
        ("200 X", whole(r#""fee":25"#, r#""fee":0"#), "-"),
        ("200 X", whole("300", "301"), "refused_here"),
        ("200 X", whole(r#""fee":25"#, r#""fee":26"#), "refused_here"),
        ("200 X", whole("true", "false"), "refused_here"),
        // Its fixed cost says nothing.
        ("200 X", whole("FIXED", "RANGE"), "refused_here"),
        ("200 X", whole("cost", "other"), "refused_here"),
        ("404 X", refused("NOT_FOUND"), "refused_here"),
        // What is no answer about the offer says nothing about it. The purchase waits.
        ("200 X", whole(r#""P""#, r#""Q""#), "waiting"),
        ("200 X", "<html></html>".to_owned(), "waiting"),
        ("200 X", String::new(), "waiting"),
        ("404 X", refused("OTHER"), "waiting"),
        ("500 X", String::new(), "waiting"),
        ("429 X", String::new(), "busy"),
        ("401 X", refused("NOT_AUTHORIZED"), "denied"),
    ] {
        let (mut purchase, _) = asked(OURS.parse().unwrap(), None);
        purchase.items = vec![("P@3.25".to_owned(), 1)];
        let provider = provider(status, &body).await;
        let seen = bought(&provider.purchase(&purchase).await);
        assert_eq!(seen.trim_end(), expected, "{body}");
    }
}

fn esim(unit_id: &str) -> DeliveredEsim {
    DeliveredEsim {
        unit_id: ProviderId::parse(unit_id.to_owned()).unwrap(),
        iccid: Iccid::parse("891000000000009125").unwrap(),
    }
}

/// The response serves both calls: the purchase of the eSIM, and its plans.
#[tokio::test]
async fn only_what_zendit_says_clearly_about_an_esim_is_believed() {
    let status = async |changes: &str, plan: &str| -> Result<EsimStatus, Trouble> {
        let body = format!(
            r#"{{"transactionId":"{OURS}","status":"DONE","firstInstalledAt":"","total":1,"list":[{plan}]{changes}}}"#
        );
        provider("200 X", &body).await.status(&esim(OURS)).await
    };
    let plan = r#"{"iccid":"891000000000009125","initialDataGB":2,"remainingDataGB":0.5,"status":"ACTIVE","endAt":"2027-01-31T00:00:00Z"}"#;
    let gib = 1 << 30;
    let fresh = status("", plan).await.unwrap();
    assert_eq!(fresh.custody, Custody::Returnable);
    assert_eq!(fresh.reading.installed, None);
    assert_eq!(fresh.reading.data_used, Some(gib * 3 / 2));
    assert_eq!(fresh.reading.data_total, Some(2 * gib));
    assert!(fresh.reading.ends_at.is_some());
    let begun = plan.replace(r#""endAt""#, r#""startAt":"2027-01-01T00:00:00Z","endAt""#);
    let begun = status("", &begun).await.unwrap();
    assert_eq!(begun.reading.installed, Some(true));
    assert_eq!(begun.custody, Custody::Kept("the eSIM is installed".into()));
    let unlimited = plan.replace(r#""status""#, r#""unlimited":true,"status""#);
    let unlimited = status("", &unlimited).await.unwrap().reading;
    assert_eq!((unlimited.data_used, unlimited.data_total), (None, None));
    let refunded = status(r#","refund":{"status":"DONE"}"#, plan)
        .await
        .unwrap();
    assert_eq!(refunded.custody, Custody::Returned);
    let refused = status(r#","refund":{"status":"FAILED"}"#, plan).await;
    assert!(matches!(refused.unwrap().custody, Custody::Kept(_)));
    for under_way in ["ACCEPTED", "IN_PROGRESS", "APPROVED"] {
        let changes = format!(r#","refund":{{"status":"{under_way}"}}"#);
        let seen = status(&changes, plan).await.unwrap();
        let said = format!("the refund is {under_way}");
        assert_eq!(seen.custody, Custody::Claimed(said));
        assert_eq!(seen.reading, fresh.reading);
    }
    let other = plan.replace("9125", "9133");
    let seen = status("", &other).await;
    assert!(matches!(seen, Err(Trouble::Unknown { .. })), "{seen:?}");
}

#[tokio::test]
async fn only_a_refund_that_is_done_gives_an_esim_back() {
    for (status, body, is_returned) in [
        ("200 X", r#"{"status":"DONE"}"#, true),
        ("200 X", r#"{"status":"ACCEPTED"}"#, false),
        ("200 X", r#"{"status":"FAILED"}"#, false),
        ("200 X", "{}", false),
        (
            "404 X",
            r#"{"errorCode":"NOT_FOUND","message":"why"}"#,
            false,
        ),
        (
            "400 X",
            r#"{"errorCode":"INVALID_REQUEST","message":"why"}"#,
            false,
        ),
        ("500 X", "", false),
    ] {
        let provider = provider(status, body).await;
        let seen = provider.give_back(&esim(OURS), GiveBackCause::Other).await;
        assert_eq!(
            seen == Ok(GiveBackResponse::Returned),
            is_returned,
            "{body}"
        );
        assert!(
            is_returned || matches!(seen, Err(Trouble::Unknown { .. })),
            "{seen:?}"
        );
        // An id that means something in a path is never sent.
        let seen = provider
            .give_back(&esim("../x?y"), GiveBackCause::Other)
            .await;
        assert!(matches!(seen, Err(Trouble::NotSent(_))), "{seen:?}");
    }
}

#[tokio::test]
async fn a_callback_is_a_hint_about_one_purchase() {
    let provider = provider("200 X", "").await;
    let hint = |body: &str| called_back(&*provider, body.as_bytes()).ok();
    let ours = format!(r#"{{"transactionId":"{OURS}","status":"FAILED","more":1}}"#);
    assert_eq!(hint(&ours), Some(Hint::Purchase(OURS.parse().unwrap())));
    assert_eq!(hint(r#"{"transactionId":"17"}"#), Some(Hint::Nothing));
    for odd in ["", "{}", r#"{"transactionId":17}"#, "[]"] {
        assert_eq!(hint(odd), None, "{odd}");
    }
}
