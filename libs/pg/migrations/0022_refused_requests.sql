-- serves: 12
-- Refused requests of partners, so that operators can tell a request that never came from one that was refused
-- (docs/decisions/0034-operations.md). Programs of schema 12 neither write nor read them.

-- Requests that ingress answered with a 4xx or 503 and whose access key belongs to a partner: the newest ones of each partner
-- and kind, and no longer than the term `refusals` of retention. They hold no header and no body.
CREATE TABLE refused_requests (
    -- The X-Request-Id of the response. It is a UUIDv7, so ids are in the order of time.
    request_id uuid PRIMARY KEY,
    partner_id uuid NOT NULL,
    -- `order` is a create-order request and `other` is any other one, both with a valid signature. The signature of an
    -- `unsigned` one was not valid, so anybody who knows the partner's access key may have sent it. Each kind has a room of
    -- its own, so that forged requests push out no genuine ones.
    kind text NOT NULL,
    at timestamptz NOT NULL,
    status integer NOT NULL,
    -- The code of the first error, or the name of the limit that was reached.
    reason text NOT NULL,
    -- The codes of the errors, as the response named them in its header.
    errors text NOT NULL,
    method text NOT NULL,
    -- The path without the query, and at most its first 300 characters.
    path text NOT NULL,
    -- Of a create-order request whose body could be read.
    external_order_id text,
    -- How many requests of this partner and kind, since the one that was stored before, were not stored because there were
    -- too many.
    unrecorded bigint NOT NULL
);
CREATE INDEX refused_requests_partner ON refused_requests (partner_id, kind, request_id);
CREATE INDEX refused_requests_at ON refused_requests (at);
CREATE INDEX refused_requests_external ON refused_requests (external_order_id) WHERE external_order_id IS NOT NULL;

INSERT INTO retention (class, days) VALUES ('refusals', 30);
