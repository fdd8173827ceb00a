-- serves: 63
-- contract: a constraint comes back in the same transaction, wider by the new columns, which no older program writes
-- What the pulse of a process tells of it besides: how far PostgreSQL's clock is ahead of its own, if that is so far
-- that it does not work; and what NATS refuses to it for lack of a permission. Both since when.
ALTER TABLE pulses
    ADD COLUMN clock_ahead double precision,
    ADD COLUMN clock_off_since timestamptz,
    ADD COLUMN nats_refused text,
    ADD COLUMN nats_refused_since timestamptz;
ALTER TABLE pulses DROP CONSTRAINT pulses_bounds;
ALTER TABLE pulses ADD CONSTRAINT pulses_bounds CHECK (
    least(at, started_at, no_nats_since, clock_off_since, nats_refused_since) >= '0001-01-01 00:00:00+00'
    AND greatest(at, started_at, no_nats_since, clock_off_since, nats_refused_since) <= '9999-12-31 00:00:00+00'
    -- What is refused are words of ours: a stolen role of a stage tells operators nothing else by it.
    AND (nats_refused IS NULL OR nats_refused ~ '^((publish|subscribe|ask) [A-Z_]{1,20}(, |$))+$')
    AND octet_length(stage) <= 100000) NOT VALID;
