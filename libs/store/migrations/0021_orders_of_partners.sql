-- no-transaction
-- serves: 14
CREATE INDEX CONCURRENTLY IF NOT EXISTS orders_partner ON orders (partner_id, order_id)
