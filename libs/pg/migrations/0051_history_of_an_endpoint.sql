-- no-transaction
-- serves: 24
-- The page of an order shows what its endpoints suffered while it waited for them.
CREATE INDEX CONCURRENTLY history_endpoint ON history (endpoint_id, at) WHERE endpoint_id IS NOT NULL;
