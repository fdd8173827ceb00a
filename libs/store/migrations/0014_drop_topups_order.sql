-- no-transaction
DROP INDEX CONCURRENTLY IF EXISTS topups_order
