-- serves: 24
-- What the rows of a unit say, beside the state that the version before reads from this view. This version
-- derives the state by domain::standing, so that look-ups, sentences and pages cannot differ.
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
    t.state = 'failed' AS has_failed,
    p.state = 'parked' AS is_parked
FROM orders o
JOIN placements p ON p.order_id = o.order_id
JOIN topups t ON t.placement_id = p.placement_id
LEFT JOIN esims e ON e.topup_id = t.topup_id
LEFT JOIN deliveries d ON d.delivery_id = e.delivery_id;
