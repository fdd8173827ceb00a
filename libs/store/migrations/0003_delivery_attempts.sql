-- Endpoints that are not simply at work, the attempts of deliveries, and replays.

-- What is known of a partner's endpoint. No row: it answers. Rows are written when that changes and at
-- most once for each batch of results, never for each delivery.
CREATE TABLE endpoints (
    partner_id uuid PRIMARY KEY,
    -- Attempts that failed since the last that succeeded, counted until it is blocked.
    failures integer NOT NULL DEFAULT 0,
    -- How many times it was blocked since then: blocks grow with it.
    blocks integer NOT NULL DEFAULT 0,
    -- Null: deliveries go out. Until then, none is taken up; when it has passed, one is, as a probe.
    -- 'infinity': paused by an operator.
    blocked_until timestamptz,
    -- The delivery that tries whether it answers again.
    probe text
);

-- Attempts that are over, but for the last one of a delivery that arrived: that one is on the row of
-- its delivery, so that a delivery which arrives at once costs nothing here. No foreign key: it would
-- lock the delivery's row for each attempt.
CREATE TABLE delivery_attempts (
    topup_id text NOT NULL,
    -- How many attempts had ended before it.
    attempt integer NOT NULL,
    at timestamptz NOT NULL,
    duration_ms integer NOT NULL,
    -- Of the answer, if there was one.
    status integer,
    -- What it came to: `delivered`, `status_5xx`, `timeout`, …
    class text NOT NULL,
    -- The beginning of an answer that did not acknowledge, encrypted: endpoints echo what they got.
    answer bytea,
    -- A stalled notifier may make an attempt that another one has made: then there are two.
    PRIMARY KEY (topup_id, attempt, at)
);

ALTER TABLE deliveries
    ADD COLUMN duration_ms integer,
    -- How many attempts had ended when the schedule began: not 0 once it was replayed.
    ADD COLUMN schedule_start integer NOT NULL DEFAULT 0;
CREATE INDEX deliveries_exhausted ON deliveries (partner_id) WHERE state = 'exhausted';

-- Several partners may have their endpoints on one host.
ALTER TABLE partners ADD COLUMN webhook_host text GENERATED ALWAYS AS
    (lower(substring(webhook_url FROM '^[^:/?#]+://(?:[^/?#@]*@)?(\[[^]]*\]|[^/:?#]+)'))) STORED;
