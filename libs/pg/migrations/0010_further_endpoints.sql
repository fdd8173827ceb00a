-- serves: 9
-- Several endpoints for one partner (docs/decisions/0027-partners-miss-nothing.md).
-- The first endpoint of a partner is the webhook URL of the specification. Its configuration stays in `partners`, and
-- its id is the id of the partner. Programs of schema 9 know only the first endpoints, and leave the deliveries to
-- further ones alone, because these never are without work and have a lane of their own there. A notifier of schema 9
-- makes no deliveries to further endpoints, but the sweep of a newer one makes those that it left out.

-- The endpoints of partners beside their first ones.
CREATE TABLE further_endpoints (
    endpoint_id uuid PRIMARY KEY,
    partner_id uuid NOT NULL,
    -- `webhooks`: gets the webhooks that `events` names. Other purposes get no webhooks of topups.
    purpose text NOT NULL DEFAULT 'webhooks',
    url text NOT NULL,
    host text GENERATED ALWAYS AS
        (lower(substring(url FROM '^[^:/?#]+://(?:[^/?#@]*@)?(\[[^]]*\]|[^/:?#]+)'))) STORED,
    -- The secrets and the headers are encrypted under the master key of webhooks, bound to this row.
    secret bytea NOT NULL,
    old_secret bytea,
    old_secret_until timestamptz,
    -- `topup.ready`, which is the specified webhook, and the names of further events.
    events text[] NOT NULL,
    -- Headers that each request carries, as a JSON object; null is none.
    headers bytea,
    -- When its owner proved that it wants to be called, for purposes that ask for that.
    verified_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX further_endpoints_partner ON further_endpoints (partner_id, created_at);

-- Whether the partner has further endpoints for webhooks. The claim of a delivery reads the row of its partner anyway, so
-- a partner with one endpoint costs nothing more.
ALTER TABLE partners ADD COLUMN has_further_endpoints boolean NOT NULL DEFAULT false;

-- The further endpoint that a delivery goes to; null is the first endpoint.
ALTER TABLE deliveries ADD COLUMN endpoint_id uuid;

-- The deliveries about a topup to further endpoints, which no index of `deliveries` finds, because each index there costs
-- every delivery a write. The row is committed with its delivery.
CREATE TABLE further_deliveries (
    topup_id text COLLATE "C" NOT NULL,
    delivery_id uuid NOT NULL,
    PRIMARY KEY (topup_id, delivery_id)
);

-- The endpoint of a held delivery: empty for the first one, as in `work.lane`, and otherwise the endpoint's id as text.
ALTER TABLE held ADD COLUMN lane text NOT NULL DEFAULT '';

-- The pause of an endpoint (`blocked_until` is 'infinity') was set by its partner, which may therefore end it, too. The
-- key of this table, `partner_id`, is the id of the endpoint, which for the first endpoint is that of the partner.
ALTER TABLE endpoints ADD COLUMN paused_by_partner boolean NOT NULL DEFAULT false;
