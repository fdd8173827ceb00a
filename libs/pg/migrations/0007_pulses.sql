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
    -- The timeline of the server, which grows with each promotion.
    timeline bigint NOT NULL,
    -- Whether commits waited for a standby.
    replicated boolean NOT NULL,
    at timestamptz NOT NULL
);
-- A process that has just started reads the newest pulse of all.
CREATE INDEX pulses_at ON pulses (at);

-- The timelines at whose beginning commits may have been lost. Each is acted on once, so that a process that notices it
-- late does not open breakers that an operator has closed meanwhile.
CREATE TABLE commit_losses (
    timeline bigint PRIMARY KEY,
    told text NOT NULL,
    at timestamptz NOT NULL DEFAULT now()
);

-- Opens the breakers of all providers until an operator closes them, because the database has forgotten purchases and
-- would let them be made again. Returns false if that was done before for this timeline; null stands for a loss within
-- a timeline. The version takes a leap, because the versions of changes that were lost are given out again, and calls
-- that began at one of them must not close the breaker.
-- The function has the owner's rights, so that every stage can stop the buying, although only provisioners and operators
-- may change breakers in other ways.
CREATE FUNCTION commits_lost(why text, new_timeline bigint) RETURNS boolean
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
        version = version + 1000000, changed_at = now();
    RETURN true;
END
$$;
REVOKE EXECUTE ON FUNCTION commits_lost(text, bigint) FROM PUBLIC;
