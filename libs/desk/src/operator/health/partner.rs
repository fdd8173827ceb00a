//! What concerns one partner: the findings about it and about all, with its own counts; its orders
//! that wait for a provider; and for each a text that may be sent to it.
//!
//! A text is in UTC and names no provider, no other partner, and nothing of our insides.

use accounts::partners::keys::EndedKey;
use domain::{OrderId, PartnerId};
use pg::{Result, count};
use sqlx::PgConnection;
use store::{Unflushed, work::WorkKind};
use time::OffsetDateTime;

use super::{
    HealthReport,
    finding::{FailureKind, Finding, FindingKind, Severity},
    phrases::{key_named, named},
    stages::Stage,
    waiting::{SANDBOX, WaitingQueue},
};
use crate::operator::{minute::minute, partners_lately, words::counted};

/// The oldest purchases of a partner that are looked at.
const MOST: i64 = 1_000;

/// Orders of a partner that have waited for a provider for longer than a minute.
#[derive(Clone, Debug)]
pub struct WaitingOrders {
    pub provider: String,
    pub number: u64,
    /// When the oldest of them was stored.
    pub since: OffsetDateTime,
    /// The oldest of them, with their external ids.
    pub oldest: Vec<(OrderId, String)>,
}

/// Reads which orders of a partner wait for which provider.
pub async fn waiting(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    now: OffsetDateTime,
) -> Result<Unflushed<Vec<WaitingOrders>>> {
    let query = sqlx::query!(
        r#"SELECT mine.provider, count(*) AS "number!", min(o.created_at) AS "since!",
                  (array_agg(o.order_id ORDER BY o.order_id))[:5] AS "ids!",
                  (array_agg(o.external_order_id ORDER BY o.order_id))[:5] AS "names!"
           FROM (SELECT DISTINCT oldest.provider, p.order_id
                 FROM (SELECT id, provider FROM work
                       WHERE kind = ANY ($4) AND id < $2 AND partner_id = $1
                       ORDER BY id LIMIT $3) oldest
                 JOIN placements p ON p.placement_id = oldest.id) mine
           JOIN orders o ON o.order_id = mine.order_id
           GROUP BY 1 ORDER BY 3"#,
        partner_id.uuid(),
        partners_lately::late(now),
        MOST,
        &WorkKind::names(&[&WorkKind::PLACEMENTS]) as &[&str],
    );
    let rows = query.fetch_all(connection).await?.into_iter();
    let all = rows.map(|row| WaitingOrders {
        provider: row.provider,
        number: count(row.number),
        since: row.since,
        oldest: row
            .ids
            .into_iter()
            .map(OrderId::from)
            .zip(row.names)
            .collect(),
    });
    Ok(Unflushed::of(all.collect()))
}

impl WaitingOrders {
    pub fn severity(&self, now: OffsetDateTime) -> Severity {
        partners_lately::severity(self.provider != SANDBOX, self.since, now)
    }

    /// A text for the partner.
    pub fn for_partner(&self) -> String {
        let names: Vec<&str> = self.oldest.iter().map(|(_, name)| name.as_str()).collect();
        format!(
            "{} longer than usual{} {}. {STORED}",
            counted(self.number, "of your orders takes", "of your orders take"),
            if usize::try_from(self.number) == Ok(names.len()) {
                ":"
            } else {
                ", among them"
            },
            names.join(", "),
        )
    }
}

impl HealthReport {
    /// What keeps back all partners with real orders, or all test partners, the gravest first.
    pub fn of_all(&self, is_live: bool) -> impl Iterator<Item = &Finding> {
        let all = self.findings.iter();
        all.filter(move |one| one.kind.keeps_back(is_live))
    }

