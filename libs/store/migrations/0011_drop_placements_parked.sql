-- no-transaction
DROP INDEX CONCURRENTLY IF EXISTS placements_parked
