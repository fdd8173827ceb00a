-- no-transaction
-- serves: 7
CREATE INDEX CONCURRENTLY IF NOT EXISTS orders_partner ON orders (partner_id, order_id)
