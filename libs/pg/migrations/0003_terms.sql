-- serves: 1
-- contract: two constraints come back in the same transaction, wider by the new column, which no older program writes
-- What an order agrees about a unit besides its option and tells its partner ever after, as one JSON object
-- (`domain::agreed`), which statements carry without reading it. So a further field of it needs no column. Null if nothing
-- else is agreed, as of all units of before and of programs that do not know the column.
ALTER TABLE topups ADD COLUMN terms text;
ALTER TABLE topups DROP CONSTRAINT topups_bounds;
ALTER TABLE topups ADD CONSTRAINT topups_bounds CHECK (
    greatest(octet_length(topup_id), octet_length(provider_option_id), octet_length(state), octet_length(reason),
             octet_length(terms)) <= 100000) NOT VALID;

-- Settlements copy them, as they do the option.
ALTER TABLE deliveries ADD COLUMN terms text;
ALTER TABLE deliveries DROP CONSTRAINT deliveries_bounds;
ALTER TABLE deliveries ADD CONSTRAINT deliveries_bounds CHECK (
    least(ends_at, attempted_at, delivered_at, created_at, ordered_at) >= '0001-01-01 00:00:00+00'
    AND greatest(ends_at, attempted_at, delivered_at, created_at, ordered_at) <= '9999-12-31 00:00:00+00'
    AND greatest(octet_length(kind), octet_length(topup_id), octet_length(credential), octet_length(state),
                 octet_length(error), pg_column_size(notice), octet_length(external_order_id),
                 octet_length(traceparent), octet_length(terms)) <= 100000) NOT VALID;

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
    t.terms
FROM orders o
JOIN placements p ON p.order_id = o.order_id
JOIN topups t ON t.placement_id = p.placement_id
LEFT JOIN esims e ON e.topup_id = t.topup_id
LEFT JOIN deliveries d ON d.delivery_id = e.delivery_id AND d.partner_id = o.partner_id;
