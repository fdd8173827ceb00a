-- serves: 1
-- Access keys of partners that have ended. A request with one of them gets the same 401 as one with an invented key, but it is
-- known whose it was, so it counts as a request of this partner. Of each partner the newest 20 are kept, and nobody but the
-- triggers below and the end of an overlap adds one, so that a stranger cannot fill the table. No secret key is kept.
CREATE TABLE ended_keys (
    access_key text CONSTRAINT ended_keys_pkey PRIMARY KEY,
    partner_id uuid NOT NULL REFERENCES partners,
    -- The name of a further key; null for a first key of the partner.
    name text,
    ended_at timestamptz NOT NULL,
    -- When requests named it after its end: the first time, and the last time to the minute.
    used_since timestamptz,
    used_at timestamptz,
    CONSTRAINT ended_keys_bounds CHECK (
        least(ended_at, used_since, used_at) >= '0001-01-01 00:00:00+00'
        AND greatest(ended_at, used_since, used_at) <= '9999-12-31 00:00:00+00'
        AND greatest(octet_length(access_key), octet_length(name)) <= 100000)
);
CREATE INDEX ended_keys_partner ON ended_keys (partner_id);
CREATE POLICY all_rows ON ended_keys USING (true) WITH CHECK (true);

-- Runs with the privileges of its owner, so that whoever ends a key needs none for this table.
CREATE FUNCTION key_ended(of_partner uuid, key text, named text, at timestamptz) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS $$
    INSERT INTO ended_keys AS k (access_key, partner_id, name, ended_at)
    SELECT key, of_partner, named, greatest(least(at, now()), '0001-01-01 00:00:00+00')
    ON CONFLICT (access_key) DO UPDATE SET partner_id = excluded.partner_id, name = excluded.name;
    DELETE FROM ended_keys WHERE access_key IN (
        SELECT access_key FROM ended_keys WHERE partner_id = of_partner ORDER BY ended_at DESC, access_key OFFSET 20);
$$;
REVOKE EXECUTE ON FUNCTION key_ended(uuid, text, text, timestamptz) FROM PUBLIC;

-- An erased partner keeps no key. One whose last key was ended has a placeholder in its place.
CREATE FUNCTION partner_key_ended() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF TG_TABLE_NAME = 'partner_keys' THEN
        IF EXISTS (SELECT FROM partners WHERE partner_id = OLD.partner_id AND erased_at IS NULL) THEN
            PERFORM key_ended(OLD.partner_id, OLD.access_key, OLD.name, now());
        END IF;
        RETURN NULL;
    END IF;
    IF NEW.erased_at IS NOT NULL THEN
        DELETE FROM ended_keys WHERE partner_id = NEW.partner_id;
        RETURN NULL;
    END IF;
    IF OLD.access_key <> NEW.access_key AND OLD.access_key IS DISTINCT FROM NEW.old_access_key
       AND NOT starts_with(OLD.access_key, 'ended-') THEN
        PERFORM key_ended(OLD.partner_id, OLD.access_key, NULL, now());
    END IF;
    IF OLD.old_access_key <> NEW.access_key AND OLD.old_access_key IS DISTINCT FROM NEW.old_access_key THEN
        PERFORM key_ended(OLD.partner_id, OLD.old_access_key, NULL, OLD.old_keys_until);
    END IF;
    -- A key that is given again has not ended.
    DELETE FROM ended_keys WHERE access_key = NEW.access_key;
    RETURN NULL;
END
$$;
CREATE TRIGGER partner_key_ended AFTER DELETE ON partner_keys
    FOR EACH ROW EXECUTE FUNCTION partner_key_ended();
CREATE TRIGGER partner_key_ended AFTER UPDATE OF access_key, old_access_key ON partners
    FOR EACH ROW EXECUTE FUNCTION partner_key_ended();
