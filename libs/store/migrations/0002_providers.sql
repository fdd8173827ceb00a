-- The breaker of each provider, for every replica and the operator. Provisioners write a row when they
-- start. Until it has closed again, nothing of the provider's queue is taken up but a probe.
CREATE TABLE providers (
    name text PRIMARY KEY,
    -- Null: closed. Otherwise one placement may be tried after this.
    open_until timestamptz,
    -- Why it opened, or what failed last.
    reason text,
    -- Calls that failed in a row.
    failures integer NOT NULL DEFAULT 0,
    -- How often it has opened in a row: each time for longer.
    openings integer NOT NULL DEFAULT 0,
    -- Bumped whenever it opens, closes or lets a probe through: a call that began at another version
    -- says nothing about this one.
    version bigint NOT NULL DEFAULT 1,
    changed_at timestamptz NOT NULL DEFAULT now()
);

ALTER TABLE placements
    -- Answers in a row that left it open how this attempt stands.
    ADD COLUMN unknowns integer NOT NULL DEFAULT 0,
    -- The look to which a provider's callback last moved `redrive_at` forward.
    ADD COLUMN hinted_at timestamptz;

DROP INDEX placements_parked;
CREATE INDEX placements_parked ON placements (provider, created_at) WHERE state = 'parked';
