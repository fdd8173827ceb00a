-- no-transaction
-- serves: 1
-- The eSIMs of a provider whose use is asked for next, the most overdue ones first.
CREATE INDEX CONCURRENTLY esim_requests_polls ON esim_requests (provider, poll_at) WHERE poll_at IS NOT NULL;
