-- serves: 24
-- Figures by the time of the event (docs/decisions/0035-fewer-kinds-one-truth.md), which replace `hourly`. Programs of older
-- schemas go on writing `hourly`, which nobody reads any more; it is dropped once no such program can run beside this one.

-- Each process adds to rows of its own once in ten seconds, so nobody waits for anybody, and no order pays for it.
CREATE TABLE minutely (
    -- `minute` or `hour`: each write adds to both.
    span text NOT NULL,
    -- The beginning of the minute or hour in which the events happened.
    at timestamptz NOT NULL,
    -- A name of `store::figures::Measure`.
    measure text NOT NULL,
    -- A provider's name or an endpoint's id; empty for the others, and for what a process had no room for.
    subject text NOT NULL,
    -- The process.
    instance uuid NOT NULL,
    n bigint NOT NULL,
    failed bigint NOT NULL,
    -- How many events took how long, by `store::figures::BOUNDS`.
    histogram bigint[] NOT NULL,
    PRIMARY KEY (span, at, measure, subject, instance),
    CONSTRAINT minutely_bounds CHECK (
        at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
        AND greatest(octet_length(span), octet_length(measure), octet_length(subject), pg_column_size(histogram)) <= 100000
        -- What our programs can read.
        AND array_ndims(histogram) = 1 AND array_position(histogram, NULL) IS NULL)
);
