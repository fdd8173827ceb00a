//! The story of an order: its state in one sentence, which support can paste to a partner, and its
//! timeline. `esimctl order show` and the console show both.

use std::iter;

use serde::Serialize;
use sqlx::PgConnection;
use time::{OffsetDateTime, macros::format_description};
use uuid::Uuid;

use super::orders::{OrderView, PlacementView, TopupView, TriedPair};
use crate::Result;

/// The most attempts of webhooks that a timeline holds; the newest ones.
pub const MOST_ATTEMPTS: i64 = 500;

/// What happened at a moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// The order was stored.
    Accepted,
    /// The order was answered with 422 or cancelled.
    Refused,
    /// An attempt of purchase was recorded, right before it was sent. Only the last one is stored.
    Attempted { placement_id: Uuid, attempt: i32 },
    /// A look-up found no purchase for the first time after that attempt.
    NotFound { placement_id: Uuid },
    /// The provider confirmed the purchase.
    Placed {
        placement_id: Uuid,
        provider: String,
    },
    /// The placement waits for an operator.
    Parked {
        placement_id: Uuid,
        reason: Option<String>,
    },
    /// The profile of a unit was stored.
    Ready { topup_id: String },
    /// An attempt to send a webhook.
    Webhook {
        topup_id: Option<String>,
        kind: String,
        /// The further endpoint that it went to; `None` is the first endpoint.
        endpoint_id: Option<Uuid>,
        /// From 1.
        attempt: i32,
        duration_ms: i32,
        /// The status of the response, if there was one.
        status: Option<i32>,
        /// The result in one word: `delivered`, `status_5xx`, `timeout`, …
        class: String,
    },
    /// What is still to come: the next work of a placement or of a webhook.
    Due {
        placement_id: Option<Uuid>,
        topup_id: Option<String>,
    },
    /// The order was erased.
    Erased,
}

/// A moment of the timeline.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Moment {
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    #[serde(flatten)]
    pub what: What,
}

/// The timeline of an order, oldest first.
pub async fn timeline(connection: &mut PgConnection, order: &OrderView) -> Result<Vec<Moment>> {
    let mut moments = vec![Moment {
        at: order.created_at,
        what: What::Accepted,
    }];
    let mut add = |at: Option<OffsetDateTime>, what: What| {
        moments.extend(at.map(|at| Moment { at, what }));
    };
    add(order.erased_at, What::Erased);
    let query = sqlx::query!(
        r#"SELECT p.placement_id, p.not_found_at, o.refused_at,
                  (SELECT at FROM held h WHERE h.id = p.placement_id) AS "parked_at?"
           FROM placements p JOIN orders o ON o.order_id = p.order_id WHERE p.order_id = $1"#,
        order.order_id,
    );
    let stored = query.fetch_all(&mut *connection).await?;
    add(stored.iter().find_map(|one| one.refused_at), What::Refused);
    for placement in &order.placements {
        let placement_id = placement.placement_id;
        let attempt = placement.attempt;
        add(
            placement.attempted_at,
            What::Attempted {
                placement_id,
                attempt,
            },
        );
        let provider = placement.provider.clone();
        add(
            placement.placed_at,
            What::Placed {
                placement_id,
                provider,
            },
        );
        let due = What::Due {
            placement_id: Some(placement_id),
            topup_id: None,
        };
        add(placement.due_at, due);
        let Some(one) = stored.iter().find(|one| one.placement_id == placement_id) else {
            continue;
        };
        add(one.not_found_at, What::NotFound { placement_id });
        let reason = placement.reason.clone();
        add(
            one.parked_at,
            What::Parked {
                placement_id,
                reason,
            },
        );
    }
    for topup in &order.topups {
        let topup_id = topup.topup_id.clone();
        add(
            topup.ready_at,
            What::Ready {
                topup_id: topup_id.clone(),
            },
        );
        let due = What::Due {
            placement_id: None,
            topup_id: Some(topup_id),
        };
        add(topup.delivery_due_at, due);
    }
    moments.extend(webhooks(connection, order).await?);
    moments.sort_by_key(|moment| moment.at);
    Ok(moments)
}

