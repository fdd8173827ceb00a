-- no-transaction
-- serves: 24
-- The list of resends, without the single webhooks that partners have asked for.
CREATE INDEX CONCURRENTLY resends_created ON resends (created_at) WHERE batch_id IS NULL AND (delivery_id IS NULL OR via <> 'api');
