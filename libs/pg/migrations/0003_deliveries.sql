-- serves: 3
-- What partners are told: deliveries, their attempts, and the state of the endpoints that receive them.

-- A delivery is the obligation to send one webhook. The kind `topup.ready` is the specified webhook of a ready unit;
-- the other kinds are the events that a partner can ask for. All kinds share the attempts, the due work and the blocks
-- of endpoints.
--
-- The id of a delivery that must exist at most once is derived from its subject (`topup.failed` from the topup,
-- `key.expiring` from the credential and its end), so that a repeated insert conflicts with the primary key.
CREATE TABLE deliveries (
    delivery_id uuid PRIMARY KEY,
    partner_id uuid NOT NULL,
    kind text NOT NULL,
    -- The subject. `topup.ready` and `topup.failed`: the topup and its order.
    topup_id text COLLATE "C",
    order_id uuid,
    -- `key.expiring`: `keys` or `webhook_secret`, and when the old ones end.
    credential text,
    ends_at timestamptz,
    -- `pending`, `delivered`, `exhausted` or `no_endpoint`.
    state text NOT NULL DEFAULT 'pending',
    -- How many attempts have ended, and how many had ended when the current schedule began (not 0 after a replay).
    attempt integer NOT NULL DEFAULT 0,
    schedule_start integer NOT NULL DEFAULT 0,
    -- The last attempt: when it began, how long it took, the status of its response, and why it failed.
    attempted_at timestamptz,
    duration_ms integer,
    status integer,
    error text,
    delivered_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 70);
-- The sweep reads the deliveries of two seconds, once a second.
CREATE INDEX deliveries_created ON deliveries (created_at);
-- Operators and partners read a partner's deliveries, or only its events, in the order of time.
CREATE INDEX deliveries_partner ON deliveries (partner_id, created_at);
CREATE INDEX deliveries_events ON deliveries (partner_id, created_at) WHERE kind <> 'topup.ready';

-- Ended attempts. The last attempt of a delivered `topup.ready` is on the delivery's own row instead, so a delivery
-- that arrives at the first attempt costs nothing here.
CREATE TABLE delivery_attempts (
    delivery_id uuid NOT NULL,
    -- How many attempts had ended before this one.
    attempt integer NOT NULL,
    at timestamptz NOT NULL,
    duration_ms integer NOT NULL,
    -- Of the response, if there was one.
    status integer,
    -- The result in one word: `delivered`, `status_5xx`, `timeout`, …
    class text NOT NULL,
    -- The beginning of a response that did not acknowledge, encrypted: endpoints echo what they got.
    answer bytea,
    -- A notifier that stalled may make an attempt that another one has made meanwhile: then there are two.
    PRIMARY KEY (delivery_id, attempt, at)
);
-- Retention reads attempts in the order of time.
CREATE INDEX delivery_attempts_at ON delivery_attempts (at);

-- What is known of a partner's endpoint. Without a row it answers. A row changes when that changes, and at most once
-- for each batch of failed attempts, never for each delivery.
CREATE TABLE endpoints (
    partner_id uuid PRIMARY KEY,
    -- Attempts that failed since the last one that succeeded, counted until the endpoint is blocked.
    failures integer NOT NULL DEFAULT 0,
    -- How often it was blocked since then. Each block is longer than the one before.
    blocks integer NOT NULL DEFAULT 0,
    -- Null: deliveries go out. Until this time none does; afterwards one does, as a probe. 'infinity': an operator has
    -- paused the endpoint.
    blocked_until timestamptz,
    -- The delivery that probes a blocked endpoint.
    probe uuid,
    -- The webhook URL changed then, and the deliveries that waited are not all due yet.
    moving_since timestamptz
);
CREATE INDEX endpoints_moving ON endpoints (partner_id) WHERE moving_since IS NOT NULL;
