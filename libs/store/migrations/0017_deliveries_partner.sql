-- no-transaction
-- serves: 14
-- An operator's lists and replays of one partner read its deliveries by time.
CREATE INDEX CONCURRENTLY IF NOT EXISTS deliveries_partner ON deliveries (partner_id, created_at)
