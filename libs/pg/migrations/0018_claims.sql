-- serves: 1
-- contract: esim_requests_bounds is added again at once, and allows the same and the new columns. Three functions do the same as
-- before, and more only for claims, which programs of before make none of; one that reads a claim reports a state that it does not know.
--
-- Claims: some providers take an eSIM back only if people there agree, days later. Such a give-back is `claimed` until they do.
ALTER TABLE esim_requests
    -- Why the eSIM is given back, one of `domain::esim_change::GiveBackCause`; null if it was never asked for with one.
    ADD COLUMN give_back_cause text,
    -- The id of the claim at the provider.
    ADD COLUMN claim text,
    DROP CONSTRAINT esim_requests_bounds,
    ADD CONSTRAINT esim_requests_bounds CHECK (
        least(usage_asked_at, ends_at, read_at, as_of, usage_failed_at, reported_at, give_back_asked_at, attempted_at,
              not_returned_at, ended_at, poll_at, polled_at, offers_asked_at, offers_at, latest_end, downloaded_at,
              suspension_asked_at, suspension_attempted_at, suspension_not_done_at, suspension_ended_at)
            >= '0001-01-01 00:00:00+00'
        AND greatest(usage_asked_at, ends_at, read_at, as_of, usage_failed_at, reported_at, give_back_asked_at, attempted_at,
                     not_returned_at, ended_at, poll_at, polled_at, offers_asked_at, offers_at, latest_end, downloaded_at,
                     suspension_asked_at, suspension_attempted_at, suspension_not_done_at, suspension_ended_at)
            <= '9999-12-31 00:00:00+00'
        AND greatest(octet_length(topup_id), octet_length(provider), octet_length(usage_failure), octet_length(give_back),
                     octet_length(reason), octet_length(message), pg_column_size(reached), pg_column_size(offers),
                     octet_length(suspension), octet_length(suspension_reason), octet_length(suspension_message),
                     octet_length(give_back_cause), octet_length(claim)) <= 100000
        AND plan BETWEEN 1 AND 1000000000) NOT VALID;

-- Whether the provider suspends eSIMs, so that nobody is offered what it does not do. Null until a provisioner has said it.
ALTER TABLE providers ADD COLUMN suspends boolean;

-- Ends a parked give-back, or one that is claimed, as an operator has found it at the provider, or was told by it.
CREATE OR REPLACE FUNCTION resolve_give_back(resolved_topup text, after_attempt integer, is_returned boolean) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    UPDATE esim_requests
    SET give_back = CASE WHEN is_returned THEN 'returned' ELSE 'refused' END, ended_at = now(), reason = 'resolved',
        message = NULL, not_returned_at = NULL
    WHERE topup_id = resolved_topup AND give_back IN ('parked', 'claimed') AND attempt = after_attempt;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM mark_returned(resolved_topup);
    RETURN true;
END
$$;

