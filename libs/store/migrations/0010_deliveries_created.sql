-- no-transaction
-- serves: 7
CREATE INDEX CONCURRENTLY IF NOT EXISTS deliveries_created ON deliveries USING brin (created_at) WITH (pages_per_range = 32, autosummarize = on)
