-- serves: 1
-- contract: three constraints come back in the same transaction, wider by new columns, which no older program writes; make_events
-- is called by triggers only, and the two new parameters have defaults.
--
-- Events about the use of eSIMs, about what waits for a person, and about cancelled orders. An event about a topup is linked to
-- it in `further_deliveries`, whichever endpoint it goes to, so an event of a new kind needs nothing that finds it again.

-- 1. Events and their topups

-- A link from a topup leads to a webhook of the same partner about this topup: to an event, or to a delivery to a further
-- endpoint. It is looked at when its transaction commits, because the webhook is inserted by the same statement.
CREATE OR REPLACE FUNCTION further_delivery_of_its_topup() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    -- Both may be gone by then, and the partner may have deleted the endpoint: then the webhook goes to nobody.
    IF EXISTS (
        SELECT FROM further_deliveries f
        LEFT JOIN deliveries d ON d.delivery_id = f.delivery_id
        WHERE f.topup_id = NEW.topup_id AND f.delivery_id = NEW.delivery_id
          AND (d.topup_id = f.topup_id AND (d.endpoint_id IS NOT NULL OR d.kind <> 'topup.ready')
               AND NOT EXISTS (SELECT FROM partner_endpoints e
                               WHERE e.endpoint_id = d.endpoint_id AND e.partner_id <> d.partner_id)
               AND d.partner_id = (SELECT p.partner_id FROM topups t JOIN placements p ON p.placement_id = t.placement_id
                                   WHERE t.topup_id = f.topup_id)) IS NOT TRUE
    ) THEN
        RAISE EXCEPTION 'delivery % is not an event about topup % or one of it to a further endpoint of its partner',
            NEW.delivery_id, NEW.topup_id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END
$$;

-- Events of before get their links. `events_of_topup` stays for the programs of before.
INSERT INTO further_deliveries (topup_id, delivery_id)
SELECT d.topup_id, d.delivery_id FROM partners p
JOIN deliveries d ON d.partner_id = p.partner_id AND d.kind <> 'topup.ready'
JOIN topups t ON t.topup_id = d.topup_id
WHERE d.kind = 'topup.failed' AND d.endpoint_id IS NULL
ON CONFLICT DO NOTHING;

CREATE OR REPLACE VIEW order_deliveries WITH (security_invoker = true) AS
    SELECT p.order_id, t.topup_id, named.delivery_id
    FROM placements p
    JOIN topups t ON t.placement_id = p.placement_id
    LEFT JOIN esims e ON e.topup_id = t.topup_id
    CROSS JOIN LATERAL unnest(
        e.delivery_id || ARRAY (SELECT f.delivery_id FROM further_deliveries f WHERE f.topup_id = t.topup_id))
        AS named (delivery_id)
    WHERE named.delivery_id IS NOT NULL;

-- Whether an event need not be sent any more: its endpoint no longer wants it, its order was refused, or was not cancelled, or its
-- topup has not failed, or does not wait for a person, after all. So is an event about a topup that is not one of the order that
-- it names, which must be an order of its partner: nobody is told of somebody else's topup, whatever kind of event names it and
-- whoever has created it. A cancelled order is a refused one.
CREATE OR REPLACE FUNCTION is_pointless(
    kind text, events text[], topup_id text, is_of_its_order boolean, refused_at timestamptz, topup_state text,
    ready_at timestamptz)
RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT kind <> 'topup.ready' AND (
        kind NOT LIKE 'notice.%' AND kind <> ALL (events)
        OR topup_id IS NOT NULL AND (is_of_its_order AND (refused_at IS NULL OR kind = 'order.cancelled')) IS NOT TRUE
        OR kind = 'order.cancelled' AND refused_at IS NULL
        OR kind = 'topup.failed' AND (topup_state = 'failed' AND ready_at IS NULL) IS NOT TRUE
        OR kind = 'topup.on_hold' AND (topup_state = 'failed' OR ready_at IS NOT NULL))
$$;

CREATE OR REPLACE FUNCTION is_unconfirmed(kind text, refused_at timestamptz, answer_by timestamptz)
RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT kind NOT IN ('topup.ready', 'order.cancelled') AND (refused_at IS NOT NULL OR coalesce(answer_by > now(), false))
$$;

