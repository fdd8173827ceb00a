//! A partner's first endpoint, and its webhooks in the order of their creation. `GET
//! …/webhook/listen` reads the latter, so that `esim-partner listen` can forward the webhooks of a
//! sandbox account to an endpoint that we cannot reach.

use domain::{
    Agreed, PartnerId, StoredAgreed, TopupId, WebhookId,
    event::{self, EventKind},
    standing::EndpointState,
};
use pg::Result;
use serde::Serialize;
use sqlx::PgConnection;
use store::{
    Unflushed,
    deliveries::events::{self, EventContent, Kept, Subject, SubjectColumns},
};
use time::{OffsetDateTime, serde::rfc3339};
use utoipa::ToSchema;
use uuid::Uuid;

use super::endpoints::{AnyEndpoint, endpoints};

/// How long after its creation a webhook is found at the earliest, in seconds. Within this time a
/// transaction has written something, so that it is seen that it runs.
const COMMIT_LAG: f64 = 1.0;

/// The webhook endpoint.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Endpoint)]
pub struct FirstEndpoint {
    pub url: Option<String>,
    /// What it receives, as `GET /endpoints` shows it: `topup.ready` and the names of further events,
    /// such as `topup.failed`.
    pub events: Vec<String>,
    /// `open`, `blocked` (after failures), `probing` (one webhook tests it), `paused` (by us or by
    /// you) or `no_url`.
    #[schema(value_type = String)]
    pub state: domain::Stored<EndpointState>,
    #[serde(with = "rfc3339::option")]
    pub blocked_until: Option<OffsetDateTime>,
    /// False if the host of the URL has not proved yet that it wants webhooks: it then gets one a
    /// second, until it returns the `challenge` of a test.
    pub proven: bool,
    /// Consecutive failed attempts.
    pub failures: i32,
    /// Webhooks that wait for an attempt, counted up to 10,000.
    // Those within their first lease do not count, unless their endpoint is blocked.
    pub waiting: i64,
    /// Webhooks whose retries have ended, counted up to 10,000; redeliver them one by one.
    pub exhausted: i64,
    /// Until when the old secret signs, too.
    #[serde(with = "rfc3339::option")]
    pub old_secret_until: Option<OffsetDateTime>,
}

impl From<AnyEndpoint> for FirstEndpoint {
    fn from(endpoint: AnyEndpoint) -> Self {
        Self {
            url: endpoint.url,
            events: endpoint.events,
            // Who has paused it is shown by `GET /endpoints`.
            state: match endpoint.state.known() {
                Some(EndpointState::PausedByPartner) => {
                    domain::Stored::Known(EndpointState::Paused)
                }
                _ => endpoint.state,
            },
            blocked_until: endpoint.blocked_until,
            proven: endpoint.proven,
            failures: endpoint.failures,
            waiting: endpoint.waiting,
            exhausted: endpoint.exhausted,
            old_secret_until: endpoint.old_secret_until,
        }
    }
}

/// The first endpoint of the partner.
pub async fn endpoint(
    connection: &mut PgConnection,
    partner_id: PartnerId,
) -> Result<Option<FirstEndpoint>> {
    let first = Some(partner_id.first_endpoint());
    let mut found = endpoints(connection, partner_id, first).await?;
    Ok(found.pop().map(FirstEndpoint::from))
}

/// The position of a webhook among all webhooks of its partner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookPosition {
    /// When its delivery was stored.
    pub at: OffsetDateTime,
    /// Its `webhook-id`. Empty for the position before all webhooks of that time.
    pub webhook_id: String,
}

/// A webhook as it is stored.
#[derive(Clone, Debug)]
pub struct StoredWebhook {
    pub id: WebhookId,
    /// `None` if there is nothing to send any more: the profile was erased, or the event is no
    /// longer true or wanted.
    pub content: Option<WebhookParts>,
    pub position: WebhookPosition,
}

/// The parts that the body of a webhook is made of.
#[derive(Clone, Debug)]
pub enum WebhookParts {
    /// A ready topup, with its sealed profile.
    Esim {
        topup_id: TopupId,
        agreed: Agreed,
        external_order_id: String,
        iccid: String,
        profile: Vec<u8>,
    },
    Event(EventContent),
}

/// A row of [`webhooks`]. Columns that a kind does not have are null.
struct Row {
    delivery_id: Uuid,
    kind: String,
    topup_id: Option<String>,
    created_at: OffsetDateTime,
    credential: Option<String>,
    ends_at: Option<OffsetDateTime>,
    notice: Option<String>,
    option_id: Option<Uuid>,
    terms: Option<String>,
    external_order_id: Option<String>,
    metadata: Option<String>,
    order_metadata: Option<String>,
    iccid: Option<String>,
    profile: Option<Vec<u8>>,
    refusal_status: Option<String>,
    refusal_message: Option<String>,
    undecided: bool,
    may_be_passed: bool,
    pointless: bool,
}

impl Row {
    /// A webhook whose topup id cannot be read is listed without its content, so that it does not
    /// keep the partner from the others.
    fn into_webhook(self) -> StoredWebhook {
        let topup_id = self
            .topup_id
            .as_ref()
            .filter(|_| self.kind == "topup.ready");
        let topup_id = topup_id.and_then(|topup_id| topup_id.parse().ok());
        let id = topup_id.map_or(WebhookId::Event(self.delivery_id.into()), WebhookId::Topup);
        let position = WebhookPosition {
            at: self.created_at,
            webhook_id: id.to_string(),
        };
        let content = match &id {
            _ if self.pointless => None,
            WebhookId::Topup(topup_id) => self.esim(topup_id.clone()),
            WebhookId::Event(_) => self.event().map(WebhookParts::Event),
        };
        StoredWebhook {
            id,
            content,
            position,
        }
    }

