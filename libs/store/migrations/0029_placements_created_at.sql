-- no-transaction
-- serves: 14
-- The sweep reads the rows of two seconds once a second. With BRIN it also reads all pages that autovacuum has not
-- summarised yet: those of a minute and more.
CREATE INDEX CONCURRENTLY IF NOT EXISTS placements_created_at ON placements (created_at)
