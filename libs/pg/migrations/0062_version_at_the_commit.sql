-- serves: 60
-- contract: the function takes a name for what it does now; only triggers call it, and they follow it
-- The version of the configuration is raised at the commit by every change, so that nobody waits for a long one. Until now a
-- transaction that changed a partner or an option locked the one row of `system` from its first change to its end, and a
-- notifier that recorded a block or a recovery meanwhile waited at its commit, and with it every webhook that it had sent.
--
-- Two numbers were one. The version in `system` only says that something has changed. It is raised once in each transaction
-- that changes a partner, an option or an endpoint, by triggers that run at the commit, so its row is locked last and shortly.
-- The version in each row of a partner or an option is for readers that ask for everything after the newest that they have
-- seen, so changes have to become visible in its order. It comes from a sequence now, under a lock that only changes of
-- partners and options take. PostgreSQL releases it after the commit is visible.
CREATE SEQUENCE configuration_versions;

CREATE FUNCTION next_version_of_row() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_xact_lock('options'::regclass::bigint);
    RETURN nextval('configuration_versions');
END
$$;
CREATE OR REPLACE FUNCTION next_configuration_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- This changes nothing and locks nothing. It fails for a role that may not raise the version: notifiers have a privilege
    -- on partners only to lock their rows.
    UPDATE system SET version = version WHERE false;
    NEW.version := next_version_of_row();
    RETURN NEW;
END
$$;

ALTER FUNCTION endpoint_changed() RENAME TO configuration_changed;
CREATE OR REPLACE FUNCTION configuration_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    -- Once is enough for a transaction that changes a thousand options. The setting ends with the transaction.
    IF current_setting('esim.version_raised', true) IS DISTINCT FROM 'yes' THEN
        UPDATE system SET version = version + 1;
        PERFORM set_config('esim.version_raised', 'yes', true);
    END IF;
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER partner_changed AFTER INSERT OR UPDATE ON partners DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    EXECUTE FUNCTION configuration_changed();
CREATE CONSTRAINT TRIGGER option_changed AFTER INSERT OR UPDATE ON options DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    EXECUTE FUNCTION configuration_changed();

-- The triggers above have locked both tables, so no change is under way that took its version from `system`.
SELECT setval('configuration_versions', greatest(version, 1)) FROM system;

-- The versions of the rows take a leap after a loss of commits, too.
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
    PERFORM setval('configuration_versions', nextval('configuration_versions') + 1000000);
    IF opened > 0 THEN
        INSERT INTO operator_actions (action_id, operator, database_role, command, target, affected, reason)
        VALUES (gen_random_uuid(), session_user, session_user, 'commit fence', 'all providers', opened, why);
    END IF;
    RETURN true;
END
$$;
