-- no-transaction
DROP INDEX CONCURRENTLY IF EXISTS deliveries_exhausted
