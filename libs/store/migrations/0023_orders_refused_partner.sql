-- no-transaction
-- serves: 14
-- A partner looks up its newest refused order without passing those of other partners with the same external id.
CREATE INDEX CONCURRENTLY IF NOT EXISTS orders_refused_partner
    ON orders (partner_id, external_order_id, created_at DESC) WHERE refused
