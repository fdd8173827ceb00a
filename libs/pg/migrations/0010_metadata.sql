-- serves: 1
-- contract: two constraints come back in the same transaction, wider by the new column, which no older program writes; a view
-- gets columns behind the others.
--
-- What a partner keeps with an order and with its items, as one JSON object of texts each (`domain::metadata`), which nobody
-- interprets. Null if it keeps nothing, as of all orders of before and of programs that do not know the columns. They may name
-- persons, so an erasure removes them.
ALTER TABLE orders ADD COLUMN metadata text;
ALTER TABLE orders DROP CONSTRAINT orders_bounds;
ALTER TABLE orders ADD CONSTRAINT orders_bounds CHECK (
    least(refused_at, answer_by, cancelled_at, erased_at, created_at) >= '0001-01-01 00:00:00+00'
    AND greatest(refused_at, answer_by, cancelled_at, erased_at, created_at) <= '9999-12-31 00:00:00+00'
    AND greatest(octet_length(external_order_id), octet_length(traceparent), octet_length(metadata)) <= 100000) NOT VALID;

ALTER TABLE topups ADD COLUMN metadata text;
ALTER TABLE topups DROP CONSTRAINT topups_bounds;
ALTER TABLE topups ADD CONSTRAINT topups_bounds CHECK (
    greatest(octet_length(topup_id), octet_length(provider_option_id), octet_length(state), octet_length(reason),
             octet_length(terms), octet_length(metadata)) <= 100000) NOT VALID;

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
    p.state = 'parked' AS is_parked,
    t.terms,
    t.metadata,
    o.metadata AS order_metadata
FROM orders o
JOIN placements p ON p.order_id = o.order_id
JOIN topups t ON t.placement_id = p.placement_id
LEFT JOIN esims e ON e.topup_id = t.topup_id
LEFT JOIN deliveries d ON d.delivery_id = e.delivery_id AND d.partner_id = o.partner_id;
