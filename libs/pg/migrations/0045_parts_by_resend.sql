-- no-transaction
-- serves: 24
-- The parts of a resend of several partners.
CREATE INDEX CONCURRENTLY resends_batch ON resends (batch_id) WHERE batch_id IS NOT NULL;
