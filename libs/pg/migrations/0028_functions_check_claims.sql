-- serves: 24
-- A function with the owner's rights checks what its caller claims, as far as the database can, and makes the change that it
-- guards itself, so that the role of its caller can do no more than the function does.

-- The commit fence. The one who calls it says that the server has forgotten commits. The database cannot check that within a
-- timeline, because it is the one that has forgotten; every stage may therefore stop the buying. It says so under its own name:
-- the reason is made here, the role is part of it, and a row in `operator_actions` records it. A timeline is checked, because
-- a loss that is claimed before it happens would hide the real one: each timeline is acted on once.
-- The version takes a leap, because the versions of changes that were lost are given out again, and calls that began at one of
-- them must not close the breaker. It begins anew at 9 * 10^18, so that no stored version can make the fence fail.
CREATE FUNCTION commits_lost(process uuid, acknowledged bigint, new_timeline bigint) RETURNS boolean
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
    IF opened > 0 THEN
        INSERT INTO operator_actions (action_id, operator, database_role, command, target, affected, reason)
        VALUES (gen_random_uuid(), session_user, session_user, 'commit fence', 'all providers', opened, why);
    END IF;
    RETURN true;
END
$$;
REVOKE EXECUTE ON FUNCTION commits_lost(uuid, bigint, bigint) FROM PUBLIC;

-- Programs of schema 24 call this one. What they write as the reason is left out, because nothing vouches for it.
CREATE OR REPLACE FUNCTION commits_lost(why text, new_timeline bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    RETURN commits_lost(NULL::uuid, NULL::bigint, new_timeline);
END
$$;

-- Ends a parked give-back as an operator has found it at the provider, and erases the profile of an eSIM that the provider has
-- back. Whoever resolves give-backs needs no right to change their rows, so it cannot make one that nobody has asked for, nor
-- erase the profile of an eSIM of another one. Returns false if the give-back is not parked after this attempt.
CREATE FUNCTION resolve_give_back(resolved_topup text, after_attempt integer, is_returned boolean) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    UPDATE esim_requests
    SET give_back = CASE WHEN is_returned THEN 'returned' ELSE 'refused' END, ended_at = now(), reason = 'resolved',
        message = NULL, not_returned_at = NULL
    WHERE topup_id = resolved_topup AND give_back = 'parked' AND attempt = after_attempt;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM mark_returned(resolved_topup);
    RETURN true;
END
$$;
REVOKE EXECUTE ON FUNCTION resolve_give_back(text, integer, boolean) FROM PUBLIC;
