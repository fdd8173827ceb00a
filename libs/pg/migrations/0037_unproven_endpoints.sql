-- serves: 24
-- A sandbox account is free, and one small order of it makes thousands of webhooks. So an endpoint whose host such an account
-- has chosen itself gets one webhook at a time and at most one a second, until its host has proved that it wants them: it
-- returns the code of a test. Endpoints that exist already count as proven, and so do those of live accounts and those whose
-- URL an operator has set.

-- Since when the endpoint has a host that has not proved itself; null if it has, or need not. `blocked_until` is never null
-- then: it is the time of the next webhook, so that claims need no rule of their own. A notifier of an older schema forgets
-- that time when the endpoint acknowledges something, and then sends at the full rate.
ALTER TABLE endpoints ADD COLUMN unproven_since timestamptz,
    ADD CONSTRAINT endpoints_unproven_bounds CHECK (
        unproven_since BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00') NOT VALID;
