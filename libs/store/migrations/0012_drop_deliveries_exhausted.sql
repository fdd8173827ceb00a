-- no-transaction
-- serves: 7
-- contract: narrow tables answer what this index was for, and an index on `state` prevents updates in place
DROP INDEX CONCURRENTLY IF EXISTS deliveries_exhausted
