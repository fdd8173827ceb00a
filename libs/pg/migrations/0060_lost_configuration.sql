-- serves: 55
-- The version of the configuration takes a leap after a loss of commits, as those of the breakers do: the versions of changes
-- that were lost are given out again, and a notifier that has read its endpoints at one of them must not take them for
-- current.
CREATE OR REPLACE FUNCTION commits_lost(process uuid, acknowledged bigint, new_timeline bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    timeline bigint := ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint;
    never CONSTANT timestamptz := '9999-12-31 00:00:00+00';
    why text;
    opened bigint;
BEGIN
    IF new_timeline <> timeline THEN
        RAISE EXCEPTION 'the server is on timeline %, so no loss before timeline % can be known', timeline, new_timeline
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    why := CASE
        WHEN acknowledged IS NOT NULL THEN format(
            'commits were lost: the database has pulse %s of process %s, and pulse %s was acknowledged',
            coalesce((SELECT number FROM pulses WHERE instance = process), 0), process, acknowledged)
        WHEN new_timeline IS NOT NULL THEN format(
            'commits may be lost: the timeline is %s now, and commits did not wait for a standby before', new_timeline)
        ELSE 'commits were lost'
    END || format(' (%s says so)', session_user);
    IF new_timeline IS NOT NULL THEN
        INSERT INTO commit_losses (timeline, told) VALUES (new_timeline, why) ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
    END IF;
    SELECT count(*) INTO opened FROM providers WHERE open_until IS DISTINCT FROM never;
    UPDATE providers
    SET reason = CASE WHEN open_until = never THEN reason
                      ELSE why || coalesce(' (open before: ' || left(reason, 1000) || ')', '') END,
        open_until = never, version = (version + 1000000) % 9000000000000000000, changed_at = now(),
        failing_since = CASE WHEN open_until IS NULL THEN now() ELSE coalesce(failing_since, now()) END;
    UPDATE system SET version = version + 1000000;
    IF opened > 0 THEN
        INSERT INTO operator_actions (action_id, operator, database_role, command, target, affected, reason)
        VALUES (gen_random_uuid(), session_user, session_user, 'commit fence', 'all providers', opened, why);
    END IF;
    RETURN true;
END
$$;
