-- no-transaction
-- serves: 14
-- The count of due deliveries reads no row that waits for its retry.
CREATE INDEX CONCURRENTLY IF NOT EXISTS delivery_due_at ON delivery_due (at)
