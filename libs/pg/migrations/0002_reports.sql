-- serves: 1
-- contract: esim_requests_bounds is added again at once, and allows the same and the new column.
--
-- A report of a provider whose confirming call fails is confirmed later, and one eSIM has at most 100 reports. A report waits
-- in a row of `work` of its own, `report`, beside the one of a partner's question, so that a failure is told only to a partner
-- who has asked. Programs of schema 1 throw that row away, so that a report of the minutes of an upgrade may stay unconfirmed.

ALTER TABLE esim_requests
    -- Since when a report of the provider waits for an answer that confirms it. Null if none does, or if that was given up.
    ADD COLUMN reported_at timestamptz,
    -- How many reports of this eSIM are kept.
    ADD COLUMN reports integer NOT NULL DEFAULT 0,
    DROP CONSTRAINT esim_requests_bounds,
    ADD CONSTRAINT esim_requests_bounds CHECK (
        least(usage_asked_at, ends_at, read_at, as_of, usage_failed_at, reported_at, give_back_asked_at, attempted_at,
              not_returned_at, ended_at) >= '0001-01-01 00:00:00+00'
        AND greatest(usage_asked_at, ends_at, read_at, as_of, usage_failed_at, reported_at, give_back_asked_at, attempted_at,
                     not_returned_at, ended_at) <= '9999-12-31 00:00:00+00'
        AND greatest(octet_length(topup_id), octet_length(provider), octet_length(usage_failure), octet_length(give_back),
                     octet_length(reason), octet_length(message)) <= 100000) NOT VALID;

-- The work that is about a topup and no delivery or placement.
CREATE OR REPLACE FUNCTION work_of_topup(topup_id text) RETURNS uuid[] LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT ARRAY[derived_id('erase', topup_id), derived_id('usage', topup_id), derived_id('report', topup_id),
                   derived_id('give_back', topup_id)] $$;

-- Keeps what a provider reported of a delivered eSIM, which it names by its own id or by the ICCID, or of our account if it
-- names none. Nothing of a report is believed: it makes a question about the use of the eSIM due, whose answer is. A report
-- that comes again changes nothing. An eSIM of which something was read a moment ago is asked for when that is five minutes
-- old, as for its partner, so reports cost the provider one call in that time, however many they are. Of one eSIM 100 reports
-- are kept, so that nobody fills the history; later ones only ask.
-- Returns false if the report is not kept, or was kept before, and null if no eSIM of ours is delivered by that name. The
-- provisioner may call it and needs no right to lock an order. The lock keeps the order out of archives and erasures, as for a
-- question of a partner; an eSIM that was sold under the ICCID of an earlier one is the later one.
CREATE OR REPLACE FUNCTION report_of_esim(of_provider text, of_unit text, of_iccid text, report text, words text)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    about record;
    is_full boolean := false;
BEGIN
    SELECT e.topup_id, p.placement_id, p.order_id, p.partner_id INTO about
    FROM esims e
    JOIN topups t ON t.topup_id = e.topup_id
    JOIN placements p ON p.placement_id = t.placement_id
    JOIN orders o ON o.order_id = p.order_id
    WHERE e.topup_id = coalesce(
            (SELECT u.topup_id FROM esims u WHERE u.provider = of_provider AND u.provider_unit_id = of_unit),
            (SELECT i.topup_id FROM esims i WHERE i.iccid = of_iccid AND i.provider = of_provider
             ORDER BY i.ready_at DESC, i.topup_id DESC LIMIT 1))
      AND e.ready_at IS NOT NULL AND e.erased_at IS NULL AND e.returned_at IS NULL
    FOR KEY SHARE OF o;
    IF NOT FOUND AND coalesce(of_unit, of_iccid) IS NOT NULL THEN
        RETURN NULL;
    END IF;
    IF about.topup_id IS NOT NULL THEN
        INSERT INTO esim_requests (topup_id, partner_id, provider) VALUES (about.topup_id, about.partner_id, of_provider)
        ON CONFLICT DO NOTHING;
        SELECT reports >= 100 INTO is_full FROM esim_requests WHERE topup_id = about.topup_id FOR UPDATE;
    END IF;
    IF NOT is_full THEN
        INSERT INTO history (history_id, order_id, placement_id, topup_id, provider, kind, detail)
        VALUES (derived_id('reported', of_provider || ' ' || report), about.order_id, about.placement_id, about.topup_id,
                of_provider, 'reported', left(words, 200))
        ON CONFLICT DO NOTHING;
        IF NOT FOUND OR about.topup_id IS NULL THEN
            RETURN FOUND;
        END IF;
        UPDATE esim_requests SET reports = reports + 1 WHERE topup_id = about.topup_id;
    END IF;
    INSERT INTO work (id, kind, provider, lane, partner_id, at)
    SELECT derived_id('report', r.topup_id), 'usage', r.provider, r.topup_id, r.partner_id,
           greatest(now(), r.read_at + interval '5 minutes')
    FROM esim_requests r WHERE r.topup_id = about.topup_id
    ON CONFLICT DO NOTHING;
    -- One that waits already keeps its age.
    IF FOUND THEN
        UPDATE esim_requests SET reported_at = now() WHERE topup_id = about.topup_id;
    END IF;
    RETURN NOT is_full;
END
$$;