/// The attempts to send the webhooks of an order, the newest [`MOST_ATTEMPTS`].
async fn webhooks(connection: &mut PgConnection, order: &OrderView) -> Result<Vec<Moment>> {
    let topups: Vec<String> = order
        .topups
        .iter()
        .map(|one| one.topup_id.clone())
        .collect();
    // `ids` finds the deliveries about these topups: to first endpoints, to further ones, and the
    // events about failed ones, whose ids are derived from the topup. The last attempt of a delivered
    // topup is on the delivery's own row.
    let query = sqlx::query!(
        r#"WITH ids AS MATERIALIZED (
               SELECT delivery_id FROM esims WHERE topup_id = ANY ($1) AND delivery_id IS NOT NULL
               UNION SELECT delivery_id FROM further_deliveries WHERE topup_id = ANY ($1)
               UNION SELECT md5('topup.failed ' || topup)::uuid FROM unnest($1::text[]) topup
           ), attempts AS (
               SELECT d.topup_id, d.kind, d.endpoint_id, a.attempt, a.at, a.duration_ms, a.status, a.class
               FROM deliveries d JOIN delivery_attempts a ON a.delivery_id = d.delivery_id
               WHERE d.delivery_id = ANY (ARRAY (SELECT delivery_id FROM ids))
                 AND a.delivery_id = ANY (ARRAY (SELECT delivery_id FROM ids))
               UNION ALL
               SELECT topup_id, kind, endpoint_id, attempt - 1, attempted_at, coalesce(duration_ms, 0), status, 'delivered'
               FROM deliveries
               WHERE delivery_id = ANY (ARRAY (SELECT delivery_id FROM ids)) AND kind = 'topup.ready' AND state = 'delivered' AND attempted_at IS NOT NULL
           )
           SELECT topup_id, kind AS "kind!", endpoint_id, attempt AS "attempt!", at AS "at!",
                  duration_ms AS "duration_ms!", status, class AS "class!"
           FROM attempts ORDER BY at DESC LIMIT $2"#,
        &topups,
        MOST_ATTEMPTS,
    );
    let rows = query.fetch_all(connection).await?;
    let moments = rows.into_iter().map(|row| {
        let what = What::Webhook {
            topup_id: row.topup_id,
            kind: row.kind,
            endpoint_id: row.endpoint_id,
            attempt: row.attempt + 1,
            duration_ms: row.duration_ms,
            status: row.status,
            class: row.class,
        };
        Moment { at: row.at, what }
    });
    Ok(moments.collect())
}

/// A UTC time to the minute, such as `2025-01-29 12:34 UTC`.
fn minute(at: OffsetDateTime) -> String {
    let format = format_description!("[year]-[month]-[day] [hour]:[minute] UTC");
    let at = at.to_offset(time::UtcOffset::UTC);
    at.format(format).unwrap_or_else(|_| at.to_string())
}

/// How a unit stands, as a partner needs to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    Delivered,
    Sending,
    Failing,
    Exhausted,
    NoUrl,
    Waiting,
    OnHold,
    Returned,
    Failed,
}

fn standing(topup: &TopupView) -> Standing {
    match (topup.state.as_str(), topup.delivery.as_deref()) {
        ("ready", Some("delivered")) => Standing::Delivered,
        ("ready", Some("exhausted")) => Standing::Exhausted,
        ("ready", Some("no_endpoint")) => Standing::NoUrl,
        ("ready", _) if topup.delivery_attempts.unwrap_or_default() > 0 => Standing::Failing,
        ("ready", _) => Standing::Sending,
        ("returned", _) => Standing::Returned,
        ("failed", _) => Standing::Failed,
        ("parked", _) => Standing::OnHold,
        _ => Standing::Waiting,
    }
}

