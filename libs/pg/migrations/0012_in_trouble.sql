-- serves: 1
-- contract: esim_requests_bounds is added again at once, and allows the same and the new column.
--
-- Since when the provider says of an eSIM that it was downloaded and not installed; null if it does not say so now. An
-- installation follows a download within minutes, so after a while its customer needs help.
ALTER TABLE esim_requests
    ADD COLUMN downloaded_at timestamptz,
    DROP CONSTRAINT esim_requests_bounds,
    ADD CONSTRAINT esim_requests_bounds CHECK (
        least(usage_asked_at, ends_at, read_at, as_of, usage_failed_at, reported_at, give_back_asked_at, attempted_at,
              not_returned_at, ended_at, poll_at, polled_at, offers_asked_at, offers_at, latest_end, downloaded_at)
            >= '0001-01-01 00:00:00+00'
        AND greatest(usage_asked_at, ends_at, read_at, as_of, usage_failed_at, reported_at, give_back_asked_at, attempted_at,
                     not_returned_at, ended_at, poll_at, polled_at, offers_asked_at, offers_at, latest_end, downloaded_at)
            <= '9999-12-31 00:00:00+00'
        AND greatest(octet_length(topup_id), octet_length(provider), octet_length(usage_failure), octet_length(give_back),
                     octet_length(reason), octet_length(message), pg_column_size(reached), pg_column_size(offers)) <= 100000
        AND plan BETWEEN 1 AND 1000000000) NOT VALID;

-- Since when an eSIM is in trouble: a later answer of the provider has confirmed that it is downloaded and not installed.
CREATE FUNCTION in_trouble_since(downloaded_at timestamptz, read_at timestamptz) RETURNS timestamptz LANGUAGE sql STABLE
AS $$ SELECT CASE WHEN read_at >= downloaded_at + interval '15 minutes' THEN downloaded_at END $$;
