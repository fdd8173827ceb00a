-- no-transaction
-- serves: 14
-- Retention walks over old attempts; the fast path writes no row here.
CREATE INDEX CONCURRENTLY IF NOT EXISTS delivery_attempts_at ON delivery_attempts (at)
