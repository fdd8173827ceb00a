-- serves: 9
-- Further endpoints (0010) get the events about failed topups that they asked for.

-- As in 0004, but for each endpoint that wants the event. The id of an event at a further endpoint is derived from the
-- topup and the endpoint, so that it exists only once there, too.
CREATE OR REPLACE FUNCTION topup_failed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    WITH subject AS (
        SELECT o.order_id, o.partner_id, o.answer_by, a.webhook_events, a.has_further_endpoints
        FROM placements p
        JOIN orders o ON o.order_id = p.order_id
        JOIN partners a ON a.partner_id = o.partner_id
        WHERE p.placement_id = NEW.placement_id AND o.refused_at IS NULL
    ), wanted AS (
        SELECT NULL::uuid AS endpoint_id FROM subject WHERE 'topup.failed' = ANY (webhook_events)
        UNION ALL
        SELECT f.endpoint_id FROM subject JOIN further_endpoints f ON f.partner_id = subject.partner_id
        WHERE subject.has_further_endpoints AND 'topup.failed' = ANY (f.events)
    ), created AS (
        INSERT INTO deliveries (delivery_id, partner_id, kind, topup_id, order_id, endpoint_id)
        SELECT md5(concat_ws(' ', 'topup.failed', NEW.topup_id, endpoint_id))::uuid, partner_id, 'topup.failed',
               NEW.topup_id, order_id, endpoint_id
        FROM subject, wanted
        ON CONFLICT DO NOTHING
        RETURNING delivery_id, endpoint_id
    ), linked AS (
        INSERT INTO further_deliveries (topup_id, delivery_id)
        SELECT NEW.topup_id, delivery_id FROM created WHERE endpoint_id IS NOT NULL
        ON CONFLICT DO NOTHING
    )
    INSERT INTO work (id, kind, provider, lane, partner_id, at)
    SELECT delivery_id, 'deliver', '', coalesce(endpoint_id::text, ''), partner_id, greatest(answer_by, now())
    FROM created, subject;
    RETURN NULL;
END
$$;
