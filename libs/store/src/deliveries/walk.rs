//! Walks through a partner's deliveries, page by page: the one way in which lists and resends
//! find them.
//!
//! The state of a delivery has no index, because each delivery would have to write to it. But every
//! state has a table or an index in which its deliveries stand together ([`WalkSource`]). So a walk
//! reads about as many rows as it finds, however many deliveries the partner has had. It changes
//! nothing, and reads no rows of other partners.
//!
//! A walk goes on from a [`WalkPosition`], which is a time and an id. The row at the position may
//! be gone by then. Deliveries that change meanwhile may be missed or be found twice, because the
//! pages are separate statements.

use domain::{MaybeStored, PartnerId, standing::DeliveryState};
use pg::Result;
use sqlx::PgConnection;
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

/// How long before the range of a filter the creation of a delivery may be. A filter selects by the
/// time of the last attempt, but [`WalkSource::All`] is read by the time of creation. Retries end
/// after about 28 hours, so a week covers all deliveries except those that were sent again much
/// later.
const REACH: Duration = Duration::days(7);
/// The maximum number of rows of one page.
const LOOK: usize = 1_000;

/// Where the deliveries of a walk stand together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkSource {
    /// All deliveries of the partner, in the order of their creation.
    All,
    /// Those that wait for an attempt, in the order of their next attempts. They have due work, or
    /// are so young that the sweep has not passed them.
    Pending,
    /// Those whose retries have ended, except tests, in the order in which they ended.
    Exhausted,
    /// Those that wait for a URL, in the order in which they began to wait.
    NoEndpoint,
}

impl WalkSource {
    /// The source of the deliveries in a state; `None` stands for any state.
    pub fn of(state: Option<DeliveryState>) -> Self {
        match state {
            Some(DeliveryState::Pending) => Self::Pending,
            Some(DeliveryState::Exhausted) => Self::Exhausted,
            Some(DeliveryState::NoEndpoint) => Self::NoEndpoint,
            Some(DeliveryState::Delivered) | None => Self::All,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkOrder {
    NewestFirst,
    OldestFirst,
}

/// The place of a delivery in its [`WalkSource`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkPosition {
    pub at: OffsetDateTime,
    pub id: Uuid,
}

/// Which deliveries match, beside those of one partner.
#[derive(Clone, Copy, Debug, Default)]
pub struct Matching {
    pub state: Option<DeliveryState>,
    /// The range of the last attempt, or of the creation before the first one; the end is excluded.
    pub since: Option<OffsetDateTime>,
    pub until: Option<OffsetDateTime>,
    pub kinds: Kinds,
}

/// The kinds of deliveries that match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kinds {
    #[default]
    All,
    /// All but notices, which are of no use once they are old.
    WithoutNotices,
    /// The specified webhooks of ready topups only.
    Topups,
}

impl Kinds {
    fn matches(self, kind: Option<&str>) -> bool {
        match self {
            Self::All => true,
            Self::WithoutNotices => kind.is_none_or(|kind| !kind.starts_with("notice.")),
            Self::Topups => kind == Some("topup.ready"),
        }
    }
}

/// The columns that a filter compares, and the place of the row. The columns are `None` if the
/// delivery itself is gone.
pub struct WalkRow {
    pub id: Uuid,
    pub at: OffsetDateTime,
    pub kind: Option<String>,
    pub state: MaybeStored<DeliveryState>,
    pub attempted_at: Option<OffsetDateTime>,
    pub created_at: Option<OffsetDateTime>,
}

impl WalkRow {
    pub fn position(&self) -> WalkPosition {
        WalkPosition {
            at: self.at,
            id: self.id,
        }
    }
}

impl Matching {
    pub fn matches(&self, seen: &WalkRow) -> bool {
        let Some(created_at) = seen.created_at else {
            return false;
        };
        let at = seen
            .attempted_at
            .map_or(created_at, |attempted_at| attempted_at.max(created_at));
        self.kinds.matches(seen.kind.as_deref())
            && self.state.is_none_or(|_| self.state == seen.state.known())
            && self.since.is_none_or(|since| at >= since)
            && self.until.is_none_or(|until| at < until)
    }

