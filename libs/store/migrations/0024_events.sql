-- serves: 14
-- Further events of a partner's webhook endpoint: docs/decisions/0017-partner-endpoints.md. An event that is not finished has a row
-- in `delivery_due`, or in `delivery_held` while there is no URL, under its own id. Programs of schema 14 to 23 cannot
-- send these rows, and their probes stop at them: see "Roll back" in docs/operations.md.
CREATE TABLE events (
    event_id text PRIMARY KEY,
    partner_id uuid NOT NULL,
    kind text NOT NULL CHECK (kind IN ('topup.failed', 'key.expiring', 'webhook.test')),
    -- topup.failed: the topup.
    topup_id text,
    -- key.expiring: `keys` or `webhook_secret`, and the end of the old ones.
    credential text,
    ends_at timestamptz,
    state text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'delivered', 'exhausted', 'no_endpoint')),
    -- The number of ended attempts. Each has a row in `delivery_attempts`.
    attempt integer NOT NULL DEFAULT 0,
    -- The number of attempts before the current schedule.
    schedule_start integer NOT NULL DEFAULT 0,
    -- The last attempt.
    attempted_at timestamptz,
    duration_ms integer,
    status integer,
    error text,
    delivered_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX events_topup ON events (topup_id) WHERE topup_id IS NOT NULL;
CREATE UNIQUE INDEX events_credential ON events (partner_id, credential, ends_at) WHERE credential IS NOT NULL;
CREATE INDEX events_partner ON events (partner_id, created_at);
CREATE INDEX events_created ON events (created_at);

ALTER TABLE partners
    -- The events that the partner asked for.
    ADD COLUMN webhook_events text[] NOT NULL DEFAULT '{}';
ALTER TABLE endpoints
    -- The webhook URL changed then, and deliveries that waited are not all due yet.
    ADD COLUMN moving_since timestamptz,
    -- A change of the URL last made the next probe due at once.
    ADD COLUMN hastened_at timestamptz;

-- Whatever fails a topup makes the event in the same transaction. It is due when the order's request can no longer be
-- answered with 422. The function has the owner's rights: the provisioner reads nothing of partners.
CREATE FUNCTION topup_failed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    WITH born AS (
        INSERT INTO events (event_id, partner_id, kind, topup_id)
        SELECT 'evt_' || replace(gen_random_uuid()::text, '-', ''), o.partner_id, 'topup.failed', NEW.topup_id
        FROM placements p
        JOIN orders o ON o.order_id = p.order_id
        JOIN partners a ON a.partner_id = o.partner_id
        WHERE p.placement_id = NEW.placement_id AND NOT o.refused AND 'topup.failed' = ANY (a.webhook_events)
        ON CONFLICT DO NOTHING
        RETURNING event_id, partner_id
    )
    INSERT INTO delivery_due (topup_id, partner_id, at)
    SELECT born.event_id, born.partner_id, greatest(o.answer_by, now())
    FROM born, placements p JOIN orders o ON o.order_id = p.order_id
    WHERE p.placement_id = NEW.placement_id;
    RETURN NULL;
END
$$;
CREATE TRIGGER topup_failed AFTER UPDATE OF state ON topups
    FOR EACH ROW WHEN (NEW.state = 'failed' AND OLD.state <> 'failed') EXECUTE FUNCTION topup_failed();
