-- serves: 1
-- contract: esim_requests_bounds is added again at once, and allows the same and the new columns; work of the new kind is seen by
-- provisioners only, and older ones ask for their own kinds.
--
-- Suspending a delivered eSIM, so that it is no longer of use until it is resumed. Suspending and resuming are one change with two
-- wishes: it is asked for anew as often as the partner wants, and moves by `domain::esim_change`, as a give-back does.
ALTER TABLE esim_requests
    -- What the partner wants: true to suspend the eSIM, false to resume it.
    ADD COLUMN suspend boolean,
    -- `asked`, `sending`, `done`, `refused` or `parked`; null if it was never asked for. A parked one waits for nobody: a repeat
    -- does no harm, so its partner asks again.
    ADD COLUMN suspension text,
    ADD COLUMN suspension_asked_at timestamptz,
    -- The last attempt. Attempts are counted on from one wish to the next.
    ADD COLUMN suspension_attempt integer NOT NULL DEFAULT 0,
    ADD COLUMN suspension_attempted_at timestamptz,
    -- When a look after that attempt first found the eSIM as it was.
    ADD COLUMN suspension_not_done_at timestamptz,
    -- Why it was refused or parked: a code, and what the provider said.
    ADD COLUMN suspension_reason text,
    ADD COLUMN suspension_message text,
    ADD COLUMN suspension_ended_at timestamptz,
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
                     octet_length(suspension), octet_length(suspension_reason), octet_length(suspension_message)) <= 100000
        AND plan BETWEEN 1 AND 1000000000) NOT VALID;

-- The work that is about a topup and no delivery or placement.
CREATE OR REPLACE FUNCTION work_of_topup(topup_id text) RETURNS uuid[] LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT ARRAY[derived_id('erase', topup_id), derived_id('usage', topup_id), derived_id('report', topup_id),
                   derived_id('offers', topup_id), derived_id('give_back', topup_id), derived_id('extend', topup_id),
                   derived_id('suspend', topup_id)] $$;

ALTER POLICY work_of_stage ON work
    WITH CHECK (CASE current_user WHEN 'esim_provisioner' THEN kind NOT IN ('erase', 'moved', 'resend', 'notices')
                                  WHEN 'esim_notifier' THEN kind IN ('deliver', 'erase', 'moved', 'resend', 'notices')
                                  WHEN 'esim_ingress' THEN kind IN ('deliver', 'usage', 'give_back', 'extend', 'suspend')
                                  ELSE true END);
