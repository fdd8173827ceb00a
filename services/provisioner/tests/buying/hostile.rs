//! Bytes that a provider, or something in front of it, may send instead of a good response. None of
//! them is taken for a request that was not sent, and a rejection is only what the protocol says
//! exactly: both would buy again or refuse what is bought.

use std::{sync::Arc, time::Duration};

use domain::PlacementId;
use provisioner::providers::{
    Accounts, BadCallback, BoughtUnits, CallLimits, CallbackRequest, Heard, Hint, LookUpRequest,
    LookUpResponse, PacedCalls, Provider, ProviderId, ProviderUnit, ProviderUnitState, Purchase,
    PurchaseResponse, Trouble,
};
use reqwest::header::HeaderMap;
use runtime::clock::Moment;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::{ACCESS_KEY, SECRET_KEY};

/// Our id of the purchase that responses are about.
pub const OURS: &str = "0199aabb-ccdd-7eee-8fff-001122334455";
/// The least number of responses.
const LEAST: usize = 60;
const RESPONSE_MAX: usize = 64 * 1024;
/// The longest message of a rejection, and reason of a trouble, in bytes.
pub const LONGEST: usize = 300;

/// A name, a response, and its class as a purchase and as a look-up.
type Row = (String, Vec<u8>, &'static str, &'static str);

fn row(name: impl Into<String>, response: Vec<u8>, class: &'static str) -> Row {
    (name.into(), response, class, class)
}

/// A response with this status line, further header lines and body.
pub fn http(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    [
        format!("HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\n\r\n").as_bytes(),
        body,
    ]
    .concat()
}

fn ok(body: impl AsRef<[u8]>) -> Vec<u8> {
    http(
        "200 OK",
        "content-type: application/json\r\n",
        body.as_ref(),
    )
}

