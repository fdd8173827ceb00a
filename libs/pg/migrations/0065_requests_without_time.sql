-- serves: 63
-- contract: no statement of schema 63 names the column; the last programs that set it to null are those of schema 55
-- When a request about an eSIM is due stands in `work` since 0041.
ALTER TABLE esim_requests
    -- The constraint names the column.
    DROP CONSTRAINT esim_requests_bounds,
    DROP COLUMN at,
    ADD CONSTRAINT esim_requests_bounds CHECK (
        least(usage_asked_at, ends_at, read_at, usage_failed_at, give_back_asked_at, attempted_at, not_returned_at, ended_at)
            >= '0001-01-01 00:00:00+00'
        AND greatest(usage_asked_at, ends_at, read_at, usage_failed_at, give_back_asked_at, attempted_at, not_returned_at,
                     ended_at) <= '9999-12-31 00:00:00+00'
        AND greatest(octet_length(topup_id), octet_length(provider), octet_length(usage_failure), octet_length(give_back),
                     octet_length(reason), octet_length(message)) <= 100000) NOT VALID;