/// The state of an order in one sentence, without any credential, in words of the partner guide.
pub fn sentence(order: &OrderView) -> String {
    let head = format!(
        "Order {} of {}",
        order.external_order_id,
        minute(order.created_at)
    );
    if order.refused {
        return format!(
            "{head} was refused or cancelled: nothing of it was bought, and its external_order_id is free again."
        );
    }
    let mut groups: Vec<(Standing, Vec<&TopupView>)> = Vec::new();
    for topup in &order.topups {
        let standing = standing(topup);
        match groups.iter_mut().find(|(known, _)| *known == standing) {
            Some((_, of)) => of.push(topup),
            None => groups.push((standing, vec![topup])),
        }
    }
    groups.sort_by_key(|(standing, _)| *standing);
    let all = order.topups.len();
    let told = groups.iter().map(|(standing, of)| {
        let last = of.iter().filter_map(|one| one.delivered_at).max();
        let status = of.iter().find_map(|one| one.delivery_status);
        let error = of.iter().find_map(|one| one.delivery_error.as_deref());
        let next = of.iter().filter_map(|one| one.delivery_due_at).min();
        let response = match (status, error) {
            (Some(status), _) => format!("your endpoint last responded {status}"),
            (None, Some(error)) => format!("the last attempt failed: {error}"),
            (None, None) => "no attempt was acknowledged".to_owned(),
        };
        let (is, them) = if of.len() == 1 { ("is", "it") } else { ("are", "them") };
        let what = match standing {
            Standing::Delivered => {
                let at = last.map_or_else(String::new, |at| format!(", the last one at {}", minute(at)));
                format!("{is} ready and delivered to your endpoint{at}")
            }
            Standing::Sending => format!("{is} ready, and the webhook is being sent"),
            Standing::Failing => {
                let next = next.map_or_else(String::new, |at| format!("; the next attempt is at {}", minute(at)));
                format!("{is} ready, but the webhook did not arrive yet ({response}{next})")
            }
            Standing::Exhausted => format!(
                "{is} ready, but the webhook was not acknowledged in any of its attempts ({response}); you can look the eSIM up, or ask for the webhook again"
            ),
            Standing::NoUrl => format!("{is} ready and waits for a webhook URL in your account; you can look the eSIM up"),
            Standing::Waiting => format!("{is} being bought or prepared by the provider"),
            Standing::OnHold => format!("{is} on hold: we are clarifying the purchase with the provider"),
            Standing::Returned => format!("{is} given back to the provider, so that nobody can install {them}"),
            Standing::Failed => "could not be bought and will not be delivered".to_owned(),
        };
        format!("{} of {all} {what}", of.len())
    });
    let told: Vec<String> = told.collect();
    format!("{head}: {}.", told.join("; "))
}

/// Whether the placement waits for the purchase at a further provider. Its reason is then that of
/// the provider before, which [`route`] names.
pub fn is_rerouted(placement: &PlacementView) -> bool {
    let last = placement.tried.last();
    last.is_some_and(|tried| tried.attempt == placement.attempt)
}

/// The providers that have rejected a placement and those that may follow or may have it, with the
/// attempts of each. `None` if the placement has had one provider only and no other one matters.
pub fn route(placement: &PlacementView) -> Option<String> {
    // What is bought, failed or refused goes nowhere any more.
    let further = match placement.state.as_str() {
        "accepted" | "placing" => Some("if it is rejected there, it goes to"),
        "parked" => Some("it may be bought there, or at"),
        _ => None,
    };
    let further = further.filter(|_| !placement.alternatives.is_empty());
    if placement.tried.is_empty() && further.is_none() {
        return None;
    }
    let mut parts = Vec::new();
    let firsts = iter::once(1).chain(placement.tried.iter().map(|tried| tried.attempt + 1));
    let mut next = 1;
    for (tried, first) in placement.tried.iter().zip(firsts) {
        let TriedPair {
            provider,
            lane,
            attempt,
            reason,
            at,
            ..
        } = tried;
        let attempts = attempts(first, *attempt);
        parts.push(format!(
            "{attempts} at {provider} ({lane}), until {at}: {reason}"
        ));
        next = tried.attempt + 1;
    }
    parts.push(if placement.attempt >= next {
        let attempts = attempts(next, placement.attempt);
        format!("{attempts} at {} ({})", placement.provider, placement.lane)
    } else {
        format!("attempt {next} will be at {}", placement.provider)
    });
    if let Some(further) = further {
        let providers = placement.alternatives.join(", ");
        parts.push(format!("{further} {providers}"));
    }
    Some(parts.join("; "))
}

