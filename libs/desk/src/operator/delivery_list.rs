//! The list of the webhooks of ready topups as operators filter it: by partner, state, option,
//! provider, endpoint and time, newest first, page by page.
//!
//! Neither states nor options, providers and times of attempts have an index, which would cost each
//! delivery a write. Those of one partner, and those that are exhausted or wait for a URL, stand
//! together ([`walk`](store::deliveries::walk)); all others are read by the time of readiness. They
//! are filtered here, in looks of a bounded number of rows, and a list that ends before its limit
//! names the place where it goes on.

use std::{collections::HashSet, fmt, str::FromStr};

use domain::{EndpointId, OptionId, PartnerId, standing::DeliveryState};
use pg::{Result, rfc3339};
use serde::{Serialize, Serializer};
use sqlx::PgConnection;
use store::deliveries::{
    View,
    resends::DeliveryFilter,
    view,
    walk::{Kinds, Matching, Walk, WalkOrder, WalkPosition, WalkRow, WalkSource},
};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use uuid::Uuid;

use super::looking::{ListLook, ListPatience};

/// Which deliveries of those that match a [`DeliveryFilter`] are listed; `None` matches all.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeliveryScope<'a> {
    /// Only webhooks of units of this option.
    pub option_id: Option<OptionId>,
    /// Only webhooks of units that this provider has sold.
    pub provider: Option<&'a str>,
    /// Only webhooks to this endpoint.
    pub endpoint_id: Option<EndpointId>,
    /// Only webhooks that did not get through, one [state](UNTAKEN) after the other. The state of
    /// the filter does not count then.
    pub untaken: bool,
}

/// The states of webhooks that did not get through, in the order of their list. Those under way are
/// among them if an attempt has failed.
const UNTAKEN: [DeliveryState; 3] = [
    DeliveryState::Exhausted,
    DeliveryState::NoEndpoint,
    DeliveryState::Pending,
];

/// The place where a list goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The state that is listed there, if the list has one state after the other.
    state: Option<DeliveryState>,
    /// The last row that was listed; `None` at the beginning of a state.
    position: Option<WalkPosition>,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(state) = self.state {
            write!(f, "{}_", <&str>::from(state))?;
        }
        match self.position {
            Some(last) => write!(f, "{}_{}", rfc3339(last.at), last.id),
            None => Ok(()),
        }
    }
}

impl Serialize for Cursor {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The text is not a cursor of a list.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the cursor must be one that a list has named")]
pub struct NoCursor;

impl FromStr for Cursor {
    type Err = NoCursor;

