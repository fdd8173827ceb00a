-- no-transaction
-- serves: 7
-- contract: programs of schema 7 find topups by their placement, and each entry of an unused index costs a write
DROP INDEX CONCURRENTLY IF EXISTS topups_order
