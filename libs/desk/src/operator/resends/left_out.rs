//! Which webhooks a filter that finds nothing leaves out, and what leaves them out: its time, its
//! state, or that they are notices, which nobody sends again.

use std::collections::BTreeMap;

use accounts::partners;
use domain::{PartnerId, standing::DeliveryState};
use pg::{Result, rfc3339};
use serde::Serialize;
use sqlx::PgConnection;
use store::deliveries::{
    resends::{MatchCount, ResendSelection, count_matching},
    walk::{Matching, Walk, WalkOrder, WalkRow, WalkSource},
};
use time::OffsetDateTime;

use super::UnmatchedWebhooks;
use crate::operator::words::noun;

/// The most given-up webhooks that are looked at for all partners together.
const LOOKED_AT: usize = 2_000;

/// Webhooks of one partner that a filter leaves out for one cause.
#[derive(Clone, Debug, Serialize)]
pub struct LeftOut {
    pub partner_id: PartnerId,
    pub name: String,
    pub webhooks: MatchCount,
    #[serde(flatten)]
    pub cause: LeftOutCause,
}

/// What leaves webhooks out.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum LeftOutCause {
    /// They were given up, and their last attempts are not in the time of the filter.
    Time {
        #[serde(with = "time::serde::rfc3339")]
        oldest: OffsetDateTime,
        #[serde(with = "time::serde::rfc3339")]
        newest: OffsetDateTime,
    },
    /// They were given up, and the filter asks for delivered ones.
    GivenUp,
    /// They were delivered, and the filter asks for others.
    Delivered,
    /// They are notices of this kind, which are of no use once they are old.
    Notice { kind: String },
}

impl LeftOut {
    /// The whole in one line.
    pub fn told(&self) -> String {
        let Self { name, webhooks, .. } = self;
        let least = if webhooks.all { "" } else { "at least " };
        let number = webhooks.number;
        let them = noun(number, "webhook", "webhooks");
        let is = noun(number, "is", "are");
        let was = noun(number, "was", "were");
        match &self.cause {
            LeftOutCause::Time { oldest, newest } if oldest == newest => format!(
                "{name}: {least}{number} given-up {them} {was} tried last at {}, which the time of this filter leaves out",
                rfc3339(*newest)
            ),
            LeftOutCause::Time { oldest, newest } => format!(
                "{name}: {least}{number} given-up {them} {was} tried last between {} and {}, which the time of this filter \
                 leaves out",
                rfc3339(*oldest),
                rfc3339(*newest)
            ),
            LeftOutCause::GivenUp => format!(
                "{name}: {least}{number} {them} of this time {was} given up, and the filter asks for delivered ones"
            ),
            LeftOutCause::Delivered => format!(
                "{name}: {least}{number} {them} of this time {was} delivered, and the filter asks for others"
            ),
            LeftOutCause::Notice { kind } => format!(
                "{name}: {least}{number} given-up {them} {is} of the event {kind}, which is a notice and is never sent again"
            ),
        }
    }
}

/// What a filter without a match leaves out: of the partner that it names, or of those that have
/// webhooks that wait or were given up.
pub(super) async fn read(
    connection: &mut PgConnection,
    partner: Option<PartnerId>,
    waiting: &[UnmatchedWebhooks],
    wanted: &ResendSelection,
) -> Result<Vec<LeftOut>> {
    let now = sqlx::query_scalar!(r#"SELECT now() AS "now!""#);
    let now = now.fetch_one(&mut *connection).await?;
    let until = wanted.until.map_or(now, |until| until.min(now));
    let mut given_up: Vec<(PartnerId, &str)> = Vec::new();
    for one in waiting.iter().filter(|one| one.exhausted > 0) {
        let id = one.partner_id.into();
        if given_up.iter().all(|(known, _)| *known != id) {
            given_up.push((id, &one.name));
        }
    }
    let mut left_out = Vec::new();
    let mut budget = LOOKED_AT;
    for (id, name) in given_up {
        if budget == 0 {
            break;
        }
        let walk = Walk {
            partner_id: id,
            source: WalkSource::Exhausted,
            order: WalkOrder::NewestFirst,
            matching: Matching::default(),
            after: None,
        };
        let rows = walk.page(&mut *connection, budget).await?;
        let all = rows.len() < budget;
        budget -= rows.len();
        left_out.extend(
            sorted(rows, all, wanted, until)
                .into_iter()
                .map(|(cause, webhooks)| LeftOut {
                    partner_id: id,
                    name: name.to_owned(),
                    webhooks,
                    cause,
                }),
        );
    }
    if let (Some(id), true) = (partner, wanted.state != Some(DeliveryState::Delivered)) {
        let delivered = ResendSelection {
            state: Some(DeliveryState::Delivered),
            ..*wanted
        };
        let webhooks = count_matching(&mut *connection, id, &delivered, until, now).await?;
        if webhooks.number > 0 {
            let names = partners::names(connection, &[id.uuid()]).await?;
            left_out.push(LeftOut {
                partner_id: id,
                name: names.into_values().next().unwrap_or_default(),
                webhooks,
                cause: LeftOutCause::Delivered,
            });
        }
    }
    Ok(left_out)
}

/// Webhooks that were given up, by what leaves them out. `all` says whether these are all of the
/// partner.
fn sorted(
    rows: Vec<WalkRow>,
    all: bool,
    wanted: &ResendSelection,
    until: OffsetDateTime,
) -> Vec<(LeftOutCause, MatchCount)> {
    let mut notices: BTreeMap<String, i64> = BTreeMap::new();
    let mut outside: Vec<OffsetDateTime> = Vec::new();
    let mut given_up = 0;
    for row in rows {
        let (Some(kind), Some(created_at)) = (row.kind, row.created_at) else {
            continue;
        };
        let at = row.attempted_at.unwrap_or(created_at);
        if kind.starts_with("notice.") {
            *notices.entry(kind).or_default() += 1;
        } else if at < wanted.since || at >= until {
            outside.push(at);
        } else if wanted.state == Some(DeliveryState::Delivered) {
            given_up += 1;
        }
    }
    let counted = |number| MatchCount { number, all };
    let mut sorted = Vec::new();
    if given_up > 0 {
        sorted.push((LeftOutCause::GivenUp, counted(given_up)));
    }
    if let (Some(oldest), Some(newest)) = (outside.iter().min(), outside.iter().max()) {
        let number = i64::try_from(outside.len()).unwrap_or(i64::MAX);
        let cause = LeftOutCause::Time {
            oldest: *oldest,
            newest: *newest,
        };
        sorted.push((cause, counted(number)));
    }
    for (kind, number) in notices {
        sorted.push((LeftOutCause::Notice { kind }, counted(number)));
    }
    sorted
}
