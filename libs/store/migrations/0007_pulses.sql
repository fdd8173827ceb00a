-- serves: 6
-- How the stages notice that commits were lost (docs/decisions/0026-any-server-lost.md).

-- The pulse of each process: a row that it commits once a second. If the row is older than the last pulse whose commit
-- was acknowledged to the process, the server has lost commits, and probably those of purchases, too.
CREATE TABLE pulses (
    -- The process.
    instance uuid PRIMARY KEY,
    stage text NOT NULL,
    -- Grows with each pulse.
    number bigint NOT NULL,
    at timestamptz NOT NULL
);

-- Opens the breakers of all providers until an operator closes them, because the database has forgotten purchases and
-- would let them be made again. The function has the owner's rights, so that every stage can stop the buying, although
-- only provisioners and operators may change breakers in other ways.
CREATE FUNCTION commits_lost(told text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS $$
    UPDATE providers
    SET open_until = '9999-12-31 00:00:00+00', reason = told, version = version + 1, changed_at = now()
$$;
REVOKE EXECUTE ON FUNCTION commits_lost(text) FROM PUBLIC;
