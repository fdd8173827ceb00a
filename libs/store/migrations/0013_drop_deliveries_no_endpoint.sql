-- no-transaction
DROP INDEX CONCURRENTLY IF EXISTS deliveries_no_endpoint
