-- serves: 5
-- What the provisioners know of the providers: breakers, lanes that wait, and shares of rate limits.

-- The breaker of each provider, for every replica and for operators. Provisioners insert the row when they start.
-- While the breaker is not closed, nothing of the provider is claimed except one probe at a time.
CREATE TABLE providers (
    name text PRIMARY KEY,
    -- Null: closed. Otherwise one placement may probe the provider after this time.
    open_until timestamptz,
    -- Why it opened, or what failed last.
    reason text,
    -- How often failed calls have opened it since the last response. Each time it stays open for longer.
    openings integer NOT NULL DEFAULT 0,
    -- Grows whenever the breaker opens, closes or lets a probe through. A call that began at another version says
    -- nothing about this one.
    version bigint NOT NULL DEFAULT 1,
    changed_at timestamptz NOT NULL DEFAULT now()
);

-- Lanes whose purchases a provisioner holds back, and why, for operators. Each process writes its own rows, at most
-- once a second, and only of lanes that fail.
CREATE TABLE provider_lanes (
    provider text NOT NULL,
    lane text NOT NULL,
    instance text NOT NULL,
    -- How many purchases of the lane may be in flight in this process.
    max_in_flight integer NOT NULL,
    -- Attempts of the lane that were sent and whose outcome is unknown, in all processes.
    unsettled integer NOT NULL,
    -- The last failure.
    reason text NOT NULL,
    since timestamptz NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (provider, lane, instance)
);

-- The replicas that call a provider with a rate limit, each with the part of it that it holds until then.
CREATE TABLE provider_replicas (
    provider text NOT NULL,
    instance text NOT NULL,
    -- Calls per second.
    share double precision NOT NULL,
    until timestamptz NOT NULL,
    PRIMARY KEY (provider, instance)
);
