//! The responses of eSIM Access: its failure table row by row, and responses that it should not
//! send. Nothing but a documented code is taken for a rejection, and nothing at all for an absence
//! that would allow another purchase.

use std::sync::Arc;

use domain::{Iccid, esim_change::GiveBackCause};
use provisioner::providers::{
    CallbackRequest, DeliveredEsim, Hint, LookUp, Provider, ProviderId, ReportSubject, Trouble,
};
use reqwest::header::HeaderMap;

use crate::hostile::{OURS, Responses, answering, called_back};

/// By the order number, and by a search.
const ESIM_ACCESS: Responses = Responses {
    provider: "esim-access",
    look_ups: &[Some("B1"), None],
};

async fn provider(body: &str) -> Arc<dyn Provider> {
    answering("esim-access", "200 OK", body).await
}

fn error(code: &str) -> String {
    format!(r#"{{"success":false,"errorCode":"{code}","errorMsg":"why","obj":null}}"#)
}

/// A page with one eSIM that has these fields.
fn page(fields: &str) -> String {
    format!(r#"{{"success":true,"errorCode":"0","obj":{{"esimList":[{{{fields}}}]}}}}"#)
}

async fn check(rows: &[(String, [&str; 3])]) {
    let with_status = |(body, expected): &(String, _)| ("200 OK", body.clone(), *expected);
    let rows: Vec<_> = rows.iter().map(with_status).collect();
    ESIM_ACCESS.check(&rows).await;
}

#[tokio::test]
async fn each_row_of_the_failure_table_has_its_effect() {
    let unknown = ["unknown"; 3];
    let mut rows = vec![
        (error("200010"), ["unknown", "B1 ", "unknown"]),
        (error("310272"), ["unknown", "not found", "unknown"]),
        // Nobody says that a purchase was not carried out then.
        (error("900001"), ["unknown", "busy", "busy"]),
    ];
    let refused = ["200005", "200006", "200007", "200011", "310241", "310243"];
    // The request itself is wrong, so it was not carried out.
    let malformed = [
        "000103", "000104", "000105", "000106", "000107", "310201", "310211", "310221", "310231",
        "310251",
    ];
    for code in refused.into_iter().chain(malformed) {
        let rejected: &'static str = Box::leak(format!("rejected {code}").into_boxed_str());
        rows.push((error(code), [rejected, "unknown", "unknown"]));
    }
    for code in ["000101", "000102", "101001", "101002", "101003"] {
        rows.push((error(code), ["denied"; 3]));
    }
    // The outcome of these is unknown, or we do not know them.
    for code in [
        "000001", "000108", "200002", "200008", "200009", "310261", "310403", "999999",
    ] {
        rows.push((error(code), unknown));
    }
    check(&rows).await;
}

/// No code refuses a cancellation for certain, and "busy" does not say that nothing was done.
#[tokio::test]
async fn the_outcome_of_a_give_back_that_is_not_confirmed_is_unknown() {
    let esim = DeliveredEsim {
        unit_id: ProviderId::parse("25".to_owned()).unwrap(),
        iccid: Iccid::parse("89852245280000942210").unwrap(),
    };
    for code in ["900001", "200002", "200009", "310403", "000001"] {
        let answer = provider(&error(code))
            .await
            .give_back(&esim, GiveBackCause::Other)
            .await;
        assert!(matches!(answer, Err(Trouble::Unknown { .. })), "{answer:?}");
    }
}

#[tokio::test]
async fn what_is_not_exactly_a_response_is_unknown() {
    let ordered =
        |fields: &str| format!(r#"{{"success":"true","errorCode":null,"obj":{{{fields}}}}}"#);
    let unknown = ["unknown"; 3];
    let long = "B".repeat(200);
    let rows = vec![
        (ordered(r#""orderNo":"B1""#), ["B1 ", "unknown", "unknown"]),
        (
            ordered(&format!(r#""orderNo":"B1","transactionId":"{OURS}""#)),
            ["B1 ", "unknown", "unknown"],
        ),
        (
            ordered(r#""orderNo":"B1","transactionId":"another""#),
            unknown,
        ),
        (ordered(r#""orderNo":"""#), unknown),
        (ordered(r#""orderNo":"a b""#), unknown),
        (ordered(&format!(r#""orderNo":"{long}""#)), unknown),
        (ordered(r#""orderNo":1"#), unknown),
        (ordered(""), unknown),
        (
            r#"{"success":true,"errorCode":"200011","obj":{"orderNo":"B1"}}"#.into(),
            unknown,
        ),
        (
            r#"{"success":true,"errorCode":"0","obj":null}"#.into(),
            unknown,
        ),
        (
            r#"{"success":false,"errorCode":"0","obj":null}"#.into(),
            unknown,
        ),
        (r#"{"success":false,"errorCode":null}"#.into(), unknown),
        (r#"{"success":false,"errorCode":200011}"#.into(), unknown),
        (r#"{"success":false,"errorCode":" 200011"}"#.into(), unknown),
        (r#"{"success":"no","errorCode":"200011"}"#.into(), unknown),
        (r#"{"errorCode":"200011"}"#.into(), unknown),
        ("<html>Bad gateway</html>".into(), unknown),
        (String::new(), unknown),
    ];
    check(&rows).await;
}

#[tokio::test]
async fn an_esim_is_ready_with_all_of_its_fields_only() {
    let fields = |change: (&str, &str)| {
        let whole = format!(
            r#""esimTranNo":"E1","orderNo":"B1","transactionId":"{OURS}","iccid":"89852245280000942210","ac":"LPA:1$smdp.example$AB-12","expiredTime":"2027-01-31T08:10:19Z","esimStatus":"GOT_RESOURCE","packageList":[{{"packageCode":"P"}}]"#
        );
        page(&whole.replace(change.0, change.1))
    };
    let ready = ["unknown", "B1 R", "B1 R"];
    let pending = ["unknown", "B1 p", "B1 p"];
    let unreadable = ["unknown", "B1 u", "B1 u"];
    let unknown = ["unknown"; 3];
    let rows = vec![
        (fields(("", "")), ready),
        (fields(("Z\"", "+0000\"")), ready),
        (fields(("\"ac\"", "\"other\"")), pending),
        (fields(("\"iccid\"", "\"other\"")), pending),
        (fields(("\"expiredTime\"", "\"other\"")), pending),
        // A blank field is not filled yet, and one that cannot be read is no reason to wait.
        (fields(("LPA:1$smdp.example$AB-12", " ")), pending),
        (fields(("89852245280000942210", "8985")), unreadable),
        (fields(("AB-12", "AB-12$$1")), unreadable),
        (fields(("LPA:1$", "LPA:2$")), unreadable),
        (fields(("2027-01-31", "2027-02-30")), unreadable),
        // The forms of GSMA SGP.22, section 4.1.
        (fields(("LPA:1$", "lpa:1$")), ready),
        (fields(("LPA:1$", " 1$")), ready),
        (fields(("AB-12", "AB-12$")), ready),
        (fields(("AB-12", "AB-12$1.3.6.1.4.1.31746$0")), ready),
        (
            fields(("GOT_RESOURCE", "CANCEL")),
            ["unknown", "B1 f", "B1 f"],
        ),
        // One page of the reference writes REVOKE and another one REVOKED.
        (
            fields(("GOT_RESOURCE", "REVOKED")),
            ["unknown", "B1 f", "B1 f"],
        ),
        (
            fields(("GOT_RESOURCE", "REVOKE")),
            ["unknown", "B1 f", "B1 f"],
        ),
        (fields(("GOT_RESOURCE", "IN_USE")), ready),
        (fields(("GOT_RESOURCE", "CREATE")), ready),
        // Nobody can use these any more, or nobody knows whether.
        (fields(("GOT_RESOURCE", "SUSPENDED")), unreadable),
        (fields(("GOT_RESOURCE", "UNUSED_EXPIRED")), unreadable),
        (fields(("GOT_RESOURCE", "USED_EXPIRED")), unreadable),
        (fields(("GOT_RESOURCE", "USED_UP")), unreadable),
        (fields(("GOT_RESOURCE", "UNDER_REVIEW")), unreadable),
        (fields(("\"esimStatus\"", "\"other\"")), unreadable),
        // An eSIM of another purchase: a query by number is not understood, and a search skips it.
        (
            fields((OURS, "another")),
            ["unknown", "unknown", "not found"],
        ),
        (
            fields(("\"transactionId\"", "\"other\"")),
            ["unknown", "B1 R", "not found"],
        ),
        (
            fields(("\"orderNo\":\"B1\"", "\"orderNo\":\"B2\"")),
            ["unknown", "unknown", "B2 R"],
        ),
        (fields(("\"E1\"", "\"\"")), unknown),
        (fields(("\"E1\"", "\"E\\u0000\"")), unknown),
        (fields(("\"P\"", "\"\\u200b\"")), unknown),
        (
            r#"{"success":true,"errorCode":"0","obj":{"esimList":[]}}"#.into(),
            ["unknown", "B1 ", "not found"],
        ),
        (
            r#"{"success":true,"errorCode":"0","obj":{"esimList":null}}"#.into(),
            unknown,
        ),
    ];
    check(&rows).await;
}

/// A page that is always full never ends, so the adapter gives up. A search has found nothing then,
/// which proves nothing; the eSIMs of one purchase must fit on one page.
#[tokio::test]
async fn a_list_without_an_end_is_given_up() {
    let one = r#"{"esimTranNo":"E","orderNo":"B1"}"#;
    let full = vec![one; 500].join(",");
    let body = format!(r#"{{"success":true,"errorCode":"0","obj":{{"esimList":[{full}]}}}}"#);
    check(&[(body, ["unknown", "unknown", "not found"])]).await;
    // What the provider counts decides, if it counts.
    let counted = |total: u32| {
        format!(
            r#"{{"success":true,"errorCode":"0","obj":{{"esimList":[{one}],"pager":{{"total":{total}}}}}}}"#
        )
    };
    let rows = [
        (counted(1), ["unknown", "B1 p", "not found"]),
        (counted(501), ["unknown", "unknown", "not found"]),
    ];
    check(&rows).await;
}

#[tokio::test]
async fn a_callback_names_the_purchase_or_nothing() {
    let provider = provider("").await;
    assert_eq!(provider.capabilities().look_up, LookUp::Search);
    let callback = |kind: &str, content: &str| {
        let body = format!(r#"{{"notifyType":"{kind}","content":{content}}}"#);
        called_back(&*provider, body.as_bytes()).unwrap()
    };
    let named =
        format!(r#"{{"orderNo":"B1","transactionId":"{OURS}","orderStatus":"GOT_RESOURCE"}}"#);
    let hint = Hint::Purchase(OURS.parse().unwrap());
    assert_eq!(callback("ORDER_STATUS", &named), hint);
    let test = r#"{"orderNo":"1234567890","orderStatus":"Test"}"#;
    assert_eq!(callback("CHECK_HEALTH", test), Hint::Nothing);
    // An event about an eSIM that names none.
    assert_eq!(callback("ESIM_STATUS", &named), Hint::Nothing);
    assert_eq!(
        callback("ORDER_STATUS", r#"{"transactionId":"x"}"#),
        Hint::Nothing
    );
    // What is no event is acknowledged, too, because the provider gives up a URL that refuses its
    // tests.
    assert_eq!(callback("ORDER_STATUS", "7"), Hint::Nothing);
    for odd in [
        &b""[..],
        b"notifyType=ORDER_STATUS&content[orderNo]=B1",
        b"{}",
        b"\xff",
    ] {
        assert_eq!(called_back(&*provider, odd), Ok(Hint::Nothing));
    }
    // The spelling may vary, and the help shows events as a query string without a body.
    let body =
        format!(r#"{{"notify_type":"order_status","content":{{"transaction_id":"{OURS}"}}}}"#);
    assert_eq!(
        called_back(&*provider, body.as_bytes()),
        Ok(Hint::Purchase(OURS.parse().unwrap()))
    );
    let headers = HeaderMap::new();
    let query = format!("notifyType=ORDER_STATUS&content[transactionId]={OURS}");
    let test = CallbackRequest {
        query: Some(&query),
        headers: &headers,
        body: b"",
    };
    assert_eq!(
        provider.read_callback(test),
        Ok(Hint::Purchase(OURS.parse().unwrap()))
    );
}

/// Each type of event about an eSIM names it, in one line that says nothing personal; a repeat is
/// recognised, and another event is not taken for one.
#[tokio::test]
async fn an_event_about_an_esim_names_it() {
    let provider = provider("").await;
    let report = |body: &str| match called_back(&*provider, body.as_bytes()) {
        Ok(Hint::Report(report)) => report,
        other => panic!("{body}: {other:?}"),
    };
    // However long what an event says is, its end tells it from another one.
    let long = |end: &str| {
        let said = "x".repeat(300);
        report(&format!(
            r#"{{"notifyType":"DATA_USAGE","content":{{"esimTranNo":"25","remain":"{said}{end}"}}}}"#
        ))
        .key
    };
    assert_ne!(long("1"), long("2"));
    for (kind, content, words) in [
        (
            "ESIM_STATUS",
            r#""esimStatus":"IN_USE","smdpStatus":"ENABLED""#,
            "ESIM_STATUS IN_USE ENABLED",
        ),
        (
            "SMDP_EVENT",
            r#""smdpStatus":"DOWNLOAD","eid":"89049032000000000000000000000000","seqNumber":7"#,
            "SMDP_EVENT DOWNLOAD",
        ),
        (
            "DATA_USAGE",
            r#""totalVolume":5,"orderUsage":4,"remain":1,"remainThreshold":0.2"#,
            "DATA_USAGE 1 0.2",
        ),
        (
            "VALIDITY_USAGE",
            r#""remain":1,"durationUnit":"DAY""#,
            "VALIDITY_USAGE 1",
        ),
    ] {
        let event = |id: &str, unit: &str| {
            format!(
                r#"{{"notifyType":"{kind}","notifyId":"{id}","content":{{"orderNo":"B1",{unit}{content}}}}}"#
            )
        };
        let unit = r#""esimTranNo":"25","iccid":"89852245280000942210","#;
        let first = report(&event("N1", unit));
        assert_eq!(first.words, words);
        let id = ProviderId::parse("25".to_owned()).unwrap();
        assert_eq!(first.about, ReportSubject::Unit(id));
        assert_eq!(report(&event("N1", unit)).key, first.key);
        assert_ne!(report(&event("N2", unit)).key, first.key);
        let iccid = report(&event("N1", r#""iccid":"89852245280000942210","#));
        assert!(matches!(iccid.about, ReportSubject::Iccid(_)));
        assert_eq!(
            called_back(&*provider, event("N1", "").as_bytes()),
            Ok(Hint::Nothing)
        );
    }
}
