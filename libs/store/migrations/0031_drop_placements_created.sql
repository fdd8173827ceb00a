-- no-transaction
-- serves: 14
-- contract: placements_created_at serves the same statements
DROP INDEX CONCURRENTLY IF EXISTS placements_created
