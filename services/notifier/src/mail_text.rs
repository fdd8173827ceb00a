//! What the mail about a notice says. The same facts are in the body of a notice that goes to a
//! URL.
//!
//! Guarantee: a mail holds nothing that the partner could choose freely except the host of its own
//! endpoint, and the mail that verifies an address not even that. So nobody can use us to send
//! texts of their own to strangers.

use std::fmt::Write;

use domain::event::NoticeKind;
use store::deliveries::notices::NoticeContent;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use webhooks::event;

/// The longest host that is shown. A subject must stay short.
const LONGEST_HOST: usize = 80;
/// The width at which the advice is wrapped. Longer lines would have to be encoded.
const WIDTH: usize = 72;

/// The subject of the mail about a notice.
pub fn subject(kind: NoticeKind, notice: &NoticeContent) -> String {
    let endpoint = match host(notice) {
        Some(host) => format!("Your webhook endpoint {host}"),
        None => "Your webhook endpoint".to_owned(),
    };
    match kind {
        NoticeKind::Verify => "Your code for notices about webhooks".into(),
        NoticeKind::EndpointFailing => format!("{endpoint} is failing"),
        NoticeKind::EndpointBlocked => format!("{endpoint} is blocked"),
        NoticeKind::EndpointRecovered => format!("{endpoint} works again"),
        NoticeKind::WebhookExhausted => format!("{endpoint} has missed a webhook"),
        NoticeKind::KeysExpire => match notice.credential.as_deref() {
            Some("webhook_secret") => "Your old webhook secret ends soon".into(),
            _ => "Your old keys end soon".into(),
        },
        NoticeKind::SourceAddresses => "The addresses of our webhooks change".into(),
    }
}

/// The host of the endpoint, unless it has characters that do not belong into a subject.
fn host(notice: &NoticeContent) -> Option<&str> {
    let usual = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]_".contains(&byte);
    let host = notice.host.as_deref()?;
    (host.len() <= LONGEST_HOST && host.bytes().all(usual)).then_some(host)
}

/// The text of the mail about a notice. `environment` is that of the account, `live` or `sandbox`.
pub fn text(kind: NoticeKind, notice: &NoticeContent, environment: &str) -> String {
    let mut text = format!("{}.\n", subject(kind, notice));
    let mut facts = String::new();
    let mut fact = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = writeln!(facts, "  {name}: {value}");
        }
    };
    fact("code", notice.code.clone());
    fact("endpoint", notice.endpoint_id.map(|id| id.to_string()));
    fact("failing since", notice.since.and_then(time));
    fact(
        "failed attempts in a row",
        notice.failures.map(|failures| failures.to_string()),
    );
    let status = notice.status.map(|status| format!(" (status {status})"));
    let outcome = notice.outcome.as_ref();
    fact(
        "last failure",
        outcome.map(|outcome| format!("{outcome}{}", status.unwrap_or_default())),
    );
    fact("webhook-id", notice.webhook_id.clone());
    fact("what ends", notice.credential.clone());
    fact("ends at", notice.ends_at.and_then(time));
    for address in notice.addresses.iter().flatten() {
        fact("address", Some(address.clone()));
    }
    if !facts.is_empty() {
        let _ = write!(text, "\n{facts}");
    }
    text.push('\n');
    wrap(event::advice(kind), &mut text);
    text.push('\n');
    let reason = if kind == NoticeKind::Verify {
        format!(
            "Somebody with the keys of a {environment} account has named this address for notices \
             about its webhooks."
        )
    } else {
        format!(
            "This address is set for notices about the webhooks of your {environment} account. \
             DELETE /notices, or esim-partner notices remove, ends them."
        )
    };
    wrap(&reason, &mut text);
    text
}

fn time(at: OffsetDateTime) -> Option<String> {
    at.replace_nanosecond(0).ok()?.format(&Rfc3339).ok()
}

/// Appends the words of a text in lines of at most [`WIDTH`] characters.
fn wrap(words: &str, to: &mut String) {
    let mut width = 0;
    for word in words.split_whitespace() {
        if width > 0 && width + 1 + word.len() > WIDTH {
            to.push('\n');
            width = 0;
        } else if width > 0 {
            to.push(' ');
            width += 1;
        }
        to.push_str(word);
        width += word.len();
    }
    to.push('\n');
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn a_mail_says_which_endpoint_fails_since_when_and_why() {
        let notice = NoticeContent {
            host: Some("shop.example.com".into()),
            since: Some(datetime!(2026-11-24 06:00:00.5 UTC)),
            failures: Some(20),
            outcome: Some("status_5xx".into()),
            status: Some(503),
            ..NoticeContent::default()
        };
        let kind = NoticeKind::EndpointBlocked;
        assert_eq!(
            subject(kind, &notice),
            "Your webhook endpoint shop.example.com is blocked"
        );
        let text = text(kind, &notice, "live");
        for part in [
            "failing since: 2026-11-24T06:00:00Z\n",
            "failed attempts in a row: 20\n",
            "last failure: status_5xx (status 503)\n",
            "your live account",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn each_mail_is_plain_text_in_short_lines() {
        let notice = NoticeContent {
            host: Some("evil\r\nBcc: a@b.example".into()),
            code: Some("7KQM-2XWB-9TRA".into()),
            addresses: Some(vec!["2001:db8::/48".into()]),
            ..NoticeContent::default()
        };
        for &kind in NoticeKind::ALL {
            let subject = subject(kind, &notice);
            assert!(
                !subject.contains(['\r', '\n']) && subject.len() < 120,
                "{subject}"
            );
            let text = text(kind, &notice, "sandbox");
            let lines = text.lines().all(|line| line.len() <= WIDTH);
            assert!(lines && text.is_ascii() && !text.contains("Bcc"), "{text}");
        }
        assert!(text(NoticeKind::Verify, &notice, "live").contains("code: 7KQM-2XWB-9TRA\n"));
    }
}
