-- no-transaction
-- serves: 14
-- contract: deliveries_created_at serves the same statements
DROP INDEX CONCURRENTLY IF EXISTS deliveries_created
