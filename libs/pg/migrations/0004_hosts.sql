-- serves: 1
-- contract: pulses_bounds is added again at once, and allows the same and the new column.
--
-- The name of the host of a process, which in a pod is that of the pod, so that people are told which of several has died. Null
-- if it is not known, as of programs that do not know the column.
ALTER TABLE pulses
    ADD COLUMN host text,
    DROP CONSTRAINT pulses_bounds,
    ADD CONSTRAINT pulses_bounds CHECK (
        least(at, started_at, no_nats_since, clock_off_since, nats_refused_since) >= '0001-01-01 00:00:00+00'
        AND greatest(at, started_at, no_nats_since, clock_off_since, nats_refused_since) <= '9999-12-31 00:00:00+00'
        -- What is refused are words of ours: a stolen role of a stage tells operators nothing else by it.
        AND (nats_refused IS NULL OR nats_refused ~ '^((publish|subscribe|ask) [A-Z_]{1,20}(, |$))+$')
        AND clock_ahead BETWEEN -1e12 AND 1e12
        AND (host IS NULL OR host ~ '^[A-Za-z0-9._-]{1,253}$')
        AND octet_length(stage) <= 100000) NOT VALID;
