-- no-transaction
-- serves: 7
CREATE INDEX CONCURRENTLY IF NOT EXISTS placements_created ON placements USING brin (created_at) WITH (pages_per_range = 32, autosummarize = on)
