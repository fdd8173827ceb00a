-- serves: 63
-- Whether the request that created an order may still answer with 422. Until that is certain, nobody is told that a unit of
-- the order has failed: the partner would refund its customer, and be told a moment later that nothing was ordered.
CREATE FUNCTION may_be_refused(of_order uuid) RETURNS boolean LANGUAGE sql STABLE
RETURN EXISTS (
    SELECT FROM orders o
    WHERE o.order_id = of_order AND o.answering IS NOT NULL AND o.refused_at IS NULL AND o.answer_by > now()
      AND NOT EXISTS (SELECT FROM placements p WHERE p.order_id = o.order_id AND p.state IN ('placed', 'parked'))
);

CREATE OR REPLACE VIEW partner_units WITH (security_invoker = true) AS
SELECT o.partner_id,
    o.order_id,
    o.external_order_id,
    t.topup_id,
    t.position,
    t.option_id,
    CASE
        WHEN e.ready_at IS NOT NULL THEN 'ready'
        WHEN t.state = 'failed' THEN 'failed'
        WHEN p.state = 'parked' THEN 'on_hold'
        ELSE 'processing'
    END AS state,
    p.refusal_status,
    p.refusal_message,
    e.iccid,
    e.profile,
    e.ready_at,
    e.erased_at,
    e.delivery_id,
    d.state AS delivery,
    d.attempt,
    d.attempted_at,
    d.delivered_at,
    d.created_at AS delivery_created_at,
    e.returned_at,
    t.state = 'failed' AND NOT may_be_refused(o.order_id) AS has_failed,
    p.state = 'parked' AS is_parked
FROM orders o
JOIN placements p ON p.order_id = o.order_id
JOIN topups t ON t.placement_id = p.placement_id
LEFT JOIN esims e ON e.topup_id = t.topup_id
LEFT JOIN deliveries d ON d.delivery_id = e.delivery_id;

-- Sends a ready unit to a further endpoint of its partner that did not exist when the unit became ready, as its partner asks.
-- Returns the id of the delivery, which is derived as the fan-out derives it, so that there is never a second one.
CREATE FUNCTION deliver_to(of_partner uuid, of_topup text, to_endpoint uuid) RETURNS uuid
LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS $$
WITH created AS (
    INSERT INTO deliveries (delivery_id, partner_id, kind, topup_id, order_id, endpoint_id)
    SELECT md5(concat_ws(' ', 'topup.ready', t.topup_id, n.endpoint_id))::uuid, o.partner_id, 'topup.ready', t.topup_id,
           o.order_id, n.endpoint_id
    FROM topups t
    JOIN placements p ON p.placement_id = t.placement_id
    JOIN orders o ON o.order_id = p.order_id
    JOIN esims e ON e.topup_id = t.topup_id
    JOIN partner_endpoints n ON n.partner_id = o.partner_id
    WHERE t.topup_id = of_topup AND o.partner_id = of_partner AND e.ready_at IS NOT NULL AND e.erased_at IS NULL
      AND n.endpoint_id = to_endpoint AND n.nth > 0 AND n.purpose = 'webhooks'
    ON CONFLICT DO NOTHING
    RETURNING delivery_id, partner_id, topup_id, endpoint_id
), linked AS (
    INSERT INTO further_deliveries (topup_id, delivery_id)
    SELECT topup_id, delivery_id FROM created
    ON CONFLICT DO NOTHING
), due AS (
    INSERT INTO work (id, kind, provider, lane, partner_id, at)
    SELECT delivery_id, 'deliver', '', endpoint_id::text, partner_id, now() FROM created
    ON CONFLICT DO NOTHING
)
SELECT delivery_id FROM created
$$;
REVOKE EXECUTE ON FUNCTION deliver_to(uuid, text, uuid) FROM PUBLIC;