    /// What concerns a partner of which these orders wait. All counts are its own, and what keeps
    /// nothing of it waiting is left out.
    pub fn of_partner(
        &self,
        partner: PartnerId,
        is_live: bool,
        orders: &[WaitingOrders],
    ) -> Vec<Finding> {
        let age = |since: OffsetDateTime| (self.at - since).as_seconds_f64();
        let bought = orders.iter().fold((0, 0.0), |(number, oldest), one| {
            (number + one.number, f64::max(oldest, age(one.since)))
        });
        let queues = self.waiting.queues.iter().filter(|(queue, _)| {
            matches!(queue, WaitingQueue::Endpoint { partner_id, .. } if *partner_id == partner.uuid())
        });
        let sent = queues.fold((0, 0.0), |(number, oldest), (_, backlog)| {
            (number + backlog.waiting(), f64::max(oldest, backlog.oldest))
        });
        let own = self
            .findings
            .iter()
            .filter_map(|one| one.of(partner, is_live));
        let cut = own.filter_map(|mut one| {
            match &mut one.kind {
                FindingKind::StageDead {
                    stage,
                    waiting,
                    oldest,
                    ..
                } => {
                    (*waiting, *oldest) = match stage {
                        Stage::Ingress => (0, 0.0),
                        Stage::Provisioner => bought,
                        Stage::Notifier => sent,
                    };
                }
                // Its orders that wait are told by themselves.
                FindingKind::PurchasesLate { .. } => return None,
                FindingKind::WebhooksLate { .. } if sent.0 == 0 => return None,
                FindingKind::WebhooksLate {
                    waiting, oldest, ..
                } => (*waiting, *oldest) = sent,
                FindingKind::LanesHeldBack { provider, .. }
                    if orders.iter().all(|one| one.provider != *provider) =>
                {
                    return None;
                }
                _ => {}
            }
            Some(one)
        });
        cut.collect()
    }
}

const STORED: &str =
    "They are stored and go on by themselves; please do not order again under another id.";
const REPEAT: &str =
    "Please send them again later with the same order id: nothing is bought twice.";

/// What a partner is told of requests that fail; `failed` is their number, if they are its own.
fn requests_fail(how: FailureKind, failed: Option<u64>, ended_keys: &[EndedKey]) -> String {
    let them = match failed {
        Some(failed) => counted(failed, "of your requests was", "of your requests were"),
        None => "some requests were".to_owned(),
    };
    let why = match how {
        FailureKind::Denied if failed.is_some() && !ended_keys.is_empty() => {
            let keys = ended_keys.iter().map(|key| {
                let ended = minute(key.ended_at);
                format!("your {}, which ended at {ended}", key_named(key))
            });
            let keys: Vec<String> = keys.collect();
            return format!(
                "{them} answered with status 401, and use {}. Please give these programs a valid key.",
                keys.join("; ")
            );
        }
        FailureKind::Denied => {
            "answered with status 401. Please compare your access key, your secret and your clock."
        }
        FailureKind::Limited => {
            "answered with status 429. Please send them again, more slowly, or ask us for a higher limit."
        }
        FailureKind::Refused => {
            "answered with status 422, because our supplier did not sell what they ask for. Nothing \
             was bought for them."
        }
        FailureKind::Errors | FailureKind::Invalid => {
            "refused with a 4xx. The code in each answer says why."
        }
    };
    format!("{them} {why}")
}

