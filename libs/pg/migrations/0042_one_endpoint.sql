-- serves: 24
-- contract: the tables endpoints and further_endpoints become views of one table, and their rows are copied into it. Programs
-- of the version before go on reading and writing through the views and the columns of partners.
-- One table holds all endpoints (docs/decisions/0035-fewer-kinds-one-truth.md). Before, the first endpoint of a partner was
-- eight columns of `partners`, the others were `further_endpoints`, and `endpoints` held the health of both kinds.
--
-- What is left for programs of the version before, until a later migration drops it: the views `endpoints` and
-- `further_endpoints` with their triggers, the columns `webhook_…` and `old_webhook_…` of `partners`, and the two triggers
-- that keep these columns and the first endpoint equal.

-- Renaming the tables locks them first, so that no row is written between the copy and the end of this transaction.
ALTER TABLE endpoints RENAME TO endpoints_before;
ALTER TABLE further_endpoints RENAME TO further_endpoints_before;
-- Programs of this version store no secret in `partners`.
ALTER TABLE partners ALTER COLUMN webhook_secret SET DEFAULT '';

-- Where webhooks and notices go, and how well that works. The first endpoint of a partner, which is the webhook URL of the
-- specification, has `nth` 0 and the id of the partner.
CREATE TABLE partner_endpoints (
    endpoint_id uuid PRIMARY KEY,
    partner_id uuid NOT NULL,
    -- The order in which a partner's endpoints are shown.
    nth integer NOT NULL,
    -- The lane of its deliveries in `work` and `held`.
    lane text NOT NULL GENERATED ALWAYS AS (CASE WHEN nth = 0 THEN '' ELSE endpoint_id::text END) STORED,
    -- `webhooks`: gets the webhooks that `events` names. `notices`: gets notices, and no webhooks of topups. A partner has at
    -- most one of the latter, whose URL is an https URL, or `mailto:` and an e-mail address.
    purpose text NOT NULL DEFAULT 'webhooks',
    -- Null until the first endpoint is set.
    url text,
    -- Several partners may have their endpoints on one host, whose requests in flight are limited together.
    host text GENERATED ALWAYS AS
        (lower(substring(url FROM '^[^:/?#]+://(?:[^/?#@]*@)?(\[[^]]*\]|[^/:?#]+)'))) STORED,
    -- The secrets that sign its webhooks, the newest first, and for each of them when it ends; the newest one has no end. The
    -- secrets and the headers are encrypted under the master key of webhooks, bound to this row. An erased partner has none.
    secrets bytea[] NOT NULL DEFAULT '{}',
    secret_ends timestamptz[] NOT NULL DEFAULT '{}',
    -- `topup.ready`, which is the specified webhook and which the first endpoint always gets, and the names of further events.
    events text[] NOT NULL DEFAULT '{topup.ready}',
    -- Headers that each request carries, as a JSON object; null is none.
    headers bytea,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- When its owner proved that it wants to be called, for purposes that ask for that.
    verified_at timestamptz,
    -- The one-time code that was sent last to a channel for notices that is not verified: its digest, until when it is valid,
    -- and how many wrong codes were given since then. The code itself is never stored.
    code_digest bytea,
    code_until timestamptz,
    code_tries integer NOT NULL DEFAULT 0,

    -- Attempts that failed since the last one that succeeded, counted until the endpoint is blocked.
    failures integer NOT NULL DEFAULT 0,
    -- How often it was blocked since then. Each block is longer than the one before.
    blocks integer NOT NULL DEFAULT 0,
    -- Null: deliveries go out. Until this time none does; afterwards one does, as a probe. 'infinity': it is paused.
    blocked_until timestamptz,
    -- The delivery that probes a blocked endpoint.
    probe uuid,
    -- The pause was set by its partner, which may therefore end it, too.
    paused_by_partner boolean NOT NULL DEFAULT false,
    -- The URL changed then, and the deliveries that waited are not all due yet.
    moving_since timestamptz,
    -- When the first of the failures in a row was recorded.
    failing_since timestamptz,
    -- What the partner is told of its health: `failing` or `blocked`; null is healthy. It outlives a block that an operator
    -- ends, until the endpoint acknowledges something and so has recovered. `told_at` is when it became this.
    told text,
    told_at timestamptz,
    -- When the partner was told that the retries of a webhook have ended.
    exhausted_told_at timestamptz,
    -- Since when it has a host that has not proved that it wants webhooks; null if it has, or need not. `blocked_until` is
    -- never null then: it is the time of the next webhook.
    unproven_since timestamptz,

    CONSTRAINT partner_endpoints_first CHECK ((nth = 0) = (endpoint_id = partner_id)),
    CONSTRAINT partner_endpoints_secrets CHECK (cardinality(secrets) = cardinality(secret_ends)),
    CONSTRAINT partner_endpoints_bounds CHECK (
        least(created_at, verified_at, code_until, moving_since, failing_since, told_at, exhausted_told_at, unproven_since)
            >= '0001-01-01 00:00:00+00'
        AND greatest(created_at, verified_at, code_until, moving_since, failing_since, told_at, exhausted_told_at, unproven_since)
            <= '9999-12-31 00:00:00+00'
        AND (blocked_until = 'infinity' OR blocked_until BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00')
        AND '0001-01-01 00:00:00+00' <= ALL (secret_ends) AND '9999-12-31 00:00:00+00' >= ALL (secret_ends)
        AND greatest(octet_length(purpose), octet_length(url), octet_length(headers), octet_length(code_digest),
                     octet_length(told), pg_column_size(events), pg_column_size(secrets), pg_column_size(secret_ends)) <= 100000)
);
CREATE UNIQUE INDEX partner_endpoints_partner ON partner_endpoints (partner_id, nth);
CREATE INDEX partner_endpoints_moving ON partner_endpoints (endpoint_id) WHERE moving_since IS NOT NULL;

-- The list of secrets and that of their ends, from the two columns that were before. An old secret without an end was not
-- valid, and neither was an empty one.
CREATE FUNCTION secret_list(newest bytea, old bytea, until timestamptz) RETURNS bytea[]
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN newest IS NULL OR newest = '' THEN '{}' WHEN old IS NULL OR until IS NULL THEN ARRAY[newest]
                ELSE ARRAY[newest, old] END
$$;
CREATE FUNCTION secret_end_list(newest bytea, old bytea, until timestamptz) RETURNS timestamptz[]
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN newest IS NULL OR newest = '' THEN '{}' WHEN old IS NULL OR until IS NULL THEN ARRAY[NULL::timestamptz]
                ELSE ARRAY[NULL, until] END
$$;

INSERT INTO partner_endpoints
    (endpoint_id, partner_id, nth, purpose, url, secrets, secret_ends, events, headers, created_at, verified_at, code_digest,
     code_until, code_tries, failures, blocks, blocked_until, probe, paused_by_partner, moving_since, failing_since, told,
     told_at, exhausted_told_at, unproven_since)
SELECT c.endpoint_id, c.partner_id, c.nth, c.purpose, c.url, secret_list(c.secret, c.old_secret, c.until),
       secret_end_list(c.secret, c.old_secret, c.until), c.events, c.headers, c.created_at, c.verified_at, c.code_digest,
       c.code_until, c.code_tries, coalesce(e.failures, 0), coalesce(e.blocks, 0), e.blocked_until, e.probe,
       coalesce(e.paused_by_partner, false), e.moving_since, e.failing_since, e.told, e.told_at, e.exhausted_told_at,
       e.unproven_since
FROM (
    SELECT partner_id AS endpoint_id, partner_id, 0 AS nth, 'webhooks' AS purpose, webhook_url AS url, webhook_secret AS secret,
           old_webhook_secret AS old_secret, old_webhook_secret_until AS until,
           array_prepend('topup.ready', webhook_events) AS events, NULL::bytea AS headers, created_at,
           NULL::timestamptz AS verified_at, NULL::bytea AS code_digest, NULL::timestamptz AS code_until, 0 AS code_tries
    FROM partners
    UNION ALL
    SELECT endpoint_id, partner_id, (row_number() OVER (PARTITION BY partner_id ORDER BY created_at, endpoint_id))::int,
           purpose, url, secret, old_secret, old_secret_until, events, headers, created_at, verified_at, code_digest,
           code_until, code_tries
    FROM further_endpoints_before
) c
LEFT JOIN endpoints_before e ON e.partner_id = c.endpoint_id;
DROP TABLE endpoints_before;
DROP TABLE further_endpoints_before;

-- A code proves the address that it was sent to (0036).
CREATE TRIGGER channel_moved BEFORE UPDATE OF url ON partner_endpoints
    FOR EACH ROW WHEN (OLD.purpose = 'notices' AND NEW.url IS DISTINCT FROM OLD.url) EXECUTE FUNCTION channel_moved();

-- As in 0036, on the one table.
CREATE OR REPLACE FUNCTION verify_channel(of_partner uuid, code text, OUT outcome text, OUT tries_left integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    -- How many wrong codes are taken before a new one has to be sent.
    most constant integer := 5;
    channel partner_endpoints;
    key bytea := convert_to(code, 'UTF8');
    inner_pad bytea := decode(repeat('36', 64), 'hex');
    outer_pad bytea := decode(repeat('5c', 64), 'hex');
BEGIN
    -- The lock keeps two requests at the same time from counting one try.
    SELECT * INTO channel FROM partner_endpoints WHERE partner_id = of_partner AND purpose = 'notices' FOR UPDATE;
    tries_left := 0;
    IF NOT FOUND THEN
        outcome := 'none';
        RETURN;
    END IF;
    IF channel.verified_at IS NOT NULL THEN
        outcome := 'before';
        RETURN;
    END IF;
    IF channel.code_digest IS NULL OR channel.code_tries >= most OR coalesce(channel.code_until <= now(), true) THEN
        outcome := 'ended';
        RETURN;
    END IF;
    -- A longer key would be hashed first. Codes are much shorter, so it is wrong anyway.
    IF length(key) BETWEEN 1 AND 64 THEN
        FOR i IN 0 .. length(key) - 1 LOOP
            inner_pad := set_byte(inner_pad, i, get_byte(inner_pad, i) # get_byte(key, i));
            outer_pad := set_byte(outer_pad, i, get_byte(outer_pad, i) # get_byte(key, i));
        END LOOP;
        IF channel.code_digest = sha256(outer_pad || sha256(inner_pad || convert_to(E'notice code\n', 'UTF8')
                                                                        || uuid_send(channel.endpoint_id))) THEN
            UPDATE partner_endpoints SET verified_at = now(), code_digest = NULL WHERE endpoint_id = channel.endpoint_id;
            outcome := 'verified';
            RETURN;
        END IF;
    END IF;
    UPDATE partner_endpoints SET code_tries = code_tries + 1 WHERE endpoint_id = channel.endpoint_id;
    outcome := 'wrong';
    tries_left := most - channel.code_tries - 1;
END
$$;

-- As in 0011: the events about a failed topup, one for each endpoint that wants them. The id of an event is derived from the
-- topup and, unless it goes to the first endpoint, from the endpoint, so that it exists only once.
CREATE OR REPLACE FUNCTION topup_failed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    WITH wanted AS (
        SELECT o.order_id, o.partner_id, o.answer_by, nullif(e.endpoint_id, o.partner_id) AS endpoint_id, e.lane
        FROM placements p
        JOIN orders o ON o.order_id = p.order_id
        JOIN partner_endpoints e ON e.partner_id = o.partner_id
        WHERE p.placement_id = NEW.placement_id AND o.refused_at IS NULL AND 'topup.failed' = ANY (e.events)
    ), created AS (
        INSERT INTO deliveries (delivery_id, partner_id, kind, topup_id, order_id, endpoint_id)
        SELECT md5(concat_ws(' ', 'topup.failed', NEW.topup_id, endpoint_id))::uuid, partner_id, 'topup.failed',
               NEW.topup_id, order_id, endpoint_id
        FROM wanted
        ON CONFLICT DO NOTHING
        RETURNING delivery_id, endpoint_id
    ), linked AS (
        INSERT INTO further_deliveries (topup_id, delivery_id)
        SELECT NEW.topup_id, delivery_id FROM created WHERE endpoint_id IS NOT NULL
        ON CONFLICT DO NOTHING
    )
    INSERT INTO work (id, kind, provider, lane, partner_id, at)
    SELECT delivery_id, 'deliver', '', lane, partner_id, greatest(answer_by, now())
    FROM created JOIN wanted ON wanted.endpoint_id IS NOT DISTINCT FROM created.endpoint_id;
    RETURN NULL;
END
$$;

-- From here on: for programs of the version before.

-- The health of endpoints, under the id of the endpoint.
CREATE VIEW endpoints AS
SELECT endpoint_id AS partner_id, failures, blocks, blocked_until, probe, moving_since, paused_by_partner, failing_since, told,
       told_at, exhausted_told_at, unproven_since
FROM partner_endpoints;

-- Their inserts are for endpoints that had no row yet. Each endpoint has one now, so such an insert is always a conflict, for
-- which they say what to do. What belongs to no endpoint any more is left out.
CREATE FUNCTION health_of_endpoint() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    SELECT e.partner_id, e.nth INTO NEW.partner_id, NEW.nth FROM partner_endpoints e WHERE e.endpoint_id = NEW.endpoint_id;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER health_of_endpoint BEFORE INSERT ON partner_endpoints
    FOR EACH ROW WHEN (NEW.partner_id IS NULL) EXECUTE FUNCTION health_of_endpoint();

-- They delete the health of an endpoint together with the endpoint.
CREATE FUNCTION forget_health() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    UPDATE partner_endpoints
    SET failures = 0, blocks = 0, blocked_until = NULL, probe = NULL, moving_since = NULL, paused_by_partner = false,
        failing_since = NULL, told = NULL, told_at = NULL, exhausted_told_at = NULL, unproven_since = NULL
    WHERE endpoint_id = OLD.partner_id;
    RETURN OLD;
END
$$;
CREATE TRIGGER forget_health INSTEAD OF DELETE ON endpoints FOR EACH ROW EXECUTE FUNCTION forget_health();

-- All endpoints but the first ones.
CREATE VIEW further_endpoints AS
SELECT endpoint_id, partner_id, purpose, url, host, secrets[1] AS secret, secrets[2] AS old_secret,
       secret_ends[2] AS old_secret_until, events, headers, verified_at, created_at, code_digest, code_until, code_tries
FROM partner_endpoints WHERE nth > 0;

CREATE FUNCTION change_further_endpoint() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        DELETE FROM partner_endpoints WHERE endpoint_id = OLD.endpoint_id;
    ELSIF TG_OP = 'UPDATE' THEN
        UPDATE partner_endpoints
        SET url = NEW.url, secrets = secret_list(NEW.secret, NEW.old_secret, NEW.old_secret_until),
            secret_ends = secret_end_list(NEW.secret, NEW.old_secret, NEW.old_secret_until), events = NEW.events,
            headers = NEW.headers, verified_at = NEW.verified_at, code_digest = NEW.code_digest,
            code_until = NEW.code_until, code_tries = NEW.code_tries
        WHERE endpoint_id = OLD.endpoint_id;
    ELSE
        INSERT INTO partner_endpoints
            (endpoint_id, partner_id, nth, purpose, url, secrets, secret_ends, events, headers, verified_at, created_at,
             code_digest, code_until, code_tries)
        SELECT NEW.endpoint_id, NEW.partner_id, coalesce(max(e.nth), 0) + 1, coalesce(NEW.purpose, 'webhooks'), NEW.url,
               secret_list(NEW.secret, NEW.old_secret, NEW.old_secret_until),
               secret_end_list(NEW.secret, NEW.old_secret, NEW.old_secret_until), NEW.events, NEW.headers, NEW.verified_at,
               coalesce(NEW.created_at, now()), NEW.code_digest, NEW.code_until, coalesce(NEW.code_tries, 0)
        FROM partner_endpoints e WHERE e.partner_id = NEW.partner_id;
    END IF;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN coalesce(NEW, OLD);
END
$$;
CREATE TRIGGER change_further_endpoint INSTEAD OF INSERT OR UPDATE OR DELETE ON further_endpoints
    FOR EACH ROW EXECUTE FUNCTION change_further_endpoint();

-- They create partners with their webhook, and change it in `partners`. So a partner has its first endpoint from the beginning,
-- whoever creates it.
CREATE FUNCTION first_endpoint_from_partner() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    INSERT INTO partner_endpoints AS e (endpoint_id, partner_id, nth, url, secrets, secret_ends, events, created_at)
    VALUES (NEW.partner_id, NEW.partner_id, 0, NEW.webhook_url,
            secret_list(NEW.webhook_secret, NEW.old_webhook_secret, NEW.old_webhook_secret_until),
            secret_end_list(NEW.webhook_secret, NEW.old_webhook_secret, NEW.old_webhook_secret_until),
            array_prepend('topup.ready', NEW.webhook_events), NEW.created_at)
    ON CONFLICT (endpoint_id) DO UPDATE
    SET url = excluded.url, secrets = excluded.secrets, secret_ends = excluded.secret_ends, events = excluded.events
    WHERE (e.url, e.secrets, e.secret_ends, e.events)
        IS DISTINCT FROM (excluded.url, excluded.secrets, excluded.secret_ends, excluded.events);
    RETURN NULL;
END
$$;
CREATE TRIGGER partner_created AFTER INSERT ON partners
    FOR EACH ROW EXECUTE FUNCTION first_endpoint_from_partner();
CREATE TRIGGER partner_changed
    AFTER UPDATE OF webhook_url, webhook_secret, old_webhook_secret, old_webhook_secret_until, webhook_events ON partners
    FOR EACH ROW EXECUTE FUNCTION first_endpoint_from_partner();

-- They read the webhook of a partner in `partners`.
CREATE FUNCTION partner_from_first_endpoint() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    UPDATE partners p
    SET webhook_url = NEW.url, webhook_secret = coalesce(NEW.secrets[1], ''), old_webhook_secret = NEW.secrets[2],
        old_webhook_secret_until = NEW.secret_ends[2], webhook_events = array_remove(NEW.events, 'topup.ready')
    WHERE p.partner_id = NEW.partner_id
      AND (p.webhook_url, p.webhook_secret, p.old_webhook_secret, p.old_webhook_secret_until, p.webhook_events)
          IS DISTINCT FROM (NEW.url, coalesce(NEW.secrets[1], ''), NEW.secrets[2], NEW.secret_ends[2],
                            array_remove(NEW.events, 'topup.ready'));
    RETURN NULL;
END
$$;
CREATE TRIGGER first_endpoint_changed AFTER INSERT OR UPDATE OF url, secrets, secret_ends, events ON partner_endpoints
    FOR EACH ROW WHEN (NEW.nth = 0) EXECUTE FUNCTION partner_from_first_endpoint();
