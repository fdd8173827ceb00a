-- serves: 1
-- Further keys of partners, for people and programs. The pair of the specification stays in `partners` and is the first key; it
-- has all rights. A further key leads to the same partner, with some of the rights. One that ends is deleted; the record of
-- what partners and operators changed keeps its name.
CREATE TABLE partner_keys (
    key_id uuid CONSTRAINT partner_keys_pkey PRIMARY KEY,
    partner_id uuid NOT NULL REFERENCES partners,
    name text NOT NULL,
    access_key text NOT NULL CONSTRAINT partner_keys_access_key_key UNIQUE,
    -- Encrypted under a master key and bound to the row and its partner.
    secret_key bytea NOT NULL,
    -- Names of `domain::Right`.
    rights text[] NOT NULL,
    -- From where it may be used, as networks and addresses; empty: from everywhere.
    networks text[] NOT NULL DEFAULT '{}',
    -- How many units it may order in a day of UTC; null: any number.
    units_per_day integer CONSTRAINT partner_keys_units_per_day CHECK (units_per_day >= 0),
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT partner_keys_bounds CHECK (
        created_at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
        AND greatest(octet_length(name), octet_length(access_key), octet_length(secret_key), pg_column_size(rights),
                     pg_column_size(networks)) <= 100000)
);
CREATE INDEX partner_keys_partner ON partner_keys (partner_id);
CREATE POLICY all_rows ON partner_keys USING (true) WITH CHECK (true);

-- What keys are used for. It is a table of its own, because each ingress reads a row of `partner_keys` again when it changes.
-- The first key of a partner has the id of the partner; there is no reference, because both kinds of keys stand here.
CREATE TABLE partner_key_uses (
    key_id uuid CONSTRAINT partner_key_uses_pkey PRIMARY KEY,
    -- When a request was signed with it, to the minute.
    last_used_at timestamptz,
    -- When the day of UTC began, and the units of the orders that were stored with it on it; only of keys with a limit.
    day timestamptz,
    units bigint NOT NULL DEFAULT 0,
    CONSTRAINT partner_key_uses_bounds CHECK (
        last_used_at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
        AND day BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00')
);
CREATE POLICY all_rows ON partner_key_uses USING (true) WITH CHECK (true);

-- Ingress keeps a partner with all its keys in memory and reads it again when its row has a new version, so a changed key gives
-- its partner one. This runs with the privileges of whoever changes the key, who may change the partner's own keys as well.
-- The new version also takes the lock of all such changes, so that of two equal access keys the later one is found here.
CREATE FUNCTION partner_key_changed() RETURNS trigger
LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
BEGIN
    UPDATE partners SET old_access_key = old_access_key WHERE partner_id = coalesce(NEW.partner_id, OLD.partner_id);
    IF EXISTS (SELECT FROM partners WHERE access_key = NEW.access_key)
       OR EXISTS (SELECT FROM partners WHERE old_access_key = NEW.access_key) THEN
        RAISE EXCEPTION 'the access key is the one of a partner' USING ERRCODE = 'unique_violation',
            CONSTRAINT = 'partner_keys_access_key_key';
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER partner_key_changed AFTER INSERT OR UPDATE OR DELETE ON partner_keys
    FOR EACH ROW EXECUTE FUNCTION partner_key_changed();

CREATE FUNCTION partner_access_key_free() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM partner_keys WHERE access_key = NEW.access_key) THEN
        RAISE EXCEPTION 'the access key is a further key of a partner' USING ERRCODE = 'unique_violation',
            CONSTRAINT = 'partners_access_key_key';
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER partner_access_key_free AFTER INSERT OR UPDATE OF access_key ON partners
    FOR EACH ROW EXECUTE FUNCTION partner_access_key_free();