    /// The earliest creation of a delivery that this filter can find.
    pub fn reach(&self) -> OffsetDateTime {
        let reach = self.since.and_then(|since| since.checked_sub(REACH));
        reach.unwrap_or(OffsetDateTime::UNIX_EPOCH)
    }
}

/// A walk that has come to a position.
#[derive(Clone, Copy, Debug)]
pub struct Walk {
    pub partner_id: PartnerId,
    pub source: WalkSource,
    /// [`WalkSource::Pending`] is always walked in the order of the next attempts.
    pub order: WalkOrder,
    pub matching: Matching,
    /// The position after which the next page begins.
    pub after: Option<WalkPosition>,
}

/// What a walk has found.
#[derive(Clone, Debug, Default)]
pub struct WalkResult {
    /// The matching deliveries, in the order of the walk.
    pub ids: Vec<Uuid>,
    /// Whether the end of the source was reached.
    pub ended: bool,
}

impl Walk {
    /// Goes on until `limit` deliveries match, or until it has seen `most` rows or the end of its
    /// source.
    pub async fn find(
        &mut self,
        connection: &mut PgConnection,
        limit: usize,
        most: usize,
    ) -> Result<WalkResult> {
        // A filter may leave out most rows, so each further look reads more of them.
        let mut at_once = limit.saturating_add(1).min(LOOK).min(most);
        let mut found = WalkResult::default();
        let mut looked_at = 0;
        while found.ids.len() < limit && looked_at < most {
            let page = self.page(connection, at_once).await?;
            let full = page.len() == at_once;
            looked_at += page.len();
            let mut rest = page.into_iter();
            for seen in rest.by_ref() {
                self.after = Some(seen.position());
                if self.matching.matches(&seen) {
                    found.ids.push(seen.id);
                    if found.ids.len() == limit {
                        break;
                    }
                }
            }
            if !full && rest.next().is_none() {
                found.ended = true;
                break;
            }
            at_once = (at_once * 4).min(LOOK).min(most);
        }
        Ok(found)
    }

    /// The next rows of the source, at most `limit`.
    pub async fn page(&self, connection: &mut PgConnection, limit: usize) -> Result<Vec<WalkRow>> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        match self.source {
            WalkSource::All => self.all(connection, limit).await,
            WalkSource::Pending => self.pending(connection, limit).await,
            WalkSource::Exhausted => self.held(connection, DeliveryState::Exhausted, limit).await,
            WalkSource::NoEndpoint => {
                self.held(connection, DeliveryState::NoEndpoint, limit)
                    .await
            }
        }
    }

    fn after_id(&self) -> Uuid {
        self.after.map_or(Uuid::nil(), |after| after.id)
    }

    async fn all(&self, connection: &mut PgConnection, limit: i64) -> Result<Vec<WalkRow>> {
        let partner = self.partner_id.uuid();
        let reach = self.matching.reach();
        let until = self.matching.until;
        let after = self.after.map(|after| after.at);
        Ok(match self.order {
            WalkOrder::NewestFirst => {
                sqlx::query_as!(
                    WalkRow,
                    r#"SELECT delivery_id AS id, created_at AS at, kind AS "kind?", state AS "state?", attempted_at,
                              created_at AS "created_at?"
                       FROM deliveries
                       WHERE partner_id = $1
                         AND created_at >= $2 AND created_at <= coalesce($3, 'infinity'::timestamptz)
                         AND (created_at < coalesce($3, 'infinity'::timestamptz) OR delivery_id < $4)
                       ORDER BY created_at DESC, delivery_id DESC LIMIT $5"#,
                    partner,
                    reach,
                    after.or(until),
                    self.after_id(),
                    limit,
                )
                .fetch_all(connection)
                .await?
            }
            WalkOrder::OldestFirst => {
                sqlx::query_as!(
                    WalkRow,
                    r#"SELECT delivery_id AS id, created_at AS at, kind AS "kind?", state AS "state?", attempted_at,
                              created_at AS "created_at?"
                       FROM deliveries
                       WHERE partner_id = $1
                         AND created_at >= $2 AND created_at < coalesce($3, 'infinity'::timestamptz)
                         AND (created_at > $2 OR delivery_id > $4)
                       ORDER BY created_at, delivery_id LIMIT $5"#,
                    partner,
                    after.unwrap_or(reach),
                    until,
                    self.after_id(),
                    limit,
                )
                .fetch_all(connection)
                .await?
            }
        })
    }

