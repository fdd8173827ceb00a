-- serves: 24
-- What did not go straight (docs/decisions/0035-fewer-kinds-one-truth.md). Rows of the other tables say how things are now;
-- an attempt that failed before the last one, or what an operator found before a resolution, is overwritten there.

-- Append-only for every role. A row is written by the transaction that changes what it is about. An order that goes straight
-- has none.
CREATE TABLE history (
    history_id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    at timestamptz NOT NULL DEFAULT now(),
    -- What it is about: an order with its placement and perhaps one of its units, or else the breaker of a provider, or an endpoint.
    order_id uuid,
    placement_id uuid,
    topup_id text COLLATE "C",
    -- Of a placement, the provider that was asked.
    provider text,
    endpoint_id uuid,
    -- A name of `domain::HistoryKind`.
    kind text NOT NULL,
    attempt integer,
    -- Why, as a code with its detail: `domain::reason`.
    reason text,
    -- What the provider responded, or what an operator wrote. It is shown, and nothing decides by it.
    detail text,
    -- What an operator or a new provider changed.
    before jsonb,
    after jsonb
);
CREATE INDEX history_order ON history (order_id, at) WHERE order_id IS NOT NULL;
-- Retention ends what is about no order, and the page of a provider shows it.
CREATE INDEX history_at ON history (at) WHERE order_id IS NULL;
ALTER TABLE history ADD CONSTRAINT history_bounds CHECK (
    at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
    AND greatest(octet_length(topup_id), octet_length(provider), octet_length(kind), octet_length(reason), octet_length(detail),
                 pg_column_size(before), pg_column_size(after)) <= 100000) NOT VALID;
