-- no-transaction
-- serves: 14
-- As for placements.
CREATE INDEX CONCURRENTLY IF NOT EXISTS deliveries_created_at ON deliveries (created_at)