fn attempts(first: i32, last: i32) -> String {
    if first == last {
        format!("attempt {first}")
    } else {
        format!("attempts {first} to {last}")
    }
}

/// The give-back of a unit in words; `None` if its partner has not asked for it.
pub fn give_back(topup: &TopupView) -> Option<String> {
    let state = match topup.give_back.as_deref()? {
        "asked" | "sending" => "is under way",
        "returned" => "has ended: the provider has the eSIM back",
        "refused" => "was refused, so the eSIM stays with the partner",
        _ => "is parked: find out at the provider whether it has the eSIM back",
    };
    let asked = topup.give_back_asked_at.map_or_else(String::new, |at| {
        format!(", which was asked for at {}", minute(at))
    });
    let why = [&topup.give_back_reason, &topup.give_back_message];
    let why: Vec<&str> = why.into_iter().flatten().map(String::as_str).collect();
    let why = if why.is_empty() {
        String::new()
    } else {
        format!(" ({})", why.join(": "))
    };
    Some(format!("its give-back{asked}, {state}{why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(attempt: i32, tried: &[(&str, i32)], alternatives: &[&str]) -> PlacementView {
        let tried = tried.iter().map(|(provider, attempt)| TriedPair {
            provider: (*provider).to_owned(),
            lane: "JP".into(),
            attempt: *attempt,
            reason: "sold out".into(),
            options: [].into(),
            at: "2026-11-24T10:00:00Z".into(),
        });
        PlacementView {
            placement_id: Uuid::nil(),
            provider: "airalo".into(),
            state: "accepted".into(),
            attempt,
            reason: None,
            attempted_at: None,
            placed_at: None,
            lane: "jp".into(),
            provider_reference: None,
            tried: tried.collect(),
            alternatives: alternatives.iter().map(|name| (*name).to_owned()).collect(),
            due_at: None,
        }
    }

    #[test]
    fn each_attempt_is_shown_with_its_provider() {
        let shown = |attempt, tried, alternatives| route(&placement(attempt, tried, alternatives));
        assert_eq!(shown(1, &[], &[]), None);
        assert_eq!(
            shown(1, &[], &["usimsa"]).unwrap(),
            "attempt 1 at airalo (jp); if it is rejected there, it goes to usimsa"
        );
        let tried = [("sandbox", 2), ("usimsa", 3)];
        assert_eq!(
            shown(3, &tried, &[]).unwrap(),
            "attempts 1 to 2 at sandbox (JP), until 2026-11-24T10:00:00Z: sold out; attempt 3 at usimsa \
             (JP), until 2026-11-24T10:00:00Z: sold out; attempt 4 will be at airalo"
        );
        assert!(
            shown(5, &tried, &[])
                .unwrap()
                .ends_with("; attempts 4 to 5 at airalo (jp)")
        );
    }

    #[test]
    fn what_is_parked_may_be_at_each_provider_and_what_is_bought_goes_nowhere() {
        let mut placement = placement(1, &[], &["usimsa"]);
        placement.state = "parked".into();
        assert_eq!(
            route(&placement).unwrap(),
            "attempt 1 at airalo (jp); it may be bought there, or at usimsa"
        );
        placement.state = "placed".into();
        assert_eq!(route(&placement), None);
    }
}