/// A purchase of one unit with these further fields.
fn unit(fields: &str) -> Vec<u8> {
    ok(format!(r#"{{"code":"0000","products":[{{{fields}}}]}}"#))
}

/// What is no response of the protocol.
fn broken() -> Vec<Row> {
    let many = |line: &str, times: usize| line.repeat(times).into_bytes();
    let head = |lines: &str| format!("HTTP/1.1 200 OK\r\n{lines}\r\n\r\n");
    let large = vec![b' '; 2 * RESPONSE_MAX];
    let chunks = head("transfer-encoding: chunked") + "20000\r\n";
    let chunked = [chunks.as_bytes(), &large, b"\r\n0\r\n\r\n"].concat();
    let no_response: [(&str, Vec<u8>); 21] = testkit::rows! {
        "nothing" => Vec::new();
        "another protocol" => b"SSH-2.0-OpenSSH_9.9\r\n\r\n".into();
        "a TLS alert" => b"\x15\x03\x01\x00\x02\x02\x28".into();
        "a body without a head" => br#"{"code":"9001"}"#.into();
        "half a status line" => b"HTTP/1.1 20".into();
        "an unknown version" => b"HTTP/9.9 200 OK\r\n\r\n{}".into();
        "a short status" => b"HTTP/1.1 20 OK\r\n\r\n".into();
        "a long status" => b"HTTP/1.1 2000 OK\r\n\r\n".into();
        "half a head" => b"HTTP/1.1 200 OK\r\ncontent-len".into();
        "a header without a colon" => head("content-length").into();
        "a NUL in a header" => b"HTTP/1.1 200 OK\r\nx: \0\r\n\r\n".into();
        "a DEL in a header" => b"HTTP/1.1 429 Busy\r\nretry-after: \x7f\r\n\r\n".into();
        "10,000 headers" => [b"HTTP/1.1 200 OK\r\n", &many("x: y\r\n", 10_000)[..], b"\r\n"].concat();
        "a header of a megabyte" => [b"HTTP/1.1 200 OK\r\nx: ", &many("y", 1 << 20)[..]].concat();
        "a body that breaks off" => [head("content-length: 99").as_bytes(), br#"{"code":"9001"}"#].concat();
        "a negative length" => head("content-length: -1").into();
        "two lengths" => head("content-length: 2\r\ncontent-length: 15").into();
        "a length beyond 64 bits" => head("content-length: 99999999999999999999").into();
        "a chunk without a size" => head("transfer-encoding: chunked\r\n\r\nxyz").into();
        "chunks that break off" => head("transfer-encoding: chunked\r\n\r\n5\r\n{").into();
        "interim responses only" => many("HTTP/1.1 102 Wait\r\n\r\n", 1_000);
    };
    let not_understood: [(&str, Vec<u8>); 6] = testkit::rows! {
        "a length beyond the limit" => head("content-length: 9999999").into();
        "a body beyond the limit" => http("200 OK", "", &large);
        "chunks beyond the limit" => chunked;
        "another protocol, as asked"
            => b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n".into();
        "no content" => b"HTTP/1.1 204 No Content\r\n\r\n".into();
        "a compressed body" => http("200 OK", "content-encoding: gzip\r\n", b"\x1f\x8b\x08\0\0\0\0\0\0\xff");
    };
    let no_response = no_response.map(|(name, response)| row(name, response, "no_response"));
    let not_understood = not_understood.map(|(name, response)| row(name, response, "unknown"));
    [&no_response[..], &not_understood].concat()
}

/// Statuses, with a body that would be a rejection.
fn statuses() -> Vec<Row> {
    let body = br#"{"code":"9001","message":"no such product"}"#;
    // With which status an error comes is not documented, so the code of a refused request counts.
    // A look-up that is refused says nothing about the order.
    let refusing = [400, 404, 405, 408, 409, 418, 422, 451];
    let unknown = [300, 301, 302, 307, 308, 304, 500, 501, 502, 503, 504, 599];
    let others = [(401, "denied"), (403, "denied"), (429, "busy")];
    let all = unknown
        .map(|status| (status, "unknown"))
        .into_iter()
        .chain(others)
        .map(|(status, class)| (status, class, class))
        .chain(refusing.map(|status| (status, "rejected", "unknown")));
    let mut rows: Vec<Row> = all
        .map(|(status, place, find)| {
            let status = format!("{status} X");
            let response = http(&status, "location: http://127.0.0.1:9/\r\n", body);
            (status, response, place, find)
        })
        .collect();
    for body in [
        &br#"{"code":"0000","products":[]}"#[..],
        br#"{"code":"9999"}"#,
        b"<html>Not found</html>",
        b"",
    ] {
        let name = format!("404 with {}", String::from_utf8_lossy(body));
        rows.push(row(name, http("404 X", "", body), "unknown"));
    }
    let cancelled = http("404 X", "", br#"{"code":"9002"}"#);
    let name = "404 with code 9002".to_owned();
    rows.push((name, cancelled, "unknown", "proves_nothing"));
    for wait in [
        "-1",
        "1e99",
        "99999999999999999999",
        "Fri, 20 Nov 2026 06:00:00 GMT",
    ] {
        let response = http("429 Busy", &format!("retry-after: {wait}\r\n"), b"");
        rows.push(row(format!("429 with {wait:?}"), response, "busy"));
    }
    rows
}

/// Bodies of a 200.
fn bodies() -> Vec<Row> {
    let wide: Vec<u8> = r#"{"code":"9001"}"#.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let unknown: [(&str, Vec<u8>); 32] = testkit::rows! {
        "an empty body" => Vec::new();
        "a blank" => b" ".into();
        "null" => b"null".into();
        "a list" => b"[]".into();
        "an empty object" => b"{}".into();
        "a bare code" => b"9001".into();
        "a code as text" => br#""9001""#.into();
        "a code as number" => br#"{"code":9001}"#.into();
        "a code as list" => br#"{"code":["9001"]}"#.into();
        "no code" => br#"{"code":null}"#.into();
        "another name" => br#"{"Code":"9001"}"#.into();
        "an empty code" => br#"{"code":""}"#.into();
        "a blank before the code" => br#"{"code":" 9001"}"#.into();
        "a line end behind the code" => br#"{"code":"9001\n"}"#.into();
        "a longer code" => br#"{"code":"90010"}"#.into();
        "full-width digits" => r#"{"code":"９００１"}"#.into();
        "an unknown code" => br#"{"code":"9004"}"#.into();
        "the code of a server error" => br#"{"code":"9999"}"#.into();
        "two codes" => br#"{"code":"9001","code":"0000"}"#.into();
        "two objects" => br#"{"code":"9001"}{"code":"0000"}"#.into();
        "something behind the object" => br#"{"code":"9001"}x"#.into();
        "half an object" => br#"{"code":"9001""#.into();
        "a byte order mark" => b"\xef\xbb\xbf{\"code\":\"9001\"}".into();
        "UTF-16" => wide;
        "no UTF-8" => b"{\"code\":\"9001\",\"message\":\"\xff\"}".into();
        "half a character" => br#"{"code":"9001","message":"\ud800"}"#.into();
        "HTML" => b"<html><body>Bad gateway</body></html>".into();
        "units as text" => br#"{"code":"0000","products":"all"}"#.into();
        "units as object" => br#"{"code":"0000","products":{}}"#.into();
        "a unit that is null" => br#"{"code":"0000","products":[null]}"#.into();
        "a unit without id" => br#"{"code":"0000","products":[{}]}"#.into();
        "an id as number" => br#"{"code":"0000","products":[{"topupId":1}]}"#.into();
    };
    let unknown = unknown.map(|(name, body)| row(name, ok(body), "unknown"));
    let mut rows: Vec<Row> = unknown.into();
    for (name, id) in [
        ("an empty id", String::new()),
        ("a long id", "a".repeat(300)),
        ("a NUL in an id", r"a\u0000".into()),
        ("a line end in an id", r"a\nb".into()),
        ("an id that is not ASCII", "é".into()),
        ("a hidden character in an id", r"a\u200b".into()),
    ] {
        rows.push(row(name, unit(&format!(r#""topupId":"{id}""#)), "unknown"));
        let response = unit(&format!(r#""topupId":"1","optionId":"{id}""#));
        let class = if id.is_empty() {
            "1 pending"
        } else {
            "unknown"
        };
        rows.push(row(format!("{name}, of the option"), response, class));
    }
    // One unreadable field: the unit is bought, and its profile is awaited.
    let good = [
        ("iccid", "8982123456789012345"),
        ("smdp", "smdp.example.com"),
        ("activateCode", "A1-B2"),
        ("expiredDate", "2027-01-31"),
    ];
    let unreadable: [(&str, &[&str]); 4] = testkit::rows! {
        "iccid" => &["", "898212345678901234x", "1", "898212345678901234567890"];
        "smdp" => &["", "smdp.example.com$X", "https://smdp.example.com", "smdp example com"];
        "activateCode" => &["", "A1$B2", r"A1\r\nX: 1", "<script>"];
        "expiredDate" => &["2027-02-30", "1999-12-31", "2027-01-31x", "31.01.2027", "9999999-01-01"];
    };
    for (field, value) in unreadable
        .iter()
        .flat_map(|(field, all)| all.iter().map(move |one| (*field, *one)))
    {
        let fields = good.map(|(name, good)| {
            let value = if name == field { value } else { good };
            format!(r#","{name}":"{value}""#)
        });
        let response = unit(&format!(r#""topupId":"1"{}"#, fields.concat()));
        // An empty field is one that the provider has not filled yet.
        let class = if value.is_empty() {
            "1 pending"
        } else {
            "1 unreadable"
        };
        rows.push(row(format!("{field} {value}"), response, class));
    }
    rows
}

/// What the protocol says, at its edges.
fn edges() -> Vec<Row> {
    let deep = format!(
        r#"{{"code":"9001","x":{}{}}}"#,
        "[".repeat(20_000),
        "]".repeat(20_000)
    );
    let hidden = r"x\u0000\u202e\n".repeat(3_000);
    let message = format!(r#"{{"code":"9001","message":"{hidden}"}}"#);
    let units: Vec<String> = (0..1_500)
        .map(|n| format!(r#"{{"topupId":"{n}"}}"#))
        .collect();
    let units = format!(r#"{{"code":"0000","products":[{}]}}"#, units.join(","));
    let edges: [(&str, Vec<u8>, &str, &str); 12] = testkit::rows! {
        "bought, without units", ok(r#"{"code":"0000"}"#) => "0 pending", "0 pending";
        "bought before", ok(r#"{"code":"9003","products":[{}]}"#) => "unknown", "unknown";
        "bought before, without units", ok(r#"{"code":"9003"}"#) => "0 pending", "unknown";
        // These are codes of the sandbox, or of a cancellation, where they mean something else.
        "cancelled already, or no such order", ok(r#"{"code":"9002"}"#) => "unknown", "proves_nothing";
        "failed, or out of stock", ok(r#"{"code":"9005"}"#) => "unknown", "unknown";
        "malformed at the sandbox", ok(r#"{"code":"9000"}"#) => "unknown", "unknown";
        "malformed", ok(r#"{"code":"9998"}"#) => "rejected", "unknown";
        "unknown topup", ok(r#"{"code":"1001"}"#) => "unknown", "unknown";
        "no such product", ok(r#"{"code":"9001"}"#) => "rejected", "unknown";
        "a long message", ok(message) => "rejected", "unknown";
        "depth in a field that is not read", ok(deep) => "rejected", "unknown";
        "many units", ok(units) => "1500 pending", "1500 pending";
    };
    edges
        .map(|(name, response, place, find)| (name.into(), response, place, find))
        .into()
}

fn class(units: &[ProviderUnit]) -> String {
    let is_unreadable =
        |unit: &ProviderUnit| matches!(unit.state, ProviderUnitState::Unreadable(_));
    if !units.is_empty() && units.iter().all(is_unreadable) {
        return format!("{} unreadable", units.len());
    }
    let is_pending = |unit: &ProviderUnit| matches!(unit.state, ProviderUnitState::Pending);
    assert!(units.iter().all(is_pending), "{units:?}");
    format!("{} pending", units.len())
}

pub fn trouble(trouble: &Trouble) -> String {
    let reason = trouble.reason();
    let is_hidden = |character: char| character.is_control() || character == '\u{202e}';
    assert!(
        reason.len() <= LONGEST && !reason.contains(is_hidden),
        "{reason:?}"
    );
    assert!(trouble.asked_wait(Duration::from_mins(10)) <= Duration::from_mins(10));
    trouble.class().to_owned()
}

/// A provider that sends these bytes on each connection and closes it. A request for a token gets a
/// good one first.
pub async fn replay(response: Vec<u8>) -> reqwest::Url {
    const TOKEN: &str = r#"{"data":{"access_token":"token","expires_in":86400},"meta":{}}"#;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            // A request fits into one packet here.
            let mut request = [0; 8192];
            let read = connection.read(&mut request).await.unwrap_or_default();
            let is_token = request[..read].starts_with(b"POST /v2/token");
            let close = http("200 OK", "connection: close\r\n", TOKEN.as_bytes());
            let response = if is_token { &close } else { &response };
            let _ = connection.write_all(response).await;
            let _ = connection.shutdown().await;
        }
    });
    base.parse().unwrap()
}

/// The adapter of the provider `name`.
pub fn connect(name: &str, url: &str) -> Arc<dyn Provider> {
    testkit::http::client().unwrap(); // This installs the TLS provider.
    let accounts = Accounts::default()
        .with(name, "URL", url)
        .with(name, "ACCESS_KEY", ACCESS_KEY)
        .with(name, "SECRET_KEY", SECRET_KEY);
    let limits = CallLimits {
        timeout: Duration::from_secs(5),
        response_max: RESPONSE_MAX,
    };
    let connected = accounts.connect(name, PacedCalls::without_rate(limits));
    connected.unwrap().provider
}

/// The adapter of a provider that gives one response to whatever is asked.
pub async fn answering(name: &str, status: &str, body: &str) -> Arc<dyn Provider> {
    connect(
        name,
        replay(http(status, "", body.as_bytes())).await.as_str(),
    )
}

/// A protocol whose responses are tried one by one.
pub struct Responses {
    pub provider: &'static str,
    /// How a purchase is looked up: by these ids of the provider, and with `None` by ours.
    pub look_ups: &'static [Option<&'static str>],
}

impl Responses {
    /// What one response leads to as that to a purchase and to each look-up.
    pub async fn classes(&self, status: &str, body: &str) -> Vec<String> {
        let ours = OURS.parse().unwrap();
        let provider = answering(self.provider, status, body).await;
        let (purchase, _) = asked(ours, None);
        let mut classes = vec![bought(&provider.purchase(&purchase).await)];
        for reference in self.look_ups {
            let (_, look_up) = asked(ours, *reference);
            classes.push(found(&provider.look_up(&look_up).await));
        }
        classes
    }

    /// Compares the classes of these responses with the expected ones.
    pub async fn check<const N: usize>(&self, rows: &[(&str, String, [&str; N])]) {
        let mut wrong = Vec::new();
        for (status, body, expected) in rows {
            let seen = self.classes(status, body).await;
            if seen != expected {
                wrong.push((status, body, seen));
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}

/// What a callback with this body tells.
pub fn called_back(provider: &dyn Provider, body: &[u8]) -> Result<Hint, BadCallback> {
    let headers = HeaderMap::new();
    provider.read_callback(CallbackRequest {
        query: None,
        headers: &headers,
        body,
    })
}

/// A purchase of two units of the product `P`, and the question about it. `reference` is the
/// provider's own id of it.
pub fn asked(placement_id: PlacementId, reference: Option<&str>) -> (Purchase, LookUpRequest) {
    let purchase = Purchase {
        placement_id,
        items: vec![("P".into(), 1)],
        send_by: Moment::now() + Duration::from_mins(1),
    };
    let look_up = LookUpRequest {
        placement_id,
        reference: reference.map(|id| ProviderId::parse(id.to_owned()).unwrap()),
        attempt_age: Duration::ZERO,
        options: vec!["P".into()],
        arrives_within: Duration::from_mins(1),
    };
    (purchase, look_up)
}

/// What a purchase led to, in a few words.
pub fn bought(answer: &Result<PurchaseResponse, Trouble>) -> String {
    match answer {
        Ok(PurchaseResponse::Bought(bought)) => units(bought),
        Ok(PurchaseResponse::Rejected { status, .. }) => format!("rejected {status}"),
        Err(error) => trouble(error),
    }
}

/// What a look-up led to, in a few words.
pub fn found(answer: &Result<LookUpResponse, Trouble>) -> String {
    match answer {
        Ok(LookUpResponse::Found(bought)) => units(bought),
        Ok(LookUpResponse::NotFound) => "not found".to_owned(),
        Err(error) => trouble(error),
    }
}

/// The provider's id of the purchase, and one letter for the state of each unit.
fn units(bought: &BoughtUnits) -> String {
    let state = |unit: &ProviderUnit| match &unit.state {
        ProviderUnitState::Pending => 'p',
        ProviderUnitState::Ready(_) => 'R',
        ProviderUnitState::Failed(_) => 'f',
        ProviderUnitState::Unreadable(_) => 'u',
    };
    let states: String = bought.units.iter().map(state).collect();
    let reference = bought.reference.as_ref().map_or("-", ProviderId::as_str);
    format!("{reference} {states}")
}

#[tokio::test]
async fn no_response_is_taken_for_what_it_is_not() {
    let rows: Vec<Row> = [broken(), statuses(), bodies(), edges()]
        .into_iter()
        .flatten()
        .collect();
    println!("{} responses", rows.len());
    assert!(rows.len() >= LEAST);
    let (purchase, look_up) = asked(PlacementId::new(), None);
    let mut wrong = Vec::new();
    for (name, response, purchase_expected, find_expected) in rows {
        let provider = connect("usimsa", replay(response).await.as_str());
        let bought = match provider.purchase(&purchase).await {
            Ok(PurchaseResponse::Bought(bought)) => class(&bought.units),
            Ok(PurchaseResponse::Rejected { status, message }) => {
                assert!(["9001", "9998"].contains(&&status[..]) && message.len() <= LONGEST);
                "rejected".into()
            }
            Err(error) => trouble(&error),
        };
        let looked_up = match provider.look_up(&look_up).await {
            Ok(LookUpResponse::Found(bought)) => class(&bought.units),
            Ok(LookUpResponse::NotFound) => "not found".into(),
            Err(error) => trouble(&error),
        };
        if (&bought[..], &looked_up[..]) != (purchase_expected, find_expected) {
            wrong.push((name, bought, looked_up));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The sandbox has codes of its own, which are believed of nobody else.
#[tokio::test]
async fn the_codes_of_the_sandbox_are_believed_of_the_sandbox() {
    let (purchase, look_up) = asked(PlacementId::new(), None);
    for (code, place, find) in [
        ("9000", "rejected 9000", "unknown"),
        ("9001", "rejected 9001", "unknown"),
        ("9002", "unknown", "not found"),
        ("9003", "- ", "unknown"),
        ("9005", "rejected 9005", "unknown"),
        ("9998", "unknown", "unknown"),
    ] {
        let sandbox = answering("sandbox", "200 OK", &format!(r#"{{"code":"{code}"}}"#)).await;
        let answers = (
            bought(&sandbox.purchase(&purchase).await),
            found(&sandbox.look_up(&look_up).await),
        );
        assert_eq!(answers, (place.to_owned(), find.to_owned()), "{code}");
    }
}

/// Where only purchases are left that never arrived, USIMSA may respond so to each look-up. Its
/// breaker has to close then, because nothing is put on hold before.
#[tokio::test]
async fn a_code_of_a_look_up_that_proves_nothing_is_no_failure_of_usimsa() {
    let (_, look_up) = asked(PlacementId::new(), None);
    for (code, is_response) in [("9002", true), ("9999", false), ("1001", false)] {
        let usimsa = answering("usimsa", "200 OK", &format!(r#"{{"code":"{code}"}}"#)).await;
        let trouble = usimsa.look_up(&look_up).await.unwrap_err();
        assert_eq!(
            trouble.heard() == Some(Heard::ProvesNothing),
            is_response,
            "{code}"
        );
        assert!(trouble.may_be_carried_out());
    }
}

/// What a proof asks with a wrong key or signature must be refused, as the documents say.
#[tokio::test]
async fn a_proof_tells_who_takes_a_wrong_key() {
    for (name, refused) in [
        ("airalo", http("401 X", "", b"{}")),
        ("zendit", http("401 X", "", b"{}")),
        (
            "esim-access",
            ok(r#"{"success":false,"errorCode":"101003","errorMsg":"no"}"#),
        ),
    ] {
        let taken = ok(r#"{"success":true,"errorCode":"0","obj":{}}"#);
        let busy = http("503 X", "", b"");
        for (response, expected) in [(taken, Some(false)), (refused, Some(true)), (busy, None)] {
            let provider = connect(name, replay(response).await.as_str());
            let answers = provider.ask_live().await;
            let first = answers.first().unwrap();
            assert!(first.question.starts_with("a call with a wrong "));
            assert_eq!(first.is_documented, expected, "{name}: {first:?}");
        }
    }
}
