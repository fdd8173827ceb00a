-- no-transaction
-- serves: 24
-- The same of its providers, whose breakers opened and closed.
CREATE INDEX CONCURRENTLY history_provider ON history (provider, at) WHERE order_id IS NULL AND provider IS NOT NULL;