-- Creates the events of a kind about a topup, one for each endpoint of its partner that wants them. They are due when the order
-- can no longer be answered with 422. `detail` tells events of one kind apart, such as the threshold of used data, and `says` is
-- what the event says beside its topup. The id of an event is derived from the topup, the detail and, unless it goes to the first
-- endpoint, the endpoint, so that it exists only once. All events about topups are made here in the transaction of their cause,
-- so that no role names the partner or the order of an event: both are those of the topup.
DROP FUNCTION make_events(text, text);
CREATE FUNCTION make_events(of_kind text, of_topup text, detail text DEFAULT NULL, says jsonb DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
BEGIN
    WITH wanted AS (
        SELECT o.order_id, o.partner_id, o.answer_by, nullif(e.endpoint_id, o.partner_id) AS endpoint_id, e.lane
        FROM topups t
        JOIN placements p ON p.placement_id = t.placement_id
        JOIN orders o ON o.order_id = p.order_id
        JOIN partner_endpoints e ON e.partner_id = o.partner_id
        WHERE t.topup_id = of_topup AND (o.refused_at IS NULL OR of_kind = 'order.cancelled') AND of_kind = ANY (e.events)
    ), created AS (
        INSERT INTO deliveries (delivery_id, partner_id, kind, topup_id, order_id, endpoint_id, notice)
        SELECT derived_id(of_kind, concat_ws(' ', of_topup, detail, endpoint_id)), partner_id, of_kind, of_topup, order_id,
               endpoint_id, says
        FROM wanted
        ON CONFLICT DO NOTHING
        RETURNING delivery_id, endpoint_id
    ), linked AS (
        INSERT INTO further_deliveries (topup_id, delivery_id)
        SELECT of_topup, delivery_id FROM created
        ON CONFLICT DO NOTHING
    )
    INSERT INTO work (id, kind, provider, lane, partner_id, at)
    SELECT delivery_id, 'deliver', '', lane, partner_id, greatest(answer_by, now())
    FROM created JOIN wanted ON wanted.endpoint_id IS NOT DISTINCT FROM created.endpoint_id;
END
$$;
REVOKE EXECUTE ON FUNCTION make_events(text, text, text, jsonb) FROM PUBLIC;

-- Whoever parks a placement puts it into `held`, and each of its units that is not ready waits for a person.
CREATE FUNCTION placement_held() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    PERFORM make_events('topup.on_hold', t.topup_id)
    FROM topups t LEFT JOIN esims e ON e.topup_id = t.topup_id
    WHERE t.placement_id = NEW.id AND t.state = 'pending' AND e.ready_at IS NULL;
    RETURN NULL;
END
$$;
CREATE TRIGGER placement_held AFTER INSERT ON held FOR EACH ROW WHEN (NEW.state = 'parked') EXECUTE FUNCTION placement_held();

-- One event for the whole order, which is linked to its first unit.
CREATE FUNCTION order_cancelled() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    PERFORM make_events('order.cancelled', min(t.topup_id), NULL, jsonb_build_object('units', count(*)))
    FROM placements p JOIN topups t ON t.placement_id = p.placement_id
    WHERE p.order_id = NEW.order_id;
    RETURN NULL;
END
$$;
CREATE TRIGGER order_cancelled AFTER UPDATE OF cancelled_at ON orders FOR EACH ROW
    WHEN (NEW.cancelled_at IS NOT NULL AND OLD.cancelled_at IS NULL) EXECUTE FUNCTION order_cancelled();

CREATE FUNCTION esim_returned() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    PERFORM make_events('esim.returned', NEW.topup_id);
    RETURN NULL;
END
$$;
CREATE TRIGGER esim_returned AFTER UPDATE OF returned_at ON esims FOR EACH ROW
    WHEN (NEW.returned_at IS NOT NULL AND OLD.returned_at IS NULL) EXECUTE FUNCTION esim_returned();

-- 2. What was said of an eSIM, and when it is asked for again

ALTER TABLE esim_requests
    -- The names of the milestones that it has reached (`domain::esim_use`), of each of which its partner is told once.
    ADD COLUMN reached text[] NOT NULL DEFAULT '{}',
    -- When the provider is asked next, because the partner wants to hear of its use; null if it need not be.
    ADD COLUMN poll_at timestamptz,
    -- Since when such a question waits for its answer. It waits in the row of `work` of a report.
    ADD COLUMN polled_at timestamptz,
    DROP CONSTRAINT esim_requests_bounds,
    ADD CONSTRAINT esim_requests_bounds CHECK (
        least(usage_asked_at, ends_at, read_at, as_of, usage_failed_at, reported_at, give_back_asked_at, attempted_at,
              not_returned_at, ended_at, poll_at, polled_at) >= '0001-01-01 00:00:00+00'
        AND greatest(usage_asked_at, ends_at, read_at, as_of, usage_failed_at, reported_at, give_back_asked_at, attempted_at,
                     not_returned_at, ended_at, poll_at, polled_at) <= '9999-12-31 00:00:00+00'
        AND greatest(octet_length(topup_id), octet_length(provider), octet_length(usage_failure), octet_length(give_back),
                     octet_length(reason), octet_length(message), pg_column_size(reached)) <= 100000) NOT VALID;

ALTER TABLE providers
    -- Until when its budget of polls is used.
    ADD COLUMN polled_at timestamptz NOT NULL DEFAULT now(),
    DROP CONSTRAINT providers_bounds,
    ADD CONSTRAINT providers_bounds CHECK (
        least(open_until, changed_at, failing_since, balance_at, polled_at) >= '0001-01-01 00:00:00+00'
        AND greatest(open_until, changed_at, failing_since, balance_at, polled_at) <= '9999-12-31 00:00:00+00'
        AND greatest(octet_length(name), octet_length(reason), octet_length(balance)) <= 100000
        AND openings BETWEEN 0 AND 1000000000
        AND version BETWEEN 0 AND 9000000000000000000) NOT VALID;

ALTER TABLE partner_endpoints
    -- Up to which delivery the eSIMs of its partner are polled, because it wants to hear of their use. Null: it does not want to.
    ADD COLUMN polls_up_to timestamptz,
    DROP CONSTRAINT partner_endpoints_bounds,
    ADD CONSTRAINT partner_endpoints_bounds CHECK (
        least(created_at, verified_at, code_until, moving_since, failing_since, told_at, exhausted_told_at, unproven_since,
              polls_up_to)
            >= '0001-01-01 00:00:00+00'
        AND greatest(created_at, verified_at, code_until, moving_since, failing_since, told_at, exhausted_told_at, unproven_since,
              polls_up_to)
            <= '9999-12-31 00:00:00+00'
        AND (blocked_until = 'infinity' OR blocked_until BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00')
        AND '0001-01-01 00:00:00+00' <= ALL (secret_ends) AND '9999-12-31 00:00:00+00' >= ALL (secret_ends)
        AND greatest(octet_length(purpose), octet_length(url), octet_length(headers), octet_length(code_digest),
                     octet_length(told), pg_column_size(events), pg_column_size(secrets), pg_column_size(secret_ends)) <= 100000) NOT VALID;

-- Begins the record of what a provider said of an eSIM: it locks the row of the eSIM and returns which milestones it has reached,
-- and its age in seconds. Its order is locked first, as by a question of its partner, so that no erasure and no archive misses
-- an event that follows. Nothing is returned for an eSIM whose order is erased.
CREATE FUNCTION begin_reading(of_topup text) RETURNS TABLE (reached text[], age double precision)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    PERFORM FROM topups t JOIN placements p ON p.placement_id = t.placement_id JOIN orders o ON o.order_id = p.order_id
    WHERE t.topup_id = of_topup AND o.erased_at IS NULL
    FOR KEY SHARE OF o;
    IF FOUND THEN
        RETURN QUERY
            SELECT r.reached, extract(epoch FROM now() - e.ready_at)::float8
            FROM esim_requests r JOIN esims e ON e.topup_id = r.topup_id
            WHERE r.topup_id = of_topup AND e.ready_at IS NOT NULL
            FOR UPDATE OF r;
    END IF;
END
$$;
REVOKE EXECUTE ON FUNCTION begin_reading(text) FROM PUBLIC;

-- Tells the partner of an eSIM that it has reached a milestone, if it wants to hear it. The transaction has begun a reading of it.
CREATE FUNCTION tell_of_use(of_topup text, of_kind text, threshold text, says jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF of_kind NOT LIKE 'esim.%' OR of_kind = 'esim.returned' THEN
        RAISE EXCEPTION 'an event % does not follow from the use of an eSIM', of_kind USING ERRCODE = 'insufficient_privilege';
    END IF;
    PERFORM make_events(of_kind, of_topup, threshold, says);
END
$$;
REVOKE EXECUTE ON FUNCTION tell_of_use(text, text, text, jsonb) FROM PUBLIC;

-- Makes questions about the use of eSIMs of a provider due whose partners want to hear of it, the most overdue ones first, and at
-- most `per_hour` of them in an hour, however many processes call it. Returns how many; null if another process does it now.
-- The eSIMs of an endpoint are followed from its wish on. Those that were delivered since the last call are found by their
-- webhooks, which the index of a partner has in the order of time; a minute covers the slowest commit of one. Two providers may do
-- so at once, because following an eSIM twice changes nothing; the order of the endpoints keeps them from a deadlock.
CREATE FUNCTION poll_esims(of_provider text, per_hour integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    used_until timestamptz;
    budget bigint;
    wishes text[] := '{esim.installed,esim.first_used,esim.low_data,esim.used_up,esim.expiring,esim.expired}';
    wish record;
    walked timestamptz;
    polled bigint;
BEGIN
    SELECT greatest(polled_at, now() - interval '5 minutes') INTO used_until FROM providers WHERE name = of_provider
    FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    FOR wish IN
        SELECT endpoint_id, partner_id, polls_up_to, events && wishes AS wanted FROM partner_endpoints
        WHERE purpose = 'webhooks' AND (events && wishes OR polls_up_to IS NOT NULL)
        ORDER BY endpoint_id
    LOOP
        IF NOT wish.wanted THEN
            UPDATE partner_endpoints SET polls_up_to = NULL WHERE endpoint_id = wish.endpoint_id;
            CONTINUE;
        END IF;
        WITH delivered AS MATERIALIZED (
            SELECT topup_id, created_at FROM deliveries
            WHERE partner_id = wish.partner_id AND created_at > wish.polls_up_to AND created_at < now() - interval '1 minute'
              AND kind = 'topup.ready' AND endpoint_id IS NULL
            ORDER BY created_at FETCH FIRST 1000 ROWS WITH TIES
        ), followed AS (
            INSERT INTO esim_requests AS r (topup_id, partner_id, provider, poll_at)
            SELECT d.topup_id, wish.partner_id, e.provider, now()
            FROM delivered d JOIN esims e ON e.topup_id = d.topup_id
            WHERE e.ready_at IS NOT NULL AND e.erased_at IS NULL AND e.returned_at IS NULL
            ON CONFLICT (topup_id) DO UPDATE SET poll_at = now() WHERE r.poll_at IS NULL
        )
        SELECT max(created_at) INTO walked FROM delivered;
        IF walked IS NOT NULL OR wish.polls_up_to IS NULL THEN
            UPDATE partner_endpoints SET polls_up_to = greatest(polls_up_to, coalesce(walked, now() - interval '1 minute'))
            WHERE endpoint_id = wish.endpoint_id;
        END IF;
    END LOOP;
    budget := floor(extract(epoch FROM now() - used_until) * per_hour / 3600);
    IF budget < 1 THEN
        RETURN 0;
    END IF;
    WITH chosen AS MATERIALIZED (
        SELECT r.topup_id FROM esim_requests r
        WHERE r.provider = of_provider AND r.poll_at <= now()
        ORDER BY r.poll_at LIMIT budget FOR UPDATE SKIP LOCKED
    ), followed AS MATERIALIZED (
        -- A question that has no answer is asked again after a day, unless its answer says another time.
        UPDATE esim_requests r
        SET poll_at = CASE WHEN e.topup_id IS NOT NULL THEN now() + interval '1 day' END,
            polled_at = CASE WHEN e.topup_id IS NOT NULL THEN now() END
        FROM chosen c LEFT JOIN esims e
            ON e.topup_id = c.topup_id AND e.erased_at IS NULL AND e.returned_at IS NULL AND EXISTS (
                SELECT FROM esim_requests q JOIN partner_endpoints n ON n.partner_id = q.partner_id
                WHERE q.topup_id = c.topup_id AND n.polls_up_to IS NOT NULL)
        WHERE r.topup_id = c.topup_id
        RETURNING r.topup_id, r.provider, r.partner_id, r.polled_at
    )
    INSERT INTO work (id, kind, provider, lane, partner_id, at)
    SELECT derived_id('report', topup_id), 'usage', provider, topup_id, partner_id, now() FROM followed
    WHERE polled_at IS NOT NULL
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS polled = ROW_COUNT;
    -- What is not used of the budget is kept for five minutes.
    UPDATE providers SET polled_at = used_until + make_interval(secs => polled * 3600.0 / per_hour) WHERE name = of_provider;
    RETURN polled;
END
$$;
REVOKE EXECUTE ON FUNCTION poll_esims(text, integer) FROM PUBLIC;
