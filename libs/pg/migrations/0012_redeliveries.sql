-- serves: 6
-- Redeliveries: a partner asks for many of its webhooks to be sent again (docs/decisions/0027-partners-miss-nothing.md).
-- Programs of schema 6 ignore the table without harm: a redelivery then waits until a newer notifier works on it.

-- One request of a partner. The notifiers work it off in batches; each batch commits together with how far it has come.
CREATE TABLE redeliveries (
    redelivery_id uuid PRIMARY KEY,
    partner_id uuid NOT NULL,
    -- Which webhooks: those in this state, or all that are not delivered if it is null, whose last attempt (before the
    -- first one: their creation) was in this range of time, the end excluded.
    state text,
    since timestamptz NOT NULL,
    until timestamptz NOT NULL,
    -- How many matched when it began; null: more than are counted.
    matching bigint,
    -- The webhooks that are walked through now: `exhausted`, `pending` or `delivered`. Then `sending`: all are due, and
    -- some of them wait for their attempt.
    phase text NOT NULL,
    -- The last webhook that was walked past. Null: none. While `sending`, the time at which the walk ended.
    after_at timestamptz,
    after_id uuid,
    -- How many have been made due.
    redelivered bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- Null: it runs.
    ended_at timestamptz,
    -- Its partner ended it early.
    cancelled_at timestamptz
);
-- A partner has one running redelivery at most, and the notifiers find the running ones.
CREATE UNIQUE INDEX redeliveries_running ON redeliveries (partner_id) WHERE ended_at IS NULL;
CREATE INDEX redeliveries_partner ON redeliveries (partner_id, created_at);

-- Exhausted events are held like exhausted topups from now on, so that they are found together. Tests are not, because
-- they are sent once. Events that a program of an older schema exhausts later are missing, until they are deleted with
-- their attempts.
INSERT INTO held (id, state, provider, partner_id, at)
SELECT e.delivery_id, 'exhausted', '', p.partner_id, coalesce(e.attempted_at, e.created_at)
FROM partners p
CROSS JOIN LATERAL (
    SELECT delivery_id, attempted_at, created_at FROM deliveries d
    WHERE d.partner_id = p.partner_id AND d.kind <> 'topup.ready' AND d.kind <> 'webhook.test' AND d.state = 'exhausted'
) e
ON CONFLICT DO NOTHING;