impl Finding {
    /// A text for the partner, if there is something that it should know.
    pub fn for_partner(&self) -> Option<String> {
        let text = match &self.kind {
            FindingKind::StageDead { stage: Stage::Ingress, .. }
            | FindingKind::DatabaseDown { .. }
            | FindingKind::OnStandby
            | FindingKind::StandbyMissing
            | FindingKind::NotSynchronous
            | FindingKind::OrdersFail { how: FailureKind::Errors, .. } => format!(
                "new orders get an error from us, because of a fault on our side that we are mending. {REPEAT}"
            ),
            FindingKind::StageDead { stage: Stage::Provisioner, .. }
            | FindingKind::CommitsLost { .. }
            | FindingKind::BreakerOpen { .. }
            | FindingKind::PurchasesLate { .. }
            | FindingKind::LanesHeldBack { .. } => {
                format!("some orders take longer than usual. {STORED}")
            }
            FindingKind::StageDead { stage: Stage::Notifier, .. }
            | FindingKind::WebhooksLate { .. } => {
                "our webhooks are delayed, because of a fault on our side. They are sent by themselves; \
                 until then you can ask for an order by its id."
                    .to_owned()
            }
            FindingKind::Slow { .. } => {
                "orders take longer than they should. Nothing of them is lost.".to_owned()
            }
            FindingKind::Parked { purchases, .. } => {
                let names: Vec<String> =
                    purchases.iter().map(|one| one.external_order_id.clone()).collect();
                format!(
                    "we find out with our supplier what became of {}: {}. {STORED}",
                    counted(names.len(), "order", "orders"),
                    named(&names)
                )
            }
            FindingKind::GiveBacksParked { changes, .. } => format!(
                "we find out with our supplier whether it takes back {} of yours. We tell you the outcome.",
                counted(changes.len(), "eSIM", "eSIMs")
            ),
            FindingKind::ExtensionsParked { changes, .. } => format!(
                "we find out with our supplier whether it has extended {} of yours. We tell you the outcome.",
                counted(changes.len(), "eSIM", "eSIMs")
            ),
            FindingKind::OrdersFail { partner: Some(_), failed, leading: Some(code), .. }
                if code.is_of_balance() =>
            {
                let orders = counted(*failed, "order was", "orders were");
                format!(
                    "{orders} refused with `balance_insufficient`: they cost more than you have left. Nothing was bought for \
                     them; send them again when you have paid, or ask us for more credit."
                )
            }
            FindingKind::OrdersFail { how, partner, failed, ended_keys, .. } => {
                requests_fail(*how, partner.map(|_| *failed), ended_keys)
            }
            FindingKind::BalanceRunsOut(one) => format!(
                "you have {} left to order for, and have spent {} in the last 24 hours. Once nothing is left, orders get \
                 `balance_insufficient` and buy nothing, until you pay.",
                one.available, one.spent
            ),
            FindingKind::NoAddress { webhooks, .. } => format!(
                "{} for you, because you have set no URL for them. Once you set it, they are sent by themselves.",
                counted(*webhooks, "webhook waits", "webhooks wait"),
            ),
            FindingKind::Exhausted { endpoint } => format!(
                "{} to {} could not be delivered, although we tried again for days. Once your server takes webhooks \
                 again, you can have them sent again, or we do it when you tell us.",
                counted(endpoint.exhausted, "webhook", "webhooks"),
                endpoint.host()
            ),
            FindingKind::Paused { endpoint } => format!(
                "your endpoint {} is paused, and {} for it. None is lost: they are sent when the pause ends.",
                endpoint.host(),
                counted(endpoint.pending, "webhook waits", "webhooks wait")
            ),
            FindingKind::Blocked { endpoint } => format!(
                "your endpoint {} has not taken our webhooks, {} in a row. We test it every few minutes, and send \
                 what waits as soon as it answers with a 2xx.",
                endpoint.host(),
                counted(endpoint.failures, "time", "times")
            ),
            _ => return None,
        };
        let mut letters = text.chars();
        let first = letters.next()?.to_uppercase();
        Some(match self.since {
            Some(since) => format!("Since {}, {text}", minute(since)),
            None => format!("{first}{}", letters.as_str()),
        })
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use crate::operator::health::samples::samples;

    #[test]
    fn a_text_for_a_partner_names_no_provider_and_nothing_of_our_insides() {
        let ours = [
            "usimsa",
            "sandbox",
            "Acme",
            "PostgreSQL",
            "NATS",
            "ingress",
            "provisioner",
            "notifier",
            "esimctl",
        ];
        let texts = samples(datetime!(2026-11-28 12:00 UTC)).into_iter();
        let texts: Vec<String> = texts.filter_map(|one| one.for_partner()).collect();
        assert!(texts.len() > 20, "{texts:?}");
        for text in texts {
            assert!(ours.iter().all(|one| !text.contains(one)), "{text}");
            assert!(
                text.starts_with(char::is_uppercase) && text.ends_with('.'),
                "{text}"
            );
        }
    }
}