    /// `held.at` is the time at which the last attempt was recorded, so it is not before that
    /// attempt.
    async fn held(
        &self,
        connection: &mut PgConnection,
        state: DeliveryState,
        limit: i64,
    ) -> Result<Vec<WalkRow>> {
        let partner = self.partner_id.uuid();
        let since = self.matching.since.unwrap_or(OffsetDateTime::UNIX_EPOCH);
        let after = self.after.map(|after| after.at);
        Ok(match self.order {
            WalkOrder::NewestFirst => {
                sqlx::query_as!(
                    WalkRow,
                    r#"SELECT h.id, h.at, d.kind AS "kind?", d.state AS "state?", d.attempted_at,
                              d.created_at AS "created_at?"
                       FROM (SELECT id, at FROM held
                             WHERE partner_id = $1 AND state = $2
                               AND at >= $3 AND at <= coalesce($4, 'infinity'::timestamptz)
                               AND (at < coalesce($4, 'infinity'::timestamptz) OR id < $5)
                             ORDER BY at DESC, id DESC LIMIT $6) h
                       LEFT JOIN deliveries d ON d.delivery_id = h.id
                       ORDER BY h.at DESC, h.id DESC"#,
                    partner,
                    <&str>::from(state),
                    since,
                    after,
                    self.after_id(),
                    limit,
                )
                .fetch_all(connection)
                .await?
            }
            WalkOrder::OldestFirst => {
                sqlx::query_as!(
                    WalkRow,
                    r#"SELECT h.id, h.at, d.kind AS "kind?", d.state AS "state?", d.attempted_at,
                              d.created_at AS "created_at?"
                       FROM (SELECT id, at FROM held
                             WHERE partner_id = $1 AND state = $2 AND at >= $3 AND (at > $3 OR id > $4)
                             ORDER BY at, id LIMIT $5) h
                       LEFT JOIN deliveries d ON d.delivery_id = h.id
                       ORDER BY h.at, h.id"#,
                    partner,
                    <&str>::from(state),
                    after.unwrap_or(since),
                    self.after_id(),
                    limit,
                )
                .fetch_all(connection)
                .await?
            }
        })
    }

    /// Deliveries with work, which has a lane of its own for each endpoint, and those that the
    /// sweep has not passed and that have none, because their first lease has not ended. The latter
    /// are due since their creation. A test is due at `-infinity`, which is shown as 1970.
    async fn pending(&self, connection: &mut PgConnection, limit: i64) -> Result<Vec<WalkRow>> {
        let rows = sqlx::query_as!(
            WalkRow,
            r#"SELECT w.id AS "id!", greatest(w.at, 'epoch'::timestamptz) AS "at!", d.kind AS "kind?", d.state AS "state?",
                      d.attempted_at, d.created_at AS "created_at?"
               FROM (
                   (SELECT of_lane.id, of_lane.at
                    FROM (SELECT lane FROM partner_endpoints WHERE partner_id = $1) e
                    CROSS JOIN LATERAL (
                        SELECT w.id, w.at FROM work w
                        WHERE w.kind = 'deliver' AND w.provider = '' AND w.lane = e.lane AND w.partner_id = $1
                          AND w.at >= coalesce($2, '-infinity'::timestamptz)
                          AND (w.at > coalesce($2, '-infinity'::timestamptz) OR w.id > $3)
                        ORDER BY w.at, w.id LIMIT $4
                    ) of_lane
                    ORDER BY of_lane.at, of_lane.id LIMIT $4)
                   UNION ALL
                   (SELECT delivery_id, created_at FROM deliveries f
                    WHERE partner_id = $1 AND state = 'pending'
                      AND created_at > (SELECT up_to FROM walks WHERE name = 'deliveries')
                      AND created_at >= coalesce($2, '-infinity'::timestamptz)
                      AND (created_at > coalesce($2, '-infinity'::timestamptz) OR delivery_id > $3)
                      AND (SELECT true FROM work w WHERE w.id = f.delivery_id) IS NULL
                    ORDER BY created_at, delivery_id LIMIT $4)
                   ORDER BY at, id LIMIT $4
               ) w
               LEFT JOIN deliveries d ON d.delivery_id = w.id
               ORDER BY w.at, w.id"#,
            self.partner_id.uuid(),
            self.after.map(|after| after.at),
            self.after_id(),
            limit,
        );
        Ok(rows.fetch_all(connection).await?)
    }
}
