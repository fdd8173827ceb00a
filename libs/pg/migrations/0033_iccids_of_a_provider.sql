-- no-transaction
-- serves: 18
-- The index over all providers replaces the one of each provider.
DROP INDEX CONCURRENTLY esims_iccid_key;
