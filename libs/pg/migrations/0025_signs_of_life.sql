-- serves: 18
-- What people are told about the system (docs/decisions/0035-fewer-kinds-one-truth.md): since when a provider has failed, and
-- how many processes of a stage are missing. Programs of older schemas write neither column; readers allow for that.

-- Since when the breaker has not been closed. `changed_at` begins anew with each probe, so it says nothing of how long the
-- provider has failed.
ALTER TABLE providers ADD COLUMN failing_since timestamptz;

ALTER TABLE pulses
    -- When the process began. A process that has died is missed until another one has begun after it.
    ADD COLUMN started_at timestamptz NOT NULL DEFAULT now(),
    -- Whether the process has ended in an orderly way, so that nobody misses it. The row stays, because the newest pulse of
    -- all says whether commits were replicated.
    ADD COLUMN stopped boolean NOT NULL DEFAULT false;

CREATE OR REPLACE FUNCTION commits_lost(why text, new_timeline bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF new_timeline IS NOT NULL THEN
        INSERT INTO commit_losses (timeline, told) VALUES (new_timeline, why) ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
    END IF;
    UPDATE providers
    SET reason = why || coalesce(' (open before: ' || reason || ')', ''), open_until = '9999-12-31 00:00:00+00',
        version = version + 1000000, changed_at = now(),
        failing_since = CASE WHEN open_until IS NULL THEN now() ELSE coalesce(failing_since, now()) END;
    RETURN true;
END
$$;
