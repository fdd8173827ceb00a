//! The targets. Each panics if a rule is broken. The entry points of ingress exist in debug builds
//! only, and so does this crate.
#![cfg(debug_assertions)]

mod replayed;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use domain::{ActivationCode, Iccid, PlacementId};
use http::HeaderMap;
use ingress::fuzz::Harness;
use notifier::{client, schedule::Schedule, webhook::WebhookSender};
use provisioner::providers::{
    Accounts, CallLimits, CallbackRequest, Hint, LookUpRequest, LookUpResponse, PacedCalls,
    Provider, ProviderId, ProviderUnit, ProviderUnitState, Purchase, PurchasePeriod,
    PurchaseResponse, Trouble,
};
use webhooks::{
    dns::NameServers,
    guard::{Guard, Networks, Ports},
    url::WebhookUrl,
};

use self::replayed::Replayed;

pub const ALL: [&str; 12] = [
    "airalo",
    "esim-access",
    "signature",
    "body",
    "fields",
    "query",
    "lpa",
    "qr",
    "provider",
    "callback",
    "endpoint",
    "url",
];

type Target = Box<dyn Fn(&[u8]) + Send + Sync>;

pub fn named(name: &str) -> Option<Target> {
    Some(match name {
        "signature" => ingress(Harness::signature),
        "body" => ingress(Harness::body),
        "fields" => ingress(Harness::fields),
        "query" => ingress(Harness::query),
        "lpa" => Box::new(lpa),
        "qr" => ingress(Harness::qr),
        "provider" => provider("usimsa", &["9000", "9001", "9005"]),
        "airalo" => provider("airalo", &["11", "33", "34", "422"]),
        "esim-access" => provider("esim-access", &ESIM_ACCESS_REJECTS),
        "callback" => callback(),
        "endpoint" => endpoint(),
        "url" => Box::new(url),
        _ => return None,
    })
}

fn ingress(rule: fn(&Harness, &[u8])) -> Target {
    let ingress = Harness::default();
    Box::new(move |data| rule(&ingress, data))
}

/// An activation code is the same when it is read again.
fn lpa(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else {
        return;
    };
    if let Ok(code) = ActivationCode::parse(text) {
        let again = ActivationCode::parse(&code.download_link());
        assert!(again.is_ok_and(|again| again == code));
        assert!(
            ActivationCode::new(code.smdp(), code.matching_id()).is_ok_and(|again| again == code)
        );
    }
    if let Ok(iccid) = Iccid::parse(text) {
        // A trailing `F` is padding, and blanks may stand around the number.
        assert!((18..=20).contains(&iccid.as_str().len()) && text.contains(iccid.as_str()));
        assert!(Iccid::parse(iccid.as_str()).is_ok_and(|again| again == iccid));
    }
}

/// The codes by which eSIM Access rejects a purchase.
const ESIM_ACCESS_REJECTS: [&str; 6] = ["200005", "200006", "200007", "200011", "310241", "310243"];

/// The adapter of the provider `name`, whose account is at `base`.
fn account(name: &str, base: &str) -> Arc<dyn Provider> {
    let limits = CallLimits {
        timeout: Duration::from_secs(5),
        response_max: 64 * 1024,
    };
    // A key that each of them reads, also as Base64.
    let accounts = Accounts::default()
        .with(name, "URL", base)
        .with(name, "ACCESS_KEY", "key")
        .with(name, "SECRET_KEY", "c2VjcmV0LWtleQ==");
    let connected = accounts.connect(name, PacedCalls::without_rate(limits));
    connected.expect("a client").provider
}