-- Makes questions about the use of eSIMs due, as before, and also those about claims.
CREATE OR REPLACE FUNCTION poll_esims(of_provider text, per_hour integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    used_until timestamptz;
    budget bigint;
    wishes text[] := '{esim.installed,esim.first_used,esim.low_data,esim.used_up,esim.expiring,esim.expired}';
    wish record;
    walked timestamptz;
    polled bigint;
BEGIN
    SELECT greatest(polled_at, now() - interval '5 minutes') INTO used_until FROM providers WHERE name = of_provider
    FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    FOR wish IN
        SELECT endpoint_id, partner_id, polls_up_to, events && wishes AS wanted FROM partner_endpoints
        WHERE purpose = 'webhooks' AND (events && wishes OR polls_up_to IS NOT NULL)
        ORDER BY endpoint_id
    LOOP
        IF NOT wish.wanted THEN
            UPDATE partner_endpoints SET polls_up_to = NULL WHERE endpoint_id = wish.endpoint_id;
            CONTINUE;
        END IF;
        WITH delivered AS MATERIALIZED (
            SELECT topup_id, created_at FROM deliveries
            WHERE partner_id = wish.partner_id AND created_at > wish.polls_up_to AND created_at < now() - interval '1 minute'
              AND kind = 'topup.ready' AND endpoint_id IS NULL
            ORDER BY created_at FETCH FIRST 1000 ROWS WITH TIES
        ), followed AS (
            INSERT INTO esim_requests AS r (topup_id, partner_id, provider, poll_at)
            SELECT d.topup_id, wish.partner_id, e.provider, now()
            FROM delivered d JOIN esims e ON e.topup_id = d.topup_id
            WHERE e.ready_at IS NOT NULL AND e.erased_at IS NULL AND e.returned_at IS NULL
            ON CONFLICT (topup_id) DO UPDATE SET poll_at = now() WHERE r.poll_at IS NULL
        )
        SELECT max(created_at) INTO walked FROM delivered;
        IF walked IS NOT NULL OR wish.polls_up_to IS NULL THEN
            UPDATE partner_endpoints SET polls_up_to = greatest(polls_up_to, coalesce(walked, now() - interval '1 minute'))
            WHERE endpoint_id = wish.endpoint_id;
        END IF;
    END LOOP;
    budget := floor(extract(epoch FROM now() - used_until) * per_hour / 3600);
    IF budget < 1 THEN
        RETURN 0;
    END IF;
    WITH chosen AS MATERIALIZED (
        SELECT r.topup_id FROM esim_requests r
        WHERE r.provider = of_provider AND r.poll_at <= now()
        ORDER BY r.poll_at LIMIT budget FOR UPDATE SKIP LOCKED
    ), followed AS MATERIALIZED (
        -- A question that has no answer is asked again after a day, unless its answer says another time.
        UPDATE esim_requests r
        SET poll_at = CASE WHEN e.topup_id IS NOT NULL THEN now() + interval '1 day' END,
            polled_at = CASE WHEN e.topup_id IS NOT NULL THEN now() END
        FROM chosen c LEFT JOIN esims e
            ON e.topup_id = c.topup_id AND e.returned_at IS NULL AND EXISTS (
                SELECT FROM esim_requests q
                WHERE q.topup_id = c.topup_id
                  -- A claim is looked at whether its partner wants to hear of its use or not, until it is decided.
                  AND (q.give_back = 'claimed'
                       OR (e.erased_at IS NULL AND EXISTS (
                               SELECT FROM partner_endpoints n WHERE n.partner_id = q.partner_id AND n.polls_up_to IS NOT NULL))))
        WHERE r.topup_id = c.topup_id
        RETURNING r.topup_id, r.provider, r.partner_id, r.polled_at
    )
    INSERT INTO work (id, kind, provider, lane, partner_id, at)
    SELECT derived_id('report', topup_id), 'usage', provider, topup_id, partner_id, now() FROM followed
    WHERE polled_at IS NOT NULL
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS polled = ROW_COUNT;
    -- What is not used of the budget is kept for five minutes.
    UPDATE providers SET polled_at = used_until + make_interval(secs => polled * 3600.0 / per_hour) WHERE name = of_provider;
    RETURN polled;
END
$$;

-- The smallest id of the running transactions that may still write a topup's webhook, placement or change; null if none
-- runs. What has a smaller id has ended. Whoever writes a table holds a lock on it until its transaction ends, and also locks its own
-- id, which tells whose the other locks are. One that ends after the snapshot was taken keeps its locks until its rows are visible,
-- so the next statement sees them.
CREATE FUNCTION oldest_writer() RETURNS xid8 LANGUAGE sql STABLE
RETURN (SELECT min(running.id) FROM pg_snapshot_xip(pg_current_snapshot()) AS running (id)
        WHERE running.id::xid = ANY (ARRAY (
            SELECT transactionid FROM pg_locks
            WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock'
              AND virtualtransaction = ANY (ARRAY (
                  SELECT virtualtransaction FROM pg_locks
                  WHERE mode = 'RowExclusiveLock'
                    AND relation IN ('placements'::regclass, 'deliveries'::regclass, 'topup_changes'::regclass)
                    AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))))));
