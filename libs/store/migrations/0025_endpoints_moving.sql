-- no-transaction
-- serves: 14
-- Notifiers look for endpoints whose waiting deliveries are not all due after a change of the URL.
CREATE INDEX CONCURRENTLY IF NOT EXISTS endpoints_moving ON endpoints (partner_id) WHERE moving_since IS NOT NULL