    fn from_str(text: &str) -> std::result::Result<Self, NoCursor> {
        let state = |name: &str| name.parse::<DeliveryState>().map_err(|_| NoCursor);
        let (place, id) = text.rsplit_once('_').ok_or(NoCursor)?;
        if id.is_empty() {
            return Ok(Self {
                state: Some(state(place)?),
                position: None,
            });
        }
        let (named, at) = match place.rsplit_once('_') {
            Some((named, at)) => (Some(state(named)?), at),
            None => (None, place),
        };
        let at = OffsetDateTime::parse(at, &Rfc3339).map_err(|_| NoCursor)?;
        let id = id.parse().map_err(|_| NoCursor)?;
        Ok(Self {
            state: named,
            position: Some(WalkPosition { at, id }),
        })
    }
}

/// A part of the list.
#[derive(Clone, Debug, Serialize)]
pub struct DeliveryListPage {
    pub deliveries: Vec<View>,
    /// The place behind which the list goes on; `None` at its end.
    pub next_cursor: Option<Cursor>,
    /// The time of the last row that was looked at, if the list ended there although fewer webhooks
    /// fit than were asked for and there are more.
    #[serde(skip)]
    pub reached: Option<OffsetDateTime>,
}

/// Lists at most `limit` deliveries that match, beginning behind `after`.
pub async fn list(
    connection: &mut PgConnection,
    filter: &DeliveryFilter,
    of: &DeliveryScope<'_>,
    after: Option<Cursor>,
    limit: usize,
    patience: ListPatience,
) -> Result<DeliveryListPage> {
    let mut looking = ListLook::new(patience, limit);
    if !of.untaken {
        return of_state(connection, filter, of, after, limit, &mut looking).await;
    }
    let state = after.and_then(|after| after.state);
    let rest = UNTAKEN.into_iter();
    let rest = rest.skip_while(|one| state.is_some_and(|state| state != *one));
    let mut rest = rest.peekable();
    let mut page = DeliveryListPage {
        deliveries: Vec::new(),
        next_cursor: None,
        reached: None,
    };
    while let Some(state) = rest.next() {
        let filter = DeliveryFilter {
            state: Some(state),
            ..*filter
        };
        let after = after.filter(|after| after.state == Some(state));
        let left = limit - page.deliveries.len();
        looking.next_part();
        let next = of_state(&mut *connection, &filter, of, after, left, &mut looking).await?;
        page.deliveries.extend(next.deliveries);
        page.reached = next.reached;
        page.next_cursor = next.next_cursor.map(|next| Cursor {
            state: Some(state),
            ..next
        });
        let is_full = page.deliveries.len() == limit;
        if page.next_cursor.is_none() && is_full {
            page.next_cursor = rest.peek().map(|state| Cursor {
                state: Some(*state),
                position: None,
            });
        }
        if page.next_cursor.is_some() || is_full {
            break;
        }
    }
    Ok(page)
}

/// A list of one state, or of all deliveries.
async fn of_state(
    connection: &mut PgConnection,
    filter: &DeliveryFilter,
    of: &DeliveryScope<'_>,
    after: Option<Cursor>,
    limit: usize,
    looking: &mut ListLook,
) -> Result<DeliveryListPage> {
    let matching = Matching {
        state: filter.state,
        since: filter.since,
        until: filter.until,
        kinds: Kinds::Topups,
    };
    let mut last = after.and_then(|cursor| cursor.position);
    let mut found: Vec<Uuid> = Vec::new();
    let mut has_more = true;
    while let Some(size) = looking.next() {
        let rows = look(connection, filter, &matching, last, size).await?;
        let ended = rows.len() < size;
        let is_untaken = |seen: &&WalkRow| {
            filter.state != Some(DeliveryState::Pending) || seen.attempted_at.is_some()
        };
        let ids = rows.iter().filter(|seen| matching.matches(seen));
        let ids = ids.filter(|seen| !of.untaken || is_untaken(seen));
        let ids: Vec<Uuid> = ids.map(|seen| seen.id).collect();
        let chosen = among(connection, &ids, of).await?;
        let seen = rows.len();
        let mut read = 0;
        for row in rows {
            if found.len() == limit {
                break;
            }
            read += 1;
            last = Some(row.position());
            if chosen.contains(&row.id) {
                found.push(row.id);
            }
        }
        has_more = !ended || read < seen;
        if !has_more || found.len() == limit {
            break;
        }
    }
    Ok(DeliveryListPage {
        deliveries: view::read(connection, &found).await?,
        reached: last
            .filter(|_| has_more && found.len() < limit)
            .map(|last| last.at),
        next_cursor: last.filter(|_| has_more).map(|position| Cursor {
            state: None,
            position: Some(position),
        }),
    })
}

/// The maximum number of rows that are counted for a tab. The statement names it, too, because the
/// planner takes an unknown limit for a tenth of the rows.
const COUNTED: i64 = 100;

/// How many webhooks of ready topups of all partners are exhausted or wait for a URL, and whether
/// that is all of them. A hundred rows are read at most.
pub async fn held_up(connection: &mut PgConnection, state: DeliveryState) -> Result<(i64, bool)> {
    let query = sqlx::query!(
        r#"SELECT count(*) AS "read!", count(*) FILTER (WHERE d.kind = 'topup.ready') AS "topups!"
           FROM (SELECT id FROM held WHERE state = $1 AND provider = '' ORDER BY at DESC LIMIT 100) h
           LEFT JOIN deliveries d ON d.delivery_id = h.id"#,
        <&str>::from(state),
    );
    let row = query.fetch_one(connection).await?;
    Ok((row.topups, row.read < COUNTED))
}

/// The next rows of the source that fits the filter.
async fn look(
    connection: &mut PgConnection,
    filter: &DeliveryFilter,
    matching: &Matching,
    last: Option<WalkPosition>,
    size: usize,
) -> Result<Vec<WalkRow>> {
    match (filter.partner_id, filter.state) {
        (Some(partner_id), state) => {
            of_partner(partner_id, state, matching, last)
                .page(connection, size)
                .await
        }
        (None, Some(state @ (DeliveryState::Exhausted | DeliveryState::NoEndpoint))) => {
            held(connection, state, matching, last, size).await
        }
        (None, Some(DeliveryState::Pending | DeliveryState::Delivered) | None) => {
            all(connection, matching, last, size).await
        }
    }
}

fn of_partner(
    partner_id: PartnerId,
    state: Option<DeliveryState>,
    matching: &Matching,
    after: Option<WalkPosition>,
) -> Walk {
    Walk {
        partner_id,
        source: WalkSource::of(state),
        order: WalkOrder::NewestFirst,
        matching: *matching,
        after,
    }
}

/// Deliveries of all partners that wait for somebody or for a URL, newest first.
async fn held(
    connection: &mut PgConnection,
    state: DeliveryState,
    matching: &Matching,
    last: Option<WalkPosition>,
    size: usize,
) -> Result<Vec<WalkRow>> {
    // It began to wait when its last attempt was recorded, so not before that attempt.
    let since = matching.since.unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let rows = sqlx::query_as!(
        WalkRow,
        r#"SELECT h.id, h.at, d.kind AS "kind?", d.state AS "state?", d.attempted_at, d.created_at AS "created_at?"
           FROM (SELECT id, at FROM held
                 WHERE state = $1 AND provider = '' AND at >= $5 AND at <= coalesce($2, 'infinity'::timestamptz)
                   AND (at < coalesce($2, 'infinity'::timestamptz) OR id < $3)
                 ORDER BY at DESC, id DESC LIMIT $4) h
           LEFT JOIN deliveries d ON d.delivery_id = h.id
           ORDER BY h.at DESC, h.id DESC"#,
        <&str>::from(state),
        last.map(|last| last.at),
        last.map_or(Uuid::nil(), |last| last.id),
        i64::try_from(size).unwrap_or(i64::MAX),
        since,
    );
    Ok(rows.fetch_all(connection).await?)
}

/// A look at the deliveries of all partners, newest first, after `last`.
async fn all(
    connection: &mut PgConnection,
    matching: &Matching,
    last: Option<WalkPosition>,
    size: usize,
) -> Result<Vec<WalkRow>> {
    let rows = sqlx::query_as!(
        WalkRow,
        r#"SELECT delivery_id AS id, created_at AS at, kind AS "kind?", state AS "state?", attempted_at,
                  created_at AS "created_at?"
           FROM deliveries
           WHERE kind = 'topup.ready'
             AND created_at >= $1 AND created_at <= coalesce($2, 'infinity'::timestamptz)
             AND (created_at < coalesce($2, 'infinity'::timestamptz) OR delivery_id < $3)
           ORDER BY created_at DESC, delivery_id DESC LIMIT $4"#,
        matching.reach(),
        last.map(|last| last.at).or(matching.until),
        last.map_or(Uuid::nil(), |last| last.id),
        i64::try_from(size).unwrap_or(i64::MAX),
    );
    Ok(rows.fetch_all(connection).await?)
}

/// Those of these deliveries that are of an option, a provider and an endpoint.
async fn among(
    connection: &mut PgConnection,
    ids: &[Uuid],
    of: &DeliveryScope<'_>,
) -> Result<HashSet<Uuid>> {
    if of.option_id.is_none() && of.provider.is_none() && of.endpoint_id.is_none() {
        return Ok(ids.iter().copied().collect());
    }
    let rows = sqlx::query_scalar!(
        "SELECT d.delivery_id
         FROM deliveries d
         LEFT JOIN topups t ON t.topup_id = d.topup_id
         LEFT JOIN placements p ON p.placement_id = t.placement_id
         WHERE d.delivery_id = ANY ($1)
           AND ($2::uuid IS NULL OR t.option_id = $2)
           AND ($3::text IS NULL OR p.provider = $3)
           AND ($4::uuid IS NULL OR coalesce(d.endpoint_id, d.partner_id) = $4)",
        ids,
        of.option_id.map(OptionId::uuid),
        of.provider,
        of.endpoint_id.map(EndpointId::uuid),
    );
    Ok(rows.fetch_all(connection).await?.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_is_written() {
        let last = WalkPosition {
            at: OffsetDateTime::UNIX_EPOCH,
            id: Uuid::from_u128(7),
        };
        for state in [None, Some(DeliveryState::NoEndpoint)] {
            for position in [Some(last), None] {
                let cursor = Cursor { state, position };
                if state.is_some() || position.is_some() {
                    assert_eq!(cursor.to_string().parse().ok(), Some(cursor), "{cursor}");
                }
            }
        }
        for text in [
            "",
            "_",
            "nothing_",
            "1970-01-01T00:00:00Z",
            "x_1970-01-01T00:00:00Z_7",
        ] {
            assert!(text.parse::<Cursor>().is_err(), "{text}");
        }
    }
}
