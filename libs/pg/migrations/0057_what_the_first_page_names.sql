-- serves: 55
-- contract: two constraints come back in the same transaction, wider by the new columns, which no older program writes
-- Since when a process has been without NATS, as its pulse tells. So the first page of the console, which
-- needs no NATS, can say that it is down. The version before leaves the column empty.
ALTER TABLE pulses ADD COLUMN no_nats_since timestamptz;
ALTER TABLE pulses DROP CONSTRAINT pulses_bounds;
ALTER TABLE pulses ADD CONSTRAINT pulses_bounds CHECK (
    least(at, started_at, no_nats_since) >= '0001-01-01 00:00:00+00'
    AND greatest(at, started_at, no_nats_since) <= '9999-12-31 00:00:00+00'
    AND octet_length(stage) <= 100000) NOT VALID;

-- Whether a provider has denied our account, which does not end by itself, and what it has told of our
-- balance. The version before writes neither.
ALTER TABLE providers
    ADD COLUMN denied boolean NOT NULL DEFAULT false,
    ADD COLUMN balance text,
    ADD COLUMN balance_at timestamptz;
ALTER TABLE providers DROP CONSTRAINT providers_bounds;
ALTER TABLE providers ADD CONSTRAINT providers_bounds CHECK (
    least(open_until, changed_at, failing_since, balance_at) >= '0001-01-01 00:00:00+00'
    AND greatest(open_until, changed_at, failing_since, balance_at) <= '9999-12-31 00:00:00+00'
    AND greatest(octet_length(name), octet_length(reason), octet_length(balance)) <= 100000
    AND openings BETWEEN 0 AND 1000000000
    AND version BETWEEN 0 AND 9000000000000000000) NOT VALID;