    fn esim(self, topup_id: TopupId) -> Option<WebhookParts> {
        let agreed = StoredAgreed {
            option_id: self.option_id?.into(),
            terms: self.terms,
        };
        Some(WebhookParts::Esim {
            topup_id,
            agreed: agreed.read().ok()?,
            external_order_id: self.external_order_id?,
            iccid: self.iccid.unwrap_or_default(),
            profile: self.profile?,
        })
    }

    fn event(self) -> Option<EventContent> {
        let price = events::price_of(&self.kind, self.terms.as_deref(), self.notice.as_deref());
        let columns = SubjectColumns {
            topup_id: self.topup_id,
            external_order_id: self.external_order_id,
            option_id: self.option_id,
            refusal_status: self.refusal_status,
            refusal_message: self.refusal_message,
            credential: self.credential,
            ends_at: self.ends_at,
            notice: self.notice,
        };
        let kept = Kept::read(self.metadata.as_deref(), self.order_metadata.as_deref());
        let subject = Subject::read(&self.kind, columns)?;
        Some(EventContent {
            created_at: self.created_at,
            subject,
            kept,
            price,
        })
    }
}

/// The oldest webhooks of a partner after the position `after`, at most `limit`: those of ready
/// topups, and the further events that it asks for. The state of their deliveries does not matter.
/// A test is not among them, because it tests the webhook URL.
///
/// Nobody who goes on from the last one misses a webhook that is committed later, however long the
/// commit hangs. Transactions do not commit in the order in which they begin, so the list ends
/// before a webhook that was written after a transaction began that still runs and may create one.
/// The sweeps wait for the same transactions (`oldest_writer`), but come ten seconds behind, and
/// whoever listens sits before a screen.
///
/// The list also ends before an event about a topup whose order may still be refused, because that
/// event would then be untrue. A later request finds it, or finds that nothing is left of it.
///
/// `named` gives each delivery its `webhook-id`, by which deliveries of the same time are sorted.
pub async fn webhooks(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    after: &WebhookPosition,
    limit: i64,
) -> Result<Unflushed<Vec<StoredWebhook>>> {
    // This is a statement before the one that reads, which so sees the rows of all transactions
    // that have ended by now. What is written between the two comes with the next request.
    let running = sqlx::query_scalar!(
        r#"SELECT coalesce(oldest_writer(), pg_snapshot_xmax(pg_current_snapshot()))::text AS running"#
    );
    let running = running.fetch_one(&mut *connection).await?;
    let query = sqlx::query_as!(
        Row,
        r#"SELECT d.delivery_id AS "delivery_id!", d.kind AS "kind!", d.topup_id, d.created_at AS "created_at!",
                  d.credential, d.ends_at, d.notice::text AS notice, t.option_id AS "option_id?", t.terms AS "terms?",
                  o.external_order_id AS "external_order_id?", t.metadata AS "metadata?", o.metadata AS order_metadata,
                  e.iccid AS "iccid?", CASE WHEN e.erased_at IS NULL THEN e.profile END AS profile,
                  l.refusal_status, l.refusal_message,
                  o.refused_at IS NULL AND is_unconfirmed(d.kind, NULL, o.answer_by) AS "undecided!",
                  -- The age of an id counts the ids that were given since.
                  coalesce(age(d.xmin) <= age($7::text::xid8::xid), false) AS "may_be_passed!",
                  is_pointless(d.kind, n.events, d.topup_id, l.order_id = o.order_id, o.refused_at, t.state, e.ready_at) AS "pointless!"
           FROM (SELECT * FROM (
                     SELECT delivery_id, partner_id, kind, topup_id, order_id, created_at, credential, ends_at, notice, xmin,
                            CASE kind WHEN 'topup.ready' THEN topup_id
                                      ELSE 'evt_' || replace(delivery_id::text, '-', '') END COLLATE "C" AS webhook_id
                     FROM deliveries
                     WHERE partner_id = $1 AND endpoint_id IS NULL
                       AND kind = ANY ($6)
                       AND created_at >= $2 AND created_at <= now() - make_interval(secs => $4)) named
                 WHERE (created_at, webhook_id) > ($2, $3)
                 ORDER BY created_at, webhook_id LIMIT $5) d
           JOIN partner_endpoints n ON n.endpoint_id = d.partner_id
           LEFT JOIN topups t ON t.topup_id = d.topup_id
           LEFT JOIN esims e ON e.topup_id = d.topup_id
           LEFT JOIN orders o ON o.order_id = d.order_id AND o.partner_id = d.partner_id
           LEFT JOIN placements l ON l.placement_id = t.placement_id AND d.kind <> 'topup.ready'
           ORDER BY d.created_at, d.webhook_id"#,
        partner_id.uuid(),
        after.at,
        after.webhook_id,
        COMMIT_LAG,
        limit,
        &event::names(&EventKind::of_further_endpoints()) as &[&str],
        running,
    );
    let rows = query.fetch_all(connection).await?.into_iter();
    let decided = rows.take_while(|row| !row.undecided && !row.may_be_passed);
    Ok(Unflushed::of(decided.map(Row::into_webhook).collect()))
}