/// Without a provider for TLS no client is built.
fn install_tls() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// No response is taken for a request that was not sent, and only the `rejects` for a rejection.
/// What is said of it is short and clean. This holds for the purchase, the look-ups, and the lists.
fn provider(name: &'static str, rejects: &'static [&'static str]) -> Target {
    install_tls();
    let server = Replayed::start();
    let connected = Mutex::new(account(name, &server.url));
    let purchase = Purchase {
        placement_id: PlacementId::new(),
        items: vec![("option".into(), 1)],
        send_by: runtime::clock::Moment::now() + Duration::from_hours(24),
    };
    let look_up = ["", "7"].map(|reference| LookUpRequest {
        placement_id: purchase.placement_id,
        reference: ProviderId::parse(reference.to_owned()).ok(),
        attempt_age: Duration::ZERO,
        options: Vec::new(),
        arrives_within: Duration::from_mins(1),
    });
    Box::new(move |data| {
        server.send(data);
        let provider = Arc::clone(&connected.lock().unwrap_or_else(PoisonError::into_inner));
        let status = data.strip_prefix(b"HTTP/").and_then(|rest| rest.get(4..7));
        let is_ok =
            status.is_none_or(|status| status.starts_with(b"2") || status.starts_with(b"1"));
        let mut denied = false;
        match server.tokio.block_on(provider.purchase(&purchase)) {
            Ok(PurchaseResponse::Bought(bought)) => check_units(&bought.units),
            Ok(PurchaseResponse::Rejected { status, message }) => {
                assert!(
                    (is_ok || status == "422" || status.len() == 2)
                        && rejects.contains(&&status[..])
                );
                check_line(&message);
            }
            Err(trouble) => {
                denied = matches!(trouble, Trouble::Denied(_));
                check_trouble(&trouble);
            }
        }
        for look_up in &look_up {
            match server.tokio.block_on(provider.look_up(look_up)) {
                Ok(LookUpResponse::Found(bought)) => check_units(&bought.units),
                Ok(LookUpResponse::NotFound) => assert!(is_ok),
                Err(trouble) => check_trouble(&trouble),
            }
        }
        check_lists(&server, &*provider);
        if denied {
            // A token that was denied is replaced after a while only, and until then nothing is
            // sent.
            *connected.lock().unwrap_or_else(PoisonError::into_inner) = account(name, &server.url);
        }
    })
}

/// A product has good standard fields or a reason why not, and an entry of a list is short and
/// clean.
fn check_lists(server: &Replayed, account: &dyn Provider) {
    let can = account.capabilities();
    if can.catalogue {
        match server.tokio.block_on(account.products(1)) {
            Ok(listed) => {
                assert!(listed.next.is_none_or(|next| next == 2));
                for offer in listed.entries {
                    assert!(
                        offer.name.chars().count() <= 200 && !offer.name.contains(char::is_control)
                    );
                    if let Ok(standard) = offer.standard {
                        assert!(offer.product.is_some() && standard.cost.is_some());
                        assert!(!standard.countries.is_empty() && standard.days > 0);
                    }
                }
            }
            Err(trouble) => check_trouble(&trouble),
        }
    }
    if can.purchases {
        let until = runtime::clock::now();
        let since = until - Duration::from_hours(1);
        match server
            .tokio
            .block_on(account.purchases(PurchasePeriod { since, until }, 1))
        {
            Ok(listed) => {
                for sold in listed.entries {
                    assert!(sold.order_id.chars().count() <= 200 && sold.units > 0);
                    assert!(!sold.order_id.contains(char::is_control));
                }
            }
            Err(trouble) => check_trouble(&trouble),
        }
    }
    if can.balance
        && let Err(trouble) = server.tokio.block_on(account.balance())
    {
        check_trouble(&trouble);
    }
}

fn check_units(units: &[ProviderUnit]) {
    for unit in units {
        check_line(unit.unit_id.as_str());
        assert!(unit.unit_id.as_str().is_ascii());
        if let ProviderUnitState::Ready(profile) = &unit.state {
            assert_eq!(profile.expired_date.len(), 10);
            assert!(ActivationCode::parse(&profile.code.download_link()).is_ok());
        }
    }
}

fn check_trouble(trouble: &Trouble) {
    assert!(!matches!(trouble, Trouble::NotSent(_)), "{trouble:?}");
    check_line(trouble.reason());
}

fn check_line(text: &str) {
    assert!(
        text.len() <= 400 && !text.contains(char::is_control),
        "{text:?}"
    );
}

/// A callback names one clean unit, or nothing.
fn callback() -> Target {
    let account = account("usimsa", "http://127.0.0.1:9/");
    Box::new(move |data| {
        let callback = CallbackRequest {
            query: None,
            headers: &HeaderMap::new(),
            body: data,
        };
        if let Ok(Hint::Unit(unit)) = account.read_callback(callback) {
            check_line(unit.as_str());
        }
    })
}

/// The response of a partner's endpoint: a status, at most 1 KiB of the body, a bounded wait.
fn endpoint() -> Target {
    install_tls();
    let server = Replayed::start();
    let guard = Guard::new(
        Networks::parse("127.0.0.0/8").expect("a network"),
        Networks::default(),
        Ports::default(),
    );
    let limits = client::ClientLimits {
        timeout: Duration::from_secs(5),
        head_max: 16 * 1024,
        idle: 4,
        oldest: Duration::from_mins(1),
    };
    let sender = {
        let _entered = server.tokio.enter();
        WebhookSender::new(guard, &NameServers::default(), &limits).expect("a sender")
    };
    let schedule = Schedule::parse("5s,5m,30m").expect("a schedule");
    let url: url::Url = server.url.parse().expect("a URL");
    Box::new(move |data| {
        server.send(data);
        let now = runtime::clock::now();
        let post = sender.post(url.clone(), HeaderMap::new(), b"{}".to_vec(), now);
        let Ok(answer) = server.tokio.block_on(post) else {
            return;
        };
        assert!((100..1000).contains(&answer.status) && answer.beginning.len() <= 1024);
        match schedule.retry_in(0, Some(&answer), 0.5) {
            Some(wait) => assert!((4..=24 * 3600 + 60).contains(&wait.as_secs())),
            None => assert_eq!(answer.status, 410),
        }
    })
}

/// A webhook URL that passes names no address that is not public.
fn url(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else {
        return;
    };
    let _ = Networks::parse(text);
    let _ = Ports::parse(text);
    let Ok(url) = text.parse::<WebhookUrl>() else {
        return;
    };
    assert_eq!(url.as_str(), text);
    let url = url.parsed().expect("it was parsed before");
    assert!(
        matches!(url.scheme(), "http" | "https")
            && url.username().is_empty()
            && url.password().is_none()
    );
    let passes = Guard::default().check_url(&url).is_ok();
    let is_ours = match url.host() {
        Some(url::Host::Ipv4(address)) => {
            address.is_private()
                || address.is_loopback()
                || address.is_link_local()
                || address.is_unspecified()
        }
        Some(url::Host::Ipv6(address)) => {
            address.is_loopback() || address.is_unspecified() || address.to_ipv4_mapped().is_some()
        }
        _ => false,
    };
    assert!(!(passes && is_ours), "{url}");
}
