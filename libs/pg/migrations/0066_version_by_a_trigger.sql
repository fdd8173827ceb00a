-- serves: 63
-- The version of a row is taken by the triggers of partners and options only. A role that called the function itself would
-- keep every change of them waiting until the end of its transaction.
CREATE OR REPLACE FUNCTION next_version_of_row() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF pg_trigger_depth() = 0 THEN
        RAISE EXCEPTION 'only a trigger takes the version of a row' USING ERRCODE = 'insufficient_privilege';
    END IF;
    PERFORM pg_advisory_xact_lock('options'::regclass::bigint);
    RETURN nextval('configuration_versions');
END
$$;
